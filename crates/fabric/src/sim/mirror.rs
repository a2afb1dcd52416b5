//! Mirrors in the simulated world: copies that pushes reach with delays, or memory that readers share [M2].
//!
//! With early sight, everything that a reader sees of an owner is occasionally updated as a whole: of shared
//! memory, a reader may see any state in the owner's store order and no other, and in one thread a complete
//! copy is such a state. An update compares all words, so large windows make this simulation slower.

use std::collections::BTreeMap;
use std::ops::Range;

use super::adversary::Adversary;
use super::agenda::SimAction;
use super::link::{LaneId, LanePayload, LanePost, LaneTarget};
use super::trace::Happening;
use super::{SimMemory, WorldState};
use crate::atomics::{AtomicU64, Ordering};
use crate::{BreakReason, FabricEvent, MirrorId, MirrorKey, NodeId, Region, WriteSource};

pub(super) type AttachmentId = usize;

/// A published mirror.
#[derive(Debug)]
pub(super) struct SimMirror {
    pub(super) owner: u32,
    pub(super) key: MirrorKey,
    pub(super) memory: usize,
    /// The place of each reader in the order in which pushes reach them.
    pub(super) readers: BTreeMap<u32, usize>,
    /// The attachments that pushes reach, in that order.
    pub(super) attached: Vec<AttachmentId>,
    pub(super) retired: bool,
}

/// One reader's attachment of a mirror.
#[derive(Debug)]
pub(super) struct SimAttachment {
    pub(super) reader: u32,
    pub(super) owner: u32,
    pub(super) key: MirrorKey,
    /// The reader's copy.
    pub(super) memory: usize,
    /// The owner's region, once attached.
    pub(super) source: Option<usize>,
    lane: Option<LaneId>,
    pub(super) frozen: bool,
    /// Whether the reader has lost the owner, or the owner is dead and shows nothing more.
    pub(super) lost: bool,
    /// Whether the reader has dropped it and its words are freed.
    pub(super) dropped: bool,
}

impl SimMirror {
    fn position(&self, reader: u32) -> Option<usize> {
        self.readers.get(&reader).copied()
    }
}

impl SimAttachment {
    /// Returns whether its words may still change.
    pub(super) fn is_fed(&self) -> bool {
        self.source.is_some() && !self.frozen && !self.lost
    }
}

impl WorldState {
    pub(super) fn publish(
        &mut self,
        owner: u32,
        key: MirrorKey,
        region: &Region,
        readers: &[NodeId],
    ) -> MirrorId {
        let memory = self.memory_of(region);
        assert!(self.memories[memory].owner == owner, "node {owner} can publish its own regions only");
        let id = self.mirrors.len();
        let places: BTreeMap<u32, usize> = readers.iter().map(|reader| reader.0).zip(0..).collect();
        assert!(!places.contains_key(&owner), "node {owner} needs no attachment of its own mirror");
        let twin = self.mirror_keys.insert((owner, key.0), id);
        assert!(twin.is_none(), "node {owner} has published {key:?} already");
        for NodeId(reader) in readers {
            if let Some(&attachment) = self.attachment_keys.get(&(owner, key.0, *reader)) {
                let at = self.local_now(owner) + self.config.cost.connect_ns + self.notice_delay();
                self.agenda.enter(at, SimAction::Attach(attachment));
            }
        }
        self.mirrors.push(SimMirror {
            owner,
            key,
            memory,
            readers: places,
            attached: Vec::new(),
            retired: false,
        });
        MirrorId(u32::try_from(id).expect("few mirrors"))
    }

    pub(super) fn attach(&mut self, reader: u32, owner: u32, key: MirrorKey, words: usize) -> Region {
        assert!(reader != owner, "node {owner} needs no attachment of its own mirror");
        self.sweep_between_attachments();
        let region = self.register(reader, words);
        let memory = self.memory_of(&region);
        let id = self.attachments.len();
        let twin = self.attachment_keys.insert((owner, key.0, reader), id);
        assert!(twin.is_none(), "node {reader} has attached {key:?} of node {owner} already");
        self.attachments.push(SimAttachment {
            reader,
            owner,
            key,
            memory,
            source: None,
            lane: None,
            frozen: false,
            lost: false,
            dropped: false,
        });
        self.memories[memory].attachment = Some(id);
        self.path_mut(owner, reader).asked.push(id);
        if self.mirror_keys.contains_key(&(owner, key.0)) {
            let at = self.local_now(reader) + self.config.cost.connect_ns + self.notice_delay();
            self.agenda.enter(at, SimAction::Attach(id));
        }
        region.read_only()
    }

    /// Attaches a mirror when its reader and owner have found each other.
    pub(super) fn on_attach(&mut self, id: AttachmentId) {
        let SimAttachment { reader, owner, key, memory, source, lost, .. } = self.attachments[id];
        // The mirror may have been retired meanwhile.
        let Some(&mirror) = self.mirror_keys.get(&(owner, key.0)) else { return };
        let SimMirror { memory: region, readers, .. } = &self.mirrors[mirror];
        let region = *region;
        let wanted = source.is_none() && !lost && readers.contains_key(&reader);
        if !wanted || !self.lives(owner) || !self.lives(reader) {
            return;
        }
        if self.path(owner, reader).is_shut() {
            return self.delayed.push(SimAction::Attach(id));
        }
        if self.memories[memory].region.words() != self.memories[region].region.words() {
            self.lose_both(reader, owner, BreakReason::Protocol, BreakReason::PeerClosed);
            return;
        }
        let lane = match self.path(owner, reader).mirror_lane {
            Some(lane) => lane,
            None => self.add_lane(owner, reader, None),
        };
        self.path_mut(owner, reader).mirror_lane = Some(lane);
        (self.attachments[id].lane, self.attachments[id].source) = (Some(lane), Some(region));
        let named = &self.mirrors[mirror];
        let position = |id: AttachmentId| named.position(self.attachments[id].reader);
        let at = named.attached.partition_point(|other| position(*other) < position(id));
        self.mirrors[mirror].attached.insert(at, id);
        self.path_mut(owner, reader).attachments.push(id);
        self.push_event(owner, FabricEvent::Attached { key, reader: NodeId(reader) });
    }

    /// Pushes the words of `range` by reference, or, if `by_value`, these few words by value.
    pub(super) fn push(&mut self, node: u32, mirror: MirrorId, range: Range<usize>, by_value: bool) {
        let id = self.mirror_of(node, mirror);
        let memory = self.mirrors[id].memory;
        self.memories[memory].region.check(&range);
        if self.config.early_sight {
            return self.show(node, id, &range);
        }
        let readers = self.mirrors[id].attached.len();
        let rotate =
            if self.config.adversary.is_some() && readers > 1 { self.prng.index(readers) } else { 0 };
        for i in 0..readers {
            // The owner may die between two posts, and lose a reader.
            let Some(&attachment) = self.mirrors[id].attached.get((i + rotate) % readers) else { continue };
            if !self.begin_post(node) {
                return;
            }
            let source = match by_value {
                true => LanePayload::Value(values(&self.memories[memory].region, range.clone())),
                false => LanePayload::Reference { memory, first: range.start },
            };
            let lane = self.attachments[attachment].lane.expect("attached");
            self.enqueue(
                lane,
                LanePost {
                    source,
                    words: u32::try_from(range.len()).expect("a push fits 32 GiB"),
                    target: LaneTarget::Attachment { attachment, first: range.start },
                    immediate: None,
                    signal: None,
                    arrive_at: 0,
                },
            );
        }
    }

    /// Pushes words of shared memory: nothing is posted; all readers see them after a delay.
    fn show(&mut self, node: u32, mirror: usize, range: &Range<usize>) {
        if !self.begin_free_post(node) {
            return;
        }
        let key = self.mirrors[mirror].key;
        let shown = Happening::Shown { key, first: range.start, words: range.len() };
        self.trace.add(self.now, node, shown);
        for i in 0..self.mirrors[mirror].attached.len() {
            let reader = self.attachments[self.mirrors[mirror].attached[i]].reader;
            self.chance_glimpse(node, reader);
            let late = match &self.config.adversary {
                Some(adversary) => Adversary::wait_ns(&mut self.prng, adversary.delay_max),
                None => self.config.cost.coherence_ns,
            };
            if !std::mem::replace(&mut self.path_mut(node, reader).glimpse_scheduled, true) {
                self.agenda.enter(self.local_now(node) + late, SimAction::Glimpse { owner: node, reader });
            }
        }
    }

    pub(super) fn on_glimpse(&mut self, owner: u32, reader: u32) {
        if self.path(owner, reader).is_shut() {
            return self.delayed.push(SimAction::Glimpse { owner, reader });
        }
        self.path_mut(owner, reader).glimpse_scheduled = false;
        self.glimpse(owner, reader);
    }

    /// With the adversary's probability, shows the reader what is stored now, pushed or not.
    fn chance_glimpse(&mut self, owner: u32, reader: u32) {
        let chance = self.config.adversary.as_ref().map_or(0, |adversary| adversary.glimpse_per_mille);
        if self.prng.chance(chance) && !self.path(owner, reader).is_shut() {
            self.glimpse(owner, reader);
        }
    }

    /// Updates everything that the reader sees of the owner.
    fn glimpse(&mut self, owner: u32, reader: u32) {
        let mut changed = false;
        for id in &self.paths[owner as usize][reader as usize].attachments {
            let attachment = &self.attachments[*id];
            let Some(source) = attachment.source.filter(|_| attachment.is_fed()) else { continue };
            changed |= bring_up(&self.memories[attachment.memory].region, &self.memories[source].region);
        }
        if changed {
            self.touch(reader);
        }
    }

    /// May show a polling reader what its owners have stored.
    pub(super) fn glimpse_at_poll(&mut self, reader: u32) {
        for owner in 0..self.node_count() {
            if !self.path(owner, reader).attachments.is_empty() {
                self.chance_glimpse(owner, reader);
            }
        }
    }

    /// Freezes an attachment.
    pub(super) fn freeze(&mut self, node: u32, region: &Region) {
        let SimMemory { attachment, owner, .. } = self.memories[self.memory_of(region)];
        let attachment = attachment.filter(|_| owner == node).expect("an attachment of this node");
        self.attachments[attachment].frozen = true;
    }

    /// Ends the mirrors of `node` at `peer` and of `peer` at `node`, as far as `node` decides.
    pub(super) fn forget_mirrors(&mut self, node: u32, peer: u32) {
        for id in &self.paths[peer as usize][node as usize].asked {
            self.attachments[*id].lost = true;
        }
        for id in &self.paths[node as usize][peer as usize].asked {
            let key = (node, self.attachments[*id].key.0);
            if let Some(mirror) = self.mirror_keys.get(&key) {
                self.mirrors[*mirror].attached.retain(|attachment| attachment != id);
            }
        }
        if let Some(lane) = self.path(peer, node).mirror_lane {
            self.close_lane(lane);
        }
        if let Some(lane) = self.path_mut(node, peer).mirror_lane.take() {
            self.strand_lane(lane);
        }
    }

    /// Ends the mirrors of a crashed owner: attachments that share its memory no longer change, with or
    /// without a last update.
    pub(super) fn abandon_mirrors(&mut self, owner: u32) {
        if !self.config.early_sight {
            return;
        }
        for reader in 0..self.node_count() {
            if self.prng.chance(500) && !self.path(owner, reader).is_shut() {
                self.glimpse(owner, reader);
            }
        }
        self.attachments
            .iter_mut()
            .filter(|attachment| attachment.owner == owner)
            .for_each(|attachment| attachment.lost = true);
    }

    /// Schedules the mutual loss of two nodes.
    fn lose_both(&mut self, a: u32, b: u32, reason_at_a: BreakReason, reason_at_b: BreakReason) {
        for (node, peer, reason) in [(a, b, reason_at_a), (b, a, reason_at_b)] {
            let at = self.now + self.notice_delay();
            self.agenda.enter(at, SimAction::Lose { node, peer, reason });
        }
    }
}

/// Returns the current values of a few words.
///
/// # Panics
/// Panics if there are too many words to be pushed by value.
fn values(region: &Region, words: Range<usize>) -> [u64; WriteSource::VALUE_WORDS_MAX] {
    let mut values = [0; WriteSource::VALUE_WORDS_MAX];
    assert!(words.len() <= values.len(), "{} words by value", words.len());
    values.iter_mut().zip(words).for_each(|(value, word)| *value = region.load(word));
    values
}

/// Copies the words that differ; returns true if any did. Most are usually equal, so it compares eight words
/// at once.
fn bring_up(attachment: &Region, source: &Region) -> bool {
    let mut changed = false;
    for (attachment, source) in attachment.atomics().chunks(8).zip(source.atomics().chunks(8)) {
        let pairs = || attachment.iter().zip(source);
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        if pairs().fold(0, |differs, (attachment, source)| differs | (load(attachment) ^ load(source))) != 0 {
            pairs().for_each(|(attachment, source)| attachment.store(load(source), Ordering::Relaxed));
            changed = true;
        }
    }
    changed
}
