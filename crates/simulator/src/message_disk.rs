//! The disk of a node, as its durable subgroups see it: one flush at a time, which takes along all that was appended before it
//! began (Derecho §3.4, "durable" mode). What is read after a crash is the subject of [`crate::log`] and [`crate::restart`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant};
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::{Message, MessageLog};

/// The log of a subgroup in a view.
type LogKey = (u64, SubgroupId);

/// The disk of a node. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageDisk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    /// The number of sequences of each log that were appended, and that are on the disk.
    counts: BTreeMap<LogKey, (u64, u64)>,
    /// When the flush that is under way is over, and what it covers.
    flush: Option<(Instant, BTreeMap<LogKey, u64>)>,
}

impl MessageDisk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().expect("no panic while it is locked")
    }

    /// Returns the log of a subgroup in a view.
    pub(crate) fn log(&self, view: u64, id: SubgroupId) -> Box<dyn MessageLog + Send> {
        Box::new(DiskLog { disk: self.clone(), key: (view, id), next: 0 })
    }

    /// Returns how many sequences of a subgroup in a view are on the disk.
    pub(crate) fn persisted(&self, view: u64, id: SubgroupId) -> u64 {
        self.state().counts.get(&(view, id)).map_or(0, |(_, persisted)| *persisted)
    }

    /// Ends the flush if it is time, and begins the next one, which takes up to `span_max`; returns whether one has ended.
    pub(crate) fn poll(&self, now: Instant, span_max: Duration, prng: &mut Prng) -> bool {
        let mut state = self.state();
        let ended = state.flush.take_if(|(at, _)| now >= *at);
        let has_ended = ended.is_some();
        for (key, sequences) in ended.into_iter().flat_map(|(_, covered)| covered) {
            state.counts.get_mut(&key).expect("it was appended").1 = sequences;
        }
        let unflushed: BTreeMap<LogKey, u64> = state
            .counts
            .iter()
            .filter(|(_, (appended, persisted))| appended > persisted)
            .map(|(key, (appended, _))| (*key, *appended))
            .collect();
        if state.flush.is_none() && !unflushed.is_empty() {
            let span = Duration::from_nanos(1 + prng.below(span_max.as_nanos() as u64));
            state.flush = Some((now + span, unflushed));
        }
        has_ended
    }

    /// Returns when the flush that is under way is over.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.state().flush.as_ref().map(|(at, _)| *at)
    }
}

#[derive(Debug)]
struct DiskLog {
    disk: MessageDisk,
    key: LogKey,
    /// The sequence that may come next at the earliest.
    next: u64,
}

impl MessageLog for DiskLog {
    fn append(&mut self, message: Message<'_>) {
        let is_next = message.sequence >= self.next && message.view == self.key.0;
        assert!(is_next, "[T1] message {} of view {} after {}", message.sequence, message.view, self.next);
        self.next = message.sequence + 1;
    }

    fn advance(&mut self, sequences: u64) {
        assert!(sequences >= self.next, "[T1] {sequences} sequences after message {}", self.next);
        self.next = sequences;
        self.disk.state().counts.entry(self.key).or_default().0 = sequences;
    }

    fn persisted(&self) -> u64 {
        self.disk.persisted(self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_appended_before_it_began() {
        let (disk, mut prng) = (MessageDisk::default(), Prng::new(1));
        let mut log = disk.log(3, SubgroupId(1));
        let poll =
            |at: u64, prng: &mut Prng| disk.poll(Instant::from_nanos(at), Duration::from_nanos(9), prng);
        log.advance(2);
        assert!(!poll(0, &mut prng));
        log.advance(5);
        assert_eq!(log.persisted(), 0);
        assert!(poll(9, &mut prng));
        assert_eq!(log.persisted(), 2);
        assert!(poll(18, &mut prng));
        assert_eq!((log.persisted(), disk.next_deadline()), (5, None));
        assert_eq!(disk.persisted(2, SubgroupId(1)), 0);
    }
}
