//! One case: how many members, why the view ends, and in which order of events (Derecho §3.4).

use squall_fabric::sim::{Adversary, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::membership::PartitionSafety;

use crate::group::GroupPlan;

/// Why a view ends. The youngest member goes, so that it is never the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakeoverChange {
    /// A member dies.
    Loss,
    /// A member leaves.
    Leave,
    /// A node joins.
    Join,
    /// A member dies and a node joins.
    LossAndJoin,
    /// Two members die.
    TwoLosses,
}

impl TakeoverChange {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Loss, Self::Leave, Self::Join, Self::LossAndJoin, Self::TwoLosses];

    const fn losses(self) -> u32 {
        match self {
            Self::Leave | Self::Join => 0,
            Self::Loss | Self::LossAndJoin => 1,
            Self::TwoLosses => 2,
        }
    }
}

/// A group and the end of its first view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeoverCase {
    /// From 2 on.
    pub members: u32,
    /// Why the view ends.
    pub change: TakeoverChange,
    /// Readers share the owner's memory, as on one host.
    pub shared: bool,
    /// The order of events is drawn from it.
    pub seed: u64,
}

/// When the view begins to end: its members have attached, and messages are under way.
const BEGIN: Duration = Duration::from_micros(25);

impl TakeoverCase {
    /// How many members there are that can lead, one after the other: all but those that go.
    #[must_use]
    pub const fn leaders(&self) -> u32 {
        let leaves = if matches!(self.change, TakeoverChange::Leave) { 1 } else { 0 };
        self.members.saturating_sub(self.change.losses() + leaves)
    }

    /// Whether there is a member left to lead after the first leader.
    #[must_use]
    pub const fn has_second_leader(&self) -> bool {
        self.leaders() > 1
    }

    /// The plan if `leaders` leaders die beside, whose deaths it does not contain yet.
    pub(super) fn plan(&self, leaders: u32) -> GroupPlan {
        let Self { members, change, shared, seed } = *self;
        let losses = change.losses().min(members - 1);
        let youngest = |back: u32| members - 1 - back;
        let at =
            |micros: u64| RuleTrigger::At(Instant::from_nanos(0) + BEGIN + Duration::from_micros(micros));
        let loss = |back: u32| Rule { when: at(5 * u64::from(back)), what: Verdict::Crash(youngest(back)) };
        let joins = match change {
            // It has links with all members, and the leader knows that, at about the time at which the view begins to end.
            TakeoverChange::Join | TakeoverChange::LossAndJoin => vec![Duration::ZERO],
            _ => Vec::new(),
        };
        let leaves = if change == TakeoverChange::Leave { vec![(youngest(0), BEGIN)] } else { Vec::new() };
        let calm = GroupPlan::calm(seed, members);
        GroupPlan {
            joins,
            leaves,
            partition_safety: safety(members, losses + leaders),
            adversary: adversary(seed, calm.adversary),
            early_sight: shared,
            rules: (0..losses).map(loss).collect(),
            ..calm
        }
    }

    /// `plan`, with `leader` dying just before its `nth` post as well.
    pub(super) fn with_death(&self, plan: &GroupPlan, leader: u32, nth: u64) -> GroupPlan {
        self.with_rule(plan, RuleTrigger::Post { node: leader, nth }, leader)
    }

    /// `plan`, with `leader` dying just before the `nth` piece of what it has pushed lands at `reader`.
    pub(super) fn with_torn_push(&self, plan: &GroupPlan, leader: u32, reader: u32, nth: u64) -> GroupPlan {
        self.with_rule(plan, RuleTrigger::Piece { from: leader, to: reader, nth }, leader)
    }

    fn with_rule(&self, plan: &GroupPlan, when: RuleTrigger, leader: u32) -> GroupPlan {
        let mut plan = plan.clone();
        plan.rules.push(Rule { when, what: Verdict::Crash(leader) });
        let deaths = u32::try_from(plan.crashes()).expect("few");
        plan.partition_safety = safety(self.members, deaths);
        plan
    }
}

/// No member is suspected that lives, so the rest may continue even if they are no majority.
const fn safety(members: u32, deaths: u32) -> PartitionSafety {
    if deaths > (members - 1) / 2 { PartitionSafety::Off } else { PartitionSafety::Majority }
}

/// Members learn of a death at different times: in a third of the seeds long after all that was posted has landed, else
/// while some of it is still on its way.
fn adversary(seed: u64, calm: Adversary) -> Adversary {
    match seed % 3 {
        0 => calm,
        1 => Adversary { stall_per_mille: 100, stall_max: Duration::from_micros(1500), ..calm },
        _ => Adversary { delay_max: Duration::from_micros(300), ..calm },
    }
}
