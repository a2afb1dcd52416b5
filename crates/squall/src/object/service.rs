//! Where a member answers requests: queries, updates of clients, and requests of joiners for the state.
//!
//! Requests are read with bounds, although each process that connects has proved the cluster's secret.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::lock;
use squall_protocols::replica::{
    Hindrance, OPEN_MAX, ShardAnswer, ShardPosition, ShardRequest, StateReply, UpdateSource,
};
use squall_transports::Waker;
use squall_transports::bootstrap::pair::PairService;

use super::ObjectError;
use super::frame_stream::FrameStream;
use super::machine::Replicated;
use super::shard::{Shard, ShardWaiter};
use super::wire::{ChunkWriter, ObjectReply, ObjectRequest};
use crate::config::Config;
use crate::slot::Snapshot;
use crate::status::GroupStatus;
use crate::stream::acceptor::{Conversation, StreamAcceptor};
use crate::stream::{Stream, StreamError, StreamOptions, TransferPolicy};

/// Serves a member's objects to other processes. Dropping it stops listening.
#[derive(Debug)]
pub(crate) struct ObjectService {
    _reception: StreamAcceptor,
    objects: Objects,
}

/// The objects that are served, by name.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<BTreeMap<String, Arc<dyn Serve>>>>);

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

/// An object that is served.
pub(super) trait Serve: Send + Sync {
    /// Takes a request, which is answered now or later.
    fn serve(&self, shard: usize, request: ShardRequest, caller: RemoteCall);

    /// Sends the updates that were queued.
    fn flush(&self, shard: usize);

    /// Returns the state of a shard, with the answer that precedes it.
    fn state(&self, shard: usize, since: u64) -> (ShardAnswer, Option<Snapshot>);

    /// Returns the number of the view that this member is in.
    fn view(&self) -> u64;

    fn status(&self) -> Arc<crate::status::GroupStatus>;
}

/// The answers that are ready to be sent on one connection.
struct Mailbox {
    answers: Mutex<Vec<ObjectReply>>,
    has_answers: AtomicBool,
    waker: Waker,
}

/// A request that waits for an answer: one call on one connection.
pub(super) struct RemoteCall {
    mailbox: Arc<Mailbox>,
    call: u64,
    /// Knows the view that the member is in.
    view: Arc<crate::status::GroupStatus>,
}

impl RemoteCall {
    pub(super) fn answer(self, answer: ShardAnswer) {
        let answered = ObjectReply { call: self.call, view: self.view.view_id(), answer };
        lock(&self.mailbox.answers).push(answered);
        // SYNC: pairs with the load before the connection's thread waits.
        if !self.mailbox.has_answers.swap(true, Ordering::Release) {
            self.mailbox.waker.wake();
        }
    }
}

impl Mailbox {
    fn take(&self) -> Vec<ObjectReply> {
        // SYNC: before the answers are taken, so that an answer that is added meanwhile is seen.
        if !self.has_answers.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.answers))
    }
}

impl ObjectService {
    pub(crate) fn open(config: &Config, status: &GroupStatus) -> Result<Self, StreamError> {
        let objects = Objects::default();
        let reception =
            StreamAcceptor::open(status, PairService::Objects, &options(config), objects.clone())?;
        Ok(Self { _reception: reception, objects })
    }

    pub(super) fn add<T: Replicated>(&self, name: &str, shards: Arc<[Arc<Shard<T>>]>) {
        self.add_served(name, Arc::new(Served(shards)));
    }

    pub(super) fn add_served(&self, name: &str, served: Arc<dyn Serve>) {
        let mut objects = lock(&self.objects.0);
        objects.insert(name.into(), served);
    }
}

/// Returns the options of streams for a group's objects.
pub(super) fn options(config: &Config) -> StreamOptions {
    let mut options = StreamOptions::new(&config.cluster, &config.secret);
    options.timeout = CONNECT_TIMEOUT;
    options.transport = config.streams;
    // Requests and answers are short, and each advert would wake the other end.
    options.settings.policy = TransferPolicy::Indirect;
    options
}

impl Conversation for Objects {
    /// Serves one connection until it ends or is silent for too long.
    fn converse(&self, stream: Stream, is_closed: &AtomicBool) -> io::Result<()> {
        let mut line = FrameStream::new(stream);
        let (answers, has_answers, waker) = (Mutex::default(), AtomicBool::new(false), line.waker());
        let mailbox = Arc::new(Mailbox { answers, has_answers, waker });
        let (mut heard, mut open) = (Instant::now(), 0usize);
        while !is_closed.load(Ordering::Relaxed) {
            line.pump()?;
            let mut touched: Vec<(Arc<dyn Serve>, usize)> = Vec::new();
            // No more requests are read from a client that does not take its answers.
            while open < OPEN_MAX as usize
                && line.unsent() < UNSENT_MAX
                && let Some(frame) = line.next()?
            {
                heard = Instant::now();
                let ObjectRequest { call, object, shard, request } = ObjectRequest::read(frame)?;
                let served = lock(&self.0).get(object).cloned();
                let Some(served) = served else {
                    let answered = ObjectReply { call, view: 0, answer: ShardAnswer::NotYet };
                    line.put(|frame| answered.write(frame))?;
                    continue;
                };
                let shard = shard as usize;
                if let ShardRequest::State { since } = request {
                    send_state(&mut line, call, &*served, shard, since)?;
                    continue;
                }
                open += 1;
                let (mailbox, view) = (Arc::clone(&mailbox), served.status());
                served.serve(shard, request, RemoteCall { mailbox, call, view });
                if !touched.iter().any(|(other, number)| *number == shard && Arc::ptr_eq(other, &served)) {
                    touched.push((served, shard));
                }
            }
            touched.into_iter().for_each(|(served, shard)| served.flush(shard));
            for answered in mailbox.take() {
                open -= 1;
                line.put(|frame| answered.write(frame))?;
            }
            line.pump()?;
            if line.has_ended() || (open == 0 && heard.elapsed() > SILENCE_MAX) {
                return Ok(());
            }
            if line.unsent() >= UNSENT_MAX || open >= OPEN_MAX as usize {
                std::thread::park_timeout(OVERLOAD_PAUSE);
            } else if !line.has_frame() {
                // SYNC: pairs with `RemoteCall::answer`; the flag is set before this thread is woken.
                line.wait(WAIT_MAX, || {
                    mailbox.has_answers.load(Ordering::Acquire) || is_closed.load(Ordering::Relaxed)
                })?;
            }
        }
        Ok(())
    }
}

/// Sends a joiner the state, if this member has it.
fn send_state(
    line: &mut FrameStream,
    call: u64,
    served: &dyn Serve,
    shard: usize,
    since: u64,
) -> io::Result<()> {
    let (answer, snapshot) = served.state(shard, since);
    let answered = ObjectReply { call, view: served.view(), answer };
    line.put(|frame| answered.write(frame))?;
    let Some(snapshot) = snapshot else { return Ok(()) };
    let stream = line.flush()?;
    stream.set_write_timeout(Some(SILENCE_MAX));
    let mut chunks = ChunkWriter::new(stream);
    snapshot.write(&mut chunks)?;
    chunks.end()
}

struct Served<T: Replicated>(Arc<[Arc<Shard<T>>]>);

impl<T: Replicated> Served<T> {
    fn shard(&self, shard: usize) -> Option<&Shard<T>> {
        self.0.get(shard).map(|shard| &**shard)
    }
}

impl<T: Replicated> Serve for Served<T> {
    fn serve(&self, shard: usize, request: ShardRequest, caller: RemoteCall) {
        let Some(shard) = self.shard(shard) else {
            return caller.answer(ShardAnswer::Refused(NO_SHARD.into()));
        };
        match request {
            ShardRequest::Open => submit(shard, UpdateSource::Opening, &[], caller),
            ShardRequest::Update { session: id, number, open, update } => {
                submit(shard, UpdateSource::Session { id, number, open }, &update, caller);
            }
            ShardRequest::Latest { query } => submit(shard, UpdateSource::Query, &query, caller),
            ShardRequest::Query { view, query } => {
                let (now, mut core) = (shard.now(), shard.core());
                let super::shard::ShardCore { replica, queries, .. } = &mut *core;
                let answered = queries.ask(now, replica, caller, view, query);
                drop(core);
                match answered {
                    Some((caller, answer)) => caller.answer(answer),
                    // The thread that applies updates answers it.
                    None => shard.link.status.messages.notify(),
                }
            }
            ShardRequest::Replies { .. } => {
                caller.answer(ShardAnswer::Refused(
                    "only the object in the shards keeps replies by callers".into(),
                ));
            }
            ShardRequest::State { .. } => unreachable!("the connection's thread sends the state"),
        }
    }

    fn flush(&self, shard: usize) {
        if let Some(shard) = self.shard(shard) {
            shard.flush();
        }
    }

    fn state(&self, shard: usize, since: u64) -> (ShardAnswer, Option<Snapshot>) {
        let Some(shard) = self.shard(shard) else { return (ShardAnswer::Refused(NO_SHARD.into()), None) };
        match shard.core().replica.provide_state(ShardPosition::start_of(since)) {
            StateReply::State(snapshot) => {
                let (position, sessions, bytes) =
                    (snapshot.position, snapshot.sessions, snapshot.snapshot.bytes());
                (ShardAnswer::State { position, sessions, bytes }, Some(snapshot.snapshot))
            }
            StateReply::NotYet => (ShardAnswer::NotYet, None),
        }
    }

    fn view(&self) -> u64 {
        self.shard(0).map_or(0, Shard::view_id)
    }

    fn status(&self) -> Arc<crate::status::GroupStatus> {
        Arc::clone(&self.0[0].link.status)
    }
}

/// Sends a client's update, whose outcome is reported to the caller.
fn submit<T: Replicated>(shard: &Shard<T>, source: UpdateSource, update: &[u8], caller: RemoteCall) {
    let Err((hindrance, ShardWaiter::Client(caller))) =
        shard.submit(source, update, ShardWaiter::Client(caller))
    else {
        return;
    };
    caller.answer(match hindrance {
        Hindrance::NotHere | Hindrance::Full => shard.core().replica.refusal(),
        Hindrance::TooLong { bytes_max } => {
            let bytes = update.len();
            ShardAnswer::Refused(ObjectError::TooLong { bytes, bytes_max }.to_string())
        }
        Hindrance::Ended => ShardAnswer::Failed("the group has ended at this member".into()),
    });
}

const NO_SHARD: &str = "there is no such shard: use the members' configuration";
/// The bytes of answers that may wait for a client before its next request is read.
const UNSENT_MAX: usize = 1 << 20;
/// How long a connection pauses that has too many answers or requests.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(1);
/// How long a connection's thread sleeps in any case; requests, answers and the member's end wake it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a connection may be silent; a client that needs it again connects again.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long to try to connect to a member: if it does not answer, another is asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
