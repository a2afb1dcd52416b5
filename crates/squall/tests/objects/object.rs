//! Replicated objects: threads of one process as members and clients, over both transports (Derecho app. A).

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use squall::config::{Config, PartitionSafety, Ranks, SubgroupConfig};
use squall::object::{
    Client, Object, ObjectError, ObjectOptions, Replicated, Snapshot, Version, VersionError, restored,
};
use squall::{DeliveryMode, Group, HandleError, Position};

/// Counters, each with the ids of the updates that it has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counters(BTreeMap<String, Vec<u64>>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    counter: String,
    id: u64,
}

impl Replicated for Counters {
    type Update = Note;
    type Query = String;
    type Reply = Vec<u64>;

    fn apply(&mut self, note: Note) -> Vec<u64> {
        let counter = self.0.entry(note.counter).or_default();
        counter.push(note.id);
        counter.clone()
    }

    fn query(&self, counter: String) -> Vec<u64> {
        self.0.get(&counter).cloned().unwrap_or_default()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

fn config(test: &str, members: usize, subgroup: SubgroupConfig) -> impl Fn(usize) -> Config + Clone + Send {
    let base = Config::local(&format!("object-{test}-{}", std::process::id()), members);
    let base = base.subgroup("counters", SubgroupConfig { window: 16, message_max: 1000, ..subgroup });
    move |rank| Config { partition_safety: PartitionSafety::Off, ..base.clone().for_rank(rank) }
}

fn sharded(shards: usize, replicas: usize) -> SubgroupConfig {
    SubgroupConfig { shards, replicas, ..SubgroupConfig::default() }
}

/// Starts members of these ranks; each has its object.
fn members(
    config: &(impl Fn(usize) -> Config + Clone + Send),
    ranks: std::ops::Range<usize>,
) -> Vec<(Group, Object<Counters>)> {
    let join = |rank: usize| {
        let config = config(rank);
        move || {
            let mut group = Group::join(config).expect("the group starts");
            let object = group.object("counters", Counters::default).expect("it is configured");
            (group, object)
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the member joins")).collect()
    })
}

fn note(counter: &str, id: u64) -> Note {
    Note { counter: counter.into(), id }
}

/// Updates, and tries again if this member has left the shard meanwhile, in which case the update is in no state.
fn update(object: &Object<Counters>, key: &str, id: u64) -> Vec<u64> {
    loop {
        match object.update(key.as_bytes(), &note(key, id)).unwrap().wait() {
            Err(ObjectError::NotDelivered) => {}
            outcome => return outcome.expect("it is delivered"),
        }
    }
}

/// Waits until at least `replicas` of `objects` hold each shard. More may hold it until the next view, since only a
/// view change removes a holder.
fn spread(objects: &[&Object<Counters>], replicas: usize) {
    let deadline = Instant::now() + PATIENCE;
    let is_held = |shard| objects.iter().filter(|object| object.holds(shard)).count() >= replicas;
    while !(0..objects[0].shards()).all(is_held) {
        assert!(Instant::now() < deadline, "a shard does not get its replicas");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns all that a member holds of an object, by shard.
fn contents(object: &Object<Counters>) -> Vec<Option<((u64, u64), Counters)>> {
    (0..object.shards()).map(|shard| object.inspect(shard, |at, state| (at, state.clone()))).collect()
}

/// Waits until all holders of a shard hold the same state, and returns it.
fn settled(objects: &[&Object<Counters>]) -> Vec<Counters> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all: Vec<_> = objects.iter().map(|object| contents(object)).collect();
        let shards = (0..objects[0].shards()).map(|shard| {
            let mut states = all.iter().filter_map(|states| states[shard].as_ref().map(|(_, state)| state));
            let first = states.next()?;
            states.all(|state| state == first).then(|| first.clone())
        });
        if let Some(states) = shards.collect() {
            return states;
        }
        assert!(Instant::now() < deadline, "they differ: {all:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// [A1] Each member updates, all have the same state, and each reply is that of the state at the update's place in
/// the order.
#[test]
fn members_have_the_same_state() {
    let members = members(&config("same", 3, SubgroupConfig::default()), 0..3);
    thread::scope(|scope| {
        for (rank, (_, object)) in members.iter().enumerate() {
            scope.spawn(move || {
                let ids = (0..200).map(|i| rank as u64 * 1000 + i);
                let replies: Vec<_> =
                    ids.clone().map(|id| object.update(b"a", &note("a", id)).unwrap()).collect();
                for (reply, id) in replies.into_iter().zip(ids) {
                    assert_eq!(reply.wait().unwrap().last(), Some(&id));
                }
            });
        }
    });
    let objects: Vec<_> = members.iter().map(|(_, object)| object).collect();
    let state = settled(&objects).remove(0);
    assert_eq!(state.0["a"].len(), 600);
    for object in objects {
        assert_eq!(object.query(b"a", &"a".into()).unwrap().wait().unwrap(), state.0["a"]);
    }
}

/// Any member updates and queries any key; requests for other members' shards are sent there, and each update counts
/// once [A3].
#[test]
fn shards_are_reached_from_everywhere() {
    let members = members(&config("shards", 3, sharded(4, 1)), 0..3);
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for (rank, (_, object)) in members.iter().enumerate() {
        for (number, key) in keys.iter().enumerate() {
            let id = (rank * 100 + number) as u64;
            let reply = object.update(key.as_bytes(), &note(key, id)).unwrap().wait().unwrap();
            assert_eq!(reply.last(), Some(&id));
            assert_eq!(reply.len(), rank + 1);
        }
    }
    for (_, object) in &members {
        for key in keys {
            let ids = object.query(key.as_bytes(), &key.into()).unwrap().wait().unwrap();
            assert_eq!(ids.len(), 3);
        }
    }
    let held: usize = members.iter().map(|(_, object)| contents(object).iter().flatten().count()).sum();
    assert_eq!(held, 4, "each shard is at one member");
}

/// [A2] [A4] A member leaves while it updates: acknowledged updates survive, and the others continue.
#[test]
fn acknowledged_updates_survive_a_departure() {
    let mut members = members(&config("survive", 3, SubgroupConfig::default()), 0..3);
    let leaver = members.remove(1);
    let acknowledged: Vec<u64> = thread::scope(|scope| {
        let (group, object) = leaver;
        let leaving = scope.spawn(move || {
            let replies: Vec<_> = (0..50).map(|id| object.update(b"a", &note("a", id)).unwrap()).collect();
            drop(group);
            let outcomes = replies.into_iter().zip(0..).map(|(reply, id)| (reply.wait(), id));
            outcomes.filter_map(|(outcome, id)| outcome.ok().map(|_| id)).collect::<Vec<u64>>()
        });
        let staying = members.iter().enumerate().map(|(number, (_, object))| {
            scope.spawn(move || {
                let from = 1000 * (number as u64 + 1);
                for id in from..from + 200 {
                    object.update(b"a", &note("a", id)).unwrap().wait().expect("the shard continues");
                }
                (from..from + 200).collect::<Vec<_>>()
            })
        });
        let staying: Vec<_> = staying.collect();
        let mut all = leaving.join().unwrap();
        staying.into_iter().for_each(|thread| all.extend(thread.join().unwrap()));
        all
    });
    let state = settled(&[&members[0].1, &members[1].1]).remove(0);
    for id in acknowledged {
        assert_eq!(state.0["a"].iter().filter(|other| **other == id).count(), 1, "update {id}");
    }
}

/// [V6] A joiner gets the state while updates continue, and has the same state from then on.
#[test]
fn joiners_get_the_state() {
    let config = config("joiner", 2, sharded(3, 2));
    let first = members(&config, 0..2);
    for id in 0..100 {
        let key = (id % 7).to_string();
        first[0].1.update(key.as_bytes(), &note(&key, id)).unwrap().wait().unwrap();
    }
    let second = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for id in 100..400 {
                let key = (id % 7).to_string();
                update(&first[1].1, &key, id);
            }
        });
        let second = members(&config, 2..4);
        writing.join().unwrap();
        second
    });
    let all: Vec<_> = first.iter().chain(&second).map(|(_, object)| object).collect();
    all.iter().for_each(|object| object.wait_ready(PATIENCE).unwrap());
    let states = settled(&all);
    let mut ids: Vec<u64> = states.iter().flat_map(|state| state.0.values().flatten().copied()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..400).collect::<Vec<_>>());
    // After the first members have left, one after the other, the state is kept by the joiners.
    let mut first = first.into_iter();
    drop(first.next());
    let others: Vec<_> = first.as_slice().iter().chain(&second).map(|(_, object)| object).collect();
    spread(&others, 2);
    drop(first);
    spread(&second.iter().map(|(_, object)| object).collect::<Vec<_>>(), 2);
    let object = &second[0].1;
    let reply = update(object, "0", 1000);
    assert!(reply.len() > 1 && reply.last() == Some(&1000));
}

/// [A3] A client's updates count once, although the member that passes them on dies repeatedly.
#[test]
fn clients_survive_members() {
    let config = config("client", 3, SubgroupConfig::default());
    let mut members = members(&config, 0..3);
    let client = Client::<Counters>::connect(&config(0), "counters").unwrap();
    let barrier = Arc::new(Barrier::new(2));
    thread::scope(|scope| {
        let reached = Arc::clone(&barrier);
        let writing = scope.spawn(move || {
            for id in 0..600 {
                if id == 100 {
                    reached.wait();
                }
                let reply =
                    client.update(b"a", &note("a", id)).unwrap().wait().expect("some member takes it");
                assert_eq!(reply.last(), Some(&id));
            }
            client.query(b"a", &"a".into()).unwrap().wait().unwrap()
        });
        barrier.wait();
        drop(members.remove(0));
        thread::sleep(Duration::from_millis(50));
        drop(members.remove(0));
        let seen = writing.join().unwrap();
        assert!(seen.iter().copied().eq(0..600), "{seen:?}");
    });
    let state = settled(&[&members[0].1]).remove(0);
    assert!(state.0["a"].iter().copied().eq(0..600));
}

/// [A7] When all holders of a shard are gone, joiners report that, and do not begin with a new state.
#[test]
fn a_lost_state_is_reported() {
    let only = SubgroupConfig { members: Ranks::These(vec![1]), ..SubgroupConfig::default() };
    let config = config("lost", 3, SubgroupConfig { senders: Ranks::These(vec![1]), ..only });
    let mut members = members(&config, 0..3);
    let object = members[0].1.clone();
    object.update(b"a", &note("a", 1)).unwrap().wait().expect("member 1 takes it");
    drop(members.remove(1));
    let (group, late) = self::members(&config, 1..2).remove(0);
    assert!(matches!(late.wait_ready(PATIENCE), Err(ObjectError::StateLost { shard: 0, .. })));
    let error = object.update(b"a", &note("a", 2)).unwrap().wait().unwrap_err();
    assert!(matches!(error, ObjectError::StateLost { shard: 0, .. }), "{error}");
    drop(group);
}

/// A member that leaves does not know the outcome of its updates in flight, but for those that were in no message; afterwards it reports
/// that it has left.
#[test]
fn a_leaver_does_not_know_its_outcomes() {
    let mut members = members(&config("leave", 2, SubgroupConfig::default()), 0..2);
    let (group, object) = members.remove(0);
    drop(group);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match object.update(b"a", &note("a", 1)).map(squall::object::Pending::wait) {
            Err(ObjectError::Group(_)) => break,
            Ok(Err(ObjectError::Unknown | ObjectError::NotDelivered | ObjectError::Group(_))) | Ok(Ok(_)) => {
            }
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < deadline, "it continues forever");
    }
}

/// A query for the latest state includes every update that was acknowledged to any member, even where it has not
/// arrived yet; and a client's updates are applied in their order, although many are in flight \[A11\] \[A12\].
#[test]
fn the_latest_state_has_all_acknowledged_updates() {
    let config = config("latest", 3, sharded(1, 2));
    let members = members(&config, 0..3);
    let client = Client::<Counters>::connect(&config(0), "counters").unwrap();
    let mut ids = Vec::new();
    for round in 0..40 {
        let (_, object) = &members[round % members.len()];
        ids.push(round as u64 * 100);
        assert_eq!(update(object, "a", round as u64 * 100), ids);
        let (_, other) = &members[(round + 1) % members.len()];
        assert_eq!(other.query_latest(b"a", &"a".into()).unwrap().wait().unwrap(), ids);
        let begun: Vec<_> =
            (1..20).map(|id| (id, client.update(b"a", &note("a", ids[ids.len() - 1] + id)))).collect();
        let last = ids[ids.len() - 1];
        for (id, pending) in begun {
            ids.push(last + id);
            assert_eq!(pending.unwrap().wait().unwrap().last(), ids.last());
        }
        assert_eq!(client.query_latest(b"a", &"a".into()).unwrap().wait().unwrap(), ids);
    }
}

/// What is submitted before this member holds the state goes to other members, or to this one in another way, and nothing overtakes it
/// \[A17\].
#[test]
fn updates_of_a_thread_are_applied_in_their_order() {
    let mut group = Group::join(config("order", 1, sharded(1, 1))(0)).unwrap();
    let first = || {
        thread::sleep(Duration::from_millis(30));
        Counters::default()
    };
    let object = group.object("counters", first).unwrap();
    let submit = |id| object.update(b"key", &note("key", id)).unwrap();
    let mut pending = vec![submit(0), submit(1)];
    object.wait_ready(PATIENCE).unwrap();
    pending.extend((2..10).map(submit));
    let replies: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
    assert_eq!(replies, (1..=10).map(|count| (0..count).collect()).collect::<Vec<Vec<u64>>>());
}

/// Misuse is reported at once.
#[test]
fn misuse_is_reported() {
    let base = config("misuse", 1, SubgroupConfig::default());
    let raw = SubgroupConfig { mode: DeliveryMode::Raw, ..SubgroupConfig::default() };
    let mut group = Group::join(base(0).subgroup("raw", raw)).unwrap();
    let unknown = group.object("nothing", Counters::default).unwrap_err();
    assert!(matches!(unknown, HandleError::UnknownSubgroup(name) if name == "nothing"));
    let mode = group.object("raw", Counters::default).unwrap_err();
    assert!(matches!(mode, HandleError::Mode(name) if name == "raw"));
    let object = group.object_with("counters", Counters::default, ObjectOptions::default()).unwrap();
    assert!(matches!(group.object("counters", Counters::default), Err(HandleError::Taken { .. })));
    let long = object.update(b"a", &note(&"long".repeat(1000), 1)).unwrap_err();
    assert!(matches!(long, ObjectError::TooLong { bytes_max: 976, .. }), "{long}");
    let pending = object.update(b"a", &note("a", 1)).unwrap().durable();
    assert!(matches!(pending, Err(ObjectError::NotDurable)), "{pending:?}");
    let earlier = object.at(Version::Position(Position::default())).query(b"a", &"a".into());
    assert!(matches!(earlier, Err(VersionError::Object(ObjectError::NotDurable))), "{earlier:?}");
    let client = Client::<Counters>::connect(&base(0), "counters").unwrap();
    assert!(client.update(b"a", &note("a", 2)).unwrap().durable().is_err(), "it is in no log");
    let long = client.update(b"a", &note(&"long".repeat(1000), 1)).unwrap_err();
    assert!(matches!(long, ObjectError::TooLong { bytes_max: 976, .. }), "{long}");
    let other = Client::<Counters>::connect(&base(0), "nothing").unwrap_err();
    assert!(matches!(other, HandleError::UnknownSubgroup(_)));
}

/// What members report of an object is what has happened: the updates are delivered, its state is here, and in an idle group no member
/// holds up another.
#[test]
fn the_status_of_an_object_is_right() {
    let config = config("status", 3, SubgroupConfig::default());
    let members = members(&config, 0..3);
    members.iter().for_each(|(_, object)| object.wait_ready(PATIENCE).expect("the state is here"));
    for id in 0..100 {
        update(&members[id as usize % 3].1, "a", id);
    }
    let status = |rank: usize| {
        let config = config(rank);
        squall::ask_status(&config, &config.listen).expect("the member answers")
    };
    let deadline = Instant::now() + PATIENCE;
    while (0..3).any(|rank| status(rank).subgroups[0].delivered_total < 100) {
        assert!(Instant::now() < deadline, "all members apply all updates");
    }
    // For as long as it takes for a pause to be shown.
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        for status in (0..3).map(status) {
            let subgroup = &status.subgroups[0];
            assert!(status.missing.is_empty(), "{}", status.missing);
            assert_eq!(subgroup.delivered_total, 100, "{subgroup:?}");
            let stands_still = subgroup.stood_still_millis.is_some_and(|millis| millis > 500);
            let held = subgroup.held_up_by.is_some_and(|held| held.millis > 500);
            assert!(!stands_still && !held, "{subgroup:?}");
        }
    }
    let sent: u64 = (0..3).map(|rank| status(rank).subgroups[0].sent_total).sum();
    assert_eq!(sent, 100);
}
