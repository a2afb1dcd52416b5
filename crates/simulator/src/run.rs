//! Running seeds: one scenario, many plans.

use std::fmt;
use std::ops::Range;

use squall_fabric::Duration;
use squall_fabric::sim::TraceRecord;

use crate::coverage::{self, Coverage, Promises};
use crate::explain::{Shrink, explain};

/// What a checker has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The checker's name.
    pub checker: &'static str,
    /// What was wrong, where and when.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.text)
    }
}

impl std::error::Error for Violation {}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// How much virtual time passed.
    pub elapsed: Duration,
    /// Messages (or values) delivered, over all members.
    pub delivered: u64,
    /// A hash of all that happened: equal for equal runs.
    pub trace_hash: u64,
    /// The latest happenings, if they were asked for.
    pub trace: Vec<TraceRecord>,
}

/// A scenario: from a seed to an outcome.
pub trait Scenario {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it tries, in a line.
    fn about(&self) -> &'static str;

    /// Runs the plan of `seed`.
    fn run(&self, seed: u64) -> RunOutcome;

    /// The plan of `seed` in words, shrunk as far as it still fails, with a timeline of its end.
    fn explain(&self, seed: u64) -> String;

    /// Runs the plan of `seed` and says what the run has reached.
    fn run_and_count(&self, seed: u64) -> (RunOutcome, Coverage);

    /// What its runs must reach.
    fn promises(&self) -> Promises;
}

/// A scenario that is all in its plans.
#[derive(Clone, Copy, Debug)]
pub struct PlannedScenario<P> {
    /// See [`Scenario::name`].
    pub name: &'static str,
    /// See [`Scenario::about`].
    pub about: &'static str,
    /// The plan of a seed.
    pub draw: fn(u64) -> P,
    /// Runs a plan, keeping so many of the latest happenings.
    pub run: fn(&P, usize) -> RunOutcome,
    /// The kinds of faults in a plan.
    pub faults: fn(&P) -> Vec<&'static str>,
    /// See [`Scenario::promises`].
    pub promises: Promises,
}

impl<P: Shrink> Scenario for PlannedScenario<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn run(&self, seed: u64) -> RunOutcome {
        (self.run)(&(self.draw)(seed), 0)
    }

    fn explain(&self, seed: u64) -> String {
        explain(&(self.draw)(seed), self.run)
    }

    fn run_and_count(&self, seed: u64) -> (RunOutcome, Coverage) {
        let plan = (self.draw)(seed);
        let faults = (self.faults)(&plan);
        coverage::of_run(faults, || (self.run)(&plan, 0))
    }

    fn promises(&self) -> Promises {
        self.promises
    }
}

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(crate::multicast::SCENARIO),
        Box::new(crate::sst::SCENARIO),
        Box::new(crate::group::SCENARIO),
        Box::new(crate::alive::SCENARIO),
        Box::new(crate::group::slow::SCENARIO),
        Box::new(crate::takeover::SCENARIO),
        Box::new(crate::shape::SCENARIO),
        Box::new(crate::assembly::SCENARIO),
        Box::new(crate::join::SCENARIO),
        Box::new(crate::replica::SCENARIO),
        Box::new(crate::restart::SCENARIO),
        Box::new(crate::rdmc::SCENARIO),
    ]
}

/// What a sweep over seeds has found.
#[derive(Clone, Debug, Default)]
pub struct SweepSummary {
    /// Seeds run.
    pub seeds: u64,
    /// Virtual time over all of them.
    pub elapsed: Duration,
    /// Messages delivered over all of them.
    pub delivered: u64,
    /// The seeds that failed, with what was found.
    pub failures: Vec<(u64, Violation)>,
    /// What was reached.
    pub coverage: Coverage,
}

/// Runs all seeds of a range, telling `on_seed` after each; stops early when `on_seed` says so by `false`, or after
/// `failures_max` failures.
pub fn sweep(
    scenario: &dyn Scenario,
    seeds: Range<u64>,
    failures_max: usize,
    mut on_seed: impl FnMut(u64, &SweepSummary) -> bool,
) -> SweepSummary {
    let mut summary = SweepSummary::default();
    for seed in seeds {
        let (outcome, reached) = scenario.run_and_count(seed);
        summary.coverage.merge(reached);
        summary.seeds += 1;
        summary.elapsed += outcome.elapsed;
        summary.delivered += outcome.delivered;
        if let Some(violation) = outcome.violation {
            summary.failures.push((seed, violation));
        }
        if !on_seed(seed, &summary) || summary.failures.len() >= failures_max {
            break;
        }
    }
    summary
}
