//! The end of a view: wedge, trim, and what continues in the next view (Derecho §3.4, "ragged trim").
//!
//! A wedged subgroup sends, acknowledges and delivers nothing more. It publishes how many indexes of each sender it
//! has; membership agrees on a trim, the least of these over the survivors, and then each survivor delivers exactly
//! the trim, in order. Sequences of dead members beyond it are skipped.
//!
//! - \[V2\] All members that continue deliver the same messages. \[V3\] What any member delivered before was received
//!   by all, so it is below the trim.
//! - \[V14\] A member that stops delivers what is stable according to its frozen rows.
//! - \[V7\] What a surviving sender has sent beyond the trim, or has committed, continues in the next view
//!   ([`WindowBacklog`]). In mode `Unordered` some members have already delivered it; they skip it
//!   ([`ViewStart::known`]). In mode `Raw` only messages that were not sent at all continue.

use squall_fabric::window::WindowBacklog;
use squall_fabric::{Fabric, MirrorId, NodeId};

use super::order::sequences_complete;
use super::subgroup::DeliveryOutlet;
use super::{Deliver, DeliveryMode, MulticastCounters, Subgroup, SubgroupFailure, WindowTimes};
use crate::coverage::{Point, reach};
use crate::mutation;

/// How a view begins for a subgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewStart {
    /// The view's number.
    pub view: u64,
    /// How many messages of each sender are sent again that this member has delivered; only in mode `Unordered`.
    pub known: Vec<(NodeId, u64)>,
}

impl ViewStart {
    /// Returns how many messages of `sender` are sent again that this member has delivered.
    pub(super) fn known(&self, sender: NodeId) -> u64 {
        self.known.iter().find(|(node, _)| *node == sender).map_or(0, |(_, known)| *known)
    }
}

/// What a subgroup of an ended view leaves to the next one.
#[derive(Debug)]
pub struct SubgroupCarryover<D> {
    /// The upcall, unless deliveries are pulled.
    pub deliver: Option<D>,
    /// The messages of this member that continue in the next view, if it sends.
    pub backlog: Option<WindowBacklog>,
    /// The mirror of this member's row: retire it when all members have begun the next view.
    pub mirror: MirrorId,
    /// What the next view begins with: see [`ViewStart`].
    pub known: Vec<(NodeId, u64)>,
    /// What was done in the view.
    pub counters: MulticastCounters,
    /// How long messages and waiting for space took.
    pub times: WindowTimes,
}

impl<D: Deliver> Subgroup<D> {
    /// Freezes the row of a suspected member: it never changes again here [S5].
    pub fn freeze<F: Fabric>(&mut self, fabric: &mut F, member: NodeId) {
        if let Some(rank) = self.members().iter().position(|node| *node == member) {
            self.table.freeze(fabric, rank);
        }
    }

    /// Ends sending and receiving, and returns how many indexes of each sender this member counts: those that it has, or that are on
    /// its disk. `None`: the disk is not that far, ask again \[T4\].
    pub fn wedge(&mut self) -> Option<&[u64]> {
        if !self.wedged {
            self.wedged = true;
            if let Some((publisher, _)) = &self.publisher {
                publisher.close();
            }
            self.take_announcements();
        }
        if self.counts.is_none() {
            self.counts = if self.is_durable() { self.durable_counts() } else { Some(self.indexes.clone()) };
        }
        self.counts.as_deref()
    }

    /// Returns whether this member counts all of the trim, as each member that continues does.
    #[must_use]
    pub fn covers(&self, trim: &[u64]) -> bool {
        let covers = |counts: &Vec<u64>| trim.iter().zip(counts).all(|(trim, here)| trim <= here);
        self.counts.as_ref().is_some_and(covers)
    }

    /// Returns whether the view has ended here.
    #[must_use]
    pub const fn is_wedged(&self) -> bool {
        self.wedged
    }

    /// Takes what has been announced, without acknowledging anything.
    fn take_announcements(&mut self) {
        for sender in 0..self.announced.len() {
            match self.look_at(sender) {
                Ok(announced) => self.announced[sender] = announced,
                Err(corrupt) => {
                    self.failure.get_or_insert(SubgroupFailure::Corrupt(corrupt));
                    return;
                }
            }
        }
        self.take_announced();
    }

    /// Delivers the trim (indexes of each sender), and nothing more; ends the subgroup.
    ///
    /// # Errors
    /// [`SubgroupFailure`]: this member must leave the group.
    ///
    /// # Panics
    /// If the subgroup is not wedged, or the trim is beyond what this member has, on which membership never agrees.
    pub fn finish(mut self, trim: &[u64]) -> Result<SubgroupCarryover<D>, SubgroupFailure> {
        assert!(
            self.covers(trim),
            "[V2] the trim {trim:?} is beyond what this member has, {:?}",
            self.indexes
        );
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let backlog = self.publisher.as_ref().map(|(publisher, sender)| {
            let sent = publisher.announcement().indexes;
            let goes_on = self.settings.mode != DeliveryMode::Raw && !mutant!(NoResend);
            publisher.backlog(if goes_on { trim[*sender] } else { sent })
        });
        if trim != self.indexes {
            reach(Point::TrimmedOff);
        }
        let known = self.known_beyond(trim);
        match self.settings.mode {
            DeliveryMode::Atomic | DeliveryMode::Durable => {
                self.deliver_rest(&[sequences_of(trim)], trim)?;
            }
            DeliveryMode::Unordered | DeliveryMode::Raw => {
                self.deliver_rest(&self.indexes.clone(), &self.indexes.clone())?
            }
        }
        let (mirror, counters, times) = (self.table.mirror(), self.counters, self.times());
        Ok(SubgroupCarryover { deliver: self.into_deliver(), backlog, mirror, known, counters, times })
    }

    /// Ends the subgroup at a member that stops: it is in no later view, and no member asks how much it has. It
    /// delivers what all members of the view have received, as its rows show, and nothing more \[V14\]. The trim of
    /// those that continue, if any do, covers that.
    pub fn stop(&mut self) {
        self.wedge();
        if self.failure.is_none() && !mutant!(StopUndelivered) {
            reach(Point::StableDelivered);
            let here = self.indexes.clone();
            let result = if self.settings.mode.is_ordered() {
                let acknowledged = if self.is_durable() { self.persist() } else { sequences_complete(&here) };
                self.received = self.received.max(acknowledged);
                self.update_stable();
                self.deliver_rest(&[self.stable], &here)
            } else {
                self.deliver_rest(&here, &here)
            };
            self.failure = result.err();
        }
        self.close();
    }

    /// Returns the upcall of a subgroup that has ended, unless deliveries are pulled.
    #[must_use]
    pub fn into_deliver(self) -> Option<D> {
        match self.outlet {
            DeliveryOutlet::Upcall { deliver, .. } => Some(deliver),
            DeliveryOutlet::Pull(_) => None,
        }
    }

    /// Returns how many of the messages beyond the trim, which are sent again, this member has delivered: all that
    /// arrived in this view, and those that were still to be sent again in this one.
    fn known_beyond(&self, trim: &[u64]) -> Vec<(NodeId, u64)> {
        if self.settings.mode != DeliveryMode::Unordered {
            return Vec::new();
        }
        let senders = self.settings.senders.iter().enumerate();
        let known = senders.map(|(sender, member)| {
            let node = self.table.members()[*member];
            (node, self.start.known(node).max(self.indexes[sender]) - trim[sender])
        });
        known.filter(|(_, known)| *known > 0).collect()
    }

    /// Delivers what is below `limits` (by lane) and `ends` (by sender).
    fn deliver_rest(&mut self, limits: &[u64], ends: &[u64]) -> Result<(), SubgroupFailure> {
        match &mut self.outlet {
            DeliveryOutlet::Upcall { consumer, deliver } => {
                consumer.end_view(ends);
                for (lane, limit) in limits.iter().enumerate() {
                    if *limit > consumer.taken()[lane] {
                        consumer
                            .consume(lane, *limit, u64::MAX, deliver)
                            .map_err(SubgroupFailure::Corrupt)?;
                    }
                }
                (self.counters.messages_delivered, self.counters.bytes_delivered) = consumer.handed_over();
            }
            DeliveryOutlet::Pull(handoff) => {
                handoff.end_view(ends);
                for (lane, limit) in limits.iter().enumerate() {
                    handoff.offer(lane, *limit);
                }
                handoff.close();
            }
        }
        Ok(())
    }
}

/// Returns the number of sequences that contain all of the trim.
fn sequences_of(trim: &[u64]) -> u64 {
    let last = |(sender, indexes): (usize, &u64)| (indexes - 1) * trim.len() as u64 + sender as u64 + 1;
    trim.iter().enumerate().filter(|(_, indexes)| **indexes > 0).map(last).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequences_of_a_trim_end_with_its_last_index() {
        assert_eq!(sequences_of(&[0, 0]), 0);
        assert_eq!(sequences_of(&[1, 0]), 1);
        assert_eq!(sequences_of(&[0, 1]), 2);
        assert_eq!(sequences_of(&[3, 1]), 5);
    }
}
