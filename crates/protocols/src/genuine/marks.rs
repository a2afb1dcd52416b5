//! Marks: which messages a member has delivered, so that one that is sent again is recognised (RamCast §3.6) \[G13\].

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;

/// What a member has delivered of each sender, in all views. For each sender that is a number, and a set that is bounded by its
/// window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveredMarks {
    senders: BTreeMap<NodeId, SenderMarks>,
}

/// Of one sender: all messages for this shard below `below` are delivered, and those in `above`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SenderMarks {
    below: u64,
    above: BTreeSet<u64>,
}

impl DeliveredMarks {
    /// Whether message `number` of `sender` is delivered.
    #[must_use]
    pub fn has(&self, sender: NodeId, number: u64) -> bool {
        self.senders.get(&sender).is_some_and(|marks| number < marks.below || marks.above.contains(&number))
    }

    /// Message `number` of `sender` is delivered.
    pub(super) fn add(&mut self, sender: NodeId, number: u64) {
        let marks = self.senders.entry(sender).or_default();
        if number >= marks.below {
            marks.above.insert(number);
        }
    }

    /// All messages of `sender` for this shard up to `number` are delivered: a sender's records come in the order of their numbers.
    pub(super) fn settle(&mut self, sender: NodeId, number: u64) {
        let marks = self.senders.entry(sender).or_default();
        marks.below = marks.below.max(number + 1);
        marks.above = marks.above.split_off(&marks.below);
    }

    /// Adds the marks of another member of the same shard.
    pub(super) fn merge(&mut self, other: &Self) {
        for (sender, theirs) in &other.senders {
            let marks = self.senders.entry(*sender).or_default();
            marks.below = marks.below.max(theirs.below);
            marks.above.extend(&theirs.above);
            marks.above = marks.above.split_off(&marks.below);
        }
    }

    /// Forgets senders that are gone: they send nothing any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.senders.retain(|sender, _| is_member(*sender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        marks.retain(|sender| sender == a);
        assert!(marks.has(a, 9) && !marks.has(b, 0));
    }
}
