//! Participants as processes, one of which is killed while all write.

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use common::{PATIENCE, Reading, TOPIC, configs, domain, patient, reader, take, wait_until, writer};
use squall::Config;
use squall::config::{Address, Transport};
use squall_dds::{
    DataReader, DomainParticipant, EndpointId, InstanceState, Qos, Sample, StateMask, WriteError,
};

/// The variable that has a process's transport, role, rank and addresses.
const ROLE: &str = "SQUALL_DDS_PROCESS";
/// Where a joiner reports what it has read.
const REPORTS: &str = "reports";
const MEMBERS: usize = 3;
/// How many samples of a history a joiner reports.
const REPORTED: usize = 500;

fn topics(qos: &Qos) -> [(&'static str, Qos); 2] {
    [(TOPIC, qos.clone()), (REPORTS, Qos::ATOMIC)]
}

fn qos(is_kept: &str) -> Qos {
    if is_kept == "kept" { Qos::KEPT } else { Qos::ATOMIC }
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Process {
    /// Starts this program as another process.
    fn start(role: &str, config: &Config, topic: &str) -> Self {
        let addresses: Vec<_> = config.contacts.iter().map(ToString::to_string).collect();
        let rank = config.rank.expect("it has one");
        let text = [
            &[config.cluster.clone(), topic.into(), role.into(), rank.to_string(), config.listen.to_string()],
            &addresses[..],
        ];
        let child = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(ROLE, text.concat().join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: what the other processes do.
#[test]
fn the_other_process() {
    let Ok(text) = std::env::var(ROLE) else { return };
    let [cluster, topic, role, rank, listen, contacts @ ..] = &text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let address = |text: &str| text.parse::<Address>().expect("it is an address");
    let rank: u32 = rank.parse().expect("it is a rank");
    let mut config = Config::local(cluster, MEMBERS).for_rank(rank as usize);
    config.listen = address(listen);
    config.contacts = contacts.iter().map(|contact| address(contact)).collect();
    if matches!(config.listen, Address::Tcp { .. }) {
        config.transport = Transport::Tcp;
    }
    let qos = qos(topic);
    let participant = domain(&[config], &topics(&qos)).remove(0);
    match *role {
        "write" => write_forever(&participant, &qos, rank),
        _ => report(&participant, &qos),
    }
}

/// Writes until this process is killed, or is the last one.
fn write_forever(participant: &DomainParticipant, qos: &Qos, sensor: u32) {
    let writer = writer(participant, qos.clone());
    wait_until("the reader is there", || !writer.matched_subscriptions().is_empty());
    for number in 0.. {
        match writer.write(&Reading { sensor, number }) {
            Ok(()) => {}
            // The group ends with the process that tests. If one of these came earlier, that process would miss the rest.
            Err(WriteError::Group(_) | WriteError::Unknown | WriteError::HistoryFull { .. }) => break,
            Err(error) => panic!("{sensor}: {number}: {error}"),
        }
    }
    wait_until("the test ends", || participant.failure().is_some());
}

/// Reports the beginning of the history to the process that tests.
fn report(participant: &DomainParticipant, qos: &Qos) {
    let topic = participant.topic::<Reading>(REPORTS).expect("it exists");
    let reports = participant.writer(&topic, patient(Qos::ATOMIC)).expect("it is created");
    wait_until("the reader is there", || !reports.matched_subscriptions().is_empty());
    let reader = reader(participant, qos.clone());
    let mut left = REPORTED;
    while left > 0 {
        reader.wait_for_data(PATIENCE).expect("the history comes");
        for reading in reader.take(left).expect("it comes").into_iter().filter_map(|sample| sample.data) {
            reports.write(&reading).expect("it is written");
            left -= 1;
        }
    }
    wait_until("the test ends", || participant.failure().is_some());
}

/// Takes samples until there are `count` more of a writer; adds them to `all`.
fn take_of(
    reader: &DataReader<Reading>,
    all: &mut Vec<Sample<Reading>>,
    count: usize,
    is_of: impl Fn(&Sample<Reading>) -> bool,
) {
    let mut found = 0;
    while found < count {
        reader.wait_for_data(PATIENCE).expect("it comes");
        let taken = reader.take(100).expect("there are some");
        found += taken.iter().filter(|sample| is_of(sample)).count();
        all.extend(taken);
    }
}

fn a_process_is_killed(transport: Transport, test: &str, topic: &str) {
    let configs = configs(transport, test, MEMBERS, 1);
    let mut processes: Vec<_> =
        configs[1..MEMBERS].iter().map(|config| Process::start("write", config, topic)).collect();
    let qos = qos(topic);
    let participant = domain(&configs[..1], &topics(&qos)).remove(0);
    let reader = reader(&participant, qos.clone());
    wait_until("both match", || reader.matched_publications().len() == MEMBERS - 1);
    let mut all = Vec::new();
    for sensor in [1, 2] {
        let is_of = |sample: &Sample<Reading>| sample.data.is_some_and(|reading| reading.sensor == sensor);
        take_of(&reader, &mut all, 200, is_of);
    }
    processes.remove(0).kill();
    let is_end = |sample: &Sample<Reading>| {
        sample.info.instance_state == InstanceState::NotAliveNoWriters && !sample.info.is_valid
    };
    take_of(&reader, &mut all, 1, is_end);
    assert_eq!(reader.matched_publications().len(), 1);
    // The other one continues.
    let is_of_other = |sample: &Sample<Reading>| sample.data.is_some_and(|reading| reading.sensor == 2);
    take_of(&reader, &mut all, 200, is_of_other);
    let mut of_writers = BTreeMap::<EndpointId, Vec<u32>>::new();
    for sample in &all {
        if let Some(reading) = sample.data {
            of_writers.entry(sample.info.publication).or_default().push(reading.number);
        }
    }
    assert_eq!(of_writers.len(), 2);
    for numbers in of_writers.into_values() {
        assert!(numbers.iter().copied().eq(0..u32::try_from(numbers.len()).expect("few")), "{numbers:?}");
    }

    if topic == "kept" {
        // A process that comes now reads what the killed one has written, too.
        let topic = participant.topic::<Reading>(REPORTS).expect("it exists");
        let reports = participant.reader(&topic, Qos::ATOMIC).expect("it is created");
        let joiner = Process::start("report", &configs[MEMBERS], "kept");
        let reported: Vec<_> = take(&reports, REPORTED).into_iter().map(|sample| sample.data).collect();
        let read: Vec<_> =
            all.iter().map(|sample| sample.data).filter(Option::is_some).take(REPORTED).collect();
        assert_eq!(reported, read);
        drop(joiner);
    }
    assert!(!reader.has(StateMask::NOT_ALIVE_DISPOSED));
}

#[test]
fn a_writer_of_a_kept_topic_is_killed_on_shm() {
    a_process_is_killed(Transport::Shm, "killed-kept-shm", "kept");
}

#[test]
fn a_writer_of_a_kept_topic_is_killed_on_tcp() {
    a_process_is_killed(Transport::Tcp, "killed-kept-tcp", "kept");
}

#[test]
fn a_writer_of_an_atomic_topic_is_killed_on_shm() {
    a_process_is_killed(Transport::Shm, "killed-atomic-shm", "atomic");
}

#[test]
fn a_writer_of_an_atomic_topic_is_killed_on_tcp() {
    a_process_is_killed(Transport::Tcp, "killed-atomic-tcp", "atomic");
}
