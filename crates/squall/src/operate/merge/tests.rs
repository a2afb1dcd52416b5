//! Logs of one history on simulated disks, each with frames of its own, damaged at random and merged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use squall_fabric::NodeId;
use squall_fabric::sim::Prng;
use squall_log::{
    Disk as _, DurableLog, FramePlace, LogPosition, LogRecord, LogSettings, LogSubgroups, RecordKind,
    RegisterValue, SimDisk, Storage, StorageOwner,
};
use squall_protocols::membership::RankSet;
use squall_protocols::multicast::DeliveryMode;
use squall_protocols::restart::{DurableView, Register, ViewChain};

use super::reader::MergeFolder;
use super::{LogMerge, MergeError, check_written, prepare, writer};
use crate::config::{Config, StorageConfig, SubgroupConfig};
use crate::durable::durable_layout;

type TestDisk = Arc<Mutex<SimDisk>>;

const SETTINGS: LogSettings =
    LogSettings { segment_bytes: 128 << 10, frame_bytes: 16 << 10, ..LogSettings::DEFAULT };

/// By view, in the order of sequences: messages and nulls.
type History = Vec<Vec<Option<Vec<u8>>>>;

/// A member's log, and what it has written: of each frame, which records.
struct Member {
    disk: TestDisk,
    frames: Vec<(FramePlace, Vec<(u64, u64)>)>,
}

fn config(rank: usize) -> Config {
    let mut config = Config::local("merge", 3).for_rank(rank);
    config.storage = Some(StorageConfig::new("/logs"));
    let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    config.subgroups.insert("orders".into(), durable);
    config
}

fn folder(rank: usize) -> PathBuf {
    Path::new("/logs").join(format!("rank-{rank}"))
}

fn history(prng: &mut Prng) -> History {
    let later = prng.below(3);
    let mut number = 0_u64;
    let mut message = |prng: &mut Prng| {
        number += 1;
        let length = if prng.below(9) == 0 { 9000 } else { prng.index(300) };
        (prng.below(3) > 0).then(|| number.to_le_bytes().into_iter().cycle().take(8 + length).collect())
    };
    let mut view = |_| {
        let mut view: Vec<_> = (0..prng.below(60)).map(|_| message(prng)).collect();
        // What counts of a view ends with a message.
        view.truncate(view.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        view
    };
    (0..=later).map(&mut view).collect()
}

fn register(rank: usize, history: &[Vec<Option<Vec<u8>>>]) -> Register {
    let (ended, members) = (history.len() - 1, [0, 1, 2].map(NodeId).to_vec());
    let view = DurableView { number: ended as u64, members, shards: vec![RankSet::all(3)] };
    let mut register = Register::new(7, NodeId(rank as u32), view);
    register.layout = durable_layout(&config(rank));
    register.record.chain = ViewChain::new(0);
    history[..ended].iter().for_each(|view| register.record.chain.push(&[view.len() as u64]));
    register
}

/// A member's log of the history, of some lives and with frames of different lengths; of the last view it has received a part.
fn member(prng: &mut Prng, rank: usize, history: &History) -> Member {
    let disk = Arc::new(Mutex::new(SimDisk::new(prng.draw(), SETTINGS.block)));
    let owner = StorageOwner { cluster: "merge".into(), member: format!("rank-{rank}") };
    let last = history.last().expect("one at least").len();
    let received = last - prng.index(last / 4 + 1);
    let mut all: Vec<(u64, u64, &[u8])> = Vec::new();
    for (view, messages) in history.iter().enumerate() {
        let end = if view + 1 == history.len() { received } else { messages.len() };
        let messages = messages[..end].iter().enumerate();
        all.extend(messages.filter_map(|(at, bytes)| Some((view as u64, at as u64, bytes.as_deref()?))));
    }
    let mut rest = &all[..];
    let lives = 1 + prng.below(2);
    for life in 0..lives {
        let storage =
            Storage::open(Arc::clone(&disk), &owner, SETTINGS, 100 + rank as u64).expect("the disk works");
        let recovered = storage.recover_notes(&mut |_| ()).expect("the disk works");
        let log = DurableLog::start(storage, recovered).expect("the disk works");
        // Each folder has another number for the subgroup.
        let number = rank as u32;
        let subgroups =
            LogSubgroups { numbers: [("orders".into(), number)].into(), next: number + 1, change: None };
        let protocol = register(rank, history).encode();
        let change = |value: &mut RegisterValue| (value.protocol, value.subgroups) = (protocol, subgroups);
        log.storage().change_register(change).expect("the disk works");
        let count = if life + 1 == lives { rest.len() } else { prng.index(rest.len() + 1) };
        let (now, later) = rest.split_at(count);
        rest = later;
        for (view, sequence, bytes) in now {
            let position = LogPosition { view: *view, sequence: *sequence };
            let (kind, sender) = (RecordKind::Message, (*sequence % 3) as u32);
            let record = LogRecord { subgroup: number, kind, position, sender, time: *sequence, bytes };
            let records = log.append(&record).expect("there is space");
            if prng.below(3) == 0 {
                log.wait(records).expect("the disk works");
            }
        }
    }
    let storage = Storage::inspect(Arc::clone(&disk), SETTINGS).expect("it has an identity");
    let mut frames = BTreeMap::<u64, (FramePlace, Vec<(u64, u64)>)>::new();
    let survey =
        storage.survey(&mut |note, _| drop(frames.insert(note.place.number, (note.place, Vec::new()))));
    assert!(survey.expect("the disk works").is_end_known);
    let each = &mut |place: FramePlace, record: LogRecord<'_>| {
        let (_, records) = frames.get_mut(&place.number).expect("it was found");
        records.push((record.position.view, record.position.sequence));
    };
    storage.recover(each).expect("the disk works");
    Member { disk, frames: frames.into_values().collect() }
}

impl Member {
    /// Damages frames, and returns which.
    fn damage(&self, prng: &mut Prng) -> BTreeSet<usize> {
        let disk = self.disk.lock().expect("no panic");
        let damaged: BTreeSet<usize> = (0..prng.below(3)).map(|_| prng.index(self.frames.len())).collect();
        for frame in &damaged {
            let (FramePlace { segment, offset, .. }, records) = &self.frames[*frame];
            let path = format!("log/{segment:010}.segment");
            match prng.below(3) {
                0 => disk.make_unreadable(&path, *offset),
                1 if !records.is_empty() => disk.rot(&path, offset + 64 + prng.below(4) * 8),
                _ => disk.rot(&path, offset + prng.below(8) * 8),
            }
        }
        damaged
    }

    /// The sequences of a view that the good frames show.
    fn shown(&self, view: u64, damaged: &BTreeSet<usize>) -> BTreeSet<u64> {
        let mut shown = BTreeSet::new();
        // Everything is good since then, with the last record of the view; from the log's beginning on all nulls are known.
        let mut behind = Some(0);
        for (index, (_, records)) in self.frames.iter().enumerate() {
            if damaged.contains(&index) {
                behind = None;
                continue;
            }
            for (_, sequence) in records.iter().filter(|(of, _)| *of == view) {
                shown.extend(behind.unwrap_or(*sequence)..=*sequence);
                behind = Some(sequence + 1);
            }
        }
        shown
    }

    fn read(&self, rank: usize) -> Result<MergeFolder<TestDisk>, MergeError> {
        MergeFolder::read(Arc::clone(&self.disk), &folder(rank), &config(rank))
    }

    fn segments(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.disk.lock().expect("no panic");
        let names = disk.list("log").expect("the disk works");
        names
            .into_iter()
            .map(|name| (name.clone(), disk.contents(&format!("log/{name}")).expect("it is there")))
            .collect()
    }

    /// What the log leads to: by view, how far it goes, and the messages.
    fn log(&self) -> BTreeMap<u64, (u64, BTreeMap<u64, Vec<u8>>)> {
        let mut views = BTreeMap::<u64, (u64, BTreeMap<u64, Vec<u8>>)>::new();
        let storage = Storage::inspect(Arc::clone(&self.disk), SETTINGS).expect("it has an identity");
        let each = &mut |_, record: LogRecord<'_>| {
            let (end, messages) = views.entry(record.position.view).or_default();
            assert!(record.position.sequence >= *end, "in the order of sequences");
            *end = record.position.sequence + 1;
            if record.kind == RecordKind::Message {
                messages.insert(record.position.sequence, record.bytes.to_vec());
            }
        };
        assert!(storage.recover(each).expect("the disk works").is_usable());
        views
    }
}

/// Merges the others into the log of the first one.
fn merge(members: &[Member]) -> Result<LogMerge, MergeError> {
    let read = |rank: usize| members[rank].read(rank);
    let mut folders = (0..members.len()).map(read).collect::<Result<Vec<_>, _>>()?;
    // As the other folders are of the same cluster, the configuration of the first one does for all.
    let prepared = prepare(&config(0), &folders)?;
    members[0].disk.lock().expect("no panic").flush_folder("aside").expect("it needs not be made here");
    writer::carry_out(Arc::clone(&members[0].disk), &config(0), &folders, &prepared.plan)?;
    folders[0] = read(0)?;
    check_written(&config(0), &folders, &prepared.plan)?;
    Ok(prepared.merge)
}

/// Three logs of one history, each damaged at random: what one of them takes from the others is exactly what any of them shows, up to the first gap
/// of each view, and nothing else. It is whole only if it has all that it ever had. Nothing that was there is written over.
#[test]
fn a_merge_of_damaged_logs_is_the_history() {
    let (mut whole, mut mended) = (0, 0);
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        let history = history(&mut prng);
        let members: Vec<Member> = (0..3).map(|rank| member(&mut prng, rank, &history)).collect();
        let damaged: Vec<_> = members.iter().map(|member| member.damage(&mut prng)).collect();
        let before: Vec<_> = members.iter().map(Member::segments).collect();
        let merge = merge(&members).expect("it is one history");
        for (member, before) in members.iter().zip(&before).skip(1) {
            assert!(member.segments() == *before, "seed {seed}: another folder has changed");
        }
        // Segments that were empty may be used.
        for (name, bytes) in before[0].iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)) {
            assert!(members[0].segments()[name] == *bytes, "seed {seed}: {name} was written over");
        }
        let log = members[0].log();
        let mut has_all = true;
        for (view, messages) in history.iter().enumerate() {
            let (end, found) = log.get(&(view as u64)).cloned().unwrap_or_default();
            for (sequence, bytes) in messages.iter().enumerate().take(end as usize) {
                assert!(
                    found.get(&(sequence as u64)) == bytes.as_ref(),
                    "seed {seed}: {sequence} of view {view}"
                );
            }
            assert!(end <= messages.len() as u64, "seed {seed}: view {view} has {end}");
            let shown = |rank: usize| members[rank].shown(view as u64, &damaged[rank]);
            let all: BTreeSet<u64> = (0..3).flat_map(shown).collect();
            let expected = (0..).find(|sequence| !all.contains(sequence)).expect("it ends");
            assert!(end >= expected, "seed {seed}: view {view} has {end} of {expected}");
            let own = members[0].shown(view as u64, &BTreeSet::new());
            has_all &= own.last().is_none_or(|last| *last < end);
        }
        // Of a last frame that cannot be read there need not be a trace.
        let life = |frame: usize| members[0].frames[frame].0.number >> 40;
        let is_last = |frame: &usize| frame + 1 == members[0].frames.len() || life(frame + 1) != life(*frame);
        if !damaged[0].iter().any(is_last) {
            assert!(has_all || !merge.is_whole, "seed {seed}: {merge:?}");
        }
        whole += u32::from(merge.is_whole);
        mended += u32::from(merge.is_whole && merge.was_damaged);
        let register = members[0].read(0).expect("it can be read").register;
        assert_eq!(register.is_damaged(), merge.was_damaged && register.is_damaged(), "seed {seed}");
        assert!(!merge.is_whole || !register.is_damaged(), "seed {seed}");
    }
    assert!(whole > 80 && mended > 30, "{whole} {mended}");
}

/// A message that is another one in another folder, or a null: that is another history, and nothing is changed.
#[test]
fn other_contents_are_refused() {
    let mut refused = 0;
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let first = history(&mut prng);
        let messages: Vec<(usize, usize)> =
            (0..first.len()).flat_map(|view| (0..first[view].len() / 2).map(move |at| (view, at))).collect();
        if messages.is_empty() {
            continue;
        }
        let (view, at) = messages[prng.index(messages.len())];
        let mut second = first.clone();
        second[view][at] = match &first[view][at] {
            Some(_) if prng.below(3) == 0 => None,
            Some(_) => Some(vec![9; 9]),
            None => Some(vec![8; 8]),
        };
        let members = [member(&mut prng, 0, &first), member(&mut prng, 1, &second)];
        let shows = |rank: usize| members[rank].shown(view as u64, &BTreeSet::new()).contains(&(at as u64));
        if !shows(0) || !shows(1) {
            continue;
        }
        let before = members[0].segments();
        let error = merge(&members).expect_err("they differ");
        let place = Some(("orders".to_owned(), view as u64, at as u64));
        assert!(
            matches!(&error, MergeError::OtherHistory { at, .. } if *at == place),
            "seed {seed}: {error}"
        );
        assert!(error.to_string().contains("never merged"), "{error}");
        assert!(members[0].segments() == before, "nothing has changed");
        refused += 1;
    }
    assert!(refused > 15, "{refused}");
}

/// A log is merged in terms of the subgroups that its group has, not of those that it is to have.
#[test]
fn a_changed_set_is_refused() {
    let history = history(&mut Prng::new(5));
    let member = member(&mut Prng::new(5), 0, &history);
    let mut changed = config(0);
    changed.subgroups.insert("returns".into(), changed.subgroups["orders"].clone());
    let before = member.segments();
    let error = MergeFolder::read(Arc::clone(&member.disk), &folder(0), &changed).err().expect("another set");
    assert!(matches!(&error, MergeError::OtherSubgroups { folder: of } if *of == folder(0)), "{error}");
    assert!(error.to_string().contains("change them when the group runs again"), "{error}");
    assert!(member.segments() == before, "nothing has changed");
    assert!(member.read(0).is_ok());
}

/// A checkpoint that cannot be read is replaced by that of another folder, if that reaches as far; as it was it is in `aside`.
#[test]
fn a_lost_checkpoint_comes_from_another_folder() {
    let bytes = |number: u64| Some(vec![number as u8; 8]);
    let history: History = vec![(0..40).map(bytes).collect()];
    let mut prng = Prng::new(3);
    let members: Vec<Member> = (0..2).map(|rank| member(&mut prng, rank, &history)).collect();
    let at = |sequence| LogPosition { view: 0, sequence };
    for (number, (member, sequence)) in (0..).zip(members.iter().zip([5, 12])) {
        let storage = Storage::inspect(Arc::clone(&member.disk), SETTINGS).expect("it has an identity");
        let state = &mut |out: &mut dyn std::io::Write| out.write_all(&[7; 9000]);
        storage.replace_checkpoints(number, at(sequence), state).expect("the disk works");
    }
    let checkpoint = "checkpoints/0-0-5";
    let disk = || members[0].disk.lock().expect("no panic");
    disk().rot(checkpoint, 4096);
    let damaged = disk().contents(checkpoint);
    let merge = merge(&members).expect("it is one history");
    let [part, ..] = &merge.subgroups["orders"].taken[..] else { panic!("{merge:?}") };
    assert!(part.is_checkpoint && part.to == 13 && part.folder == folder(1), "{merge:?}");
    assert!(merge.is_whole, "{merge:?}");
    let storage = Storage::inspect(Arc::clone(&members[0].disk), SETTINGS).expect("it has an identity");
    assert_eq!(storage.begin_of(0), squall_log::LogBegin::Behind(at(12)));
    let mut state = Vec::new();
    storage.read_checkpoint(0, at(12), &mut |bytes| state.extend_from_slice(bytes)).expect("it is good");
    assert_eq!(state, [7; 9000]);
    assert_eq!(disk().contents("aside/checkpoints-0-0-5"), damaged);
}
