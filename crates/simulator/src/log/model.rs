//! What a log has to hold: all that was written, in order, and what of it was reported as persisted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use squall_fabric::sim::Prng;
use squall_log::{FrameHeader, FrameWrite, LogPosition, LogRecord, RecordKind};

/// A record, whose bytes follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelRecord {
    pub(super) subgroup: u32,
    pub(super) position: LogPosition,
    /// Different in another copy of the folder.
    pub(super) time: u64,
    pub(super) length: usize,
}

impl ModelRecord {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut prng = Prng::new(self.position.sequence ^ self.time << 32);
        (0..self.length).map(|_| prng.draw().to_le_bytes()[0]).collect()
    }

    pub(super) fn record<'a>(&self, bytes: &'a [u8]) -> LogRecord<'a> {
        let kind = RecordKind::ALL[self.position.sequence as usize % RecordKind::ALL.len()];
        let sender = self.subgroup + 7;
        LogRecord { subgroup: self.subgroup, kind, position: self.position, sender, time: self.time, bytes }
    }
}

/// A frame that was handed to the disk.
#[derive(Clone, Debug)]
pub(super) struct ModelFrame {
    pub(super) number: u64,
    /// Its records, by their places in the model.
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) segment: u32,
    pub(super) offset: u64,
    /// Header and body.
    pub(super) length: u64,
    pub(super) known_durable: u64,
    /// Whether the disk has reported that it is written.
    pub(super) is_written: bool,
    /// Whether the disk has harmed it since.
    pub(super) is_damaged: bool,
}

/// A log, from its first record on.
#[derive(Clone, Debug, Default)]
pub(super) struct LogModel {
    pub(super) log: u64,
    pub(super) records: Vec<ModelRecord>,
    pub(super) frames: Vec<ModelFrame>,
    /// How many of the records were reported as persisted: `acknowledged <= records.len()`.
    pub(super) acknowledged: usize,
    /// Records that the disk has lost, and that others still have.
    pub(super) missing: VecDeque<ModelRecord>,
    /// The numbers of all frames ever.
    pub(super) numbers: BTreeSet<u64>,
    /// Whether there may be blocks that make a recovery doubt, wherever they are.
    pub(super) is_doubtful: bool,
    /// The greatest position of each subgroup in segments that were recycled.
    pub(super) recycled: BTreeMap<u32, LogPosition>,
    pub(super) view: u64,
    pub(super) sequence: u64,
}

impl LogModel {
    /// A log that begins anew, behind this one in the order of positions.
    pub(super) fn begin_anew(&mut self, log: u64) {
        let (view, sequence, is_doubtful) = (self.view + 1, self.sequence, self.is_doubtful);
        *self = Self { log, view, sequence, is_doubtful, ..Self::default() };
    }

    /// The next record to be appended.
    pub(super) fn next(&mut self, subgroup: u32, length: usize, salt: u64) -> ModelRecord {
        self.missing.pop_front().unwrap_or_else(|| {
            self.sequence += 1;
            let position = LogPosition { view: self.view, sequence: self.sequence };
            ModelRecord { subgroup, position, time: self.sequence << 8 | salt, length }
        })
    }

    /// Takes note that a frame is handed to the disk, with the first of the records that wait; what is wrong with it.
    pub(super) fn issue(
        &mut self,
        write: &FrameWrite,
        waiting: &mut VecDeque<ModelRecord>,
    ) -> Option<String> {
        let header = write.bytes.bytes().first_chunk().map(FrameHeader::from_bytes);
        let Some(Ok(header)) = header else { return Some("a frame has no header".into()) };
        if self.frames.iter().any(|frame| frame.number == header.number && !frame.is_written) {
            // Written again: what that leads to is seen after a crash.
            return None;
        }
        let begin = self.records.len();
        self.records.extend(waiting.drain(..write.records as usize));
        self.frames.push(ModelFrame {
            number: header.number,
            begin,
            end: self.records.len(),
            segment: write.segment,
            offset: write.offset,
            length: 64 + u64::from(header.length),
            known_durable: header.known_durable,
            is_written: false,
            is_damaged: false,
        });
        let repeats = !self.numbers.insert(header.number);
        repeats.then(|| format!("[W4] a second frame has the number {:#x}", header.number))
    }

    pub(super) fn handle_written(&mut self, number: u64) {
        let mut frames = self.frames.iter_mut().rev();
        if let Some(frame) = frames.find(|frame| frame.number == number) {
            frame.is_written = true;
        }
    }

    /// Takes note that the disk has harmed a range of a segment.
    pub(super) fn harm(&mut self, segment: u32, offset: u64, length: u64) {
        for frame in self.frames.iter_mut().filter(|frame| frame.segment == segment) {
            let is_hit = offset < frame.offset + frame.length && frame.offset < offset + length;
            frame.is_damaged |= is_hit;
        }
    }

    /// Forgets the frames from `end` on, since the log continues without them. What was reported is fetched from others again.
    pub(super) fn cut(&mut self, end: usize) {
        let begin = self.frames.get(end).map_or(self.records.len(), |frame| frame.begin);
        if self.acknowledged > begin {
            let lost = self.records[begin..self.acknowledged].iter().cloned();
            self.missing = lost.chain(std::mem::take(&mut self.missing)).collect();
            self.acknowledged = begin;
        }
        self.records.truncate(begin);
        self.frames.truncate(end);
        for frame in &mut self.frames {
            (frame.is_written, frame.is_damaged) = (true, false);
        }
    }
}

/// A log as it was before a recovery found less of it. What was cut can be found again as long as the life behind has left no opening.
#[derive(Clone, Debug)]
pub(super) struct AbandonedModel {
    /// How many of its frames the next life continues.
    pub(super) end: usize,
    /// The number of the frame that opens the next life, if there is one.
    pub(super) opening: Option<u64>,
    pub(super) model: Box<LogModel>,
}

impl AbandonedModel {
    pub(super) fn new(end: usize, model: LogModel) -> Self {
        Self { end, opening: None, model: Box::new(model) }
    }

    /// Takes note of the frames behind which the next life continues, and of its opening.
    pub(super) fn handle_frames(&mut self, frames: &[ModelFrame]) {
        self.opening = self.opening.filter(|number| frames.iter().any(|frame| frame.number == *number));
        if self.opening.is_none() {
            self.end = self.end.min(frames.len());
            self.opening = frames.get(self.end).map(|frame| frame.number);
        }
    }

    /// Returns whether a recovery that ends with the frame `last` has found frames that the next life did not continue.
    pub(super) fn has(&self, last: u64) -> bool {
        self.model.frames[self.end..].iter().any(|frame| frame.number == last)
    }

    /// The log continues without `lost`, the lives behind. What they have reported is fetched from others again.
    pub(super) fn into_model(self, lost: &LogModel) -> LogModel {
        let known: BTreeSet<LogPosition> = self.model.records.iter().map(|record| record.position).collect();
        let reported = lost.records.iter().take(lost.acknowledged).chain(&lost.missing);
        LogModel {
            missing: reported.filter(|record| !known.contains(&record.position)).cloned().collect(),
            numbers: lost.numbers.clone(),
            is_doubtful: self.model.is_doubtful || lost.is_doubtful,
            recycled: lost.recycled.clone(),
            view: lost.view,
            sequence: lost.sequence,
            ..*self.model
        }
    }
}

/// The state of a subgroup at a position.
pub(super) fn state(subgroup: u32, position: LogPosition) -> Vec<u8> {
    let mut prng = Prng::new(u64::from(subgroup) << 48 ^ position.view << 32 ^ position.sequence);
    let words = [0, 3, 400][prng.index(3)];
    (0..words).flat_map(|_| prng.draw().to_le_bytes()).collect()
}
