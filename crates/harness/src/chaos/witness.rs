//! Clients outside the group that write notes all the time and remember what was acknowledged.
//!
//! At the end each acknowledged note has to be at the place in its reply, once; a note that is there must have been written;
//! the notes of a writer are in the order in which it has begun them \[A3\] \[A7\] \[A11\]; and the whole history is linearizable
//! \[A12\].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::Config;
use squall::object::{Client, ObjectError, Pending};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_simulator::checker::linearizable::{
    AppendOnly, CompletedOperation, ListAnswer, ListOperation, is_linearizable,
};

use crate::cluster::churn::START_TIMEOUT;
use crate::member::store::{NAME, PAGE, SHARDS, StoredNotes};

/// What the members' object has been asked for, and what was answered.
#[derive(Debug)]
struct Record {
    /// The origin of all times.
    begun: Instant,
    /// By shard, as it was begun. What is known to be in no state is left out.
    notes: [Vec<Written>; SHARDS],
    acknowledged: u64,
    /// The longest time from one acknowledgement to the next, and since when there was none.
    outage: Duration,
    last: Instant,
    /// Why the last update was not acknowledged.
    trouble: String,
    /// The state of a shard is lost, or an answer made no sense.
    failure: Option<String>,
}

/// A note that may be in the list of its shard.
type Written = CompletedOperation<ListOperation, ListAnswer>;

/// Threads that write. Dropping it lets them end.
pub(crate) struct WitnessWriters {
    record: Arc<Mutex<Record>>,
    config: Arc<Mutex<Config>>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What was found at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WitnessReport {
    pub(crate) acknowledged: u64,
    pub(crate) outage: Duration,
}

impl WitnessWriters {
    /// Begins to write; `config` is that of a member, with contacts that answer.
    pub(crate) fn start(config: Config) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let now = Instant::now();
        let record = Arc::new(Mutex::new(Record {
            begun: now,
            notes: Default::default(),
            acknowledged: 0,
            outage: Duration::ZERO,
            last: now,
            trouble: "there was none".into(),
            failure: None,
        }));
        let config = Arc::new(Mutex::new(config));
        let threads = (0..WRITERS).map(|writer| {
            let (record, config, is_over) = (Arc::clone(&record), Arc::clone(&config), Arc::clone(&is_over));
            std::thread::spawn(move || write(writer, &record, &config, &is_over))
        });
        let threads = threads.collect();
        Self { record, config, is_over, threads }
    }

    /// Replaces the configuration, for a client that has lost all members that it knew.
    pub(crate) fn set_config(&self, config: Config) {
        *lock(&self.config) = config;
    }

    /// Fails if something was lost already, or if nothing was acknowledged for `outage_max` and as long as a client looks for
    /// members.
    pub(crate) fn look(&self, outage_max: Duration) -> Result<()> {
        let mut record = lock(&self.record);
        if let Some(failure) = record.failure.take() {
            bail!("{failure}");
        }
        let (still, trouble) = (record.last.elapsed(), &record.trouble);
        ensure!(still < outage_max + 2 * PATIENCE, "no update was acknowledged for {still:?}: {trouble}");
        Ok(())
    }

    /// Ends the writing, and compares what is acknowledged with what is there.
    pub(crate) fn end(mut self) -> Result<WitnessReport> {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            ensure!(thread.join().is_ok(), "a thread that writes has panicked");
        }
        self.look(START_TIMEOUT)?;
        let record = lock(&self.record);
        let client = connect(&lock(&self.config))?;
        for (shard, written) in record.notes.iter().enumerate() {
            let notes = read(&client, shard)?;
            compare(&notes, written).with_context(|| format!("shard {shard}"))?;
        }
        Ok(WitnessReport {
            acknowledged: record.acknowledged,
            outage: record.outage.max(record.last.elapsed()),
        })
    }
}

impl Drop for WitnessWriters {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(config: &Config) -> Result<Client<StoredNotes>> {
    Ok(Client::connect_with(config, NAME, PATIENCE)?)
}

/// A key of the shard.
fn key(client: &Client<StoredNotes>, shard: usize) -> [u8; 8] {
    let mut keys = (0_u64..).map(u64::to_le_bytes);
    keys.find(|key| client.shard(key) == shard).expect("each shard has keys")
}

/// Writes note after note, to each shard in its turn; several are under way while members do not answer.
fn write(writer: u64, record: &Mutex<Record>, config: &Mutex<Config>, is_over: &AtomicBool) {
    let mut client = None;
    let mut under_way = VecDeque::new();
    let end = |(shard, place, pending): (usize, usize, Pending<Vec<u64>>)| {
        let outcome = pending.wait();
        lock(record).take(shard, place, outcome)
    };
    for number in 0_u64.. {
        if is_over.load(Ordering::Relaxed) {
            let _ = under_way.into_iter().try_for_each(end);
            return;
        }
        if client.is_none() {
            // Possibly no member answers now.
            let config = lock(config).clone();
            client = connect(&config).ok();
        }
        let Some(asked) = &client else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let (note, shard) = (number * WRITERS + writer, usize::try_from(number).unwrap_or(0) % SHARDS);
        let place = lock(record).begin(shard, note);
        match asked.update(&key(asked, shard), &note) {
            Ok(pending) => under_way.push_back((shard, place, pending)),
            Err(error) => return drop(lock(record).take(shard, place, Err(error))),
        }
        let oldest = if under_way.len() == UNDER_WAY { under_way.pop_front() } else { None };
        if oldest.is_some_and(|oldest| end(oldest).is_err()) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether nothing more is to be written.
struct Over;

impl Record {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A note is about to be written; returns its place in the history of the shard.
    fn begin(&mut self, shard: usize, note: u64) -> usize {
        let (operation, called) = (ListOperation::Append(note), self.now());
        self.notes[shard].push(CompletedOperation { operation, called, returned: None, answer: None });
        self.notes[shard].len() - 1
    }

    /// Notes what has become of a note.
    fn take(
        &mut self,
        shard: usize,
        place: usize,
        outcome: Result<Vec<u64>, ObjectError>,
    ) -> Result<(), Over> {
        let now = self.now();
        let note = &mut self.notes[shard][place];
        match outcome {
            Ok(reply) => {
                note.returned = Some(now);
                note.answer = Some(ListAnswer::Place(reply.first().copied().unwrap_or(u64::MAX)));
                self.acknowledged += 1;
                self.outage = self.outage.max(self.last.elapsed());
                self.last = Instant::now();
            }
            Err(error @ ObjectError::Unknown) => self.trouble = error.to_string(),
            Err(error @ ObjectError::Unreachable { .. }) => {
                // It is nowhere; what is read without an answer says nothing.
                note.operation = ListOperation::Read;
                self.trouble = error.to_string();
            }
            Err(error) => {
                self.failure = Some(format!("{note:?} of shard {shard}: {error}"));
                return Err(Over);
            }
        }
        Ok(())
    }
}

/// All notes of a shard.
fn read(client: &Client<StoredNotes>, shard: usize) -> Result<Vec<u64>> {
    let mut notes: Vec<u64> = Vec::new();
    loop {
        let page = client.query(&key(client, shard), &(notes.len() as u64))?.wait()?;
        notes.extend(&page);
        if page.len() < PAGE {
            return Ok(notes);
        }
    }
}

/// Compares the list of a shard with what was written.
fn compare(list: &[u64], written: &[Written]) -> Result<()> {
    let mut places = BTreeMap::new();
    for (note, place) in list.iter().zip(0_u64..) {
        ensure!(places.insert(*note, place).is_none(), "note {note} is there twice");
    }
    // By note: what is known of it, and where it is.
    let mut history = Vec::new();
    let mut latest = [None; WRITERS as usize];
    for done in written {
        let ListOperation::Append(note) = done.operation else { continue };
        let place = places.remove(&note);
        ensure!(
            done.answer.is_none() || done.answer == place.map(ListAnswer::Place),
            "note {note} was acknowledged ({:?}), and is at place {place:?}",
            done.answer
        );
        let Some(place) = place else { continue };
        let before = latest[usize::try_from(note % WRITERS)?].replace(place);
        ensure!(
            before < Some(place),
            "note {note} is at place {place}, before one that its writer began earlier"
        );
        history.push(CompletedOperation { answer: Some(ListAnswer::Place(place)), ..done.clone() });
    }
    ensure!(places.is_empty(), "notes are there that were never written, or nowhere: {places:?}");
    ensure!(is_linearizable(&AppendOnly, &history), "what was written is not linearizable");
    Ok(())
}

/// How long a client looks for a member.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients.
const WRITERS: u64 = 2;
/// Notes of a client under way at most.
const UNDER_WAY: usize = 16;
/// Between a client's notes.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// A note: when it was begun and answered, and with which place.
    fn note(note: u64, called: u64, answered: Option<(u64, u64)>) -> Written {
        let (returned, answer) = answered.map(|(at, place)| (at, ListAnswer::Place(place))).unzip();
        CompletedOperation { operation: ListOperation::Append(note), called, returned, answer }
    }

    #[test]
    fn what_is_lost_twice_unknown_or_out_of_order_is_found() {
        let written = [note(4, 0, Some((5, 0))), note(9, 1, None), note(8, 6, Some((9, 2)))];
        assert!(compare(&[4, 9, 8], &written).is_ok());
        assert!(compare(&[4, 9], &written).is_err(), "lost");
        assert!(compare(&[4, 8, 9], &written).is_err(), "elsewhere");
        assert!(compare(&[4, 9, 8, 9], &written).is_err(), "twice");
        assert!(compare(&[4, 5, 8], &written).is_err(), "never written");
        let [first, _, last] = written;
        assert!(compare(&[4, 8], &[first.clone(), note(8, 6, Some((9, 1)))]).is_ok());
        assert!(
            compare(&[8, 4], &[note(4, 0, Some((5, 1))), note(8, 6, Some((9, 0)))]).is_err(),
            "out of order"
        );
        let other = note(5, 10, Some((11, 1)));
        assert!(compare(&[4, 5, 8], &[first, last, other]).is_err(), "begun when what follows was answered");
    }
}
