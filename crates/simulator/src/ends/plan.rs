//! The plan of a run: processes, shards, links, and what happens to them.

use std::fmt;

use squall_fabric::sim::Prng;
use squall_protocols::ends::{ShardKind, ShardQuorum};

use crate::explain::Shrink;

/// The most processes of a run.
pub(super) const SLOTS_MAX: usize = 7;

/// A run. The first processes are the members of view 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndsPlan {
    /// What the plan leaves open is drawn from it.
    pub seed: u64,
    /// Members of view 0.
    pub members: usize,
    /// All processes; those that are no members join.
    pub processes: usize,
    /// The shards.
    pub shards: Vec<EndsShard>,
    /// Processes that die, at most.
    pub deaths: usize,
    /// Members that are accused though they are heard, at most.
    pub false_accusations: usize,
    /// Whether those that wait become impatient eight times as early, so that leaders compete.
    pub is_impatient: bool,
    /// One of how many pairs whose link returns finds that its connection is lost in the view; 0: none.
    pub losses: usize,
    /// Whether links differ in speed.
    pub is_uneven: bool,
    /// Whether a shard in memory is given up when its holders are silent.
    pub gives_up_silent: bool,
    /// What happens, one after the other.
    pub faults: Vec<EndsFault>,
    /// Whether some links stay bad at first when the faults are over.
    pub links_stay_bad: bool,
}

/// A shard of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndsShard {
    /// Its kind.
    pub kind: ShardKind,
    /// Where it is.
    pub layout: EndsLayout,
}

/// Which members have a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsLayout {
    /// All.
    Everywhere,
    /// Those whose number has this remainder.
    ByNumber(usize, usize),
    /// That many; which ones depends on all members, so that the shard moves.
    Moving(usize),
}

/// What happens to links and processes for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndsFault {
    /// How the links are.
    pub links: EndsLinks,
    /// After which event of its kind a process is cut off or dies, and whether it dies.
    pub strike: Option<(EndsEvent, u32, bool)>,
    /// How long it lasts, in eighths of the suspicion time.
    pub lasts: u64,
    /// After a strike: how the links of the others are, and for how many suspicion times.
    pub then: (EndsLinks, u64),
    /// A further strike after the first.
    pub again: Option<(EndsEvent, u32, bool)>,
    /// The process that dies at the end of it.
    pub death: Option<usize>,
    /// The process that begins to wish to leave.
    pub leaver: Option<usize>,
}

/// Which links are bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsLinks {
    /// None.
    Good,
    /// All.
    AllBad,
    /// Those between two or three sides: the side of each process, two bits for each.
    Sides(u32),
    /// Those of one process: to it, from it, or both.
    One(usize, bool, bool),
    /// All but those of one process.
    AllButOne(usize),
    /// Those between two processes.
    Pair(usize, usize),
    /// Those whose bit is set, by process and then by the other one; of both directions if the flag is set.
    Some(u64, bool),
}

impl EndsLinks {
    /// Returns whether nothing passes from one process to another.
    pub(super) fn are_bad(self, from: usize, to: usize) -> bool {
        let side = |sides: u32, slot: usize| sides >> (2 * slot) & 3;
        let bit = |links: u64, a: usize, b: usize| links >> (a * SLOTS_MAX + b) & 1 == 1;
        let is_bad = match self {
            Self::Good => false,
            Self::AllBad => true,
            Self::Sides(sides) => side(sides, from) != side(sides, to),
            Self::One(slot, out, into) => out && from == slot || into && to == slot,
            Self::AllButOne(slot) => from != slot && to != slot,
            Self::Pair(a, b) => (from, to) == (a, b) || (from, to) == (b, a),
            Self::Some(links, true) => bit(links, from.min(to), from.max(to)),
            Self::Some(links, false) => bit(links, from, to),
        };
        is_bad && from != to
    }

    pub(super) fn draw(prng: &mut Prng, members: usize) -> Self {
        let any = |prng: &mut Prng| prng.index(members);
        let sides = |prng: &mut Prng, sides: u64| {
            (0..SLOTS_MAX).fold(0, |all, _| all << 2 | u32::try_from(prng.below(sides)).unwrap_or(0))
        };
        match prng.below(11) {
            0 => Self::Good,
            1 => Self::AllBad,
            2 => Self::Sides(sides(prng, 2)),
            3 => Self::Sides(sides(prng, 3)),
            4 => Self::One(any(prng), true, true),
            5 => Self::One(any(prng), true, false),
            6 => Self::One(any(prng), false, true),
            7 => Self::Pair(any(prng), any(prng)),
            8 => Self::Some(prng.draw() & prng.draw() & !(prng.draw() & prng.draw()), prng.chance(500)),
            9 => Self::AllButOne(any(prng)),
            _ => Self::Good,
        }
    }
}

/// What a strike waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsEvent {
    /// A member echoes a live proposal.
    Echo,
    /// A process decides.
    Decide,
    /// A process enters a view.
    Enter,
    /// A member promises a ballot.
    Promise,
    /// A waiting leader proposes.
    Propose,
    /// A member accepts.
    Accept,
    /// A member begins to wait.
    Wait,
    /// A member wedges.
    Wedge,
    /// A member delivers.
    Deliver,
    /// A member has fetched something.
    Fetch,
}

/// Those of ballots are rarer in runs, so they are drawn twice as often.
const EVENTS: [EndsEvent; 14] = [
    EndsEvent::Decide,
    EndsEvent::Promise,
    EndsEvent::Propose,
    EndsEvent::Accept,
    EndsEvent::Echo,
    EndsEvent::Decide,
    EndsEvent::Enter,
    EndsEvent::Promise,
    EndsEvent::Propose,
    EndsEvent::Accept,
    EndsEvent::Wait,
    EndsEvent::Wedge,
    EndsEvent::Deliver,
    EndsEvent::Fetch,
];

/// What kinds of shards a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsMix {
    /// In memory, with all for quorum.
    Memory,
    /// In memory, with a majority for quorum.
    Majority,
    /// Durable.
    Durable,
    /// Each shard any of these.
    Any,
}

impl EndsPlan {
    /// Draws the plan of `seed`; its kind of shards and whether any process dies depend on the seed alone.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mixes =
            [EndsMix::Memory, EndsMix::Any, EndsMix::Majority, EndsMix::Any, EndsMix::Durable, EndsMix::Any];
        let mix = mixes[usize::try_from(seed % 6).unwrap_or(0)];
        Self::of_kind(seed, mix)
    }

    /// Draws a plan with shards of these kinds.
    #[must_use]
    pub fn of_kind(seed: u64, mix: EndsMix) -> Self {
        let mut prng = Prng::new(seed ^ 0xe4d5);
        let members = 3 + prng.index(4);
        let deaths = [0, 1, 2, 2][prng.index(4)];
        let extra = usize::from(deaths > 0 && prng.chance(700));
        let processes = (members + extra).min(SLOTS_MAX);
        let is_simple = prng.chance(400);
        let count = if is_simple { 1 + prng.index(2) } else { 1 + prng.index(4) };
        let shards = (0..count).map(|shard| EndsShard::draw(&mut prng, mix, is_simple, shard, count));
        let shards = shards.collect();
        let false_accusations = if deaths > 0 { prng.index(3) } else { 0 };
        let is_impatient = prng.chance(330);
        let losses = [0, 1, 3][prng.index(3)];
        let faults = (0..3 + prng.index(3)).map(|_| EndsFault::draw(&mut prng, members, processes, deaths));
        Self {
            seed,
            members,
            processes,
            shards,
            deaths,
            false_accusations,
            is_impatient,
            losses,
            faults: faults.collect(),
            is_uneven: prng.chance(700),
            gives_up_silent: prng.chance(100),
            links_stay_bad: prng.chance(500),
        }
    }

    /// Returns what can happen in the run, by kinds.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let any = |is_on: fn(&EndsFault) -> bool| self.faults.iter().any(is_on);
        let shard = |is_on: fn(&EndsShard) -> bool| self.shards.iter().any(is_on);
        let kinds = [
            (any(|fault| fault.links == EndsLinks::AllBad), "outage of all links"),
            (any(|fault| matches!(fault.links, EndsLinks::Sides(_))), "partition"),
            (any(|fault| matches!(fault.links, EndsLinks::One(..))), "member cut off"),
            (any(|fault| fault.strike.is_some()), "strike after a step"),
            (any(|fault| fault.death.is_some()), "death"),
            (any(|fault| fault.leaver.is_some()), "member that leaves"),
            (self.false_accusations > 0, "false accusation"),
            (self.losses > 0, "connection lost in the view"),
            (self.processes > self.members, "process that joins"),
            (shard(|shard| shard.kind.is_durable), "durable shard"),
            (shard(|shard| shard.kind.quorum == ShardQuorum::Majority), "shard with a majority for quorum"),
            (shard(|shard| matches!(shard.layout, EndsLayout::Moving(_))), "shards that move"),
        ];
        kinds.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind)).collect()
    }
}

impl EndsShard {
    fn draw(prng: &mut Prng, mix: EndsMix, is_simple: bool, shard: usize, count: usize) -> Self {
        let mix = match mix {
            EndsMix::Any => [EndsMix::Memory, EndsMix::Majority, EndsMix::Durable][prng.index(3)],
            mix => mix,
        };
        let quorum = if prng.chance(400) { ShardQuorum::Majority } else { ShardQuorum::All };
        let timed = prng.chance(500);
        let kind = match mix {
            EndsMix::Durable => ShardKind { is_durable: true, quorum, is_timed: true },
            EndsMix::Majority => {
                ShardKind { is_durable: false, quorum: ShardQuorum::Majority, is_timed: true }
            }
            _ => ShardKind { is_durable: false, quorum: ShardQuorum::All, is_timed: timed },
        };
        let layout = match prng.below(4) {
            _ if is_simple => EndsLayout::ByNumber(shard, count),
            0 => EndsLayout::Everywhere,
            1 => EndsLayout::ByNumber(shard, count),
            _ => EndsLayout::Moving(2 + prng.index(3)),
        };
        Self { kind, layout }
    }
}

impl EndsFault {
    fn draw(prng: &mut Prng, members: usize, processes: usize, deaths: usize) -> Self {
        let strike = |prng: &mut Prng, deadly: u32| {
            let event = EVENTS[prng.index(EVENTS.len())];
            (event, 1 + u32::try_from(prng.below(6)).unwrap_or(0), prng.chance(deadly))
        };
        let links = |prng: &mut Prng, good: u32| match prng.chance(good) {
            true => EndsLinks::Good,
            false => EndsLinks::draw(prng, members),
        };
        Self {
            links: links(prng, 333),
            strike: prng.chance(750).then(|| strike(prng, 333)),
            lasts: [3, 6, 10, 16, 32, 64][prng.index(6)] + prng.below(2),
            then: (links(prng, 667), [2, 5, 8, 11][prng.index(4)]),
            again: prng.chance(500).then(|| strike(prng, 250)),
            death: (deaths > 0 && prng.chance(250)).then(|| prng.index(members)),
            leaver: (deaths > 0 && prng.chance(125)).then(|| prng.index(processes)),
        }
    }
}

impl Shrink for EndsPlan {
    fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        for i in 0..self.faults.len() {
            let mut plan = self.clone();
            plan.faults.remove(i);
            plans.push(plan);
        }
        for i in (0..self.shards.len()).filter(|_| self.shards.len() > 1) {
            let mut plan = self.clone();
            plan.shards.remove(i);
            plans.push(plan);
        }
        let mut add = |is_smaller: bool, change: &dyn Fn(&mut Self)| {
            if is_smaller {
                let mut plan = self.clone();
                change(&mut plan);
                plans.push(plan);
            }
        };
        add(self.deaths > 0, &|plan| plan.deaths -= 1);
        add(self.processes > self.members, &|plan| plan.processes = plan.members);
        add(self.false_accusations > 0, &|plan| plan.false_accusations = 0);
        add(self.losses > 0, &|plan| plan.losses = 0);
        add(self.is_uneven, &|plan| plan.is_uneven = false);
        add(self.is_impatient, &|plan| plan.is_impatient = false);
        add(self.links_stay_bad, &|plan| plan.links_stay_bad = false);
        for i in 0..self.faults.len() {
            add(self.faults[i].leaver.is_some(), &|plan| plan.faults[i].leaver = None);
            add(self.faults[i].death.is_some(), &|plan| plan.faults[i].death = None);
            add(self.faults[i].strike.is_some(), &|plan| plan.faults[i].strike = None);
            add(self.faults[i].again.is_some(), &|plan| plan.faults[i].again = None);
        }
        plans
    }
}

impl fmt::Display for EndsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} members, {} processes", self.seed, self.members, self.processes)?;
        for (number, shard) in self.shards.iter().enumerate() {
            writeln!(f, "  shard {number}: {:?} {:?}", shard.kind, shard.layout)?;
        }
        for fault in &self.faults {
            writeln!(f, "  {fault:?}")?;
        }
        writeln!(
            f,
            "  {} deaths, {} false accusations, impatient {}, one of {} links lost, uneven {}, silent holders given up {}, links stay bad {}",
            self.deaths,
            self.false_accusations,
            self.is_impatient,
            self.losses,
            self.is_uneven,
            self.gives_up_silent,
            self.links_stay_bad
        )
    }
}
