//! Subgroups that a log has no more: nothing of them is kept, across crashes (Derecho §3.4, persistent mode).

use std::sync::{Arc, Mutex};

use squall_log::{
    DurableLog, LogPosition, LogRecord, LogSettings, LogSubgroups, RecordKind, SimDisk, Storage,
    StorageOwner, SubgroupChange,
};

type TestDisk = Arc<Mutex<SimDisk>>;

const SETTINGS: LogSettings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };

fn open(disk: &TestDisk) -> Storage<TestDisk> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(Arc::clone(disk), &owner, SETTINGS, 7).expect("the disk works")
}

fn start(disk: &TestDisk) -> DurableLog<TestDisk> {
    let storage = open(disk);
    storage.drop_retired().expect("the disk works");
    let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
    DurableLog::start(storage, recovered).expect("the disk works")
}

const fn at(sequence: u64) -> LogPosition {
    LogPosition { view: 1, sequence }
}

/// Appends a record of 8 KiB, and waits for it.
fn append(log: &DurableLog<TestDisk>, subgroup: u32, sequence: u64) {
    let (kind, bytes) = (RecordKind::Message, &[1; 8 << 10][..]);
    let record = LogRecord { subgroup, kind, position: at(sequence), sender: 0, time: 0, bytes };
    let records = log.append(&record).expect("there is space");
    log.wait(records).expect("the disk works");
}

fn checkpoint(log: &DurableLog<TestDisk>, subgroup: u32, sequence: u64) {
    log.checkpoint(subgroup, at(sequence), LogPosition::MAX, &mut |out| out.write_all(b"state"))
        .expect("the disk works");
}

/// The numbers of `m` and `o`, of which a change keeps `m`.
fn removes_o(subgroups: &mut LogSubgroups) {
    subgroups.numbers = [("m".into(), 0), ("o".into(), 1)].into();
    subgroups.next = 2;
    subgroups.change = Some(SubgroupChange { numbers: [("m".into(), 0)].into(), protocol: vec![1] });
}

/// Fills segments with records of both subgroups, of which only the first is covered; returns whether the log has let go of its first segment.
fn is_first_recycled(log: &DurableLog<TestDisk>, from: u64) -> bool {
    for sequence in from..from + 30 {
        append(log, 0, sequence);
        checkpoint(log, 0, sequence);
    }
    log.storage().register().expect("it is good").base.segment > 1
}

/// [W17] When the change counts, the records of the subgroup hold no segments, and its checkpoints are gone: at once, and at later starts,
/// also if the crash comes before they are removed.
#[test]
fn a_retired_subgroup_holds_nothing() {
    for stops_after in [None, Some(0), Some(1), Some(2), Some(3)] {
        let disk: TestDisk = Arc::new(Mutex::new(SimDisk::new(3, SETTINGS.block)));
        let log = start(&disk);
        log.storage().change_register(|register| removes_o(&mut register.subgroups)).expect("the disk works");
        (0..20).for_each(|sequence| append(&log, 1, sequence));
        checkpoint(&log, 1, 1);
        checkpoint(&log, 1, 2);
        assert!(!is_first_recycled(&log, 0), "the change does not count yet");
        let log = match stops_after {
            None => {
                log.settle_register(vec![2]).expect("the disk works");
                log
            }
            Some(operations) => {
                let stop = |disk: &TestDisk| disk.lock().expect("no panic").stop_after(operations);
                stop(&disk);
                let settled = log.settle_register(vec![2]);
                drop(log);
                disk.lock().expect("no panic").crash();
                let log = start(&disk);
                if settled.is_err()
                    && log.storage().register().expect("it is good").subgroups.change.is_some()
                {
                    log.settle_register(vec![2]).expect("the disk works");
                }
                log
            }
        };
        let register = log.storage().register().expect("it is good");
        assert_eq!((register.protocol, register.subgroups.retired()), (vec![2], [1].into()));
        let checkpoints = || log.storage().checkpoints().keys().copied().collect::<Vec<_>>();
        assert_eq!(checkpoints(), [0], "{stops_after:?}");
        assert!(is_first_recycled(&log, 30), "{stops_after:?}");
        let recycled =
            || log.storage().register().expect("it is good").recycled.into_keys().collect::<Vec<_>>();
        assert_eq!(recycled(), [0], "it is not noted of what is retired");
    }
}
