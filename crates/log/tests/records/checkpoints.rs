//! Checkpoints across crashes: which of them are there, and that those which were removed stay so (Derecho §3.4).

use std::collections::BTreeSet;
use std::io::Write;

use squall_log::{
    CheckpointError, Disk, LogBase, LogBegin, LogPosition, LogSettings, Recycling, SimDisk, Storage,
    StorageOwner,
};

const SETTINGS: LogSettings =
    LogSettings { block: 128, segment_bytes: 1024, frame_bytes: 500, in_flight_max: 1, queue_frames_max: 1 };

fn storage(disk: &SimDisk) -> Storage<&SimDisk> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(disk, &owner, SETTINGS, 7).expect("the disk works")
}

fn at(sequence: u64) -> LogPosition {
    LogPosition { view: 1, sequence }
}

fn checkpoint(storage: &Storage<&SimDisk>, sequence: u64) -> Result<(), CheckpointError> {
    storage.write_checkpoint(0, at(sequence), LogPosition::MAX, &mut |out| out.write_all(b"state")).map(drop)
}

/// The sequences of the good checkpoints.
fn verified(storage: &Storage<&SimDisk>) -> Vec<u64> {
    let all = storage.checkpoints().remove(&0).unwrap_or_default();
    all.into_iter().map(|position| position.sequence).collect()
}

/// [W11] A checkpoint whose removal a crash undid counted as one of the two that are kept, although segments behind it had been
/// recycled.
#[test]
fn a_checkpoint_that_was_removed_does_not_come_back() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, SETTINGS.block);
        let storage = storage(&disk);
        storage.begin_life().expect("the disk works");
        for sequence in [5, 8, 9] {
            checkpoint(&storage, sequence).expect("the disk works");
        }
        disk.crash();
        assert_eq!(verified(&self::storage(&disk)), [8, 9], "seed {seed}");
    }
}

/// [W11] One whose removal a crash has cut off counts while the log reaches back to it, and no longer.
#[test]
fn a_checkpoint_without_a_log_behind_it_does_not_count() {
    let mut found = BTreeSet::new();
    for seed in 0..400 {
        let disk = SimDisk::new(seed, SETTINGS.block);
        let storage = storage(&disk);
        storage.begin_life().expect("the disk works");
        checkpoint(&storage, 5).and(checkpoint(&storage, 8)).expect("the disk works");
        disk.stop_after(seed % 8);
        let is_complete = checkpoint(&storage, 9).is_ok();
        disk.crash();

        let storage = self::storage(&disk);
        let all = verified(&storage);
        assert!(!is_complete || all == [8, 9], "seed {seed}: {all:?}");
        assert_eq!(storage.begin_of(0), LogBegin::First);
        found.insert(all);
        let (base, positions) = (LogBase::new(2), [(0, at(8))].into());
        storage.prepare(2, None).expect("the disk works");
        storage.prepare(3, Some(Recycling { segments: vec![1], base, positions })).expect("the disk works");
        disk.crash();
        let storage = self::storage(&disk);
        storage.begin_life().expect("the disk works");
        let kept = verified(&storage);
        assert!(kept == [8] || kept == [8, 9], "seed {seed}: {kept:?}");
        let names = disk.list("checkpoints").expect("the disk works");
        assert_eq!(names.len(), kept.len(), "seed {seed}: {names:?}");
        assert_eq!(storage.begin_of(0), LogBegin::Behind(at(8)));
    }
    assert_eq!(found, BTreeSet::from([vec![5, 8], vec![5, 8, 9], vec![8, 9]]), "all of them occur");
}

/// A log that begins behind its first records, and has no good checkpoint of them, says so.
#[test]
fn lost_checkpoints_are_noticed() {
    let disk = SimDisk::new(3, SETTINGS.block);
    let storage = storage(&disk);
    storage.begin_life().expect("the disk works");
    checkpoint(&storage, 8).expect("the disk works");
    assert_eq!(storage.begin_of(0), LogBegin::First);
    let (base, positions) = (LogBase::new(2), [(0, at(8))].into());
    storage.prepare(2, None).expect("the disk works");
    storage.prepare(3, Some(Recycling { segments: vec![1], base, positions })).expect("the disk works");
    disk.rot("checkpoints/0-1-8", 8);
    let storage = self::storage(&disk);
    assert_eq!((storage.begin_of(0), storage.begin_of(1)), (LogBegin::Lost(at(8)), LogBegin::First));
}

/// The checkpoint of another process takes the place of all records before it, and of the own checkpoints.
#[test]
fn a_checkpoint_of_another_process_is_the_beginning_of_the_log() {
    let disk = SimDisk::new(5, SETTINGS.block);
    let storage = storage(&disk);
    storage.begin_life().expect("the disk works");
    checkpoint(&storage, 3).expect("the disk works");
    storage.replace_checkpoints(0, at(8), &mut |out| out.write_all(b"state")).expect("the disk works");
    disk.crash();
    let storage = self::storage(&disk);
    assert_eq!((verified(&storage), storage.begin_of(0)), (vec![8], LogBegin::Behind(at(8))));
}

/// What is void does not come back, whenever a crash cuts the removal off, if that is repeated when the log is opened; what came later
/// stays.
#[test]
fn forgotten_checkpoints_leave_a_log_that_begins_again() {
    for later in [None, Some(12)] {
        let left = later.map_or(LogBegin::First, |sequence| LogBegin::Behind(at(sequence)));
        let mut cut_off = 0;
        for seed in 0..200 {
            let disk = SimDisk::new(seed, SETTINGS.block);
            let storage = storage(&disk);
            storage.begin_life().expect("the disk works");
            checkpoint(&storage, 3).expect("the disk works");
            let replaced = later.unwrap_or(8);
            let mut write = |out: &mut dyn Write| out.write_all(b"state");
            storage.replace_checkpoints(0, at(replaced), &mut write).expect("the disk works");
            disk.stop_after(seed % 8);
            let is_complete = storage.forget_checkpoints(0, at(9)).is_ok();
            cut_off += u64::from(!is_complete);
            disk.crash();
            let storage = self::storage(&disk);
            if !is_complete {
                storage.forget_checkpoints(0, at(9)).expect("the disk works");
            }
            let found = (verified(&storage), storage.begin_of(0));
            assert_eq!(found, (later.into_iter().collect(), left), "seed {seed}");
        }
        assert!(cut_off > 20 || later.is_some(), "the crashes come too late: {cut_off}");
    }
}

/// [W14] Behind what is wanted all versions can be made: the newest checkpoint before it is kept, and the next one.
#[test]
fn checkpoints_for_wanted_versions_are_kept() {
    let disk = SimDisk::new(1, SETTINGS.block);
    let storage = storage(&disk);
    storage.begin_life().expect("the disk works");
    let mut covered = Vec::new();
    for (sequence, wanted) in [(2, 1), (4, 1), (6, 3), (8, 3), (10, 3), (12, 7), (14, 9), (16, 20)] {
        let mut write = |out: &mut dyn Write| out.write_all(b"state");
        let outcome = storage.write_checkpoint(0, at(sequence), at(wanted), &mut write);
        let until = outcome.expect("the disk works").map(|position| position.sequence);
        covered.push((verified(&storage), until));
    }
    let expected = [
        (vec![2], None),
        (vec![2, 4], None),
        (vec![2, 4, 6], Some(2)),
        (vec![2, 4, 6, 8], Some(2)),
        (vec![2, 4, 8, 10], Some(2)),
        (vec![4, 8, 10, 12], Some(4)),
        (vec![8, 10, 12, 14], Some(8)),
        (vec![14, 16], Some(14)),
    ];
    assert_eq!(covered, expected);
}

/// A log that has lost its end may take a checkpoint before those that it has.
#[test]
fn a_checkpoint_older_than_both_that_are_kept_does_not_count() {
    let disk = SimDisk::new(1, SETTINGS.block);
    let storage = storage(&disk);
    storage.begin_life().expect("the disk works");
    for sequence in [8, 9, 5] {
        checkpoint(&storage, sequence).expect("the disk works");
    }
    assert_eq!(verified(&storage), [8, 9]);
    assert_eq!(verified(&self::storage(&disk)), [8, 9]);
}
