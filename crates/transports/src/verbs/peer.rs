//! One peer: its control stream, its domain, and what both have told each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::{BreakReason, Channel, NodeId};

use super::control::ControlStream;
use super::device::PortAddress;
use super::domain::ProtectionDomain;
use super::frame::VerbsFrame;
use super::mirrors::VerbsAttachRequest;
use super::queue_pair::PairName;

/// A peer.
pub(super) struct VerbsPeer {
    pub(super) node: NodeId,
    pub(super) control: ControlStream,
    /// The control stream is watched for space to send.
    pub(super) wants_space: bool,
    pub(super) domain: Arc<ProtectionDomain>,
    /// Known from its first frame on.
    pub(super) address: Option<PortAddress>,
    /// Set when the peer is gone.
    pub(super) lost: Option<BreakReason>,
    /// What the peer has opened and is not paired.
    pub(super) offers: BTreeMap<Channel, OpenedChannel>,
    /// Mirrors that the peer has published for this node, with their words.
    pub(super) published: BTreeMap<u64, u64>,
    /// Mirrors of this node for which the peer has an attachment, published or not.
    pub(super) requests: BTreeMap<u64, VerbsAttachRequest>,
    /// The endpoint of this node's pushes.
    pub(super) mirror_out: Option<u32>,
    /// The endpoint of the peer's pushes.
    pub(super) mirror_in: Option<u32>,
    pub(super) bell: PeerBell,
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
        }
    }

    /// Queues a frame, if the peer is still there.
    pub(super) fn send(&mut self, frame: VerbsFrame) {
        if self.lost.is_none() {
            self.control.push(frame);
        }
    }
}

/// Doorbells between this node and a peer: one-sided writes wake nobody, so who sleeps asks to be rung.
///
/// A node that is about to sleep says so (`ShmParking`), looks once more, and sleeps. Its peer rings once, after something
/// that it wrote has been placed; then the node asks again before it sleeps again. A write that lands after that last
/// look is always followed by a ring: either it completes at the writer after the writer has read `ShmParking`, and then it
/// rings; or it completed before, and then the writer knows that it has written since its last ring (`dirty`), and rings
/// at once. A ring too many costs one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerBell {
    /// The peer has been asked to ring and has not yet.
    asked: bool,
    /// The peer has asked, and has not been rung.
    sleeper: bool,
    /// Posts have gone out since the last ring, or were not placed then.
    dirty: bool,
    /// Posts with the device.
    under_way: usize,
}

impl PeerBell {
    /// This node is about to sleep; returns whether the peer must be asked.
    pub(super) fn on_park(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// The peer rang.
    pub(super) fn on_ring(&mut self) {
        self.asked = false;
    }

    /// So many posts went out.
    pub(super) fn on_posts(&mut self, count: usize) {
        self.under_way += count;
        self.dirty = true;
    }

    /// So many posts were placed; returns whether to ring.
    #[must_use]
    pub(super) fn on_placed(&mut self, count: usize) -> bool {
        self.under_way -= count;
        self.sleeper && self.ring()
    }

    /// So many posts will never be placed.
    pub(super) fn on_gone(&mut self, count: usize) {
        self.under_way -= count;
    }

    /// The peer is about to sleep; returns whether to ring.
    #[must_use]
    pub(super) fn on_parking(&mut self) -> bool {
        self.sleeper = true;
        // What is under way rings when it is placed.
        self.dirty && self.under_way == 0 && self.ring()
    }

    fn ring(&mut self) -> bool {
        self.sleeper = false;
        self.dirty = self.under_way > 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_pair_is_silent_after_one_question() {
        let mut bell = PeerBell::default();
        assert!(bell.on_park());
        assert!(!bell.on_park(), "asked once");
        assert!(!bell.on_parking(), "nothing was written");
    }

    #[test]
    fn a_write_that_is_placed_after_the_question_rings_once() {
        let mut bell = PeerBell::default();
        assert!(!bell.on_parking());
        bell.on_posts(3);
        assert!(bell.on_placed(1));
        assert!(!bell.on_placed(2), "rung already");
        // The rest was placed after the ring, so the next question is answered at once.
        assert!(bell.on_parking());
        assert!(!bell.on_parking());
    }

    #[test]
    fn a_write_that_was_placed_before_the_question_rings_at_once() {
        let mut bell = PeerBell::default();
        bell.on_posts(1);
        assert!(!bell.on_placed(1), "nobody sleeps");
        assert!(bell.on_parking());
        assert!(!bell.on_parking(), "nothing was written since");
    }

    #[test]
    fn a_write_under_way_rings_when_it_is_placed() {
        let mut bell = PeerBell::default();
        bell.on_posts(2);
        assert!(!bell.on_parking());
        assert!(bell.on_placed(2));
        bell.on_posts(1);
        bell.on_gone(1);
        assert!(bell.on_parking(), "part of it may have landed [F11]");
    }
}
