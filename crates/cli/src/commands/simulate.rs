//! `squall simulate`: many runs of a scenario under an adversary, one for each seed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, Interrupted, Interrupts, bars, output, units};
use squall_simulator::{self as simulator, Scenario, SweepFault, SweepSummary, coverage, scenarios, sweep};

/// Run the protocols in virtual time, under an adversarial network
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArguments {
    /// What to simulate; `list` lists the scenarios
    #[arg(long, value_name = "NAME", default_value = "multicast")]
    scenario: String,
    /// The seeds, first and end; each is one run, always the same
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Stop after this many runs that broke an invariant
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    failures: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print in how many runs each kind of fault was there and each rule of the protocols was reached
    #[arg(long)]
    coverage: bool,
    /// Fail if the runs have not reached all that the scenario promises; needs a build with the feature `coverage`
    #[arg(long)]
    require_coverage: bool,
}

const EXAMPLES: &str =
    "The exit status is 1 if a run broke an invariant. `squall explain SEED` shows what happened in it. After Ctrl-C the \
result of the runs so far is printed, and the exit status is 130.

Examples:
  squall simulate --scenario list --json
  squall simulate --scenario multicast --seeds 0..100000";

#[derive(Debug, Serialize)]
struct Outcome {
    scenario: String,
    seeds: u64,
    /// Whether the command was interrupted before all seeds had run.
    interrupted: bool,
    seconds: f64,
    seeds_per_second: f64,
    virtual_hours: f64,
    delivered: u64,
    failures: Vec<Failure>,
    /// In how many runs each rule was reached; empty in a build that does not count them.
    points: BTreeMap<String, u64>,
    /// In how many runs each kind of fault was.
    faults: BTreeMap<String, u64>,
    /// What the scenario promises to reach and no run has reached.
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    seed: u64,
    checker: String,
    text: String,
}

pub(crate) fn run(arguments: &SimulateArguments) -> Result<CommandVerdict> {
    if arguments.scenario == "list" {
        return list(arguments.json);
    }
    let scenario = scenario(&arguments.scenario)?;
    ensure!(
        coverage::IS_ON || !arguments.require_coverage,
        "this build of squall does not count what runs reach: build it with --features coverage"
    );
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_interrupted);
    Interrupts::take()?.set(move || flag.store(true, Ordering::Relaxed));
    let bar = bar(arguments);
    let begun = Instant::now();
    let failures_max = usize::try_from(arguments.failures).unwrap_or(usize::MAX);
    let summary = sweep(scenario.as_ref(), arguments.seeds.clone(), failures_max, |_, summary| {
        bar.set_position(summary.seeds);
        !is_interrupted.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    let mut outcome = outcome(scenario.as_ref(), &summary, begun.elapsed());
    let planned = arguments.seeds.end - arguments.seeds.start;
    outcome.interrupted = is_interrupted.load(Ordering::Relaxed) && outcome.seeds < planned;
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
        print_faults(&summary.violations(scenario.as_ref()));
        if outcome.failures.is_empty() && outcome.seeds > 0 {
            output::line(console::style("No run broke an invariant.").green().bold());
        }
        if arguments.coverage {
            print_coverage(&outcome);
        }
        if arguments.require_coverage {
            print_faults(&summary.unreached(scenario.as_ref()));
        }
    }
    ensure!(!outcome.interrupted, Interrupted::ALONE);
    let covers = outcome.missing.is_empty() || !arguments.require_coverage;
    Ok(if outcome.failures.is_empty() && covers { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// Prints the scenarios.
fn list(json: bool) -> Result<CommandVerdict> {
    if json {
        let named =
            |scenario: Box<dyn Scenario>| json!({ "name": scenario.name(), "about": scenario.about() });
        output::json(&scenarios().into_iter().map(named).collect::<Vec<_>>())?;
    } else {
        for scenario in scenarios() {
            output::line(format_args!("{:12}  {}", scenario.name(), scenario.about()));
        }
    }
    Ok(CommandVerdict::Good)
}

/// The scenario of this name.
pub(crate) fn scenario(name: &str) -> Result<Box<dyn Scenario>> {
    let names: Vec<_> = scenarios().iter().map(|scenario| scenario.name()).collect();
    let found = simulator::scenario(name);
    found.with_context(|| format!("there is no scenario `{name}`; there are {}", names.join(", ")))
}

fn bar(arguments: &SimulateArguments) -> ProgressBar {
    if arguments.json {
        return ProgressBar::hidden();
    }
    let seeds = arguments.seeds.end - arguments.seeds.start;
    let bar = bars::show(ProgressBar::new(seeds));
    bar.set_style(bars::rate_style("{bar:32} {percent:>3} % of {len} seeds  {rate}  {eta} left"));
    bar
}

fn outcome(scenario: &dyn Scenario, summary: &SweepSummary, elapsed: Duration) -> Outcome {
    let failures = summary.failures.iter().map(|(seed, violation)| Failure {
        seed: *seed,
        checker: violation.checker.into(),
        text: violation.text.clone(),
    });
    Outcome {
        scenario: scenario.name().into(),
        seeds: summary.seeds,
        interrupted: false,
        seconds: elapsed.as_secs_f64(),
        seeds_per_second: summary.seeds as f64 / elapsed.as_secs_f64(),
        virtual_hours: summary.elapsed.as_secs_f64() / 3600.0,
        delivered: summary.delivered,
        failures: failures.collect(),
        points: points(summary),
        faults: summary.coverage.faults.iter().map(|(kind, runs)| ((*kind).into(), *runs)).collect(),
        missing: summary.coverage.missing(&scenario.promises()),
    }
}

/// The rules of the protocols and of the log, by their names.
fn points(summary: &SweepSummary) -> BTreeMap<String, u64> {
    let points = summary.coverage.points.iter().map(|(point, runs)| (format!("{point:?}"), *runs));
    let log_points = summary.coverage.log_points.iter().map(|(point, runs)| (format!("{point:?}"), *runs));
    points.chain(log_points).collect()
}

fn print_coverage(outcome: &Outcome) {
    for (name, runs) in outcome.faults.iter().chain(&outcome.points) {
        output::line(format_args!("{:>12} runs  {name}", units::grouped(*runs)));
    }
    if outcome.points.is_empty() {
        output::line("Rules of the protocols are counted in a build with --features coverage.");
    }
}

fn print(outcome: &Outcome) {
    output::line(format_args!(
        "{}: {} seeds in {:.1} s ({} seeds/s), {:.3} h of virtual time, {} deliveries",
        outcome.scenario,
        units::grouped(outcome.seeds),
        outcome.seconds,
        units::count(outcome.seeds_per_second),
        outcome.virtual_hours,
        units::grouped(outcome.delivered)
    ));
}

fn print_faults(faults: &[SweepFault]) {
    for fault in faults {
        let headline = console::style(&fault.headline).red().bold();
        output::line(format_args!("{headline} {}", fault.details));
    }
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let seeds = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    seeds
        .filter(|seeds: &Range<u64>| !seeds.is_empty())
        .ok_or_else(|| "write the first seed, two dots, and the seed after the last, like 0..1000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("0..1000"), Ok(0..1000));
        for text in ["", "7", "5..5", "9..3", "a..b", "-1..3", "0...3"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_unknown_scenario_is_answered_with_the_known_ones() {
        let error = scenario("none").err().unwrap().to_string();
        assert!(error.contains("`none`") && error.contains("multicast"), "{error}");
    }
}
