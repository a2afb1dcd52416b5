//! Prepares a group and joins it (Derecho §2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::{Deliver, Message, MessageBatch};
use squall_transports::bootstrap::BootstrapProgress;
use squall_transports::http::HttpServer;
use squall_transports::log;
use squall_transports::runner::pin;

use super::subgroup_handle::SubgroupHandle;
use super::{Group, GroupShards};
use crate::application::{BoxedUpcall, GroupHandles, LayoutFunctions, MulticastUpcall, ViewUpcall};
use crate::config::Config;
use crate::durable;
use crate::error::JoinError;
use crate::external::{ClientChannel, ClientServices, Hub};
use crate::handle::genuine::{self, GenuineMessage, MulticastSender};
use crate::handle::node_handle::NodeHandle;
use crate::node::{EntryOptions, Node};
use crate::operate::flight;
use crate::operate::metrics::{FiguresBoard, serve_metrics};
use crate::shared_poller::SharedPoller;
use crate::slot::{FeedPoller, ShardFeed, SubgroupSlot, Tap, TappedUpcall};
use crate::status::GroupStatus;

/// Prepares a group: its upcalls, the thread that polls, and what to report while joining.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
/// use std::sync::mpsc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-builder-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let (messages, delivered) = mpsc::channel();
/// let mut group = Group::builder(config)
///     .on_view(|view| println!("{view}"))
///     .on_message("log", move |message| drop(messages.send(message.bytes.to_vec())))
///     .join()?;
/// group.subgroup("log")?.sender()?.send_bytes(b"hello")?;
/// assert_eq!(delivered.recv()?, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Builder {
    config: Config,
    upcalls: BTreeMap<String, (BoxedUpcall, Arc<Tap>)>,
    on_progress: Box<dyn FnMut(BootstrapProgress) + Send>,
    on_view: ViewUpcall,
    on_multicast: Option<MulticastUpcall>,
    places: LayoutFunctions,
    services: ClientServices,
    only_join: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            upcalls: BTreeMap::new(),
            on_progress: Box::new(|_| ()),
            on_view: Box::new(|_| ()),
            on_multicast: None,
            places: BTreeMap::new(),
            services: ClientServices::new(),
            only_join: false,
        }
    }

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

    /// Calls `upcall` for each message to the shard of this member ([`crate::genuine`]), in the order of their positions, on the
    /// polling thread. It should be brief, because the whole node waits for it. Without it, such messages are dropped here.
    #[must_use]
    pub fn on_multicast(mut self, upcall: impl FnMut(GenuineMessage<'_>) + Send + 'static) -> Self {
        self.on_multicast = Some(Box::new(upcall));
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

    /// Calls `serve` for each process outside the group that connects to this member's application ([`crate::external::MemberChannel`])
    /// by the name of `subgroup`, on a thread of the connection, which ends when `serve` returns. It returns soon after
    /// [`ClientChannel::is_closing`]. It may be called before the member has joined.
    #[must_use]
    pub fn on_client(
        mut self,
        subgroup: &str,
        serve: impl Fn(&mut ClientChannel<'_>) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.services.insert(subgroup.into(), Box::new(serve));
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
        let (core, timeout) = (self.config.core, self.config.timeout);
        let (mut group, node) = self.join_polled()?;
        group.thread = Some(spawn(core, &group.link.status, move || node.run())?);
        group.wait_ready(timeout)?;
        Ok(group)
    }

    /// Joins the group as [`Builder::join`] does, and returns a poller besides: threads that wait by it poll the node themselves, and the
    /// group's own thread polls while none does. So a message that comes wakes at most the thread that waits for it. For groups that many
    /// threads send to without waiting, [`Builder::join`] costs less.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub fn join_shared(self) -> Result<(Group, SharedPoller), JoinError> {
        let (core, timeout) = (self.config.core, self.config.timeout);
        let (mut group, node) = self.join_polled()?;
        let poller = SharedPoller::new(node, Arc::clone(&group.link.status))?;
        let standby = poller.clone();
        group.thread = Some(spawn(core, &group.link.status, move || standby.stand_by())?);
        group.wait_ready(timeout)?;
        Ok((group, poller))
    }

    /// Checks that what the application has given fits the configuration.
    fn check(&self) -> Result<(), JoinError> {
        let named = self.upcalls.keys().chain(self.places.keys()).chain(self.services.keys());
        let unknown = named.into_iter().find(|name| !self.config.subgroups.contains_key(*name));
        if let Some(name) = unknown {
            let is_divided = self.config.subgroups.contains_key(&format!("{name}/0"));
            let error = if is_divided { JoinError::DividedSubgroup } else { JoinError::UnknownSubgroup };
            return Err(error(name.clone()));
        }
        if self.on_multicast.is_some() && self.config.genuine.is_none() {
            return Err(JoinError::NoShards);
        }
        let all = self.config.members;
        for (name, subgroup) in &self.config.subgroups {
            let fits = subgroup.settings(all).check(subgroup.member_ranks(all).len());
            fits.map_err(|error| JoinError::Settings { subgroup: name.clone(), error })?;
        }
        if let Some(name) =
            durable::shards(&self.config).into_keys().find(|name| self.places.contains_key(name))
        {
            return Err(JoinError::PlacedDurable(name));
        }
        Ok(())
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
        self.check()?;
        let all = self.config.members;
        let tap = |name: &String| self.upcalls.get(name).map(|(_, tap)| Arc::clone(tap)).unwrap_or_default();
        let slot = |name: &String| Arc::new(SubgroupSlot::with_tap(tap(name)));
        let slots: Vec<Arc<SubgroupSlot>> = self.config.subgroups.keys().map(slot).collect();
        let upcalled: BTreeSet<String> = self.upcalls.keys().cloned().collect();
        let ids = self.config.subgroups.keys().zip((0..).map(SubgroupId));
        let upcalls = ids.filter_map(|(name, id)| Some((id, self.upcalls.remove(name)?.0))).collect();
        self.config.flight_record.as_deref().map_or(Ok(()), flight::check_file)?;
        let status = Arc::new(GroupStatus::default());
        let metrics = open_metrics(&self.config, &slots, &status)?;
        let board = metrics.as_ref().map(|(board, _)| Arc::clone(board));
        let mut handles = GroupHandles::new(upcalls, slots.clone(), Arc::clone(&status), self.on_view);
        handles.set_multicast_upcall(self.on_multicast);
        let genuine = self.config.genuine.clone().map(Arc::new);
        let (writer, outlet) = genuine.as_ref().map(genuine::open).unzip();
        let feed = open_feed(&self.config, &mut handles);
        let places = Arc::new(self.places);
        let (only_join, log) = (self.only_join, durable::open(&self.config)?);
        let durable = durable::shards(&self.config);
        let options = EntryOptions {
            config: &self.config,
            only_join,
            places: Arc::clone(&places),
            log: log.clone(),
            board: board.inspect(|board| board.set_log(log.clone())),
            outlet,
            feed: feed.clone().map(FeedPoller::new),
        };
        let (node, rank) = Node::enter(options, handles, status, &mut self.on_progress)?;
        feed.iter().for_each(|feed| feed.enter(node.has_shard_state()));
        let link = node.handle();
        durable::discarder::start(link.log.clone(), &self.config, &slots)?;
        let metrics = metrics.map(|metrics| show_metrics(metrics, &link));
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
                retention: config.retain.unwrap_or_default(),
            };
            sources.insert(name.clone(), handle.source());
            subgroups.insert(name.clone(), handle);
        }
        let (config, slots, service) = (Arc::new(self.config), named_slots, None);
        let hub = Hub::new(Arc::clone(&config), sources, self.services, &link.status);
        *link.status.hub() = Some(hub.clone());
        let shards = writer.zip(genuine).map(|(writer, config)| {
            let sender = Some(MulticastSender::new(writer, Arc::clone(&config), link.clone()));
            GroupShards { config, sender, feed }
        });
        let group =
            Group { rank, link, subgroups, shards, config, slots, service, hub, metrics, thread: None };
        Ok((group, node))
    }
}

/// Lets those who want to see metrics wake the polling thread.
fn show_metrics((board, server): (Arc<FiguresBoard>, HttpServer), link: &NodeHandle) -> HttpServer {
    board.set_waker(link.waker.clone());
    server
}

/// Returns what passes to the object in the shards, if there is one.
fn open_feed(config: &Config, handles: &mut GroupHandles) -> Option<Arc<ShardFeed>> {
    let genuine = config.genuine.as_ref().filter(|genuine| genuine.object);
    let feed = genuine.map(|_| Arc::<ShardFeed>::default());
    handles.set_feed(feed.clone());
    feed
}

/// Listens for those who want to see metrics, if the configuration says where; until the member has joined, they see that it has not.
fn open_metrics(
    config: &Config,
    slots: &[Arc<SubgroupSlot>],
    status: &Arc<GroupStatus>,
) -> Result<Option<(Arc<FiguresBoard>, HttpServer)>, JoinError> {
    let Some(metrics) = &config.metrics else { return Ok(None) };
    let names = config.subgroups.keys().cloned().collect();
    let board = Arc::new(FiguresBoard::new(names, slots.to_vec(), Arc::clone(status)));
    let server = serve_metrics(metrics, Arc::clone(&board))
        .map_err(|cause| JoinError::Metrics { address: metrics.listen.clone(), cause })?;
    log::info!("metrics are at http://{}/metrics", server.address());
    Ok(Some((board, server)))
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

/// Starts the polling thread, on `core` if there is one.
fn spawn(
    core: Option<usize>,
    status: &Arc<GroupStatus>,
    poll: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let finished = Finished(Arc::clone(status));
    let run = move || {
        // Dropped last, also when the thread panics.
        let _finished = finished;
        if let Some(core) = core {
            pin(core);
        }
        poll();
    };
    std::thread::Builder::new().name("squall".into()).spawn(run)
}

/// Reports the end of the polling thread.
struct Finished(Arc<GroupStatus>);

impl Drop for Finished {
    fn drop(&mut self) {
        self.0.set_finished();
    }
}
