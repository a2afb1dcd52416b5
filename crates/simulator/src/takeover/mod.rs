//! Scenario: leaders that die at each step of a view's end (Derecho §3.4).
//!
//! A [`Case`] is a small group, a reason for its view to end, and an order of events. [`enumerate`] runs it once as it
//! is and notes every post of the leader; then once for each of these posts with a leader that dies just before it, so
//! that some readers have what it pushed last and others have not; then, for each of these runs, once for each post of
//! the next leader after that, which dies as well. [`enumerate_pieces`] lets the leader die between any two pieces of
//! what it has pushed, as they land at each reader in turn: some words are there and some are not.
//!
//! All checkers of [`crate::group`] watch. The scenario draws single runs of all this from seeds.

mod case;
mod enumeration;
mod step;

pub use case::{Case, Change};
pub use enumeration::{Tally, enumerate, enumerate_pieces};
pub use step::Step;

use squall_fabric::sim::Prng;

use crate::group::{self, Plan};
use crate::run::Planned;

/// The scenario.
pub const SCENARIO: Planned<Plan> = Planned {
    name: "takeover",
    about: "2 to 5 members whose view ends, by a loss, a leave or joins; leaders die at any step of that, up to two",
    draw,
    run: group::run,
};

/// The plan of `seed`: a case, and up to two leaders that die at one of their posts.
fn draw(seed: u64) -> Plan {
    let mut prng = Prng::new(seed ^ 0x7a6e);
    let case = Case {
        members: 2 + u32::try_from(prng.index(4)).expect("few"),
        change: Change::ALL[prng.index(Change::ALL.len())],
        shared: prng.chance(300),
        seed,
    };
    let mut plan = case.plan(0);
    for leader in 0..1 + u32::from(case.has_second_leader() && prng.chance(700)) {
        let posts = enumeration::posts(&case, &plan, leader);
        if posts.is_empty() {
            break;
        }
        let (nth, _) = posts[prng.index(posts.len())];
        plan = case.with_death(&plan, leader, nth);
    }
    plan
}
