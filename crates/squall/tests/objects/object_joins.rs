//! Joins and departures in order lose no state, however long a state transfer takes \[A8\] \[A9\] (Derecho app. A:
//! state transfer).

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{PartitionSafety, SubgroupConfig, Transport};
use squall::object::{Object, ObjectError, ObjectOptions, Replicated, Snapshot};
use squall::{Config, Departure, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_protocols::replica::shard_of_key;
use squall_transports::bootstrap::Address;
use squall_transports::reserve_port;

const PATIENCE: Duration = Duration::from_secs(60);
const FIRST: usize = 3;
const SHARDS: u32 = 8;
const UPDATES: u64 = 3;

/// Notes, and how long their transfer takes: like a large state on a slow network.
#[derive(Clone)]
struct Notes {
    notes: Vec<u64>,
    transfer: Duration,
}

impl Replicated for Notes {
    type Update = u64;
    type Query = ();
    type Reply = u64;

    fn apply(&mut self, note: u64) -> u64 {
        self.notes.push(note);
        self.notes.len() as u64
    }

    fn query(&self, (): ()) -> u64 {
        self.notes.len() as u64
    }

    fn snapshot(&self) -> Snapshot {
        let Self { notes, transfer } = self.clone();
        Snapshot::new(move |sink: &mut dyn Write| {
            sink.write_all(&(transfer.as_millis() as u64).to_le_bytes())?;
            for part in 0..PARTS {
                sink.write_all(&[part])?;
                thread::sleep(transfer / u32::from(PARTS));
            }
            notes.iter().try_for_each(|note| sink.write_all(&note.to_le_bytes()))
        })
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
        let notes = bytes[8 + usize::from(PARTS)..].chunks(8).map(word).collect();
        Ok(Self { notes, transfer: Duration::from_millis(word(&bytes[..8])) })
    }
}

const PARTS: u8 = 15;

type Joined = (Group, Object<Notes>);

/// A group whose members join one after the other.
struct Cluster {
    base: Config,
    transfer: Duration,
}

impl Cluster {
    fn new(test: &str, transport: Transport, replicas: usize, transfer: Duration) -> Self {
        let base = Config::local(&format!("joins-{test}-{transport:?}-{}", std::process::id()), FIRST);
        let notes = SubgroupConfig {
            shards: SHARDS as usize,
            replicas,
            window: 16,
            message_max: 1000,
            ..SubgroupConfig::default()
        };
        let mut base = base.subgroup("notes", notes);
        base.partition_safety = PartitionSafety::Majority;
        if transport == Transport::Tcp {
            base.transport = transport;
            let address = |_| Address::Tcp { host: "127.0.0.1".into(), port: reserve_port().unwrap() };
            base.contacts = (0..FIRST).map(address).collect();
        }
        Self { base, transfer }
    }

    /// Starts a member, with rank `place` if it is one of the first, else with any rank.
    fn join(&self, place: usize) -> Joined {
        let mut config = self.base.clone();
        let is_first = place < FIRST;
        config.rank = is_first.then_some(place);
        config.listen = match self.base.transport {
            Transport::Tcp if is_first => config.contacts[place].clone(),
            Transport::Tcp => Address::Tcp { host: "127.0.0.1".into(), port: 0 },
            _ => Address::Abstract(format!("squall-{}-{place}", config.cluster)),
        };
        let mut group = Group::join(config).expect("the member joins");
        let transfer = self.transfer;
        let object =
            group.object("notes", move || Notes { notes: Vec::new(), transfer }).expect("it is configured");
        (group, object)
    }

    /// Starts the first members, and makes some acknowledged updates in each shard.
    fn begin(&self) -> Vec<Joined> {
        let all: Vec<Joined> = thread::scope(|scope| {
            let threads: Vec<_> = (0..FIRST).map(|rank| scope.spawn(move || self.join(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the member joins")).collect()
        });
        for shard in 0..SHARDS {
            for note in 0..UPDATES {
                let reply = all[0].1.update(&key_of(shard), &note).unwrap().wait();
                assert_eq!(reply.expect("some member takes it"), note + 1);
            }
        }
        all
    }
}

fn key_of(shard: u32) -> [u8; 8] {
    let mut keys = (0u64..).map(u64::to_le_bytes);
    keys.find(|key| shard_of_key(key, SHARDS) == shard).expect("each shard has keys")
}

/// Asserts that every shard answers in time with all acknowledged updates.
fn assert_whole(all: &[Joined]) {
    let deadline = Instant::now() + PATIENCE;
    for shard in 0..SHARDS {
        loop {
            match all[0].1.query(&key_of(shard), &()).unwrap().wait() {
                Ok(count) => break assert_eq!(count, UPDATES, "shard {shard}"),
                Err(error @ ObjectError::StateLost { .. }) => panic!("{error}"),
                Err(error) => assert!(Instant::now() < deadline, "shard {shard}: {error}"),
            }
        }
    }
}

/// Members join in quick succession; each join reassigns shards before the states have arrived that earlier joins
/// reassigned.
fn joins_alone_lose_nothing(transport: Transport) {
    let cluster = Cluster::new("alone", transport, 2, Duration::from_millis(1500));
    let mut all = cluster.begin();
    all.extend((FIRST..FIRST + 12).map(|place| cluster.join(place)));
    assert_whole(&all);
}

/// One member joins and one leaves in order, until all first members are gone.
fn a_rolling_restart_loses_nothing(transport: Transport, replicas: usize) {
    let cluster = Cluster::new(&format!("roll{replicas}"), transport, replicas, Duration::from_millis(1500));
    let mut all = cluster.begin();
    for place in FIRST..2 * FIRST {
        all.push(cluster.join(place));
        thread::sleep(Duration::from_millis(500));
        let (group, _) = all.remove(0);
        let departure = group.leave(PATIENCE);
        assert!(matches!(departure, Departure::InOrder), "{departure:?}");
    }
    assert_whole(&all);
}

/// All first members leave at once, while joiners wait for the states.
fn all_first_members_leave_at_once(transport: Transport) {
    let cluster = Cluster::new("atonce", transport, 1, Duration::from_millis(300));
    let mut all = cluster.begin();
    all.extend((FIRST..FIRST + 2).map(|place| cluster.join(place)));
    thread::scope(|scope| {
        let leavers: Vec<_> =
            all.drain(..FIRST).map(|(group, _)| scope.spawn(|| group.leave(PATIENCE))).collect();
        for leaver in leavers {
            let departure = leaver.join().expect("it leaves");
            assert!(matches!(departure, Departure::InOrder), "{departure:?}");
        }
    });
    assert_whole(&all);
}

#[test]
fn joins_alone_lose_nothing_on_shm() {
    joins_alone_lose_nothing(Transport::Shm);
}

#[test]
fn joins_alone_lose_nothing_on_tcp() {
    joins_alone_lose_nothing(Transport::Tcp);
}

#[test]
fn a_rolling_restart_loses_nothing_on_shm() {
    a_rolling_restart_loses_nothing(Transport::Shm, 2);
}

#[test]
fn a_rolling_restart_loses_nothing_on_tcp() {
    a_rolling_restart_loses_nothing(Transport::Tcp, 2);
}

/// With one replica each departure has to wait for a state transfer.
#[test]
fn a_rolling_restart_without_replicas_loses_nothing() {
    a_rolling_restart_loses_nothing(Transport::Shm, 1);
}

#[test]
fn all_first_members_leave_at_once_on_shm() {
    all_first_members_leave_at_once(Transport::Shm);
}

#[test]
fn all_first_members_leave_at_once_on_tcp() {
    all_first_members_leave_at_once(Transport::Tcp);
}

/// A leaver that cannot hand a state over in time reports which one is lost, and a member that needs it reports which
/// member held it.
#[test]
fn a_forced_departure_reports_what_is_lost() {
    let cluster = Cluster::new("forced", Transport::Shm, 1, Duration::from_secs(60));
    let mut all = cluster.begin();
    let (group, object) = all.remove(0);
    let own: Vec<u32> = (0..SHARDS).filter(|shard| object.holds(*shard as usize)).collect();
    assert!(!own.is_empty(), "the first member holds some shard");
    let node = group.view().members[0].node;
    let Departure::Forced { states } = group.leave(Duration::from_secs(1)) else { panic!("it cannot leave") };
    assert_eq!(states, own.iter().map(|shard| format!("notes/{shard}")).collect::<Vec<_>>());
    let error = all[0].1.query(&key_of(own[0]), &()).unwrap().wait().unwrap_err();
    assert!(matches!(&error, ObjectError::StateLost { holders, .. } if *holders == [node]), "{error}");
    assert!(error.to_string().contains(&node.to_string()), "{error}");
}

/// Whether the first member's states are never written to the end.
static HANGS: AtomicBool = AtomicBool::new(false);

/// A list whose snapshot hangs at one member.
#[derive(Default)]
struct Hanging {
    notes: Vec<u64>,
    hangs: bool,
}

impl Replicated for Hanging {
    type Update = u64;
    type Query = ();
    type Reply = u64;

    fn apply(&mut self, note: u64) -> u64 {
        self.notes.push(note);
        self.notes.len() as u64
    }

    fn query(&self, (): ()) -> u64 {
        self.notes.len() as u64
    }

    fn snapshot(&self) -> Snapshot {
        let (notes, hangs) = (self.notes.clone(), self.hangs);
        Snapshot::new(move |sink: &mut dyn Write| {
            while hangs && HANGS.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            notes.iter().try_for_each(|note| sink.write_all(&note.to_le_bytes()))
        })
    }

    fn restore(source: &mut dyn Read) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let notes =
            bytes.chunks(8).map(|note| u64::from_le_bytes(note.try_into().expect("a word"))).collect();
        Ok(Self { notes, hangs: false })
    }
}

/// A provider that hangs in the middle of a state, but lives, does not block a joiner, which asks another member.
#[test]
fn a_provider_that_hangs_is_replaced() {
    let base = Config::local(&format!("joins-hangs-{}", std::process::id()), 2);
    let base =
        base.subgroup("notes", SubgroupConfig { window: 16, message_max: 1000, ..SubgroupConfig::default() });
    HANGS.store(true, Ordering::Relaxed);
    let join = |rank: usize| {
        let mut group = Group::join(base.clone().for_rank(rank)).expect("the member joins");
        let options = ObjectOptions { timeout: Duration::from_millis(500), ..ObjectOptions::default() };
        let first = move || Hanging { notes: Vec::new(), hangs: rank == 0 };
        let object = group.object_with("notes", first, options).expect("it is configured");
        (group, object)
    };
    thread::scope(|scope| {
        let first: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank))).collect();
        let first: Vec<_> =
            first.into_iter().map(|member| member.join().expect("the member joins")).collect();
        first[0].1.update(b"any", &7).unwrap().wait().expect("it is delivered");
        let late = join(2);
        late.1.wait_ready(PATIENCE).expect("the other member sends the state");
        assert_eq!(late.1.query_at(late.0.view().members[2].node, 0, &()).unwrap().wait().unwrap(), 1);
        HANGS.store(false, Ordering::Relaxed);
    });
}
