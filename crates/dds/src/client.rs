//! Clients outside the group: they write and read topics through any member.
//!
//! For topics that keep samples, a client is one of the replicated object that has the histories ([`squall::object::Client`]), so a
//! member that dies is replaced by another one, and what it writes is applied once. It reads the history by queries, from where it is, as
//! readers of members read it from memory: each sample once and in order, whichever members answer. In topics that keep nothing, a member
//! has readers and writers in its place ([`crate::hosted`]).

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::external::MemberChannel;
use squall::object::{Client, ObjectError};
use squall::{Config, DeliveryMode};
use squall_fabric::mutex::lock;

use crate::cache::{ChangeKind, SampleBytes, Selection};
use crate::client_link::{ClientEndpoint, ClientLink};
use crate::data::TopicData;
use crate::error::{EntityError, ParticipantError, ReadError, WriteError};
use crate::host::HostedSample;
use crate::hosted::{HostFinder, HostedReader, HostedWriter};
use crate::keeper::settle;
use crate::kept::KeptReply;
use crate::qos::Qos;
use crate::reader::value_of;
use crate::reader_core::ReaderCore;
use crate::registry::{StoreQuery, StoreReply, is_grouped, keeps, service};
use crate::run_time::{self, TopicDescription, TopicStore};
use crate::sample::{EndpointId, Sample, StateMask, now_ns};
use crate::status::{CountStatus, MatchedStatus};
use crate::store::pull_part;
use crate::wire::{ChangeHeader, RegisteredTopic, TopicRole, check_name};

/// A process outside a domain's group that writes and reads its topics through any member, over TCP or a Unix socket, after the proof of
/// the group's secret. It changes no view, and no member waits for it. A member that dies is replaced by another one.
///
/// The topics are those that participants have created at run time ([`crate::ParticipantBuilder::run_time_topics`]); a client may create
/// others.
///
/// In topics that keep samples, a client reads and writes each sample once, whichever members die. The last one of the client, its
/// writers and its readers to be dropped waits for a second at most until a member has noted the ends of the others. Of a process that
/// ends without that, or that no member hears for a minute, the writers and readers end by themselves. If it was only cut off, it
/// announces them again when it reaches a member: they continue where they were.
///
/// In topics that keep nothing, readers and writers end with the connection to a member. That member keeps 16 MiB for a reader that does
/// not take its samples, and the rest is lost ([`ClientReader::sample_lost`]): no writer waits for it. A reader whose member is lost
/// reports that ([`ReadError::Interrupted`]), and continues through another one; so does a writer ([`WriteError::MemberLost`]).
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
    finder: HostFinder,
    /// By which the topics were asked for last.
    listing: Mutex<Option<MemberChannel>>,
}

impl ClientLink {
    /// Announces an endpoint of a topic that keeps samples; returns its number, what members know of it, and the number of the first
    /// message after it. `None` if the topic keeps nothing.
    fn enter<T: TopicData>(
        &self,
        name: &str,
        role: TopicRole,
        qos: &Qos,
    ) -> Result<Option<(EndpointId, ClientEndpoint, u64)>, EntityError> {
        qos.check()?;
        if is_grouped(qos) && role == TopicRole::Reader {
            return Err(EntityError::NeedsSubscriber(name.into()));
        }
        let failed = |error| EntityError::Creation { topic: name.into(), error };
        let topics = self.topics().map_err(failed)?;
        let found = (0..).zip(&topics).find(|(_, topic)| topic.name == name);
        let (number, topic) = found.ok_or_else(|| EntityError::UnknownTopic(name.into()))?;
        let has_type = topic.check_type(T::type_name(), T::type_hash());
        // The bytes of any type are bytes.
        if role == TopicRole::Writer || T::type_name() != Vec::<u8>::type_name() {
            has_type?;
        }
        let present = topic.qos.profile();
        let wanted = qos.profile();
        if role == TopicRole::Writer && wanted != present {
            return Err(EntityError::Profile { topic: name.into(), present, wanted });
        }
        if !keeps(present) {
            return Ok(None);
        }
        let (type_name, service) = (topic.type_name.clone(), service(&topic.qos));
        let endpoint = ClientEndpoint { topic: number, role, type_name, qos: qos.clone(), service };
        let own = self.begin(endpoint.clone()).ok_or_else(|| EntityError::TooMany(name.into()))?;
        match self.announce(own, &endpoint) {
            Ok((id, next)) => Ok(Some((id, endpoint, next))),
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
    /// [`ParticipantError::Unserved`] if no contact answers in time; [`ParticipantError::History`] if no member has the histories in time.
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
        // It tries for this long, and the other one only once.
        let listing = Mutex::new(Some(MemberChannel::connect(&config, run_time::REGISTRY, timeout)?));
        let object = Client::connect_with(&config, run_time::REGISTRY, timeout)?;
        let link = Arc::new(ClientLink::open(object, store, timeout)?);
        Ok(Self { link, finder: HostFinder { config, timeout }, listing })
    }

    /// Lets this client renew its lease no more, or again.
    #[cfg(test)]
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.link.set_silent(is_silent);
    }

    /// Returns the topics of the domain by their names, as a member knows them: see [`crate::DomainParticipant::topics`].
    ///
    /// # Errors
    /// [`ReadError`] if no member answers.
    pub fn topics(&self) -> Result<Vec<TopicDescription>, ReadError> {
        self.finder.topics(&mut lock(&self.listing))
    }

    /// Creates a topic, or finds it, as [`crate::DomainParticipant::create_topic`] does.
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn create_topic<T: TopicData>(&self, name: &str, qos: Qos) -> Result<(), EntityError> {
        check_name(name)?;
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

    /// Creates a writer of a topic.
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn writer<T: TopicData>(&self, topic: &str, qos: Qos) -> Result<ClientWriter<T>, EntityError> {
        let link = Arc::clone(&self.link);
        let patience = qos.max_blocking_time;
        let side = match self.link.enter::<T>(topic, TopicRole::Writer, &qos)? {
            Some((id, endpoint, _)) => WritingSide::History { link, number: id.number, endpoint },
            None => WritingSide::Member(Mutex::new(HostedWriter::open(self.finder.clone(), topic, qos)?)),
        };
        Ok(ClientWriter { side, patience, of: PhantomData })
    }

    /// Creates a reader of a topic. One of bytes reads topics of any type.
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn reader<T: TopicData>(&self, topic: &str, qos: Qos) -> Result<ClientReader<T>, EntityError> {
        let side = match self.link.enter::<T>(topic, TopicRole::Reader, &qos)? {
            Some((id, endpoint, next)) => {
                let mut reader = ReaderCore::new(&endpoint.announcement(id), true, None);
                // Its own announcement may end before it has read that.
                reader.begin_live(next);
                let state = Mutex::new(ClientReading { next: reader.next_kept.unwrap_or(next), reader });
                let (link, topic) = (Arc::clone(&self.link), endpoint.topic);
                ReadingSide::History(HistoryReader { link, topic, number: id.number, state })
            }
            None => ReadingSide::Member(Mutex::new(HostedReader::open(self.finder.clone(), topic, qos)?)),
        };
        Ok(ClientReader { side, of: PhantomData })
    }
}

/// A writer of a client.
///
/// In topics that keep samples, each write returns when the sample is in the histories of all members, if the topic is logged also on
/// their disks. In others it returns when the sample is on its way, and [`ClientWriter::wait_for_acknowledgments`] waits until all
/// members have it.
///
/// [`DomainClient`] has an example.
pub struct ClientWriter<T> {
    side: WritingSide,
    patience: Duration,
    of: PhantomData<fn(T)>,
}

/// How a client writes.
enum WritingSide {
    History {
        link: Arc<ClientLink>,
        /// Its number among the endpoints of this client.
        number: u16,
        endpoint: ClientEndpoint,
    },
    /// By a writer that a member has.
    Member(Mutex<HostedWriter>),
}

impl<T: TopicData> ClientWriter<T> {
    /// Writes a sample. Waits for space or for the outcome, at most the `max_blocking_time` of the policies.
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
        let (link, number, endpoint) = match &self.side {
            WritingSide::History { link, number, endpoint } => (link, *number, endpoint),
            WritingSide::Member(writer) => return lock(writer).send(kind, key, data, self.patience),
        };
        let (topic, source_time) = (endpoint.topic, now_ns());
        let change = |node| {
            let writer = EndpointId { node, number };
            let header = ChangeHeader { kind, topic, writer, source_time, key };
            let mut bytes = vec![0; header.length_with(data.len())];
            header.write(&mut bytes).copy_from_slice(data);
            bytes
        };
        let reply = link.update_as(change, self.patience)?;
        settle(reply, endpoint.service)
    }

    /// Waits until everything that was written was delivered at all members.
    ///
    /// # Errors
    /// [`WriteError::Timeout`]; [`WriteError::MemberLost`] if it is not known for some samples.
    pub fn wait_for_acknowledgments(&self, timeout: Duration) -> Result<(), WriteError> {
        match &self.side {
            WritingSide::History { .. } => Ok(()),
            WritingSide::Member(writer) => lock(writer).wait_for_acknowledgments(timeout),
        }
    }
}

/// A reader of a client.
///
/// In topics that keep samples, it gets each sample of the topic's history once and in order: it asks a member for more when the application
/// does, so it takes nothing while the application does not. In others it gets what comes to a member from now on.
///
/// [`DomainClient`] has an example.
pub struct ClientReader<T> {
    side: ReadingSide,
    of: PhantomData<fn() -> T>,
}

/// How a client reads.
enum ReadingSide {
    History(HistoryReader),
    /// By a reader that a member has.
    Member(Mutex<HostedReader>),
}

/// Reads the history of a topic.
struct HistoryReader {
    link: Arc<ClientLink>,
    topic: u32,
    /// Its number among the endpoints of this client.
    number: u16,
    state: Mutex<ClientReading>,
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
    /// [`ReadError`] if there are no samples here, and no member answers in time, or the one that has sent them is lost.
    pub fn take(&self, samples_max: usize) -> Result<Vec<Sample<T>>, ReadError> {
        match &self.side {
            ReadingSide::History(history) => history.take(samples_max),
            ReadingSide::Member(reader) => {
                let mut reader = lock(reader);
                if reader.arrived.is_empty() {
                    reader.pull(Duration::ZERO)?;
                }
                let count = samples_max.min(reader.arrived.len());
                let taken: Vec<HostedSample> = reader.arrived.drain(..count).collect();
                let samples = taken.into_iter().filter_map(|HostedSample { data, info }| {
                    let data = data.map(|data| value_of(SampleBytes::Shared(data))).transpose();
                    data.inspect_err(|_| reader.lost.add(1)).ok().map(|data| Sample { data, info })
                });
                Ok(samples.collect())
            }
        }
    }

    /// Waits until there are samples.
    ///
    /// # Errors
    /// [`ReadError::Timeout`]; the errors of [`ClientReader::take`].
    pub fn wait_for_data(&self, timeout: Duration) -> Result<(), ReadError> {
        match &self.side {
            ReadingSide::History(history) => history.wait_for_data(timeout),
            ReadingSide::Member(reader) => {
                let mut reader = lock(reader);
                reader.pull(timeout)?;
                if reader.arrived.is_empty() { Err(ReadError::Timeout(timeout)) } else { Ok(()) }
            }
        }
    }

    /// Returns SAMPLE_LOST, as [`crate::DataReader::sample_lost`] does; in topics that keep nothing, it counts those for which there was no
    /// space at the member.
    #[must_use]
    pub fn sample_lost(&self) -> CountStatus {
        match &self.side {
            ReadingSide::History(history) => lock(&history.state).reader.lost.report(),
            ReadingSide::Member(reader) => lock(reader).lost.report(),
        }
    }

    /// Returns SUBSCRIPTION_MATCHED: how many writers match, as far as the reader has read the history. Of topics that keep nothing it is
    /// not known here.
    #[must_use]
    pub fn subscription_matched(&self) -> MatchedStatus {
        match &self.side {
            ReadingSide::History(history) => lock(&history.state).reader.peers.matched.report(),
            ReadingSide::Member(_) => MatchedStatus::default(),
        }
    }
}

impl HistoryReader {
    fn take<T: TopicData>(&self, samples_max: usize) -> Result<Vec<Sample<T>>, ReadError> {
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

    fn wait_for_data(&self, timeout: Duration) -> Result<(), ReadError> {
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
        f.debug_struct("ClientWriter").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ClientReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientReader").finish_non_exhaustive()
    }
}

impl Drop for WritingSide {
    fn drop(&mut self) {
        match self {
            Self::History { link, number, .. } => link.close(*number),
            Self::Member(writer) => lock(writer).close(),
        }
    }
}

impl Drop for HistoryReader {
    fn drop(&mut self) {
        self.link.close(self.number);
    }
}

/// Between two questions for more: it grows while nothing comes.
const POLL_PERIOD_LEAST: Duration = Duration::from_millis(2);
const POLL_PERIOD_MAX: Duration = Duration::from_millis(50);
