//! The register across crashes: what a process has read there stays (Derecho §3.4).

use std::collections::BTreeSet;

use squall_log::{
    COPY_BYTES_MIN, COPY_VALUE_BYTES_MAX, LogSettings, SimDisk, Storage, StorageError, StorageOwner,
};

const SETTINGS: LogSettings =
    LogSettings { block: 128, segment_bytes: 1024, frame_bytes: 500, in_flight_max: 1, queue_frames_max: 1 };

fn open(disk: &SimDisk) -> Result<Storage<&SimDisk>, StorageError> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(disk, &owner, SETTINGS, 7)
}

fn promise(storage: &Storage<&SimDisk>) -> Vec<u8> {
    storage.register().expect("a copy is good").protocol
}

/// [W9] The crash left the new value in one copy, the process read it, crashed again, and that copy rotted: the value was the old
/// one again, although the process may have answered others by the new one.
#[test]
fn a_value_that_was_read_stays_when_a_copy_rots() {
    let mut found = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new(seed, SETTINGS.block);
        let storage = open(&disk).expect("the disk works");
        disk.stop_after(seed % 2);
        storage.change_register(|register| register.protocol = vec![1]).expect_err("the machine stops");
        disk.crash();

        disk.stop_after(seed / 2 % 8);
        let read = open(&disk).map(|storage| promise(&storage));
        disk.crash();
        let Ok(read) = read else { continue };
        disk.rot("register", seed / 16 % 2 * COPY_BYTES_MIN as u64 + 8);
        assert_eq!(promise(&open(&disk).expect("the disk works")), read, "seed {seed}");
        found.insert(read);
    }
    assert_eq!(found, BTreeSet::from([vec![], vec![1]]), "both values are read");
}

/// A value that is longer than its file takes another file, and is there before or after any step of that, whole.
#[test]
fn a_register_grows_and_a_crash_leaves_one_value() {
    let short = vec![1; 100];
    let values = [vec![2; COPY_BYTES_MIN], vec![3; 5 * COPY_BYTES_MIN], short.clone()];
    for steps in 0..40 {
        let disk = SimDisk::new(steps, SETTINGS.block);
        let storage = open(&disk).expect("the disk works");
        storage.change_register(|register| register.protocol.clone_from(&short)).expect("the disk works");
        disk.stop_after(steps);
        let mut written = &short;
        let mut begun = None;
        for value in &values {
            begun = Some(value);
            if storage.change_register(|register| register.protocol.clone_from(value)).is_err() {
                break;
            }
            (written, begun) = (value, None);
        }
        disk.crash();
        let read = promise(&open(&disk).expect("a copy is good"));
        assert!(read == *written || begun == Some(&read), "{} bytes after {steps} steps", read.len());
        disk.rot("register", 8);
        assert_eq!(promise(&open(&disk).expect("the other copy is good")), read);
    }
}

/// The longest value has a limit, and what is beyond it leaves the register as it was.
#[test]
fn a_register_that_is_too_long_is_refused() {
    let disk = SimDisk::new(1, SETTINGS.block);
    let storage = open(&disk).expect("the disk works");
    let long = storage.change_register(|register| register.protocol = vec![1; COPY_VALUE_BYTES_MAX]);
    assert!(matches!(long, Err(StorageError::RegisterLong { .. })), "{long:?}");
    assert!(promise(&storage).is_empty() && promise(&open(&disk).expect("the disk works")).is_empty());
}
