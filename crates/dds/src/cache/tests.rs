//! Histories of any shape against what the specification says of them.

use proptest::prelude::*;

use super::*;
use crate::sample::{SampleState, StateMask};

const WRITER: EndpointId = EndpointId { node: 0, number: 0 };
const OTHER: EndpointId = EndpointId { node: 1, number: 0 };
const TAKE: Selection<'static> =
    Selection { samples_max: usize::MAX, states: StateMask::ANY, instance: None, takes: true, before: None };
const READ: Selection<'static> = Selection { takes: false, ..TAKE };

fn cache(history: HistoryKind) -> HistoryCache {
    HistoryCache::new(history, ResourceLimits::DEFAULT, 0)
}

/// All keys of one byte.
static KEYS: [u8; 256] = {
    let mut keys = [0; 256];
    let mut key = 0;
    while key < keys.len() {
        keys[key] = key as u8;
        key += 1;
    }
    keys
};

fn change(
    kind: ChangeKind,
    writer: EndpointId,
    key: u8,
    number: u8,
) -> Change<&'static [u8], impl FnOnce() -> SampleBytes> {
    Change {
        kind,
        writer,
        instance: std::slice::from_ref(&KEYS[usize::from(key)]),
        data: move || SampleBytes::Own(vec![number].into()),
        position: Position { view: 0, sequence: number.into() },
        place: 0,
        source_time: u64::from(number),
        reception_time: u64::from(number),
        expires: None,
    }
}

fn data(key: u8, number: u8) -> Change<&'static [u8], impl FnOnce() -> SampleBytes> {
    change(ChangeKind::Data, WRITER, key, number)
}

/// The data of what is selected.
fn numbers(cache: &mut HistoryCache, selection: Selection<'_>) -> Vec<u8> {
    cache.select(selection, 0).iter().filter_map(|sample| sample.data.as_ref().map(|data| data[0])).collect()
}

#[test]
fn reading_leaves_samples_and_taking_removes_them() {
    let mut cache = cache(HistoryKind::KeepAll);
    (0..3).for_each(|number| assert_eq!(cache.insert(data(0, number)), Insertion::Stored));
    assert_eq!(numbers(&mut cache, Selection { samples_max: 2, ..READ }), [0, 1]);
    assert_eq!(numbers(&mut cache, Selection { states: StateMask::NOT_READ, ..READ }), [2]);
    assert!(!cache.has_unread());
    let all = cache.select(TAKE, 0);
    assert!(all.iter().all(|sample| sample.info.sample_state == SampleState::Read));
    assert_eq!(all.iter().map(|sample| sample.info.sample_rank).collect::<Vec<_>>(), [2, 1, 0]);
    assert!(numbers(&mut cache, TAKE).is_empty());
}

#[test]
fn a_short_history_holds_the_latest_of_each_instance() {
    let mut cache = cache(HistoryKind::KeepLast(2));
    for number in 0..6 {
        cache.insert(data(number % 2, number));
    }
    assert_eq!(cache.insert(data(0, 6)), Insertion::Replaced);
    assert_eq!(numbers(&mut cache, TAKE), [3, 4, 5, 6]);
}

/// An old sample that stays does not keep the places of those that came and left after it.
#[test]
fn places_of_samples_that_left_are_used_again() {
    let mut cache = cache(HistoryKind::KeepLast(2));
    cache.insert(data(9, 0));
    for number in 1..=200 {
        cache.insert(data(number % 2, number));
    }
    assert!(cache.samples.places() < 80, "{} places for 5 samples", cache.samples.places());
    assert_eq!(numbers(&mut cache, Selection { samples_max: 2, ..READ }), [0, 197]);
    assert_eq!(numbers(&mut cache, TAKE), [0, 197, 198, 199, 200]);
    assert_eq!(cache.samples.places(), 0);
    cache.insert(data(9, 201));
    assert_eq!(numbers(&mut cache, TAKE), [201]);
}

#[test]
fn each_limit_is_kept_and_named() {
    let limits = ResourceLimits { samples_max: 3, instances_max: 2, samples_per_instance_max: 2 };
    let mut cache = HistoryCache::new(HistoryKind::KeepAll, limits, 0);
    assert_eq!(cache.insert(data(0, 0)), Insertion::Stored);
    assert_eq!(cache.insert(data(0, 1)), Insertion::Stored);
    assert_eq!(cache.insert(data(0, 2)), Insertion::Exceeds(LimitKind::SamplesPerInstance));
    assert_eq!(cache.insert(data(1, 3)), Insertion::Stored);
    assert_eq!(cache.insert(data(1, 4)), Insertion::Exceeds(LimitKind::Samples));
    assert_eq!(cache.insert(data(2, 5)), Insertion::Exceeds(LimitKind::Instances));
    assert_eq!(numbers(&mut cache, Selection { samples_max: 1, ..TAKE }), [0]);
    assert_eq!(cache.insert(data(1, 4)), Insertion::Stored, "taking makes space");
    // A change of state finds space in any case, and frees the instance when it is taken.
    assert_eq!(cache.insert(change(ChangeKind::Dispose, WRITER, 0, 6)), Insertion::Stored);
    cache.select(TAKE, 0);
    assert_eq!(cache.insert(data(2, 5)), Insertion::Stored);
}

/// The lives of an instance, with the states and counts that the specification names.
#[test]
fn instances_live_and_end() {
    let mut cache = cache(HistoryKind::KeepAll);
    cache.insert(data(0, 0));
    cache.insert(change(ChangeKind::Dispose, WRITER, 0, 1));
    cache.insert(data(0, 2));
    cache.insert(change(ChangeKind::Data, OTHER, 0, 3));
    assert_eq!(cache.insert(change(ChangeKind::Unregister, WRITER, 0, 4)), Insertion::Dropped, "one is left");
    cache.remove_writer(OTHER, false, Position::default(), 5);
    let seen = cache.select(READ, 0);
    let infos: Vec<_> = seen.iter().map(|sample| &sample.info).collect();
    assert!(infos.iter().all(|info| info.instance_state == InstanceState::NotAliveNoWriters));
    assert!(infos.iter().all(|info| info.view_state == ViewState::New));
    assert_eq!(infos.iter().map(|info| info.is_valid).collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(infos.iter().map(|info| info.disposed_generation_count).collect::<Vec<_>>(), [0, 1, 1, 1]);
    assert_eq!(infos.iter().map(|info| info.generation_rank).collect::<Vec<_>>(), [1, 0, 0, 0]);

    cache.insert(data(0, 6));
    let seen = cache.select(TAKE, 0);
    let last = &seen.last().expect("there are some").info;
    assert_eq!((last.instance_state, last.view_state), (InstanceState::Alive, ViewState::New));
    assert_eq!((last.disposed_generation_count, last.no_writers_generation_count), (1, 1));
    assert_eq!(seen[0].info.absolute_generation_rank, 2);
}

#[test]
fn what_is_unknown_cannot_be_disposed_of() {
    let mut cache = cache(HistoryKind::KeepAll);
    assert_eq!(cache.insert(change(ChangeKind::Dispose, WRITER, 0, 0)), Insertion::Dropped);
    assert_eq!(cache.insert(change(ChangeKind::Unregister, WRITER, 0, 0)), Insertion::Dropped);
    cache.insert(data(0, 1));
    cache.insert(change(ChangeKind::Dispose, WRITER, 0, 2));
    assert_eq!(cache.insert(change(ChangeKind::Dispose, WRITER, 0, 3)), Insertion::Dropped, "once is enough");
}

#[test]
fn old_samples_are_not_returned() {
    let mut cache = cache(HistoryKind::KeepAll);
    cache.insert(Change { expires: Some(10), ..data(0, 0) });
    cache.insert(Change { expires: Some(20), ..data(0, 1) });
    assert_eq!(cache.insert(Change { expires: Some(2), ..data(0, 2) }), Insertion::Dropped);
    let found = cache.select(READ, 15);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].data.as_deref(), Some(&[1][..]));
}

#[test]
fn a_filter_keeps_samples_apart() {
    let mut cache = HistoryCache::new(HistoryKind::KeepAll, ResourceLimits::DEFAULT, 10);
    for number in [0, 5, 10, 19, 20] {
        cache.insert(data(0, number));
    }
    cache.insert(data(1, 21));
    assert_eq!(numbers(&mut cache, READ), [0, 10, 20, 21]);
    // A life that begins is not missed.
    cache.insert(change(ChangeKind::Dispose, WRITER, 1, 22));
    cache.insert(data(1, 23));
    assert_eq!(numbers(&mut cache, TAKE), [0, 10, 20, 21, 23]);
}

#[test]
fn an_instance_is_selected_by_its_key() {
    let mut cache = cache(HistoryKind::KeepAll);
    for number in 0..6 {
        cache.insert(data(number % 2, number));
    }
    let one = InstanceHandle::from_key(&[1]);
    assert_eq!(numbers(&mut cache, Selection { instance: Some(&one), ..TAKE }), [1, 3, 5]);
}

/// What happens to a cache.
#[derive(Clone, Copy, Debug)]
enum Step {
    Change(u8, u8, u8),
    Take(usize),
    Read(usize),
    Lose(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..6, 0u8..2, 0u8..4).prop_map(|(kind, writer, key)| Step::Change(kind, writer, key)),
        1 => (1usize..4).prop_map(Step::Take),
        1 => (1usize..4).prop_map(Step::Read),
        1 => (0u8..2).prop_map(Step::Lose),
    ]
}

fn check(cache: &HistoryCache, limits: ResourceLimits) {
    assert!(cache.data_count <= limits.samples_max && cache.instances.len() <= limits.instances_max);
    let held: usize = cache.instances.iter().map(|(.., instance)| instance.samples.len()).sum();
    assert_eq!(held, cache.data_count);
    let reports = cache.instances.iter().filter(|(.., instance)| instance.report.is_some()).count();
    assert_eq!(held + reports, cache.samples.iter().count());
    assert_eq!(cache.unread, cache.samples.iter().filter(|(_, sample)| !sample.is_read).count());
    for (.., instance) in cache.instances.iter() {
        assert!(instance.samples.len() <= limits.samples_per_instance_max);
        assert!(instance.state != InstanceState::Alive || !instance.writers.is_empty());
    }
}

proptest! {
    /// Whatever happens: the bounds hold, and what is taken is what was stored, once each and in order. It is the same if samples in any
    /// state are asked for by naming the states.
    #[test]
    fn bounds_hold_and_nothing_is_taken_twice(
        steps in proptest::collection::vec(any_step(), 0..80),
        depth in 0usize..3,
    ) {
        let limits = ResourceLimits { samples_max: 6, instances_max: 3, samples_per_instance_max: 3 };
        let history = if depth == 0 { HistoryKind::KeepAll } else { HistoryKind::KeepLast(depth) };
        let (mut cache, mut asked) = (HistoryCache::new(history, limits, 0), HistoryCache::new(history, limits, 0));
        let (mut stored, mut taken) = (Vec::new(), Vec::new());
        for (number, step) in (0u8..).zip(steps) {
            match step {
                Step::Change(kind, writer, key) => {
                    let kind = match kind { 0 => ChangeKind::Dispose, 1 => ChangeKind::Unregister, _ => ChangeKind::Data };
                    let writer = EndpointId { node: writer.into(), number: 0 };
                    let insertion = cache.insert(change(kind, writer, key, number));
                    prop_assert_eq!(asked.insert(change(kind, writer, key, number)), insertion);
                    if kind == ChangeKind::Data && matches!(insertion, Insertion::Stored | Insertion::Replaced) {
                        stored.push(number);
                    }
                }
                Step::Take(samples_max) => {
                    let states = StateMask::READ | StateMask::NOT_READ;
                    let found = cache.select(Selection { samples_max, ..TAKE }, 0);
                    let same = asked.select(Selection { samples_max, states, ..TAKE }, 0);
                    prop_assert_eq!(format!("{found:?}"), format!("{same:?}"));
                    taken.extend(found.iter().filter_map(|sample| sample.data.as_ref().map(|data| data[0])));
                }
                Step::Read(samples_max) => {
                    for cache in [&mut cache, &mut asked] {
                        cache.select(Selection { samples_max, ..READ }, 0);
                    }
                }
                Step::Lose(node) => {
                    let writer = EndpointId { node: node.into(), number: 0 };
                    for cache in [&mut cache, &mut asked] {
                        cache.remove_writer(writer, false, Position::default(), 0);
                    }
                }
            }
            check(&cache, limits);
        }
        taken.extend(numbers(&mut cache, TAKE));
        prop_assert!(taken.is_sorted() && taken.windows(2).all(|pair| pair[0] != pair[1]));
        prop_assert!(taken.iter().all(|number| stored.contains(number)));
        if history == HistoryKind::KeepAll {
            prop_assert_eq!(taken, stored);
        }
    }
}

#[test]
fn what_has_no_space_is_not_copied() {
    let limits = ResourceLimits { samples_max: 1, ..ResourceLimits::DEFAULT };
    let mut cache = HistoryCache::new(HistoryKind::KeepAll, limits, 0);
    assert_eq!(cache.insert(data(0, 0)), Insertion::Stored);
    let copied = std::cell::Cell::new(false);
    let change = Change {
        data: || {
            copied.set(true);
            SampleBytes::Own(vec![1].into())
        },
        kind: ChangeKind::Data,
        writer: WRITER,
        instance: std::slice::from_ref(&KEYS[0]),
        position: Position { view: 0, sequence: 1 },
        place: 0,
        source_time: 1,
        reception_time: 1,
        expires: None,
    };
    assert_eq!(cache.insert(change), Insertion::Exceeds(LimitKind::Samples));
    assert!(!copied.get());
}
