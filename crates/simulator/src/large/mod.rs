//! Scenarios: groups of more than 64 members, whose sets of ranks take several words, or of more subgroups than an evaluation looks at; and
//! groups of 10 to 96 members that notice late, each member at another time, whom they do not hear any more (Derecho §2, §3.4).
//!
//! A few members send, and meanwhile some die, leaders among them; or the network parts for good; or a process joins. Members take
//! sides by rank, so that dead, parted and healthy ranks are in all words of a set.
//!
//! **Checked.** All healthy members, and no others, are in one last view, and have the same deliveries in the same order; what others
//! have delivered is a beginning of that \[V1\] \[V8\] \[V10\]; each message of a healthy sender is there once, in order, and those of
//! others up to some number \[V7\], also in subgroups that were idle before; members that are parted from a majority have stopped
//! \[V5\]; a joiner is in the last view \[V9\].
//!
//! Runs of [`crate::group`] have more kinds of faults; their checkers hold sets of nodes in one word.

mod cluster;
mod cost;

use std::fmt;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};

use crate::explain::Shrink;
use crate::run::{PlannedScenario, RunOutcome, Violation};

use cluster::{LargeCluster, LargeNode};
pub use cost::{CalmCost, calm_cost};

/// The scenario.
pub const SCENARIO: PlannedScenario<LargeCase> = PlannedScenario {
    name: "large",
    about: "groups of 65 to 160 members, or of many subgroups: deaths of leaders and others, a partition, a process that joins",
    draw: |seed| {
        let mut prng = Prng::new(seed);
        let members = if prng.chance(300) { 3 + prng.below(5) } else { 65 + prng.below(96) };
        LargeCase::draw(seed, u32::try_from(members).expect("few"))
    },
    run: LargeCase::run,
    faults: LargeCase::faults,
};

/// The scenario of groups whose members notice losses late, from the fabric or by silence.
pub const MEDIUM: PlannedScenario<LargeCase> = PlannedScenario {
    name: "medium",
    about: "groups of 10 to 96 members: deaths and a partition that each member notices at another time, late, or by silence alone",
    draw: LargeCase::draw_medium,
    run: LargeCase::run,
    faults: LargeCase::faults,
};

/// What happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeCase {
    /// The seed from which the order of events is drawn.
    pub seed: u64,
    /// Members of the first view.
    pub members: u32,
    /// The ranks that send, ascending.
    pub senders: Vec<u32>,
    /// The number of messages of each sender.
    pub messages: u32,
    /// The number of subgroups, all of all members. The second half of the messages comes late, and goes to the last of them.
    pub subgroups: u32,
    /// The members that die, and when.
    pub deaths: Vec<(u32, Duration)>,
    /// The members that are parted from the others, which are more, and when.
    pub parted: Vec<u32>,
    /// When the network parts.
    pub parts_at: Duration,
    /// Whether a process joins; then no leader dies.
    pub joins: bool,
    /// Whether an adversary delays what it may; otherwise messages take the time of [`CostModel::SPINDLE`](squall_fabric::sim::CostModel::SPINDLE).
    pub is_adverse: bool,
    /// When members notice that they do not hear others.
    pub notice: LossNotice,
}

/// When members notice that they do not hear others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossNotice {
    /// Members that are silent for this time are suspected.
    pub suspicion_after: Option<Duration>,
    /// How long the network has to be parted before the fabric says so.
    pub unreachable_after: Duration,
    /// By up to how much later it says so, and to each member at another time; what the adversary draws, if it is not given.
    pub late_max: Option<Duration>,
}

impl LossNotice {
    /// The fabric alone notices, and soon.
    pub const SOON: Self =
        Self { suspicion_after: None, unreachable_after: Duration::from_millis(3), late_max: None };

    fn draw(prng: &mut Prng) -> Self {
        let is_silent = prng.chance(300);
        let suspicion_after =
            (is_silent || prng.chance(600)).then(|| Duration::from_millis(20 + prng.below(40)));
        let unreachable_after =
            if is_silent { SETTLE * 2 } else { Duration::from_micros(500 + prng.below(3_000)) };
        let most = [10, 100, 500, 3_000][prng.index(4)];
        let late_max = Duration::from_micros(prng.below(most));
        Self { suspicion_after, unreachable_after, late_max: Some(late_max) }
    }
}

/// When faults begin and end, while messages are in flight.
const FAULTS: std::ops::Range<u64> = 10_000..400_000;
/// When the second half of the messages is sent.
const LATE: Duration = Duration::from_micros(500);
/// The virtual time in which all has to be over.
const SETTLE: Duration = Duration::from_secs(2);

impl LargeCase {
    /// Draws the case of `seed` with `members` members.
    #[must_use]
    pub fn draw(seed: u64, members: u32) -> Self {
        let mut prng = Prng::new(seed ^ 0x1a26e);
        let mut ranks: Vec<u32> = (0..members).collect();
        prng.shuffle(&mut ranks);
        let senders = 1 + prng.index(5.min(members as usize));
        let mut sending = ranks[..senders].to_vec();
        sending.sort_unstable();
        prng.shuffle(&mut ranks);
        let at = |prng: &mut Prng| Duration::from_nanos(FAULTS.start + prng.below(FAULTS.end - FAULTS.start));
        let dying = prng.index(6.min(members as usize));
        let mut deaths: Vec<(u32, Duration)> = ranks[..dying].iter().map(|i| (*i, at(&mut prng))).collect();
        let joins = prng.chance(300);
        let leaders = if joins { 0 } else { prng.index(3) };
        for leader in 0..u32::try_from(leaders).expect("few") {
            if deaths.iter().all(|(other, _)| *other != leader) {
                deaths.push((leader, at(&mut prng)));
            }
        }
        deaths.retain(|(i, _)| !joins || *i != 0);
        deaths.truncate((members as usize - 1) / 2);
        let most = (members as usize / 2).saturating_sub(8);
        let is_parted = !joins && most > 0 && prng.chance(400);
        let parted = if is_parted { ranks[dying..dying + 1 + prng.index(most)].to_vec() } else { Vec::new() };
        let (messages, parts_at) = (5 + u32::try_from(prng.below(30)).expect("few"), at(&mut prng));
        let many = 17 + u32::try_from(prng.below(30)).expect("few");
        let subgroups = if members < 10 { many } else { 1 };
        let is_adverse = true;
        Self {
            seed,
            members,
            senders: sending,
            messages,
            subgroups,
            deaths,
            parted,
            parts_at,
            joins,
            is_adverse,
            notice: LossNotice::SOON,
        }
    }

    /// Draws the case of `seed` in which 10 to 96 members notice losses late. More than half of them are healthy. Nine of ten groups have
    /// up to 48 members: runs take as long as the square of their number.
    #[must_use]
    pub fn draw_medium(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x3ed1);
        let members = if prng.chance(900) { 10 + prng.below(39) } else { 49 + prng.below(48) };
        let members = u32::try_from(members).expect("few");
        let mut case = Self::draw(seed, members);
        (case.messages, case.subgroups) = (2 + u32::try_from(prng.below(5)).expect("few"), 1);
        case.notice = LossNotice::draw(&mut prng);
        case.parted.clear();
        if !case.joins && prng.chance(700) {
            let most = (members as usize - 1) / 2 - case.deaths.len();
            let mut others: Vec<u32> = (0..members).filter(|i| case.is_healthy(*i)).collect();
            prng.shuffle(&mut others);
            // About as many as stay, in half of the cases.
            let parted = if prng.chance(500) { most } else { prng.index(most + 1) };
            case.parted = others[..parted].to_vec();
        }
        case
    }

    /// Runs the case, and keeps the latest `trace_records_max` events.
    #[must_use]
    pub fn run(&self, trace_records_max: usize) -> RunOutcome {
        let mut cluster = LargeCluster::new(self, trace_records_max);
        cluster.run();
        let violation = cluster.check().err().map(|text| Violation { checker: "large", text });
        let world = &cluster.world;
        RunOutcome {
            violation,
            elapsed: world.now().since(Instant::from_nanos(0)),
            delivered: cluster.nodes.iter().map(LargeNode::count).sum(),
            trace_hash: world.trace_hash(),
            trace: world.trace(),
        }
    }

    fn faults(&self) -> Vec<&'static str> {
        let kinds = [
            (!self.deaths.is_empty(), "death"),
            (self.deaths.iter().any(|(i, _)| *i == 0), "death of the leader"),
            (!self.parted.is_empty(), "partition"),
            (self.joins, "process that joins"),
            (self.subgroups > 1, "many subgroups"),
            (self.notice.suspicion_after.is_some(), "suspicion"),
            (
                self.notice.unreachable_after > SETTLE && !self.parted.is_empty(),
                "partition that only silence shows",
            ),
        ];
        kinds.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind)).collect()
    }

    /// Whether a member neither dies nor is parted.
    fn is_healthy(&self, i: u32) -> bool {
        self.deaths.iter().all(|(other, _)| *other != i) && !self.parted.contains(&i)
    }

    fn rules(&self) -> Vec<Rule> {
        let at = |span: Duration| RuleTrigger::At(Instant::from_nanos(0) + span);
        let die = |(i, span): &(u32, Duration)| Rule { when: at(*span), what: Verdict::Crash(*i) };
        let others = (0..self.members).filter(|i| !self.parted.contains(i)).collect();
        let part = Verdict::Partition(vec![self.parted.clone(), others]);
        let part = (!self.parted.is_empty()).then(|| Rule { when: at(self.parts_at), what: part });
        self.deaths.iter().map(die).chain(part).collect()
    }
}

impl Shrink for LargeCase {
    fn smaller(&self) -> Vec<Self> {
        let without = |place: usize| {
            let mut case = self.clone();
            case.deaths.remove(place);
            case
        };
        let whole = Self { parted: Vec::new(), ..self.clone() };
        let whole = (!self.parted.is_empty()).then_some(whole);
        let fewer = (self.messages > 1).then(|| Self { messages: self.messages / 2, ..self.clone() });
        (0..self.deaths.len()).map(without).chain(whole).chain(fewer).collect()
    }
}

impl fmt::Display for LargeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, members, senders, messages, subgroups, .. } = self;
        writeln!(
            f,
            "seed {seed}: {members} members in {subgroups} subgroups, of which {senders:?} send {messages} messages each"
        )?;
        self.rules().iter().try_for_each(|rule| writeln!(f, "  fault {rule}"))?;
        if self.joins { writeln!(f, "  node {members} joins") } else { Ok(()) }
    }
}
