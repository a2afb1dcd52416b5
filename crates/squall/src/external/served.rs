//! What a member shares between the external clients that it serves: its subgroups, the memory of observers' queues, and the publishers
//! that it remembers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_fabric::mutex::lock;
use squall_transports::bootstrap::Address;

use super::lease::SenderLease;
use super::wire::ExternalNotice;
use crate::handle::deliveries::DurablePlace;
use crate::handle::node_handle::NodeHandle;
use crate::handle::sender::Sender;
use crate::slot::SubgroupSlot;

/// A subgroup, as a member serves it to external clients.
#[derive(Debug)]
pub(crate) struct ServedSubgroup {
    pub(crate) slot: Arc<SubgroupSlot>,
    pub(crate) lease: Arc<Mutex<SenderLease>>,
    /// The longest message in bytes.
    pub(crate) message_max: usize,
    /// Whether this member may send there.
    pub(crate) sends: bool,
    pub(crate) link: NodeHandle,
    /// Where its log is, if it is durable.
    pub(crate) durable: Option<DurablePlace>,
}

impl ServedSubgroup {
    /// Returns a sending end for external clients.
    pub(crate) fn make_sender(&self) -> Sender {
        let log = self.durable.as_ref().and_then(|place| place.log.borrow());
        let is_disk_short = log.map(|log| log.shortage());
        Sender::new(Arc::clone(&self.slot), self.message_max, self.link.clone(), is_disk_short)
    }

    /// Returns whether the disk of its log is nearly full, so that it takes no new messages.
    fn is_disk_short(&self) -> bool {
        let log = self.durable.as_ref().and_then(|place| place.log.borrow());
        log.is_some_and(|log| log.shortage().load(Ordering::Relaxed))
    }

    pub(crate) fn lease(&self) -> MutexGuard<'_, SenderLease> {
        lock(&self.lease)
    }

    /// Returns whether this member is in the subgroup now.
    pub(super) fn is_in(&self) -> bool {
        let view = self.slot.tap().latest();
        view.is_some_and(|view| view.members.iter().any(|member| member.node == self.link.node))
    }

    /// Returns why this member does not serve observers, if it does not.
    pub(super) fn observing_fault(&self) -> Option<&'static str> {
        if !self.is_in() {
            return Some("it is not in the subgroup");
        }
        (!self.slot.tap().flows()).then_some("its application takes no messages there")
    }

    /// Returns why this member does not serve publishers, if it does not.
    pub(super) fn publishing_fault(&self) -> Option<&'static str> {
        if !self.is_in() {
            Some("it is not in the subgroup")
        } else if !self.sends {
            Some("it is not one of the subgroup's senders")
        } else if !self.slot.is_for_messages() {
            Some("its application takes no messages there, or has an object there")
        } else if self.lease().is_taken() {
            Some("its application sends there itself, and has the sending end")
        } else if self.is_disk_short() {
            Some(DISK_SHORT)
        } else {
            None
        }
    }

    /// Returns the notice that refers the client to the other members of the subgroup.
    pub(super) fn elsewhere(&self, why: &str) -> ExternalNotice {
        let nodes = self.slot.tap().latest().map_or_else(Vec::new, |view| view.members.clone());
        let roster = self.link.status.roster();
        let others = nodes.iter().filter(|member| member.node != self.link.node);
        let members = others.filter_map(|member| roster.get(&member.node)).map(Address::to_string).collect();
        ExternalNotice::Elsewhere { why: format!("{}: {why}", self.link.node), members }
    }
}

/// Why a member takes no messages although it could: others may.
pub(super) const DISK_SHORT: &str =
    "the disk of its log is nearly full (free space on it), so that it takes no new messages";

/// The bytes of all observers' queues.
#[derive(Debug, Default)]
pub(super) struct QueueBudget(AtomicUsize);

impl QueueBudget {
    /// Counts the bytes of a queue, if there is space for it.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<QueueReservation> {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let reservation = QueueReservation { budget: Arc::clone(self), bytes };
        (before + bytes <= QUEUES_BYTES_MAX).then_some(reservation)
    }
}

/// The reserved bytes of an observer's queue, while it exists.
pub(super) struct QueueReservation {
    budget: Arc<QueueBudget>,
    bytes: usize,
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a member remembers of publishers, so that messages that they send again count once.
#[derive(Debug, Default)]
pub(super) struct KnownPublishers {
    next: u64,
    /// The publishers by number, with their subgroups.
    known: BTreeMap<u64, (String, Arc<Mutex<KnownPublisher>>)>,
    /// Their numbers, the one that connected last at the end.
    order: VecDeque<u64>,
}

/// A publisher, as a member remembers it.
#[derive(Debug, Default)]
pub(super) struct KnownPublisher {
    /// The number of the first message of its last batch.
    pub(super) first: u64,
    /// The numbers of the batch's messages that are sent, by the sender's count.
    pub(super) sent: Vec<u64>,
}

impl KnownPublishers {
    /// Returns the client of that number, if it is remembered, or a new one.
    pub(super) fn enter(&mut self, number: Option<u64>, subgroup: &str) -> (u64, Arc<Mutex<KnownPublisher>>) {
        let known = number.and_then(|number| Some((number, self.known.get(&number)?)));
        if let Some((number, (_, client))) = known.filter(|(_, (other, _))| other == subgroup) {
            let client = Arc::clone(client);
            self.order.retain(|other| *other != number);
            self.order.push_back(number);
            return (number, client);
        }
        if self.known.len() >= CLIENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        let number = self.next;
        self.next += 1;
        let client = Arc::<Mutex<KnownPublisher>>::default();
        self.known.insert(number, (subgroup.into(), Arc::clone(&client)));
        self.order.push_back(number);
        (number, client)
    }
}

/// Publishers that a member remembers.
const CLIENTS_MAX: usize = 1024;
/// The largest number of bytes of all observers' queues at a member: an observer that needs more asks another member.
const QUEUES_BYTES_MAX: usize = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A publisher that reconnects is recognised, unless it was forgotten or asks for another subgroup.
    #[test]
    fn publishers_are_remembered() {
        let mut clients = KnownPublishers::default();
        let (number, client) = clients.enter(None, "log");
        client.lock().unwrap().first = 7;
        assert_eq!(clients.enter(Some(number), "log").1.lock().unwrap().first, 7);
        assert_ne!(clients.enter(Some(number), "other").0, number);
        assert_ne!(clients.enter(Some(99), "log").0, 99);
        for _ in 0..CLIENTS_MAX {
            clients.enter(None, "log");
        }
        assert_eq!(clients.known.len(), CLIENTS_MAX);
        assert_ne!(clients.enter(Some(number), "log").0, number);
    }
}
