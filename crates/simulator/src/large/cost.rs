//! What evaluations cost in groups of many members or subgroups.

use squall_fabric::Core as _;

use super::cluster::{LargeCluster, LargeNode};
use super::{LATE, LargeCase, LossNotice};

/// What evaluations cost in a calm group.
#[derive(Clone, Copy, Debug)]
pub struct CalmCost {
    /// Of an evaluation of one member that finds nothing, in units of the clock.
    pub idle: f64,
    /// Of all members and the simulated network, for a message and a member that delivers it.
    pub delivery: f64,
}

/// Returns what evaluations cost in a group in which nothing happens, and then one member sends, by a clock that the caller has.
///
/// # Panics
/// If not all messages are delivered.
pub fn calm_cost(members: u32, subgroups: u32, clock: fn() -> u64) -> CalmCost {
    let case = LargeCase {
        seed: 0,
        members,
        senders: vec![1],
        messages: 0,
        subgroups,
        deaths: Vec::new(),
        parted: Vec::new(),
        parts_at: LATE,
        joins: false,
        is_adverse: false,
        notice: LossNotice::SOON,
    };
    let mut cluster = LargeCluster::new(&case, 0);
    cluster.run();
    let polls = |cluster: &mut LargeCluster<'_>, count: u32| {
        let LargeNode { fabric, group, .. } = &mut cluster.nodes[0];
        (0..count).for_each(|_| {
            group.poll(fabric);
        });
    };
    polls(&mut cluster, POLLS / 10);
    let begun = clock();
    polls(&mut cluster, POLLS);
    let idle = (clock() - begun) as f64 / f64::from(POLLS);
    // The clock may tick no more often than each few milliseconds.
    let messages = (100_000 / members).max(100);
    cluster.nodes[1].group.application().messages = messages;
    cluster.world.wake(1);
    let begun = clock();
    cluster.run();
    let took = (clock() - begun) as f64;
    let delivered: u64 = cluster.nodes.iter().map(LargeNode::count).sum();
    assert_eq!(delivered, u64::from(members * messages), "all are delivered by all");
    CalmCost { idle, delivery: took / delivered as f64 }
}

/// Evaluations over which an idle one is measured.
const POLLS: u32 = 500_000;
