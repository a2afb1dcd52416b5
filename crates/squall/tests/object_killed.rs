//! Members as processes that are killed with -9 and started again while clients write: what was acknowledged is there,
//! once, at all who go on (Derecho app. A).

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use squall::config::{PartitionSafety, SubgroupConfig};
use squall::object::{Client, Replicated, Snapshot, restored};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};

/// Tells this program to be a member: the name of the group and the member's rank follow.
const ROLE: &str = "SQUALL_OBJECT_KILLED";
const MEMBERS: usize = 3;
const KILLS: usize = 6;
const CLIENTS: u64 = 2;

/// All that was written, in order.
struct Log(Vec<u64>);

impl Replicated for Log {
    type Update = u64;
    type Query = ();
    type Reply = Vec<u64>;

    /// Replies with the place of the update.
    fn apply(&mut self, id: u64) -> Vec<u64> {
        self.0.push(id);
        vec![self.0.len() as u64 - 1]
    }

    fn query(&self, (): ()) -> Vec<u64> {
        self.0.clone()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

fn config(name: &str, rank: usize) -> Config {
    let log = SubgroupConfig { shards: 2, replicas: 3, message_max: 100, ..SubgroupConfig::default() };
    let config = Config::local(name, MEMBERS).subgroup("log", log).for_rank(rank);
    Config { partition_safety: PartitionSafety::Off, ..config }
}

/// A member in a process of its own.
struct Member {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Member {
    fn start(name: &str, rank: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_killed_member", "--nocapture"])
            .env(ROLE, format!("{name} {rank}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until it has the state of all its shards.
    fn is_ready(&mut self) {
        let mut line = String::new();
        while !line.ends_with("ready\n") {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "a member has ended by itself");
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may be killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: what a member does until it is killed.
#[test]
fn the_killed_member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, rank) = role.split_once(' ').unwrap();
    let mut group = Group::join(config(name, rank.parse().unwrap())).expect("it comes in");
    let log = group.object("log", || Log(Vec::new())).unwrap();
    log.wait_ready(Duration::from_secs(60)).expect("it gets the state");
    println!("ready");
    while group.failure().is_none() {
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{:?}", group.failure());
}

/// Writes to both shards until told to stop; each update is applied once, at a place behind the one before.
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
        assert!(places[shard] < Some(place), "[A3] update {id} is at {place}, behind {:?}", places[shard]);
        places[shard] = Some(place);
        written[shard].push(id);
    }
    written
}

/// A key for each of the two shards.
fn keys(client: &Client<Log>) -> [Vec<u8>; 2] {
    [0, 1].map(|shard| (0..).map(|key: u8| vec![key]).find(|key| client.shard(key) == shard).unwrap())
}

#[test]
fn acknowledged_updates_survive_kills() {
    let name = format!("object-killed-{}", std::process::id());
    let mut members: Vec<_> = (0..MEMBERS).map(|rank| Member::start(&name, rank)).collect();
    members.iter_mut().for_each(Member::is_ready);
    let over = AtomicBool::new(false);
    let stop = || over.load(Ordering::Relaxed);
    let connect = || {
        let timeout = Duration::from_secs(60);
        Client::<Log>::connect_with(&config(&name, 0), "log", timeout).expect("a contact answers")
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (client, stop) = (connect(), &stop);
                scope.spawn(move || write(&client, number, stop))
            })
            .collect();
        for kill in 0..KILLS {
            thread::sleep(Duration::from_millis(100));
            let rank = kill % MEMBERS;
            members[rank].kill();
            // The next one dies when all have the state again.
            members[rank] = Member::start(&name, rank);
            members[rank].is_ready();
        }
        over.store(true, Ordering::Relaxed);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let client = connect();
        let keys = keys(&client);
        let logs = keys.map(|key| client.query(&key, &()).unwrap().wait().unwrap());
        for written in written {
            for (shard, written) in written.into_iter().enumerate() {
                assert!(!written.is_empty(), "nothing was written to shard {shard}");
                for id in written {
                    let times = logs[shard].iter().filter(|other| **other == id).count();
                    assert_eq!(times, 1, "[A2] [A3] update {id} of shard {shard}");
                }
            }
        }
    });
}
