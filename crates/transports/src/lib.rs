//! The real fabrics: shared memory on one host, TCP and RDMA verbs between hosts, behind [`squall_fabric::Fabric`];
//! the runner that drives protocol cores on them; and the bootstrap by which members find and trust each other.

mod adopted;
pub mod barrier;
pub mod bootstrap;
mod clock;
pub mod composite;
mod pages;
pub mod runner;
pub mod session;
pub mod shm;
mod shortage;
mod slot_map;
pub mod tcp;
pub mod verbs;
mod waker;

pub use crate::waker::Waker;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use squall_fabric::{Duration, Fabric};

/// Blocks until one of `fds` can be read, or for `timeout`.
///
/// # Errors
/// What the system says; an interruption is none.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> std::io::Result<()> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A fabric on a real machine: what a runner needs beyond [`Fabric`].
///
/// **Parking.** A runner that has found no work for a while calls [`TransportFabric::prepare_park`], polls its
/// cores *once more* (what peers or other threads stored before they could see the mark is visible by then),
/// and only if they are still idle calls [`TransportFabric::park`], which returns as soon as a peer rings, an event
/// is waiting, a [`Waker`] is used, or the time is over. In all cases it ends with [`TransportFabric::unpark`].
pub trait TransportFabric: Fabric {
    /// Tells all peers and wakers that they must ring when they have stored or sent something for us.
    fn prepare_park(&mut self);

    /// Blocks until there may be something to do, or for `timeout`.
    fn park(&mut self, timeout: Option<Duration>);

    /// Tells peers and wakers that this node polls again. Idempotent.
    fn unpark(&mut self);

    /// The runner gave the processor away between two polls, so time has passed, however few polls there were.
    fn yielded(&mut self) {}

    /// Sends and announces what was posted, as the next `poll` would: for who posts and then does something else.
    fn flush(&mut self);

    /// As [`TransportFabric::flush`], but answers to what came may wait for the next `poll`, for a fraction of a second at
    /// most: for who hands something over that is mostly answered at once, so that one message carries both.
    fn flush_own_posts(&mut self) {
        self.flush();
    }

    /// For who waits for several things at once instead of calling `park`, in its place: becomes readable when a
    /// peer has something for this node (not by a [`Waker`]); and how long to wait at most, whatever happens.
    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>);

    /// A handle by which any thread of this process ends a `park`.
    fn waker(&self) -> Waker;
}

/// The steps of [`TransportFabric::park`], for a node that sleeps on several transports at once.
trait Sleeper: TransportFabric {
    /// Sends what waits. `None` if there is something to do at once; else for how long to sleep, at most `timeout`.
    fn before_sleep(&mut self, timeout: Option<Duration>) -> Option<Option<Duration>>;

    /// Readable when there may be something to do. (A waker may ring beside it.)
    fn bell(&self) -> BorrowedFd<'_>;

    /// The sleep is over.
    fn after_sleep(&mut self);
}
