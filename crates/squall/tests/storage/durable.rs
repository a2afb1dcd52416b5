//! Durable subgroups as applications use them: what is delivered is on the disks of all members (Derecho §2, "durable" mode).

use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use squall_fabric::atomics::{AtomicUsize, Ordering};

use crate::storage::{PATIENCE, TestFolder, wait_until};
use squall::config::{Config, StorageConfig, SubgroupConfig, Transport};
use squall::external::Publisher;
use squall::{Deliveries, DeliveryMode, Group, GroupError, MessageOutcome, SendError};
use squall_log::{FileDisk, LogSettings, RecordKind, Storage, TailVerdict};
use squall_protocols::restart::Register;

/// The number of messages that each member sends.
const NUMBERS: usize = 60;

/// A message as it was delivered, or as it is in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    view: u64,
    sequence: u64,
    sender: usize,
    bytes: Vec<u8>,
}

fn take(deliveries: &mut Deliveries) -> Entry {
    let message = deliveries.next().expect("the group lives");
    let bytes = message.bytes.to_vec();
    Entry { view: message.view, sequence: message.sequence, sender: message.sender, bytes }
}

/// The messages in the log of a member that has ended.
fn stored(config: &Config) -> Vec<Entry> {
    let folder = config.log_folder().expect("it has one");
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).expect("there is a log");
    let mut found = Vec::new();
    let recovered = storage.recover(&mut |_, record| {
        if record.kind == RecordKind::Message {
            let (view, sequence) = (record.position.view, record.position.sequence);
            found.push(Entry {
                view,
                sequence,
                sender: record.sender as usize,
                bytes: record.bytes.to_vec(),
            });
        }
    });
    assert_eq!(recovered.expect("it can be read").verdict, TailVerdict::Clean, "{}", folder.display());
    found
}

/// The register of a member that has ended.
fn register(config: &Config) -> Register {
    let folder = config.log_folder().expect("it has one");
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).expect("there is a log");
    Register::decode(&storage.register().expect("a copy is good").protocol).expect("it is a register")
}

/// What a member sends: small messages, some of one byte too many for the window, some long.
fn content(rank: usize, number: usize) -> Vec<u8> {
    let length = match number % 10 {
        3 => 1001,
        7 => 100_000 + 7 * number,
        _ => 1 + number,
    };
    (0..length).map(|at| (at + 3 * number + rank) as u8).collect()
}

/// A barrier with a timeout, in case one of the threads panics.
pub(crate) struct Meeting(AtomicUsize, usize);

impl Meeting {
    pub(crate) fn of(threads: usize) -> Self {
        Self(AtomicUsize::new(0), threads)
    }

    /// Waits for all threads, and may be used again when all have gone.
    pub(crate) fn wait(&self) {
        let round = self.0.fetch_add(1, Ordering::SeqCst) / self.1 + 1;
        wait_until("all threads meet", || self.0.load(Ordering::SeqCst) >= round * self.1);
    }
}

/// Runs `member` for each configuration, each in a thread, and returns what they return.
pub(crate) fn members<T: Send>(configs: &[Config], member: impl Fn(Group) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let member = &member;
        let join = |config: &Config| {
            let config = config.clone();
            scope.spawn(move || member(Group::join(config).expect("the group starts")))
        };
        let threads: Vec<_> = configs.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// Sends this member's messages, and waits until the last one is delivered by all.
fn send_all(mut sender: squall::Sender, rank: usize) -> squall::Sender {
    for number in 0..NUMBERS {
        let bytes = content(rank, number);
        sender.send_blocking(bytes.len(), |message| message.copy_from_slice(&bytes)).expect("it is sent");
    }
    sender
}

/// All deliver the same messages, and each has all of them in its log, as they were delivered.
fn what_is_delivered_is_in_all_logs(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = crate::storage::configs(transport, test, &folder, "log");
    let barrier = Meeting::of(3);
    let delivered = members(&configs[..3], |mut group| {
        let rank = group.rank();
        let log = group.subgroup("log").unwrap();
        let (sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        let sending = thread::spawn(move || send_all(sender, rank));
        let entries: Vec<Entry> = (0..3 * NUMBERS).map(|_| take(&mut deliveries)).collect();
        deliveries.release();
        let mut sender = sending.join().expect("it does not panic");
        assert_eq!(sender.wait_for_outcome(NUMBERS as u64 - 1), MessageOutcome::Delivered);
        assert!(sender.is_drained());
        barrier.wait();
        entries
    });
    assert!(delivered[0] == delivered[1] && delivered[1] == delivered[2], "the orders differ");
    for (rank, config) in configs.iter().take(3).enumerate() {
        let of_sender: Vec<_> = delivered[0].iter().filter(|entry| entry.sender == rank).collect();
        assert!((0..NUMBERS).all(|number| of_sender[number].bytes == content(rank, number)), "of {rank}");
        assert!(stored(config) == delivered[0], "the log of {rank} differs");
    }
}

#[test]
fn what_is_delivered_is_in_all_logs_on_shm() {
    what_is_delivered_is_in_all_logs(Transport::Shm, "durable-shm");
}

#[test]
fn what_is_delivered_is_in_all_logs_on_tcp() {
    what_is_delivered_is_in_all_logs(Transport::Tcp, "durable-tcp");
}

/// Asserts that a log has all that was delivered, in this order. It may have more: what was received and not delivered before a view
/// ended.
fn assert_contains(log: &[Entry], delivered: &[Entry]) {
    let mut log = log.iter();
    for entry in delivered {
        assert!(log.any(|other| other == entry), "{}/{} is missing", entry.view, entry.sequence);
    }
}

/// One of three members dies; the others continue, and a joiner takes part from its first view on.
fn the_others_continue_after_a_death(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = Arc::new(crate::storage::configs(transport, test, &folder, "log"));
    let barriers = Arc::new([2, 3].map(Meeting::of));
    let joiner = {
        let (configs, barriers) = (Arc::clone(&configs), Arc::clone(&barriers));
        thread::spawn(move || {
            barriers[1].wait();
            let mut group = Group::join(configs[3].clone()).expect("it joins");
            let log = group.subgroup("log").unwrap();
            let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
            sender.send_blocking(6, |message| message.copy_from_slice(b"joiner")).expect("it is sent");
            let mut entries = vec![take(&mut deliveries)];
            while entries.last().is_some_and(|entry| entry.bytes != b"joiner") {
                entries.push(take(&mut deliveries));
            }
            deliveries.release();
            assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
            entries
        })
    };
    let delivered = members(&configs[..3], |mut group| {
        let rank = group.rank();
        let log = group.subgroup("log").unwrap();
        let (sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        if rank == 2 {
            (0..NUMBERS).for_each(|_| drop(take(&mut deliveries)));
            return Vec::new();
        }
        let sending = thread::spawn(move || send_all(sender, rank));
        let mut entries: Vec<Entry> = Vec::new();
        let of = |entries: &[Entry], end: &[u8]| entries.iter().filter(|entry| entry.bytes == end).count();
        let lasts = [0, 1].map(|rank| content(rank, NUMBERS - 1));
        while lasts.iter().any(|last| of(&entries, last) == 0) {
            entries.push(take(&mut deliveries));
        }
        deliveries.release();
        let mut sender = sending.join().expect("it does not panic");
        assert_eq!(sender.wait_for_outcome(NUMBERS as u64 - 1), MessageOutcome::Delivered);
        wait_until("a view of two", || group.members() == 2);
        barriers[0].wait();
        barriers[1].wait();
        while of(&entries, b"joiner") == 0 {
            entries.push(take(&mut deliveries));
        }
        deliveries.release();
        wait_until("the joiner has left", || group.members() == 2);
        barriers[0].wait();
        entries
    });
    let of_joiner = joiner.join().expect("it does not panic");
    assert!(delivered[0] == delivered[1], "the orders differ");
    assert_eq!(delivered[0].len(), 2 * NUMBERS + 1);
    for rank in 0..2 {
        assert_contains(&stored(&configs[rank]), &delivered[0]);
    }
    assert_contains(&stored(&configs[3]), &of_joiner);
}

#[test]
fn the_others_continue_after_a_death_on_shm() {
    the_others_continue_after_a_death(Transport::Shm, "durable-death-shm");
}

#[test]
fn the_others_continue_after_a_death_on_tcp() {
    the_others_continue_after_a_death(Transport::Tcp, "durable-death-tcp");
}

/// The disk of one member fails when its third segment is made; it leaves and says why, and the others continue.
#[test]
fn a_member_whose_disk_fails_leaves_alone() {
    const MESSAGES: usize = 160;
    let folder = TestFolder::new("durable-disk");
    let configs = crate::storage::configs(Transport::Shm, "durable-disk", &folder, "log");
    // A folder where the log makes a file: an error even for the superuser.
    let obstacle = |config: &Config| config.log_folder().unwrap().join("log/0000000003.new");
    let barrier = Meeting::of(2);
    let ends = members(&configs[..3], |mut group| {
        let rank = group.rank();
        let log = group.subgroup("log").unwrap();
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        if rank == 2 {
            std::fs::create_dir(obstacle(&configs[2])).expect("there is a log");
            while deliveries.next().is_ok() {}
            return group.failure();
        }
        let sending = (rank == 0).then(|| {
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    sender.send_blocking(512 << 10, |bytes| bytes.fill(number as u8)).expect("it is sent");
                }
                sender
            })
        });
        for number in 0..MESSAGES {
            let message = deliveries.next().expect("the group lives");
            assert_eq!((message.bytes.len(), message.bytes[9]), (512 << 10, number as u8));
        }
        deliveries.release();
        if let Some(sending) = sending {
            let mut sender = sending.join().expect("it does not panic");
            assert_eq!(sender.wait_for_outcome(MESSAGES as u64 - 1), MessageOutcome::Delivered);
        }
        wait_until("the member without a disk has left", || group.members() == 2);
        barrier.wait();
        None
    });
    let Some(GroupError::Log { folder, cause }) = &ends[2] else { panic!("{:?}", ends[2]) };
    assert_eq!(Some(&**folder), configs[2].log_folder().as_deref());
    let cause = cause.to_string();
    assert!(cause.contains("0000000003.new: Is a directory"), "{cause}");
}

/// A member that has left joins again with its log, which continues; the registers of all agree on how views have ended \[T8\].
fn a_member_joins_again_with_its_log(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = crate::storage::configs(transport, test, &folder, "log");
    let barrier = Meeting::of(3);
    members(&configs[..3], |group| match group.rank() {
        2 => leave_and_return(group, &configs[2], &barrier),
        _ => stay(group, &barrier),
    });
    let texts: Vec<_> = stored(&configs[2]).into_iter().map(|entry| (entry.view, entry.bytes)).collect();
    assert_eq!(texts.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), [&b"before"[..], b"after"]);
    let registers: Vec<Register> = configs[..3].iter().map(register).collect();
    for other in &registers[1..] {
        assert_eq!(other.group, registers[0].group);
        assert!(other.record.chain.end() > texts[1].0 || other.view().number >= texts[1].0, "{other:?}");
        for view in 0..texts[1].0 {
            let ends = [other, &registers[0]].map(|register| register.record.chain.trim_of(view, 0));
            assert!(ends.contains(&None) || ends[0] == ends[1], "view {view} has ended with {ends:?}");
        }
    }
    assert_eq!(registers[0].record.chain.trim_of(texts[0].0, 0), Some(1), "one message counts");
}

/// Takes one message in each of two memberships.
fn leave_and_return(mut group: Group, config: &Config, barrier: &Meeting) {
    for text in ["before", "after"] {
        let mut deliveries = group.subgroup("log").unwrap().deliveries().unwrap();
        assert_eq!(take(&mut deliveries).bytes, text.as_bytes());
        deliveries.release();
        barrier.wait();
        if text == "before" {
            drop(deliveries);
            group.leave(PATIENCE);
            group = Group::join(config.clone()).expect("it joins again");
        }
    }
}

/// Takes these messages, and sends them if it is the first member: one while the last member is there, one when it is back.
fn stay(mut group: Group, barrier: &Meeting) {
    let rank = group.rank();
    let log = group.subgroup("log").unwrap();
    let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
    for text in ["before", "after"] {
        if rank == 0 {
            sender
                .send_blocking(text.len(), |bytes| bytes.copy_from_slice(text.as_bytes()))
                .expect("it lives");
        }
        assert_eq!(take(&mut deliveries).bytes, text.as_bytes());
        deliveries.release();
        barrier.wait();
        if text == "before" {
            wait_until("the last member has left", || group.members() == 2);
            wait_until("it is back", || group.members() == 3);
        }
    }
}

#[test]
fn a_member_joins_again_with_its_log_on_shm() {
    a_member_joins_again_with_its_log(Transport::Shm, "durable-back-shm");
}

#[test]
fn a_member_joins_again_with_its_log_on_tcp() {
    a_member_joins_again_with_its_log(Transport::Tcp, "durable-back-tcp");
}

/// A second run continues the log of the first one; one without its subgroup is refused.
#[test]
fn a_second_run_continues_the_first() {
    let folder = TestFolder::new("durable-again");
    let subgroup = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let config =
        Config::local(&format!("durable-again-{}", std::process::id()), 1).subgroup("log", subgroup.clone());
    let missing = Group::join(config.clone()).expect_err("it has no folder").to_string();
    assert!(missing.contains("write `path = \"FOLDER\"` in [storage]"), "{missing}");
    let config = Config { storage: Some(StorageConfig::new(&folder.0)), ..config };
    for run in 0..2 {
        let mut group = Group::join(config.clone()).expect("it starts");
        let log = group.subgroup("log").unwrap();
        assert_eq!(log.history().unwrap().count(), run);
        let (mut sender, mut deliveries) = (log.sender().unwrap(), log.deliveries().unwrap());
        sender.send_bytes(b"once").expect("there is space");
        assert_eq!(take(&mut deliveries).bytes, b"once");
        drop(deliveries);
        group.leave(PATIENCE);
    }
    assert_eq!(stored(&config).len(), 2);
    let other = Config { subgroups: [("another".into(), subgroup)].into(), ..config };
    let refused = Group::join(other).expect_err("it is another log").to_string();
    assert!(refused.contains("what was sent in the durable subgroups log"), "{refused}");
}

/// A member whose folder is removed while it runs leaves, although nothing is written, and says so.
#[test]
fn a_member_whose_folder_vanishes_leaves() {
    let folder = TestFolder::new("durable-vanishes");
    let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let mut config =
        Config::local(&format!("durable-vanishes-{}", std::process::id()), 1).subgroup("orders", orders);
    config.storage = Some(StorageConfig::new(&folder.0));
    let own = config.log_folder().expect("it has one");
    let group = Group::join(config).expect("it is alone");
    std::fs::remove_dir_all(&own).expect("it is ours");
    wait_until("it is noticed", || group.failure().is_some());
    let text = group.failure().expect("it was there").to_string();
    assert!(
        text.contains(&*own.to_string_lossy()) && text.contains("removed, unmounted or replaced"),
        "{text}"
    );
}

/// A small file system in memory, which goes with the test.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// None if this user may not mount it.
    fn mount(path: &std::path::Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(path).expect("it can be made");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        mount.is_ok_and(|output| output.status.success()).then(|| Self(path.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A member on a disk without space for another segment refuses new messages in time, starts on such a disk, and has all that was delivered.
#[test]
fn a_member_whose_disk_is_nearly_full_refuses_new_messages() {
    let folder = TestFolder::new("durable-short");
    let path = folder.0.join("disk");
    let Some(disk) = SmallDisk::mount(&path, "size=150m") else {
        return eprintln!("THE FULL DISK IS NOT TESTED: this user may not mount a small file system");
    };
    let settings = SubgroupConfig { message_max: 200_000, ..SubgroupConfig::default() };
    let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..settings };
    let name = format!("durable-short-{}", std::process::id());
    let mut config = Config::local(&name, 1).subgroup("orders", orders);
    config.storage = Some(StorageConfig::new(&path));
    let join = || Group::builder(config.clone()).on_message("orders", |_| ()).join().expect("it is alone");
    let mut group = join();
    let (mut sender, mut sent) = (group.subgroup("orders").unwrap().sender().unwrap(), 0);
    let error = loop {
        match sender.send_blocking(200_000, |_| ()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::DiskFull), "{error}");
    wait_until("all is delivered", || sender.is_drained());
    assert!(group.failure().is_none() && sent > (64 << 20) / 200_000);
    let status = squall::ask_status(&config, &config.listen).expect("it answers");
    assert!(status.log.is_some_and(|log| log.is_short));
    drop((sender, group));

    let mut group = join();
    let orders = group.subgroup("orders").unwrap();
    assert_eq!(orders.history().unwrap().count(), sent);
    let is_short =
        || squall::ask_status(&config, &config.listen).unwrap().log.is_some_and(|log| log.is_short);
    wait_until("it is short of space again", is_short);
    // Clients may send while the application does not.
    let refused = Publisher::connect_with(&config, "orders", Duration::from_millis(500));
    let refused = refused.expect_err("no other member is there").to_string();
    assert!(refused.contains("the disk of its log is nearly full (free space on it)"), "{refused}");
    let mut sender = orders.sender().unwrap();
    wait_until("it refuses again", || matches!(sender.send_bytes(b"one"), Err(SendError::DiskFull)));
    let larger = Command::new("mount").args(["-o", "remount,size=300m"]).arg(&path).status();
    assert!(larger.is_ok_and(|status| status.success()));
    wait_until("there is space", || sender.send_bytes(b"one").is_ok());
    drop((sender, group, disk));
}
