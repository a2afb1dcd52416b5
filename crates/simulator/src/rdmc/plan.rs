//! The plan of a run: groups, objects, the behaviour of the applications and faults, all drawn from a seed (RDMC §3).

use std::fmt;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};

use squall_protocols::rdmc::schedule::{Algorithm, HybridSchedule, Schedule, Topology};
use squall_protocols::rdmc::{GroupId, RdmcSettings};

use crate::explain::Shrink;

/// One group of a run.
#[derive(Clone, Debug)]
pub(super) struct RdmcGroupPlan {
    pub(super) id: GroupId,
    /// The nodes, the root first.
    pub(super) members: Vec<u32>,
    pub(super) settings: RdmcSettings,
    /// The key from which the contents of its objects derive.
    pub(super) key: u64,
    /// The number of the first object, and the sizes of all objects.
    pub(super) first: u64,
    pub(super) sizes: Vec<u64>,
}

impl RdmcGroupPlan {
    pub(super) fn new(id: u64, members: &[u32], schedule: Schedule, block_bytes: u64, sizes: &[u64]) -> Self {
        let settings = RdmcSettings { block_bytes, schedule, in_flight_bytes: 4 * block_bytes };
        let (members, sizes) = (members.to_vec(), sizes.to_vec());
        Self { id: GroupId(id), members, settings, key: id << 8, first: 0, sizes }
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.sizes.len() as u64
    }
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct RdmcPlan {
    pub(super) seed: u64,
    pub(super) nodes: u32,
    pub(super) groups: Vec<RdmcGroupPlan>,
    /// The maximum time before a member creates a group.
    pub(super) create_within: Duration,
    pub(super) later_per_mille: u32,
    pub(super) offers_per_mille: u32,
    /// Whether released memory is kept, so that a group can resume from it.
    pub(super) keeps: bool,
    pub(super) rules: Vec<Rule>,
}

impl RdmcPlan {
    /// Draws the plan of `seed`; one plan in three has deaths.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        if seed % 3 == 2 { Self::with_death(seed) } else { Self::drawn(seed) }
    }

    /// Draws a plan without faults that stop a group: only pauses and slow links.
    pub(super) fn drawn(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x4d3c);
        let nodes = 1 + u32::try_from(prng.below(9)).expect("few");
        let groups = 1 + prng.below(3);
        let groups = (1..=groups).map(|id| drawn_group(&mut prng, id, nodes)).collect();
        let create_within = Duration::from_nanos(prng.below(200_000));
        let later_per_mille = [0, 0, 300, 1000][prng.index(4)];
        let rules = (0..prng.below(4)).map(|_| hindrance(&mut prng, nodes)).collect();
        let offers_per_mille = drawn_offers(&mut prng);
        Self { seed, nodes, groups, create_within, later_per_mille, offers_per_mille, keeps: false, rules }
    }

    /// Draws a plan of one group of several members, one or two of which die just before one of their posts.
    pub(super) fn with_death(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0xdead);
        let nodes = 3 + u32::try_from(prng.below(7)).expect("few");
        let group = drawn_group_of(&mut prng, 1, (0..nodes).collect());
        let deaths = 1 + prng.below(2);
        let rules = (0..deaths).map(|_| {
            let victim = u32::try_from(prng.below(u64::from(nodes))).expect("few");
            let when = RuleTrigger::Post { node: victim, nth: 1 + prng.below(60) };
            Rule { when, what: Verdict::Crash(victim) }
        });
        let rules = rules.collect();
        let create_within = Duration::from_nanos(prng.below(100_000));
        let later_per_mille = [0, 300][prng.index(2)];
        let offers_per_mille = drawn_offers(&mut prng);
        let groups = vec![group];
        Self { seed, nodes, groups, create_within, later_per_mille, offers_per_mille, keeps: true, rules }
    }
}

/// Draws whether members never, sometimes or always offer memory.
fn drawn_offers(prng: &mut Prng) -> u32 {
    [0, 300, 1000][prng.index(3)]
}

fn drawn_group(prng: &mut Prng, id: u64, nodes: u32) -> RdmcGroupPlan {
    let mut members: Vec<u32> = (0..nodes).collect();
    prng.shuffle(&mut members);
    members.truncate(1 + prng.index(members.len()));
    drawn_group_of(prng, id, members)
}

fn drawn_group_of(prng: &mut Prng, id: u64, members: Vec<u32>) -> RdmcGroupPlan {
    let block_bytes = 8 * (1 + prng.below(6));
    let sizes: Vec<u64> = (0..1 + prng.below(4)).map(|_| drawn_size(prng, block_bytes)).collect();
    let schedule = drawn_schedule(prng, members.len());
    RdmcGroupPlan::new(id, &members, schedule, block_bytes, &sizes)
}

/// Draws a size: 0, one byte, less than a block, one block, one byte more, some blocks, or many.
fn drawn_size(prng: &mut Prng, block_bytes: u64) -> u64 {
    match prng.below(7) {
        0 => 0,
        1 => 1,
        2 => prng.below(block_bytes),
        3 => block_bytes,
        4 => block_bytes + 1,
        5 => prng.below(5 * block_bytes),
        _ => prng.below(120 * block_bytes),
    }
}

fn drawn_schedule(prng: &mut Prng, members: usize) -> Schedule {
    let algorithms = [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline];
    let mut drawn = || algorithms[prng.index(4)];
    let (between, within) = (drawn(), drawn());
    if prng.chance(400) {
        return Algorithm::Pipeline.into();
    }
    if prng.chance(600) {
        return between.into();
    }
    let racks: Vec<u32> = (0..members).map(|_| u32::try_from(prng.below(3)).expect("few")).collect();
    Schedule::Hybrid(HybridSchedule::new(Topology::new(&racks), between, within))
}

fn hindrance(prng: &mut Prng, nodes: u32) -> Rule {
    let node = |prng: &mut Prng| u32::try_from(prng.below(u64::from(nodes))).expect("few");
    let (from, to) = (node(prng), node(prng));
    // Some pauses are longer than a fabric waits for a receive [F7].
    let pause_max = [3_000_000, 40_000_000][prng.index(2)];
    let what = match prng.chance(500) && from != to {
        true => Verdict::Slow { from, to, extra: Duration::from_nanos(prng.below(300_000)) },
        false => Verdict::Pause { node: from, span: Duration::from_nanos(prng.below(pause_max)) },
    };
    Rule { when: RuleTrigger::At(Instant::from_nanos(prng.below(600_000))), what }
}

impl Shrink for RdmcPlan {
    fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plans.push(plan);
        };
        for i in 0..self.rules.len() {
            with(&|plan| drop(plan.rules.remove(i)));
        }
        if self.groups.len() > 1 {
            (0..self.groups.len()).for_each(|i| with(&|plan| drop(plan.groups.remove(i))));
        }
        for (i, group) in self.groups.iter().enumerate() {
            for object in 0..group.sizes.len() {
                with(&|plan| plan.groups[i].sizes[object] /= 2);
            }
            if group.sizes.len() > 1 {
                with(&|plan| {
                    plan.groups[i].sizes.pop();
                });
            }
        }
        if self.later_per_mille > 0 {
            with(&|plan| plan.later_per_mille = 0);
        }
        if self.offers_per_mille > 0 {
            with(&|plan| plan.offers_per_mille = 0);
        }
        plans.retain(|plan| format!("{plan:?}") != format!("{self:?}"));
        plans
    }
}

impl fmt::Display for RdmcPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} nodes", self.seed, self.nodes)?;
        for RdmcGroupPlan { id, members, settings, first, sizes, .. } in &self.groups {
            writeln!(f, "  {id} of nodes {members:?}: objects from {first} on, of {sizes:?} bytes")?;
            writeln!(f, "    {settings:?}")?;
        }
        let (within, later) = (self.create_within, self.later_per_mille);
        let offers = self.offers_per_mille;
        writeln!(
            f,
            "  created within {within:?}, memory given later in {later} of 1000 cases, offered in {offers}"
        )?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "  fault {rule}"))
    }
}
