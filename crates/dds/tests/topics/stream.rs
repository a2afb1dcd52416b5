//! Samples written as fast as there is space for them: threads that write and take then poll by themselves, and none of them waits in vain.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Reading, TOPIC, configs, domain, reader, take, wait_until, writer};
use squall::config::{SubgroupConfig, Transport};
use squall_dds::{DomainParticipant, Qos, ResourceLimits};

const COUNT: u32 = 3000;

/// Starts participants whose windows are soon full.
fn narrow_domain(test: &str, members: usize) -> Vec<DomainParticipant> {
    let window = SubgroupConfig { window: 16, ..SubgroupConfig::default() };
    let configs = configs(Transport::Shm, test, members, 0);
    let configs: Vec<_> = configs.into_iter().map(|config| config.subgroup(TOPIC, window.clone())).collect();
    domain(&configs, &[(TOPIC, Qos::ATOMIC)])
}

const fn reading(sensor: u32, number: u32) -> Reading {
    Reading { sensor, number }
}

/// The last samples of a stream are not passed on at once, and their writer does nothing after them.
#[test]
fn the_end_of_a_stream_comes_by_itself() {
    let participants = narrow_domain("stream-end", 2);
    let (writer, reader) = (writer(&participants[0], Qos::ATOMIC), reader(&participants[1], Qos::ATOMIC));
    wait_until("they match", || {
        !writer.matched_subscriptions().is_empty() && !reader.matched_publications().is_empty()
    });
    for round in 0..5 {
        let taken = thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let samples = take(&reader, COUNT as usize);
                (samples, Instant::now())
            });
            (0..COUNT).for_each(|number| writer.write(&reading(round, number)).expect("it is written"));
            let written = Instant::now();
            let (samples, taken) = taker.join().expect("it does not panic");
            let late = taken.saturating_duration_since(written);
            assert!(late < Duration::from_secs(5), "the last sample came {late:?} later");
            samples
        });
        let numbers = taken.iter().map(|sample| sample.data.expect("it has data"));
        assert!(numbers.eq((0..COUNT).map(|number| reading(round, number))));
    }
}

/// Several threads wait for space at the same time, in both participants, and a reader that is full holds them up occasionally.
#[test]
fn threads_that_wait_for_space_get_it() {
    let participants = narrow_domain("stream-space", 2);
    let few = ResourceLimits { samples_max: 8, samples_per_instance_max: 8, ..ResourceLimits::DEFAULT };
    let readers: Vec<_> = [Qos { resource_limits: few, ..Qos::ATOMIC }, Qos::ATOMIC]
        .into_iter()
        .zip(&participants)
        .map(|(qos, participant)| reader(participant, qos))
        .collect();
    let writers: Vec<_> = [0, 0, 1].into_iter().map(|at| writer(&participants[at], Qos::ATOMIC)).collect();
    wait_until("all match", || {
        readers.iter().all(|reader| reader.matched_publications().len() == writers.len())
    });
    let all = writers.len() * COUNT as usize;
    let begun = Instant::now();
    let taken: Vec<Vec<_>> = thread::scope(|scope| {
        for (sensor, writer) in (0..).zip(&writers) {
            scope.spawn(move || {
                (0..COUNT).for_each(|number| writer.write(&reading(sensor, number)).expect("it is written"));
            });
        }
        let takers: Vec<_> = readers.iter().map(|reader| scope.spawn(move || take(reader, all))).collect();
        takers.into_iter().map(|taker| taker.join().expect("it does not panic")).collect()
    });
    assert!(begun.elapsed() < PATIENCE);
    let data = |at: usize| taken[at].iter().map(|sample| sample.data.expect("it has data"));
    assert!(data(0).eq(data(1)), "both readers see the same order");
    for sensor in 0..3 {
        let numbers = data(0).filter(|reading| reading.sensor == sensor).map(|reading| reading.number);
        assert!(numbers.eq(0..COUNT), "writer {sensor}");
    }
}

/// A reader of a history that is soon full gets the rest from the thread that takes samples, and not only when the store's thread looks again,
/// which would take minutes here.
#[test]
fn a_full_reader_of_a_history_continues() {
    let participants = domain(&configs(Transport::Shm, "stream-history", 2, 0), &[(TOPIC, Qos::KEPT)]);
    let few = ResourceLimits { samples_max: 1, samples_per_instance_max: 1, ..ResourceLimits::DEFAULT };
    let reader = reader(&participants[1], Qos { resource_limits: few, ..Qos::KEPT });
    let writer = writer(&participants[0], Qos::KEPT);
    let begun = Instant::now();
    let samples = thread::scope(|scope| {
        let taker = scope.spawn(|| take(&reader, COUNT as usize));
        let writes: Vec<_> = (0..COUNT).map(|number| writer.write_async(&reading(0, number))).collect();
        for write in writes {
            write.expect("there is space").wait(PATIENCE).expect("it is kept");
        }
        taker.join().expect("it does not panic")
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    let numbers = samples.iter().map(|sample| sample.data.expect("it has data").number);
    assert!(numbers.eq(0..COUNT));
}

/// No application makes space in it any more, so only the topic's thread looks again.
#[test]
fn a_full_reader_that_is_closed_holds_up_no_other() {
    const MANY: u32 = 100;
    let participants = narrow_domain("stream-closed", 2);
    let few = ResourceLimits { samples_max: 4, samples_per_instance_max: 4, ..ResourceLimits::DEFAULT };
    let full = reader(&participants[1], Qos { resource_limits: few, ..Qos::ATOMIC });
    let other = reader(&participants[1], Qos::ATOMIC);
    let writer = writer(&participants[0], Qos::ATOMIC);
    wait_until("all match", || {
        [&full, &other].iter().all(|reader| !reader.matched_publications().is_empty())
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..MANY).for_each(|number| writer.write(&reading(0, number)).expect("it is written"));
        });
        let held = || other.read(usize::MAX).expect("the group is there").len();
        wait_until("the first samples come", || held() >= 4);
        // All threads come to rest: there is no space for anything but one sample that the full reader waits for.
        thread::sleep(Duration::from_millis(50));
        assert!(held() <= 5, "the other reader is not full");
        let closed = Instant::now();
        drop(full);
        let samples = take(&other, MANY as usize);
        assert!(closed.elapsed() < Duration::from_secs(5));
        let numbers = samples.iter().map(|sample| sample.data.expect("it has data").number);
        assert!(numbers.eq(0..MANY));
    });
}
