//! PRESENTATION: topics that are read in one order, and coherent sets, which appear as a whole or not at all (OMG DDS 1.4 §2.2.3.6).

use std::thread;
use std::time::Instant;

use crate::common::{PATIENCE, Reading, TOPIC, alone, configs, data, open_domain, patient, wait_until};
use squall::config::Transport;
use squall_dds::{
    DataReader, DomainParticipant, EndpointId, EntityError, LimitKind, ParticipantError, Presentation, Qos,
    ReadError, ResourceLimits, Topic, TopicStore, TopicSubscriber, WriteError,
};
use squall_fabric::atomics::{AtomicBool, AtomicU32, Ordering};

const TOPICS: [&str; 2] = ["debits", "credits"];
const SAMPLES: u32 = 300;

fn grouped(qos: Qos) -> Qos {
    patient(Qos { presentation: Presentation::GROUP_COHERENT, ..qos })
}

fn coherent(qos: Qos) -> Qos {
    patient(Qos {
        presentation: Presentation { coherent_access: true, ..Presentation::TOPIC_ORDERED },
        ..qos
    })
}

fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

fn topics(participant: &DomainParticipant, qos: &Qos) -> [Topic<Reading>; 2] {
    TOPICS.map(|name| participant.create_topic(name, grouped(qos.clone())).expect("it is created"))
}

/// A subscriber's two readers.
struct Readers<'p> {
    subscriber: TopicSubscriber<'p>,
    readers: [DataReader<Reading>; 2],
}

impl<'p> Readers<'p> {
    fn open(participant: &'p DomainParticipant, qos: &Qos) -> Self {
        let subscriber = participant.subscriber();
        let readers = topics(participant, qos)
            .each_ref()
            .map(|topic| subscriber.reader(topic, grouped(qos.clone())).expect("it is created"));
        Self { subscriber, readers }
    }

    /// Takes what is there, in order: the topic's number with each sample.
    fn take(&self) -> Vec<(usize, Reading)> {
        let access = self.subscriber.begin_access();
        let which =
            |id: EndpointId| self.readers.iter().position(|reader| reader.id() == id).expect("it is one");
        let in_order = access.readers().into_iter().map(which);
        let taken = in_order.map(|topic| {
            let sample = access.take(&self.readers[topic], 1).expect("the topic lives").remove(0);
            sample.data.map(|data| (topic, data))
        });
        taken.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    fn take_count(&self, count: usize) -> Vec<(usize, Reading)> {
        let mut taken = Vec::new();
        wait_until("all samples come", || {
            taken.extend(self.take());
            taken.len() >= count
        });
        taken
    }
}

/// Two participants write two topics in turn, each sample by itself: all subscribers read one order over both topics, in which each
/// writer's samples are in the order in which it wrote them, whichever topic they went to.
fn topics_are_in_one_order(test: &str, qos: &Qos, transport: Transport) {
    let configs = configs(transport, test, 3, 0);
    let participants = open_domain(&configs, TopicStore::Memory);
    let readers: Vec<_> = participants.iter().map(|participant| Readers::open(participant, qos)).collect();
    let write = |(sensor, participant): (u32, &DomainParticipant)| {
        let publisher = participant.publisher();
        let writers = topics(participant, qos)
            .each_ref()
            .map(|topic| publisher.writer(topic, grouped(qos.clone())).expect("it is created"));
        wait_until("all match", || writers.iter().all(|writer| writer.matched_subscriptions().len() == 3));
        for number in 0..SAMPLES {
            let topic = usize::from(number % 3 == 0);
            writers[topic].write(&reading(sensor, number)).expect("it is written");
        }
    };
    let (write, readers) = (&write, &readers);
    let orders: Vec<_> = thread::scope(|scope| {
        for writer in (0..).zip(&participants[..2]) {
            scope.spawn(move || write(writer));
        }
        let take = |readers: &Readers<'_>| readers.take_count(2 * SAMPLES as usize);
        let threads: Vec<_> = readers.iter().map(|each| scope.spawn(move || take(each))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it reads")).collect()
    });
    for order in &orders {
        assert!(*order == orders[0], "one order over both topics");
    }
    for sensor in 0..2 {
        let numbers = orders[0].iter().filter(|(_, each)| each.sensor == sensor).map(|(_, each)| each.number);
        assert!(numbers.eq(0..SAMPLES), "writer {sensor}");
    }
}

#[test]
fn atomic_topics_are_in_one_order_on_shm() {
    topics_are_in_one_order("order-atomic-shm", &Qos::ATOMIC, Transport::Shm);
}

#[test]
fn atomic_topics_are_in_one_order_on_tcp() {
    topics_are_in_one_order("order-atomic-tcp", &Qos::ATOMIC, Transport::Tcp);
}

#[test]
fn kept_topics_are_in_one_order() {
    topics_are_in_one_order("order-kept", &Qos::KEPT, Transport::Shm);
}

/// Two participants write pairs, one sample to each topic, as coherent sets. Whenever a reader looks, it finds whole pairs, those of a joiner that
/// comes meanwhile included.
fn pairs_appear_as_a_whole(test: &str, qos: &Qos) {
    let configs = configs(Transport::Shm, test, 2, 1);
    let participants = open_domain(&configs[..2], TopicStore::Memory);
    let is_over = AtomicBool::new(false);
    // How many of the first members have seen samples.
    let seen = AtomicU32::new(0);
    let committed = 2 * (SAMPLES - SAMPLES.div_ceil(4)) as usize;
    let keeps = qos.profile() != squall_dds::Profile::Atomic;
    let watch = |participant: &DomainParticipant, is_first: bool| {
        let deadline = Instant::now() + PATIENCE;
        // A joiner does not get what was written before, unless that is kept.
        let gets_all = is_first || keeps;
        let readers = Readers::open(participant, qos);
        let (mut pairs, mut looks) = (0, 0);
        while if gets_all { pairs < committed } else { !is_over.load(Ordering::Relaxed) } {
            assert!(Instant::now() < deadline, "{pairs} pairs of {committed}");
            let taken = readers.take();
            let of = |topic| taken.iter().filter(move |(of, _)| *of == topic).map(|(_, reading)| *reading);
            assert!(of(0).eq(of(1)), "each debit has its credit: {taken:?}");
            assert!(taken.chunks(2).all(|pair| (pair[0].0, pair[1].0) == (0, 1)), "in the order of writing");
            seen.fetch_add(u32::from(is_first && looks == 0 && !taken.is_empty()), Ordering::Relaxed);
            (pairs, looks) = (pairs + taken.len() / 2, looks + usize::from(!taken.is_empty()));
        }
        (pairs, looks)
    };
    let write = |(sensor, participant): (u32, &DomainParticipant)| {
        let publisher = participant.publisher();
        let writers = topics(participant, qos)
            .each_ref()
            .map(|topic| publisher.writer(topic, grouped(qos.clone())).expect("it is created"));
        wait_until("both match", || writers.iter().all(|writer| writer.matched_subscriptions().len() >= 2));
        for number in 0..SAMPLES {
            if number == SAMPLES / 2 {
                wait_until("both look", || seen.load(Ordering::Relaxed) == 2);
            }
            let set = publisher.coherent_changes().expect("there is none");
            writers.iter().for_each(|writer| writer.write(&reading(sensor, number)).expect("it is added"));
            // Every fourth one is given up.
            if number % 4 == 0 { drop(set) } else { set.commit().expect("it is sent") }
        }
        writers[0].wait_for_acknowledgments(PATIENCE).expect("all members have it");
    };
    let (watch, write) = (&watch, &write);
    let found: Vec<(usize, usize)> = thread::scope(|scope| {
        let mut watching: Vec<_> =
            participants.iter().map(|each| scope.spawn(move || watch(each, true))).collect();
        let writing: Vec<_> = (0..).zip(&participants).map(|each| scope.spawn(move || write(each))).collect();
        let joiner = &configs[2..];
        watching.push(scope.spawn(move || watch(&open_domain(joiner, TopicStore::Memory)[0], false)));
        writing.into_iter().for_each(|thread| thread.join().expect("it writes"));
        is_over.store(true, Ordering::Relaxed);
        watching.into_iter().map(|thread| thread.join().expect("it reads")).collect()
    });
    for (pairs, looks) in &found[..2] {
        assert!(*pairs == committed && *looks > 1, "{found:?}");
    }
    assert!(!keeps || found[2].0 == committed, "{found:?}");
}

#[test]
fn pairs_of_atomic_topics_appear_as_a_whole() {
    pairs_appear_as_a_whole("pairs-atomic", &Qos::ATOMIC);
}

#[test]
fn pairs_of_kept_topics_appear_as_a_whole() {
    pairs_appear_as_a_whole("pairs-kept", &Qos::KEPT);
}

/// Without the scope of groups a set is one of a topic; a reader that does not ask for coherent sets gets its samples one by one.
#[test]
fn a_set_of_one_topic() {
    for (test, qos) in
        [("set-atomic", Qos::ATOMIC), ("set-kept", Qos::KEPT), ("set-unordered", Qos::UNORDERED)]
    {
        let participant = alone(test, qos.clone());
        let topic = participant.topic::<Reading>(TOPIC).expect("it exists");
        let two = ResourceLimits { samples_max: 2, ..ResourceLimits::DEFAULT };
        let open = |qos: Qos| participant.reader(&topic, qos).expect("it is created");
        let whole = open(coherent(qos.clone()));
        let plain = open(qos.clone());
        let small = open(Qos { resource_limits: two, ..coherent(qos.clone()) });
        let publisher = participant.publisher();
        let writer = publisher.writer(&topic, coherent(qos.clone())).expect("it is created");
        wait_until("all match", || writer.matched_subscriptions().len() == 3);
        let set = publisher.coherent_changes().expect("there is none");
        assert!(matches!(publisher.coherent_changes(), Err(WriteError::SetOpen)));
        (0..3).for_each(|number| writer.write(&reading(0, number)).expect("it is added"));
        set.commit().expect("it is sent");
        for reader in [&whole, &plain] {
            assert!(data(crate::common::take(reader, 3)).iter().map(|each| each.number).eq(0..3));
        }
        // A set that never fits is rejected, as a whole.
        wait_until("it is rejected", || small.sample_rejected().total_count == 1);
        let status = small.sample_rejected();
        assert_eq!((status.total_count, status.last_reason), (1, Some(LimitKind::Samples)));
        writer.write(&reading(0, 3)).expect("it is written by itself");
        assert_eq!(data(crate::common::take(&small, 1)), [reading(0, 3)]);
    }
}

#[test]
fn what_cannot_be_in_one_order_is_an_error() {
    let config = configs(Transport::Shm, "grouped-errors", 1, 0).remove(0);
    let error =
        DomainParticipant::builder(config.clone()).topic(TOPIC, grouped(Qos::ATOMIC)).join().unwrap_err();
    assert!(matches!(&error, ParticipantError::Grouped(topic) if topic == TOPIC), "{error}");

    let participant = open_domain(&[config], TopicStore::Memory).remove(0);
    let create =
        |name: &str, qos: Qos| participant.create_topic::<Reading>(name, qos).expect("it is created");
    let (plain, atomic) = (create("plain", coherent(Qos::ATOMIC)), create("atomic", grouped(Qos::ATOMIC)));
    let kept = create("kept", grouped(Qos::KEPT));
    let error = participant.create_topic::<Reading>("plain", grouped(Qos::ATOMIC)).unwrap_err();
    assert!(matches!(&error, EntityError::IncompatibleTopic { .. }), "{error}");
    let error = participant.reader(&atomic, grouped(Qos::ATOMIC)).unwrap_err();
    assert!(matches!(&error, EntityError::NeedsSubscriber(topic) if topic == "atomic"), "{error}");
    let subscriber = participant.subscriber();
    let error = subscriber.reader(&plain, grouped(Qos::ATOMIC)).unwrap_err();
    assert!(matches!(&error, EntityError::NotGrouped(topic) if topic == "plain"), "{error}");
    let error = participant.writer(&plain, grouped(Qos::ATOMIC)).unwrap_err();
    assert!(matches!(&error, EntityError::NotGrouped(topic) if topic == "plain"), "{error}");
    let reader = subscriber.reader(&atomic, grouped(Qos::ATOMIC)).expect("it is the first one");
    let error = subscriber.reader(&kept, grouped(Qos::KEPT)).unwrap_err();
    assert!(matches!(&error, EntityError::OtherOrder(topic) if topic == "kept"), "{error}");
    assert!(matches!(reader.take(1), Err(ReadError::NeedsAccess)));

    let publisher = participant.publisher();
    let open = |topic: &Topic<Reading>, qos| publisher.writer(topic, qos).expect("it is created");
    let (to_atomic, to_kept) = (open(&atomic, grouped(Qos::ATOMIC)), open(&kept, grouped(Qos::KEPT)));
    let plain = open(&plain, patient(Qos::ATOMIC));
    let set = publisher.coherent_changes().expect("there is none");
    to_atomic.write(&reading(0, 0)).expect("it is added");
    let errors = [to_kept.write(&reading(0, 0)).unwrap_err(), plain.write(&reading(0, 0)).unwrap_err()];
    assert!(matches!(errors, [WriteError::OtherOrder, WriteError::NotCoherent]), "{errors:?}");
    (1..2000).for_each(|number| to_atomic.write(&reading(0, number)).expect("it is added"));
    let error = set.commit().unwrap_err();
    assert!(matches!(error, WriteError::TooLong { .. }), "{error}");
    to_atomic.write(&reading(1, 1)).expect("it is written by itself");
    reader.wait_for_data(PATIENCE).expect("it comes");
    let taken = subscriber.begin_access().take(&reader, 9).expect("the topic lives");
    assert_eq!(data(taken), [reading(1, 1)], "nothing of the set was sent");
}
