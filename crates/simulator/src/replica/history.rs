//! Checker: what all replicas of a shard must agree on \[A1\]–\[A4\], \[V6\] (Derecho app. A).
//!
//! It sees every delivery of every member, so it knows what a state at any position has to be: each member's own updates,
//! and each session's updates once, in the order of the shard.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::{Instant, NodeId};
use squall_protocols::replica::{ShardPosition, ShardView, UpdateOrigin, items};

use super::list::id_of;
use super::tally::ReplicaTally;
use crate::checker::linearizable::{
    AppendOnly, CompletedOperation, ListAnswer, ListOperation, is_linearizable,
};
use crate::run::Violation;

/// Of all shards.
#[derive(Debug, Default)]
pub(super) struct UpdateHistory {
    shards: BTreeMap<u32, Shard>,
    /// Sessions that a shard remembers.
    sessions_max: usize,
    next_id: u64,
    /// Whose updates are those of clients.
    clients: BTreeMap<u64, u32>,
    /// What was asked for and answered, by shard.
    operations: BTreeMap<u32, Vec<CompletedOperation<ListOperation, ListAnswer>>>,
    /// The updates that were acknowledged to members and clients.
    acknowledged: BTreeMap<u64, Acknowledged>,
    /// The updates that were reported to their senders as not delivered.
    denied: BTreeSet<u64>,
    /// The holders of each shard, and the view that each of them has reached, by shard and node.
    standings: BTreeMap<(u32, u32), u64>,
    /// The shards that are considered lost, and by which node.
    losses: BTreeSet<(u32, u32)>,
    /// The last nodes that had the state of a shard, by shard: all that hold it, and those that died, were cut off, or let go of it
    /// when there was no other.
    keepers: BTreeMap<u32, BTreeSet<u32>>,
    /// Whose group has ended, and whether they have left it as they wished.
    ended: BTreeMap<u32, bool>,
    pub(super) tally: ReplicaTally,
}

#[derive(Debug, Default)]
struct Shard {
    /// The updates of the message behind each position.
    log: BTreeMap<ShardPosition, Vec<(UpdateOrigin, Option<u64>)>>,
}

/// An update that was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    shard: u32,
    /// How far the member had come that said so.
    at: ShardPosition,
    /// The node that got the answer, and the one that gave it.
    to: u32,
    by: u32,
}

fn fail<T>(text: String) -> Result<T, Violation> {
    Err(Violation { checker: "objects", text })
}

impl UpdateHistory {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self { sessions_max, ..Self::default() }
    }

    /// A number for an update.
    pub(super) const fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A number for an update of a client; higher than those before it.
    pub(super) fn id_for(&mut self, client: u32) -> u64 {
        let id = self.id();
        self.clients.insert(id, client);
        id
    }

    /// Something is asked of a shard, to be answered with [`UpdateHistory::on_answered`]. Returns its place.
    pub(super) fn on_asked(&mut self, shard: u32, operation: ListOperation, now: Instant) -> usize {
        let operations = self.operations.entry(shard).or_default();
        operations.push(CompletedOperation {
            operation,
            called: now.as_nanos(),
            returned: None,
            answer: None,
        });
        operations.len() - 1
    }

    /// It is answered.
    pub(super) fn on_answered(&mut self, shard: u32, place: usize, answer: ListAnswer, now: Instant) {
        if let Some(done) = self.operations.get_mut(&shard).and_then(|operations| operations.get_mut(place)) {
            (done.returned, done.answer) = (Some(now.as_nanos()), Some(answer));
        }
    }

    /// \[A12\] What was asked of each shard took effect at one moment each, before the state was lost.
    pub(super) fn check_linearizable(&self) -> Result<(), Violation> {
        for (shard, operations) in &self.operations {
            // What was delivered says what has become of an update without an answer.
            let list = self.list_at(*shard, ShardPosition { view: u64::MAX, sequence: 0 });
            let places: BTreeMap<u64, u64> = list.into_iter().zip(0..).collect();
            let known = operations.iter().filter_map(|done| match (done.operation, done.returned) {
                (_, Some(_)) => Some(done.clone()),
                (ListOperation::Append(id), None) => Some(CompletedOperation {
                    answer: Some(ListAnswer::Place(*places.get(&id)?)),
                    ..done.clone()
                }),
                (ListOperation::Read, None) => None,
            });
            let operations: Vec<_> = known.collect();
            if !is_linearizable(&AppendOnly, &operations) {
                return fail(format!(
                    "[A12] what was asked of shard {shard} is not linearizable: {operations:?}"
                ));
            }
        }
        Ok(())
    }

    /// A member delivers a message.
    pub(super) fn on_delivery(
        &mut self,
        shard: u32,
        position: ShardPosition,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let this: Vec<_> = items(bytes).map(|(origin, update)| (origin, id_of(update))).collect();
        if this.is_empty() {
            return fail(format!("[O3] shard {shard} has a message without an update at {position:?}"));
        }
        self.tally.delivered += this.len() as u64;
        self.tally.together += u64::from(this.len() > 1);
        let known = self.shards.entry(shard).or_default().log.entry(position).or_insert_with(|| this.clone());
        if *known != this {
            return fail(format!("[O1] shard {shard} has {this:?} at {position:?}, and {known:?}"));
        }
        Ok(())
    }

    /// A member holds this state.
    pub(super) fn on_state(
        &self,
        node: u32,
        shard: u32,
        at: ShardPosition,
        ids: &[u64],
    ) -> Result<(), Violation> {
        let expected = self.list_at(shard, at);
        if ids != expected {
            let text = format!("[A1] node {node} has {ids:?} in shard {shard} at {at:?}, not {expected:?}");
            return fail(text);
        }
        let lacks = |(id, acknowledged): &(&u64, &Acknowledged)| {
            acknowledged.shard == shard && acknowledged.at <= at && !ids.contains(*id)
        };
        if let Some((id, acknowledged)) = self.acknowledged.iter().find(lacks) {
            return fail(format!("[A2] node {node} in shard {shard} at {at:?} lacks {id}: {acknowledged:?}"));
        }
        if let Some(id) = ids.iter().find(|id| self.denied.contains(id)) {
            return fail(format!("[A4] node {node} has update {id}, which was denied"));
        }
        let mut latest = BTreeMap::new();
        for (id, client) in ids.iter().filter_map(|id| Some((*id, self.clients.get(id)?))) {
            if let Some(before) = latest.insert(client, id).filter(|before| *before > id) {
                return fail(format!("[A11] node {node} has update {id} of client {client} behind {before}"));
            }
        }
        Ok(())
    }

    /// The member `by`, which has come to `at`, answers `to` that update `id` is at `place` in the list.
    pub(super) fn on_reply(
        &mut self,
        id: u64,
        shard: u32,
        place: u64,
        (by, at): (u32, ShardPosition),
        to: u32,
    ) -> Result<(), Violation> {
        let list = self.list_at(shard, at);
        if usize::try_from(place).ok().and_then(|place| list.get(place)) != Some(&id) {
            return fail(format!(
                "[A1] node {by} at {at:?} says that update {id} is at place {place} of {list:?} in shard {shard}"
            ));
        }
        self.acknowledged.insert(id, Acknowledged { shard, at, to, by });
        self.tally.acknowledged += 1;
        Ok(())
    }

    /// A query that `to` has asked in `view` is answered by the member `by`, which has come to `at`.
    pub(super) fn on_answer(
        &mut self,
        shard: u32,
        view: u64,
        (by, at): (u32, ShardPosition),
        to: u32,
        ids: &[u64],
    ) -> Result<(), Violation> {
        self.tally.answered += 1;
        if at.view < view {
            return fail(format!(
                "[A5] node {by} answers from {at:?} what node {to} has asked in view {view}"
            ));
        }
        self.on_state(by, shard, at, ids)?;
        let reports = |acknowledged: &Acknowledged| {
            acknowledged.shard == shard && acknowledged.to == to && acknowledged.by == by
        };
        let missing =
            self.acknowledged.iter().find(|(id, acknowledged)| reports(acknowledged) && !ids.contains(id));
        match missing {
            Some((id, _)) => fail(format!(
                "[A5] node {by} has acknowledged update {id} in shard {shard} to node {to}, and answers without it"
            )),
            None => Ok(()),
        }
    }

    /// The group of `node` has ended, which was in a view of `group`; it has left, or was cut off.
    pub(super) fn on_end(
        &mut self,
        node: u32,
        has_left: bool,
        group: &[NodeId],
        lives: impl Fn(u32) -> bool,
    ) {
        if self.ended.insert(node, has_left).is_none() && has_left {
            let shards: Vec<u32> = self.keepers.keys().copied().collect();
            shards.into_iter().for_each(|shard| self.let_go(node, shard, group, &lives));
        }
    }

    /// `node` has the state of a shard no more: it answers for its loss unless another one has it, or has died or was cut
    /// off while the group did not know.
    fn let_go(&mut self, node: u32, shard: u32, group: &[NodeId], lives: impl Fn(u32) -> bool) {
        let keepers = self.keepers.entry(shard).or_default();
        let is_there = |other: u32| lives(other) && !self.ended.contains_key(&other);
        let mut others = keepers.iter().copied().filter(|other| *other != node);
        if others.any(|other| is_there(other) || group.contains(&NodeId(other))) {
            keepers.remove(&node);
        }
    }

    /// Whether `node`, in `view`, holds the state of a shard now.
    pub(super) fn on_standing(
        &mut self,
        node: u32,
        shard: u32,
        holds: bool,
        view: Option<&ShardView>,
        lives: impl Fn(u32) -> bool,
    ) -> Result<(), Violation> {
        if self.ended.contains_key(&node) {
            self.standings.remove(&(shard, node));
            return Ok(());
        }
        if holds {
            self.keepers.entry(shard).or_default().insert(node);
            self.standings.insert((shard, node), view.map_or(0, |view| view.id));
            return Ok(());
        }
        self.standings.remove(&(shard, node));
        let own = NodeId(node);
        if let Some(view) = view.filter(|view| view.holders.contains(&own) && view.members.contains(&own)) {
            return fail(format!("[A8] node {node} does not hold shard {shard}, though {view:?} says so"));
        }
        if let Some(view) = view {
            self.let_go(node, shard, &view.group, lives);
        }
        Ok(())
    }

    /// \[A8\] Every node that had the state of a lost shard last has died or was cut off. For the end, when all have come to
    /// the same view: a node that is behind may hold a state that the group has given up.
    pub(super) fn check_losses(&self, lives: impl Fn(u32) -> bool) -> Result<(), Violation> {
        let was_cut_off = |keeper: &u32| !lives(*keeper) || self.ended.get(keeper) == Some(&false);
        for (shard, node) in &self.losses {
            let Some(keepers) = self.keepers.get(shard) else { continue };
            if let Some(keeper) = keepers.iter().find(|keeper| !was_cut_off(keeper)) {
                return fail(format!(
                    "[A8] node {node} takes shard {shard} for lost, though node {keeper} had it, which neither died \
                     nor was cut off; the last that had it are {keepers:?}"
                ));
            }
        }
        Ok(())
    }

    /// `node` takes a shard's state for lost in `view`: no member of it that has come so far holds it \[A7\].
    pub(super) fn on_loss(
        &mut self,
        node: u32,
        shard: u32,
        view: &ShardView,
        lives: impl Fn(u32) -> bool,
    ) -> Result<(), Violation> {
        if !self.losses.insert((shard, node)) {
            return Ok(());
        }
        self.tally.lost += 1;
        let holds = |other: &&NodeId| {
            lives(other.0) && self.standings.get(&(shard, other.0)).is_some_and(|at| *at >= view.id)
        };
        match view.group.iter().find(holds) {
            Some(other) => fail(format!(
                "[A7] node {node} takes shard {shard} for lost in view {}, but {other} has it",
                view.id
            )),
            None => Ok(()),
        }
    }

    /// The sender of update `id`, at this place among what was asked of the shard, learns that it is not delivered.
    pub(super) fn deny(&mut self, shard: u32, id: u64, place: usize) {
        self.denied.insert(id);
        self.tally.denied += 1;
        if let Some(done) = self.operations.get_mut(&shard).and_then(|operations| operations.get_mut(place)) {
            // A read without an answer says nothing.
            done.operation = ListOperation::Read;
        }
    }

    /// A shard's list at a position.
    fn list_at(&self, shard: u32, at: ShardPosition) -> Vec<u64> {
        let Some(shard) = self.shards.get(&shard) else { return Vec::new() };
        let mut sessions = Sessions { max: self.sessions_max, ..Sessions::default() };
        let log = shard.log.range(..=at).flat_map(|(_, entry)| entry);
        log.filter(|(origin, _)| sessions.counts(*origin)).filter_map(|(_, id)| *id).collect()
    }
}

/// What sessions have to do with the order.
#[derive(Default)]
struct Sessions {
    max: usize,
    opened: u64,
    /// Number and last update of each, the one used least recently first.
    used: Vec<(u64, u64)>,
}

impl Sessions {
    /// Whether the next message is to be applied.
    fn counts(&mut self, origin: UpdateOrigin) -> bool {
        let (id, number, open) = match origin {
            UpdateOrigin::Member(_) => return true,
            UpdateOrigin::Open(_) => {
                self.opened += 1;
                if self.used.len() >= self.max {
                    self.used.remove(0);
                }
                self.used.push((self.opened, 0));
                return false;
            }
            UpdateOrigin::Query(_) => return false,
            UpdateOrigin::Session { id, number, open } => (id, number, u64::from(open)),
        };
        let Some(place) = self.used.iter().position(|(other, _)| *other == id) else { return false };
        let (_, last) = self.used.remove(place);
        // The next one, or the first behind those that its client has given up.
        let counts = number == (last + 1).max(number.saturating_sub(open));
        self.used.push((id, if counts { number } else { last }));
        counts
    }
}
