//! What each profile promises of what the processes of a run have read.

use std::collections::{BTreeMap, BTreeSet};

use squall_dds::Position;

use crate::common::Reading;
use crate::{Read, TopicRecord};

/// Samples by their writers.
fn by_sensor(read: &[Read]) -> BTreeMap<u32, Vec<(Position, u32)>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (position, Reading { sensor, number }) in read {
        all.entry(*sensor).or_default().push((*position, *number));
    }
    all
}

/// The samples of each writer come in its order, without a gap: reliable or not, processes that are here lose nothing at this rate.
pub(crate) fn check_writers(topics: &[&TopicRecord]) {
    for topic in topics {
        for (sensor, read) in by_sensor(&topic.read) {
            let first = read[0].1;
            assert!(read.iter().map(|each| each.1).eq((first..).take(read.len())), "{sensor}: {read:?}");
        }
    }
}

/// All samples are in one order, and what a process has read everyone has read that was there until then.
pub(crate) fn check_order(topics: &[&TopicRecord]) {
    let mut places = BTreeMap::new();
    for topic in topics {
        assert!(topic.read.is_sorted_by(|one, other| one.0 < other.0), "positions grow");
        for (position, reading) in &topic.read {
            assert_eq!(places.entry(*position).or_insert(*reading), reading, "{position:?}");
        }
    }
    // By writers, since a reader that comes knows one earlier than another. That there is no gap before is checked for each.
    for topic in topics {
        let Some(&(end, _)) = topic.read.last() else { continue };
        for (sensor, read) in by_sensor(&topic.read) {
            let (from, last) = read[read.len() - 1];
            let later = places.range(from..end).filter(|(_, reading)| reading.sensor == sensor);
            assert!(
                later.count() <= 1,
                "samples of {sensor} after {last} are missing, which were before {end:?}"
            );
        }
    }
}

/// What each process has read is the beginning of one history, in which each sample that was acknowledged is once.
pub(crate) fn check_history(topics: &[&TopicRecord]) -> BTreeSet<Reading> {
    let whole = topics.iter().map(|topic| &topic.read).max_by_key(|read| read.len()).expect("there are some");
    assert!(whole.is_sorted_by(|one, other| one.0 < other.0), "positions grow");
    for topic in topics {
        if let Some(at) = topic.read.iter().zip(whole).position(|(one, other)| one != other) {
            panic!("at {at}, {:?} was read, and {:?}", topic.read[at], whole[at]);
        }
    }
    let all: BTreeSet<_> = whole.iter().map(|read| read.1).collect();
    assert_eq!(all.len(), whole.len(), "each sample is there once");
    for read in by_sensor(whole).into_values() {
        assert!(
            read.iter().map(|each| each.1).eq((0..).take(read.len())),
            "in the order of its writer: {read:?}"
        );
    }
    all
}
