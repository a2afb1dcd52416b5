//! Polling: which node polls next, and when.
//!
//! A node that did work polls again as soon as its processor is free (cost model) or after a random pause
//! (adversary), so that nodes poll in any order. A node that found no work sleeps until its memory changes,
//! an event is pending, or its deadline is reached: polls in between would find nothing ([`crate::Core`]).

use super::WorldState;
use super::adversary::Adversary;
use super::clock::DriftingClock;
use super::fault::nanos;
use super::node::NodeState;
use crate::Instant;

impl WorldState {
    /// Advances time until a node is due to poll, but no further than `until`.
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

    /// Ends a node's step.
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

    /// Wakes `node`, if it sleeps, because something has changed for it.
    pub(super) fn touch(&mut self, node: u32) {
        let rest = self.rest_ns();
        let state = &mut self.nodes[node as usize];
        if state.state != NodeState::Crashed {
            let at = state.clock.max(self.now) + rest;
            state.ready_at = Some(state.ready_at.map_or(at, |other| other.min(at)));
        }
    }

    /// Draws the pause before a poll.
    fn rest_ns(&mut self) -> u64 {
        match &self.config.adversary {
            // Time must pass even if a protocol never sleeps.
            Some(adversary) => 1 + Adversary::wait_ns(&mut self.prng, adversary.poll_gap_max),
            None => u64::from(self.config.cost.poll_ns == 0),
        }
    }

    /// Charges the processor of `node` with `span_ns` of work.
    pub(super) fn charge(&mut self, node: u32, span_ns: u64) {
        let now = self.now;
        let clock = &mut self.nodes[node as usize].clock;
        *clock = (*clock).max(now) + span_ns;
    }

    /// Returns the world's time at `node`: not before its processor has finished all its work.
    pub(super) fn local_now(&self, node: u32) -> u64 {
        self.nodes[node as usize].clock.max(self.now)
    }

    /// Returns what the clock of `node` shows.
    pub(super) fn clock(&self, node: u32) -> Instant {
        self.nodes[node as usize].dial.show(self.local_now(node))
    }

    /// Draws a clock for a new node.
    pub(super) fn draw_dial(&mut self) -> DriftingClock {
        let Some(adversary) = &self.config.adversary else { return DriftingClock::default() };
        let offset = self.prng.below(nanos(adversary.clock_offset_max) + 1);
        DriftingClock::drawn(offset, adversary.clock_drift_max, &mut self.rates)
    }
}
