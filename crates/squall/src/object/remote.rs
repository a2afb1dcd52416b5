//! Requests to other members: which members there are, how they are reached, and how an update that is sent again
//! counts once (Derecho app. A: external clients).

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::Ordering;
use squall_fabric::mutex::lock;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::replica::{
    ClientAction, ClientSettings, ReplicaSettings, ShardClient, ShardRequest, TaskOutcome,
};
use squall_transports::bootstrap::Address;
use squall_transports::bootstrap::pair::PairService;
use squall_transports::log;

use super::bell::Bell;
use super::client::ClientEvent;
use super::frame_stream::FrameStream;
use super::known::KnownMembers;
use super::remote_job::{Done, RemoteJob};
use super::wire::{ObjectReply, ObjectRequest};
use super::{ObjectError, service};
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
    timeout: Duration,
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

    fn report(&self, event: ClientEvent) {
        let on_event = lock(&self.on_event).clone();
        on_event.into_iter().for_each(|on_event| on_event(event.clone()));
    }

    /// Notes that a member that answered is in this view.
    fn handle_view(&self, view: u64) {
        if let Source::Client(known) = &self.source {
            known.handle_view(view);
        }
    }

    /// Notes that a member has failed or left, so there may be another view.
    fn handle_failure(&self) {
        if let Source::Client(known) = &self.source {
            known.handle_failure();
        }
    }

    fn view_id(&self) -> u64 {
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
    fn refresh(&self) -> Result<(), String> {
        let Source::Client(known) = &self.source else { return Ok(()) };
        known.refresh(&self.config)
    }

    /// Returns the members of a shard.
    fn members(&self, shard: usize) -> Vec<NodeId> {
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
    workers: Mutex<BTreeMap<(usize, Option<NodeId>), JobQueue>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The sending end of a worker's queue.
#[derive(Clone)]
struct JobQueue {
    jobs: mpsc::SyncSender<RemoteJob>,
    bell: Arc<Bell>,
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
            drop(queue.jobs);
            queue.bell.ring();
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

    /// Hands a job to its worker; waits while too many jobs are queued.
    pub(super) fn push(&self, job: RemoteJob) {
        let queue = lock(&self.workers)
            .entry((job.shard, job.node))
            .or_insert_with(|| {
                let (jobs, receive) = mpsc::sync_channel(JOBS_MAX);
                let bell = Arc::new(Bell::default());
                let worker =
                    Worker::new(Arc::clone(&self.directory), job.shard, job.node, receive, Arc::clone(&bell));
                // Without a thread, a job that is dropped reports that to its owner.
                let thread = std::thread::Builder::new().name("squall remote".into());
                lock(&self.threads).extend(thread.spawn(move || worker.run()));
                JobQueue { jobs, bell }
            })
            .clone();
        // If the worker has panicked, the job is dropped, which reports that to its owner.
        let _ = queue.jobs.send(job);
        queue.bell.ring();
    }
}

/// Drives the client of one shard, over one connection at a time.
struct Worker {
    directory: Arc<Directory>,
    shard: usize,
    /// The member that is asked, if it has to be a certain one.
    node: Option<NodeId>,
    core: ShardClient<Done>,
    /// The origin of its times.
    start: Instant,
    jobs: mpsc::Receiver<RemoteJob>,
    bell: Arc<Bell>,
    /// There will be no more jobs.
    is_closed: bool,
    line: Option<(NodeId, FrameStream)>,
    /// The view whose members the core knows.
    known: Option<u64>,
}

impl Worker {
    fn new(
        directory: Arc<Directory>,
        shard: usize,
        node: Option<NodeId>,
        jobs: mpsc::Receiver<RemoteJob>,
        bell: Arc<Bell>,
    ) -> Self {
        let (silence, timeout) = (directory.silences().0, directory.timeout);
        let settings = ClientSettings {
            under_way_max: UNDER_WAY_MAX,
            timeout,
            // This leaves time for another member.
            silence_max: silence.min(timeout / 3),
            pause: PAUSE,
        };
        let core = ShardClient::new(settings);
        let (start, line) = (Instant::now(), None);
        Self { directory, shard, node, core, start, jobs, bell, is_closed: false, line, known: None }
    }

    fn now(&self) -> squall_fabric::Instant {
        squall_fabric::Instant::from_nanos(0) + self.start.elapsed()
    }

    fn run(mut self) {
        loop {
            self.take_jobs();
            self.converse();
            // The answers may have made more actions possible.
            self.act();
            if self.is_closed && self.core.is_empty() {
                return;
            }
            self.wait();
        }
    }

    fn has_space(&self) -> bool {
        self.core.len() < JOBS_MAX
    }

    fn take_jobs(&mut self) {
        while self.has_space() && !self.is_closed {
            match self.jobs.try_recv() {
                Ok(job) => self.submit(job),
                Err(mpsc::TryRecvError::Empty) => return,
                Err(mpsc::TryRecvError::Disconnected) => self.is_closed = true,
            }
        }
    }

    fn submit(&mut self, job: RemoteJob) {
        // SYNC: jobs are counted after they are sent, so the count may wrap below zero for a moment, and wraps back
        // then.
        self.bell.jobs.fetch_sub(1, Ordering::Relaxed);
        self.core.submit(self.now(), job.done, job.task);
    }

    /// Carries out the core's actions.
    fn act(&mut self) {
        loop {
            let view = self.directory.view_id();
            if self.known != Some(view) {
                self.known = Some(view);
                let members = self.node.map_or_else(|| self.directory.members(self.shard), |node| vec![node]);
                self.core.handle_members(view, members);
            }
            let Some(action) = self.core.poll_action(self.now()) else { return };
            match action {
                ClientAction::Ask { node, call, request } => {
                    if let Err(error) = self.ask(node, call, request) {
                        self.handle_failure(node, &error);
                    }
                }
                ClientAction::HangUp(node) => {
                    log::debug!(shard = self.shard, %node, "a member does not answer: asking another one");
                    self.lose(node, "it does not answer".into());
                    self.directory.handle_failure();
                }
                ClientAction::AskForMembers => {
                    if let Err(cause) = self.directory.refresh() {
                        self.core.set_cause(cause);
                    }
                    self.known = None;
                }
                ClientAction::Done(done, outcome) => done(self.result(outcome)),
            }
        }
    }

    fn ask(&mut self, node: NodeId, call: u64, request: ShardRequest) -> io::Result<()> {
        if self.line.as_ref().is_none_or(|(other, _)| *other != node) {
            self.hang_up();
            let mut line = FrameStream::new(self.directory.connect(node)?);
            self.bell.set_waker(Some(line.waker()));
            self.line = Some((node, line));
            self.directory.report(ClientEvent::Connected { shard: self.shard, node });
        }
        let (_, line) = self.line.as_mut().expect("the connection was made above");
        let asked = self.directory.asked(self.shard, call, request);
        line.put(|frame| asked.write(frame))
    }

    fn hang_up(&mut self) {
        self.bell.set_waker(None);
        if let Some((_, line)) = self.line.take() {
            line.abort();
        }
    }

    /// Hangs up, because the member at the other end has failed or left.
    fn lose(&mut self, node: NodeId, cause: String) {
        if self.line.as_ref().is_some_and(|(other, _)| *other == node) {
            self.directory.report(ClientEvent::Lost { shard: self.shard, node, cause });
        }
        self.hang_up();
    }

    /// Sends requests and takes answers.
    fn converse(&mut self) {
        let Some((node, line)) = &mut self.line else { return };
        let node = *node;
        if let Err(error) = exchange(line, &self.directory, &mut self.core, self.start) {
            self.handle_failure(node, &error);
        }
    }

    /// Gives up the connection to a member, which may have left the group.
    fn handle_failure(&mut self, node: NodeId, error: &io::Error) {
        log::debug!(shard = self.shard, %node, %error, "lost a member: asking another one");
        self.lose(node, error.to_string());
        self.core.handle_failure(self.now(), node, &error.to_string());
        self.directory.handle_failure();
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let next = self.core.next_deadline().map(|at| at.since(self.now()));
        let patience = next.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        // If sending fails, the next round finds out why.
        let is_busy = self.line.as_mut().is_some_and(|(_, line)| line.pump().is_err() || line.has_frame());
        if is_busy || patience.is_zero() {
            return;
        }
        let (has_space, bell) = (self.has_space() && !self.is_closed, Arc::clone(&self.bell));
        match &mut self.line {
            Some((_, line)) => {
                // SYNC: pairs with `Bell::ring`.
                let _ = line.wait(patience, || has_space && bell.jobs.load(Ordering::Acquire) > 0);
            }
            None if has_space => match self.jobs.recv_timeout(patience) {
                Ok(job) => self.submit(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => self.is_closed = true,
            },
            None => std::thread::park_timeout(patience),
        }
    }

    fn result(&self, outcome: TaskOutcome) -> Result<Vec<u8>, ObjectError> {
        let shard = self.shard;
        match outcome {
            TaskOutcome::Reply(reply) => Ok(reply),
            TaskOutcome::ReplyTooLong(bytes) => {
                let bytes_max = ReplicaSettings::default().reply_bytes_max as u64;
                Err(ObjectError::ReplyTooLong { bytes, bytes_max })
            }
            TaskOutcome::Unknown(_) => Err(ObjectError::Unknown),
            TaskOutcome::Unreachable(cause) => Err(ObjectError::Unreachable { shard, cause }),
            TaskOutcome::Refused(why) => Err(ObjectError::Form(why)),
            TaskOutcome::Lost(holders) => Err(ObjectError::StateLost { shard, holders }),
        }
    }
}

/// Sends and receives everything that can be sent and received now.
fn exchange(
    line: &mut FrameStream,
    directory: &Directory,
    core: &mut ShardClient<Done>,
    start: Instant,
) -> io::Result<()> {
    line.pump()?;
    while let Some(frame) = line.next()? {
        let ObjectReply { call, view, answer } = ObjectReply::read(frame)?;
        directory.handle_view(view);
        core.handle_answer(squall_fabric::Instant::from_nanos(0) + start.elapsed(), call, answer);
    }
    if line.has_ended() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The number of jobs that wait for one worker, and the number of those that it has begun.
const JOBS_MAX: usize = 1024;
/// The number of updates of one client of a shard that are sent and not answered.
const UNDER_WAY_MAX: usize = 256;
/// A state provider on a busy machine may be silent for this long.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// The pause between rounds of requests.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a worker sleeps in any case; answers, jobs and the end of jobs wake it.
const WAIT_MAX: Duration = Duration::from_secs(1);
