//! Mutations that are put back into the protocol must be caught: a check that has never failed is not trusted
//! (RDMC §2, §3.2; [B1]–[B7], [B9], [F5], [F7]).

use std::panic::catch_unwind;

use super::super::cluster::run_plan;
use super::super::plan::RdmcPlan;
use super::super::resumption::run_with_death;
use super::faults::run_with_wedge;
use super::sizes::run_with_pause;
use squall_protocols::rdmc::mutation::{RdmcMutation, with};

/// Each within so many seeds of each kind of plan.
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

/// The same plans without mutations, many more of them; CI runs it in release.
#[test]
#[ignore = "slow without optimisation"]
fn nothing_goes_wrong_in_many_plans() {
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
