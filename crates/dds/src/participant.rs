//! Participants: members of a group whose subgroups are topics (OMG DDS 1.4 §2.2.2.2; Spindle §4.6).
//!
//! `Deviation:` (Spindle §4.6) a topic's subgroup has only the processes that publish or subscribe to it. Here it has all members, since a
//! group has its subgroups from its start; so readers and writers come and go without a view change.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use squall::config::{Ranks, SubgroupConfig};
use squall::{Config, DeliveryMode, Departure, Group, GroupError};

use crate::data::TopicData;
use crate::error::{EntityError, ParticipantError};
use crate::kept::KeptTopic;
use crate::outlet::{Outbound, Outlet, lock};
use crate::port::TopicPort;
use crate::pump::{self, SharedGroup};
use crate::qos::{DurabilityService, Profile, Qos};
use crate::reader::DataReader;
use crate::signal::Signal;
use crate::wait_set::WaitSet;
use crate::wire::TopicRole;
use crate::writer::DataWriter;

/// A process in a domain: a member of a group, each of whose topics is a subgroup of all members. It has a thread for each topic, besides
/// the group's own. Dropping it leaves the group as a
/// death would; [`DomainParticipant::leave`] leaves it in order.
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
    node: u32,
    ports: BTreeMap<String, TopicEntry>,
    group: SharedGroup,
    changed: Arc<Signal>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct TopicEntry {
    port: Arc<TopicPort>,
    qos: Qos,
}

/// Prepares a participant: its topics and their policies, which are the same at all participants of the domain.
///
/// ```
/// use squall::Config;
/// use squall_dds::{DomainParticipant, Qos};
///
/// let config = Config::local(&format!("doc-builder-{}", std::process::id()), 1);
/// let builder = DomainParticipant::builder(config).topic("readings", Qos::KEPT).topic("alarms", Qos::ATOMIC);
/// assert_eq!(builder.join()?.topics().collect::<Vec<_>>(), ["alarms", "readings"]);
/// # Ok::<(), squall_dds::ParticipantError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParticipantBuilder {
    config: Config,
    topics: BTreeMap<String, Qos>,
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
    qos: Qos,
    of: PhantomData<fn() -> T>,
}

impl<T> Topic<T> {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.port.name
    }

    /// Returns the policies that the participant was given for the topic.
    #[must_use]
    pub const fn qos(&self) -> &Qos {
        &self.qos
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").field("name", &self.port.name).field("qos", &self.qos).finish()
    }
}

impl ParticipantBuilder {
    /// Adds a topic, whose profile ([`Qos::profile`]) says how its subgroup works. If the configuration has a subgroup of this name, its
    /// window and message lengths are the topic's; its mode is that of the profile.
    #[must_use]
    pub fn topic(mut self, name: &str, qos: Qos) -> Self {
        self.topics.insert(name.into(), qos);
        self
    }

    /// Joins the domain; returns when samples can flow.
    ///
    /// # Errors
    /// [`ParticipantError`], with what to do next.
    pub fn join(mut self) -> Result<DomainParticipant, ParticipantError> {
        for (name, qos) in &self.topics {
            qos.check().map_err(|error| ParticipantError::Qos { topic: name.clone(), error })?;
            let subgroup = self.config.subgroups.entry(name.clone()).or_default();
            subgroup.mode = mode(qos.profile());
            if !is_for_all(subgroup) {
                return Err(ParticipantError::Layout(name.clone()));
            }
        }
        self.check_subgroups()?;
        let patience = self.config.timeout;
        let bells: BTreeMap<String, Arc<Signal>> =
            self.topics.keys().map(|name| (name.clone(), Arc::default())).collect();
        let to_ring: Vec<_> = bells.values().cloned().collect();
        let on_view = move |_: &squall::View| to_ring.iter().for_each(|bell| bell.ring());
        let group = Group::builder(self.config).on_view(on_view).join()?;
        let rank = u64::try_from(group.rank()).expect("ranks are few");
        let own = group.view().members.iter().find(|member| member.tag == rank).map(|member| member.node.0);
        let mut participant = DomainParticipant {
            node: own.expect("a member is in its view"),
            ports: BTreeMap::new(),
            group: Arc::new(Mutex::new(Some(group))),
            changed: Arc::default(),
            threads: Vec::new(),
        };
        for (name, qos) in self.topics {
            let bell = Arc::clone(&bells[&name]);
            participant.begin(name, qos, bell)?;
        }
        for (name, entry) in &participant.ports {
            entry.begin(name, patience)?;
        }
        Ok(participant)
    }
}

impl ParticipantBuilder {
    /// Checks that each subgroup is a topic, and that no history is lost, for good, when the group restarts from its logs.
    fn check_subgroups(&self) -> Result<(), ParticipantError> {
        let mut subgroups = self.config.subgroups.keys();
        if let Some(other) = subgroups.find(|name| !self.topics.contains_key(*name)) {
            return Err(ParticipantError::NoTopic(other.clone()));
        }
        let first = |profile| self.topics.iter().find(|(_, qos)| qos.profile() == profile);
        match (first(Profile::Kept), first(Profile::Logged)) {
            (Some((kept, _)), Some((logged, _))) => {
                Err(ParticipantError::LosesHistory { kept: kept.clone(), logged: logged.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl TopicEntry {
    /// Says what the topic is to keep, and checks that it does.
    fn begin(&self, name: &str, patience: Duration) -> Result<(), ParticipantError> {
        match self.port.outlet.begin(patience) {
            Ok(None) => Ok(()),
            Ok(Some(present)) => {
                let (topic, wanted) = (name.into(), service(&self.qos));
                Err(ParticipantError::Conflict { topic, present, wanted })
            }
            Err(error) => Err(ParticipantError::History { topic: name.into(), error }),
        }
    }
}

impl DomainParticipant {
    /// Prepares a participant. `config` describes the group; it needs no subgroups.
    #[must_use]
    pub const fn builder(config: Config) -> ParticipantBuilder {
        ParticipantBuilder { config, topics: BTreeMap::new() }
    }

    /// Starts the thread of a topic.
    fn begin(&mut self, name: String, qos: Qos, bell: Arc<Signal>) -> Result<(), ParticipantError> {
        let mut group = lock(&self.group);
        let present = group.as_mut().expect("the participant has not left");
        let thread = std::thread::Builder::new().name(format!("squall-dds {name}"));
        let port = |outlet: Outlet| {
            let (profile, changed) = (qos.profile(), Arc::clone(&self.changed));
            let (state, name) = (Mutex::default(), name.clone());
            Arc::new(TopicPort { name, profile, node: self.node, outlet, state, changed, bell })
        };
        let (port, thread): (_, io::Result<JoinHandle<()>>) = if keeps(qos.profile()) {
            let object = present.object(&name, KeptTopic::default)?;
            let port = port(Outlet::Kept { object: object.clone(), service: service(&qos) });
            let (of_thread, group) = (Arc::clone(&port), Arc::clone(&self.group));
            (port, thread.spawn(move || pump::run_kept(&of_thread, &object, &group)))
        } else {
            let subgroup = present.subgroup(&name)?;
            let deliveries = subgroup.deliveries()?;
            let port = port(Outlet::Multicast(Mutex::new(Outbound::new(subgroup.sender()?))));
            let of_thread = Arc::clone(&port);
            (port, thread.spawn(move || pump::run_multicast(&of_thread, deliveries)))
        };
        drop(group);
        self.ports.insert(name, TopicEntry { port, qos });
        self.threads.push(thread.map_err(ParticipantError::Thread)?);
        Ok(())
    }

    /// Returns the names of the topics.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.ports.keys().map(String::as_str)
    }

    /// Returns the number of this member in the group, by which [`crate::EndpointId`] names it.
    #[must_use]
    pub const fn node(&self) -> u32 {
        self.node
    }

    /// Returns how many participants the domain has now; 0 if the group has ended here.
    #[must_use]
    pub fn participants(&self) -> usize {
        lock(&self.group).as_ref().filter(|group| group.failure().is_none()).map_or(0, Group::members)
    }

    /// Returns why the group has ended here, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        lock(&self.group).as_ref().and_then(Group::failure)
    }

    /// Returns the topic `name`, whose samples are values of type `T`.
    ///
    /// # Errors
    /// [`EntityError::UnknownTopic`] if the builder was not given the topic; [`EntityError::TypeMismatch`] if this process uses it with
    /// another type. Other participants that do so appear in [`DataReader::inconsistent_topic`].
    pub fn topic<T: TopicData>(&self, name: &str) -> Result<Topic<T>, EntityError> {
        let entry = self.ports.get(name).ok_or_else(|| EntityError::UnknownTopic(name.into()))?;
        entry.port.set_type(T::type_name())?;
        Ok(Topic { port: Arc::clone(&entry.port), qos: entry.qos.clone(), of: PhantomData })
    }

    /// Creates a reader. What its policies request beyond what a writer offers is reported by
    /// [`DataReader::requested_incompatible_qos`].
    ///
    /// # Errors
    /// [`EntityError`], with what to do next.
    pub fn reader<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataReader<T>, EntityError> {
        qos.check()?;
        let announcement = topic.port.open(TopicRole::Reader, &qos, T::type_name())?;
        Ok(DataReader::new(Arc::clone(&topic.port), announcement))
    }

    /// Creates a writer.
    ///
    /// # Errors
    /// [`EntityError::Profile`] if the profile of its policies is not the topic's; or another error, with what to do next.
    pub fn writer<T: TopicData>(&self, topic: &Topic<T>, qos: Qos) -> Result<DataWriter<T>, EntityError> {
        qos.check()?;
        let (present, wanted) = (topic.port.profile, qos.profile());
        if present != wanted {
            return Err(EntityError::Profile { topic: topic.name().into(), present, wanted });
        }
        let announcement = topic.port.open(TopicRole::Writer, &qos, T::type_name())?;
        Ok(DataWriter::new(Arc::clone(&topic.port), announcement))
    }

    /// Creates a wait set for conditions of this participant's readers and writers.
    #[must_use]
    pub fn wait_set(&self) -> WaitSet {
        WaitSet::new(Arc::clone(&self.changed))
    }

    /// Leaves the domain in order: what was written before is delivered, and histories that only this participant has are handed over.
    /// Readers keep what they have. [`Group::leave`] says what happens after `patience`.
    #[must_use = "it says whether the histories of the topics are safe"]
    pub fn leave(self, patience: Duration) -> Departure {
        // A reader that is full must not hold up the departure.
        for entry in self.ports.values().filter(|entry| !entry.port.outlet.keeps()) {
            entry.port.release();
        }
        let group = lock(&self.group).take();
        group.map_or(Departure::Failed(GroupError::Left), |group| group.leave(patience))
    }
}

impl Drop for DomainParticipant {
    fn drop(&mut self) {
        self.ports.values().for_each(|entry| entry.port.release());
        drop(lock(&self.group).take());
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

const fn mode(profile: Profile) -> DeliveryMode {
    match profile {
        Profile::Unordered => DeliveryMode::Unordered,
        Profile::Atomic | Profile::Kept => DeliveryMode::Atomic,
        Profile::Logged => DeliveryMode::Durable,
    }
}

const fn keeps(profile: Profile) -> bool {
    matches!(profile, Profile::Kept | Profile::Logged)
}

fn service(qos: &Qos) -> DurabilityService {
    qos.durability_service.unwrap_or(DurabilityService::EVERYTHING)
}

fn is_for_all(subgroup: &SubgroupConfig) -> bool {
    let ranks = [&subgroup.members, &subgroup.senders];
    ranks.iter().all(|ranks| **ranks == Ranks::All) && subgroup.shards == 1 && subgroup.replicas == 0
}

#[cfg(test)]
mod tests {
    use squall::HandleError;

    use super::*;

    #[test]
    fn a_topic_of_some_members_is_refused() {
        let some = SubgroupConfig { members: Ranks::These(vec![0]), ..SubgroupConfig::default() };
        let few = SubgroupConfig { replicas: 1, ..SubgroupConfig::default() };
        for subgroup in [some, few] {
            let config = Config::local("dds-layout", 1).subgroup("t", subgroup);
            let error = DomainParticipant::builder(config).topic("t", Qos::ATOMIC).join().unwrap_err();
            assert!(matches!(error, ParticipantError::Layout(topic) if topic == "t"));
        }
    }

    /// This participant takes no messages of such a subgroup, and would hold up its senders.
    #[test]
    fn a_subgroup_that_is_no_topic_is_refused() {
        let config = Config::local("dds-other", 1).subgroup("log", SubgroupConfig::default());
        let error = DomainParticipant::builder(config).topic("t", Qos::ATOMIC).join().unwrap_err();
        assert!(matches!(&error, ParticipantError::NoTopic(name) if name == "log"), "{error}");
    }

    /// A group that restarts from logs considers the states of all other objects lost.
    #[test]
    fn histories_in_memory_and_on_disk_are_refused_in_one_group() {
        let builder = DomainParticipant::builder(Config::local("dds-mixed", 1));
        let error = builder.topic("a", Qos::KEPT).topic("b", Qos::LOGGED).join().unwrap_err();
        assert!(
            matches!(&error, ParticipantError::LosesHistory { kept, logged } if [&**kept, &**logged] == ["a", "b"]),
            "{error}"
        );
    }

    #[test]
    fn a_topic_is_in_one_subgroup() {
        let participant =
            DomainParticipant::builder(Config::local(&format!("dds-twice-{}", std::process::id()), 1))
                .topic("t", Qos::ATOMIC);
        let participant = participant.join().expect("it starts");
        let error = lock(&participant.group).as_mut().expect("it runs").subgroup("t").unwrap().sender().err();
        assert!(matches!(error, Some(HandleError::Taken { .. })));
    }
}
