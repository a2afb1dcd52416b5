//! The disk of a node, as its durable subgroups see it (Derecho §3.4, "durable" mode): a log, with one flush at a time, which takes
//! along all that was appended before it began; and a register, with one write at a time. What is read after a crash is the subject
//! of [`crate::log`] and [`crate::restart`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant};
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::{Message, MessageLog};
use squall_protocols::restart::Register;

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
    /// The register that is on the disk, if the node keeps one.
    register: Option<Register>,
    /// The write of the register that is under way, and when it is over, once that is known.
    write: Option<(Option<Instant>, Register)>,
    /// A write has ended, and the node does not know it yet.
    has_written: bool,
    /// Checkpoints cover everything before this view.
    base: u64,
}

impl MessageDisk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().expect("no panic while it is locked")
    }

    /// Puts a register on the disk, before the node begins.
    pub(crate) fn format(&self, register: Register) {
        self.state().register = Some(register);
    }

    /// Returns the register that is on the disk, if the node keeps one.
    pub(crate) fn register(&self) -> Option<Register> {
        self.state().register.clone()
    }

    /// The node dies: of what was under way to the disk, some is there or none. Returns the register, and by view and subgroup how many
    /// sequences are found.
    pub(crate) fn crash(&self, prng: &mut Prng) -> (Option<Register>, BTreeMap<(u64, SubgroupId), u64>) {
        let state = self.state();
        let written = state.write.as_ref().filter(|_| prng.chance(500)).map(|(_, register)| register);
        let register = written.or(state.register.as_ref()).cloned();
        let keeps = prng.chance(500);
        let mut found = |(appended, persisted): &(u64, u64)| match keeps {
            true => persisted + prng.below(appended - persisted + 1),
            false => *persisted,
        };
        let counts = state.counts.iter().map(|(key, counts)| (*key, found(counts)));
        (register, counts.collect())
    }

    /// Checkpoints cover everything before `view` from now on.
    pub(crate) fn cover_before(&self, view: u64) {
        let base = &mut self.state().base;
        *base = view.max(*base);
    }

    /// Returns the view before which checkpoints cover everything.
    pub(crate) fn base(&self) -> u64 {
        self.state().base
    }

    /// Begins to replace the register.
    pub(crate) fn write_register(&self, register: &Register) {
        let before = self.state().write.replace((None, register.clone()));
        assert_eq!(before, None, "one write at a time");
    }

    /// Returns whether a write of the register has ended since the last call.
    pub(crate) fn take_written(&self) -> bool {
        std::mem::take(&mut self.state().has_written)
    }

    /// Returns the log of a subgroup in a view.
    pub(crate) fn log(&self, view: u64, id: SubgroupId) -> Box<dyn MessageLog + Send> {
        Box::new(DiskLog { disk: self.clone(), key: (view, id), next: 0 })
    }

    /// Returns how many sequences of a subgroup in a view are on the disk.
    pub(crate) fn persisted(&self, view: u64, id: SubgroupId) -> u64 {
        self.state().counts.get(&(view, id)).map_or(0, |(_, persisted)| *persisted)
    }

    /// Ends the flush and the write of the register if it is time, and begins the next ones, each of which takes up to `span_max`;
    /// returns whether one has ended.
    pub(crate) fn poll(&self, now: Instant, span_max: Duration, prng: &mut Prng) -> bool {
        let mut state = self.state();
        let has_written = state.write.take_if(|(at, _)| at.is_some_and(|at| now >= at));
        state.has_written |= has_written.is_some();
        let has_ended = has_written.is_some();
        state.register = has_written.map(|(_, register)| register).or(state.register.take());
        if let Some((at @ None, _)) = &mut state.write {
            *at = Some(now + Duration::from_nanos(1 + prng.below(span_max.as_nanos() as u64)));
        }
        let ended = state.flush.take_if(|(at, _)| now >= *at);
        let has_ended = has_ended || ended.is_some();
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

    /// Returns when the flush or the write that is under way is over, whichever is first.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = self.state();
        let flush = state.flush.as_ref().map(|(at, _)| *at);
        flush.into_iter().chain(state.write.as_ref().and_then(|(at, _)| *at)).min()
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
        let recorded = self.disk.register().map(|register| register.view().number);
        let view = self.key.0;
        assert!(
            recorded.is_none_or(|recorded| recorded == view),
            "[T8] a message of view {view}, and view {recorded:?} is on the disk"
        );
        self.next = message.sequence + 1;
        self.disk.state().counts.entry(self.key).or_default().0 = self.next;
    }

    fn persisted(&self) -> u64 {
        self.disk.persisted(self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::*;

    #[test]
    fn a_flush_covers_what_was_appended_before_it_began() {
        let (disk, mut prng) = (MessageDisk::default(), Prng::new(1));
        let mut log = disk.log(3, SubgroupId(1));
        let poll =
            |at: u64, prng: &mut Prng| disk.poll(Instant::from_nanos(at), Duration::from_nanos(9), prng);
        let mut append = |sequence| {
            log.append(Message { view: 3, sender: 0, node: NodeId(0), index: 0, sequence, bytes: b"" });
        };
        append(1);
        assert!(!poll(0, &mut prng));
        append(4);
        assert_eq!(log.persisted(), 0);
        assert!(poll(9, &mut prng));
        assert_eq!(log.persisted(), 2);
        assert!(poll(18, &mut prng));
        assert_eq!((log.persisted(), disk.next_deadline()), (5, None));
        assert_eq!(disk.persisted(2, SubgroupId(1)), 0);
    }
}
