//! The object in the shards of real groups: joiners, a shard that is lost, and misuse (RamCast §2.2).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::GenuineConfig;
use squall::genuine::GenuinePosition;
use squall::object::{ObjectError, Replicated, ShardedObject, Snapshot, restored};
use squall::{Config, Group, GroupError, HandleError, SendError};
use squall_fabric::atomics::AtomicBool;
use squall_fabric::atomics::Ordering::Relaxed;

/// Counts by key.
#[derive(Default)]
struct Counts {
    counts: BTreeMap<u32, u64>,
    /// The member cannot apply updates of [`POISON`]: what is wrong with it is not in the state.
    is_fragile: bool,
}

const POISON: u32 = u32::MAX;
/// A state with this key cannot be read.
const UNREADABLE: u32 = u32::MAX - 1;
/// Reading a state with this key takes until [`SLOW_MAY_READ`].
const SLOW: u32 = u32::MAX - 2;
static SLOW_MAY_READ: AtomicBool = AtomicBool::new(false);

impl Replicated for Counts {
    type Update = (u32, u64);
    type Query = u32;
    type Reply = u64;

    fn apply(&mut self, (key, more): (u32, u64)) -> u64 {
        assert!(!self.is_fragile || key != POISON, "this member cannot apply it");
        let count = self.counts.entry(key).or_default();
        *count += more;
        *count
    }

    fn query(&self, key: u32) -> u64 {
        self.counts.get(&key).copied().unwrap_or(0)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.counts.clone())
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        let counts: BTreeMap<u32, u64> = restored(source)?;
        if counts.contains_key(&UNREADABLE) {
            return Err(ErrorKind::InvalidData.into());
        }
        while counts.contains_key(&SLOW) && !SLOW_MAY_READ.load(Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { counts, is_fragile: false })
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
    let group_rank = group.rank();
    let first = || Counts { is_fragile: group_rank == FRAGILE_RANK, ..Counts::default() };
    let object = group.sharded_object(first).expect("the object");
    (group, object)
}

fn begin(name: &str) -> Vec<Member> {
    let threads: Vec<_> =
        (0..3).map(|rank| config(name, rank)).map(|config| thread::spawn(|| join(config, false))).collect();
    let mut members: Vec<Member> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    members.sort_by_key(|(group, _)| group.rank());
    members
}

/// The member that cannot apply updates of [`POISON`].
const FRAGILE_RANK: usize = 1;
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until this is so.
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn counts(object: &ShardedObject<Counts>) -> Option<(Option<GenuinePosition>, BTreeMap<u32, u64>)> {
    object.inspect(|position, counts| (position, counts.counts.clone()))
}

/// Adds 1 to the count of `with`, in shard `a`.
fn mark(member: &Member, a: u32, with: u32) {
    member.1.update(&a.to_le_bytes(), &(with, 1)).unwrap().wait().unwrap();
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
    await_that("the joiner has the same state", || counts(&joiner.1) == counts(&members[0].1));
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
    let mut applied = 1;
    let lost = loop {
        applied += 1;
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
    assert_eq!(add(&members[1].1, &[a], 1).unwrap(), [applied + 1]);
}

/// While a joiner reads its state, the others make more updates than any window holds, and have replies: what was under way when it
/// came is not held back by it. Its state is the same then, with its position.
#[test]
fn a_joiner_that_reads_its_state_slowly_holds_no_one_back() {
    let members = begin("slow");
    let [a, b] = keys(&members[0].1);
    mark(&members[0], a, SLOW);
    let is_over = Arc::new(AtomicBool::new(false));
    for (_, object) in &members {
        let (object, is_over) = (object.clone(), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Relaxed) {
                let updates = [(&a.to_le_bytes()[..], &(a, 1)), (&b.to_le_bytes()[..], &(b, 1))];
                // Its window is always full.
                drop(object.update_many(updates).unwrap());
            }
        });
    }
    let joiner = join(config("slow", 3), true);
    is_over.store(true, Relaxed);
    let (found, answers) = mpsc::channel();
    for (_, object) in &members {
        let (object, found) = (object.clone(), found.clone());
        thread::spawn(move || {
            (0..200).for_each(|_| drop(add(&object, &[a, b], 1).unwrap()));
            // The test may have failed meanwhile.
            let _ = found.send(());
        });
    }
    for _ in &members {
        answers.recv_timeout(PATIENCE).expect("updates are answered while the joiner reads its state");
    }
    assert_eq!(counts(&joiner.1), None, "it has its state already");
    SLOW_MAY_READ.store(true, Relaxed);
    await_that("the joiner has the same state", || counts(&joiner.1) == counts(&members[0].1));
}

/// A state that cannot be read: the joiner leaves its group and says why; the others continue.
#[test]
fn a_joiner_that_cannot_read_its_state_leaves_the_group() {
    let members = begin("unreadable");
    let [a, b] = keys(&members[0].1);
    mark(&members[0], a, UNREADABLE);
    let joiner = join(config("unreadable", 3), true);
    await_that("the joiner leaves", || matches!(joiner.0.failure(), Some(GroupError::Object { .. })));
    assert_eq!(add(&members[2].1, &[a, b], 1).unwrap(), [1, 1]);
    await_that("the others continue without it", || members[0].0.members() == 3);
}

/// The object's code panics at one member, which leaves its group: the others do not wait for it.
#[test]
fn a_member_whose_part_panics_leaves_the_group() {
    let members = begin("panic");
    let [a, b] = keys(&members[0].1);
    mark(&members[0], a, POISON);
    await_that(
        "it leaves",
        || matches!(members[FRAGILE_RANK].0.failure(), Some(GroupError::Object { cause }) if cause.contains("panicked")),
    );
    let refused = add(&members[FRAGILE_RANK].1, &[a], 1).unwrap_err();
    assert!(matches!(refused, ObjectError::Stopped | ObjectError::Group(_)), "{refused}");
    // More than the queue of the member that has left would hold.
    for round in 1..=1500 {
        assert_eq!(add(&members[2].1, &[a, b], 1).unwrap(), [round, round]);
    }
    await_that("the others continue without it", || members[0].0.members() == 2);
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
    assert!(
        matches!(group.multicast_sender(), Err(HandleError::ShardsHoldObject)),
        "a message may look like an update"
    );
    let object = group.sharded_object(Counts::default).unwrap();
    assert!(matches!(group.sharded_object(Counts::default), Err(HandleError::MulticastTaken)));
    let raw = group.multicast(&["a"], b"raw");
    assert!(matches!(raw, Err(SendError::Handle(HandleError::ShardsHoldObject))));
    assert!(matches!(object.update_many([]).map(drop), Err(ObjectError::Form(_))), "no key");
    let long = add(&object, &[1; 20], 1).unwrap_err();
    assert!(matches!(long, ObjectError::TooLong { bytes_max: 64, .. }), "{long}");
    assert_eq!(add(&object, &[1, 1], 1).unwrap(), [1, 2], "the one that was refused has no number");
    drop(group);
    let ended = add(&object, &[1], 1).unwrap_err();
    assert!(matches!(ended, ObjectError::Group(GroupError::Left)), "{ended}");
}
