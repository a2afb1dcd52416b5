//! Relays: the bodies of large messages are relayed from member to member by RDMC (Derecho §3.1, "Large messages";
//! RDMC §2).
//!
//! As in the paper, each sender of a subgroup has an RDMC group of its own in each view, of which it is the root. A
//! body is received directly at its place in the receiver's ring for that sender ([`crate::multicast`], `bodies`).
//!
//! **State.** For each sender of each subgroup whose bodies are relayed there is a *transfer*: the place of the next
//! body, the bodies that may still be read to be forwarded, and what has not been reported to the subgroup yet.
//! Transfers of ended views are *past*: they exist only until their memory is no longer accessed.
//!
//! **Step order** of one evaluation, after the subgroups': begin transfers of subgroups that have become ready, send
//! the bodies of published messages, drive RDMC, supply memory that has become free, report to the subgroups.
//!
//! **Invariants.**
//! - \[L2\] A body has the same place as at its sender. The sender frees that place when all members have delivered
//!   the previous content, so it is free here as well, except if the content is still read to be forwarded: then the
//!   body waits.
//! - A transfer that fails ends the view, since the member that is its cause is suspected. Messages in flight are
//!   sent again in the next view, if their sender continues \[V7\].
//! - The connections are opened when all members have attached, so all of them are peers by then.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use squall_fabric::window::WindowGeometry;
use squall_fabric::{Channel, Core, Fabric, FabricEvent, Instant, NodeId, Region};

use super::SubgroupId;
use super::active::{ActiveSubgroup, AnySubgroup, either};
use crate::coverage::{Point, reach};
use crate::membership::View;
use crate::multicast::{Deliver, OutgoingBody, Subgroup};
use crate::mutation;
use crate::rdmc::schedule::{TransportProfile, choose};
use crate::rdmc::{
    self, FailureCause, GroupId, ObjectAnswer, ObjectMemory, Rdmc, RdmcApplication, RdmcFailure, RdmcObject,
};

/// All transfers of this node.
#[derive(Debug)]
pub(super) struct Relays {
    rdmc: Rdmc<Transfers>,
    settings: Option<rdmc::RdmcSettings>,
    /// The subgroups of the current view whose transfers have begun, with the number of the first transfer.
    begun: BTreeMap<SubgroupId, u64>,
    /// Something has happened since RDMC was driven, or a transfer is in progress.
    is_due: bool,
}

/// The transfers by their RDMC groups.
#[derive(Debug, Default)]
struct Transfers(BTreeMap<GroupId, Transfer>);

/// The bodies of one sender in one view.
#[derive(Debug)]
struct Transfer {
    ring: Region,
    geometry: WindowGeometry,
    /// Where the next body begins, counted from the beginning of the ring.
    head: usize,
    /// The bodies that are still read here to be forwarded, in order.
    unreleased: VecDeque<Range<usize>>,
    /// A body whose place is not free yet.
    waiting: Option<RdmcObject>,
    /// The numbers of complete bodies, and of this member's bodies that are released, that have not been reported to
    /// the subgroup.
    whole: u64,
    released: u64,
    /// Why it has stopped.
    cause: Option<FailureCause>,
    /// Its view has ended.
    is_past: bool,
}

impl Relays {
    pub(super) fn new(node: NodeId, settings: Option<rdmc::RdmcSettings>) -> Self {
        let rdmc = Rdmc::new(node, CHANNEL, Transfers::default());
        Self { rdmc, settings, begun: BTreeMap::new(), is_due: false }
    }

    pub(super) fn handle_event<F: Fabric>(&mut self, fabric: &mut F, event: &FabricEvent) {
        self.rdmc.handle_event(fabric, event);
        self.is_due = true;
    }

    pub(super) fn next_deadline<F: Fabric>(&self) -> Option<Instant> {
        Core::<F>::next_deadline(&self.rdmc)
    }

    /// Takes the bodies of a subgroup, whose transfers have numbers from `first` on; begins the transfers when the
    /// subgroup is ready.
    pub(super) fn take_bodies<F: Fabric, D: Deliver>(
        &mut self,
        fabric: &mut F,
        view: &View,
        first: usize,
        id: SubgroupId,
        subgroup: &mut Subgroup<D>,
    ) {
        if subgroup.body_ring(0).is_none() || !subgroup.is_ready() {
            return;
        }
        let first = u32::try_from(first).expect("few senders");
        let own = view.key(first).0;
        if !self.begun.contains_key(&id) {
            self.begin(fabric, own, subgroup);
            self.begun.insert(id, own);
            self.is_due = true;
        }
        while let Some(OutgoingBody { region, first, bytes }) = subgroup.next_body() {
            let (members, settings) = (subgroup.members(), subgroup.settings());
            let sender = settings.senders.iter().position(|sender| members[*sender] == fabric.node());
            let group = GroupId(own + sender.expect("this member sends") as u64);
            // If the transfer has failed the view ends, and the message continues in the next one.
            let _ = self.rdmc.send(group, ObjectMemory { region, first }, bytes);
            self.is_due = true;
        }
    }

    fn begin<F: Fabric, D: Deliver>(&mut self, fabric: &mut F, first: u64, subgroup: &Subgroup<D>) {
        let (members, settings) = (subgroup.members(), subgroup.settings());
        let longest = settings.longest() as u64;
        let relays = self.settings.clone().unwrap_or_else(|| {
            let choice = choose(longest, members.len(), TransportProfile::TCP);
            let (block_bytes, schedule) = (choice.block_bytes, choice.schedule);
            rdmc::RdmcSettings { block_bytes, schedule, ..rdmc::RdmcSettings::default() }
        });
        for (sender, member) in settings.senders.iter().enumerate() {
            let group = GroupId(first + sender as u64);
            let mut order = vec![members[*member]];
            order.extend(members.iter().copied().filter(|node| *node != members[*member]));
            let (ring, geometry) = subgroup.body_ring(sender).expect("bodies are relayed");
            self.rdmc.application_mut().0.insert(group, Transfer::new(ring, geometry));
            let created = self.rdmc.create(fabric, group, &order, relays.clone());
            created.expect("valid settings, and a number of its own");
        }
    }

    /// Drives the transfers and reports to the subgroups which bodies have arrived and which are released. Returns
    /// the amount of work done, and the member to suspect, if there is one.
    pub(super) fn advance<F: Fabric, D: Deliver>(
        &mut self,
        fabric: &mut F,
        subgroups: &mut [ActiveSubgroup<D>],
    ) -> (usize, Option<NodeId>) {
        let mut work = self.drive(fabric);
        if work == 0 {
            return (0, None);
        }
        for ActiveSubgroup { id, core, .. } in subgroups {
            work += either!(core, core => self.report(*id, core));
        }
        (work, self.culprit())
    }

    /// Drives RDMC; returns the amount of work done.
    fn drive<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        if !self.is_due {
            return 0;
        }
        let work = self.rdmc.poll(fabric) + self.supply() + self.destroy_past();
        // Credits come without an event.
        self.is_due = work > 0 || !self.rdmc.is_idle();
        work
    }

    /// Reports to a subgroup which bodies have arrived and which are released; returns their number.
    fn report<D: Deliver>(&mut self, id: SubgroupId, subgroup: &mut Subgroup<D>) -> usize {
        let Some(first) = self.begun.get(&id) else { return 0 };
        let senders = subgroup.settings().senders.len() as u64;
        let groups = GroupId(*first)..GroupId(first + senders);
        let mut work = 0;
        for (sender, (_, transfer)) in self.rdmc.application_mut().0.range_mut(groups).enumerate() {
            work += transfer.whole + transfer.released;
            (0..std::mem::take(&mut transfer.whole)).for_each(|_| subgroup.on_body(sender));
            (0..std::mem::take(&mut transfer.released)).for_each(|_| subgroup.release_body());
        }
        usize::try_from(work).expect("few bodies")
    }

    /// Returns the member that has caused a transfer of the current view to fail. Members that stop because their
    /// view ends are not a cause: that view ends anyway.
    fn culprit(&self) -> Option<NodeId> {
        let failed = self.rdmc.application().0.values().filter(|transfer| !transfer.is_past);
        failed.filter_map(|transfer| transfer.cause).find_map(|cause| match cause {
            FailureCause::Lost(node)
            | FailureCause::Breached(node)
            | FailureCause::Disagreed(node)
            | FailureCause::Refused(node) => Some(node),
            FailureCause::Left(_) | FailureCause::Wedged(_) => None,
        })
    }

    /// Ends the view: nothing more is sent or received in it.
    pub(super) fn end_view(&mut self) {
        self.begun.clear();
        self.rdmc.application_mut().0.values_mut().for_each(|transfer| transfer.is_past = true);
        let groups: Vec<GroupId> = self.rdmc.application().0.keys().copied().collect();
        for group in groups {
            // A group that has already failed stops by itself.
            let _ = self.rdmc.wedge(group);
        }
        self.is_due = true;
    }

    /// Notes that `node` is no longer a member, as all members know.
    pub(super) fn part_with<F: Fabric>(&mut self, fabric: &mut F, node: NodeId) {
        self.rdmc.part_with(fabric, node);
        self.is_due = true;
    }

    /// Supplies the memory that bodies wait for, if it is free now; returns the number of bodies.
    fn supply(&mut self) -> usize {
        let transfers = self.rdmc.application_mut().0.iter_mut();
        let ready: Vec<_> = transfers
            .filter_map(|(_, transfer)| {
                let object = transfer.waiting.take()?;
                match transfer.place(&object) {
                    Some(memory) => Some((object, memory)),
                    None => {
                        transfer.waiting = Some(object);
                        None
                    }
                }
            })
            .collect();
        let count = ready.len();
        for (RdmcObject { group, number, .. }, memory) in ready {
            // If the group has failed meanwhile, nothing waits for the memory.
            let _ = self.rdmc.supply(group, number, memory);
        }
        count
    }

    /// Forgets transfers of ended views whose memory is no longer accessed.
    fn destroy_past(&mut self) -> usize {
        let is_over = |transfer: &Transfer| transfer.is_past && transfer.cause.is_some();
        let transfers = &mut self.rdmc.application_mut().0;
        let over: Vec<GroupId> =
            transfers.extract_if(.., |_, transfer| is_over(transfer)).map(|(group, _)| group).collect();
        for group in &over {
            reach(Point::RelayOver);
            self.rdmc.destroy(*group).expect("its failure is reported");
        }
        over.len()
    }
}

impl Transfer {
    fn new(ring: &Region, geometry: WindowGeometry) -> Self {
        Self {
            ring: ring.clone(),
            geometry,
            head: 0,
            unreleased: VecDeque::new(),
            waiting: None,
            whole: 0,
            released: 0,
            cause: None,
            is_past: false,
        }
    }

    /// Returns the place of the next body, unless its content is still read to be forwarded \[L2\].
    fn place(&mut self, object: &RdmcObject) -> Option<ObjectMemory> {
        let place = self.head..self.head + object.words();
        let overlaps = |other: &Range<usize>| other.start < place.end && place.start < other.end;
        if self.unreleased.iter().any(overlaps) {
            return None;
        }
        self.head = self.geometry.behind(place.start, object.words());
        let first = self.geometry.first + place.start;
        self.unreleased.push_back(place);
        Some(ObjectMemory { region: self.ring.clone(), first })
    }
}

impl Transfers {
    fn of(&mut self, object: &RdmcObject) -> &mut Transfer {
        self.0.get_mut(&object.group).expect("a transfer exists as long as its group")
    }
}

impl<F: Fabric> RdmcApplication<F> for Transfers {
    fn memory(&mut self, _: &mut F, object: &RdmcObject) -> ObjectAnswer {
        let transfer = self.of(object);
        if !transfer.geometry.fits(object.bytes) {
            return ObjectAnswer::Refuse;
        }
        match transfer.place(object) {
            Some(memory) => ObjectAnswer::Memory(memory),
            None => {
                reach(Point::BodyWaited);
                transfer.waiting = Some(*object);
                ObjectAnswer::Later
            }
        }
    }

    fn on_block(&mut self, object: &RdmcObject, block: u64) {
        mutant!(CountPartialBody if block == 0 => self.of(object).whole += 1);
    }

    fn on_received(&mut self, object: &RdmcObject, _: &ObjectMemory) {
        self.of(object).whole += u64::from(!mutant!(CountPartialBody));
    }

    fn on_released(&mut self, object: &RdmcObject, _: ObjectMemory) {
        let transfer = self.of(object);
        if transfer.unreleased.pop_front().is_none() {
            // This member is the root.
            transfer.released += 1;
        }
    }

    fn on_failed(&mut self, failure: RdmcFailure) {
        let transfer = self.0.get_mut(&failure.group).expect("a transfer exists as long as its group");
        transfer.cause = Some(failure.cause);
    }
}

/// RDMC uses this channel and the next one.
const CHANNEL: Channel = Channel(16);

#[cfg(test)]
mod tests {
    use squall_fabric::RegionId;

    use super::*;

    /// [L2] A body whose place is still read to be forwarded waits until it is not. The simulator cannot test that:
    /// the sender of the next body knows that all members have the previous one, so no read that is still allowed
    /// does harm there [F5].
    #[test]
    fn a_body_does_not_overwrite_one_that_is_still_sent() {
        let geometry = WindowGeometry::of_bodies(0, 8, 8 * 8, 0);
        let ring = Region::heap(RegionId(1), geometry.words());
        let mut transfer = Transfer::new(&ring, geometry);
        let object = |number| RdmcObject { group: GroupId(0), number, bytes: 8 * 6 };
        let mut first = |number| transfer.place(&object(number)).map(|memory| memory.first);
        assert_eq!((first(0), first(1)), (Some(0), Some(6)));
        assert_eq!(first(2), None, "the ring holds two, and begins again");
        transfer.unreleased.pop_front();
        assert_eq!(transfer.place(&object(2)).map(|memory| memory.first), Some(0));
    }
}
