//! Which durable subgroups a log has, by name, and the numbers that their records and checkpoints have.
//!
//! A subgroup keeps its number as long as it is in the log, whatever others are added or removed. A number is never given a second time: a
//! name that is removed and added again later has another number, so that what the log still has of before is nothing of it [W17].
//!
//! A set that differs from that of the register is a *change*. It is put beside the register, which is not touched, until the process
//! knows a view of its group that has the changed set: then the change takes the place of the register in one write. What a crash leaves is
//! either the register with the change beside it, which can be dropped, or the changed register.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::identity::RegisterValue;

/// The durable subgroups of a log.
///
/// `numbers` and those of the change are below `next`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSubgroups {
    /// The number of each, by name. Empty if a release that did not note them has written the log.
    pub numbers: BTreeMap<String, u32>,
    /// Every number that was ever given is below this one.
    pub next: u32,
    /// A changed set, in which the process waits for a view of its group.
    pub change: Option<SubgroupChange>,
}

/// A changed set of durable subgroups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubgroupChange {
    /// The number of each, by name.
    pub numbers: BTreeMap<String, u32>,
    /// What the protocol keeps in the register, in terms of this set.
    pub protocol: Vec<u8>,
}

impl LogSubgroups {
    /// Returns the numbers by name that the process uses now: those of the change, if there is one.
    #[must_use]
    pub fn present(&self) -> &BTreeMap<String, u32> {
        self.change.as_ref().map_or(&self.numbers, |change| &change.numbers)
    }

    /// Returns the name of a subgroup that has this number.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<&str> {
        let all = self.present().iter().chain(&self.numbers);
        all.filter(|(_, of)| **of == number).map(|(name, _)| name.as_str()).next()
    }

    /// Returns whether a number was given to a subgroup that the log has no more: its records and checkpoints are needed for nothing.
    #[must_use]
    pub fn is_retired(&self, number: u32) -> bool {
        number < self.next && self.name(number).is_none()
    }

    /// Returns all such numbers.
    #[must_use]
    pub fn retired(&self) -> BTreeSet<u32> {
        (0..self.next).filter(|number| self.is_retired(*number)).collect()
    }

    /// Gives a name a number that no subgroup has ever had.
    pub fn give(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }
}

impl RegisterValue {
    /// Returns what the protocol keeps, in terms of the set of subgroups that the process uses now.
    #[must_use]
    pub fn present_protocol(&self) -> &[u8] {
        self.subgroups.change.as_ref().map_or(&self.protocol, |change| &change.protocol)
    }

    /// Replaces that.
    pub fn set_protocol(&mut self, protocol: Vec<u8>) {
        match &mut self.subgroups.change {
            Some(change) => change.protocol = protocol,
            None => self.protocol = protocol,
        }
    }

    /// Has the changed set take the place of the one before, if there is one, with what the protocol keeps now. Nothing is known of the
    /// subgroups that are not in it any more.
    pub fn settle(&mut self, protocol: Vec<u8>) {
        if let Some(change) = self.subgroups.change.take() {
            self.subgroups.numbers = change.numbers;
            let subgroups = &self.subgroups;
            self.recycled.retain(|number, _| !subgroups.is_retired(*number));
        }
        self.protocol = protocol;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::LogPosition;

    fn numbers(all: &[(&str, u32)]) -> BTreeMap<String, u32> {
        all.iter().map(|(name, number)| ((*name).into(), *number)).collect()
    }

    /// Until the changed set counts, the one before it is kept; then what is not in it is retired.
    #[test]
    fn a_change_is_beside_the_register_until_it_counts() {
        let at = LogPosition { view: 1, sequence: 2 };
        let mut register = RegisterValue {
            protocol: vec![1],
            recycled: [(0, at), (1, at)].into(),
            ..RegisterValue::new(7, 1)
        };
        register.subgroups.numbers = numbers(&[("a", 0), ("b", 1)]);
        register.subgroups.next = 2;
        let added = register.subgroups.give();
        register.subgroups.change =
            Some(SubgroupChange { numbers: numbers(&[("b", 1), ("c", added)]), protocol: vec![2] });
        assert_eq!((added, register.present_protocol()), (2, &[2][..]));
        register.set_protocol(vec![3]);
        assert_eq!((&register.protocol, register.present_protocol()), (&vec![1], &[3][..]));
        assert_eq!([0, 1, 2, 3].map(|number| register.subgroups.is_retired(number)), [false; 4]);
        assert_eq!(RegisterValue::from_bytes(&register.to_bytes()), Some(register.clone()));
        register.settle(vec![4]);
        assert_eq!(register.present_protocol(), [4]);
        assert_eq!(register.subgroups.retired(), [0].into());
        assert_eq!(register.recycled, [(1, at)].into());
        assert_eq!([0, 1, 2].map(|number| register.subgroups.name(number)), [None, Some("b"), Some("c")]);
        register.settle(vec![5]);
        assert_eq!((register.present_protocol(), register.subgroups.retired()), (&[5][..], [0].into()));
    }

    #[test]
    fn nothing_is_retired_where_no_names_are_noted() {
        let register = RegisterValue::new(7, 1);
        assert!(!register.subgroups.is_retired(0) && register.subgroups.retired().is_empty());
    }
}
