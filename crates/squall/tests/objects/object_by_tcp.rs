//! Streams of objects over TCP, as between hosts: each request, each answer, and the end wake the thread that is to handle it.
//! Everything here would take a second for each step if the threads slept until their timers.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Address, GenuineConfig, SubgroupConfig, Transport};
use squall::object::{Client, Replicated, ShardedObject, Snapshot, restored};
use squall::{Config, Group};
use squall_transports::reserve_port;

/// Sums by key.
#[derive(Default)]
struct Sums(BTreeMap<u32, u64>);

impl Replicated for Sums {
    type Update = (u32, u64);
    type Query = u32;
    type Reply = u64;

    fn apply(&mut self, (key, more): (u32, u64)) -> u64 {
        let sum = self.0.entry(key).or_default();
        *sum += more;
        *sum
    }

    fn query(&self, key: u32) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

/// Returns the configurations of members that share no memory with their clients.
fn configs(members: usize) -> Vec<Config> {
    let address = |_| Address::Tcp { host: "127.0.0.1".into(), port: reserve_port().unwrap() };
    let addresses: Vec<_> = (0..members).map(address).collect();
    let member = |rank: usize| Config {
        transport: Transport::Tcp,
        streams: Transport::Tcp,
        listen: addresses[rank].clone(),
        contacts: addresses.clone(),
        rank: Some(rank),
        ..Config::local("object-by-tcp", members)
    };
    (0..members).map(member).collect()
}

/// One update after the other, then many at a time, then the end of a client that has nothing to do.
#[test]
fn a_client_waits_for_no_timer() {
    let config = configs(1).remove(0).subgroup("sums", SubgroupConfig::default());
    let mut group = Group::join(config.clone()).expect("the member joins");
    let object = group.object("sums", Sums::default).expect("it is configured");
    object.wait_ready(PATIENCE).expect("it has the state");

    let client = Client::<Sums>::connect(&config, "sums").expect("the member answers");
    let begun = Instant::now();
    for round in 1..=ROUNDS {
        assert_eq!(client.update(b"", &(0, 1)).unwrap().wait().unwrap(), round);
        // Both ends sleep when the next one begins.
        thread::sleep(Duration::from_millis(1));
    }
    assert_quick("one at a time", begun);

    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let under_way: Vec<_> = (0..64).map(|_| client.update(b"", &(1, 1)).unwrap()).collect();
        under_way.into_iter().for_each(|update| _ = update.wait().unwrap());
    }
    assert_quick("64 at a time", begun);

    let begun = Instant::now();
    for _ in 0..20 {
        let client = Client::<Sums>::connect(&config, "sums").expect("the member answers");
        client.update(b"", &(2, 1)).unwrap().wait().unwrap();
        client.close();
    }
    assert_quick("the ends of idle clients", begun);

    let begun = Instant::now();
    group.leave(PATIENCE);
    assert!(begun.elapsed() < Duration::from_millis(900), "its end took {:?}", begun.elapsed());
}

/// A member updates a shard that it is not in, and asks a member of the shard for the reply.
#[test]
fn a_member_waits_for_no_timer_for_another_shard() {
    let shards = GenuineConfig::default().shard("a", &[0]).shard("b", &[1]);
    let genuine = GenuineConfig { object: true, message_max: 256, ..shards };
    let join = |config: Config| {
        let mut group = Group::join(Config { genuine: Some(genuine.clone()), ..config }).expect("it joins");
        let object = group.sharded_object(Sums::default).expect("the object");
        (group, object)
    };
    let members: Vec<(Group, ShardedObject<Sums>)> = thread::scope(|scope| {
        let threads: Vec<_> = configs(2).into_iter().map(|config| scope.spawn(|| join(config))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let begun = Instant::now();
    for (group, object) in &members {
        let other = 1 - group.rank();
        let key = (0..).find(|key: &u32| object.shard(&key.to_le_bytes()) == other).unwrap();
        for round in 1..=ROUNDS {
            let replies = object.update(&key.to_le_bytes(), &(key, 1)).unwrap().wait().unwrap();
            assert_eq!(replies.replies, [round]);
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_quick("updates of another shard", begun);
}

/// Nothing here takes a tenth of the time of the timers.
fn assert_quick(what: &str, begun: Instant) {
    assert!(begun.elapsed() < Duration::from_secs(10), "{what} took {:?}", begun.elapsed());
}

/// By timers, they take 100 s and more.
const ROUNDS: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(60);
