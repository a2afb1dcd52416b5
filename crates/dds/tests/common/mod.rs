//! What the tests of domains share: configurations, a type with a key, and waiting.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use squall::Config;
use squall::config::{Address, StorageConfig, Transport};
use squall_dds::{
    DataReader, DataWriter, DomainParticipant, Keyed, Qos, Sample, StateMask, TopicData, TopicStore,
};
use squall_transports::reserve_port;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The topic of tests that need one only.
pub(crate) const TOPIC: &str = "readings";

/// A sample: the instance, and its number among those of its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) sensor: u32,
    pub(crate) number: u32,
}

impl Keyed for Reading {
    const TYPE_NAME: &'static str = "Reading";
    type Key = u32;

    fn key(&self) -> u32 {
        self.sensor
    }
}

/// Another type, with the same bytes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Other(pub(crate) u32, pub(crate) u32);

impl Keyed for Other {
    const TYPE_NAME: &'static str = "Other";
    type Key = ();

    fn key(&self) {}
}

/// A folder that is removed at the end of its test.
pub(crate) struct DomainFolder(pub(crate) PathBuf);

impl DomainFolder {
    pub(crate) fn new(test: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn storage(&self) -> Option<StorageConfig> {
        Some(StorageConfig::new(&self.0))
    }
}

impl Drop for DomainFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the configurations of `members` members and of `joiners` processes that join later.
pub(crate) fn configs(transport: Transport, test: &str, members: usize, joiners: usize) -> Vec<Config> {
    let all = members + joiners;
    let ports: Vec<u16> = (0..all).map(|_| reserve_port().expect("there is a port")).collect();
    let base = Config::local(&format!("dds-{test}-{}", std::process::id()), members);
    let config = |rank: usize| {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        let mut config = base.clone().for_rank(rank);
        if transport == Transport::Tcp {
            config.transport = transport;
            config.listen = address(rank);
            config.contacts = (0..members).map(address).collect();
        }
        config
    };
    (0..all).map(config).collect()
}

/// Starts a participant for each configuration, all at once.
pub(crate) fn domain(configs: &[Config], topics: &[(&str, Qos)]) -> Vec<DomainParticipant> {
    let join = |config: &Config| {
        let builder = DomainParticipant::builder(config.clone());
        let builder = topics.iter().fold(builder, |builder, (name, qos)| builder.topic(name, qos.clone()));
        builder.join().expect("the participant joins")
    };
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || join(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it joins")).collect()
    })
}

/// Starts a participant for each configuration, all at once, in a domain whose topics are created later.
pub(crate) fn open_domain(configs: &[Config], store: TopicStore) -> Vec<DomainParticipant> {
    let join = |config: &Config| {
        let builder = DomainParticipant::builder(config.clone()).run_time_topics(store);
        builder.join().expect("the participant joins")
    };
    thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || join(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it joins")).collect()
    })
}

/// A domain of one participant, with one topic.
pub(crate) fn alone(test: &str, qos: Qos) -> DomainParticipant {
    domain(&configs(Transport::Shm, test, 1, 0), &[(TOPIC, qos)]).remove(0)
}

/// The same policies, with patience.
pub(crate) fn patient(qos: Qos) -> Qos {
    Qos { max_blocking_time: PATIENCE, ..qos }
}

pub(crate) fn reader(participant: &DomainParticipant, qos: Qos) -> DataReader<Reading> {
    let topic = participant.topic(TOPIC).expect("there is this topic");
    participant.reader(&topic, qos).expect("it is created")
}

pub(crate) fn writer(participant: &DomainParticipant, qos: Qos) -> DataWriter<Reading> {
    let topic = participant.topic(TOPIC).expect("there is this topic");
    participant.writer(&topic, patient(qos)).expect("it is created")
}

/// Takes `count` samples, and no more.
pub(crate) fn take<T: TopicData>(reader: &DataReader<T>, count: usize) -> Vec<Sample<T>> {
    let mut samples = Vec::new();
    while samples.len() < count {
        if let Err(error) = reader.wait_for_data(PATIENCE) {
            panic!("{} of {count} samples have come: {error}", samples.len());
        }
        samples.extend(reader.take(count - samples.len()).expect("there are some"));
    }
    assert!(!reader.has(StateMask::ANY), "more than {count} samples have come");
    samples
}

/// Returns the data of samples, all of which have some.
pub(crate) fn data<T>(samples: Vec<Sample<T>>) -> Vec<T> {
    samples.into_iter().map(|sample| sample.data.expect("it has data")).collect()
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
