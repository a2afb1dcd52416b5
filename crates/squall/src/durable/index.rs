//! Where in a log the records of a subgroup and a view are, and when they were received (Derecho §3.4, persistent mode).

use std::collections::{BTreeMap, BTreeSet};

use squall_log::{FrameNote, FramePlace, RecordSpan, RecordSpans, SpanKey};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogStart, LogState};

use super::subgroups::SubgroupNumbers;

/// An index of a log, with one entry for each frame, subgroup and view.
///
/// In a log the records of a subgroup and a view are in the order of their sequences, without a gap but for nulls: they are appended
/// as they are received, or fetched behind what is there. Other views may be between them.
/// Records of subgroups that are not in the configuration are not noted.
#[derive(Debug)]
pub(crate) struct LogIndex {
    numbers: SubgroupNumbers,
    views: BTreeMap<(SubgroupId, u64), ViewRecords>,
}

#[derive(Debug, Default)]
struct ViewRecords {
    /// Everything below is in the log.
    count: u64,
    frames: Vec<IndexedFrame>,
}

/// Which of the records of a subgroup are to be kept: any for which one of these holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptRecords {
    /// They are among this many latest sequences.
    pub(super) sequences: u64,
    /// They were received after this time, in nanoseconds since 1970.
    pub(super) since: Option<u64>,
    /// They are not before this segment and offset.
    pub(super) place: (u32, u64),
}

/// A frame that has records of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexedFrame {
    /// The first sequence of the view in it.
    first: u64,
    /// The greatest time of these records.
    time: u64,
    pub(super) place: FramePlace,
}

impl LogIndex {
    /// The index of a log without records, in which subgroups have these numbers.
    pub(crate) const fn new(numbers: SubgroupNumbers) -> Self {
        Self { numbers, views: BTreeMap::new() }
    }

    /// Notes the records of a frame.
    pub(crate) fn note(&mut self, note: &FrameNote) {
        self.note_spans(note.place, &note.spans);
    }

    fn note_spans(&mut self, place: FramePlace, spans: &RecordSpans) {
        for (SpanKey { subgroup, view, .. }, span) in spans.iter().filter(|(key, _)| key.is_content) {
            let RecordSpan { first, last, time } = *span;
            let Some(subgroup) = self.numbers.subgroup(*subgroup) else { continue };
            let view = self.views.entry((subgroup, *view)).or_default();
            view.count = view.count.max(last + 1);
            match view.frames.last_mut().filter(|frame| frame.place.number == place.number) {
                Some(frame) => frame.time = frame.time.max(time),
                None => view.frames.push(IndexedFrame { first, time, place }),
            }
        }
    }

    /// Returns what the log holds of these subgroups, which are the shards of the register.
    pub(crate) fn state(&self, shards: &[SubgroupId]) -> LogState {
        let mut state = LogState::new(shards.len());
        for ((subgroup, view), records) in &self.views {
            if let Some(shard) = shards.iter().position(|shard| shard == subgroup) {
                state.raise(shard, *view, records.count);
            }
        }
        state
    }

    /// Returns the subgroups that have had records here.
    pub(super) fn subgroups(&self) -> BTreeSet<SubgroupId> {
        self.views.keys().map(|(subgroup, _)| *subgroup).collect()
    }

    /// Returns how many sequences of a view are in the log, from the first on.
    pub(super) fn count(&self, subgroup: SubgroupId, view: u64) -> u64 {
        self.views.get(&(subgroup, view)).map_or(0, |records| records.count)
    }

    /// Returns the frames that have the records of a view from `sequence` on, `most` of them, and the first sequence in the next one.
    pub(super) fn frames(
        &self,
        subgroup: SubgroupId,
        view: u64,
        sequence: u64,
        most: usize,
    ) -> (Vec<FramePlace>, Option<u64>) {
        let Some(ViewRecords { frames, .. }) = self.views.get(&(subgroup, view)) else {
            return (Vec::new(), None);
        };
        // The frame before the first one that begins behind may reach as far.
        let first = frames.partition_point(|frame| frame.first <= sequence).saturating_sub(1);
        let rest = frames.get(first + most).map(|frame| frame.first);
        (frames[first..].iter().take(most).map(|frame| frame.place).collect(), rest)
    }

    /// Returns the greatest time of the frames all of whose records of a subgroup are before `end`, and the last frame before `end`,
    /// whose records may be before or behind it.
    pub(super) fn before(&self, subgroup: SubgroupId, end: LogStart) -> (u64, Option<FramePlace>) {
        let LogStart { view: last, sequence } = end;
        let views = self.views.range((subgroup, 0)..=(subgroup, last));
        let mut frames = views.flat_map(|((_, view), records)| {
            let is_before = move |frame: &&IndexedFrame| *view < last || frame.first < sequence;
            records.frames.iter().take_while(is_before)
        });
        let Some(mut partial) = frames.next() else { return (0, None) };
        let mut time = 0;
        for frame in frames {
            time = time.max(std::mem::replace(&mut partial, frame).time);
        }
        (time, Some(partial.place))
    }

    /// Returns where the records of a subgroup begin that are to be kept, or `None` if none of them are.
    pub(super) fn wanted(&self, subgroup: SubgroupId, kept: &KeptRecords) -> Option<LogStart> {
        let views = || self.views.range((subgroup, 0)..=(subgroup, u64::MAX));
        let all: u64 = views().map(|(_, records)| records.count).sum();
        let unwanted = all.saturating_sub(kept.sequences);
        let mut before = 0;
        for ((_, view), records) in views() {
            let mut frames = records.frames.iter().peekable();
            while let Some(frame) = frames.next() {
                let end = before + frames.peek().map_or(records.count, |next| next.first);
                let is_kept = kept.sequences > 0 && end > unwanted
                    || kept.since.is_some_and(|since| frame.time > since)
                    || (frame.place.segment, frame.place.offset) >= kept.place;
                if is_kept {
                    return Some(LogStart { view: *view, sequence: frame.first });
                }
            }
            before += records.count;
        }
        None
    }

    /// Forgets the frames in segments before this one.
    pub(super) fn drop_before(&mut self, segment: u32) {
        for records in self.views.values_mut() {
            records.frames.retain(|frame| frame.place.segment >= segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_log::{LogPosition, LogRecord, RecordKind};

    use super::*;

    #[test]
    fn frames_are_found_by_their_sequences() {
        let mut index = LogIndex::new(SubgroupNumbers::same([5, 6]));
        let mut note = |number: u64, subgroup: u32, view: u64, sequence: u64, kind: RecordKind| {
            let place = FramePlace { number, segment: 1, offset: number * 4096 };
            let position = LogPosition { view, sequence };
            let time = 10 * view.min(number + 1) + sequence;
            let mut spans = RecordSpans::default();
            spans.note(&LogRecord { subgroup, kind, position, sender: 0, time, bytes: b"" });
            index.note_spans(place, &spans);
        };
        note(1, 7, 2, 0, RecordKind::Message);
        for (frame, sequences) in [(1, 0..3), (2, 3..4), (4, 7..9)] {
            sequences.for_each(|sequence| note(frame, 5, 2, sequence, RecordKind::Message));
        }
        note(3, 5, 4, 0, RecordKind::Frontier);
        note(3, 6, 2, 9, RecordKind::Trim);
        let numbers = |view, sequence| -> Vec<u64> {
            let (frames, rest) = index.frames(SubgroupId(5), view, sequence, 9);
            assert_eq!(rest, None);
            frames.iter().map(|place| place.number).collect()
        };
        let (two, rest) = index.frames(SubgroupId(5), 2, 0, 2);
        assert_eq!((two.len(), rest), (2, Some(7)));
        assert_eq!([numbers(2, 0), numbers(2, 2), numbers(2, 3)], [vec![1, 2, 4], vec![1, 2, 4], vec![2, 4]]);
        assert_eq!([numbers(2, 6), numbers(2, 7), numbers(2, 99)], [vec![2, 4], vec![4], vec![4]]);
        assert!(numbers(3, 0).is_empty());
        assert_eq!((index.count(SubgroupId(5), 2), index.count(SubgroupId(6), 2)), (9, 0));
        let none = KeptRecords { sequences: 0, since: None, place: (9, 0) };
        let wanted = |kept: KeptRecords| index.wanted(SubgroupId(5), &kept).map(|at| (at.view, at.sequence));
        assert_eq!([wanted(none), wanted(KeptRecords { sequences: 99, ..none })], [None, Some((2, 0))]);
        let last = [1, 2, 3, 4].map(|sequences| wanted(KeptRecords { sequences, ..none }));
        assert_eq!(last, [Some((4, 0)), Some((2, 7)), Some((2, 7)), Some((2, 3))], "nulls count");
        assert_eq!(wanted(KeptRecords { since: Some(24), ..none }), Some((2, 7)));
        assert_eq!(wanted(KeptRecords { place: (1, 3 * 4096), ..none }), Some((2, 7)));
        let before = |index: &LogIndex, view, sequence| {
            let (time, place) = index.before(SubgroupId(5), LogStart { view, sequence });
            (time, place.map(|place| place.number))
        };
        assert_eq!(
            [before(&index, 2, 0), before(&index, 2, 3), before(&index, 2, 4)],
            [(0, None), (0, Some(1)), (22, Some(2))]
        );
        assert_eq!([before(&index, 4, 0), before(&index, 4, 1)], [(23, Some(4)), (28, Some(3))]);
        index.drop_before(1);
        assert_eq!(before(&index, 9, 0), (28, Some(3)));
        index.drop_before(2);
        assert_eq!(before(&index, 9, 0), (0, None));
        let state = index.state(&[SubgroupId(6), SubgroupId(5)]);
        assert_eq!([state.shards[0].count(2), state.shards[1].count(2), state.shards[1].count(4)], [0, 9, 1]);
    }
}
