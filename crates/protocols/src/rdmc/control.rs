//! Control messages: what each says to this member (RDMC §3.2, "Initialization" and "Data Transfer Schedules").

use std::collections::BTreeMap;

use squall_fabric::NodeId;

use super::group::RdmcGroup;
use super::link::RdmcLinks;
use super::message::RdmcMessage;
use super::offer::TargetOffer;
use super::outgoing::ReadyForBlock;
use super::{FailureCause, GroupId};

/// What was heard of groups that this member has not yet created.
#[derive(Debug)]
pub(super) struct EarlyMessages {
    /// At most [`EARLY_MAX`].
    heard: BTreeMap<(GroupId, NodeId), MemberStatement>,
}

/// What a member has said of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberStatement {
    pub(super) digest: u64,
    pub(super) failed: Option<FailureCause>,
}

impl EarlyMessages {
    pub(super) const fn new() -> Self {
        Self { heard: BTreeMap::new() }
    }

    /// What `peer` has said of `group`.
    pub(super) fn take(&mut self, group: GroupId, peer: NodeId) -> Option<MemberStatement> {
        self.heard.remove(&(group, peer))
    }

    /// Forgets what a lost peer has said.
    pub(super) fn forget(&mut self, peer: NodeId) {
        self.heard.retain(|(_, other), _| *other != peer);
    }

    /// A peer has created a group that is not known here; false if that is one too many.
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

/// Takes a message of `peer` about a group; false if it is a breach that ends the link.
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

/// This member has not yet created the group, or has destroyed it.
fn on_unknown_group(
    early: &mut EarlyMessages,
    links: &mut RdmcLinks,
    peer: NodeId,
    message: RdmcMessage,
) -> bool {
    match message {
        RdmcMessage::Join { group, digest } => return early.on_join(peer, group, digest),
        // Only who has heard our own `Join` announces: we have destroyed the group.
        RdmcMessage::Announce { group, .. } => {
            links.say(peer, RdmcMessage::Failed { group, cause: FailureCause::Left(links.node()) });
        }
        RdmcMessage::Failed { group, cause } => {
            early.on_failed(peer, group, cause);
            links.say(peer, RdmcMessage::Stopped { group });
        }
        // Late answers to what we said before we destroyed the group.
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

    /// What a neighbour has said before the group was created here.
    pub(super) fn on_heard(&mut self, links: &mut RdmcLinks, peer: NodeId, heard: MemberStatement) {
        self.on_join(links, peer, heard.digest);
        if let Some(cause) = heard.failed {
            self.on_stopped(peer);
            self.wedge(links, cause);
        }
    }

    /// Who takes us for a neighbour has another list of members, or another schedule.
    fn on_stranger(&mut self, links: &mut RdmcLinks, peer: NodeId, message: RdmcMessage) {
        let (group, cause) = (self.id, FailureCause::Disagreed(peer));
        if matches!(message, RdmcMessage::Join { .. }) {
            links.say(peer, RdmcMessage::Failed { group, cause });
        }
        self.wedge(links, cause);
    }

    /// A neighbour has created the group.
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

/// A peer that is so many groups ahead of us is out of its mind.
const EARLY_MAX: usize = 1 << 16;
