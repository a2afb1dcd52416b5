//! Where a member answers others: queries, updates of clients, and newcomers that ask for the state.
//!
//! What comes is read with bounds, although whoever connects has proved the cluster's secret.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_protocols::replica::{Give, Readiness, Replica};
use squall_transports::bootstrap::Address;

use super::ObjectError;
use super::machine::{Replicated, Snapshot, Typed};
use super::pending;
use super::shard::{From, Refused, Shard, Waiter};
use super::wire::{self, Answer, Answered, Chunks, Request, What};
use crate::config::Config;
use crate::reception::{Converse, Reception};
use crate::stream::{Options, Stream, StreamError};

/// A member's answering side. Dropping it ends listening.
#[derive(Debug)]
pub(crate) struct Service {
    reception: Reception,
    objects: Objects,
}

/// Those that answer, by name.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<BTreeMap<String, Arc<dyn Serve>>>>);

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

/// An object that answers.
trait Serve: Send + Sync {
    /// The answer, and the state that follows it.
    fn serve(&self, shard: usize, what: What) -> (Answer, Option<Snapshot>);

    /// The number of the view that this member is in.
    fn view(&self) -> u64;
}

impl Service {
    pub(crate) fn open(config: &Config) -> Result<Self, StreamError> {
        let objects = Objects::default();
        let reception = Reception::open(config, &options(config), "objects", objects.clone())?;
        Ok(Self { reception, objects })
    }

    pub(crate) const fn address(&self) -> &Address {
        self.reception.address()
    }

    pub(super) fn add<T: Replicated>(&self, name: &str, shards: Arc<[Arc<Shard<T>>]>) {
        let mut objects = self.objects.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(name.into(), Arc::new(Served(shards)));
    }
}

/// Streams of a group's objects.
pub(super) fn options(config: &Config) -> Options {
    let mut options = Options::new(&config.cluster, &config.secret);
    options.timeout = CONNECT_TIMEOUT;
    options
}

impl Converse for Objects {
    /// Answers one connection until it ends or is silent for long.
    fn converse(&self, mut stream: Stream, is_closed: &AtomicBool) -> io::Result<()> {
        stream.set_read_timeout(Some(SILENCE_MAX));
        stream.set_write_timeout(Some(SILENCE_MAX));
        while !is_closed.load(Ordering::Relaxed) {
            let Some(Request { object, shard, what }) = wire::receive(&mut stream)? else { return Ok(()) };
            let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let served = objects.get(&object).cloned();
            drop(objects);
            let (answer, snapshot) = match &served {
                Some(served) => served.serve(shard as usize, what),
                None => (Answer::NotYet, None),
            };
            let view = served.map_or(0, |served| served.view());
            wire::send(&mut stream, &Answered { view, answer })?;
            if let Some(snapshot) = snapshot {
                let mut chunks = Chunks(&mut stream);
                snapshot.write(&mut chunks)?;
                chunks.end()?;
            }
        }
        Ok(())
    }
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

    fn view(&self) -> u64 {
        self.0.first().map_or(0, |shard| shard.link.status.view_id())
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

/// How long a connection may be silent; who needs it again connects again.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a query waits for this member to come to the asker's view.
const VIEW_PATIENCE: Duration = Duration::from_millis(200);
/// How long to try to connect to a member: if it is not there, another is asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
