//! A multicast: one object at this member (RDMC §3.2, "Data Transfer Schedules").

use squall_fabric::{Fabric, Grant, NodeId};

use super::group::{Neighbour, neighbour_of};
use super::incoming::IncomingObject;
use super::link::{PostOutcome, RdmcLinks};
use super::message::RdmcMessage;
use super::mutation;
use super::outgoing::{BlockTarget, OutgoingObject, SendContext};
use super::schedule::TransferPlan;
use super::settings::RdmcSettings;
use super::slots::ObjectSlot;
use super::{HeldBlocks, ObjectAnswer, ObjectMemory, RdmcApplication, RdmcObject};

/// One object at one member.
#[derive(Debug)]
pub(super) struct ObjectMulticast {
    pub(super) object: RdmcObject,
    plan: TransferPlan,
    rank: usize,
    block_words: usize,
    /// The object's number in tokens here, in immediate values that arrive, and in bounds that targets report.
    pub(super) slot: Option<ObjectSlot>,
    /// The memory from the application, at the root from the beginning. It has space for the object.
    pub(super) memory: Option<ObjectMemory>,
    /// The application was asked for memory.
    asked: bool,
    pub(super) held: HeldBlocks,
    /// The application has been notified that it is complete.
    pub(super) is_handed_over: bool,
    pub(super) incoming: IncomingObject,
    pub(super) outgoing: OutgoingObject,
}

impl ObjectMulticast {
    /// Returns the multicast of `object` at the member of rank `rank`, which holds nothing yet.
    pub(super) fn new(object: RdmcObject, settings: &RdmcSettings, members: &[NodeId], rank: usize) -> Self {
        let blocks = settings.blocks(object.bytes);
        // An empty object has no block, but is announced along the path of a single one [B5].
        let plan = TransferPlan::new(&settings.schedule, members.len(), blocks.max(1));
        let in_flight_max = settings.in_flight_max();
        let mut outgoing = OutgoingObject::new(&plan, rank, members, in_flight_max);
        if blocks > 0 {
            outgoing.look_ahead(&plan, rank);
        }
        Self {
            object,
            rank,
            block_words: usize::try_from(settings.block_bytes / 8).expect("a block fits memory"),
            slot: None,
            memory: None,
            asked: false,
            held: HeldBlocks::none(blocks),
            is_handed_over: false,
            incoming: IncomingObject::new(&plan, rank, members, in_flight_max),
            outgoing,
            plan,
        }
    }

    /// Returns whether blocks may be transferred.
    pub(super) const fn is_open(&self) -> bool {
        self.slot.is_some() && self.memory.is_some()
    }

    /// Returns whether all blocks have arrived.
    pub(super) fn is_complete(&self) -> bool {
        let blocks = self.held.blocks() - u64::from(mutant!(ReceivedTooSoon) && self.held.blocks() > 1);
        self.is_open() && self.held.count() >= blocks
    }

    /// Returns whether this member has nothing more to do with the object.
    pub(super) fn is_finished(&self) -> bool {
        self.is_complete() && self.incoming.are_all_heard() && self.outgoing.is_finished(self.held.blocks())
    }

    /// Takes memory, with the blocks that it already holds.
    pub(super) fn supply(&mut self, memory: ObjectMemory, held: HeldBlocks) {
        assert!(memory.holds(self.object.words()), "{:?} does not fit {memory:?}", self.object);
        self.memory = Some(memory);
        self.held = held;
        if self.held.blocks() > 0 {
            self.incoming.open(&self.plan, self.rank, &self.held);
        }
    }

    /// Takes memory that holds no blocks.
    pub(super) fn supply_empty(&mut self, memory: ObjectMemory) {
        self.supply(memory, HeldBlocks::none(self.held.blocks()));
    }

    /// Returns whether the application has not provided the memory yet for which it was asked.
    pub(super) const fn awaits_memory(&self) -> bool {
        self.asked && self.memory.is_none()
    }

    /// Announces the object to the targets that have created the group; returns their number.
    pub(super) fn announce(&mut self, links: &mut RdmcLinks, neighbours: &mut [Neighbour]) -> usize {
        let RdmcObject { group, number, bytes } = self.object;
        let Some(slot) = self.slot else { return 0 };
        let mut work = 0;
        for target in self.outgoing.targets.iter_mut().filter(|target| !target.is_announced) {
            if neighbour_of(neighbours, target.node).has_joined {
                target.is_announced = true;
                links.say(target.node, RdmcMessage::Announce { group, number, bytes, slot });
                work += 1;
            }
        }
        if work > 0 {
            self.use_offers(neighbours);
        }
        work
    }

    /// Marks targets that know of the object and have offered memory for it as ready for their first block, if it
    /// fits.
    pub(super) fn use_offers(&mut self, neighbours: &mut [Neighbour]) {
        let RdmcObject { number, .. } = self.object;
        let unready = |target: &&mut BlockTarget| target.is_announced && target.ready.is_none();
        for target in self.outgoing.targets.iter_mut().filter(unready) {
            let offered = &mut neighbour_of(neighbours, target.node).offered;
            // Offers for earlier objects have arrived too late.
            let offered = offered.take_if(|o| o.number <= number || mutant!(WrongOffer));
            if let Some(offered) = offered.filter(|o| o.number == number || mutant!(WrongOffer)) {
                target.use_offer(&offered, &self.plan, &self.object);
            }
        }
    }

    /// Asks the application for memory, once; returns false if it refuses.
    pub(super) fn ask<F: Fabric, A: RdmcApplication<F>>(
        &mut self,
        fabric: &mut F,
        application: &mut A,
    ) -> bool {
        if self.memory.is_some() || std::mem::replace(&mut self.asked, true) {
            return true;
        }
        match application.memory(fabric, &self.object) {
            ObjectAnswer::Memory(memory) => self.supply_empty(memory),
            ObjectAnswer::Later => {}
            ObjectAnswer::Refuse => return false,
        }
        true
    }

    /// Sends *ready for block* to the sources that have announced the object; returns their number.
    pub(super) fn answer<F: Fabric>(&mut self, fabric: &mut F, links: &mut RdmcLinks) -> usize {
        let (Some(slot), Some(memory)) = (self.slot, &self.memory) else { return 0 };
        let RdmcObject { group, number, .. } = self.object;
        self.incoming.answer(fabric, memory, self.object.words(), |node, grant, bound| {
            let held = self.held.summary();
            links.say(node, RdmcMessage::Ready { group, number, slot: slot.index, grant, bound, held });
        })
    }

    /// Notes that a block has arrived; returns false if it was not expected from that peer.
    pub(super) fn on_block(&mut self, peer: NodeId, block: u64) -> bool {
        if !self.incoming.on_block(peer, block) || !self.held.insert(block) {
            return mutant!(SendTwice);
        }
        self.incoming.open(&self.plan, self.rank, &self.held);
        true
    }

    /// Posts the next block that can be sent.
    pub(super) fn post_next<F: Fabric>(&mut self, fabric: &mut F, links: &mut RdmcLinks) -> PostOutcome {
        let (Some(slot), Some(memory)) = (self.slot, &self.memory) else { return PostOutcome::Later };
        let Self { plan, rank, object, held, block_words, .. } = self;
        let stock = SendContext { plan, rank: *rank, object, slot, memory, held, block_words: *block_words };
        self.outgoing.post_next(fabric, links, &stock)
    }

    /// Handles the loss of the link to `node`; returns the grant that `node` had, if any.
    pub(super) fn on_lost(&mut self, node: NodeId) -> Option<Grant> {
        self.outgoing.on_lost(node);
        self.incoming.source_mut(node)?.grant.take()
    }

    /// Takes all grants that were given.
    pub(super) fn take_grants(&mut self) -> impl Iterator<Item = Grant> {
        self.incoming.sources.iter_mut().filter_map(|source| source.grant.take())
    }
}
