//! All frames of a folder that can be read, also those to which the log does not lead any more, since a frame before them is damaged.
//!
//! Recovery ends where the chain of frames does, and a log that is damaged there never continues with what is behind. The records behind are good
//! nevertheless: a record of a subgroup, a view and a sequence is the same in every log, and also in a frame that its log has left behind.
//! What a frame that cannot be read had is unknown, so that nothing is known of what is missing between two frames that are not
//! directly one behind the other.

use std::collections::BTreeMap;

use super::{Recovered, RecoveredPart, SegmentReader, parse, recover};
use crate::disk::{Disk, DiskError};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::names;
use crate::note::{FrameNote, RecordSpans};
use crate::record::read_records;
use crate::recovery::FramePlace;
use crate::segment::LogBase;
use crate::settings::LogSettings;
use crate::verdict::{TailEvidence, TailVerdict};

/// What a look at all frames of a folder has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSurvey {
    /// The log as recovery finds it.
    pub recovered: Recovered,
    /// How many other frames can be read.
    pub apart: u64,
    /// Whether nothing shows that a frame which may have been reported as persisted was behind the last readable one of its life. Then the
    /// frames that can be read say how far the log went, though not all that it had.
    pub is_end_known: bool,
}

/// A frame to which the log does not lead.
struct FrameApart {
    note: FrameNote,
    header: FrameHeader,
}

/// What the frames of a life show.
#[derive(Clone, Copy, Debug, Default)]
struct LifeTraces {
    /// The number of the last good frame.
    last: u64,
    known_durable: u64,
    /// The greatest number of a frame whose body is bad.
    greatest_bad: u64,
}

/// What the frames of a folder show of those that cannot be read.
#[derive(Debug, Default)]
struct FolderTraces {
    lives: BTreeMap<u64, LifeTraces>,
    /// The good frame that was passed last, in the order of places.
    before: u64,
    /// Whether something that no frame explains is behind it.
    is_open: bool,
    is_unsure: bool,
}

impl FolderTraces {
    fn life(&mut self, number: u64) -> &mut LifeTraces {
        self.lives.entry(life_of(number)).or_default()
    }

    fn note_good(&mut self, number: u64, known_durable: u64) {
        let of_life = self.life(number);
        of_life.last = of_life.last.max(number);
        self.note_known(known_durable);
        // Between two frames of one life there are only frames of that life; and nothing is before the first life.
        let is_between = life_of(self.before).max(1) == life_of(number) && self.before < number;
        self.is_unsure |= self.is_open && !is_between;
        (self.before, self.is_open) = (number, false);
    }

    fn note_bad(&mut self, header: &FrameHeader) {
        let of_life = self.life(header.number);
        of_life.greatest_bad = of_life.greatest_bad.max(header.number);
        self.note_known(header.known_durable);
    }

    fn note_known(&mut self, known_durable: u64) {
        let of_life = self.life(known_durable);
        of_life.known_durable = of_life.known_durable.max(known_durable);
    }

    /// Notes a block that cannot be read, or that holds what belongs elsewhere.
    const fn note_doubt(&mut self) {
        self.is_open = true;
    }

    /// Returns whether no frame is known that may have been durable behind the last good one of its life.
    fn is_end_known(&self, in_flight_max: u64) -> bool {
        let is_torn_at_most = |(life, traces): (&u64, &LifeTraces)| {
            let evidence = TailEvidence {
                last: traces.last.max(first_of(*life).saturating_sub(1)),
                known_durable: traces.known_durable,
                greatest: traces.greatest_bad,
                is_begun: false,
                is_unsure: false,
            };
            evidence.verdict(in_flight_max) != TailVerdict::Damaged
        };
        !self.is_unsure && !self.is_open && self.lives.iter().all(is_torn_at_most)
    }
}

/// The life of a frame, by its number.
const fn life_of(number: u64) -> u64 {
    number >> 40
}

const fn first_of(life: u64) -> u64 {
    life << 40
}

/// Hands what each readable frame of a log covers to `each`: first those of the log, in order, and then the others, by their numbers; and
/// whether it is directly behind the one before, or, the first of the log, behind its base.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn survey(
    disk: &dyn Disk,
    settings: &LogSettings,
    log: u64,
    base: LogBase,
    each: &mut dyn FnMut(&FrameNote, bool),
) -> Result<LogSurvey, DiskError> {
    let mut chained = BTreeMap::new();
    let recovered = recover(disk, settings, log, base, &mut |part| {
        if let RecoveredPart::Frame(note) = part {
            chained.insert((note.place.segment, note.place.offset), note.end);
            each(note, true);
        }
    })?;
    let names = disk.list(names::LOG)?;
    let mut reader = SegmentReader::new(disk, settings, log);
    let (mut apart, mut traces) = (BTreeMap::new(), FolderTraces::default());
    traces.note_good(base.before, base.before);
    for segment in base.segment..=recovered.last_segment {
        if names.iter().any(|name| names::parse_segment(name) == Some(segment)) {
            reader.survey_segment(segment, base, &chained, &mut traces, &mut apart);
        } else {
            traces.note_doubt();
        }
    }
    let mut before = None;
    for FrameApart { note, header } in apart.values() {
        let follows = before.is_some_and(|(number, chain)| {
            let is_next =
                if header.is_opening { header.known_durable == number } else { header.number == number + 1 };
            is_next && header.chain == chain
        });
        each(note, follows);
        before = Some((header.number, note.chain));
    }
    let is_end_known = traces.is_end_known(settings.in_flight_max as u64);
    Ok(LogSurvey { recovered, apart: apart.len() as u64, is_end_known })
}

impl SegmentReader<'_> {
    /// Looks at each block of a segment that is in no frame before it.
    fn survey_segment(
        &mut self,
        number: u32,
        base: LogBase,
        chained: &BTreeMap<(u32, u64), u64>,
        traces: &mut FolderTraces,
        apart: &mut BTreeMap<u64, FrameApart>,
    ) {
        let (block, log, length) = (self.settings.block, self.log, self.settings.segment_bytes as usize);
        self.bytes(number, 0, length);
        let segment = self.present.as_ref().expect("just read");
        let bytes = segment.bytes.bytes();
        let mut at = 0;
        while at < length {
            let place = (at / block) as u64;
            let header = parse(&bytes[at..], log, number).ok().flatten();
            let header = header.filter(|header| header.number > base.before);
            let is_misplaced = header.is_some_and(|header| u64::from(header.place) != place);
            if is_misplaced || segment.unreadable.contains(&place) {
                traces.note_doubt();
            }
            let Some(header) = header.filter(|_| !is_misplaced) else {
                at += block;
                continue;
            };
            let offset = at as u64;
            let note = note_of(&header, offset, block, bytes);
            at = usize::try_from(offset + header.padded(block)).expect("in memory");
            match note {
                None => traces.note_bad(&header),
                Some(note) => {
                    traces.note_good(header.number, header.known_durable);
                    if !chained.contains_key(&(number, offset)) {
                        apart.insert(header.number, FrameApart { note, header });
                    }
                }
            }
        }
    }
}

/// What the frame of `header` at `offset` of a segment covers, if it is good.
fn note_of(header: &FrameHeader, offset: u64, block: usize, segment: &[u8]) -> Option<FrameNote> {
    let begin = usize::try_from(offset).expect("in memory") + FRAME_HEADER_BYTES;
    let body = segment.get(begin..begin + header.length as usize)?;
    let mut spans = RecordSpans::default();
    let is_good =
        header.has_body(body) && read_records(body, header.records, |record| spans.note(&record)).is_ok();
    let FrameHeader { number, segment, records, .. } = *header;
    let place = FramePlace { number, segment, offset };
    let (end, chain) = (offset + header.padded(block), header.check_of_header());
    is_good.then_some(FrameNote { place, records, spans, end, chain })
}
