//! An object with a state of bounded size, to which each update adds much.

use std::collections::BTreeMap;

use squall::object::{Replicated, Snapshot, restored};

/// Things on shelves: the latest ones, of which each shelf has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shelves {
    /// How many were put there.
    pub(super) count: u64,
    things: BTreeMap<u64, Vec<u8>>,
}

impl Shelves {
    /// What they look like after this many updates.
    pub(super) fn after(count: u64) -> Self {
        let latest = count.saturating_sub(SHELVES)..count;
        Self { count, things: latest.map(|number| (number % SHELVES, thing(number))).collect() }
    }
}

impl Replicated for Shelves {
    type Update = Vec<u8>;
    type Query = ();
    type Reply = u64;

    fn apply(&mut self, thing: Vec<u8>) -> u64 {
        self.things.insert(self.count % SHELVES, thing);
        self.count += 1;
        self.count
    }

    fn query(&self, (): ()) -> u64 {
        self.count
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of((self.count, self.things.clone()))
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(|(count, things)| Self { count, things })
    }
}

pub(super) fn thing(number: u64) -> Vec<u8> {
    vec![number as u8; THING_BYTES]
}

const SHELVES: u64 = 8;
pub(super) const THING_BYTES: usize = 500_000;
