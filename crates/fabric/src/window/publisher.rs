//! The polling thread's end of a window (Spindle §2.3).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::{Announcement, Geometry, INDEXES_MAX, Remains, Shared, low_bits, record_words};
use crate::Region;
use crate::atomics::Ordering;

/// Consecutive records with the same number of nulls before them: record `p` has index `p + nulls`.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The first record of the run.
    first: u64,
    nulls: u64,
}

/// The polling thread's end of a window.
#[derive(Debug)]
pub struct Publisher {
    region: Region,
    geometry: Geometry,
    shared: Arc<Shared>,
    /// The runs of outstanding records and the present one, in order; never empty.
    runs: VecDeque<Run>,
    /// The writer may not have seen the latest nulls when it gave the next record its index.
    doubtful: bool,
    /// Records announced; `freed <= published <= ready`.
    published: u64,
    freed: u64,
}

impl Publisher {
    pub(super) fn new(region: &Region, geometry: Geometry, shared: Arc<Shared>) -> Self {
        let mut runs = VecDeque::with_capacity(geometry.records_max + 2);
        runs.push_back(Run { first: 0, nulls: 0 });
        Self { region: region.clone(), geometry, shared, runs, doubtful: false, published: 0, freed: 0 }
    }

    /// Messages that are committed but not yet published.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> u64 {
        // SYNC: pairs with the release in `Reservation::commit`.
        self.shared.ready.0.load(Ordering::Acquire) - self.published
    }

    /// What has been published and raised so far.
    #[inline]
    #[must_use]
    pub fn announcement(&self) -> Announcement {
        Announcement { indexes: self.published + self.nulls(), records: low_bits(self.published) }
    }

    /// Messages that are published but not yet freed.
    #[inline]
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.published - self.freed
    }

    /// Whether freeing is worth a look at the other members: half of the window is taken, or the writer waits.
    #[inline]
    #[must_use]
    pub fn wants_room(&self) -> bool {
        2 * self.outstanding() >= self.geometry.records_max as u64
            || self.shared.starved.load(Ordering::Relaxed)
    }

    /// Publishes up to `count` committed messages and calls `pushed` for each contiguous range of words that must
    /// reach the readers, at most twice. The caller then announces [`Publisher::announcement`].
    ///
    /// # Panics
    /// If the view's indexes are used up ([`INDEXES_MAX`]).
    #[inline]
    pub fn publish(&mut self, count: u64, mut pushed: impl FnMut(Range<usize>)) -> u64 {
        let count = self.ready().min(count);
        if count == 0 {
            return 0;
        }
        let (from, to) = (self.published, self.published + count);
        if self.doubtful {
            self.correct_indexes(from..to);
        }
        let (first, last) = (self.shared.start(from), self.shared.start(to - 1));
        if last >= first {
            pushed(self.words(first, to - 1));
        } else {
            let wrapped =
                (from + 1..to).find(|number| self.shared.start(*number) < first).expect("it has wrapped");
            pushed(self.words(first, wrapped - 1));
            pushed(self.words(0, to - 1));
        }
        self.published = to;
        assert!(self.announcement().indexes < INDEXES_MAX, "a view ends before its indexes do");
        count
    }

    /// Counts nulls up to `indexes`; returns how many.
    ///
    /// # Panics
    /// If the view's indexes are used up ([`INDEXES_MAX`]).
    pub fn raise(&mut self, indexes: u64) -> u64 {
        assert!(indexes < INDEXES_MAX, "a view ends before its indexes do");
        let more = indexes.saturating_sub(self.announcement().indexes);
        if more == 0 {
            return 0;
        }
        let nulls = self.nulls() + more;
        match self.runs.back_mut() {
            Some(run) if run.first == self.published => run.nulls = nulls,
            _ => self.runs.push_back(Run { first: self.published, nulls }),
        }
        self.doubtful = true;
        self.shared.nulls.0.store(nulls, Ordering::Relaxed);
        more
    }

    /// Frees all messages with an index below `indexes`: all members have delivered them [O5]. Returns how many.
    pub fn free(&mut self, indexes: u64) -> u64 {
        let before = self.freed;
        loop {
            let end = self.runs.get(1).map_or(self.published, |next| next.first);
            self.freed = indexes.saturating_sub(self.runs[0].nulls).clamp(self.freed, end);
            if self.freed < end || self.runs.len() == 1 {
                break;
            }
            self.runs.pop_front();
        }
        if self.freed > before {
            self.shared.starved.store(false, Ordering::Relaxed);
            // SYNC: pairs with the acquire in `Writer::reserve`.
            self.shared.freed.0.store(self.freed, Ordering::Release);
        }
        self.freed - before
    }

    /// What the window holds from index `indexes` on. Close the window first.
    #[must_use]
    pub fn remains(&self, indexes: u64) -> Remains {
        let Self { region, geometry, shared, .. } = self;
        let next = self.record_at(indexes);
        Remains { region: region.clone(), geometry: *geometry, shared: Arc::clone(shared), next }
    }

    /// The first record that is not freed and has an index of at least `indexes`.
    fn record_at(&self, indexes: u64) -> u64 {
        let ends = self.runs.iter().skip(1).map(|next| next.first).chain([self.published]);
        for (run, end) in self.runs.iter().zip(ends) {
            let first = indexes.saturating_sub(run.nulls).max(run.first).max(self.freed);
            if first < end {
                return first;
            }
        }
        self.published
    }

    /// Gives records their indexes anew if the writer did not know of the latest nulls. It learns of them once for
    /// all, so the first record that is right ends the doubt.
    fn correct_indexes(&mut self, records: Range<u64>) {
        for number in records {
            let place = self.geometry.first + self.shared.start(number);
            let index = number + self.nulls();
            if self.region.load_relaxed(place) == index + 1 {
                self.doubtful = false;
                break;
            }
            self.region.store_relaxed(place, index + 1);
        }
    }

    /// Nulls sent so far.
    #[inline]
    fn nulls(&self) -> u64 {
        self.runs.back().expect("never empty").nulls
    }

    /// The words from `first` of the ring to the end of record `last`.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "our own record's length, at most message_max")]
    fn words(&self, first: usize, last: u64) -> Range<usize> {
        let start = self.geometry.first + self.shared.start(last);
        let length = self.region.load_relaxed(start + 1) as usize;
        self.geometry.first + first..start + record_words(length)
    }

    /// Ends the window: the writer gets [`ReserveError::Closed`] from now on.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}
