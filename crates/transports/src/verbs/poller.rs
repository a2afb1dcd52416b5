//! The control streams and doorbells: which of them are ready, and how the node sleeps until one is.
//!
//! All of them are in one `epoll` set. A busy node checks the set only every few microseconds, because data
//! and completions do not arrive through it.

use std::io;
use std::mem::MaybeUninit;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use squall_fabric::{Channel, Duration, Fabric, Instant};

use super::VerbsFabric;
use super::control::VerbsLoss;
use super::frame::{VerbsFrame, VerbsViolation};
use super::mirrors::VerbsAttachRequest;
use super::notice::{CompletionSource, heed};
use super::peer::OpenedChannel;
use crate::{PeerTraffic, Sleeper, TransportFabric, Waker};

/// The set of everything that can wake the node.
pub(super) struct VerbsPoller {
    set: OwnedFd,
    /// When to check the set again.
    due: Instant,
    /// The time between two checks of the set by a busy node.
    look_every: Duration,
}

/// A source of events in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The control stream of a peer, by its place.
    Peer(usize),
    /// A completion queue that was armed has received a completion.
    Completions,
    /// The device has an event to report that concerns no single post.
    Notices,
    /// A waker was used.
    Doorbell,
}

impl VerbsPoller {
    /// Creates an empty set. A check costs a system call, for which a software device pays with the processor
    /// that it shares with this node, so such a device is checked less often.
    pub(super) fn new(is_software: bool) -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let look_every = if is_software { LOOK_EVERY_IN_SOFTWARE } else { LOOK_EVERY };
        Ok(Self { set, due: Instant::default(), look_every })
    }

    /// Adds the descriptors that the device and the wakers signal.
    pub(super) fn watch_bells(
        &self,
        completions: BorrowedFd<'_>,
        notices: BorrowedFd<'_>,
        doorbell: BorrowedFd<'_>,
    ) -> io::Result<()> {
        for (source, fd) in
            [(Source::Completions, completions), (Source::Notices, notices), (Source::Doorbell, doorbell)]
        {
            epoll::add(&self.set, fd, source.data(), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Watches the control stream of the peer at `peer`.
    pub(super) fn watch_peer(&self, stream: BorrowedFd<'_>, peer: usize) -> io::Result<()> {
        Ok(epoll::add(&self.set, stream, Source::Peer(peer).data(), EventFlags::IN)?)
    }

    /// Sets whether the stream is also watched for space to send.
    fn watch_space(&self, stream: BorrowedFd<'_>, peer: usize, space: bool) {
        let flags = if space { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.set, stream, Source::Peer(peer).data(), flags).expect("it is watched");
    }

    /// Stops watching a stream.
    pub(super) fn forget(&self, stream: BorrowedFd<'_>) {
        epoll::delete(&self.set, stream).expect("it is watched");
    }

    /// Returns the sources that are ready, at once or after waiting for up to `timeout`.
    fn ready(&self, timeout: Option<Duration>) -> Vec<Source> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match epoll::wait(&self.set, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready.iter().map(|event| Source::from_data(event.data.u64())).collect(),
            Err(Errno::INTR) => Vec::new(),
            Err(error) => panic!("epoll_wait failed, which only a bug can cause: {error}"),
        }
    }
}

impl Source {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Self::Completions => 0,
            Self::Notices => 1,
            Self::Doorbell => 2,
            Self::Peer(place) => 3 + place as u64,
        })
    }

    fn from_data(data: u64) -> Self {
        match data {
            0 => Self::Completions,
            1 => Self::Notices,
            2 => Self::Doorbell,
            place => Self::Peer(usize::try_from(place - 3).expect("a peer's place")),
        }
    }
}

impl CompletionSource for VerbsFabric {
    fn take(&mut self) -> usize {
        self.poll_completions()
    }

    fn silence(&mut self) -> usize {
        self.endpoints.completions.channel().silence()
    }
}

impl VerbsFabric {
    /// Reads the control streams, if it is time to check them. Returns the amount of work done.
    pub(super) fn poll_control(&mut self) -> usize {
        let now = self.now();
        if now < self.poller.due {
            return 0;
        }
        self.poller.due = now + self.poller.look_every;
        let mut work = 0;
        for source in self.poller.ready(Some(Duration::ZERO)) {
            match source {
                Source::Peer(peer) => work += self.read_peer(peer),
                Source::Completions => work += heed(self),
                Source::Notices => self.read_notices(),
                // Silenced by `unpark`.
                Source::Doorbell => {}
            }
        }
        work
    }

    /// Reads what a peer has sent; returns the number of frames.
    fn read_peer(&mut self, peer: usize) -> usize {
        let mut handled = 0;
        for _ in 0..READS_MAX {
            if self.peers[peer].lost.is_some() {
                break;
            }
            let mut frames = Vec::new();
            let more = self.peers[peer].control.read(&mut frames);
            handled += frames.len();
            let handled_all = frames.into_iter().try_for_each(|frame| self.handle_frame(peer, frame));
            match handled_all.and(more) {
                Ok(true) => {}
                Ok(false) => break,
                Err(loss) => {
                    // What arrived before the end of the stream must be reported first.
                    self.poll_completions();
                    self.lose(peer, &loss);
                    handled += 1;
                }
            }
        }
        handled
    }

    fn handle_frame(&mut self, peer: usize, frame: VerbsFrame) -> Result<(), VerbsLoss> {
        if self.peers[peer].lost.is_some() {
            return Ok(());
        }
        if self.peers[peer].address.is_none() != matches!(frame, VerbsFrame::Hello { .. }) {
            return Err(VerbsViolation("a stream that does not begin with exactly one hello").into());
        }
        match frame {
            VerbsFrame::Hello { address } => {
                if address.ethernet != self.device.port_used().address.ethernet {
                    let reason = "one end uses InfiniBand and the other Ethernet";
                    return Err(VerbsLoss::Unreachable(reason.into()));
                }
                self.peers[peer].address = Some(address);
            }
            VerbsFrame::Open { number, channel, pair } => {
                self.on_open(peer, Channel(channel), OpenedChannel { number, pair })?;
            }
            VerbsFrame::Accept { number, partner } => self.on_accept(peer, number, partner)?,
            VerbsFrame::Close { number, reason } => self.on_close(peer, number, reason),
            VerbsFrame::Publish { key, words } => self.on_publish(peer, key, words)?,
            VerbsFrame::Attach { attachment, key, words, memory } => {
                self.on_attach(peer, key, VerbsAttachRequest { attachment, words, memory })?;
            }
            VerbsFrame::Detach { attachment } => self.on_detach(peer, attachment),
            VerbsFrame::Detached { attachment } => self.on_detached(peer, attachment)?,
            VerbsFrame::Retire { key } => self.on_retire(peer, key),
            VerbsFrame::MirrorOpen { number, pair } => self.on_mirror_open(peer, number, pair)?,
            VerbsFrame::MirrorAccept { partner, pair } => self.on_mirror_accept(peer, partner, pair)?,
            VerbsFrame::Parking => {
                if self.peers[peer].bell.on_parking() {
                    self.counters.rings += 1;
                    self.peers[peer].send(VerbsFrame::Ring);
                }
            }
            VerbsFrame::Ring => self.peers[peer].bell.on_ring(),
            VerbsFrame::Goodbye => return Err(VerbsLoss::Goodbye),
        }
        Ok(())
    }

    /// Sends the frames that wait.
    pub(super) fn flush_control(&mut self) {
        for place in 0..self.peers.bound() {
            let Some(peer) = self.peers.at_mut(place) else { continue };
            if peer.lost.is_some() || !peer.control.has_output() && !peer.wants_space {
                continue;
            }
            let flushed = peer.control.flush();
            if peer.wants_space != peer.control.has_output() {
                peer.wants_space = peer.control.has_output();
                self.poller.watch_space(peer.control.fd(), place, peer.wants_space);
            }
            if let Err(loss) = flushed {
                self.lose(place, &loss);
            }
        }
    }

    /// Reads the device's events that concern no single post.
    fn read_notices(&mut self) {
        while let Some((text, device_is_lost)) = self.device.take_notice() {
            crate::log::warn!(device = self.device.name(), "event of the device: {text}");
            if device_is_lost {
                for peer in self.peers.all() {
                    self.lose(peer, &VerbsLoss::Unreachable(text.clone()));
                }
            }
        }
    }
}

impl TransportFabric for VerbsFabric {
    fn prepare_park(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.lost.is_none()) {
            if peer.bell.on_park() {
                peer.send(VerbsFrame::Parking);
            }
        }
        self.flush_posts();
        self.flush_control();
        self.endpoints.completions.arm();
        self.waker.set_parked(true);
        // The last check before the sleep covers everything.
        self.poller.due = Instant::default();
    }

    fn park(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = self.before_sleep(timeout) {
            self.poller.ready(timeout);
        }
    }

    fn unpark(&mut self) {
        self.waker.set_parked(false);
        self.poller.due = Instant::default();
    }

    fn flush(&mut self) {
        self.flush_posts();
        self.flush_control();
    }

    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        (self.poller.set.as_fd(), None)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn traffic(&self, each: &mut dyn FnMut(PeerTraffic)) {
        self.peers.iter().for_each(|peer| each(peer.traffic()));
    }
}

impl Sleeper for VerbsFabric {
    fn before_sleep(&mut self, timeout: Option<Duration>) -> Option<Option<Duration>> {
        // These were posted since `prepare_park`.
        self.flush_posts();
        self.flush_control();
        (self.events.is_empty() && !self.endpoints.has_work()).then_some(timeout)
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.poller.set.as_fd()
    }

    fn after_sleep(&mut self) {}
}

const LOOK_EVERY: Duration = Duration::from_micros(20);
/// The time of a few writes of such a device.
const LOOK_EVERY_IN_SOFTWARE: Duration = Duration::from_micros(250);

/// If more sources are ready, the next check returns the others.
const EVENTS_MAX: usize = 64;

/// The most reads from one peer in one check.
const READS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_sources_decode_to_the_same_sources() {
        for source in
            [Source::Completions, Source::Notices, Source::Doorbell, Source::Peer(0), Source::Peer(9)]
        {
            assert_eq!(Source::from_data(source.data().u64()), source);
        }
    }
}
