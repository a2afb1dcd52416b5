//! Members that are killed while they start with other durable subgroups than before (Derecho §3.4, "Total failures").

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::StorageConfig;
use squall::{Config, Group, JoinError, MessageOutcome};

use crate::storage::{PATIENCE, TestFolder, wait_until};
use crate::subgroups::{begin, history, with};

/// What a child process reads: folder, group, rank, subgroups, and those that are removed.
const CHILD: &str = "SQUALL_TEST_SUBGROUPS";
/// What it says when its message is delivered, and before the reason if it cannot start.
const READY: &str = "ready ";
const REFUSED: &str = "refused ";

/// A set of subgroups, and what is removed.
type Sets = (&'static [&'static str], &'static [&'static str]);

/// A member of a group of three in any process.
fn config_of(path: &str, group: &str, rank: usize, (names, removed): (&[&str], &[&str])) -> Config {
    let mut config = Config::local(group, 3).for_rank(rank);
    config.storage = Some(StorageConfig::new(path));
    config.timeout = Duration::from_secs(20);
    let [config] = with(&[config], names, removed).try_into().expect("there is one");
    config
}

/// A member in a process of its own.
#[test]
fn a_member_that_is_killed() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let [path, group, rank, names, removed] = text.split('|').collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let list = |names: &'static str| names.split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>();
    let (names, removed) = (list(names.to_owned().leak()), list(removed.to_owned().leak()));
    let config = config_of(path, group, rank.parse().expect("a rank"), (&names, &removed));
    let mut group = match begin(&config) {
        Ok(group) => group,
        Err(error) => return println!("\n{REFUSED}{error}"),
    };
    let mut sender = group.subgroup("m").unwrap().sender().unwrap();
    sender.send_bytes(b"of a child").expect("there is space");
    assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
    println!("\n{READY}");
    loop {
        thread::park();
    }
}

/// A process that is killed at the end.
struct ChildMember(Child);

impl ChildMember {
    fn start(path: &str, group: &str, rank: usize, (names, removed): Sets) -> Self {
        let text = format!("{path}|{group}|{rank}|{}|{}", names.join(","), removed.join(","));
        let mut command = Command::new(std::env::current_exe().expect("it is known"));
        let command = command.args(["--exact", "subgroups_killed::a_member_that_is_killed", "--nocapture"]);
        let child = command.env(CHILD, text).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        Self(child.expect("it can be started"))
    }
}

impl Drop for ChildMember {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the members in processes, kills all of them after `delay` or when all are ready; returns how many were, how long they took, and
/// the reasons of those that were refused.
fn start_and_kill(path: &str, group: &str, sets: Sets, delay: Duration) -> (usize, Duration, Vec<String>) {
    let began = Instant::now();
    let mut members = [0, 1, 2].map(|rank| ChildMember::start(path, group, rank, sets));
    let (sender, lines) = channel();
    for member in &mut members {
        let (output, sender) = (member.0.stdout.take().expect("it is piped"), sender.clone());
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines
                .filter(|line| line.starts_with(READY) || line.starts_with(REFUSED))
                .try_for_each(|line| sender.send(line))
        });
    }
    drop(sender);
    let (mut ready, mut refused) = (0, Vec::new());
    while ready < 3 {
        let Ok(line) = lines.recv_timeout(delay.saturating_sub(began.elapsed())) else { break };
        match line.strip_prefix(REFUSED) {
            Some(reason) => refused.push(reason.to_owned()),
            None => ready += 1,
        }
    }
    let took = began.elapsed();
    drop(members);
    (ready, took, refused)
}

/// All members are killed at any time of a start with a changed set; the next start has that set or another one. What was delivered is there,
/// and a member that cannot start says why.
#[test]
fn starts_that_are_killed_lose_nothing() {
    let folder = TestFolder::new("subgroups-killed");
    let (path, group) =
        (folder.0.to_str().expect("it is text"), format!("subgroups-killed-{}", std::process::id()));
    let sets: [Sets; 3] =
        [(&["m", "o"], &["a", "z"]), (&["a", "m"], &["o", "z"]), (&["m", "z"], &["a", "o"])];
    let (mut delivered, took, _) = start_and_kill(path, &group, sets[0], PATIENCE);
    assert_eq!(delivered, 3);
    let (mut starts, mut bound) = (0, 0);
    for attempt in 1..=20 {
        let sets = sets[attempt % 3];
        let (ready, _, refused) =
            start_and_kill(path, &group, sets, took * u32::try_from(attempt).unwrap() / 16);
        delivered += ready;
        starts += usize::from(ready == 3);
        bound += refused.len();
        for reason in refused {
            assert!(
                reason.contains("has voted in a restart of its group with other durable subgroups"),
                "{reason}"
            );
        }
    }
    println!("{starts} of 20 starts were whole, and {bound} members were bound to another set");
    let begin_all = |sets: Sets| -> Vec<Result<Group, JoinError>> {
        let configs: Vec<Config> = (0..3).map(|rank| config_of(path, &group, rank, sets)).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = configs.iter().map(|config| scope.spawn(|| begin(config))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        })
    };
    let is_majority =
        |begun: &Vec<Result<Group, JoinError>>| begun.iter().filter(|one| one.is_ok()).count() >= 2;
    let of_set = |sets: &Sets| Some((*sets, begin_all(*sets))).filter(|(_, begun)| is_majority(begun));
    let (sets, begun) =
        sets.iter().find_map(of_set).expect("a majority is bound to one of the sets, or to none");
    let found = begun.into_iter().enumerate().map(|(rank, begun)| {
        let config = config_of(path, &group, rank, sets);
        begun.unwrap_or_else(|error| {
            // The group runs without its vote.
            assert!(error.to_string().contains("move the folder away"), "{error}");
            std::fs::remove_dir_all(config.log_folder().expect("it has one")).expect("it can be removed");
            begin(&config).expect("it joins")
        })
    });
    let mut found: Vec<Group> = found.collect();
    wait_until("all are in the view", || found.iter_mut().all(|group| group.members() == 3));
    let whole =
        |group: &mut Group| group.subgroup("m").unwrap().history().unwrap().all(|message| message.is_ok());
    wait_until("the logs are whole", || found.iter_mut().all(whole));
    let histories: Vec<_> = found.iter_mut().map(|group| history(group, "m")).collect();
    assert!(histories.iter().all(|messages| *messages == histories[0]), "the histories differ");
    assert!(histories[0].len() >= delivered, "{} of {delivered} messages are there", histories[0].len());
}
