//! Requests to other members: which members there are, how they are reached, and how an update that is sent again
//! counts once (Derecho app. A: external clients).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::mutex::lock;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::replica::ShardRequest;
use squall_transports::bootstrap::Address;
use squall_transports::bootstrap::pair::PairService;

use super::client::ClientEvent;
use super::known::KnownMembers;
use super::remote_job::RemoteJob;
use super::remote_worker::{RemoteQueue, WorkerLease};
use super::service;
use super::wire::ObjectRequest;
use crate::config::Config;
use crate::handle::node_handle::NodeHandle;
use crate::operate::inquiry;
use crate::status::GroupStatus;
use crate::stream::Stream;

/// The members of an object's shards, and connections to them.
pub(super) struct Directory {
    config: Arc<Config>,
    object: String,
    /// The subgroups of the shards.
    subgroups: Vec<String>,
    pub(super) timeout: Duration,
    source: Source,
    services: Mutex<BTreeMap<NodeId, Address>>,
    /// What is called when a client connects to a member or loses one.
    on_event: Mutex<Option<OnClientEvent>>,
}

type OnClientEvent = Arc<dyn Fn(ClientEvent) + Send + Sync>;

/// How the current view is known.
enum Source {
    /// This process is a member, and has it.
    Member(Arc<GroupStatus>),
    /// This process asks members for it.
    Client(Arc<KnownMembers>),
}

impl Directory {
    pub(super) fn of_member(
        config: &Arc<Config>,
        link: &NodeHandle,
        object: &str,
        subgroups: Vec<String>,
        timeout: Duration,
    ) -> Self {
        Self::new(config, object, subgroups, timeout, Source::Member(Arc::clone(&link.status)))
    }

    pub(super) fn of_client(
        config: &Arc<Config>,
        object: &str,
        subgroups: Vec<String>,
        timeout: Duration,
    ) -> Self {
        let known = Arc::new(KnownMembers::new(config));
        Self::new(config, object, subgroups, timeout, Source::Client(known))
    }

    fn new(
        config: &Arc<Config>,
        object: &str,
        subgroups: Vec<String>,
        timeout: Duration,
        source: Source,
    ) -> Self {
        let (config, object) = (Arc::clone(config), object.into());
        let (services, on_event) = (Mutex::default(), Mutex::default());
        Self { config, object, subgroups, timeout, source, services, on_event }
    }

    pub(super) fn asked(&self, shard: usize, call: u64, request: ShardRequest) -> ObjectRequest<'_> {
        ObjectRequest {
            call,
            object: &self.object,
            shard: u32::try_from(shard).expect("shards are few"),
            request,
        }
    }

    pub(super) fn set_on_event(&self, on_event: OnClientEvent) {
        *lock(&self.on_event) = Some(on_event);
    }

    pub(super) fn report(&self, event: ClientEvent) {
        let on_event = lock(&self.on_event).clone();
        on_event.into_iter().for_each(|on_event| on_event(event.clone()));
    }

    /// Notes that a member that answered is in this view.
    pub(super) fn handle_view(&self, view: u64) {
        if let Source::Client(known) = &self.source {
            known.handle_view(view);
        }
    }

    /// Notes that a member has failed or left, so there may be another view.
    pub(super) fn handle_failure(&self) {
        if let Source::Client(known) = &self.source {
            known.handle_failure();
        }
    }

    pub(super) fn view_id(&self) -> u64 {
        match &self.source {
            Source::Member(status) => status.view_id(),
            Source::Client(known) => known.view_id(),
        }
    }

    /// Returns the view, as far as it is known here.
    fn view(&self) -> View {
        match &self.source {
            Source::Member(status) => status.view().unwrap_or_else(|| View::first(Vec::new())),
            Source::Client(known) => known.view(),
        }
    }

    /// For a client, asks for the members now, and keeps the answer up to date from then on.
    pub(super) fn follow(&self) -> Result<(), String> {
        self.refresh()?;
        let Source::Client(known) = &self.source else { return Ok(()) };
        KnownMembers::watch(known, &self.config)
            .map_err(|error| format!("failed to start a client's thread: {error}"))
    }

    /// For a client, asks for the members now.
    pub(super) fn refresh(&self) -> Result<(), String> {
        let Source::Client(known) = &self.source else { return Ok(()) };
        known.refresh(&self.config)
    }

    /// Returns the members of a shard.
    pub(super) fn members(&self, shard: usize) -> Vec<NodeId> {
        let mut subgroups = (0..).map(SubgroupId).zip(&self.config.subgroups);
        subgroups
            .find(|(_, (name, _))| **name == self.subgroups[shard])
            .and_then(|(id, (_, subgroup))| subgroup.place(&self.view(), id))
            .map_or_else(Vec::new, |(members, _)| members)
    }

    fn service(&self, node: NodeId) -> io::Result<Address> {
        if let Some(address) = lock(&self.services).get(&node) {
            return Ok(address.clone());
        }
        let plan = self.config.plan();
        let address = match &self.source {
            Source::Member(status) => status.roster().get(&node).cloned(),
            Source::Client(known) => known.address(node),
        };
        let address = address.map_or(Ok(None), |address| inquiry::ask_service_at(&plan, &address));
        let address = address.map_err(io::Error::other)?.ok_or(io::ErrorKind::AddrNotAvailable)?;
        lock(&self.services).insert(node, address.clone());
        Ok(address)
    }

    pub(super) fn connect(&self, node: NodeId) -> io::Result<Stream> {
        self.forget_others();
        let address = self.service(node)?;
        let stream = Stream::connect_service(&address, PairService::Objects, &service::options(&self.config));
        Ok(stream.inspect_err(|_| drop(lock(&self.services).remove(&node)))?)
    }

    /// Forgets the addresses of nodes that are no longer members.
    fn forget_others(&self) {
        let view = self.view();
        lock(&self.services).retain(|node, _| view.rank(*node).is_some());
    }

    /// Returns how long a member that owes an answer may be silent: as long as it takes to suspect it. The second
    /// value applies when that was too short, since a snapshot may take time.
    pub(super) fn silences(&self) -> (Duration, Duration) {
        let suspicion = self.config.suspicion_after.unwrap_or(self.timeout);
        let silence = suspicion.max(SILENCE_MIN);
        (silence, silence.max(self.timeout))
    }
}

/// Sends tasks to shards that are at other members: a thread for each shard in use, and for each member that was
/// named.
pub(super) struct RemoteShards {
    directory: Arc<Directory>,
    workers: Mutex<BTreeMap<(usize, Option<NodeId>), RemoteQueue>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for RemoteShards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("object", &self.directory.object).finish_non_exhaustive()
    }
}

impl Drop for RemoteShards {
    /// Closes the queues; workers end when their jobs are done.
    fn drop(&mut self) {
        for queue in std::mem::take(&mut *lock(&self.workers)).into_values() {
            queue.close();
        }
    }
}

impl RemoteShards {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self { directory, workers: Mutex::default(), threads: Mutex::default() }
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Closes the queues, and waits until the workers have done their jobs, each of which has a time-out.
    pub(super) fn close(self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        drop(self);
        // A worker that panicked has dropped its jobs, which reports that to their owners.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Hands a job to its worker; waits while too many jobs are queued. Returns what waits for its reply best.
    pub(super) fn push(&self, job: RemoteJob) -> Arc<WorkerLease> {
        let queue = lock(&self.workers)
            .entry((job.shard, job.node))
            .or_insert_with(|| {
                let (queue, worker) = RemoteQueue::new(Arc::clone(&self.directory), job.shard, job.node);
                let (thread, runs) =
                    (std::thread::Builder::new().name("squall remote".into()), Arc::clone(&worker));
                match thread.spawn(move || runs.run()) {
                    Ok(thread) => lock(&self.threads).push(thread),
                    Err(_) => worker.give_up(),
                }
                queue
            })
            .clone();
        queue.push(job)
    }
}

/// A state provider on a busy machine may be silent for this long.
const SILENCE_MIN: Duration = Duration::from_secs(1);
