//! The order of a shard's messages: timestamps, final timestamps, acknowledgement and delivery (RamCast §3.4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::mutation;
use super::placement::shards_of;
use super::{QuorumRule, ShardPlacement, Timestamp};

/// A message in a view: the rank of its sender and its number.
pub(super) type MessageKey = (usize, u64);

/// What a member knows of a message that it has not delivered.
#[derive(Debug, Default)]
struct PendingMessage {
    /// The destination shards that count \[G1\], once the record is here.
    destinations: Option<u64>,
    /// The timestamps that are here, by shard.
    timestamps: BTreeMap<usize, u64>,
}

impl PendingMessage {
    /// The greatest timestamp, once those of all destination shards are here \[G4\].
    fn final_timestamp(&self, own: usize) -> Option<Timestamp> {
        let timestamp = |shard| Some(Timestamp { clock: *self.timestamps.get(&shard)?, shard });
        let all: Option<Vec<Timestamp>> = shards_of(self.destinations?).map(timestamp).collect();
        let all = all?;
        mutant!(FinalOfOwnShard => return timestamp(own));
        all.into_iter().max()
    }
}

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

/// The messages of one shard in one view, as one of its members knows them.
#[derive(Debug)]
pub(super) struct ShardOrder {
    shard: usize,
    messages: BTreeMap<MessageKey, PendingMessage>,
    /// Messages that were delivered in an earlier view, as a leader of one of their shards has announced \[G17\]: those of a sender
    /// are at most as many as its window.
    dropped: BTreeSet<MessageKey>,
    /// The shard's timestamps in their order, from the first that is not acknowledged on.
    log: VecDeque<(u64, MessageKey)>,
    /// All messages that have a timestamp of the shard and are not delivered, by the least final timestamp that they can get:
    /// the final one, or the shard's while that is not known. The first is the only one that may be delivered \[G6\].
    queue: BTreeMap<Timestamp, MessageKey>,
    /// The timestamp up to which every message of the log is complete here \[G5\].
    reach: u64,
    /// The greatest timestamp of the shard among the delivered messages: `delivered <= reach`.
    delivered: u64,
}

impl ShardOrder {
    pub(super) fn new(shard: usize) -> Self {
        let (messages, dropped, queue) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { shard, messages, dropped, log: VecDeque::new(), queue, reach: 0, delivered: 0 }
    }

    /// The record of a message is here; it has these destinations that count.
    pub(super) fn on_record(&mut self, key: MessageKey, destinations: u64) {
        self.change(key, |message| message.destinations = Some(destinations));
    }

    /// A timestamp is here. Those of the own shard come in ascending order.
    pub(super) fn on_timestamp(&mut self, key: MessageKey, timestamp: Timestamp) {
        if timestamp.shard == self.shard {
            self.log.push_back((timestamp.clock, key));
        }
        self.change(key, |message| {
            message.timestamps.insert(timestamp.shard, timestamp.clock);
        });
    }

    /// Changes what is known of a message, and its place in the queue with it.
    fn change(&mut self, key: MessageKey, change: impl FnOnce(&mut PendingMessage)) {
        if self.is_dropped(key) {
            return;
        }
        let message = self.messages.entry(key).or_default();
        let before = bound(message, self.shard);
        change(message);
        let after = bound(message, self.shard);
        if before == after {
            return;
        }
        if let Some(bound) = before {
            self.queue.remove(&bound);
        }
        if let Some(bound) = after {
            self.queue.insert(bound, key);
        }
    }

    /// A message was delivered in an earlier view: it has no place in this one, and an entry of the log that names it is complete.
    pub(super) fn drop_message(&mut self, key: MessageKey) {
        let message = self.messages.remove(&key);
        if let Some(bound) = message.and_then(|message| bound(&message, self.shard)) {
            self.queue.remove(&bound);
        }
        self.dropped.insert(key);
    }

    /// Whether the message was delivered in an earlier view, as its leaders have announced.
    pub(super) fn is_dropped(&self, key: MessageKey) -> bool {
        self.dropped.contains(&key)
    }

    /// Whether the message has a timestamp of the own shard.
    pub(super) fn is_assigned(&self, key: MessageKey) -> bool {
        self.messages.get(&key).is_some_and(|message| message.timestamps.contains_key(&self.shard))
    }

    /// Raises the acknowledgement as far as the log is complete here, without gaps \[G5\].
    pub(super) fn cover(&mut self) -> Option<LogCoverage> {
        let mut covered: Option<LogCoverage> = None;
        let mut next = 0;
        while let Some((clock, key)) = self.log.get(next).copied() {
            let message = self.messages.get(&key);
            let last = message.and_then(|message| message.final_timestamp(self.shard));
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
                coverage.reach = clock;
                coverage.destinations |= destinations;
                coverage.clock = coverage.clock.max(last.map_or(0, |last| last.clock));
            }
        }
        let covered = covered?;
        let count = self.log.iter().take_while(|(clock, _)| *clock <= covered.reach).count();
        self.log.drain(..count);
        self.reach = self.reach.max(covered.reach);
        Some(covered)
    }

    /// The timestamp up to which every message of the log is complete here.
    pub(super) const fn reach(&self) -> u64 {
        self.reach
    }

    /// How many messages are known and not delivered.
    pub(super) fn pending(&self) -> usize {
        self.messages.len()
    }

    /// The latest timestamp of the shard.
    pub(super) fn clock(&self) -> u64 {
        self.log.back().map_or(self.reach, |(clock, _)| self.reach.max(*clock))
    }

    /// Adds to `counts`, by rank, for whom the messages wait that are not delivered: for the leaders whose timestamps are missing, or if
    /// none is, for the members whose acknowledgements are.
    pub(super) fn count_missing(&self, placement: &ShardPlacement, acknowledged: &[u64], counts: &mut [u64]) {
        for message in self.messages.values() {
            let is_ordered = message.final_timestamp(self.shard).is_some();
            for shard in shards_of(message.destinations.unwrap_or(0)) {
                let members = placement.members(shard);
                match message.timestamps.get(&shard) {
                    None => counts[members[0]] += 1,
                    Some(clock) if is_ordered => {
                        let lacks = |rank: &&usize| acknowledged[**rank] < *clock;
                        members.iter().filter(lacks).for_each(|rank| counts[*rank] += 1);
                    }
                    Some(_) => {}
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
        for key in self.queue.values() {
            let message = &self.messages[key];
            let Some(last) = message.final_timestamp(self.shard) else {
                let is_passed =
                    mutant!(PassUnordered) || message.destinations.is_none() && mutant!(PassMissingRecord);
                if is_passed {
                    continue;
                }
                return None;
            };
            let is_acknowledged = |(shard, clock): (&usize, &u64)| {
                is_stable(placement.members(*shard), quorum, acknowledged, *clock)
            };
            let is_ready = message.timestamps.iter().all(is_acknowledged) || mutant!(DeliverUnacknowledged);
            return is_ready.then_some((*key, last));
        }
        None
    }

    /// A message is delivered.
    pub(super) fn on_delivery(&mut self, key: MessageKey) {
        let message = self.messages.remove(&key).expect("a message that was next");
        let bound = bound(&message, self.shard).expect("it has a timestamp of the shard");
        self.queue.remove(&bound);
        self.delivered = self.delivered.max(message.timestamps[&self.shard]);
    }

    /// Whether more than `count` messages have a timestamp of the shard and are not delivered.
    pub(super) fn has_more_than(&self, count: usize) -> bool {
        self.queue.len() > count
    }

    /// What the trims hold and is not delivered, in its order, at the end of a view \[G12\]: a message is in if its timestamp
    /// is within the trim of each of its shards. `trims` is by shard; `None` is no bound.
    ///
    /// # Errors
    /// The first message within the trim of the own shard that is not complete here.
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
        for key in self.queue.values() {
            let message = &self.messages[key];
            let last = message.final_timestamp(self.shard);
            if mutant!(KeepOrdered) {
                held.extend(last.map(|last| (*key, last)));
            } else if within(self.shard, message.timestamps[&self.shard]) {
                let last = last.ok_or(*key)?;
                let is_in = message.timestamps.iter().all(|(shard, clock)| within(*shard, *clock));
                if is_in || mutant!(OwnTrimDecides) {
                    held.push((*key, last));
                }
            }
        }
        // Those with a final timestamp are in its order.
        mutant!(DropHeld => held.clear());
        Ok(held)
    }
}

/// The least final timestamp that a message can get, once it has one of the own shard.
fn bound(message: &PendingMessage, shard: usize) -> Option<Timestamp> {
    let own = *message.timestamps.get(&shard)?;
    Some(message.final_timestamp(shard).unwrap_or(Timestamp { clock: own, shard }))
}

/// Whether enough of a shard's members have acknowledged up to `clock`; `members` begins with the leader \[G6\].
fn is_stable(members: &[usize], quorum: QuorumRule, acknowledged: &[u64], clock: u64) -> bool {
    let has = |rank: &&usize| acknowledged[**rank] >= clock;
    let leader = members.first().is_none_or(|leader| acknowledged[*leader] >= clock);
    (leader || mutant!(QuorumWithoutLeader))
        && members.iter().filter(has).count() >= quorum.least(members.len())
}
