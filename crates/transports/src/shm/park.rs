//! Parking: a node without work sleeps in the kernel and costs nothing; a peer or thread that has something
//! for it rings.
//!
//! A node marks itself as parked in its page ranges, where peers look after they have stored something. By
//! Dekker's pattern, no wake-up is lost: the peer stores its words, fences, and checks the mark; the node
//! stores its mark, fences, and looks for words once more. The peer checks the mark in its next
//! [`poll`](squall_fabric::Fabric::poll) after the stores, once for all of them, and fences later: in the
//! first poll without stores, after [`LOOKS_MAX`] polls with stores, and before it parks itself. Then it
//! checks again. So the fence, which waits for all stores, costs a busy sender next to nothing, and a node
//! that has just parked may sleep for some polls longer; a store or a push costs nothing, and a poll costs a
//! load per reader. A doorbell that arrives between the mark and the sleep ends the sleep.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::Timespec;
use squall_fabric::atomics::{Ordering, fence};

use super::ShmFabric;
use super::link::ShmLink;
use super::links::ShmLinks;
use crate::{PeerTraffic, Sleeper, TransportFabric, Waker};

/// What a parked node waits for.
#[derive(Debug)]
pub(super) struct ShmParking {
    epoll: OwnedFd,
    waker: Waker,
    /// Parkings in total; each has its own mark.
    count: u64,
    /// Whether this node is marked as parked.
    marked: bool,
    /// Whether a doorbell has arrived since the mark.
    rung: bool,
}

impl ShmParking {
    pub(super) fn new(waker: Waker) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, waker.doorbell(), epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, waker, count: 0, marked: false, rung: false })
    }

    /// Returns what ends a wait.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Adds the link `number` to the wait.
    pub(super) fn watch(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// Announces to a new link whether this node is parked.
    pub(super) fn mark(&self, link: &ShmLink) {
        link.mark_parked(self.count, self.marked);
    }

    fn mark_all(&mut self, links: &ShmLinks, parked: bool) {
        self.marked = parked;
        links.iter().for_each(|link| self.mark(link));
    }

    pub(super) fn is_marked(&self) -> bool {
        self.marked
    }

    pub(super) fn on_doorbell(&mut self) {
        self.rung = true;
    }

    /// Removes a lost link from the wait.
    pub(super) fn forget(&self, socket: impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Waits until a socket or the waker is ready; returns the links that are.
    pub(super) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<usize>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; READY_MAX];
        // An interrupted wait is a short one: the caller looks for work and returns.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            let numbers = events.iter().map(|event| event.data.u64()).filter(|number| *number != WAKER);
            ready.extend(numbers.filter_map(|number| usize::try_from(number).ok()));
        }
    }
}

impl TransportFabric for ShmFabric {
    fn prepare_park(&mut self) {
        self.ring_sleepers();
        self.parking.count += 1;
        self.parking.rung = false;
        self.parking.mark_all(&self.links, true);
        // It fences, for the other processes, too.
        self.parking.waker.set_parked(true);
        // The last look before the sleep.
        self.until_life = 1;
    }

    fn park(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = self.before_sleep(timeout) {
            self.parking.wait(timeout, &mut Vec::new());
            self.after_sleep();
        }
    }

    fn unpark(&mut self) {
        if self.parking.marked {
            self.parking.mark_all(&self.links, false);
            self.parking.waker.set_parked(false);
        }
    }

    fn yielded(&mut self) {
        self.pace.look_at_clock();
        self.until_life = 1;
    }

    #[inline]
    fn flush(&mut self) {
        self.ring_sleepers();
    }

    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        (self.parking.epoll.as_fd(), self.timer())
    }

    fn waker(&self) -> Waker {
        self.parking.waker.clone()
    }

    /// There is none: peers read what this node has stored where it is.
    fn traffic(&self, _each: &mut dyn FnMut(PeerTraffic)) {}
}

impl Sleeper for ShmFabric {
    fn before_sleep(&mut self, timeout: Option<Duration>) -> Option<Option<Duration>> {
        self.ring_sleepers();
        if self.parking.rung || !self.events.is_empty() {
            return None;
        }
        Some([timeout, self.timer()].into_iter().flatten().min())
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.parking.epoll.as_fd()
    }

    fn after_sleep(&mut self) {
        self.pace.hurry();
    }
}

impl ShmFabric {
    /// Returns the period for checking timeouts, of which there are few, if there are any.
    fn timer(&self) -> Option<Duration> {
        let has_timer = !self.waiting.is_empty() || self.is_revoking() || self.has_full_socket();
        let timers = self.links.iter().filter_map(ShmLink::dying_timer);
        timers.chain(has_timer.then_some(TIMER)).min()
    }

    /// Rings peers that are parked and for which something was stored or pushed; peers that park at this
    /// moment are rung in one of the next calls.
    #[inline]
    pub(super) fn ring_peers(&mut self) {
        if !self.to_ring.is_empty() {
            self.look_at_marks();
        } else if self.looks > 0 {
            self.look_again();
        }
    }

    fn look_at_marks(&mut self) {
        self.doubtful.union(&self.to_ring);
        while let Some(link) = self.to_ring.pop() {
            self.links[link].ring_if_parked();
        }
        self.looks += 1;
        if self.looks >= LOOKS_MAX {
            self.look_again();
        }
    }

    fn look_again(&mut self) {
        self.looks = 0;
        // SYNC: orders this node's stores before the check of the marks: either this node sees the mark, or
        // the parking peer sees the words. The peer fences between its mark and its last look, too
        // (`prepare_park`).
        fence(Ordering::SeqCst);
        while let Some(link) = self.doubtful.pop() {
            self.links[link].ring_if_parked();
        }
    }

    /// Rings all peers that are parked, or park at this moment, and for which something was stored or pushed.
    pub(super) fn ring_sleepers(&mut self) {
        self.doubtful.union(&std::mem::take(&mut self.to_ring));
        if !self.doubtful.is_empty() {
            self.look_again();
        }
    }
}

/// Decides when to read the sockets. Reading costs a system call, so a busy node reads them every
/// [`CONTROL_PERIOD`] and checks the clock only every `interval` polls, the number that it makes in about
/// that time. While mirrors are being published, all peers wait for control messages, so it reads the sockets
/// more often for a moment: the beginning of a view takes three of them in sequence.
#[derive(Debug)]
pub(super) struct PollPace {
    /// Polls until the next check of the clock: 1 <= countdown <= interval.
    countdown: u32,
    interval: u32,
    /// When the sockets were last read.
    looked_at: Instant,
    /// When the clock was last checked.
    checked_at: Instant,
    hurried: bool,
    /// The time until which messages are expected at any moment.
    lively_until: Instant,
}

impl PollPace {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { countdown: 1, interval: 1, looked_at: now, checked_at: now, hurried: true, lively_until: now }
    }

    /// Notes that more messages are expected at any moment.
    pub(super) fn enliven(&mut self) {
        self.lively_until = Instant::now() + LIVELY;
        self.countdown = 1;
    }

    /// Lets the next poll check the clock, since the duration of polls is unknown.
    pub(super) fn look_at_clock(&mut self) {
        (self.interval, self.countdown) = (1, 1);
    }

    /// Lets the next poll read the sockets.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
        self.countdown = 1;
    }

    /// Returns whether to read the sockets in this poll.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.countdown -= 1;
        self.countdown == 0 && self.check()
    }

    #[cold]
    fn check(&mut self) -> bool {
        let now = Instant::now();
        let elapsed = now - self.checked_at;
        self.checked_at = now;
        if elapsed > CONTROL_PERIOD {
            self.interval = (self.interval / 2).max(1);
        } else if elapsed < CONTROL_PERIOD / 4 {
            self.interval = (self.interval * 2).min(INTERVAL_MAX);
        }
        let is_lively = now < self.lively_until;
        let period = if is_lively { LIVELY_PERIOD } else { CONTROL_PERIOD };
        self.countdown = if is_lively { 1 } else { self.interval };
        let due = self.hurried || now - self.looked_at >= period;
        if due {
            self.looked_at = now;
            self.hurried = false;
        }
        due
    }
}

/// A death or a control message waits at most about this long for a busy node.
const CONTROL_PERIOD: Duration = Duration::from_micros(250);
/// The same while messages are expected, and the time for which they are expected after each of them.
const LIVELY_PERIOD: Duration = Duration::from_micros(20);
const LIVELY: Duration = Duration::from_millis(10);
/// If polls suddenly take 100 µs each, the sockets wait 25 ms once.
const INTERVAL_MAX: u32 = 256;
pub(super) const TIMER: Duration = Duration::from_millis(1);
/// The most links read in one poll; the others wait for the next.
const READY_MAX: usize = 64;
const WAKER: u64 = u64::MAX;
/// One in this many polls fences, if a node stores something in each.
const LOOKS_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Short polls are no measure for polls between which other threads run: a joiner that had spun for a
    /// while once let the group wait for 20 ms.
    #[test]
    fn a_poller_that_yields_checks_the_clock() {
        let mut pace = PollPace::new();
        (0..100 * INTERVAL_MAX).for_each(|_| _ = pace.is_due());
        std::thread::sleep(CONTROL_PERIOD);
        pace.look_at_clock();
        assert!(pace.is_due());
        std::thread::sleep(CONTROL_PERIOD);
        assert!(pace.is_due(), "it continues to do so until polls are short again");
    }

    #[test]
    fn a_poller_that_expects_messages_reads_often() {
        let mut pace = PollPace::new();
        (0..100 * INTERVAL_MAX).for_each(|_| _ = pace.is_due());
        pace.enliven();
        std::thread::sleep(LIVELY_PERIOD);
        assert!(pace.is_due());
    }
}
