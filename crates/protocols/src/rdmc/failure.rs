//! Failures: how a group stops at every member, and what it leaves behind (RDMC §2; Derecho §3.1 "Failures"; [B7]).

use squall_fabric::{Duration, Fabric, Grant, Instant, NodeId};

use super::group::{Neighbour, RdmcGroup, RdmcState};
use super::link::RdmcLinks;
use super::message::RdmcMessage;
use super::mutation;
use super::slots::ObjectSlots;
use super::{FailureCause, RdmcApplication, RdmcFailure, UnfinishedObject};
use crate::coverage::{Point, reach};

impl RdmcGroup {
    /// Fails the group: it posts no more blocks, and reports that to its neighbours, on each connection after the
    /// last block.
    pub(super) fn wedge(&mut self, links: &mut RdmcLinks, cause: FailureCause) {
        if !self.is_running() {
            return;
        }
        reach(Point::TransferFailed);
        self.state = RdmcState::Wedged { cause, fences: Vec::new(), deadline: None };
        for neighbour in &mut self.neighbours {
            if !links.contains(neighbour.node) {
                neighbour.has_stopped = true;
            } else if !mutant!(KeepFailureSecret) {
                links.say(neighbour.node, RdmcMessage::Failed { group: self.id, cause });
            }
        }
    }

    /// Notes that a neighbour posts no more blocks.
    pub(super) fn on_stopped(&mut self, peer: NodeId) {
        if let Some(neighbour) = self.neighbour_mut(peer) {
            neighbour.has_stopped = true;
        }
    }

    /// Handles the loss of the link to `peer`: what the peer had posted may arrive until its grants are revoked [F9]
    /// [F11].
    pub(super) fn on_lost<F: Fabric>(
        &mut self,
        fabric: &mut F,
        links: &mut RdmcLinks,
        peer: NodeId,
        cause: FailureCause,
    ) {
        let Some(neighbour) = self.neighbour_mut(peer) else { return };
        neighbour.has_stopped = true;
        let mut lost = Vec::new();
        for multicast in self.multicasts.values_mut() {
            lost.extend(multicast.on_lost(peer));
        }
        lost.extend(self.take_offered_right(peer));
        self.wedge(links, cause);
        lost.iter().for_each(|grant| fabric.revoke(grant));
        if let RdmcState::Wedged { fences, .. } = &mut self.state {
            fences.extend(lost);
        }
    }

    /// Notes that no write under the grant arrives any more.
    pub(super) fn on_revoked(&mut self, grant: &Grant) {
        if let RdmcState::Wedged { fences, .. } = &mut self.state {
            fences.retain(|fence| fence != grant);
        }
    }

    /// Returns the neighbours that have not stopped in time, or that do not take what was posted to them. Links to
    /// them are to be ended: a member that learns of a failure answers at once, and without its answer memory may
    /// still be accessed.
    pub(super) fn silent_neighbours(&mut self, now: Instant) -> Vec<NodeId> {
        let RdmcState::Wedged { deadline, .. } = &mut self.state else { return vec![] };
        let is_due = deadline.is_some_and(|deadline| now >= deadline);
        if is_due || deadline.is_none() {
            *deadline = Some(now + STOP_PATIENCE);
        }
        if !is_due {
            return vec![];
        }
        let takes_all =
            |node: NodeId| self.multicasts.values().all(|multicast| multicast.outgoing.is_at_rest_to(node));
        let silent =
            self.neighbours.iter().filter(|neighbour| !neighbour.is_still() || !takes_all(neighbour.node));
        silent.map(|neighbour| neighbour.node).collect()
    }

    /// Returns when [`RdmcGroup::silent_neighbours`] is to be called again.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            RdmcState::Wedged { deadline, .. } => deadline,
            RdmcState::Running | RdmcState::Reported { .. } => None,
        }
    }

    /// Reports the failure if no write of the group is in flight to or from this member.
    pub(super) fn report<F: Fabric, A: RdmcApplication<F>>(
        &mut self,
        fabric: &mut F,
        application: &mut A,
        slots: &mut ObjectSlots,
    ) -> usize {
        let RdmcState::Wedged { cause, fences, .. } = &self.state else { return 0 };
        let is_settled = fences.is_empty()
            && self.neighbours.iter().all(Neighbour::is_still)
            && self.multicasts.values().all(|multicast| multicast.outgoing.is_at_rest());
        if !is_settled && !mutant!(ReportUnsettled) {
            return 0;
        }
        let (group, cause) = (self.id, *cause);
        self.state = RdmcState::Reported { cause };
        let unfinished = self.unfinished(fabric, slots);
        application.on_failed(RdmcFailure { group, cause, unfinished });
        1
    }

    /// Returns what is left of all objects, by number.
    fn unfinished<F: Fabric>(&mut self, fabric: &mut F, slots: &mut ObjectSlots) -> Vec<UnfinishedObject> {
        self.end_offer(fabric, slots);
        let mut unfinished: Vec<_> = std::mem::take(&mut self.resumed).into_values().collect();
        for mut multicast in std::mem::take(&mut self.multicasts).into_values() {
            multicast.take_grants().for_each(|grant| fabric.revoke(&grant));
            multicast.slot.into_iter().for_each(|slot| slots.free(slot));
            let (object, memory, mut held) = (multicast.object, multicast.memory, multicast.held);
            mutant!(ForgetHeld => held.forget_last());
            unfinished.push(UnfinishedObject { object, memory, held });
        }
        unfinished.sort_by_key(|unfinished| unfinished.object.number);
        unfinished
    }
}

/// Longer than a healthy process is ever delayed, and shorter than a user waits for an error message.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
