//! A member's part in its shard: it takes records and timestamps, sequences, acknowledges and delivers (RamCast §3.4).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::NodeId;
use squall_fabric::window::WindowReader;

use super::clock::ShardClock;
use super::failure::GenuineFailure;
use super::inbox::ShardInbox;
use super::kept::FetchedEntry;
use super::log::{DELIVERED, LogReader, LogWriter};
use super::marks::DeliveredMarks;
use super::mutation;
use super::order::{LogCoverage, ShardOrder};
use super::outbox::counting;
use super::pending::MessageKey;
use super::placement::shards_of;
use super::record::RecordHeader;
use super::table::{ShardRow, ShardTable};
use super::{GenuineMessage, GenuinePosition, GenuineSettings, QuorumRule, ShardPlacement, Timestamp};
use crate::coverage::{Point, reach};

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
    /// The records that have come from another member than their sender \[G11\].
    fetched: BTreeMap<MessageKey, Vec<u8>>,
    /// A part of the log has come from another member than its leader.
    has_fetched: bool,
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

impl ShardMember {
    #[expect(clippy::too_many_arguments, reason = "all that a shard's member begins with")]
    pub(super) fn new(
        shard: usize,
        leads: bool,
        table: &ShardTable,
        placement: &ShardPlacement,
        settings: &GenuineSettings,
        members: usize,
        has_state: bool,
        (marks, delivered): (DeliveredMarks, u64),
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
            clock: ShardClock::default(),
            logs: (0..placement.count()).map(|_| writer()).collect(),
            waiting: VecDeque::new(),
            delivered: Vec::new(),
        });
        Self {
            shard,
            order: ShardOrder::new(shard, placement.count(), settings.quorum == QuorumRule::Majority),
            inboxes: (0..members).map(inbox).collect(),
            logs: shards_of(placement.populated()).map(log).collect(),
            acknowledged: vec![0; members],
            marks,
            delivered,
            shards_have_states: settings.has_states,
            has_state,
            sequencer,
            fetched: BTreeMap::new(),
            has_fetched: false,
        }
    }

    /// Reads how far each member has acknowledged: before the timestamps, so that none that was given before one of these
    /// acknowledgements is missed \[G7\].
    pub(super) fn read_acknowledgements(&mut self, table: &ShardTable, row: &ShardRow, rank: usize) {
        for (other, acknowledged) in
            self.acknowledged.iter_mut().enumerate().filter(|(other, _)| *other != rank)
        {
            *acknowledged = row.acknowledged.load(table.row(other));
        }
    }

    /// Takes the records and timestamps that are here.
    pub(super) fn receive(
        &mut self,
        table: &ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        nodes: &[NodeId],
    ) -> Result<usize, GenuineFailure> {
        let mut work = 0;
        for (writer, inbox) in self.inboxes.iter_mut().enumerate() {
            let announced = row.announcement(table.row(writer));
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
            while let Some((key, clock)) = log.next(leader_row).map_err(GenuineFailure::Timestamp)? {
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
    pub(super) fn assign(&mut self, table: &mut ShardTable, placement: &ShardPlacement, now: u64) -> usize {
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
            log.publish(|words| table.append(shard, words));
        }
        work
    }

    /// Raises how far the log is complete here, and keeps what others may lack \[G11\].
    pub(super) fn cover(&mut self) -> Option<LogCoverage> {
        let coverage = self.order.cover()?;
        self.order.kept.iter_mut().for_each(|kept| kept.place(&self.inboxes));
        Some(coverage)
    }

    /// Forgets what all `members` of the shard have acknowledged.
    pub(super) fn forget(&mut self, members: &[usize]) {
        let Some(kept) = &mut self.order.kept else { return };
        let least = members.iter().map(|rank| self.acknowledged[*rank]).min();
        kept.forget(least.unwrap_or(0));
    }

    /// Returns what is kept of the log after this timestamp, in its order: each entry with its timestamp and its words.
    pub(super) fn kept_after(&self, clock: u64) -> impl Iterator<Item = (u64, Vec<u64>)> {
        self.order.kept.iter().flat_map(move |kept| kept.after(clock, &self.inboxes))
    }

    /// Whether a part of the log has come from another member than its leader: what else comes from there is not needed any more.
    pub(super) const fn has_fetched(&self) -> bool {
        self.has_fetched
    }

    /// Takes the next entry of the log, which another member has sent; returns whether it may be the next one.
    pub(super) fn take_entry(&mut self, entry: FetchedEntry) -> bool {
        self.has_fetched = true;
        let FetchedEntry { key, clock, timestamps, record } = entry;
        if clock <= self.order.reach() {
            return true;
        }
        let own = Timestamp { clock, shard: self.shard };
        let is_next = clock > self.order.clock();
        if timestamps.is_empty() && !self.order.is_dropped(key) {
            self.order.drop_message(key);
        }
        if self.order.is_dropped(key) {
            if is_next {
                self.order.on_timestamp(key, own);
            }
            return true;
        }
        let is_known = self.order.is_assigned(key);
        if !timestamps.contains(&own) || is_next == is_known || RecordHeader::split(&record).is_none() {
            return false;
        }
        if !self.order.has_record(key) {
            let destinations = timestamps.iter().fold(0, |set, timestamp| set | 1 << timestamp.shard);
            self.order.on_record(key, destinations);
            self.fetched.insert(key, record);
        }
        for timestamp in timestamps {
            if !self.order.is_stamped(key, timestamp.shard) {
                self.order.on_timestamp(key, timestamp);
            }
        }
        true
    }

    /// Acknowledges what is complete here, to the shards that it addresses; the leader raises its clock first \[G5\].
    pub(super) fn acknowledge(
        &mut self,
        table: &mut ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        rank: usize,
    ) -> usize {
        let Some(LogCoverage { reach, destinations, clock }) = self.cover() else { return 0 };
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

    /// The application has the state by now, with these marks of what is in it \[G14\].
    pub(super) fn take_state(&mut self, marks: &DeliveredMarks, nodes: &[NodeId]) {
        if !mutant!(LeaveMarksBehind) {
            self.marks.merge(marks);
        }
        self.has_state = true;
        // What others had delivered before is not given a timestamp, nor waited for; a leader announces it [G17].
        for (writer, inbox) in self.inboxes.iter_mut().enumerate() {
            for number in inbox.undone().collect::<Vec<_>>() {
                let key = (writer, number);
                if !self.marks.has(nodes[writer], number) || self.order.is_assigned(key) {
                    continue;
                }
                if let Some(sequencer) = &mut self.sequencer {
                    let (RecordHeader { destinations, .. }, _) = inbox.message(number);
                    sequencer.delivered.push((key, destinations));
                    self.order.drop_message(key);
                }
                inbox.finish(number);
            }
        }
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
        let is_in_state = || self.marks.has(sender, number) || self.marks.reach(position);
        if self.shards_have_states && is_in_state() && !mutant!(ForgetMarks) {
            reach(Point::GenuineInState);
        } else {
            let fetched =
                self.fetched.get(&key).map(|record| RecordHeader::split(record).expect("it was taken"));
            let (header, bytes) = fetched.unwrap_or_else(|| inbox.message(number));
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
