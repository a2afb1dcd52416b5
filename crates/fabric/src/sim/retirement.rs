//! Retirement of mirrors, and the release of memory that is no longer held [M6].

use std::collections::BTreeSet;
use std::sync::Arc;

use super::WorldState;
use super::link::{LanePayload, LaneTarget};
use crate::{FabricEvent, MirrorId, Region, RegionId};

impl WorldState {
    /// Retires a mirror. Earlier pushes are in flight and arrive.
    pub(super) fn retire(&mut self, node: u32, mirror: MirrorId) {
        let id = self.mirror_of(node, mirror);
        let mirror = &mut self.mirrors[id];
        mirror.retired = true;
        mirror.attached.clear();
        mirror.readers.clear();
        let (owner, mirror_key) = (mirror.owner, mirror.key);
        self.mirror_keys.remove(&(owner, mirror_key.0));
        let inbox = &mut self.nodes[node as usize].inbox;
        inbox.retain(|event| !matches!(event, FabricEvent::Attached { key, .. } if *key == mirror_key));
        self.retirements += 1;
        if self.retirements.is_multiple_of(SWEEP_EVERY.max(u64::from(self.node_count()))) {
            self.sweep();
        }
    }

    /// Frees, in a world of many nodes, what those hold no longer that attach something else now: all of them together would take more
    /// memory than there is.
    pub(super) fn sweep_between_attachments(&mut self) {
        let nodes = u64::from(self.node_count());
        if nodes > SWEEP_EVERY && (self.attachments.len() as u64).is_multiple_of(SWEEP_EVERY * nodes) {
            self.sweep();
        }
    }

    /// Returns the index of a mirror that `node` has published and not retired.
    pub(super) fn mirror_of(&self, node: u32, mirror: MirrorId) -> usize {
        let id = mirror.0 as usize;
        let own = self.mirrors.get(id).is_some_and(|mirror| mirror.owner == node && !mirror.retired);
        assert!(own, "{mirror:?} is not a mirror of node {node}, or was retired");
        id
    }

    /// Frees the words of attachments and of retired mirrors that no node and no post holds.
    fn sweep(&mut self) {
        let in_use = self.memories_of_posts();
        for id in 0..self.attachments.len() {
            if !self.attachments[id].dropped && is_alone(&self.memories[self.attachments[id].memory].region) {
                self.drop_attachment(id, &in_use);
            }
        }
        let shown = self.attachments.iter().filter(|attachment| !attachment.dropped);
        let shown: BTreeSet<usize> = shown.filter_map(|attachment| attachment.source).collect();
        for id in 0..self.mirrors.len() {
            let memory = self.mirrors[id].memory;
            let is_unread = self.mirrors[id].retired && !shown.contains(&memory);
            if is_unread && is_alone(&self.memories[memory].region) {
                self.give_back(memory, &in_use);
            }
        }
    }

    /// Drops an attachment that its reader no longer holds: no words are copied into it any more.
    fn drop_attachment(&mut self, id: usize, in_use: &BTreeSet<usize>) {
        let attachment = &mut self.attachments[id];
        (attachment.dropped, attachment.lost) = (true, true);
        let (owner, reader, memory, key) =
            (attachment.owner, attachment.reader, attachment.memory, attachment.key);
        let path = self.path_mut(owner, reader);
        path.asked.retain(|other| *other != id);
        path.attachments.retain(|other| *other != id);
        if let Some(mirror) = self.mirror_keys.get(&(owner, key.0)) {
            self.mirrors[*mirror].attached.retain(|other| *other != id);
        }
        self.give_back(memory, in_use);
    }

    fn give_back(&mut self, memory: usize, in_use: &BTreeSet<usize>) {
        if !in_use.contains(&memory) {
            self.memories[memory].region = Region::heap(RegionId(memory as u64), 0);
        }
    }

    /// Returns the memories that posts on their way read or write by themselves.
    fn memories_of_posts(&self) -> BTreeSet<usize> {
        let posts = self.lanes.iter().flat_map(|lane| &lane.posts);
        let memories = posts.flat_map(|post| {
            let source = match post.source {
                LanePayload::Reference { memory, .. } => Some(memory),
                _ => None,
            };
            let target = match &post.target {
                LaneTarget::Granted { grant, .. } => usize::try_from(grant.region.0).ok(),
                _ => None,
            };
            [source, target]
        });
        memories.flatten().collect()
    }
}

/// Returns whether only the world holds the memory.
fn is_alone(region: &Region) -> bool {
    Arc::strong_count(region.memory()) == 1
}

/// Retirements between two searches for memory to free.
const SWEEP_EVERY: u64 = 64;

#[cfg(test)]
mod tests {
    use super::super::{SimConfig, SimWorld};
    use super::*;
    use crate::{Duration, Fabric, MirrorKey, NodeId};

    /// Mirrors that are created and retired, with pushes in flight at their ends, never take more memory than
    /// a few of them.
    #[test]
    fn memory_of_retired_mirrors_is_freed() {
        const WORDS: usize = 1000;
        for seed in 0..20 {
            let world = SimWorld::new(seed, SimConfig::adversarial(seed), 2);
            let [mut owner, mut reader] = [0, 1].map(|node| world.fabric(node));
            for round in 0..10 * SWEEP_EVERY {
                let region = owner.register(WORDS);
                let mirror = owner.publish(MirrorKey(round), &region, &[NodeId(1)]);
                let attachment = reader.attach(NodeId(0), MirrorKey(round), WORDS);
                for step in 0..round % 4 {
                    world.advance_to(world.now() + Duration::from_micros(40 * step));
                    owner.push(mirror, 0..WORDS);
                    owner.poll(&mut |_| ());
                    reader.poll(&mut |_| ());
                }
                if round % 3 > 0 {
                    drop(attachment);
                }
                owner.retire(mirror);
            }
            let words: usize = world.world.borrow().memories.iter().map(|memory| memory.region.words()).sum();
            let most = 2 * WORDS * usize::try_from(2 * SWEEP_EVERY).expect("small");
            assert!(words <= most, "seed {seed}: {words} words of {} mirrors", 10 * SWEEP_EVERY);
        }
    }
}
