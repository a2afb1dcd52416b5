//! Conversing with a member about one shard: a thread for it, and callers that do its work while they wait (Derecho app. A).
//!
//! **State.** A *worker* has the connection and the core of the shard's client, under a lock, and a thread of its own. Jobs come through a queue.
//! A caller that waits for the only job under way takes the *lease* of the worker: it sends, waits for the connection and takes the
//! answer itself, so neither the request nor the answer passes from thread to thread.
//!
//! **Invariants.** While no caller has the lease, the thread does what there is to do, but for a while after a caller has left nothing to do: then
//! it *lingers*, since the next caller probably comes soon. While a caller has the lease, the thread is parked. A caller that leaves something
//! to do wakes it, and so does a job that comes by the queue. A job that a caller has begun itself ([`RemoteQueue::push`]) is looked after by
//! that caller's wait; if it does not wait, by the thread: at once if the reply is awaited in another way ([`WorkerLease::leave`]), and
//! otherwise when it has lingered for [`LINGER`] without a caller.

use std::fmt;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};
use squall_fabric::mutex::lock;
use squall_protocols::replica::{
    ClientAction, ClientSettings, ReplicaSettings, ShardClient, ShardRequest, TaskOutcome,
};
use squall_transports::log;

use super::ObjectError;
use super::bell::Bell;
use super::client::ClientEvent;
use super::frame_stream::FrameStream;
use super::remote::Directory;
use super::remote_job::{Done, RemoteJob};
use super::wire::ObjectReply;

/// The sending end of a worker's queue.
#[derive(Clone)]
pub(super) struct RemoteQueue {
    jobs: mpsc::SyncSender<RemoteJob>,
    lease: Arc<WorkerLease>,
}

/// The worker, for its thread and for callers that wait.
pub(super) struct WorkerLease {
    worker: Mutex<Worker>,
    bell: Arc<Bell>,
    /// Jobs without a reply.
    under_way: AtomicUsize,
    /// Callers that have the lease, or want it.
    callers: AtomicUsize,
    /// A caller has just left, and left nothing to do.
    lingers: AtomicBool,
    /// How often callers have used the worker.
    uses: AtomicUsize,
    /// The worker's thread.
    thread: OnceLock<Thread>,
}

impl fmt::Debug for WorkerLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLease").finish_non_exhaustive()
    }
}

/// One of the jobs without a reply, until this is dropped.
struct UnderWay(Arc<WorkerLease>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        // SYNC: the reply itself travels under a lock.
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RemoteQueue {
    /// A queue, and its worker, which a thread is to run.
    pub(super) fn new(
        directory: Arc<Directory>,
        shard: usize,
        node: Option<NodeId>,
    ) -> (Self, Arc<WorkerLease>) {
        let (jobs, receive) = mpsc::sync_channel(JOBS_MAX);
        let bell = Arc::new(Bell::default());
        let worker = Worker::new(directory, (shard, node), receive, Arc::clone(&bell));
        let lease = Arc::new(WorkerLease {
            worker: Mutex::new(worker),
            bell,
            under_way: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            lingers: AtomicBool::new(false),
            uses: AtomicUsize::new(0),
            thread: OnceLock::new(),
        });
        (Self { jobs, lease: Arc::clone(&lease) }, lease)
    }

    /// Hands a job to the worker; waits while too many jobs are queued. One without others is sent at once by this thread, if the worker's
    /// thread is parked.
    pub(super) fn push(&self, job: RemoteJob) -> Arc<WorkerLease> {
        let lease = &self.lease;
        // SYNC: only a hint to others; jobs travel in the queue or under the lock.
        let is_alone = lease.under_way.fetch_add(1, Ordering::Relaxed) == 0;
        let job = job.holding(UnderWay(Arc::clone(lease)));
        // SYNC: a hint; what the caller before has done is under the lock.
        if is_alone
            && lease.lingers.load(Ordering::Relaxed)
            && let Ok(mut worker) = lease.worker.try_lock()
            && worker.is_calm()
        {
            worker.begin(job);
            // SYNC: a hint for the thread, which looks under the lock.
            lease.uses.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(lease);
        }
        // If the worker has panicked, the job is dropped, which reports that to its owner.
        let _ = self.jobs.send(job);
        lease.bell.count();
        lease.wake();
        Arc::clone(lease)
    }

    /// There will be no more jobs.
    pub(super) fn close(self) {
        let Self { jobs, lease } = self;
        drop(jobs);
        lease.bell.count();
        lease.wake();
    }
}

impl WorkerLease {
    /// Runs the worker on this thread, until its queue is closed and its jobs are done.
    pub(super) fn run(&self) {
        let _panic = PanicGuard(self);
        // Set once: each worker has one thread.
        let _ = self.thread.set(std::thread::current());
        loop {
            while self.has_caller() {
                std::thread::park_timeout(LINGER);
            }
            // SYNC: in one order with the additions to `callers`: either the caller sees that this thread lingers no more, and wakes it, or this
            // thread sees the caller before it waits.
            if self.lingers.load(Ordering::SeqCst) {
                self.linger();
                continue;
            }
            let mut worker = lock(&self.worker);
            worker.step();
            if worker.is_over() {
                return;
            }
            if !self.has_caller() {
                worker.wait(|| self.has_caller());
            }
        }
    }

    /// Waits for the next caller, unless it takes too long or there is something to do.
    fn linger(&self) {
        // SYNC: hints; a job that is counted has been sent, and is received under the lock.
        let uses = self.uses.load(Ordering::Relaxed);
        let has_job = || self.bell.jobs.load(Ordering::Acquire) > 0;
        if !has_job() {
            std::thread::park_timeout(LINGER);
        }
        if has_job() || self.uses.load(Ordering::Relaxed) == uses {
            self.lingers.store(false, Ordering::SeqCst);
        }
    }

    fn has_caller(&self) -> bool {
        // SYNC: see `run`.
        self.callers.load(Ordering::SeqCst) > 0
    }

    /// Does the worker's work on this thread until `is_done`, if the caller's job is the only one under way; else the thread does it.
    pub(super) fn drive(&self, is_done: impl Fn() -> bool) {
        // SYNC: a hint; jobs that come meanwhile ring.
        if self.under_way.load(Ordering::Relaxed) != 1 {
            return;
        }
        let mut caller = WorkerCaller::new(self);
        let _panic = PanicGuard(self);
        let mut worker = lock(&self.worker);
        while !is_done() {
            worker.step();
            if !is_done() {
                worker.wait(|| false);
            }
        }
        caller.leaves_nothing = worker.is_calm();
    }

    /// The caller does something else than to wait: the thread looks after its job.
    pub(super) fn leave(&self) {
        // SYNC: see `run`.
        if self.lingers.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Drops all jobs, and those to come, which reports that to their owners.
    pub(super) fn give_up(&self) {
        lock(&self.worker).give_up();
    }

    /// Wakes the thread, or the caller that does its work.
    fn wake(&self) {
        self.bell.wake();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// A thread that runs the worker: if it panics, the worker gives up.
struct PanicGuard<'w>(&'w WorkerLease);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

/// A caller that has the lease, or waits for it.
struct WorkerCaller<'w> {
    lease: &'w WorkerLease,
    /// Whether there is nothing to do when it leaves.
    leaves_nothing: bool,
}

impl<'w> WorkerCaller<'w> {
    fn new(lease: &'w WorkerLease) -> Self {
        // SYNC: see `WorkerLease::run`.
        lease.callers.fetch_add(1, Ordering::SeqCst);
        if !lease.lingers.load(Ordering::SeqCst) {
            lease.wake();
        }
        Self { lease, leaves_nothing: false }
    }
}

impl Drop for WorkerCaller<'_> {
    fn drop(&mut self) {
        let Self { lease, leaves_nothing } = *self;
        // SYNC: a hint for the thread.
        lease.uses.fetch_add(1, Ordering::Relaxed);
        // SYNC: see `WorkerLease::run`.
        lease.lingers.store(leaves_nothing, Ordering::SeqCst);
        lease.callers.fetch_sub(1, Ordering::SeqCst);
        // SYNC: pairs with `Bell::ring`: a job that came after the last step.
        if !leaves_nothing || lease.bell.jobs.load(Ordering::Acquire) > 0 {
            lease.wake();
        }
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
        (shard, node): (usize, Option<NodeId>),
        jobs: mpsc::Receiver<RemoteJob>,
        bell: Arc<Bell>,
    ) -> Self {
        let core = ShardClient::new(client_settings(&directory));
        let (start, line) = (Instant::now(), None);
        Self { directory, shard, node, core, start, jobs, bell, is_closed: false, line, known: None }
    }

    fn now(&self) -> squall_fabric::Instant {
        squall_fabric::Instant::from_nanos(0) + self.start.elapsed()
    }

    /// Drops its jobs, with those in the queue, and takes no more.
    fn give_up(&mut self) {
        self.core = ShardClient::new(client_settings(&self.directory));
        self.jobs = mpsc::sync_channel(0).1;
        self.is_closed = true;
    }

    /// Does all that can be done now.
    fn step(&mut self) {
        self.take_jobs();
        self.converse();
        // The answers may have made more actions possible.
        self.act();
    }

    /// Whether there is nothing to do, and never will be.
    fn is_over(&self) -> bool {
        self.is_closed && self.core.is_empty()
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

    /// Whether there is a connection, and nothing to do until the next job.
    fn is_calm(&self) -> bool {
        let is_idle = self.core.is_empty() && !self.is_closed;
        let is_due = self.core.next_deadline().is_some_and(|at| at <= self.now());
        let is_sent = self.line.as_ref().is_some_and(|(_, line)| line.unsent() == 0);
        is_idle && !is_due && is_sent && self.known == Some(self.directory.view_id())
    }

    /// Sends a job that no other one is before.
    fn begin(&mut self, job: RemoteJob) {
        self.core.submit(self.now(), job.done, job.task);
        self.act();
        self.converse();
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

    /// Waits until there is something to do, or `is_over` returns true; what makes it true rings.
    fn wait(&mut self, is_over: impl Fn() -> bool) {
        let next = self.core.next_deadline().map(|at| at.since(self.now()));
        let patience = next.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        // If sending fails, the next round finds out why.
        let is_busy = self.line.as_mut().is_some_and(|(_, line)| line.pump().is_err() || line.has_frame());
        if is_busy || patience.is_zero() {
            return;
        }
        let (has_space, bell) = (self.has_space() && !self.is_closed, Arc::clone(&self.bell));
        // SYNC: pairs with `Bell::ring`.
        let is_rung = || (has_space && bell.jobs.load(Ordering::Acquire) > 0) || is_over();
        match &mut self.line {
            Some((_, line)) => drop(line.wait(patience, is_rung)),
            None if is_rung() => {}
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

fn client_settings(directory: &Directory) -> ClientSettings {
    let (silence, timeout) = (directory.silences().0, directory.timeout);
    // The silence leaves time for another member.
    let silence_max = silence.min(timeout / 3);
    ClientSettings { under_way_max: UNDER_WAY_MAX, timeout, silence_max, pause: PAUSE }
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
/// The pause between rounds of requests.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a worker sleeps in any case; answers, jobs and the end of jobs wake it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long the thread waits for the next caller.
const LINGER: Duration = Duration::from_millis(10);
