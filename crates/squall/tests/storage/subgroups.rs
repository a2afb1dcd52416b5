//! Durable subgroups are added and removed while the group is down: the others keep all that they have (Derecho §3.4, "Total failures").

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use squall::config::{SubgroupConfig, Transport};
use squall::recovery::{SubgroupLoss, accept_loss, expected_loss};
use squall::{Config, DeliveryMode, Group, JoinError, LogFolderError, MessageOutcome, Position, ReplayError};
use squall_log::{FileDisk, LogSettings, Storage};

use crate::storage::{TestFolder, configs, wait_until};

/// What a member finds in each of its subgroups.
type Found = BTreeMap<String, Vec<String>>;

/// Three members with folders, and no subgroup yet.
fn members(transport: Transport, test: &str, folder: &TestFolder) -> Vec<Config> {
    let configs = configs(transport, test, folder, "none").into_iter().take(3).enumerate();
    let without =
        |(rank, config): (usize, Config)| Config { rank: Some(rank), subgroups: BTreeMap::new(), ..config };
    configs.map(without).collect()
}

/// These members with these subgroups, all of which are durable, and with `removed` given up.
pub(crate) fn with(members: &[Config], subgroups: &[&str], removed: &[&str]) -> Vec<Config> {
    let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let with = |config: &Config| {
        let mut config = config.clone();
        config.storage.as_mut().expect("it has one").removed =
            removed.iter().map(|name| (*name).into()).collect();
        subgroups.iter().fold(config, |config, name| config.subgroup(name, durable.clone()))
    };
    members.iter().map(with).collect()
}

pub(crate) fn begin(config: &Config) -> Result<Group, JoinError> {
    let builder = Group::builder(config.clone());
    config.subgroups.keys().fold(builder, |builder, name| builder.on_message(name, |_| ())).join()
}

/// Starts a member, and waits until these many are in the view and its logs are whole.
fn start(config: &Config, members: usize) -> Result<Group, JoinError> {
    let mut group = begin(config)?;
    wait_until("all are in the view", || group.members() == members);
    for name in config.subgroups.keys() {
        let subgroup = group.subgroup(name).expect("it is in it");
        wait_until("the log is whole", || {
            subgroup.history().expect("it has a log").all(|message| message.is_ok())
        });
    }
    Ok(group)
}

pub(crate) fn history(group: &mut Group, name: &str) -> Vec<String> {
    let messages = group.subgroup(name).expect("it is in it").history().expect("it has a log");
    messages
        .map(|message| String::from_utf8(message.expect("it is whole").bytes).expect("it is text"))
        .collect()
}

/// A run of these members: each reads what is in its subgroups, and sends a message to each of them. They end without leaving.
fn run(configs: &[Config], number: usize) -> Vec<Found> {
    let (read, sent) = (Barrier::new(configs.len()), Barrier::new(configs.len()));
    let member = |config: &Config| {
        crate::aborting::or_abort(|| {
            let mut group = start(config, configs.len()).expect("the group starts");
            let names: Vec<String> = config.subgroups.keys().cloned().collect();
            let found = names.iter().map(|name| (name.clone(), history(&mut group, name))).collect();
            read.wait();
            for name in &names {
                let text = format!("{name} {number}");
                let mut sender =
                    group.subgroup(name).expect("it is in it").sender().expect("it is the first");
                sender.send_bytes(text.as_bytes()).expect("there is space");
                assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
            }
            sent.wait();
            found
        })
    };
    thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || member(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member does not panic")).collect()
    })
}

/// Asserts that all have found the messages of these runs. `sent` says how many members each run had.
fn assert_found(found: &[Found], sent: &[usize], runs: &[(&str, &[usize])]) {
    let of_run = |name: &str, run: &usize| vec![format!("{name} {run}"); sent[*run]];
    let expected = |(name, runs): &(&str, &[usize])| {
        ((*name).to_owned(), runs.iter().flat_map(|run| of_run(name, run)).collect())
    };
    let expected: Found = runs.iter().map(expected).collect();
    for found in found {
        assert_eq!(*found, expected);
    }
}

fn error(config: &Config) -> String {
    let config = Config { timeout: Duration::from_millis(1500), ..config.clone() };
    Group::join(config).map(drop).expect_err("it is refused").to_string()
}

/// Names are in front of, between and behind those that are there, so that the places of these change.
fn subgroups_come_and_go(transport: Transport, test: &str) {
    let folder = TestFolder::new(test);
    let members = members(transport, test, &folder);
    let all = |found: &[Found], runs: &[(&str, &[usize])]| assert_found(found, &[3; 10], runs);
    all(&run(&with(&members, &["m"], &[]), 0), &[("m", &[])]);
    all(&run(&with(&members, &["c", "m"], &[]), 1), &[("c", &[]), ("m", &[0])]);
    all(&run(&with(&members, &["c", "m"], &[]), 2), &[("c", &[1]), ("m", &[0, 1])]);
    let found = run(&with(&members, &["a", "c", "h", "m", "z"], &[]), 3);
    all(&found, &[("a", &[]), ("c", &[1, 2]), ("h", &[]), ("m", &[0, 1, 2]), ("z", &[])]);
    // One is removed, others at the same time added.
    let found = run(&with(&members, &["a", "b", "h", "m", "z"], &["c"]), 4);
    all(&found, &[("a", &[3]), ("b", &[]), ("h", &[3]), ("m", &[0, 1, 2, 3]), ("z", &[3])]);
    // The list is not needed any more. What is added again begins with nothing.
    let found = run(&with(&members, &["a", "b", "c", "h", "m", "z"], &[]), 5);
    let runs: [(&str, &[usize]); 6] =
        [("a", &[3, 4]), ("b", &[4]), ("c", &[]), ("h", &[3, 4]), ("m", &[0, 1, 2, 3, 4]), ("z", &[3, 4])];
    all(&found, &runs);
    let found = run(&with(&members, &["c", "m"], &["a", "b", "h", "z"]), 6);
    all(&found, &[("c", &[5]), ("m", &[0, 1, 2, 3, 4, 5])]);
    all(&run(&with(&members, &["z"], &["c", "m"]), 7), &[("z", &[])]);
    all(&run(&with(&members, &["m", "z"], &[]), 8), &[("m", &[]), ("z", &[7])]);
    all(&run(&with(&members, &["m", "z"], &[]), 9), &[("m", &[8]), ("z", &[7, 8])]);
}

#[test]
fn subgroups_come_and_go_on_shm() {
    subgroups_come_and_go(Transport::Shm, "subgroups-shm");
}

#[test]
fn subgroups_come_and_go_on_tcp() {
    subgroups_come_and_go(Transport::Tcp, "subgroups-tcp");
}

/// Subgroups that are not durable have places among the names, too.
#[test]
fn other_subgroups_come_and_go() {
    let folder = TestFolder::new("subgroups-others");
    let members = members(Transport::Shm, "subgroups-others", &folder);
    let durable = |others: &[&str]| -> Vec<Config> {
        let with_others = |config: &Config| {
            others
                .iter()
                .fold(config.clone(), |config, name| config.subgroup(name, SubgroupConfig::default()))
        };
        with(&members, &["m"], &[]).iter().map(with_others).collect()
    };
    let start = |configs: &[Config]| {
        let begun = Barrier::new(3);
        thread::scope(|scope| {
            let member = |config: &Config| {
                let (config, begun) = (config.clone(), &begun);
                scope.spawn(move || {
                    crate::aborting::or_abort(|| {
                        let mut group =
                            Group::builder(config).on_message("m", |_| ()).join().expect("it starts");
                        wait_until("all are in the view", || group.members() == 3);
                        let found = history(&mut group, "m").len();
                        begun.wait();
                        let mut sender = group.subgroup("m").unwrap().sender().unwrap();
                        sender.send_bytes(b"a message").expect("there is space");
                        assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
                        begun.wait();
                        found
                    })
                })
            };
            let threads: Vec<_> = configs.iter().map(member).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Vec<_>>()
        })
    };
    for (run, others) in [&["a"][..], &[], &["b", "z"], &["a", "b"]].into_iter().enumerate() {
        assert_eq!(start(&durable(others)), [3 * run; 3]);
    }
}

/// A name that is written wrongly loses nothing: the member says what it misses, and changes nothing.
#[test]
fn what_is_removed_is_named() {
    let folder = TestFolder::new("subgroups-named");
    let members = members(Transport::Shm, "subgroups-named", &folder);
    run(&with(&members, &["invoices", "orders"], &[]), 0);
    let renamed = with(&members, &["invoices", "order"], &[]);
    let refused = Group::join(renamed[0].clone()).expect_err("its log has another one");
    let JoinError::Log(LogFolderError::RemovedSubgroups { names, .. }) = &refused else {
        panic!("{refused}")
    };
    assert_eq!(names, &["orders"]);
    let text = refused.to_string();
    assert!(text.contains("write `removed = [\"orders\"]` in [storage] of all members"), "{text}");
    crate::trouble_page::assert_seen("subgroup removed", "the log", &text);
    let expected = expected_loss(&renamed[0]).expect_err("its log has another one").to_string();
    assert_eq!(expected, text);
    // No subgroup is left of which the list says that it is given up.
    let both = with(&members, &["invoices", "orders"], &["orders"]);
    let conflict = both[0].check().expect_err("it is there and not there").to_string();
    assert!(conflict.contains("take it off that list"), "{conflict}");
    let none = with(&members, &["invoices", "orders"], &["other"]);
    assert_found(&run(&none, 1), &[3; 2], &[("invoices", &[0]), ("orders", &[0])]);
    // A subgroup that is not durable any more is removed, too.
    let memory = |config: Config| config.subgroup("orders", SubgroupConfig::default());
    let [first, ..] =
        with(&members, &["invoices"], &[]).try_into().map(|all: [Config; 3]| all.map(memory)).unwrap();
    assert!(error(&first).contains("removed = [\"orders\"]"));
}

/// Members with different subgroups do not restart together.
#[test]
fn members_that_disagree_refuse_each_other() {
    let folder = TestFolder::new("subgroups-disagree");
    let members = members(Transport::Tcp, "subgroups-disagree", &folder);
    let before = with(&members, &["m"], &[]);
    run(&before, 0);
    let after = with(&members, &["a", "m"], &[]);
    let texts = thread::scope(|scope| {
        let threads = [&after[0], &before[1]].map(|config| scope.spawn(move || error(config)));
        threads.map(|thread| thread.join().expect("it does not panic"))
    });
    for text in &texts {
        assert!(text.contains("other durable subgroups"), "{text}");
    }
    assert_found(&run(&after, 1), &[3; 2], &[("a", &[]), ("m", &[0])]);
}

/// A member that was away while the set changed, once and again, has what the others have: also of a subgroup that was removed and added
/// again meanwhile, of which its own log has more. `is_first` says whether it starts with the others, or joins when they run.
fn a_member_that_was_away_catches_up(transport: Transport, test: &str, is_first: bool) {
    let folder = TestFolder::new(test);
    let members = members(transport, test, &folder);
    let sent = [3, 2, 2, 2, 3];
    assert_found(&run(&with(&members, &["m", "o"], &[]), 0), &sent, &[("m", &[]), ("o", &[])]);
    let two = &members[..2];
    assert_found(&run(&with(two, &["a", "m"], &["o"]), 1), &sent, &[("a", &[]), ("m", &[0])]);
    let found = run(&with(two, &["a", "m", "o"], &[]), 2);
    assert_found(&found, &sent, &[("a", &[1]), ("m", &[0, 1]), ("o", &[])]);
    let found = run(&with(two, &["a", "m", "o"], &[]), 3);
    assert_found(&found, &sent, &[("a", &[1, 2]), ("m", &[0, 1, 2]), ("o", &[2])]);
    let all = with(&members, &["a", "m", "o"], &[]);
    let expected: [(&str, &[usize]); 3] = [("a", &[1, 2, 3]), ("m", &[0, 1, 2, 3]), ("o", &[2, 3])];
    if is_first {
        assert_found(&run(&all, 4), &sent, &expected);
    } else {
        let begun = Barrier::new(3);
        let found: Vec<Found> = thread::scope(|scope| {
            let member = |config: &Config| {
                let (config, begun) = (config.clone(), &begun);
                scope.spawn(move || {
                    crate::aborting::or_abort(|| {
                        let is_late = config.rank == Some(2);
                        let early = (!is_late).then(|| start(&config, 2).expect("two are enough"));
                        begun.wait();
                        let mut group = early.unwrap_or_else(|| start(&config, 3).expect("the group runs"));
                        wait_until("all are in the view", || group.members() == 3);
                        let names = config.subgroups.keys();
                        let found = names.map(|name| (name.clone(), history(&mut group, name))).collect();
                        begun.wait();
                        found
                    })
                })
            };
            let threads: Vec<_> = all.iter().map(member).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        assert_found(&found, &sent, &expected);
    }
    // What it has caught up with is on its disk: it continues with one of the others.
    let last = with(&members[1..], &["a", "m", "o"], &[]);
    let found = run(&last, 4);
    assert!(found.iter().all(|found| found["o"].len() == if is_first { 7 } else { 4 }), "{found:?}");
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_member_that_was_away_catches_up_on_shm() {
    a_member_that_was_away_catches_up(Transport::Shm, "subgroups-away-shm", true);
}

#[test]
fn a_member_that_was_away_catches_up_on_tcp() {
    a_member_that_was_away_catches_up(Transport::Tcp, "subgroups-away-tcp", true);
}

#[test]
fn a_member_that_was_away_joins_the_changed_group() {
    a_member_that_was_away_catches_up(Transport::Tcp, "subgroups-late", false);
}

/// The same for one that was away while a subgroup was only removed, with the list as the others had it.
#[test]
fn a_member_that_was_away_gives_up_what_the_others_have() {
    let folder = TestFolder::new("subgroups-away-removed");
    let members = members(Transport::Shm, "subgroups-away-removed", &folder);
    let sent = [3, 2, 2, 3];
    run(&with(&members, &["m", "o"], &[]), 0);
    run(&with(&members[..2], &["m"], &["o"]), 1);
    // For them, the list is not needed any more; for the one that was away it is.
    run(&with(&members[..2], &["m"], &[]), 2);
    let all = with(&members, &["m"], &["o"]);
    assert!(error(&with(&members, &["m"], &[])[2]).contains("removed = [\"o\"]"));
    assert_found(&run(&all, 3), &sent, &[("m", &[0, 1, 2])]);
}

/// Before the group runs with the changed set, nothing is lost: it may as well start with that of before.
#[test]
fn a_change_that_the_group_has_not_made_is_undone() {
    let folder = TestFolder::new("subgroups-undone");
    let members = members(Transport::Shm, "subgroups-undone", &folder);
    run(&with(&members, &["m", "o"], &[]), 0);
    // Each of them starts alone, and then two of them with sets that differ.
    for config in with(&members, &["a", "m"], &["o"]) {
        assert!(error(&config).contains("1 of the 3 members"));
    }
    let differ = [with(&members, &["m"], &["o"])[0].clone(), with(&members, &["m", "z"], &["o"])[1].clone()];
    thread::scope(|scope| {
        differ.each_ref().map(|config| scope.spawn(move || error(config))).map(|thread| thread.join().is_ok())
    });
    assert_found(&run(&with(&members, &["m", "o"], &[]), 1), &[3; 3], &[("m", &[0]), ("o", &[0])]);
    let found = run(&with(&members, &["a", "m"], &["o"]), 2);
    assert_found(&found, &[3; 3], &[("a", &[]), ("m", &[0, 1])]);
}

/// A group continues from the log of one member, with a changed set of subgroups.
#[test]
fn a_group_continues_from_one_log_with_other_subgroups() {
    let folder = TestFolder::new("subgroups-recover");
    let members = members(Transport::Shm, "subgroups-recover", &folder);
    run(&with(&members, &["m", "o"], &[]), 0);
    for config in &members[1..] {
        std::fs::remove_dir_all(config.log_folder().expect("it has one")).expect("it can be removed");
    }
    let [after, ..] = &with(&members, &["a", "m"], &["o"])[..] else { unreachable!("there are three") };
    let loss = expected_loss(after).expect("it has a log");
    let kept = |messages, sequences| SubgroupLoss::Tail { messages, sequences, missing: 0 };
    let of_m = loss.subgroups["m"];
    assert!(matches!(of_m, SubgroupLoss::Tail { messages: 3, missing: 0, .. }), "{of_m:?}");
    assert_eq!(loss.subgroups["a"], kept(0, 0), "there was nothing to lose");
    assert_eq!(loss.subgroups.len(), 2);
    assert_eq!(accept_loss(after).expect("it has a log"), loss);
    let mut group = start(after, 1).expect("it starts alone");
    assert_eq!([history(&mut group, "m").len(), history(&mut group, "a").len()], [3, 0]);
    let mut sender = group.subgroup("a").unwrap().sender().unwrap();
    sender.send_bytes(b"the first").expect("there is space");
    assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
    drop((sender, group));
    let mut group = start(after, 1).expect("it starts alone");
    assert_eq!(history(&mut group, "a"), ["the first"]);
}

/// A subgroup that was removed holds no space: its checkpoints are removed, and the segments in which its records are can be used again.
#[test]
fn a_removed_subgroup_holds_no_space() {
    let folder = TestFolder::new("subgroups-space");
    let [first, ..] = &members(Transport::Shm, "subgroups-space", &folder)[..] else {
        unreachable!("there are three")
    };
    let alone = Config { members: 1, contacts: vec![first.listen.clone()], ..first.clone() };
    let names = |inside: &str| -> Vec<String> {
        let files = std::fs::read_dir(folder.0.join("rank-0").join(inside)).expect("it exists");
        files.map(|file| file.expect("it is listed").file_name().into_string().expect("it is text")).collect()
    };
    let config = |names: &[&str], removed: &[&str]| {
        let [mut config] =
            with(std::slice::from_ref(&alone), names, removed).try_into().expect("there is one");
        config.subgroups.values_mut().for_each(|subgroup| subgroup.message_max = MESSAGE);
        config
    };
    // Two segments and more. Of the one that is removed the beginning is discarded.
    let mut group = Group::join(config(&["m", "o"], &[])).expect("it starts");
    send_some(&mut group, "o", 150, 20);
    send_some(&mut group, "m", 1, 1);
    drop(group);
    let segments = names("log");
    assert!(segments.contains(&"0000000001.segment".into()) && segments.len() >= 3, "{segments:?}");
    assert!(names("checkpoints").iter().any(|name| name.starts_with("1-")), "{:?}", names("checkpoints"));
    let mut group = Group::join(config(&["m"], &["o"])).expect("it starts");
    let checkpoints = names("checkpoints");
    assert!(
        !checkpoints.is_empty() && checkpoints.iter().all(|name| name.starts_with("0-")),
        "{checkpoints:?}"
    );
    send_some(&mut group, "m", 150, 150);
    let segments = names("log");
    // The file of one that is not needed is kept for the next one.
    assert!(segments.len() <= 4, "{segments:?}");
    drop(group);
    let storage = Storage::inspect(FileDisk::inspect(&folder.0.join("rank-0")), LogSettings::DEFAULT);
    let register = storage.expect("it is good").register().expect("it is good");
    assert!(register.base.segment >= 4, "{:?}", register.base);
    assert_eq!(register.recycled.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!((register.subgroups.numbers, register.subgroups.next), ([("m".into(), 0)].into(), 2));
}

/// The length of messages that fill segments of 64 MiB.
const MESSAGE: usize = 1 << 20;

/// Sends and takes these many long messages, and discards them up to a number.
fn send_some(group: &mut Group, name: &str, count: usize, discarded: usize) {
    let subgroup = group.subgroup(name).expect("it is in it");
    let mut sender = subgroup.sender().expect("it is free");
    let mut reader =
        subgroup.deliveries().expect("they are free").from(Position::default()).expect("it is durable");
    let bytes = vec![7; MESSAGE];
    for number in 0..count {
        sender.send_blocking(MESSAGE, |space| space.copy_from_slice(&bytes)).expect("it is sent");
        loop {
            match reader.next() {
                Ok(_) => break,
                Err(ReplayError::Compacted { oldest }) => reader.seek(oldest),
                Err(error) => panic!("{error}"),
            }
        }
        if number < discarded && (number % 40 == 19 || number + 1 == count) {
            reader.discard_log().expect("the disk works");
        }
    }
}
