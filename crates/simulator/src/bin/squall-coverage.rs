//! `squall simulate --require-coverage` without the rest of `squall`, which would have to be built with counters, too.
//!
//! ```text
//! squall-coverage                   prints the names of the scenarios
//! squall-coverage SCENARIO SEEDS    runs the first seeds; fails if one breaks an invariant, or the scenario's promises are not kept
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;

use squall_simulator::{Scenario, coverage, scenario, scenarios, sweep};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let run = match &arguments[..] {
        [] => {
            scenarios().iter().for_each(|scenario| println!("{}", scenario.name()));
            return ExitCode::SUCCESS;
        }
        [name, seeds] => scenario(name).zip(seeds.parse().ok()),
        _ => None,
    };
    let Some((scenario, seeds)) = run else {
        eprintln!("usage: squall-coverage [SCENARIO SEEDS]");
        return ExitCode::from(2);
    };
    if !coverage::IS_ON {
        eprintln!("this build does not count what runs reach: build it with --features coverage");
        return ExitCode::from(2);
    }
    check(scenario.as_ref(), seeds)
}

fn check(scenario: &dyn Scenario, seeds: u64) -> ExitCode {
    let summary = sweep(scenario, 0..seeds, 1, |_, _| true);
    println!("{}: {} seeds, {} deliveries", scenario.name(), summary.seeds, summary.delivered);
    let faults = [summary.violations(scenario), summary.unreached(scenario)].concat();
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
