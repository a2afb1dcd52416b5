//! All endpoints of a node, by number, with the completion queues that they share.

use std::io;
use std::sync::Arc;

use super::completion::{Batch, CompletionQueues};
use super::device::Device;
use super::domain::Domain;
use super::endpoint::{Endpoint, Flushed, Role, State, Work};
use super::post::{Chain, Post};
use super::queue_pair::{Depth, QueuePair};

/// The endpoints of a node. Numbers are never used twice, so that late completions of an ended endpoint are known as
/// such.
pub(super) struct Endpoints {
    slots: Vec<Option<Slot>>,
    /// Those that may have posts which wait for the device.
    waiting: Vec<u32>,
    pub(super) completions: CompletionQueues,
    chain: Chain,
    /// Taken while its completions are handled.
    pub(super) batch: Option<Batch>,
}

struct Slot {
    endpoint: Box<Endpoint>,
    /// The place of its completion queue.
    queue: usize,
    /// Whether it is in `waiting`.
    waits: bool,
}

impl Endpoints {
    pub(super) fn new(device: &Arc<Device>) -> io::Result<Self> {
        Ok(Self {
            slots: Vec::new(),
            waiting: Vec::new(),
            completions: CompletionQueues::new(device)?,
            chain: Chain::new(),
            batch: Some(Batch::new()),
        })
    }

    /// A new endpoint that is not connected; returns its number.
    pub(super) fn make(
        &mut self,
        role: Role,
        peer: usize,
        domain: &Arc<Domain>,
        depth: Depth,
    ) -> io::Result<u32> {
        let entries = depth.posts + depth.receives;
        let (queue, completions) = self.completions.reserve(entries)?;
        let pair = match QueuePair::new(domain, &completions, depth) {
            Ok(pair) => pair,
            Err(error) => {
                self.completions.release(queue, entries);
                return Err(error);
            }
        };
        let number = u32::try_from(self.slots.len()).expect("fewer than 2^32 endpoints");
        let endpoint = Box::new(Endpoint::new(role, peer, pair, depth, domain.clone()));
        self.slots.push(Some(Slot { endpoint, queue, waits: false }));
        Ok(number)
    }

    /// The endpoint `number`, unless it has ended.
    pub(super) fn live(&mut self, number: u32) -> Option<&mut Endpoint> {
        self.slots.get_mut(number as usize)?.as_mut().map(|slot| &mut *slot.endpoint)
    }

    /// Whether `number` was ever given to an endpoint.
    pub(super) fn was_made(&self, number: u32) -> bool {
        (number as usize) < self.slots.len()
    }

    /// Ends an endpoint: when this returns, nothing of its peer lands by it any more. Returns what it leaves behind.
    pub(super) fn end(&mut self, number: u32) -> Option<Work> {
        let mut slot = self.slots.get_mut(number as usize)?.take()?;
        let (work, depth) = (slot.endpoint.take_work(), slot.endpoint.depth());
        drop(slot.endpoint);
        self.completions.release(slot.queue, depth.posts + depth.receives);
        Some(work)
    }

    /// Queues a post; the next flush hands it to the device. Returns how many posts of the endpoint are not over.
    ///
    /// # Panics
    /// If the endpoint has ended.
    pub(super) fn push(&mut self, number: u32, post: Post) -> usize {
        let slot = self.slots[number as usize].as_mut().expect("the endpoint lives");
        slot.endpoint.push(post);
        if !std::mem::replace(&mut slot.waits, true) {
            self.waiting.push(number);
        }
        slot.endpoint.outstanding()
    }

    /// Hands what waits to the device. Tells of each endpoint what was handed over, or that it
    /// failed.
    pub(super) fn flush(&mut self, mut told: impl FnMut(u32, usize, io::Result<Flushed>)) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|number| {
            let Some(slot) = &mut self.slots[*number as usize] else { return false };
            let flushed = slot.endpoint.flush(*number, &mut self.chain);
            // One that is not connected, or whose queue is full, waits on.
            slot.waits =
                slot.endpoint.waiting() > 0 && slot.endpoint.state != State::Failed && flushed.is_ok();
            if !matches!(flushed, Ok(Flushed { posts: 0, .. })) {
                told(*number, slot.endpoint.peer, flushed);
            }
            slot.waits
        });
        // Nothing was added meanwhile: `told` has no access.
        self.waiting = waiting;
    }

    /// Whether there are posts that the device would take now.
    pub(super) fn has_work(&self) -> bool {
        let ready = |number: &u32| {
            let slot = self.slots[*number as usize].as_ref();
            slot.is_some_and(|slot| slot.endpoint.can_flush())
        };
        self.waiting.iter().any(ready)
    }
}
