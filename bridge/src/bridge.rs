//! A bridge that runs: for each topic a thread that forwards out of the Squall domain, and one that forwards into it.
//!
//! The bridge never holds up the Squall domain: its readers are emptied whatever happens on the RTPS side. The writes there may take
//! [`FORWARD_PATIENCE`] in all until a reader is empty; when it is used up, the rest is dropped, and so is all that comes as long again. Before
//! that, readers that have come there are waited for, as long at most; after a wait in vain, not again before as long has passed. What does
//! not work for one sample is an event, and a later one is tried.
//!
//! A thread ends when the bridge is dropped, or with an error that says that nothing more is forwarded; it looks for both between any two
//! samples, so [`DdsBridge`] ends within the wait for one.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use squall_dds::{
    DataReader, DataWriter, DomainParticipant, DurabilityKind, HistoryKind, Qos, ReadError, Topic,
};
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

use crate::error::{BridgeError, ForwardError};
use crate::event::{BridgeEvent, BridgeEventQueue, ForwardCounts};
use crate::form::TopicForm;
use crate::inbox::RtpsInbox;
use crate::missed::SampleNumbers;
use crate::origin::{GuidPrefixBytes, SETTLE, TopicOrigins, mark};
use crate::rtps::{
    RtpsEndpointBytes, RtpsNews, RtpsParticipant, RtpsPeerNews, RtpsTopic, RtpsWriter, prefix_of,
};
use crate::settings::{BridgeSettings, Direction, TopicSettings};
use crate::threads::RtpsThreads;

/// A bridge that runs, until it is dropped.
///
/// ```no_run
/// use std::time::Duration;
/// use squall::Config;
/// use squall_dds::{DomainParticipant, TopicStore};
/// use squall_dds_bridge::{BridgeSettings, DdsBridge};
///
/// let settings = BridgeSettings::load("bridge.toml".as_ref())?;
/// let config = Config::local("robots", 1);
/// let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// let bridge = DdsBridge::start(&participant, &settings)?;
/// while let Some(event) = bridge.next_event(Duration::from_secs(60)) {
///     println!("{event}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DdsBridge {
    events: Arc<BridgeEventQueue>,
    topics: Vec<Arc<BridgedTopic>>,
    threads: Vec<JoinHandle<()>>,
    /// Its endpoints, which the threads have, work as long as it is there.
    rtps: RtpsParticipant,
}

impl std::fmt::Debug for DdsBridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DdsBridge").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// What the two threads of a topic share.
#[derive(Debug)]
struct BridgedTopic {
    name: String,
    form: TopicForm,
    /// The domain's number on the RTPS side, for the marks of bridges.
    domain: u16,
    /// Of this bridge's own writers and readers there.
    own: [GuidPrefixBytes; 2],
    rtps_threads: Arc<RtpsThreads>,
    writer: DataWriter<Vec<u8>>,
    origins: Mutex<TopicOrigins>,
    /// When this bridge has known its own mark for long enough.
    is_settled: AtomicBool,
    is_stopped: AtomicBool,
    events: Arc<BridgeEventQueue>,
    into_squall: AtomicU64,
    into_rtps: AtomicU64,
    dropped: AtomicU64,
}

impl DdsBridge {
    /// Starts a bridge: creates the topics in the Squall domain that are not there, and a participant in the RTPS domain. Samples flow a
    /// second later; those that were written before do not.
    ///
    /// # Errors
    /// [`BridgeError`], with what to do next.
    pub fn start(participant: &DomainParticipant, settings: &BridgeSettings) -> Result<Self, BridgeError> {
        let events = Arc::default();
        let rtps = RtpsParticipant::new(settings)?;
        let mut bridge = Self { events, topics: Vec::new(), threads: Vec::new(), rtps };
        for (name, topic) in &settings.topics {
            bridge.begin(participant, name, topic)?;
        }
        Ok(bridge)
    }

    fn begin(
        &mut self,
        participant: &DomainParticipant,
        name: &str,
        settings: &TopicSettings,
    ) -> Result<(), BridgeError> {
        let rtps = &self.rtps;
        let squall = |error| BridgeError::Squall { topic: name.into(), error: Box::new(error) };
        let topic: Topic<Vec<u8>> = participant.create_topic(name, settings.qos()).map_err(squall)?;
        let own = Qos {
            max_blocking_time: FORWARD_PATIENCE,
            user_data: mark(rtps.domain, rtps.prefix),
            ..settings.qos()
        };
        let writer = participant.writer(&topic, own).map_err(squall)?;
        // What was written before this bridge came has perhaps been forwarded by another one.
        let latest = Qos {
            durability: DurabilityKind::Volatile,
            durability_service: None,
            // Never full, so that it holds up no writer.
            history: HistoryKind::KeepLast(UNTAKEN_MAX),
            ..settings.qos()
        };
        let reader = participant.reader(&topic, latest).map_err(squall)?;
        let rtps_topic = rtps.topic(name, settings)?;
        let topic = Arc::new(BridgedTopic {
            name: name.into(),
            form: settings.form,
            domain: self.rtps.domain,
            own: [self.rtps.prefix, self.rtps.reading_prefix],
            rtps_threads: Arc::clone(&self.rtps.threads),
            writer,
            origins: Mutex::default(),
            is_settled: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            events: Arc::clone(&self.events),
            into_squall: AtomicU64::new(0),
            into_rtps: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        self.topics.push(Arc::clone(&topic));
        let out = settings.direction.is_out().then(|| rtps_topic.write()).transpose()?;
        let outward = Arc::clone(&topic);
        self.spawn("out", &topic, move || outward.forward_out(&reader, out.as_ref()))?;
        if settings.direction.is_in() {
            self.begin_inward(&topic, &rtps_topic)?;
        }
        Ok(())
    }

    fn begin_inward(&mut self, topic: &Arc<BridgedTopic>, rtps_topic: &RtpsTopic) -> Result<(), BridgeError> {
        let (inbox, inward) = (rtps_topic.read()?, Arc::clone(topic));
        self.spawn("in", topic, move || inward.forward_in(inbox))
    }

    fn spawn(
        &mut self,
        way: &str,
        topic: &Arc<BridgedTopic>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), BridgeError> {
        let thread = std::thread::Builder::new().name(format!("bridge {way} {}", topic.name));
        let topic = Arc::clone(topic);
        let run = move || {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                topic.fail(ForwardError::Panicked);
            }
        };
        self.threads.push(thread.spawn(run).map_err(BridgeError::Thread)?);
        Ok(())
    }

    /// Returns the next event, if there is one within `timeout`.
    #[must_use]
    pub fn next_event(&self, timeout: Duration) -> Option<BridgeEvent> {
        self.events.next(timeout)
    }

    /// Returns how many samples have been forwarded, by the topics' names in the Squall domain.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, ForwardCounts)> {
        self.topics.iter().map(|topic| (topic.name.clone(), topic.counts())).collect()
    }

    /// Returns whether samples flow in all topics.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.topics.iter().all(|topic| topic.is_settled.load(Ordering::Relaxed))
    }
}

impl Drop for DdsBridge {
    fn drop(&mut self) {
        for topic in &self.topics {
            topic.is_stopped.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

impl BridgedTopic {
    fn counts(&self) -> ForwardCounts {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ForwardCounts {
            into_squall: count(&self.into_squall),
            into_rtps: count(&self.into_rtps),
            dropped: count(&self.dropped),
        }
    }

    fn origins(&self) -> MutexGuard<'_, TopicOrigins> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Takes what comes in the Squall domain, and writes it to `out` if there is one.
    fn forward_out(&self, reader: &DataReader<Vec<u8>>, out: Option<&RtpsWriter>) {
        let (mut bridges, mut peers) = (BridgeLooks::default(), BTreeSet::new());
        // While it is so, nothing is tried, so that the reader is emptied.
        let mut congested_until = Instant::now();
        // In writes, since the reader was last emptied.
        let mut waited = Duration::ZERO;
        let mut new_readers = NewReaderWaits::default();
        while !self.is_stopped() {
            if self.look(reader, &mut bridges).is_break() {
                return;
            }
            self.note_readers(out, &mut peers);
            match reader.wait_for_data(LOOK_PERIOD) {
                Ok(()) => {}
                Err(ReadError::Timeout(_)) => continue,
                Err(error) => return self.fail(ForwardError::Ended(error)),
            }
            let samples = match reader.take(AT_ONCE_MAX) {
                Ok(samples) => samples,
                Err(error) => return self.fail(ForwardError::Ended(error)),
            };
            // A reader may have come in the meantime.
            self.note_readers(out, &mut peers);
            let Some(out) = out else { continue };
            if samples.len() < AT_ONCE_MAX {
                waited = Duration::ZERO;
            }
            for sample in samples {
                if self.is_stopped() || self.look(reader, &mut bridges).is_break() {
                    return;
                }
                let (is_ours, is_from_rtps) = {
                    let origins = self.origins();
                    (origins.leads(self.writer.id()), origins.is_from_rtps(sample.info.publication))
                };
                let is_due = is_ours && !is_from_rtps && self.is_settled.load(Ordering::Relaxed);
                // The end of an instance has no data.
                let Some(data) = sample.data.filter(|_| is_due) else { continue };
                if Instant::now() < congested_until {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                new_readers.wait(Instant::now, || out.await_new_readers());
                let begun = Instant::now();
                let outcome = self.form.to_rtps(&data).map_err(ForwardError::from);
                let outcome = outcome.and_then(|cdr| out.write(cdr));
                let is_refused = matches!(outcome, Err(ForwardError::PeerSlow { .. }));
                if self.note(outcome, &self.into_rtps).is_break() {
                    return;
                }
                // One that confirms a few samples a second lets each write pass, and would hold up all of them.
                waited += begun.elapsed();
                if waited >= FORWARD_PATIENCE {
                    waited = Duration::ZERO;
                    congested_until = Instant::now() + FORWARD_PATIENCE;
                    if !is_refused {
                        self.fail(ForwardError::PeerSlow { waited: FORWARD_PATIENCE });
                    }
                }
            }
        }
    }

    /// Notes which readers of the RTPS domain have come and gone.
    fn note_readers(&self, out: Option<&RtpsWriter>, peers: &mut BTreeSet<RtpsEndpointBytes>) {
        while let Some(peer) = out.and_then(RtpsWriter::next_peer) {
            self.note_peer(Direction::Out, peers, peer);
        }
    }

    /// Takes what comes in the RTPS domain, and writes it in the Squall domain.
    fn forward_in(&self, mut inbox: RtpsInbox) {
        let (mut peers, mut numbers) = (BTreeSet::new(), SampleNumbers::default());
        while !self.is_stopped() {
            match inbox.next(LOOK_PERIOD) {
                None => {}
                Some(RtpsNews::Sample { cdr, writer, number }) => {
                    let missed = numbers.note(writer, number);
                    if self.forward_sample_in(cdr, writer, missed).is_break() {
                        return;
                    }
                }
                Some(RtpsNews::UnknownEnd) => numbers.note_unknown(),
                Some(RtpsNews::Peer(peer)) => {
                    if let RtpsPeerNews::Went(peer) = peer {
                        numbers.forget(peer);
                    }
                    self.note_peer(Direction::In, &mut peers, peer);
                }
                Some(RtpsNews::Error(error)) => _ = self.note(Err(error), &self.into_squall),
            }
        }
    }

    /// Writes a sample of the RTPS domain, if it is due, in the Squall domain; `missed` ones of the same writer did not come before it.
    fn forward_sample_in(
        &self,
        cdr: Option<Vec<u8>>,
        writer: RtpsEndpointBytes,
        missed: u64,
    ) -> ControlFlow<()> {
        let (is_ours, is_from_squall) = {
            let origins = self.origins();
            (origins.leads(self.writer.id()), origins.is_from_squall(prefix_of(writer)))
        };
        if !is_ours || is_from_squall || !self.is_settled.load(Ordering::Relaxed) {
            return ControlFlow::Continue(());
        }
        if missed > 0 {
            self.dropped.fetch_add(missed, Ordering::Relaxed);
            self.fail(ForwardError::Missed(missed));
        }
        let Some(cdr) = cdr else { return ControlFlow::Continue(()) };
        let outcome = self.form.to_squall(cdr).map_err(ForwardError::from);
        let written = outcome.and_then(|sample| Ok(self.writer.write(&sample)?));
        self.note(written, &self.into_squall)
    }

    /// Learns which bridges there are, if it is time for that. Breaks if the RTPS side has ended.
    fn look(&self, reader: &DataReader<Vec<u8>>, looks: &mut BridgeLooks) -> ControlFlow<()> {
        if looks.last.is_some_and(|last| last.elapsed() < LOOK_PERIOD) {
            return ControlFlow::Continue(());
        }
        looks.last = Some(Instant::now());
        if !self.rtps_threads.are_alive() {
            self.fail(ForwardError::RtpsEnded);
            return ControlFlow::Break(());
        }
        let writers = reader.matched_publications();
        let marks = writers.iter().map(|writer| (writer.id, writer.qos.user_data.as_slice()));
        let mut origins = self.origins();
        origins.update(self.domain, marks);
        if origins.knows(self.writer.id()) {
            let since = looks.known_since.get_or_insert_with(Instant::now);
            self.is_settled.store(since.elapsed() >= SETTLE, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    }

    /// Counts a sample, and breaks if nothing more can be forwarded.
    fn note(&self, outcome: Result<(), ForwardError>, forwarded: &AtomicU64) -> ControlFlow<()> {
        let Err(error) = outcome else {
            forwarded.fetch_add(1, Ordering::Relaxed);
            return ControlFlow::Continue(());
        };
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let is_end = error.is_end();
        self.fail(error);
        if is_end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn fail(&self, error: ForwardError) {
        self.events.push_failure(&self.name, error);
    }

    /// Notes a peer that has come or gone, unless it is this bridge itself.
    fn note_peer(&self, direction: Direction, peers: &mut BTreeSet<RtpsEndpointBytes>, news: RtpsPeerNews) {
        let before = peers.len();
        match news {
            RtpsPeerNews::Came(peer) if !self.own.contains(&prefix_of(peer)) => _ = peers.insert(peer),
            RtpsPeerNews::Came(_) => {}
            RtpsPeerNews::Went(peer) => _ = peers.remove(&peer),
            RtpsPeerNews::Incompatible(policy) => self.fail(ForwardError::Incompatible(policy)),
        }
        let (topic, now) = (self.name.clone(), peers.len());
        if now != before {
            self.events.push(BridgeEvent::Peers { topic, direction, now, before });
        }
    }
}

/// When a bridge has looked for others.
#[derive(Debug, Default)]
struct BridgeLooks {
    last: Option<Instant>,
    /// Its own mark.
    known_since: Option<Instant>,
}

/// When readers that have come in the RTPS domain are waited for. Each one that confirms nothing, and is followed by the next one, would
/// hold up one sample after the other otherwise.
#[derive(Debug, Default)]
struct NewReaderWaits {
    /// Not before, since the last wait was in vain.
    next: Option<Instant>,
}

impl NewReaderWaits {
    /// Calls `confirmed`, which waits, if it is time for that; it returns whether all readers have confirmed.
    fn wait(&mut self, now: impl Fn() -> Instant, confirmed: impl FnOnce() -> bool) {
        if self.next.is_none_or(|next| now() >= next) {
            self.next = if confirmed() { None } else { Some(now() + FORWARD_PATIENCE) };
        }
    }
}

/// How long samples wait for space in the other domain, before they are dropped: all together that wait here.
pub(crate) const FORWARD_PATIENCE: Duration = Duration::from_secs(1);
/// Between looks for other bridges, and for the end; a tenth of [`SETTLE`].
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Samples that are taken together: so other bridges are looked for often enough.
const AT_ONCE_MAX: usize = 100;
/// Samples of the Squall domain that wait here; the oldest one gives way to the next one.
const UNTAKEN_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Readers that come for each sample and confirm nothing are waited for in half of the time; those that confirm, each time.
    #[test]
    fn readers_that_confirm_nothing_are_waited_for_in_half_of_the_time_at_most() {
        let begin = Instant::now();
        for (confirms, waits_expected) in [(false, 2), (true, 30)] {
            let (passed, mut waits, mut new_readers) =
                (Cell::new(Duration::ZERO), 0, NewReaderWaits::default());
            for _ in 0..30 {
                new_readers.wait(
                    || begin + passed.get(),
                    || {
                        waits += 1;
                        if !confirms {
                            passed.set(passed.get() + FORWARD_PATIENCE);
                        }
                        confirms
                    },
                );
                // Each sample takes a while: 20 of them as long as a wait.
                passed.set(passed.get() + FORWARD_PATIENCE / 20);
            }
            assert_eq!(waits, waits_expected, "readers that confirm: {confirms}");
        }
    }
}
