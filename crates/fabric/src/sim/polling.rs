//! Polling: which node polls next, and when.
//!
//! A node that worked polls again as soon as its processor is free (cost model) or after a random rest
//! (adversary), so that nodes poll in any order. A node that found nothing to do sleeps until its memory changes,
//! an event waits for it, or its deadline comes: the polls in between would find nothing ([`crate::Core`]).

use super::WorldState;
use super::adversary::Adversary;
use super::clock::DriftingClock;
use super::fault::nanos;
use super::node::NodeState;
use crate::Instant;

impl WorldState {
    /// Lets time pass up to the next turn of a node, and no further than `until`.
    pub(super) fn next_poll(&mut self, until: u64) -> Option<u32> {
        loop {
            let poll = self.earliest_poll();
            let poll_at = poll.map_or(u64::MAX, |(at, _)| at);
            let event_at = self.agenda.next_at().unwrap_or(u64::MAX);
            if event_at.min(poll_at) > until {
                self.now = self.now.max(until);
                return None;
            }
            if event_at > poll_at {
                let (at, node) = poll?;
                self.now = self.now.max(at);
                self.nodes[node as usize].ready_at = None;
                return Some(node);
            }
            self.act();
        }
    }

    fn earliest_poll(&self) -> Option<(u64, u32)> {
        let ready = |node: &super::node::SimNode| node.ready_at.filter(|_| node.state == NodeState::Running);
        (0..).zip(&self.nodes).filter_map(|(i, node)| Some((ready(node)?, i))).min()
    }

    /// Ends a node's turn.
    pub(super) fn rest(&mut self, node: u32, worked: bool, deadline: Option<Instant>) {
        let free_at = self.local_now(node);
        let rest = self.rest_ns();
        let state = &mut self.nodes[node as usize];
        if state.state == NodeState::Crashed {
            return;
        }
        let dial = state.dial;
        let deadline_at = deadline.map(|deadline| dial.time_of(deadline).max(free_at + 1));
        let again = (worked || !state.inbox.is_empty()).then_some(free_at + rest);
        state.ready_at = [state.ready_at, deadline_at, again].into_iter().flatten().min();
    }

    /// Something changed for `node`: if it sleeps, it looks soon.
    pub(super) fn touch(&mut self, node: u32) {
        let rest = self.rest_ns();
        let state = &mut self.nodes[node as usize];
        if state.state != NodeState::Crashed {
            let at = state.clock.max(self.now) + rest;
            state.ready_at = Some(state.ready_at.map_or(at, |other| other.min(at)));
        }
    }

    /// The rest before a poll.
    fn rest_ns(&mut self) -> u64 {
        match &self.config.adversary {
            // Time passes even if a protocol never sleeps.
            Some(adversary) => 1 + Adversary::wait_ns(&mut self.prng, adversary.poll_gap_max),
            None => u64::from(self.config.cost.poll_ns == 0),
        }
    }

    /// Lets the processor of `node` work for `span_ns`.
    pub(super) fn charge(&mut self, node: u32, span_ns: u64) {
        let now = self.now;
        let clock = &mut self.nodes[node as usize].clock;
        *clock = (*clock).max(now) + span_ns;
    }

    /// The time of the world as `node` experiences it: later than all that its processor has done.
    pub(super) fn local_now(&self, node: u32) -> u64 {
        self.nodes[node as usize].clock.max(self.now)
    }

    /// What the clock of `node` shows.
    pub(super) fn clock(&self, node: u32) -> Instant {
        self.nodes[node as usize].dial.show(self.local_now(node))
    }

    /// A clock for a new node.
    pub(super) fn draw_dial(&mut self) -> DriftingClock {
        let Some(adversary) = &self.config.adversary else { return DriftingClock::default() };
        let offset = self.prng.below(nanos(adversary.clock_offset_max) + 1);
        DriftingClock::drawn(offset, adversary.clock_drift_max, &mut self.rates)
    }
}
