//! Topics, instances, statuses, wait sets and listeners: what writers and readers promise each other (OMG DDS 1.4 §2.2.2 and §2.2.4).

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{
    Other, PATIENCE, Reading, TOPIC, alone, configs, data, domain, patient, reader, take, wait_until, writer,
};
use squall::Config;
use squall::config::{SubgroupConfig, Transport};
use squall_dds::{
    Bytes, DataReader, DomainParticipant, DurabilityService, EntityError, HistoryKind, IncompatibleQosStatus,
    InstanceHandle, InstanceState, LimitKind, MatchedStatus, ParticipantError, PolicyId, Profile, Qos,
    QosError, ReadError, ReaderListener, ResourceLimits, StateMask, StatusKind, WriteError,
};

const fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

#[test]
fn what_does_not_exist_or_fit_is_an_error() {
    let participant = alone("errors", Qos::ATOMIC);
    let error = participant.topic::<Reading>("missing").unwrap_err();
    assert!(matches!(&error, EntityError::UnknownTopic(name) if name == "missing"), "{error}");

    let topic = participant.topic::<Reading>(TOPIC).expect("it exists");
    let error = participant.topic::<Other>(TOPIC).unwrap_err();
    let expected = ["Reading", "Other"];
    assert!(
        matches!(&error, EntityError::TypeMismatch { present, wanted, .. } if [&**present, &**wanted] == expected),
        "{error}"
    );

    let error = participant.writer(&topic, Qos::KEPT).unwrap_err();
    let profiles = (Profile::Atomic, Profile::Kept);
    assert!(
        matches!(error, EntityError::Profile { present, wanted, .. } if (present, wanted) == profiles),
        "{error}"
    );

    let strong = Qos { ownership_strength: 7, ..Qos::ATOMIC };
    for error in [
        participant.reader(&topic, strong.clone()).unwrap_err(),
        participant.writer(&topic, strong).unwrap_err(),
    ] {
        let policy = PolicyId::OwnershipStrength;
        assert!(
            matches!(&error, EntityError::Qos(error @ QosError::Unsupported { .. }) if error.policy() == policy),
            "{error}"
        );
    }
}

#[test]
fn a_sample_that_is_too_large_is_an_error() {
    for (test, qos) in [("large-atomic", Qos::ATOMIC), ("large-kept", Qos::KEPT)] {
        let subgroup = SubgroupConfig { message_max: 200, ..SubgroupConfig::default() };
        let config = configs(Transport::Shm, test, 1, 0).remove(0).subgroup("bytes", subgroup);
        let participant =
            DomainParticipant::builder(config).topic("bytes", qos.clone()).join().expect("it joins");
        let topic = participant.topic::<Vec<u8>>("bytes").expect("it exists");
        // An announcement is longer than these messages.
        let error = participant.writer(&topic, Qos { user_data: vec![1; 300], ..qos.clone() }).unwrap_err();
        assert!(matches!(error, EntityError::NotAnnounced(WriteError::TooLong { .. })), "{error}");
        let writer = participant.writer(&topic, patient(qos)).expect("it is created");
        let error = writer.write(&vec![0; 500]).unwrap_err();
        assert!(
            matches!(error, WriteError::TooLong { length, length_max } if length > length_max),
            "{error}"
        );
        let error = writer.write_async(&vec![0; 500]).unwrap_err();
        assert!(matches!(error, WriteError::TooLong { .. }), "{error}");
        writer.write(&vec![0; 50]).expect("a shorter one is written");
    }
}

/// Bytes of a sample are in memory once for all readers of a process, and for the history, unless a reader wants a vector of its own.
#[test]
fn readers_share_bytes() {
    for (test, qos) in [("bytes-atomic", Qos::ATOMIC), ("bytes-kept", Qos::KEPT)] {
        let participant = alone(test, qos.clone());
        let topic = participant.topic::<Bytes>(TOPIC).expect("there is this topic");
        let readers = [0, 1].map(|_| participant.reader(&topic, qos.clone()).expect("it is created"));
        let writer = participant.writer(&topic, patient(qos.clone())).expect("it is created");
        for length in [0, 1, 200, 9000] {
            let written = Bytes::from(vec![7; length]);
            writer.write_async(&written).and_then(|write| write.wait(PATIENCE)).expect("it is written");
            let taken = readers.each_ref().map(|reader| data(take(reader, 1)).remove(0));
            assert!(taken.iter().all(|bytes| *bytes == written), "{length}");
            assert_eq!(taken[0].as_ptr(), taken[1].as_ptr(), "{length}");
        }
    }
}

#[test]
fn a_full_history_is_an_error() {
    let service = DurabilityService { history: HistoryKind::KeepAll, samples_max: 3 };
    let qos = Qos { durability_service: Some(service), ..Qos::KEPT };
    let participant = alone("full", qos.clone());
    let writer = writer(&participant, qos.clone());
    (0..3).for_each(|number| writer.write(&reading(0, number)).expect("there is space"));
    let error = writer.write(&reading(0, 3)).unwrap_err();
    assert!(matches!(error, WriteError::HistoryFull { samples_max: 3 }), "{error}");
    assert_eq!(data(take(&reader(&participant, qos), 3)), [0, 1, 2].map(|number| reading(0, number)));
}

/// Writes may be under way together: each has an outcome of its own, they are in the order in which they were written, and their
/// acknowledgments can be waited for, held or dropped.
#[test]
fn writes_may_be_under_way_together() {
    let service = DurabilityService { history: HistoryKind::KeepAll, samples_max: 2000 };
    let qos = Qos { durability_service: Some(service), ..Qos::KEPT };
    let participants = domain(&configs(Transport::Shm, "under-way", 2, 0), &[(TOPIC, qos.clone())]);
    let readers: Vec<_> = participants.iter().map(|participant| reader(participant, qos.clone())).collect();
    let writer = writer(&participants[0], qos);
    let write = |number| writer.write_async(&reading(0, number)).expect("it is on its way");
    (0..1000).for_each(|number| drop(write(number)));
    let held: Vec<_> = (1000..2001).map(write).collect();
    writer.wait_for_acknowledgments(PATIENCE).expect("all members have it");
    let mut outcomes: Vec<_> =
        held.into_iter().map(|write| write.try_wait().expect("its outcome is known")).collect();
    let refused = outcomes.pop().expect("there are some");
    assert!(matches!(refused, Err(WriteError::HistoryFull { samples_max: 2000 })), "{refused:?}");
    outcomes.into_iter().for_each(|outcome| outcome.expect("there is space"));
    for reader in &readers {
        let numbers: Vec<_> = data(take(reader, 2000)).into_iter().map(|reading| reading.number).collect();
        assert!(numbers.into_iter().eq(0..2000));
    }
    // In a topic that keeps nothing, the outcome is known at once.
    let participant = alone("at-once", Qos::ATOMIC);
    let atomic = crate::common::writer(&participant, Qos::ATOMIC);
    atomic
        .write_async(&reading(0, 0))
        .expect("there is space")
        .try_wait()
        .expect("it is known")
        .expect("it is written");
}

/// A reader that is smaller than the history says so, rather than that nothing has come.
#[test]
fn a_history_that_does_not_fit_is_an_error_until_it_is_taken() {
    let participant = alone("fits-not", Qos::KEPT);
    let writer = writer(&participant, patient(Qos::KEPT));
    (0..9).for_each(|number| writer.write(&reading(0, number)).expect("it is kept"));
    let few = ResourceLimits { samples_max: 4, ..ResourceLimits::DEFAULT };
    let reader = reader(&participant, Qos { resource_limits: few, ..Qos::KEPT });
    wait_until("the reader is full", || {
        let outcome = reader.wait_for_historical_data(Duration::from_millis(1));
        matches!(outcome, Err(ReadError::ReaderFull(4)))
    });
    let taken = take(&reader, 9);
    reader.wait_for_historical_data(PATIENCE).expect("it has come");
    assert_eq!(data(taken), (0..9).map(|number| reading(0, number)).collect::<Vec<_>>());
}

/// A short history has the latest sample of each instance for those that come later.
#[test]
fn a_short_history_keeps_the_latest_of_each_instance() {
    let service = DurabilityService { history: HistoryKind::KeepLast(1), samples_max: 10 };
    let qos = Qos { durability_service: Some(service), ..Qos::KEPT };
    let configs = configs(Transport::Shm, "short", 2, 1);
    let topics = [(TOPIC, qos.clone())];
    let participants = domain(&configs[..2], &topics);
    let writer = writer(&participants[0], qos.clone());
    (0..30).for_each(|number| writer.write(&reading(number % 3, number)).expect("it replaces another one"));
    let joiner = domain(&configs[2..], &topics).remove(0);
    for participant in participants.iter().chain([&joiner]) {
        let reader = reader(participant, qos.clone());
        reader.wait_for_historical_data(PATIENCE).expect("it comes");
        let expected = [27, 28, 29].map(|number| reading(number % 3, number));
        assert_eq!(data(take(&reader, 3)), expected);
        assert_eq!(
            reader.sample_lost().total_count,
            0,
            "what was replaced before it came is not lost for it"
        );
    }
}

/// A reader of a kept topic that requests no history gets what is written after it came, from the first sample on.
#[test]
fn a_volatile_reader_of_a_kept_topic_gets_what_comes_later() {
    let participant = alone("volatile", Qos::KEPT);
    let writer = writer(&participant, Qos::KEPT);
    for round in 0..20 {
        writer.write(&reading(0, 2 * round)).expect("it is written");
        let reader = reader(&participant, Qos::ATOMIC);
        writer.write(&reading(0, 2 * round + 1)).expect("it is written");
        assert_eq!(data(take(&reader, 1)), [reading(0, 2 * round + 1)]);
    }
}

/// Members that keep different samples would have different histories.
#[test]
fn participants_agree_on_what_is_kept() {
    let configs = configs(Transport::Shm, "conflict", 1, 1);
    let join = |config: &Config, samples_max| {
        let service = DurabilityService { samples_max, ..DurabilityService::EVERYTHING };
        let qos = Qos { durability_service: Some(service), ..Qos::KEPT };
        DomainParticipant::builder(config.clone()).topic(TOPIC, qos).join()
    };
    let _first = join(&configs[0], 10).expect("it joins");
    let error = join(&configs[1], 11).unwrap_err();
    assert!(
        matches!(&error, ParticipantError::Conflict { present, wanted, .. }
            if (present.samples_max, wanted.samples_max) == (10, 11)),
        "{error}"
    );
}

/// A reader that requests more than writers offer, and writers of another type, are reported at both ends.
#[test]
fn what_does_not_match_is_reported_at_both_ends() {
    let configs = configs(Transport::Shm, "mismatch", 2, 0);
    let participants = domain(&configs, &[(TOPIC, Qos::ATOMIC), ("other", Qos::ATOMIC)]);
    let writer = writer(&participants[0], Qos::ATOMIC);
    let near = reader(&participants[0], Qos::KEPT);
    let far = reader(&participants[1], Qos::KEPT);
    for reader in [&near, &far] {
        wait_until("the reader learns of it", || {
            reader.status_condition(StatusKind::IncompatibleQos).is_triggered()
        });
        let status = reader.requested_incompatible_qos();
        assert_eq!((status.total_count, status.last_policy), (1, Some(PolicyId::Durability)));
        assert_eq!(status.policies, [(PolicyId::Durability, 1)]);
        assert_eq!(reader.requested_incompatible_qos().total_count_change, 0);
    }
    wait_until("the writer learns of it", || {
        let IncompatibleQosStatus { total_count, .. } = writer.offered_incompatible_qos();
        total_count == 2
    });
    assert_eq!(writer.publication_matched().total_count, 0);

    let one = participants[0].topic::<Reading>("other").expect("it exists");
    let other = participants[1].topic::<Other>("other").expect("types are those of a process");
    let reader = participants[0].reader(&one, Qos::ATOMIC).expect("it is created");
    let writer = participants[1].writer(&other, Qos::ATOMIC).expect("it is created");
    wait_until("the reader learns of it", || reader.inconsistent_topic().total_count == 1);
    wait_until("the writer learns of it", || writer.inconsistent_topic().total_count == 1);
    writer.write(&Other(1, 1)).expect("it is written");
    writer.wait_for_acknowledgments(PATIENCE).expect("it is delivered");
    assert!(!reader.has(StateMask::ANY), "it is of another type");
}

/// An instance is written, disposed of, written again, and unregistered.
#[test]
fn instances_have_lives() {
    for (test, qos) in [("lives-atomic", Qos::ATOMIC), ("lives-kept", Qos::KEPT)] {
        let participant = alone(test, qos.clone());
        let reader = reader(&participant, qos.clone());
        let writer = writer(&participant, qos.clone());
        let [one, other] = [7, 8].map(|sensor| reading(sensor, 0));
        let handle = writer.register_instance(&one).expect("it has a key");
        for sample in [&one, &other] {
            writer.write(sample).expect("it is written");
        }
        writer.dispose(&one).expect("it is written");
        wait_until("three samples come", || reader.read(10).expect("the topic lives").len() == 3);
        let samples = reader.read(10).expect("the topic lives");
        assert_eq!(samples[0].info.instance, handle);
        assert_eq!(samples[0].info.publication, writer.id());
        assert_eq!(samples[0].info.instance_state, InstanceState::NotAliveDisposed);
        assert_eq!(samples[1].info.instance_state, InstanceState::Alive);
        assert!(samples[2].data.is_none() && samples[2].info.instance == handle);

        // Another life of the same instance.
        writer.write(&one).expect("it is written");
        wait_until("it lives", || reader.read_instance(10, &handle).expect("the topic lives").len() == 3);
        let samples = reader.take_instance(10, &handle).expect("the topic lives");
        assert!(samples.iter().all(|sample| sample.info.instance_state == InstanceState::Alive));
        let lives: Vec<_> = samples.iter().map(|sample| sample.info.disposed_generation_count).collect();
        assert_eq!(lives, [0, 0, 1]);
        writer.unregister_instance(&one).expect("it is written");
        wait_until("it ends", || reader.has(StateMask::NOT_ALIVE_DISPOSED));
        assert_eq!(reader.take_instance(10, &handle).expect("the topic lives").len(), 1, "it disposes first");
        assert_eq!(data(reader.take(10).expect("the topic lives")), [other]);

        // The writer goes, and with it the instance that it still has.
        let other = InstanceHandle::of(&other).expect("it has a key");
        drop(writer);
        let samples = take(&reader, 1);
        assert_eq!((&samples[0].info.instance, samples[0].info.is_valid), (&other, false));
        assert_eq!(reader.subscription_matched().current_count, 0);
    }
}

/// The instances of a participant that leaves, in order or not, have no writers any more.
#[test]
fn a_participant_that_leaves_takes_its_writers_along() {
    for (test, qos) in [("leaves-atomic", Qos::ATOMIC), ("leaves-kept", Qos::KEPT)] {
        let configs = configs(Transport::Shm, test, 4, 0);
        let mut participants = domain(&configs, &[(TOPIC, qos.clone())]);
        let reader = reader(&participants[0], qos.clone());
        let writers: Vec<_> = participants[2..].iter().map(|each| writer(each, qos.clone())).collect();
        wait_until("they match", || reader.matched_publications().len() == 2);
        for (sensor, writer) in (0..).zip(&writers) {
            wait_until("they match", || writer.matched_subscriptions().len() == 1);
            writer.write(&reading(sensor, 0)).expect("it is written");
        }
        take(&reader, 2);
        let (dies, leaves) =
            (participants.pop().expect("it is there"), participants.pop().expect("it is there"));
        drop(dies);
        let departure = leaves.leave(PATIENCE);
        assert!(matches!(departure, squall::Departure::InOrder), "{departure:?}");
        for sample in take(&reader, 2) {
            assert_eq!(sample.info.instance_state, InstanceState::NotAliveNoWriters);
            assert!(!sample.info.is_valid);
        }
        assert!(reader.matched_publications().is_empty());
    }
}

/// A reliable reader that is full holds up its writers, and gets everything; a best-effort one loses what it has no space for, and
/// reports that.
#[test]
fn a_full_reader_waits_or_rejects() {
    let limits = ResourceLimits { samples_max: 2, ..ResourceLimits::DEFAULT };
    let window = SubgroupConfig { window: 4, ..SubgroupConfig::default() };
    for (test, qos) in [("full-atomic", Qos::ATOMIC), ("full-unordered", Qos::UNORDERED)] {
        let config = configs(Transport::Shm, test, 1, 0).remove(0).subgroup(TOPIC, window.clone());
        let participant = domain(&[config], &[(TOPIC, qos.clone())]).remove(0);
        let reader = reader(&participant, Qos { resource_limits: limits, ..qos.clone() });
        let topic = participant.topic::<Reading>(TOPIC).expect("it exists");
        let is_atomic = qos.profile() == Profile::Atomic;
        let patience = if is_atomic { Duration::from_millis(20) } else { PATIENCE };
        let writer = Qos { max_blocking_time: patience, ..qos };
        let writer = participant.writer(&topic, writer).expect("it is created");
        let mut written = 0;
        let error = loop {
            match writer.write(&reading(0, written)) {
                Ok(()) => written += 1,
                Err(error) => break Some(error),
            }
            if written == 100 {
                break None;
            }
        };
        if is_atomic {
            assert!(
                matches!(error, Some(WriteError::Timeout(_))),
                "{written} samples are written: {error:?}"
            );
            let taken = data(take(&reader, written as usize));
            assert!(taken.iter().map(|reading| reading.number).eq(0..written));
        } else {
            assert!(error.is_none(), "{error:?}");
            wait_until("the others are rejected", || reader.sample_rejected().total_count == 98);
            assert_eq!(reader.sample_rejected().last_reason, Some(LimitKind::Samples));
            take(&reader, 2);
        }
    }
}

/// The policies that concern readers and writers alone: what they carry, hold, keep apart and let expire.
#[test]
fn policies_that_are_kept_have_effects() {
    let participant = alone("effects", Qos::ATOMIC);
    let open = |qos: Qos| reader(&participant, qos);
    let plain = open(Qos::ATOMIC);
    let last = open(Qos { history: HistoryKind::KeepLast(2), ..Qos::ATOMIC });
    let filtered = open(Qos { time_based_filter: Duration::from_secs(3600), ..Qos::ATOMIC });
    let named = Qos { user_data: vec![1], topic_data: vec![2], group_data: vec![3], ..Qos::ATOMIC };
    let writer = writer(&participant, named);
    let brief = Qos { lifespan: Some(Duration::from_nanos(1)), ..Qos::ATOMIC };
    let topic = participant.topic::<Reading>(TOPIC).expect("it exists");
    let brief = participant.writer(&topic, patient(brief)).expect("it is created");
    wait_until("they match", || plain.matched_publications().len() == 2);
    let carried = &plain.matched_publications()[0];
    assert_eq!(carried.id, writer.id());
    assert_eq!(
        [&carried.qos.user_data, &carried.qos.topic_data, &carried.qos.group_data],
        [&[1], &[2], &[3]]
    );

    brief.write(&reading(9, 9)).expect("it is written");
    (0..6).for_each(|number| writer.write(&reading(number % 2, number)).expect("it is written"));
    let of = |numbers: &[u32]| numbers.iter().map(|number| reading(number % 2, *number)).collect::<Vec<_>>();
    assert_eq!(data(take(&plain, 6)), of(&[0, 1, 2, 3, 4, 5]), "what has expired is not read");
    writer.wait_for_acknowledgments(PATIENCE).expect("all is delivered");
    assert_eq!(data(take(&last, 4)), of(&[2, 3, 4, 5]));
    assert_eq!(data(take(&filtered, 2)), of(&[0, 1]));
}

#[test]
fn a_wait_set_waits_for_any_of_its_conditions() {
    let configs = configs(Transport::Shm, "wait-set", 2, 0);
    let participants = domain(&configs, &[(TOPIC, Qos::ATOMIC), ("other", Qos::KEPT)]);
    let other = participants[0].topic::<Vec<u8>>("other").expect("it exists");
    let readings = reader(&participants[0], Qos::ATOMIC);
    let bytes = participants[0].reader(&other, Qos::KEPT).expect("it is created");
    let mut wait_set = participants[0].wait_set();
    let matched = wait_set.attach(readings.status_condition(StatusKind::Matched)).expect("it is of this one");
    let fresh = wait_set.attach(readings.read_condition(StateMask::NOT_READ)).expect("it is of this one");
    let in_other = wait_set.attach(bytes.read_condition(StateMask::NOT_READ)).expect("it is of this one");
    let error = wait_set.wait(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, ReadError::Timeout(_)), "{error}");

    let writer = writer(&participants[1], Qos::ATOMIC);
    assert_eq!(wait_set.wait(PATIENCE).expect("it matches"), [matched]);
    assert_eq!(readings.subscription_matched().total_count, 1);
    wait_until("the writer knows the reader", || writer.publication_matched().current_count == 1);
    writer.write(&reading(0, 0)).expect("it is written");
    assert_eq!(wait_set.wait(PATIENCE).expect("it comes"), [fresh]);
    assert_eq!(
        readings.take_next_sample().expect("it is there").and_then(|sample| sample.data),
        Some(reading(0, 0))
    );

    let topic = participants[1].topic::<Vec<u8>>("other").expect("it exists");
    let to_other = participants[1].writer(&topic, patient(Qos::KEPT)).expect("it is created");
    to_other.write_in_place(3, |bytes| bytes.copy_from_slice(b"abc")).expect("it is written");
    assert_eq!(wait_set.wait(PATIENCE).expect("it comes"), [in_other]);

    let foreign = to_other.status_condition(StatusKind::Matched);
    let error = wait_set.attach(foreign).unwrap_err();
    assert!(matches!(error, EntityError::OtherParticipant), "{error}");
}

struct Reports(mpsc::Sender<String>);

impl ReaderListener<Reading> for Reports {
    fn on_data_available(&mut self, reader: &DataReader<Reading>) {
        for sample in reader.take(10).into_iter().flatten() {
            let text = sample.data.map_or("gone".into(), |reading| format!("data {}", reading.number));
            self.0.send(text).expect("the test waits");
        }
    }

    fn on_subscription_matched(&mut self, _: &DataReader<Reading>, status: MatchedStatus) {
        self.0.send(format!("matched {}", status.current_count)).expect("the test waits");
    }

    fn on_requested_incompatible_qos(&mut self, _: &DataReader<Reading>, status: IncompatibleQosStatus) {
        self.0.send(format!("mismatch {:?}", status.last_policy)).expect("the test waits");
    }
}

#[test]
fn a_listener_is_called_for_what_comes() {
    let participant = alone("listener", Qos::ATOMIC);
    let (sender, reports) = mpsc::channel();
    let next = || reports.recv_timeout(PATIENCE).expect("the listener is called");
    let reader = reader(&participant, Qos::ATOMIC);
    let listening = reader.listen(Reports(sender)).expect("there is a thread");
    let writer = writer(&participant, Qos::ATOMIC);
    assert_eq!(next(), "matched 1");
    writer.write(&reading(0, 5)).expect("it is written");
    assert_eq!(next(), "data 5");
    drop(writer);
    let mut last = [next(), next()];
    last.sort();
    assert_eq!(last, ["gone", "matched 0"]);
    let topic = participant.topic::<Reading>(TOPIC).expect("it exists");
    let late = Qos { latency_budget: Duration::from_secs(1), ..Qos::ATOMIC };
    let _late = participant.writer(&topic, late).expect("it is created");
    assert_eq!(next(), "mismatch Some(LatencyBudget)");
    let reader = listening.stop().expect("the listener does not panic");
    assert!(!reader.has(StateMask::ANY));
}

/// Bytes that are no sample of the type are reported, not returned.
#[test]
fn bytes_of_another_form_are_lost() {
    let participant = alone("malformed", Qos::ATOMIC);
    /// Claims to be a reading.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Short(u8);
    impl squall_dds::Keyed for Short {
        const TYPE_NAME: &'static str = "Reading";
        type Key = ();
        fn key(&self) {}
    }
    let reader = reader(&participant, Qos::ATOMIC);
    let topic = participant.topic::<Short>(TOPIC).expect("the names are equal");
    let writer = participant.writer(&topic, patient(Qos::ATOMIC)).expect("it is created");
    writer.write(&Short(1)).expect("it is written");
    reader.wait_for_data(PATIENCE).expect("it comes");
    assert!(reader.take(1).expect("the topic lives").is_empty());
    assert_eq!(reader.sample_lost().total_count, 1);
}
