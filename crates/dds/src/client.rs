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

use squall::object::{Client, ObjectError};
use squall::{Config, DeliveryMode};
use squall_fabric::mutex::lock;

use crate::cache::{ChangeKind, Selection};
use crate::client_link::{ClientEndpoint, ClientLink};
use crate::data::TopicData;
use crate::error::{EntityError, ParticipantError, ReadError, WriteError};
use crate::keeper::settle;
use crate::kept::KeptReply;
use crate::qos::{Profile, Qos};
use crate::reader::value_of;
use crate::reader_core::ReaderCore;
use crate::registry::{StoreQuery, StoreReply, is_grouped, keeps, service};
use crate::run_time::{self, TopicStore};
use crate::sample::{EndpointId, Sample, StateMask, now_ns};
use crate::status::{CountStatus, MatchedStatus};
use crate::store::pull_part;
use crate::wire::{ChangeHeader, RegisteredTopic, TopicRole};

/// A process outside a domain's group that writes and reads its topics through any member, over TCP or a Unix socket, after the proof of
/// the group's secret. It changes no view, and no member waits for it. A member that dies is replaced by another one.
///
/// The topics are those that participants have created at run time ([`crate::ParticipantBuilder::run_time_topics`]) and that keep samples; a
/// client may create others. The last one of the client, its writers and its readers to be dropped waits for a second at most until a member has
/// noted the ends of the others. Of a process that ends without that, or that no member hears for a minute, the writers and readers end
/// by themselves. If it was only cut off, it announces them again when it reaches a member: they continue where they were.
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

impl ClientLink {
    /// Announces an endpoint; returns its number, what members know of it, and the number of the first message after it.
    fn enter<T: TopicData>(
        &self,
        name: &str,
        role: TopicRole,
        qos: Qos,
    ) -> Result<(EndpointId, ClientEndpoint, u64), EntityError> {
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
        let (type_name, service) = (topic.type_name.clone(), service(&topic.qos));
        let endpoint = ClientEndpoint { topic: number, role, type_name, qos, service };
        let own = self.begin(endpoint.clone()).ok_or_else(|| EntityError::TooMany(name.into()))?;
        match self.announce(own, &endpoint) {
            Ok((id, next)) => Ok((id, endpoint, next)),
            Err(error) => {
                // The announcement may still arrive.
                self.close(own);
                Err(error.into())
            }
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
        Ok(Self { link: Arc::new(ClientLink::open(object, store, timeout)?) })
    }

    /// Lets this client renew its lease no more, or again.
    #[cfg(test)]
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.link.set_silent(is_silent);
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
        let (topic, profile, store) = (name.to_owned(), qos.profile(), self.link.store());
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
        match self.link.update(wanted.encode()).map_err(failed)? {
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
        let (id, endpoint, _) = self.link.enter::<T>(topic, TopicRole::Writer, qos)?;
        Ok(ClientWriter { link: Arc::clone(&self.link), number: id.number, endpoint, of: PhantomData })
    }

    /// Creates a reader of a topic that keeps samples.
    ///
    /// # Errors
    /// [`EntityError::NotForClients`] if the topic keeps nothing; or another error, with what to do next.
    pub fn reader<T: TopicData>(&self, topic: &str, qos: Qos) -> Result<ClientReader<T>, EntityError> {
        let (id, endpoint, next) = self.link.enter::<T>(topic, TopicRole::Reader, qos)?;
        let mut reader = ReaderCore::new(&endpoint.announcement(id), true, None);
        // Its own announcement may end before it has read that.
        reader.begin_live(next);
        let state = Mutex::new(ClientReading { next: reader.next_kept.unwrap_or(next), reader });
        let (link, topic) = (Arc::clone(&self.link), endpoint.topic);
        Ok(ClientReader { link, topic, number: id.number, state, of: PhantomData })
    }
}

/// A writer of a client. Each write returns when the sample is in the histories of all members, if the topic is logged also on their disks.
///
/// [`DomainClient`] has an example.
pub struct ClientWriter<T> {
    link: Arc<ClientLink>,
    /// Its number among the endpoints of this client.
    number: u16,
    endpoint: ClientEndpoint,
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
        let (topic, source_time) = (self.endpoint.topic, now_ns());
        let change = |node| {
            let writer = EndpointId { node, number: self.number };
            let header = ChangeHeader { kind, topic, writer, source_time, key };
            let mut bytes = vec![0; header.length_with(data.len())];
            header.write(&mut bytes).copy_from_slice(data);
            bytes
        };
        let reply = self.link.update_as(change, self.endpoint.qos.max_blocking_time)?;
        settle(reply, self.endpoint.service)
    }
}

/// A reader of a client: it gets each sample of the topic's history once and in order. It asks a member for more when the application does, so
/// it takes nothing while the application does not.
///
/// [`DomainClient`] has an example.
pub struct ClientReader<T> {
    link: Arc<ClientLink>,
    topic: u32,
    /// Its number among the endpoints of this client.
    number: u16,
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
        f.debug_struct("ClientWriter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ClientReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientReader").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<T> Drop for ClientWriter<T> {
    fn drop(&mut self) {
        self.link.close(self.number);
    }
}

impl<T> Drop for ClientReader<T> {
    fn drop(&mut self) {
        self.link.close(self.number);
    }
}

/// Between two questions for more: it grows while nothing comes.
const POLL_PERIOD_LEAST: Duration = Duration::from_millis(2);
const POLL_PERIOD_MAX: Duration = Duration::from_millis(50);
