//! Offers: *ready for block* before an object is announced (RDMC §3.2, "Data Transfer Schedules").
//!
//! The source of a member's first block is the same for all objects \[B6\]. So a member may offer it memory for the
//! next object: a grant and a slot, for that number only \[B9\]. If the object fits, the source sends the first block
//! after the announcement, on the same connection, and the member opens its receives as if it had answered. If it
//! does not fit, the member answers with *ready for blocks*. Both know the object's size and how much was offered, so
//! they decide alike, even when an offer crosses the announcement. A group that has failed still handles the
//! announcement of an object for which it has made an offer, since a block may follow: what it reports as held
//! remains exact \[B7\].

use squall_fabric::{Fabric, Grant, NodeId};

use super::group::{RdmcGroup, neighbour_of};
use super::link::RdmcLinks;
use super::message::RdmcMessage;
use super::multicast::ObjectMulticast;
use super::mutation;
use super::slots::{ObjectSlot, ObjectSlots};
use super::{FailureCause, OBJECTS_AHEAD, ObjectMemory};
use crate::coverage::{Point, reach};

/// The memory that this member has offered to the source of its first block; one offer at a time.
#[derive(Debug)]
pub(super) struct MemoryOffer {
    /// The number of the object, which has not been announced, or does not fit.
    pub(super) number: u64,
    pub(super) memory: ObjectMemory,
    /// The object's slot, once the offer was sent to the source.
    pub(super) slot: Option<ObjectSlot>,
    /// The source's right to all of the memory, until the source is lost.
    pub(super) grant: Option<Grant>,
}

/// The memory that a target of this member has offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct TargetOffer {
    pub(super) number: u64,
    pub(super) slot: u8,
    pub(super) grant: Grant,
}

impl RdmcGroup {
    /// Takes memory for object `number`; returns false if the application must be asked for it instead.
    pub(super) fn offer(&mut self, number: u64, memory: ObjectMemory) -> bool {
        let is_near = number >= self.finished && number - self.finished < OBJECTS_AHEAD;
        let is_known = self.multicasts.contains_key(&number) || self.resumed.contains_key(&number);
        let is_possible = self.first_source.is_some() && self.offer.is_none() && memory.holds(1);
        if !is_near || is_known || !is_possible {
            return false;
        }
        self.offer = Some(MemoryOffer { number, memory, slot: None, grant: None });
        true
    }

    /// Sends the offer to the source; ends it when the object has been announced and does not fit. Returns the amount
    /// of work done.
    pub(super) fn tend_offer<F: Fabric>(
        &mut self,
        fabric: &mut F,
        links: &mut RdmcLinks,
        slots: &mut ObjectSlots,
    ) -> usize {
        let (Some(offer), Some(source)) = (&mut self.offer, self.first_source) else { return 0 };
        let number = offer.number;
        if self.multicasts.contains_key(&number) {
            self.end_offer(fabric, slots);
            return 1;
        }
        if offer.slot.is_some() || !neighbour_of(&mut self.neighbours, source).has_joined {
            return 0;
        }
        let Some(slot) = slots.take(self.id, number) else { return 0 };
        let ObjectMemory { region, first } = &offer.memory;
        let grant = fabric.grant(region, *first..region.words(), source);
        (offer.slot, offer.grant) = (Some(slot), Some(grant));
        links.say(source, RdmcMessage::Offer { group: self.id, number, slot: slot.index, grant });
        1
    }

    /// Returns the offer's memory to the application: the source has stopped, or knows that the object does not fit.
    pub(super) fn end_offer<F: Fabric>(&mut self, fabric: &mut F, slots: &mut ObjectSlots) {
        let Some(offer) = self.offer.take() else { return };
        offer.grant.into_iter().for_each(|grant| fabric.revoke(&grant));
        offer.slot.into_iter().for_each(|slot| slots.free(slot));
    }

    /// Takes the grant that `peer`, which is lost, has to the offered memory.
    pub(super) fn take_offered_right(&mut self, peer: NodeId) -> Option<Grant> {
        self.offer.as_mut().filter(|_| self.first_source == Some(peer))?.grant.take()
    }

    /// Returns whether blocks may follow the announcement of this object by `peer` at once, although the group may
    /// have failed.
    pub(super) fn has_offered(&self, peer: NodeId, number: u64) -> bool {
        let is_reported = |offer: &MemoryOffer| offer.number == number && offer.grant.is_some();
        self.first_source == Some(peer)
            && !mutant!(DeafWhenWedged)
            && self.offer.as_ref().is_some_and(is_reported)
    }

    /// Lets the object be received into the memory that was offered for it, if it fits.
    pub(super) fn take_offer(&mut self, multicast: &mut ObjectMulticast) {
        let object = multicast.object;
        let fits =
            |offer: &mut MemoryOffer| offer.number == object.number && offer.memory.holds(object.words());
        let (Some(offer), Some(source)) = (self.offer.take_if(fits), self.first_source) else { return };
        reach(Point::OfferTaken);
        multicast.supply_empty(offer.memory);
        multicast.slot = offer.slot;
        if let Some(grant) = offer.grant {
            multicast.incoming.on_reported_first(source, grant);
        }
    }

    /// Notes that a target has memory for an object, which may not have been announced to it.
    pub(super) fn on_offer(&mut self, peer: NodeId, offered: TargetOffer) -> Result<(), FailureCause> {
        let is_right = offered.grant.owner == peer && offered.grant.peer == self.members[self.rank];
        let finished = self.finished;
        let neighbour = self.neighbour_mut(peer).filter(|neighbour| is_right && neighbour.is_first_target);
        let neighbour = neighbour.ok_or(FailureCause::Breached(peer))?;
        // An earlier object was empty, and has not waited for its targets.
        if offered.number >= finished {
            neighbour.offered = Some(offered);
        }
        if let Some(multicast) = self.multicasts.get_mut(&offered.number) {
            multicast.use_offers(&mut self.neighbours);
        }
        Ok(())
    }
}
