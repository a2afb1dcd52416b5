//! Retirement: mirrors end, and attachments that are no longer referenced are released [M6].
//!
//! A reader that has dropped an attachment first asks the owner to push nothing more to it, and deregisters
//! the memory when the owner has confirmed. So only posts that the device already had by then can find the
//! memory gone, which costs a new queue pair.

use std::sync::Arc;

use squall_fabric::{FabricEvent, MirrorId, Region};

use super::VerbsFabric;
use super::frame::{VerbsFrame, VerbsViolation};

/// Whether the owner of an attachment pushes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detachment {
    /// The owner pushes to it, or will.
    Attached,
    /// The owner has been asked to stop.
    Asked,
    /// The owner has stopped.
    Answered,
}

impl VerbsFabric {
    /// Ends a mirror. Posts in flight keep its memory.
    ///
    /// # Panics
    /// Panics if it was not published here, or is retired.
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

    /// Handles a peer's retirement of a mirror.
    pub(super) fn on_retire(&mut self, peer: usize, key: u64) {
        self.peers[peer].published.remove(&key);
    }

    /// Handles the confirmation that the owner of an attachment pushes nothing more to it.
    pub(super) fn on_detached(&mut self, peer: usize, number: u32) -> Result<(), VerbsViolation> {
        let attachment = self.attachments.attachments.get_mut(&number);
        let attachment = attachment
            .filter(|attachment| attachment.peer == Some(peer) && attachment.detachment == Detachment::Asked);
        attachment
            .ok_or(VerbsViolation("a confirmation for an attachment that was not dropped"))?
            .detachment = Detachment::Answered;
        self.sweep_attachments();
        Ok(())
    }

    /// Releases the attachments that are no longer referenced by users.
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

/// Returns whether only the fabric holds an attachment, in its table of regions and in its table of
/// attachments.
fn is_dropped(attachment: &Region) -> bool {
    Arc::strong_count(attachment.memory()) == 2
}
