//! Faults as data: what happens, and when. A trace prints them, and a shrinker removes them.

use std::fmt;

use super::WorldState;
use super::agenda::SimAction;
use super::trace::Happening;
use crate::{Duration, Instant};

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// When it applies; each rule applies once.
    pub when: RuleTrigger,
    /// The fault.
    pub what: Verdict,
}

/// When a rule applies. Posts, pieces and requests are counted from 1, from the beginning of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTrigger {
    /// At a virtual time.
    At(Instant),
    /// Just before a node's `nth` post, which is then posted only if the node is alive. A push counts as one
    /// post for each reader, so a node can die in the middle of a push.
    Post {
        /// The poster.
        node: u32,
        /// The number of the post.
        nth: u64,
    },
    /// Just before the `nth` piece of a write from one node lands at another, so that a connection can break
    /// after any word.
    Piece {
        /// The writer.
        from: u32,
        /// The target.
        to: u32,
        /// The number of the piece on this path, over all its connections and mirrors.
        nth: u64,
    },
    /// Just before a node's `nth` request for memory: a region that it registers, or a mirror that it
    /// attaches. A crash there has the effect that a shortage of memory has on a core ([`crate::Shortage`]).
    Memory {
        /// The node that requests memory.
        node: u32,
        /// The number of the request.
        nth: u64,
    },
}

/// The effect of a rule. A rule for a node applies to all nodes of its machine ([`super::SimWorld::add_node_at`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kills a node, as `kill -9` would; its posts land up to some point.
    Crash(u32),
    /// Stops a node's processor for a while, as SIGSTOP would; its memory remains open to writes.
    Pause {
        /// The node.
        node: u32,
        /// The duration.
        span: Duration,
    },
    /// Cuts all paths between different groups. Nodes in no group form a group together.
    Partition(Vec<Vec<u32>>),
    /// Cuts the paths between two nodes in both directions, and no others.
    Cut {
        /// One end.
        a: u32,
        /// The other end.
        b: u32,
    },
    /// Joins the paths between two nodes in both directions, and no others.
    Mend {
        /// One end.
        a: u32,
        /// The other end.
        b: u32,
    },
    /// Ends all partitions and cuts.
    Heal,
    /// Makes one direction of a path slower.
    Slow {
        /// The writer.
        from: u32,
        /// The target.
        to: u32,
        /// The additional delay; zero ends it.
        extra: Duration,
    },
    /// Breaks all connections between two nodes, which remain alive and can open them again.
    Break {
        /// One end.
        a: u32,
        /// The other end.
        b: u32,
    },
}

impl Verdict {
    /// Returns the first node that the verdict names.
    fn node(&self) -> u32 {
        match self {
            Self::Crash(node) | Self::Pause { node, .. } => *node,
            Self::Slow { from, .. } => *from,
            Self::Break { a, .. } | Self::Cut { a, .. } | Self::Mend { a, .. } => *a,
            Self::Partition(groups) => groups.iter().flatten().copied().next().unwrap_or(0),
            Self::Heal => 0,
        }
    }
}

impl WorldState {
    /// Adds a rule to the run.
    pub(super) fn add_rule(&mut self, rule: Rule) {
        let index = self.rules.len();
        match rule.when {
            RuleTrigger::At(at) => self.agenda.enter(at.as_nanos().max(self.now), SimAction::Rule(index)),
            RuleTrigger::Post { node, nth } => insert(&mut self.nodes[node as usize].post_rules, nth, index),
            RuleTrigger::Piece { from, to, nth } => {
                insert(&mut self.path_mut(from, to).piece_rules, nth, index)
            }
            RuleTrigger::Memory { node, nth } => {
                insert(&mut self.nodes[node as usize].memory_rules, nth, index)
            }
        }
        self.rules.push(rule);
    }

    /// Counts a request for memory and applies the rules that are due.
    pub(super) fn begin_request(&mut self, node: u32) {
        let host = self.host(node) as usize;
        self.nodes[host].requests += 1;
        let count = self.nodes[host].requests;
        while let Some(rule) = due(&mut self.nodes[host].memory_rules, count) {
            self.on_rule(rule);
        }
    }

    /// Applies a rule.
    pub(super) fn on_rule(&mut self, index: usize) {
        let verdict = self.rules[index].what.clone();
        self.strike(&verdict);
    }

    /// Applies a fault.
    pub(super) fn strike(&mut self, verdict: &Verdict) {
        self.trace.add(self.now, verdict.node(), Happening::Fault(verdict.clone()));
        match verdict {
            Verdict::Crash(node) => self.hosted(*node).into_iter().for_each(|node| self.kill(node)),
            Verdict::Pause { node, span } => {
                self.hosted(*node).into_iter().for_each(|node| self.pause(node, Some(*span)));
            }
            Verdict::Partition(groups) => self.partition(groups),
            Verdict::Cut { a, b } => self.hosted_pairs(*a, *b).for_each(|(a, b)| self.cut_between(a, b)),
            Verdict::Mend { a, b } => {
                self.hosted_pairs(*a, *b).for_each(|(a, b)| self.mend_between(a, b));
            }
            Verdict::Heal => self.heal(),
            Verdict::Slow { from, to, extra } => {
                self.hosted_pairs(*from, *to).for_each(|(from, to)| self.path_mut(from, to).extra = *extra);
            }
            Verdict::Break { a, b } => self.hosted_pairs(*a, *b).for_each(|(a, b)| self.break_between(a, b)),
        }
    }

    /// The nodes of one machine with those of another.
    fn hosted_pairs(&self, a: u32, b: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let others = self.hosted(b);
        self.hosted(a).into_iter().flat_map(move |a| others.clone().into_iter().map(move |b| (a, b)))
    }
}

/// Rules of one counter, in the order in which they apply.
pub(super) type Counted = std::collections::VecDeque<(u64, usize)>;

fn insert(rules: &mut Counted, nth: u64, index: usize) {
    let at = rules.partition_point(|(other, _)| *other <= nth);
    rules.insert(at, (nth, index));
}

/// Takes the next rule that is due at `count`.
pub(super) fn due(rules: &mut Counted, count: u64) -> Option<usize> {
    let (nth, index) = *rules.front()?;
    (nth <= count).then(|| {
        rules.pop_front();
        index
    })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.when, self.what)
    }
}

impl fmt::Display for RuleTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "at {} ns", at.as_nanos()),
            Self::Post { node, nth } => write!(f, "before post {nth} of node {node}"),
            Self::Piece { from, to, nth } => {
                write!(f, "before piece {nth} from node {from} lands at node {to}")
            }
            Self::Memory { node, nth } => write!(f, "at request {nth} of node {node} for memory"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash(node) => write!(f, "node {node} crashes"),
            Self::Pause { node, span } => write!(f, "node {node} pauses for {span:?}"),
            Self::Partition(groups) => write!(f, "the network parts into {groups:?}"),
            Self::Cut { a, b } => write!(f, "the paths between node {a} and node {b} are cut"),
            Self::Mend { a, b } => write!(f, "the paths between node {a} and node {b} are joined"),
            Self::Heal => f.write_str("the network heals"),
            Self::Slow { from, to, extra } => {
                write!(f, "the path from node {from} to node {to} is {extra:?} slower")
            }
            Self::Break { a, b } => write!(f, "the connections between node {a} and node {b} break"),
        }
    }
}
