//! Asking other members: who they are, how they are reached, and how an update that is sent again counts once
//! (Derecho app. A: external clients).

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::replica::Settings;
use squall_transports::bootstrap::Address;

use super::known::Known;
use super::machine::Replicated;
use super::pending::Completion;
use super::wire::{self, Answer, Answered, Request, What};
use super::{ObjectError, service};
use crate::config::Config;
use crate::inquiry;
use crate::node::Link;
use crate::status::Status;
use crate::stream::Stream;

/// Where the members of an object's shards are, and connections with them.
pub(super) struct Directory {
    config: Arc<Config>,
    object: String,
    /// The subgroups of the shards.
    subgroups: Vec<String>,
    timeout: Duration,
    source: Source,
    services: Mutex<BTreeMap<NodeId, Address>>,
    /// Connections that nobody uses at the moment.
    idle: Mutex<BTreeMap<NodeId, Vec<Stream>>>,
}

/// Whence the present view is known.
enum Source {
    /// This process is a member.
    Member(Arc<Status>),
    /// Members are asked.
    Client(Arc<Known>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    pub(super) fn of_member(
        config: &Arc<Config>,
        link: &Link,
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
        let known = Arc::new(Known::new(config));
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
        let (services, idle) = (Mutex::default(), Mutex::default());
        Self { config, object, subgroups, timeout, source, services, idle }
    }

    pub(super) fn request(&self, shard: usize, what: What) -> Request {
        Request { object: self.object.clone(), shard: u32::try_from(shard).expect("shards are few"), what }
    }

    /// The view, as it is known here.
    fn view(&self) -> View {
        match &self.source {
            Source::Member(status) => status.view().unwrap_or_else(|| View::first(Vec::new())),
            Source::Client(known) => known.view(),
        }
    }

    /// Finds out how the group is now, for a client, and keeps to know it from then on.
    pub(super) fn follow(&self) -> Result<(), String> {
        self.refresh()?;
        let Source::Client(known) = &self.source else { return Ok(()) };
        Known::watch(known, &self.config).map_err(|error| format!("no thread for a client: {error}"))
    }

    /// Finds out how the group is now, for a client.
    fn refresh(&self) -> Result<(), String> {
        let Source::Client(known) = &self.source else { return Ok(()) };
        known.refresh(&self.config)
    }

    /// The members of a shard.
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
            Source::Member(status) => inquiry::ask_service(&plan, status, node),
            Source::Client(known) => {
                let desk = known.address(node);
                desk.map_or(Ok(None), |desk| inquiry::ask_service_at(&plan, &desk))
            }
        };
        let address = address.map_err(io::Error::other)?.ok_or(io::ErrorKind::AddrNotAvailable)?;
        lock(&self.services).insert(node, address.clone());
        Ok(address)
    }

    fn connect(&self, node: NodeId) -> io::Result<Stream> {
        self.forget_others();
        let address = self.service(node)?;
        let stream = Stream::connect(&address, &service::options(&self.config));
        Ok(stream.inspect_err(|_| drop(lock(&self.services).remove(&node)))?)
    }

    /// Forgets how nodes are reached that are no members any more.
    fn forget_others(&self) {
        let view = self.view();
        lock(&self.services).retain(|node, _| view.rank(*node).is_some());
        lock(&self.idle).retain(|node, _| view.rank(*node).is_some());
    }

    /// Asks a member; the stream is to be put back when all of the answer is read.
    fn ask(&self, node: NodeId, request: &Request) -> io::Result<(Answer, Stream)> {
        self.ask_within(node, request, self.timeout)
    }

    /// As [`Directory::ask`], of a member that is given up when it is silent for so long, now or while the stream is read.
    pub(super) fn ask_within(
        &self,
        node: NodeId,
        request: &Request,
        silence: Duration,
    ) -> io::Result<(Answer, Stream)> {
        // A connection that was idle may have been closed at the other end.
        while let Some(stream) = lock(&self.idle).get_mut(&node).and_then(Vec::pop) {
            match self.ask_by(stream, request, silence) {
                // On another connection it would say nothing, either.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Ok(found) => return Ok(found),
                Err(_) => {}
            }
        }
        self.ask_by(self.connect(node)?, request, silence)
    }

    /// How long a state provider may be silent: as long as it takes to suspect a member; and how long when that was too short,
    /// since a snapshot may take its time.
    pub(super) fn silences(&self) -> (Duration, Duration) {
        let suspicion = self.config.suspicion_after.unwrap_or(self.timeout);
        let silence = suspicion.max(SILENCE_MIN);
        (silence, silence.max(self.timeout))
    }

    fn ask_by(
        &self,
        mut stream: Stream,
        request: &Request,
        silence: Duration,
    ) -> io::Result<(Answer, Stream)> {
        stream.set_read_timeout(Some(silence));
        stream.set_write_timeout(Some(silence));
        wire::send(&mut stream, request)?;
        let Answered { view, answer } = wire::receive(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Source::Client(known) = &self.source {
            known.handle_view(view);
        }
        Ok((answer, stream))
    }

    pub(super) fn put_back(&self, node: NodeId, stream: Stream) {
        let mut idle = lock(&self.idle);
        let streams = idle.entry(node).or_default();
        if streams.len() < IDLE_MAX {
            streams.push(stream);
        }
    }

    pub(super) fn call(&self, node: NodeId, request: &Request) -> io::Result<Answer> {
        let (answer, stream) = self.ask(node, request)?;
        self.put_back(node, stream);
        Ok(answer)
    }

    /// Asks members of a shard in turn, from `turn` on, until one answers to the point.
    fn call_any(
        &self,
        shard: usize,
        turn: &mut usize,
        node: Option<NodeId>,
        what: &mut dyn FnMut() -> What,
        mut on_lost_answer: impl FnMut(),
    ) -> Result<Answer, ObjectError> {
        let deadline = Instant::now() + self.timeout;
        let mut cause = "the shard has no members".to_owned();
        let mut failures = 0;
        loop {
            let members = node.map_or_else(|| self.members(shard), |node| vec![node]);
            if !members.is_empty() {
                let node = members[*turn % members.len()];
                match self.call(node, &self.request(shard, what())) {
                    Ok(Answer::Lost(holders)) => {
                        let holders = holders.into_iter().map(NodeId).collect();
                        return Err(ObjectError::StateLost { shard, holders });
                    }
                    Ok(Answer::NotYet) => cause = format!("{node} has no state yet"),
                    Ok(Answer::Elsewhere) => cause = format!("{node} is not in it"),
                    Ok(Answer::Failed(why)) => {
                        on_lost_answer();
                        cause = format!("{node}: {why}");
                    }
                    Ok(answer) => return Ok(answer),
                    Err(error) => {
                        on_lost_answer();
                        cause = format!("{node}: {error}");
                    }
                }
                *turn += 1;
            }
            failures += 1;
            if Instant::now() > deadline {
                return Err(ObjectError::Unreachable { shard, cause });
            }
            if members.is_empty() || failures % members.len() == 0 {
                if let Err(why) = self.refresh() {
                    cause = why;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Something to be done for a shard that is elsewhere.
pub(super) struct Job {
    shard: usize,
    task: Task,
    done: Box<dyn FnOnce(Result<Vec<u8>, ObjectError>) + Send>,
}

enum Task {
    Update(Vec<u8>),
    Query(Option<NodeId>, Vec<u8>),
}

impl Job {
    pub(super) fn update<T: Replicated>(shard: usize, update: Vec<u8>, done: Completion<T::Reply>) -> Self {
        Self { shard, task: Task::Update(update), done: completing::<T>(done) }
    }

    pub(super) fn query<T: Replicated>(
        shard: usize,
        node: Option<NodeId>,
        query: Vec<u8>,
        done: Completion<T::Reply>,
    ) -> Self {
        Self { shard, task: Task::Query(node, query), done: completing::<T>(done) }
    }
}

fn completing<T: Replicated>(
    completion: Completion<T::Reply>,
) -> Box<dyn FnOnce(Result<Vec<u8>, ObjectError>) + Send> {
    Box::new(|reply| completion.complete(reply.and_then(|reply| wire::decode_reply(&reply))))
}

/// The way to shards that are elsewhere: for each shard in use a thread, which does one thing at a time, in order.
pub(super) struct Remote {
    directory: Arc<Directory>,
    workers: Mutex<BTreeMap<usize, mpsc::SyncSender<Job>>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("object", &self.directory.object).finish_non_exhaustive()
    }
}

impl Remote {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self { directory, workers: Mutex::default() }
    }

    /// Hands a job to its worker; waits while too many are before it.
    pub(super) fn push(&self, job: Job) {
        let mut workers = lock(&self.workers);
        let worker = workers.entry(job.shard).or_insert_with(|| {
            let (send, receive) = mpsc::sync_channel(JOBS_MAX);
            let mut worker = Worker { directory: Arc::clone(&self.directory), session: None, turn: 0 };
            let run = move || receive.into_iter().for_each(|job| worker.run(job));
            // Without a thread, what is pushed tells its owner when it is dropped.
            let _ = std::thread::Builder::new().name("squall remote".into()).spawn(run);
            send
        });
        let worker = worker.clone();
        drop(workers);
        // A worker that has panicked drops what it gets, which tells its owner.
        let _ = worker.send(job);
    }
}

struct Worker {
    directory: Arc<Directory>,
    /// The session and the number of its last update.
    session: Option<(u64, u64)>,
    /// Which member is asked next.
    turn: usize,
}

impl Worker {
    fn run(&mut self, job: Job) {
        let Job { shard, task, done } = job;
        done(match task {
            Task::Update(update) => self.update(shard, &update),
            Task::Query(node, query) => self.query(shard, node, &query),
        });
    }

    fn query(&mut self, shard: usize, node: Option<NodeId>, query: &[u8]) -> Result<Vec<u8>, ObjectError> {
        let directory = Arc::clone(&self.directory);
        let mut what = || What::Query { view: directory.view().id, query: query.to_vec() };
        match self.directory.call_any(shard, &mut self.turn, node, &mut what, || ())? {
            Answer::Reply(reply) => Ok(reply),
            answer => Err(ObjectError::Form(format!("{answer:?} is no answer to a query"))),
        }
    }

    /// Sends an update until it is answered; its session sees to it that it counts once [A3].
    fn update(&mut self, shard: usize, update: &[u8]) -> Result<Vec<u8>, ObjectError> {
        // Whether a member may have passed it on without having answered.
        let mut is_open = false;
        loop {
            let (session, number) = match self.session {
                Some((session, last)) => (session, last + 1),
                None => (self.open(shard)?, 1),
            };
            let mut what = || What::Update { session, number, update: update.to_vec() };
            let answer = self.directory.call_any(shard, &mut self.turn, None, &mut what, || is_open = true);
            // Whatever has become of it, its number is spent.
            self.session = Some((session, number));
            match answer {
                Ok(Answer::Reply(reply)) => return Ok(reply),
                Ok(Answer::ReplyTooLong(bytes)) => {
                    let bytes_max = Settings::default().reply_bytes_max as u64;
                    return Err(ObjectError::ReplyTooLong { bytes, bytes_max });
                }
                Ok(Answer::Forgotten) => {
                    self.session = None;
                    if is_open {
                        return Err(ObjectError::Unknown);
                    }
                }
                Ok(answer) => return Err(ObjectError::Form(format!("{answer:?} is no answer to an update"))),
                Err(ObjectError::Unreachable { .. }) if is_open => return Err(ObjectError::Unknown),
                Err(error) => return Err(error),
            }
        }
    }

    fn open(&mut self, shard: usize) -> Result<u64, ObjectError> {
        match self.directory.call_any(shard, &mut self.turn, None, &mut || What::Open, || ())? {
            Answer::Opened(session) => Ok(session),
            answer => Err(ObjectError::Form(format!("{answer:?} is no answer to a client that comes"))),
        }
    }
}

/// Jobs that wait for one worker.
const JOBS_MAX: usize = 256;
/// Idle connections with one member.
const IDLE_MAX: usize = 4;
/// A state provider on a busy machine may be silent for so long.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Between rounds of questions.
const PAUSE: Duration = Duration::from_millis(5);
