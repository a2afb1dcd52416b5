//! The group: joining, subgroups, and leaving (Derecho §2).

mod builder;
mod join_async;
mod subgroup_handle;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::DeliveryMode;
use squall_transports::bootstrap::BootstrapError;
use squall_transports::http::HttpServer;
use squall_transports::log;

use crate::config::{Config, GenuineConfig};
use crate::durable;
use crate::error::{GroupError, HandleError, JoinError, SendError};
use crate::external::Hub;
use crate::flight_record::FlightRecord;
use crate::handle::genuine::MulticastSender;
use crate::handle::node_handle::NodeHandle;
use crate::object::sharded::{self, ShardedPlace};
use crate::object::{self, Object, ObjectOptions, Replicated, ShardedObject};
use crate::operate::inquiry::{self, MemberStatus};
use crate::slot::{ShardFeed, SubgroupSlot};
pub use builder::Builder;
pub use subgroup_handle::SubgroupHandle;

/// A group that this process is a member of. Dropping it leaves the group.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Departure, Group};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-group-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let mut group = Group::join(config)?; // `Config::load("squall.toml")` for processes
/// println!("rank {} of {}", group.rank(), group.view());
/// group.subgroup("log")?.sender()?.send_bytes(b"hello")?;
/// assert!(matches!(group.leave(Duration::from_secs(10)), Departure::InOrder));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Group {
    rank: usize,
    link: NodeHandle,
    subgroups: BTreeMap<String, SubgroupHandle>,
    config: Arc<Config>,
    slots: BTreeMap<String, Arc<SubgroupSlot>>,
    /// The shards, if the group has any.
    shards: Option<GroupShards>,
    /// Answers other processes' requests about this member's objects.
    service: Option<object::ObjectService>,
    /// Serves external clients.
    hub: Arc<Hub>,
    /// Shows metrics, if the configuration says where.
    metrics: Option<HttpServer>,
    thread: Option<JoinHandle<()>>,
}

/// What the application takes of the shards.
#[derive(Debug)]
struct GroupShards {
    config: Arc<GenuineConfig>,
    /// Sends to shards, until the application takes it.
    sender: Option<MulticastSender>,
    /// What passes to the object in the shards, if there is one.
    feed: Option<Arc<ShardFeed>>,
}

/// How a member has left its group.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::Departure;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-departure-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// match group.leave(std::time::Duration::from_secs(10)) {
///     Departure::InOrder => println!("the others have all that this member had"),
///     Departure::Forced { states } => println!("as if it had died; lost with it: {states:?}"),
///     Departure::Failed(error) => println!("the group had ended: {error}"),
///     departure => println!("{departure:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Departure {
    /// The others continue without it, and hold every state that it held.
    InOrder,
    /// The departure has begun; the thread that polls the node completes it.
    Begun,
    /// The time ran out: the other members treat this one as if it had died.
    Forced {
        /// The subgroups of objects whose state no other member held by then. These states are lost.
        states: Vec<String>,
    },
    /// The group had already ended here, or ended meanwhile, for another reason.
    Failed(GroupError),
}

impl Group {
    /// Prepares a group from a configuration.
    #[must_use]
    pub fn builder(config: Config) -> Builder {
        Builder::new(config)
    }

    /// Joins the group that `config` describes; returns when messages can flow. All deliveries are pulled.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join(config: Config) -> Result<Self, JoinError> {
        Self::builder(config).join()
    }

    /// Returns this member's rank in the configuration, which it keeps from view to view: the one that it asked for,
    /// or a free one. (In a [`View`], it is the member's tag.)
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns this process's number as a node, which no other process of the group ever gets: a member that is started again has
    /// another one. [`Message::node`](squall_protocols::multicast::Message::node) of its messages is this number.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.link.node
    }

    /// Returns the current view.
    #[must_use]
    pub fn view(&self) -> View {
        self.link.status.view().expect("a group begins with a view")
    }

    /// Returns the number of members in the current view.
    #[must_use]
    pub fn members(&self) -> usize {
        self.view().members.len()
    }

    /// Returns the address at which this member's metrics can be read, if the configuration has one
    /// ([`Config::metrics`](crate::config::Config::metrics)).
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(HttpServer::address)
    }

    /// Returns what this member has noticed lately: views, suspicions, stalls, and what has led to them. It is kept always, and also
    /// after the group has ended here.
    #[must_use]
    pub fn flight_record(&self) -> FlightRecord {
        self.link.status.flight_record()
    }

    /// Returns this member's status, with the counters of all subgroups, as others get it by [`crate::ask_status`]. The polling thread
    /// answers, so it must not be called on that thread.
    ///
    /// ```
    /// # use squall::config::SubgroupConfig;
    /// # use squall::{Config, Group};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let name = format!("doc-member-status-{}", std::process::id());
    /// # let mut group = Group::join(Config::local(&name, 1).subgroup("log", SubgroupConfig::default()))?;
    /// group.subgroup("log")?.sender()?.send_bytes(b"hello")?;
    /// let status = group.status()?;
    /// println!("{} messages sent in view {}", status.subgroups[0].sent_total, status.view);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BootstrapError`](crate::BootstrapError) if the group has ended here.
    pub fn status(&self) -> Result<MemberStatus, BootstrapError> {
        let own = self.link.status.roster().get(&self.link.node).cloned();
        // What is advertised may not be reached from here.
        let own = own.filter(|_| self.config.advertise.is_none());
        inquiry::ask_status(&self.config, own.as_ref().unwrap_or(&self.config.listen))
    }

    /// Returns why the group has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        self.link.status.failure()
    }

    /// Returns the subgroup `name`.
    ///
    /// # Errors
    /// [`HandleError::UnknownSubgroup`] if there is no such subgroup, or if this member is not in it.
    pub fn subgroup(&mut self, name: &str) -> Result<&mut SubgroupHandle, HandleError> {
        self.subgroups.get_mut(name).ok_or_else(|| HandleError::UnknownSubgroup(name.into()))
    }

    /// Sends a copy of `bytes` to all members of `shards`, of which there is at least one; the configuration names them
    /// ([`GenuineConfig`](crate::config::GenuineConfig)). All of them deliver it, in one order of all messages to shards
    /// ([`crate::genuine`]).
    ///
    /// # Errors
    /// Those of [`MulticastSender::send`], and [`SendError::Handle`] if the group has no shards, these hold an object, or the
    /// sender was taken before.
    pub fn multicast(&mut self, shards: &[&str], bytes: &[u8]) -> Result<(), SendError> {
        self.multicast_slot()?.as_mut().ok_or(HandleError::MulticastTaken)?.send(shards, bytes)
    }

    /// Takes the sending end for messages to shards, for a thread of its own.
    ///
    /// # Errors
    /// [`HandleError::NoShards`] in a group without shards, [`HandleError::ShardsHoldObject`] if these hold an object, and
    /// [`HandleError::MulticastTaken`] if it was taken before.
    pub fn multicast_sender(&mut self) -> Result<MulticastSender, HandleError> {
        self.multicast_slot()?.take().ok_or(HandleError::MulticastTaken)
    }

    /// Returns where the sender of messages to shards is, until it is taken. In a group with an object in the shards that is for updates
    /// alone: a message could look like one.
    fn multicast_slot(&mut self) -> Result<&mut Option<MulticastSender>, HandleError> {
        match &mut self.shards {
            None => Err(HandleError::NoShards),
            Some(GroupShards { feed: Some(_), .. }) => Err(HandleError::ShardsHoldObject),
            Some(GroupShards { sender, .. }) => Ok(sender),
        }
    }

    /// Takes the replicated object `name`, which is kept in the subgroup of that name, or in one subgroup for each of
    /// its shards. `first` makes the state of a shard when the group begins; if the subgroup is durable and the group restarts from its
    /// logs, all updates of earlier runs are applied to it. Each member has to call this, whether or
    /// not it has a replica now: from then on it answers other processes' requests.
    ///
    /// # Errors
    /// [`HandleError`] if there is no such subgroup, if it is used for something else, or if this member cannot
    /// listen for requests.
    pub fn object<T: Replicated>(
        &mut self,
        name: &str,
        first: impl Fn() -> T + Send + 'static,
    ) -> Result<Object<T>, HandleError> {
        self.object_with(name, first, ObjectOptions::default())
    }

    /// Takes a replicated object, as [`Group::object`] does, with options.
    ///
    /// # Errors
    /// The errors of [`Group::object`].
    pub fn object_with<T: Replicated>(
        &mut self,
        name: &str,
        first: impl Fn() -> T + Send + 'static,
        options: ObjectOptions,
    ) -> Result<Object<T>, HandleError> {
        let shards: Vec<String> =
            object::shards_of(name, &self.config.subgroups).into_iter().map(Into::into).collect();
        if shards.is_empty() {
            return Err(HandleError::UnknownSubgroup(name.into()));
        }
        let durable = durable::shards(&self.config);
        let mut places = Vec::new();
        for shard in shards {
            let config = &self.config.subgroups[&shard];
            if !matches!(config.mode, DeliveryMode::Atomic | DeliveryMode::Durable) {
                return Err(HandleError::Mode(shard));
            }
            if config.mode == DeliveryMode::Durable && config.retain.is_some_and(|retain| retain.automatic) {
                return Err(HandleError::Discards(shard));
            }
            if let Some(handle) = self.subgroups.get_mut(&shard) {
                handle.take_both()?;
            }
            let id = self.config.subgroups.keys().position(|name| *name == shard);
            let id = u32::try_from(id.expect("it is one of them")).expect("subgroups are few");
            places.push(object::ShardSubgroup {
                id: SubgroupId(id),
                slot: Arc::clone(&self.slots[&shard]),
                durable: durable.get(&shard).map(|(_, number)| *number),
                message_max: config.message_max,
                checkpoint_bytes: config.checkpoint_bytes as u64,
                retention: config.retain.unwrap_or_default(),
                subgroup: shard,
            });
        }
        let config = Arc::clone(&self.config);
        let link = self.link.clone();
        object::start(name, places, &config, &link, self.open_service()?, first, options)
            .map_err(|error| HandleError::Service { cause: error.to_string() })
    }

    /// Returns what serves this member's objects, which begins with the first one.
    fn open_service(&mut self) -> Result<&object::ObjectService, HandleError> {
        if self.service.is_none() {
            let service = object::ObjectService::open(&self.config, &self.link.status)
                .map_err(|error| HandleError::Service { cause: error.to_string() })?;
            self.link.status.set_serves_objects();
            self.service = Some(service);
        }
        Ok(self.service.as_ref().expect("it is open"))
    }

    /// Takes the replicated object that is kept in the group's shards, if these have one (`object` in
    /// [`GenuineConfig`](crate::config::GenuineConfig)); `first` makes the state of this member's shard when the group begins. Each
    /// member has to call this, whether or not it is in a shard: until it does, what concerns its shard waits.
    ///
    /// # Errors
    /// [`HandleError::NoShardedObject`] if the shards have none, [`HandleError::MulticastTaken`] if the object, or the sender of messages
    /// to shards, was taken before, and [`HandleError::Service`] if this member cannot listen for requests.
    pub fn sharded_object<T: Replicated>(
        &mut self,
        first: impl FnOnce() -> T,
    ) -> Result<ShardedObject<T>, HandleError> {
        let shards = self.shards.as_mut().filter(|shards| shards.feed.is_some());
        let GroupShards { config: genuine, sender, feed } = shards.ok_or(HandleError::NoShardedObject)?;
        let (genuine, feed) = (Arc::clone(genuine), feed.clone().ok_or(HandleError::NoShardedObject)?);
        let sender = sender.take().ok_or(HandleError::MulticastTaken)?;
        let (config, link, rank) = (Arc::clone(&self.config), self.link.clone(), self.rank);
        let place = ShardedPlace { rank, feed, sender };
        sharded::start(place, &config, &genuine, &link, self.open_service()?, first)
            .map_err(|error| HandleError::Service { cause: error.to_string() })
    }

    /// Leaves the group in order: everything that was sent before is delivered, the states of objects that only this
    /// member holds are handed over, and the others continue without this member, as after its death, but without
    /// counting it as a failure. Returns when that is done. If it is not done after `patience`, the process leaves as
    /// if it had died, and [`Departure::Forced`] names the states that are lost with it. Dropping the group has the
    /// same effect as such a death.
    ///
    /// An application that polls the node itself has to continue until [`crate::Node::failure`] returns
    /// [`GroupError::Left`]; for such a group this function returns at once.
    pub fn leave(self, patience: Duration) -> Departure {
        let status = &self.link.status;
        status.leave();
        self.link.waker.ring();
        if self.thread.is_none() {
            return Departure::Begun;
        }
        status.wait_for_change(patience, || status.is_finished().then_some(()));
        match status.failure() {
            Some(GroupError::Left) => Departure::InOrder,
            Some(error) => Departure::Failed(error),
            None => Departure::Forced { states: status.sole_states().clone() },
        }
    }

    fn wait_ready(&self, timeout: Duration) -> Result<(), JoinError> {
        let status = &self.link.status;
        let outcome = status.wait_for_change(timeout, || match status.failure() {
            Some(error) => Some(Err(error.into())),
            None => status.is_ready().then_some(Ok(())),
        });
        outcome.unwrap_or(Err(JoinError::NotReady { seconds: timeout.as_secs() }))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.link.status.stop();
        self.link.waker.ring();
        if let Some(thread) = self.thread.take() {
            // A polling thread that panicked has already reported it.
            let _ = thread.join();
        }
        *self.link.status.hub() = None;
        self.hub.close();
        // The process may end now, and the member's last words are its most important ones.
        log::flush(LOG_PATIENCE);
    }
}

/// How long the end of a group waits until its events are logged.
const LOG_PATIENCE: Duration = Duration::from_millis(200);
