//! Tests of all faults of known shapes (Derecho §2, §3.4).

use std::ops::AddAssign;

use squall_fabric::Duration;
use squall_simulator::shape::{HEAL_LATE, HEAL_SOON, ShapeCase, ShapeFault, partitions};

fn run(cases: impl Iterator<Item = ShapeCase>) -> u64 {
    let mut runs = 0;
    for case in cases {
        let outcome = case.run(0);
        if let Some(violation) = outcome.violation {
            panic!("{violation}\n{}", case.plan());
        }
        runs.add_assign(1);
    }
    runs
}

#[test]
fn networks_part_in_every_way() {
    let shapes = (2..=5).flat_map(|members| {
        let heals = [None, Some(HEAL_SOON), Some(HEAL_LATE)];
        partitions(members).into_iter().flat_map(move |parts| {
            heals.map(|heal_after| (members, ShapeFault::Partition { parts: parts.clone(), heal_after }))
        })
    });
    let cases = shapes.flat_map(|(members, shape)| {
        (0..3).map(move |seed| ShapeCase { members, shape: shape.clone(), seed })
    });
    assert_eq!(run(cases), 70 * 3 * 3);
}

#[test]
fn members_stop_for_longer_than_others_wait() {
    let shapes = (3..=5).flat_map(|members| {
        let pause = |node, micros| ShapeFault::Pause { node, span: Duration::from_micros(micros) };
        (0..members).flat_map(move |node| [1_500, 4_000].map(|micros| (members, pause(node, micros))))
    });
    let cases = shapes.flat_map(|(members, shape)| {
        (0..3).map(move |seed| ShapeCase { members, shape: shape.clone(), seed })
    });
    assert_eq!(run(cases), 12 * 2 * 3);
}

/// The pause lasts 0.8 to 1.5 times as long as the others wait: those that notice it and those that do not continue
/// together.
#[test]
fn members_stop_for_about_as_long_as_others_wait() {
    let shapes = (3..=5).flat_map(|members| {
        let pause = |node, micros| ShapeFault::Pause { node, span: Duration::from_micros(micros) };
        (0..members)
            .flat_map(move |node| (320..=600).step_by(20).map(move |micros| (members, pause(node, micros))))
    });
    let cases = shapes.flat_map(|(members, shape)| {
        (0..10).map(move |seed| ShapeCase { members, shape: shape.clone(), seed })
    });
    assert_eq!(run(cases), 12 * 15 * 10);
}

/// The pause begins at each of many instants.
#[test]
fn members_that_stop_last_deliver_what_the_others_had() {
    let cases = (0..3000_u32).map(|i| {
        let members = 2 + i % 4;
        let shape =
            ShapeFault::Last { node: i / 4 % members, after: Duration::from_nanos(u64::from(i) * 67) };
        ShapeCase { members, shape, seed: u64::from(i) }
    });
    run(cases);
}

#[test]
fn members_are_not_heard() {
    let nodes = (3..=5).flat_map(|members| {
        (0..2 * members)
            .map(move |case| (members, ShapeFault::Mute { node: case / 2, misses_leader: case % 2 == 1 }))
    });
    let cases = nodes.flat_map(|(members, shape)| {
        (0..6).map(move |seed| ShapeCase { members, shape: shape.clone(), seed })
    });
    assert_eq!(run(cases), 24 * 6);
}

/// The leader may die meanwhile, at one in 23 of its posts.
#[test]
fn eight_nodes_join_at_once_or_one_after_the_other() {
    let deaths = || std::iter::once(None).chain((1..300).step_by(23).map(Some));
    let gaps = [0, 50, 400].map(Duration::from_micros);
    let shapes = (1..=5).flat_map(move |members| {
        let storm = move |death| gaps.map(|gap| (members, ShapeFault::Storm { gap, death }));
        deaths().flat_map(storm)
    });
    let cases = shapes.map(|(members, shape)| ShapeCase { members, shape, seed: u64::from(members) });
    assert_eq!(run(cases), 5 * 3 * 14);
}
