//! Total restart: all members of a group with a durable subgroup end, and the group continues from what is on their disks (Derecho
//! §3.4, "Total failures").

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_log::{FileDisk, LogSettings, Storage, TailVerdict, back_up};

use crate::storage::{PATIENCE, TestFolder, wait_until};
use squall::config::{Secret, Transport};
use squall::recovery::{RecoveryError, SubgroupLoss, accept_loss, expected_loss};
use squall::{BootstrapProgress, Config, Group, JoinError, MessageOutcome, StoredMessage, SubgroupHandle};

/// Three members with a durable subgroup, and a joiner.
pub(crate) fn configs(transport: Transport, test: &str, folder: &TestFolder) -> Vec<Config> {
    let configs = crate::storage::configs(transport, test, folder, "orders").into_iter().enumerate();
    configs.map(|(rank, config)| Config { rank: Some(rank), ..config }).collect()
}

/// What a member has delivered, in order.
pub(crate) type DeliveredMessages = Vec<(u64, u64, usize, Vec<u8>)>;

fn content(run: usize, rank: usize, number: usize) -> Vec<u8> {
    let length = if number % 9 == 4 { 200_000 } else { 20 + number };
    format!("{run} {rank} {number} ").into_bytes().into_iter().cycle().take(length).collect()
}

/// A run of these members: when all are in one view, each reads what was delivered before, and takes and sends messages until it has
/// `count` of each. Returns what each has found and delivered. They end without leaving.
pub(crate) fn run(
    configs: &[Config],
    number: usize,
    count: usize,
) -> Vec<(DeliveredMessages, DeliveredMessages)> {
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let member = |config: &Config| {
        let mut group = Group::join(config.clone()).expect("the group starts");
        let rank = group.rank();
        // On a slow machine a restart continues without a member that comes late, which joins.
        wait_until("all are in the view", || group.members() == configs.len());
        let orders = group.subgroup("orders").expect("it is in it");
        let found = whole_history(orders);
        let (mut sender, mut deliveries) = (orders.sender().unwrap(), orders.deliveries().unwrap());
        begun.fetch_add(1, Ordering::SeqCst);
        wait_until("all are here", || begun.load(Ordering::SeqCst) == configs.len());
        let sending = thread::spawn(move || {
            for message in 0..count {
                let bytes = content(number, rank, message);
                sender.send_blocking(bytes.len(), |space| space.copy_from_slice(&bytes)).expect("it is sent");
            }
            assert_eq!(sender.wait_for_outcome(count as u64 - 1), MessageOutcome::Delivered);
        });
        let mut delivered = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while delivered.len() < configs.len() * count {
            match deliveries.try_next().expect("the group lives") {
                Some(message) => {
                    delivered.push((message.view, message.sequence, message.sender, message.bytes.to_vec()));
                    deliveries.release();
                }
                None => {
                    assert!(Instant::now() < deadline, "{} messages have come", delivered.len());
                    thread::sleep(Duration::from_micros(200));
                }
            }
        }
        sending.join().expect("it does not panic");
        done.fetch_add(1, Ordering::SeqCst);
        wait_until("all have everything", || done.load(Ordering::SeqCst) == configs.len());
        (found, delivered)
    };
    thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// What was delivered earlier, as soon as a member that came late has it.
fn whole_history(orders: &SubgroupHandle) -> DeliveredMessages {
    let read = || orders.history().expect("it has a log").collect::<Result<Vec<_>, _>>();
    wait_until("the log is whole", || read().is_ok());
    read().expect("it was whole").into_iter().map(plain).collect()
}

/// What is the same at all members.
fn plain(message: StoredMessage) -> (u64, u64, usize, Vec<u8>) {
    (message.view, message.sequence, message.sender, message.bytes)
}

/// Asserts that a history has what was delivered, in this order. It may have more at the end of a run.
pub(crate) fn assert_holds(history: &DeliveredMessages, delivered: &DeliveredMessages) {
    let mut history = history.iter();
    for message in delivered {
        assert!(history.any(|other| other == message), "message {} of view {}", message.1, message.0);
    }
}

fn everything_is_there_after_each_restart(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = configs(transport, test, &folder);
    let mut before = DeliveredMessages::new();
    for number in 0..4 {
        let runs = run(&configs[..3], number, 30);
        for (found, delivered) in &runs {
            assert!(*found == runs[0].0, "the histories differ");
            assert!(*delivered == runs[0].1, "the orders differ");
            assert_holds(found, &before);
        }
        before.extend(runs[0].1.iter().cloned());
    }
}

#[test]
fn everything_is_there_after_each_restart_on_shm() {
    everything_is_there_after_each_restart(Transport::Shm, "restart-shm");
}

#[test]
fn everything_is_there_after_each_restart_on_tcp() {
    everything_is_there_after_each_restart(Transport::Tcp, "restart-tcp");
}

/// Two of three are a quorum; the third one joins when it is back, and gets what was delivered meanwhile.
#[test]
fn a_majority_restarts() {
    let folder = TestFolder::new("restart-majority");
    let configs = configs(Transport::Tcp, "restart-majority", &folder);
    let first = run(&configs[..3], 0, 10);
    // The first contact is not among them.
    let second = run(&configs[1..3], 1, 10);
    assert!(second[0].0 == second[1].0, "the histories differ");
    assert_holds(&second[0].0, &first[0].1);
    let done = AtomicUsize::new(0);
    let histories: Vec<_> = thread::scope(|scope| {
        let join = |config: &Config| {
            let (config, done) = (config.clone(), &done);
            scope.spawn(move || {
                let mut group = Group::join(config).expect("the group starts");
                wait_until("a view of three", || group.members() == 3);
                let history = whole_history(group.subgroup("orders").unwrap());
                done.fetch_add(1, Ordering::SeqCst);
                wait_until("all are there", || done.load(Ordering::SeqCst) >= 3);
                history
            })
        };
        let threads: Vec<_> = configs.iter().take(3).map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    for history in &histories {
        assert_eq!(history.len(), histories[0].len());
        assert!(history.len() >= first[0].1.len() + second[0].1.len());
    }
}

/// A joiner gets what was delivered before its first view while the group runs, and is as good as the others after a restart.
fn a_joiner_gets_what_was_before(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = configs(transport, test, &folder);
    let first = run(&configs[..3], 0, 20);
    let done = AtomicUsize::new(0);
    let histories: Vec<_> = thread::scope(|scope| {
        let join = |config: &Config| {
            let (config, done) = (config.clone(), &done);
            scope.spawn(move || {
                let is_joiner = config.rank == Some(3);
                wait_until("the others have restarted", || !is_joiner || done.load(Ordering::SeqCst) == 3);
                let mut group = Group::join(config).expect("the group starts");
                done.fetch_add(1, Ordering::SeqCst);
                wait_until("a view of four", || group.members() == 4);
                let history = whole_history(group.subgroup("orders").unwrap());
                done.fetch_add(1, Ordering::SeqCst);
                wait_until("all are there", || done.load(Ordering::SeqCst) == 8);
                history
            })
        };
        let threads: Vec<_> = configs.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    for history in &histories {
        assert!(*history == histories[0], "the histories differ");
        assert_holds(history, &first[0].1);
    }
    // Of the first members one is left; the joiner takes the place of another one.
    let last = run(&configs[1..], 1, 5);
    last.iter().for_each(|(found, _)| assert_holds(found, &first[0].1));
}

#[test]
fn a_joiner_gets_what_was_before_on_shm() {
    a_joiner_gets_what_was_before(Transport::Shm, "restart-joiner-shm");
}

#[test]
fn a_joiner_gets_what_was_before_on_tcp() {
    a_joiner_gets_what_was_before(Transport::Tcp, "restart-joiner-tcp");
}

/// The log of one member is damaged where others have said that it is whole: what is missing comes from them.
#[test]
fn a_damaged_log_is_repaired() {
    let folder = TestFolder::new("restart-damaged");
    let configs = configs(Transport::Shm, "restart-damaged", &folder);
    let first = run(&configs[..3], 0, 30);
    // Whose records say that what was written before is on the disk.
    let second = run(&configs[..3], 1, 5);
    damage(&configs[2]);
    let third = run(&configs[..3], 2, 5);
    assert_holds(&third[0].0, &first[0].1);
    assert_holds(&third[0].0, &second[0].1);
    assert!(third[2].0 == third[0].0 && third[1].0 == third[0].0, "the histories differ");
    // What was repaired stays so.
    let last = run(&configs[..3], 3, 5);
    assert_holds(&last[2].0, &third[0].0);
    assert_holds(&last[2].0, &third[0].1);
}

/// Flips bits in the second frame of a member's log.
fn damage(config: &Config) {
    let folder = config.log_folder().expect("it has one");
    let path = folder.join("log/0000000001.segment");
    let mut bytes = std::fs::read(&path).expect("there is a log");
    let begins = |block: &usize| bytes[*block..*block + 4] == bytes[..4];
    let frames: Vec<usize> = (0..bytes.len()).step_by(4096).filter(begins).collect();
    let [_, damaged, _, ..] = frames[..] else { panic!("{} frames", frames.len()) };
    bytes[damaged + 100] ^= 0x5a;
    std::fs::write(&path, bytes).expect("it can be written");
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).expect("there is a log");
    let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
    assert_eq!(recovered.verdict, TailVerdict::Damaged);
}

/// All folders are lost, and there is a copy of one: the group continues from it, but only if a person says so.
#[test]
fn a_group_continues_from_a_backup() {
    let folder = TestFolder::new("restart-backup");
    let configs = configs(Transport::Shm, "restart-backup", &folder);
    let (_, delivered) = run(&configs[..3], 0, 20).swap_remove(1);
    let (own, copy) = (configs[1].log_folder().expect("it has one"), folder.0.join("copy"));
    let target = FileDisk::open(&copy).expect("it is free");
    back_up(&FileDisk::inspect(&own), &target, LogSettings::DEFAULT, &mut |_, _| ()).expect("the disk works");
    drop(target);
    run(&configs[..3], 1, 5);
    for config in &configs[..3] {
        std::fs::remove_dir_all(config.log_folder().expect("it has one")).expect("it can be removed");
    }
    std::fs::rename(&copy, &own).expect("it can be moved");
    let error = Group::join(configs[1].clone()).expect_err("a copy is no member's folder");
    assert!(error.to_string().contains("squall recover --accept-loss"), "{error}");
    let loss = expected_loss(&configs[1]).expect("it has a log");
    assert!(loss.is_copy && !loss.is_damaged, "{loss:?}");
    assert_eq!(accept_loss(&configs[1]).expect("it has a log"), loss);
    let mut group = Group::join(configs[1].clone()).expect("it starts alone");
    let history = whole_history(group.subgroup("orders").expect("it is in it"));
    assert_holds(&history, &delivered);
    assert!(history.iter().all(|message| message.0 == 0), "what came later is lost");
}

/// One of three is none: it says who is missing.
#[test]
fn a_minority_waits() {
    let folder = TestFolder::new("restart-minority");
    let mut configs = configs(Transport::Shm, "restart-minority", &folder);
    run(&configs[..3], 0, 3);
    configs[0].timeout = Duration::from_millis(500);
    let error = Group::join(configs[0].clone()).expect_err("it is alone");
    assert!(matches!(error, JoinError::Restart { present: 1, members: 3, needed: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("1 of the 3 members") && text.contains("Start the missing members"), "{text}");
    let others = [&configs[1], &configs[2]].map(|config| config.listen.to_string());
    assert!(others.iter().all(|address| text.contains(address)), "it says where: {text}");
}

/// While a process answers that has a log of the group, or may have one, no log is made the only one: there would be two groups.
#[test]
fn nothing_is_accepted_while_the_group_answers() {
    let folder = TestFolder::new("restart-answers");
    let configs = configs(Transport::Tcp, "restart-answers", &folder);
    run(&configs[..3], 0, 3);
    let others: Vec<_> = configs[1..3].iter().map(|config| config.listen.clone()).collect();
    let running = Barrier::new(3);
    thread::scope(|scope| {
        for config in &configs[1..3] {
            let running = &running;
            scope.spawn(move || {
                let group = Group::join(config.clone()).expect("two are enough");
                running.wait();
                running.wait();
                drop(group);
            });
        }
        running.wait();
        let refused = accept_loss(&configs[0]).expect_err("the group runs");
        assert!(
            matches!(&refused, RecoveryError::Runs { address, members: 2, .. } if others.contains(address)),
            "{refused}"
        );
        let mut stranger = configs[0].clone();
        stranger.secret = Secret::new("another one, as long as it has to be").expect("it is long enough");
        let refused = accept_loss(&stranger).expect_err("it cannot know");
        assert!(
            matches!(&refused, RecoveryError::Unclear { address, .. } if others.contains(address)),
            "{refused}"
        );
        // The member itself says so at once, and does not advise to give up the others' logs.
        let (begun, timeout) = (Instant::now(), stranger.timeout);
        let refused = Group::join(stranger).expect_err("it is a stranger").to_string();
        assert!(refused.contains("the same secret") && !refused.contains("squall recover"), "{refused}");
        assert!(begun.elapsed() < timeout / 2, "after {:?} of {timeout:?}", begun.elapsed());
        running.wait();
    });
    let (sender, waits) = channel();
    thread::scope(|scope| {
        let alone = Config { timeout: Duration::from_secs(10), ..configs[1].clone() };
        scope.spawn(move || {
            let waiting = Group::builder(alone).on_progress(move |progress| {
                if matches!(progress, BootstrapProgress::Restarting { .. }) {
                    // The test may be over.
                    let _ = sender.send(());
                }
            });
            waiting.join().map(drop).expect_err("it is no majority");
        });
        waits.recv().expect("it waits");
        let refused = accept_loss(&configs[0]).expect_err("another log is there");
        assert!(
            matches!(&refused, RecoveryError::Waits { address } if *address == configs[1].listen),
            "{refused}"
        );
    });
    accept_loss(&configs[0]).expect("the others are away");
}

/// Two of three logs are lost forever, and a person accepts that.
fn a_group_continues_from_one_log(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let configs = configs(transport, test, &folder);
    let (_, delivered) = run(&configs[..3], 0, 20).swap_remove(1);
    let old = folder.0.join("old");
    std::fs::create_dir(&old).expect("it can be made");
    let lost = configs[0].log_folder().expect("it has one");
    std::fs::rename(&lost, old.join("rank-0")).expect("it can be moved");
    std::fs::remove_dir_all(configs[2].log_folder().expect("it has one")).expect("it can be removed");
    let short = Config { timeout: Duration::from_millis(500), ..configs[1].clone() };
    assert!(matches!(Group::join(short.clone()), Err(JoinError::Restart { .. })), "it is no majority");

    let loss = expected_loss(&configs[1]).expect("it has a log");
    assert!(matches!(Group::join(short), Err(JoinError::Restart { .. })), "to look changes nothing");
    let SubgroupLoss::Tail { messages, missing, .. } = loss.subgroups["orders"] else { panic!("{loss:?}") };
    // On a fast disk, the last view in the logs may be one of two.
    assert!(messages >= delivered.len() as u64 && loss.members.len() >= 2 && !loss.is_damaged, "{loss:?}");
    assert_eq!(missing, 0, "all had everything");
    assert_eq!(accept_loss(&configs[1]).expect("it has a log"), loss);
    let again = expected_loss(&configs[1]);
    assert!(matches!(again, Err(RecoveryError::NotNeeded { .. })), "{again:?}");

    // The survivor first, and then the others as joiners.
    let survivor = configs[1].clone();
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let member = |config: Config| {
            let (ready, done, delivered) = (&ready, &done, &delivered);
            let rank = config.rank.expect("it is set");
            scope.spawn(move || {
                let mut group = Group::join(config).expect("it starts");
                ready.fetch_add(1, Ordering::SeqCst);
                wait_until("a view of three", || group.members() == 3);
                let history = whole_history(group.subgroup("orders").unwrap());
                assert_holds(&history, delivered);
                done.fetch_add(1, Ordering::SeqCst);
                wait_until("all are there", || done.load(Ordering::SeqCst) >= 3);
                // The last view is one of the others, whichever of these ends first.
                if rank == 0 {
                    group.leave(PATIENCE);
                } else {
                    wait_until("the first one has left", || group.members() == 2);
                    done.fetch_add(1, Ordering::SeqCst);
                    wait_until("both have seen that", || done.load(Ordering::SeqCst) == 5);
                }
                history.len() as u64
            })
        };
        let mut members = vec![member(survivor)];
        wait_until("the survivor has restarted alone", || ready.load(Ordering::SeqCst) == 1);
        members.extend([0, 2].map(|place: usize| member(configs[place].clone())));
        for member in members {
            assert_eq!(member.join().expect("it does not panic"), messages);
        }
    });
    // It was not lost after all: it has parted from the others, and nothing of it is overwritten.
    std::fs::rename(&lost, old.join("new")).expect("it can be moved");
    std::fs::rename(old.join("rank-0"), &lost).expect("it can be moved");
    let (ready, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let others: Vec<_> = [1, 2]
            .map(|place: usize| {
                let (config, ready, refused) = (configs[place].clone(), &ready, &refused);
                scope.spawn(move || {
                    let _group = Group::join(config).expect("a majority is here");
                    ready.fetch_add(1, Ordering::SeqCst);
                    wait_until("the old log is refused", || refused.load(Ordering::SeqCst) == 1);
                })
            })
            .into();
        wait_until("the group runs", || ready.load(Ordering::SeqCst) == 2);
        let error = Group::join(configs[0].clone()).expect_err("it is of another group");
        refused.store(1, Ordering::SeqCst);
        others.into_iter().for_each(|other| other.join().expect("it does not panic"));
        let text = error.to_string();
        assert!(text.contains("move the folder away"), "{text}");
    });
}

#[test]
fn a_group_continues_from_one_log_on_shm() {
    a_group_continues_from_one_log(Transport::Shm, "recover-shm");
}

#[test]
fn a_group_continues_from_one_log_on_tcp() {
    a_group_continues_from_one_log(Transport::Tcp, "recover-tcp");
}
