//! Where a member serves external clients: from the time at which the first of them asks for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use squall_fabric::atomics::AtomicBool;
use squall_fabric::mutex::lock;
use squall_transports::bootstrap::Asker;
use squall_transports::bootstrap::pair::PairService;
use squall_transports::log;

use super::channel::ClientChannel;
use super::connection::{FrameConnection, options};
use super::served::{KnownPublishers, QueueBudget, ServedSubgroup};
use super::wire::{ExternalNotice, ExternalRequest, HEAD_BYTES_MAX, invalid};
use super::{observing, publishing, replaying};
use crate::config::Config;
use crate::operate::inquiry;
use crate::slot::Position;
use crate::status::{ClientDesk, GroupStatus};
use crate::stream::acceptor::{Conversation, StreamAcceptor};
use crate::stream::{Stream, StreamError};

/// What an application does for clients, by the subgroup that they name.
pub(crate) type ClientServices = BTreeMap<String, ClientService>;
pub(crate) type ClientService = Box<dyn Fn(&mut ClientChannel<'_>) -> io::Result<()> + Send + Sync>;

/// A member's side of external clients.
pub(crate) struct Hub {
    config: Arc<Config>,
    sources: BTreeMap<String, ServedSubgroup>,
    clients: Mutex<KnownPublishers>,
    queues: Arc<QueueBudget>,
    services: ClientServices,
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
        services: ClientServices,
        status: &Arc<GroupStatus>,
    ) -> Arc<Self> {
        let (clients, queues, door) = (Mutex::default(), Arc::default(), Mutex::new(Door::Shut));
        Arc::new(Self { config, sources, clients, queues, services, door, status: Arc::downgrade(status) })
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        lock(&self.door)
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

    /// Lets the application converse with a client.
    fn serve(
        &self,
        source: &ServedSubgroup,
        subgroup: &str,
        client: &mut FrameConnection,
        is_closed: &AtomicBool,
    ) -> io::Result<()> {
        let Some(service) = self.services.get(subgroup) else {
            return client.send(&source.elsewhere("its application serves no clients there"));
        };
        let longest = self.sources.values().map(|source| source.message_max).max().unwrap_or(0);
        let mut channel = ClientChannel::begin(client, is_closed, longest);
        let served = service(&mut channel);
        channel.end().and(served)
    }

    /// Ends the service, since the member has ended: clients are notified, and the listener is closed.
    pub(crate) fn close(&self) {
        let door = std::mem::replace(&mut *self.door(), Door::Closed);
        if let Door::Open(reception) = door {
            reception.end_conversations(END_PATIENCE);
        }
    }
}

impl ClientDesk for Hub {
    /// Answers whether external clients are served, which begins with the first that asks.
    fn answer(self: Arc<Self>, asker: Asker) {
        let mut door = self.door();
        match &*door {
            Door::Open(_) => answer_with(asker, true),
            // The client will ask again.
            Door::Opening | Door::Closed => answer_with(asker, false),
            Door::Shut => {
                *door = Door::Opening;
                drop(door);
                let hub = Arc::clone(&self);
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
        | ExternalRequest::Replay { subgroup, .. }
        | ExternalRequest::Connect { subgroup }) = &request
        else {
            return Err(invalid("the client sent messages before it named a subgroup"));
        };
        let Some(source) = self.sources.get(subgroup) else {
            let why = "this member is never in the subgroup; ask a member that is".to_owned();
            return client.send(&ExternalNotice::Elsewhere { why, members: Vec::new() });
        };
        match request {
            ExternalRequest::Observe { queue_bytes, .. } => {
                observing::observe(&self.queues, source, queue_bytes, &mut client, is_closed)
            }
            ExternalRequest::Publish { subgroup, client: number } => {
                publishing::publish(&self.clients, (&subgroup, source), number, &mut client, is_closed)
            }
            ExternalRequest::Replay { view, sequence, .. } => {
                replaying::replay(source, Position { view, sequence }, &mut client, is_closed)
            }
            ExternalRequest::Connect { subgroup } => self.serve(source, &subgroup, &mut client, is_closed),
            ExternalRequest::Messages { .. } | ExternalRequest::Application => {
                unreachable!("the first request names a subgroup")
            }
        }
    }
}

/// How long a client may take to send its first request.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// How long a member that ends waits until its clients are notified.
const END_PATIENCE: Duration = Duration::from_millis(500);
