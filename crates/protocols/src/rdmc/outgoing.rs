//! The sending side: the targets of an object and the next sends of the schedule (RDMC §3.2, "Data Transfer
//! Schedules").

use std::collections::VecDeque;

use squall_fabric::{Fabric, Grant, NodeId, Write, WriteSource as Words};

use super::link::{PostOutcome, RdmcLinks};
use super::message::BlockSummary;
use super::mutation;
use super::offer::TargetOffer;
use super::schedule::{BlockTransfer, TransferPlan};
use super::slots::{self, ObjectSlot};
use super::{HeldBlocks, ObjectMemory, RdmcObject};

/// The sending side of a multicast.
#[derive(Debug)]
pub(super) struct OutgoingObject {
    /// The next sends of the schedule, up to the look-ahead; empty when all are posted.
    upcoming: VecDeque<BlockTransfer>,
    /// Sends in earlier steps are posted or among `upcoming`.
    listed: u64,
    /// The sum of the targets' `in_flight`: `in_flight <= in_flight_max`.
    in_flight: u64,
    in_flight_max: u64,
    /// By rank.
    pub(super) targets: Vec<BlockTarget>,
}

/// A member to which this one sends blocks of the object.
#[derive(Debug)]
pub(super) struct BlockTarget {
    rank: usize,
    pub(super) node: NodeId,
    pub(super) is_announced: bool,
    pub(super) ready: Option<ReadyForBlock>,
    /// The number of blocks posted and not placed yet.
    in_flight: u64,
}

/// *Ready for block*: where to write, in which slot, which blocks to skip, and up to which step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyForBlock {
    pub(super) grant: Grant,
    pub(super) slot: u8,
    pub(super) held: BlockSummary,
    /// The first bound on steps; later the target writes greater bounds into the link.
    pub(super) bound: u64,
}

/// What posting a block needs to know about the object.
pub(super) struct SendContext<'a> {
    pub(super) plan: &'a TransferPlan,
    pub(super) rank: usize,
    pub(super) object: &'a RdmcObject,
    pub(super) slot: ObjectSlot,
    pub(super) memory: &'a ObjectMemory,
    pub(super) held: &'a HeldBlocks,
    pub(super) block_words: usize,
}

impl OutgoingObject {
    pub(super) fn new(plan: &TransferPlan, rank: usize, members: &[NodeId], in_flight_max: u64) -> Self {
        let target = |rank: usize| BlockTarget {
            rank,
            node: members[rank],
            is_announced: false,
            ready: None,
            in_flight: 0,
        };
        let targets = plan.targets(rank).into_iter().map(target).collect();
        let upcoming = VecDeque::with_capacity(LOOK_AHEAD);
        Self { upcoming, listed: 0, in_flight: 0, in_flight_max, targets }
    }

    pub(super) fn target_mut(&mut self, node: NodeId) -> Option<&mut BlockTarget> {
        self.targets.iter_mut().find(|target| target.node == node)
    }

    /// Returns whether all sends are posted.
    pub(super) fn is_posted(&self) -> bool {
        self.upcoming.is_empty()
    }

    /// Returns whether all sends of an object of `blocks` blocks are placed, and all targets have answered.
    pub(super) fn is_finished(&self, blocks: u64) -> bool {
        let is_heard =
            |target: &BlockTarget| if blocks == 0 { target.is_announced } else { target.ready.is_some() };
        let is_placed = self.in_flight == 0 || mutant!(ReleaseUnplaced);
        self.is_posted() && is_placed && self.targets.iter().all(is_heard)
    }

    /// Returns whether no block is in flight.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns whether no block is in flight to `node`.
    pub(super) fn is_at_rest_to(&self, node: NodeId) -> bool {
        self.targets.iter().all(|target| target.node != node || target.in_flight == 0)
    }

    /// Fills up the list of the next sends.
    pub(super) fn look_ahead(&mut self, plan: &TransferPlan, rank: usize) {
        while self.upcoming.len() < LOOK_AHEAD {
            let Some(transfer) = plan.next_send(rank, self.listed) else { return };
            self.listed = transfer.step + 1;
            self.upcoming.push_back(transfer);
        }
    }

    /// Posts the next block of the schedule that can be sent: it is held and its target is ready for it. Blocks that
    /// their targets hold are skipped.
    ///
    /// If nothing is in flight, it looks some steps ahead for a block that can be sent, so that a late member does
    /// not hold up the sends that do not depend on it (RDMC app. A (2)).
    pub(super) fn post_next<F: Fabric>(
        &mut self,
        fabric: &mut F,
        links: &mut RdmcLinks,
        stock: &SendContext<'_>,
    ) -> PostOutcome {
        let mut i = 0;
        while i < self.upcoming.len() && (i == 0 || self.in_flight == 0) {
            let BlockTransfer { step, peer, block } = self.upcoming[i];
            let at = self.targets.binary_search_by_key(&peer, |target| target.rank);
            let at = self.mutated_target(at.expect("targets are those of the plan"));
            let target = &self.targets[at];
            let Some(ready) = target.ready else {
                i += 1;
                continue;
            };
            if !ready.lacks(block) || is_left_out(block, stock.held) {
                self.pass(i, stock);
                continue;
            }
            let bound = ready.bound.max(links.bound(target.node, stock.slot));
            if step < bound && self.post(fabric, links, stock, at, block) == PostOutcome::Yes {
                if !(mutant!(SendTwice) && block == 3 && self.in_flight % 2 == 1) {
                    self.pass(i, stock);
                }
                return PostOutcome::Yes;
            }
            i += 1;
        }
        PostOutcome::Later
    }

    /// Removes the `i`th of the next sends, which is done.
    fn pass(&mut self, i: usize, stock: &SendContext<'_>) {
        self.upcoming.remove(i);
        self.look_ahead(stock.plan, stock.rank);
    }

    fn post<F: Fabric>(
        &mut self,
        fabric: &mut F,
        links: &mut RdmcLinks,
        stock: &SendContext<'_>,
        at: usize,
        block: u64,
    ) -> PostOutcome {
        let is_held = stock.held.contains(block) || mutant!(SendUnheld);
        if !is_held || self.in_flight >= self.in_flight_max {
            return PostOutcome::Later;
        }
        let target = &mut self.targets[at];
        let Some(ready) = &target.ready else { return PostOutcome::Later };
        let offset = usize::try_from(block).expect("fits memory") * stock.block_words;
        let end = (offset + stock.block_words).min(stock.object.words());
        let first = stock.memory.first;
        let write = Write {
            source: Words::Region(&stock.memory.region, first + offset..first + end),
            grant: &ready.grant,
            offset,
            immediate: Some(slots::immediate(ready.slot, block)),
            signal: Some(slots::token(stock.slot.index, at)),
        };
        if links.post_block(fabric, target.node, write) == PostOutcome::Later {
            return PostOutcome::Later;
        }
        target.in_flight += 1;
        self.in_flight += 1;
        PostOutcome::Yes
    }

    /// Notes that a block is placed at the `at`th target [F6].
    pub(super) fn on_done(&mut self, at: usize) {
        self.targets[at].in_flight -= 1;
        self.in_flight -= 1;
    }

    /// Forgets what is in flight to `node`, for which no completions will come [F11].
    pub(super) fn on_lost(&mut self, node: NodeId) {
        if let Some(target) = self.targets.iter_mut().find(|target| target.node == node) {
            self.in_flight -= std::mem::take(&mut target.in_flight);
        }
    }

    fn mutated_target(&self, at: usize) -> usize {
        let other = (at + 1) % self.targets.len();
        if mutant!(WrongPartner) && self.targets[other].ready.is_some() { other } else { at }
    }
}

impl BlockTarget {
    /// Marks the target as ready for the first block, if the object has any and fits.
    pub(super) fn use_offer(&mut self, offered: &TargetOffer, plan: &TransferPlan, object: &RdmcObject) {
        let TargetOffer { slot, grant, .. } = *offered;
        let first = plan.next_receive(self.rank, 0).expect("each object has a way to each target");
        let words = object.words() as u64;
        let fits = words <= grant.words || mutant!(OverfillOffer);
        if words > 0 && fits {
            self.ready =
                Some(ReadyForBlock { grant, slot, held: BlockSummary::default(), bound: first.step + 1 });
        }
    }
}

fn is_left_out(block: u64, held: &HeldBlocks) -> bool {
    mutant!(DropLast) && block + 1 == held.blocks()
}

impl ReadyForBlock {
    fn lacks(&self, block: u64) -> bool {
        mutant!(OmitUnheld if self.held.prefix > 0 && block == self.held.prefix => return false);
        mutant!(SendHeld) || !self.held.contains(block)
    }
}

/// The number of sends that it looks ahead.
const LOOK_AHEAD: usize = 4;
