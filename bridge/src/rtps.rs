//! The endpoints of the RTPS domain: readers and writers that pass the bytes of samples as they are.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;

use futures::stream::StreamExt as _;
use rustdds::bytes::Bytes;
use rustdds::dds::result::{ReadError, WriteError};
use rustdds::policy::{Durability, History, LatencyBudget, Ownership, Reliability, ResourceLimits};
use rustdds::{
    DataReaderStatus, DataWriterStatus, DomainParticipant, DomainParticipantBuilder, GUID, Keyed,
    QosPolicies, QosPolicyBuilder, RTPSEntity as _, ReadCondition, RepresentationIdentifier, SampleIdentity,
    StatusEvented as _, Topic, TopicKind, WriteOptionsBuilder, no_key, with_key,
};

use crate::bridge::FORWARD_PATIENCE;
use crate::error::{BridgeError, ForwardError};
use crate::form::HEADER_BYTES;
use crate::inbox::{RtpsInbox, RtpsStream};
use crate::origin::GuidPrefixBytes;
use crate::settings::{BridgeSettings, TopicSettings};
use crate::threads::RtpsThreads;

/// The participants of the RTPS domain: one has the writers, one the readers. A reader of RustDDS does not confirm samples of its own
/// participant, and each writer would wait for it in the end.
pub(crate) struct RtpsParticipant {
    writing: DomainParticipant,
    reading: DomainParticipant,
    pub(crate) domain: u16,
    /// Of the writers.
    pub(crate) prefix: GuidPrefixBytes,
    /// Of the readers.
    pub(crate) reading_prefix: GuidPrefixBytes,
    pub(crate) threads: Arc<RtpsThreads>,
}

impl RtpsParticipant {
    pub(crate) fn new(settings: &BridgeSettings) -> Result<Self, BridgeError> {
        let domain = settings.rtps_domain;
        let begin = || {
            let mut builder = DomainParticipantBuilder::new(domain);
            if !settings.networks.is_empty() {
                builder = builder.with_only_networks(settings.networks.clone());
            }
            builder.build().map_err(|error| BridgeError::Participant { domain, reason: error.to_string() })
        };
        let ((writing, reading), threads) = RtpsThreads::of(THREADS, || Ok((begin()?, begin()?)))?;
        let [prefix, reading_prefix] = [&writing, &reading].map(|own| prefix_of(own.guid().to_bytes()));
        Ok(Self { writing, reading, domain, prefix, reading_prefix, threads: Arc::new(threads) })
    }

    pub(crate) fn topic(&self, name: &str, settings: &TopicSettings) -> Result<RtpsTopic, BridgeError> {
        let name = settings.rtps_topic.as_deref().unwrap_or(name);
        let kind = if settings.keyed { TopicKind::WithKey } else { TopicKind::NoKey };
        let begin = |participant: &DomainParticipant| {
            let topic =
                participant.create_topic(name.into(), settings.type_name.clone(), &requested(settings), kind);
            topic.map_err(|error| BridgeError::Rtps { topic: name.into(), reason: error.to_string() })
        };
        Ok(RtpsTopic {
            written: (self.writing.clone(), begin(&self.writing)?),
            read: (self.reading.clone(), begin(&self.reading)?),
            name: name.into(),
            settings: settings.clone(),
        })
    }
}

/// A topic of the RTPS domain.
pub(crate) struct RtpsTopic {
    written: (DomainParticipant, Topic),
    read: (DomainParticipant, Topic),
    name: String,
    settings: TopicSettings,
}

/// What a reader of the RTPS domain yields.
pub(crate) enum RtpsNews {
    /// A sample of this writer, and its number among those.
    Sample {
        /// With its header; `None` for the end of an instance.
        cdr: Option<Vec<u8>>,
        writer: RtpsEndpointBytes,
        number: i64,
    },
    /// The end of an instance, of a writer that is not said.
    UnknownEnd,
    Peer(RtpsPeerNews),
    Error(ForwardError),
}

/// What becomes of a reader or writer of the RTPS domain.
pub(crate) enum RtpsPeerNews {
    /// It matches now.
    Came(RtpsEndpointBytes),
    /// It does not any more.
    Went(RtpsEndpointBytes),
    /// It does not, for the sake of this policy.
    Incompatible(String),
}

/// The number of an endpoint (`GUID_t`); the first bytes are those of its participant.
pub(crate) type RtpsEndpointBytes = [u8; 16];

impl RtpsTopic {
    /// Returns what comes from the domain.
    pub(crate) fn read(&self) -> Result<RtpsInbox, BridgeError> {
        let requested = requested(&self.settings);
        let news: RtpsStream = match self.reader(&self.read.1, &requested)? {
            ReaderKind::Keyed(reader) => {
                let samples = reader.async_sample_stream();
                let peers = samples.async_event_stream().filter_map(async |event| peers_of_reader(&event));
                let samples = samples.map(|sample| sample.map_or_else(news_of_error, news_of_keyed));
                Box::pin(futures::stream::select(samples, peers))
            }
            ReaderKind::Plain(reader) => {
                let samples = reader.async_sample_stream();
                let peers = samples.async_event_stream().filter_map(async |event| peers_of_reader(&event));
                let samples = samples.map(|sample| sample.map_or_else(news_of_error, news_of_plain));
                Box::pin(futures::stream::select(samples, peers))
            }
        };
        // After the other one, since the first topic of this name is the one that is announced.
        let cached = self.settings.reliable.then(|| self.read_cached()).transpose()?;
        Ok(RtpsInbox::new(news, cached, self.settings.read_ahead.into()))
    }

    /// Creates the second reader of the topic's cache.
    fn read_cached(&self) -> Result<CachedSamples, BridgeError> {
        let (participant, requested) = (&self.read.0, requested_of_cache());
        let kind = self.read.1.kind();
        let topic = participant.create_topic(self.name.clone(), CACHE_TYPE.into(), &requested, kind);
        let topic = topic.map_err(|error| self.fault(&error))?;
        Ok(CachedSamples(self.reader(&topic, &requested)?))
    }

    fn reader(&self, topic: &Topic, requested: &QosPolicies) -> Result<ReaderKind, BridgeError> {
        let fault = |error: &dyn std::fmt::Display| self.fault(error);
        let subscriber = self.read.0.create_subscriber(requested).map_err(|error| fault(&error))?;
        let requested = Some(requested.clone());
        Ok(if self.settings.keyed {
            let reader = subscriber.create_datareader::<RawSample, RawAdapter>(topic, requested);
            ReaderKind::Keyed(reader.map_err(|error| fault(&error))?)
        } else {
            let reader = subscriber.create_datareader_no_key::<RawSample, RawAdapter>(topic, requested);
            ReaderKind::Plain(reader.map_err(|error| fault(&error))?)
        })
    }

    pub(crate) fn write(&self) -> Result<RtpsWriter, BridgeError> {
        let fault = |error: &dyn std::fmt::Display| self.fault(error);
        let (participant, topic) = &self.written;
        let offered = offered(&self.settings);
        let publisher = participant.create_publisher(&offered).map_err(|error| fault(&error))?;
        let writer = if self.settings.keyed {
            let writer = publisher.create_datawriter::<RawSample, RawAdapter>(topic, Some(offered));
            WriterKind::Keyed(writer.map_err(|error| fault(&error))?)
        } else {
            let writer = publisher.create_datawriter_no_key::<RawSample, RawAdapter>(topic, Some(offered));
            WriterKind::Plain(writer.map_err(|error| fault(&error))?)
        };
        let writer = RtpsWriter { writer, has_new_reader: Cell::new(true) };
        if !self.settings.profile.keeps() {
            writer.write_first().map_err(|error| fault(&error))?;
        }
        Ok(writer)
    }

    fn fault(&self, error: &dyn std::fmt::Display) -> BridgeError {
        BridgeError::Rtps { topic: self.name.clone(), reason: error.to_string() }
    }
}

/// A writer of the RTPS domain.
///
/// A volatile reader of CycloneDDS takes the samples that the first heartbeat announces for older than itself, and drops those of them that
/// come after it. A heartbeat of RustDDS announces samples that were written and are yet to be sent. So readers have to get one before: the
/// first sample after a reader has come is written when that reader has confirmed the samples before ([`RtpsWriter::await_new_readers`]). As
/// long as nothing was written, RustDDS sends a reader no heartbeat but the one with which it matches, which may come too early; so there is
/// a sample from the beginning, which goes to no reader.
pub(crate) struct RtpsWriter {
    writer: WriterKind,
    /// A reader may have come since the last write.
    has_new_reader: Cell<bool>,
}

enum ReaderKind {
    Keyed(with_key::DataReader<RawSample, RawAdapter>),
    Plain(no_key::DataReader<RawSample, RawAdapter>),
}

/// The samples in the cache of a topic, in the order in which they came, those included that RustDDS does not hand over.
///
/// RustDDS has one cache for all readers of a participant and a topic. A best-effort reader is handed all that is there, even if no writer
/// matches it. This one requests what no writer offers, and names a type that no other participant has, so none takes it for a peer.
pub(crate) struct CachedSamples(ReaderKind);

impl CachedSamples {
    /// Returns those that have come since the last call.
    pub(crate) fn take(&mut self) -> Vec<RtpsNews> {
        let taken = match &mut self.0 {
            ReaderKind::Keyed(reader) => reader
                .take(usize::MAX, ReadCondition::any())
                .map(|samples| samples.into_iter().map(news_of_keyed).collect()),
            ReaderKind::Plain(reader) => reader
                .take(usize::MAX, ReadCondition::any())
                .map(|samples| samples.into_iter().map(news_of_plain).collect()),
        };
        // What cannot be read is reported by the other reader; the rest comes with the next call.
        taken.unwrap_or_default()
    }
}

enum WriterKind {
    Keyed(with_key::DataWriter<RawSample, RawAdapter>),
    Plain(no_key::DataWriter<RawSample, RawAdapter>),
}

impl RtpsWriter {
    /// Writes a sample with its header. Waits for space, at most [`FORWARD_PATIENCE`].
    pub(crate) fn write(&self, sample: Vec<u8>) -> Result<(), ForwardError> {
        let sample = RawSample(sample);
        let outcome = match &self.writer {
            WriterKind::Keyed(writer) => writer.write(sample, None).map_err(WriteError::forget_data),
            WriterKind::Plain(writer) => writer.write(sample, None).map_err(WriteError::forget_data),
        };
        outcome.map_err(|error| match error {
            WriteError::WouldBlock { .. } => ForwardError::PeerSlow { waited: FORWARD_PATIENCE },
            error => ForwardError::Rtps(error.to_string()),
        })
    }

    /// Writes a sample to a reader that there is not.
    fn write_first(&self) -> Result<(), WriteError<()>> {
        let sample = RawSample(vec![0; HEADER_BYTES]);
        let options = WriteOptionsBuilder::new().to_single_reader(GUID::GUID_UNKNOWN).build();
        let outcome = match &self.writer {
            WriterKind::Keyed(writer) => writer.write_with_options(sample, options),
            WriterKind::Plain(writer) => writer.write_with_options(sample, options),
        };
        outcome.map(drop).map_err(WriteError::forget_data)
    }

    /// If a reader has come since the last call, waits until all reliable readers have confirmed what was written, at most
    /// [`FORWARD_PATIENCE`]. Returns whether they have: one that does not confirm may lose samples.
    pub(crate) fn await_new_readers(&self) -> bool {
        if !self.has_new_reader.take() {
            return true;
        }
        self.await_confirmation()
    }

    /// Waits until all reliable readers have confirmed what was written, at most [`FORWARD_PATIENCE`]. Returns whether they have.
    pub(crate) fn await_confirmation(&self) -> bool {
        let outcome = match &self.writer {
            WriterKind::Keyed(writer) => writer.wait_for_acknowledgments(FORWARD_PATIENCE),
            WriterKind::Plain(writer) => writer.wait_for_acknowledgments(FORWARD_PATIENCE),
        };
        matches!(outcome, Ok(true))
    }

    /// Returns what has become of a reader since the last call. RustDDS holds four of these and loses the rest.
    pub(crate) fn next_peer(&self) -> Option<RtpsPeerNews> {
        loop {
            let status = match &self.writer {
                WriterKind::Keyed(writer) => writer.try_recv_status(),
                WriterKind::Plain(writer) => writer.try_recv_status(),
            };
            match status? {
                DataWriterStatus::PublicationMatched { current, reader, .. } => {
                    self.has_new_reader.set(self.has_new_reader.get() || current.count_change() > 0);
                    return Some(RtpsPeerNews::matched(current.count_change(), reader));
                }
                DataWriterStatus::OfferedIncompatibleQos { requested_qos, .. }
                    if requested_qos.latency_budget() == Some(CACHE_MARK) => {}
                DataWriterStatus::OfferedIncompatibleQos { last_policy_id, .. } => {
                    return Some(RtpsPeerNews::Incompatible(format!("{last_policy_id:?}")));
                }
                _ => {}
            }
        }
    }
}

impl RtpsPeerNews {
    fn matched(change: i32, peer: GUID) -> Self {
        if change > 0 { Self::Came(peer.to_bytes()) } else { Self::Went(peer.to_bytes()) }
    }
}

fn peers_of_reader(event: &DataReaderStatus) -> Option<RtpsNews> {
    match event {
        DataReaderStatus::SubscriptionMatched { current, writer, .. } => {
            Some(RtpsNews::Peer(RtpsPeerNews::matched(current.count_change(), *writer)))
        }
        DataReaderStatus::RequestedIncompatibleQos { last_policy_id, .. } => {
            Some(RtpsNews::Peer(RtpsPeerNews::Incompatible(format!("{last_policy_id:?}"))))
        }
        _ => None,
    }
}

/// The end of an instance has a key alone.
fn news_of_keyed(sample: with_key::DataSample<RawSample>) -> RtpsNews {
    let of = sample.sample_info().sample_identity();
    news_of_sample(sample.into_value().value(), of)
}

fn news_of_plain(sample: no_key::DataSample<RawSample>) -> RtpsNews {
    let of = sample.sample_info().sample_identity();
    news_of_sample(Some(sample.into_value()), of)
}

fn news_of_sample(sample: Option<RawSample>, of: SampleIdentity) -> RtpsNews {
    let (writer, number) = (of.writer_guid.to_bytes(), of.sequence_number.into());
    RtpsNews::Sample { cdr: sample.map(|RawSample(bytes)| bytes), writer, number }
}

fn news_of_error(error: ReadError) -> RtpsNews {
    match error {
        // The bridge knows no keys.
        ReadError::UnknownKey { .. } => RtpsNews::UnknownEnd,
        error => RtpsNews::Error(ForwardError::Rtps(error.to_string())),
    }
}

/// Returns the participant of an endpoint.
pub(crate) fn prefix_of(endpoint: RtpsEndpointBytes) -> GuidPrefixBytes {
    let mut prefix = GuidPrefixBytes::default();
    prefix.copy_from_slice(&endpoint[..size_of::<GuidPrefixBytes>()]);
    prefix
}

/// What the bridge's writers offer: readers that come later get the last samples if the Squall domain keeps the topic. The resource limits
/// are how many samples may be unconfirmed before a write waits; RustDDS takes 8192 otherwise, whatever the history says.
fn offered(settings: &TopicSettings) -> QosPolicies {
    let durability = if settings.profile.keeps() { Durability::TransientLocal } else { Durability::Volatile };
    let unconfirmed = i32::from(settings.history).max(UNCONFIRMED_MIN);
    builder(settings, settings.history.into(), unconfirmed).durability(durability).build()
}

/// What the bridge's readers request: any writer matches in this. It is the topic's policy too, since RustDDS bounds by that one what
/// waits to be read, and removes the oldest sample above, which the writer takes for delivered.
fn requested(settings: &TopicSettings) -> QosPolicies {
    let held = settings.read_ahead.into();
    builder(settings, held, held).durability(Durability::Volatile).build()
}

/// What the second reader of a cache requests: it bounds nothing, so that the bounds are those of the first one.
fn requested_of_cache() -> QosPolicies {
    QosPolicyBuilder::new()
        .reliability(Reliability::BestEffort)
        .durability(Durability::Volatile)
        .history(History::KeepAll)
        .ownership(Ownership::Exclusive { strength: 0 })
        .latency_budget(CACHE_MARK)
        .build()
}

fn builder(settings: &TopicSettings, depth: i32, max_samples: i32) -> QosPolicyBuilder {
    let max_blocking_time = rustdds::Duration::from_std(FORWARD_PATIENCE);
    let reliability =
        if settings.reliable { Reliability::Reliable { max_blocking_time } } else { Reliability::BestEffort };
    // All samples are of one instance.
    let limits = ResourceLimits { max_samples, max_instances: 1, max_samples_per_instance: max_samples };
    QosPolicyBuilder::new()
        .reliability(reliability)
        .history(History::KeepLast { depth })
        .resource_limits(limits)
}

/// Of both participants: each has one for datagrams and one for discovery.
const THREADS: usize = 4;
/// The type of the second reader of a cache, and the budget by which bridges know each other's: a number that no application has.
const CACHE_TYPE: &str = "squall::bridge::Cache";
const CACHE_MARK: LatencyBudget = LatencyBudget { duration: rustdds::Duration::from_secs(0x5371_6c6c) };
/// Samples of a writer that may be unconfirmed, if its history is not longer.
const UNCONFIRMED_MIN: i32 = 1024;

/// A sample as it travels: its header, and its type in CDR. All samples are of one instance, since the bridge does not know their type.
#[derive(Clone, Debug)]
struct RawSample(Vec<u8>);

impl Keyed for RawSample {
    type K = ();

    fn key(&self) {}
}

/// Passes the bytes of samples as they are. Not fuzzed: it copies.
struct RawAdapter;

#[derive(Clone)]
struct RawDecoder;

impl no_key::DeserializerAdapter<RawSample> for RawAdapter {
    type Error = Infallible;
    type Decoded = RawSample;

    fn supported_encodings() -> &'static [RepresentationIdentifier] {
        &[RepresentationIdentifier::CDR_BE, RepresentationIdentifier::CDR_LE]
    }

    fn transform_decoded(decoded: RawSample) -> RawSample {
        decoded
    }
}

impl no_key::DefaultDecoder<RawSample> for RawAdapter {
    type Decoder = RawDecoder;
    const DECODER: RawDecoder = RawDecoder;
}

impl no_key::Decode<'_, RawSample> for RawDecoder {
    type Error = Infallible;

    fn decode_bytes(self, input: &[u8], encoding: RepresentationIdentifier) -> Result<RawSample, Infallible> {
        Ok(RawSample([&encoding.to_bytes(), [0; 2].as_slice(), input].concat()))
    }
}

impl with_key::DeserializerAdapter<RawSample> for RawAdapter {
    type DecodedKey = ();

    fn transform_decoded_key((): ()) {}
}

impl with_key::DefaultDecoder<RawSample> for RawAdapter {
    type Decoder = RawDecoder;
    const DECODER: RawDecoder = RawDecoder;
}

impl with_key::Decode<'_, RawSample, ()> for RawDecoder {
    fn decode_key_bytes(self, _: &[u8], _: RepresentationIdentifier) -> Result<(), Infallible> {
        Ok(())
    }
}

impl no_key::SerializerAdapter<RawSample> for RawAdapter {
    type Error = Infallible;

    /// [`crate::TopicForm::to_rtps`] checks that.
    fn output_encoding() -> RepresentationIdentifier {
        RepresentationIdentifier::CDR_LE
    }

    fn to_bytes(RawSample(bytes): &RawSample) -> Result<Bytes, Infallible> {
        Ok(Bytes::copy_from_slice(&bytes[HEADER_BYTES..]))
    }
}

impl with_key::SerializerAdapter<RawSample> for RawAdapter {
    fn key_to_bytes((): &()) -> Result<Bytes, Infallible> {
        Ok(Bytes::new())
    }
}
