//! Explains a seed: the plan as text, shrunk as long as it fails in the same way, and a timeline: faults, what the
//! members do in words of the protocol, and at the end what the fabric does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};

use squall_fabric::sim::{Happening, TraceRecord, Verdict};

use crate::run::RunOutcome;

/// The number of records of the fabric at the end that a timeline shows.
const TIMELINE: usize = 40;

/// The number of lines that a timeline has at most before them.
const STORY: usize = 300;

/// More than happens in most runs.
const RECORDS_MAX: usize = 1 << 20;

/// The number of nodes that have a lane of their own.
const LANES_MAX: usize = 40;

/// The maximum number of smaller plans that are tried.
const ATTEMPTS_MAX: usize = 2000;

/// A plan that can be shrunk.
pub trait Shrink: Clone + Display {
    /// Returns slightly smaller plans, with the largest reductions first.
    fn smaller(&self) -> Vec<Self>;
}

/// What happened in a run, for people.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The plan, shrunk if it fails, with a timeline.
    pub text: String,
    /// The run of the shrunk plan, with its trace.
    pub run: RunOutcome,
}

/// Runs the plan, and shrinks it if it fails.
#[must_use]
pub fn explain<P: Shrink>(plan: &P, run: impl Fn(&P, usize) -> RunOutcome) -> Explanation {
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
    let outcome = run(&plan, RECORDS_MAX);
    text.push_str(&timeline(&outcome.trace));
    match &outcome.violation {
        Some(violation) => writeln!(text, "violates {violation}"),
        None => writeln!(
            text,
            "passes: {} deliveries in {:?} of virtual time, trace {:016x}",
            outcome.delivered, outcome.elapsed, outcome.trace_hash
        ),
    }
    .expect("strings take everything");
    Explanation { text, run: outcome }
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

/// The timeline of a run: its story, with a lane for each node that is in it, and then the last records of the fabric.
fn timeline(trace: &[TraceRecord]) -> String {
    let mut text = String::new();
    let (told, rest): (Vec<&TraceRecord>, Vec<&TraceRecord>) =
        trace.iter().partition(|record| is_story(&record.what));
    if !told.is_empty() {
        let mut lanes = Lanes::new(&told);
        let _ = writeln!(text, "\n          time{}", lanes.heading());
        let left_out = told.len().saturating_sub(STORY);
        for (i, record) in told.iter().enumerate() {
            let strip = lanes.strip(record);
            if i == left_out && left_out > 0 {
                let _ = writeln!(text, "  ({left_out} earlier lines are left out)");
            }
            if i >= left_out {
                let _ = writeln!(text, "{}{strip}  {}", time(record), words(record));
            }
        }
    }
    if !rest.is_empty() {
        let _ = writeln!(text, "\nThe last events of the fabric:");
        let last = &rest[rest.len().saturating_sub(TIMELINE)..];
        // Heartbeats and polls repeat for long.
        for same in last.chunk_by(|a, b| a.node == b.node && a.what == b.what) {
            let times = if same.len() > 1 { format!(" ({} times)", same.len()) } else { String::new() };
            let _ = writeln!(text, "{}  {}{times}", time(same[0]), words(same[0]));
        }
    }
    text
}

/// Whether a record says something about the protocol, or is a fault.
const fn is_story(what: &Happening) -> bool {
    matches!(what, Happening::Fault(_) | Happening::Note(_) | Happening::Remark(_))
}

fn time(record: &TraceRecord) -> String {
    let micros = record.at_ns / 1000;
    format!("{micros:>9}.{:03} µs", record.at_ns % 1000)
}

fn words(record: &TraceRecord) -> String {
    match &record.what {
        what @ Happening::Fault(_) => what.to_string(),
        what => {
            let text = what.to_string();
            // The notes of scenarios with processes name the process, which is the node in most of them.
            let own = text.strip_prefix(&format!("process {}: ", record.node)).unwrap_or(&text);
            format!("node {}: {own}", record.node)
        }
    }
}

/// A column for each node of a story, which shows whether it has begun, and whether it has crashed.
struct Lanes(BTreeMap<u32, char>);

impl Lanes {
    const NOT_BEGUN: char = '·';
    const LIVES: char = '│';
    const CRASHED: char = ' ';
    const SPEAKS: char = '●';
    const CRASHES: char = '✗';

    fn new(told: &[&TraceRecord]) -> Self {
        let nodes: BTreeSet<u32> = told.iter().map(|record| record.node).collect();
        let has_space = nodes.len() <= LANES_MAX;
        Self(nodes.into_iter().filter(|_| has_space).map(|node| (node, Self::NOT_BEGUN)).collect())
    }

    fn heading(&self) -> String {
        self.0.keys().fold(String::from("   "), |mut text, node| {
            let _ = write!(text, " {node:>2}");
            text
        })
    }

    /// The columns as a record happens.
    fn strip(&mut self, record: &TraceRecord) -> String {
        let mark = match &record.what {
            Happening::Fault(Verdict::Crash(_)) => Self::CRASHES,
            _ => Self::SPEAKS,
        };
        let after = if mark == Self::CRASHES { Self::CRASHED } else { Self::LIVES };
        let mut strip = String::new();
        for (node, lane) in &mut self.0 {
            let is_here = *node == record.node;
            let _ = write!(strip, "  {}", if is_here { mark } else { *lane });
            if is_here && *lane != Self::CRASHED {
                *lane = after;
            }
        }
        strip
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::sim::{NodeRemark, RemarkKind};

    /// The story has a lane for each node, and the fabric's last events follow, repeated ones as one.
    #[test]
    fn a_timeline_has_lanes() {
        let remark =
            |text: &str| Happening::Remark(NodeRemark { kind: RemarkKind::Suspects, text: text.into() });
        let record = |at_us: u64, node, what| TraceRecord { at_ns: 1000 * at_us, node, what };
        let trace = [
            record(1, 0, remark("opens view 0")),
            record(2, 3, remark("opens view 0")),
            record(3, 0, Happening::RefusedWrite { from: 3 }),
            record(4, 0, Happening::RefusedWrite { from: 3 }),
            record(5, 0, Happening::Fault(Verdict::Crash(0))),
            record(6, 3, remark("suspects node 0")),
        ];
        let expected = "
          time     0  3
        1.000 µs  ●  ·  node 0: opens view 0
        2.000 µs  │  ●  node 3: opens view 0
        5.000 µs  ✗  │  FAULT: node 0 crashes
        6.000 µs     ●  node 3: suspects node 0

The last events of the fabric:
        3.000 µs  node 0: refuses a write of node 3 (2 times)
";
        assert_eq!(timeline(&trace), expected);
    }
}
