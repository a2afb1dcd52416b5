//! Explains a seed: the plan as text, shrunk as long as it fails in the same way, and a timeline of its end.

use std::fmt::{Display, Write as _};

use squall_fabric::sim::TraceRecord;

use crate::run::RunOutcome;

/// The number of events that a timeline shows.
const TIMELINE: usize = 60;

/// The maximum number of smaller plans that are tried.
const ATTEMPTS_MAX: usize = 2000;

/// A plan that can be shrunk.
pub trait Shrink: Clone + Display {
    /// Returns slightly smaller plans, with the largest reductions first.
    fn smaller(&self) -> Vec<Self>;
}

/// Returns the plan as text, shrunk if it fails, with a timeline of its end.
#[must_use]
pub fn explain<P: Shrink>(plan: &P, run: impl Fn(&P, usize) -> RunOutcome) -> String {
    let outcome = run(plan, 0);
    let mut text = format!("{plan}");
    let plan = match &outcome.violation {
        None => plan.clone(),
        Some(violation) => {
            let _ = writeln!(text, "violates {violation}");
            let small = shrink(plan, violation.checker, &run);
            let _ = writeln!(text, "\nThe smallest plan found that fails in the same way:\n{small}");
            small
        }
    };
    let outcome = run(&plan, TIMELINE);
    for record in &outcome.trace {
        let _ = writeln!(text, "{}", line(record));
    }
    match outcome.violation {
        Some(violation) => writeln!(text, "violates {violation}"),
        None => writeln!(
            text,
            "passes: {} deliveries in {:?} of virtual time, trace {:016x}",
            outcome.delivered, outcome.elapsed, outcome.trace_hash
        ),
    }
    .expect("strings take everything");
    text
}

/// Removes parts of the plan as long as the same checker still fails.
fn shrink<P: Shrink>(plan: &P, checker: &'static str, run: &impl Fn(&P, usize) -> RunOutcome) -> P {
    let mut best = plan.clone();
    let mut attempts = 0;
    'again: loop {
        for smaller in best.smaller() {
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                return best;
            }
            if run(&smaller, 0).violation.is_some_and(|violation| violation.checker == checker) {
                best = smaller;
                continue 'again;
            }
        }
        return best;
    }
}

fn line(record: &TraceRecord) -> String {
    let micros = record.at_ns / 1000;
    format!("{micros:>9}.{:03} µs  node {}  {:?}", record.at_ns % 1000, record.node, record.what)
}
