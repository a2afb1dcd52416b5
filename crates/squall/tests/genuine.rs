//! Messages to several shards of real groups: one order, with a leader that is killed and a process that joins (RamCast §2.2).

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Resource;
use squall::config::{Address, GenuineConfig, QuorumRule, Transport};
use squall::genuine::{GenuinePosition, MulticastSender};
use squall::{Config, Group, HandleError, JoinError, MessageOutcome, SendError};
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_transports::reserve_port;

/// What a member has delivered, in order.
type Log = Arc<Mutex<Vec<(GenuinePosition, Text)>>>;

/// How much each member has sent, and what it has delivered, by rank.
type FoundLogs = BTreeMap<usize, (u64, Vec<(GenuinePosition, Text)>)>;

/// Sender, number and destinations.
type Text = String;

/// The variable that makes this program the member that is killed; its value has what `member_config` takes.
const ROLE: &str = "SQUALL_GENUINE_KILLED";
const PATIENCE: Duration = Duration::from_secs(60);
/// The members of the shards; rank 4 is in none.
const SHARDS: [(&str, &[usize]); 2] = [("a", &[0, 1]), ("b", &[2, 3])];
const DESTINATIONS: [&[&str]; 3] = [&["a"], &["b", "a"], &["b"]];

/// The configuration of a member: over TCP if there are ports, else over shared memory.
fn member_config(name: &str, members: usize, rank: usize, ports: &[u16]) -> Config {
    let mut config = Config::local(name, members).for_rank(rank);
    if !ports.is_empty() {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        config.transport = Transport::Tcp;
        config.listen = address(rank);
        config.contacts = (0..members).map(address).collect();
    }
    let shard = |genuine: GenuineConfig, (name, ranks): (&str, &[usize])| genuine.shard(name, ranks);
    let shards = SHARDS.into_iter().fold(GenuineConfig::default(), shard);
    config.genuine = Some(GenuineConfig { window: 8, message_max: 64, ..shards });
    config
}

fn free_ports(transport: Transport, count: usize) -> Vec<u16> {
    let count = if transport == Transport::Tcp { count } else { 0 };
    (0..count).map(|_| reserve_port().unwrap()).collect()
}

struct Member {
    group: Group,
    log: Log,
    /// It sends until it is asked to stop, and returns its number of messages when all are delivered.
    thread: JoinHandle<u64>,
}

fn join(config: Config, only_join: bool, stop: Arc<AtomicBool>, most: u64) -> Member {
    let log = Log::default();
    let theirs = Arc::clone(&log);
    let builder = Group::builder(config).on_multicast(move |message| {
        let text = String::from_utf8(message.bytes.to_vec()).unwrap();
        theirs.lock().unwrap().push((message.position, text));
    });
    let builder = if only_join { builder.only_join() } else { builder };
    let mut group = builder.join().expect("the member joins");
    let (rank, sender) = (group.rank(), group.multicast_sender().unwrap());
    let thread = thread::spawn(move || send(sender, rank, &stop, most));
    Member { group, log, thread }
}

fn send(mut sender: MulticastSender, rank: usize, stop: &AtomicBool, most: u64) -> u64 {
    let mut number = 0;
    while number < most && !stop.load(Ordering::Relaxed) {
        let shards = DESTINATIONS[(rank + number as usize) % 3];
        let text = format!("{rank} {number} {}", shards.concat());
        sender.send_blocking(shards, text.as_bytes()).expect("the group lives");
        number += 1;
        assert_eq!(sender.sent(), number);
        if number.is_multiple_of(8) {
            thread::sleep(Duration::from_micros(300));
        }
    }
    assert_eq!(sender.wait_for_outcome(number - 1), MessageOutcome::Delivered);
    number
}

fn join_all(configs: Vec<Config>, stop: &Arc<AtomicBool>, most: u64) -> Vec<Member> {
    let start = |config| {
        let stop = Arc::clone(stop);
        thread::spawn(move || join(config, false, stop, most))
    };
    let threads: Vec<_> = configs.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Ends all members, when all that they have sent is delivered; returns how much each has sent, and its log, by rank.
fn finish(members: Vec<Member>) -> FoundLogs {
    let mut groups = Vec::new();
    let mut found = BTreeMap::new();
    for Member { group, log, thread } in members {
        found.insert(group.rank(), (thread.join().unwrap(), log));
        groups.push(group);
    }
    let log = |(rank, (sent, log)): (usize, (u64, Log))| (rank, (sent, log.lock().unwrap().clone()));
    found.into_iter().map(log).collect()
}

/// Positions grow at each member, and each message has one position, so there is one order of all. Everybody delivers what is for its
/// shard, and nothing else.
fn check_order(members: &FoundLogs) {
    let mut positions = BTreeMap::new();
    for (rank, (_, log)) in members {
        assert!(log.is_sorted_by(|a, b| a.0 < b.0), "positions grow at member {rank}");
        let shard = SHARDS.iter().find(|(_, ranks)| ranks.contains(rank)).map(|(name, _)| *name);
        for (position, text) in log {
            let is_mine = shard.is_some_and(|shard| text.split(' ').nth(2).unwrap().contains(shard));
            assert!(is_mine, "member {rank} has delivered {text}");
            assert_eq!(positions.entry(text).or_insert(position), &position, "{text} at member {rank}");
        }
    }
    for (rank, (_, log)) in members {
        let Some((shard, _)) = SHARDS.iter().find(|(_, ranks)| ranks.contains(rank)) else { continue };
        let here: Vec<&Text> = log.iter().map(|(_, text)| text).collect();
        let is_due = |text: &&&Text| text.split(' ').nth(2).unwrap().contains(shard);
        let missing = positions.keys().filter(is_due).find(|text| !here.contains(*text));
        assert_eq!(missing, None, "at member {rank}");
        for (sender, (sent, _)) in members {
            for number in 0..*sent {
                let shards = DESTINATIONS[(sender + number as usize) % 3];
                let text = format!("{sender} {number} {}", shards.concat());
                assert!(!shards.contains(shard) || here.contains(&&text), "{text} at member {rank}");
            }
        }
    }
}

fn all_members_of_the_shards_deliver_in_one_order(transport: Transport) {
    let name = format!("genuine-order-{transport:?}-{}", std::process::id());
    let ports = free_ports(transport, 5);
    let configs = (0..5).map(|rank| member_config(&name, 5, rank, &ports)).collect();
    let found = finish(join_all(configs, &Arc::default(), 120));
    check_order(&found);
    assert!(found.values().all(|(sent, _)| *sent == 120));
    assert_eq!(found[&0].1.len(), 5 * 80, "two of three messages are for shard a");
    assert_eq!(found[&4].1, [], "it is in no shard");
}

#[test]
fn all_members_of_the_shards_deliver_in_one_order_over_shm() {
    all_members_of_the_shards_deliver_in_one_order(Transport::Shm);
}

#[test]
fn all_members_of_the_shards_deliver_in_one_order_over_tcp() {
    all_members_of_the_shards_deliver_in_one_order(Transport::Tcp);
}

/// Kills the process in any case.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a test by itself: what the member does that is killed.
#[test]
fn the_killed_member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, ports) = role.split_once(' ').unwrap();
    let ports: Vec<u16> = ports.split_terminator(',').map(|port| port.parse().unwrap()).collect();
    let member = join(member_config(name, 4, 0, &ports), false, Arc::default(), u64::MAX);
    member.thread.join().unwrap();
}

/// Waits until a new message of each of these ranks is delivered here.
fn await_from(log: &Log, ranks: &[usize]) {
    let (from, deadline) = (log.lock().unwrap().len(), Instant::now() + PATIENCE);
    let is_from = |rank: &usize, text: &Text| text.split(' ').next() == Some(&rank.to_string());
    let has = |rank: &usize| log.lock().unwrap()[from..].iter().any(|(_, text)| is_from(rank, text));
    while !ranks.iter().all(has) {
        assert!(Instant::now() < deadline, "no message of one of {ranks:?} comes");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The member of rank 0 leads the view and shard a. It is killed while all send, and another process takes its place in the shard.
fn a_leader_is_killed_and_another_process_takes_its_place(transport: Transport) {
    let name = format!("genuine-killed-{transport:?}-{}", std::process::id());
    let ports = free_ports(transport, 4);
    let list: Vec<String> = ports.iter().map(u16::to_string).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_killed_member", "--nocapture"])
        .env(ROLE, format!("{name} {}", list.join(",")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let (mut leader, stop) = (Killed(child.unwrap()), Arc::new(AtomicBool::new(false)));
    let configs = (1..4).map(|rank| member_config(&name, 4, rank, &ports)).collect();
    let mut members = join_all(configs, &stop, u64::MAX);
    await_from(&members[0].log, &[0, 1, 2, 3]);
    leader.kill();
    await_from(&members[0].log, &[1, 2, 3]);
    await_from(&members[2].log, &[1, 2, 3]);
    members.push(join(member_config(&name, 4, 0, &ports), true, Arc::clone(&stop), u64::MAX));
    assert_eq!(members[3].group.rank(), 0);
    await_from(&members[3].log, &[0, 1, 2, 3]);
    await_from(&members[1].log, &[0, 1, 2, 3]);
    stop.store(true, Ordering::Relaxed);
    // The numbers of the joiner begin anew, and so do its texts.
    let mut found = finish(members);
    let (_, joined) = found.remove(&0).unwrap();
    let all = &found[&1].1;
    assert_eq!(
        joined,
        all[all.len() - joined.len()..],
        "from its first view on it delivers what its shard does"
    );
    assert_eq!(found[&2].1, found[&3].1);
    let first = joined[0].0.view;
    for (_, log) in found.values_mut() {
        // Both processes of rank 0 begin with number 0.
        let is_of_killed =
            |(position, text): &(GenuinePosition, Text)| text.starts_with("0 ") && position.view < first;
        log.retain(|delivered| !is_of_killed(delivered));
    }
    check_order(&found);
}

#[test]
fn a_leader_is_killed_over_shm() {
    a_leader_is_killed_and_another_process_takes_its_place(Transport::Shm);
}

#[test]
fn a_leader_is_killed_over_tcp() {
    a_leader_is_killed_and_another_process_takes_its_place(Transport::Tcp);
}

/// Two shards in a group of more members than a word has bits, each with a connection to each other. The one of rank 66 ends without
/// leaving, and the others continue.
#[test]
fn a_group_of_seventy_outlives_a_member() {
    const MEMBERS: usize = 70;
    const GONE: usize = 66;
    if rustix::process::getrlimit(Resource::Nofile).current.is_some_and(|most| most < 6_000) {
        return println!("skipped: too few descriptors (ulimit -n 6000)");
    }
    let (name, ports) =
        (format!("genuine-seventy-{}", std::process::id()), free_ports(Transport::Tcp, MEMBERS));
    let [even, odd] = [0, 1].map(|first| (first..MEMBERS).step_by(2).collect::<Vec<_>>());
    let shards = GenuineConfig::default().shard("a", &even).shard("b", &odd);
    let genuine = GenuineConfig { window: 2, message_max: 64, quorum: QuorumRule::Majority, ..shards };
    let join = |rank: usize| {
        let config = member_config(&name, MEMBERS, rank, &ports);
        // They share the cores of one machine.
        let config = Config { suspicion_after: None, genuine: Some(genuine.clone()), ..config };
        let delivered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&delivered);
        thread::spawn(move || {
            let builder = Group::builder(config);
            let builder = builder.on_multicast(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
            (builder.join().expect("the member joins"), delivered)
        })
    };
    let threads: Vec<_> = (0..MEMBERS).map(join).collect();
    let mut members: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    send_from_each(&mut members, &[0, 65, GONE], 3);
    drop(members.remove(GONE));
    wait_until("they are in the next view", || {
        members.iter().all(|(group, _)| group.members() == MEMBERS - 1)
    });
    send_from_each(&mut members, &[0, 64, 68], 6);
}

/// Sends a message of each of these members to both shards; returns when each member has delivered `total`.
fn send_from_each(members: &mut [(Group, Arc<AtomicU64>)], senders: &[usize], total: u64) {
    for sender in senders {
        let group = &mut members[*sender].0;
        wait_until("it is sent", || group.multicast(&["a", "b"], b"message").is_ok());
    }
    let have_all = || members.iter().all(|(_, delivered)| delivered.load(Ordering::Relaxed) == total);
    wait_until("all are delivered", have_all);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not yet");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn misuse_is_refused_with_its_reason() {
    let name = format!("genuine-misuse-{}", std::process::id());
    let mut group = Group::join(Config::local(&name, 1)).unwrap();
    assert!(matches!(group.multicast(&["a"], b"x"), Err(SendError::Handle(HandleError::NoShards))));
    drop(group);
    let builder = Group::builder(Config::local(&name, 1)).on_multicast(|_| ());
    assert!(matches!(builder.join(), Err(JoinError::NoShards)));

    let refused = Group::join(member_config(&name, 1, 0, &[])).unwrap_err().to_string();
    assert!(refused.contains("below `members`"), "shard b has no member at the start: {refused}");
    let mut config = member_config(&name, 1, 0, &[]);
    config.genuine = Some(GenuineConfig { message_max: 4, ..GenuineConfig::default().shard("a", &[0]) });
    let mut group = Group::join(config).unwrap();
    assert!(matches!(group.multicast(&["c"], b"x"), Err(SendError::UnknownShard(name)) if name == "c"));
    assert!(matches!(group.multicast(&[], b"x"), Err(SendError::NoShard)));
    assert!(matches!(
        group.multicast(&["a"], b"12345"),
        Err(SendError::TooLong { length: 5, message_max: 4 })
    ));
    group.multicast(&["a", "a"], b"1234").unwrap();
    let sender = group.multicast_sender().unwrap();
    assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
    assert!(matches!(group.multicast_sender(), Err(HandleError::MulticastTaken)));
    drop(group);
    assert_eq!(sender.outcome(1), MessageOutcome::Unknown);
}
