//! Power cuts: whatever the disks have lost of what they had not flushed, a restart finds everything that was delivered (Derecho §3.4,
//! "Total failures").
//!
//! Three members work, each on a disk of its own under ext4, which records every write and every flush of the kernel, and between them
//! what was delivered (`power_cut/fuse_disk.rs`). Then for many moments of this record the power fails: from what the disks may have then
//! (`power_cut/contents.rs`) the group is started again, and its histories are compared with what had been delivered by then. Sometimes
//! the power fails again during the restart. The record is made once, since a moment of it is as good as a run of its own, in which
//! the power really fails there: no process sees its own future.
//!
//! This covers what an end by `kill -9` does not: that loses nothing that the kernel has taken.

mod common;
#[path = "power_cut/contents.rs"]
mod contents;
#[path = "power_cut/fuse_disk.rs"]
mod fuse_disk;
#[path = "common/storage.rs"]
mod storage;

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use contents::{CacheFate, Contents, DiskEvent};
use fuse_disk::FuseDisk;
use squall::config::{Retention, StorageConfig, SubgroupConfig, Transport};
use squall::{Config, Group, HistoryError, Message, MessageOutcome, Sender, StoredMessage};
use squall_fabric::mutex::lock;
use squall_fabric::sim::Prng;
use storage::{PATIENCE, TestFolder, wait_until};

/// What happened in a run, in order.
enum Event {
    Disk(usize, DiskEvent),
    /// That many messages are delivered.
    Delivered(usize),
    /// From here on members leave and join.
    Changes,
}

#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<Event>>>);

impl Record {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.0)
    }

    fn note(&self, event: Event) {
        self.events().push(event);
    }

    fn of_disk(&self, disk: usize) -> impl Fn(DiskEvent) + Send + 'static {
        let record = self.clone();
        move |event| record.note(Event::Disk(disk, event))
    }
}

/// A message: view, sequence, and the number with which it begins.
type Place = (u64, u64, u64);

/// The messages in the order in which they were delivered.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<Place>>>);

impl Order {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        lock(&self.0)
    }

    /// The upcall of a member that is there from the beginning.
    fn upcall(&self, record: &Record) -> impl FnMut(Message<'_>) + Send + 'static {
        let (order, record, mut next) = (self.clone(), record.clone(), 0);
        move |message| {
            let (mut order, place) =
                (order.places(), (message.view, message.sequence, number_of(message.bytes)));
            if next == order.len() {
                order.push(place);
                record.note(Event::Delivered(next + 1));
            }
            assert_eq!(order[next], place, "the members deliver different messages");
            next += 1;
        }
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("messages begin with their number"))
}

/// How the members of a test keep their logs.
#[derive(Clone, Copy)]
struct Case {
    test: &'static str,
    transport: Transport,
    is_direct: bool,
    /// Whether what was taken is discarded, and files are used again.
    discards: bool,
    seed: u64,
}

impl Case {
    fn configs(&self, folder: &TestFolder) -> Vec<Config> {
        let configs = storage::configs(self.transport, self.test, folder, "log").into_iter().enumerate();
        let config = |(rank, mut config): (usize, Config)| {
            let log: &mut SubgroupConfig = config.subgroups.get_mut("log").expect("it is there");
            log.retain = self.discards.then(|| Retention { automatic: true, ..Retention::default() });
            let mount = disk_folder(folder, rank).join("mount");
            config.storage = Some(StorageConfig { direct: self.is_direct, ..StorageConfig::new(mount) });
            config
        };
        configs.take(MEMBERS).map(config).collect()
    }
}

fn disk_folder(folder: &TestFolder, rank: usize) -> std::path::PathBuf {
    folder.0.join(format!("disk-{rank}"))
}

/// Sends `count` messages, each when the one before is delivered if `waits`; some of them long.
fn send(sender: &mut Sender, rank: usize, numbers: std::ops::Range<u64>, waits: bool, long: usize) {
    for number in numbers {
        let length = if number % 16 == 7 { long } else { 8 + (number as usize * 37) % 900 };
        let number = (rank as u64) << 32 | number;
        let sent = sender.sent();
        let fill = |space: &mut [u8]| {
            space.fill(number as u8);
            space[..8].copy_from_slice(&number.to_le_bytes());
        };
        sender.send_blocking(length, fill).expect("the group lives");
        if waits {
            assert_eq!(sender.wait_for_outcome(sent), MessageOutcome::Delivered);
        }
    }
}

/// Lets three members work, one of which leaves and joins; returns the record of it, and the order of the messages.
fn work(case: &Case) -> (Vec<Event>, Vec<Place>) {
    let folder = TestFolder::new(case.test);
    let (record, order) = (Record::default(), Order::default());
    let mount = |rank| FuseDisk::mount(&disk_folder(&folder, rank), None, record.of_disk(rank));
    let _disks: Vec<_> = (0..MEMBERS).map(|rank| mount(rank).expect("it can be mounted")).collect();
    let configs = case.configs(&folder);
    let join = |rank: usize| {
        let (config, upcall) = (configs[rank].clone(), order.upcall(&record));
        thread::spawn(move || {
            let group = Group::builder(config);
            // One that joins later has missed some messages.
            let group =
                if rank < 2 { group.on_message("log", upcall) } else { group.on_message("log", |_| ()) };
            group.join().expect("the group starts")
        })
    };
    let joining: Vec<_> = (0..MEMBERS).map(join).collect();
    let mut groups: Vec<_> = joining.into_iter().map(|group| group.join().expect("no panic")).collect();
    let mut senders: Vec<_> =
        groups.iter_mut().map(|group| group.subgroup("log").unwrap().sender().unwrap()).collect();
    let long = if case.discards { 400_000 } else { 50_000 };
    send(&mut senders[0], 0, 0..SINGLE as u64, true, long);
    // More than three segments if they are to be used again.
    let many = if case.discards { 3_000 } else { 300 };
    let all = |senders: &mut [Sender], numbers: std::ops::Range<u64>| {
        thread::scope(|scope| {
            for (rank, sender) in senders.iter_mut().enumerate() {
                let numbers = numbers.clone();
                scope.spawn(move || send(sender, rank, numbers, false, long));
            }
        });
    };
    all(&mut senders, SINGLE as u64..many);
    record.note(Event::Changes);
    for round in 1..=3 {
        drop(senders.pop().expect("there are three"));
        groups.pop().expect("there are three").leave(PATIENCE);
        all(&mut senders, round * 1_000_000..round * 1_000_000 + 20);
        groups.push(join(2).join().expect("no panic"));
        wait_until("all are in the view", || groups.iter_mut().all(|group| group.members() == MEMBERS));
        senders.push(groups[2].subgroup("log").unwrap().sender().unwrap());
        all(&mut senders, round * 2_000_000..round * 2_000_000 + 50);
        send(&mut senders[2], 2, round * 3_000_000..round * 3_000_000 + 5, true, long);
    }
    drop(senders);
    drop(groups);
    let events = std::mem::take(&mut *record.events());
    let order = order.places().clone();
    (events, order)
}

/// A power cut: what the disks have, and what was delivered before.
#[derive(Clone)]
struct PowerCut {
    disks: Vec<Contents>,
    delivered: usize,
    /// Whether a member may be absent when the others start again.
    may_lack: bool,
}

/// How the disks behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushes {
    Honest,
    /// The last flush of each disk was acknowledged, and not done.
    LastIgnored,
}

impl PowerCut {
    /// Empty disks.
    fn blank() -> Self {
        Self { disks: vec![Contents::default(); MEMBERS], delivered: 0, may_lack: true }
    }

    /// The power fails behind the first `end` of the events, on disks that had these contents before.
    fn at(before: &Self, events: &[Event], end: usize, flushes: Flushes, prng: &mut Prng) -> Self {
        let mut cut = before.clone();
        let ignored = usize::from(flushes == Flushes::LastIgnored);
        for (rank, contents) in cut.disks.iter_mut().enumerate() {
            let own: Vec<&DiskEvent> =
                events[..end].iter().filter_map(|event| of_disk(event, rank)).collect();
            let flushed = own.iter().enumerate().rev().filter(|(_, event)| matches!(event, DiskEvent::Flush));
            let flushed = flushed.map(|(place, _)| place).nth(ignored).unwrap_or(0);
            own[..flushed].iter().for_each(|event| contents.write(event, |_| true));
            let fate = match flushes {
                Flushes::Honest => CacheFate::ALL[prng.index(CacheFate::ALL.len())],
                Flushes::LastIgnored => CacheFate::Lost,
            };
            contents.cut(&own[flushed..], fate, prng);
        }
        for event in &events[..end] {
            match event {
                Event::Delivered(count) => cut.delivered = *count,
                Event::Changes => cut.may_lack = false,
                Event::Disk(..) => {}
            }
        }
        cut
    }

    /// Starts the group again, compares its histories with what was delivered, and has it deliver; returns what happened on the disks.
    fn restart(&self, case: &Case, order: &[Place], absent: Option<usize>) -> Result<Vec<Event>, String> {
        let folder = TestFolder::new(case.test);
        let record = Record::default();
        let present: Vec<usize> = (0..MEMBERS).filter(|rank| absent != Some(*rank)).collect();
        let mount = |rank: &usize| {
            FuseDisk::mount(
                &disk_folder(&folder, *rank),
                Some(self.disks[*rank].clone()),
                record.of_disk(*rank),
            )
        };
        let _disks = present.iter().map(mount).collect::<Result<Vec<_>, _>>()?;
        let configs = case.configs(&folder);
        let join = |rank: &usize| {
            let config = configs[*rank].clone();
            thread::spawn(move || Group::builder(config).on_message("log", |_| ()).join())
        };
        let joining: Vec<_> = present.iter().map(join).collect();
        let groups = joining.into_iter().map(|group| group.join().expect("no panic"));
        // All are ended before the disks.
        let mut groups = groups
            .collect::<Vec<_>>()
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        let mut histories = Vec::new();
        for group in &mut groups {
            histories.push(history(group, case)?);
        }
        for (history, first) in &histories {
            check(history, *first, &order[..self.delivered])?;
        }
        let mut sender = groups[0].subgroup("log").unwrap().sender().unwrap();
        sender.send_bytes(&[0; 8]).map_err(|error| error.to_string())?;
        let outcome = sender.wait_for_outcome(0);
        if outcome != MessageOutcome::Delivered {
            return Err(format!("a message after the restart is {outcome:?}"));
        }
        drop(groups);
        let events = std::mem::take(&mut *record.events());
        Ok(events)
    }
}

fn of_disk(event: &Event, rank: usize) -> Option<&DiskEvent> {
    match event {
        Event::Disk(disk, event) if *disk == rank => Some(event),
        _ => None,
    }
}

/// What a member has in its log, and the position behind which that begins, if what was before was discarded.
type LogHistory = (Vec<Place>, Option<(u64, u64)>);

/// Returns what a member has in its log, when that is whole.
fn history(group: &mut Group, case: &Case) -> Result<LogHistory, String> {
    let log = group.subgroup("log").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut first = None;
        let mut read = log.history().expect("it has a log").peekable();
        if let Some(Err(HistoryError::Compacted { oldest, .. })) = read.peek()
            && case.discards
        {
            first = Some((oldest.view, oldest.sequence));
            read.next();
        }
        let place = |message: StoredMessage| (message.view, message.sequence, number_of(&message.bytes));
        match read.map(|message| message.map(place)).collect() {
            Ok(places) => return Ok((places, first)),
            Err(error) if Instant::now() > deadline => return Err(error.to_string()),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Checks that a history that begins at a position has everything from there on that was delivered, in order.
fn check(history: &[Place], first: Option<(u64, u64)>, delivered: &[Place]) -> Result<(), String> {
    let discarded =
        delivered.iter().take_while(|(view, sequence, _)| Some((*view, *sequence)) < first).count();
    let wanted = &delivered[discarded..];
    if history.starts_with(wanted) {
        return Ok(());
    }
    let same = history.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
    Err(format!(
        "a history of {} messages is another one behind {same} of {} that were delivered",
        history.len(),
        wanted.len()
    ))
}

/// Cuts the power at many moments of a run, in some cases again while the group restarts.
fn nothing_is_lost(case: &Case) {
    let (events, order) = work(case);
    let mut prng = Prng::new(case.seed);
    let (begun, cuts) = (Instant::now(), cuts());
    let (mut again, mut lost, mut absences) = (0, 0, 0);
    for number in 0..cuts {
        let end = moment(&events, &mut prng);
        let mut cut = PowerCut::at(&PowerCut::blank(), &events, end, Flushes::Honest, &mut prng);
        let depth = if prng.chance(250) { 2 } else { 1 };
        for level in 0..depth {
            let absent = if cut.may_lack { prng.index(2 * MEMBERS) } else { 2 + prng.index(4) };
            let absent = Some(absent).filter(|rank| *rank < MEMBERS && level == 0);
            absences += u64::from(absent.is_some());
            let during = match cut.restart(case, &order, absent) {
                Ok(during) => during,
                Err(error) => {
                    eprintln!(
                        "cut {number} behind event {end} of {}, absent {absent:?}: {error}",
                        events.len()
                    );
                    lost += 1;
                    break;
                }
            };
            if level + 1 < depth {
                again += 1;
                let end = prng.index(during.len());
                cut = PowerCut::at(&cut, &during, end, Flushes::Honest, &mut prng);
            }
        }
    }
    println!(
        "{}: {} events, {} messages delivered, {cuts} power cuts, {again} of them followed by one during the restart, {absences} \
         restarts without one member, {:.0} s",
        case.test,
        events.len(),
        order.len(),
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(lost, 0, "messages that were delivered are lost, or the group did not restart");
}

/// A moment: before a flush, behind one, behind a delivery, or anywhere, when members work.
fn moment(events: &[Event], prng: &mut Prng) -> usize {
    let is_kind = |event: &Event, kind: usize| match kind {
        0 | 1 => matches!(event, Event::Disk(_, DiskEvent::Flush)),
        2 => matches!(event, Event::Delivered(_)),
        _ => true,
    };
    let first = events.iter().position(|event| matches!(event, Event::Delivered(_))).expect("some are");
    let kind = prng.index(4);
    let all: Vec<usize> = (first..events.len()).filter(|place| is_kind(&events[*place], kind)).collect();
    all[prng.index(all.len())] + usize::from(kind > 0)
}

/// How often the power fails in each test.
fn cuts() -> usize {
    std::env::var("SQUALL_POWER_CUTS").map_or(5, |cuts| cuts.parse().expect("a number"))
}

const MEMBERS: usize = 3;
/// The first messages are sent one at a time.
const SINGLE: usize = 60;

const DIRECT: Case =
    Case { test: "power-cut-direct", transport: Transport::Shm, is_direct: true, discards: false, seed: 1 };

#[test]
#[ignore = "mounts file systems: for root, with /dev/fuse and loop devices"]
fn nothing_is_lost_with_direct_writes() {
    nothing_is_lost(&DIRECT);
}

#[test]
#[ignore = "mounts file systems: for root, with /dev/fuse and loop devices"]
fn nothing_is_lost_with_flushed_writes() {
    nothing_is_lost(&Case {
        test: "power-cut-flushed",
        transport: Transport::Tcp,
        is_direct: false,
        seed: 2,
        ..DIRECT
    });
}

#[test]
#[ignore = "mounts file systems: for root, with /dev/fuse and loop devices"]
fn nothing_is_lost_in_logs_that_are_shortened() {
    nothing_is_lost(&Case { test: "power-cut-shortened", discards: true, seed: 3, ..DIRECT });
}

/// The test finds what it looks for: disks that have acknowledged a flush, and not done it, lose messages that were delivered.
#[test]
#[ignore = "mounts file systems: for root, with /dev/fuse and loop devices"]
fn a_flush_that_is_not_done_loses_messages() {
    let case = Case { test: "power-cut-ignored", ..DIRECT };
    let (events, order) = work(&case);
    let mut prng = Prng::new(4);
    let delivered = (0..events.len()).filter(|place| matches!(events[*place], Event::Delivered(_)));
    // Later ones come many at a time, so that the last flush of a disk may be of others.
    let delivered: Vec<usize> = delivered.take(SINGLE).collect();
    let is_lost = |_| {
        let end = delivered[prng.index(delivered.len())] + 1;
        let cut = PowerCut::at(&PowerCut::blank(), &events, end, Flushes::LastIgnored, &mut prng);
        matches!(cut.restart(&case, &order, None), Err(error) if error.starts_with("a history of"))
    };
    assert!((0..20).any(is_lost), "nothing was lost in 20 power cuts");
}
