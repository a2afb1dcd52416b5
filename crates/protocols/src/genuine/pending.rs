//! What a member knows of the messages that it has not delivered: destinations and timestamps (RamCast §3.3, §3.4) \[G4\].
//!
//! A message is found by its sender and its number. It has a *slot* as long as it is known, by which the log and the queue name it. Slots
//! are used again, and there are as many as there were messages at a time, so nothing is allocated when messages come and go.

use std::collections::VecDeque;

use super::Timestamp;
use super::mutation;

/// A message in a view: the rank of its sender and its number.
pub(super) type MessageKey = (usize, u64);

/// Where a message is kept, for as long as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PendingSlot(usize);

/// What a member knows of a message that it has not delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingMessage {
    /// `None` in a slot that is free.
    pub(super) key: Option<MessageKey>,
    /// The destination shards that count \[G1\], once the record is here.
    pub(super) destinations: Option<u64>,
    /// The shards whose timestamps are here, as a set of bits.
    pub(super) stamped: u64,
    /// The greatest of these timestamps.
    greatest: Timestamp,
}

impl PendingMessage {
    const fn new(key: MessageKey) -> Self {
        let greatest = Timestamp { clock: 0, shard: 0 };
        Self { key: Some(key), destinations: None, stamped: 0, greatest }
    }

    /// The greatest timestamp, once those of all destination shards are here \[G4\].
    pub(super) fn final_timestamp(&self) -> Option<Timestamp> {
        (self.destinations? & !self.stamped == 0).then_some(self.greatest)
    }
}

/// The messages of one shard in one view that a member knows and has not delivered.
#[derive(Debug)]
pub(super) struct PendingMessages {
    /// The own shard.
    shard: usize,
    /// How many shards there are.
    shards: usize,
    slots: Vec<PendingMessage>,
    /// For each slot the timestamps that are here, by shard.
    clocks: Vec<u64>,
    free: Vec<PendingSlot>,
    /// The messages of each sender, by rank, in the order of their numbers.
    senders: Vec<VecDeque<(u64, PendingSlot)>>,
}

impl PendingMessages {
    /// None yet, for a member of `shard`, one of `shards`.
    pub(super) fn new(shard: usize, shards: usize) -> Self {
        let (slots, clocks, free, senders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { shard, shards, slots, clocks, free, senders }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PendingSlot, &PendingMessage)> {
        let slots = self.slots.iter().enumerate().map(|(slot, message)| (PendingSlot(slot), message));
        slots.filter(|(_, message)| message.key.is_some())
    }

    /// What is in a slot.
    pub(super) fn at(&self, slot: PendingSlot) -> &PendingMessage {
        &self.slots[slot.0]
    }

    /// What is known of a message.
    pub(super) fn get(&self, key: MessageKey) -> Option<&PendingMessage> {
        let sender = self.senders.get(key.0)?;
        Some(self.at(sender[place_of(sender, key.1).ok()?].1))
    }

    /// The timestamp of a shard that is here, for the message in a slot.
    pub(super) fn clock(&self, slot: PendingSlot, shard: usize) -> u64 {
        self.clocks[slot.0 * self.shards + shard]
    }

    /// The record of a message is here, with these destinations.
    pub(super) fn set_destinations(&mut self, slot: PendingSlot, destinations: u64) {
        self.slots[slot.0].destinations = Some(destinations);
    }

    /// A timestamp of a message is here.
    pub(super) fn add_timestamp(&mut self, slot: PendingSlot, timestamp: Timestamp) {
        let message = &mut self.slots[slot.0];
        message.stamped |= 1 << timestamp.shard;
        self.clocks[slot.0 * self.shards + timestamp.shard] = timestamp.clock;
        mutant!(FinalOfOwnShard if timestamp.shard != self.shard => return);
        message.greatest = message.greatest.max(timestamp);
    }

    /// The slot of a message, which is known from now on.
    pub(super) fn slot(&mut self, key: MessageKey) -> PendingSlot {
        let (rank, number) = key;
        if rank >= self.senders.len() {
            self.senders.resize_with(rank + 1, VecDeque::new);
        }
        let sender = &mut self.senders[rank];
        let place = match place_of(sender, number) {
            Ok(place) => return sender[place].1,
            Err(place) => place,
        };
        let message = PendingMessage::new(key);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot.0] = message;
                slot
            }
            None => {
                self.slots.push(message);
                self.clocks.resize(self.slots.len() * self.shards, 0);
                PendingSlot(self.slots.len() - 1)
            }
        };
        sender.insert(place, (number, slot));
        slot
    }

    /// Forgets a message; returns its slot and what was known of it.
    pub(super) fn remove(&mut self, (rank, number): MessageKey) -> Option<(PendingSlot, PendingMessage)> {
        let sender = self.senders.get_mut(rank)?;
        let place = place_of(sender, number).ok()?;
        let (_, slot) = sender.remove(place).expect("it was found there");
        let message = self.slots[slot.0];
        self.slots[slot.0].key = None;
        self.free.push(slot);
        Some((slot, message))
    }
}

/// Where message `number` is in a sender's list, or would be. Usually its numbers have no gaps, or it is the last one.
fn place_of(sender: &VecDeque<(u64, PendingSlot)>, number: u64) -> Result<usize, usize> {
    let Some((first, last)) = sender.front().zip(sender.back()) else { return Err(0) };
    if number > last.0 {
        return Err(sender.len());
    }
    let guess = usize::try_from(number.wrapping_sub(first.0)).unwrap_or(usize::MAX);
    match sender.get(guess) {
        Some((found, _)) if *found == number => Ok(guess),
        _ => sender.binary_search_by_key(&number, |(number, _)| *number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_whatever_gaps_their_numbers_have() {
        let mut pending = PendingMessages::new(0, 2);
        let slots: Vec<PendingSlot> = [4, 9, 6, 5, 20].map(|number| pending.slot((1, number))).to_vec();
        for (number, slot) in [4, 9, 6, 5, 20].into_iter().zip(&slots) {
            assert_eq!(pending.slot((1, number)), *slot);
            assert_eq!(pending.get((1, number)).unwrap().key, Some((1, number)));
        }
        assert_eq!(pending.remove((1, 6)).unwrap().0, slots[2]);
        assert!(
            pending.get((1, 6)).is_none() && pending.get((0, 4)).is_none() && pending.get((2, 4)).is_none()
        );
        assert_eq!((pending.slot((0, 7)), pending.count()), (slots[2], 5), "slots are used again");
        assert!(pending.at(slots[2]).final_timestamp().is_none());
        assert_eq!(pending.iter().count(), 5);
    }

    #[test]
    fn the_greatest_timestamp_of_all_destinations_is_the_final_one() {
        let mut pending = PendingMessages::new(0, 3);
        let slot = pending.slot((0, 0));
        pending.add_timestamp(slot, Timestamp { clock: 7, shard: 2 });
        pending.set_destinations(slot, 0b101);
        assert_eq!(pending.at(slot).final_timestamp(), None);
        pending.add_timestamp(slot, Timestamp { clock: 5, shard: 0 });
        assert_eq!(pending.at(slot).final_timestamp(), Some(Timestamp { clock: 7, shard: 2 }));
        assert_eq!((pending.clock(slot, 0), pending.clock(slot, 2)), (5, 7));
    }
}
