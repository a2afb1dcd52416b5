//! Mutations that are put back into the protocol must be caught, because a check that has never failed is not trusted
//! (RDMC §2, §3.2; [B1]–[B7], [B9], [F5], [F7]).

use std::panic::catch_unwind;

use super::super::cluster::run_plan;
use super::super::plan::RdmcPlan;
use super::super::resumption::run_with_death;
use super::faults::run_with_wedge;
use super::sizes::run_with_pause;
use squall_protocols::rdmc::mutation::{RdmcMutation, with};

/// The number of seeds of each kind of plan within which each mutation must be caught.
const SEEDS_MAX: u64 = 200;

#[test]
fn every_mutation_is_caught() {
    for mutation in
        RdmcMutation::ALL.iter().copied().filter(|mutation| !RdmcMutation::LOCAL.contains(mutation))
    {
        let caught = (0..SEEDS_MAX).find_map(|seed| {
            let run = || {
                run_plan(&RdmcPlan::drawn(seed))?;
                run_with_pause(seed)?;
                run_with_wedge(seed)?;
                run_with_death(&RdmcPlan::with_death(seed)).map(drop)
            };
            // The protocol's own assertions catch some.
            let outcome = catch_unwind(|| with(mutation, run));
            let outcome = outcome.unwrap_or_else(|_| Err("an assertion failed".into()));
            outcome.err().map(|text| (seed, text))
        });
        let (seed, text) =
            caught.unwrap_or_else(|| panic!("{mutation:?} is not caught in {SEEDS_MAX} seeds"));
        println!("{mutation:?}: seed {seed}: {text}");
    }
}

/// Many more plans of the same kinds, without mutations; CI runs this in release builds.
#[test]
#[ignore = "slow without optimisation"]
fn many_plans_without_mutations_pass() {
    for seed in 0..10_000 {
        let run = || {
            run_plan(&RdmcPlan::drawn(seed))?;
            run_with_pause(seed)?;
            run_with_wedge(seed)?;
            run_with_death(&RdmcPlan::with_death(seed)).map(drop)
        };
        run().unwrap_or_else(|text: String| panic!("seed {seed}: {text}"));
    }
}
