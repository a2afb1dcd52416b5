//! A member's part in one view: it sends, sequences, acknowledges and delivers (RamCast §3.4).

use std::collections::VecDeque;

use squall_fabric::window::WindowReader;
use squall_fabric::{Duration, Fabric, FabricEvent, MirrorId, NodeId};

use super::clock::ShardClock;
use super::failure::GenuineFailure;
use super::inbox::ShardInbox;
use super::log::{DELIVERED, LogReader, LogWriter};
use super::marks::DeliveredMarks;
use super::mutation;
use super::order::{LogCoverage, ShardOrder};
use super::outbox::{GenuineSendError, ShardOutbox, counting};
use super::pending::MessageKey;
use super::placement::shards_of;
use super::record::RecordHeader;
use super::table::{ShardRow, ShardTable};
use super::wedge::GenuineCarryover;
use super::{GenuineMessage, GenuinePosition, GenuineSettings, ShardPlacement, Timestamp};
use crate::coverage::{Point, reach};
use crate::membership::View;

/// A member's part in one view. See the module above for the step order and the invariants.
#[derive(Debug)]
pub struct GenuineMember {
    pub(super) view: u64,
    pub(super) nodes: Vec<NodeId>,
    pub(super) rank: usize,
    pub(super) placement: ShardPlacement,
    pub(super) settings: GenuineSettings,
    pub(super) table: ShardTable,
    row: ShardRow,
    pub(super) outbox: ShardOutbox,
    /// What is added to the fabric's time for a hybrid clock.
    time_base: u64,
    /// The own shard's part; `None` for a member that is in no shard.
    pub(super) shard: Option<ShardMember>,
    /// The view is over: nothing is sent, sequenced, acknowledged or delivered any more \[G9\].
    pub(super) is_wedged: bool,
    pub(super) failure: Option<GenuineFailure>,
}

/// What a member does in its shard.
#[derive(Debug)]
pub(super) struct ShardMember {
    pub(super) shard: usize,
    pub(super) order: ShardOrder,
    /// The records of each sender, by rank.
    pub(super) inboxes: Vec<ShardInbox>,
    /// The logs of each shard's leader, with the leader's rank.
    logs: Vec<(usize, LogReader)>,
    /// The acknowledgements of all members, by rank, as read at the beginning of the evaluation \[G7\].
    pub(super) acknowledged: Vec<u64>,
    pub(super) marks: DeliveredMarks,
    /// Messages that were delivered in this view and those before.
    pub(super) delivered: u64,
    /// [`GenuineSettings::has_states`].
    shards_have_states: bool,
    /// Whether the application has the shard's state here \[G14\].
    pub(super) has_state: bool,
    sequencer: Option<Sequencer>,
}

/// What a shard's leader does.
#[derive(Debug)]
struct Sequencer {
    clock: ShardClock,
    /// One log for each shard.
    logs: Vec<LogWriter>,
    /// Records without a timestamp, in the order in which they have come.
    waiting: VecDeque<(MessageKey, u64)>,
    /// Records of messages that were delivered in an earlier view, which is not announced yet \[G17\].
    delivered: Vec<(MessageKey, u64)>,
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
            ShardMember {
                delivered,
                ..ShardMember::new(shard, leads, &table, &placement, &settings, nodes.len(), has_state, marks)
            }
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
            failure: None,
        }
    }

    /// Sets what is added to the fabric's time to get a time that is common to all members, for [`ClockKind::Hybrid`](super::ClockKind).
    /// It may be wrong: then messages wait longer for those of other shards, and nothing else changes \[G3\].
    pub fn set_time_base(&mut self, base: Duration) {
        // Timestamps have space for counting beyond any time.
        self.time_base = u64::try_from(base.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2);
    }

    /// Takes an event of the fabric.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        self.table.handle_event(event);
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
        let Some(shard) = &mut self.shard else { return };
        if !mutant!(LeaveMarksBehind) {
            shard.marks.merge(marks);
        }
        shard.has_state = true;
        // What others had delivered before is not given a timestamp, nor waited for; a leader announces it [G17].
        for (writer, inbox) in shard.inboxes.iter_mut().enumerate() {
            for number in inbox.undone().collect::<Vec<_>>() {
                let key = (writer, number);
                if !shard.marks.has(self.nodes[writer], number) || shard.order.is_assigned(key) {
                    continue;
                }
                if let Some(sequencer) = &mut shard.sequencer {
                    let (RecordHeader { destinations, .. }, _) = inbox.message(number);
                    sequencer.delivered.push((key, destinations));
                    shard.order.drop_message(key);
                }
                inbox.finish(number);
            }
        }
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
        if is_over || self.failure.is_some() || !self.table.is_ready() {
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
        let mut work = shard.receive(&self.table, &self.row, &self.placement, &self.nodes)?;
        work += shard.assign(&mut self.table, &self.row, &self.placement, now);
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

impl ShardMember {
    #[expect(clippy::too_many_arguments, reason = "all that a shard's member begins with")]
    fn new(
        shard: usize,
        leads: bool,
        table: &ShardTable,
        placement: &ShardPlacement,
        settings: &GenuineSettings,
        members: usize,
        has_state: bool,
        marks: DeliveredMarks,
    ) -> Self {
        let row = |writer: usize| ShardRow::new(settings, members, placement.leads(writer));
        let inbox = |writer: usize| ShardInbox::new(WindowReader::new(table.row(writer), row(writer).window));
        let log = |shard: usize| {
            let leader = placement.leader(shard).expect("a shard with members");
            (leader, LogReader::new(shard, row(leader).log))
        };
        let own = placement.leader(shard).expect("this member");
        let writer = || LogWriter::new(row(own).log);
        let sequencer = leads.then(|| Sequencer {
            clock: ShardClock::new(settings.clock),
            logs: (0..placement.count()).map(|_| writer()).collect(),
            waiting: VecDeque::new(),
            delivered: Vec::new(),
        });
        Self {
            shard,
            order: ShardOrder::new(shard, placement.count()),
            inboxes: (0..members).map(inbox).collect(),
            logs: shards_of(placement.populated()).map(log).collect(),
            acknowledged: vec![0; members],
            marks,
            delivered: 0,
            shards_have_states: settings.has_states,
            has_state,
            sequencer,
        }
    }

    /// Reads how far each member has acknowledged: before the timestamps, so that none that was given before one of these
    /// acknowledgements is missed \[G7\].
    fn read_acknowledgements(&mut self, table: &ShardTable, row: &ShardRow, rank: usize) {
        for (other, acknowledged) in
            self.acknowledged.iter_mut().enumerate().filter(|(other, _)| *other != rank)
        {
            *acknowledged = row.acknowledged.load(table.row(other));
        }
    }

    /// Takes the records and timestamps that are here.
    fn receive(
        &mut self,
        table: &ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        nodes: &[NodeId],
    ) -> Result<usize, GenuineFailure> {
        let mut work = 0;
        for (writer, inbox) in self.inboxes.iter_mut().enumerate() {
            let announced = row.announced.load(table.row(writer));
            while let Some(header) = inbox.take(announced).map_err(GenuineFailure::Record)? {
                work += 1;
                let key = (writer, header.number);
                let destinations = header.destinations & placement.populated();
                self.order.on_record(key, destinations | 1 << self.shard);
                let is_known = self.marks.has(nodes[writer], header.number) && !self.order.is_assigned(key);
                match &mut self.sequencer {
                    _ if self.order.is_dropped(key) => _ = inbox.finish(header.number),
                    None if is_known && self.shards_have_states => {
                        reach(Point::GenuineKnown);
                        inbox.finish(header.number);
                    }
                    // A joiner has nothing yet by which it could know the message: it waits for the announcement [G17].
                    Some(sequencer) if is_known && self.has_state => {
                        reach(Point::GenuineKnown);
                        inbox.finish(header.number);
                        self.order.drop_message(key);
                        sequencer.delivered.push((key, destinations));
                    }
                    Some(sequencer) => sequencer.waiting.push_back((key, destinations)),
                    // Without states the marks of a leader decide, which is the oldest member [G17].
                    None => {}
                }
            }
        }
        for (leader, log) in &mut self.logs {
            let (shard, leader_row) = (log.shard(), table.row(*leader));
            // A leader's own timestamps are taken when they are given.
            if self.sequencer.is_some() && shard == self.shard {
                continue;
            }
            let announced = row.assigned.load(leader_row);
            while let Some((key, clock)) =
                log.next(leader_row, announced).map_err(GenuineFailure::Timestamp)?
            {
                work += 1;
                if clock == DELIVERED {
                    reach(Point::GenuineDropped);
                    self.order.drop_message(key);
                    self.inboxes.get_mut(key.0).and_then(|inbox| inbox.finish(key.1));
                } else {
                    self.order.on_timestamp(key, Timestamp { clock, shard });
                }
            }
        }
        Ok(work)
    }

    /// As leader: gives each record its timestamp, once, and writes it to the members of all destination shards \[G3\], or that it was
    /// delivered before \[G17\].
    fn assign(
        &mut self,
        table: &mut ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        now: u64,
    ) -> usize {
        let Some(sequencer) = &mut self.sequencer else { return 0 };
        // Without the marks it would give timestamps to what other shards' leaders know to be delivered [G14].
        if !self.has_state {
            return 0;
        }
        let mut work = sequencer.delivered.len();
        mutant!(KeepSilent => sequencer.delivered.clear());
        for (key, destinations) in sequencer.delivered.drain(..) {
            for shard in counting(destinations, placement) {
                sequencer.logs[shard].write(table.region(shard), key, DELIVERED);
            }
        }
        for (key, destinations) in sequencer.waiting.drain(..) {
            if self.inboxes[key.0].is_done(key.1) {
                continue;
            }
            let clock = sequencer.clock.next(now);
            self.order.on_timestamp(key, Timestamp { clock, shard: self.shard });
            for shard in counting(destinations, placement) {
                sequencer.logs[shard].write(table.region(shard), key, clock);
            }
            work += 1;
        }
        for (shard, log) in sequencer.logs.iter_mut().enumerate() {
            if let Some(count) = log.publish(|words| table.append(shard, words)) {
                table.raise(shard, row.assigned, count);
            }
        }
        work
    }

    /// Acknowledges what is complete here, to the shards that it addresses; the leader raises its clock first \[G5\].
    fn acknowledge(
        &mut self,
        table: &mut ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        rank: usize,
    ) -> usize {
        let Some(LogCoverage { reach, destinations, clock }) = self.order.cover() else { return 0 };
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.clock.raise(clock);
        }
        self.acknowledged[rank] = self.acknowledged[rank].max(reach);
        let all = mutant!(AcknowledgeToAll);
        for shard in counting(if all { u64::MAX } else { destinations }, placement) {
            table.acknowledge(shard, row.acknowledged, reach);
        }
        1
    }

    /// Delivers a message, unless it was delivered before.
    pub(super) fn deliver(
        &mut self,
        key: MessageKey,
        position: GenuinePosition,
        nodes: &[NodeId],
        deliver: &mut impl FnMut(GenuineMessage<'_>),
    ) {
        let (writer, number) = key;
        let sender = nodes[writer];
        let inbox = &mut self.inboxes[writer];
        let is_in_state = self.marks.has(sender, number) || self.marks.reach(position);
        if self.shards_have_states && is_in_state && !mutant!(ForgetMarks) {
            reach(Point::GenuineInState);
        } else {
            let (header, bytes) = inbox.message(number);
            deliver(GenuineMessage { sender, number, destinations: header.destinations, position, bytes });
            self.delivered += 1;
        }
        self.order.on_delivery(key);
        self.marks.advance(position);
        // Usually a sender's messages are delivered in the order of their numbers.
        match inbox.finish(number) {
            Some(settled) => self.marks.settle(sender, settled),
            None => self.marks.add(sender, number),
        }
    }
}

/// The place in the order of all messages of what has this final timestamp in this view \[G15\].
pub(super) fn position(view: u64, timestamp: Timestamp) -> GenuinePosition {
    let view = if mutant!(PositionWithoutView) { 0 } else { view };
    GenuinePosition { view, timestamp }
}
