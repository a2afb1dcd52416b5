//! Durable objects whose logs are compacted: checkpoints take the place of what was before (Derecho §3.4, persistent mode).

mod shelves;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use crate::aborting::or_abort;
use crate::storage::{PATIENCE, TestFolder, wait_until};
use shelves::{Shelves, THING_BYTES, thing};
use squall::config::{Retention, SubgroupConfig, Transport};
use squall::external::{ExternalError, Replay};
use squall::object::{Object, Version, VersionError};
use squall::recovery::{SubgroupLoss, expected_loss};
use squall::{Config, Group, HandleError, HistoryError, Position, ReplayError};
use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_log::{FileDisk, LogSettings, Storage, StorageOwner};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{LogState, Register, SalvagedShard};

/// Three members with shelves, and a joiner.
fn configs(test: &str, retain: Option<Retention>) -> (TestFolder, Vec<Config>) {
    let folder = TestFolder::new(test);
    let configs = crate::storage::configs(Transport::Shm, test, &folder, "shelves").into_iter().enumerate();
    let with = |(rank, mut config): (usize, Config)| {
        let shelves = config.subgroups.get_mut("shelves").expect("it is there");
        (shelves.checkpoint_bytes, shelves.retain) = (1 << 20, retain);
        (shelves.message_max, shelves.window_bytes, shelves.large_max) = (512 << 10, 4 << 20, None);
        Config { rank: Some(rank), ..config }
    };
    let configs = configs.map(with).collect();
    (folder, configs)
}

/// Has each of these members do something with the object when all are in one view; they end at the same time, without leaving.
fn run<R: Send>(configs: &[Config], act: impl Fn(usize, &mut Group, &Object<Shelves>) -> R + Sync) -> Vec<R> {
    run_members(configs, |rank, group, all| {
        let shelves = group.object("shelves", Shelves::default).expect("it can carry one");
        wait_until("all are in the view", || group.members() == configs.len());
        shelves.wait_ready(PATIENCE).expect("it has the state");
        all.wait();
        act(rank, group, &shelves)
    })
}

/// Has each of these members do something; they end at the same time, without leaving.
fn run_members<R: Send>(configs: &[Config], act: impl Fn(usize, &mut Group, &Barrier) -> R + Sync) -> Vec<R> {
    let all = Barrier::new(configs.len());
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let result = act(config.rank.expect("it is set"), &mut group, &all);
        all.wait();
        result
    };
    thread::scope(|scope| {
        let member = &member;
        let start = |config| scope.spawn(move || or_abort(move || member(config)));
        let threads: Vec<_> = configs.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("it would have aborted")).collect()
    })
}

/// Has the first of some members put things there until the logs of all of them are compacted; returns how many all have then.
fn fill_until_compacted(
    is_first: bool,
    shelves: &Object<Shelves>,
    [compacted, all]: &[AtomicU64; 2],
    members: u64,
) -> u64 {
    let mut is_compacted = false;
    while compacted.load(Ordering::Relaxed) < members {
        if is_first {
            fill(shelves, count(shelves) + 50);
        }
        if !is_compacted && at(shelves, Position::default()).is_err() {
            is_compacted = true;
            compacted.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(Duration::from_millis(1));
    }
    if is_first {
        all.store(count(shelves), Ordering::Relaxed);
    }
    let all = || Some(all.load(Ordering::Relaxed)).filter(|all| *all > 0);
    wait_until("all have everything", || all().is_some_and(|all| count(shelves) == all));
    all().expect("just seen")
}

/// Puts things there until there are `count`, and waits until this member has them.
fn fill(shelves: &Object<Shelves>, count: u64) {
    let mut pending = Vec::new();
    for number in self::count(shelves)..count {
        pending.push(shelves.update(b"", &thing(number)).expect("it is sent"));
    }
    for pending in pending {
        pending.wait().expect("it is applied");
    }
}

fn present(shelves: &Object<Shelves>) -> Shelves {
    shelves.inspect(0, |_, state| state.clone()).expect("it has a replica")
}

fn count(shelves: &Object<Shelves>) -> u64 {
    shelves.inspect(0, |_, state| state.count).expect("it has a replica")
}

fn at(shelves: &Object<Shelves>, position: Position) -> Result<Shelves, VersionError> {
    Ok(shelves.at(Version::Position(position)).inspect(0, Clone::clone)?.value)
}

/// How many files a folder of a member has.
fn files(folder: &TestFolder, rank: usize, name: &str) -> usize {
    names(folder, rank, name).len()
}

fn names(folder: &TestFolder, rank: usize, name: &str) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder.0.join(format!("rank-{rank}")).join(name)).expect("it exists");
    entries.map(|entry| entry.expect("it can be listed").file_name()).collect()
}

/// The log does not reach back to its beginning, and says to where, which can be read.
fn check_oldest(shelves: &Object<Shelves>) {
    // One more checkpoint may be on its way meanwhile.
    wait_until("the oldest version can be read", || {
        let compacted = at(shelves, Position::default()).expect_err("the log was compacted");
        let VersionError::Compacted { oldest } = compacted else { panic!("{compacted:?}") };
        let then = at(shelves, oldest);
        then.inspect(|then| assert_eq!(*then, Shelves::after(then.count))).is_ok()
    });
}

#[test]
fn a_log_is_compacted_behind_checkpoints() {
    let (folder, configs) = configs("compaction", None);
    let compacted = [const { AtomicU64::new(0) }; 2];
    let found = run(&configs[..3], |rank, _, shelves| {
        let all = fill_until_compacted(rank == 0, shelves, &compacted, 3);
        check_oldest(shelves);
        let newest = shelves.position(0).expect("it has the state");
        assert_eq!(at(shelves, newest).expect("so can the newest one"), Shelves::after(all));
        all
    });
    let all = found[0];
    for rank in 0..3 {
        let (segments, checkpoints) = (files(&folder, rank, "log"), files(&folder, rank, "checkpoints"));
        // One segment more is ready for use.
        let needed = 1 + (all * THING_BYTES as u64 * 103 / 100).div_ceil(64 << 20);
        assert!(
            (segments as u64) < needed,
            "rank {rank}: {segments} segments, and no log needs more than {needed}"
        );
        assert!(checkpoints <= 3, "rank {rank}: {checkpoints} checkpoints");
    }
    // All make the state from a checkpoint and the log behind it.
    let found = run(&configs[..3], |_, group, shelves| {
        check_oldest(shelves);
        let mut faults = || -> Vec<HistoryError> {
            let mut history =
                group.subgroup("shelves").expect("it is there").history().expect("it is durable");
            assert!(matches!(history.next(), Some(Err(HistoryError::Compacted { .. }))));
            history.filter_map(Result::err).collect()
        };
        // A segment may be recycled while it is read, which is said: then the history begins behind it.
        let first = faults();
        assert!(first.iter().all(|fault| matches!(fault, HistoryError::Compacted { .. })), "{first:?}");
        assert!(first.is_empty() || faults().is_empty(), "the rest follows");
        present(shelves)
    });
    assert!(found.iter().all(|state| *state == Shelves::after(all)));
    // What was removed is in a checkpoint: a person could continue from one log.
    let loss = expected_loss(&configs[0]).expect("its log has everything");
    assert!(matches!(loss.subgroups["shelves"], SubgroupLoss::Tail { missing: 0, .. }), "{loss:?}");

    // Checkpoints that are lost are not made again from nothing, whatever the configuration says.
    spoil_checkpoints(&folder, 0);
    let mut wrong = configs[0].clone();
    wrong.subgroups.get_mut("shelves").expect("it is there").retain =
        Some(Retention { automatic: true, ..Retention::default() });
    for (config, words) in [(&configs[0], "can be read: take one"), (&wrong, "They had states, of an object")]
    {
        let error = expected_loss(config).expect_err("they are lost").to_string();
        assert!(error.contains(words), "{error}");
        let error = Group::join(config.clone()).expect_err("they are lost").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// The group continues from the log of one that was no member of the subgroup any more: that begins again, whatever checkpoints of it
/// there are.
#[test]
fn a_lost_subgroup_begins_again() {
    let (folder, configs) = configs("compaction-lost", None);
    let compacted = [const { AtomicU64::new(0) }; 2];
    let found = |count| {
        move |_: usize, _: &mut Group, shelves: &Object<Shelves>| {
            assert_eq!(present(shelves), Shelves::after(count));
            fill(shelves, count + 10);
        }
    };
    let member = [Config { members: 1, ..configs[0].clone() }];
    run(&member, |_, _, shelves| fill_until_compacted(true, shelves, &compacted, 1));
    let disk = FileDisk::open(&folder.0.join("rank-0")).expect("it is free");
    let owner = StorageOwner { cluster: member[0].cluster.clone(), member: "rank-0".into() };
    let storage = Storage::open(disk, &owner, LogSettings::DEFAULT, 0).expect("it is good");
    storage
        .change_register(|value| {
            let mut register = Register::decode(&value.protocol).expect("it is one");
            let chain = register.record.chain.clone();
            register.record.view.members.push(NodeId(77));
            register.record.view.shards[0] = RankSet::of(1);
            let salvage = register.salvage(&LogState::new(1), register.group + 1, true).expect("it can");
            assert_eq!((salvage.shards, chain.begun_again(0)), (vec![SalvagedShard::Lost], 0));
            value.protocol = salvage.register.encode();
        })
        .expect("it is written");
    drop(storage);
    let lost = names(&folder, 0, "checkpoints");
    assert!(!lost.is_empty());
    run(&member, found(0));
    // On a fast disk there may be one of what is there now.
    let here = names(&folder, 0, "checkpoints");
    assert!(lost.is_disjoint(&here), "{lost:?} {here:?}");
    run(&member, found(10));
}

/// Flips a bit in each checkpoint of a member that does not run.
fn spoil_checkpoints(folder: &TestFolder, rank: usize) {
    let checkpoints = folder.0.join(format!("rank-{rank}")).join("checkpoints");
    for file in fs::read_dir(checkpoints).expect("it exists") {
        let path = file.expect("it can be listed").path();
        let mut bytes = fs::read(&path).expect("it can be read");
        bytes[35] ^= 1;
        fs::write(&path, bytes).expect("it can be written");
    }
}

/// The first view of whose end the register of a member that does not run knows.
fn first_known_end(folder: &TestFolder, rank: usize) -> u64 {
    let disk = FileDisk::inspect(&folder.0.join(format!("rank-{rank}")));
    let storage = Storage::inspect(disk, LogSettings::DEFAULT).expect("it can be read");
    let register = Register::decode(&storage.register().expect("it is good").protocol).expect("it is one");
    register.record.chain.first()
}

/// A member that was away needs records that the others have no more: it takes a checkpoint.
#[test]
fn a_member_that_was_away_takes_a_checkpoint() {
    let (_folder, configs) = configs("compaction-away", None);
    run(&configs[..3], |rank, _, shelves| {
        if rank == 0 {
            fill(shelves, 10);
        }
        wait_until("all have everything", || count(shelves) == 10);
    });
    let compacted = [const { AtomicU64::new(0) }; 2];
    let found =
        run(&configs[1..3], |rank, _, shelves| fill_until_compacted(rank == 1, shelves, &compacted, 2));
    let before = found[0];
    // The first one was away, and the joiner was never there.
    for round in 0..2 {
        let found = run(&configs, |rank, _, shelves| {
            if rank == 0 {
                fill(shelves, before + 1 + round);
            }
            wait_until("all have everything", || count(shelves) == before + 1 + round);
            let newest = shelves.position(0).expect("it has the state");
            let read = || at(shelves, newest);
            wait_until("its log has what is missing", || read().is_ok());
            // They have got a checkpoint, since the others have no more.
            check_oldest(shelves);
            read().expect("just read")
        });
        assert!(found.iter().all(|state| *state == Shelves::after(before + 1 + round)));
    }
}

/// [W14] What is to be kept can be read, although newer checkpoints have been made.
#[test]
fn versions_that_are_to_be_kept_can_be_read() {
    let retain = Retention { time: Duration::from_secs(3600), ..Retention::default() };
    let (folder, configs) = configs("compaction-retain", Some(retain));
    // More than three segments: without the time, the first would be recycled.
    let count = 450;
    run(&configs[..3], |rank, _, shelves| {
        if rank == 0 {
            fill(shelves, count);
        }
        wait_until("all have everything", || self::count(shelves) == count);
        // A version by time, when there are checkpoints whose messages are later.
        let at_first = shelves.at(Version::Time(UNIX_EPOCH)).inspect(0, Clone::clone).expect("it is kept");
        assert_eq!(at_first.value, Shelves::default());
        for number in [0, 1, count / 2] {
            let position = Position { view: 0, sequence: 3 * number };
            let then = at(shelves, position).expect("it is kept");
            assert_eq!(then, Shelves::after(then.count));
            let counted = |version| shelves.at(version).inspect(0, |state| state.count).expect("it is kept");
            let by_position = counted(Version::Position(position));
            let by_time = by_position.time.map(|time| counted(Version::Time(time)).value);
            assert_eq!(by_time.unwrap_or(0), by_position.value, "at {position:?}");
        }
        wait_until("there are checkpoints", || files(&folder, rank, "checkpoints") >= 2);
    });
}

/// Messages without an object are kept until the application discards them.
#[test]
fn an_application_discards_messages() {
    let (folder, configs) = configs("compaction-discard", None);
    let config = Config { members: 1, contacts: configs[0].contacts[..1].to_vec(), ..configs[0].clone() };
    let mut kept = Position::default();
    for round in 0..2 {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let shelves = group.subgroup("shelves").expect("it is there");
        let before: Vec<_> = shelves.history().expect("it is durable").collect();
        let mut sender = shelves.sender().expect("it is free");
        let mut reader = shelves.deliveries().expect("they are free").from(kept).expect("it is durable");
        if round == 0 {
            assert!(before.is_empty());
            for number in 0..THINGS {
                sender.send_bytes(&thing(number)).expect("it is sent");
                assert_eq!(reader.next().expect("it comes").bytes, thing(number));
                if number % 100 == 99 {
                    reader.discard_log().expect("the disk works");
                }
            }
            kept = reader.position();
            assert!(
                files(&folder, 0, "log") <= 5,
                "{} segments of 64 MiB for 350 MB",
                files(&folder, 0, "log")
            );
        } else {
            assert!(matches!(before[0], Err(HistoryError::Compacted { .. })), "{:?}", before[0]);
            assert!(before.len() as u64 <= THINGS - 500, "{} messages", before.len());
            sender.send_bytes(b"last").expect("it is sent");
            reader.seek(Position::default());
            let error = reader.next().expect_err("it was discarded");
            let ReplayError::Compacted { oldest } = error else { panic!("{error}") };
            reader.seek(oldest);
            let outside = |from| Replay::connect(&config, "shelves", from);
            let error = outside(Position::default()).expect_err("it was discarded");
            assert_eq!(error, ExternalError::Compacted { subgroup: "shelves".into(), oldest });
            let first = outside(oldest).and_then(|mut outside| outside.next()).expect("it is kept");
            assert_eq!(Some(Ok(first)), before.get(1).cloned(), "the first of the history was an error");
            let mut rest = 0;
            while reader.next().expect("it is kept").bytes != b"last" {
                rest += 1;
            }
            assert_eq!(rest + 1, before.len(), "the first of the history was an error");
        }
    }
}

/// The same by itself: what all have delivered is discarded but for what is to be kept, at each of three members, and files are used
/// again.
#[test]
fn messages_are_discarded_by_themselves() {
    let kept = 100;
    let retain = Retention { versions: kept, automatic: true, ..Retention::default() };
    let (folder, mut configs) = configs("compaction-automatic", Some(retain));
    for config in &mut configs {
        // It shares the log, and is silent most of the time.
        let retain = Some(Retention { versions: 0, ..retain });
        let alerts = SubgroupConfig { message_max: 100, retain, ..config.subgroups["shelves"].clone() };
        config.subgroups.insert("alerts".into(), alerts);
    }
    for round in 0..3 {
        run_members(&configs[..3], |rank, group, all| {
            let refused = group.object("shelves", Shelves::default);
            assert!(
                matches!(refused, Err(HandleError::Discards(_))),
                "a state is made of messages that are discarded"
            );
            wait_until("all are in the view", || group.members() == 3);
            let alerts = group.subgroup("alerts").expect("it is there");
            let mut alerted = alerts.deliveries().expect("they are free");
            let mut sender = (rank == 0).then(|| alerts.sender().expect("it is free"));
            for number in 0..10 {
                sender.iter_mut().for_each(|sender| sender.send_bytes(&[number]).expect("there is space"));
                assert_eq!(alerted.next().expect("it comes").bytes, [number]);
            }
            alerted.release();
            let shelves = group.subgroup("shelves").expect("it is there");
            let before: Vec<_> = shelves.history().expect("it is durable").collect();
            let mut sender = (rank == 0).then(|| shelves.sender().expect("it is free"));
            let mut deliveries = shelves.deliveries().expect("they are free");
            let count = if round < 2 { THINGS } else { THINGS / 3 };
            for number in round * THINGS..round * THINGS + count {
                if let Some(sender) = &mut sender {
                    // Others may be behind.
                    let thing = thing(number);
                    sender
                        .send_blocking(thing.len(), |space| space.copy_from_slice(&thing))
                        .expect("it is sent");
                }
                assert_eq!(deliveries.next().expect("it comes").bytes, thing(number));
            }
            let files = files(&folder, rank, "log");
            assert!(files <= 6, "{files} segments of 64 MiB for {} MB", THINGS / 2);
            if round == 0 {
                assert_eq!(before, []);
            } else {
                let last = before.last().cloned().expect("some are kept").expect("it can be read");
                assert_eq!(last.bytes, thing(round * THINGS - 1));
                assert!(matches!(before[0], Err(HistoryError::Compacted { .. })), "{:?}", before[0]);
                let rest = before.len() as u64 - 1;
                assert!((kept..THINGS / 2).contains(&rest), "{rest} messages are kept");
            }
            all.wait();
        });
        let ends: Vec<u64> = (0..3).map(|rank| first_known_end(&folder, rank)).collect();
        if round == 0 {
            assert_eq!(ends, [0, 0, 0]);
            // Marks that are lost are made again, and what a recovery expects says so.
            spoil_checkpoints(&folder, 0);
            let loss = expected_loss(&configs[0]).expect("only marks are lost");
            assert!(matches!(loss.subgroups["shelves"], SubgroupLoss::Tail { missing: 0, .. }), "{loss:?}");
        }
        // The older one of two marks is a view behind.
        let is_short = ends.iter().all(|first| *first > 0);
        assert!(round < 2 || is_short, "how the first views have ended is not forgotten: {ends:?}");
    }
}

/// A reader that is behind finds everything, although the log discards what is delivered, and more than two segments are between.
#[test]
fn a_reader_that_is_behind_finds_everything() {
    let (folder, configs) = configs("compaction-behind", None);
    let config = Config { members: 1, contacts: configs[0].contacts[..1].to_vec(), ..configs[0].clone() };
    for round in 0..2 {
        let mut config = config.clone();
        let shelves = config.subgroups.get_mut("shelves").expect("it is there");
        shelves.retain = (round == 1).then(|| Retention { automatic: true, ..Retention::default() });
        let mut group = Group::join(config).expect("the group starts");
        let shelves = group.subgroup("shelves").expect("it is there");
        let mut sender = shelves.sender().expect("it is free");
        let mut reader =
            shelves.deliveries().expect("they are free").from(Position::default()).expect("it is durable");
        let is_sent = AtomicBool::new(false);
        thread::scope(|scope| {
            // Each waits for the other one.
            scope.spawn(|| {
                or_abort(|| {
                    for number in 0..THINGS {
                        let sent = thing(round * THINGS + number);
                        sender
                            .send_blocking(sent.len(), |space| space.copy_from_slice(&sent))
                            .expect("it is sent");
                    }
                    is_sent.store(true, Ordering::Relaxed);
                });
            });
            or_abort(|| {
                if round == 1 {
                    // With each call the sender continues, and the log grows by some segments.
                    let mut read_first = || {
                        reader.seek(Position::default());
                        assert_eq!(reader.next().expect("it is there").bytes, thing(0));
                    };
                    while !is_sent.load(Ordering::Relaxed) {
                        read_first();
                    }
                    wait_until("what the reader needs is kept", || files(&folder, 0, "log") > 10);
                    reader.seek(Position::default());
                }
                for number in 0..(round + 1) * THINGS {
                    assert_eq!(reader.next().expect("it is there").bytes, thing(number));
                }
            });
        });
    }
}

/// More than five segments of them.
const THINGS: u64 = 700;
