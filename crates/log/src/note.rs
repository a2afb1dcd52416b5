//! What the writer of a log notes of its frames, so that readers in the same process need not read them again to know where
//! records are.

use std::collections::{BTreeMap, VecDeque};

use crate::record::{LogPosition, LogRecord};
use crate::recovery::FramePlace;
use crate::segment::raise;

/// A frame that is on the disk, as are all before it.
#[derive(Clone, Debug)]
pub struct FrameNote {
    /// Where it is.
    pub place: FramePlace,
    /// How many records it has.
    pub records: u32,
    /// Which these are.
    pub spans: RecordSpans,
    /// Where the next frame goes, in the same segment.
    pub(crate) end: u64,
    /// What the next frame has as `chain`.
    pub(crate) chain: u64,
}

/// Which records of a frame a [`RecordSpan`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpanKey {
    /// The subgroup.
    pub subgroup: u32,
    /// The view.
    pub view: u64,
    /// Whether they say which messages there are ([`RecordKind::is_content`](crate::RecordKind::is_content)).
    pub is_content: bool,
}

/// What the records of a frame cover of a subgroup's view: `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// The sequence of the first of them.
    pub first: u64,
    /// The greatest sequence.
    pub last: u64,
    /// Their greatest time.
    pub time: u64,
}

/// What the records of a frame cover, without the records.
#[derive(Clone, Debug, Default)]
pub struct RecordSpans {
    /// Ascending.
    spans: Vec<(SpanKey, RecordSpan)>,
    /// Where the latest record is: the next one is often of the same subgroup.
    latest: usize,
}

impl RecordSpans {
    /// Adds a record, which is behind all others of its subgroup and view.
    pub fn note(&mut self, record: &LogRecord<'_>) {
        let LogPosition { view, sequence } = record.position;
        let key = SpanKey { subgroup: record.subgroup, view, is_content: record.kind.is_content() };
        if self.spans.get(self.latest).is_none_or(|(latest, _)| *latest != key) {
            let place = self.spans.binary_search_by_key(&key, |(key, _)| *key);
            self.latest = place.unwrap_or_else(|place| {
                let span = RecordSpan { first: sequence, last: sequence, time: record.time };
                self.spans.insert(place, (key, span));
                place
            });
        }
        let (_, span) = &mut self.spans[self.latest];
        span.last = span.last.max(sequence);
        span.time = span.time.max(record.time);
    }

    /// Iterates over them, by subgroup and view.
    pub fn iter(&self) -> impl Iterator<Item = &(SpanKey, RecordSpan)> {
        self.spans.iter()
    }

    /// Raises the greatest position of each subgroup.
    pub(crate) fn raise(&self, positions: &mut BTreeMap<u32, LogPosition>) {
        for (SpanKey { subgroup, view, .. }, span) in &self.spans {
            raise(positions, *subgroup, LogPosition { view: *view, sequence: span.last });
        }
    }
}

/// The notes that were not taken yet, as far as they fit.
#[derive(Debug, Default)]
pub(crate) struct FrameNotes {
    notes: VecDeque<FrameNote>,
    has_dropped: bool,
}

impl FrameNotes {
    /// Adds a note. If there are too many, all are dropped.
    pub(crate) fn push(&mut self, note: FrameNote) {
        if self.notes.len() == NOTES_MAX {
            self.notes = VecDeque::new();
            self.has_dropped = true;
        }
        self.notes.push_back(note);
    }

    /// Takes the notes; none if some were dropped: then the disk has to be read up to its end.
    pub(crate) fn take(&mut self) -> Option<VecDeque<FrameNote>> {
        let Self { notes, has_dropped } = std::mem::take(self);
        (!has_dropped).then_some(notes)
    }
}

/// The notes that are kept: those of several segments, in some megabytes.
const NOTES_MAX: usize = 1 << 16;
