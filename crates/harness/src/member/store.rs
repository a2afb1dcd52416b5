//! The replicated object of members that join and leave: lists and registers, whose state takes a chosen time to travel.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use squall::config::{GenuineConfig, SubgroupConfig};
use squall::object::{Replicated, Snapshot, restored};

use crate::control::StoreJob;
use crate::operations::{StepReply, StoreStep};

/// The name of the object.
pub(crate) const NAME: &str = "values";

/// The number of its shards.
const SHARDS: usize = 4;

/// The parts in which the beginning of a state is written, with a pause after each.
const PARTS: u8 = 15;

/// The subgroup that the object lives in.
pub(crate) fn subgroup(job: &StoreJob) -> SubgroupConfig {
    SubgroupConfig {
        shards: SHARDS,
        replicas: job.replicas,
        window: 16,
        message_max: 4096,
        ..SubgroupConfig::default()
    }
}

/// The shards of the object for transactions: members of even ranks and of odd ones.
pub(crate) fn transaction_shards() -> GenuineConfig {
    let ranks = |first: usize| (first..RANKS).step_by(2).collect::<Vec<_>>();
    let shards = GenuineConfig::default().shard("even", &ranks(0)).shard("odd", &ranks(1));
    GenuineConfig { object: true, ..shards }
}

/// More than members have at a time.
const RANKS: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredValues {
    lists: BTreeMap<u64, Vec<u64>>,
    registers: BTreeMap<u64, u64>,
    transfer_ms: u64,
}

impl StoredValues {
    pub(crate) const fn new(transfer_ms: u64) -> Self {
        Self { lists: BTreeMap::new(), registers: BTreeMap::new(), transfer_ms }
    }

    /// Replies to a step that changes nothing.
    fn see(&self, step: &StoreStep) -> StepReply {
        match step {
            StoreStep::List { list } => StepReply::List(self.lists.get(list).cloned().unwrap_or_default()),
            step => StepReply::Value(self.registers.get(&step.key()).copied()),
        }
    }
}

impl Replicated for StoredValues {
    type Update = StoreStep;
    type Query = StoreStep;
    type Reply = StepReply;

    fn apply(&mut self, step: StoreStep) -> StepReply {
        match step {
            StoreStep::Append { list, value } => {
                let values = self.lists.entry(list).or_default();
                values.push(value);
                StepReply::Place(values.len() as u64 - 1)
            }
            StoreStep::Write { register, value } => {
                self.registers.insert(register, value);
                StepReply::Done
            }
            StoreStep::Swap { register, expected, value } => {
                let is_expected = self.registers.get(&register).copied() == expected;
                if is_expected {
                    self.registers.insert(register, value);
                }
                StepReply::Swapped(is_expected)
            }
            step => self.see(&step),
        }
    }

    fn query(&self, step: StoreStep) -> StepReply {
        self.see(&step)
    }

    fn snapshot(&self) -> Snapshot {
        let (values, transfer_ms) = ((self.lists.clone(), self.registers.clone()), self.transfer_ms);
        Snapshot::new(move |sink: &mut dyn Write| {
            sink.write_all(&transfer_ms.to_le_bytes())?;
            for part in 0..PARTS {
                sink.write_all(&[part])?;
                thread::sleep(Duration::from_millis(transfer_ms) / u32::from(PARTS));
            }
            Snapshot::of(values).write(sink)
        })
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        let mut head = [0; 8 + PARTS as usize];
        source.read_exact(&mut head)?;
        let transfer_ms = u64::from_le_bytes(head[..8].try_into().expect("a word"));
        let (lists, registers) = restored(source)?;
        Ok(Self { lists, registers, transfer_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_travels_whole() {
        let mut values = StoredValues::new(30);
        for value in 0..1000 {
            assert_eq!(values.apply(StoreStep::Append { list: 7, value }), StepReply::Place(value));
        }
        values.apply(StoreStep::Write { register: 3, value: 4 });
        let mut bytes = Vec::new();
        values.snapshot().write(&mut bytes).unwrap();
        assert_eq!(StoredValues::restore(&mut &bytes[..]).unwrap(), values);
    }

    #[test]
    fn a_value_is_replaced_if_it_is_the_expected_one() {
        let mut values = StoredValues::new(0);
        let swap = |expected, value| StoreStep::Swap { register: 1, expected, value };
        assert_eq!(values.apply(swap(Some(1), 2)), StepReply::Swapped(false));
        assert_eq!(values.apply(swap(None, 1)), StepReply::Swapped(true));
        assert_eq!(values.apply(swap(None, 5)), StepReply::Swapped(false));
        assert_eq!(values.query(StoreStep::Read { register: 1 }), StepReply::Value(Some(1)));
    }
}
