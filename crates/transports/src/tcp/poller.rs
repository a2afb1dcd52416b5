//! Readiness: which sockets have input or space for output, and how the node sleeps until then.
//!
//! The sockets are in one edge-triggered `epoll` set, so that one call per poll reports all of them, and a
//! poll that finds nothing costs one short call, whatever the number of peers. The peer remembers an edge
//! until a read or a write has found the end of the data or space. The doorbell of the node's waker is in the
//! set, too, so that the set alone is all that can wake the node; `unpark` silences it.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use squall_fabric::{Duration, Fabric};

use super::TcpFabric;
use super::peer::TcpPeer;
use super::reopening::PairCalls;
use super::socket::TcpSocket;
use crate::{PeerTraffic, Sleeper, TransportFabric, Waker, wait_readable};

/// The set of all sockets and the doorbell.
#[derive(Debug)]
pub(super) struct TcpPoller {
    set: OwnedFd,
}

impl TcpPoller {
    pub(super) fn new(waker: &Waker) -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, waker.doorbell(), EventData::new_u64(DOORBELL), EventFlags::IN)?;
        Ok(Self { set })
    }

    /// Watches the socket of the peer at `index`.
    pub(super) fn add(&self, socket: &TcpSocket, index: usize) -> io::Result<()> {
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.set, socket.fd(), EventData::new_u64(index as u64), edges)?)
    }

    /// Watches the sentinel of the peer at `index`.
    pub(super) fn add_sentinel(&self, stream: &TcpStream, index: usize) -> io::Result<()> {
        let edges = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.set, stream, EventData::new_u64(index as u64 | SENTINEL), edges)?)
    }

    /// Notes in the peers what has become possible since the last call; returns whether something has happened to sentinels.
    pub(super) fn poll(&self, peers: &mut [TcpPeer]) -> bool {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (ready, _) = match epoll::wait(&self.set, &mut events, Some(&no_time)) {
            Ok(split) => split,
            Err(Errno::INTR) => return false,
            Err(error) => panic!("epoll_wait failed, which only a bug can cause: {error}"),
        };
        let mut sentinels = false;
        for event in ready {
            // Silenced by `unpark`.
            if event.data.u64() == DOORBELL {
                continue;
            }
            let index = usize::try_from(event.data.u64() & !SENTINEL).expect("a peer's place");
            let peer = &mut peers[index];
            if event.data.u64() & SENTINEL != 0 {
                if let Some(reopening) = &mut peer.reopening {
                    reopening.sentinel.has_news = true;
                    sentinels = true;
                }
                continue;
            }
            // What an earlier connection still reported.
            if peer.socket.is_none() {
                continue;
            }
            let flags = event.flags;
            if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                peer.ended = true;
            }
            peer.readable |= peer.ended || flags.contains(EventFlags::IN);
            peer.writable |= flags.contains(EventFlags::OUT);
        }
        sentinels
    }

    /// Blocks until a socket is ready, the doorbell rings or the timeout has passed.
    fn wait(&self, timeout: Option<Duration>) {
        if let Err(error) = wait_readable(&[self.set.as_fd()], timeout) {
            panic!("ppoll failed, which only a bug can cause: {error}");
        }
    }
}

impl TransportFabric for TcpFabric {
    fn prepare_park(&mut self) {
        self.poll_output(TcpPeer::poll_output);
        self.waker.set_parked(true);
    }

    fn park(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = self.before_sleep(timeout) {
            self.poller.wait(timeout);
        }
    }

    fn unpark(&mut self) {
        self.waker.set_parked(false);
    }

    fn flush(&mut self) {
        self.poll_output(TcpPeer::poll_output);
    }

    fn flush_own_posts(&mut self) {
        let poll = if self.gathers { TcpPeer::poll_gathered } else { TcpPeer::poll_own_output };
        self.poll_output(poll);
    }

    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        (self.poller.set.as_fd(), self.patience())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn traffic(&self, each: &mut dyn FnMut(PeerTraffic)) {
        self.places.values().for_each(|place| each(self.peers[*place].traffic()));
    }
}

impl Sleeper for TcpFabric {
    fn before_sleep(&mut self, timeout: Option<Duration>) -> Option<Option<Duration>> {
        // Posts since `prepare_park`.
        self.poll_output(TcpPeer::poll_output);
        let busy = |peer: &TcpPeer| peer.readable || peer.writable && peer.has_output();
        let has_news = self.calls.as_ref().is_some_and(PairCalls::has_news);
        if has_news || self.has_sentinel_news || !self.local.events.is_empty() || self.peers.iter().any(busy)
        {
            return None;
        }
        Some([timeout, self.patience()].into_iter().flatten().min())
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.poller.set.as_fd()
    }

    fn after_sleep(&mut self) {}
}

impl TcpFabric {
    /// Returns the time until the first stalled connection breaks.
    fn patience(&self) -> Option<Duration> {
        let deadline = self.peers.iter().filter_map(|peer| peer.connections.stall_deadline_next()).min();
        deadline.map(|deadline| deadline.since(self.now()))
    }
}

/// What the set reports for the doorbell; a peer has its place.
const DOORBELL: u64 = u64::MAX;
/// Added to the place of a peer for its sentinel.
const SENTINEL: u64 = 1 << 63;
/// Later calls report further sockets.
const EVENTS_MAX: usize = 64;
