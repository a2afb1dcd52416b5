//! Retirement: mirrors end, and attachments that nobody holds are given back [M6].
//!
//! A reader that has dropped an attachment asks its owner first to push nothing more to it, and takes the memory away from the
//! device when the owner has answered. So only posts that the device had by then can find the memory gone, which costs
//! a new queue pair.

use std::sync::Arc;

use squall_fabric::{FabricEvent, MirrorId, Region};

use super::VerbsFabric;
use super::frame::{VerbsFrame, VerbsViolation};

/// Whether the owner of an attachment pushes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detachment {
    /// It does, or will.
    Attached,
    /// It has been asked not to.
    Asked,
    /// It does not.
    Answered,
}

impl VerbsFabric {
    /// Ends a mirror. Posts under way hold its memory.
    ///
    /// # Panics
    /// If it was not published here, or is retired.
    pub(super) fn retire_mirror(&mut self, id: MirrorId) {
        let mirror = self.mirrors.mirrors.remove(id.0);
        let mirror = mirror.unwrap_or_else(|| panic!("{id:?} is not published by this node"));
        self.mirrors.by_key.remove(&mirror.key.0);
        for peer in self.peers.iter_mut().filter(|peer| mirror.readers.contains(&peer.node)) {
            peer.send(VerbsFrame::Retire { key: mirror.key.0 });
        }
        let retired = mirror.key;
        self.events.retain(|event| !matches!(event, FabricEvent::Attached { key, .. } if *key == retired));
    }

    /// A peer has retired a mirror.
    pub(super) fn on_retire(&mut self, peer: usize, key: u64) {
        self.peers[peer].published.remove(&key);
    }

    /// The owner of an attachment pushes nothing more to it.
    pub(super) fn on_detached(&mut self, peer: usize, number: u32) -> Result<(), VerbsViolation> {
        let attachment = self.attachments.attachments.get_mut(&number);
        let attachment = attachment
            .filter(|attachment| attachment.peer == Some(peer) && attachment.detachment == Detachment::Asked);
        attachment.ok_or(VerbsViolation("an answer about an attachment that was not dropped"))?.detachment =
            Detachment::Answered;
        self.sweep_attachments();
        Ok(())
    }

    /// Lets go the attachments that nobody holds any more.
    pub(super) fn sweep_attachments(&mut self) {
        let Self { attachments, peers, .. } = self;
        let by_key = &mut attachments.by_key;
        attachments.attachments.retain(|number, attachment| {
            if !is_dropped(&attachment.region) {
                return true;
            }
            let name = (attachment.owner, attachment.key);
            if by_key.get(&name) == Some(number) {
                by_key.remove(&name);
            }
            let Some(place) = attachment.peer else { return false };
            let peer = &mut peers[place];
            if attachment.detachment == Detachment::Attached {
                attachment.detachment = Detachment::Asked;
                peer.send(VerbsFrame::Detach { attachment: *number });
            }
            attachment.detachment == Detachment::Asked && peer.lost.is_none()
        });
    }
}

/// Whether only the fabric holds an attachment: its table of regions, and its table of attachments.
fn is_dropped(attachment: &Region) -> bool {
    Arc::strong_count(attachment.memory()) == 2
}
