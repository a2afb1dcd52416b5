//! What is in the folders whose logs are merged, also behind damage.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use squall_log::{
    Disk, FrameNote, FramePlace, LogBegin, LogPosition, LogRecord, LogSettings, LogSurvey, RecordKind,
    Storage,
};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogPieces, MergeTarget, Register, SequenceRanges, ShardBegin, ShardPieces};

use super::MergeError;
use crate::config::Config;
use crate::durable::discarder::begin_when_opened;
use crate::durable::{self, FolderPlan, behind};
use crate::error::LogFolderError;

/// A folder with a log, as it is found.
pub(super) struct MergeFolder<D> {
    pub(super) folder: PathBuf,
    pub(super) storage: Storage<D>,
    /// It is in terms of the subgroups of the configuration, as `plan` has it, and these are those of the folder.
    pub(super) register: Register,
    pub(super) plan: FolderPlan,
    pub(super) survey: LogSurvey,
    pub(super) is_copy: bool,
    held: HeldRecords,
}

/// Which records the frames of a folder show.
#[derive(Default)]
struct HeldRecords {
    /// By subgroup and view, in the order of their sequences.
    frames: BTreeMap<(u32, u64), Vec<HeldFrame>>,
    /// Those of the frames to which the log leads.
    chained: BTreeMap<(u32, u64), SequenceRanges>,
    /// Up to where the present run of frames goes, which are directly one behind the other.
    run: BTreeMap<(u32, u64), u64>,
    is_apart: bool,
}

/// A frame, and the sequences of a view of which it shows, with the one before, whether they are messages or nulls.
#[derive(Clone, Copy)]
struct HeldFrame {
    from: u64,
    to: u64,
    place: FramePlace,
}

/// What two folders have at the same place, and what is not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) sources: [usize; 2],
    pub(super) at: LogPosition,
}

impl HeldRecords {
    /// Notes a frame; `recycled` is up to where records of a subgroup are not in the log any more: of what is before, some may be missing.
    fn note(&mut self, note: &FrameNote, follows: bool, recycled: &BTreeMap<u32, LogPosition>) {
        if !follows {
            self.run.clear();
            self.is_apart = true;
        }
        for (key, span) in note.spans.iter().filter(|(key, _)| key.is_content) {
            let (subgroup, view) = (key.subgroup, key.view);
            let least = match recycled.get(&subgroup).map(|at| behind(*at)) {
                Some(start) if view < start.view => continue,
                Some(start) if view == start.view => start.sequence,
                _ => 0,
            };
            // The log begins with a view's first record, or behind what is not there any more.
            let first = if self.is_apart { span.first } else { least };
            let from = self.run.get(&(subgroup, view)).map_or(first, |end| *end).min(span.first).max(least);
            let to = span.last + 1;
            self.run.insert((subgroup, view), to);
            if from >= to {
                continue;
            }
            if !self.is_apart {
                self.chained.entry((subgroup, view)).or_default().add(from, to);
            }
            self.frames.entry((subgroup, view)).or_default().push(HeldFrame { from, to, place: note.place });
        }
    }

    /// The frames that show something of a range.
    fn frames(&self, number: u32, view: u64, range: Range<u64>) -> impl Iterator<Item = &HeldFrame> {
        let all = self.frames.get(&(number, view)).into_iter().flatten();
        all.filter(move |frame| frame.from < range.end && range.start < frame.to)
    }

    fn views(&self, number: u32) -> impl Iterator<Item = (u64, SequenceRanges)> {
        self.frames.range((number, 0)..=(number, u64::MAX)).map(|((_, view), frames)| {
            let mut ranges = SequenceRanges::default();
            frames.iter().for_each(|frame| ranges.add(frame.from, frame.to));
            (*view, ranges)
        })
    }
}

impl<D: Disk> MergeFolder<D> {
    /// Looks at a folder of the cluster of `config`.
    pub(super) fn read(disk: D, folder: &Path, config: &Config) -> Result<Self, MergeError> {
        let failed = |cause| LogFolderError::Storage { folder: folder.into(), cause: Box::new(cause) };
        let storage = Storage::inspect(disk, LogSettings::DEFAULT).map_err(failed)?;
        if storage.identity().cluster != config.cluster {
            return Err(MergeError::OtherGroup { folder: folder.into() });
        }
        let is_copy = storage.is_backup().map_err(failed)?;
        let value = storage.register().filter(|value| !value.protocol.is_empty());
        let no_register = || MergeError::NoRegister { folder: folder.into() };
        let value = value.ok_or_else(no_register)?;
        let recycled = value.recycled.clone();
        let plan = FolderPlan::new(config, folder, value)?;
        if plan.pending.is_some() {
            return Err(MergeError::OtherSubgroups { folder: folder.into() });
        }
        let register = plan.register.clone().ok_or_else(no_register)?;
        let mut held = HeldRecords::default();
        let survey =
            storage.survey(&mut |note, follows| held.note(note, follows, &recycled)).map_err(failed)?;
        held.frames.values_mut().for_each(|frames| frames.sort_by_key(|frame| (frame.from, frame.to)));
        Ok(Self { folder: folder.into(), storage, register, plan, survey, is_copy, held })
    }

    /// Whether its log lacks a part of what it had.
    pub(super) fn is_damaged(&self) -> bool {
        self.register.is_damaged() || !self.survey.recovered.is_usable()
    }

    /// The number that a subgroup has here.
    pub(super) fn number(&self, id: SubgroupId) -> u32 {
        self.plan.numbers.of(id)
    }

    fn frames(&self, id: SubgroupId, view: u64, range: Range<u64>) -> impl Iterator<Item = &HeldFrame> {
        self.held.frames(self.number(id), view, range)
    }

    /// What it has of these subgroups, which are the shards of the register.
    pub(super) fn pieces(&self, ids: &[SubgroupId]) -> LogPieces {
        let checkpoints = self.storage.checkpoints();
        let shard = |id: &SubgroupId| ShardPieces {
            views: self.held.views(self.number(*id)).collect(),
            checkpoints: checkpoints
                .get(&self.number(*id))
                .into_iter()
                .flatten()
                .map(|at| behind(*at))
                .collect(),
        };
        LogPieces { register: self.register.clone(), shards: ids.iter().map(shard).collect() }
    }

    /// What it has, as the log that takes what it lacks.
    pub(super) fn target(&self, config: &Config, ids: &[SubgroupId]) -> Result<MergeTarget, MergeError> {
        let chained = |id: &SubgroupId| {
            let number = self.number(*id);
            let views = self.held.chained.range((number, 0)..=(number, u64::MAX));
            let views = views.map(|((_, view), ranges)| (*view, ranges.clone())).collect();
            ShardPieces { views, ..ShardPieces::default() }
        };
        let begin = |id: &SubgroupId| -> Result<ShardBegin, MergeError> {
            let failed = |cause: squall_log::DiskError| LogFolderError::Storage {
                folder: self.folder.clone(),
                cause: Box::new(cause.into()),
            };
            let begin = begin_when_opened(&self.storage, config, (*id, self.number(*id))).map_err(failed)?;
            Ok(match (begin, self.storage.begin_of(self.number(*id))) {
                (None, LogBegin::Lost(at)) => ShardBegin { start: behind(at), is_lost: true },
                (start, _) => ShardBegin { start: start.unwrap_or_default(), is_lost: false },
            })
        };
        Ok(MergeTarget {
            pieces: self.pieces(ids),
            chained: ids.iter().map(chained).collect(),
            begins: ids.iter().map(begin).collect::<Result<_, _>>()?,
            is_damaged: !self.survey.recovered.is_usable(),
            is_end_known: self.survey.is_end_known,
        })
    }

    /// One more than the last sequence that it has of a view.
    pub(super) fn end(&self, id: SubgroupId, view: u64) -> u64 {
        let frames = self.held.frames.get(&(self.number(id), view)).into_iter().flatten();
        frames.map(|frame| frame.to).max().unwrap_or(0)
    }

    /// Hands the messages of a range to `each`, in order, each once.
    pub(super) fn messages(
        &self,
        id: SubgroupId,
        view: u64,
        range: Range<u64>,
        each: &mut dyn FnMut(&LogRecord<'_>),
    ) -> Result<(), MergeError> {
        let mut next = range.start;
        for frame in self.frames(id, view, range.clone()) {
            self.read_frame(frame.place, id, view, &mut |record| {
                if (next..range.end).contains(&record.position.sequence) {
                    next = record.position.sequence + 1;
                    each(record);
                }
            })?;
        }
        Ok(())
    }

    fn read_frame(
        &self,
        place: FramePlace,
        id: SubgroupId,
        view: u64,
        each: &mut dyn FnMut(&LogRecord<'_>),
    ) -> Result<(), MergeError> {
        let number = self.number(id);
        let is_read = self.storage.read_frame(place, &mut |record| {
            let is_of = record.subgroup == number && record.position.view == view;
            if is_of && record.kind == RecordKind::Message {
                each(&record);
            }
        });
        if is_read { Ok(()) } else { Err(MergeError::Unreadable { folder: self.folder.clone() }) }
    }
}

/// Compares what the folders have of a view up to `end`, and returns the first message that is not the same in all that know whether it
/// is one. Not more than some thousand messages are looked at at a time.
pub(super) fn difference<D: Disk>(
    folders: &[MergeFolder<D>],
    id: SubgroupId,
    view: u64,
    end: u64,
) -> Result<Option<Difference>, MergeError> {
    for from in (0..end).step_by(WINDOW) {
        let range = from..end.min(from + WINDOW as u64);
        let mut contents = BTreeMap::new();
        let mut found: Option<Difference> = None;
        let mut note = |source: usize, sequence: u64, content: u64| match contents.entry(sequence) {
            Entry::Vacant(entry) => drop(entry.insert((source, content))),
            Entry::Occupied(entry) if entry.get().1 == content => {}
            Entry::Occupied(entry) => {
                let at = LogPosition { view, sequence };
                let sources = [entry.get().0, source];
                found = found.filter(|found| found.at <= at).or(Some(Difference { sources, at }));
            }
        };
        let mut known = Vec::new();
        for (source, folder) in folders.iter().enumerate() {
            let (mut messages, mut ranges) = (BTreeSet::new(), SequenceRanges::default());
            for frame in folder.frames(id, view, range.clone()) {
                ranges.add(frame.from, frame.to);
                folder.read_frame(frame.place, id, view, &mut |record| {
                    let sequence = record.position.sequence;
                    if range.contains(&sequence) {
                        messages.insert(sequence);
                        note(source, sequence, content_of(record));
                    }
                })?;
            }
            known.push((messages, ranges));
        }
        // A message here that is a null there.
        for (sequence, (source, _)) in &contents {
            let knows_null = |(_, (messages, ranges)): &(usize, &(BTreeSet<u64>, SequenceRanges))| {
                !messages.contains(sequence) && ranges.reach(*sequence) > *sequence
            };
            if let Some((other, _)) = known.iter().enumerate().find(knows_null) {
                let at = LogPosition { view, sequence: *sequence };
                let sources = [*source, other];
                found = found.filter(|found| found.at <= at).or(Some(Difference { sources, at }));
            }
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What has to be the same in all logs. Each has received it at another time.
fn content_of(record: &LogRecord<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.sender, record.bytes).hash(&mut hasher);
    hasher.finish()
}

/// The durable subgroups by name, in the order of the shards.
pub(super) fn shards(config: &Config) -> BTreeMap<String, SubgroupId> {
    durable::shards(config).into_iter().map(|(name, (id, _))| (name, id)).collect()
}

/// How many sequences are compared at a time.
const WINDOW: usize = 1 << 14;
