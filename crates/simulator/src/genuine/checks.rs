//! What all nodes have sent and delivered, and what has to hold of it (RamCast §2.2).

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;
use squall_fabric::sim::{Happening, TraceRecord};
use squall_protocols::genuine::{GenuineMessage, GenuinePosition, is_genuine_mirror};

use super::plan::{GenuinePlan, MESSAGE_MAX};
use crate::payload;
use crate::run::Violation;

/// A message: its sender and its number.
pub(super) type MessageId = (NodeId, u64);

/// What a node has delivered, in order, with what is in the state that it began with.
pub(super) type Delivered = Vec<(MessageId, GenuinePosition)>;

/// What is known of a message.
#[derive(Debug)]
struct Sent {
    destinations: u64,
    /// How many messages had been delivered anywhere when it was sent.
    told: usize,
}

/// The history of a run.
#[derive(Debug)]
pub(super) struct GenuineHistory {
    plan: GenuinePlan,
    sent: BTreeMap<MessageId, Sent>,
    /// Messages in the order in which each was delivered first.
    told: Vec<MessageId>,
    /// The same messages.
    told_set: BTreeSet<MessageId>,
    positions: BTreeMap<MessageId, GenuinePosition>,
    /// By node.
    delivered: Vec<Delivered>,
    /// The same messages, by node.
    delivered_sets: Vec<BTreeSet<MessageId>>,
    /// The members of each view.
    views: BTreeMap<u64, Vec<NodeId>>,
    /// How many messages were delivered, over all nodes.
    pub(super) total: u64,
    pub(super) violation: Option<Violation>,
}

impl GenuineHistory {
    pub(super) fn new(plan: &GenuinePlan) -> Self {
        Self {
            plan: plan.clone(),
            sent: BTreeMap::new(),
            told: Vec::new(),
            told_set: BTreeSet::new(),
            positions: BTreeMap::new(),
            delivered: vec![Vec::new(); plan.homes.len()],
            delivered_sets: vec![BTreeSet::new(); plan.homes.len()],
            views: BTreeMap::new(),
            total: 0,
            violation: None,
        }
    }

    pub(super) fn take(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.violation.get_or_insert(violation);
        }
    }

    /// The payload of message `number` of a node.
    pub(super) fn payload(&self, node: NodeId, number: u64) -> Vec<u8> {
        let (seed, sender) = (self.plan.group.seed, node.0 as usize);
        let mut bytes = vec![0; payload::length(seed, sender, number, MESSAGE_MAX)];
        payload::fill(seed, sender, number, &mut bytes);
        bytes
    }

    pub(super) fn on_send(&mut self, id: MessageId, destinations: u64) {
        let sent = Sent { destinations, told: self.told.len() };
        let before = self.sent.insert(id, sent);
        assert!(before.is_none(), "[G2] message {id:?} is sent twice");
    }

    /// \[V1\] All nodes that install a view have the same members.
    pub(super) fn on_install(&mut self, id: u64, members: Vec<NodeId>) -> Result<(), Violation> {
        let first = self.views.entry(id).or_insert_with(|| members.clone());
        if *first == members {
            return Ok(());
        }
        Err(Violation { checker: "views", text: format!("[V1] view {id} of {first:?} and of {members:?}") })
    }

    /// A node takes over the state of another one.
    pub(super) fn on_state(&mut self, node: NodeId, state: Delivered) {
        self.delivered_sets[node.0 as usize] = state.iter().map(|(id, _)| *id).collect();
        self.delivered[node.0 as usize] = state;
    }

    /// What a node has delivered.
    pub(super) fn delivered(&self, node: NodeId) -> &Delivered {
        &self.delivered[node.0 as usize]
    }

    /// Integrity, positions, and that nothing comes before what its sender may have known.
    pub(super) fn on_delivery(
        &mut self,
        node: NodeId,
        message: &GenuineMessage<'_>,
    ) -> Result<(), Violation> {
        let id = (message.sender, message.number);
        let fail = |checker, what: &str| {
            Err(Violation {
                checker,
                text: format!("{what}: {node} delivers {id:?} at {:?}", message.position),
            })
        };
        let Some(sent) = self.sent.get(&id) else { return fail("integrity", "[G2] it was never sent") };
        let (mine, mine_set) = (&self.delivered[node.0 as usize], &self.delivered_sets[node.0 as usize]);
        if !self.plan.concerns(sent.destinations, node.0) || message.destinations != sent.destinations {
            return fail("integrity", "[G2] it is addressed to others");
        }
        let (seed, sender) = (self.plan.group.seed, message.sender.0 as usize);
        if !payload::matches(seed, sender, message.number, MESSAGE_MAX, message.bytes) {
            return fail("contents", "[G8] its bytes are others");
        }
        if mine_set.contains(&id) {
            return fail("integrity", "[G13] it was delivered here before");
        }
        if mine.last().is_some_and(|(_, last)| *last >= message.position) {
            return fail("position", "[G15] a later position was delivered here");
        }
        if *self.positions.entry(id).or_insert(message.position) != message.position {
            return fail("position", "[G15] it has another position elsewhere");
        }
        let known = &self.told[..sent.told];
        let missing = known.iter().find(|other| {
            !mine_set.contains(*other) && self.plan.concerns(self.sent[*other].destinations, node.0)
        });
        if let Some(other) = missing {
            return fail("time", &format!("[G6] {other:?} had been delivered when it was sent"));
        }
        if self.told_set.insert(id) {
            self.told.push(id);
        }
        self.delivered[node.0 as usize].push((id, message.position));
        self.delivered_sets[node.0 as usize].insert(id);
        self.total += 1;
        Ok(())
    }

    /// Uniform prefix order: of the messages for the shards of two nodes, what one has delivered begins with what the other has.
    pub(super) fn check_prefixes(&self) -> Result<(), Violation> {
        for (a, first) in self.delivered.iter().enumerate() {
            for (b, second) in self.delivered.iter().enumerate().skip(a + 1) {
                let common = |(id, _): &&(MessageId, GenuinePosition)| {
                    let destinations = self.sent[id].destinations;
                    [a, b].iter().all(|node| self.plan.concerns(destinations, *node as u32))
                };
                let pairs = first.iter().filter(common).zip(second.iter().filter(common));
                if let Some(((one, _), (other, _))) = pairs.clone().find(|(one, other)| one.0 != other.0) {
                    let text = format!("[G6] node {a} delivers {one:?} where node {b} delivers {other:?}");
                    return Err(Violation { checker: "prefix order", text });
                }
            }
        }
        Ok(())
    }

    /// Uniform acyclic order: there is one order of all messages that agrees with that of each node.
    pub(super) fn check_acyclic(&self) -> Result<(), Violation> {
        let mut after: BTreeMap<MessageId, BTreeSet<MessageId>> = BTreeMap::new();
        let mut waits: BTreeMap<MessageId, usize> = self.told.iter().map(|id| (*id, 0)).collect();
        for delivered in &self.delivered {
            for pair in delivered.windows(2) {
                if after.entry(pair[0].0).or_default().insert(pair[1].0) {
                    *waits.get_mut(&pair[1].0).expect("it was delivered") += 1;
                }
            }
        }
        let mut free: Vec<MessageId> =
            waits.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
        let mut count = 0;
        while let Some(id) = free.pop() {
            count += 1;
            for next in after.get(&id).into_iter().flatten() {
                let left = waits.get_mut(next).expect("it was delivered");
                *left -= 1;
                if *left == 0 {
                    free.push(*next);
                }
            }
        }
        if count == waits.len() {
            return Ok(());
        }
        let text = format!("[G6] {} messages are delivered in a cycle", waits.len() - count);
        Err(Violation { checker: "acyclic order", text })
    }

    /// Uniform agreement and validity, of the members of the last view that have their states: each has delivered all that any
    /// node has delivered, and all that members have sent.
    pub(super) fn check_complete(&self, present: &[NodeId]) -> Result<(), Violation> {
        for (id, sent) in &self.sent {
            let is_told = self.told_set.contains(id);
            if !is_told && !present.contains(&id.0) {
                continue;
            }
            let lacks = |node: &&NodeId| {
                self.plan.concerns(sent.destinations, node.0)
                    && !self.delivered_sets[node.0 as usize].contains(id)
            };
            if let Some(node) = present.iter().find(lacks) {
                let checker = if is_told { "agreement" } else { "validity" };
                let text =
                    format!("[G12] [G13] {node} has not delivered {id:?} for shards {:b}", sent.destinations);
                return Err(Violation { checker, text });
            }
        }
        Ok(())
    }

    /// \[G16\] Words of genuine multicast pass only between the sender and the members of the destination shards of one message.
    pub(super) fn check_words(&self, trace: &[TraceRecord]) -> Result<(), Violation> {
        let mut pairs = BTreeMap::new();
        for record in trace {
            if let Happening::Posted { to, words, mirror: Some((key, _)) } = record.what
                && is_genuine_mirror(key)
            {
                *pairs.entry((record.node, to)).or_insert(0_u64) += u64::from(words);
            }
        }
        let takes_part = |(sender, sent): (&MessageId, &Sent), node: u32| {
            sender.0.0 == node || self.plan.concerns(sent.destinations, node)
        };
        for ((from, to), words) in pairs {
            let is_concerned =
                self.sent.iter().any(|(id, sent)| takes_part((id, sent), from) && takes_part((id, sent), to));
            if !is_concerned {
                let text = format!(
                    "[G16] {words} words pass from node {from} to node {to}, which no message concerns"
                );
                return Err(Violation { checker: "genuineness", text });
            }
        }
        Ok(())
    }
}
