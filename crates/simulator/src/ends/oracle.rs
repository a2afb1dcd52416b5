//! What is true in a run, and the checks against it.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_protocols::ends::{Ballot, EndValue, EndingView, MessageFate};

use super::plan::EndsEvent;
use super::process::EndsMode;
use super::world::EndsWorld;
use crate::run::Violation;

/// A view, and how it has ended.
#[derive(Clone, Debug)]
pub(super) struct EndsViewState {
    pub(super) view: EndingView,
    /// By shard, the position of its first message in the shard's order.
    pub(super) base: Vec<usize>,
    /// By shard, its messages in their order.
    pub(super) sent: Vec<Vec<EndsSent>>,
    /// By shard, whether its state begins with this view.
    pub(super) begins: Vec<bool>,
    pub(super) decided: Option<Arc<EndValue>>,
    /// The processes that have entered it, with their starts.
    pub(super) lived: Vec<(usize, u64)>,
}

/// A message in the order of its shard in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndsSent {
    pub(super) message: usize,
    pub(super) column: usize,
    /// The number of messages of its sender, or its timestamp.
    pub(super) count: u64,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndsMessage {
    pub(super) slot: usize,
    pub(super) node: NodeId,
    pub(super) starts: u64,
    pub(super) shard: usize,
    pub(super) is_delivered: bool,
}

impl EndsViewState {
    /// Returns the process that has a rank.
    pub(super) fn slot(&self, rank: usize) -> usize {
        usize::try_from(self.view.members[rank].tag).unwrap_or(0)
    }

    /// Returns the messages of a shard that count, if the view ends so, with their places in the view's order.
    pub(super) fn counted<'a>(
        &'a self,
        shard: usize,
        value: &'a EndValue,
    ) -> impl Iterator<Item = (usize, EndsSent)> + 'a {
        let counts = move |(_, sent): &(usize, EndsSent)| {
            value.trims[shard].get(sent.column).is_some_and(|trim| sent.count <= *trim)
        };
        self.sent[shard].iter().copied().enumerate().filter(counts)
    }
}

impl EndsWorld<'_> {
    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        if self.violation.is_none() {
            self.note(0, || format!("{checker}: {text}"));
            self.violation = Some(Violation { checker, text });
        }
    }

    /// Returns whether a member lives as the identity that it has in a view.
    pub(super) fn is_alive(&self, view: usize, rank: usize) -> bool {
        let state = &self.views[view];
        let process = &self.processes[state.slot(rank)];
        process.is_up && process.node == state.view.members[rank].node
    }

    /// Returns whether a member that holds the state of a shard in a view lives, with its memory.
    pub(super) fn has_holder(&self, view: usize, shard: usize) -> bool {
        let state = &self.views[view];
        state.view.shards[shard].members.iter().any(|rank| {
            let process = &self.processes[state.slot(rank)];
            let is_there = process.mode != EndsMode::Outside && process.view <= view;
            let has_memory = !process.is_restarted || process.view < view;
            self.is_alive(view, rank) && is_there && has_memory && process.parts[shard].is_whole
        })
    }

    /// A process has decided how a view ends.
    pub(super) fn on_decided(&mut self, slot: usize, view: usize, value: &Arc<EndValue>, ballot: Ballot) {
        self.note(slot, || format!("decides view {view} {ballot:?} {value:?}"));
        match self.views[view].decided.clone() {
            Some(before) if before != *value => {
                self.fail("ends", format!("view {view} ends as {before:?} and as {value:?}"));
            }
            Some(_) => {}
            None => self.on_first_decision(view, value, ballot),
        }
        self.reach(EndsEvent::Decide, slot);
        if self.processes[slot].is_in_view() && self.processes[slot].view == view {
            self.learn_end(slot, value.clone());
        }
    }

    fn on_first_decision(&mut self, view: usize, value: &Arc<EndValue>, ballot: Ballot) {
        let counter = if ballot.is_restart() { &mut self.tally.by_ballot } else { &mut self.tally.live };
        *counter += 1;
        self.views[view].decided = Some(value.clone());
        let shards = self.plan.shards.len();
        let (mut base, mut begins) = (self.views[view].base.clone(), vec![false; shards]);
        for shard in 0..shards {
            begins[shard] = value.given_up[shard] || self.views[view].view.shards[shard].members.is_empty();
            if begins[shard] {
                self.check_given_up(view, shard);
                base[shard] = self.orders[shard].len();
                self.last_times[shard] = 0;
            } else {
                base[shard] += self.views[view].counted(shard, value).count();
                self.check_delivered(view, shard, value);
            }
        }
        let next = self.views[view].view.next(value);
        self.check_next(view, value, &next);
        self.count_excluded(view, value);
        let sent = vec![Vec::new(); shards];
        self.views.push(EndsViewState { view: next, base, sent, begins, decided: None, lived: Vec::new() });
    }

    /// A shard is not given up while a holder lives, unless nothing was delivered in it, or holders may be given up for silence.
    fn check_given_up(&mut self, view: usize, shard: usize) {
        let state = &self.views[view];
        if state.view.shards[shard].members.is_empty() {
            return;
        }
        self.tally.given_up += 1;
        let is_new = state.begins[shard] && self.orders[shard].len() == state.base[shard];
        let for_silence = self.plan.gives_up_silent && !state.view.is_durable();
        self.lost_shards += usize::from(!is_new);
        // What was delivered is lost with the state, and may be delivered again.
        for message in self.orders[shard].clone() {
            self.messages[message].is_delivered = false;
        }
        if self.has_holder(view, shard) && !is_new && !for_silence {
            self.fail("state", format!("view {view} gives up shard {shard} while a holder lives"));
        }
    }

    /// What was delivered counts.
    fn check_delivered(&mut self, view: usize, shard: usize, value: &EndValue) {
        let state = &self.views[view];
        let delivered = self.orders[shard].len() - state.base[shard].min(self.orders[shard].len());
        let mut counted = state.counted(shard, value).map(|(place, _)| place);
        let is_lost = (0..delivered).any(|place| counted.next() != Some(place));
        drop(counted);
        if is_lost {
            let trims = &value.trims[shard];
            self.fail(
                "lost",
                format!("shard {shard} of view {view}: {delivered} are delivered, trims {trims:?}"),
            );
        }
    }

    /// The next view has a member, and its floor covers all trims.
    fn check_next(&mut self, view: usize, value: &EndValue, next: &EndingView) {
        let state = &self.views[view].view;
        let timed = (0..self.plan.shards.len()).filter(|shard| state.shards[*shard].kind.is_timed);
        let highest = timed.flat_map(|shard| value.trims[shard].clone()).max().unwrap_or(0);
        if next.floor < highest.max(state.floor) {
            self.fail("floor", format!("view {view}: trims {:?}, floor {}", value.trims, next.floor));
        }
        if next.members.is_empty() {
            self.fail("ends", format!("view {view} ends without a next member"));
        }
    }

    fn count_excluded(&mut self, view: usize, value: &EndValue) {
        let out = self.views[view].view.ranks() - value.stay - value.left;
        let alive = out.iter().filter(|rank| self.is_alive(view, *rank)).count();
        self.tally.excluded += alive as u64;
        self.tally.left += value.left.len() as u64;
        self.tally.joined += value.joins.len() as u64;
    }

    /// A process delivers the message at a place of its view's order; `at` is its position among all that count.
    pub(super) fn on_delivered(&mut self, slot: usize, shard: usize, place: usize, at: usize) {
        let view = self.processes[slot].view;
        let part = &self.processes[slot].parts[shard];
        let is_here = self.has_message(part.got.clone(), view, shard, place);
        if !is_here || part.missing >> (place % 64) & 1 == 1 {
            return self.fail(
                "hole",
                format!("process {slot} delivers {place} of shard {shard} of view {view} and lacks it"),
            );
        }
        self.on_position(slot, view, shard, place, at);
    }

    /// A process with everything before a view replays what counts of that view \[K18\].
    pub(super) fn replay(&mut self, slot: usize, view: usize, shard: usize) {
        let Some(value) = self.views[view].decided.clone() else { return };
        let places: Vec<usize> = self.views[view].counted(shard, &value).map(|(place, _)| place).collect();
        for (at, place) in places.into_iter().enumerate() {
            self.on_position(slot, view, shard, place, at);
        }
    }

    fn on_position(&mut self, slot: usize, view: usize, shard: usize, place: usize, at: usize) {
        let sent = self.views[view].sent[shard][place];
        // Members that learn later that the shard was given up may deliver what is lost with it.
        let gives_up =
            |state: &EndsViewState| state.decided.as_ref().is_some_and(|value| value.given_up[shard]);
        if self.views[view..].iter().any(gives_up) {
            return;
        }
        if let Some(value) = self.views[view].decided.clone()
            && value.trims[shard].get(sent.column).is_none_or(|trim| sent.count > *trim)
        {
            let trims = &value.trims[shard];
            return self.fail(
                "lost",
                format!("process {slot} delivers {sent:?} of view {view}, whose trims are {trims:?}"),
            );
        }
        let position = self.views[view].base[shard] + at;
        let length = self.orders[shard].len();
        match self.orders[shard].get(position) {
            None if position > length => self
                .fail("gap", format!("process {slot} delivers {position} of shard {shard}, known: {length}")),
            Some(other) if *other != sent.message => {
                self.fail(
                    "order",
                    format!(
                        "process {slot} delivers {} at {position} of shard {shard}, not {other}",
                        sent.message
                    ),
                );
            }
            Some(_) => {}
            None => self.on_first_delivery(slot, shard, sent),
        }
    }

    fn on_first_delivery(&mut self, slot: usize, shard: usize, sent: EndsSent) {
        let message = sent.message;
        if self.messages[message].is_delivered {
            return self.fail("double", format!("process {slot} delivers message {message} again"));
        }
        if self.plan.shards[shard].kind.is_timed {
            if sent.count <= self.last_times[shard] {
                let before = self.last_times[shard];
                return self.fail(
                    "time",
                    format!("shard {shard}: message {message} at {}, after {before}", sent.count),
                );
            }
            self.last_times[shard] = sent.count;
        }
        self.messages[message].is_delivered = true;
        self.orders[shard].push(message);
        self.tally.delivered += 1;
    }

    /// Returns whether counts by column include a message.
    pub(super) fn has_message(&self, got: Vec<usize>, view: usize, shard: usize, place: usize) -> bool {
        let sent = self.views[view].sent[shard][place];
        match self.plan.shards[shard].kind.is_timed {
            true => got.first().is_some_and(|got| place < *got),
            false => got.get(sent.column).is_some_and(|got| sent.count <= *got as u64),
        }
    }

    /// Returns the counts as the rules see them: timestamps in shards that have them.
    pub(super) fn counts(&self, view: usize, shard: usize, got: &[usize]) -> Vec<u64> {
        if !self.plan.shards[shard].kind.is_timed {
            return got.iter().map(|got| *got as u64).collect();
        }
        let sent = &self.views[view].sent[shard];
        let last =
            |got: &usize| got.checked_sub(1).and_then(|last| sent.get(last)).map_or(0, |sent| sent.count);
        got.iter().map(last).collect()
    }

    /// The fate of a message was reported to its sender's application.
    pub(super) fn on_fate(&mut self, message: usize, fate: MessageFate) {
        self.tally.fates += 1;
        self.fates.push((message, fate));
    }

    /// What was reported of messages and replied is true. A shard that was given up has lost what was in it.
    pub(super) fn check_reports(&mut self, is_settled: bool) {
        if self.lost_shards > 0 || self.gone > 0 {
            return;
        }
        for (message, fate) in self.fates.clone() {
            let is_delivered = self.messages[message].is_delivered;
            let is_false = match fate {
                MessageFate::Delivered => !is_delivered,
                MessageFate::NotDelivered => is_delivered,
                MessageFate::SendAgain | MessageFate::Unknown => false,
            };
            if is_false && is_settled {
                self.fail("report", format!("message {message} was reported as {fate:?}"));
            }
        }
        if !is_settled {
            return;
        }
        let newest = self.views.len() - 1;
        for message in self.replied.clone() {
            let of = self.messages[message];
            if !of.is_delivered && self.views[newest].view.rank(of.node).is_none() {
                self.fail("reply", format!("message {message} was answered and is lost"));
            }
        }
        self.check_resent(newest);
    }

    /// A message of a sender that stays is delivered or under way.
    fn check_resent(&mut self, newest: usize) {
        for message in 0..self.messages.len() {
            let of = self.messages[message];
            let process = &self.processes[of.slot];
            let Some(rank) = self.views[newest].view.rank(of.node) else { continue };
            let is_member = self.views[newest].view.shards[of.shard].members.contains(rank);
            let was_moved = self.fates.iter().any(|(other, _)| *other == message);
            let is_under_way = self.views[newest].sent[of.shard].iter().any(|sent| sent.message == message);
            if is_member && process.starts == of.starts && !was_moved && !of.is_delivered && !is_under_way {
                self.fail("resend", format!("message {message} of process {} is nowhere", of.slot));
            }
        }
    }
}
