//! Samples that are read and written where they are: the same ones in the same order as readers with a cache get, and what an upcall may do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{
    PATIENCE, Reading, TOPIC, alone, configs, data, domain, patient, reader, take, wait_until, writer,
};
use squall::config::Transport;
use squall_dds::{
    DataReader, DomainParticipant, EntityError, InstanceState, Payload, PolicyId, Position, Presentation,
    PresentationScope, Qos,
};

/// What an upcall has seen: the place of a sample, and the sample unless an instance has ended.
type Seen = (Position, Option<Reading>, InstanceState);

/// A reader in place that reports what it sees.
fn observer(participant: &DomainParticipant, qos: Qos) -> (DataReader<Reading>, Receiver<Seen>) {
    let (sender, seen) = channel();
    let topic = participant.topic::<Reading>(TOPIC).expect("there is this topic");
    let reader = participant.reader_in_place(&topic, qos, move |sample| {
        let reading = sample.decode().expect("it is a reading");
        // The test may be over.
        let _ = sender.send((sample.position, reading, sample.instance_state));
    });
    (reader.expect("it is created"), seen)
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(PATIENCE).expect("a sample comes")
}

const fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

fn both_kinds_of_readers_see_the_same(transport: Transport, test: &str) {
    const COUNT: u32 = 500;
    let participants = domain(&configs(transport, test, 3, 0), &[(TOPIC, Qos::ATOMIC)]);
    let cached: Vec<_> = participants.iter().map(|each| reader(each, Qos::ATOMIC)).collect();
    let in_place: Vec<_> = participants.iter().map(|each| observer(each, Qos::ATOMIC)).collect();
    let writers: Vec<_> = participants.iter().map(|each| writer(each, Qos::ATOMIC)).collect();
    let readers = || cached.iter().chain(in_place.iter().map(|(reader, _)| reader));
    wait_until("all match", || readers().all(|reader| reader.matched_publications().len() == writers.len()));
    std::thread::scope(|scope| {
        for (sensor, writer) in (0..).zip(&writers) {
            scope.spawn(move || {
                (0..COUNT).for_each(|number| writer.write(&reading(sensor, number)).expect("it is written"));
            });
        }
    });
    let count = writers.len() * COUNT as usize;
    let all = take(&cached[0], count).into_iter().map(|sample| (sample.info.position, sample.data));
    let all: Vec<_> = all.map(|(position, data)| (position, data, InstanceState::Alive)).collect();
    for (at, (reader, seen)) in in_place.iter().enumerate() {
        assert!((0..count).map(|_| next(seen)).eq(all.iter().copied()), "member {at} has another order");
        assert_eq!(reader.take(1).expect("the group is there").len(), 0, "it holds nothing");
        assert_eq!(reader.sample_lost().total_count, 0);
    }
}

#[test]
fn both_kinds_of_readers_see_the_same_on_shm() {
    both_kinds_of_readers_see_the_same(Transport::Shm, "in-place-shm");
}

#[test]
fn both_kinds_of_readers_see_the_same_on_tcp() {
    both_kinds_of_readers_see_the_same(Transport::Tcp, "in-place-tcp");
}

#[test]
fn ends_of_instances_come_without_data() {
    let participant = alone("in-place-ends", Qos::ATOMIC);
    let (reader, seen) = observer(&participant, Qos::ATOMIC);
    let writer = writer(&participant, Qos::ATOMIC);
    wait_until("they match", || !reader.matched_publications().is_empty());
    writer.write(&reading(1, 0)).expect("it is written");
    writer.dispose(&reading(1, 0)).expect("it is written");
    writer.unregister_instance(&reading(2, 0)).expect("it is written");
    let states: Vec<_> = (0..4).map(|_| next(&seen)).map(|(_, data, state)| (data, state)).collect();
    let disposed = (None, InstanceState::NotAliveDisposed);
    let expected = [
        (Some(reading(1, 0)), InstanceState::Alive),
        disposed,
        disposed,
        (None, InstanceState::NotAliveNoWriters),
    ];
    assert_eq!(states, expected);
}

#[test]
fn a_sample_whose_time_is_over_does_not_come() {
    let qos = Qos { lifespan: Some(Duration::from_nanos(1)), ..Qos::ATOMIC };
    let participant = alone("in-place-late", qos.clone());
    let (reader, seen) = observer(&participant, Qos::ATOMIC);
    let [late, timely] = [writer(&participant, qos), writer(&participant, Qos::ATOMIC)];
    wait_until("they match", || reader.matched_publications().len() == 2);
    late.write(&reading(0, 0)).expect("it is written");
    timely.write(&reading(0, 1)).expect("it is written");
    assert_eq!(next(&seen).1, Some(reading(0, 1)));
}

#[test]
fn what_needs_a_cache_is_refused() {
    let participants = ["in-place-atomic", "in-place-kept"].into_iter().zip([Qos::ATOMIC, Qos::KEPT]);
    let [atomic, kept] = participants
        .map(|(test, qos)| alone(test, qos))
        .collect::<Vec<_>>()
        .try_into()
        .expect("there are two");
    let filter = Qos { time_based_filter: Duration::from_secs(1), ..Qos::ATOMIC };
    let coherent = Presentation { coherent_access: true, ..Presentation::TOPIC_ORDERED };
    let grouped = Presentation { scope: PresentationScope::Group, ..Presentation::TOPIC_ORDERED };
    let present = |presentation| Qos { presentation, ..Qos::ATOMIC };
    for (participant, qos, policy) in [
        (&kept, Qos::KEPT, PolicyId::Durability),
        (&kept, Qos::ATOMIC, PolicyId::Durability),
        (&atomic, Qos::KEPT, PolicyId::Durability),
        (&atomic, filter, PolicyId::TimeBasedFilter),
        (&atomic, present(coherent), PolicyId::Presentation),
        (&atomic, present(grouped), PolicyId::Presentation),
    ] {
        let topic = participant.topic::<Reading>(TOPIC).expect("there is this topic");
        let error = participant.reader_in_place(&topic, qos, |_| ()).unwrap_err();
        assert!(
            matches!(&error, EntityError::NotInPlace { policy: refused, .. } if *refused == policy),
            "{error}"
        );
    }
}

/// What an application writes in place may panic: then nothing of it is sent, and others are not concerned.
#[test]
fn a_sample_whose_writing_panics_is_not_sent() {
    for (test, qos) in [("write-panic-atomic", Qos::ATOMIC), ("write-panic-kept", Qos::KEPT)] {
        let participant = alone(test, qos.clone());
        let topic = participant.topic::<Vec<u8>>(TOPIC).expect("there is this topic");
        let reader = participant.reader(&topic, qos.clone()).expect("it is created");
        let writer = participant.writer(&topic, patient(qos)).expect("it is created");
        let panics = |data: &mut Payload<'_>| {
            data.put(b"half");
            panic!("the test wants this");
        };
        for round in 0..3 {
            let outcome = catch_unwind(AssertUnwindSafe(|| writer.write_payload_async(8, panics)));
            assert!(outcome.is_err(), "the application's own panic comes back to it");
            let outcome = catch_unwind(AssertUnwindSafe(|| writer.write_payload(8, panics)));
            assert!(outcome.is_err(), "the application's own panic comes back to it");
            writer.write_payload(3, |data| data.put(&[round])).expect("it is written");
            assert_eq!(data(take(&reader, 1)), [[round, 0, 0]]);
        }
        assert!(reader.take(1).expect("it is open").is_empty());
    }
}

/// The others get everything, and the group does not wait for it.
#[test]
fn an_upcall_that_panics_is_not_called_again() {
    let participant = alone("in-place-panic", Qos::ATOMIC);
    let topic = participant.topic::<Reading>(TOPIC).expect("there is this topic");
    let (sender, seen) = channel();
    let panicking = participant.reader_in_place(&topic, Qos::ATOMIC, move |sample| {
        sender.send(sample.position).expect("the test waits");
        panic!("the test wants this");
    });
    let panicking = panicking.expect("it is created");
    let cached = reader(&participant, Qos::ATOMIC);
    let writer = writer(&participant, Qos::ATOMIC);
    let is_matched = |reader: &DataReader<Reading>| !reader.matched_publications().is_empty();
    wait_until("they match", || is_matched(&panicking) && is_matched(&cached));
    (0..100).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
    let expected: Vec<_> = (0..100).map(|number| reading(0, number)).collect();
    assert_eq!(data(take(&cached, 100)), expected);
    assert_eq!(seen.iter().count(), 1, "its sender is gone with the upcall");
}

#[test]
fn a_reader_that_is_dropped_sees_no_more() {
    let participant = alone("in-place-drop", Qos::ATOMIC);
    let (dropped, seen) = observer(&participant, Qos::ATOMIC);
    let (kept, others) = observer(&participant, Qos::ATOMIC);
    let writer = writer(&participant, Qos::ATOMIC);
    wait_until("they match", || {
        [&dropped, &kept].iter().all(|reader| !reader.matched_publications().is_empty())
    });
    writer.write(&reading(0, 0)).expect("it is written");
    assert_eq!([next(&seen).1, next(&others).1], [Some(reading(0, 0)); 2]);
    drop(dropped);
    writer.write(&reading(0, 1)).expect("it is written");
    assert_eq!(next(&others).1, Some(reading(0, 1)));
    assert_eq!(seen.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
}

/// An upcall may use the API: here it answers each sample in the same topic, and asks for the statuses of its own reader's topic.
#[test]
fn an_upcall_may_write_and_ask() {
    let participant = alone("in-place-api", Qos::ATOMIC);
    let topic = participant.topic::<Reading>(TOPIC).expect("there is this topic");
    let (answerer, asked) = (writer(&participant, patient(Qos::ATOMIC)), reader(&participant, Qos::ATOMIC));
    let (sender, seen) = channel();
    let echo = participant.reader_in_place(&topic, Qos::ATOMIC, move |sample| {
        let Some(reading) = sample.decode().expect("it is a reading") else { return };
        assert_eq!(asked.subscription_matched().current_count, 2);
        if reading.sensor == 0 {
            answerer.write(&Reading { sensor: 1, ..reading }).expect("there is space");
        } else {
            let _ = sender.send(reading.number);
        }
    });
    let echo = echo.expect("it is created");
    let writer = writer(&participant, Qos::ATOMIC);
    wait_until("they match", || echo.matched_publications().len() == 2);
    (0..200).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
    let answered = (0..200).map(|_| seen.recv_timeout(PATIENCE).expect("an answer comes"));
    assert!(answered.eq(0..200));
}
