//! Checkpoints across crashes: which of them are there, and that those which were removed stay so (Derecho §3.4).

use std::collections::BTreeSet;

use squall_log::{CheckpointError, LogPosition, LogSettings, SimDisk, Storage, StorageOwner};

const SETTINGS: LogSettings =
    LogSettings { block: 128, segment_bytes: 1024, frame_bytes: 500, in_flight_max: 1, queue_frames_max: 1 };

fn storage(disk: &SimDisk) -> Storage<&SimDisk> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(disk, &owner, SETTINGS, 7).expect("the disk works")
}

fn checkpoint(storage: &Storage<&SimDisk>, sequence: u64) -> Result<(), CheckpointError> {
    let position = LogPosition { view: 1, sequence };
    storage.write_checkpoint(0, position, &mut std::iter::once(b"state".to_vec()))
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

/// [W11] The same when the crash comes before the removal is complete: the next life completes it before anything is recycled.
#[test]
fn a_life_completes_the_removal_of_checkpoints() {
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
        found.insert(all);
        storage.begin_life().expect("the disk works");
        let kept = verified(&storage);
        disk.crash();
        let after = verified(&self::storage(&disk));
        assert!(kept.len() == 2 && after == kept, "seed {seed}: {kept:?}, then {after:?}");
    }
    assert_eq!(found, BTreeSet::from([vec![5, 8], vec![5, 8, 9], vec![8, 9]]), "all of them occur");
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
