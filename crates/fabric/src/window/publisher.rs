//! The polling thread's end of a window (Spindle §2.3).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::{
    Announcement, HEADER_WORDS, INDEXES_MAX, Shared, WindowBacklog, WindowGeometry, WindowHeader, low_bits,
};
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
pub struct WindowPublisher {
    region: Region,
    pub(super) geometry: WindowGeometry,
    pub(super) shared: Arc<Shared>,
    /// The runs of outstanding records and the current run, in order; never empty.
    runs: VecDeque<Run>,
    /// Whether the writer may have missed the latest nulls when it assigned the next record its index.
    doubtful: bool,
    /// Records announced; `freed <= published <= ready`.
    pub(super) published: u64,
    freed: u64,
    /// The record from which the writer was last asked to note when it sends one; 0: it was not asked.
    pub(super) probed_from: u64,
    /// The writer's attention was called to that.
    pub(super) has_called: bool,
    /// Whether the writer waited for space when something was first freed since that was asked last; `None`: nothing was.
    pub(super) found_starved: Option<bool>,
    bodies: Option<Box<Bodies>>,
}

/// The bodies of large messages.
#[derive(Debug)]
struct Bodies {
    ring: WindowPublisher,
    /// The indexes of the messages whose bodies are published and not freed, ascending.
    indexes: VecDeque<u64>,
    /// Bodies that this member no longer reads for sending; `freed <= released <= published` of the ring.
    released: u64,
    /// Records that have been searched for bodies; at most `published` of the window.
    looked: u64,
}

/// The body of a large message that must be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBody {
    /// Its number among the bodies of the window.
    pub number: u64,
    /// The index of its message.
    pub index: u64,
    /// The words of its record, in the region of the bodies.
    pub words: Range<usize>,
}

impl WindowPublisher {
    pub(super) fn new(region: &Region, geometry: WindowGeometry, shared: Arc<Shared>) -> Self {
        let mut runs = VecDeque::with_capacity(geometry.records_max + 2);
        runs.push_back(Run { first: 0, nulls: 0 });
        Self {
            region: region.clone(),
            geometry,
            shared,
            runs,
            doubtful: false,
            published: 0,
            freed: 0,
            probed_from: 0,
            has_called: false,
            found_starved: None,
            bodies: None,
        }
    }

    pub(super) fn take_bodies(&mut self, ring: Self) {
        self.bodies = Some(Box::new(Bodies { ring, indexes: VecDeque::new(), released: 0, looked: 0 }));
    }

    /// Returns the number of messages that are committed but not yet published.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> u64 {
        // SYNC: pairs with the release in `Reservation::commit`.
        self.shared.ready.0.load(Ordering::Acquire) - self.published
    }

    /// Returns what has been published and raised so far.
    #[inline]
    #[must_use]
    pub fn announcement(&self) -> Announcement {
        Announcement { indexes: self.published + self.nulls(), records: low_bits(self.published) }
    }

    /// Returns the number of messages that are published but not yet freed.
    #[inline]
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.published - self.freed
    }

    /// Returns whether freeing justifies loading the progress of the other members: half of the window is
    /// used, or the writer waits.
    #[inline]
    #[must_use]
    pub fn wants_space(&self) -> bool {
        2 * self.outstanding() >= self.geometry.records_max as u64
            || self.shared.starved.load(Ordering::Relaxed)
    }

    /// Returns whether the writer has found no space since anything was last freed.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.shared.starved.load(Ordering::Relaxed)
    }

    /// Returns the index of the oldest message that is published and not freed, if there is one.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        (self.outstanding() > 0).then(|| self.freed + self.runs[0].nulls)
    }

    /// Publishes up to `count` committed messages and calls `pushed` for each contiguous range of words that
    /// must reach the readers, at most twice. The caller then announces [`WindowPublisher::announcement`].
    ///
    /// # Panics
    /// Panics if the view's indexes are used up ([`INDEXES_MAX`]).
    #[inline]
    pub fn publish(&mut self, count: u64, pushed: impl FnMut(Range<usize>)) -> u64 {
        self.publish_piece(count, usize::MAX, pushed)
    }

    /// Same as [`WindowPublisher::publish`], for at most as many messages as end within `words` words of the
    /// ring, but for one in any case: a message is never split.
    ///
    /// # Panics
    /// Same as [`WindowPublisher::publish`].
    #[inline]
    pub fn publish_piece(&mut self, count: u64, words: usize, mut pushed: impl FnMut(Range<usize>)) -> u64 {
        let count = self.ready().min(count);
        if count == 0 {
            return 0;
        }
        let count = self.records_within(words, count);
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
        assert!(self.announcement().indexes < INDEXES_MAX, "a view must end before its indexes are used up");
        count
    }

    /// Returns whether the next message can use the express slot once everything before it is freed.
    #[inline]
    #[must_use]
    pub fn wants_express(&self) -> bool {
        self.geometry.express.is_some() && self.ready() == 1
    }

    /// Publishes a committed message through the express slot, if there is exactly one, it is short enough,
    /// and everything before it is freed [O5]. Returns the words that must reach the readers, in one write;
    /// they include the announcement.
    #[inline]
    pub fn publish_express(&mut self) -> Option<Range<usize>> {
        let express = self.geometry.express?;
        if self.outstanding() > 0 || self.ready() != 1 {
            return None;
        }
        let place = self.geometry.first + self.shared.start(self.published);
        let header = WindowHeader::from_word(self.region.load_relaxed(place));
        let length = header.length();
        if header.is_large() || length > express.bytes_max() {
            return None;
        }
        if self.doubtful {
            self.correct_indexes(self.published..self.published + 1);
        }
        self.published += 1;
        if let Some(bodies) = &mut self.bodies {
            bodies.looked = self.published;
        }
        assert!(self.announcement().indexes < INDEXES_MAX, "a view must end before its indexes are used up");
        Some(express.store(&self.region, self.announcement(), place + HEADER_WORDS, length))
    }

    /// Calls `publish` for each body of the messages that have been published since the last call. The bodies
    /// must reach the readers before the announcement counts as received.
    #[inline]
    pub fn publish_bodies(&mut self, publish: impl FnMut(MessageBody)) {
        let indexes = self.announcement().indexes;
        if let Some(bodies) = &mut self.bodies {
            // A body is committed before its record, so it is visible here if the record is.
            if bodies.ring.ready() > 0 {
                let ring = (&self.region, self.geometry.first);
                bodies.publish(self.published, indexes, ring, &self.shared, publish);
            }
            bodies.looked = self.published;
        }
    }

    /// Records that this member no longer reads the next body for sending: once delivered, it may be freed.
    pub fn release_body(&mut self) {
        let bodies = self.bodies.as_mut().expect("there are bodies");
        bodies.released += 1;
        assert!(bodies.released <= bodies.ring.published, "more bodies released than published");
    }

    /// Returns the first index that must not be freed, even if all members have delivered it: its body is
    /// still being sent.
    #[inline]
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        self.bodies.as_ref().map_or(u64::MAX, |bodies| bodies.unreleased())
    }

    /// Adds nulls up to `indexes`; returns their number.
    ///
    /// # Panics
    /// Panics if the view's indexes are used up ([`INDEXES_MAX`]).
    pub fn raise(&mut self, indexes: u64) -> u64 {
        assert!(indexes < INDEXES_MAX, "a view must end before its indexes are used up");
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

    /// Frees all messages with an index below `indexes`: all members have delivered them [O5]. Returns their
    /// number.
    ///
    /// # Panics
    /// Panics if `indexes` is beyond [`WindowPublisher::unreleased`].
    pub fn free(&mut self, indexes: u64) -> u64 {
        assert!(
            indexes <= self.unreleased(),
            "messages below index {indexes} include one whose body is being sent"
        );
        if let Some(bodies) = &mut self.bodies {
            bodies.free(indexes);
        }
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
            if self.found_starved.is_none() {
                self.found_starved = Some(self.is_starved());
            }
            self.shared.starved.store(false, Ordering::Relaxed);
            // SYNC: pairs with the acquire in `WindowWriter::reserve`.
            self.shared.freed.0.store(self.freed, Ordering::Release);
        }
        self.freed - before
    }

    /// Returns the messages of the window from index `indexes` on. Close the window first.
    #[must_use]
    pub fn backlog(&self, indexes: u64) -> WindowBacklog {
        let Self { region, geometry, shared, .. } = self;
        let next = self.record_at(indexes);
        let bodies = self.bodies.as_ref().map(|bodies| Box::new(bodies.backlog(indexes)));
        WindowBacklog {
            region: region.clone(),
            geometry: *geometry,
            shared: Arc::clone(shared),
            next,
            bodies,
        }
    }

    /// Returns the first record that is not freed and has an index of at least `indexes`.
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

    /// Reassigns the indexes of records if the writer did not know of the latest nulls. The writer learns of
    /// them at some record and knows them from then on, so the first correct record ends the correction.
    fn correct_indexes(&mut self, records: Range<u64>) {
        for number in records {
            let place = self.geometry.first + self.shared.start(number);
            let header = WindowHeader::from_word(self.region.load_relaxed(place));
            let corrected = header.with_index(number + self.nulls());
            if header == corrected {
                self.doubtful = false;
                break;
            }
            self.region.store_relaxed(place, corrected.to_word());
        }
    }

    /// Returns the number of nulls sent so far.
    #[inline]
    pub(super) fn nulls(&self) -> u64 {
        self.runs.back().expect("never empty").nulls
    }

    /// Returns how many of the next `count` records end within `words` words; 1 if the first one does not.
    #[inline]
    fn records_within(&self, words: usize, count: u64) -> u64 {
        let first = self.shared.start(self.published);
        let ends_within = |records: u64| {
            let last = self.words(first, self.published + records - 1);
            // A record that has wrapped is a lap behind; the words that are skipped at the end of the ring count too.
            let lap = if last.end > last.start { 0 } else { self.geometry.words() };
            last.end + lap <= last.start.saturating_add(words)
        };
        if words >= self.geometry.words() || ends_within(count) {
            return count;
        }
        // 1 <= fitting < exceeding
        let (mut fitting, mut exceeding) = (1, count);
        while exceeding - fitting > 1 {
            let middle = fitting.midpoint(exceeding);
            if ends_within(middle) { fitting = middle } else { exceeding = middle }
        }
        fitting
    }

    /// Returns the words from `first` of the ring to the end of record `last`; the range is reversed if `last` has
    /// wrapped.
    #[inline]
    fn words(&self, first: usize, last: u64) -> Range<usize> {
        let start = self.geometry.first + self.shared.start(last);
        let header = WindowHeader::from_word(self.region.load_relaxed(start));
        self.geometry.first + first..start + header.words()
    }

    /// Closes the window: the writer gets [`super::ReserveError::Closed`] from now on.
    pub fn close(&self) {
        self.shared.set_attention(super::CLOSED, true);
    }
}

impl Bodies {
    /// Publishes the bodies of the records up to `end`, whose indexes are near `indexes`, of the window at `first` of `region`.
    #[cold]
    fn publish(
        &mut self,
        end: u64,
        indexes: u64,
        (region, first): (&Region, usize),
        shared: &Shared,
        mut publish: impl FnMut(MessageBody),
    ) {
        for record in self.looked..end {
            let header = WindowHeader::from_word(region.load_relaxed(first + shared.start(record)));
            if header.is_large() {
                let (number, index) = (self.ring.published, header.index(indexes));
                let words = self.ring.words(self.ring.shared.start(number), number);
                self.ring.published += 1;
                self.indexes.push_back(index);
                publish(MessageBody { number, index, words });
            }
        }
    }

    fn unreleased(&self) -> u64 {
        let ahead = usize::try_from(self.released - self.ring.freed).expect("at most as many as there are");
        self.indexes.get(ahead).copied().unwrap_or(u64::MAX)
    }

    fn free(&mut self, indexes: u64) {
        let count = self.indexes.iter().take_while(|index| **index < indexes).count();
        self.indexes.drain(..count);
        self.ring.free(self.ring.freed + count as u64);
    }

    fn backlog(&self, indexes: u64) -> WindowBacklog {
        let before = self.indexes.iter().take_while(|index| **index < indexes).count();
        self.ring.backlog(self.ring.freed + before as u64)
    }
}

impl Drop for WindowPublisher {
    fn drop(&mut self) {
        self.close();
    }
}
