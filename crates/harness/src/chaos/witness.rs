//! Clients outside the group that use its object all the time, each a process of its own. Updates must be acknowledged within a bound;
//! what they and the members' own clients have asked and were answered is judged at the end
//! ([`OperationRecorder`](crate::operations::recorder::OperationRecorder)).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::object::Client;

use super::ChaosRun;
use crate::clock::now_ns;
use crate::cluster::churn::{PoolClient, ProcessState, START_TIMEOUT, UpdateProgress};
use crate::member::outside_client::{PATIENCE, UNCONNECTED};
use crate::member::store::{NAME, StoredValues};
use crate::operations::{OperationOutcome, ReadPromise, StepReply, StoreOperation, StoreStep};

impl ChaosRun {
    /// Starts the clients, if there is an object.
    pub(super) fn start_clients(&mut self) -> Result<()> {
        self.pool.updates = UpdateProgress::begin();
        (0..CLIENTS).try_for_each(|_| self.add_client())
    }

    fn add_client(&mut self) -> Result<()> {
        self.plan.store.as_ref().map_or(Ok(()), |store| self.pool.add_client(store))
    }

    /// Kills a client, which may have operations under way, and starts another one; returns whether there was one.
    pub(super) fn kill_client(&mut self) -> Result<bool> {
        if self.plan.store.is_none() {
            return Ok(false);
        }
        let is_running = |client: &PoolClient| client.state == ProcessState::Running;
        self.await_that("a client has connected", START_TIMEOUT, |run| {
            run.pool.clients.iter().any(is_running)
        })?;
        let clients = self.pool.clients.iter().enumerate();
        let running: Vec<usize> =
            clients.filter(|(_, client)| is_running(client)).map(|(number, _)| number).collect();
        let client = running[usize::try_from(self.dice.below(running.len() as u64))?];
        self.pool.kill_client(client);
        self.say(format_args!("  client {client} is killed"));
        self.add_client()?;
        Ok(true)
    }

    /// Fails if something was lost already, or if nothing was acknowledged for as long as a group may be silent and a client looks for
    /// members. A client to which no member answers that it knows is replaced.
    pub(super) fn look_at_clients(&mut self) -> Result<()> {
        if self.plan.store.is_none() {
            return Ok(());
        }
        for unconnected in self.unconnected()? {
            self.pool.kill_client(unconnected);
            self.add_client()?;
        }
        let (still, trouble) = (self.pool.updates.last.elapsed(), &self.pool.updates.trouble);
        let longest = self.outage_max() + 2 * PATIENCE;
        ensure!(still < longest, "no update was acknowledged for {still:?}: {trouble}");
        Ok(())
    }

    /// The clients to which no member answers that they know.
    ///
    /// # Errors
    /// If a client has failed for another reason.
    fn unconnected(&self) -> Result<Vec<usize>> {
        let mut unconnected = Vec::new();
        for (number, client) in self.pool.clients.iter().enumerate() {
            let ProcessState::Failed(why) = &client.state else { continue };
            ensure!(why.starts_with(UNCONNECTED), "client {number} has failed: {why}");
            unconnected.push(number);
        }
        Ok(unconnected)
    }

    /// Ends the clients; returns the longest time in which no update was acknowledged.
    pub(super) fn stop_clients(&mut self) -> Result<Duration> {
        if self.plan.store.is_none() {
            return Ok(Duration::ZERO);
        }
        let begun = Instant::now();
        self.pool.stop_clients(START_TIMEOUT)?;
        self.unconnected()?;
        // The last of them is idle while the others end.
        Ok(self.pool.updates.outage.max(begun.saturating_duration_since(self.pool.updates.last)))
    }

    /// Reads all lists, ends the history, and compares the lists with what was acknowledged. No client may be at work.
    pub(super) fn judge_lists(&mut self) -> Result<()> {
        if self.plan.store.is_none() {
            return Ok(());
        }
        let config = self.client()?;
        let client =
            Client::<StoredValues>::connect_with(&config, NAME, PATIENCE).context("no member answers")?;
        let recorder = &mut self.pool.recorder;
        let lists = recorder.lists();
        let mut found = BTreeMap::new();
        for some in lists.chunks(UNDER_WAY_READS) {
            let mut under_way = Vec::new();
            for list in some {
                let step = StoreStep::List { list: *list };
                let operation = StoreOperation::Single(step.clone(), ReadPromise::Latest);
                let number = recorder.call(AUDITOR, now_ns(), &operation);
                under_way.push((*list, number, client.query_latest(&list.to_le_bytes(), &step)?));
            }
            for (list, number, pending) in under_way {
                let result = pending.wait().map(|reply| vec![reply]);
                recorder.done(number, now_ns(), &OperationOutcome::of(&result));
                match &mut result?[..] {
                    [StepReply::List(values)] => found.insert(list, std::mem::take(values)),
                    reply => bail!("list {list} was read as {reply:?}"),
                };
            }
        }
        recorder.end_file()?;
        recorder.compare(&found)
    }
}

/// Clients at a time.
pub(crate) const CLIENTS: usize = 2;
/// Reads at the end under way at most: a client has space for a thousand.
const UNDER_WAY_READS: usize = 256;
/// The client that reads the lists at the end.
const AUDITOR: &str = "auditor";
