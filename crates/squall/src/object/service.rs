//! Where a member answers others: queries, updates of clients, and newcomers that ask for the state.
//!
//! A listener of streams with a thread that accepts, and a thread for each connection, at most [`CONNECTIONS_MAX`]. Who
//! connects has proved the cluster's secret; what comes is read with bounds all the same.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};
use squall_protocols::replica::{Give, Readiness, Replica};
use squall_transports::bootstrap::Address;

use super::ObjectError;
use super::machine::{Replicated, Snapshot, Typed};
use super::pending;
use super::shard::{From, Refused, Shard, Waiter};
use super::wire::{self, Answer, Chunks, Request, What};
use crate::config::Config;
use crate::stream::{Listener, Options, Socket, Stream, StreamError};

/// A member's answering side. Dropping it ends listening.
#[derive(Debug)]
pub(crate) struct Service {
    address: Address,
    desk: Arc<Desk>,
    /// Wakes the thread that accepts, to end it.
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    objects: Mutex<BTreeMap<String, Arc<dyn Serve>>>,
    connections: AtomicUsize,
    is_closed: AtomicBool,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// An object that answers.
trait Serve: Send + Sync {
    /// The answer, and the state that follows it.
    fn serve(&self, shard: usize, what: What) -> (Answer, Option<Snapshot>);
}

impl Service {
    pub(crate) fn open(config: &Config) -> Result<Self, StreamError> {
        let listener = Listener::bind(&address_beside(&config.listen), &options(config))?;
        let address = listener.address().clone();
        let desk = Arc::new(Desk::default());
        let (bell, rung) = UnixStream::pair().map_err(StreamError::Transport)?;
        let serving = Arc::clone(&desk);
        let run = move || accept(&listener, &rung, &serving);
        let thread = std::thread::Builder::new().name("squall objects".into()).spawn(run);
        Ok(Self { address, desk, bell, thread: Some(thread.map_err(StreamError::Transport)?) })
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn add<T: Replicated>(&self, name: &str, shards: Arc<[Arc<Shard<T>>]>) {
        let mut objects = self.desk.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(name.into(), Arc::new(Served(shards)));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.desk.is_closed.store(true, Ordering::Relaxed);
        // If nobody hears it, the thread has ended.
        let _ = self.bell.write_all(&[0]);
        if let Some(thread) = self.thread.take() {
            // The address is free afterwards. If it has panicked, it has said so.
            let _ = thread.join();
        }
    }
}

/// Streams of a group's objects.
pub(super) fn options(config: &Config) -> Options {
    let mut options = Options::new(&config.cluster, &config.secret);
    options.timeout = CONNECT_TIMEOUT;
    options
}

/// Where objects are served by the member that listens at `listen`.
fn address_beside(listen: &Address) -> Address {
    match listen {
        Address::Tcp { host, .. } => Address::Tcp { host: host.clone(), port: 0 },
        Address::Abstract(name) => Address::Abstract(format!("{name}-objects")),
        Address::Path(path) => {
            let mut name = path.clone().into_os_string();
            name.push("-objects");
            Address::Path(PathBuf::from(name))
        }
    }
}

fn accept(listener: &Listener, bell: &UnixStream, desk: &Arc<Desk>) {
    while !desk.is_closed.load(Ordering::Relaxed) {
        let waited = squall_transports::wait_readable(&[listener.as_fd(), bell.as_fd()], None);
        if waited.is_err() || desk.is_closed.load(Ordering::Relaxed) {
            return;
        }
        match listener.accept_within(Some(ACCEPT_PATIENCE)) {
            Ok(Some(socket)) => welcome(socket, desk),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection to this member's objects was not accepted");
                std::thread::sleep(ACCEPT_PATIENCE);
            }
        }
    }
}

/// Gives a connection a thread, if there are not too many: who is turned away asks another member.
fn welcome(socket: Socket, desk: &Arc<Desk>) {
    if desk.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        desk.connections.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("a connection to this member's objects was closed: there are {CONNECTIONS_MAX}");
        return;
    }
    let own = Arc::clone(desk);
    let run = move || {
        if let Err(error) = converse(socket, &own) {
            tracing::debug!(%error, "a connection to this member's objects has ended");
        }
        own.connections.fetch_sub(1, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("squall answers".into()).spawn(run).is_err() {
        desk.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one connection until it ends or is silent for long.
fn converse(socket: Socket, desk: &Desk) -> io::Result<()> {
    let mut stream = Stream::new(socket)?;
    stream.set_read_timeout(Some(SILENCE_MAX));
    stream.set_write_timeout(Some(SILENCE_MAX));
    while !desk.is_closed.load(Ordering::Relaxed) {
        let Some(Request { object, shard, what }) = wire::receive(&mut stream)? else { return Ok(()) };
        let objects = desk.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let served = objects.get(&object).cloned();
        drop(objects);
        let (answer, snapshot) = match served {
            Some(served) => served.serve(shard as usize, what),
            None => (Answer::NotYet, None),
        };
        wire::send(&mut stream, &answer)?;
        if let Some(snapshot) = snapshot {
            let mut chunks = Chunks(&mut stream);
            snapshot.write(&mut chunks)?;
            chunks.end()?;
        }
    }
    Ok(())
}

struct Served<T: Replicated>(Arc<[Arc<Shard<T>>]>);

impl<T: Replicated> Serve for Served<T> {
    fn serve(&self, shard: usize, what: What) -> (Answer, Option<Snapshot>) {
        let Some(shard) = self.0.get(shard) else {
            return (Answer::Failed("there is no such shard: use the same configuration".into()), None);
        };
        let answer = match what {
            What::Open => update(shard, From::Opening, &[]),
            What::Update { session, number, update: bytes } => {
                update(shard, From::Session { id: session, number }, &bytes)
            }
            What::Query { view, query } => answer_query(shard, view, &query),
            What::State { since } => return give(shard, since),
        };
        (answer, None)
    }
}

/// Sends a client's update, and waits for its outcome.
fn update<T: Replicated>(shard: &Shard<T>, from: From, update: &[u8]) -> Answer {
    let (pending, completion) = pending::pair();
    match shard.submit(from, update, Waiter::Client(completion)) {
        Ok(()) => match pending.wait() {
            Ok(answer) => answer.into(),
            // It is in no state, so another member may take it.
            Err(ObjectError::NotDelivered) => Answer::NotYet,
            Err(error) => Answer::Failed(error.to_string()),
        },
        Err((Refused::NotHere, _)) => {
            let core = shard.core();
            match core.readiness(0) {
                Readiness::Lost => lost(&core),
                Readiness::Elsewhere => Answer::Elsewhere,
                Readiness::Ready | Readiness::NotYet => Answer::NotYet,
            }
        }
        Err((Refused::Error(error), _)) => Answer::Failed(error.to_string()),
    }
}

/// Answers a query, if need be when this member has come to the asker's view.
fn answer_query<T: Replicated>(shard: &Shard<T>, view: u64, query: &[u8]) -> Answer {
    let deadline = Instant::now() + VIEW_PATIENCE;
    loop {
        match shard.query(view, query) {
            Ok(Ok(reply)) => return Answer::Reply(Shard::<T>::encode_reply(reply)),
            Ok(Err(error)) => return Answer::Failed(error.to_string()),
            Err(Readiness::Elsewhere) => return Answer::Elsewhere,
            Err(Readiness::Lost) => return lost(&shard.core()),
            Err(Readiness::NotYet | Readiness::Ready) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return Answer::NotYet,
        }
    }
}

fn lost<T: Replicated>(core: &Replica<Typed<T>>) -> Answer {
    Answer::Lost(core.last_holders().iter().map(|node| node.0).collect())
}

fn give<T: Replicated>(shard: &Shard<T>, since: u64) -> (Answer, Option<Snapshot>) {
    match shard.core().give(wire::since(since)) {
        Give::State(gift) => {
            let (view, sequence) = (gift.position.view, gift.position.sequence);
            let bytes = gift.snapshot.bytes();
            (Answer::State { view, sequence, sessions: gift.sessions, bytes }, Some(gift.snapshot))
        }
        Give::NotYet => (Answer::NotYet, None),
    }
}

/// Each has a thread and two rings of buffers.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may be silent; who needs it again connects again.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long to wait for who has knocked and not yet proved the secret.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(100);
/// How long a query waits for this member to come to the asker's view.
const VIEW_PATIENCE: Duration = Duration::from_millis(200);
/// How long to try to connect to a member: if it is not there, another is asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
