//! A client outside the group that writes notes all the time and remembers what was acknowledged.
//!
//! At the end each acknowledged note has to be where its reply has said, once; and a note that is there must have been
//! written, and notes of a shard stand in the order in which they were written \[A3\] \[A7\] \[A11\].

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::Config;
use squall::object::{Client, ObjectError, Pending};
use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::cluster::churn::START_TIMEOUT;
use crate::member::store::{NAME, Notes, PAGE, SHARDS};

/// What the members' object has been asked for, and what was answered.
#[derive(Debug)]
struct Record {
    /// By shard: the notes that are acknowledged, with their places.
    acknowledged: [Vec<(u64, u64)>; SHARDS],
    /// Notes of which the client does not know what became of them.
    open: BTreeSet<u64>,
    /// The longest time from one acknowledgement to the next, and since when there was none.
    outage: Duration,
    last: Instant,
    /// Why the last update was not acknowledged.
    trouble: String,
    /// The state of a shard is lost, or an answer made no sense.
    failure: Option<String>,
}

/// A thread that writes. Dropping it lets it end.
pub(crate) struct Witness {
    record: Arc<Mutex<Record>>,
    config: Arc<Mutex<Config>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What was found at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Testimony {
    pub(crate) acknowledged: u64,
    pub(crate) outage: Duration,
}

impl Witness {
    /// Begins to write; `config` is that of a member, with contacts that answer.
    pub(crate) fn start(config: Config) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let record = Arc::new(Mutex::new(Record {
            acknowledged: Default::default(),
            open: BTreeSet::new(),
            outage: Duration::ZERO,
            last: Instant::now(),
            trouble: "there was none".into(),
            failure: None,
        }));
        let config = Arc::new(Mutex::new(config));
        let run = {
            let (record, config, is_over) = (Arc::clone(&record), Arc::clone(&config), Arc::clone(&is_over));
            move || write(&record, &config, &is_over)
        };
        Self { record, config, is_over, thread: Some(std::thread::spawn(run)) }
    }

    /// Says where members are now, for a client that has lost all that it knew.
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
    pub(crate) fn end(mut self) -> Result<Testimony> {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            ensure!(thread.join().is_ok(), "the thread that writes has panicked");
        }
        self.look(START_TIMEOUT)?;
        let record = lock(&self.record);
        let client = connect(&lock(&self.config))?;
        for (shard, acknowledged) in record.acknowledged.iter().enumerate() {
            let notes = read(&client, shard)?;
            compare(&notes, acknowledged, &record.open).with_context(|| format!("shard {shard}"))?;
        }
        let acknowledged = record.acknowledged.iter().map(Vec::len).sum::<usize>() as u64;
        Ok(Testimony { acknowledged, outage: record.outage.max(record.last.elapsed()) })
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(config: &Config) -> Result<Client<Notes>> {
    Ok(Client::connect_with(config, NAME, PATIENCE)?)
}

/// A key of the shard.
fn key(client: &Client<Notes>, shard: usize) -> [u8; 8] {
    let mut keys = (0_u64..).map(u64::to_le_bytes);
    keys.find(|key| client.shard(key) == shard).expect("each shard has keys")
}

/// Writes note after note, to each shard in its turn; several are under way while members do not answer.
fn write(record: &Mutex<Record>, config: &Mutex<Config>, is_over: &AtomicBool) {
    let mut client = None;
    let mut under_way = VecDeque::new();
    let end = |(shard, note, pending): (usize, u64, Pending<Vec<u64>>)| {
        let outcome = pending.wait();
        lock(record).take(shard, note, outcome)
    };
    for note in 0_u64.. {
        if is_over.load(Ordering::Relaxed) {
            let _ = under_way.into_iter().try_for_each(end);
            return;
        }
        let shard = usize::try_from(note).unwrap_or(0) % SHARDS;
        if client.is_none() {
            // Nobody may answer just now.
            let config = lock(config).clone();
            client = connect(&config).ok();
        }
        let Some(writer) = &client else {
            std::thread::sleep(PAUSE);
            continue;
        };
        match writer.update(&key(writer, shard), &note) {
            Ok(pending) => under_way.push_back((shard, note, pending)),
            Err(error) => return drop(lock(record).take(shard, note, Err(error))),
        }
        let oldest = if under_way.len() == UNDER_WAY { under_way.pop_front() } else { None };
        if oldest.is_some_and(|oldest| end(oldest).is_err()) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// That nothing more is to be written.
struct Over;

impl Record {
    /// Notes what has become of a note.
    fn take(&mut self, shard: usize, note: u64, outcome: Result<Vec<u64>, ObjectError>) -> Result<(), Over> {
        match outcome {
            Ok(place) => {
                self.acknowledged[shard].push((note, place.first().copied().unwrap_or(u64::MAX)));
                self.outage = self.outage.max(self.last.elapsed());
                self.last = Instant::now();
            }
            Err(error @ ObjectError::Unknown) => {
                self.open.insert(note);
                self.trouble = error.to_string();
            }
            Err(error @ ObjectError::Unreachable { .. }) => self.trouble = error.to_string(),
            Err(error) => {
                self.failure = Some(format!("note {note} of shard {shard}: {error}"));
                return Err(Over);
            }
        }
        Ok(())
    }
}

/// All notes of a shard.
fn read(client: &Client<Notes>, shard: usize) -> Result<Vec<u64>> {
    let mut notes: Vec<u64> = Vec::new();
    loop {
        let page = client.query(&key(client, shard), &(notes.len() as u64))?.wait()?;
        notes.extend(&page);
        if page.len() < PAGE {
            return Ok(notes);
        }
    }
}

fn compare(notes: &[u64], acknowledged: &[(u64, u64)], open: &BTreeSet<u64>) -> Result<()> {
    for (note, place) in acknowledged {
        let found = usize::try_from(*place).ok().and_then(|place| notes.get(place));
        ensure!(found == Some(note), "note {note} was acknowledged at place {place}, where {found:?} is");
    }
    let in_order = acknowledged.is_sorted_by(|(_, place), (_, next)| place < next);
    ensure!(in_order, "notes are not in the order in which they were written: {acknowledged:?}");
    let written: BTreeSet<u64> = acknowledged.iter().map(|(note, _)| *note).collect();
    let mut seen = BTreeSet::new();
    for note in notes {
        ensure!(seen.insert(note), "note {note} is there twice");
        ensure!(written.contains(note) || open.contains(note), "note {note} is there, but was never written");
    }
    Ok(())
}

/// How long the client looks for a member.
const PATIENCE: Duration = Duration::from_secs(5);
/// Notes under way at most.
const UNDER_WAY: usize = 16;
/// Between notes.
const PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_twice_or_unknown_is_found() {
        let open = BTreeSet::from([9]);
        assert!(compare(&[4, 9, 8], &[(4, 0), (8, 2)], &open).is_ok());
        assert!(compare(&[4, 9], &[(4, 0), (8, 2)], &open).is_err(), "lost");
        assert!(compare(&[4, 8, 9], &[(4, 0), (8, 2)], &open).is_err(), "elsewhere");
        assert!(compare(&[4, 9, 8, 9], &[(4, 0), (8, 2)], &open).is_err(), "twice");
        assert!(compare(&[8, 9, 4], &[(4, 2), (8, 0)], &open).is_err(), "out of order");
        assert!(compare(&[4, 5, 8], &[(4, 0), (8, 2)], &open).is_err(), "never written");
    }
}
