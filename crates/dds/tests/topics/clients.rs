//! Clients outside the group: they write and read kept topics through any member, and survive its death; each sample comes once.

use std::thread;
use std::time::Duration;

use crate::common::{Other, PATIENCE, Reading, configs, data, open_domain, patient, take, wait_until};
use squall::Config;
use squall::config::Transport;
use squall_dds::{
    ClientReader, DomainClient, DurabilityService, EntityError, HistoryKind, Profile, Qos, ResourceLimits,
    TopicStore, WriteError,
};

const SAMPLES: u32 = 300;

fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

/// A client of members with these configurations; it listens nowhere.
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
    taken
}

/// A member and a client write while both, a client that comes later, and a member read: all get all, each sample once, in one order. Meanwhile
/// a member dies, through which clients may be connected.
fn clients_and_members_share_a_topic(transport: Transport, test: &str) {
    let configs = configs(transport, test, 3, 0);
    let mut participants = open_domain(&configs, TopicStore::Memory);
    wait_until("all are there", || participants.iter().all(|each| each.participants() == 3));
    let client = connect(&configs);
    client.create_topic::<Reading>("t", Qos::KEPT).expect("it is created");
    wait_until("all members know it", || {
        let topics = client.topics().expect("they answer");
        topics.iter().any(|topic| {
            (&*topic.name, &*topic.type_name, topic.qos.profile()) == ("t", "Reading", Profile::Kept)
        })
    });
    let topic = participants[0].find_topic::<Reading>("t", PATIENCE).expect("it is found");
    let near = participants[0].reader(&topic, Qos::KEPT).expect("it is created");
    let far = client.reader::<Reading>("t", Qos::KEPT).expect("it is created");
    let dies = participants.pop().expect("there are three");
    let total = 2 * SAMPLES as usize;
    let (of_near, of_far, of_late) = thread::scope(|scope| {
        let (client, topic, participant) = (&client, &topic, &participants[0]);
        scope.spawn(move || {
            let writer = client.writer::<Reading>("t", patient(Qos::KEPT)).expect("it is created");
            (0..SAMPLES).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
        });
        scope.spawn(move || {
            let writer = participant.writer(topic, patient(Qos::KEPT)).expect("it is created");
            (0..SAMPLES).for_each(|number| writer.write(&reading(1, number)).expect("it is written"));
        });
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(dies);
        });
        let late = scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            let client = connect(&configs[..2]);
            take_client(&client.reader("t", Qos::KEPT).expect("it is created"), total)
        });
        let far = scope.spawn(|| take_client(&far, total));
        let mut of_near = Vec::new();
        while of_near.len() < total {
            near.wait_for_data(PATIENCE).expect("they come");
            let taken = near.take(100).expect("they come");
            of_near.extend(taken.into_iter().filter_map(|sample| sample.data));
        }
        (of_near, far.join().expect("it reads"), late.join().expect("it reads"))
    });
    for (who, order) in [("the client", &of_far), ("the late client", &of_late)] {
        assert!(*order == of_near, "{who} has the members' order");
    }
    for sensor in 0..2 {
        let numbers = of_near.iter().filter(|each| each.sensor == sensor).map(|each| each.number);
        assert!(numbers.eq(0..SAMPLES), "writer {sensor}: each once, in order");
    }
    // Nothing more comes, and both have closed their writers.
    wait_until("both writers are closed", || {
        assert!(far.take(1000).expect("they answer").iter().all(|sample| sample.data.is_none()));
        far.subscription_matched().current_count == 0
    });
}

#[test]
fn clients_and_members_share_a_topic_on_tcp() {
    clients_and_members_share_a_topic(Transport::Tcp, "clients-tcp");
}

#[test]
fn clients_and_members_share_a_topic_on_shm() {
    clients_and_members_share_a_topic(Transport::Shm, "clients-shm");
}

/// A client's reader that is full leaves the rest in the history, and gets it later.
#[test]
fn a_full_client_gets_the_rest_later() {
    let configs = configs(Transport::Shm, "client-full", 1, 0);
    let participant = open_domain(&configs, TopicStore::Memory).remove(0);
    let topic = participant.create_topic::<Reading>("t", Qos::KEPT).expect("it is created");
    let writer = participant.writer(&topic, patient(Qos::KEPT)).expect("it is created");
    (0..700).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
    let limits = ResourceLimits { samples_max: 3, ..ResourceLimits::DEFAULT };
    let client = connect(&configs);
    let small = Qos { resource_limits: limits, ..Qos::KEPT };
    let small = client.reader::<Reading>("t", small).expect("it is created");
    let whole = client.reader::<Reading>("t", Qos::KEPT).expect("it is created");
    for reader in [&small, &whole] {
        assert!(take_client(reader, 700).iter().map(|each| each.number).eq(0..700));
        assert_eq!(reader.sample_lost().total_count, 0);
    }
}

/// When a client has been dropped, members have noted that its endpoints are gone: its process may end.
#[test]
fn a_client_that_is_dropped_has_gone() {
    let configs = configs(Transport::Shm, "client-ends", 1, 0);
    let participant = open_domain(&configs, TopicStore::Memory).remove(0);
    participant.create_topic::<Reading>("t", Qos::KEPT).expect("it is created");
    let client = connect(&configs);
    let reader = client.reader::<Reading>("t", Qos::KEPT).expect("it is created");
    let writer = client.writer::<Reading>("t", Qos::KEPT).expect("it is created");
    let open = || (participant.topics()[0].writers, participant.topics()[0].readers);
    assert_eq!(open(), (1, 1));
    drop((client, reader, writer));
    assert_eq!(open(), (0, 0));
}

/// A topic that a client has opened is not there after all members have ended, and others have begun the domain again.
#[test]
fn a_client_of_a_domain_that_restarted_connects_again() {
    let configs = configs(Transport::Tcp, "client-restart", 1, 0);
    let participant = open_domain(&configs, TopicStore::Memory).remove(0);
    participant.create_topic::<Reading>("t", Qos::KEPT).expect("it is created");
    let client = connect(&configs);
    let writer = client.writer::<Reading>("t", patient(Qos::KEPT)).expect("it is created");
    writer.write(&reading(0, 0)).expect("it is written");
    drop(participant);
    let _participant = open_domain(&configs, TopicStore::Memory).remove(0);
    wait_until("the client is there again", || match writer.write(&reading(0, 1)) {
        Err(WriteError::Unknown | WriteError::History(_)) => false,
        Err(WriteError::Restarted) => true,
        outcome => panic!("{outcome:?}"),
    });
}

#[test]
fn what_does_not_fit_a_client_is_an_error() {
    let configs = configs(Transport::Shm, "client-errors", 1, 0);
    let participant = open_domain(&configs, TopicStore::Memory).remove(0);
    participant.create_topic::<Reading>("atomic", Qos::ATOMIC).expect("it is created");
    let client = connect(&configs);
    let error = client.reader::<Reading>("missing", Qos::KEPT).unwrap_err();
    assert!(matches!(&error, EntityError::UnknownTopic(topic) if topic == "missing"), "{error}");
    let wrong = client.writer::<Reading>("atomic", Qos::UNORDERED).unwrap_err();
    assert!(matches!(&wrong, EntityError::Profile { present: Profile::Atomic, .. }), "{wrong}");
    let error = client.create_topic::<Reading>("\u{1b}[2J", Qos::ATOMIC).unwrap_err();
    assert!(matches!(&error, EntityError::Name(_)) && !error.to_string().contains('\u{1b}'), "{error}");
    let error = client.create_topic::<Reading>("atomic", Qos::KEPT).unwrap_err();
    assert!(matches!(&error, EntityError::IncompatibleTopic { .. }), "{error}");
    let error = client.create_topic::<Other>("atomic", Qos::ATOMIC).unwrap_err();
    assert!(matches!(&error, EntityError::TypeMismatch { .. }), "{error}");
    let error = client.create_topic::<Reading>("logged", Qos::LOGGED).unwrap_err();
    assert!(matches!(&error, EntityError::NoStore { .. }), "{error}");

    let two = DurabilityService { history: HistoryKind::KeepAll, samples_max: 2 };
    let bounded = Qos { durability_service: Some(two), ..Qos::KEPT };
    client.create_topic::<Vec<u8>>("bytes", bounded).expect("it is created");
    let writer = client.writer::<Vec<u8>>("bytes", patient(Qos::KEPT)).expect("it is created");
    let error = writer.write(&vec![0; 20_000]).unwrap_err();
    assert!(matches!(error, WriteError::TooLong { .. }), "{error}");
    (0..2).for_each(|number| writer.write(&vec![number]).expect("there is space"));
    let error = writer.write(&vec![2]).unwrap_err();
    assert!(matches!(error, WriteError::HistoryFull { samples_max: 2 }), "{error}");
    // The member reads what the client has written.
    let topic = participant.topic::<Vec<u8>>("bytes").expect("it is there");
    let reader = participant.reader(&topic, Qos::KEPT).expect("it is created");
    assert_eq!(data(take(&reader, 2)), [[0], [1]]);
}
