//! All endpoints of a node, by number, with the completion queues that they share.
//!
//! **Software devices** (rxe, as of Linux 6.12) access a queue pair once more after they have queued a packet
//! for it, when nothing holds it any longer: destroying it at that moment crashes the whole machine. So on
//! such devices an ended queue pair is moved to the error state, in which nothing lands either, and destroyed
//! a little later, when no packet is on its way to it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::completion::{CompletionBatch, CompletionQueues};
use super::device::VerbsDevice;
use super::domain::ProtectionDomain;
use super::endpoint::{EndpointRole, EndpointState, EndpointWork, Flushed, VerbsEndpoint};
use super::post::{PostChain, VerbsPost};
use super::queue_pair::{QueueDepth, QueuePair};
use crate::slot_map::SlotMap;

/// The endpoints of a node. A number is not reused for so long that late completions of an ended endpoint are
/// recognised as such.
pub(super) struct VerbsEndpoints {
    slots: SlotMap<Slot>,
    /// Ended endpoints that linger, oldest first, with the time from which they can be destroyed.
    lingering: VecDeque<(Instant, Slot)>,
    /// How long they linger, if at all.
    linger: Option<Duration>,
    /// Endpoints that may have posts which wait for the device.
    waiting: Vec<u32>,
    pub(super) completions: CompletionQueues,
    chain: PostChain,
    /// Taken out while its completions are handled.
    pub(super) batch: Option<CompletionBatch>,
}

struct Slot {
    endpoint: Box<VerbsEndpoint>,
    /// The place of its completion queue.
    queue: usize,
    /// Whether it is in `waiting`.
    waits: bool,
}

impl VerbsEndpoints {
    pub(super) fn new(device: &Arc<VerbsDevice>) -> io::Result<Self> {
        Ok(Self {
            slots: SlotMap::default(),
            lingering: VecDeque::new(),
            linger: device.is_software().then_some(LINGER),
            waiting: Vec::new(),
            completions: CompletionQueues::new(device)?,
            chain: PostChain::new(),
            batch: Some(CompletionBatch::new()),
        })
    }

    /// Creates an endpoint that is not connected; returns its number.
    pub(super) fn make(
        &mut self,
        role: EndpointRole,
        peer: usize,
        domain: &Arc<ProtectionDomain>,
        depth: QueueDepth,
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
        let endpoint = Box::new(VerbsEndpoint::new(role, peer, pair, depth, domain.clone()));
        Ok(self.slots.insert(Slot { endpoint, queue, waits: false }))
    }

    /// Returns the endpoint `number`, unless it has ended.
    pub(super) fn live(&mut self, number: u32) -> Option<&mut VerbsEndpoint> {
        self.slots.at_mut(number).map(|slot| &mut *slot.endpoint)
    }

    /// Returns whether an endpoint ever had `number`.
    pub(super) fn was_made(&self, number: u32) -> bool {
        self.slots.was_used(number)
    }

    /// Ends an endpoint: when this returns, nothing more of its peer lands through it. Returns its unfinished
    /// work.
    pub(super) fn end(&mut self, number: u32) -> Option<EndpointWork> {
        let mut slot = self.slots.remove(number)?;
        let work = slot.endpoint.take_work();
        match self.linger {
            Some(linger) if slot.endpoint.pair.fail().is_ok() => {
                self.lingering.push_back((Instant::now() + linger, slot));
            }
            _ => self.destroy(slot),
        }
        Some(work)
    }

    fn destroy(&mut self, slot: Slot) {
        let depth = slot.endpoint.depth();
        drop(slot.endpoint);
        self.completions.release(slot.queue, depth.posts + depth.receives);
    }

    /// Destroys endpoints that have lingered for long enough.
    fn bury(&mut self) {
        while let Some((due, _)) = self.lingering.front()
            && *due <= Instant::now()
        {
            let (_, slot) = self.lingering.pop_front().expect("there is one");
            self.destroy(slot);
        }
    }

    /// Queues a post; the next flush passes it to the device. Returns the number of the endpoint's posts that
    /// are not completed.
    ///
    /// # Panics
    /// Panics if the endpoint has ended.
    pub(super) fn push(&mut self, number: u32, post: VerbsPost) -> usize {
        let slot = self.slots.at_mut(number).expect("the endpoint has not ended");
        slot.endpoint.push(post);
        if !std::mem::replace(&mut slot.waits, true) {
            self.waiting.push(number);
        }
        slot.endpoint.outstanding()
    }

    /// Passes waiting posts to the device. Reports for each endpoint what was passed, or that it failed.
    pub(super) fn flush(&mut self, mut reported: impl FnMut(u32, usize, io::Result<Flushed>)) {
        self.bury();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|number| {
            let Some(slot) = self.slots.at_mut(*number) else { return false };
            let flushed = slot.endpoint.flush(*number, &mut self.chain);
            // An endpoint that is not connected, or whose queue is full, continues to wait.
            slot.waits = slot.endpoint.waiting() > 0
                && slot.endpoint.state != EndpointState::Failed
                && flushed.is_ok();
            if !matches!(flushed, Ok(Flushed { posts: 0, .. })) {
                reported(*number, slot.endpoint.peer, flushed);
            }
            slot.waits
        });
        // Nothing was added meanwhile: `reported` has no access.
        self.waiting = waiting;
    }

    /// Returns whether any endpoint has posts that are not completed.
    pub(super) fn has_posts(&self) -> bool {
        let has_posts =
            |slot: &Slot| slot.endpoint.state != EndpointState::Failed && slot.endpoint.outstanding() > 0;
        self.slots.iter().any(has_posts)
    }

    /// Returns whether there are posts that the device would take now.
    pub(super) fn has_work(&self) -> bool {
        let ready = |number: &u32| {
            let slot = self.slots.at(*number);
            slot.is_some_and(|slot| slot.endpoint.can_flush())
        };
        self.waiting.iter().any(ready)
    }
}

impl Drop for VerbsEndpoints {
    fn drop(&mut self) {
        if self.linger.is_none() || self.slots.iter().next().is_none() && self.lingering.is_empty() {
            return;
        }
        for slot in self.slots.iter() {
            // A pair that cannot be moved to the error state is in it already.
            let _ = slot.endpoint.pair.fail();
        }
        std::thread::sleep(LAST_LINGER);
    }
}

/// Much longer than a packet is on its way.
const LINGER: Duration = Duration::from_millis(100);
/// The same when the whole node ends, which waits for it.
const LAST_LINGER: Duration = Duration::from_millis(20);
