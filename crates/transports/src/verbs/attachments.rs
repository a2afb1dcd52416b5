//! Attachments: this node's copies of other nodes' mirrors, into which their owners write. See `mirrors` for the other side.

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::{MirrorKey, NodeId, Region};

use super::control::VerbsLoss;
use super::domain::{KeyAccess, MemoryKey, ProtectionDomain};
use super::frame::{VerbsFrame, VerbsViolation};
use super::mirrors::REQUESTS_MAX;
use super::order;
use super::post::RemoteMemory;
use super::retirement::Detachment;
use super::{VerbsError, VerbsFabric};

/// This node's attachments of other nodes' mirrors.
#[derive(Default)]
pub(super) struct VerbsAttachments {
    /// By number; numbers are not reused, since refused pushes may name them late.
    pub(super) attachments: BTreeMap<u32, VerbsAttachment>,
    next: u32,
    pub(super) by_key: BTreeMap<(NodeId, u64), u32>,
}

pub(super) struct VerbsAttachment {
    pub(super) owner: NodeId,
    /// The owner's place; `None` if it is not a peer yet, or no longer.
    pub(super) peer: Option<usize>,
    pub(super) key: u64,
    pub(super) region: Region,
    /// The owner's right to write it; `None` once it is frozen.
    memory: Option<MemoryKey>,
    pub(super) detachment: Detachment,
}

impl VerbsFabric {
    /// Attaches a mirror of `owner`, which need not be a peer yet.
    ///
    /// # Panics
    /// Panics if the mirror is attached with another size, or allocation fails.
    pub(super) fn attach_mirror(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.sweep_attachments();
        if let Some(&attachment) = self.attachments.by_key.get(&(owner, key.0)) {
            let region = &self.attachments.attachments[&attachment].region;
            assert!(region.words() == words, "mirror {key:?} is attached with {} words", region.words());
            return region.read_only();
        }
        let region = self.regions.allocate(words);
        self.add_attachment(owner, key, region.clone());
        region.read_only()
    }

    /// Same as [`squall_fabric::Fabric::attach`], with memory of another fabric of this node.
    pub(crate) fn attach_over(&mut self, owner: NodeId, key: MirrorKey, memory: &Region) -> Region {
        self.sweep_attachments();
        self.regions.adopt(memory);
        self.add_attachment(owner, key, memory.clone());
        memory.read_only()
    }

    fn add_attachment(&mut self, owner: NodeId, key: MirrorKey, region: Region) {
        let number = self.attachments.next;
        self.attachments.next = number.checked_add(1).expect("fewer than 2^32 attachments");
        self.attachments.by_key.insert((owner, key.0), number);
        let words = region.words() as u64;
        let detachment = Detachment::Attached;
        let mut attachment =
            VerbsAttachment { owner, peer: None, key: key.0, region, memory: None, detachment };
        let mut loss = None;
        if let Some(peer) = self.peers.find(owner) {
            let (peer_is_lost, domain) = (self.peers[peer].lost.is_some(), &self.peers[peer].domain);
            match register_attachment(domain, &attachment.region) {
                _ if peer_is_lost => attachment.give_up(),
                Ok(memory) => {
                    let frame = attachment.attach_to(peer, number, memory);
                    self.peers[peer].send(frame);
                    let published = self.peers[peer].published.get(&key.0);
                    if published.is_some_and(|published| *published != words) {
                        loss = Some((peer, VerbsLoss::Violation(OTHER_SIZE)));
                    }
                }
                Err(error) => {
                    attachment.give_up();
                    loss = Some((peer, VerbsLoss::Shortage(error)));
                }
            }
        }
        self.attachments.attachments.insert(number, attachment);
        if let Some((peer, loss)) = loss {
            self.lose(peer, &loss);
        }
    }

    /// Freezes an attachment [M3].
    ///
    /// # Panics
    /// Panics if `region` is not an attachment.
    pub(super) fn freeze_attachment(&mut self, region: &Region) {
        let named = self
            .attachments
            .attachments
            .iter_mut()
            .find(|(_, attachment)| attachment.region.pointer(0) == region.pointer(0));
        let (&number, attachment) =
            named.unwrap_or_else(|| panic!("{region:?} is not an attachment of a mirror"));
        let Some((peer, memory)) = attachment.peer.zip(attachment.memory.take()) else {
            return attachment.give_up();
        };
        attachment.detachment = Detachment::Asked;
        if let Err(error) = memory.revoke() {
            crate::log::error!(%error, "failed to revoke the key of an attachment");
            // This ends the queue pair through which the attachment is written.
            self.lose(peer, &VerbsLoss::Unreachable("an attachment could not be frozen".into()));
        }
        order::from_device();
        self.peers[peer].send(VerbsFrame::Detach { attachment: number });
    }

    /// Handles a mirror that the peer has published for this node.
    pub(super) fn on_publish(&mut self, peer: usize, key: u64, words: u64) -> Result<(), VerbsViolation> {
        let published = &mut self.peers[peer].published;
        if published.len() >= REQUESTS_MAX {
            return Err(VerbsViolation("too many mirrors published"));
        }
        if published.insert(key, words).is_some() {
            return Err(VerbsViolation("a mirror published twice"));
        }
        let owner = self.peers[peer].node;
        let attachment = self
            .attachments
            .by_key
            .get(&(owner, key))
            .map(|attachment| &self.attachments.attachments[attachment]);
        match attachment.map(|attachment| attachment.region.words() as u64 == words) {
            Some(false) => Err(OTHER_SIZE),
            _ => Ok(()),
        }
    }
}

impl VerbsAttachment {
    /// Returns whether it waits for its owner to become a peer.
    pub(super) fn is_awaited(&self, owner: NodeId) -> bool {
        self.owner == owner && self.peer.is_none() && self.detachment == Detachment::Attached
    }

    /// Connects it with its owner, the peer at `peer`; returns the frame that announces this to the peer.
    pub(super) fn attach_to(&mut self, peer: usize, number: u32, memory: MemoryKey) -> VerbsFrame {
        let address = self.region.pointer(0).as_ptr().addr() as u64;
        let remote = RemoteMemory { address, key: memory.remote() };
        (self.peer, self.memory) = (Some(peer), Some(memory));
        VerbsFrame::Attach {
            attachment: number,
            key: self.key,
            words: self.region.words() as u64,
            memory: remote,
        }
    }

    /// Gives it up: its owner writes nothing more, and will not confirm anything.
    pub(super) fn give_up(&mut self) {
        (self.peer, self.memory, self.detachment) = (None, None, Detachment::Answered);
    }
}

/// Registers an attachment, so that the peer of the domain can write it.
pub(super) fn register_attachment(
    domain: &Arc<ProtectionDomain>,
    region: &Region,
) -> Result<MemoryKey, VerbsError> {
    let (base, bytes) = (region.pointer(0).cast::<u8>(), (8 * region.words()).max(8));
    let address = base.as_ptr().addr() as u64;
    // SAFETY: a region of at least one page. Its words are atomics; pages that are unmapped while they are
    // registered stay with the device.
    let key = unsafe { domain.register(base, bytes, address, KeyAccess::Remote) };
    key.map_err(|cause| VerbsError::MemoryLock { bytes, cause })
}

const OTHER_SIZE: VerbsViolation =
    VerbsViolation("a mirror published with a size that differs from the attached one");
