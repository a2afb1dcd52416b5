//! The faults that a sweep over seeds has found, as text.

use std::fmt;

use crate::run::{Scenario, SweepSummary};

/// A fault that a sweep has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepFault {
    /// What it is.
    pub headline: String,
    /// What there is to know about it.
    pub details: String,
}

impl fmt::Display for SweepFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.headline, self.details)
    }
}

impl SweepSummary {
    /// Returns the runs of `scenario` that broke an invariant.
    #[must_use]
    pub fn violations(&self, scenario: &dyn Scenario) -> Vec<SweepFault> {
        let faults = self.failures.iter().map(|(seed, violation)| SweepFault {
            headline: format!("seed {seed} violates {}:", violation.checker),
            details: format!("{}\n  squall explain {seed} --scenario {}", violation.text, scenario.name()),
        });
        faults.collect()
    }

    /// Returns what `scenario` promises and none of the runs has reached. In a build that does not count points, only kinds of faults
    /// can be among it.
    #[must_use]
    pub fn unreached(&self, scenario: &dyn Scenario) -> Vec<SweepFault> {
        let missing = self.coverage.missing(&scenario.promises()).into_iter();
        missing.map(|details| SweepFault { headline: "never reached:".into(), details }).collect()
    }
}
