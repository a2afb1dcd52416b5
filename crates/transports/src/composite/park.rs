//! Parking: a node sleeps on all its parts at once.

use std::time::Duration as StdDuration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::io::Errno;
use squall_fabric::Duration;

use super::CompositeFabric;
use crate::{Sleeper, Transport, Waker};

impl CompositeFabric {
    /// The parts that are there.
    fn sleepers(&mut self) -> impl Iterator<Item = &mut dyn Sleeper> {
        let Self { shm, verbs, tcp, .. } = self;
        let shm = shm.iter_mut().map(|part| part as &mut dyn Sleeper);
        let verbs = verbs.iter_mut().map(|part| part.as_mut() as &mut dyn Sleeper);
        let tcp = tcp.iter_mut().map(|part| part as &mut dyn Sleeper);
        shm.chain(verbs).chain(tcp)
    }

    /// Puts the bells of all parts into one set, for [`Transport::readiness`].
    pub(super) fn watch_bells(&self) -> std::io::Result<()> {
        let shm = self.shm.iter().map(Sleeper::bell);
        let verbs = self.verbs.iter().map(|part| part.bell());
        for bell in shm.chain(verbs).chain(self.tcp.iter().map(Sleeper::bell)) {
            epoll::add(&self.bells, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Blocks until a part or the waker has something, or the time is over.
    fn sleep(&self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout: StdDuration| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut bells = vec![self.waker.doorbell()];
        bells.extend(self.shm.iter().map(Sleeper::bell));
        bells.extend(self.verbs.iter().map(|part| part.bell()));
        bells.extend(self.tcp.iter().map(Sleeper::bell));
        let mut bells: Vec<_> =
            bells.into_iter().map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)).collect();
        match poll(&mut bells, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("ppoll fails only for reasons that are bugs: {error}"),
        }
    }
}

impl Transport for CompositeFabric {
    fn prepare_park(&mut self) {
        self.sleepers().for_each(Transport::prepare_park);
    }

    fn park(&mut self, timeout: Option<Duration>) {
        let mut limit = timeout;
        for part in self.sleepers() {
            let Some(shorter) = part.before_sleep(limit) else { return };
            limit = shorter;
        }
        self.sleep(limit);
        self.sleepers().for_each(Sleeper::after_sleep);
    }

    fn unpark(&mut self) {
        self.sleepers().for_each(Transport::unpark);
    }

    fn yielded(&mut self) {
        self.sleepers().for_each(Transport::yielded);
    }

    fn flush(&mut self) {
        self.sleepers().for_each(Transport::flush);
    }

    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        let shm = self.shm.iter().map(|part| part.readiness().1);
        let verbs = self.verbs.iter().map(|part| part.readiness().1);
        let tcp = self.tcp.iter().map(|part| part.readiness().1);
        (self.bells.as_fd(), shm.chain(verbs).chain(tcp).flatten().min())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
