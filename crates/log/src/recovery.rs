//! Recovery: from what is on the disk to the log's records and a verdict on its tail.
//!
//! The frames of a log are a chain: each is where the one before ends, or at the beginning of a later segment, and names it
//! ([`FrameHeader::chain`]). Recovery follows the chain from the [`LogBase`] on. Where it ends, all headers behind are evidence for
//! the [verdict](crate::TailVerdict).

use std::collections::{BTreeMap, BTreeSet};

use crate::buffer::AlignedBuffer;
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskError};
use crate::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader};
use crate::mutation;
use crate::names;
use crate::note::{FrameNote, RecordSpans};
use crate::record::{LogPosition, LogRecord, read_records};
use crate::segment::{LogBase, SegmentContents};
use crate::settings::LogSettings;
use crate::verdict::{TailEvidence, TailVerdict};

mod survey;

pub use survey::LogSurvey;
pub(crate) use survey::survey;

/// What a log is found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The verdict on its tail.
    pub verdict: TailVerdict,
    /// What the verdict is from.
    pub evidence: TailEvidence,
    /// The number of its last good frame; 0 if there is none.
    pub last: u64,
    /// The greatest number of any frame seen.
    pub greatest: u64,
    /// Where the next frame goes.
    pub segment: u32,
    /// Where in the segment.
    pub offset: u64,
    /// What the next frame has as `chain`.
    pub chain: u64,
    /// The segments that hold good frames.
    pub segments: BTreeMap<u32, SegmentContents>,
    /// The next segment, if it exists and is empty.
    pub prepared: Vec<u32>,
    /// The greatest position of each subgroup.
    pub frontiers: BTreeMap<u32, LogPosition>,
    /// Frames and records of the log.
    pub frames: u64,
    /// Records of the log.
    pub records: u64,
    /// The greatest segment that exists.
    last_segment: u32,
    is_repaired: bool,
}

/// Where a frame is in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePlace {
    /// Its number.
    pub number: u64,
    /// The segment.
    pub segment: u32,
    /// Where in the segment, in bytes.
    pub offset: u64,
}

impl Recovered {
    /// Adds a frame that the writer of the log has noted; false if it does not follow, so that the disk has to be read
    /// ([`Storage::follow`](crate::Storage::follow)). One that is known already is passed over.
    pub fn note(&mut self, note: &FrameNote) -> bool {
        let number = note.place.number;
        if number <= self.last {
            return true;
        }
        // An opening has no records, and follows whatever is there.
        let is_next = number == self.last + 1 || note.records == 0;
        if is_next {
            self.add(note);
        }
        is_next
    }

    /// Adds a frame, which follows the last one.
    fn add(&mut self, note: &FrameNote) {
        let FrameNote { place: FramePlace { number, segment, .. }, records, spans, end, chain } = note;
        let (before, chain_before) = (self.last, self.chain);
        let empty = || SegmentContents { before, chain: chain_before, positions: BTreeMap::new() };
        spans.raise(&mut self.segments.entry(*segment).or_insert_with(empty).positions);
        spans.raise(&mut self.frontiers);
        self.frames += 1;
        self.records += u64::from(*records);
        self.last = *number;
        self.greatest = self.greatest.max(*number);
        (self.segment, self.offset, self.chain) = (*segment, *end, *chain);
    }

    /// Returns whether the log can be continued as it is.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.verdict != TailVerdict::Damaged || self.is_repaired
    }

    /// Takes what is above the last good frame for lost, since it is known from elsewhere, or its loss is accepted. The log
    /// continues in a new segment; nothing is overwritten.
    #[must_use]
    pub fn into_repaired(mut self, settings: &LogSettings) -> Self {
        reach(LogPoint::Repaired);
        self.is_repaired = true;
        self.segment = self.last_segment;
        self.offset = u64::from(settings.segment_bytes);
        self.prepared.clear();
        self
    }
}

/// What is found in a log.
#[derive(Clone, Copy, Debug)]
pub enum RecoveredPart<'a> {
    /// A record, with the place of its frame.
    Record(FramePlace, LogRecord<'a>),
    /// A frame, behind its records.
    Frame(&'a FrameNote),
}

/// Recovers the log with the id `log` that begins at `base`, and hands each part to `each`.
///
/// # Errors
/// If the folder cannot be listed. A segment that cannot be read in part is no error but damage.
pub fn recover(
    disk: &dyn Disk,
    settings: &LogSettings,
    log: u64,
    base: LogBase,
    each: &mut dyn FnMut(RecoveredPart<'_>),
) -> Result<Recovered, DiskError> {
    let names = disk.list(names::LOG)?;
    let segments: BTreeSet<u32> =
        names.iter().filter_map(|name| names::parse_segment(name)).filter(|n| *n >= base.segment).collect();
    let mut reader = SegmentReader::new(disk, settings, log);
    let mut found = Recovered {
        verdict: TailVerdict::Clean,
        evidence: TailEvidence::default(),
        last: base.before,
        greatest: base.before,
        segment: base.segment,
        offset: 0,
        chain: base.chain,
        segments: BTreeMap::new(),
        prepared: Vec::new(),
        frontiers: BTreeMap::new(),
        frames: 0,
        records: 0,
        last_segment: segments.last().copied().unwrap_or(base.segment),
        is_repaired: false,
    };
    reader.follow(&segments, &mut found, each);
    let mut evidence = TailEvidence {
        last: found.last,
        is_unsure: !segments.contains(&base.segment),
        ..TailEvidence::default()
    };
    evidence.known_durable = found.evidence.known_durable;
    for segment in segments.range(found.segment..) {
        let offset = if *segment == found.segment { found.offset } else { 0 };
        reader.search(*segment, offset, &mut evidence);
    }
    found.prepared.extend(segments.contains(&(found.segment + 1)).then_some(found.segment + 1));
    found.evidence = evidence;
    found.greatest = found.greatest.max(evidence.greatest);
    found.verdict = evidence.verdict(settings.in_flight_max as u64);
    reach(match found.verdict {
        TailVerdict::Clean => LogPoint::FoundClean,
        TailVerdict::Torn => LogPoint::FoundTorn,
        TailVerdict::Damaged => LogPoint::FoundDamaged,
    });
    Ok(found)
}

/// Follows a log that is being written on from `found`, the end of an earlier look at it, and hands what each frame behind covers to
/// `each`. What `found` says of the tail is not changed.
///
/// # Errors
/// If the folder cannot be listed. What cannot be read is the end.
pub(crate) fn follow(
    disk: &dyn Disk,
    settings: &LogSettings,
    log: u64,
    found: &mut Recovered,
    each: &mut dyn FnMut(&FrameNote),
) -> Result<(), DiskError> {
    let names = disk.list(names::LOG)?;
    let segments = names.iter().filter_map(|name| names::parse_segment(name));
    let segments: BTreeSet<u32> = segments.filter(|segment| *segment >= found.segment).collect();
    SegmentReader::new(disk, settings, log).follow(&segments, found, &mut |part| {
        if let RecoveredPart::Frame(note) = part {
            each(note);
        }
    });
    Ok(())
}

/// Reads the frame at a place, whole, and hands each of its records to `each`; false if it is not there.
pub(crate) fn read_frame(
    disk: &dyn Disk,
    settings: &LogSettings,
    log: u64,
    place: FramePlace,
    each: &mut dyn FnMut(LogRecord<'_>),
) -> bool {
    let FramePlace { number, segment, offset } = place;
    let path = names::segment(segment);
    let read = |length: usize| {
        let mut bytes = AlignedBuffer::zeroed(length);
        disk.read(&path, offset, &mut bytes).ok().filter(|read| *read == length).map(|_| bytes)
    };
    let header = read(settings.block).and_then(|block| parse(block.bytes(), log, segment).ok().flatten());
    let Some(header) = header.filter(|header| header.number == number) else { return false };
    let Some(frame) = usize::try_from(header.padded(settings.block)).ok().and_then(read) else {
        return false;
    };
    let body = frame.bytes().get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.length as usize);
    let Some(body) = body.filter(|body| header.has_body(body)) else { return false };
    read_records(body, header.records, each).is_ok()
}

/// The frame that follows the last one of `found`: here, at the beginning of the next segment, or, if it opens a life behind a
/// repair, of any later one. Of several the latest counts: after a repair, what was there before does not.
fn successor(
    reader: &mut SegmentReader<'_>,
    found: &Recovered,
    segments: &BTreeSet<u32>,
    firsts: &BTreeMap<u32, FrameHeader>,
) -> Option<FrameHeader> {
    let here =
        segments.contains(&found.segment).then(|| reader.header(found.segment, found.offset)).flatten();
    let next = segments.range(found.segment + 1..).next().copied();
    let later = firsts.range(found.segment + 1..);
    let later = later.filter(|(segment, header)| Some(**segment) == next || header.is_opening);
    let candidates = here.into_iter().chain(later.map(|(_, header)| *header));
    candidates.filter(|header| follows(header, found)).max_by_key(|header| header.number)
}

/// Returns whether the frame of `header` follows the last one of `found` [W3].
pub(crate) fn follows(header: &FrameHeader, found: &Recovered) -> bool {
    let is_next = if header.is_opening {
        header.known_durable == found.last && header.number > found.last
    } else {
        header.number == found.last + 1
    };
    is_next && (header.chain == found.chain || mutant!(NoChain))
}

/// Reads segments, one at a time, each from where its first frame is wanted as far as frames are wanted.
struct SegmentReader<'a> {
    disk: &'a dyn Disk,
    settings: &'a LogSettings,
    log: u64,
    present: Option<Segment>,
    /// What was read last.
    piece: AlignedBuffer,
}

impl<'a> SegmentReader<'a> {
    fn new(disk: &'a dyn Disk, settings: &'a LogSettings, log: u64) -> Self {
        Self { disk, settings, log, present: None, piece: AlignedBuffer::default() }
    }
}

struct Segment {
    number: u32,
    /// Where `bytes` begin, a multiple of the block.
    begin: usize,
    bytes: AlignedBuffer,
    /// Blocks that are missing or cannot be read.
    unreadable: BTreeSet<u64>,
}

impl SegmentReader<'_> {
    /// Adds to `found` all frames that follow it.
    fn follow(
        &mut self,
        segments: &BTreeSet<u32>,
        found: &mut Recovered,
        each: &mut dyn FnMut(RecoveredPart<'_>),
    ) {
        let first = |segment: &u32| Some((*segment, self.first(*segment)?));
        let firsts: BTreeMap<u32, FrameHeader> = segments.iter().filter_map(first).collect();
        while let Some(header) = successor(self, found, segments, &firsts) {
            if !self.take(&header, found, each) {
                break;
            }
        }
    }

    /// The `length` bytes of a segment at `offset`, or as many as it has. What cannot be read is zeros and noted.
    fn bytes(&mut self, number: u32, offset: usize, length: usize) -> &[u8] {
        let segment_bytes = self.settings.segment_bytes as usize;
        let is_in = |segment: &Segment| segment.number == number && segment.begin <= offset;
        let mut segment = match self.present.take() {
            Some(segment) if is_in(&segment) => segment,
            before => {
                // New memory would cost more than the reading of it.
                let mut bytes = before.map_or_else(AlignedBuffer::default, |before| before.bytes);
                bytes.clear();
                bytes.reserve(segment_bytes.saturating_sub(offset));
                let begin = offset / self.settings.block * self.settings.block;
                Segment { number, begin, bytes, unreadable: BTreeSet::new() }
            }
        };
        let end = segment_bytes.min(offset.saturating_add(length));
        while segment.begin + segment.bytes.len() < end {
            let left = segment_bytes - segment.begin - segment.bytes.len();
            let size = PIECE.next_multiple_of(self.settings.block).min(left);
            self.read_piece(&mut segment, size);
        }
        let Segment { begin, bytes, .. } = self.present.insert(segment);
        &bytes.bytes()[(offset - *begin).min(bytes.len())..end.saturating_sub(*begin).min(bytes.len())]
    }

    /// Reads the next `size` bytes of a segment, block by block where they cannot be read at once.
    fn read_piece(&mut self, segment: &mut Segment, size: usize) {
        let (offset, block) = (segment.begin + segment.bytes.len(), self.settings.block);
        let mut piece = std::mem::take(&mut self.piece);
        if piece.len() != size {
            piece = AlignedBuffer::zeroed(size);
        }
        match self.disk.read(&names::segment(segment.number), offset as u64, &mut piece) {
            Ok(length) if length == size => segment.bytes.extend(piece.bytes()),
            _ if size > block => {
                for _ in 0..size / block {
                    self.read_piece(segment, block);
                }
            }
            _ => {
                segment.unreadable.insert(offset as u64 / block as u64);
                segment.bytes.pad_to(segment.bytes.len() + size);
            }
        }
        self.piece = piece;
    }

    /// The header of the first frame of a segment, of which no more is read. It is read a second time if it is missing, since a read
    /// that fails only once would hide a life that begins there, and all behind.
    fn first(&self, segment: u32) -> Option<FrameHeader> {
        (0..FIRST_READS_MAX).find_map(|_| self.read_first(segment))
    }

    fn read_first(&self, segment: u32) -> Option<FrameHeader> {
        let mut block = AlignedBuffer::zeroed(self.settings.block);
        let length = self.disk.read(&names::segment(segment), 0, &mut block).ok()?;
        (length == self.settings.block).then(|| self.parse(block.bytes(), segment, 0).ok().flatten())?
    }

    /// The header at `offset`, if it is that of a frame that belongs there.
    fn header(&mut self, segment: u32, offset: u64) -> Option<FrameHeader> {
        let offset = usize::try_from(offset).expect("in memory");
        let (block, log) = (self.settings.block, self.log);
        let bytes = self.bytes(segment, offset, FRAME_HEADER_BYTES);
        let header = parse(bytes, log, segment).ok().flatten()?;
        (header.place as usize == offset / block).then_some(header)
    }

    fn parse(&self, bytes: &[u8], segment: u32, place: u32) -> Result<Option<FrameHeader>, FrameError> {
        Ok(parse(bytes, self.log, segment)?.filter(|header| header.place == place))
    }

    /// Adds the frame of `header`, which follows the last one, to `found`; false if its body is not good.
    fn take(
        &mut self,
        header: &FrameHeader,
        found: &mut Recovered,
        each: &mut dyn FnMut(RecoveredPart<'_>),
    ) -> bool {
        let offset = u64::from(header.place) * self.settings.block as u64;
        let begin = usize::try_from(offset).expect("in memory") + FRAME_HEADER_BYTES;
        found.evidence.known_durable = found.evidence.known_durable.max(header.known_durable);
        let length = header.length as usize;
        let body = Some(self.bytes(header.segment, begin, length)).filter(|body| body.len() == length);
        let is_whole =
            |body: &&[u8]| header.has_body(body) && read_records(body, header.records, |_| ()).is_ok();
        let Some(body) = body.filter(is_whole) else { return false };
        let place = FramePlace { number: header.number, segment: header.segment, offset };
        let mut spans = RecordSpans::default();
        let outcome = read_records(body, header.records, |record| {
            spans.note(&record);
            each(RecoveredPart::Record(place, record));
        });
        outcome.expect("read above");
        let (end, chain) = (offset + header.padded(self.settings.block), header.check_of_header());
        let note = FrameNote { place, records: header.records, spans, end, chain };
        found.add(&note);
        each(RecoveredPart::Frame(&note));
        true
    }

    /// Searches a segment from `offset` on for traces of frames behind the last good one.
    fn search(&mut self, number: u32, offset: u64, evidence: &mut TailEvidence) {
        let (block, log, length) = (self.settings.block, self.log, u64::from(self.settings.segment_bytes));
        let first = usize::try_from(offset).expect("in memory");
        // All of it is read.
        self.bytes(number, first, self.settings.segment_bytes as usize);
        let segment = self.present.as_ref().expect("just read");
        let mut at = offset;
        while at < length {
            let place = at / block as u64;
            let begin = usize::try_from(at).expect("in memory");
            at += block as u64;
            evidence.is_unsure |= segment.unreadable.contains(&place);
            let header = match parse(&segment.bytes.bytes()[begin - segment.begin..], log, number) {
                Ok(Some(header)) if header.number > evidence.last => header,
                Err(FrameError::BadCheck) if begin as u64 == offset => {
                    evidence.is_begun = true;
                    continue;
                }
                _ => continue,
            };
            evidence.known_durable = evidence.known_durable.max(header.known_durable);
            evidence.greatest = evidence.greatest.max(header.number);
            evidence.is_unsure |= u64::from(header.place) != place;
            if mutant!(LengthBeforeCheck) {
                at = at.max(begin as u64 + header.padded(block));
            }
        }
    }
}

/// The header that `bytes` begin with; nothing if it is of another log [W2] or of what the file was before it was recycled.
///
/// Fuzzed as `frame`.
fn parse(bytes: &[u8], log: u64, segment: u32) -> Result<Option<FrameHeader>, FrameError> {
    let header = bytes.first_chunk().map_or(Err(FrameError::NoMagic), FrameHeader::from_bytes)?;
    let is_of_log = header.log == log || mutant!(NoLogId);
    if !is_of_log || header.segment != segment {
        reach(LogPoint::StaleFrame);
        return Ok(None);
    }
    Ok(Some(header))
}

/// How often the first header of a segment is read.
const FIRST_READS_MAX: u32 = 2;
/// How much of a segment is read at a time.
const PIECE: usize = 1 << 20;
