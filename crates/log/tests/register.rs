//! The register across crashes: what a process has read there stays (Derecho §3.4).

use std::collections::BTreeSet;

use squall_log::{COPY_BYTES, LogSettings, SimDisk, Storage, StorageError, StorageOwner};

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
        disk.rot("register", seed / 16 % 2 * COPY_BYTES as u64 + 8);
        assert_eq!(promise(&open(&disk).expect("the disk works")), read, "seed {seed}");
        found.insert(read);
    }
    assert_eq!(found, BTreeSet::from([vec![], vec![1]]), "both values are read");
}
