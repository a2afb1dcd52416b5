//! The log of durable subgroups on a simulated disk and in a real folder.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use squall_fabric::NodeId;
use squall_log::{DiskFault, LogPosition, LogSettings, RecordKind, SimDisk, Storage, StorageOwner};
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::RankSet;
use squall_protocols::multicast::{DeliveryMode, Message, MessageLog};
use squall_protocols::restart::{DurableView, Register};

use super::discarder::Discarded;
use super::index::LogIndex;
use super::process_log::{LogClock, SharedDisk};
use super::subgroup_log::SubgroupLog;
use super::subgroups::SubgroupNumbers;
use super::*;
use crate::config::{Config, Ranks, Retention, StorageConfig, SubgroupConfig};
use crate::slot::SubgroupSlot;

mod times;

type TestDisk = Arc<Mutex<SimDisk>>;

const SETTINGS: LogSettings =
    LogSettings { segment_bytes: 256 << 10, frame_bytes: 16 << 10, ..LogSettings::DEFAULT };

fn disk() -> TestDisk {
    Arc::new(Mutex::new(SimDisk::new(1, SETTINGS.block)))
}

fn start(disk: &TestDisk, settings: LogSettings) -> Arc<ProcessLog> {
    // Much longer than a thread waits for its turn on a busy machine.
    start_impatient(disk, settings, Duration::from_secs(60))
}

/// Starts a log that counts a disk as hanging after `timeout`.
fn start_impatient(disk: &TestDisk, settings: LogSettings, timeout: Duration) -> Arc<ProcessLog> {
    start_by_clock(disk, settings, timeout, Box::new(|| time_ns(SystemTime::now())))
}

fn start_by_clock(
    disk: &TestDisk,
    settings: LogSettings,
    timeout: Duration,
    clock: LogClock,
) -> Arc<ProcessLog> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    let storage =
        Storage::open(SharedDisk::new(Arc::clone(disk) as _), &owner, settings, 7).expect("it is empty");
    let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
    let numbers = SubgroupNumbers::same(0..10);
    let index = LogIndex::new(numbers.clone());
    let plan = FolderPlan::without_register(numbers, &storage);
    ProcessLog::start(storage, plan, (recovered, index), "/logs/m".into(), timeout, clock)
        .expect("the disk works")
}

/// Returns the records on a disk.
fn records(disk: &TestDisk) -> Vec<(u32, RecordKind, LogPosition, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut times = std::collections::BTreeMap::new();
    let storage = Storage::inspect(Arc::clone(disk), SETTINGS).expect("it has an identity");
    let recovered = storage.recover(&mut |_, record| {
        let last = times.insert((record.subgroup, record.position.view), record.time);
        assert!(last.is_none_or(|last| last < record.time), "times grow");
        found.push((record.subgroup, record.kind, record.position, record.sender, record.bytes.to_vec()));
    });
    assert!(recovered.expect("it can be read").is_usable());
    found
}

fn message(sequence: u64, bytes: &[u8]) -> Message<'_> {
    Message { view: 3, sender: 1, node: NodeId(5), index: 0, sequence, bytes }
}

fn at(sequence: u64) -> LogPosition {
    LogPosition { view: 3, sequence }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// \[T1\] Nulls below a message need no record; what is counted is on the disk, and is there as it was received.
#[test]
fn sequences_are_counted_when_their_messages_are_on_the_disk() {
    let disk = disk();
    let process = start(&disk, SETTINGS);
    let mut log = process.subgroup(SubgroupId(4), 3);
    assert_eq!((log.persisted(), process.unpersisted(SubgroupId(4))), (0, Some(0)));
    let blocked = disk.lock().expect("no panic");
    log.append(message(2, b"two"));
    log.append(message(5, b""));
    log.end_batch();
    assert_eq!((log.persisted(), process.unpersisted(SubgroupId(4))), (0, Some(6)));
    drop(blocked);
    wait_until("both are on the disk", || log.persisted() == 6);
    assert_eq!(process.unpersisted(SubgroupId(4)), Some(0));
    assert_eq!(process.unpersisted(SubgroupId(1)), None);
    drop((log, process));
    let expected = [(2, b"two".to_vec()), (5, Vec::new())];
    let expected = expected.map(|(sequence, bytes)| (4, RecordKind::Message, at(sequence), 1, bytes));
    assert_eq!(records(&disk), expected);
}

/// What the application may still take is not discarded, nor what is behind a view that is not on the disk.
#[test]
fn what_was_taken_can_be_discarded() {
    let disk = disk();
    let process = start(&disk, SETTINGS);
    let slot = Arc::<SubgroupSlot>::default();
    let one = Discarded { id: SubgroupId(0), slot: Arc::clone(&slot), retention: Retention::default() };
    let taken = || process.taken(&one).map(|at| (at.view, at.sequence));
    assert_eq!(taken(), None, "the subgroup has no view");
    let mut log = process.subgroup(SubgroupId(0), 3);
    log.append(message(0, b"a"));
    log.append(message(1, b"b"));
    log.end_batch();
    log.note_stable(4);
    assert_eq!(taken(), None, "nothing was taken, also of the view before");
    log.note_delivered(1);
    assert_eq!(taken(), Some((3, 1)));
    log.note_delivered(2);
    assert_eq!(taken(), Some((3, 4)), "behind the last message are nulls");
    let mut log = process.subgroup(SubgroupId(0), 4);
    log.note_stable(2);
    assert_eq!(taken(), None, "the last messages of the view before may still be taken");
    slot.note_taken_before(4);
    assert_eq!(taken(), Some((4, 2)), "they were taken");
    drop(process.subgroup(SubgroupId(0), 5));
    slot.note_taken_before(u64::MAX);
    assert_eq!(taken(), None, "how view 4 has ended is not on the disk");
}

/// [W6] A failed disk ends the member, and nothing is counted that is not there.
#[test]
fn a_failed_disk_is_said_and_counts_nothing() {
    let disk = disk();
    let process = start(&disk, SETTINGS);
    let mut log = process.subgroup(SubgroupId(0), 3);
    log.append(message(0, b"a"));
    log.end_batch();
    wait_until("the disk works", || log.persisted() == 1);
    assert!(!process.has_failed() && process.failure().is_none());
    disk.lock().expect("no panic").arm(DiskFault::WriteError, "log/", 0);
    log.append(message(1, b"b"));
    log.end_batch();
    wait_until("the failure is reported", || process.has_failed());
    for sequence in 2..10 {
        log.append(message(sequence, b"c"));
        log.end_batch();
        assert_eq!(log.persisted(), 1);
    }
    let error = process.failure().expect("it has failed").to_string();
    assert!(error.contains("/logs/m has ended: failed to write log/0000000001.segment"), "{error}");
    assert!(error.ends_with("The others continue without it"), "{error}");
}

/// A disk that hangs ends the member as one that fails does, and the member's end does not wait for it.
#[test]
fn a_disk_that_hangs_ends_the_log_and_holds_no_member_up() {
    let disk = disk();
    let process = start_impatient(&disk, SETTINGS, Duration::from_millis(50));
    let mut log = process.subgroup(SubgroupId(0), 3);
    let lender = LogLender::new(Arc::clone(&process));
    let reading = lender.borrower().borrow().expect("the member lives");
    let hangs = disk.lock().expect("no panic");
    log.append(message(0, b"a"));
    log.end_batch();
    process.write_register(&Register::new(1, NodeId(0), DurableView::default()));
    assert!(!process.has_failed(), "no thread has looked");
    wait_until("the disk hangs", || {
        process.check_disk();
        process.has_failed()
    });
    let error = process.failure().expect("it has failed").to_string();
    assert!(error.contains(": no answer for ") && error.contains(" s (the disk hangs: check it"), "{error}");
    assert_eq!(log.persisted(), 0);
    drop((log, lender, process));
    drop(reading);
    drop(hangs);
    wait_until("the message is written when the disk answers", || records(&disk).len() == 1);
}

/// A member may leave while its disk hangs: that takes no longer than the disk may take.
#[test]
fn the_end_of_a_member_does_not_wait_for_a_disk_that_hangs() {
    let disk = disk();
    let process = start_impatient(&disk, SETTINGS, Duration::from_millis(50));
    let mut log = process.subgroup(SubgroupId(0), 3);
    let hangs = disk.lock().expect("no panic");
    log.append(message(0, b"a"));
    drop((log, process));
    drop(hangs);
    wait_until("the message is written when the disk answers", || records(&disk).len() == 1);
}

/// The disk may be behind by all that the windows hold; the polling thread appends without waiting, and nothing is lost.
#[test]
fn the_log_takes_as_much_as_the_windows_hold() {
    let subgroup = SubgroupConfig {
        senders: Ranks::These(vec![0, 1]),
        window: 64,
        message_max: 8 << 10,
        window_bytes: 128 << 10,
        ..SubgroupConfig::default()
    };
    let queue_frames_max = queue_frames([&subgroup].into_iter(), SETTINGS.frame_bytes);
    let disk = disk();
    let process = start(&disk, LogSettings { queue_frames_max, ..SETTINGS });
    let mut log = process.subgroup(SubgroupId(0), 3);
    let blocked = disk.lock().expect("no panic");
    // One of these fits a frame, and almost a second one: the worst case.
    let bytes = vec![7; 8 << 10];
    let count = 2 * (128 << 10) / bytes.len() as u64;
    for sequence in 0..count {
        log.append(message(sequence, &bytes));
        log.end_batch();
    }
    assert!(!process.has_failed(), "{:?}", process.failure());
    drop(blocked);
    wait_until("all are on the disk", || log.persisted() == count);
    drop((log, process));
    assert_eq!(records(&disk).len() as u64, count);
}

/// A group cannot restart from its logs yet, so the log of an earlier run is of use only to join a group that runs on.
#[test]
fn the_log_of_an_earlier_run_is_of_use_in_its_group_only() {
    let path = std::env::temp_dir().join(format!("squall-durable-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let subgroup = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let config = Config::local("earlier", 1).subgroup("log", subgroup);
    let config = Config { storage: Some(StorageConfig::new(&path)), ..config };
    let layout = durable_layout(&config);
    drop(open(&config).expect("it is empty").expect("a subgroup is durable"));
    let process = open(&config).expect("it has no records").expect("a subgroup is durable");
    process.check_group(9, true).expect("it has no records");
    let held = open(&config).expect_err("this process has it").to_string();
    assert!(held.contains("rank-0 is in use by process"), "{held}");
    let (view, node) =
        (DurableView { number: 0, members: vec![NodeId(4)], shards: vec![RankSet::of(0)] }, NodeId(4));
    let member = |group, node| LogMember { group, node, tag: 0, shards: 1, layout };
    let none = process.register(&member(9, node));
    assert_eq!((none.group, none.node, none.is_member()), (9, node, false));
    process.write_register(&Register { layout, ..Register::new(9, node, view.clone()) });
    process.subgroup(SubgroupId(0), 0).append(Message { view: 0, ..message(0, b"a") });
    wait_until("the register is on the disk", || process.take_register_written());
    assert!(!process.take_register_written(), "it is reported once");
    // An attempt to join leaves a write behind: only the last of two is reported.
    (0..2).for_each(|_| process.write_register(&Register { layout, ..Register::new(9, node, view.clone()) }));
    wait_until("both are on the disk", || process.take_register_written());
    assert!(!process.take_register_written(), "the last one is reported once");
    drop(process);

    let process = open(&config).expect("it is there again").expect("a subgroup is durable");
    process.check_group(9, false).expect("it is of this group");
    let found = process.register(&member(9, NodeId(70)));
    assert_eq!((found.node, found.view()), (NodeId(70), &view));
    let anew = process.check_group(10, true).expect_err("a group begins").to_string();
    let other = process.check_group(10, false).expect_err("another group").to_string();
    drop(process);
    let foreign =
        open(&Config { cluster: "other".into(), ..config.clone() }).expect_err("another's").to_string();
    let atomic = Config { subgroups: [("log".into(), SubgroupConfig::default())].into(), ..config };
    assert!(open(&atomic).expect("there is nothing to open").is_none());
    std::fs::remove_dir_all(&path).expect("it can be removed");
    assert!(anew.contains("rank-0 has the log of an earlier run, with 1 records"), "{anew}");
    assert!(other.contains("the log of an earlier group of this cluster"), "{other}");
    assert!(
        foreign.contains("rank-0: the folder belongs to the member rank-0 of the cluster earlier"),
        "{foreign}"
    );
}
