//! Participants: members of a group whose subgroups carry topics (OMG DDS 1.4 §2.2.2.2; Spindle §4.6).
//!
//! `Deviation:` (Spindle §4.6) a topic's subgroup has only the processes that publish or subscribe to it. Here it has all members, since a
//! group has its subgroups from its start; so readers and writers come and go without a view change.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use squall::{Config, Departure, Group, GroupError, PolledBy, SharedPoller};
use squall_fabric::mutex::lock;

use crate::builder::ParticipantBuilder;
use crate::data::TopicData;
use crate::error::EntityError;
use crate::in_place::{InPlaceSample, ReaderUpcall};
use crate::lane::TopicLane;
use crate::port::TopicPort;
use crate::presence::EndpointNumbers;
use crate::qos::{DurabilityKind, PolicyId, Qos};
use crate::reader::DataReader;
use crate::registry::is_grouped;
use crate::run_time::RunTimeTopics;
use crate::signal::Signal;
use crate::store::{HistoryStore, SharedGroup};
use crate::wait_set::WaitSet;
use crate::wire::TopicRole;
use crate::writer::DataWriter;

/// A process in a domain: a member of a group, whose subgroups carry topics. It has a thread for each topic that was named when it joined,
/// and some for all others, besides the group's own. A thread of the application that waits for a reader or a wait set does their work
/// meanwhile, so that samples that come wake no other thread first. Dropping it leaves the group as a death would; [`DomainParticipant::leave`] leaves
/// it in order.
///
/// ```
/// use std::time::Duration;
/// use squall::Config;
/// use squall_dds::{DomainParticipant, Qos};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-participant-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).topic("chat", Qos::ATOMIC).join()?;
/// let chat = participant.topic::<Vec<u8>>("chat")?;
/// let reader = participant.reader(&chat, Qos::ATOMIC)?;
/// participant.writer(&chat, Qos::ATOMIC)?.write(&b"hello".to_vec())?;
/// reader.wait_for_data(Duration::from_secs(10))?;
/// assert_eq!(reader.take(1)?[0].data.as_deref(), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DomainParticipant {
    pub(crate) member: Arc<DomainMember>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

/// What a participant shares with the threads that serve clients outside the group.
#[derive(Debug)]
pub(crate) struct DomainMember {
    pub(crate) node: u32,
    pub(crate) endpoints: Arc<Mutex<EndpointNumbers>>,
    /// The topics that this participant uses, and those that were named when it joined.
    pub(crate) topics: Mutex<BTreeMap<String, TopicEntry>>,
    pub(crate) group: SharedGroup,
    pub(crate) changed: Arc<Signal>,
    pub(crate) poller: SharedPoller,
    pub(crate) served: Arc<Mutex<ServedTopics>>,
    /// From the end of the join on, if topics can be created at run time.
    pub(crate) run_time: OnceLock<RunTimeTopics>,
}

/// What threads that poll serve.
#[derive(Debug, Default)]
pub(crate) struct ServedTopics {
    /// The subgroups that keep nothing.
    pub(crate) lanes: Vec<Arc<TopicLane>>,
    /// The histories of topics: one for each topic that has a subgroup of its own, and one for those that were created at run time.
    pub(crate) stores: Vec<Arc<HistoryStore>>,
}

impl ServedTopics {
    /// Takes what has come by a poll.
    pub(crate) fn serve(&self, by: PolledBy) {
        self.lanes.iter().for_each(|lane| lane.serve(by));
        self.stores.iter().for_each(|store| store.serve(by));
    }
}

/// A topic that this participant uses, or that was named when it joined.
#[derive(Clone, Debug)]
pub(crate) struct TopicEntry {
    pub(crate) port: Arc<TopicPort>,
    pub(crate) qos: Qos,
    /// The topic's type; empty if the topic was named by this participant alone, and has not been used.
    pub(crate) type_name: String,
}

/// A topic with its type, as one process sees it.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, EntityError, Qos, Topic};
/// # let config = Config::local(&format!("doc-topic-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("chat", Qos::ATOMIC).join()?;
/// let chat: Topic<Vec<u8>> = participant.topic("chat")?;
/// assert_eq!((chat.name(), chat.qos()), ("chat", &Qos::ATOMIC));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Topic<T> {
    pub(crate) port: Arc<TopicPort>,
    pub(crate) qos: Qos,
    /// The name by which endpoints announce their type.
    pub(crate) type_name: String,
    pub(crate) of: PhantomData<fn() -> T>,
}

impl<T> Topic<T> {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.port.name
    }

    /// Returns the name of the type of its samples.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns the topic's policies.
    #[must_use]
    pub const fn qos(&self) -> &Qos {
        &self.qos
    }
}

impl TopicEntry {
    pub(crate) fn topic<T>(self, type_name: &str) -> Topic<T> {
        Topic { port: self.port, qos: self.qos, type_name: type_name.into(), of: PhantomData }
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").field("name", &self.port.name).field("qos", &self.qos).finish()
    }
}

impl DomainParticipant {
    /// Prepares a participant. `config` describes the group; it needs no subgroups.
    #[must_use]
    pub fn builder(config: Config) -> ParticipantBuilder {
        ParticipantBuilder::new(config)
    }

    /// Returns the number of this member in the group, by which [`crate::EndpointId`] names it.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.member.node
    }

    /// Returns how many participants the domain has now; 0 if the group has ended here.
    #[must_use]
    pub fn participants(&self) -> usize {
        let group = lock(&self.member.group);
        group.as_ref().filter(|group| group.failure().is_none()).map_or(0, Group::members)
    }

    /// Returns the number of the group's present view: it grows when a participant comes or goes, and not when a topic is created. `None` if
    /// the group has ended here.
    #[must_use]
    pub fn view(&self) -> Option<u64> {
        let group = lock(&self.member.group);
        group.as_ref().filter(|group| group.failure().is_none()).map(|group| group.view().id)
    }

    /// Returns why the group has ended here, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        lock(&self.member.group).as_ref().and_then(Group::failure)
    }

    /// Returns the topic `name`, whose samples are values of type `T`: one that was named when this participant joined, or one that a
    /// participant has created since ([`DomainParticipant::create_topic`]).
    ///
    /// # Errors
    /// [`EntityError::UnknownTopic`] if there is no such topic; [`EntityError::TypeMismatch`] if it has another type, or this process uses
    /// it with another one. If topics were named by each participant, others that use another type appear in
    /// [`DataReader::inconsistent_topic`].
    pub fn topic<T: TopicData>(&self, name: &str) -> Result<Topic<T>, EntityError> {
        let registered = self.member.registered(name);
        if registered.is_none() && !self.member.topics_in_use().contains_key(name) {
            return Err(EntityError::UnknownTopic(name.into()));
        }
        // Before the topic is in use here.
        if let Some(registered) = registered {
            registered.check_type(T::type_name(), T::type_hash())?;
        }
        let entry = self.member.entry(name).ok_or_else(|| EntityError::UnknownTopic(name.into()))?;
        entry.port.set_type(T::type_name())?;
        Ok(entry.topic(T::type_name()))
    }

    /// Returns the topic `name`, whatever its type, for programs that do not know it: its samples are the bytes that its writers wrote.
    ///
    /// # Errors
    /// [`EntityError::UnknownTopic`] if there is no such topic, or if its type is not known since it has a subgroup of its own and this
    /// process has not used it.
    pub fn topic_of_any_type(&self, name: &str) -> Result<Topic<Vec<u8>>, EntityError> {
        self.member.topic_of_any_type(name)
    }

    /// Creates a reader. What its policies request beyond what a writer offers is reported by
    /// [`DataReader::requested_incompatible_qos`].
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn reader<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataReader<T>, EntityError> {
        if is_grouped(&qos) {
            return Err(EntityError::NeedsSubscriber(topic.name().into()));
        }
        self.member.open_reader(topic, qos)
    }

    /// Creates a reader whose samples are read where they are, in shared memory or where the network has put them: without a copy, a cache or
    /// another thread between the window and `upcall`, which the topic's thread calls for each sample in the order of the topic. The
    /// reader that is returned holds no samples; it has the statuses, and dropping it ends the upcalls, except for one that runs.
    ///
    /// While an upcall runs, this participant takes nothing else of the topic, and writers wait once their windows are full. So it should be
    /// short. It may write; but a write that waits for space does so in vain as long as the upcall itself keeps that from being freed,
    /// until its `max_blocking_time` is over. An upcall that panics is not called again.
    ///
    /// # Errors
    /// [`EntityError::NotInPlace`] for topics that keep samples, and for policies that need a cache: TIME_BASED_FILTER, and PRESENTATION with
    /// coherent access or the scope of groups; or another error, with what to do next.
    pub fn reader_in_place<T: TopicData>(
        &self,
        topic: &Topic<T>,
        qos: Qos,
        upcall: impl FnMut(InPlaceSample<'_, T>) + Send + 'static,
    ) -> Result<DataReader<T>, EntityError> {
        qos.check()?;
        let needs_cache = [
            (topic.port.outlet.keeps() || qos.durability > DurabilityKind::Volatile, PolicyId::Durability),
            (!qos.time_based_filter.is_zero(), PolicyId::TimeBasedFilter),
            (is_grouped(&qos) || qos.presentation.coherent_access, PolicyId::Presentation),
        ];
        if let Some((_, policy)) = needs_cache.into_iter().find(|(is_so, _)| *is_so) {
            return Err(EntityError::NotInPlace { topic: topic.name().into(), policy });
        }
        let upcall = Some(ReaderUpcall::new(upcall));
        let announcement = topic.port.open(TopicRole::Reader, &qos, topic.type_name(), upcall)?;
        Ok(DataReader::new(Arc::clone(&topic.port), announcement))
    }

    /// Creates a writer.
    ///
    /// # Errors
    /// [`EntityError::Profile`] if the profile of its policies is not the topic's; or another error, with what to do next.
    pub fn writer<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataWriter<T>, EntityError> {
        self.member.open_writer(topic, qos)
    }

    /// Creates a wait set for conditions of this participant's readers and writers.
    #[must_use]
    pub fn wait_set(&self) -> WaitSet {
        WaitSet::new(Arc::clone(&self.member.changed))
    }

    /// Leaves the domain in order: what was written before is delivered, and histories that only this participant has are handed over.
    /// Readers keep what they have. [`Group::leave`] says what happens after `patience`.
    #[must_use = "it says whether the histories of the topics are safe"]
    pub fn leave(self, patience: Duration) -> Departure {
        // A reader that is full must not hold up the departure.
        for entry in self.member.topics_in_use().values().filter(|entry| !entry.port.outlet.keeps()) {
            entry.port.release();
        }
        let group = lock(&self.member.group).take();
        group.map_or(Departure::Failed(GroupError::Left), |group| group.leave(patience))
    }
}

impl DomainMember {
    pub(crate) fn topics_in_use(&self) -> MutexGuard<'_, BTreeMap<String, TopicEntry>> {
        lock(&self.topics)
    }

    /// Returns a topic whatever its type: see [`DomainParticipant::topic_of_any_type`].
    pub(crate) fn topic_of_any_type(&self, name: &str) -> Result<Topic<Vec<u8>>, EntityError> {
        let entry = self.entry(name).ok_or_else(|| EntityError::UnknownTopic(name.into()))?;
        let used = entry.port.type_name().filter(|_| entry.type_name.is_empty());
        let type_name = used.unwrap_or_else(|| entry.type_name.clone());
        if type_name.is_empty() {
            Err(EntityError::UnknownTopic(name.into()))
        } else {
            Ok(entry.topic(&type_name))
        }
    }

    pub(crate) fn open_reader<T: TopicData>(
        &self,
        topic: &Topic<T>,
        qos: Qos,
    ) -> Result<DataReader<T>, EntityError> {
        qos.check()?;
        let announcement = topic.port.open(TopicRole::Reader, &qos, topic.type_name(), None)?;
        Ok(DataReader::new(Arc::clone(&topic.port), announcement))
    }

    pub(crate) fn open_writer<T: TopicData>(
        &self,
        topic: &Topic<T>,
        qos: Qos,
    ) -> Result<DataWriter<T>, EntityError> {
        qos.check()?;
        let (present, wanted) = (topic.port.profile, qos.profile());
        if present != wanted {
            return Err(EntityError::Profile { topic: topic.name().into(), present, wanted });
        }
        if is_grouped(&qos) && topic.port.gate.is_none() {
            return Err(EntityError::NotGrouped(topic.name().into()));
        }
        let announcement = topic.port.open(TopicRole::Writer, &qos, topic.type_name(), None)?;
        Ok(DataWriter::new(Arc::clone(&topic.port), announcement))
    }
}

impl Drop for DomainParticipant {
    fn drop(&mut self) {
        self.member.topics_in_use().values().for_each(|entry| entry.port.release());
        lock(&self.member.served).stores.iter().for_each(|store| store.release());
        // Not under the lock, which a thread that serves a client may want before it ends.
        let group = lock(&self.member.group).take();
        drop(group);
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}
