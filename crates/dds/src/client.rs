//! Clients outside the group: they write and read topics that keep samples, through any member.
//!
//! A client is one of the replicated object that has the histories ([`squall::object::Client`]), so a member that dies is replaced by another
//! one, and what it writes is applied once. It reads the history by queries, from where it is, as readers of members read it from
//! memory: each sample once and in order, whichever members answer.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::object::{Client, ObjectError, Pending};
use squall::{Config, DeliveryMode};

use crate::buffer::HistoryMessage;
use crate::cache::{ChangeKind, Selection};
use crate::data::TopicData;
use crate::error::{EntityError, ParticipantError, ReadError, WriteError};
use crate::keeper::{outcome, settle, wait_reply};
use crate::kept::KeptReply;
use crate::outlet::{explain, lock};
use crate::qos::{DurabilityService, Profile, Qos};
use crate::reader::value_of;
use crate::reader_core::ReaderCore;
use crate::registry::{StoreQuery, StoreReply, TopicRegistry, is_grouped, keeps, service};
use crate::run_time::{self, TopicStore};
use crate::sample::{EndpointId, Sample, StateMask, now_ns};
use crate::status::{CountStatus, MatchedStatus};
use crate::store::pull_part;
use crate::wire::{ChangeHeader, EndpointAnnouncement, RegisteredTopic, TopicRole, encode_client};

/// A process outside a domain's group that writes and reads its topics through any member, over TCP or a Unix socket, after the proof of
/// the group's secret. It changes no view, and no member waits for it. A member that dies is replaced by another one.
///
/// The topics are those that participants have created at run time ([`crate::ParticipantBuilder::run_time_topics`]) and that keep samples; a
/// client may create others. A process that ends without dropping its writers and readers stays
/// announced as matched. The last one of the client, its writers and its readers to be dropped waits for a second at most until a member has
/// noted the ends of the others.
///
/// ```
/// use std::time::Duration;
/// # use squall::Config;
/// use squall_dds::{DomainClient, DomainParticipant, Qos, TopicStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-domain-client-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config.clone()).run_time_topics(TopicStore::Memory).join()?;
/// // In any process:
/// let client = DomainClient::connect(config, TopicStore::Memory, Duration::from_secs(10))?;
/// client.create_topic::<Vec<u8>>("news", Qos::KEPT)?;
/// client.writer::<Vec<u8>>("news", Qos::KEPT)?.write(&b"hello".to_vec())?;
///
/// let reader = client.reader::<Vec<u8>>("news", Qos::KEPT)?;
/// reader.wait_for_data(Duration::from_secs(10))?;
/// assert_eq!(reader.take(9)?[0].data.as_deref(), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DomainClient {
    link: Arc<ClientLink>,
}

/// The connection, which readers and writers share.
#[derive(Debug)]
struct ClientLink {
    object: Client<TopicRegistry>,
    store: TopicStore,
    /// How long an answer may take.
    timeout: Duration,
    /// This client's number, in place of a node's.
    node: u32,
    /// How many endpoints it has had.
    endpoints: Mutex<u16>,
    /// The outcome of the last announcement that an endpoint has gone; those before are applied before.
    last_end: Mutex<Option<Pending<StoreReply>>>,
}

impl ClientLink {
    fn update(&self, bytes: Vec<u8>, patience: Duration) -> Result<KeptReply, WriteError> {
        let begun = Instant::now();
        let pending = self.object.update(b"", &HistoryMessage::from(bytes)).map_err(explain)?;
        let reply = wait_reply(pending, begun, patience).ok_or(WriteError::Unknown)?;
        outcome(reply.map_err(explain)?)
    }

    fn query(&self, query: &StoreQuery) -> Result<StoreReply, WriteError> {
        let begun = Instant::now();
        let pending = self.object.query(b"", query).map_err(explain)?;
        let reply = wait_reply(pending, begun, self.timeout).ok_or(WriteError::Timeout(self.timeout))?;
        reply.map_err(explain)
    }

    fn topics(&self) -> Result<Vec<Arc<RegisteredTopic>>, WriteError> {
        match self.query(&StoreQuery::Topics)? {
            StoreReply::Topics(topics) => Ok(topics),
            _ => Err(WriteError::Unknown),
        }
    }

    /// Announces an endpoint; returns its topic's number, what the topic keeps, and the announcement.
    fn open<T: TopicData>(
        &self,
        name: &str,
        role: TopicRole,
        qos: Qos,
    ) -> Result<(u32, DurabilityService, EndpointAnnouncement), EntityError> {
        qos.check()?;
        if is_grouped(&qos) {
            return Err(EntityError::NeedsSubscriber(name.into()));
        }
        let failed = |error| EntityError::Creation { topic: name.into(), error };
        let topics = self.topics().map_err(failed)?;
        let found = (0..).zip(&topics).find(|(_, topic)| topic.name == name);
        let (number, topic) = found.ok_or_else(|| EntityError::UnknownTopic(name.into()))?;
        topic.check_type(T::type_name(), T::type_hash())?;
        let present = topic.qos.profile();
        if !keeps(present) {
            return Err(EntityError::NotForClients { topic: name.into(), profile: present });
        }
        let wanted = qos.profile();
        if role == TopicRole::Writer && wanted != present {
            return Err(EntityError::Profile { topic: name.into(), present, wanted });
        }
        let own = {
            let mut endpoints = lock(&self.endpoints);
            let own = *endpoints;
            *endpoints = own.checked_add(1).ok_or_else(|| EntityError::TooMany(name.into()))?;
            own
        };
        let id = EndpointId { node: self.node, number: own };
        let announcement = EndpointAnnouncement { id, role, type_name: topic.type_name.clone(), qos };
        let kept = service(&topic.qos);
        let reply = self.update(announcement.encode(number), self.timeout);
        if let Err(error) = reply.and_then(|reply| settle(reply, kept)) {
            // The announcement may still arrive.
            self.close(number, &announcement);
            return Err(error.into());
        }
        Ok((number, kept, announcement))
    }

    /// Announces that an endpoint has gone.
    fn close(&self, topic: u32, announcement: &EndpointAnnouncement) {
        let pending = self.object.update(b"", &HistoryMessage::from(announcement.end().encode(topic)));
        *lock(&self.last_end) = pending.ok();
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        if let Some(pending) = lock(&self.last_end).take() {
            // Without an answer, the endpoints stay announced.
            drop(wait_reply(pending, Instant::now(), END_PATIENCE));
        }
    }
}

impl DomainClient {
    /// Connects to a domain. `config` is that of its participants, of which cluster, secret and contacts matter, and the length of
    /// messages in the subgroup `dds-topics`; any contact that answers is sufficient. `store` is the participants'.
    ///
    /// # Errors
    /// [`ParticipantError::Handle`] if no contact answers; [`ParticipantError::History`] if no member has the histories in time.
    pub fn connect(
        mut config: Config,
        store: TopicStore,
        timeout: Duration,
    ) -> Result<Self, ParticipantError> {
        let subgroup = config.subgroups.entry(run_time::REGISTRY.into()).or_default();
        subgroup.mode = match store {
            TopicStore::Memory => DeliveryMode::Atomic,
            TopicStore::Disk => DeliveryMode::Durable,
        };
        let object = Client::connect_with(&config, run_time::REGISTRY, timeout)?;
        let (endpoints, last_end) = Default::default();
        let mut link = ClientLink { object, store, timeout, node: 0, endpoints, last_end };
        let failed = |error| ParticipantError::History { topic: run_time::REGISTRY.into(), error };
        match link.update(encode_client(), timeout).map_err(failed)? {
            KeptReply::Client(node) => link.node = node,
            _ => return Err(failed(WriteError::TooManyEndpoints)),
        }
        Ok(Self { link: Arc::new(link) })
    }

    /// Returns the names of the topics that were created at run time, with their types and profiles.
    ///
    /// # Errors
    /// [`WriteError`] if no member answers.
    pub fn topics(&self) -> Result<Vec<(String, String, Profile)>, WriteError> {
        let topics = self.link.topics()?;
        let describe =
            |topic: &Arc<RegisteredTopic>| (topic.name.clone(), topic.type_name.clone(), topic.qos.profile());
        Ok(topics.iter().map(describe).collect())
    }

    /// Creates a topic, or finds it, as [`crate::DomainParticipant::create_topic`] does.
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn create_topic<T: TopicData>(&self, name: &str, qos: Qos) -> Result<(), EntityError> {
        qos.check_topic()?;
        let (topic, profile, store) = (name.to_owned(), qos.profile(), self.link.store);
        if !store.holds(profile) {
            return Err(EntityError::NoStore { topic, profile, store });
        }
        let (type_name, type_hash) = (T::type_name().into(), T::type_hash());
        let wanted = RegisteredTopic { name: topic.clone(), type_name, type_hash, qos };
        let failed = |error| EntityError::Creation { topic: name.into(), error };
        let present = |number: u32| {
            let topics = self.link.topics().map_err(failed)?;
            topics.get(number as usize).cloned().ok_or_else(|| EntityError::UnknownTopic(name.into()))
        };
        match self.link.update(wanted.encode(), self.link.timeout).map_err(failed)? {
            KeptReply::TypeDiffers(number) => present(number)?.check_type(T::type_name(), T::type_hash()),
            KeptReply::QosDiffers(number) => {
                let present = Box::new(present(number)?.qos.clone());
                Err(EntityError::IncompatibleTopic { topic, present })
            }
            KeptReply::TooManyTopics => Err(EntityError::TooManyTopics(topic)),
            KeptReply::Topic(_) => Ok(()),
            reply => {
                let other = ObjectError::Form(format!("{reply:?}, for the creation of a topic"));
                Err(failed(WriteError::History(other)))
            }
        }
    }

    /// Creates a writer of a topic that keeps samples.
    ///
    /// # Errors
    /// [`EntityError::NotForClients`] if the topic keeps nothing; or another error, with what to do next.
    pub fn writer<T: TopicData>(&self, topic: &str, qos: Qos) -> Result<ClientWriter<T>, EntityError> {
        let (topic, kept, announcement) = self.link.open::<T>(topic, TopicRole::Writer, qos)?;
        Ok(ClientWriter { link: Arc::clone(&self.link), topic, kept, announcement, of: PhantomData })
    }

    /// Creates a reader of a topic that keeps samples.
    ///
    /// # Errors
    /// [`EntityError::NotForClients`] if the topic keeps nothing; or another error, with what to do next.
    pub fn reader<T: TopicData>(&self, topic: &str, qos: Qos) -> Result<ClientReader<T>, EntityError> {
        let (topic, _, announcement) = self.link.open::<T>(topic, TopicRole::Reader, qos)?;
        let reader = ReaderCore::new(&announcement, true, None);
        let state = Mutex::new(ClientReading { reader, next: 0 });
        Ok(ClientReader { link: Arc::clone(&self.link), topic, announcement, state, of: PhantomData })
    }
}

/// A writer of a client. Each write returns when the sample is in the histories of all members, if the topic is logged also on their disks.
///
/// [`DomainClient`] has an example.
pub struct ClientWriter<T> {
    link: Arc<ClientLink>,
    topic: u32,
    /// What the topic keeps.
    kept: DurabilityService,
    announcement: EndpointAnnouncement,
    of: PhantomData<fn(T)>,
}

impl<T: TopicData> ClientWriter<T> {
    /// Writes a sample. Waits for the outcome, at most the `max_blocking_time` of the policies.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn write(&self, sample: &T) -> Result<(), WriteError> {
        self.send(ChangeKind::Data, &sample.key_bytes()?, &sample.to_sample()?)
    }

    /// Disposes of the instance of a sample.
    ///
    /// # Errors
    /// [`WriteError`], with what to do next.
    pub fn dispose(&self, sample: &T) -> Result<(), WriteError> {
        self.send(ChangeKind::Dispose, &sample.key_bytes()?, &[])
    }

    fn send(&self, kind: ChangeKind, key: &[u8], data: &[u8]) -> Result<(), WriteError> {
        let header = ChangeHeader {
            kind,
            topic: self.topic,
            writer: self.announcement.id,
            source_time: now_ns(),
            key,
        };
        let mut bytes = vec![0; header.length_with(data.len())];
        header.write(&mut bytes).copy_from_slice(data);
        settle(self.link.update(bytes, self.announcement.qos.max_blocking_time)?, self.kept)
    }
}

/// A reader of a client: it gets each sample of the topic's history once and in order. It asks a member for more when the application does, so
/// it takes nothing while the application does not.
///
/// [`DomainClient`] has an example.
pub struct ClientReader<T> {
    link: Arc<ClientLink>,
    topic: u32,
    announcement: EndpointAnnouncement,
    state: Mutex<ClientReading>,
    of: PhantomData<fn() -> T>,
}

#[derive(Debug)]
struct ClientReading {
    reader: ReaderCore,
    /// The number of the next sample.
    next: u64,
}

impl<T: TopicData> ClientReader<T> {
    /// Takes at most `samples_max` samples, oldest first; asks a member for more before. Bytes that are no value of `T` are left out, and
    /// count in [`ClientReader::sample_lost`].
    ///
    /// # Errors
    /// [`ReadError::NoAnswer`] if no member answers in time, and there are no samples here.
    pub fn take(&self, samples_max: usize) -> Result<Vec<Sample<T>>, ReadError> {
        let mut state = lock(&self.state);
        let pulled = self.pull(&mut state);
        let selection =
            Selection { samples_max, states: StateMask::ANY, instance: None, takes: true, before: None };
        let found = state.reader.cache.select(selection, now_ns());
        if found.is_empty() {
            pulled?;
        }
        let mut samples = Vec::with_capacity(found.len());
        for Sample { data, info } in found {
            match data.map(value_of).transpose() {
                Ok(data) => samples.push(Sample { data, info }),
                Err(_) => state.reader.lost.add(1),
            }
        }
        Ok(samples)
    }

    /// Waits until there are samples.
    ///
    /// # Errors
    /// [`ReadError::Timeout`]; [`ReadError::NoAnswer`] if no member answers.
    pub fn wait_for_data(&self, timeout: Duration) -> Result<(), ReadError> {
        let (begun, mut pause) = (Instant::now(), POLL_PERIOD_LEAST);
        loop {
            let mut state = lock(&self.state);
            if state.reader.cache.has_unread() {
                return Ok(());
            }
            self.pull(&mut state)?;
            let has_data = state.reader.cache.has_unread();
            drop(state);
            match () {
                () if has_data => return Ok(()),
                () if begun.elapsed() >= timeout => return Err(ReadError::Timeout(timeout)),
                () => thread::sleep(pause.min(timeout.saturating_sub(begun.elapsed()))),
            }
            pause = (2 * pause).min(POLL_PERIOD_MAX);
        }
    }

    /// Returns SAMPLE_LOST, as [`crate::DataReader::sample_lost`] does.
    #[must_use]
    pub fn sample_lost(&self) -> CountStatus {
        lock(&self.state).reader.lost.report()
    }

    /// Returns SUBSCRIPTION_MATCHED: how many writers match, as far as the reader has read the history.
    #[must_use]
    pub fn subscription_matched(&self) -> MatchedStatus {
        lock(&self.state).reader.peers.matched.report()
    }

    /// Asks a member for what comes next in the history, and takes what there is space for.
    fn pull(&self, state: &mut ClientReading) -> Result<(), ReadError> {
        let first = state.next;
        let (announcement, forgotten) = (state.reader.next_announcement, state.reader.forgotten);
        let query = StoreQuery::Part { topic: self.topic, announcement, first, forgotten };
        let reply = self.link.query(&query).map_err(ReadError::NoAnswer)?;
        if let StoreReply::Part(Some(part)) = reply {
            state.next = pull_part(&mut state.reader, *part, first, now_ns());
        }
        Ok(())
    }
}

impl<T> fmt::Debug for ClientWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientWriter").field("id", &self.announcement.id).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ClientReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientReader").field("id", &self.announcement.id).finish_non_exhaustive()
    }
}

impl<T> Drop for ClientWriter<T> {
    fn drop(&mut self) {
        self.link.close(self.topic, &self.announcement);
    }
}

impl<T> Drop for ClientReader<T> {
    fn drop(&mut self) {
        self.link.close(self.topic, &self.announcement);
    }
}

/// Between two questions for more: it grows while nothing comes.
const POLL_PERIOD_LEAST: Duration = Duration::from_millis(2);
const POLL_PERIOD_MAX: Duration = Duration::from_millis(50);
/// How long the end of a client waits for a member to note it.
const END_PATIENCE: Duration = Duration::from_secs(1);
