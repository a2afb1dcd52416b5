//! One peer: its control stream, its domain, and what the two nodes have announced to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::{BreakReason, Channel, NodeId};

use super::control::ControlStream;
use super::device::PortAddress;
use super::domain::ProtectionDomain;
use super::frame::VerbsFrame;
use super::mirrors::VerbsAttachRequest;
use super::queue_pair::PairName;
use crate::PeerTraffic;
use crate::composite::PeerTransport;

/// A peer of this node.
pub(super) struct VerbsPeer {
    pub(super) node: NodeId,
    pub(super) control: ControlStream,
    /// Whether the control stream is watched for space to send.
    pub(super) wants_space: bool,
    pub(super) domain: Arc<ProtectionDomain>,
    /// Known once its first frame has arrived.
    pub(super) address: Option<PortAddress>,
    /// Set when the peer is lost.
    pub(super) lost: Option<BreakReason>,
    /// The channels that the peer has opened and that are not paired.
    pub(super) offers: BTreeMap<Channel, OpenedChannel>,
    /// Mirrors that the peer has published to this node, with their size in words.
    pub(super) published: BTreeMap<u64, u64>,
    /// Mirrors of this node for which the peer has an attachment, published or not.
    pub(super) requests: BTreeMap<u64, VerbsAttachRequest>,
    /// The endpoint of this node's pushes.
    pub(super) mirror_out: Option<u32>,
    /// The endpoint of the peer's pushes.
    pub(super) mirror_in: Option<u32>,
    pub(super) bell: PeerBell,
    /// The bytes of the posts that the device has taken.
    pub(super) bytes_sent: u64,
}

/// A channel that a peer has opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedChannel {
    pub(super) number: u32,
    pub(super) pair: PairName,
}

impl VerbsPeer {
    pub(super) fn new(node: NodeId, control: ControlStream, domain: Arc<ProtectionDomain>) -> Self {
        Self {
            node,
            control,
            wants_space: false,
            domain,
            address: None,
            lost: None,
            offers: BTreeMap::new(),
            published: BTreeMap::new(),
            requests: BTreeMap::new(),
            mirror_out: None,
            mirror_in: None,
            bell: PeerBell::default(),
            bytes_sent: 0,
        }
    }

    /// Returns what the device has carried to this peer.
    pub(super) fn traffic(&self) -> PeerTraffic {
        PeerTraffic {
            peer: self.node,
            transport: PeerTransport::Verbs,
            sent: self.bytes_sent,
            received: None,
        }
    }

    /// Queues a frame, unless the peer is lost.
    pub(super) fn send(&mut self, frame: VerbsFrame) {
        if self.lost.is_none() {
            self.control.push(frame);
        }
    }
}

/// The doorbells between this node and a peer: one-sided writes do not wake a node, so a node that sleeps
/// asks to be rung.
///
/// A node that is about to sleep announces it ([`VerbsFrame::Parking`]), polls once more, and sleeps. Its
/// peer rings once, after something that it wrote has landed; the node asks again before it sleeps again. A
/// write that lands after that last poll is always followed by a ring: either it completes at the writer
/// after the writer has read the announcement, and then the writer rings; or it completed before, and then
/// the writer knows that it has written since its last ring (`dirty`), and rings at once. A superfluous ring
/// costs one poll.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerBell {
    /// Whether the peer has been asked to ring and has not done so yet.
    asked: bool,
    /// Whether the peer has asked, and has not been rung.
    sleeper: bool,
    /// Whether posts have been sent since the last ring, or had not landed then.
    dirty: bool,
    /// The number of posts with the device.
    in_flight: usize,
}

impl PeerBell {
    /// Notes that this node is about to sleep; returns whether the peer must be asked.
    pub(super) fn on_park(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Notes that the peer rang.
    pub(super) fn on_ring(&mut self) {
        self.asked = false;
    }

    /// Notes that `count` posts were sent.
    pub(super) fn on_posts(&mut self, count: usize) {
        self.in_flight += count;
        self.dirty = true;
    }

    /// Notes that `count` posts have landed; returns whether to ring.
    #[must_use]
    pub(super) fn on_landed(&mut self, count: usize) -> bool {
        self.in_flight -= count;
        self.sleeper && self.ring()
    }

    /// Notes that `count` posts will never complete.
    pub(super) fn on_gone(&mut self, count: usize) {
        self.in_flight -= count;
    }

    /// Notes that the peer is about to sleep; returns whether to ring.
    #[must_use]
    pub(super) fn on_parking(&mut self) -> bool {
        self.sleeper = true;
        // Posts in flight cause a ring when they have landed.
        self.dirty && self.in_flight == 0 && self.ring()
    }

    fn ring(&mut self) -> bool {
        self.sleeper = false;
        self.dirty = self.in_flight > 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_pair_is_silent_after_one_request() {
        let mut bell = PeerBell::default();
        assert!(bell.on_park());
        assert!(!bell.on_park(), "asked once");
        assert!(!bell.on_parking(), "nothing was written");
    }

    #[test]
    fn a_write_that_lands_after_the_request_rings_once() {
        let mut bell = PeerBell::default();
        assert!(!bell.on_parking());
        bell.on_posts(3);
        assert!(bell.on_landed(1));
        assert!(!bell.on_landed(2), "rung already");
        // The rest landed after the ring, so the next request is answered at once.
        assert!(bell.on_parking());
        assert!(!bell.on_parking());
    }

    #[test]
    fn a_write_that_landed_before_the_request_rings_at_once() {
        let mut bell = PeerBell::default();
        bell.on_posts(1);
        assert!(!bell.on_landed(1), "the peer is not asleep");
        assert!(bell.on_parking());
        assert!(!bell.on_parking(), "nothing has been written since");
    }

    #[test]
    fn a_write_in_flight_rings_when_it_lands() {
        let mut bell = PeerBell::default();
        bell.on_posts(2);
        assert!(!bell.on_parking());
        assert!(bell.on_landed(2));
        bell.on_posts(1);
        bell.on_gone(1);
        assert!(bell.on_parking(), "part of it may have landed [F11]");
    }
}
