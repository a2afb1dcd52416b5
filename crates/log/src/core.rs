//! The core of the log: records in, writes and answers out.

use std::collections::{BTreeMap, VecDeque};

use crate::buffer::AlignedBuffer;
use crate::check::crc64;
use crate::coverage::{LogPoint, reach};
use crate::disk::DiskError;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, opening_number, padded_bytes};
use crate::mutation;
use crate::names;
use crate::note::{FrameNote, FrameNotes, RecordSpans};
use crate::record::{LogPosition, LogRecord};
use crate::recovery::{FramePlace, Recovered};
use crate::segment::{LogBase, Recycling, SegmentContents, raise};
use crate::settings::LogSettings;

mod space;

/// The log of one process, without its disk.
///
/// **Law.** Input: [`Self::append`], [`Self::handle_prepared`], [`Self::handle_written`], [`Self::handle_failed`],
/// [`Self::handle_checkpoint`], [`Self::handle_no_space`], [`Self::try_again`], in any order. After each of them call
/// [`Self::poll_action`] until it yields nothing, and carry out what it yields in any order, also at the same time; then
/// [`Self::poll_answer`]. Time has no effect. After a failure nothing is written and nothing is answered.
#[derive(Debug)]
pub struct LogCore {
    settings: LogSettings,
    log: u64,
    /// The number of the next frame.
    number: u64,
    /// Where the next frame goes, if it fits: `offset <= segment_bytes`.
    segment: u32,
    offset: u64,
    /// The segment that is ready for use behind the present one.
    prepared: Option<u32>,
    /// The one that was asked for.
    preparing: Option<u32>,
    /// Why there is none, while the disk has no space for one; and whether it is not to be asked for again yet.
    shortage: Option<DiskError>,
    is_put_off: bool,
    /// It was reported that little is left.
    is_short: bool,
    /// What the next frame's `chain` is.
    chain: u64,
    /// The last frame that is written, as are all before it: `known_durable < number`.
    known_durable: u64,
    opening: Opening,
    /// Records for the next frame.
    collecting: Collected,
    /// Frames that are full, oldest first: `full.len() <= queue_frames_max`.
    full: VecDeque<Collected>,
    /// Frames that are being written, oldest first: `in_flight.len() <= in_flight_max`.
    in_flight: VecDeque<InFlight>,
    /// The segments that hold frames.
    segments: BTreeMap<u32, SegmentContents>,
    /// Up to where verified checkpoints cover each subgroup.
    covered: BTreeMap<u32, LogPosition>,
    /// Records appended and records persisted in this life: `persisted <= appended`.
    appended: u64,
    persisted: u64,
    /// The last record of each subgroup that is persisted.
    frontiers: BTreeMap<u32, LogPosition>,
    answers: VecDeque<LogAnswer>,
    notes: FrameNotes,
    failure: Option<DiskError>,
    /// Buffers of frames that are written.
    buffers: Vec<AlignedBuffer>,
    /// A write that a mutation tries again.
    again: Option<FrameWrite>,
}

/// What is to be done.
#[derive(Debug)]
pub enum LogAction {
    /// Make a segment ready for use: [`Storage::prepare`](crate::Storage::prepare), then [`LogCore::handle_prepared`], or
    /// [`LogCore::handle_no_space`] if the disk is full.
    Prepare {
        /// Its number.
        segment: u32,
        /// Segments of which one's file can be taken for it.
        recycle: Option<Recycling>,
    },
    /// Write a frame, then [`LogCore::handle_written`] or [`LogCore::handle_failed`].
    Write(FrameWrite),
}

/// A frame to be written.
#[derive(Debug)]
pub struct FrameWrite {
    /// Its number.
    pub number: u64,
    /// How many records it has.
    pub records: u32,
    /// The segment.
    pub segment: u32,
    /// Where in the segment.
    pub offset: u64,
    /// All of it, padded to whole blocks.
    pub bytes: AlignedBuffer,
}

impl FrameWrite {
    /// Returns the path of the segment.
    #[must_use]
    pub fn path(&self) -> String {
        names::segment(self.segment)
    }
}

/// What has happened to records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogAnswer {
    /// This many records of this life are persisted: all that were appended before.
    Persisted(u64),
    /// This segment is ready for use: the one before it begins to be filled.
    Prepared(u32),
    /// The disk has no space for another segment, for this reason, and half a segment is left at most: only what is under way should be appended
    /// until another segment is ready.
    NoSpace(DiskError),
    /// The disk has failed: no further record will be persisted in this life.
    Failed(DiskError),
}

/// Why a record is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The disk is behind: append again when more is persisted.
    #[error("the disk is behind; append again when more is persisted")]
    Full,
    /// The record is longer than a segment.
    #[error("a record of {length} bytes does not fit a segment; {max} is the most")]
    TooLong {
        /// Its length.
        length: usize,
        /// The longest.
        max: usize,
    },
    /// The disk has failed.
    #[error(transparent)]
    Failed(#[from] DiskError),
}

/// The frame that opens a life. It is written alone, so that a later recovery that finds it knows what was settled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    Due,
    Out,
    Done,
}

#[derive(Debug, Default)]
struct Collected {
    /// Begins with space for the header.
    buffer: AlignedBuffer,
    records: u32,
    spans: RecordSpans,
}

#[derive(Debug)]
struct InFlight {
    /// What is noted of it when it is on the disk.
    note: FrameNote,
    is_written: bool,
}

impl LogCore {
    /// Continues the log that `recovered` describes, in a life that no other one is equal to.
    ///
    /// # Panics
    /// If the log is damaged and not repaired ([`Recovered::into_repaired`]), or the life is not new.
    #[must_use]
    pub fn new(settings: LogSettings, log: u64, life: u64, recovered: Recovered) -> Self {
        assert!(recovered.is_usable(), "a damaged log is continued only when its loss has been repaired");
        let number = if mutant!(NumbersRestart) { recovered.last + 1 } else { opening_number(life) };
        assert!(number > recovered.last, "[W4] a life is new");
        // The mutation would otherwise find its own opening in the way.
        let opening =
            if mutant!(NumbersRestart) && recovered.last > 0 { Opening::Done } else { Opening::Due };
        let prepared = recovered.prepared.first().copied();
        Self {
            settings,
            log,
            number,
            segment: recovered.segment,
            offset: recovered.offset,
            prepared,
            preparing: None,
            shortage: None,
            is_put_off: false,
            is_short: false,
            chain: recovered.chain,
            known_durable: recovered.last,
            opening,
            collecting: Collected::default(),
            full: VecDeque::new(),
            in_flight: VecDeque::new(),
            segments: recovered.segments,
            covered: BTreeMap::new(),
            appended: 0,
            persisted: 0,
            frontiers: recovered.frontiers,
            answers: VecDeque::new(),
            notes: FrameNotes::default(),
            failure: None,
            buffers: Vec::new(),
            again: None,
        }
    }

    /// Takes a record, and returns its number in this life, from 0: it is persisted when more records than that are.
    ///
    /// # Errors
    /// If the disk is behind or has failed, or the record is too long.
    pub fn append(&mut self, record: &LogRecord<'_>) -> Result<u64, AppendError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        let (length, max) = (record.bytes_in_frame(), self.settings.record_bytes_max());
        if length > max {
            return Err(AppendError::TooLong { length: record.bytes.len(), max });
        }
        let is_full = self.collecting.records > 0
            && self.collecting.buffer.len() + length
                > self.settings.frame_bytes.min(self.settings.segment_bytes as usize);
        if is_full {
            if self.full.len() == self.settings.queue_frames_max {
                return Err(AppendError::Full);
            }
            self.full.push_back(std::mem::take(&mut self.collecting));
        }
        let collecting = &mut self.collecting;
        if collecting.buffer.is_empty() {
            collecting.buffer = self.buffers.pop().unwrap_or_default();
            collecting.buffer.pad_to(FRAME_HEADER_BYTES);
        }
        let end = collecting.buffer.len() + length;
        collecting.buffer.extend(&record.header());
        collecting.buffer.extend(record.bytes);
        collecting.buffer.pad_to(end);
        collecting.records += 1;
        collecting.spans.note(record);
        self.appended += 1;
        Ok(self.appended - 1)
    }

    /// Returns what to do next, `None` if there is nothing.
    pub fn poll_action(&mut self) -> Option<LogAction> {
        if self.failure.is_some() {
            return None;
        }
        if let Some(again) = self.again.take() {
            return Some(LogAction::Write(again));
        }
        if self.prepared.is_none() && self.preparing.is_none() && !self.is_put_off {
            let segment = self.segment + 1;
            self.preparing = Some(segment);
            return Some(LogAction::Prepare { segment, recycle: self.recyclable() });
        }
        self.poll_write().map(LogAction::Write)
    }

    /// The next frame, if one may be written: one at a time, or several if they are full.
    fn poll_write(&mut self) -> Option<FrameWrite> {
        match self.opening {
            Opening::Due => {
                let mut buffer = AlignedBuffer::default();
                buffer.pad_to(FRAME_HEADER_BYTES);
                self.make_space(FRAME_HEADER_BYTES)?;
                self.opening = Opening::Out;
                return Some(self.seal(Collected { buffer, ..Collected::default() }, true));
            }
            Opening::Out => return None,
            Opening::Done => {}
        }
        let in_flight = self.in_flight.len();
        let length = match self.full.front() {
            Some(next) if in_flight < self.settings.in_flight_max => next.buffer.len(),
            None if in_flight == 0 && self.collecting.records > 0 && !mutant!(WaitForFull) => {
                self.collecting.buffer.len()
            }
            _ => return None,
        };
        self.make_space(length)?;
        if in_flight > 0 {
            reach(LogPoint::FramesTogether);
        }
        let next = self.full.pop_front().unwrap_or_else(|| std::mem::take(&mut self.collecting));
        Some(self.seal(next, false))
    }

    /// Moves on to the next segment if `length` bytes do not fit the present one; `None` if it is not ready.
    fn make_space(&mut self, length: usize) -> Option<()> {
        let padded = padded_bytes(length - FRAME_HEADER_BYTES, self.settings.block);
        assert!(padded <= u64::from(self.settings.segment_bytes), "a frame fits a segment");
        if self.offset + padded > u64::from(self.settings.segment_bytes) {
            if let Some(shortage) = self.shortage.clone().filter(|_| self.prepared.is_none()) {
                self.handle_failed(None, shortage);
            }
            self.segment = self.prepared.take()?;
            self.offset = 0;
            reach(LogPoint::RolledOver);
        }
        Some(())
    }

    /// Gives a frame its header and its place.
    fn seal(&mut self, collected: Collected, is_opening: bool) -> FrameWrite {
        let Collected { mut buffer, records, spans } = collected;
        let (number, segment, offset) = (self.number, self.segment, self.offset);
        let body = &buffer.bytes()[FRAME_HEADER_BYTES..];
        let header = FrameHeader {
            log: self.log,
            segment,
            place: u32::try_from(offset / self.settings.block as u64).expect("segments have few blocks"),
            is_opening,
            number,
            known_durable: self.known_durable,
            chain: self.chain,
            length: u32::try_from(body.len()).expect("frames are shorter than segments"),
            records,
            body_check: crc64(body),
        };
        let padded = header.padded(self.settings.block);
        buffer.bytes_mut()[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        buffer.pad_to(usize::try_from(padded).expect("in memory"));
        let empty = || SegmentContents { before: number - 1, chain: self.chain, positions: BTreeMap::new() };
        let contents = self.segments.entry(segment).or_insert_with(empty);
        if is_opening && offset == 0 {
            contents.before = self.known_durable;
        }
        spans.raise(&mut contents.positions);
        self.chain = header.check_of_header();
        self.number += 1;
        self.offset += padded;
        let place = FramePlace { number, segment, offset };
        let note = FrameNote { place, records, spans, end: self.offset, chain: self.chain };
        if mutant!(NoteEarly) {
            self.notes.push(note.clone());
        }
        self.in_flight.push_back(InFlight { note, is_written: false });
        if mutant!(AnswerEarly) {
            let early: u64 = self.in_flight.iter().map(|frame| u64::from(frame.note.records)).sum();
            self.answers.push_back(LogAnswer::Persisted(self.persisted + early));
        }
        FrameWrite { number, records, segment, offset, bytes: buffer }
    }

    /// Takes note that a segment is ready for use, as [`LogAction::Prepare`] has asked.
    ///
    /// # Panics
    /// If it was not asked for.
    pub fn handle_prepared(&mut self, segment: u32) {
        assert_eq!(self.preparing.take(), Some(segment), "this segment was asked for");
        self.prepared = Some(segment);
        (self.shortage, self.is_short) = (None, false);
        self.answers.push_back(LogAnswer::Prepared(segment));
    }

    /// Takes note that a frame is on the disk. Its records are persisted when all frames before are, too [W5].
    ///
    /// # Panics
    /// If it is not being written.
    pub fn handle_written(&mut self, write: FrameWrite) {
        let mut bytes = write.bytes;
        bytes.clear();
        if self.buffers.len() < self.settings.in_flight_max {
            self.buffers.push(bytes);
        }
        let frame = self.in_flight.iter_mut().find(|frame| frame.note.place.number == write.number);
        frame.expect("this frame is being written").is_written = true;
        let before = self.persisted;
        while let Some(frame) = self.in_flight.pop_front_if(|frame| frame.is_written) {
            self.known_durable = frame.note.place.number;
            self.persisted += u64::from(frame.note.records);
            frame.note.spans.raise(&mut self.frontiers);
            if !mutant!(NoteEarly) {
                self.notes.push(frame.note);
            }
            if self.opening == Opening::Out {
                self.opening = Opening::Done;
            }
        }
        if !self.in_flight.is_empty() {
            reach(LogPoint::WrittenOutOfOrder);
        }
        if self.persisted > before && self.failure.is_none() {
            self.answers.push_back(LogAnswer::Persisted(self.persisted));
        }
        self.note_space();
    }

    /// Takes note that an action has failed. A write is never tried again [W6]: what the disk has of it is unknown, and after a
    /// failed flush the system says that pages are clean which are not on the disk.
    pub fn handle_failed(&mut self, write: Option<FrameWrite>, error: DiskError) {
        if mutant!(RetryWrite) && write.is_some() {
            self.again = write;
            return;
        }
        if self.failure.is_none() {
            self.answers.push_back(LogAnswer::Failed(error.clone()));
            self.failure = Some(error);
        }
    }

    /// Takes note that verified checkpoints cover a subgroup up to `position`, even if the newest of them is lost, and that what is
    /// before is not wanted any more ([`Storage::write_checkpoint`](crate::Storage::write_checkpoint)) [W11].
    pub fn handle_checkpoint(&mut self, subgroup: u32, position: LogPosition) {
        raise(&mut self.covered, subgroup, position);
    }

    /// Takes note that nothing of a subgroup is needed, since the log has it no more [W17].
    pub fn handle_retired(&mut self, subgroup: u32) {
        self.handle_checkpoint(subgroup, LogPosition::MAX);
    }

    /// The oldest segments whose records checkpoints cover, as long as the first frame behind them is on the disk: else the log would
    /// begin with nothing, and what is missing in a damaged one would be forgotten before it is repaired. A segment without records is not
    /// needed either, but goes only with a later one that has some: it may be damaged, and have what the log does not lead to.
    fn recyclable(&mut self) -> Option<Recycling> {
        let first = self.segments.values().find(|contents| !contents.positions.is_empty());
        if !first.is_some_and(|contents| self.is_covered(contents)) {
            return None;
        }
        let mut recycling: Option<Recycling> = None;
        while let Some((segment, base)) = self.oldest_covered() {
            let contents = self.segments.remove(&segment).expect("just seen");
            let empty = || Recycling { segments: Vec::new(), base, positions: BTreeMap::new() };
            let all = recycling.get_or_insert_with(empty);
            all.base = base;
            all.segments.push(segment);
            contents.positions.iter().for_each(|(group, at)| raise(&mut all.positions, *group, *at));
            reach(LogPoint::Recycled);
        }
        recycling
    }

    /// The oldest segment, and where the log begins without it, if it is not needed.
    fn oldest_covered(&self) -> Option<(u32, LogBase)> {
        let mut oldest = self.segments.iter();
        let ((segment, contents), (next, following)) = (oldest.next()?, oldest.next()?);
        let base = LogBase { segment: *next, before: following.before, chain: following.chain };
        let is_unneeded = self.is_covered(contents) && following.before < self.known_durable;
        is_unneeded.then_some((*segment, base))
    }

    fn is_covered(&self, contents: &SegmentContents) -> bool {
        let is_covered = |(subgroup, position): (&u32, &LogPosition)| {
            self.covered.get(subgroup).is_some_and(|covered| covered >= position)
        };
        contents.positions.iter().all(is_covered)
    }

    /// Returns the next answer.
    pub fn poll_answer(&mut self) -> Option<LogAnswer> {
        self.answers.pop_front()
    }

    /// Takes what was noted since the last time of frames that are on the disk, in their order [W15]. None if there were too many:
    /// then [`Storage::follow`](crate::Storage::follow) finds them.
    pub fn take_notes(&mut self) -> Option<VecDeque<FrameNote>> {
        self.notes.take()
    }

    /// Returns how many records of this life are persisted.
    #[must_use]
    pub const fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Returns the greatest position of a subgroup that is persisted.
    #[must_use]
    pub fn frontier(&self, subgroup: u32) -> Option<LogPosition> {
        self.frontiers.get(&subgroup).copied()
    }

    /// Returns why the log has failed, if it has.
    #[must_use]
    pub const fn failure(&self) -> Option<&DiskError> {
        self.failure.as_ref()
    }

    /// Returns whether all that was appended is persisted, and the life is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.persisted == self.appended && self.in_flight.is_empty() && self.opening == Opening::Done
    }

    /// Returns how many frames wait that could be handed out while others are being written.
    #[must_use]
    pub fn full_frames(&self) -> usize {
        self.full.len()
    }
}
