//! The disk of a process: a register that is replaced as a whole, and a log whose unsynced end may be lost.

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;
use squall_protocols::restart::{LogStart, LogState, Register};

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DiskRecord {
    /// Messages of a view up to this count.
    Count { shard: usize, view: u64, count: u64 },
    /// What was before `base`, with the number of messages of each view in it.
    Checkpoint { shard: usize, base: LogStart, content: CheckpointContent },
}

/// By view how many messages a checkpoint has.
pub(super) type CheckpointContent = BTreeMap<u64, u64>;

/// What a disk holds of a shard, whatever the process believes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardContent {
    /// Where the newest checkpoint ends.
    pub(super) base: LogStart,
    pub(super) counts: CheckpointContent,
}

impl ShardContent {
    pub(super) fn count(&self, view: u64) -> u64 {
        self.counts.get(&view).copied().unwrap_or(0)
    }

    fn raise(&mut self, view: u64, count: u64) {
        let held = self.counts.entry(view).or_default();
        *held = count.max(*held);
    }

    /// What a checkpoint at `base` has of it.
    pub(super) fn before(self, base: LogStart) -> CheckpointContent {
        let LogStart { view: last, sequence } = base;
        let cut = |(view, count): (u64, u64)| (view, if view == last { count.min(sequence) } else { count });
        self.counts.into_iter().filter(|(view, _)| LogStart::of_view(*view) < base).map(cut).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct ProcessDisk {
    /// The register that is read after a crash, from its bytes.
    register: Register,
    writing: Option<Vec<u8>>,
    /// In the order in which they were appended; the first ones are safe.
    log: Vec<DiskRecord>,
    synced: usize,
    flushing: usize,
    /// A part of the end is known to be missing, and the register does not say so yet.
    pub(super) is_damaged: bool,
}

impl ProcessDisk {
    /// An empty log, and a register.
    pub(super) fn new(register: &Register) -> Self {
        let (log, register) = (Vec::new(), read(&register.encode()));
        Self { register, writing: None, log, synced: 0, flushing: 0, is_damaged: false }
    }

    /// Another register takes the place of the one that is lost.
    pub(super) fn replace_register(&mut self, register: &Register) {
        self.register = read(&register.encode());
    }

    pub(super) const fn register(&self) -> &Register {
        &self.register
    }

    pub(super) fn append(&mut self, shard: usize, view: u64, count: u64) {
        self.log.push(DiskRecord::Count { shard, view, count });
    }

    pub(super) fn append_checkpoint(&mut self, shard: usize, base: LogStart, content: CheckpointContent) {
        self.log.push(DiskRecord::Checkpoint { shard, base, content });
    }

    pub(super) fn begin_write(&mut self, register: Vec<u8>) {
        self.writing = Some(register);
    }

    pub(super) fn end_write(&mut self) {
        self.register = read(&self.writing.take().expect("a write is under way"));
    }

    pub(super) fn begin_flush(&mut self) {
        self.flushing = self.log.len();
    }

    pub(super) fn end_flush(&mut self) {
        self.synced = self.flushing;
        self.drop_covered();
    }

    /// Records that a checkpoint on the disk covers are deleted.
    fn drop_covered(&mut self) {
        let bases: BTreeMap<usize, LogStart> = (self.log[..self.synced].iter())
            .filter_map(|record| match record {
                DiskRecord::Checkpoint { shard, base, .. } => Some((*shard, *base)),
                DiskRecord::Count { .. } => None,
            })
            .fold(BTreeMap::new(), |mut bases, (shard, base)| {
                bases.entry(shard).and_modify(|known| *known = base.max(*known)).or_insert(base);
                bases
            });
        let is_covered = |record: &DiskRecord| match record {
            DiskRecord::Count { shard, view, count } => {
                let end = LogStart { view: *view, sequence: *count };
                bases.get(shard).is_some_and(|base| end <= *base)
            }
            DiskRecord::Checkpoint { shard, base, .. } => {
                bases.get(shard).is_some_and(|newest| base < newest)
            }
        };
        let is_dropped: Vec<bool> =
            self.log.iter().enumerate().map(|(i, record)| i < self.synced && is_covered(record)).collect();
        let dropped = is_dropped.iter().filter(|dropped| **dropped).count();
        let mut keep = is_dropped.iter().map(|dropped| !dropped);
        self.log.retain(|_| keep.next().expect("one for each"));
        self.synced -= dropped;
        self.flushing = self.flushing.saturating_sub(dropped);
    }

    /// The process dies: nothing, some or all of what was not synced is there, and an unfinished write of the register is done or not.
    pub(super) fn crash(&mut self, prng: &mut Prng) {
        if let Some(written) = self.writing.take()
            && prng.chance(500)
        {
            self.register = read(&written);
        }
        let unsynced = self.log.len() - self.synced;
        let kept = match prng.below(3) {
            0 => 0,
            1 => prng.index(unsynced + 1),
            _ => unsynced,
        };
        self.log.truncate(self.synced + kept);
        (self.synced, self.flushing) = (self.log.len(), self.log.len());
    }

    /// The latest messages are lost, known or not.
    pub(super) fn damage(&mut self, records: u64, is_known: bool) {
        for _ in 0..records {
            let last = self.log.iter().rposition(|record| matches!(record, DiskRecord::Count { .. }));
            let Some(last) = last else { break };
            self.log.remove(last);
        }
        (self.synced, self.flushing) = (self.log.len(), self.log.len());
        self.is_damaged |= is_known;
    }

    /// What the log holds, unsynced records included.
    pub(super) fn content(&self, shard: usize) -> ShardContent {
        content_of(&self.log, shard)
    }

    /// What the log holds for sure.
    pub(super) fn synced_content(&self, shard: usize) -> ShardContent {
        content_of(&self.log[..self.synced], shard)
    }

    /// What a process finds when it starts.
    pub(super) fn state(&self, shards: usize) -> LogState {
        let mut state = LogState::new(shards);
        for shard in 0..shards {
            let content = self.content(shard);
            content.counts.iter().for_each(|(view, count)| state.raise(shard, *view, *count));
            state.cover(shard, content.base);
        }
        state
    }
}

fn read(bytes: &[u8]) -> Register {
    Register::decode(bytes).expect("what was written is read")
}

fn content_of(log: &[DiskRecord], of: usize) -> ShardContent {
    let mut content = ShardContent::default();
    for record in log {
        match record {
            DiskRecord::Checkpoint { shard, base, content: held } if *shard == of && *base > content.base => {
                content.base = *base;
                let later = content.counts.split_off(&base.view);
                content.counts = held.clone();
                later.into_iter().for_each(|(view, count)| content.raise(view, count));
            }
            DiskRecord::Count { shard, view, count } if *shard == of && *view >= content.base.view => {
                content.raise(*view, *count);
            }
            DiskRecord::Checkpoint { .. } | DiskRecord::Count { .. } => {}
        }
    }
    content
}
