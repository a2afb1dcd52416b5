//! The connection of a client outside the group: it keeps the client's lease, and announces its endpoints again when that has ended
//! ([`crate::presence`]).
//!
//! **State** ([`Standing`]): the client's number, and its endpoints that are open, which are announced under that number, or are about to be.
//! **Invariants.** The number changes only in [`ClientConnection::come_back`], when all endpoints that were open at its beginning are announced under the
//! new one. An endpoint that opens meanwhile is refused under the old number, so it is announced again afterwards; one that closes meanwhile
//! is closed under the new number, too.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::object::Client;
use squall_fabric::mutex::lock;

use crate::buffer::HistoryMessage;
use crate::error::{ParticipantError, WriteError};
use crate::keeper::{outcome, settle, wait_reply};
use crate::kept::KeptReply;
use crate::outlet::explain;
use crate::presence::{EndpointNumbers, GoneProcess, RENEWAL_PERIOD};
use crate::qos::{DurabilityService, Qos};
use crate::registry::{StoreQuery, StoreReply, TopicRegistry};
use crate::run_time::{self, TopicStore};
use crate::sample::{EndpointId, now_ns};
use crate::wire::{
    EndpointAnnouncement, RegisteredTopic, TopicRole, encode_client, encode_gone, encode_renewal,
};

/// A client's connection, which its readers and writers share. Dropping the last part of it ends the client.
#[derive(Debug)]
pub(crate) struct ClientLink {
    connection: Arc<ClientConnection>,
    /// Ends the thread that renews the lease, when it is dropped.
    renewing: Option<mpsc::Sender<()>>,
}

#[derive(Debug)]
struct ClientConnection {
    object: Client<TopicRegistry>,
    store: TopicStore,
    /// How long an answer may take.
    timeout: Duration,
    standing: Mutex<Standing>,
    /// Held by the thread that announces everything again.
    returning: Mutex<()>,
}

/// What members are to know of the client.
#[derive(Debug, Default)]
struct Standing {
    /// This client's number, in place of a node's.
    node: u32,
    numbers: EndpointNumbers,
    open: BTreeMap<u16, ClientEndpoint>,
    is_closed: bool,
}

/// An endpoint of a client, but for the client's number.
#[derive(Clone, Debug)]
pub(crate) struct ClientEndpoint {
    pub(crate) topic: u32,
    pub(crate) role: TopicRole,
    pub(crate) type_name: String,
    pub(crate) qos: Qos,
    /// What the topic keeps.
    pub(crate) service: DurabilityService,
}

impl ClientEndpoint {
    /// Returns what is announced of it.
    pub(crate) fn announcement(&self, id: EndpointId) -> EndpointAnnouncement {
        EndpointAnnouncement { id, role: self.role, type_name: self.type_name.clone(), qos: self.qos.clone() }
    }
}

impl ClientLink {
    pub(crate) fn open(
        object: Client<TopicRegistry>,
        store: TopicStore,
        timeout: Duration,
    ) -> Result<Self, ParticipantError> {
        let (standing, returning) = Default::default();
        let connection = Arc::new(ClientConnection { object, store, timeout, standing, returning });
        let failed = |error| ParticipantError::History { topic: run_time::REGISTRY.into(), error };
        let node = connection.admit(timeout).map_err(failed)?;
        lock(&connection.standing).node = node;
        let (sender, ended) = mpsc::channel();
        let link = Self { connection: Arc::clone(&connection), renewing: Some(sender) };
        let renew = move || {
            while ended.recv_timeout(RENEWAL_PERIOD) == Err(RecvTimeoutError::Timeout) {
                connection.renew();
            }
        };
        let thread = thread::Builder::new().name("squall-dds client".into());
        thread.spawn(renew).map_err(ParticipantError::Thread)?;
        Ok(link)
    }

    pub(crate) fn store(&self) -> TopicStore {
        self.connection.store
    }

    /// Updates the registry by what this client does not do under its number.
    pub(crate) fn update(&self, bytes: Vec<u8>) -> Result<KeptReply, WriteError> {
        self.connection.update(bytes, self.connection.timeout)
    }

    /// Updates the registry under this client's number.
    pub(crate) fn update_as(
        &self,
        bytes: impl FnMut(u32) -> Vec<u8>,
        patience: Duration,
    ) -> Result<KeptReply, WriteError> {
        self.connection.update_as(bytes, patience)
    }

    pub(crate) fn query(&self, query: &StoreQuery) -> Result<StoreReply, WriteError> {
        let begun = Instant::now();
        let (object, timeout) = (&self.connection.object, self.connection.timeout);
        let pending = object.query(b"", query).map_err(explain)?;
        let reply = wait_reply(pending, begun, timeout).ok_or(WriteError::Timeout(timeout))?;
        reply.map_err(explain)
    }

    pub(crate) fn topics(&self) -> Result<Vec<Arc<RegisteredTopic>>, WriteError> {
        match self.query(&StoreQuery::Topics)? {
            StoreReply::Topics(topics) => Ok(topics),
            _ => Err(WriteError::Unknown),
        }
    }

    /// Returns the number of an endpoint that comes; `None` if there is none left.
    pub(crate) fn begin(&self, endpoint: ClientEndpoint) -> Option<u16> {
        let mut standing = lock(&self.connection.standing);
        let number = standing.numbers.take()?;
        standing.open.insert(number, endpoint);
        Some(number)
    }

    /// Announces an endpoint that has begun; returns the identity under which that was done, and the number of the first message after it.
    pub(crate) fn announce(
        &self,
        number: u16,
        endpoint: &ClientEndpoint,
    ) -> Result<(EndpointId, u64), WriteError> {
        let mut id = EndpointId { node: 0, number };
        let announcement = |node| {
            id.node = node;
            endpoint.announcement(id).encode(endpoint.topic)
        };
        match self.connection.update_as(announcement, self.connection.timeout)? {
            KeptReply::Announced(next) => Ok((id, next)),
            reply => Err(settle(reply, endpoint.service).err().unwrap_or(WriteError::Unknown)),
        }
    }

    /// Announces that an endpoint has gone.
    pub(crate) fn close(&self, number: u16) {
        let mut standing = lock(&self.connection.standing);
        if let Some(endpoint) = standing.open.remove(&number) {
            let id = EndpointId { node: standing.node, number };
            self.connection.mention(endpoint.announcement(id).end().encode(endpoint.topic));
        }
    }

    /// Renews the lease no more, as if no member could be reached, or the process had died; or does it again.
    #[cfg(test)]
    pub(crate) fn set_silent(&self, is_silent: bool) {
        lock(&self.connection.standing).is_closed = is_silent;
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.renewing = None;
        let mut standing = lock(&self.connection.standing);
        standing.is_closed = true;
        let gone = GoneProcess { node: standing.node, before: u64::MAX };
        drop(standing);
        let pending = self.connection.object.update(b"", &HistoryMessage::from(encode_gone(gone)));
        // What was updated before is applied before. Without an answer, members find out by themselves.
        if let Ok(pending) = pending {
            drop(wait_reply(pending, Instant::now(), END_PATIENCE));
        }
    }
}

impl ClientConnection {
    fn update(&self, bytes: Vec<u8>, patience: Duration) -> Result<KeptReply, WriteError> {
        let begun = Instant::now();
        let pending = self.object.update(b"", &HistoryMessage::from(bytes)).map_err(explain)?;
        let reply = wait_reply(pending, begun, patience).ok_or(WriteError::Unknown)?;
        outcome(reply.map_err(explain)?)
    }

    /// Updates the registry, and waits for no reply.
    fn mention(&self, bytes: Vec<u8>) {
        drop(self.object.update(b"", &HistoryMessage::from(bytes)));
    }

    fn update_as(
        &self,
        mut bytes: impl FnMut(u32) -> Vec<u8>,
        patience: Duration,
    ) -> Result<KeptReply, WriteError> {
        let begun = Instant::now();
        loop {
            let node = lock(&self.standing).node;
            let left = patience.saturating_sub(begun.elapsed());
            match self.update(bytes(node), left)? {
                KeptReply::Expired if left.is_zero() => return Err(WriteError::Timeout(patience)),
                KeptReply::Expired => self.come_back(node, patience.saturating_sub(begun.elapsed()))?,
                reply => return Ok(reply),
            }
        }
    }

    /// Returns a number that this client may have.
    fn admit(&self, patience: Duration) -> Result<u32, WriteError> {
        // The clients of a domain whose histories were lost with all its members had other numbers, unless this is the same nanosecond of a
        // cycle.
        let first = u32::try_from(now_ns() % u64::from(u32::MAX)).expect("it is less");
        match self.update(encode_client(first), patience)? {
            KeptReply::Client(node) => Ok(node),
            _ => Err(WriteError::TooManyEndpoints),
        }
    }

    fn renew(&self) {
        let Standing { node, is_closed: false, .. } = *lock(&self.standing) else { return };
        if matches!(self.update(encode_renewal(node), self.timeout), Ok(KeptReply::Expired)) {
            // If no member answers now, the next renewal is refused as well.
            let _ = self.come_back(node, self.timeout);
        }
    }

    /// Takes another number in place of `expired`, whose endpoints members have ended, and announces them under that.
    fn come_back(&self, expired: u32, patience: Duration) -> Result<(), WriteError> {
        let (_turn, begun) = (lock(&self.returning), Instant::now());
        let open = {
            let standing = lock(&self.standing);
            if standing.node != expired || standing.is_closed {
                return Ok(());
            }
            standing.open.clone()
        };
        let left = || patience.saturating_sub(begun.elapsed());
        let node = self.admit(left())?;
        let gone = encode_gone(GoneProcess { node, before: u64::MAX });
        let announced = open.iter().try_for_each(|(number, endpoint)| {
            let id = EndpointId { node, number: *number };
            let reply = self.update(endpoint.announcement(id).encode(endpoint.topic), left())?;
            settle(reply, endpoint.service)
        });
        if announced.is_err() {
            self.mention(gone);
            return announced;
        }
        let mut standing = lock(&self.standing);
        standing.node = node;
        for (number, endpoint) in open.iter().filter(|(number, _)| !standing.open.contains_key(number)) {
            let id = EndpointId { node, number: *number };
            self.mention(endpoint.announcement(id).end().encode(endpoint.topic));
        }
        if standing.is_closed {
            self.mention(gone);
        }
        Ok(())
    }
}

/// How long the end of a client waits for a member to note it.
const END_PATIENCE: Duration = Duration::from_secs(1);
