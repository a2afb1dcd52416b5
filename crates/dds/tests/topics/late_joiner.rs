//! Participants that join a topic that is kept, while others write: each sample comes once, in the order that all have.

use std::thread;
use std::time::Duration;

use crate::common::{DomainFolder, PATIENCE, Reading, TOPIC, configs, domain, reader, wait_until, writer};
use squall::Config;
use squall::config::Transport;
use squall_dds::{
    DataReader, DataWriter, DomainParticipant, EndpointId, InstanceState, Position, Qos, ReadError, StateMask,
};
use squall_fabric::atomics::{AtomicBool, AtomicU32, Ordering};

const MEMBERS: usize = 3;
const JOINERS: usize = 4;
/// How many samples a member writes at most: all together are fewer than a history keeps.
const SAMPLES_MAX: u32 = 20_000;
/// How many of them it writes as fast as it can for each joiner. If the joiner needs longer, it continues slowly.
const FAST_SAMPLES: u32 = 2_000;

type Place = (Position, EndpointId, Reading);

/// A domain after its members have written, and joiners have come.
struct Written {
    /// The members and the joiners, each with a reader.
    readers: Vec<(DomainParticipant, DataReader<Reading>)>,
    /// Those of the members. They stay open, so that their instances stay alive.
    _writers: Vec<DataWriter<Reading>>,
    /// How many samples each member has written.
    counts: Vec<u32>,
}

/// What the test's threads know of each other.
#[derive(Default)]
struct Progress {
    written: AtomicU32,
    /// How many joiners have come.
    joined: AtomicU32,
    stop: AtomicBool,
}

/// Writes until asked to stop; returns the number of samples.
fn write(writer: &DataWriter<Reading>, sensor: u32, progress: &Progress) -> u32 {
    for number in 0..SAMPLES_MAX {
        if progress.stop.load(Ordering::Relaxed) {
            return number;
        }
        if number >= FAST_SAMPLES * (1 + progress.joined.load(Ordering::Relaxed)) {
            thread::park_timeout(Duration::from_millis(1));
        }
        writer.write(&Reading { sensor, number }).expect("it is written");
        progress.written.fetch_add(1, Ordering::Relaxed);
    }
    SAMPLES_MAX
}

/// Takes everything that comes until `total` samples are there.
fn take_all(reader: &DataReader<Reading>, total: usize) -> Vec<Place> {
    let mut places = Vec::new();
    while places.len() < total {
        match reader.wait_for_data(PATIENCE) {
            Ok(()) => {}
            Err(error) => panic!("{} of {total} samples have come: {error}", places.len()),
        }
        for sample in reader.take(1000).expect("there are some") {
            let reading = sample.data.expect("it has data");
            places.push((sample.info.position, sample.info.publication, reading));
        }
    }
    assert!(!reader.has(StateMask::ANY), "there are more than {total}");
    assert_eq!(reader.sample_lost().total_count, 0);
    places
}

/// Lets the joiners come one after the other while the members write, and one more when these have stopped.
fn join_while_writing(configs: &[Config], qos: &Qos) -> Written {
    let members = domain(&configs[..MEMBERS], &[(TOPIC, qos.clone())]);
    let writers: Vec<_> = members.iter().map(|member| writer(member, qos.clone())).collect();
    let progress = Progress::default();
    let with_reader = |participant: DomainParticipant| {
        let reader = reader(&participant, qos.clone());
        (participant, reader)
    };
    let join = |config: &Config| {
        with_reader(domain(std::slice::from_ref(config), &[(TOPIC, qos.clone())]).remove(0))
    };
    let mut joined = Vec::new();
    let counts = thread::scope(|scope| {
        let progress = &progress;
        let start = |(sensor, writer)| scope.spawn(move || write(writer, sensor, progress));
        let threads: Vec<_> = (0..).zip(&writers).map(start).collect();
        let (last, during) = configs[MEMBERS..].split_last().expect("there are joiners");
        for config in during {
            let before = progress.written.load(Ordering::Relaxed);
            joined.push(join(config));
            progress.joined.fetch_add(1, Ordering::Relaxed);
            wait_until("the members write", || progress.written.load(Ordering::Relaxed) > before + 100);
        }
        progress.stop.store(true, Ordering::Relaxed);
        let counts = threads.into_iter().map(|thread| thread.join().expect("it writes")).collect();
        joined.push(join(last));
        counts
    });
    let mut readers: Vec<_> = members.into_iter().map(with_reader).collect();
    readers.extend(joined);
    Written { readers, _writers: writers, counts }
}

fn joiners_get_each_sample_once(transport: Transport, test: &str, qos: &Qos) {
    let folder = DomainFolder::new(test);
    let mut configs = configs(transport, test, MEMBERS, JOINERS);
    configs.iter_mut().for_each(|config| config.storage = folder.storage());
    let written = join_while_writing(&configs, qos);
    let counts = &written.counts;
    assert!(counts.iter().all(|count| *count < SAMPLES_MAX), "the joiners came while the members wrote");
    let total = counts.iter().sum::<u32>() as usize;
    let mut orders = written.readers.iter().map(|(_, reader)| {
        reader.wait_for_historical_data(PATIENCE).expect("the history comes");
        take_all(reader, total)
    });
    let first = orders.next().expect("there are members");
    for (sensor, count) in (0..).zip(counts) {
        let numbers = first.iter().filter(|place| place.2.sensor == sensor).map(|place| place.2.number);
        assert!(numbers.eq(0..*count), "the samples of member {sensor} come in their order");
    }
    for (at, order) in (1..).zip(orders) {
        assert!(order == first, "reader {at} has another order");
    }
}

#[test]
fn joiners_of_a_kept_topic_get_each_sample_once_on_shm() {
    joiners_get_each_sample_once(Transport::Shm, "late-shm", &Qos::KEPT);
}

#[test]
fn joiners_of_a_kept_topic_get_each_sample_once_on_tcp() {
    joiners_get_each_sample_once(Transport::Tcp, "late-tcp", &Qos::KEPT);
}

#[test]
fn joiners_of_a_logged_topic_get_each_sample_once() {
    joiners_get_each_sample_once(Transport::Shm, "late-logged", &Qos::LOGGED);
}

/// A history goes from member to member: those that wrote it, and those that gave it to others, may all have left.
#[test]
fn a_history_outlives_its_members() {
    let configs = configs(Transport::Shm, "handed-on", MEMBERS, JOINERS);
    let topics = [(TOPIC, Qos::KEPT)];
    let mut members = domain(&configs[..MEMBERS], &topics);
    let writers: Vec<_> = members.iter().map(|member| writer(member, Qos::KEPT)).collect();
    for (sensor, writer) in (0..).zip(&writers) {
        (0..200).for_each(|number| writer.write(&Reading { sensor, number }).expect("it is written"));
    }
    drop(writers);
    let mut joiners: Vec<_> = configs[MEMBERS..]
        .iter()
        .map(|config| domain(std::slice::from_ref(config), &topics).remove(0))
        .collect();
    for member in members.drain(..) {
        let departure = member.leave(PATIENCE);
        assert!(matches!(departure, squall::Departure::InOrder), "{departure:?}");
    }
    let last = joiners.pop().expect("there are joiners");
    for joiner in joiners {
        let departure = joiner.leave(PATIENCE);
        assert!(matches!(departure, squall::Departure::InOrder), "{departure:?}");
    }
    let reader = reader(&last, Qos::KEPT);
    reader.wait_for_historical_data(PATIENCE).expect("the history is here");
    let samples = reader.read(1000).expect("there is data");
    let (data, ends): (Vec<_>, Vec<_>) = samples.iter().partition(|sample| sample.info.is_valid);
    // Each instance has had one life, and its writer has disposed of it after the last sample.
    assert_eq!((data.len(), ends.len()), (600, 3));
    for sample in samples {
        assert_eq!(sample.info.instance_state, InstanceState::NotAliveDisposed);
        assert_eq!((sample.info.disposed_generation_count, sample.info.no_writers_generation_count), (0, 0));
    }
    let departure = last.leave(PATIENCE);
    assert!(matches!(departure, squall::Departure::InOrder), "{departure:?}");
    // What has come can be read after the end; then the reader says that there was one.
    assert_eq!(reader.take(1000).expect("it has come").len(), 603);
    assert!(matches!(reader.take(1), Err(ReadError::Group(_) | ReadError::Left)));
}
