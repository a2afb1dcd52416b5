//! Tests with objects of all sizes in groups of all kinds, under the adversary [B1] [B5] (RDMC §2, properties 2–4).

use squall_fabric::Duration;
use squall_fabric::sim::{SimConfig, Verdict};

use super::super::cluster::{RdmcCluster, SETTLE, run_plan};
use super::super::plan::{RdmcGroupPlan, RdmcPlan};
use squall_protocols::rdmc::schedule::Algorithm;

/// Every byte arrives at every receiver, in order, whatever the adversary does.
#[test]
fn all_objects_arrive_under_the_adversary() {
    for seed in 0..300 {
        let plan = RdmcPlan::drawn(seed);
        run_plan(&plan).unwrap_or_else(|text| panic!("seed {seed}: {text}\n{plan:#?}"));
    }
}

/// Each edge size arrives [B5].
#[test]
fn edge_sizes_arrive() {
    const BLOCK: u64 = 64;
    let sizes = [0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 33 * BLOCK + 5, 0];
    for members in [1, 2, 3, 4, 5, 8, 11] {
        for algorithm in [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline] {
            let nodes: Vec<u32> = (0..members).collect();
            let group = RdmcGroupPlan::new(1, &nodes, algorithm.into(), BLOCK, &sizes);
            let plan = RdmcPlan {
                seed: u64::from(members),
                nodes: members,
                groups: vec![group],
                create_within: Duration::ZERO,
                later_per_mille: 0,
                offers_per_mille: 500,
                keeps: false,
                rules: vec![],
            };
            run_plan(&plan).unwrap_or_else(|text| panic!("{members} members, {algorithm:?}: {text}"));
        }
    }
}

/// A receiver pauses for longer than a fabric waits for a receive: its sources continue as far as its credits allow,
/// and then wait [F7].
#[test]
fn a_paused_receiver_is_not_overrun() {
    for seed in 0..20 {
        run_with_pause(seed).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

pub(super) fn run_with_pause(seed: u64) -> Result<(), String> {
    let config = SimConfig { one_sided_progress: true, ..SimConfig::adversarial(seed) };
    let mut cluster = RdmcCluster::new(seed, config, 3);
    // Their windows together exceed the credits of a link.
    let groups =
        (1..=20).map(|id| RdmcGroupPlan::new(id, &[0, 1, 2], Algorithm::Chain.into(), 8, &[8 * 40, 8 * 5]));
    let groups: Vec<_> = groups.collect();
    groups.iter().for_each(|group| cluster.create(group, |_| Vec::new()));
    cluster.run_until(SETTLE, |cluster| cluster.world.pieces(0, 1) > 10)?;
    let what = Verdict::Pause { node: 1, span: Duration::from_millis(30) };
    cluster.world.strike(&what);
    cluster.run()?;
    groups.iter().try_for_each(|group| cluster.check_all_received(group))
}
