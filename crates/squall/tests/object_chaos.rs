//! Members are processes that are killed with SIGKILL, and are started again while clients write: each acknowledged update is
//! applied once at all members (Derecho app. A). `squall chaos` does so at random, with other faults too, and writes histories.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Address, SubgroupConfig, Transport};
use squall::object::{Client, Replicated, Snapshot, restored};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::reserve_port;

/// The variable that makes this program a member; its value has the [`Cluster`] and the member's rank.
const ROLE: &str = "SQUALL_OBJECT_CHAOS";
const MEMBERS: usize = 3;
const SHARDS: usize = 2;
const CLIENTS: u64 = 2;
/// Longer than a member waits for a processor: only those that are killed are to be excluded.
const SUSPICION: Duration = Duration::from_secs(20);
/// How long a member may take to get the state of its shards.
const PATIENCE: Duration = Duration::from_secs(120);

/// All updates, in order.
struct Log(Vec<u64>);

impl Replicated for Log {
    type Update = u64;
    /// The index at which the reply begins.
    type Query = u64;
    type Reply = Vec<u64>;

    /// Replies with the index of the update.
    fn apply(&mut self, id: u64) -> Vec<u64> {
        self.0.push(id);
        vec![self.0.len() as u64 - 1]
    }

    fn query(&self, from: u64) -> Vec<u64> {
        self.0.iter().skip(usize::try_from(from).unwrap()).take(PAGE).copied().collect()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

/// The largest number of updates that a query returns.
const PAGE: usize = 4096;

/// A group of this test.
#[derive(Clone)]
struct Cluster {
    name: String,
    /// If there are none, the group runs on shared memory.
    ports: Vec<u16>,
}

impl Cluster {
    fn new(test: &str, transport: Transport) -> Self {
        let count = if transport == Transport::Tcp { MEMBERS } else { 0 };
        let ports = (0..count).map(|_| reserve_port().unwrap()).collect();
        Self { name: format!("{test}-{}", std::process::id()), ports }
    }

    /// Returns the value of [`ROLE`] for a member's process.
    fn role(&self, rank: usize) -> String {
        let ports: Vec<_> = self.ports.iter().map(|port| format!(" {port}")).collect();
        format!("{rank} {}{}", self.name, ports.concat())
    }

    fn from_role(role: &str) -> (Self, usize) {
        let words: Vec<&str> = role.split(' ').collect();
        let ports = words[2..].iter().map(|port| port.parse().unwrap()).collect();
        (Self { name: words[1].into(), ports }, words[0].parse().unwrap())
    }

    fn config(&self, rank: usize) -> Config {
        let log =
            SubgroupConfig { shards: SHARDS, replicas: 3, message_max: 100, ..SubgroupConfig::default() };
        let mut config = Config::local(&self.name, MEMBERS).subgroup("log", log).for_rank(rank);
        config.suspicion_after = Some(SUSPICION);
        if !self.ports.is_empty() {
            let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: self.ports[rank] };
            config.transport = Transport::Tcp;
            config.listen = address(rank);
            config.contacts = (0..MEMBERS).map(address).collect();
        }
        config
    }

    fn connect(&self) -> Client<Log> {
        Client::<Log>::connect_with(&self.config(0), "log", PATIENCE).expect("a contact answers")
    }
}

/// A member in a process of its own.
struct Member {
    child: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Member {
    fn start(cluster: &Cluster, rank: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_disturbed_member", "--nocapture"])
            .env(ROLE, cluster.role(rank))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let orders = child.stdin.take().unwrap();
        Self { child, orders, lines }
    }

    /// Returns the rest of the next line that begins with `beginning`; `None` if the member has ended.
    fn wait_for_line(&mut self, beginning: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness of the member's process also prints text, without ending its line.
            if let Some((_, rest)) = line.split_once(beginning) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    /// Returns the number of updates that it has of each shard, and a digest of them.
    fn report(&mut self) -> Option<String> {
        self.orders.write_all(b"report\n").ok()?;
        self.wait_for_line("report:")
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: what a member does until it is killed or excluded.
#[test]
fn the_disturbed_member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (cluster, rank) = Cluster::from_role(&role);
    let mut group = Group::join(cluster.config(rank)).expect("the member joins");
    let log = group.object("log", || Log(Vec::new())).unwrap();
    log.wait_ready(PATIENCE).expect("it gets the state");
    println!("member: ready");
    let group = &group;
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in std::io::stdin().lines() {
                let of = |shard| log.inspect(shard, |_, log: &Log| (log.0.len(), digest(&log.0)));
                println!("report: {:?}", [0, 1].map(of));
            }
        });
        while group.failure().is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("member {rank} ends: {}", group.failure().unwrap());
        std::process::exit(1);
    });
}

fn digest(log: &[u64]) -> u64 {
    log.iter().fold(0, |digest, id| (digest ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// Writes to both shards until `stop` returns true; each update is applied once, at a higher index than the previous
/// one.
fn write(client: &Client<Log>, number: u64, stop: &dyn Fn() -> bool) -> [Vec<u64>; 2] {
    let keys = keys(client);
    let mut written = [Vec::new(), Vec::new()];
    let mut places = [None; 2];
    for id in (0..).map(|id| id * CLIENTS + number) {
        if stop() {
            break;
        }
        let shard = (id / CLIENTS % 2) as usize;
        let reply = client.update(&keys[shard], &id).unwrap().wait();
        let place = reply.expect("some member takes it")[0];
        assert!(places[shard] < Some(place), "[A3] update {id} is at {place}, not after {:?}", places[shard]);
        places[shard] = Some(place);
        written[shard].push(id);
    }
    written
}

/// Returns a key for each of the two shards.
fn keys(client: &Client<Log>) -> [Vec<u8>; 2] {
    [0, 1].map(|shard| (0..).map(|key: u8| vec![key]).find(|key| client.shard(key) == shard).unwrap())
}

/// Restarts members until all of them run and have the state.
fn complete(cluster: &Cluster, members: &mut [Option<Member>]) {
    loop {
        for (rank, member) in members.iter_mut().enumerate() {
            // It may have been excluded because the machine is busy: it joins again.
            if member.as_mut().is_none_or(Member::has_ended) {
                *member = Some(Member::start(cluster, rank));
                // Members restart one after the other: with two missing at once, the rest would not be a majority.
                member.as_mut().unwrap().wait_for_line("member: ready");
            }
        }
        if members.iter_mut().flatten().all(|member| !member.has_ended()) {
            return;
        }
    }
}

/// Asserts that all replicas are the same in the end.
fn compare(members: &mut [Option<Member>]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reports: Vec<_> =
            members.iter_mut().flatten().map(|member| member.report().expect("it lives")).collect();
        if reports.windows(2).all(|pair| pair[0] == pair[1]) {
            return eprintln!("all members report {}", reports[0]);
        }
        assert!(Instant::now() < deadline, "replicas differ: {reports:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the whole log of the shard of a key.
fn read(client: &Client<Log>, key: &[u8]) -> Vec<u64> {
    let mut log = Vec::new();
    loop {
        let page = client.query(key, &(log.len() as u64)).unwrap().wait().expect("it answers");
        if page.is_empty() {
            return log;
        }
        log.extend(page);
    }
}

/// Runs `disturb` on the members while clients write; then compares the replicas with what was acknowledged.
fn run(cluster: &Cluster, disturb: impl FnOnce(&mut [Option<Member>])) {
    let mut members: Vec<_> = (0..MEMBERS).map(|rank| Some(Member::start(cluster, rank))).collect();
    members.iter_mut().flatten().for_each(|member| assert!(member.wait_for_line("member: ready").is_some()));
    let over = AtomicBool::new(false);
    let stop = || over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (client, stop) = (cluster.connect(), &stop);
                scope.spawn(move || write(&client, number, stop))
            })
            .collect();
        disturb(&mut members);
        complete(cluster, &mut members);
        over.store(true, Ordering::Relaxed);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        compare(&mut members);
        let client = cluster.connect();
        let logs = keys(&client).map(|key| read(&client, &key));
        let mut acknowledged = 0;
        for written in written {
            for (shard, written) in written.into_iter().enumerate() {
                assert!(!written.is_empty(), "nothing was written to shard {shard}");
                acknowledged += written.len();
                // Indices increase, so that one pass finds each update; the check below finds duplicates.
                let mut rest = logs[shard].iter();
                for id in written {
                    assert!(rest.any(|other| *other == id), "[A2] update {id} of shard {shard} is lost");
                }
            }
        }
        for log in &logs {
            let mut sorted = log.clone();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "[A3] an update counts twice");
        }
        eprintln!("{acknowledged} acknowledged updates were applied, each once");
    });
}

fn kills(test: &str, transport: Transport) {
    let cluster = Cluster::new(test, transport);
    run(&cluster, |members| {
        for kill in 0..2 * MEMBERS {
            thread::sleep(Duration::from_millis(100));
            members[kill % MEMBERS].as_mut().unwrap().kill();
            // The next member dies when all have the state again.
            complete(&cluster, members);
        }
    });
}

#[test]
fn acknowledged_updates_survive_kills_on_shared_memory() {
    kills("object-shm", Transport::Shm);
}

#[test]
fn acknowledged_updates_survive_kills_on_tcp() {
    kills("object-tcp", Transport::Tcp);
}
