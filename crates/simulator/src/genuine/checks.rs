//! What all nodes have sent and delivered, and what has to hold of it (RamCast §2.2).

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;
use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_protocols::genuine::{
    GenuineMessage, GenuinePosition, PartReplies, QuorumRule, ShardedOutcome, is_genuine_mirror,
};
use squall_protocols::membership::View;

use super::plan::{GenuinePlan, MESSAGE_MAX};
use crate::payload;
use crate::run::Violation;

/// A message: its sender and its number.
pub(super) type MessageId = (NodeId, u64);

/// What a node has delivered, in order, with what is in the state that it began with.
pub(super) type Delivered = Vec<(MessageId, GenuinePosition)>;

/// The part of the object in a shard: which updates are applied, by caller and number, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectPart {
    applied: BTreeSet<MessageId>,
    digest: u64,
}

/// All that a node has at a moment: what a joiner takes over.
#[derive(Clone, Debug)]
pub(super) struct CopiedState {
    delivered: Delivered,
    object: ObjectPart,
}

/// What is known of a message.
#[derive(Debug)]
struct Sent {
    destinations: u64,
    /// How many messages had been delivered anywhere when it was sent.
    told: usize,
}

/// What is known of a node. A process that joins is another one in each attempt.
#[derive(Debug, Default)]
struct NodeHistory {
    home: Option<usize>,
    /// It has the state of its shard.
    has_state: bool,
    /// Shards have no states, and this is the first view in which it takes part: nothing before it is delivered here \[G17\] \[J8\].
    since: u64,
    delivered: Delivered,
    /// The same messages.
    delivered_set: BTreeSet<MessageId>,
    object: ObjectPart,
}

impl NodeHistory {
    /// Whether messages with these destinations are for it.
    fn is_concerned(&self, destinations: u64) -> bool {
        self.home.is_some_and(|shard| destinations >> shard & 1 == 1)
    }
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
    /// Messages that were delivered anew, at a later position: only members that are gone had delivered them before \[G17\].
    anew: BTreeSet<MessageId>,
    nodes: BTreeMap<NodeId, NodeHistory>,
    /// The members of each view.
    views: BTreeMap<u64, Vec<NodeId>>,
    /// The reply of a shard to an update, by shard, caller and number.
    replies: BTreeMap<(usize, MessageId), u64>,
    /// Shards whose states are lost, and since which view.
    lost: BTreeMap<usize, u64>,
    /// What had been sent some time before a follower continues that had stalled.
    sent_early: Option<Vec<MessageId>>,
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
            anew: BTreeSet::new(),
            nodes: BTreeMap::new(),
            views: BTreeMap::new(),
            replies: BTreeMap::new(),
            lost: BTreeMap::new(),
            sent_early: None,
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

    /// A process comes to the group as a node, at its beginning or later: it may be in a view of others before it knows.
    pub(super) fn on_node(&mut self, node: NodeId, place: u32) {
        let has_state = !self.plan.settings.has_states || place < self.plan.group.members;
        let home = self.plan.homes[place as usize];
        self.nodes.entry(node).or_insert(NodeHistory { home, has_state, ..NodeHistory::default() });
    }

    /// \[V1\] All nodes that install a view have the same members. \[G14\] Of those that join, each belongs to a shard of which a member
    /// of the view before had the state.
    pub(super) fn on_install(&mut self, view: &View) -> Result<(), Violation> {
        let (id, members) = (view.id, view.nodes());
        if let Some(first) = self.views.get(&id) {
            let text = format!("[V1] view {id} of {first:?} and of {members:?}");
            return if *first == members { Ok(()) } else { Err(Violation { checker: "views", text }) };
        }
        for member in &view.members {
            self.on_node(member.node, u32::try_from(member.tag).expect("a place in the plan"));
        }
        let before = id.checked_sub(1).and_then(|id| self.views.get(&id)).cloned();
        let before = before.unwrap_or_else(|| members.clone());
        if !self.plan.settings.has_states {
            let come = members.iter().filter(|node| !before.contains(node));
            come.for_each(|node| self.nodes.get_mut(node).expect("a member").since = id);
        }
        let is_held =
            |home| before.iter().any(|node| self.nodes[node].home == home && self.nodes[node].has_state);
        let has_states = self.plan.settings.has_states;
        let has_come =
            |node: &&NodeId| has_states && !before.contains(node) && self.nodes[*node].home.is_some();
        let result = match members.iter().filter(has_come).find(|node| !is_held(self.nodes[*node].home)) {
            Some(node) => {
                let text =
                    format!("[G14] {node} joins in view {id}, and no member of its shard has the state");
                Err(Violation { checker: "admission", text })
            }
            None => Ok(()),
        };
        self.views.insert(id, members);
        for (shard, holders) in view.holders.iter().enumerate() {
            if holders.is_empty() {
                self.lost.entry(shard).or_insert(id);
            }
        }
        result
    }

    /// A process that has joined takes part from this view on.
    pub(super) fn on_arrival(&mut self, node: NodeId, view: u64) {
        if !self.plan.settings.has_states {
            let since = &mut self.nodes.get_mut(&node).expect("it has a view").since;
            *since = view.max(*since);
        }
    }

    /// Whether a node's shard has lost its state by a view, so that it takes part in nothing.
    fn is_lost(&self, node: NodeId, view: u64) -> bool {
        self.nodes[&node].home.and_then(|shard| self.lost.get(&shard)).is_some_and(|since| *since <= view)
    }

    /// A node takes over the state of another one.
    pub(super) fn on_state(&mut self, node: NodeId, state: CopiedState) {
        let taker = self.nodes.get_mut(&node).expect("a node of the group");
        taker.delivered_set = state.delivered.iter().map(|(id, _)| *id).collect();
        (taker.delivered, taker.object, taker.has_state) = (state.delivered, state.object, true);
    }

    /// All that a node has.
    pub(super) fn state(&self, node: NodeId) -> CopiedState {
        let NodeHistory { delivered, object, .. } = &self.nodes[&node];
        CopiedState { delivered: delivered.clone(), object: object.clone() }
    }

    /// \[G18\] A node applies an update of a caller to its part of the object; returns the reply, which depends on all that was
    /// applied before.
    pub(super) fn on_apply(&mut self, node: NodeId, update: MessageId) -> u64 {
        let own = self.nodes.get_mut(&node).expect("a node of the group");
        let (object, shard) = (&mut own.object, own.home.expect("a member of a shard"));
        let words = [object.digest, u64::from(update.0.0), update.1];
        object.digest = words.into_iter().fold(0, |digest, word| Prng::new(digest ^ word).draw());
        let reply = object.digest;
        let fault = if !object.applied.insert(update) {
            Some("it was applied here before")
        } else if *self.replies.entry((shard, update)).or_insert(reply) != reply {
            Some("the state is another one elsewhere")
        } else {
            None
        };
        if let Some(fault) = fault {
            let text = format!("[G18] {node} applies update {update:?} to shard {shard}: {fault}");
            self.take(Err(Violation { checker: "object", text }));
        }
        reply
    }

    /// \[G19\] A caller learns what has become of its update to a set of shards.
    pub(super) fn on_outcome(
        &mut self,
        caller: NodeId,
        (number, shards): (u64, u64),
        outcome: &ShardedOutcome,
    ) {
        let has_reply = |(shard, part): (&usize, &PartReplies)| {
            let reply = self.replies.get(&(*shard, (caller, number)));
            reply.is_some_and(|reply| part.replies == [reply.to_le_bytes()])
        };
        let positions = |replies: &BTreeMap<usize, PartReplies>| {
            replies.values().map(|part| part.position).collect::<BTreeSet<_>>().len()
        };
        let is_lost = |shard: usize| {
            let is_member = |node: &NodeId| self.nodes[node].home == Some(shard);
            let has_gone = |members: &Vec<NodeId>| !members.iter().any(is_member);
            self.lost.contains_key(&shard) || self.views.values().any(has_gone)
        };
        let is_applied = |shard: usize| self.replies.contains_key(&(shard, (caller, number)));
        let is_fine = match outcome {
            ShardedOutcome::Replies(replies) => replies.iter().all(has_reply) && positions(replies) == 1,
            ShardedOutcome::Lost(shard) => {
                let mut others = (0..u64::BITS as usize).filter(|other| shards >> other & 1 == 1);
                is_lost(*shard) && others.all(|other| is_lost(other) || is_applied(other))
            }
            ShardedOutcome::Forgotten(_) => false,
        };
        if !is_fine {
            let text = format!("[G19] {caller} learns of its update {number}: {outcome:?}");
            self.take(Err(Violation { checker: "replies", text }));
        }
    }

    /// What a node has delivered.
    pub(super) fn delivered(&self, node: NodeId) -> &[(MessageId, GenuinePosition)] {
        self.nodes.get(&node).map_or(&[], |node| &node.delivered)
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
        let (own, mine_set) = (&self.nodes[&node], &self.nodes[&node].delivered_set);
        if !own.is_concerned(sent.destinations) || message.destinations != sent.destinations {
            return fail("integrity", "[G2] it is addressed to others");
        }
        let (seed, sender) = (self.plan.group.seed, message.sender.0 as usize);
        if !payload::matches(seed, sender, message.number, MESSAGE_MAX, message.bytes) {
            return fail("contents", "[G8] its bytes are others");
        }
        if mine_set.contains(&id) {
            return fail("integrity", "[G13] it was delivered here before");
        }
        if own.delivered.last().is_some_and(|(_, last)| *last >= message.position) {
            return fail("position", "[G15] a later position was delivered here");
        }
        // What only members have delivered that are gone is new to those that have come since, in shards without states.
        let view = self.views.get(&message.position.view).map_or(&[][..], Vec::as_slice);
        let is_known = view.iter().any(|node| self.nodes[node].delivered_set.contains(&id));
        let known = self.positions.get(&id).filter(|_| is_known || self.plan.settings.has_states);
        if known.is_some_and(|known| *known != message.position) {
            return fail("position", "[G15] it has another position elsewhere");
        }
        let known = &self.told[..sent.told];
        let missing = known.iter().find(|other| {
            !mine_set.contains(*other)
                && own.is_concerned(self.sent[*other].destinations)
                && self.positions[other].view >= own.since
                && !self.anew.contains(*other)
        });
        if let Some(other) = missing {
            return fail("time", &format!("[G6] {other:?} had been delivered when it was sent"));
        }
        if self.positions.insert(id, message.position).is_some_and(|before| before != message.position) {
            self.anew.insert(id);
        }
        if self.told_set.insert(id) {
            self.told.push(id);
        }
        let own = self.nodes.get_mut(&node).expect("a node of the group");
        own.delivered.push((id, message.position));
        own.delivered_set.insert(id);
        self.total += 1;
        Ok(())
    }

    /// Uniform prefix order: of the messages for the shards of two nodes, what one has delivered begins with what the other has.
    pub(super) fn check_prefixes(&self) -> Result<(), Violation> {
        for (nth, (a, first)) in self.nodes.iter().enumerate() {
            for (b, second) in self.nodes.iter().skip(nth + 1) {
                let since = first.since.max(second.since);
                let common = |(id, position): &&(MessageId, GenuinePosition)| {
                    let destinations = self.sent[id].destinations;
                    first.is_concerned(destinations)
                        && second.is_concerned(destinations)
                        && position.view >= since
                };
                let pairs = first.delivered.iter().filter(common);
                let pairs = pairs.zip(second.delivered.iter().filter(common));
                if let Some(((one, _), (other, _))) = pairs.clone().find(|(one, other)| one.0 != other.0) {
                    let text = format!("[G6] {a} delivers {one:?} where {b} delivers {other:?}");
                    return Err(Violation { checker: "prefix order", text });
                }
            }
        }
        Ok(())
    }

    /// Uniform acyclic order: there is one order of all messages that agrees with that of each node.
    pub(super) fn check_acyclic(&self) -> Result<(), Violation> {
        type Delivery = (MessageId, GenuinePosition);
        let mut after: BTreeMap<Delivery, BTreeSet<Delivery>> = BTreeMap::new();
        let all = self.nodes.values().flat_map(|node| &node.delivered);
        let mut waits: BTreeMap<Delivery, usize> = all.map(|delivery| (*delivery, 0)).collect();
        for node in self.nodes.values() {
            for pair in node.delivered.windows(2) {
                if after.entry(pair[0]).or_default().insert(pair[1]) {
                    *waits.get_mut(&pair[1]).expect("it was delivered") += 1;
                }
            }
        }
        let mut free: Vec<Delivery> =
            waits.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
        let mut count = 0;
        while let Some(delivery) = free.pop() {
            count += 1;
            for next in after.get(&delivery).into_iter().flatten() {
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
            // A message is dropped in a view in which its shards have no members: others may come later, if there are no states.
            let reaches = |(view, members): (&u64, &Vec<NodeId>)| {
                let takes_part = |node: &&NodeId| !self.is_lost(**node, *view);
                let is_concerned = |node: &NodeId| self.nodes[node].is_concerned(sent.destinations);
                members.iter().filter(takes_part).any(is_concerned)
            };
            if !is_told && (!present.contains(&id.0) || !self.views.iter().all(reaches)) {
                continue;
            }
            let lacks = |node: &&NodeId| {
                if self.is_lost(**node, u64::MAX) {
                    return false;
                }
                let node = &self.nodes[*node];
                let is_before = |position: &GenuinePosition| position.view < node.since;
                node.is_concerned(sent.destinations)
                    && !node.delivered_set.contains(id)
                    && !self.positions.get(id).is_some_and(is_before)
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

    /// Notes what has been sent by now, if it is the first call.
    pub(super) fn note_sent(&mut self) {
        self.sent_early.get_or_insert_with(|| self.sent.keys().copied().collect());
    }

    /// \[G6\] What had been sent by [`GenuineHistory::note_sent`] is delivered by all members of its shards but `idle`, which
    /// stalls, unless that one has sent it.
    pub(super) fn check_progress(&self, idle: NodeId) -> Result<(), Violation> {
        let sent = self.sent_early.iter().flatten().filter(|(sender, _)| *sender != idle);
        for id in sent {
            let lacks = |(node, own): &(&NodeId, &NodeHistory)| {
                let is_concerned = own.is_concerned(self.sent[id].destinations);
                **node != idle && is_concerned && !own.delivered_set.contains(id)
            };
            if let Some((node, _)) = self.nodes.iter().find(lacks) {
                let text = format!("[G6] {node} has not delivered {id:?} while {idle} stalls");
                return Err(Violation { checker: "progress", text });
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
            let is_concerned = |node: &NodeHistory| node.is_concerned(sent.destinations);
            sender.0.0 == node || self.nodes.get(&NodeId(node)).is_some_and(is_concerned)
        };
        // With a majority for quorum a member writes one word to its shard when a view ends [G11].
        let views =
            if self.plan.settings.quorum == QuorumRule::Majority { self.views.len() as u64 } else { 0 };
        let home = |node: u32| self.nodes.get(&NodeId(node)).and_then(|node| node.home);
        for ((from, to), words) in pairs {
            let ends_views = words <= views && home(from).is_some() && home(from) == home(to);
            let is_concerned = ends_views
                || self
                    .sent
                    .iter()
                    .any(|(id, sent)| takes_part((id, sent), from) && takes_part((id, sent), to));
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
