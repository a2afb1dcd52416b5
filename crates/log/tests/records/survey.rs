//! What can be read of a log that is damaged anywhere.

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;
use squall_log::{
    AlignedBuffer, Disk, LogAction, LogCore, LogPosition, LogRecord, LogSettings, RecordKind, SimDisk,
    Storage, StorageOwner,
};

const SETTINGS: LogSettings =
    LogSettings { block: 64, segment_bytes: 2048, frame_bytes: 200, in_flight_max: 2, queue_frames_max: 8 };

/// A life of a log, in which `count` records are written from `sequence` on.
fn live(disk: &SimDisk, prng: &mut Prng, sequence: &mut u64, count: u64) {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    let storage = Storage::open(disk, &owner, SETTINGS, 7).expect("the disk works");
    let mut recovered = storage.recover(&mut |_, _| ()).expect("the disk works");
    if !recovered.is_usable() {
        recovered = recovered.into_repaired(storage.settings());
    }
    let life = storage.begin_life().expect("the disk works");
    let mut core = LogCore::new(SETTINGS, 7, life, recovered);
    for _ in 0..count {
        let bytes = vec![*sequence as u8; prng.index(150)];
        let position = LogPosition { view: 0, sequence: *sequence };
        let (kind, sender, time) = (RecordKind::Message, 0, *sequence);
        core.append(&LogRecord { subgroup: 1, kind, position, sender, time, bytes: &bytes })
            .expect("there is space");
        *sequence += 1;
        while let Some(action) = core.poll_action() {
            match action {
                LogAction::Prepare { segment, recycle } => {
                    storage.prepare(segment, recycle).expect("the disk works");
                    core.handle_prepared(segment);
                }
                LogAction::Write(write) => {
                    disk.write(&write.path(), write.offset, &write.bytes).expect("the disk works");
                    core.handle_written(write);
                }
            }
        }
    }
}

/// A log of `lives` lives, and its frames: where each is, and how far its records go.
fn log(prng: &mut Prng, lives: u64) -> (SimDisk, Vec<(u64, u32, u64, u64)>) {
    let disk = SimDisk::new(prng.draw(), SETTINGS.block);
    let mut sequence = 0;
    for _ in 0..lives {
        let count = 1 + prng.below(30);
        live(&disk, prng, &mut sequence, count);
    }
    let mut frames = Vec::new();
    let storage = Storage::inspect(&disk, SETTINGS).expect("it has an identity");
    storage
        .survey(&mut |note, follows| {
            assert!(follows, "nothing is damaged");
            let last = note.spans.iter().map(|(_, span)| span.last).max().unwrap_or(0);
            frames.push((note.place.number, note.place.segment, note.place.offset, last));
        })
        .expect("the disk works");
    (disk, frames)
}

fn damage(disk: &SimDisk, prng: &mut Prng, segment: u32, offset: u64, is_opening: bool) {
    let path = format!("log/{segment:010}.segment");
    match prng.below(4) {
        0 => disk.make_unreadable(&path, offset),
        // An opening has a header alone.
        1 if !is_opening => disk.rot(&path, offset + 64),
        1 | 2 => disk.rot(&path, offset + 8 * prng.below(8)),
        _ => {
            let mut zeros = AlignedBuffer::default();
            zeros.pad_to(SETTINGS.block);
            disk.write(&path, offset, &zeros).expect("the disk works");
        }
    }
}

/// Frames are damaged at random: every other one is found, with what it had, and none besides. That a frame follows another one is said only
/// of two that are neighbours. The end is known only if the last frame of each life is there, or may have been cut off by a crash.
#[test]
fn every_good_frame_is_found() {
    let (mut knows, mut apart) = ([0; 2], 0);
    for seed in 0..600 {
        let mut prng = Prng::new(seed);
        let lives = 1 + prng.below(3);
        let (disk, frames) = log(&mut prng, lives);
        let damaged: Vec<usize> = (0..prng.below(4)).map(|_| prng.index(frames.len())).collect();
        for index in &damaged {
            let (number, segment, offset, _) = frames[*index];
            damage(&disk, &mut prng, segment, offset, number.trailing_zeros() >= 40);
        }
        let storage = Storage::inspect(&disk, SETTINGS).expect("it has an identity");
        let mut found = BTreeMap::new();
        let mut before = None;
        let survey = storage
            .survey(&mut |note, follows| {
                let index =
                    frames.iter().position(|frame| frame.0 == note.place.number).expect("it was written");
                let last = note.spans.iter().map(|(_, span)| span.last).max().unwrap_or(0);
                assert_eq!((note.place.segment, note.place.offset, last), {
                    let (_, segment, offset, last) = frames[index];
                    (segment, offset, last)
                });
                assert!(found.insert(index, follows).is_none(), "each frame comes once");
                if follows {
                    assert_eq!(before.map_or(0, |before: usize| before + 1), index, "seed {seed}");
                }
                before = Some(index);
            })
            .expect("the disk works");
        // Some damage of the padding or of the bytes behind a short body changes nothing.
        let lost: Vec<usize> = (0..frames.len()).filter(|index| !found.contains_key(index)).collect();
        assert!(lost.iter().all(|index| damaged.contains(index)), "seed {seed}: {lost:?} of {damaged:?}");
        apart += survey.apart;
        let life = |index: usize| frames[index].0 >> 40;
        let is_last = |index: usize| index + 1 == frames.len() || life(index + 1) != life(index);
        knows[usize::from(survey.is_end_known)] += 1;
        // What cannot be read where a life begins may have been of the one before.
        let is_edge = |index: usize| is_last(index) || index > 0 && is_last(index - 1);
        if !lost.iter().any(|index| is_edge(*index)) {
            assert!(survey.is_end_known, "seed {seed}: {lost:?} of {} frames", frames.len());
        }
        // A later life knows the last frame of the one before.
        let is_known =
            |index: &usize| is_last(*index) && index + 1 < frames.len() && found.contains_key(&(index + 1));
        if lost.iter().any(is_known) {
            assert!(!survey.is_end_known, "seed {seed}: {lost:?}");
        }
    }
    assert!(knows[0] > 20 && knows[1] > 300 && apart > 1000, "{knows:?} {apart}");
}

/// A log continues behind damage at its first records: its oldest segment has no record to which the log leads, and is not used again, since what
/// is behind the damage may be in no other log.
#[test]
fn what_is_behind_damage_is_not_written_over() {
    for seed in 0..50 {
        let mut prng = Prng::new(seed);
        let (disk, frames) = log(&mut prng, 1);
        let (_, segment, offset, _) = frames[1];
        damage(&disk, &mut prng, segment, offset, false);
        let apart = || {
            let storage = Storage::inspect(&disk, SETTINGS).expect("it has an identity");
            let mut last = BTreeMap::new();
            let survey = storage.survey(&mut |note, _| {
                last.extend(note.spans.iter().map(|(_, span)| (note.place.number, span.last)));
            });
            (survey.expect("the disk works").apart, last)
        };
        let (count, before) = apart();
        let mut sequence = 100;
        live(&disk, &mut prng, &mut sequence, 60);
        let (still, after) = apart();
        assert_eq!(still, count, "seed {seed}");
        assert!(before.iter().all(|(number, last)| after.get(number) == Some(last)), "seed {seed}");
    }
}
