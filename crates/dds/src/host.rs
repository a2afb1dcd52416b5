//! What a member does for clients outside the group, of topics that keep nothing: it has their readers and writers, in their place.
//!
//! Each reader and writer of a client has a connection, and a thread of this member. It is an endpoint of the member, so others match it
//! like any other one, and it ends with the connection, or with the member. None waits for a client: a reader that is full loses samples,
//! which the client learns, and the outcome of what a client writes is reported to it. A client that takes nothing for a minute is
//! disconnected.

use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use squall::external::ClientChannel;
use squall_fabric::atomics::{AtomicUsize, Ordering};

use crate::error::{EntityError, ReadError, WriteError};
use crate::participant::{DomainMember, Topic};
use crate::qos::{Qos, ReliabilityKind, ResourceLimits};
use crate::reader::DataReader;
use crate::run_time::TopicDescription;
use crate::sample::SampleInfo;
use crate::wire::TopicFrame;
use crate::writer::DataWriter;

/// What a client asks a member for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum HostRequest {
    /// The topics, which [`HostReply::Topics`] has.
    Topics,
    /// A reader of this topic. The samples follow, to the end of the connection.
    Read { topic: String, qos: Qos },
    /// A writer of this topic. Changes follow, each as a message of its own ([`TopicFrame::Change`]).
    Write { topic: String, qos: Qos },
}

/// What a member answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum HostReply {
    Topics(Vec<TopicDescription>),
    /// The reader or writer is there, and the longest message of the topic has this many bytes.
    Opened {
        length_max: usize,
    },
    /// It is not there, or ends, for this reason.
    Refused(String),
    Samples(Vec<HostedSample>),
    /// This many samples came before the next ones, and there was no space for them.
    Lost(u64),
    /// This many changes are at all members, from the first one on.
    Written(u64),
}

/// A sample as a member hands it to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostedSample {
    pub(crate) data: Option<Bytes>,
    pub(crate) info: SampleInfo,
}

impl HostRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("names and policies can be serialised")
    }

    /// Reads a request. Not fuzzed: a property below gives it arbitrary bytes.
    fn decode(bytes: &[u8]) -> io::Result<Self> {
        postcard::from_bytes(bytes).map_err(|_| unreadable())
    }
}

impl HostReply {
    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("samples can be serialised")
    }

    /// Reads a reply. Not fuzzed: a property below gives it arbitrary bytes.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        postcard::from_bytes(bytes).map_err(|_| unreadable())
    }
}

/// Serves clients from the time at which the participant is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicHost(Arc<HostState>);

#[derive(Debug, Default)]
struct HostState {
    member: OnceLock<Weak<DomainMember>>,
    /// The bytes that wait for all clients to take them.
    unsent: AtomicUsize,
}

/// The part of one client in the bytes that wait.
struct UnsentShare<'a> {
    total: &'a AtomicUsize,
    own: usize,
}

impl UnsentShare<'_> {
    /// Notes how many bytes wait now; returns whether more may.
    fn set(&mut self, own: usize) -> bool {
        self.total.fetch_add(own.wrapping_sub(self.own), Ordering::Relaxed);
        self.own = own;
        own < UNSENT_MAX && self.total.load(Ordering::Relaxed) < UNSENT_TOTAL_MAX
    }
}

impl Drop for UnsentShare<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl TopicHost {
    pub(crate) fn open(&self, member: &Arc<DomainMember>) {
        // It is opened once.
        let _ = self.0.member.set(Arc::downgrade(member));
    }

    /// Serves a client, to the end of its connection.
    pub(crate) fn serve(&self, client: &mut ClientChannel<'_>) -> io::Result<()> {
        while !client.is_closing() {
            let Some(request) = client.receive(LONG)? else { continue };
            let request = HostRequest::decode(&request)?;
            let Some(member) = self.member(client) else { break };
            match request {
                HostRequest::Topics => client.put(&HostReply::Topics(member.topics()).encode()),
                HostRequest::Read { topic, qos } => match open_reader(&member, &topic, qos) {
                    Ok(reader) => return read(&reader, client, &self.0.unsent),
                    Err(error) => return refuse(&error.to_string(), client),
                },
                HostRequest::Write { topic, qos } => match open_writer(&member, &topic, qos) {
                    Ok(writer) => return write(&writer, client),
                    Err(error) => return refuse(&error.to_string(), client),
                },
            }
        }
        Ok(())
    }

    /// Returns the participant, which may be about to join; `None` if it ends, or the client has gone.
    fn member(&self, client: &mut ClientChannel<'_>) -> Option<Arc<DomainMember>> {
        while self.0.member.get().is_none() && !client.is_closing() && !client.is_over() {
            std::thread::sleep(TICK);
        }
        self.0.member.get()?.upgrade()
    }
}

/// Returns a topic, which a client may have created at another member just now.
fn find(member: &DomainMember, name: &str) -> Result<Topic<Vec<u8>>, EntityError> {
    member.wait_for_topic(name, FIND_PATIENCE)?;
    member.topic_of_any_type(name)
}

fn open_reader(member: &DomainMember, name: &str, qos: Qos) -> Result<DataReader<Vec<u8>>, EntityError> {
    let topic = find(member, name)?;
    let longest = topic.port.outlet.message_max().max(1);
    let samples_max = (READER_BYTES_MAX / longest).clamp(READER_SAMPLES_LEAST, READER_SAMPLES_MAX);
    // Writers never wait for it.
    let reliability = ReliabilityKind::BestEffort;
    let resource_limits = ResourceLimits { samples_max, ..ResourceLimits::DEFAULT };
    member.open_reader(&topic, Qos { reliability, resource_limits, ..qos })
}

fn open_writer(member: &DomainMember, name: &str, qos: Qos) -> Result<DataWriter<Vec<u8>>, EntityError> {
    let topic = find(member, name)?;
    member.open_writer(&topic, Qos { max_blocking_time: TICK, ..qos })
}

fn refuse(cause: &str, client: &mut ClientChannel<'_>) -> io::Result<()> {
    client.put(&HostReply::Refused(cause.into()).encode());
    client.flush(REFUSAL_PATIENCE).map(drop)
}

/// Sends what the reader gets. While the client does not take it, a bounded part waits, and the rest is lost.
fn read(reader: &DataReader<Vec<u8>>, client: &mut ClientChannel<'_>, total: &AtomicUsize) -> io::Result<()> {
    let mut share = UnsentShare { total, own: 0 };
    client.put(&HostReply::Opened { length_max: reader.port().outlet.message_max() }.encode());
    let mut lost = 0;
    while !client.is_closing() && !client.is_over() {
        if client.flush(PACE)? {
            match reader.wait_for_data(TICK) {
                Ok(()) | Err(ReadError::Timeout(_)) => {}
                // The member leaves, which the channel reports.
                Err(_) => return Ok(()),
            }
        }
        let Ok(taken) = reader.take(TAKEN_MAX) else { return Ok(()) };
        let has_space = share.set(client.unsent());
        if lost > 0 && has_space {
            client.put(&HostReply::Lost(std::mem::take(&mut lost)).encode());
        }
        if taken.is_empty() {
            client.keep_alive();
        } else if has_space {
            let samples = taken
                .into_iter()
                .map(|sample| HostedSample { data: sample.data.map(Bytes::from), info: sample.info });
            put_samples(samples, client);
        } else {
            lost += taken.iter().filter(|sample| sample.data.is_some()).count() as u64;
        }
        // They came after those that were taken.
        lost += reader.sample_rejected().total_count_change + reader.sample_lost().total_count_change;
    }
    Ok(())
}

/// Puts samples into messages of a moderate length.
fn put_samples(samples: impl Iterator<Item = HostedSample>, client: &mut ClientChannel<'_>) {
    let (mut together, mut bytes) = (Vec::new(), 0);
    for sample in samples {
        let length = sample.data.as_ref().map_or(0, Bytes::len) + sample.info.instance.key().len();
        if bytes + length > TOGETHER_BYTES && !together.is_empty() {
            client.put(&HostReply::Samples(std::mem::take(&mut together)).encode());
            bytes = 0;
        }
        bytes += length + SAMPLE_BYTES;
        together.push(sample);
    }
    if !together.is_empty() {
        client.put(&HostReply::Samples(together).encode());
    }
}

/// Writes what the client sends, and reports what is at all members.
fn write(writer: &DataWriter<Vec<u8>>, client: &mut ClientChannel<'_>) -> io::Result<()> {
    client.put(&HostReply::Opened { length_max: writer.length_max() }.encode());
    let mut written = 0;
    while !client.is_closing() {
        let mut next = client.receive(LONG)?;
        if next.is_none() {
            continue;
        }
        // Those that came together have one report.
        while let Some(message) = next {
            let Some(TopicFrame::Change(header, data)) = TopicFrame::decode(&message) else {
                return Err(unreadable());
            };
            let attempt = || writer.write_change(header.kind, header.key, data);
            if !insist(attempt, client)? {
                return Ok(());
            }
            written += 1;
            next = client.receive_next()?;
        }
        let sent = writer.sent();
        if !insist(|| writer.wait_for_outcome(sent, TICK), client)? {
            return Ok(());
        }
        client.put(&HostReply::Written(written).encode());
    }
    Ok(())
}

/// Tries until it is done, and shows the client meanwhile that this member is alive. Returns whether it is done; if not, the connection
/// ends.
fn insist(
    mut attempt: impl FnMut() -> Result<(), WriteError>,
    client: &mut ClientChannel<'_>,
) -> io::Result<bool> {
    loop {
        match attempt() {
            Ok(()) => return Ok(true),
            Err(WriteError::Timeout(_)) if client.is_closing() || client.is_over() => return Ok(false),
            Err(WriteError::Timeout(_)) => {
                client.keep_alive();
                client.flush(Duration::ZERO)?;
            }
            Err(error) => return refuse(&error.to_string(), client).map(|()| false),
        }
    }
}

fn unreadable() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message of another release, or damaged: use the same release everywhere",
    )
}

/// Between looks whether the client or the member ends.
const TICK: Duration = Duration::from_millis(50);
/// Between looks at a reader whose client does not take what was sent: samples of this time have to find space at the reader.
const PACE: Duration = Duration::from_millis(5);
/// How long a thread waits at a time for a client that has nothing to say.
const LONG: Duration = Duration::from_secs(60);
/// How long a topic may take to come here from another member.
const FIND_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to take the reason for a refusal.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// The bytes that wait for a client to take them, and for all clients of this member.
const UNSENT_MAX: usize = 16 << 20;
const UNSENT_TOTAL_MAX: usize = 512 << 20;
/// The bytes of a reader between two looks, if its samples are as long as they can be, and bounds of their number.
const READER_BYTES_MAX: usize = 32 << 20;
const READER_SAMPLES_LEAST: usize = 4;
const READER_SAMPLES_MAX: usize = 16 << 10;
/// Samples that are taken together.
const TAKEN_MAX: usize = 4096;
/// The bytes of samples that are sent together.
const TOGETHER_BYTES: usize = 32 << 10;
/// About what a sample takes besides its data and its key.
const SAMPLE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What waits for one client counts for all, until it is sent or the client has gone.
    #[test]
    fn what_waits_for_clients_is_bounded() {
        let total = AtomicUsize::new(0);
        let mut first = UnsentShare { total: &total, own: 0 };
        assert!(first.set(UNSENT_MAX - 1) && !first.set(UNSENT_MAX));
        let others = UNSENT_TOTAL_MAX - UNSENT_MAX;
        total.fetch_add(others, Ordering::Relaxed);
        assert!(!UnsentShare { total: &total, own: 0 }.set(1));
        assert!(first.set(1));
        drop(first);
        assert_eq!(total.load(Ordering::Relaxed), others);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0u8..8) {
            let bytes = [&[kind], &bytes[..]].concat();
            if let Ok(request) = HostRequest::decode(&bytes) {
                prop_assert_eq!(HostRequest::decode(&request.encode()).expect("it is one"), request);
            }
            if let Ok(reply) = HostReply::decode(&bytes) {
                prop_assert_eq!(HostReply::decode(&reply.encode()).expect("it is one"), reply);
            }
        }
    }
}
