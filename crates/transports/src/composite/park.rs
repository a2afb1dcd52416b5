//! Parking: a node sleeps on all its parts at once.

use rustix::fd::{AsFd as _, BorrowedFd};
use squall_fabric::Duration;

use super::CompositeFabric;
use crate::{PeerTraffic, Sleeper, TransportFabric, Waker, wait_readable};

impl CompositeFabric {
    /// Returns the parts that exist.
    fn sleepers(&mut self) -> impl Iterator<Item = &mut dyn Sleeper> {
        let Self { shm, verbs, tcp, .. } = self;
        let shm = std::iter::once(shm as &mut dyn Sleeper);
        let verbs = verbs.iter_mut().map(|part| part.as_mut() as &mut dyn Sleeper);
        let tcp = tcp.iter_mut().map(|part| part as &mut dyn Sleeper);
        shm.chain(verbs).chain(tcp)
    }

    /// Blocks until a part or a meeting has work, the waker was used, or the timeout has passed.
    fn sleep(&self, timeout: Option<Duration>) {
        // The waker is in the set of each part.
        if let Err(error) = wait_readable(&[self.bells.as_fd()], timeout) {
            panic!("ppoll failed, which only a bug can cause: {error}");
        }
    }
}

impl TransportFabric for CompositeFabric {
    fn prepare_park(&mut self) {
        self.sleepers().for_each(TransportFabric::prepare_park);
    }

    fn park(&mut self, timeout: Option<Duration>) {
        if !self.events.is_empty() {
            return;
        }
        let patience = self.meetings.patience();
        let mut limit =
            timeout.map_or(patience, |timeout| Some(patience.map_or(timeout, |least| least.min(timeout))));
        for part in self.sleepers() {
            let Some(shorter) = part.before_sleep(limit) else { return };
            limit = shorter;
        }
        self.sleep(limit);
        self.sleepers().for_each(Sleeper::after_sleep);
    }

    fn unpark(&mut self) {
        self.sleepers().for_each(TransportFabric::unpark);
    }

    fn yielded(&mut self) {
        self.sleepers().for_each(TransportFabric::yielded);
    }

    fn flush(&mut self) {
        self.sleepers().for_each(TransportFabric::flush);
    }

    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        let shm = [self.shm.readiness().1, self.meetings.patience()].into_iter();
        let verbs = self.verbs.iter().map(|part| part.readiness().1);
        let tcp = self.tcp.iter().map(|part| part.readiness().1);
        (self.bells.as_fd(), shm.chain(verbs).chain(tcp).flatten().min())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn traffic(&self, each: &mut dyn FnMut(PeerTraffic)) {
        if let Some(part) = &self.verbs {
            part.traffic(each);
        }
        if let Some(part) = &self.tcp {
            part.traffic(each);
        }
    }
}
