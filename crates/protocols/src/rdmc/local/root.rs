//! The root's side: offers, readiness, the end of objects (RDMC §2, fig. 1: `send` and its completion).

use std::collections::VecDeque;

use squall_fabric::{Fabric, MirrorId, MirrorKey, NodeId, Region};

use super::{BUFFERS_MAX, BufferId, OBJECTS_MAX, OFFERED, READY, ROW_WORDS, Rows, buffer_key, descriptor};
use crate::rdmc::mutation;

#[derive(Debug)]
pub(super) struct LocalRoot {
    buffers: Vec<Shared>,
    /// Objects from `finished` on.
    objects: VecDeque<Object>,
    pub(super) finished: u64,
    ready: u64,
    /// `finished <= ready <= offered <= finished + objects.len()`
    offered: u64,
}

/// A buffer that receivers map.
#[derive(Debug)]
struct Shared {
    region: Region,
    /// Its mirror, published with the first object in it, when the rows are ready.
    mirror: Option<MirrorId>,
    /// The receivers that have mapped it, by rank.
    attached: Vec<bool>,
}

#[derive(Debug)]
struct Object {
    buffer: usize,
    bytes: u64,
}

impl LocalRoot {
    pub(super) const fn new() -> Self {
        Self { buffers: Vec::new(), objects: VecDeque::new(), finished: 0, ready: 0, offered: 0 }
    }

    pub(super) fn share<F: Fabric>(&mut self, _: &mut F, region: &Region) -> BufferId {
        assert!(self.buffers.len() < BUFFERS_MAX, "at most {BUFFERS_MAX} buffers: use them again");
        self.buffers.push(Shared { region: region.clone(), mirror: None, attached: Vec::new() });
        BufferId(self.buffers.len() - 1)
    }

    pub(super) fn send(&mut self, buffer: BufferId, bytes: u64) -> Option<u64> {
        let words = self.buffers[buffer.0].region.words() as u64;
        assert!(bytes.div_ceil(8) <= words, "{bytes} bytes in a buffer of {words} words");
        if self.objects.len() as u64 == OBJECTS_MAX {
            return None;
        }
        self.objects.push_back(Object { buffer: buffer.0, bytes });
        Some(self.finished + self.objects.len() as u64 - 1)
    }

    /// Notes that `reader` has mapped the mirror `key`.
    pub(super) fn on_attached(&mut self, rows: &Rows, key: MirrorKey, reader: NodeId) {
        let index = key.0.checked_sub(rows.key.0 + 1).and_then(|index| usize::try_from(index).ok());
        let Some(shared) = index.and_then(|index| self.buffers.get_mut(index)) else { return };
        let Some(rank) = rows.members.iter().position(|member| *member == reader) else { return };
        if let Some(attached) = shared.attached.get_mut(rank) {
            *attached = true;
        }
    }

    pub(super) fn poll<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) -> usize {
        if !rows.is_ready() {
            return 0;
        }
        self.offer(fabric, rows) + self.make_ready(fabric, rows) + self.finish(rows)
    }

    /// Publishes the descriptors of new objects; returns the amount of work done.
    fn offer<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) -> usize {
        let end = self.finished + self.objects.len() as u64;
        let new = self.offered..end;
        for number in new.clone() {
            let object = &self.objects[usize::try_from(number - self.finished).expect("few")];
            let shared = &mut self.buffers[object.buffer];
            if shared.mirror.is_none() {
                let readers = rows.other_receivers().map(|rank| rows.members[rank]);
                let key = buffer_key(rows.key, object.buffer);
                shared.mirror = Some(fabric.publish(key, &shared.region, &readers.collect::<Vec<_>>()));
                shared.attached = vec![false; rows.members.len()];
            }
            let place = descriptor(number);
            let words = [object.buffer as u64, shared.region.words() as u64, object.bytes];
            rows.own().copy_in(place, &words);
            fabric.push(rows.mirror, place..place + words.len());
            assert!(place + words.len() <= ROW_WORDS, "descriptors are inside the row");
        }
        if new.is_empty() {
            return 0;
        }
        self.offered = end;
        rows.raise(fabric, OFFERED, end);
        1
    }

    /// Makes objects ready whose buffers all receivers have mapped; returns the amount of work done.
    fn make_ready<F: Fabric>(&mut self, fabric: &mut F, rows: &Rows) -> usize {
        let before = self.ready;
        while self.ready < self.offered {
            let object = &self.objects[usize::try_from(self.ready - self.finished).expect("few")];
            let shared = &self.buffers[object.buffer];
            let is_mapped = rows.other_receivers().all(|rank| shared.attached[rank]);
            if !is_mapped && !mutant!(ReadyUnattached) {
                break;
            }
            let words = usize::try_from(object.bytes.div_ceil(8)).expect("fits the buffer");
            if words > 0 {
                fabric.push(shared.mirror.expect("offered"), 0..words);
            }
            self.ready += 1;
        }
        if self.ready == before {
            return 0;
        }
        rows.raise(fabric, READY, self.ready);
        1
    }

    /// Finishes objects that all receivers have released. A receiver that reports more than it was offered is not
    /// believed.
    fn finish(&mut self, rows: &Rows) -> usize {
        let given_back = rows.other_receivers().map(|rank| rows.progress(rank).given_back());
        let least = if mutant!(FinishWithFirst) { given_back.max() } else { given_back.min() };
        let finished = least.unwrap_or(self.ready).clamp(self.finished, self.ready);
        let work = usize::try_from(finished - self.finished).expect("few");
        self.objects.drain(..work);
        self.finished = finished;
        work
    }
}
