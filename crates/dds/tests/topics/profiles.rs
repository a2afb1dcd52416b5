//! The four profiles (Spindle §4.6), by members over shared memory and TCP: what each reader gets, and in which order.

use std::collections::BTreeMap;
use std::thread;

use crate::common::{
    DomainFolder, PATIENCE, Reading, TOPIC, configs, data, domain, reader, take, wait_until, writer,
};
use squall::config::Transport;
use squall_dds::{
    DataReader, DataWriter, DomainParticipant, DurabilityKind, EndpointId, Position, Profile, Qos, Sample,
    StateMask,
};

const MEMBERS: usize = 3;
/// How many samples each member writes.
const SAMPLES: u32 = 200;
/// More samples than a reader is handed at once.
const MANY: u32 = 300;

/// Writes this member's samples to two instances, and takes everyone's.
fn run(reader: &DataReader<Reading>, writer: &DataWriter<Reading>) -> Vec<Sample<Reading>> {
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..SAMPLES {
                writer.write(&Reading { sensor: number % 2, number }).expect("it is written");
            }
            writer.wait_for_acknowledgments(PATIENCE).expect("all members have it");
        });
        take(reader, MEMBERS * SAMPLES as usize)
    })
}

/// Checks that samples of each writer came in its order, each once.
fn check_writers(samples: &[Sample<Reading>]) {
    let mut of_writers = BTreeMap::<EndpointId, Vec<u32>>::new();
    for sample in samples {
        let reading = sample.data.expect("it has data");
        of_writers.entry(sample.info.publication).or_default().push(reading.number);
    }
    assert_eq!(of_writers.len(), MEMBERS);
    for numbers in of_writers.values() {
        assert!(numbers.iter().copied().eq(0..SAMPLES), "{numbers:?}");
    }
}

fn order(samples: Vec<Sample<Reading>>) -> Vec<(Position, EndpointId, Reading)> {
    let place = |sample: Sample<Reading>| {
        (sample.info.position, sample.info.publication, sample.data.expect("it has data"))
    };
    samples.into_iter().map(place).collect()
}

fn every_reader_gets_everything(transport: Transport, test: &str, qos: &Qos) {
    let folder = DomainFolder::new(test);
    let mut configs = configs(transport, test, MEMBERS, 0);
    configs.iter_mut().for_each(|config| config.storage = folder.storage());
    let participants = domain(&configs, &[(TOPIC, qos.clone())]);
    let open = |participant: &DomainParticipant| {
        (reader(participant, qos.clone()), writer(participant, qos.clone()))
    };
    let ends: Vec<_> = participants.iter().map(open).collect();
    for (reader, writer) in &ends {
        wait_until("all match", || {
            reader.matched_publications().len() == MEMBERS && writer.matched_subscriptions().len() == MEMBERS
        });
    }
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            ends.iter().map(|(reader, writer)| scope.spawn(|| run(reader, writer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it runs")).collect()
    });
    all.iter().for_each(|samples| check_writers(samples));
    if qos.profile() != Profile::Unordered {
        let mut orders = all.into_iter().map(order);
        let first = orders.next().expect("there are members");
        assert!(first.is_sorted(), "positions grow");
        assert!(orders.all(|order| order == first), "all readers have one order");
    }
    for (reader, _) in &ends {
        assert_eq!((reader.sample_lost().total_count, reader.sample_rejected().total_count), (0, 0));
    }
}

#[test]
fn unordered_on_shm() {
    every_reader_gets_everything(Transport::Shm, "unordered-shm", &Qos::UNORDERED);
}

#[test]
fn unordered_on_tcp() {
    every_reader_gets_everything(Transport::Tcp, "unordered-tcp", &Qos::UNORDERED);
}

#[test]
fn atomic_on_shm() {
    every_reader_gets_everything(Transport::Shm, "atomic-shm", &Qos::ATOMIC);
}

#[test]
fn atomic_on_tcp() {
    every_reader_gets_everything(Transport::Tcp, "atomic-tcp", &Qos::ATOMIC);
}

#[test]
fn kept_on_shm() {
    every_reader_gets_everything(Transport::Shm, "kept-shm", &Qos::KEPT);
}

#[test]
fn kept_on_tcp() {
    every_reader_gets_everything(Transport::Tcp, "kept-tcp", &Qos::KEPT);
}

#[test]
fn logged_on_shm() {
    every_reader_gets_everything(Transport::Shm, "logged-shm", &Qos::LOGGED);
}

#[test]
fn logged_on_tcp() {
    every_reader_gets_everything(Transport::Tcp, "logged-tcp", &Qos::LOGGED);
}

/// The history of a logged topic outlives all participants: each run reads what the runs before have written.
#[test]
fn a_logged_history_outlives_all_participants() {
    let folder = DomainFolder::new("logged-restart");
    let mut configs = configs(Transport::Shm, "logged-restart", MEMBERS, 0);
    configs.iter_mut().for_each(|config| config.storage = folder.storage());
    for run in 0..3u32 {
        let participants = domain(&configs, &[(TOPIC, Qos::LOGGED)]);
        wait_until("all are there", || participants.iter().all(|each| each.participants() == MEMBERS));
        let found: Vec<_> = participants
            .iter()
            .map(|participant| {
                let reader = reader(participant, Qos::LOGGED);
                reader.wait_for_historical_data(PATIENCE).expect("the history comes");
                let samples = reader.take(1000).expect("the topic lives");
                // The rest reports that the writers of earlier runs have gone.
                samples.into_iter().filter_map(|sample| sample.data).collect::<Vec<_>>()
            })
            .collect();
        let expected = (0..run).flat_map(|run| (0..3).map(move |sensor| Reading { sensor, number: run }));
        assert!(found[0].iter().copied().eq(expected), "run {run}: {found:?}");
        assert!(found.iter().all(|readings| *readings == found[0]));
        for (sensor, participant) in (0..).zip(&participants) {
            writer(participant, Qos::LOGGED).write(&Reading { sensor, number: run }).expect("it is written");
        }
    }
}

/// Nodes have the same numbers after a restart; endpoints have not, or a reader would take what an earlier one said for its own.
#[test]
fn endpoints_of_a_later_run_are_others() {
    let test = "logged-endpoints";
    let folder = DomainFolder::new(test);
    let mut configs = configs(Transport::Shm, test, 1, 0);
    configs[0].storage = folder.storage();
    let mut ids = Vec::new();
    for run in 0..3u32 {
        let participant = domain(&configs, &[(TOPIC, Qos::LOGGED)]).remove(0);
        let reader_of = |durability| reader(&participant, Qos { durability, ..Qos::LOGGED });
        let (late, history) = (reader_of(DurabilityKind::Volatile), reader_of(DurabilityKind::Persistent));
        history.wait_for_historical_data(PATIENCE).expect("the history comes");
        let found: Vec<_> = history.take(usize::MAX).expect("the topic lives");
        let found = found.into_iter().filter_map(|sample| sample.data);
        assert!(found.map(|reading| reading.number).eq(0..run * MANY), "run {run}");
        assert!(!late.has(StateMask::ANY), "run {run}: it came after what was written before");
        assert!(
            history.matched_publications().is_empty(),
            "run {run}: the writers of earlier runs have gone"
        );
        let writer = writer(&participant, Qos::LOGGED);
        for number in run * MANY..(run + 1) * MANY {
            writer.write(&Reading { sensor: 0, number }).expect("it is written");
        }
        assert_eq!(
            data(take(&late, MANY as usize)).last().map(|reading| reading.number),
            Some(run * MANY + MANY - 1)
        );
        wait_until("they match", || history.matched_publications().len() == 1);
        ids.extend([late.id(), history.id(), writer.id()]);
    }
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
}
