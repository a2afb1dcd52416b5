//! The order of a shard's messages: timestamps, final timestamps, acknowledgement and delivery (RamCast §3.4).

use std::collections::{BTreeSet, VecDeque};

use super::kept::KeptLog;
use super::mutation;
use super::pending::{MessageKey, PendingMessage, PendingMessages, PendingSlot};
use super::placement::shards_of;
use super::{QuorumRule, ShardPlacement, Timestamp};

/// How far a member's acknowledgement has risen \[G5\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogCoverage {
    /// The new acknowledgement.
    pub(super) reach: u64,
    /// The shards that the newly covered messages address, as a set of bits.
    pub(super) destinations: u64,
    /// The greatest clock of their final timestamps.
    pub(super) clock: u64,
}

/// A timestamp of the own shard, and which message has it.
#[derive(Clone, Copy, Debug)]
struct LogEntry {
    clock: u64,
    key: MessageKey,
    /// Where the message was when it got the timestamp; `None` if it was delivered in an earlier view.
    slot: Option<PendingSlot>,
}

/// The messages of one shard in one view, as one of its members knows them.
#[derive(Debug)]
pub(super) struct ShardOrder {
    shard: usize,
    messages: PendingMessages,
    /// Messages that were delivered in an earlier view, as a leader of one of their shards has announced \[G17\]: those of a sender
    /// are at most as many as its window.
    dropped: BTreeSet<MessageKey>,
    /// The shard's timestamps in their order, from the first on that is not acknowledged, or whose message is not *ordered*: it may
    /// yet get any final timestamp that is not less than this one.
    log: VecDeque<LogEntry>,
    /// How many entries at the front of the log are acknowledged: none, after [`ShardOrder::cover`], since what is acknowledged is
    /// ordered \[G5\].
    covered: usize,
    /// The messages whose final timestamp is known, by it, the least one first. What the log says of the others decides whether that
    /// one is next \[G6\]. Most become known in this order.
    ordered: VecDeque<(Timestamp, PendingSlot)>,
    /// The timestamp up to which every message of the log is complete here \[G5\].
    reach: u64,
    /// The greatest timestamp of the shard among the delivered messages: `delivered <= reach`.
    delivered: u64,
    /// What is acknowledged here and not everywhere, with a majority for quorum \[G11\].
    pub(super) kept: Option<KeptLog>,
}

impl ShardOrder {
    /// Of a member of `shard`, one of `shards`; what `keeps` says, it keeps what others may lack.
    pub(super) fn new(shard: usize, shards: usize, keeps: bool) -> Self {
        Self {
            shard,
            messages: PendingMessages::new(shard, shards),
            dropped: BTreeSet::new(),
            log: VecDeque::new(),
            covered: 0,
            ordered: VecDeque::new(),
            reach: 0,
            delivered: 0,
            kept: keeps.then(KeptLog::default),
        }
    }

    /// The record of a message is here; it has these destinations that count, the own shard among them.
    pub(super) fn on_record(&mut self, key: MessageKey, destinations: u64) {
        if !self.is_dropped(key) {
            let slot = self.messages.slot(key);
            self.change(slot, |messages| messages.set_destinations(slot, destinations));
        }
    }

    /// A timestamp is here, the only one of its shard for the message. Those of the own shard come in ascending order.
    pub(super) fn on_timestamp(&mut self, key: MessageKey, timestamp: Timestamp) {
        let slot = (!self.is_dropped(key)).then(|| self.messages.slot(key));
        if timestamp.shard == self.shard {
            self.log.push_back(LogEntry { clock: timestamp.clock, key, slot });
        }
        if let Some(slot) = slot {
            self.change(slot, |messages| messages.add_timestamp(slot, timestamp));
        }
    }

    /// Changes what is known of the message in a slot. When it gets its final timestamp, it has its place in the order.
    fn change(&mut self, slot: PendingSlot, change: impl FnOnce(&mut PendingMessages)) {
        let was_ordered = self.messages.at(slot).final_timestamp().is_some();
        change(&mut self.messages);
        if let Some(last) = self.messages.at(slot).final_timestamp().filter(|_| !was_ordered) {
            let before = self.ordered.iter().rposition(|(other, _)| *other < last);
            self.ordered.insert(before.map_or(0, |place| place + 1), (last, slot));
        }
    }

    /// A message was delivered in an earlier view: it has no place in this one, and an entry of the log that names it is complete.
    pub(super) fn drop_message(&mut self, key: MessageKey) {
        if let Some((slot, _)) = self.messages.remove(key) {
            self.ordered.retain(|(_, other)| *other != slot);
        }
        self.dropped.insert(key);
    }

    /// Whether the message was delivered in an earlier view, as its leaders have announced.
    pub(super) fn is_dropped(&self, key: MessageKey) -> bool {
        self.dropped.contains(&key)
    }

    /// Whether the message has a timestamp of the own shard.
    pub(super) fn is_assigned(&self, key: MessageKey) -> bool {
        self.is_stamped(key, self.shard)
    }

    /// Whether the timestamp of a shard for the message is here.
    pub(super) fn is_stamped(&self, key: MessageKey, shard: usize) -> bool {
        self.messages.get(key).is_some_and(|message| message.stamped >> shard & 1 == 1)
    }

    /// Whether the record of the message is here, which is not delivered.
    pub(super) fn has_record(&self, key: MessageKey) -> bool {
        self.messages.get(key).is_some_and(|message| message.destinations.is_some())
    }

    /// The message of an entry, unless it is delivered, or was so in an earlier view.
    fn message(&self, entry: &LogEntry) -> Option<&PendingMessage> {
        Some(self.messages.at(entry.slot?)).filter(|message| message.key == Some(entry.key))
    }

    /// Raises the acknowledgement as far as the log is complete here, without gaps \[G5\].
    pub(super) fn cover(&mut self) -> Option<LogCoverage> {
        let mut covered: Option<LogCoverage> = None;
        let mut next = self.covered;
        while let Some(entry) = self.log.get(next).copied() {
            let message = self.message(&entry).copied();
            let last = message.as_ref().and_then(PendingMessage::final_timestamp);
            let has_record = message.is_none_or(|message| message.destinations.is_some());
            let is_complete =
                message.is_none() || last.is_some() || has_record && mutant!(AcknowledgeIncomplete);
            if !is_complete && !mutant!(AcknowledgePastGap) {
                break;
            }
            next += 1;
            if is_complete {
                let destinations = message.and_then(|message| message.destinations).unwrap_or(0);
                let coverage = covered.get_or_insert(LogCoverage { reach: 0, destinations: 0, clock: 0 });
                coverage.reach = entry.clock;
                coverage.destinations |= destinations;
                coverage.clock = coverage.clock.max(last.map_or(0, |last| last.clock));
                self.covered = next;
                self.keep(entry, message.map_or(0, |message| message.stamped));
            }
        }
        while self.covered > 0 && !self.is_unordered(&self.log[0]) {
            self.log.pop_front();
            self.covered -= 1;
        }
        self.reach = self.reach.max(covered?.reach);
        covered
    }

    /// Keeps an entry that is acknowledged now, for members of the shard that lack it. `stamped` are the shards whose timestamps its
    /// message has.
    fn keep(&mut self, LogEntry { clock, key, slot }: LogEntry, stamped: u64) {
        let Self { kept: Some(kept), messages, .. } = self else { return };
        let clocks = slot.into_iter().flat_map(|slot| {
            let messages = &*messages;
            shards_of(stamped).map(move |shard| messages.clock(slot, shard))
        });
        kept.push(clock, key, stamped, clocks);
    }

    /// Whether the message of an entry has no final timestamp yet.
    fn is_unordered(&self, entry: &LogEntry) -> bool {
        self.message(entry).is_some_and(|message| message.final_timestamp().is_none())
    }

    /// The timestamp up to which every message of the log is complete here.
    pub(super) const fn reach(&self) -> u64 {
        self.reach
    }

    /// How many messages are known and not delivered.
    pub(super) fn pending(&self) -> usize {
        self.messages.count()
    }

    /// The latest timestamp of the shard.
    pub(super) fn clock(&self) -> u64 {
        self.log.back().map_or(self.reach, |entry| self.reach.max(entry.clock))
    }

    /// Adds to `counts`, by rank, for whom the messages wait that are not delivered: for the leaders whose timestamps are missing, or if
    /// none is, for the members whose acknowledgements are.
    pub(super) fn count_missing(
        &self,
        placement: &ShardPlacement,
        quorum: QuorumRule,
        acknowledged: &[u64],
        counts: &mut [u64],
    ) {
        for (slot, message) in self.messages.iter() {
            let is_ordered = message.final_timestamp().is_some();
            for shard in shards_of(message.destinations.unwrap_or(0)) {
                let members = placement.members(shard);
                if message.stamped >> shard & 1 == 0 {
                    counts[members[0]] += 1;
                } else if is_ordered {
                    let clock = self.messages.clock(slot, shard);
                    if is_stable(members, quorum, acknowledged, clock) {
                        continue;
                    }
                    let lacks = |rank: &&usize| acknowledged[**rank] < clock;
                    members.iter().filter(lacks).for_each(|rank| counts[*rank] += 1);
                }
            }
        }
    }

    /// The message that is delivered next, if all that the others have to say of it is here, and its final timestamp.
    /// `acknowledged` is by rank and was read before the timestamps \[G7\].
    pub(super) fn next(
        &self,
        placement: &ShardPlacement,
        quorum: QuorumRule,
        acknowledged: &[u64],
    ) -> Option<(MessageKey, Timestamp)> {
        let (last, slot) = *self.ordered.front()?;
        let message = self.messages.at(slot);
        if self.is_held_back(last) && !mutant!(PassUnordered) {
            return None;
        }
        let is_acknowledged = |shard: usize| {
            is_stable(placement.members(shard), quorum, acknowledged, self.messages.clock(slot, shard))
        };
        let is_ready = shards_of(message.stamped).all(is_acknowledged) || mutant!(DeliverUnacknowledged);
        is_ready.then(|| (message.key.expect("what is ordered is known"), last))
    }

    /// Whether a message without a final timestamp may get one below `last`. The first such message of the log may get the least.
    fn is_held_back(&self, last: Timestamp) -> bool {
        let holds_back = |entry: &&LogEntry| {
            let is_passed = mutant!(PassMissingRecord)
                && self.message(entry).is_some_and(|message| message.destinations.is_none());
            self.is_unordered(entry) && !is_passed
        };
        let first = self.log.iter().find(holds_back);
        first.is_some_and(|entry| Timestamp { clock: entry.clock, shard: self.shard } < last)
    }

    /// A message is delivered: the next one, or at the end of a view one that the trims hold.
    pub(super) fn on_delivery(&mut self, key: MessageKey) {
        let (slot, _) = self.messages.remove(key).expect("a message that was next");
        self.ordered.pop_front_if(|(_, next)| *next == slot);
        self.delivered = self.delivered.max(self.messages.clock(slot, self.shard));
    }

    /// Whether more than `count` messages have a timestamp of the shard and are not delivered.
    pub(super) fn has_more_than(&self, count: usize) -> bool {
        self.messages.iter().filter(|(_, message)| message.stamped >> self.shard & 1 == 1).count() > count
    }

    /// What the trims hold and is not delivered, in its order, at the end of a view \[G12\]: a message is in if its timestamp
    /// is within the trim of each of its shards. `trims` is by shard; `None` is no bound.
    ///
    /// # Errors
    /// A message within the trim of the own shard that is not complete here.
    ///
    /// # Panics
    /// If a message was delivered beyond the trim of the own shard \[G10\].
    pub(super) fn held(&self, trims: &[Option<u64>]) -> Result<Vec<(MessageKey, Timestamp)>, MessageKey> {
        let within = |shard: usize, clock: u64| trims[shard].is_none_or(|trim| clock <= trim);
        assert!(
            within(self.shard, self.delivered),
            "[G10] {} was delivered, the trim is {trims:?}",
            self.delivered
        );
        let mut held = Vec::new();
        for (slot, message) in
            self.messages.iter().filter(|(_, message)| message.stamped >> self.shard & 1 == 1)
        {
            let key = message.key.expect("a message that is known");
            let last = message.final_timestamp();
            if mutant!(KeepOrdered) {
                held.extend(last.map(|last| (key, last)));
            } else if within(self.shard, self.messages.clock(slot, self.shard)) {
                let last = last.ok_or(key)?;
                let mut stamped = shards_of(message.stamped);
                let is_in = stamped.all(|shard| within(shard, self.messages.clock(slot, shard)));
                if is_in || mutant!(OwnTrimDecides) {
                    held.push((key, last));
                }
            }
        }
        held.sort_unstable_by_key(|(_, last)| *last);
        mutant!(DropHeld => held.clear());
        Ok(held)
    }
}

/// Whether enough of a shard's members have acknowledged up to `clock`; `members` begins with the leader \[G6\].
fn is_stable(members: &[usize], quorum: QuorumRule, acknowledged: &[u64], clock: u64) -> bool {
    let has = |rank: &&usize| acknowledged[**rank] >= clock;
    let leader = members.first().is_none_or(|leader| acknowledged[*leader] >= clock);
    let mut least = quorum.least(members.len());
    mutant!(HalfSuffices if quorum == QuorumRule::Majority => least = members.len().div_ceil(2));
    mutant!(AwaitAll => least = members.len());
    (leader || mutant!(QuorumWithoutLeader)) && members.iter().filter(has).count() >= least
}
