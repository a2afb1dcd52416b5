//! The object in the shards of real groups: joiners, a shard that is lost, and misuse (RamCast §2.2).

use std::collections::BTreeMap;
use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::GenuineConfig;
use squall::object::{ObjectError, Replicated, ShardedObject, Snapshot, restored};
use squall::{Config, Group, HandleError};

/// Counts by key.
#[derive(Default)]
struct Counts(BTreeMap<u32, u64>);

impl Replicated for Counts {
    type Update = (u32, u64);
    type Query = u32;
    type Reply = u64;

    fn apply(&mut self, (key, more): (u32, u64)) -> u64 {
        let count = self.0.entry(key).or_default();
        *count += more;
        *count
    }

    fn query(&self, key: u32) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

type Member = (Group, ShardedObject<Counts>);

/// Shard `a` of ranks 0 and 1, shard `b` of rank 2.
fn config(name: &str, rank: usize) -> Config {
    let mut config = Config::local(&format!("sharded-{name}-{}", std::process::id()), 3).for_rank(rank);
    let shards = GenuineConfig::default().shard("a", &[0, 1, 3]).shard("b", &[2]);
    config.genuine = Some(GenuineConfig { object: true, message_max: 256, ..shards });
    config
}

fn join(config: Config, only_join: bool) -> Member {
    let builder = Group::builder(config);
    let mut group = if only_join { builder.only_join() } else { builder }.join().expect("the member joins");
    let object = group.sharded_object(Counts::default).expect("the object");
    (group, object)
}

fn begin(name: &str) -> Vec<Member> {
    let threads: Vec<_> =
        (0..3).map(|rank| config(name, rank)).map(|config| thread::spawn(|| join(config, false))).collect();
    let mut members: Vec<Member> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    members.sort_by_key(|(group, _)| group.rank());
    members
}

/// A key of each shard.
fn keys(object: &ShardedObject<Counts>) -> [u32; 2] {
    [0, 1].map(|shard| (0..).find(|key: &u32| object.shard(&key.to_le_bytes()) == shard).unwrap())
}

fn add(object: &ShardedObject<Counts>, keys: &[u32], more: u64) -> Result<Vec<u64>, ObjectError> {
    let updates: Vec<([u8; 4], (u32, u64))> =
        keys.iter().map(|key| (key.to_le_bytes(), (*key, more))).collect();
    let replies = object.update_many(updates.iter().map(|(key, update)| (&key[..], update)))?;
    Ok(replies.wait()?.replies)
}

/// Replies are in the order of the keys, positions grow, and every member sees what any other was acknowledged. A joiner
/// has the state of its shard, and what comes after it.
#[test]
fn members_and_joiners_see_one_order() {
    let members = begin("order");
    let [a, b] = keys(&members[0].1);
    for (_, object) in &members {
        add(object, &[b, a, a], 1).unwrap();
    }
    assert_eq!(add(&members[2].1, &[a, b, a], 1).unwrap(), [7, 4, 8]);
    let pending: Vec<_> = (0..50).map(|_| members[1].1.update(&a.to_le_bytes(), &(a, 1)).unwrap()).collect();
    let found: Vec<_> = pending.into_iter().map(|reply| reply.wait().unwrap()).collect();
    assert_eq!(found.iter().map(|found| found.replies[0]).max(), Some(58));
    let joiner = join(config("order", 3), true);
    assert_eq!(joiner.0.rank(), 3);
    assert_eq!(add(&joiner.1, &[a, b], 1).unwrap(), [59, 5]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while joiner.1.inspect(|_, counts| counts.0.clone()) != members[0].1.inspect(|_, counts| counts.0.clone())
    {
        assert!(Instant::now() < deadline, "the joiner has another state");
        thread::sleep(Duration::from_millis(5));
    }
    let sums = members[2].1.query_all(&a).unwrap().wait().unwrap();
    assert_eq!(sums.replies, [59, 0]);
}

/// The only member of a shard dies: updates that concern it fail, also those of several shards, and the others continue.
#[test]
fn a_lost_shard_is_reported_and_the_others_continue() {
    let mut members = begin("lost");
    let [a, b] = keys(&members[0].1);
    add(&members[0].1, &[a, b], 1).unwrap();
    drop(members.pop());
    let deadline = Instant::now() + Duration::from_secs(20);
    let lost = loop {
        match add(&members[1].1, &[a, b], 1) {
            Err(error) => break error,
            // It was made before the others noticed the death.
            Ok(_) => assert!(Instant::now() < deadline, "the shard is there"),
        }
    };
    assert!(matches!(lost, ObjectError::StateLost { shard: 1, .. }), "{lost}");
    let lost = add(&members[0].1, &[b], 1).unwrap_err();
    assert!(matches!(lost, ObjectError::StateLost { shard: 1, .. }), "{lost}");
    // What was reported as lost is applied in the other shard.
    let before = add(&members[0].1, &[a], 0).unwrap()[0];
    assert_eq!(add(&members[1].1, &[a], 1).unwrap(), [before + 1]);
}

#[test]
fn misuse_is_refused_with_its_reason() {
    let local = Config::local(&format!("sharded-misuse-{}", std::process::id()), 1);
    let shards = GenuineConfig::default().shard("a", &[0]);
    let mut group = Group::join(Config { genuine: Some(shards.clone()), ..local.clone() }).unwrap();
    assert!(matches!(group.sharded_object(Counts::default), Err(HandleError::NoShardedObject)));
    drop(group);
    let shards = GenuineConfig { object: true, message_max: 64, ..shards };
    let mut group = Group::join(Config { genuine: Some(shards), ..local }).unwrap();
    let object = group.sharded_object(Counts::default).unwrap();
    assert!(matches!(group.sharded_object(Counts::default), Err(HandleError::MulticastTaken)));
    let long = add(&object, &[1; 20], 1).unwrap_err();
    assert!(matches!(long, ObjectError::TooLong { bytes_max: 64, .. }), "{long}");
    assert_eq!(add(&object, &[1, 1], 1).unwrap(), [1, 2], "the one that was refused has no number");
    drop(group);
    assert!(add(&object, &[1], 1).is_err());
}
