//! Scenario: views end, live and by ballot, under outages, deaths and restarts (Derecho §3.4).
//!
//! What decides is [`squall_protocols::ends`], the rules alone; members, rows, reports, messages, disks and links are a model around them.
//! A process takes one step at a time, and time is the number of steps. Rows are histories of single writes, which each reader reads in
//! order at a place of its own; reports are snapshots that may be late or skipped. Shards are in memory with all or with a majority for quorum, or
//! durable with either; they overlap, and some move with each view. A *strike* cuts a process off, or kills it, right after the n-th event of
//! a kind.
//!
//! Checked:
//! - *ends*: no view has two ends, and no process is in a view twice;
//! - *lost*: what was delivered anywhere counts, and those that are kept have it; *hole*: a member delivers what it has;
//! - *order*, *gap*, *double*: members of a shard deliver prefixes of one sequence, each message once; *time*, *floor*: timestamps
//!   grow along a shard over all views \[K6\];
//! - *state*: a shard is given up only if no holder lives, and whom a view names as holder holds it; *reply*: what was answered is
//!   delivered; *report*: what a sender was sent about its messages is true; *resend*: a message of a sender that stays is delivered or under way;
//! - *healthy*: a member ends only when no end of its view is possible;
//! - *partial* and *stuck*: after the faults, with some links bad and then with none, a view of all processes begins, with messages in all shards,
//!   if that is possible at all; *idle*: something is delivered.
//!
//! Each checker knows more than the processes do (`oracle.rs`), and a run in which nothing happens is stuck. Over many seeds each count of
//! [`EndsTally`] has to grow.
//!
//! **Not modelled**: damaged logs; messages to several shards, and their order across shards; windows, nulls and large messages; checkpoints, and deletion of logs
//! that are not needed; clients and sessions, but for the reply; the time that disks take; several groups. Death is known for certain. Where a shard has been given up, what
//! senders were sent about their messages is not checked.

mod agreement;
mod ballots;
mod links;
mod live;
mod messages;
mod oracle;
mod plan;
mod process;
mod settle;
mod views;
mod world;

pub use plan::{EndsEvent, EndsFault, EndsLayout, EndsLinks, EndsMix, EndsPlan, EndsShard};

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<EndsPlan> = PlannedScenario {
    name: "ends",
    about: "views of 3 to 6 members end, live and by ballot, under outages, deaths, restarts, joins, leaves and moves of shards",
    draw: EndsPlan::draw,
    run,
    faults: EndsPlan::faults,
};

/// What has happened in runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndsTally {
    /// Ends of views that live members decided.
    pub live: u64,
    /// Ends of views that ballots decided.
    pub by_ballot: u64,
    /// Members that began to wait.
    pub waits: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Shards given up.
    pub given_up: u64,
    /// Healthy members that an end has excluded.
    pub excluded: u64,
    /// Members that have left.
    pub left: u64,
    /// Processes that have joined.
    pub joined: u64,
    /// Messages whose fate was reported.
    pub fates: u64,
    /// States taken over.
    pub states: u64,
    /// Parts of a shard fetched.
    pub fetches: u64,
    /// Processes that have started again as the same acceptor.
    pub restarts: u64,
    /// Members that have ended, since no end of their view is possible.
    pub ended: u64,
    /// Runs in which that is so.
    pub hopeless: u64,
}

impl std::ops::AddAssign for EndsTally {
    fn add_assign(&mut self, other: Self) {
        for (here, there) in self.counts_mut().into_iter().zip(other.clone().counts_mut()) {
            *here += *there;
        }
    }
}

impl EndsTally {
    fn counts_mut(&mut self) -> [&mut u64; 14] {
        [
            &mut self.live,
            &mut self.by_ballot,
            &mut self.waits,
            &mut self.delivered,
            &mut self.given_up,
            &mut self.excluded,
            &mut self.left,
            &mut self.joined,
            &mut self.fates,
            &mut self.states,
            &mut self.fetches,
            &mut self.restarts,
            &mut self.ended,
            &mut self.hopeless,
        ]
    }

    /// Returns the least of the counts of what has to happen.
    #[must_use]
    pub fn least(mut self) -> u64 {
        self.counts_mut().into_iter().map(|count| *count).min().unwrap_or(0)
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &EndsPlan, trace_records_max: usize) -> RunOutcome {
    run_and_count(plan, trace_records_max).0
}

/// Runs a plan, keeping the latest `trace_records_max` happenings; returns what has happened, too.
#[must_use]
pub fn run_and_count(plan: &EndsPlan, trace_records_max: usize) -> (RunOutcome, EndsTally) {
    world::EndsWorld::new(plan, trace_records_max).run()
}
