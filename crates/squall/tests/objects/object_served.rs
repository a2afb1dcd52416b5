//! Replicated objects whose updates are applied by the threads that poll the group.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{StorageConfig, SubgroupConfig};
use squall::object::{Object, ObjectOptions, Pending, Replicated, Snapshot, restored};
use squall::{Config, DeliveryMode, Departure, Group, SharedPoller};
use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};

/// The numbers in the order in which they were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers(Vec<u64>);

impl Replicated for Numbers {
    type Update = u64;
    type Query = ();
    type Reply = usize;

    fn apply(&mut self, number: u64) -> usize {
        self.0.push(number);
        self.0.len()
    }

    fn query(&self, (): ()) -> usize {
        self.0.len()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

struct Member {
    group: Group,
    poller: SharedPoller,
    object: Object<Numbers>,
    /// How often the object's thread has applied something.
    by_thread: Arc<AtomicUsize>,
}

impl Member {
    fn join(config: Config) -> Self {
        Self::join_with(config, SubgroupConfig::default())
    }

    fn join_with(config: Config, numbers: SubgroupConfig) -> Self {
        let config = config.subgroup("numbers", numbers);
        let (mut group, poller) = Group::builder(config).join_shared().expect("it joins");
        let by_thread = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&by_thread);
        let options = ObjectOptions {
            poller: Some(poller.clone()),
            on_applied: Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
            ..ObjectOptions::default()
        };
        let served = Arc::new(OnceLock::<Object<Numbers>>::new());
        let to_serve = Arc::clone(&served);
        poller.on_news(move |_| {
            if let Some(object) = to_serve.get() {
                object.apply_delivered();
            }
        });
        let object = group.object_with("numbers", Numbers::default, options).expect("the subgroup is there");
        assert!(served.set(object.clone()).is_ok());
        // What came before is found, too.
        object.apply_delivered();
        object.wait_ready(PATIENCE).expect("the state is here");
        Self { group, poller, object, by_thread }
    }

    /// Waits for a reply, and polls meanwhile.
    fn await_reply(&self, reply: Pending<usize>) -> usize {
        let mut pending = Some(reply);
        let reply = self.poller.wait_until(PATIENCE, || {
            let reply = pending.take()?.try_wait();
            reply.map_err(|early| pending = Some(early)).ok()
        });
        reply.expect("it comes in time").expect("the group lives")
    }

    fn update(&self, number: u64) -> usize {
        self.await_reply(self.object.update(b"", &number).expect("the group lives"))
    }

    fn numbers(&self) -> Numbers {
        self.object.inspect(0, |_, numbers| numbers.clone()).expect("the state is here")
    }
}

fn members(test: &str, count: usize) -> Vec<Member> {
    let name = format!("served-{test}-{}", std::process::id());
    let config = |rank| Config::local(&name, count).for_rank(rank);
    thread::scope(|scope| {
        let joins: Vec<_> = (0..count).map(|rank| scope.spawn(move || Member::join(config(rank)))).collect();
        joins.into_iter().map(|join| join.join().expect("no panic")).collect()
    })
}

/// Waits until the members have this many numbers, and returns them.
fn all_of(members: &[Member], count: usize) -> Vec<Numbers> {
    let begun = Instant::now();
    while members.iter().any(|member| member.numbers().0.len() < count) {
        assert!(begun.elapsed() < PATIENCE, "not all updates are applied everywhere");
        thread::sleep(Duration::from_millis(1));
    }
    members.iter().map(Member::numbers).collect()
}

/// Members update at the same time, and the replies come: applied mostly by the threads that wait for them.
#[test]
fn updates_are_applied_by_threads_that_wait() {
    let members = members("waiting", 2);
    let of_thread = || members.iter().map(|member| member.by_thread.load(Ordering::Relaxed)).sum::<usize>();
    let before = of_thread();
    thread::scope(|scope| {
        for (member, rank) in members.iter().zip(0..) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    member.update(2 * round + rank);
                }
            });
        }
    });
    let numbers = all_of(&members, 2 * ROUNDS as usize);
    assert_eq!(numbers[0], numbers[1]);
    for rank in 0..2 {
        let of_rank = numbers[0].0.iter().filter(|number| **number % 2 == rank);
        assert!(of_rank.copied().eq((0..ROUNDS).map(|round| 2 * round + rank)));
    }
    assert!(of_thread() - before < ROUNDS as usize, "the objects' threads have applied most of them");
}

/// What a thread that polls cannot apply, since another one reads the state, is applied all the same, and soon.
#[test]
fn what_is_left_is_applied_by_the_objects_thread() {
    let members = members("left", 2);
    let mut waited = Duration::ZERO;
    for round in 0..5 {
        let is_reading = AtomicBool::new(false);
        let read = thread::scope(|scope| {
            // The member does nothing but read, so its standby thread polls.
            let reader = scope.spawn(|| {
                members[1].object.inspect(0, |_, _| {
                    is_reading.store(true, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(50));
                    Instant::now()
                })
            });
            while !is_reading.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            members[0].update(round);
            reader.join().expect("no panic").expect("the state is here")
        });
        let numbers = all_of(&members, round as usize + 1);
        waited += read.elapsed();
        assert_eq!(numbers[0], numbers[1]);
    }
    assert!(waited < Duration::from_secs(3), "nothing woke the thread: it looked after {waited:?} in all");
    assert!(members[1].by_thread.load(Ordering::Relaxed) > 0);
}

/// A member that leaves hands its state over, and one that joins gets it, while the object is served.
#[test]
fn a_state_outlives_its_members() {
    let mut members = members("joins", 2);
    for round in 0..ROUNDS {
        members[0].update(round);
    }
    let name = format!("served-joins-{}", std::process::id());
    for rank in 0..2 {
        // The contacts are those of the first two.
        let leaving = members.remove(0);
        let departure = leaving.group.leave(PATIENCE);
        assert!(matches!(departure, Departure::InOrder), "{departure:?}");
        let joiner = Member::join(Config::local(&name, 2).for_rank(rank));
        joiner.update(7);
        members.push(joiner);
    }
    let numbers = all_of(&members, ROUNDS as usize + 2);
    assert_eq!(numbers[0], numbers[1]);
    assert!(numbers[0].0.iter().copied().eq((0..ROUNDS).chain([7, 7])));
}

/// A checkpoint is written when it is due, whichever thread has applied the updates: or the log would grow without end.
#[test]
fn a_durable_object_writes_checkpoints() {
    let test = format!("served-durable-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&test);
    // An earlier process of this number may have left something.
    let _ = fs::remove_dir_all(&folder);
    let config = Config { storage: Some(StorageConfig::new(&folder)), ..Config::local(&test, 1) };
    let (mode, checkpoint_bytes) = (DeliveryMode::Durable, 1 << 10);
    let member =
        Member::join_with(config, SubgroupConfig { mode, checkpoint_bytes, ..SubgroupConfig::default() });
    let checkpoints = || fs::read_dir(folder.join("rank-0/checkpoints")).map_or(0, Iterator::count);
    let mut number = 0;
    while checkpoints() == 0 {
        assert!(number < ROUNDS, "no checkpoint was written in {number} updates");
        member.update(number);
        number += 1;
        // The object's thread comes to rest, and finds no message that it could apply itself.
        thread::sleep(Duration::from_millis(1));
    }
    drop(member);
    fs::remove_dir_all(&folder).expect("it can be removed");
}

const PATIENCE: Duration = Duration::from_secs(30);
const ROUNDS: u64 = 1000;
