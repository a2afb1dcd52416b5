//! Participants are processes that write and read topics of all profiles, while one after the other is killed with SIGKILL, killed as it
//! joins, or halted until the others have excluded it; a domain on disk is killed as a whole, too. Then what each process has read is
//! compared with what each profile promises:
//!
//! - unordered: samples of a writer come in its order, each at most once, and all of them to those that stay;
//! - atomic: besides, one order of all samples, and no process that was killed has read what others lack;
//! - kept, logged: everyone reads the same samples, all that were ever acknowledged among them, whenever it came.
//!
//! A longer run: `SQUALL_CHAOS_SECONDS=600 cargo test --release -p squall-dds --test topic_chaos -- --ignored --nocapture --test-threads 1`

mod checks;
#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use checks::{check_history, check_order, check_writers};
use common::{DomainFolder, PATIENCE, Reading, configs, open_domain, patient, wait_until};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use squall::Config;
use squall::config::{Address, StorageConfig, Transport};
use squall_dds::{
    DomainParticipant, DurabilityService, Position, Profile, Qos, ReadError, ResourceLimits, TopicStore,
    WriteError,
};
use squall_fabric::atomics::{AtomicBool, Ordering};

/// The variable that makes this program a participant: its number, cluster, rank, folder and addresses.
const ROLE: &str = "SQUALL_TOPIC_CHAOS";
const MEMBERS: usize = 3;
/// Longer than a healthy process has to wait for a processor on a busy machine.
const SUSPICION: Duration = Duration::from_secs(2);
/// Between a writer's samples.
const PACE: Duration = Duration::from_millis(10);
/// As many as a domain may keep in the longest run.
const SAMPLES_MAX: usize = 10_000_000;
/// A topic of each profile that the domain has.
const NAMES: [&str; 3] = ["unordered", "atomic", "history"];

/// The sample of a process, and its place.
type Read = (Position, Reading);

/// What a process has said of one topic.
#[derive(Debug, Default)]
struct TopicRecord {
    /// In the order in which it came.
    read: Vec<Read>,
    /// The numbers of its own samples that were written.
    written: Vec<u32>,
}

#[derive(Debug, Default)]
struct Record {
    /// The number of the process: its samples are those of this sensor.
    sensor: u32,
    topics: [TopicRecord; NAMES.len()],
    is_ready: bool,
    /// How far it has come on the way there.
    stage: String,
    /// Its writers have stopped.
    has_stopped: bool,
    /// It has ended by itself, or was killed.
    has_ended: bool,
}

struct Member {
    process: Child,
    orders: ChildStdin,
    record: Arc<Mutex<Record>>,
}

impl Member {
    fn start(config: &Config, sensor: u32, folder: Option<&Path>) -> Self {
        let folder = folder.map_or("-".into(), |folder| folder.display().to_string());
        let rank = config.rank.expect("it has one").to_string();
        let own = [sensor.to_string(), config.cluster.clone(), rank, folder, config.listen.to_string()];
        let words: Vec<_> = own.into_iter().chain(config.contacts.iter().map(ToString::to_string)).collect();
        let mut process = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "the_disturbed_participant", "--nocapture"])
            .env(ROLE, words.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let orders = process.stdin.take().expect("it is piped");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let record = Arc::new(Mutex::new(Record { sensor, ..Record::default() }));
        let noted = Arc::clone(&record);
        thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                // The test's own framework prints lines, too, and the last line of a process that is killed may be cut short.
                if let Some(message) = line.strip_prefix("> ").and_then(|line| line.strip_suffix('\n')) {
                    lock(&noted).note(message);
                }
                line.clear();
            }
            lock(&noted).has_ended = true;
        });
        Self { process, orders, record }
    }

    fn with<R>(&self, look: impl FnOnce(&Record) -> R) -> R {
        look(&lock(&self.record))
    }

    fn has_ended(&self) -> bool {
        self.with(|record| record.has_ended)
    }

    /// Waits until it is part of the domain and has its history.
    fn wait_ready(&self) {
        let end = Instant::now() + PATIENCE;
        while !self.with(|record| record.is_ready || record.has_ended) {
            let stage = self.with(|record| record.stage.clone());
            assert!(
                Instant::now() < end,
                "a process has not joined within {PATIENCE:?}; it has come as far as: {stage}"
            );
            thread::sleep(Duration::from_millis(2));
        }
        self.with(|record| assert!(record.is_ready, "process {} could not join", record.sensor));
    }

    fn kill(&mut self) {
        self.process.kill().expect("it is a child");
        self.process.wait().expect("it is a child");
        wait_until("its output ends", || self.has_ended());
    }

    fn signal(&self, signal: &str) {
        let process = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().expect("there is kill").success());
    }

    /// Halts it until the others have excluded it; it has to notice that, and end.
    fn halt(&mut self) {
        self.signal("-STOP");
        thread::sleep(SUSPICION * 2);
        self.signal("-CONT");
        wait_until("a process that was excluded ends", || self.has_ended());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Record {
    fn note(&mut self, message: &str) {
        let (kind, rest) = message.split_once(' ').unwrap_or((message, ""));
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        match (kind, &numbers[..]) {
            ("ready", _) => self.is_ready = true,
            ("stage", _) => rest.clone_into(&mut self.stage),
            ("stopped", _) => self.has_stopped = true,
            ("written", [topic, number]) => self.topics[small(*topic)].written.push(short(*number)),
            ("read", [topic, view, sequence, sensor, number]) => {
                let position = Position { view: *view, sequence: *sequence };
                let reading = Reading { sensor: short(*sensor), number: short(*number) };
                self.topics[small(*topic)].read.push((position, reading));
            }
            _ => panic!("{message}"),
        }
    }
}

fn small(number: u64) -> usize {
    usize::try_from(number).expect("it is small")
}

fn short(number: u64) -> u32 {
    u32::try_from(number).expect("it was of 32 bits")
}

/// The policies of the topics.
fn policies(store: TopicStore) -> [Qos; NAMES.len()] {
    let everything = DurabilityService { samples_max: SAMPLES_MAX, ..DurabilityService::EVERYTHING };
    let history = if store == TopicStore::Disk { Qos::LOGGED } else { Qos::KEPT };
    // A reader has to hold the whole history at first: nothing takes samples while it waits for that.
    let resource_limits = ResourceLimits {
        samples_max: SAMPLES_MAX,
        samples_per_instance_max: SAMPLES_MAX,
        ..ResourceLimits::DEFAULT
    };
    [Qos::UNORDERED, Qos::ATOMIC, Qos { durability_service: Some(everything), resource_limits, ..history }]
}

/// Not a test by itself: what the other processes do, until they are killed or excluded.
#[test]
fn the_disturbed_participant() {
    let Ok(text) = std::env::var(ROLE) else { return };
    let [sensor, cluster, rank, folder, listen, contacts @ ..] = &text.split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{text}")
    };
    let address = |text: &str| text.parse::<Address>().expect("it is an address");
    let mut config = Config::local(cluster, MEMBERS).for_rank(rank.parse().expect("it is a rank"));
    config.listen = address(listen);
    config.contacts = contacts.iter().map(|contact| address(contact)).collect();
    config.suspicion_after = Some(SUSPICION);
    config.timeout = PATIENCE;
    if matches!(config.listen, Address::Tcp { .. }) {
        config.transport = Transport::Tcp;
    }
    let store = if *folder == "-" { TopicStore::Memory } else { TopicStore::Disk };
    config.storage = (store == TopicStore::Disk).then(|| StorageConfig::new(folder));
    say("stage starts");
    let participant = open_domain(&[config], store).remove(0);
    say("stage joined");
    take_part(&participant, sensor.parse().expect("it is a number"), store);
}

/// Writes and reads all topics.
fn take_part(participant: &DomainParticipant, sensor: u32, store: TopicStore) {
    let topics: Vec<_> = NAMES
        .iter()
        .zip(policies(store))
        .map(|(name, qos)| participant.create_topic::<Reading>(name, qos).expect("it is there or created"))
        .collect();
    let readers: Vec<_> = topics
        .iter()
        .map(|topic| participant.reader(topic, topic.qos().clone()).expect("it is created"))
        .collect();
    say("stage created");
    readers[2].wait_for_historical_data(PATIENCE).expect("the history comes");
    let writers: Vec<_> = topics
        .iter()
        .map(|topic| participant.writer(topic, patient(topic.qos().clone())).expect("it is created"))
        .collect();
    // Lines of the test's own framework may come before.
    println!();
    say("ready");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (topic, reader) in readers.iter().enumerate() {
            scope.spawn(move || {
                loop {
                    match reader.wait_for_data(PATIENCE) {
                        Ok(()) => {}
                        Err(ReadError::Timeout(_)) => continue,
                        Err(_) => end(participant),
                    }
                    let Ok(samples) = reader.take(usize::MAX) else { end(participant) };
                    for sample in samples {
                        let Position { view, sequence } = sample.info.position;
                        if let Some(Reading { sensor, number }) = sample.data {
                            say(&format!("read {topic} {view} {sequence} {sensor} {number}"));
                        }
                    }
                }
            });
        }
        let is_over = &is_over;
        let write = |(topic, writer): (usize, &squall_dds::DataWriter<Reading>)| {
            for number in 0.. {
                match writer.write(&Reading { sensor, number }) {
                    Ok(()) => say(&format!("written {topic} {number}")),
                    Err(WriteError::Group(_) | WriteError::Unknown) => end(participant),
                    Err(error) => panic!("{sensor}: {topic}: {number}: {error}"),
                }
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(PACE);
            }
        };
        let writers: Vec<_> = writers.iter().enumerate().map(|of| scope.spawn(move || write(of))).collect();
        // The only order is to stop.
        let _ = std::io::stdin().lines().next();
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("it does not panic"));
        say("stopped");
    });
}

fn end(participant: &DomainParticipant) -> ! {
    eprintln!("node {} ends: {:?}", participant.node(), participant.failure().map(|error| error.to_string()));
    std::process::exit(1);
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "> {text}").and_then(|()| stdout.flush()).expect("the test reads");
}

/// The processes of a run, and what has become of them.
struct Run {
    configs: Vec<Config>,
    folder: Option<DomainFolder>,
    members: Vec<Member>,
    /// The records of those that have ended.
    ended: Vec<Arc<Mutex<Record>>>,
    started: u32,
}

impl Run {
    fn start(test: &str, transport: Transport, store: TopicStore) -> Self {
        let configs = configs(transport, test, MEMBERS, 0);
        let folder = (store == TopicStore::Disk).then(|| DomainFolder::new(test));
        let mut run = Self { configs, folder, members: Vec::new(), ended: Vec::new(), started: 0 };
        run.start_all();
        run
    }

    fn new_member(&mut self, rank: usize) -> Member {
        self.started += 1;
        Member::start(&self.configs[rank], self.started, self.folder.as_ref().map(|folder| &*folder.0))
    }

    fn start_all(&mut self) {
        self.members = (0..MEMBERS).map(|rank| self.new_member(rank)).collect();
        self.members.iter().for_each(Member::wait_ready);
    }

    /// Starts those again that have ended, one after the other: two that are missing may be too many. Returns how many there were.
    fn complete(&mut self) -> usize {
        let mut count = 0;
        for rank in 0..MEMBERS {
            if self.members[rank].has_ended() {
                self.restart(rank).wait_ready();
                count += 1;
            }
        }
        count
    }

    fn restart(&mut self, rank: usize) -> &mut Member {
        let member = self.new_member(rank);
        self.ended.push(Arc::clone(&self.members[rank].record));
        self.members[rank] = member;
        &mut self.members[rank]
    }

    fn kill_all(&mut self) {
        for mut member in std::mem::take(&mut self.members) {
            member.kill();
            self.ended.push(Arc::clone(&member.record));
        }
        self.start_all();
    }

    /// Lets the writers stop, and waits until everything has come to everyone that is left.
    fn stop(&mut self) {
        self.members.iter_mut().for_each(|member| member.orders.write_all(b"stop\n").expect("it runs"));
        wait_until("the writers stop", || {
            self.members.iter().all(|each| each.with(|record| record.has_stopped))
        });
        let last: Vec<_> = self
            .members
            .iter()
            .map(|each| each.with(|record| (record.sensor, last_written(record))))
            .collect();
        for member in &self.members {
            let has = |record: &Record, sensor: u32, number: &u32, topic: usize| {
                let read = &record.topics[topic].read;
                read.iter().rev().any(|read| read.1 == Reading { sensor, number: *number })
            };
            for (sensor, numbers) in &last {
                for (topic, number) in numbers.iter().enumerate() {
                    let what =
                        format!("all read sample {number} of {sensor}, its last one, in {}", NAMES[topic]);
                    wait_until(&what, || member.with(|record| has(record, *sensor, number, topic)));
                }
            }
        }
    }

    fn check(&self) {
        let living: Vec<_> = self.members.iter().map(|member| lock(&member.record)).collect();
        let ended: Vec<_> = self.ended.iter().map(|record| lock(record)).collect();
        let of = |topic: usize| {
            let topics = living.iter().chain(&ended).map(|record| &record.topics[topic]);
            topics.collect::<Vec<_>>()
        };
        check_writers(&of(0));
        check_writers(&of(1));
        check_order(&of(1));
        let history = check_history(&of(2));
        for record in living.iter().chain(&ended) {
            for number in &record.topics[2].written {
                let reading = Reading { sensor: record.sensor, number: *number };
                assert!(history.contains(&reading), "{reading:?} was acknowledged, and is lost");
            }
        }
        let count =
            |topic: usize| living.iter().map(|record| record.topics[topic].read.len()).collect::<Vec<_>>();
        eprintln!(
            "{} processes; samples read by those that are left, by topic: {:?}",
            self.started,
            [0, 1, 2].map(count)
        );
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().expect("nothing panics")
}

fn last_written(record: &Record) -> Vec<u32> {
    record.topics.each_ref().map(|topic| *topic.written.last().expect("it has written")).to_vec()
}

fn seconds() -> Duration {
    Duration::from_secs(
        std::env::var("SQUALL_CHAOS_SECONDS").map_or(60, |text| text.parse().expect("a number")),
    )
}

/// Disturbs a domain, then checks what was read.
fn chaos(test: &str, transport: Transport, store: TopicStore) {
    let profiles = policies(store).map(|qos| qos.profile());
    assert_eq!(profiles[..2], [Profile::Unordered, Profile::Atomic]);
    let seed = std::process::id();
    let mut seed_bytes = [test.as_bytes(), &seed.to_le_bytes()].concat();
    seed_bytes.resize(32, 0);
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes);
    let mut draw = |below: u64| random.next_u64() % below;
    let mut run = Run::start(test, transport, store);
    let deadline = Instant::now() + seconds();
    let mut faults = BTreeMap::<&str, usize>::new();
    while Instant::now() < deadline {
        thread::sleep(Duration::from_millis(draw(700)));
        *faults.entry("ended undisturbed").or_default() += run.complete();
        let rank = small(draw(MEMBERS as u64));
        let fault = match draw(8) {
            0 | 1 => {
                run.members[rank].halt();
                "halted"
            }
            2 => {
                run.members[rank].kill();
                run.restart(rank);
                thread::sleep(Duration::from_millis(draw(100)));
                run.members[rank].kill();
                "killed, and killed as it joined"
            }
            3 if store == TopicStore::Disk => {
                run.kill_all();
                "all killed"
            }
            _ => {
                run.members[rank].kill();
                "killed"
            }
        };
        *faults.entry(fault).or_default() += 1;
        run.complete();
    }
    *faults.entry("ended undisturbed").or_default() += run.complete();
    run.stop();
    eprintln!("{transport:?}, {profiles:?}, seed {seed}: {faults:?}");
    run.check();
}

#[test]
#[ignore = "takes a minute, or SQUALL_CHAOS_SECONDS seconds"]
fn chaos_in_memory_on_shm() {
    chaos("chaos-shm", Transport::Shm, TopicStore::Memory);
}

#[test]
#[ignore = "takes a minute, or SQUALL_CHAOS_SECONDS seconds"]
fn chaos_in_memory_on_tcp() {
    chaos("chaos-tcp", Transport::Tcp, TopicStore::Memory);
}

#[test]
#[ignore = "takes a minute, or SQUALL_CHAOS_SECONDS seconds"]
fn chaos_on_disk_on_shm() {
    chaos("chaos-disk-shm", Transport::Shm, TopicStore::Disk);
}

#[test]
#[ignore = "takes a minute, or SQUALL_CHAOS_SECONDS seconds"]
fn chaos_on_disk_on_tcp() {
    chaos("chaos-disk-tcp", Transport::Tcp, TopicStore::Disk);
}
