//! Coverage of the runs of a scenario: rules and branches of the protocols, and kinds of faults. A scenario promises
//! what it must reach, because a scenario that no longer reaches a rule finds no errors in it.
//!
//! Points of the protocols are recorded only if the feature `coverage` is on ([`IS_ON`]); production builds contain
//! no trace of it.

mod promises;

use std::collections::BTreeMap;

use squall_fabric::sim::{Rule, RuleTrigger, Verdict};
pub use squall_log::coverage::LogPoint;
use squall_protocols::coverage::take;
pub use squall_protocols::coverage::{IS_ON, Point};

pub use promises::{Promises, SNAPSHOT, updated};

use crate::group::FOR_EVER;

/// The points and faults that were reached, and in how many runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Rules and branches.
    pub points: BTreeMap<Point, u64>,
    /// Rules and branches of the log.
    pub log_points: BTreeMap<LogPoint, u64>,
    /// Kinds of faults.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Adds the coverage of other runs.
    pub fn merge(&mut self, other: Self) {
        other.points.into_iter().for_each(|(point, runs)| *self.points.entry(point).or_default() += runs);
        let log_points = other.log_points.into_iter();
        log_points.for_each(|(point, runs)| *self.log_points.entry(point).or_default() += runs);
        other.faults.into_iter().for_each(|(kind, runs)| *self.faults.entry(kind).or_default() += runs);
    }

    /// Returns what was promised and not reached, as text.
    #[must_use]
    pub fn missing(&self, promises: &Promises) -> Vec<String> {
        let points = promises.points.iter().filter(|point| IS_ON && !self.points.contains_key(point));
        let points = points.map(|point| format!("{point:?} ({})", point.about().trim_end_matches('.')));
        let log_points =
            promises.log_points.iter().filter(|point| IS_ON && !self.log_points.contains_key(point));
        let log_points =
            log_points.map(|point| format!("{point:?} ({})", point.about().trim_end_matches('.')));
        let faults = promises.faults.iter().filter(|kind| !self.faults.contains_key(*kind));
        points.chain(log_points).chain(faults.map(|kind| format!("fault: {kind}"))).collect()
    }
}

/// Calls `run`, whose plan has `faults`, and returns its result and its coverage.
pub(crate) fn of_run<T>(faults: Vec<&'static str>, run: impl FnOnce() -> T) -> (T, Coverage) {
    // Points that were reached while the plan was drawn do not count.
    take().for_each(drop);
    squall_log::coverage::take().for_each(drop);
    let result = run();
    let points = take().map(|point| (point, 1)).collect();
    let log_points = squall_log::coverage::take().map(|point| (point, 1)).collect();
    (result, Coverage { points, log_points, faults: faults.into_iter().map(|kind| (kind, 1)).collect() })
}

/// All kinds of rules except broken connections, which only tests of RDMC have.
pub const RULE_KINDS: [&str; 10] = [
    "crash at a time",
    "crash before a post",
    "crash before a piece",
    "pause at a time",
    "pause before a post",
    "partition",
    "cut",
    "heal",
    "slow link",
    "silent link",
];

/// Returns the kind of each rule.
pub(crate) fn rule_kinds(rules: &[Rule]) -> Vec<&'static str> {
    rules.iter().map(rule_kind).collect()
}

fn rule_kind(rule: &Rule) -> &'static str {
    match (&rule.what, rule.when) {
        (Verdict::Crash(_), RuleTrigger::At(_)) => "crash at a time",
        (Verdict::Crash(_), RuleTrigger::Post { .. }) => "crash before a post",
        (Verdict::Crash(_), RuleTrigger::Piece { .. }) => "crash before a piece",
        (Verdict::Crash(_), RuleTrigger::Memory { .. }) => "shortage of memory",
        (Verdict::Pause { .. }, RuleTrigger::At(_)) => "pause at a time",
        (Verdict::Pause { .. }, _) => "pause before a post",
        (Verdict::Partition(_), _) => "partition",
        (Verdict::Cut { .. }, _) => "cut",
        (Verdict::Mend { .. }, _) => "path that comes back",
        (Verdict::Heal, _) => "heal",
        (Verdict::Slow { extra, .. }, _) if *extra >= FOR_EVER => "silent link",
        (Verdict::Slow { .. }, _) => "slow link",
        (Verdict::Break { .. }, _) => "break",
    }
}
