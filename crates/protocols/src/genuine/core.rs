//! A member's part in one view: it sends, sequences, acknowledges and delivers (RamCast §3.4).

use squall_fabric::{Duration, Fabric, FabricEvent, MirrorId, NodeId};

use super::failure::GenuineFailure;
use super::fetch::LogFetch;
use super::marks::DeliveredMarks;
use super::mutation;
use super::outbox::{GenuineSendError, ShardOutbox};
use super::relay::LogRelay;
use super::shard::{ShardMember, position};
use super::table::{ShardRow, ShardTable};
use super::wedge::GenuineCarryover;
use super::{GenuineMessage, GenuineSettings, ShardPlacement};
use crate::coverage::{Point, reach};
use crate::membership::{RankSet, View};

/// A member's part in one view. See the module above for the step order and the invariants.
#[derive(Debug)]
pub struct GenuineMember {
    pub(super) view: u64,
    pub(super) nodes: Vec<NodeId>,
    pub(super) rank: usize,
    pub(super) placement: ShardPlacement,
    pub(super) settings: GenuineSettings,
    pub(super) table: ShardTable,
    pub(super) row: ShardRow,
    pub(super) outbox: ShardOutbox,
    /// What is added to the fabric's time for a hybrid clock.
    time_base: u64,
    /// The own shard's part; `None` for a member that is in no shard.
    pub(super) shard: Option<ShardMember>,
    /// The view is over: nothing is sent, sequenced, acknowledged or delivered any more \[G9\].
    pub(super) is_wedged: bool,
    /// The members whose rows are frozen.
    pub(super) frozen: RankSet,
    /// What this member lacks of its shard's log, and what it sends others of it \[G11\].
    pub(super) fetch: LogFetch,
    pub(super) relays: Vec<LogRelay>,
    pub(super) failure: Option<GenuineFailure>,
}

impl GenuineMember {
    /// Begins a view. `has_state` says whether the application has the state of the own shard; `before` is what the view before
    /// has left.
    ///
    /// # Panics
    /// If this node is not a member.
    pub fn new<F: Fabric>(
        fabric: &mut F,
        view: &View,
        placement: ShardPlacement,
        settings: GenuineSettings,
        has_state: bool,
        before: GenuineCarryover,
    ) -> Self {
        let nodes = view.nodes();
        let rank = view.rank(fabric.node()).expect("it is a member of its own view");
        let table = ShardTable::new(fabric, view, &placement, &settings);
        let row = ShardRow::new(&settings, nodes.len(), placement.leads(rank));
        let GenuineCarryover { mut marks, delivered, backlog, number } = before;
        marks.retain(|node| nodes.contains(&node));
        mutant!(ForgetMarks => marks = DeliveredMarks::default());
        if !backlog.is_empty() {
            reach(Point::GenuineResent);
        }
        let outbox = ShardOutbox::new(&table, &row, &placement, backlog, number);
        let shard = table.own().map(|shard| {
            let leads = placement.leads(rank);
            let nodes = nodes.len();
            let before = (marks, delivered);
            ShardMember::new(shard, leads, &table, &placement, &settings, nodes, has_state, before)
        });
        Self {
            view: view.id,
            nodes,
            rank,
            placement,
            settings,
            table,
            row,
            outbox,
            time_base: 0,
            shard,
            is_wedged: false,
            frozen: RankSet::EMPTY,
            fetch: LogFetch::default(),
            relays: Vec::new(),
            failure: None,
        }
    }

    /// Sets what is added to the fabric's time to get a time that is common to all members, which timestamps follow.
    /// It may be wrong: then messages wait longer for those of other shards, and nothing else changes \[G3\].
    pub fn set_time_base(&mut self, base: Duration) {
        // Timestamps have space for counting beyond any time.
        self.time_base = u64::try_from(base.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2);
    }

    /// Takes an event of the fabric.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        self.table.handle_event(event);
        self.relays.iter_mut().for_each(|relay| relay.handle_event(event));
    }

    /// Sends a message to the members of all `destinations` that have members, a set of bits; returns its number.
    ///
    /// # Errors
    /// [`GenuineSendError`]; nothing has been sent then.
    pub fn send(&mut self, destinations: u64, payload: &[u8]) -> Result<u64, GenuineSendError> {
        self.outbox.send(destinations, payload)
    }

    /// Whether all members that read this one's mirrors have attached them.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.table.is_ready()
    }

    /// At least as many messages of this member are under way; 0 if it knows all to be delivered.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.outbox.under_way()
    }

    /// All messages of this member below this number are delivered by all members of their shards, as far as it knows, or had no shard
    /// with members.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.outbox.settled()
    }

    /// The shard of this member, if it counts.
    pub(crate) fn shard(&self) -> Option<usize> {
        self.shard.as_ref().map(|shard| shard.shard)
    }

    /// Whether this member is in a shard that counts.
    #[must_use]
    pub const fn is_in_shard(&self) -> bool {
        self.shard.is_some()
    }

    /// Whether a state counts that the application takes over now: this member is in a shard, and has not wedged, so that it will be
    /// counted among those that hold the state when the view ends \[G14\].
    #[must_use]
    pub const fn may_take_state(&self) -> bool {
        self.shard.is_some() && !self.is_wedged
    }

    /// The application has the state of the own shard by now, with these marks of what is in it \[G14\]. What this member has
    /// delivered since its first view and is not in the state comes after it.
    pub fn take_state(&mut self, marks: &DeliveredMarks) {
        let nodes = &self.nodes;
        self.shard.iter_mut().for_each(|shard| shard.take_state(marks, nodes));
    }

    /// The marks of what is delivered here: they go with the state \[G14\].
    #[must_use]
    pub fn marks(&self) -> Option<&DeliveredMarks> {
        self.shard.as_ref().map(|shard| &shard.marks)
    }

    /// The view.
    #[must_use]
    pub const fn view(&self) -> u64 {
        self.view
    }

    /// The members of each shard that counts, by shard, the leader first: none of a shard without members or without a state.
    #[must_use]
    pub fn members(&self) -> Vec<Vec<NodeId>> {
        let of = |shard| self.placement.members(shard).iter().map(|rank| self.nodes[*rank]).collect();
        (0..self.placement.count()).map(of).collect()
    }

    /// Why it cannot continue, if it cannot.
    #[must_use]
    pub const fn failure(&self) -> Option<GenuineFailure> {
        self.failure
    }

    /// The mirrors of this member, to be retired when the next view has begun.
    pub fn mirrors(&self) -> impl Iterator<Item = MirrorId> {
        self.table.mirrors()
    }

    /// Evaluates once, and delivers at most `space` messages; returns the amount of work done.
    pub fn poll<F: Fabric>(
        &mut self,
        fabric: &mut F,
        space: usize,
        mut deliver: impl FnMut(GenuineMessage<'_>),
    ) -> usize {
        let is_over = self.is_wedged && !mutant!(ActAfterWedge);
        if is_over {
            return self.complete_log(fabric);
        }
        if self.failure.is_some() || !self.table.is_ready() {
            return 0;
        }
        let mut work = self.outbox.send_backlog();
        work += usize::try_from(self.outbox.publish(&mut self.table, &self.row)).expect("a window");
        work += match self.evaluate(self.time_base + fabric.now().as_nanos(), space, &mut deliver) {
            Ok(work) => work,
            Err(failure) => {
                self.failure = Some(failure);
                1
            }
        };
        let (rank, table, shard) = (self.rank, &self.table, self.shard.as_ref());
        let done = |_: usize, other: usize| match shard {
            Some(shard) if other == rank => shard.inboxes[rank].done(),
            _ => table.reported(other),
        };
        work += usize::try_from(self.outbox.free(&self.placement, done)).expect("a window");
        self.table.flush(fabric);
        work
    }

    /// What it does as a member of its shard.
    fn evaluate(
        &mut self,
        now: u64,
        mut space: usize,
        deliver: &mut impl FnMut(GenuineMessage<'_>),
    ) -> Result<usize, GenuineFailure> {
        let Some(shard) = &mut self.shard else { return Ok(0) };
        shard.read_acknowledgements(&self.table, &self.row, self.rank);
        shard.forget(self.placement.members(shard.shard));
        let mut work = shard.receive(&self.table, &self.row, &self.placement, &self.nodes)?;
        work += shard.assign(&mut self.table, &self.placement, now);
        work += shard.acknowledge(&mut self.table, &self.row, &self.placement, self.rank);
        let quorum = self.settings.quorum;
        while space > 0
            && let Some((key, last)) = shard.order.next(&self.placement, quorum, &shard.acknowledged)
        {
            space -= 1;
            shard.deliver(key, position(self.view, last), &self.nodes, deliver);
            work += 1;
        }
        for (writer, inbox) in shard.inboxes.iter().enumerate() {
            self.table.report(writer, inbox.done());
        }
        Ok(work)
    }
}
