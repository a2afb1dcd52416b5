//! The group: joining, subgroups, and leaving (Derecho §2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::{Deliver, DeliveryMode, Message, MessageBatch};
use squall_transports::bootstrap::BootstrapProgress;
use squall_transports::runner::pin;

use crate::application::{BoxedUpcall, GroupHandles, LayoutFunctions, SubgroupSlot, ViewUpcall};
use crate::config::{Config, SubgroupConfig};
use crate::durable;
use crate::error::{GroupError, HandleError, JoinError};
use crate::external::{Hub, Tap, TappedUpcall};
use crate::node::{EntryOptions, Node, NodeHandle};
use crate::object::{self, Object, ObjectOptions, Replicated};
use crate::status::GroupStatus;
use crate::subgroup_handle::SubgroupHandle;

/// A group that this process is a member of. Dropping it leaves the group.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    link: NodeHandle,
    subgroups: BTreeMap<String, SubgroupHandle>,
    config: Arc<Config>,
    slots: BTreeMap<String, Arc<SubgroupSlot>>,
    /// Answers other processes' requests about this member's objects.
    service: Option<object::ObjectService>,
    /// Serves external clients.
    hub: Arc<Hub>,
    thread: Option<JoinHandle<()>>,
}

/// Prepares a group: its upcalls, the thread that polls, and what to report while joining.
pub struct Builder {
    config: Config,
    upcalls: BTreeMap<String, (BoxedUpcall, Arc<Tap>)>,
    on_progress: Box<dyn FnMut(BootstrapProgress) + Send>,
    on_view: ViewUpcall,
    places: LayoutFunctions,
    only_join: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Builder {
    /// Calls `upcall` for each message of `subgroup`, in order, on the polling thread. It should be brief, because
    /// the whole node waits for it. Subgroups without an upcall are pulled ([`SubgroupHandle::deliveries`]).
    #[must_use]
    pub fn on_message(self, subgroup: &str, upcall: impl FnMut(Message<'_>) + Send + 'static) -> Self {
        self.on_upcall(subgroup, upcall)
    }

    /// Calls `upcall` for each batch of messages that can be delivered together (Spindle §3.5). Messages that it does
    /// not take are offered again.
    #[must_use]
    pub fn on_batch(self, subgroup: &str, upcall: impl FnMut(MessageBatch<'_>) + Send + 'static) -> Self {
        self.on_upcall(subgroup, BatchUpcall(upcall))
    }

    /// Passes the messages and the views of `subgroup` to `deliver`, on the polling thread.
    #[must_use]
    pub fn on_deliver(self, subgroup: &str, deliver: impl Deliver + Send + 'static) -> Self {
        self.on_upcall(subgroup, deliver)
    }

    fn on_upcall(mut self, subgroup: &str, upcall: impl Deliver + Send + 'static) -> Self {
        let tap = Arc::new(Tap::default());
        let upcall = Box::new(TappedUpcall::new(upcall, Arc::clone(&tap)));
        self.upcalls.insert(subgroup.into(), (upcall, tap));
        self
    }

    /// Calls `on_view` for each view that this member is in, on the polling thread, before the view's first message.
    /// It should be brief, because the whole node waits for it.
    #[must_use]
    pub fn on_view(mut self, on_view: impl FnMut(&View) + Send + 'static) -> Self {
        self.on_view = Box::new(on_view);
        self
    }

    /// Lets `place` choose the members of `subgroup` in each view, in place of `members` in the configuration. Those
    /// of them that are senders by the configuration send. It must be the same pure function at all members, else
    /// they disagree on the group's layout \[D6\]: of the view it may use the members' numbers, ranks (tags) and
    /// order. A node that it names and that is not in the view is left out; if no member remains, the subgroup is
    /// inactive until a later view.
    #[must_use]
    pub fn place(
        mut self,
        subgroup: &str,
        place: impl Fn(&View) -> Vec<NodeId> + Send + Sync + 'static,
    ) -> Self {
        self.places.insert(subgroup.into(), Box::new(place));
        self
    }

    /// Joins only a group that is already running, and never starts one.
    #[must_use]
    pub const fn only_join(mut self) -> Self {
        self.only_join = true;
        self
    }

    /// Calls `on_progress` while the members find each other, to report how far that has come.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(BootstrapProgress) + Send + 'static) -> Self {
        self.on_progress = Box::new(on_progress);
        self
    }

    /// Joins the group and gives it a polling thread of its own; returns when messages can flow.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join(self) -> Result<Group, JoinError> {
        let core = self.config.core;
        let timeout = self.config.timeout;
        let (mut group, node) = self.join_polled()?;
        let finished = Finished(Arc::clone(&group.link.status));
        let run = move || {
            // Dropped last, also when the thread panics.
            let _finished = finished;
            if let Some(core) = core {
                pin(core);
            }
            node.run();
        };
        group.thread = Some(std::thread::Builder::new().name("squall".into()).spawn(run)?);
        group.wait_ready(timeout)?;
        Ok(group)
    }

    /// Joins the group without a thread: the application polls the node itself (run to completion). Messages flow
    /// once [`Node::is_ready`] returns true.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join_polled(mut self) -> Result<(Group, Node), JoinError> {
        self.config.check()?;
        self.config = self.config.with_shards();
        self.config.choose_transports();
        let named = self.upcalls.keys().chain(self.places.keys());
        let unknown = named.into_iter().find(|name| !self.config.subgroups.contains_key(*name));
        if let Some(name) = unknown {
            return Err(JoinError::UnknownSubgroup(name.clone()));
        }
        let all = self.config.members;
        for (name, subgroup) in &self.config.subgroups {
            let fits = subgroup.settings(all).check(subgroup.member_ranks(all).len());
            fits.map_err(|error| JoinError::Settings { subgroup: name.clone(), error })?;
        }
        let is_placed = |(name, subgroup): &(&String, &SubgroupConfig)| {
            subgroup.mode == DeliveryMode::Durable && self.places.contains_key(*name)
        };
        if let Some((name, _)) = self.config.subgroups.iter().find(is_placed) {
            return Err(JoinError::PlacedDurable(name.clone()));
        }
        let tap = |name: &String| self.upcalls.get(name).map(|(_, tap)| Arc::clone(tap)).unwrap_or_default();
        let slot = |name: &String| Arc::new(SubgroupSlot::with_tap(tap(name)));
        let slots: Vec<Arc<SubgroupSlot>> = self.config.subgroups.keys().map(slot).collect();
        let upcalled: BTreeSet<String> = self.upcalls.keys().cloned().collect();
        let ids = self.config.subgroups.keys().zip((0..).map(SubgroupId));
        let upcalls = ids.filter_map(|(name, id)| Some((id, self.upcalls.remove(name)?.0))).collect();
        let status = Arc::new(GroupStatus::default());
        let handles = GroupHandles::new(upcalls, slots.clone(), Arc::clone(&status), self.on_view);
        let places = Arc::new(self.places);
        let (only_join, log) = (self.only_join, durable::open(&self.config)?);
        let durable = durable::shards(&self.config);
        let options =
            EntryOptions { config: &self.config, only_join, places: Arc::clone(&places), log: log.clone() };
        let (node, rank) = Node::enter(&options, handles, status, &mut self.on_progress)?;
        let link = NodeHandle::new(&node);
        let (mut subgroups, mut sources) = (BTreeMap::new(), BTreeMap::new());
        let names = self.config.subgroups.keys().cloned();
        let named_slots = names.zip(slots.iter().cloned()).collect();
        for ((name, config), slot) in self.config.subgroups.iter().zip(slots) {
            if !config.takes(rank) && !places.contains_key(name) {
                continue;
            }
            let handle = SubgroupHandle {
                name: name.clone(),
                settings: config.settings(all),
                link: link.clone(),
                slot,
                sends: config.senders.has(rank),
                pulls: !upcalled.contains(name),
                lease: Arc::default(),
                deliveries_taken: false,
                log: log.clone().zip(durable.get(name)).map(|(log, (id, shard))| (log, *id, *shard)),
            };
            sources.insert(name.clone(), handle.source());
            subgroups.insert(name.clone(), handle);
        }
        let (config, slots) = (Arc::new(self.config), named_slots);
        let hub = Hub::new(Arc::clone(&config), sources);
        *link.status.hub() = Some(Arc::clone(&hub));
        Ok((Group { rank, link, subgroups, config, slots, service: None, hub, thread: None }, node))
    }
}

/// How a member has left its group.
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

struct BatchUpcall<T>(T);

impl<T: FnMut(MessageBatch<'_>)> Deliver for BatchUpcall<T> {
    fn deliver(&mut self, _message: Message<'_>) {
        unreachable!("`deliver_batch` takes every batch whole");
    }

    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        (self.0)(batch);
    }
}

impl Group {
    /// Prepares a group from a configuration.
    #[must_use]
    pub fn builder(config: Config) -> Builder {
        Builder {
            config,
            upcalls: BTreeMap::new(),
            on_progress: Box::new(|_| ()),
            on_view: Box::new(|_| ()),
            places: BTreeMap::new(),
            only_join: false,
        }
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

    /// Takes the replicated object `name`, which is kept in the subgroup of that name, or in one subgroup for each of
    /// its shards. `first` makes the state of a shard when the group begins. Each member has to call this, whether or
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
        let mut places = Vec::new();
        for shard in shards {
            let config = &self.config.subgroups[&shard];
            if config.mode != DeliveryMode::Atomic {
                return Err(HandleError::Mode(shard));
            }
            if let Some(handle) = self.subgroups.get_mut(&shard) {
                handle.take_both()?;
            }
            let id = self.config.subgroups.keys().position(|name| *name == shard);
            let id = u32::try_from(id.expect("it is one of them")).expect("subgroups are few");
            places.push(object::ShardSubgroup {
                id: SubgroupId(id),
                slot: Arc::clone(&self.slots[&shard]),
                message_max: config.message_max,
                subgroup: shard,
            });
        }
        let cannot = |cause: String| HandleError::Service { cause };
        let service = match &mut self.service {
            Some(service) => service,
            none => {
                let service =
                    object::ObjectService::open(&self.config).map_err(|error| cannot(error.to_string()))?;
                *self.link.status.service() = Some(service.address().clone());
                none.insert(service)
            }
        };
        object::start(name, places, &self.config, &self.link, service, first, options)
            .map_err(|error| cannot(error.to_string()))
    }

    /// Leaves the group in order: everything that was sent before is delivered, the states of objects that only this
    /// member holds are handed over, and the others continue without this member, as after its death, but without
    /// counting it as a failure. Returns when that is done. If it is not done after `patience`, the process leaves as
    /// if it had died, and [`Departure::Forced`] names the states that are lost with it. Dropping the group has the
    /// same effect as such a death.
    ///
    /// An application that polls the node itself has to continue until [`Node::failure`] returns
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

/// Reports the end of the polling thread.
struct Finished(Arc<GroupStatus>);

impl Drop for Finished {
    fn drop(&mut self) {
        self.0.set_finished();
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
    }
}
