//! The replicated object of members that join and leave: notes in the order in which they were written, whose state takes
//! a chosen time to travel.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use squall::config::SubgroupConfig;
use squall::object::{Replicated, Snapshot};

use crate::control::StoreJob;

/// The name of the object.
pub(crate) const NAME: &str = "notes";

/// The number of its shards.
pub(crate) const SHARDS: usize = 4;

/// Notes at most in the answer to one query.
pub(crate) const PAGE: usize = 4096;

/// The parts in which a state is written, with a pause after each.
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

pub(crate) struct StoredNotes {
    notes: Vec<u64>,
    transfer_ms: u64,
}

impl StoredNotes {
    pub(crate) const fn new(transfer_ms: u64) -> Self {
        Self { notes: Vec::new(), transfer_ms }
    }
}

impl Replicated for StoredNotes {
    type Update = u64;
    /// From this place on.
    type Query = u64;
    type Reply = Vec<u64>;

    /// Replies with the note's place.
    fn apply(&mut self, note: u64) -> Vec<u64> {
        self.notes.push(note);
        vec![self.notes.len() as u64 - 1]
    }

    fn query(&self, from: u64) -> Vec<u64> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        self.notes.iter().skip(from).take(PAGE).copied().collect()
    }

    fn snapshot(&self) -> Snapshot {
        let (notes, transfer_ms) = (self.notes.clone(), self.transfer_ms);
        Snapshot::new(move |sink: &mut dyn Write| {
            sink.write_all(&transfer_ms.to_le_bytes())?;
            for part in 0..PARTS {
                sink.write_all(&[part])?;
                thread::sleep(Duration::from_millis(transfer_ms) / u32::from(PARTS));
            }
            notes.iter().try_for_each(|note| sink.write_all(&note.to_le_bytes()))
        })
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        let mut head = [0; 8 + PARTS as usize];
        source.read_exact(&mut head)?;
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
        Ok(Self { notes: bytes.chunks_exact(8).map(word).collect(), transfer_ms: word(&head[..8]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_travels_whole() {
        let mut notes = StoredNotes::new(30);
        (0..1000).for_each(|note| assert_eq!(notes.apply(note), [note]));
        let mut bytes = Vec::new();
        notes.snapshot().write(&mut bytes).unwrap();
        let copy = StoredNotes::restore(&mut &bytes[..]).unwrap();
        assert_eq!((copy.notes.len(), copy.transfer_ms, copy.query(990)), (1000, 30, (990..1000).collect()));
    }
}
