//! Runs seeds: one scenario, many plans.

use std::fmt;
use std::ops::Range;

use squall_fabric::Duration;
use squall_fabric::sim::TraceRecord;

use crate::coverage::{self, Coverage, Promises};
use crate::explain::{Explanation, Shrink, explain};

/// A violation found by a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The checker's name.
    pub checker: &'static str,
    /// The violation, with its place and time.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.text)
    }
}

impl std::error::Error for Violation {}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The first violation.
    pub violation: Option<Violation>,
    /// The virtual time that passed.
    pub elapsed: Duration,
    /// The number of messages (or values) delivered, over all members.
    pub delivered: u64,
    /// A hash of all events, equal for equal runs.
    pub trace_hash: u64,
    /// The latest events, if they were requested.
    pub trace: Vec<TraceRecord>,
}

/// A scenario, which turns a seed into an outcome.
pub trait Scenario: Sync {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns a one-line description.
    fn about(&self) -> &'static str;

    /// Runs the plan of `seed`.
    fn run(&self, seed: u64) -> RunOutcome;

    /// Runs the plan of `seed` with a trace; a plan that fails is shrunk as long as it fails.
    fn explanation(&self, seed: u64) -> Explanation;

    /// Returns the plan of `seed` as text, shrunk as long as it fails, with a timeline of its end.
    fn explain(&self, seed: u64) -> String {
        self.explanation(seed).text
    }

    /// Runs the plan of `seed`, and returns its coverage as well.
    fn run_and_count(&self, seed: u64) -> (RunOutcome, Coverage);

    /// Returns what its runs must reach.
    fn promises(&self) -> Promises {
        Promises::of(self.name())
    }
}

/// A scenario that consists of its plans.
#[derive(Clone, Copy, Debug)]
pub struct PlannedScenario<P> {
    /// See [`Scenario::name`].
    pub name: &'static str,
    /// See [`Scenario::about`].
    pub about: &'static str,
    /// Draws the plan of a seed.
    pub draw: fn(u64) -> P,
    /// Runs a plan, and keeps the given number of latest events.
    pub run: fn(&P, usize) -> RunOutcome,
    /// Returns the kinds of faults in a plan.
    pub faults: fn(&P) -> Vec<&'static str>,
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

    fn explanation(&self, seed: u64) -> Explanation {
        explain(&(self.draw)(seed), self.run)
    }

    fn run_and_count(&self, seed: u64) -> (RunOutcome, Coverage) {
        let plan = (self.draw)(seed);
        let faults = (self.faults)(&plan);
        coverage::of_run(faults, || (self.run)(&plan, 0))
    }
}

/// Returns all scenarios.
#[must_use]
pub fn scenarios() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(crate::multicast::SCENARIO),
        Box::new(crate::sst::SCENARIO),
        Box::new(crate::group::SCENARIO),
        Box::new(crate::group::DYING),
        Box::new(crate::alive::SCENARIO),
        Box::new(crate::group::slow::SCENARIO),
        Box::new(crate::outage::SCENARIO),
        Box::new(crate::takeover::SCENARIO),
        Box::new(crate::shape::SCENARIO),
        Box::new(crate::large::SCENARIO),
        Box::new(crate::large::MEDIUM),
        Box::new(crate::assembly::SCENARIO),
        Box::new(crate::join::SCENARIO),
        Box::new(crate::replica::SCENARIO),
        Box::new(crate::restart::SCENARIO),
        Box::new(crate::revival::SCENARIO),
        Box::new(crate::salvage::SCENARIO),
        Box::new(crate::ends::SCENARIO),
        Box::new(crate::rdmc::SCENARIO),
        Box::new(crate::genuine::SCENARIO),
        Box::new(crate::genuine::LARGE),
        Box::new(crate::log::SCENARIO),
    ]
}

/// Returns the scenario of this name.
#[must_use]
pub fn scenario(name: &str) -> Option<Box<dyn Scenario>> {
    scenarios().into_iter().find(|scenario| scenario.name() == name)
}

/// The result of a sweep over seeds.
#[derive(Clone, Debug, Default)]
pub struct SweepSummary {
    /// Seeds run.
    pub seeds: u64,
    /// Virtual time over all of them.
    pub elapsed: Duration,
    /// Messages delivered over all of them.
    pub delivered: u64,
    /// The seeds that failed, with their violations.
    pub failures: Vec<(u64, Violation)>,
    /// The coverage of all runs.
    pub coverage: Coverage,
}

/// Runs all seeds of a range, and calls `on_seed` after each. Stops early when `on_seed` returns false, or after
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
