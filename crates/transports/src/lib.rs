//! The real fabrics: shared memory on one host, TCP and RDMA verbs between hosts, behind
//! [`squall_fabric::Fabric`]; the runner that drives protocol cores on them; and the bootstrap by which
//! members find and authenticate each other.

#[cfg(not(target_os = "linux"))]
compile_error!("squall-transports runs on Linux only: it needs memfd, eventfd and abstract Unix sockets");

mod adopted;
pub mod bootstrap;
mod clock;
pub mod composite;
pub mod http;
pub mod log;
pub mod pacing;
mod pages;
mod peer_process;
mod reserved;
pub mod runner;
pub mod session;
pub mod shm;
mod shortage;
mod slot_map;
pub mod tcp;
mod traffic;
pub mod verbs;
mod waker;
pub mod wakeups;

pub use crate::composite::Transport;
pub use crate::reserved::reserve_port;
pub use crate::traffic::PeerTraffic;
pub use crate::waker::Waker;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use squall_fabric::{Duration, Fabric};

/// Blocks until one of `fds` can be read, or for `timeout`. Returns false if the time has run out; otherwise one of
/// them can be read, or the wait was interrupted.
///
/// # Errors
/// Returns the system's error; an interruption is not an error.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> std::io::Result<bool> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// A fabric on a real machine: what a runner needs beyond [`Fabric`].
///
/// **Parking.** A runner that has found no work for a while calls [`TransportFabric::prepare_park`], polls
/// its cores *once more* (what peers or other threads stored before they could see the mark is visible by
/// then), and only if they are still idle calls [`TransportFabric::park`], which returns as soon as a peer
/// rings, an event is pending, a [`Waker`] is used, or the timeout has passed. In all cases it ends with
/// [`TransportFabric::unpark`].
pub trait TransportFabric: Fabric {
    /// Announces to all peers and wakers that they must ring when they have stored or sent something for this
    /// node.
    fn prepare_park(&mut self);

    /// Blocks until there may be work, or for `timeout`.
    fn park(&mut self, timeout: Option<Duration>);

    /// Announces to peers and wakers that this node polls again. Idempotent.
    fn unpark(&mut self);

    /// Notes that the runner yielded the processor between two polls, so time has passed even after few
    /// polls.
    fn yielded(&mut self) {}

    /// Sends and announces what was posted, as the next `poll` would: for callers that post and then do
    /// something else.
    fn flush(&mut self);

    /// Same as [`TransportFabric::flush`], but acknowledgements of what arrived may wait for the next `poll`,
    /// for a fraction of a second at most: for callers that deliver data that usually gets a reply at once,
    /// so that one message carries both.
    fn flush_own_posts(&mut self) {
        self.flush();
    }

    /// Returns a descriptor for callers that wait for several events at once instead of calling `park`: it
    /// becomes readable on all that ends a `park`, when a peer has something for this node and when a
    /// [`Waker`] is used; a caller that waits for it watches nothing else of this node. After a [`Waker`] it
    /// stays readable until `unpark`. Also returns the longest time to wait in any case.
    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>);

    /// Returns a handle with which any thread of this process ends a `park`.
    fn waker(&self) -> Waker;

    /// Calls `each` with what was carried between this node and each peer.
    fn traffic(&self, each: &mut dyn FnMut(PeerTraffic));
}

/// The steps of [`TransportFabric::park`], for a node that sleeps on several transports at once.
trait Sleeper: TransportFabric {
    /// Sends what is pending. Returns `None` if there is work at once; otherwise the time to sleep, at most
    /// `timeout`.
    fn before_sleep(&mut self, timeout: Option<Duration>) -> Option<Option<Duration>>;

    /// Returns a descriptor that is readable when there may be work, or a waker was used.
    fn bell(&self) -> BorrowedFd<'_>;

    /// Ends the sleep.
    fn after_sleep(&mut self);
}
