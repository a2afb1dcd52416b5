//! Clients outside the group that use its object all the time. Updates must be acknowledged within a bound; what they and the members'
//! own clients have asked and were answered is judged at the end ([`OperationRecorder`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::Config;
use squall::object::{Client, ObjectError, Pending};
use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::clock::now_ns;
use crate::cluster::churn::START_TIMEOUT;
use crate::member::store::{NAME, StoredValues};
use crate::operations::recorder::{OUTSIDE, OperationRecorder};
use crate::operations::{
    OperationOutcome, OperationSource, ReadPromise, StepReply, StoreOperation, StoreStep,
};

/// How the clients fare.
#[derive(Debug)]
struct Progress {
    /// The longest time from one acknowledgement to the next, and since when there was none.
    outage: Duration,
    last: Instant,
    /// Why the last update was not acknowledged.
    trouble: String,
    /// The state of a shard is lost, or an answer made no sense.
    failure: Option<String>,
}

/// What the threads share.
#[derive(Clone)]
struct Shared {
    recorder: Arc<Mutex<OperationRecorder>>,
    progress: Arc<Mutex<Progress>>,
    config: Arc<Mutex<Config>>,
    is_over: Arc<AtomicBool>,
}

/// Threads with a client each. Dropping it lets them end.
pub(crate) struct WitnessClients {
    shared: Shared,
    threads: Vec<JoinHandle<()>>,
}

impl WitnessClients {
    /// Begins; `config` is that of a member, with contacts that answer.
    pub(crate) fn start(config: Config, recorder: Arc<Mutex<OperationRecorder>>) -> Self {
        let progress = Progress {
            outage: Duration::ZERO,
            last: Instant::now(),
            trouble: "there was none".into(),
            failure: None,
        };
        let shared = Shared {
            recorder,
            progress: Arc::new(Mutex::new(progress)),
            config: Arc::new(Mutex::new(config)),
            is_over: Arc::default(),
        };
        let threads = (0..CLIENTS).map(|number| {
            let shared = shared.clone();
            std::thread::spawn(move || ask(number, &shared))
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// Replaces the configuration, for a client that has lost all members that it knew.
    pub(crate) fn set_config(&self, config: Config) {
        *lock(&self.shared.config) = config;
    }

    /// Fails if something was lost already, or if nothing was acknowledged for `outage_max` and as long as a client looks for
    /// members.
    pub(crate) fn look(&self, outage_max: Duration) -> Result<()> {
        let mut progress = lock(&self.shared.progress);
        if let Some(failure) = progress.failure.take() {
            bail!("{failure}");
        }
        let (still, trouble) = (progress.last.elapsed(), &progress.trouble);
        ensure!(still < outage_max + 2 * PATIENCE, "no update was acknowledged for {still:?}: {trouble}");
        Ok(())
    }

    /// Ends the clients; returns the longest time in which no update was acknowledged.
    pub(crate) fn stop(&mut self) -> Result<Duration> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            ensure!(thread.join().is_ok(), "a thread with a client has panicked");
        }
        self.look(START_TIMEOUT)?;
        let progress = lock(&self.shared.progress);
        Ok(progress.outage.max(progress.last.elapsed()))
    }

    /// Reads all lists, ends the history, and compares the lists with what was acknowledged. No client may be at work.
    pub(crate) fn judge(self) -> Result<()> {
        let shared = &self.shared;
        let client = connect(&lock(&shared.config).clone())?;
        let lists = lock(&shared.recorder).lists();
        let mut found = BTreeMap::new();
        for some in lists.chunks(UNDER_WAY_READS) {
            let begin = |list: &u64| {
                let step = StoreStep::List { list: *list };
                let operation = StoreOperation::Single(step.clone(), ReadPromise::Latest);
                let number = lock(&shared.recorder).call(AUDITOR, now_ns(), &operation);
                Ok((*list, number, client.query_latest(&list.to_le_bytes(), &step)?))
            };
            let under_way: Vec<_> = some.iter().map(begin).collect::<Result<_>>()?;
            for (list, number, pending) in under_way {
                let result = pending.wait().map(|reply| vec![reply]);
                lock(&shared.recorder).done(number, now_ns(), &OperationOutcome::of(&result));
                if let [StepReply::List(values)] = &mut result?[..] {
                    found.insert(list, std::mem::take(values));
                }
            }
        }
        let mut recorder = lock(&shared.recorder);
        recorder.end_file()?;
        recorder.compare(&found)
    }
}

impl Drop for WitnessClients {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(config: &Config) -> Result<Client<StoredValues>> {
    Client::connect_with(config, NAME, PATIENCE).context("a client does not connect")
}

/// An operation that was begun, and its number in the record.
struct Begun {
    number: u64,
    operation: StoreOperation,
    pending: Pending<StepReply>,
}

/// Asks one thing after the other; several are under way while members do not answer.
fn ask(number: u64, shared: &Shared) {
    let name = format!("{OUTSIDE} {number}");
    // Clients outside ask any member.
    let mut source = OperationSource::new(0, number, CLIENTS, ReadPromise::Past);
    let mut client = None;
    let mut under_way = VecDeque::new();
    while !shared.is_over.load(Ordering::Relaxed) {
        if client.is_none() {
            // Possibly no member answers now.
            let config = lock(&shared.config).clone();
            client = connect(&config).ok();
        }
        if let Some(client) = &client {
            let begun = begin(client, &name, source.draw(now_ns()), shared);
            under_way.extend(begun);
            let oldest = if under_way.len() >= UNDER_WAY { under_way.pop_front() } else { None };
            if oldest.is_some_and(|oldest| end(oldest, &mut source, shared).is_err()) {
                return;
            }
        }
        std::thread::sleep(PAUSE);
    }
    let _ = under_way.into_iter().try_for_each(|begun| end(begun, &mut source, shared));
}

/// Begins an operation; none if it cannot be asked for.
fn begin(
    client: &Client<StoredValues>,
    name: &str,
    operation: StoreOperation,
    shared: &Shared,
) -> Option<Begun> {
    let StoreOperation::Single(step, promise) = &operation else { return None };
    let number = lock(&shared.recorder).call(name, now_ns(), &operation);
    let key = step.key().to_le_bytes();
    let asked = match promise {
        ReadPromise::Latest if step.is_read() => client.query_latest(&key, step),
        ReadPromise::Latest => client.update(&key, step),
        _ => client.query(&key, step),
    };
    match asked {
        Ok(pending) => Some(Begun { number, operation, pending }),
        Err(error) => {
            note(number, &Err(error), shared);
            None
        }
    }
}

/// There is nothing more to ask for.
struct Over;

/// Waits for what was begun.
fn end(begun: Begun, source: &mut OperationSource, shared: &Shared) -> Result<(), Over> {
    let result = begun.pending.wait().map(|reply| vec![reply]);
    note(begun.number, &result, shared);
    match result {
        Ok(replies) => source.note(&begun.operation, &replies),
        Err(ObjectError::Unknown | ObjectError::Unreachable { .. }) => {}
        Err(error) => {
            lock(&shared.progress).failure = Some(format!("{:?}: {error}", begun.operation));
            return Err(Over);
        }
    }
    Ok(())
}

/// Notes what has become of an operation.
fn note(number: u64, result: &Result<Vec<StepReply>, ObjectError>, shared: &Shared) {
    let is_acknowledged = lock(&shared.recorder).done(number, now_ns(), &OperationOutcome::of(result));
    let mut progress = lock(&shared.progress);
    if is_acknowledged {
        progress.outage = progress.outage.max(progress.last.elapsed());
        progress.last = Instant::now();
    }
    if let Err(error) = result {
        progress.trouble = error.to_string();
    }
}

/// How long a client looks for a member.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients.
const CLIENTS: u64 = 2;
/// Operations of a client under way at most.
const UNDER_WAY: usize = 16;
/// Reads at the end under way at most: a client has space for a thousand.
const UNDER_WAY_READS: usize = 256;
/// Between a client's operations.
const PAUSE: Duration = Duration::from_millis(10);
/// The client that reads the lists at the end.
const AUDITOR: &str = "auditor";
