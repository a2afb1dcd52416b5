//! Scenario: a healthy majority continues, whatever happens to the others (Derecho §2, §3.4).
//!
//! Each case has one reason for a view to end and one kind of trouble, which together determine the healthy members:
//!
//! - [`Trouble::Hang`]: a member or a joiner pauses at some moment while a view ends and the next one opens. A pause
//!   that is shorter than the others wait removes no member; a longer one removes at most the member that pauses
//!   \[V10\], and so does one of about that length, which only some of the others notice \[V15\].
//! - [`Trouble::Naps`]: one or two members pause for about as long as the others wait, and nothing else ends the
//!   view. Only they may be removed \[V15\].
//! - [`Trouble::Links`]: some pairs of members no longer hear each other, in one direction or in both, while every
//!   other pair does. The minimum number of members is removed, and the rest continue \[V11\].
//! - [`Trouble::Distance`]: every message takes so long that an agreement takes longer than the members wait for a
//!   sign of life. No member is removed \[V10\].
//!
//! The healthy members have to end together in one view, with everything delivered that they sent. All checkers of
//! [`crate::group`] watch, too.

mod links;

pub use links::least_cover;

use std::fmt;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::group::GroupEnd;
use squall_protocols::membership::StopReason;

use crate::explain::Shrink;
use crate::group::{self, FOR_EVER, GroupPlan, NodeFate};
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<AliveCase> = PlannedScenario {
    name: "alive",
    about: "3 to 6 members; hangs at each step of a view change, links that fail, slow networks: the healthy continue",
    draw,
    run: AliveCase::run,
    faults: AliveCase::faults,
};

/// Why a view ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewEndReason {
    /// No reason other than the trouble.
    Nothing,
    /// A node joins.
    Join,
    /// The youngest member leaves.
    Leave,
    /// The youngest member crashes.
    Crash,
}

/// The trouble of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A node pauses.
    Hang {
        /// The node; the joiner's number is the number of members.
        node: u32,
        /// When.
        when: RuleTrigger,
        /// For how long.
        span: Duration,
    },
    /// Each of these members pauses.
    Naps(Vec<Nap>),
    /// These pairs of members do not hear each other.
    Links(Vec<BadLink>),
    /// Every post is delayed by this time.
    Distance(Duration),
}

/// A pause of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nap {
    /// The member.
    pub node: u32,
    /// When it begins, after the beginning of the trouble.
    pub after: Duration,
    /// For how long.
    pub span: Duration,
}

/// A pair of members of which one does not hear the other, or neither hears the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLink {
    /// One end.
    pub a: u32,
    /// The other end, which does not hear `a`.
    pub b: u32,
    /// How it fails.
    pub kind: LinkFailure,
    /// When it fails, after the beginning of the trouble.
    pub after: Duration,
}

/// How a link fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFailure {
    /// Nothing passes from `a` to `b`, and neither is notified.
    OneWay,
    /// Nothing passes in either direction, and neither is notified.
    Silent,
    /// Nothing passes in either direction, and the fabric reports the loss to both after a while.
    Reported,
}

/// A group, a reason for its view to end, and the trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliveCase {
    /// Members of the first view.
    pub members: u32,
    /// Why the view ends.
    pub reason: ViewEndReason,
    /// The trouble.
    pub trouble: Trouble,
    /// The seed from which the order of events is drawn.
    pub seed: u64,
}

/// When the trouble begins, while messages are in flight.
const BEGIN: Duration = Duration::from_micros(30);

/// How long members wait for a sign of life.
const SUSPICION_AFTER: Duration = Duration::from_micros(400);

impl AliveCase {
    /// Runs the case, and keeps the latest `trace_records_max` events.
    #[must_use]
    pub fn run(&self, trace_records_max: usize) -> RunOutcome {
        let (mut outcome, fates) = group::run_to_fates(&self.plan(), trace_records_max);
        if outcome.violation.is_none() {
            let judge = |text| Violation {
                checker: "availability",
                text: format!("{text} after {self:?}: {fates:?}"),
            };
            outcome.violation = self.check(&fates).err().map(judge);
        }
        outcome
    }

    /// Returns the plan of the case.
    #[must_use]
    pub fn plan(&self) -> GroupPlan {
        let begin = Instant::from_nanos(0) + BEGIN;
        let mut plan = GroupPlan {
            early_sight: self.seed.is_multiple_of(3) && !matches!(self.trouble, Trouble::Links(_)),
            suspicion_after: Some(SUSPICION_AFTER),
            ..GroupPlan::calm(self.seed, self.members)
        };
        plan.adversary.clock_drift_max = [0, 0, 1_000][self.seed as usize % 3];
        let youngest = self.members - 1;
        match self.reason {
            ViewEndReason::Nothing => {}
            ViewEndReason::Join => plan.joins.push(BEGIN),
            ViewEndReason::Leave => plan.leaves.push((youngest, BEGIN)),
            ViewEndReason::Crash => {
                plan.rules.push(Rule { when: RuleTrigger::At(begin), what: Verdict::Crash(youngest) });
            }
        }
        match &self.trouble {
            Trouble::Hang { node, when, span } => {
                if is_doubtful(*span) {
                    let mut short = group::stagger(self.seed, self.members, SUSPICION_AFTER);
                    // A short pause that begins while the node hangs would end the hang.
                    short.retain(
                        |rule| !matches!(rule.what, Verdict::Pause { node: other, .. } if other == *node),
                    );
                    plan.rules.extend(short);
                }
                plan.rules.push(Rule { when: *when, what: Verdict::Pause { node: *node, span: *span } });
            }
            Trouble::Naps(naps) => {
                plan.rules.extend(group::stagger(self.seed, self.members, SUSPICION_AFTER));
                plan.rules.extend(naps.iter().map(|nap| Rule {
                    when: RuleTrigger::At(begin + nap.after),
                    what: Verdict::Pause { node: nap.node, span: nap.span },
                }));
            }
            Trouble::Links(links) => {
                // Members that share memory see stores that have not been pushed.
                plan.rules.extend(links.iter().flat_map(|link| link.rules(begin)));
            }
            Trouble::Distance(extra) => {
                let nodes = plan.nodes();
                let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
                let slow = |(from, to)| Rule {
                    when: RuleTrigger::At(Instant::from_nanos(0)),
                    what: Verdict::Slow { from, to, extra: *extra },
                };
                plan.rules.extend(pairs.filter(|(from, to)| from != to).map(slow));
            }
        }
        if !matches!(self.trouble, Trouble::Links(_)) {
            // Shorter than what members allow for between two signs of life.
            let nodes = u64::from(self.members);
            plan.rules.extend(group::draw_interruptions_of(SUSPICION_AFTER / 16, self.seed, nodes));
        }
        plan
    }

    /// Returns the kinds of events that can happen in the run.
    fn faults(&self) -> Vec<&'static str> {
        let kind = |link: &BadLink| match link.kind {
            LinkFailure::OneWay => "link that fails one way",
            LinkFailure::Silent => "link that fails both ways",
            LinkFailure::Reported => "link that is reported lost",
        };
        let own = match &self.trouble {
            Trouble::Hang { node, .. } if *node == self.members => vec!["joiner hangs"],
            Trouble::Hang { span, .. } if is_doubtful(*span) => {
                vec!["member hangs for about as long as others wait"]
            }
            Trouble::Hang { .. } => vec!["member hangs"],
            Trouble::Naps(naps) if naps.len() > 1 => vec!["two members hang"],
            Trouble::Naps(_) => vec!["member hangs for about as long as others wait"],
            Trouble::Links(links) => links.iter().map(kind).collect(),
            Trouble::Distance(_) => vec!["agreement slower than suspicion"],
        };
        self.plan().faults().into_iter().chain(own).collect()
    }

    /// Returns the members that are in the last view if nothing goes wrong, in ascending order.
    fn wanted(&self) -> Vec<u32> {
        let goes = matches!(self.reason, ViewEndReason::Leave | ViewEndReason::Crash);
        let last = self.members - u32::from(goes) + u32::from(self.reason == ViewEndReason::Join);
        (0..last).collect()
    }

    fn check(&self, fates: &[NodeFate]) -> Result<(), String> {
        let mut wanted = self.wanted();
        match &self.trouble {
            Trouble::Distance(_) => expect_healthy(fates, &wanted),
            Trouble::Hang { node, span, .. } => {
                wanted.retain(|member| member != node || !may_go(fates, *node, *span));
                expect_healthy(fates, &wanted)
            }
            Trouble::Naps(naps) => {
                wanted.retain(|member| {
                    !naps.iter().any(|nap| nap.node == *member && may_go(fates, nap.node, nap.span))
                });
                expect_healthy(fates, &wanted)
            }
            Trouble::Links(links) => self.check_links(fates, links),
        }
    }

    /// \[V11\] Checks that no more members are removed than necessary, and that the rest are together.
    fn check_links(&self, fates: &[NodeFate], links: &[BadLink]) -> Result<(), String> {
        let pairs: Vec<(u32, u32)> = links.iter().map(|link| (link.a, link.b)).collect();
        let least = least_cover(self.members, &pairs);
        if least > (self.members - 1) / 2 {
            // The others would not be a majority.
            return Ok(());
        }
        let together: Vec<u32> =
            (0..self.members).filter(|node| matches!(fates[*node as usize], NodeFate::Member(_))).collect();
        expect_healthy(fates, &together)?;
        let removed = self.members - u32::try_from(together.len()).expect("few");
        if removed > least {
            return Err(format!(
                "[V11] {removed} members were removed, although {least} would have sufficed"
            ));
        }
        for node in (0..self.members).filter(|node| !together.contains(node)) {
            if !matches!(
                fates[node as usize],
                NodeFate::Ended(GroupEnd::Stopped(StopReason::Excluded | StopReason::Minority { .. }))
            ) {
                return Err(format!("[V4] node {node} was removed and has not learned of it"));
            }
        }
        Ok(())
    }
}

impl BadLink {
    fn rules(&self, begin: Instant) -> Vec<Rule> {
        let when = RuleTrigger::At(begin + self.after);
        let silent = |from, to| Rule { when, what: Verdict::Slow { from, to, extra: FOR_EVER } };
        match self.kind {
            LinkFailure::OneWay => vec![silent(self.a, self.b)],
            LinkFailure::Silent => vec![silent(self.a, self.b), silent(self.b, self.a)],
            LinkFailure::Reported => vec![Rule { when, what: Verdict::Cut { a: self.a, b: self.b } }],
        }
    }
}

/// Returns whether `node`, which pauses for `span`, has been removed and was allowed to be. Then the others' view
/// must not contain it.
fn may_go(fates: &[NodeFate], node: u32, span: Duration) -> bool {
    let stays = matches!(fates.get(node as usize), Some(NodeFate::Member(_)));
    span > SUSPICION_AFTER / 2 && !stays
}

/// Returns whether some members may notice a pause of `span` and others may not.
fn is_doubtful(span: Duration) -> bool {
    (SUSPICION_AFTER / 2..2 * SUSPICION_AFTER).contains(&span)
}

/// \[V10\] Checks that the healthy `nodes` are in one view, which has no other members.
fn expect_healthy(fates: &[NodeFate], nodes: &[u32]) -> Result<(), String> {
    NodeFate::expect_together(fates, nodes).map_err(|missing| {
        format!("[V10] node {missing} is not in a view of exactly the healthy nodes {nodes:?}")
    })
}

/// The plan follows from the complete case, so only bad links are removed.
impl Shrink for AliveCase {
    fn smaller(&self) -> Vec<Self> {
        let Trouble::Links(links) = &self.trouble else { return Vec::new() };
        let without = |i: usize| {
            let mut links = links.clone();
            links.remove(i);
            Self { trouble: Trouble::Links(links), ..self.clone() }
        };
        (0..links.len()).map(without).collect()
    }
}

impl fmt::Display for AliveCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{self:?}")?;
        self.plan().fmt(f)
    }
}

/// Draws the case of `seed`.
fn draw(seed: u64) -> AliveCase {
    let mut prng = Prng::new(seed ^ 0xa11e);
    let members = 3 + u32::try_from(prng.index(4)).expect("few");
    let (reason, trouble) = match prng.below(10) {
        0..4 => return draw_hang(&mut prng, members, seed),
        4..7 => (ViewEndReason::Nothing, Trouble::Links(links::draw(&mut prng, members))),
        7..9 => (ViewEndReason::Nothing, Trouble::Naps(draw_naps(&mut prng, members))),
        _ => {
            let reason = [ViewEndReason::Join, ViewEndReason::Leave, ViewEndReason::Crash][prng.index(3)];
            // A joiner learns of its view after one delay, and is heard after another, while signs of life and checks
            // of them are a quarter of the suspicion time apart. So a delay may take nearly a quarter.
            let quarter = SUSPICION_AFTER.as_nanos() as u64 / 4;
            (reason, Trouble::Distance(Duration::from_nanos(quarter / 2 + prng.below(quarter / 3))))
        }
    };
    AliveCase { members, reason, trouble, seed }
}

fn draw_hang(prng: &mut Prng, members: u32, seed: u64) -> AliveCase {
    let reason =
        [ViewEndReason::Join, ViewEndReason::Join, ViewEndReason::Leave, ViewEndReason::Crash][prng.index(4)];
    // A majority remains without the member that goes and the one that hangs.
    let members = match reason {
        ViewEndReason::Nothing | ViewEndReason::Join => members,
        ViewEndReason::Leave => members.max(4),
        ViewEndReason::Crash => members.max(5),
    };
    let joiner = members;
    let node = match reason {
        ViewEndReason::Join if prng.chance(600) => joiner,
        // The youngest is the one that leaves or crashes.
        _ => u32::try_from(prng.below(u64::from(members - 1))).expect("few"),
    };
    let at = RuleTrigger::At(Instant::from_nanos(0) + BEGIN + Duration::from_nanos(prng.below(150_000)));
    let when = if prng.chance(500) { at } else { RuleTrigger::Post { node, nth: 1 + prng.below(80) } };
    let span = match prng.below(10) {
        0..3 => Duration::from_nanos(prng.below(SUSPICION_AFTER.as_nanos() as u64 / 2)),
        3..6 => draw_doubtful(prng),
        _ => SUSPICION_AFTER * 3 + Duration::from_nanos(prng.below(20_000_000)),
    };
    AliveCase { members, reason, trouble: Trouble::Hang { node, when, span }, seed }
}

/// Draws pauses of one member, or of two members out of at least five. The first is the leader in at least half of
/// the cases.
fn draw_naps(prng: &mut Prng, members: u32) -> Vec<Nap> {
    let first =
        if prng.chance(500) { 0 } else { u32::try_from(prng.below(u64::from(members))).expect("few") };
    let second = (first + 1 + u32::try_from(prng.below(u64::from(members - 1))).expect("few")) % members;
    let nodes = if members >= 5 && prng.chance(500) { vec![first, second] } else { vec![first] };
    let nap = |node| Nap {
        node,
        after: Duration::from_nanos(150_000 + prng.below(300_000)),
        span: draw_doubtful(prng),
    };
    nodes.into_iter().map(nap).collect()
}

/// Draws a time from 0.8 to 1.5 times as long as the others wait.
fn draw_doubtful(prng: &mut Prng) -> Duration {
    let tenth = SUSPICION_AFTER.as_nanos() as u64 / 10;
    Duration::from_nanos(8 * tenth + prng.below(7 * tenth))
}
