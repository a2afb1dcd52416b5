//! Where a member serves external clients: from the time at which the first of them asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};
use squall_fabric::mutex::lock;
use squall_transports::bootstrap::pair::PairService;
use squall_transports::bootstrap::{Address, Asker};
use squall_transports::log;

use super::connection::{FrameConnection, options};
use super::lease::SenderLease;
use super::wire::{ExternalNotice, ExternalRequest, HEAD_BYTES_MAX, invalid};
use super::{observing, publishing, replaying};
use crate::Position;
use crate::application::SubgroupSlot;
use crate::config::Config;
use crate::deliveries::DurablePlace;
use crate::inquiry;
use crate::node::NodeHandle;
use crate::sender::Sender;
use crate::status::GroupStatus;
use crate::stream::{Stream, StreamError};
use crate::stream_acceptor::{Conversation, StreamAcceptor};

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
        Sender::new(Arc::clone(&self.slot), self.message_max, self.link.clone())
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

/// A member's side of external clients.
pub(crate) struct Hub {
    config: Arc<Config>,
    sources: BTreeMap<String, ServedSubgroup>,
    clients: Mutex<KnownPublishers>,
    /// The bytes of all observers' queues.
    queue_bytes: AtomicUsize,
    door: Mutex<Door>,
    /// Has this.
    status: Weak<GroupStatus>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("subgroups", &self.sources.keys()).finish_non_exhaustive()
    }
}

enum Door {
    /// No client has asked yet.
    Shut,
    /// A thread is about to listen.
    Opening,
    Open(StreamAcceptor),
    /// The member has ended.
    Closed,
}

impl Hub {
    pub(crate) fn new(
        config: Arc<Config>,
        sources: BTreeMap<String, ServedSubgroup>,
        status: &Arc<GroupStatus>,
    ) -> Arc<Self> {
        let (clients, queue_bytes, door) = (Mutex::default(), AtomicUsize::new(0), Mutex::new(Door::Shut));
        Arc::new(Self { config, sources, clients, queue_bytes, door, status: Arc::downgrade(status) })
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        lock(&self.door)
    }

    /// Answers whether external clients are served, which begins with the first that asks.
    pub(crate) fn answer(self: &Arc<Self>, asker: Asker) {
        let mut door = self.door();
        match &*door {
            Door::Open(_) => answer_with(asker, true),
            // The client will ask again.
            Door::Opening | Door::Closed => answer_with(asker, false),
            Door::Shut => {
                *door = Door::Opening;
                drop(door);
                let hub = Arc::clone(self);
                // Not on the polling thread, which never waits for the system. If the thread does not start, dropping
                // the asker answers it.
                let opens = move || hub.open(asker);
                let spawned = std::thread::Builder::new().name("squall clients".into()).spawn(opens);
                if spawned.is_err() {
                    *self.door() = Door::Shut;
                }
            }
        }
    }

    fn open(self: &Arc<Self>, asker: Asker) {
        let opened = self.status.upgrade().ok_or_else(gone).and_then(|status| {
            StreamAcceptor::open(&status, PairService::Clients, &options(&self.config), Arc::clone(self))
        });
        let mut door = self.door();
        match opened {
            Ok(reception) if matches!(*door, Door::Opening) => {
                answer_with(asker, true);
                *door = Door::Open(reception);
            }
            // The member has ended meanwhile.
            Ok(_) => answer_with(asker, false),
            Err(error) => {
                log::warn!(%error, "this member cannot listen for external clients");
                if matches!(*door, Door::Opening) {
                    *door = Door::Shut;
                }
                answer_with(asker, false);
            }
        }
    }

    /// Ends the service, since the member has ended: clients are notified, and the listener is closed.
    pub(crate) fn close(&self) {
        let door = std::mem::replace(&mut *self.door(), Door::Closed);
        if let Door::Open(reception) = door {
            reception.end_conversations(END_PATIENCE);
        }
    }

    /// Counts the bytes of a queue, if there is space for it.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<QueueReservation> {
        let before = self.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reservation = QueueReservation { hub: Arc::clone(self), bytes };
        (before + bytes <= QUEUES_BYTES_MAX).then_some(reservation)
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, KnownPublishers> {
        lock(&self.clients)
    }
}

fn answer_with(asker: Asker, serves: bool) {
    asker.answer(inquiry::write(&serves));
}

/// The error if the member has ended.
fn gone() -> StreamError {
    StreamError::Transport(io::ErrorKind::NotConnected.into())
}

impl Conversation for Arc<Hub> {
    fn converse(&self, stream: Stream, is_closed: &AtomicBool) -> io::Result<()> {
        let mut client = FrameConnection::new(stream, HEAD_BYTES_MAX);
        let Some((request, _)) = client.receive(FIRST_WITHIN)? else {
            return Err(invalid("the client sent no request in time"));
        };
        let (ExternalRequest::Observe { subgroup, .. }
        | ExternalRequest::Publish { subgroup, .. }
        | ExternalRequest::Replay { subgroup, .. }) = &request
        else {
            return Err(invalid("the client sent messages before it named a subgroup"));
        };
        let Some(source) = self.sources.get(subgroup) else {
            let why = "this member is never in the subgroup; ask a member that is".to_owned();
            return client.send(&ExternalNotice::Elsewhere { why, members: Vec::new() });
        };
        match request {
            ExternalRequest::Observe { queue_bytes, .. } => {
                observing::observe(self, source, queue_bytes, &mut client, is_closed)
            }
            ExternalRequest::Publish { subgroup, client: number } => {
                publishing::publish(self, (&subgroup, source), number, &mut client, is_closed)
            }
            ExternalRequest::Replay { view, sequence, .. } => {
                replaying::replay(source, Position { view, sequence }, &mut client, is_closed)
            }
            ExternalRequest::Messages { .. } => unreachable!("the first request names a subgroup"),
        }
    }
}

/// The reserved bytes of an observer's queue, while it exists.
pub(super) struct QueueReservation {
    hub: Arc<Hub>,
    bytes: usize,
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        self.hub.queue_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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
/// How long a client may take to send its first request.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// How long a member that ends waits until its clients are notified.
const END_PATIENCE: Duration = Duration::from_millis(500);

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
