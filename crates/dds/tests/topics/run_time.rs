//! Topics that are created while participants run: by one, found by all, without a view change; and what is refused.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    DomainFolder, Other, PATIENCE, Reading, TOPIC, configs, data, domain, open_domain, patient, reader, take,
    wait_until, writer,
};
use squall::config::{SubgroupConfig, Transport};
use squall_dds::{
    DomainParticipant, DurabilityService, EntityError, HistoryKind, Profile, Qos, ResourceLimits, StateMask,
    TopicStore, WriteError,
};

const MEMBERS: usize = 3;
const SAMPLES: u32 = 200;

fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

/// One participant creates a topic of each profile, the others find it; each sample of each writer comes once, in order, to all.
fn all_use_what_one_creates(transport: Transport, test: &str, store: TopicStore) {
    let folder = DomainFolder::new(test);
    let mut configs = configs(transport, test, MEMBERS, 0);
    configs
        .iter_mut()
        .for_each(|config| config.storage = folder.storage().filter(|_| store == TopicStore::Disk));
    let participants = open_domain(&configs, store);
    wait_until("all are there", || participants.iter().all(|each| each.participants() == MEMBERS));
    let views: Vec<_> = participants.iter().map(DomainParticipant::view).collect();
    let kept = if store == TopicStore::Disk { Qos::LOGGED } else { Qos::KEPT };
    for (qos, creator) in [(Qos::UNORDERED, 0), (Qos::ATOMIC, 1), (kept, 2)] {
        let name = qos.profile().to_string();
        participants[creator].create_topic::<Reading>(&name, qos.clone()).expect("it is created");
        let open = |participant: &DomainParticipant| {
            let topic = participant.find_topic::<Reading>(&name, PATIENCE).expect("it is found");
            assert_eq!(topic.qos().profile(), qos.profile());
            let reader = participant.reader(&topic, qos.clone()).expect("it is created");
            (reader, participant.writer(&topic, patient(qos.clone())).expect("it is created"))
        };
        let ends: Vec<_> = participants.iter().map(open).collect();
        for (reader, writer) in &ends {
            wait_until("all match", || {
                reader.matched_publications().len() == MEMBERS
                    && writer.matched_subscriptions().len() == MEMBERS
            });
        }
        let run = |sensor, (reader, writer): &(_, squall_dds::DataWriter<Reading>)| {
            for number in 0..SAMPLES {
                writer.write(&reading(sensor, number)).expect("it is written");
            }
            data(take(reader, MEMBERS * SAMPLES as usize))
        };
        let run = &run;
        let all: Vec<Vec<Reading>> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..).zip(&ends).map(|(sensor, ends)| scope.spawn(move || run(sensor, ends))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it runs")).collect()
        });
        for readings in &all {
            for sensor in 0..3 {
                let numbers = readings.iter().filter(|each| each.sensor == sensor).map(|each| each.number);
                assert!(numbers.eq(0..SAMPLES), "{name}: writer {sensor}");
            }
            assert!(qos.profile() == Profile::Unordered || *readings == all[0], "{name}: one order");
        }
        let topics = participants[0].topics();
        let topic = topics.iter().find(|topic| topic.name == name).expect("it is listed");
        assert_eq!((&*topic.type_name, topic.writers, topic.readers), ("Reading", MEMBERS, MEMBERS));
    }
    assert_eq!(
        participants.iter().map(DomainParticipant::view).collect::<Vec<_>>(),
        views,
        "no view has changed"
    );
}

#[test]
fn all_use_what_one_creates_on_shm() {
    all_use_what_one_creates(Transport::Shm, "created-shm", TopicStore::Memory);
}

#[test]
fn all_use_what_one_creates_on_tcp() {
    all_use_what_one_creates(Transport::Tcp, "created-tcp", TopicStore::Memory);
}

#[test]
fn all_use_what_one_creates_on_disk() {
    all_use_what_one_creates(Transport::Shm, "created-disk", TopicStore::Disk);
}

/// Participants that create one topic at once with different types agree on one of them.
#[test]
fn one_of_two_creators_prevails() {
    let configs = configs(Transport::Shm, "creators", 2, 0);
    let participants = open_domain(&configs, TopicStore::Memory);
    let (one, other) = thread::scope(|scope| {
        let one = scope.spawn(|| participants[0].create_topic::<Reading>("t", Qos::ATOMIC).map(drop));
        let other = scope.spawn(|| participants[1].create_topic::<Other>("t", Qos::ATOMIC).map(drop));
        (one.join().expect("it runs"), other.join().expect("it runs"))
    });
    let one_prevails = one.is_ok();
    let (won, lost) = if one_prevails { ("Reading", other) } else { ("Other", one) };
    // Nor does it when it is tried again.
    let again = match one_prevails {
        true => participants[1].create_topic::<Other>("t", Qos::ATOMIC).map(drop),
        false => participants[0].create_topic::<Reading>("t", Qos::ATOMIC).map(drop),
    };
    for lost in [lost, again] {
        let error = lost.expect_err("one topic has one type");
        assert!(matches!(&error, EntityError::TypeMismatch { present, .. } if present == won), "{error}");
    }
    assert_eq!(participants[0].topics().len(), 1);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let config = configs(Transport::Shm, "refused", 1, 0).remove(0);
    let small = SubgroupConfig { message_max: 250, ..SubgroupConfig::default() };
    let config = config.subgroup("dds-topics", small.clone()).subgroup("dds-atomic-0", small);
    let participant = open_domain(&[config], TopicStore::Memory).remove(0);
    let error = participant.topic::<Reading>("missing").unwrap_err();
    assert!(matches!(&error, EntityError::UnknownTopic(name) if name == "missing"), "{error}");
    let error = participant.find_topic::<Reading>("missing", Duration::from_millis(10)).unwrap_err();
    assert!(matches!(&error, EntityError::NotFound { topic, .. } if topic == "missing"), "{error}");

    participant.create_topic::<Reading>("atomic", Qos::ATOMIC).expect("it is created");
    for _ in 0..2 {
        let error = participant.create_topic::<Other>("atomic", Qos::ATOMIC).unwrap_err();
        assert!(matches!(&error, EntityError::TypeMismatch { .. }), "{error}");
    }
    let error = participant.create_topic::<Reading>("atomic", Qos::KEPT).unwrap_err();
    assert!(
        matches!(&error, EntityError::IncompatibleTopic { present, .. } if present.profile() == Profile::Atomic),
        "{error}"
    );
    let error = participant.create_topic::<Reading>("logged", Qos::LOGGED).unwrap_err();
    assert!(matches!(&error, EntityError::NoStore { store: TopicStore::Memory, .. }), "{error}");
    let refused = Qos { autoenable_created_entities: false, ..Qos::ATOMIC };
    let error = participant.create_topic::<Reading>("refused", refused).unwrap_err();
    assert!(matches!(&error, EntityError::Qos(_)), "{error}");
    let error = participant.create_topic::<Reading>(&"n".repeat(500), Qos::ATOMIC).unwrap_err();
    assert!(matches!(&error, EntityError::Name(_)), "{error}");
    let long = participant.create_topic::<Reading>(&"n".repeat(250), Qos::ATOMIC).unwrap_err();
    assert!(matches!(&long, EntityError::Creation { error: WriteError::TooLong { .. }, .. }), "{long}");

    let two = DurabilityService { history: HistoryKind::KeepAll, samples_max: 2 };
    let bounded = Qos { durability_service: Some(two), ..Qos::KEPT };
    for qos in [Qos::ATOMIC, bounded] {
        let name = format!("bytes-{}", qos.profile());
        let topic = participant.create_topic::<Vec<u8>>(&name, qos.clone()).expect("it is created");
        let writer = participant.writer(&topic, patient(qos.clone())).expect("it is created");
        if qos.profile() == Profile::Kept {
            let error = writer.write(&vec![0; 500]).unwrap_err();
            assert!(matches!(error, WriteError::TooLong { .. }), "{error}");
            (0..2).for_each(|number| writer.write(&vec![number]).expect("there is space"));
            let error = writer.write(&vec![2]).unwrap_err();
            assert!(matches!(error, WriteError::HistoryFull { samples_max: 2 }), "{error}");
        }
    }
    // Nothing of that has disturbed the first topic.
    let topic = participant.topic::<Reading>("atomic").expect("it is there");
    let reader = participant.reader(&topic, Qos::ATOMIC).expect("it is created");
    participant
        .writer(&topic, patient(Qos::ATOMIC))
        .expect("it is created")
        .write(&reading(1, 1))
        .expect("it is written");
    reader.wait_for_data(PATIENCE).expect("it comes");

    let fixed = domain(&configs_of_one("fixed"), &[(TOPIC, Qos::ATOMIC)]).remove(0);
    let error = fixed.create_topic::<Reading>("more", Qos::ATOMIC).unwrap_err();
    assert!(matches!(&error, EntityError::FixedTopics(name) if name == "more"), "{error}");
}

fn configs_of_one(test: &str) -> Vec<squall::Config> {
    configs(Transport::Shm, test, 1, 0)
}

/// Programs that do not know a topic's type read and write its bytes.
#[test]
fn a_topic_of_any_type_is_bytes() {
    let participant = open_domain(&configs_of_one("any-type"), TopicStore::Memory).remove(0);
    let topic = participant.create_topic::<Reading>("t", Qos::ATOMIC).expect("it is created");
    let writer = participant.writer(&topic, patient(Qos::ATOMIC)).expect("it is created");
    let any = participant.topic_of_any_type("t").expect("it is there");
    assert_eq!(any.type_name(), "Reading");
    let bytes = participant.reader(&any, Qos::ATOMIC).expect("it is created");
    writer.write(&reading(3, 4)).expect("it is written");
    assert_eq!(data(take(&bytes, 1)), [vec![3, 4]], "the postcard format of two small numbers");
}

/// A reliable reader that is full holds up the topics that share its subgroup, and no others; nothing is lost.
#[test]
fn a_full_reader_holds_up_its_own_subgroup_only() {
    let participant = open_domain(&configs_of_one("full-lane"), TopicStore::Memory).remove(0);
    let one = ResourceLimits { samples_max: 1, ..ResourceLimits::DEFAULT };
    let open = |name: &str, limits| {
        let topic = participant.create_topic::<Reading>(name, Qos::ATOMIC).expect("it is created");
        let reader = Qos { resource_limits: limits, ..Qos::ATOMIC };
        let reader = participant.reader(&topic, reader).expect("it is created");
        (reader, participant.writer(&topic, patient(Qos::ATOMIC)).expect("it is created"))
    };
    let (full, to_full) = open("full", one);
    let (free, to_free) = open("free", ResourceLimits::DEFAULT);
    (0..3).for_each(|number| to_full.write(&reading(0, number)).expect("there is space in the window"));
    (0..9).for_each(|number| to_free.write(&reading(1, number)).expect("it is written"));
    assert!(data(take(&free, 9)).iter().map(|each| each.number).eq(0..9));
    for number in 0..3 {
        full.wait_for_data(PATIENCE).expect("it comes");
        assert_eq!(data(full.take(9).expect("it is there")), [reading(0, number)]);
    }
}

/// A participant that comes while others write gets each sample of each kept topic once, in the order of all.
#[test]
fn a_joiner_finds_topics_and_their_histories() {
    let configs = configs(Transport::Shm, "run-time-joiner", 2, 1);
    let participants = open_domain(&configs[..2], TopicStore::Memory);
    let names = ["a", "b"];
    let writers: Vec<_> = participants
        .iter()
        .flat_map(|participant| names.map(|name| (participant, name)))
        .map(|(participant, name)| {
            let topic = participant.create_topic::<Reading>(name, Qos::KEPT).expect("it is created");
            participant.writer(&topic, patient(Qos::KEPT)).expect("it is created")
        })
        .collect();
    let joined = thread::scope(|scope| {
        for (sensor, writer) in (0..).zip(&writers) {
            scope.spawn(move || {
                (0..1000).for_each(|number| writer.write(&reading(sensor, number)).expect("it is written"));
            });
        }
        thread::sleep(Duration::from_millis(30));
        let joined = open_domain(&configs[2..], TopicStore::Memory).remove(0);
        for (topic, name) in names.iter().enumerate() {
            let readers = [&joined, &participants[0]].map(|participant| {
                let topic = participant.topic::<Reading>(name).expect("a joiner knows all topics");
                participant.reader(&topic, Qos::KEPT).expect("it is created")
            });
            let [found, expected] = readers.each_ref().map(|reader| data(take_exactly(reader, 2000)));
            assert!(found == expected, "{name}: one order");
            for sensor in [topic, topic + 2] {
                let of = |each: &&Reading| each.sensor as usize == sensor;
                assert!(
                    found.iter().filter(of).map(|each| each.number).eq(0..1000),
                    "{name}: writer {sensor}"
                );
            }
        }
        joined
    });
    assert_eq!(joined.topics().len(), 2);
}

fn take_exactly(reader: &squall_dds::DataReader<Reading>, count: usize) -> Vec<squall_dds::Sample<Reading>> {
    let samples = take(reader, count);
    thread::sleep(Duration::from_millis(20));
    assert!(!reader.has(StateMask::ANY), "no more come");
    samples
}

/// Fifty topics are created one after the other, each without a view change, beside one that is named at the start.
#[test]
fn many_topics_need_no_view() {
    let configs = configs(Transport::Shm, "many", 2, 0);
    let participants: Vec<_> = thread::scope(|scope| {
        let join = |config: squall::Config| {
            let builder = DomainParticipant::builder(config).topic(TOPIC, Qos::ATOMIC);
            builder.run_time_topics(TopicStore::Memory).join().expect("it joins")
        };
        let threads: Vec<_> = configs.into_iter().map(|config| scope.spawn(move || join(config))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it joins")).collect()
    });
    wait_until("both are there", || participants.iter().all(|each| each.participants() == 2));
    let view = participants[0].view();
    let begun = Instant::now();
    for number in 0..50 {
        let qos = [Qos::UNORDERED, Qos::ATOMIC, Qos::KEPT][number % 3].clone();
        participants[number % 2]
            .create_topic::<Reading>(&format!("topic-{number}"), qos)
            .expect("it is created");
    }
    println!("50 topics in {:?}", begun.elapsed());
    assert_eq!(participants[0].view(), view);
    wait_until("both know all", || participants.iter().all(|each| each.topics().len() == 51));
    let reader = reader(&participants[0], Qos::ATOMIC);
    let writer = writer(&participants[1], Qos::ATOMIC);
    wait_until("they match", || !reader.matched_publications().is_empty());
    (0..SAMPLES).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
    assert_eq!(take(&reader, SAMPLES as usize).len(), SAMPLES as usize);
}
