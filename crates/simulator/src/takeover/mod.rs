//! Scenario: leaders that die at each step of a view's end (Derecho §3.4).
//!
//! A [`TakeoverCase`] is a small group, a reason for its view to end, and an order of events. [`enumerate`] runs it once as it
//! is and notes every post of the leader; then once for each of these posts with a leader that dies just before it, so
//! that some readers have what it pushed last and others have not; then, for each of these runs, once for each post of
//! the next leader after that, which dies as well. [`enumerate_pieces`] lets the leader die between any two pieces of
//! what it has pushed, as they land at each reader in turn: some words are there and some are not.
//!
//! All checkers of [`crate::group`] watch. The scenario draws single runs of all this from seeds.

mod case;
mod enumeration;
mod step;

pub use case::{TakeoverCase, TakeoverChange};
pub use enumeration::{TakeoverTally, enumerate, enumerate_pieces};
pub use step::TakeoverStep;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};

use crate::group::{self, GroupPlan};
use crate::run::PlannedScenario;

/// The scenario.
pub const SCENARIO: PlannedScenario<GroupPlan> = PlannedScenario {
    name: "takeover",
    about: "2 to 6 members whose view ends, by a loss, a leave or joins; up to three leaders die at any step of that",
    draw,
    run: group::run,
    faults: GroupPlan::faults,
};

/// The plan of `seed`: a case, perhaps some paths that are slow, and up to three leaders that die at one of their posts;
/// perhaps the first one dies in the middle of a push.
fn draw(seed: u64) -> GroupPlan {
    let mut prng = Prng::new(seed ^ 0x7a6e);
    let case = TakeoverCase {
        members: 2 + u32::try_from(prng.index(5)).expect("few"),
        change: TakeoverChange::ALL[prng.index(TakeoverChange::ALL.len())],
        shared: prng.chance(300),
        seed,
    };
    let mut plan = case.plan(0);
    plan.rules.extend(draw_slow_paths(&mut prng, case.members));
    plan.rules.extend(group::draw_interruptions(seed, u64::from(case.members)));
    for leader in 0..case.leaders().min(3) {
        let posts = enumeration::posts(&case, &plan, leader);
        if posts.is_empty() || (leader > 0 && prng.chance(300)) {
            break;
        }
        let (nth, _) = posts[prng.index(posts.len())];
        plan = case.with_death(&plan, leader, nth);
    }
    // Of its own, so that other plans do not depend on it.
    let mut torn = Prng::new(seed ^ 0x70a4);
    if torn.chance(100) {
        let reader = 1 + u32::try_from(torn.below(u64::from(case.members - 1))).expect("few");
        plan = case.with_torn_push(&plan, 0, reader, 1 + torn.below(400));
    }
    plan
}

/// Paths that are slow from the beginning: some members have echoed a proposal, and the next leader does not know of it.
fn draw_slow_paths(prng: &mut Prng, members: u32) -> Vec<Rule> {
    if prng.chance(500) {
        return Vec::new();
    }
    let slow_per_mille = 100 + u32::try_from(prng.below(400)).expect("few");
    let most = 20_000 + prng.below(600_000);
    let mut rules = Vec::new();
    for (from, to) in (0..members).flat_map(|from| (0..members).map(move |to| (from, to))) {
        if from != to && prng.chance(slow_per_mille) {
            let extra = Duration::from_nanos(prng.below(most));
            rules.push(Rule {
                when: RuleTrigger::At(Instant::from_nanos(0)),
                what: Verdict::Slow { from, to, extra },
            });
        }
    }
    rules
}
