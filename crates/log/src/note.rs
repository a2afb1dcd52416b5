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

/// The notes that were not taken yet, as far as they fit: all of them, or none.
#[derive(Debug, Default)]
pub(crate) struct FrameNotes {
    notes: VecDeque<FrameNote>,
    /// Notes and spans: `size <= NOTES_MAX`.
    size: usize,
    has_dropped: bool,
}

impl FrameNotes {
    /// Adds a note. If there are too many, all are dropped, and those that follow, until the next time that they are taken.
    pub(crate) fn push(&mut self, note: FrameNote) {
        self.size += 1 + note.spans.spans.len();
        if self.has_dropped || self.size > NOTES_MAX {
            *self = Self { has_dropped: true, ..Self::default() };
        } else {
            self.notes.push_back(note);
        }
    }

    /// Takes the notes; none if some were dropped: then the disk has to be read up to its end.
    pub(crate) fn take(&mut self) -> Option<VecDeque<FrameNote>> {
        let Self { notes, has_dropped, .. } = std::mem::take(self);
        (!has_dropped).then_some(notes)
    }
}

/// The notes and spans that are kept: of a segment of short frames or some segments of long ones, in some megabytes.
const NOTES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordKind;

    /// Too many notes are dropped, and the next ones are there again.
    #[test]
    fn notes_are_whole_or_none() {
        let note = |number| {
            let position = LogPosition { view: 0, sequence: number };
            let mut spans = RecordSpans::default();
            spans.note(&LogRecord {
                subgroup: 0,
                kind: RecordKind::Message,
                position,
                sender: 0,
                time: 0,
                bytes: b"",
            });
            let place = FramePlace { number, segment: 1, offset: 0 };
            FrameNote { place, records: 1, spans, end: 0, chain: 0 }
        };
        let mut notes = FrameNotes::default();
        let fitting = NOTES_MAX as u64 / 2;
        (0..fitting).for_each(|number| notes.push(note(number)));
        assert_eq!(notes.take().map(|notes| notes.len() as u64), Some(fitting));
        (0..=fitting + 10).for_each(|number| notes.push(note(number)));
        assert!(notes.take().is_none(), "there were too many");
        notes.push(note(0));
        assert_eq!(notes.take().map(|notes| notes.len()), Some(1));
    }
}
