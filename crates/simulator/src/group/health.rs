//! Which nodes are healthy, as far as the plan determines: what the others do is no reason for a healthy member to stop \[V10\].
//!
//! A node is *healthy* if it never crashes, does not leave, does not pause for as long as the others wait for a sign of
//! life, and has no bad link to any node. A link is *bad* if the network may report it as lost, or if what passes on it
//! may come later than the others wait. When the network parts once, for so long that all notice it, the greatest part
//! has good links: the members of the other parts are the ones to go \[V5\].
//!
//! The healthy members of the first view have a majority in every later one if they are more than all nodes that are not
//! healthy; a member that leaves, and is healthy until then, is on their side. Then all healthy nodes, joiners too, have
//! to end in one view together.

use squall_fabric::sim::{RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::membership::PartitionSafety;
use squall_protocols::multicast::DeliveryMode;

use super::cluster::{MEMBERS_MAX, UNREACHABLE_AFTER};
use super::interruption::interrupted;
use super::plan::{FOR_EVER, GroupPlan, has};

/// Some nodes of a run, as a set of bits.
type Nodes = u128;

/// A time in which the network is parted.
struct Parting<'a> {
    begin: Instant,
    /// When it heals or parts differently; never, if there is none.
    end: Option<Instant>,
    parts: &'a [Vec<u32>],
}

impl GroupPlan {
    /// The nodes that have to end in one view together, in ascending order, given those that have not `fallen` by a crash
    /// or the scene's own rules; none if the plan promises nothing.
    #[must_use]
    pub(crate) fn healthy(&self, fallen: impl Fn(u32) -> bool) -> Vec<u32> {
        let nodes = self.nodes();
        if nodes as usize > MEMBERS_MAX || self.is_too_slow() || self.has_doubtful_pause() {
            return Vec::new();
        }
        let leaves = |node| self.leaves.iter().any(|(leaver, _)| *leaver == node);
        let bad = self.hanging() | self.badly_linked();
        let is_sound = |node: &u32| !fallen(*node) && bad >> node & 1 == 0;
        let unsound = (0..nodes).filter(|node| !is_sound(node)).count();
        let healthy: Vec<u32> = (0..nodes).filter(|node| is_sound(node) && !leaves(*node)).collect();
        let first = healthy.iter().filter(|node| **node < self.members).count();
        let least = if self.partition_safety == PartitionSafety::Majority { unsound } else { 0 };
        if first > least { healthy } else { Vec::new() }
    }

    /// Whether all members of a durable subgroup may be gone at once, which ends the group \[T5\]: none of the first view is `healthy`.
    pub(crate) fn may_lose_logs(&self, healthy: &[u32]) -> bool {
        let first = || healthy.iter().filter(|node| **node < self.members);
        let durable = self.subgroups.iter().filter(|plan| plan.settings.mode == DeliveryMode::Durable);
        durable.into_iter().any(|plan| !first().any(|node| has(plan.nodes, NodeId(*node))))
    }

    /// How long whatever a node says may take to be seen, while nothing is wrong.
    pub(crate) fn delay(&self) -> Duration {
        let adversary = &self.adversary;
        let stall = if adversary.stall_per_mille > 0 { adversary.stall_max } else { Duration::ZERO };
        adversary.delay_max * 2 + stall + adversary.poll_gap_max * 2
    }

    /// Whether signs of life that take longer by `late` may come too late. A view that opens needs two delays, for the
    /// joiner to learn of it and for the joiner to be heard, and in between the others have to notice that they can attach
    /// the joiner's row.
    fn is_late(&self, late: Duration) -> bool {
        let opening = self.delay() * 2 + self.adversary.late_notice_max;
        self.suspicion_after.is_some_and(|after| late + opening > self.spare(after))
    }

    /// What is left of the time that members wait when a sign of life has been due for the longest: by the clock of one
    /// that is fast, of a member that is slow. Signs, and looks at them, are a quarter of that time apart.
    fn spare(&self, after: Duration) -> Duration {
        let rate = self.clock_rate_max();
        after.mul_f64((0.75 / rate - 0.25 * rate).max(0.0))
    }

    /// By how much the fastest clock may be faster than the world's time, and the slowest one slower.
    fn clock_rate_max(&self) -> f64 {
        1.0 + f64::from(self.adversary.clock_drift_max) / 1e6
    }

    /// Whether anybody may be suspected for no other reason than that the fabric is slow.
    fn is_too_slow(&self) -> bool {
        self.is_late(Duration::ZERO)
    }

    /// Whether a node pauses for so long that others may notice it, where the network is slow, too, but perhaps not for so long
    /// that it notices that itself, by a slow clock, and concedes \[V15\].
    fn has_doubtful_pause(&self) -> bool {
        let noticed = |after: Duration| after.mul_f64(0.5 * self.clock_rate_max());
        let is_doubtful = |verdict: &Verdict| match verdict {
            Verdict::Pause { span, .. } => {
                self.is_late(*span) && self.suspicion_after.is_some_and(|after| *span <= noticed(after))
            }
            _ => false,
        };
        self.rules.iter().any(|rule| is_doubtful(&rule.what))
    }

    /// Nodes that pause for longer than the others wait.
    fn hanging(&self) -> Nodes {
        let hangs = |verdict: &Verdict| match verdict {
            Verdict::Pause { node, span } if self.is_late(*span) => 1 << node,
            _ => 0,
        };
        self.rules.iter().map(|rule| hangs(&rule.what)).fold(0, |all, node| all | node)
    }

    /// Nodes that have a bad link.
    fn badly_linked(&self) -> Nodes {
        // Those in a row may seem to be one to some member.
        let parted: Duration = self.partings().iter().filter_map(Parting::span).sum();
        let are_short = interrupted(&self.rules)
            .is_some_and(|span| span + parted < UNREACHABLE_AFTER && !self.is_late((span + parted) * 2));
        let broken = |verdict: &Verdict| match verdict {
            Verdict::Cut { a, b } if !are_short => 1 << a | 1 << b,
            Verdict::Break { a, b } => 1 << a | 1 << b,
            _ => 0,
        };
        let broken = self.rules.iter().fold(0, |all, rule| all | broken(&rule.what));
        // Members that wait for each other's messages, and for no signs of life, wait forever.
        let slow = self.slow_pairs(|extra| extra >= FOR_EVER || self.is_late(extra * 2));
        slow.fold(broken | self.parted(), |all, [from, to]| all | 1 << from | 1 << to)
    }

    /// Whether the last two `members` of a view have a path that is slower than they wait for signs of life: they find each other again
    /// and again, and lose each other as often. Where there are more, the others continue without one of the two.
    pub(super) fn may_waver(&self, members: &[u32]) -> bool {
        let wavers = |extra| self.suspicion_after.is_some_and(|after| extra >= after);
        members.len() == 2
            && self.slow_pairs(wavers).any(|pair| pair.into_iter().all(|node| members.contains(&node)))
    }

    fn slow_pairs(&self, is_slow: impl Fn(Duration) -> bool) -> impl Iterator<Item = [u32; 2]> {
        self.rules.iter().filter_map(move |rule| match rule.what {
            Verdict::Slow { from, to, extra } if is_slow(extra) => Some([from, to]),
            _ => None,
        })
    }

    /// Nodes that lose others, or may do so, since the network parts.
    fn parted(&self) -> Nodes {
        let everybody = (1 << self.nodes()) - 1;
        let is_timed = |what: &Verdict| matches!(what, Verdict::Partition(_) | Verdict::Heal);
        if self.rules.iter().any(|rule| is_timed(&rule.what) && !matches!(rule.when, RuleTrigger::At(_))) {
            return everybody;
        }
        let partings = self.partings();
        let is_noticed = |span: Option<Duration>| {
            span.is_none_or(|span| span >= UNREACHABLE_AFTER || self.is_late(span * 2))
        };
        // Partings in a row may cut the same link for longer than each of them.
        let cut: Duration = partings.iter().filter_map(Parting::span).sum();
        let noticed: Vec<&Parting<'_>> =
            partings.iter().filter(|parting| is_noticed(parting.span())).collect();
        match noticed[..] {
            [] if !self.is_late(cut * 2) => 0,
            [one] if partings.len() == 1 && self.is_noticed_by_all(one) => {
                everybody & !one.greatest(self.nodes())
            }
            _ => everybody,
        }
    }

    /// Whether all nodes of different parts lose each other.
    fn is_noticed_by_all(&self, parting: &Parting<'_>) -> bool {
        let late = UNREACHABLE_AFTER + self.adversary.late_notice_max;
        parting.span().is_none_or(|span| span > late)
    }

    /// When the network is parted, in order.
    fn partings(&self) -> Vec<Parting<'_>> {
        let mut changes: Vec<(Instant, Option<&[Vec<u32>]>)> = Vec::new();
        for rule in &self.rules {
            match (&rule.when, &rule.what) {
                (RuleTrigger::At(at), Verdict::Partition(parts)) => changes.push((*at, Some(parts))),
                (RuleTrigger::At(at), Verdict::Heal) => changes.push((*at, None)),
                _ => {}
            }
        }
        changes.sort_by_key(|(at, _)| *at);
        let ends = changes.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let parting = |((begin, parts), end): (&(Instant, Option<_>), _)| {
            parts.map(|parts| Parting { begin: *begin, end, parts })
        };
        changes.iter().zip(ends).filter_map(parting).collect()
    }
}

impl Parting<'_> {
    fn span(&self) -> Option<Duration> {
        self.end.map(|end| end.since(self.begin))
    }

    /// The greatest part, of nodes below `nodes`. Nodes that are in none form a part of their own.
    fn greatest(&self, nodes: u32) -> Nodes {
        let set = |part: &Vec<u32>| {
            part.iter().filter(|node| **node < nodes).fold(0, |set: Nodes, node| set | 1 << node)
        };
        let parts: Vec<Nodes> = self.parts.iter().map(set).collect();
        let rest = ((1 << nodes) - 1) & !parts.iter().fold(0, |all, part| all | part);
        parts.into_iter().chain([rest]).max_by_key(|part| part.count_ones()).expect("there is the rest")
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::sim::Rule;

    use super::*;

    const BEGIN: Instant = Instant::from_nanos(30_000);

    fn plan(members: u32, faults: Vec<(u64, Verdict)>) -> GroupPlan {
        let at = |micros| RuleTrigger::At(BEGIN + Duration::from_micros(micros));
        let rules = faults.into_iter().map(|(micros, what)| Rule { when: at(micros), what }).collect();
        GroupPlan { rules, suspicion_after: Some(Duration::from_micros(400)), ..GroupPlan::calm(1, members) }
    }

    fn healthy(members: u32, faults: Vec<(u64, Verdict)>) -> Vec<u32> {
        plan(members, faults).healthy(|_| false)
    }

    #[test]
    fn only_a_long_pause_is_a_reason_to_go() {
        let pause = |micros| vec![(0, Verdict::Pause { node: 1, span: Duration::from_micros(micros) })];
        assert_eq!(healthy(3, pause(100)), [0, 1, 2]);
        assert_eq!(healthy(3, pause(900)), [0, 2]);
        assert_eq!(healthy(3, pause(500)), [0, 2], "some notice it, and others do not");
        assert!(healthy(3, pause(190)).is_empty(), "it may not notice that itself");
        assert!(healthy(2, pause(900)).is_empty(), "one of two is no majority");
    }

    #[test]
    fn the_ends_of_a_slow_link_may_go() {
        let slow = |extra| vec![(0, Verdict::Slow { from: 0, to: 3, extra })];
        assert_eq!(healthy(5, slow(Duration::from_micros(20))), [0, 1, 2, 3, 4]);
        assert_eq!(healthy(5, slow(Duration::from_micros(300))), [1, 2, 4]);
        assert!(healthy(4, slow(Duration::from_micros(300))).is_empty());
    }

    #[test]
    fn the_greatest_part_stays() {
        let parts = || (0, Verdict::Partition(vec![vec![0, 4]]));
        assert_eq!(healthy(5, vec![parts()]), [1, 2, 3]);
        assert_eq!(healthy(5, vec![parts(), (9_000, Verdict::Heal)]), [1, 2, 3]);
        assert_eq!(healthy(5, vec![parts(), (50, Verdict::Heal)]), [0, 1, 2, 3, 4]);
        // Some notice that, and others do not.
        assert!(healthy(5, vec![parts(), (500, Verdict::Heal)]).is_empty());
        let halves = || (0, Verdict::Partition(vec![vec![0, 1], vec![2, 3]]));
        assert!(healthy(4, vec![halves()]).is_empty());
    }

    #[test]
    fn who_crashes_or_leaves_counts_against_the_rest() {
        let mut plan = plan(5, Vec::new());
        assert_eq!(plan.healthy(|node| node == 2), [0, 1, 3, 4]);
        plan.leaves = vec![(0, Duration::ZERO)];
        assert_eq!(plan.healthy(|node| node == 2), [1, 3, 4]);
        plan.joins = vec![Duration::ZERO];
        assert_eq!(plan.healthy(|node| node == 2), [1, 3, 4, 5]);
        assert_eq!(plan.healthy(|node| [2, 5].contains(&node)), [1, 3, 4]);
        assert!(plan.healthy(|node| [1, 2, 5].contains(&node)).is_empty(), "the joiner may be a member then");
    }

    #[test]
    fn nothing_is_promised_where_the_fabric_is_as_slow_as_the_members_wait() {
        let mut plan = plan(3, Vec::new());
        assert_eq!(plan.healthy(|_| false), [0, 1, 2]);
        (plan.adversary.stall_per_mille, plan.adversary.stall_max) = (1, Duration::from_micros(200));
        assert!(plan.healthy(|_| false).is_empty());
        plan.suspicion_after = None;
        assert_eq!(plan.healthy(|_| false), [0, 1, 2]);
    }

    /// Enough of what the scenario draws has faults, and members that must not mind.
    #[test]
    fn many_plans_with_faults_promise_something() {
        let promises = |seed: &u64| {
            let plan = GroupPlan::draw(*seed);
            let crashes = |node| plan.rules.iter().any(|rule| rule.what == Verdict::Crash(node));
            !plan.rules.is_empty() && !plan.healthy(crashes).is_empty()
        };
        let count = (0..2000).filter(promises).count();
        assert!(count >= 400, "{count} of 2000");
    }
}
