//! The conformance suite on the simulated fabric: on plain hardware, and under many adversaries.

mod sim_harness;

use squall_fabric::conformance;

use crate::sim_harness::{AdverseCluster, HardwareCluster};

mod hardware {
    squall_fabric::conformance_suite!(super::HardwareCluster);
}

mod adversary {
    squall_fabric::conformance_suite!(super::AdverseCluster);
}

/// Each seed is an adversary of a different character; about half of them have early sight, a quarter no
/// one-sided progress.
#[test]
fn every_adversary_keeps_every_axiom() {
    for seed in 0..SEEDS {
        for (name, axiom) in conformance::axioms::<AdverseCluster>() {
            let begin = 1000 * (seed + 1);
            AdverseCluster::seed(begin);
            let kept = std::panic::catch_unwind(axiom);
            assert!(kept.is_ok(), "{name} fails with the adversaries from seed {begin}");
        }
    }
}

/// Kept small: the longer simulation in CI is `squall simulate`.
const SEEDS: u64 = 60;
