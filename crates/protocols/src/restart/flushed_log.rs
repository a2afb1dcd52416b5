//! The log as the protocol sees it: how much of which view is in it, and how much of that is on the disk (Derecho §3.4, "Total
//! failures").

use std::collections::BTreeMap;

use super::mutation;
use super::register::ViewRecord;
use super::view_chain::ViewChain;

/// Where the log of a shard begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogStart {
    /// The view.
    pub view: u64,
    /// The sequence in the view.
    pub sequence: u64,
}

impl LogStart {
    /// The beginning of a view.
    #[must_use]
    pub const fn of_view(view: u64) -> Self {
        Self { view, sequence: 0 }
    }
}

/// What a log holds of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardLog {
    /// A checkpoint covers everything before. It covers what was delivered only, so it is not beyond the trim of its view.
    pub base: LogStart,
    /// By view how many sequences are here, from the first on; those before `base` in the checkpoint.
    pub counts: BTreeMap<u64, u64>,
}

impl ShardLog {
    /// How many sequences of a view are here.
    #[must_use]
    pub fn count(&self, view: u64) -> u64 {
        self.counts.get(&view).copied().unwrap_or(0)
    }
}

/// What a log holds of each durable shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// By number.
    pub shards: Vec<ShardLog>,
}

impl LogState {
    /// An empty log.
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self { shards: vec![ShardLog::default(); shards] }
    }

    /// Sequences up to `count` of a view are here.
    pub fn raise(&mut self, shard: usize, view: u64, count: u64) {
        let held = self.shards[shard].counts.entry(view).or_default();
        *held = count.max(*held);
    }

    /// A checkpoint is here that covers everything before `start`.
    pub fn cover(&mut self, shard: usize, start: LogStart) {
        let log = &mut self.shards[shard];
        log.base = log.base.max(start);
        log.counts = log.counts.split_off(&log.base.view);
        let LogStart { view, sequence } = log.base;
        if sequence > 0 {
            self.raise(shard, view, sequence);
        }
    }

    /// Of ended views, records beyond the trim do not count any more \[T9\], nor does a checkpoint of a shard that began again later.
    pub fn cut(&mut self, chain: &ViewChain) {
        mutant!(KeepBeyondTrim => return);
        for (shard, log) in self.shards.iter_mut().enumerate() {
            let begun = chain.begun_again(shard);
            if log.base.view < begun {
                log.base = LogStart::default();
            }
            log.counts = log.counts.split_off(&begun);
            for (view, count) in &mut log.counts {
                *count = chain.trim_of(*view, shard).unwrap_or(*count).min(*count);
            }
        }
    }

    /// Whether everything before the present view is here, so that the shard may be served \[T2\] \[T3\].
    #[must_use]
    pub fn is_whole(&self, shard: usize, record: &ViewRecord) -> bool {
        mutant!(ServeWithoutBase) || self.missing_base(shard, record).is_none()
    }

    /// What is missing first of the views before the present one \[T17\].
    #[must_use]
    pub fn missing_base(&self, shard: usize, record: &ViewRecord) -> Option<FetchRequest> {
        let log = &self.shards[shard];
        let ViewRecord { view, chain } = record;
        // [T19] Of views before the list the own records may be too many or too few.
        if log.base.view < chain.known_since(shard) && !mutant!(TrustUncheckedViews) {
            return Some(FetchRequest::Checkpoint { shard, from: chain.first(), to: view.number });
        }
        let lacks = |(view, trim): &(u64, u64)| *view >= log.base.view && log.count(*view) < *trim;
        let (view, to) = chain.of_shard(shard).find(lacks)?;
        Some(self.missing(shard, view, to))
    }

    /// How many sequences of ended views are not here, as far as the list says.
    #[must_use]
    pub fn lacking(&self, chain: &ViewChain) -> u64 {
        let of_shard = |(shard, log): (usize, &ShardLog)| -> u64 {
            let views = chain.of_shard(shard).filter(|(view, _)| *view >= log.base.view);
            views.map(|(view, trim)| trim.saturating_sub(log.count(view))).sum()
        };
        self.shards.iter().enumerate().map(of_shard).sum()
    }

    /// What is missing of a view up to a trim; nothing that is here \[P3\].
    #[must_use]
    pub fn missing(&self, shard: usize, view: u64, to: u64) -> FetchRequest {
        let held = if mutant!(FetchHeld) { 0 } else { self.shards[shard].count(view) };
        FetchRequest::Records { shard, view, from: held, to }
    }

    /// What this log, of a process with this record, has of what another one asks for.
    #[must_use]
    pub fn answer(&self, record: &ViewRecord, request: FetchRequest) -> FetchAnswer {
        let FetchRequest::Records { shard, view, from, to } = request else {
            let FetchRequest::Checkpoint { shard, from, to } = request else { unreachable!("two kinds") };
            let base = self.shards[shard].base;
            return if (from..=to).contains(&base.view) {
                FetchAnswer::Checkpoint(base)
            } else {
                FetchAnswer::Nothing
            };
        };
        let log = &self.shards[shard];
        // What a checkpoint covers is not in the log any more; of what came before the list the trims are unknown.
        let is_certain = view >= record.chain.first();
        match log.count(view).min(to) {
            _ if (LogStart { view, sequence: from }) < log.base => FetchAnswer::Checkpoint(log.base),
            held if is_certain && held > from => FetchAnswer::Records(held),
            _ => FetchAnswer::Nothing,
        }
    }
}

/// A part of a log that a process lacks, to be fetched from any other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchRequest {
    /// Records, or a checkpoint that covers their view.
    Records {
        /// Of which shard.
        shard: usize,
        /// Of which view.
        view: u64,
        /// The first sequence.
        from: u64,
        /// One more than the last one.
        to: u64,
    },
    /// A checkpoint.
    Checkpoint {
        /// Of which shard.
        shard: usize,
        /// The least view up to whose beginning it must reach.
        from: u64,
        /// The greatest.
        to: u64,
    },
}

impl FetchRequest {
    /// The answer, if it can be one to this: a checkpoint reaches behind what is missing, and not beyond the present view `view`.
    #[must_use]
    pub fn checked(&self, answer: FetchAnswer, view: u64) -> FetchAnswer {
        let is_of_use = match (self, answer) {
            (_, FetchAnswer::Checkpoint(start)) if start.view > view => false,
            (Self::Records { view, from, .. }, FetchAnswer::Checkpoint(start)) => {
                LogStart { view: *view, sequence: *from } < start
            }
            (Self::Checkpoint { from, to, .. }, FetchAnswer::Checkpoint(start)) => {
                (*from..=*to).contains(&start.view)
            }
            _ => true,
        };
        if is_of_use { answer } else { FetchAnswer::Nothing }
    }

    /// The shard that it is about.
    #[must_use]
    pub const fn shard(&self) -> usize {
        match self {
            Self::Records { shard, .. } | Self::Checkpoint { shard, .. } => *shard,
        }
    }
}

/// What has been fetched, and is appended to the log by the driver before it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchAnswer {
    /// Records of the view up to this count.
    Records(u64),
    /// A checkpoint that covers everything before.
    Checkpoint(LogStart),
    /// The process has none of it, or is gone.
    Nothing,
}

/// A log, and what of it is on the disk \[T1\].
///
/// **Law.** The owner says what it has appended ([`FlushedLog::append`]). [`FlushedLog::poll_flush`] asks for a flush; when it has
/// returned, the driver calls [`FlushedLog::handle_flushed`]. `durable <= appended`, in each count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedLog {
    appended: LogState,
    durable: LogState,
    flushing: Option<LogState>,
}

impl FlushedLog {
    /// A log as it is found on the disk.
    #[must_use]
    pub fn new(found: LogState) -> Self {
        Self { appended: found.clone(), durable: found, flushing: None }
    }

    /// With what is not on the disk yet.
    #[must_use]
    pub const fn appended(&self) -> &LogState {
        &self.appended
    }

    /// What is on the disk, and may be published as persisted.
    #[must_use]
    pub fn durable(&self) -> &LogState {
        if mutant!(PersistBeforeFlush) { &self.appended } else { &self.durable }
    }

    /// Whether all that was appended is on the disk.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        *self.durable() == self.appended
    }

    /// Records up to `count` of a view have been appended.
    pub fn append(&mut self, shard: usize, view: u64, count: u64) {
        self.appended.raise(shard, view, count);
    }

    /// A checkpoint has been appended that covers everything before `start`.
    pub fn append_checkpoint(&mut self, shard: usize, start: LogStart) {
        self.appended.cover(shard, start);
    }

    /// What has been fetched has been appended.
    pub fn append_fetched(&mut self, request: FetchRequest, answer: FetchAnswer) {
        match (request, answer) {
            (FetchRequest::Records { shard, view, to, .. }, FetchAnswer::Records(count)) => {
                self.append(shard, view, count.min(to));
            }
            (request, FetchAnswer::Checkpoint(start)) => self.append_checkpoint(request.shard(), start),
            (FetchRequest::Checkpoint { .. }, FetchAnswer::Records(_)) | (_, FetchAnswer::Nothing) => {}
        }
    }

    /// Whether to flush now, if no flush is under way.
    pub fn poll_flush(&mut self) -> bool {
        let is_needed = self.flushing.is_none() && self.durable != self.appended;
        if is_needed {
            self.flushing = Some(self.appended.clone());
        }
        is_needed
    }

    /// The flush has returned.
    ///
    /// # Panics
    /// If none is under way.
    pub fn handle_flushed(&mut self) {
        self.durable = self.flushing.take().expect("a flush is under way");
    }

    /// Views have ended \[T9\].
    pub fn cut(&mut self, chain: &ViewChain) {
        self.flushing
            .iter_mut()
            .chain([&mut self.appended, &mut self.durable])
            .for_each(|log| log.cut(chain));
    }
}

#[cfg(test)]
mod tests {
    use super::super::register::tests::{end, view};
    use super::super::view_chain::LOST;
    use super::*;

    fn record() -> ViewRecord {
        let first = ViewRecord { view: view(0, &[0]), chain: ViewChain::default() };
        first.next(&end(5, view(1, &[0]))).next(&end(2, view(2, &[0])))
    }

    /// Of a shard that begins again nothing of before counts, and nothing of before is missing, also where the list does not reach back.
    #[test]
    fn what_was_lost_is_void_and_not_missing() {
        let mut chain = ViewChain::new(4);
        chain.push(&[0, 2]);
        chain.push(&[LOST, 0]);
        chain.push(&[6, 1]);
        let record = ViewRecord { view: view(7, &[0]), chain };
        let mut log = LogState::new(2);
        log.cover(0, LogStart { view: 3, sequence: 8 });
        log.cover(1, LogStart { view: 3, sequence: 8 });
        log.raise(0, 4, 9);
        log.cut(&record.chain);
        assert_eq!(log.shards[0], ShardLog::default());
        assert_eq!(log.shards[1].base, LogStart { view: 3, sequence: 8 });
        let records = FetchRequest::Records { shard: 0, view: 6, from: 0, to: 6 };
        assert_eq!(log.missing_base(0, &record), Some(records));
        let checkpoint = FetchRequest::Checkpoint { shard: 1, from: 4, to: 7 };
        assert_eq!(log.missing_base(1, &record), Some(checkpoint));
        log.cover(0, LogStart { view: 6, sequence: 6 });
        log.cut(&record.chain);
        assert!(log.is_whole(0, &record), "a later checkpoint counts");
    }

    #[test]
    fn a_log_is_whole_when_it_reaches_the_trims() {
        let mut log = LogState::new(1);
        let records = |view, from, to| FetchRequest::Records { shard: 0, view, from, to };
        assert_eq!(log.missing_base(0, &record()), Some(records(0, 0, 5)));
        log.raise(0, 0, 3);
        log.raise(0, 1, 7);
        log.cut(&record().chain);
        assert_eq!(log.shards[0].count(1), 2, "what is beyond the trim does not count");
        assert_eq!(log.missing_base(0, &record()), Some(records(0, 3, 5)));
        log.raise(0, 0, 5);
        assert!(log.is_whole(0, &record()));
    }

    #[test]
    fn a_checkpoint_takes_the_place_of_records() {
        let mut record = record();
        let (mut with, mut without) = (LogState::new(1), LogState::new(1));
        with.cover(0, LogStart::of_view(1));
        with.raise(0, 1, 2);
        assert!(with.is_whole(0, &record));
        let request = without.missing_base(0, &record).expect("view 0 is missing");
        assert_eq!(with.answer(&record, request), FetchAnswer::Checkpoint(LogStart::of_view(1)));
        // Without trims of view 0 the own records of it are worth nothing.
        without.raise(0, 0, 5);
        without.raise(0, 1, 2);
        assert!(without.is_whole(0, &record));
        record.chain.forget_before(1);
        let request = FetchRequest::Checkpoint { shard: 0, from: 1, to: 2 };
        assert_eq!(without.missing_base(0, &record), Some(request));
        assert_eq!(without.answer(&record, request), FetchAnswer::Nothing);
        assert_eq!(with.answer(&record, request), FetchAnswer::Checkpoint(LogStart::of_view(1)));
    }

    /// A checkpoint within a view: what it covers counts as held, and is fetched as a checkpoint; the rest as records.
    #[test]
    fn a_checkpoint_may_be_within_a_view() {
        let (mut with, mut without) = (LogState::new(1), LogState::new(1));
        let start = LogStart { view: 1, sequence: 1 };
        with.cover(0, start);
        let records = |view, from, to| FetchRequest::Records { shard: 0, view, from, to };
        assert_eq!((with.shards[0].count(0), with.shards[0].count(1)), (0, 1));
        assert_eq!(with.missing_base(0, &record()), Some(records(1, 1, 2)));
        with.raise(0, 1, 2);
        assert!(with.is_whole(0, &record()));
        assert_eq!(with.answer(&record(), records(0, 0, 5)), FetchAnswer::Checkpoint(start));
        assert_eq!(with.answer(&record(), records(1, 0, 2)), FetchAnswer::Checkpoint(start));
        assert_eq!(with.answer(&record(), records(1, 1, 2)), FetchAnswer::Records(2));
        without.raise(0, 1, 2);
        without.cover(0, start);
        assert!(without.is_whole(0, &record()), "a checkpoint takes nothing away");
    }

    #[test]
    fn what_is_appended_is_durable_when_the_flush_has_returned() {
        let mut log = FlushedLog::new(LogState::new(1));
        log.append(0, 0, 2);
        assert!(log.poll_flush() && !log.poll_flush());
        log.append(0, 0, 4);
        assert_eq!(log.durable().shards[0].count(0), 0);
        log.handle_flushed();
        assert_eq!(log.durable().shards[0].count(0), 2, "what came after the flush began is not covered");
        assert!(!log.is_flushed() && log.poll_flush());
    }
}
