//! A bridge that runs: for each topic a thread that forwards out of the Squall domain, and one that forwards into it.
//!
//! The bridge never holds up the Squall domain: its readers are emptied whatever happens on the RTPS side, and a sample that this side
//! does not take within [`FORWARD_PATIENCE`] is dropped, and so are all that come as long again. What does not work for one sample is an
//! event, and a later one is tried.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};
use squall_dds::{
    DataReader, DataWriter, DomainParticipant, DurabilityKind, HistoryKind, Qos, ReadError, ResourceLimits,
    Topic,
};
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

use crate::error::{BridgeError, ForwardError};
use crate::form::TopicForm;
use crate::origin::{GuidPrefixBytes, SETTLE, TopicOrigins, mark};
use crate::rtps::{RtpsEndpointBytes, RtpsNews, RtpsParticipant, RtpsStream, RtpsTopic, RtpsWriter};
use crate::settings::{BridgeSettings, Direction, TopicSettings};

/// What happens at a bridge.
///
/// ```
/// use squall_dds_bridge::{BridgeEvent, Direction};
///
/// let event = BridgeEvent::Peers { topic: "chatter".into(), direction: Direction::Out, now: 0, before: 1 };
/// assert!(event.to_string().contains("the last reader has gone"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BridgeEvent {
    /// Peers of the RTPS domain have come or gone: readers ([`Direction::Out`]) or writers ([`Direction::In`]).
    Peers {
        /// The topic's name in the Squall domain.
        topic: String,
        /// For which way of samples.
        direction: Direction,
        /// How many match now.
        now: usize,
        /// How many did before.
        before: usize,
    },
    /// A sample was not forwarded, or, if [`ForwardError::is_end`] says so, none will be any more.
    Failed {
        /// The topic's name in the Squall domain.
        topic: String,
        /// What is wrong.
        error: ForwardError,
    },
}

impl std::fmt::Display for BridgeEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peers { topic, direction, now, before } => {
                let peer = if *direction == Direction::Out { "reader" } else { "writer" };
                match (now, before) {
                    (0, 1..) => write!(f, "topic `{topic}`: the last {peer} has gone from the RTPS domain"),
                    (now, _) => write!(f, "topic `{topic}`: {now} {peer}s in the RTPS domain"),
                }
            }
            Self::Failed { topic, error } => write!(f, "topic `{topic}`: {error}"),
        }
    }
}

/// How many samples of a topic a bridge has forwarded.
///
/// ```
/// assert_eq!(squall_dds_bridge::ForwardCounts::default().dropped, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounts {
    /// Into the Squall domain.
    pub into_squall: u64,
    /// Into the RTPS domain.
    pub into_rtps: u64,
    /// Neither, because of an error.
    pub dropped: u64,
}

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
    events: Receiver<BridgeEvent>,
    topics: Vec<Arc<BridgedTopic>>,
    stops: Vec<oneshot::Sender<()>>,
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
    /// Of this bridge's participant there.
    prefix: GuidPrefixBytes,
    writer: DataWriter<Vec<u8>>,
    origins: Mutex<TopicOrigins>,
    /// When this bridge has known its own mark for long enough.
    is_settled: AtomicBool,
    is_stopped: AtomicBool,
    events: Mutex<Sender<BridgeEvent>>,
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
        let (sender, events) = channel();
        let rtps = RtpsParticipant::new(settings)?;
        let mut bridge = Self { events, topics: Vec::new(), stops: Vec::new(), threads: Vec::new(), rtps };
        for (name, topic) in &settings.topics {
            bridge.begin(participant, name, topic, &sender)?;
        }
        Ok(bridge)
    }

    fn begin(
        &mut self,
        participant: &DomainParticipant,
        name: &str,
        settings: &TopicSettings,
        events: &Sender<BridgeEvent>,
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
            history: HistoryKind::KeepLast(ResourceLimits::DEFAULT.samples_per_instance_max),
            ..settings.qos()
        };
        let reader = participant.reader(&topic, latest).map_err(squall)?;
        let rtps_topic = rtps.topic(name, settings)?;
        let topic = Arc::new(BridgedTopic {
            name: name.into(),
            form: settings.form,
            domain: self.rtps.domain,
            prefix: self.rtps.prefix,
            writer,
            origins: Mutex::default(),
            is_settled: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            events: Mutex::new(events.clone()),
            into_squall: AtomicU64::new(0),
            into_rtps: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        self.topics.push(Arc::clone(&topic));
        let out = settings.direction.is_out().then(|| rtps_topic.write()).transpose()?;
        let outward = Arc::clone(&topic);
        self.spawn(format!("out {name}"), move || outward.forward_out(&reader, out.as_ref()))?;
        if settings.direction.is_in() {
            self.begin_inward(topic, &rtps_topic)?;
        }
        Ok(())
    }

    fn begin_inward(&mut self, topic: Arc<BridgedTopic>, rtps_topic: &RtpsTopic) -> Result<(), BridgeError> {
        let news = rtps_topic.read()?;
        let (stop, stopped) = oneshot::channel();
        self.stops.push(stop);
        self.spawn(format!("in {}", topic.name), move || topic.forward_in(news, stopped))
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), BridgeError> {
        let thread = std::thread::Builder::new().name(format!("bridge {name}"));
        self.threads.push(thread.spawn(run).map_err(BridgeError::Thread)?);
        Ok(())
    }

    /// Returns the next event, if there is one within `timeout`.
    #[must_use]
    pub fn next_event(&self, timeout: Duration) -> Option<BridgeEvent> {
        self.events.recv_timeout(timeout).ok()
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
        for stop in self.stops.drain(..) {
            // A thread that has ended does not wait for it.
            let _ = stop.send(());
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

    /// Takes what comes in the Squall domain, and writes it to `out` if there is one.
    fn forward_out(&self, reader: &DataReader<Vec<u8>>, out: Option<&RtpsWriter>) {
        let (mut known_since, mut peers) = (None, BTreeSet::new());
        // While it is so, nothing is tried, so that the reader is emptied.
        let mut congested_until = Instant::now();
        while !self.is_stopped.load(Ordering::Relaxed) {
            self.look_for_bridges(reader, &mut known_since);
            while let Some((is_here, peer)) = out.and_then(RtpsWriter::next_peer) {
                self.note_peer(Direction::Out, &mut peers, is_here, peer);
            }
            match reader.wait_for_data(LOOK_PERIOD) {
                Ok(()) => {}
                Err(ReadError::Timeout(_)) => continue,
                Err(error) => return self.fail(ForwardError::Ended(error)),
            }
            let samples = match reader.take(AT_ONCE_MAX) {
                Ok(samples) => samples,
                Err(error) => return self.fail(ForwardError::Ended(error)),
            };
            let Some(out) = out else { continue };
            for sample in samples {
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
                let outcome = self.form.to_rtps(&data).map_err(ForwardError::from);
                let outcome = outcome.and_then(|cdr| out.write(cdr));
                if matches!(outcome, Err(ForwardError::PeerSlow { .. })) {
                    congested_until = Instant::now() + FORWARD_PATIENCE;
                }
                self.note(outcome, &self.into_rtps);
            }
        }
    }

    /// Takes what comes in the RTPS domain, and writes it in the Squall domain.
    fn forward_in(&self, mut news: RtpsStream, mut stopped: oneshot::Receiver<()>) {
        let mut peers = BTreeSet::new();
        futures::executor::block_on(async {
            loop {
                let news = match select(news.next(), &mut stopped).await {
                    Either::Left((Some(news), _)) => news,
                    Either::Left((None, _)) | Either::Right(_) => return,
                };
                match news {
                    RtpsNews::Sample(cdr, from) => {
                        let (is_ours, is_from_squall) = {
                            let origins = self.origins();
                            (origins.leads(self.writer.id()), origins.is_from_squall(from))
                        };
                        if is_ours && !is_from_squall && self.is_settled.load(Ordering::Relaxed) {
                            let outcome = self.form.to_squall(cdr).map_err(ForwardError::from);
                            let written = outcome.and_then(|sample| Ok(self.writer.write(&sample)?));
                            self.note(written, &self.into_squall);
                        }
                    }
                    RtpsNews::Peer { is_here, peer } => {
                        self.note_peer(Direction::In, &mut peers, is_here, peer);
                    }
                    RtpsNews::Error(error) => self.note(Err(error), &self.into_squall),
                }
            }
        });
    }

    /// Learns which bridges there are.
    fn look_for_bridges(&self, reader: &DataReader<Vec<u8>>, known_since: &mut Option<Instant>) {
        let writers = reader.matched_publications();
        let marks = writers.iter().map(|writer| (writer.id, writer.qos.user_data.as_slice()));
        let found = TopicOrigins::of(self.domain, marks);
        if found.knows(self.writer.id()) {
            let since = known_since.get_or_insert_with(Instant::now);
            self.is_settled.store(since.elapsed() >= SETTLE, Ordering::Relaxed);
        }
        *self.origins() = found;
    }

    fn note(&self, outcome: Result<(), ForwardError>, forwarded: &AtomicU64) {
        match outcome {
            Ok(()) => {
                forwarded.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                self.fail(error);
            }
        }
    }

    fn fail(&self, error: ForwardError) {
        self.say(BridgeEvent::Failed { topic: self.name.clone(), error });
    }

    /// Notes a peer that has come or gone, unless it is this bridge itself.
    fn note_peer(
        &self,
        direction: Direction,
        peers: &mut BTreeSet<RtpsEndpointBytes>,
        is_here: bool,
        peer: RtpsEndpointBytes,
    ) {
        if peer.starts_with(&self.prefix) {
            return;
        }
        let before = peers.len();
        let _ = if is_here { peers.insert(peer) } else { peers.remove(&peer) };
        let (topic, now) = (self.name.clone(), peers.len());
        if now != before {
            self.say(BridgeEvent::Peers { topic, direction, now, before });
        }
    }

    fn say(&self, event: BridgeEvent) {
        // The bridge may be ending.
        let _ = self.events.lock().unwrap_or_else(PoisonError::into_inner).send(event);
    }
}

/// How long a sample waits for space in the other domain, before it is dropped.
pub(crate) const FORWARD_PATIENCE: Duration = Duration::from_secs(1);
/// Between looks for other bridges, and for the end; a tenth of [`SETTLE`].
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Samples that are taken together: so other bridges are looked for often enough.
const AT_ONCE_MAX: usize = 100;
