//! The group: joining, subgroups, and leaving (Derecho §2).

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use squall_fabric::{Fabric as _, NodeId};
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::{Batch, Deliver, Message, Settings};
use squall_transports::bootstrap::{self, Assembly, Listener, Progress};
use squall_transports::composite::{CompositeFabric, CompositeSettings};
use squall_transports::runner::pin;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::{self, VerbsFabric};

use crate::application::{BoxedUpcall, Handles, Seat};
use crate::config::{Config, IdlePolicy, Transport};
use crate::deliveries::Deliveries;
use crate::error::{GroupError, HandleError, JoinError};
use crate::node::{Link, Node};
use crate::sender::Sender;
use crate::status::Status;
use crate::transport::AnyFabric;

/// A group that this process is a member of. Dropping it leaves the group.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    link: Link,
    subgroups: BTreeMap<String, SubgroupHandle>,
    thread: Option<JoinHandle<()>>,
}

/// A subgroup of a group: hands out its sender and its deliveries, once each.
#[derive(Debug)]
pub struct SubgroupHandle {
    name: String,
    settings: Settings,
    link: Link,
    seat: Arc<Seat>,
    sends: bool,
    pulls: bool,
    sender_taken: bool,
    deliveries_taken: bool,
}

/// Prepares a group: upcalls, who polls, what to show while joining.
pub struct Builder {
    config: Config,
    upcalls: BTreeMap<String, BoxedUpcall>,
    on_progress: Box<dyn FnMut(Progress) + Send>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Builder {
    /// Calls `upcall` for each message of `subgroup`, in order, on the polling thread. It should be brief: the
    /// whole node waits. Subgroups without an upcall are pulled ([`SubgroupHandle::deliveries`]).
    #[must_use]
    pub fn on_message(self, subgroup: &str, upcall: impl FnMut(Message<'_>) + Send + 'static) -> Self {
        self.on_upcall(subgroup, Box::new(upcall))
    }

    /// Calls `upcall` for each batch of messages that can be delivered together (Spindle §3.5). What it does not
    /// take comes again.
    #[must_use]
    pub fn on_batch(self, subgroup: &str, upcall: impl FnMut(Batch<'_>) + Send + 'static) -> Self {
        self.on_upcall(subgroup, Box::new(BatchUpcall(upcall)))
    }

    /// Gives the messages of `subgroup` to `deliver`, on the polling thread, which tells it of views, too.
    #[must_use]
    pub fn on_deliver(self, subgroup: &str, deliver: impl Deliver + Send + 'static) -> Self {
        self.on_upcall(subgroup, Box::new(deliver))
    }

    fn on_upcall(mut self, subgroup: &str, upcall: BoxedUpcall) -> Self {
        self.upcalls.insert(subgroup.into(), upcall);
        self
    }

    /// Calls `on_progress` while the members find each other.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(Progress) + Send + 'static) -> Self {
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
        let run = move || {
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
    /// once [`Node::is_ready`].
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join_polled(mut self) -> Result<(Group, Node), JoinError> {
        self.config.check()?;
        let unknown = self.upcalls.keys().find(|name| !self.config.subgroups.contains_key(*name));
        if let Some(name) = unknown {
            return Err(JoinError::UnknownSubgroup(name.clone()));
        }
        let all = self.config.members;
        for (name, subgroup) in &self.config.subgroups {
            let fits = subgroup.settings(all).check(subgroup.member_ranks(all).len());
            fits.map_err(|error| JoinError::Settings { subgroup: name.clone(), error })?;
        }
        let (fabric, members) = connect(&self.config, &mut self.on_progress)?;
        let rank = fabric.node().0 as usize;
        let idle = self.config.idle_for(members.len());
        let idle = if self.config.idle == IdlePolicy::Auto { fabric.idle(idle) } else { idle };
        let status = Arc::new(Status::default());
        let seats: Vec<Arc<Seat>> = self.config.subgroups.keys().map(|_| Arc::default()).collect();
        let upcalled: BTreeSet<String> = self.upcalls.keys().cloned().collect();
        let ids = self.config.subgroups.keys().zip((0..).map(SubgroupId));
        let upcalls = ids.filter_map(|(name, id)| Some((id, self.upcalls.remove(name)?))).collect();
        let handles = Handles::new(upcalls, seats.clone(), Arc::clone(&status));
        let node = Node::new(fabric, &members, &self.config, handles, status, idle);
        let link = Link::new(&node);
        let mut subgroups = BTreeMap::new();
        for ((name, config), seat) in self.config.subgroups.iter().zip(seats) {
            if config.member_ranks(all).contains(&rank) {
                let settings = config.settings(all);
                let sends = config.senders.among(&config.member_ranks(all)).contains(&rank);
                let pulls = !upcalled.contains(name);
                let (name, link) = (name.clone(), link.clone());
                let (sender_taken, deliveries_taken) = (false, false);
                let handle = SubgroupHandle {
                    name: name.clone(),
                    settings,
                    link,
                    seat,
                    sends,
                    pulls,
                    sender_taken,
                    deliveries_taken,
                };
                subgroups.insert(name, handle);
            }
        }
        Ok((Group { rank, link, subgroups, thread: None }, node))
    }
}

struct BatchUpcall<T>(T);

impl<T: FnMut(Batch<'_>)> Deliver for BatchUpcall<T> {
    fn deliver(&mut self, _message: Message<'_>) {
        unreachable!("batches are taken whole");
    }

    fn deliver_batch(&mut self, batch: Batch<'_>) {
        (self.0)(batch);
    }
}

/// Finds the other members and sets the transport up.
pub(crate) fn connect(
    config: &Config,
    on_progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(AnyFabric, Vec<NodeId>), JoinError> {
    let plan = config.plan();
    match config.transport {
        Transport::Shm => {
            let listener = Listener::<UnixStream>::bind(&config.listen)?;
            let assembly = bootstrap::assemble(&plan, &listener, on_progress)?;
            let members = nodes(&assembly);
            Ok((AnyFabric::Shm(ShmFabric::new(assembly.node, assembly.streams)?), members))
        }
        Transport::Tcp => {
            let listener = Listener::<TcpStream>::bind(&config.listen)?;
            let assembly = bootstrap::assemble(&plan, &listener, on_progress)?;
            let members = nodes(&assembly);
            Ok((AnyFabric::Tcp(TcpFabric::new(assembly.node, assembly.streams)?), members))
        }
        Transport::Auto => {
            let listener = Listener::<TcpStream>::bind(&config.listen)?;
            let assembly = bootstrap::assemble(&plan, &listener, on_progress)?;
            let members = nodes(&assembly);
            let settings = CompositeSettings { verbs: Some(config.verbs.clone()), ..Default::default() };
            let fabric = CompositeFabric::new(assembly.node, assembly.streams, &settings)?;
            Ok((AnyFabric::Auto(Box::new(fabric)), members))
        }
        Transport::Verbs => {
            // Before anybody waits for this member.
            verbs::check(&config.verbs, &[])?;
            let listener = Listener::<TcpStream>::bind(&config.listen)?;
            let assembly = bootstrap::assemble(&plan, &listener, on_progress)?;
            let members = nodes(&assembly);
            let fabric = VerbsFabric::new(assembly.node, assembly.streams, &config.verbs)?;
            Ok((AnyFabric::Verbs(Box::new(fabric)), members))
        }
    }
}

fn nodes<S>(assembly: &Assembly<S>) -> Vec<NodeId> {
    assembly.members.iter().map(|member| member.node).collect()
}

impl Group {
    /// Prepares a group from a configuration.
    #[must_use]
    pub fn builder(config: Config) -> Builder {
        Builder { config, upcalls: BTreeMap::new(), on_progress: Box::new(|_| ()) }
    }

    /// Joins the group that `config` describes; returns when messages can flow. All deliveries are pulled.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join(config: Config) -> Result<Self, JoinError> {
        Self::builder(config).join()
    }

    /// The rank with which this member has begun: its number as a node.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The present view.
    #[must_use]
    pub fn view(&self) -> View {
        self.link.status.view().expect("a group begins with a view")
    }

    /// The number of members in the present view.
    #[must_use]
    pub fn members(&self) -> usize {
        self.view().members.len()
    }

    /// Why the group has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<GroupError> {
        self.link.status.failure()
    }

    /// The subgroup `name`.
    ///
    /// # Errors
    /// [`HandleError::UnknownSubgroup`], also if this member is not in it.
    pub fn subgroup(&mut self, name: &str) -> Result<&mut SubgroupHandle, HandleError> {
        self.subgroups.get_mut(name).ok_or_else(|| HandleError::UnknownSubgroup(name.into()))
    }

    /// Leaves the group at once: the others go on without this member in their next view.
    pub fn leave(self) {
        drop(self);
    }

    fn wait_ready(&self, timeout: std::time::Duration) -> Result<(), JoinError> {
        let status = &self.link.status;
        let deadline = std::time::Instant::now() + timeout;
        while !status.is_ready() {
            if let Some(error) = status.failure() {
                return Err(error.into());
            }
            if std::time::Instant::now() > deadline {
                return Err(JoinError::NotReady { seconds: timeout.as_secs() });
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.link.status.stop();
        self.link.waker.ring();
        if let Some(thread) = self.thread.take() {
            // A polling thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl SubgroupHandle {
    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the sending end.
    ///
    /// # Errors
    /// If this member is not a sender, or the sender was taken before.
    pub fn sender(&mut self) -> Result<Sender, HandleError> {
        if !self.sends {
            return Err(HandleError::NotASender(self.name.clone()));
        }
        if std::mem::replace(&mut self.sender_taken, true) {
            return Err(self.taken("sender"));
        }
        let (seat, status) = (Arc::clone(&self.seat), Arc::clone(&self.link.status));
        Ok(Sender::new(seat, self.settings.message_max, self.link.waker.clone(), status))
    }

    /// Takes the receiving end, for deliveries by pull.
    ///
    /// # Errors
    /// If deliveries go to an upcall, or the receiving end was taken before.
    pub fn deliveries(&mut self) -> Result<Deliveries, HandleError> {
        if !self.pulls {
            return Err(HandleError::Upcall(self.name.clone()));
        }
        if std::mem::replace(&mut self.deliveries_taken, true) {
            return Err(self.taken("deliveries"));
        }
        let release_every = (self.settings.window / 8).max(1);
        let (seat, status) = (Arc::clone(&self.seat), Arc::clone(&self.link.status));
        Ok(Deliveries::new(seat, self.link.waker.clone(), status, release_every))
    }

    fn taken(&self, what: &'static str) -> HandleError {
        HandleError::Taken { what, subgroup: self.name.clone() }
    }
}
