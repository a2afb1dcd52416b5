//! Clients outside the group in topics that keep nothing: a member reads and writes for them, and none waits for them.

use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, Reading, configs, data, open_domain, patient, take, wait_until};
use squall::Config;
use squall::config::Transport;
use squall_dds::{
    ClientReader, ClientWriter, DomainClient, DomainParticipant, Profile, Qos, ReadError, TopicStore,
    WriteError,
};

const SAMPLES: u32 = 2000;

fn reading(number: u32) -> Reading {
    Reading { sensor: number % 3, number }
}

/// A client of members with these configurations, the first of which it asks first.
fn connect(configs: &[Config]) -> DomainClient {
    let mut config = configs[0].clone();
    config.contacts = configs.iter().map(|config| config.listen.clone()).collect();
    DomainClient::connect(config, TopicStore::Memory, PATIENCE).expect("a member answers")
}

/// Takes `count` samples with data.
fn take_client(reader: &ClientReader<Reading>, count: usize) -> Vec<Reading> {
    let mut taken = Vec::new();
    while taken.len() < count {
        reader.wait_for_data(PATIENCE).expect("they come");
        taken.extend(reader.take(100).expect("they come").into_iter().filter_map(|sample| sample.data));
    }
    assert_eq!((taken.len(), reader.sample_lost().total_count), (count, 0));
    taken
}

/// Returns how many writers and readers the only topic has.
fn endpoints(participant: &DomainParticipant) -> (usize, usize) {
    let topics = participant.topics();
    (topics[0].writers, topics[0].readers)
}

fn write_all(writer: &ClientWriter<Reading>) {
    (0..SAMPLES).for_each(|number| writer.write(&reading(number)).expect("it is written"));
    writer.wait_for_acknowledgments(PATIENCE).expect("all members have them");
}

/// What a client writes comes to a member and to another client, each sample once and in one order. The endpoints of clients count at all
/// members, and end when the clients do.
fn a_client_writes_and_reads(transport: Transport, profile: Qos, test: &str) {
    let configs = configs(transport, test, 2, 0);
    let participants = open_domain(&configs, TopicStore::Memory);
    let clients = [connect(&configs), connect(&[configs[1].clone(), configs[0].clone()])];
    clients[0].create_topic::<Reading>("t", profile.clone()).expect("it is created");
    let topic = participants[0].find_topic::<Reading>("t", PATIENCE).expect("it is found");
    let near = participants[0].reader(&topic, Qos::ATOMIC).expect("it is created");
    let own = participants[0].writer(&topic, patient(profile.clone())).expect("it is created");
    let far = clients[1].reader::<Reading>("t", profile.clone()).expect("it is created");
    let writer = clients[0].writer::<Reading>("t", patient(profile.clone())).expect("it is created");
    wait_until("they are announced", || participants.iter().all(|each| endpoints(each) == (2, 2)));
    assert_eq!(clients[0].topics().expect("they answer")[0].qos.profile(), profile.profile());

    write_all(&writer);
    own.write(&reading(SAMPLES)).expect("it is written");
    let taken = take_client(&far, SAMPLES as usize + 1);
    if profile.profile() == Profile::Atomic {
        assert_eq!(data(take(&near, SAMPLES as usize + 1)), taken, "the order is the same");
    }
    let by_client = taken.iter().map(|each| each.number).filter(|number| *number < SAMPLES);
    assert!(by_client.eq(0..SAMPLES), "each once, in the order of the writer");
    drop((far, writer, clients));
    wait_until("they have gone", || participants.iter().all(|each| endpoints(each) == (1, 1)));
}

#[test]
fn a_client_writes_and_reads_an_atomic_topic_on_tcp() {
    a_client_writes_and_reads(Transport::Tcp, Qos::ATOMIC, "volatile-tcp");
}

#[test]
fn a_client_writes_and_reads_an_atomic_topic_on_shm() {
    a_client_writes_and_reads(Transport::Shm, Qos::ATOMIC, "volatile-shm");
}

/// A client that takes nothing holds up no writer. It gets the first samples later, and learns how many it has lost.
#[test]
fn a_slow_client_loses_samples_and_delays_no_writer() {
    const MANY: u64 = 40_000;
    let configs = configs(Transport::Shm, "volatile-slow", 1, 0);
    let participant = open_domain(&configs, TopicStore::Memory).remove(0);
    let topic = participant.create_topic::<Vec<u8>>("t", Qos::ATOMIC).expect("it is created");
    let client = connect(&configs);
    let slow = client.reader::<Vec<u8>>("t", Qos::ATOMIC).expect("it is created");
    let writer = participant.writer(&topic, patient(Qos::ATOMIC)).expect("it is created");
    let sample = |number: u64| [&number.to_le_bytes()[..], &[0; 1024]].concat();
    for number in 0..MANY {
        writer.write(&sample(number)).expect("no reader delays it");
    }
    writer.wait_for_acknowledgments(PATIENCE).expect("all members have them");
    let (mut last, mut count) = (None, 0);
    while count + slow.sample_lost().total_count < MANY {
        match slow.wait_for_data(Duration::from_secs(1)) {
            Ok(()) | Err(ReadError::Timeout(_)) => {}
            Err(error) => panic!("{error}"),
        }
        for sample in slow.take(1000).expect("the member is there") {
            let data = sample.data.expect("it is no end of an instance");
            let number = u64::from_le_bytes(data[..8].try_into().expect("it has a number"));
            assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
            (last, count) = (Some(number), count + 1);
        }
    }
    let lost = slow.sample_lost().total_count;
    assert!(lost > 0 && count > 1000 && count + lost == MANY, "{count} came, and {lost} were lost");
}

/// A client whose member dies learns that samples may be missing or may not have been written, and continues through another one.
#[test]
fn a_client_continues_at_another_member() {
    let configs = configs(Transport::Tcp, "volatile-death", 3, 0);
    let mut participants = open_domain(&configs, TopicStore::Memory);
    let dies = participants.pop().expect("there are three");
    let client = connect(&[configs[2].clone(), configs[0].clone(), configs[1].clone()]);
    client.create_topic::<Reading>("t", Qos::ATOMIC).expect("it is created");
    let reader = client.reader::<Reading>("t", Qos::ATOMIC).expect("it is created");
    let writer = client.writer::<Reading>("t", patient(Qos::ATOMIC)).expect("it is created");
    writer.write(&reading(0)).expect("it is written");
    assert_eq!(take_client(&reader, 1), [reading(0)]);
    thread::spawn(move || drop(dies));
    let error = loop {
        match reader.wait_for_data(PATIENCE) {
            // The end of the writer comes before that of the connection, or not at all.
            Ok(()) => drop(reader.take(9)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::Interrupted(_)), "{error}");
    // Its next call connects again, before the next sample is written.
    assert!(matches!(reader.wait_for_data(Duration::from_millis(1)), Ok(()) | Err(ReadError::Timeout(_))));
    wait_until("it writes again", || match writer.write(&reading(1)) {
        Ok(()) => writer.wait_for_acknowledgments(PATIENCE).is_ok(),
        Err(WriteError::MemberLost { .. } | WriteError::Timeout(_)) => false,
        Err(error) => panic!("{error}"),
    });
    let came = loop {
        reader.wait_for_data(PATIENCE).expect("it comes");
        let taken = reader.take(1).expect("it comes");
        if let Some(data) = taken.into_iter().find_map(|sample| sample.data) {
            break data;
        }
    };
    assert_eq!(came, reading(1));
}
