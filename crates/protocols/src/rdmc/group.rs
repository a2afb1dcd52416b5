//! A group: members, neighbours, and the objects that are open (RDMC §2, §3).

use std::collections::BTreeMap;

use squall_fabric::{Fabric, Grant, Instant, NodeId};

use super::link::{PostOutcome, RdmcLinks};
use super::multicast::ObjectMulticast;
use super::mutation;
use super::offer::{MemoryOffer, TargetOffer};
use super::outgoing::ReadyForBlock;
use super::schedule::TransferPlan;
use super::settings::{BLOCKS_MAX, OBJECTS_AHEAD, RdmcSettings};
use super::slots::{ObjectSlot, ObjectSlots};
use super::{FailureCause, GroupId, HeldBlocks, ObjectMemory, RdmcApplication, RdmcObject, UnfinishedObject};
use crate::coverage::{Point, reach};

/// One group at one member.
#[derive(Debug)]
pub(super) struct RdmcGroup {
    pub(super) id: GroupId,
    pub(super) members: Vec<NodeId>,
    pub(super) rank: usize,
    pub(super) settings: RdmcSettings,
    pub(super) digest: u64,
    /// All members with which blocks are ever exchanged, by node.
    pub(super) neighbours: Vec<Neighbour>,
    /// The objects from `finished` on that are known here; a number may be missing for a while.
    pub(super) multicasts: BTreeMap<u64, ObjectMulticast>,
    /// Memory for an object that has not been announced, and the member to which it is offered: the source of all
    /// first blocks \[B6\].
    pub(super) offer: Option<MemoryOffer>,
    pub(super) first_source: Option<NodeId>,
    /// Objects left over from a failed group, until the root sends them again [B7].
    pub(super) resumed: BTreeMap<u64, UnfinishedObject>,
    /// Objects below this number are released.
    pub(super) finished: u64,
    pub(super) state: RdmcState,
}

/// A member with which blocks are exchanged.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) node: NodeId,
    /// It has created the group.
    pub(super) has_joined: bool,
    /// The group has failed, and no block of it comes from there any more.
    pub(super) has_stopped: bool,
    /// Its first block of an object comes from here \[B6\].
    pub(super) is_first_target: bool,
    /// Memory for an object that has not been announced to it.
    pub(super) offered: Option<TargetOffer>,
}

#[derive(Debug)]
pub(super) enum RdmcState {
    Running,
    /// It has failed; blocks may still arrive.
    Wedged {
        cause: FailureCause,
        /// Grants of lost neighbours that are being revoked.
        fences: Vec<Grant>,
        /// The time by which neighbours must have stopped; set in the first evaluation.
        deadline: Option<Instant>,
    },
    /// It has failed, and that is reported to the application.
    Reported {
        cause: FailureCause,
    },
}

impl RdmcGroup {
    pub(super) fn new(
        id: GroupId,
        node: NodeId,
        members: &[NodeId],
        settings: RdmcSettings,
        first: u64,
    ) -> Option<Self> {
        let rank = members.iter().position(|member| *member == node)?;
        let ranks = neighbours(&settings, members.len(), rank);
        let tree = TransferPlan::new(&settings.schedule, members.len(), 1);
        let first_targets = tree.targets(rank);
        let neighbour = |rank: usize| Neighbour {
            node: members[rank],
            has_joined: false,
            has_stopped: false,
            is_first_target: first_targets.contains(&rank),
            offered: None,
        };
        let mut neighbours: Vec<_> = ranks.into_iter().map(neighbour).collect();
        neighbours.sort_by_key(|neighbour| neighbour.node);
        Some(Self {
            id,
            members: members.to_vec(),
            rank,
            digest: settings.digest(members, first),
            settings,
            neighbours,
            multicasts: BTreeMap::new(),
            offer: None,
            first_source: tree.sources(rank).first().map(|source| members[*source]),
            resumed: BTreeMap::new(),
            finished: first,
            state: RdmcState::Running,
        })
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, RdmcState::Running)
    }

    /// Returns why it has failed, if it has.
    pub(super) const fn cause(&self) -> Option<FailureCause> {
        match self.state {
            RdmcState::Running => None,
            RdmcState::Wedged { cause, .. } | RdmcState::Reported { cause } => Some(cause),
        }
    }

    pub(super) fn neighbour_mut(&mut self, node: NodeId) -> Option<&mut Neighbour> {
        let at = self.neighbours.binary_search_by_key(&node, |neighbour| neighbour.node).ok()?;
        Some(&mut self.neighbours[at])
    }

    /// Returns whether it can be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        match self.state {
            RdmcState::Running => self.multicasts.is_empty() && self.offer.is_none(),
            RdmcState::Wedged { .. } => false,
            RdmcState::Reported { .. } => true,
        }
    }

    /// Sends an object, at the root; returns its number, which is the next one.
    pub(super) fn send(&mut self, memory: ObjectMemory, bytes: u64) -> u64 {
        let number = self.multicasts.last_key_value().map_or(self.finished, |(last, _)| last + 1);
        let object = RdmcObject { group: self.id, number, bytes };
        let mut multicast = ObjectMulticast::new(object, &self.settings, &self.members, self.rank);
        multicast.supply(memory, HeldBlocks::all(self.settings.blocks(bytes)));
        self.multicasts.insert(number, multicast);
        number
    }

    /// Handles the announcement of an object by a source.
    pub(super) fn on_announce(
        &mut self,
        peer: NodeId,
        number: u64,
        bytes: u64,
        slot: ObjectSlot,
    ) -> Result<(), FailureCause> {
        let breach = Err(FailureCause::Breached(peer));
        let ahead = OBJECTS_AHEAD * (self.members.len() as u64 + 1);
        let is_near = number >= self.finished && number - self.finished < ahead;
        if self.rank == 0 || !is_near || self.settings.blocks(bytes) > BLOCKS_MAX {
            return breach;
        }
        let object = RdmcObject { group: self.id, number, bytes };
        if !self.multicasts.contains_key(&number) {
            let mut multicast = ObjectMulticast::new(object, &self.settings, &self.members, self.rank);
            self.take_offer(&mut multicast);
            self.multicasts.insert(number, multicast);
        }
        let multicast = self.multicasts.get_mut(&number).expect("it was inserted above");
        match multicast.incoming.source_mut(peer) {
            Some(source) if source.slot.is_none() => source.slot = Some(slot),
            _ => return breach,
        }
        if multicast.object != object {
            return breach;
        }
        self.take_up(peer, number)
    }

    /// Continues with what a failed group has left of the object, if it is the same object [B7].
    fn take_up(&mut self, peer: NodeId, number: u64) -> Result<(), FailureCause> {
        let Some(UnfinishedObject { object, memory, held }) = self.resumed.remove(&number) else {
            return Ok(());
        };
        reach(Point::TransferResumed);
        let multicast = self.multicasts.get_mut(&number).expect("just announced");
        if object.bytes != multicast.object.bytes {
            return Err(FailureCause::Disagreed(peer));
        }
        if let Some(memory) = memory {
            let mut held = held;
            held.cut_to_summary();
            multicast.supply(memory, held);
        }
        Ok(())
    }

    /// Notes that a target is ready for the blocks of an object.
    pub(super) fn on_ready(
        &mut self,
        peer: NodeId,
        number: u64,
        ready: ReadyForBlock,
    ) -> Result<(), FailureCause> {
        let me = self.members[self.rank];
        let multicast = self.multicasts.get_mut(&number).ok_or(FailureCause::Breached(peer))?;
        let words = multicast.object.words() as u64;
        let target = multicast.outgoing.target_mut(peer).ok_or(FailureCause::Breached(peer))?;
        let is_right = ready.grant.owner == peer && ready.grant.peer == me && ready.grant.words >= words;
        if !is_right || !target.is_announced || target.ready.is_some() {
            return Err(FailureCause::Breached(peer));
        }
        target.ready = Some(ready);
        Ok(())
    }

    /// Gets memory for the next objects, announces them and reports *ready*, and sends an offer for one more; returns
    /// the amount of work done.
    pub(super) fn open<F: Fabric, A: RdmcApplication<F>>(
        &mut self,
        fabric: &mut F,
        application: &mut A,
        links: &mut RdmcLinks,
        slots: &mut ObjectSlots,
    ) -> Result<usize, FailureCause> {
        let mut work = self.tend_offer(fabric, links, slots);
        for number in self.finished..self.finished + OBJECTS_AHEAD {
            let Some(multicast) = self.multicasts.get_mut(&number) else { break };
            if multicast.slot.is_none() {
                multicast.slot = slots.take(self.id, number);
                work += 1;
            }
            work += multicast.announce(links, &mut self.neighbours);
            if !multicast.ask(fabric, application) {
                return Err(FailureCause::Refused(self.members[self.rank]));
            }
            if !multicast.is_open() {
                break;
            }
            work += multicast.answer(fabric, links);
            work += multicast.incoming.report(fabric, links);
        }
        Ok(work)
    }

    /// Posts a block of an object, if all earlier objects are posted completely.
    pub(super) fn post_next<F: Fabric>(
        &mut self,
        fabric: &mut F,
        links: &mut RdmcLinks,
        number: u64,
    ) -> PostOutcome {
        let is_next = self.multicasts.range(..number).all(|(_, multicast)| multicast.outgoing.is_posted());
        match self.multicasts.get_mut(&number) {
            Some(multicast) if is_next && matches!(self.state, RdmcState::Running) => {
                multicast.post_next(fabric, links)
            }
            _ => PostOutcome::Later,
        }
    }

    /// Hands over objects that are complete, in order, and releases those that are finished; returns the amount of
    /// work done.
    pub(super) fn finish<F: Fabric, A: RdmcApplication<F>>(
        &mut self,
        fabric: &mut F,
        application: &mut A,
        slots: &mut ObjectSlots,
    ) -> usize {
        let mut work = 0;
        for (expected, (number, multicast)) in (self.finished..).zip(&mut self.multicasts) {
            let is_next = *number == expected && multicast.is_complete();
            if !is_next && !mutant!(HandOverUnordered) {
                break;
            }
            if multicast.is_complete() && !multicast.is_handed_over {
                multicast.is_handed_over = true;
                multicast.hand_over(application, self.rank);
                work += 1;
            }
        }
        while let Some(entry) = self.multicasts.first_entry() {
            if *entry.key() != self.finished || !entry.get().is_handed_over || !entry.get().is_finished() {
                break;
            }
            let multicast = entry.remove();
            self.finished += 1;
            multicast.release(fabric, application, slots);
            work += 1;
        }
        work
    }
}

impl Neighbour {
    /// Returns whether no block comes from there any more; a member that has not joined has sent none.
    pub(super) const fn is_still(&self) -> bool {
        self.has_stopped || !self.has_joined
    }
}

impl ObjectMulticast {
    fn hand_over<F: Fabric, A: RdmcApplication<F>>(&self, application: &mut A, rank: usize) {
        let memory = self.memory.as_ref().expect("complete");
        if rank > 0 {
            application.on_received(&self.object, memory);
        }
    }

    /// Releases the object: everything has arrived and everything is placed, so no peer uses its grants any more.
    fn release<F: Fabric, A: RdmcApplication<F>>(
        mut self,
        fabric: &mut F,
        application: &mut A,
        slots: &mut ObjectSlots,
    ) {
        self.take_grants().for_each(|grant| fabric.revoke(&grant));
        slots.free(self.slot.expect("complete"));
        application.on_released(&self.object, self.memory.expect("complete"));
    }
}

/// Returns the neighbour `node`.
pub(super) fn neighbour_of(neighbours: &mut [Neighbour], node: NodeId) -> &mut Neighbour {
    let at = neighbours.binary_search_by_key(&node, |neighbour| neighbour.node);
    &mut neighbours[at.expect("a neighbour")]
}

/// Returns the members with which a member ever exchanges blocks: with some only if there are several blocks, with
/// some only if there is one.
fn neighbours(settings: &RdmcSettings, members: usize, rank: usize) -> Vec<usize> {
    let many = 4 * u64::from(members.next_power_of_two().ilog2()) + 4;
    let mut ranks = Vec::new();
    for blocks in [1, many] {
        let plan = TransferPlan::new(&settings.schedule, members, blocks);
        ranks.extend(plan.targets(rank));
        ranks.extend(plan.sources(rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Algorithm;
    use super::*;

    #[test]
    fn peers_of_any_object_are_neighbours() {
        for members in 1..=40 {
            for algorithm in [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline] {
                let settings = RdmcSettings { schedule: algorithm.into(), ..RdmcSettings::default() };
                for rank in 0..members {
                    let known = neighbours(&settings, members, rank);
                    for blocks in (1..=12).chain([40, 64, 200]) {
                        let plan = TransferPlan::new(&settings.schedule, members, blocks);
                        let peers = [plan.targets(rank), plan.sources(rank)].concat();
                        assert!(peers.iter().all(|peer| known.contains(peer)), "{plan:?} of {rank}");
                    }
                }
            }
        }
    }
}
