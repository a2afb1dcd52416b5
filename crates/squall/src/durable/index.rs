//! Where in a log the records of a subgroup and a view are (Derecho §3.4, persistent mode).

use std::collections::BTreeMap;

use squall_log::{FramePlace, LogRecord, RecordKind};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::LogState;

/// An index of a log, with one entry for each frame, subgroup and view.
///
/// In a log the records of a subgroup and a view are in the order of their sequences, without a gap but for nulls: they are appended
/// as they are received, or fetched behind what is there. Other views may be between them.
#[derive(Debug, Default)]
pub(crate) struct LogIndex {
    views: BTreeMap<(SubgroupId, u64), ViewRecords>,
}

#[derive(Debug, Default)]
struct ViewRecords {
    /// Everything below is in the log.
    count: u64,
    /// The frames, each with its first sequence.
    frames: Vec<(u64, FramePlace)>,
}

impl LogIndex {
    /// Notes a record.
    pub(crate) fn note(&mut self, place: FramePlace, record: &LogRecord<'_>) {
        if !matches!(record.kind, RecordKind::Message | RecordKind::Frontier) {
            return;
        }
        let position = record.position;
        let view = self.views.entry((SubgroupId(record.subgroup), position.view)).or_default();
        view.count = view.count.max(position.sequence + 1);
        if view.frames.last().is_none_or(|(_, last)| last.number != place.number) {
            view.frames.push((position.sequence, place));
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

    /// Returns how many sequences of a view are in the log, from the first on.
    pub(super) fn count(&self, subgroup: SubgroupId, view: u64) -> u64 {
        self.views.get(&(subgroup, view)).map_or(0, |records| records.count)
    }

    /// Returns the frames that have the records of a view from `sequence` on.
    pub(super) fn frames(&self, subgroup: SubgroupId, view: u64, sequence: u64) -> Vec<FramePlace> {
        let Some(ViewRecords { frames, .. }) = self.views.get(&(subgroup, view)) else { return Vec::new() };
        // The frame before the first one that begins behind may reach as far.
        let first = frames.partition_point(|(first, _)| *first <= sequence).saturating_sub(1);
        frames[first..].iter().map(|(_, place)| *place).collect()
    }
}

#[cfg(test)]
mod tests {
    use squall_log::LogPosition;

    use super::*;

    #[test]
    fn frames_are_found_by_their_sequences() {
        let mut index = LogIndex::default();
        let mut note = |number: u64, subgroup: u32, view: u64, sequence: u64, kind: RecordKind| {
            let place = FramePlace { number, segment: 1, offset: number * 4096 };
            let position = LogPosition { view, sequence };
            index.note(place, &LogRecord { subgroup, kind, position, sender: 0, time: 0, bytes: b"" });
        };
        for (frame, sequences) in [(1, 0..3), (2, 3..4), (4, 7..9)] {
            sequences.for_each(|sequence| note(frame, 5, 2, sequence, RecordKind::Message));
        }
        note(3, 5, 4, 0, RecordKind::Frontier);
        note(3, 6, 2, 9, RecordKind::Trim);
        let numbers = |view, sequence| -> Vec<u64> {
            index.frames(SubgroupId(5), view, sequence).iter().map(|place| place.number).collect()
        };
        assert_eq!([numbers(2, 0), numbers(2, 2), numbers(2, 3)], [vec![1, 2, 4], vec![1, 2, 4], vec![2, 4]]);
        assert_eq!([numbers(2, 6), numbers(2, 7), numbers(2, 99)], [vec![2, 4], vec![4], vec![4]]);
        assert!(numbers(3, 0).is_empty());
        assert_eq!((index.count(SubgroupId(5), 2), index.count(SubgroupId(6), 2)), (9, 0));
        let state = index.state(&[SubgroupId(6), SubgroupId(5)]);
        assert_eq!([state.shards[0].count(2), state.shards[1].count(2), state.shards[1].count(4)], [0, 9, 1]);
    }
}
