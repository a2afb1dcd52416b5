//! Topics that are created while participants run (OMG DDS 1.4 §2.2.2.2.1.5, `create_topic`, and §2.2.2.2.1.11, `find_topic`).
//!
//! A topic is created by an update of the registry, which every participant has, so no view changes. What it travels through is there from
//! the start: the registry itself, if the topic keeps samples, or one of a few subgroups.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use squall::DeliveryMode;
use squall_fabric::mutex::lock;

use crate::data::TopicData;
use crate::error::{EntityError, ParticipantError, WriteError};
use crate::gate::OrderGate;
use crate::kept::KeptReply;
use crate::lane::TopicLane;
use crate::outlet::Outlet;
use crate::participant::{DomainMember, DomainParticipant, Topic, TopicEntry};
use crate::qos::{Profile, Qos};
use crate::registry::{FIRST_CLIENT, TopicRegistry, is_grouped, keeps, service};
use crate::sample::EndpointId;
use crate::store::{HistoryStore, nodes_of};
use crate::wire::{RegisteredTopic, TopicRole, check_name};

/// Where a domain keeps the list of topics that are created at run time, and what these keep. All participants have to say the same.
///
/// ```
/// # use squall::Config;
/// use squall_dds::{DomainParticipant, Qos, TopicStore};
///
/// let config = Config::local(&format!("doc-store-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// let chat = participant.create_topic::<Vec<u8>>("chat", Qos::KEPT)?;
/// let writer = participant.writer(&chat, Qos { max_blocking_time: std::time::Duration::from_secs(10), ..Qos::KEPT })?;
/// writer.write(&b"hello".to_vec())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicStore {
    /// In memory: topics may have the profiles [`Profile::Unordered`], [`Profile::Atomic`] and [`Profile::Kept`].
    Memory,
    /// On the disks of all members ([`squall::Config::storage`]): topics outlive all participants, and may have the profiles
    /// [`Profile::Unordered`], [`Profile::Atomic`] and [`Profile::Logged`].
    Disk,
}

impl TopicStore {
    pub(crate) const fn holds(self, profile: Profile) -> bool {
        match profile {
            Profile::Unordered | Profile::Atomic => true,
            Profile::Kept => matches!(self, Self::Memory),
            Profile::Logged => matches!(self, Self::Disk),
        }
    }

    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::Memory => {
                "in memory: request DURABILITY TRANSIENT, or let all participants have a storage and TopicStore::Disk"
            }
            Self::Disk => {
                "on disk: request DURABILITY PERSISTENT, or let all participants have TopicStore::Memory"
            }
        }
    }
}

/// A topic of a domain, for programs that list them.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Profile, Qos, TopicStore};
/// # let config = Config::local(&format!("doc-description-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// participant.create_topic::<Vec<u8>>("chat", Qos::KEPT)?;
/// let topics = participant.topics();
/// assert_eq!((&*topics[0].name, &*topics[0].type_name, topics[0].qos.profile()), ("chat", "bytes", Profile::Kept));
/// assert_eq!((topics[0].writers, topics[0].readers), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopicDescription {
    /// The name.
    pub name: String,
    /// The name of the type; empty if the topic was named when participants joined, and this one has not used it.
    pub type_name: String,
    /// The policies with which it was created, or named.
    pub qos: Qos,
    /// How many writers are open.
    pub writers: usize,
    /// How many readers are open.
    pub readers: usize,
}

/// What carries the topics that are created at run time.
#[derive(Debug)]
pub(crate) struct RunTimeTopics {
    kind: TopicStore,
    store: Arc<HistoryStore>,
    unordered: Arc<TopicLane>,
    atomic: Vec<Arc<TopicLane>>,
    /// Of the topics that are in one order with others: those that keep nothing, and those that do.
    gates: [Arc<OrderGate>; 2],
}

impl RunTimeTopics {
    /// Waits until the registry is here.
    pub(crate) fn begin(&self, patience: Duration) -> Result<(), ParticipantError> {
        self.store.keeper.object.wait_ready(patience).map_err(|error| ParticipantError::History {
            topic: REGISTRY.into(),
            error: WriteError::History(error),
        })
    }

    fn inspect<R>(&self, look: impl FnOnce(&TopicRegistry) -> R) -> Option<R> {
        self.store.keeper.object.inspect(0, |_, registry| look(registry))
    }

    fn find(&self, name: &str) -> Option<(u32, Arc<RegisteredTopic>)> {
        self.inspect(|registry| registry.find(name).map(|(number, topic)| (number, Arc::clone(topic))))
            .flatten()
    }

    /// Returns the subgroup that carries a topic; `None` if it is in the histories.
    fn lane(&self, topic: u32, profile: Profile) -> Option<&Arc<TopicLane>> {
        match profile {
            Profile::Unordered => Some(&self.unordered),
            Profile::Atomic => {
                let lane = self.inspect(|registry| registry.lane(topic, self.atomic.len()));
                Some(&self.atomic[lane.unwrap_or_default()])
            }
            Profile::Kept | Profile::Logged => None,
        }
    }

    /// Returns the endpoints of a topic; those of histories may include some of members that have gone.
    fn endpoints(&self, topic: u32, profile: Profile) -> Vec<(EndpointId, TopicRole)> {
        let of_history = || {
            let of =
                |registry: &TopicRegistry| registry.history(topic).map(|kept| kept.endpoints().collect());
            self.inspect(of).flatten().unwrap_or_default()
        };
        self.lane(topic, profile).map_or_else(of_history, |lane| lane.endpoints(topic))
    }
}

impl RegisteredTopic {
    /// Checks that the topic has this type.
    pub(crate) fn check_type(&self, wanted: &str, hash: u64) -> Result<(), EntityError> {
        let is_same =
            self.type_name == wanted && (self.type_hash == hash || self.type_hash == 0 || hash == 0);
        let with = |name: &str, hash: u64| if hash == 0 { name.into() } else { format!("{name} ({hash:x})") };
        let (present, wanted) = (with(&self.type_name, self.type_hash), with(wanted, hash));
        if is_same {
            Ok(())
        } else {
            Err(EntityError::TypeMismatch { topic: self.name.clone(), present, wanted })
        }
    }
}

impl DomainParticipant {
    /// Returns the histories of the topics that are created at run time.
    #[cfg(test)]
    pub(crate) fn run_time_store(&self) -> Option<&HistoryStore> {
        self.member.run_time.get().map(|run_time| &*run_time.store)
    }

    /// Starts the threads of the subgroups that carry topics which are created at run time.
    pub(crate) fn begin_run_time(&mut self, kind: TopicStore) -> Result<RunTimeTopics, ParticipantError> {
        let atomic = (0..ATOMIC_LANES).map(|number| self.begin_lane(&atomic_lane(number)));
        let atomic = atomic.collect::<Result<_, _>>()?;
        let (store, unordered) = (self.begin_store(REGISTRY)?, self.begin_lane(UNORDERED)?);
        Ok(RunTimeTopics { kind, store, unordered, atomic, gates: Default::default() })
    }

    /// Creates a topic, or finds it if a participant has created it with the same type, profile and DURABILITY_SERVICE. All
    /// participants know it when this returns at one of them; no view changes. Topics stay until the domain ends.
    ///
    /// Topics with [`Profile::Atomic`] share a few subgroups: a reliable reader that stays full holds up those that are in its
    /// topic's subgroup. A topic that is named when participants join has a subgroup for itself.
    ///
    /// ```
    /// # use squall::Config;
    /// # use squall_dds::{DomainParticipant, EntityError, Qos, TopicStore};
    /// # let config = Config::local(&format!("doc-create-{}", std::process::id()), 1);
    /// # let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
    /// let news = participant.create_topic::<Vec<u8>>("news", Qos::ATOMIC)?;
    /// assert_eq!(participant.create_topic::<Vec<u8>>("news", Qos::ATOMIC)?.name(), news.name());
    /// let error = participant.create_topic::<Vec<u8>>("news", Qos::KEPT).unwrap_err();
    /// assert!(matches!(error, EntityError::IncompatibleTopic { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`EntityError`], with what to do next: policies that are refused, or not those of the topic; another type; a domain whose topics are
    /// fixed, or which keeps histories elsewhere.
    pub fn create_topic<T: TopicData>(&self, name: &str, qos: Qos) -> Result<Topic<T>, EntityError> {
        qos.check_topic()?;
        check_name(name)?;
        let present = self.member.topics_in_use().get(name).map(|entry| entry.qos.clone());
        if let Some(present) = present {
            // It may have a subgroup of its own: no participant can create another one of this name.
            let is_same = present.profile() == qos.profile()
                && service(&present) == service(&qos)
                && is_grouped(&present) == is_grouped(&qos);
            if !is_same {
                let present = Box::new(present);
                return Err(EntityError::IncompatibleTopic { topic: name.into(), present });
            }
            return self.topic(name);
        }
        let run_time = self.member.run_time.get().ok_or_else(|| EntityError::FixedTopics(name.into()))?;
        let (topic, profile, store) = (name.into(), qos.profile(), run_time.kind);
        if !store.holds(profile) {
            return Err(EntityError::NoStore { topic, profile, store });
        }
        let (type_name, type_hash) = (T::type_name().into(), T::type_hash());
        let wanted = RegisteredTopic { name: name.into(), type_name, type_hash, qos };
        let reply = run_time.store.keeper.update(wanted.encode(), CREATION_PATIENCE);
        match reply.map_err(|error| EntityError::Creation { topic: name.into(), error })? {
            KeptReply::QosDiffers(_) => {
                let present = run_time.find(name).map(|(_, topic)| topic.qos.clone()).unwrap_or(Qos::ATOMIC);
                Err(EntityError::IncompatibleTopic { topic, present: Box::new(present) })
            }
            KeptReply::TooManyTopics => Err(EntityError::TooManyTopics(topic)),
            // It is there, perhaps with another type.
            _ => self.topic(name),
        }
    }

    /// Waits until there is a topic `name`, as created by any participant.
    ///
    /// # Errors
    /// [`EntityError::NotFound`] if there is none in this time; [`EntityError::TypeMismatch`] if it has another type than `T`.
    pub fn find_topic<T: TopicData>(&self, name: &str, timeout: Duration) -> Result<Topic<T>, EntityError> {
        self.wait_for_topic(name, timeout)?;
        self.topic(name)
    }

    /// Waits until there is a topic `name`, of any type: see [`DomainParticipant::topic_of_any_type`].
    ///
    /// # Errors
    /// [`EntityError::NotFound`] if there is none in this time.
    pub fn wait_for_topic(&self, name: &str, timeout: Duration) -> Result<(), EntityError> {
        self.member.wait_for_topic(name, timeout)
    }

    /// Returns the topics of the domain, as far as they are known here, by their names.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicDescription> {
        self.member.topics()
    }
}

impl DomainMember {
    pub(crate) fn wait_for_topic(&self, name: &str, timeout: Duration) -> Result<(), EntityError> {
        let is_there =
            || (self.registered(name).is_some() || self.topics_in_use().contains_key(name)).then_some(());
        let found = self.changed.wait_for(timeout, is_there);
        found.ok_or_else(|| EntityError::NotFound { topic: name.into(), waited: timeout })
    }

    /// Returns the topics of the domain, as far as they are known here, by their names.
    pub(crate) fn topics(&self) -> Vec<TopicDescription> {
        let run_time = self.run_time.get();
        let registered =
            run_time.and_then(|run_time| run_time.inspect(|registry| registry.topics().to_vec()));
        let nodes = lock(&self.group).as_ref().map(nodes_of).unwrap_or_default();
        let describe = |name: &str, type_name: &str, qos: &Qos, endpoints: &[(EndpointId, TopicRole)]| {
            let count = |role| {
                endpoints
                    .iter()
                    .filter(|(id, of)| *of == role && (nodes.contains(&id.node) || id.node >= FIRST_CLIENT))
                    .count()
            };
            let (writers, readers) = (count(TopicRole::Writer), count(TopicRole::Reader));
            TopicDescription {
                name: name.into(),
                type_name: type_name.into(),
                qos: qos.clone(),
                writers,
                readers,
            }
        };
        let created = (0..).zip(registered.iter().flatten()).zip(run_time.into_iter().cycle());
        let mut topics: Vec<_> = created
            .map(|((number, topic), run_time)| {
                let endpoints = run_time.endpoints(number, topic.qos.profile());
                describe(&topic.name, &topic.type_name, &topic.qos, &endpoints)
            })
            .collect();
        for (name, entry) in &*self.topics_in_use() {
            if !topics.iter().any(|topic| topic.name == *name) {
                let type_name = entry.port.type_name().unwrap_or_default();
                topics.push(describe(name, &type_name, &entry.qos, &entry.port.endpoints()));
            }
        }
        topics.sort_by(|one, other| one.name.cmp(&other.name));
        topics
    }

    /// Returns a topic that was created at run time.
    pub(crate) fn registered(&self, name: &str) -> Option<Arc<RegisteredTopic>> {
        self.run_time.get()?.find(name).map(|(_, topic)| topic)
    }

    /// Returns a topic that this participant uses from now on, if there is one of this name.
    pub(crate) fn entry(&self, name: &str) -> Option<TopicEntry> {
        let mut topics = self.topics_in_use();
        if let Some(entry) = topics.get(name) {
            return Some(entry.clone());
        }
        let run_time = self.run_time.get()?;
        let (number, topic) = run_time.find(name)?;
        let port = if let Some(lane) = run_time.lane(number, topic.qos.profile()) {
            let outlet = Outlet::Lane { lane: Arc::clone(lane), topic: number };
            let gate = is_grouped(&topic.qos).then(|| Arc::clone(&run_time.gates[0]));
            let port = self.port(name, &topic.qos, outlet, Arc::default(), gate);
            lane.connect(number, &port);
            port
        } else {
            let store = &run_time.store;
            let outlet =
                Outlet::Kept { store: Arc::clone(store), topic: number, service: service(&topic.qos) };
            let gate = is_grouped(&topic.qos).then(|| Arc::clone(&run_time.gates[1]));
            let port = self.port(name, &topic.qos, outlet, Arc::clone(&store.bell), gate);
            store.connect(number, &port);
            port
        };
        debug_assert_eq!(port.outlet.keeps(), keeps(topic.qos.profile()));
        let entry = TopicEntry { port, qos: topic.qos.clone(), type_name: topic.type_name.clone() };
        topics.insert(name.into(), entry.clone());
        Some(entry)
    }
}

/// Returns the subgroups that carry topics which are created at run time, with their modes.
pub(crate) fn subgroups(kind: TopicStore) -> Vec<(String, DeliveryMode)> {
    let registry = match kind {
        TopicStore::Memory => DeliveryMode::Atomic,
        TopicStore::Disk => DeliveryMode::Durable,
    };
    let atomic = (0..ATOMIC_LANES).map(|number| (atomic_lane(number), DeliveryMode::Atomic));
    [(REGISTRY.into(), registry), (UNORDERED.into(), DeliveryMode::Unordered)]
        .into_iter()
        .chain(atomic)
        .collect()
}

fn atomic_lane(number: usize) -> String {
    format!("dds-atomic-{number}")
}

/// The subgroup of the registry and the histories.
pub(crate) const REGISTRY: &str = "dds-topics";
/// The subgroup of all topics with the profile of this name: their readers never hold it up.
const UNORDERED: &str = "dds-unordered";
/// How many subgroups topics with the profile "atomic" share: few, since each costs members a look in each evaluation; more than one, so that
/// a full reader does not hold up all of them.
const ATOMIC_LANES: usize = 3;
/// How long a participant waits for the outcome of a creation.
const CREATION_PATIENCE: Duration = Duration::from_secs(10);
