//! Going through all posts of a leader, and then through all of the next one (Derecho §3.4).

use std::collections::BTreeMap;

use squall_fabric::sim::{Happening, TraceRecord};

use super::case::TakeoverCase;
use super::step::{StepColumns, TakeoverStep};
use crate::group::{self, GroupPlan};
use crate::run::Violation;

/// More than happens in one of these runs.
const RECORDS_MAX: usize = 100_000;

/// What an enumeration has gone through.
#[derive(Clone, Debug, Default)]
pub struct TakeoverTally {
    /// Runs.
    pub runs: u64,
    /// How often the first leader died just before a post of each step.
    pub first: BTreeMap<TakeoverStep, u64>,
    /// How often the next leader did.
    pub second: BTreeMap<TakeoverStep, u64>,
    /// How often the leader died between two pieces of a push.
    pub torn: u64,
    /// The plans that failed.
    pub failures: Vec<(Box<GroupPlan>, Violation)>,
}

impl TakeoverTally {
    fn run(&mut self, plan: &GroupPlan) {
        self.runs += 1;
        if let Some(violation) = group::run(plan, 0).violation {
            self.failures.push((Box::new(plan.clone()), violation));
        }
    }
}

/// The first leader dies before each of its posts. If `every` is not 0, the next leader dies as well, before each of
/// its posts, in every `every`th of these runs.
pub fn enumerate(case: &TakeoverCase, every: usize, tally: &mut TakeoverTally) {
    let calm = case.plan(0);
    tally.run(&calm);
    for (i, (nth, step)) in posts(case, &calm, 0).into_iter().enumerate() {
        let plan = case.with_death(&calm, 0, nth);
        *tally.first.entry(step).or_default() += 1;
        tally.run(&plan);
        if every == 0 || !i.is_multiple_of(every) || !case.has_second_leader() {
            continue;
        }
        for (nth, step) in posts(case, &plan, 1) {
            *tally.second.entry(step).or_default() += 1;
            tally.run(&case.with_death(&plan, 1, nth));
        }
    }
}

/// The leader dies between any two pieces of what it has pushed, as they land at each reader.
pub fn enumerate_pieces(case: &TakeoverCase, tally: &mut TakeoverTally) {
    let calm = case.plan(0);
    let trace = group::run(&calm, RECORDS_MAX).trace;
    for reader in 1..calm.nodes() {
        let lands = |record: &&TraceRecord| {
            // Beyond the members there is one joiner, under further numbers.
            record.node.min(case.members) == reader
                && matches!(record.what, Happening::Landed { from: 0, .. })
        };
        for nth in 1..=trace.iter().filter(lands).count() as u64 {
            tally.torn += 1;
            tally.run(&case.with_torn_push(&calm, 0, reader, nth));
        }
    }
}

/// The posts of `leader` in a run of `plan`, by number, from the moment on at which it leads: when those before it are
/// dead.
pub(super) fn posts(case: &TakeoverCase, plan: &GroupPlan, leader: u32) -> Vec<(u64, TakeoverStep)> {
    let columns = StepColumns::new(case.members);
    let trace = group::run(plan, RECORDS_MAX).trace;
    assert!(trace.len() < RECORDS_MAX, "the trace is not complete");
    let (mut posts, mut count, mut alive) = (Vec::new(), 0, leader);
    for TraceRecord { node, what, .. } in &trace {
        if let Happening::Fault(squall_fabric::sim::Verdict::Crash(dead)) = what {
            alive -= u32::from(*dead < leader);
        }
        let Some(step) = columns.step(what).filter(|_| *node == leader) else { continue };
        count += 1;
        if alive == 0 {
            posts.push((count, step));
        }
    }
    posts
}
