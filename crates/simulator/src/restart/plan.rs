//! The plan of a run: processes, layout, network, disks, and what happens to them.

use std::fmt;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::DurablePlacement;

use crate::explain::Shrink;

/// A run. Process *i* is node *i* until it loses its register; the first ones are the members of view 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPlan {
    /// Delays are drawn from it, and who comes back where the plan leaves it open.
    pub seed: u64,
    /// Members of view 0.
    pub members: usize,
    /// All processes; those that are no members join.
    pub processes: usize,
    /// Durable shards.
    pub shards: usize,
    /// Where they are.
    pub layout: RestartLayout,
    /// The nodes that have each shard, if the layout says so, and those of them one of which it needs.
    pub sets: Vec<(u64, u64)>,
    /// What happens to ends of logs, beyond what a crash leaves.
    pub damage: TailDamage,
    /// Messages of each shard in each view.
    pub messages_max: u64,
    /// The longest that a message takes on a good link.
    pub delay_max: Duration,
    /// How many of a thousand messages are lost, and come twice.
    pub lossy: [u32; 2],
    /// Links that are slower: from, to, and how much.
    pub slow: Vec<(usize, usize, u32)>,
    /// How much slower each process writes its register and its log.
    pub disks: Vec<[u32; 2]>,
    /// Processes whose logs others cannot read until faults are over.
    pub deaf: u32,
    /// Members that are accused though they live.
    pub false_accusations: u32,
    /// Whether members make checkpoints.
    pub compacts: bool,
    /// Processes that leave, and when they begin to wish it.
    pub leaves: Vec<(Duration, usize)>,
    /// What happens, one after the other.
    pub strikes: Vec<RestartStrike>,
}

/// Where shards are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartLayout {
    /// Every member has every shard.
    Everywhere,
    /// A member has one shard, by its number.
    ByNumber,
    /// A shard has that many members; which ones depends on all of them.
    Moving(usize),
    /// A shard has the nodes of [`RestartPlan::sets`].
    Chosen,
}

/// What happens to ends of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailDamage {
    /// Nothing.
    None,
    /// Some are lost, and the log says so.
    Known,
    /// Some are lost, and nothing shows it.
    Silent,
}

/// Processes die, are cut off, and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartStrike {
    /// After which event, the how many-th of its kind since the strike before, if it comes in time.
    pub event: Option<(RestartEvent, u32)>,
    /// In time, or without an event: after the strike before.
    pub after: Duration,
    /// And then so much later.
    pub then: Duration,
    /// The processes that die.
    pub victims: u32,
    /// Those of them that lose the end of their logs, if another one has it.
    pub damaged: u32,
    /// The one that loses its register.
    pub forgetful: Option<usize>,
    /// The processes that are cut off from the others until the next strike.
    pub cut: u32,
    /// Those that start again before the next strike, besides a majority of the last view.
    pub back: u32,
    /// How soon.
    pub back_within: Duration,
}

/// What a strike waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestartEvent {
    /// A member writes its echo of a live proposal.
    Echo,
    /// A process writes a promise.
    Promise,
    /// A leader of a restart proposes.
    Propose,
    /// A member writes its acceptance.
    Accept,
    /// A register is on the disk.
    Written,
    /// A view is decided, as far as anything shows it.
    Decide,
    /// A process writes a view.
    Record,
    /// A member begins a view.
    Enter,
    /// A message is delivered.
    Deliver,
    /// A log is on the disk.
    Flushed,
    /// A part of a log comes from another process.
    Fetched,
}

const EVENTS: [RestartEvent; 11] = [
    RestartEvent::Echo,
    RestartEvent::Promise,
    RestartEvent::Propose,
    RestartEvent::Accept,
    RestartEvent::Written,
    RestartEvent::Decide,
    RestartEvent::Record,
    RestartEvent::Enter,
    RestartEvent::Deliver,
    RestartEvent::Flushed,
    RestartEvent::Fetched,
];

impl RestartPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x7e57);
        let members = 3 + prng.index(4);
        let processes = (members + prng.index(3)).min(PROCESSES_MAX);
        let shards = [1, 1, 2, 2, 3][prng.index(5)];
        let layout = match prng.below(4) {
            0 => RestartLayout::Everywhere,
            1 | 2 => RestartLayout::ByNumber,
            _ => RestartLayout::Moving(2 + prng.index(2)),
        };
        let damage =
            [TailDamage::None, TailDamage::Known, TailDamage::Silent, TailDamage::Silent][prng.index(4)];
        let lossy = match prng.chance(300) {
            true => [200, 100],
            false => [0, 0].map(|_: u32| if prng.chance(500) { 20 } else { 0 }),
        };
        let mut slow = Vec::new();
        for from in 0..processes {
            for to in (0..processes).filter(|to| *to != from) {
                if prng.chance(120) {
                    slow.push((from, to, [4, 30][prng.index(2)]));
                }
            }
        }
        let factor = |prng: &mut Prng| [1, 1, 1, 8, 40][prng.index(5)];
        let disks = (0..processes).map(|_| [factor(&mut prng), factor(&mut prng)]).collect();
        let leaves = match prng.chance(250) {
            true => vec![(Duration::from_micros(prng.below(60_000)), prng.index(processes))],
            false => Vec::new(),
        };
        let forgetful = prng.chance(100).then(|| prng.index(processes));
        let strikes = (0..1 + prng.index(6)).map(|_| strike(&mut prng, processes, forgetful)).collect();
        Self {
            seed,
            members,
            processes,
            shards,
            layout,
            sets: Vec::new(),
            damage,
            messages_max: 1 + prng.below(6),
            delay_max: Duration::from_micros(20 + prng.below(180)),
            lossy,
            slow,
            disks,
            deaf: deaf(seed, processes),
            false_accusations: [0, 0, 1, 2][prng.index(4)],
            compacts: prng.chance(400),
            leaves,
            strikes,
        }
    }

    /// The layout of its shards.
    pub(super) fn placement(&self) -> DurablePlacement {
        let (layout, shards, sets) = (self.layout, self.shards, self.sets.clone());
        DurablePlacement::new(move |members| match layout {
            RestartLayout::Chosen => {
                sets.iter().map(|(set, needed)| choose(*set, *needed, members)).collect()
            }
            _ => (0..shards).map(|shard| place(layout, shards, shard, members)).collect(),
        })
    }

    /// What can happen in the run, by kinds.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let all = (1u32 << self.processes) - 1;
        let any =
            |is_on: fn(&RestartStrike, u32) -> bool| self.strikes.iter().any(|strike| is_on(strike, all));
        let kinds = [
            (any(|strike, all| strike.victims == all), "death of all processes"),
            (any(|strike, all| strike.victims != all && strike.victims != 0), "death of some processes"),
            (any(|strike, _| strike.event.is_some()), "death right after a step"),
            (any(|strike, _| strike.cut != 0), "partition"),
            (self.strikes.iter().any(|strike| strike.forgetful.is_some()), "loss of a register"),
            (self.damage == TailDamage::Known, "known loss of the end of a log"),
            (self.damage == TailDamage::Silent, "silent loss of the end of a log"),
            (self.lossy[0] > 0, "messages that are lost"),
            (self.lossy[1] > 0, "messages that come twice"),
            (!self.slow.is_empty(), "slow link"),
            (self.deaf != 0, "log that others cannot read"),
            (self.disks.iter().flatten().any(|factor| *factor > 1), "slow disk"),
            (self.false_accusations > 0, "false accusation"),
            (self.compacts, "checkpoints"),
            (!self.leaves.is_empty(), "member that leaves"),
            (self.processes > self.members, "process that joins"),
            (matches!(self.layout, RestartLayout::Moving(_)), "shards that move"),
        ];
        kinds.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind)).collect()
    }
}

/// Some of the processes, in some of the runs.
fn deaf(seed: u64, processes: usize) -> u32 {
    let mut prng = Prng::new(seed ^ 0xdeaf);
    let set = u32::try_from(prng.below(1 << processes)).expect("few processes");
    if prng.chance(250) { set } else { 0 }
}

/// The members of a shard.
fn place(layout: RestartLayout, shards: usize, shard: usize, members: &[NodeId]) -> RankSet {
    let all = RankSet::all(members.len());
    match layout {
        RestartLayout::Everywhere | RestartLayout::Chosen => all,
        RestartLayout::ByNumber => {
            let has_it = |node: &NodeId| node.0 as usize % shards == shard;
            members.iter().enumerate().filter(|(_, node)| has_it(node)).map(|(rank, _)| rank).collect()
        }
        RestartLayout::Moving(most) => {
            let weight = |node: NodeId| Prng::new(u64::from(node.0) << 8 | shard as u64).draw();
            let mut ranks: Vec<usize> = (0..members.len()).collect();
            ranks.sort_by_key(|rank| weight(members[*rank]));
            ranks.into_iter().take(most).collect()
        }
    }
}

/// The members of a set of nodes; none unless it has one of those that are needed.
fn choose(set: u64, needed: u64, members: &[NodeId]) -> RankSet {
    let ranks = |nodes: u64| -> RankSet {
        let has = |node: &NodeId| nodes.checked_shr(node.0).is_some_and(|nodes| nodes & 1 == 1);
        members.iter().enumerate().filter(|(_, node)| has(node)).map(|(rank, _)| rank).collect()
    };
    if ranks(set & needed).is_empty() { RankSet::EMPTY } else { ranks(set) }
}

fn strike(prng: &mut Prng, processes: usize, forgetful: Option<usize>) -> RestartStrike {
    let all = (1u32 << processes) - 1;
    let set = |prng: &mut Prng| u32::try_from(prng.below(1 << processes)).expect("few processes");
    let one = |prng: &mut Prng| 1 << prng.index(processes);
    let event = prng
        .chance(750)
        .then(|| (EVENTS[prng.index(EVENTS.len())], 1 + u32::try_from(prng.below(6)).expect("few events")));
    let after = match event {
        Some(_) => 40_000,
        None => [2_000, 15_000, 40_000][prng.index(3)],
    };
    let then = [1, 60, 600][prng.index(3)];
    let victims = match prng.below(8) {
        0..=3 => all,
        4 | 5 => set(prng),
        6 => one(prng),
        _ => 0,
    };
    let span = |prng: &mut Prng, most: u64| Duration::from_micros(1 + prng.below(most));
    RestartStrike {
        event,
        after: if event.is_some() { Duration::from_micros(after) } else { span(prng, after) },
        then: span(prng, then),
        victims,
        damaged: set(prng),
        forgetful: forgetful.filter(|_| prng.chance(300)),
        cut: if prng.chance(150) { set(prng) } else { 0 },
        back: match prng.below(4) {
            0 => all,
            1 => 0,
            _ => set(prng),
        },
        back_within: span(prng, 3_000),
    }
}

impl Shrink for RestartPlan {
    fn smaller(&self) -> Vec<Self> {
        let without = |i: usize| {
            let mut plan = self.clone();
            plan.strikes.remove(i);
            plan
        };
        let mut plans: Vec<Self> = (0..self.strikes.len()).map(without).collect();
        let mut add = |is_smaller: bool, change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plans.extend(is_smaller.then_some(plan));
        };
        add(!self.leaves.is_empty(), &|plan| plan.leaves.clear());
        add(self.compacts, &|plan| plan.compacts = false);
        add(self.lossy != [0, 0], &|plan| plan.lossy = [0, 0]);
        add(!self.slow.is_empty(), &|plan| plan.slow.clear());
        add(self.deaf != 0, &|plan| plan.deaf = 0);
        add(self.disks.iter().flatten().any(|factor| *factor > 1), &|plan| plan.disks.fill([1, 1]));
        add(self.false_accusations > 0, &|plan| plan.false_accusations = 0);
        add(self.processes > self.members && self.leaves.is_empty(), &|plan| plan.processes -= 1);
        plans
    }
}

impl fmt::Display for RestartPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, members, processes, shards, layout, damage, messages_max, delay_max, .. } = self;
        writeln!(
            f,
            "seed {seed}: {members} members of {processes} processes, {shards} shards {layout:?}, damage {damage:?}, up to {messages_max} messages, delays up to {delay_max:?}"
        )?;
        let Self { lossy: [lost, twice], slow, disks, deaf, false_accusations, compacts, leaves, .. } = self;
        writeln!(
            f,
            "  of 1000 messages {lost} lost and {twice} twice, slow {slow:?}, disks {disks:?}, unreadable {deaf:#b}, false accusations {false_accusations}, checkpoints {compacts}, leaves {leaves:?}"
        )?;
        self.strikes.iter().try_for_each(|strike| writeln!(f, "  {strike:?}"))
    }
}

/// The most processes of a run.
const PROCESSES_MAX: usize = 7;
