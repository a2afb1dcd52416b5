//! Marks: which messages a member has delivered, so that one that is sent again is recognised (RamCast §3.6) \[G13\].

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::NodeId;

use super::GenuinePosition;
use super::mutation;
use crate::words::{put_words, take_word};

/// What a member has delivered of each sender, in all views. For each sender that is a number, and a set that is bounded by its
/// window.
///
/// Marks of senders that are gone are forgotten, so for what is ordered already the position of the last delivery counts:
/// a joiner may have delivered messages of a member that its state provider has forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveredMarks {
    senders: BTreeMap<NodeId, SenderMarks>,
    /// The position of the last delivery: everything for the shard up to it is delivered.
    last: Option<GenuinePosition>,
}

/// Of one sender: all messages for this shard below `below` are delivered, and those in `above`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SenderMarks {
    below: u64,
    /// Ascending, none below `below`. Usually there are few.
    above: VecDeque<u64>,
}

impl SenderMarks {
    fn has(&self, number: u64) -> bool {
        number < self.below || self.above.binary_search(&number).is_ok()
    }

    fn add(&mut self, number: u64) {
        if number >= self.below
            && let Err(place) = self.above.binary_search(&number)
        {
            self.above.insert(place, number);
        }
    }

    /// All below `below` are delivered.
    fn raise(&mut self, below: u64) {
        self.below = self.below.max(below);
        while self.above.pop_front_if(|number| *number < self.below).is_some() {}
    }
}

impl DeliveredMarks {
    /// Whether message `number` of `sender` is delivered.
    #[must_use]
    pub fn has(&self, sender: NodeId, number: u64) -> bool {
        self.senders.get(&sender).is_some_and(|marks| marks.has(number))
    }

    /// Whether what is ordered at `position` is delivered.
    #[must_use]
    pub fn reach(&self, position: GenuinePosition) -> bool {
        mutant!(ForgetPosition => return false);
        self.last.is_some_and(|last| position <= last)
    }

    /// The position of the last delivery.
    #[must_use]
    pub const fn last(&self) -> Option<GenuinePosition> {
        self.last
    }

    /// Everything up to `position` is delivered.
    pub(super) fn advance(&mut self, position: GenuinePosition) {
        self.last = self.last.max(Some(position));
    }

    /// Message `number` of `sender` is delivered.
    pub(super) fn add(&mut self, sender: NodeId, number: u64) {
        self.senders.entry(sender).or_default().add(number);
    }

    /// All messages of `sender` for this shard up to `number` are delivered: a sender's records come in the order of their numbers.
    pub(super) fn settle(&mut self, sender: NodeId, number: u64) {
        self.senders.entry(sender).or_default().raise(number + 1);
    }

    /// Adds the marks of another member of the same shard.
    pub(super) fn merge(&mut self, other: &Self) {
        self.last = self.last.max(other.last);
        for (sender, theirs) in &other.senders {
            let marks = self.senders.entry(*sender).or_default();
            theirs.above.iter().for_each(|number| marks.add(*number));
            marks.raise(theirs.below);
        }
    }

    /// Appends them as bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        put_words(&[u64::from(self.last.is_some())], bytes);
        self.last.iter().for_each(|last| last.encode(bytes));
        put_words(&[self.senders.len() as u64], bytes);
        for (sender, marks) in &self.senders {
            put_words(&[u64::from(sender.0), marks.below, marks.above.len() as u64], bytes);
            marks.above.iter().for_each(|number| put_words(&[*number], bytes));
        }
    }

    /// Reads them from the front of `bytes`; `None` if they are not there. Fuzzed as `sharded_object`.
    #[must_use]
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let last = match take_word(bytes)? {
            0 => None,
            1 => Some(GenuinePosition::take(bytes)?),
            _ => return None,
        };
        let mut senders = BTreeMap::new();
        for _ in 0..take_word(bytes)? {
            let sender = NodeId(u32::try_from(take_word(bytes)?).ok()?);
            let mut marks = SenderMarks { below: take_word(bytes)?, above: VecDeque::new() };
            for _ in 0..take_word(bytes)? {
                let number = take_word(bytes)?;
                if number < marks.below || marks.above.back().is_some_and(|last| *last >= number) {
                    return None;
                }
                marks.above.push_back(number);
            }
            if senders.last_key_value().is_some_and(|(last, _)| *last >= sender) {
                return None;
            }
            senders.insert(sender, marks);
        }
        Some(Self { senders, last })
    }

    /// Forgets senders that are gone: they send nothing any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.senders.retain(|sender, _| is_member(*sender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::genuine::Timestamp;

    #[test]
    fn marks_are_settled_merged_and_forgotten() {
        let (a, b) = (NodeId(1), NodeId(2));
        let (mut marks, mut other) = (DeliveredMarks::default(), DeliveredMarks::default());
        [3, 7].into_iter().for_each(|number| marks.add(a, number));
        assert!(marks.has(a, 3) && !marks.has(a, 4) && !marks.has(b, 3));
        marks.settle(a, 3);
        assert!(marks.has(a, 0) && marks.has(a, 7) && !marks.has(a, 4));
        other.settle(a, 7);
        other.add(a, 9);
        other.add(b, 0);
        marks.merge(&other);
        assert!(marks.has(a, 4) && marks.has(a, 9) && !marks.has(a, 8) && marks.has(b, 0));
        let at = |view, clock| GenuinePosition { view, timestamp: Timestamp { clock, shard: 0 } };
        other.advance(at(2, 7));
        marks.advance(at(1, 9));
        marks.merge(&other);
        let mut bytes = Vec::new();
        marks.encode(&mut bytes);
        assert_eq!(DeliveredMarks::decode(&mut &bytes[..]), Some(marks.clone()));
        assert!((0..bytes.len()).all(|length| DeliveredMarks::decode(&mut &bytes[..length]).is_none()));
        marks.retain(|sender| sender == a);
        assert!(marks.has(a, 9) && !marks.has(b, 0));
        assert!(marks.reach(at(1, 10)) && marks.reach(at(2, 7)) && !marks.reach(at(2, 8)));
    }
}
