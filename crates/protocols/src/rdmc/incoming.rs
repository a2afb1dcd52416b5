//! The receiving side: the sources of an object, and *ready for block* (RDMC §3.2, "Data Transfer Schedules").
//!
//! A receiver opens its receives in the order of the schedule's steps, a window of them at a time, and reports to
//! each source up to which step it may send. So no source runs ahead of a receiver by more than the window: otherwise
//! a source with time to spare (the root, which receives nothing) would fill the link of a member with blocks of
//! later steps, while the block that this member has to relay next waits behind them.

use std::collections::VecDeque;

use squall_fabric::{Fabric, Grant, NodeId};

use super::link::{PostOutcome, RdmcLinks};
use super::mutation;
use super::schedule::{BlockTransfer, TransferPlan};
use super::slots::ObjectSlot;
use super::{HeldBlocks, ObjectMemory};

/// The receiving side of a multicast.
#[derive(Debug)]
pub(super) struct IncomingObject {
    /// The receives that are open and have not arrived yet, in the order of steps: at most `window`.
    open: VecDeque<BlockTransfer>,
    /// Receives in earlier steps have arrived, are open, or are not needed.
    listed: u64,
    window: usize,
    /// By rank.
    pub(super) sources: Vec<BlockSource>,
}

/// A member that sends blocks of the object.
#[derive(Debug)]
pub(super) struct BlockSource {
    rank: usize,
    pub(super) node: NodeId,
    /// The slot of the object there, once it has announced it.
    pub(super) slot: Option<ObjectSlot>,
    pub(super) is_answered: bool,
    /// The grant that it has, from the answer or an earlier offer.
    pub(super) grant: Option<Grant>,
    /// It may send in steps below this one, and knows of those below `reported`: `reported <= bound`.
    pub(super) bound: u64,
    reported: u64,
    /// The numbers of open receives from it that it knows about, and that it does not know about.
    waiting: usize,
    unreported: usize,
}

impl IncomingObject {
    pub(super) fn new(plan: &TransferPlan, rank: usize, members: &[NodeId], window: u64) -> Self {
        let source = |rank: usize| BlockSource {
            rank,
            node: members[rank],
            slot: None,
            is_answered: false,
            grant: None,
            bound: 0,
            reported: 0,
            waiting: 0,
            unreported: 0,
        };
        let window = usize::try_from(window).expect("small");
        let sources = plan.sources(rank).into_iter().map(source).collect();
        Self { open: VecDeque::with_capacity(window), listed: 0, window, sources }
    }

    pub(super) fn source_mut(&mut self, node: NodeId) -> Option<&mut BlockSource> {
        self.sources.iter_mut().find(|source| source.node == node)
    }

    /// Opens the next receives, as far as the window allows; blocks that are held are not needed.
    pub(super) fn open(&mut self, plan: &TransferPlan, rank: usize, held: &HeldBlocks) {
        while self.open.len() < self.window {
            let Some(transfer) = plan.next_receive(rank, self.listed) else { return };
            self.listed = transfer.step + 1;
            if !held.contains(transfer.block) || mutant!(SendHeld) {
                self.open.push_back(transfer);
                let at = self.sources.binary_search_by_key(&transfer.peer, |source| source.rank);
                let source = &mut self.sources[at.expect("sources are those of the plan")];
                source.bound = transfer.step + 1;
                source.unreported += 1;
            }
        }
    }

    /// Returns whether all sources have announced the object and been answered.
    pub(super) fn are_all_heard(&self) -> bool {
        self.sources.iter().all(|source| source.slot.is_some() && source.is_answered)
    }

    /// Notes that the source of the first block may send it since before the object was announced.
    pub(super) fn on_reported_first(&mut self, node: NodeId, grant: Grant) {
        let first = self.open.front().map(|transfer| transfer.step);
        let source = self.source_mut(node).expect("the source of the first block is a source");
        (source.is_answered, source.grant) = (true, Some(grant));
        if let Some(step) = first {
            source.reported = step + 1;
            source.waiting += 1;
            source.unreported -= 1;
        }
    }

    /// Notes that a block has arrived; returns false if it was not expected from that source.
    pub(super) fn on_block(&mut self, node: NodeId, block: u64) -> bool {
        let expected = self.open.iter().position(|transfer| transfer.block == block);
        let Some(source) = self.sources.iter_mut().find(|source| source.node == node) else { return false };
        let Some(at) = expected.filter(|at| self.open[*at].peer == source.rank && source.waiting > 0) else {
            return false;
        };
        source.waiting -= 1;
        self.open.remove(at);
        true
    }

    /// Answers the sources that have announced the object, with a grant to its memory, and how far they may go;
    /// returns their number.
    pub(super) fn answer<F: Fabric>(
        &mut self,
        fabric: &mut F,
        memory: &ObjectMemory,
        words: usize,
        mut say: impl FnMut(NodeId, Grant, u64),
    ) -> usize {
        let mut work = 0;
        for source in self.sources.iter_mut().filter(|source| source.slot.is_some() && !source.is_answered) {
            source.is_answered = true;
            work += 1;
            if words > 0 {
                let grant = fabric.grant(&memory.region, memory.first..memory.first + words, source.node);
                source.grant = Some(grant);
                say(source.node, grant, source.bound);
                source.has_reported();
            }
        }
        work
    }

    /// Reports to sources how far they may go by now; returns the number of writes.
    pub(super) fn report<F: Fabric>(&mut self, fabric: &mut F, links: &mut RdmcLinks) -> usize {
        let batch = (self.window / 4).max(1);
        let mut work = 0;
        for source in self.sources.iter_mut().filter(|source| source.is_answered && source.unreported > 0) {
            let is_worth_it = source.unreported >= batch || source.waiting < batch;
            let Some(slot) = source.slot else { continue };
            if is_worth_it && links.report_bound(fabric, source.node, slot, source.bound) == PostOutcome::Yes
            {
                source.has_reported();
                work += 1;
            }
        }
        work
    }
}

impl BlockSource {
    const fn has_reported(&mut self) {
        self.reported = self.bound;
        self.waiting += self.unreported;
        self.unreported = 0;
    }
}
