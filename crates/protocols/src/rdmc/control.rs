//! Control messages, and how this member handles them (RDMC §3.2, "Initialization" and "Data Transfer Schedules").

use std::collections::BTreeMap;

use squall_fabric::NodeId;

use super::group::RdmcGroup;
use super::link::RdmcLinks;
use super::message::RdmcMessage;
use super::offer::TargetOffer;
use super::outgoing::ReadyForBlock;
use super::{FailureCause, GroupId};

/// Messages about groups that this member has not created yet.
#[derive(Debug)]
pub(super) struct EarlyMessages {
    /// At most [`EARLY_MAX`].
    heard: BTreeMap<(GroupId, NodeId), MemberStatement>,
}

/// What a member has reported about a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberStatement {
    pub(super) digest: u64,
    pub(super) failed: Option<FailureCause>,
}

impl EarlyMessages {
    pub(super) const fn new() -> Self {
        Self { heard: BTreeMap::new() }
    }

    /// Takes what `peer` has reported about `group`.
    pub(super) fn take(&mut self, group: GroupId, peer: NodeId) -> Option<MemberStatement> {
        self.heard.remove(&(group, peer))
    }

    /// Forgets the messages of a lost peer.
    pub(super) fn forget(&mut self, peer: NodeId) {
        self.heard.retain(|(_, other), _| *other != peer);
    }

    /// Notes that a peer has created a group that is not known here; returns false if there are too many such groups.
    fn on_join(&mut self, peer: NodeId, group: GroupId, digest: u64) -> bool {
        self.heard.insert((group, peer), MemberStatement { digest, failed: None });
        self.heard.len() <= EARLY_MAX
    }

    fn on_failed(&mut self, peer: NodeId, group: GroupId, cause: FailureCause) {
        if let Some(heard) = self.heard.get_mut(&(group, peer)) {
            heard.failed = Some(cause);
        }
    }
}

/// Handles a message of `peer` about a group; returns false if it is a protocol violation that ends the link.
pub(super) fn on_group_message(
    groups: &mut BTreeMap<GroupId, RdmcGroup>,
    early: &mut EarlyMessages,
    links: &mut RdmcLinks,
    peer: NodeId,
    message: RdmcMessage,
) -> bool {
    let Some(id) = message.group() else { return false };
    match groups.get_mut(&id) {
        Some(group) => {
            group.on_message(links, peer, message);
            true
        }
        None => on_unknown_group(early, links, peer, message),
    }
}

/// Handles a message about a group that this member has not created yet, or has destroyed.
fn on_unknown_group(
    early: &mut EarlyMessages,
    links: &mut RdmcLinks,
    peer: NodeId,
    message: RdmcMessage,
) -> bool {
    match message {
        RdmcMessage::Join { group, digest } => return early.on_join(peer, group, digest),
        // A peer announces only after it has received this member's `Join`: this member has destroyed the group.
        RdmcMessage::Announce { group, .. } => {
            links.say(peer, RdmcMessage::Failed { group, cause: FailureCause::Left(links.node()) });
        }
        RdmcMessage::Failed { group, cause } => {
            early.on_failed(peer, group, cause);
            links.say(peer, RdmcMessage::Stopped { group });
        }
        // Late answers to messages that this member sent before it destroyed the group.
        RdmcMessage::Offer { .. }
        | RdmcMessage::Ready { .. }
        | RdmcMessage::Stopped { .. }
        | RdmcMessage::Hello { .. } => {}
    }
    true
}

impl RdmcGroup {
    fn on_message(&mut self, links: &mut RdmcLinks, peer: NodeId, message: RdmcMessage) {
        if self.neighbour_mut(peer).is_none() {
            return self.on_stranger(links, peer, message);
        }
        let result = match message {
            RdmcMessage::Join { digest, .. } => {
                self.on_join(links, peer, digest);
                Ok(())
            }
            RdmcMessage::Announce { number, bytes, slot, .. }
                if self.is_running() || self.has_offered(peer, number) =>
            {
                self.on_announce(peer, number, bytes, slot)
            }
            RdmcMessage::Offer { number, slot, grant, .. } if self.is_running() => {
                self.on_offer(peer, TargetOffer { number, slot, grant })
            }
            RdmcMessage::Ready { number, slot, grant, bound, held, .. } if self.is_running() => {
                self.on_ready(peer, number, ReadyForBlock { grant, slot, held, bound })
            }
            RdmcMessage::Failed { cause, .. } => {
                self.on_stopped(peer);
                Err(cause)
            }
            RdmcMessage::Stopped { .. } => {
                self.on_stopped(peer);
                Ok(())
            }
            RdmcMessage::Announce { .. }
            | RdmcMessage::Offer { .. }
            | RdmcMessage::Ready { .. }
            | RdmcMessage::Hello { .. } => Ok(()),
        };
        if let Err(cause) = result {
            self.wedge(links, cause);
        }
    }

    /// Handles what a neighbour has reported before the group was created here.
    pub(super) fn on_heard(&mut self, links: &mut RdmcLinks, peer: NodeId, heard: MemberStatement) {
        self.on_join(links, peer, heard.digest);
        if let Some(cause) = heard.failed {
            self.on_stopped(peer);
            self.wedge(links, cause);
        }
    }

    /// Handles a message of a member that is not a neighbour: it has another list of members, or another schedule.
    fn on_stranger(&mut self, links: &mut RdmcLinks, peer: NodeId, message: RdmcMessage) {
        let (group, cause) = (self.id, FailureCause::Disagreed(peer));
        if matches!(message, RdmcMessage::Join { .. }) {
            links.say(peer, RdmcMessage::Failed { group, cause });
        }
        self.wedge(links, cause);
    }

    /// Notes that a neighbour has created the group.
    pub(super) fn on_join(&mut self, links: &mut RdmcLinks, peer: NodeId, digest: u64) {
        let agrees = digest == self.digest;
        let id = self.id;
        let Some(neighbour) = self.neighbour_mut(peer) else { return };
        neighbour.has_joined = true;
        if !agrees {
            return self.wedge(links, FailureCause::Disagreed(peer));
        }
        if let Some(cause) = self.cause() {
            links.say(peer, RdmcMessage::Failed { group: id, cause });
        }
    }
}

/// A peer that is this many groups ahead violates the protocol.
const EARLY_MAX: usize = 1 << 16;
