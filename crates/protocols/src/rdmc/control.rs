//! Control messages: what each says to this member (RDMC §3.2, "Initialization" and "Data Transfer Schedules").

use std::collections::BTreeMap;

use squall_fabric::NodeId;

use super::group::Group;
use super::link::Links;
use super::message::Message;
use super::offer::Offered;
use super::outgoing::Ready;
use super::{Cause, GroupId};

/// What was heard of groups that this member has not yet created.
#[derive(Debug)]
pub(super) struct Early {
    /// At most [`EARLY_MAX`].
    heard: BTreeMap<(GroupId, NodeId), Heard>,
}

/// What a member has said of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) digest: u64,
    pub(super) failed: Option<Cause>,
}

impl Early {
    pub(super) const fn new() -> Self {
        Self { heard: BTreeMap::new() }
    }

    /// What `peer` has said of `group`.
    pub(super) fn take(&mut self, group: GroupId, peer: NodeId) -> Option<Heard> {
        self.heard.remove(&(group, peer))
    }

    /// Forgets what a lost peer has said.
    pub(super) fn forget(&mut self, peer: NodeId) {
        self.heard.retain(|(_, other), _| *other != peer);
    }

    /// A peer has created a group that is not known here; false if that is one too many.
    fn on_join(&mut self, peer: NodeId, group: GroupId, digest: u64) -> bool {
        self.heard.insert((group, peer), Heard { digest, failed: None });
        self.heard.len() <= EARLY_MAX
    }

    fn on_failed(&mut self, peer: NodeId, group: GroupId, cause: Cause) {
        if let Some(heard) = self.heard.get_mut(&(group, peer)) {
            heard.failed = Some(cause);
        }
    }
}

/// Takes a message of `peer` about a group; false if it is a breach that ends the link.
pub(super) fn on_group_message(
    groups: &mut BTreeMap<GroupId, Group>,
    early: &mut Early,
    links: &mut Links,
    peer: NodeId,
    message: Message,
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
fn on_unknown_group(early: &mut Early, links: &mut Links, peer: NodeId, message: Message) -> bool {
    match message {
        Message::Join { group, digest } => return early.on_join(peer, group, digest),
        // Only who has heard our own `Join` announces: we have destroyed the group.
        Message::Announce { group, .. } => {
            links.say(peer, Message::Failed { group, cause: Cause::Left(links.node()) });
        }
        Message::Failed { group, cause } => {
            early.on_failed(peer, group, cause);
            links.say(peer, Message::Stopped { group });
        }
        // Late answers to what we said before we destroyed the group.
        Message::Offer { .. } | Message::Ready { .. } | Message::Stopped { .. } | Message::Hello { .. } => {}
    }
    true
}

impl Group {
    fn on_message(&mut self, links: &mut Links, peer: NodeId, message: Message) {
        if self.neighbour_mut(peer).is_none() {
            return self.on_stranger(links, peer, message);
        }
        let result = match message {
            Message::Join { digest, .. } => {
                self.on_join(links, peer, digest);
                Ok(())
            }
            Message::Announce { number, bytes, slot, .. }
                if self.is_running() || self.has_offered(peer, number) =>
            {
                self.on_announce(peer, number, bytes, slot)
            }
            Message::Offer { number, slot, grant, .. } if self.is_running() => {
                self.on_offer(peer, Offered { number, slot, grant })
            }
            Message::Ready { number, slot, grant, bound, held, .. } if self.is_running() => {
                self.on_ready(peer, number, Ready { grant, slot, held, bound })
            }
            Message::Failed { cause, .. } => {
                self.on_stopped(peer);
                Err(cause)
            }
            Message::Stopped { .. } => {
                self.on_stopped(peer);
                Ok(())
            }
            Message::Announce { .. }
            | Message::Offer { .. }
            | Message::Ready { .. }
            | Message::Hello { .. } => Ok(()),
        };
        if let Err(cause) = result {
            self.wedge(links, cause);
        }
    }

    /// What a neighbour has said before the group was created here.
    pub(super) fn on_heard(&mut self, links: &mut Links, peer: NodeId, heard: Heard) {
        self.on_join(links, peer, heard.digest);
        if let Some(cause) = heard.failed {
            self.on_stopped(peer);
            self.wedge(links, cause);
        }
    }

    /// Who takes us for a neighbour has another list of members, or another schedule.
    fn on_stranger(&mut self, links: &mut Links, peer: NodeId, message: Message) {
        let (group, cause) = (self.id, Cause::Disagreed(peer));
        if matches!(message, Message::Join { .. }) {
            links.say(peer, Message::Failed { group, cause });
        }
        self.wedge(links, cause);
    }

    /// A neighbour has created the group.
    pub(super) fn on_join(&mut self, links: &mut Links, peer: NodeId, digest: u64) {
        let agrees = digest == self.digest;
        let id = self.id;
        let Some(neighbour) = self.neighbour_mut(peer) else { return };
        neighbour.has_joined = true;
        if !agrees {
            return self.wedge(links, Cause::Disagreed(peer));
        }
        if let Some(cause) = self.cause() {
            links.say(peer, Message::Failed { group: id, cause });
        }
    }
}

/// A peer that is so many groups ahead of us is out of its mind.
const EARLY_MAX: usize = 1 << 16;
