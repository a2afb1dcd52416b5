//! What a participant is given before it joins: its topics, and whether others can be created later.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use squall::config::{Ranks, SubgroupConfig};
use squall::{BootstrapProgress, Config, DeliveryMode, Group, PolledBy};
use squall_fabric::mutex::lock;

use crate::error::ParticipantError;
use crate::gate::OrderGate;
use crate::host::TopicHost;
use crate::lane::TopicLane;
use crate::outlet::Outlet;
use crate::participant::{DomainMember, DomainParticipant, ServedTopics, TopicEntry};
use crate::port::TopicPort;
use crate::qos::{Profile, Qos};
use crate::registry::{is_grouped, keeps, service};
use crate::run_time::{self, TopicStore};
use crate::signal::Signal;
use crate::store::{HistoryStore, nodes_of};
use crate::wire::{OWN_SUBGROUP, check_name};

/// Prepares a participant: its topics and their policies, which are the same at all participants of the domain, and whether
/// others can be created later.
///
/// ```
/// use squall::Config;
/// use squall_dds::{DomainParticipant, Qos};
///
/// let config = Config::local(&format!("doc-builder-{}", std::process::id()), 1);
/// let builder = DomainParticipant::builder(config).topic("readings", Qos::KEPT).topic("alarms", Qos::ATOMIC);
/// let names: Vec<String> = builder.join()?.topics().into_iter().map(|topic| topic.name).collect();
/// assert_eq!(names, ["alarms", "readings"]);
/// # Ok::<(), squall_dds::ParticipantError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParticipantBuilder {
    config: Config,
    topics: BTreeMap<String, Qos>,
    run_time: Option<TopicStore>,
    progress: ProgressCallback,
}

/// Takes what happens while participants find each other.
#[derive(Clone)]
struct ProgressCallback(Arc<dyn Fn(BootstrapProgress) + Send + Sync>);

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressCallback")
    }
}

impl ParticipantBuilder {
    pub(crate) fn new(config: Config) -> Self {
        let progress = ProgressCallback(Arc::new(|_| ()));
        Self { config, topics: BTreeMap::new(), run_time: None, progress }
    }

    /// Adds a topic, whose profile ([`Qos::profile`]) says how its subgroup works. If the configuration has a subgroup of this name, its
    /// window and message lengths are the topic's; its mode is that of the profile.
    #[must_use]
    pub fn topic(mut self, name: &str, qos: Qos) -> Self {
        self.topics.insert(name.into(), qos);
        self
    }

    /// Lets participants create topics later ([`DomainParticipant::create_topic`]); all of a domain have to be given the same. The group has
    /// some subgroups more for that, whose names begin with `dds-`: `dds-topics` has the list of topics and the histories, `dds-unordered`
    /// carries the topics of this profile, and `dds-atomic-0` and so on carry the topics of that one. If the configuration has a subgroup
    /// of such a name, its window and message lengths hold.
    #[must_use]
    pub const fn run_time_topics(mut self, store: TopicStore) -> Self {
        self.run_time = Some(store);
        self
    }

    /// Calls `on_progress` while the participants find each other, to report how far that has come.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl Fn(BootstrapProgress) + Send + Sync + 'static) -> Self {
        self.progress = ProgressCallback(Arc::new(on_progress));
        self
    }

    /// Joins the domain; returns when samples can flow.
    ///
    /// # Errors
    /// [`ParticipantError`], with what to do next.
    pub fn join(mut self) -> Result<DomainParticipant, ParticipantError> {
        self.lay_out()?;
        let patience = self.config.timeout;
        let bells: Arc<Mutex<Vec<Arc<Signal>>>> = Arc::default();
        let to_ring = Arc::clone(&bells);
        let on_view = move |_: &squall::View| lock(&to_ring).iter().for_each(|bell| bell.ring());
        let ProgressCallback(on_progress) = self.progress;
        let mut builder = Group::builder(self.config).on_view(on_view);
        let host = TopicHost::default();
        if self.run_time.is_some() {
            let host = host.clone();
            builder = builder.on_client(run_time::REGISTRY, move |client| host.serve(client));
        }
        let (group, poller) = builder.on_progress(move |progress| on_progress(progress)).join_shared()?;
        let rank = u64::try_from(group.rank()).expect("ranks are few");
        let own = group.view().members.iter().find(|member| member.tag == rank).map(|member| member.node.0);
        let served: Arc<Mutex<ServedTopics>> = Arc::default();
        let to_serve = Arc::downgrade(&served);
        poller.on_news(move |by| {
            if let Some(served) = to_serve.upgrade() {
                lock(&served).serve(by);
            }
        });
        let member = Arc::new(DomainMember {
            node: own.expect("a member is in its view"),
            endpoints: Arc::default(),
            topics: Mutex::default(),
            group: Arc::new(Mutex::new(Some(group))),
            changed: Arc::new(Signal::polling(poller.clone())),
            poller,
            served,
            run_time: OnceLock::new(),
        });
        let mut participant = DomainParticipant { member, threads: Vec::new() };
        for (name, qos) in self.topics {
            participant.begin(name, qos)?;
        }
        if let Some(kind) = self.run_time {
            let run_time = participant.begin_run_time(kind)?;
            participant.member.run_time.set(run_time).expect("it is set once");
        }
        let stores = lock(&participant.member.served).stores.clone();
        lock(&bells).extend(stores.iter().map(|store| Arc::clone(&store.bell)));
        for (name, entry) in &*participant.member.topics_in_use() {
            entry.begin(name, patience)?;
        }
        if let Some(run_time) = participant.member.run_time.get() {
            run_time.begin(patience)?;
        }
        for store in &stores {
            let taken = store
                .retire(patience)
                .map_err(|error| ParticipantError::History { topic: store.subgroup.clone(), error })?;
            lock(&participant.member.endpoints).exclude(taken);
        }
        host.open(&participant.member);
        Ok(participant)
    }

    /// Gives each topic its subgroup, and the topics of later their own. Checks that there are no others, and that no history is lost,
    /// for good, when the group restarts from its logs.
    fn lay_out(&mut self) -> Result<(), ParticipantError> {
        for (name, qos) in &self.topics {
            check_name(name)?;
            qos.check_topic().map_err(|error| ParticipantError::Qos { topic: name.clone(), error })?;
            if is_grouped(qos) {
                return Err(ParticipantError::Grouped(name.clone()));
            }
            lay_out(&mut self.config, name, mode(qos.profile()))?;
        }
        let mut shared = Vec::new();
        if let Some(kind) = self.run_time {
            shared = run_time::subgroups(kind);
            for (name, mode) in &shared {
                if self.topics.contains_key(name) {
                    return Err(ParticipantError::Reserved(name.clone()));
                }
                lay_out(&mut self.config, name, *mode)?;
            }
        }
        let is_topic =
            |name: &String| self.topics.contains_key(name) || shared.iter().any(|(shared, _)| shared == name);
        if let Some(other) = self.config.subgroups.keys().find(|name| !is_topic(name)) {
            return Err(ParticipantError::NoTopic(other.clone()));
        }
        let first = |profile, store| {
            let topic =
                self.topics.iter().find(|(_, qos)| qos.profile() == profile).map(|(name, _)| name.clone());
            topic.or_else(|| (self.run_time == Some(store)).then(|| run_time::REGISTRY.into()))
        };
        match (first(Profile::Kept, TopicStore::Memory), first(Profile::Logged, TopicStore::Disk)) {
            (Some(kept), Some(logged)) => Err(ParticipantError::LosesHistory { kept, logged }),
            _ => Ok(()),
        }
    }
}

/// Gives the subgroup `name` a mode, and makes it if it is not there.
fn lay_out(config: &mut Config, name: &str, mode: DeliveryMode) -> Result<(), ParticipantError> {
    let subgroup = config.subgroups.entry(name.into()).or_default();
    subgroup.mode = mode;
    if is_for_all(subgroup) { Ok(()) } else { Err(ParticipantError::Layout(name.into())) }
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
    /// Begins to use a topic that has a subgroup of its own.
    fn begin(&mut self, name: String, qos: Qos) -> Result<(), ParticipantError> {
        let port = if keeps(qos.profile()) {
            let store = self.begin_store(&name)?;
            let outlet =
                Outlet::Kept { store: Arc::clone(&store), topic: OWN_SUBGROUP, service: service(&qos) };
            let port = self.member.port(&name, &qos, outlet, Arc::clone(&store.bell), None);
            store.connect(OWN_SUBGROUP, &port);
            port
        } else {
            let lane = self.begin_lane(&name)?;
            let outlet = Outlet::Lane { lane: Arc::clone(&lane), topic: OWN_SUBGROUP };
            let port = self.member.port(&name, &qos, outlet, Arc::default(), None);
            lane.connect(OWN_SUBGROUP, &port);
            port
        };
        self.member.topics_in_use().insert(name, TopicEntry { port, qos, type_name: String::new() });
        Ok(())
    }

    /// Starts the thread of a subgroup that has histories.
    pub(crate) fn begin_store(&mut self, subgroup: &str) -> Result<Arc<HistoryStore>, ParticipantError> {
        let member = &self.member;
        let store = Arc::new(HistoryStore::open(
            subgroup,
            member.node,
            &member.group,
            &member.poller,
            &member.changed,
        )?);
        let of_thread = Arc::clone(&store);
        self.threads.push(start(subgroup, move || of_thread.run())?);
        lock(&self.member.served).stores.push(Arc::clone(&store));
        // Something may have come before.
        store.serve(PolledBy::Waiting);
        Ok(store)
    }

    /// Starts the thread of a subgroup that keeps nothing.
    pub(crate) fn begin_lane(&mut self, subgroup: &str) -> Result<Arc<TopicLane>, ParticipantError> {
        let mut group = lock(&self.member.group);
        let present = group.as_mut().expect("the participant has not left");
        let nodes = nodes_of(present);
        let handle = present.subgroup(subgroup)?;
        let (deliveries, sender) = (handle.deliveries()?, handle.sender()?);
        drop(group);
        let lane = Arc::new(TopicLane::new(sender, deliveries, self.member.poller.clone(), nodes));
        lock(&self.member.served).lanes.push(Arc::clone(&lane));
        let of_thread = Arc::clone(&lane);
        self.threads.push(start(subgroup, move || of_thread.run())?);
        Ok(lane)
    }
}

impl DomainMember {
    pub(crate) fn port(
        &self,
        name: &str,
        qos: &Qos,
        outlet: Outlet,
        bell: Arc<Signal>,
        gate: Option<Arc<OrderGate>>,
    ) -> Arc<TopicPort> {
        let (profile, changed) = (qos.profile(), Arc::clone(&self.changed));
        let name = name.into();
        let (node, endpoints, state) = (self.node, Arc::clone(&self.endpoints), Mutex::default());
        Arc::new(TopicPort { name, profile, node, endpoints, outlet, gate, state, changed, bell })
    }
}

fn start(subgroup: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ParticipantError> {
    let thread = std::thread::Builder::new().name(format!("squall-dds {subgroup}"));
    thread.spawn(run).map_err(ParticipantError::Thread)
}

const fn mode(profile: Profile) -> DeliveryMode {
    match profile {
        Profile::Unordered => DeliveryMode::Unordered,
        Profile::Atomic | Profile::Kept => DeliveryMode::Atomic,
        Profile::Logged => DeliveryMode::Durable,
    }
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

    /// Topics and what carries them know each other while the participant is there, and no longer.
    #[test]
    fn a_participant_that_has_left_keeps_nothing() {
        let builder = DomainParticipant::builder(Config::local("dds-left", 1));
        let participant =
            builder.topic("atomic", Qos::ATOMIC).topic("kept", Qos::KEPT).join().expect("it joins");
        let served = lock(&participant.member.served);
        let (lane, store) = (Arc::downgrade(&served.lanes[0]), Arc::downgrade(&served.stores[0]));
        drop(served);
        assert!(lane.upgrade().is_some() && store.upgrade().is_some());
        drop(participant);
        assert!(lane.upgrade().is_none() && store.upgrade().is_none());
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

    /// The same holds for the list of topics, which is in memory or on disk.
    #[test]
    fn a_list_of_topics_is_where_the_histories_are() {
        let builder = |test: &str| DomainParticipant::builder(Config::local(test, 1));
        for builder in [
            builder("dds-list-memory").topic("a", Qos::LOGGED).run_time_topics(TopicStore::Memory),
            builder("dds-list-disk").topic("a", Qos::KEPT).run_time_topics(TopicStore::Disk),
        ] {
            let error = builder.join().unwrap_err();
            assert!(matches!(error, ParticipantError::LosesHistory { .. }), "{error}");
        }
        let builder = builder("dds-list-name").topic(run_time::REGISTRY, Qos::ATOMIC);
        let error = builder.run_time_topics(TopicStore::Memory).join().unwrap_err();
        assert!(matches!(&error, ParticipantError::Reserved(name) if name == run_time::REGISTRY), "{error}");
    }

    #[test]
    fn a_topic_is_in_one_subgroup() {
        let participant =
            DomainParticipant::builder(Config::local(&format!("dds-twice-{}", std::process::id()), 1))
                .topic("t", Qos::ATOMIC);
        let participant = participant.join().expect("it starts");
        let error =
            lock(&participant.member.group).as_mut().expect("it runs").subgroup("t").unwrap().sender().err();
        assert!(matches!(error, Some(HandleError::Taken { .. })));
    }
}
