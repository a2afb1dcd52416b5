//! The client's side of readers and writers that a member has in its place ([`crate::host`]).

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use squall::Config;
use squall::external::{ExternalError, MemberChannel};

use crate::cache::ChangeKind;
use crate::error::{EntityError, ReadError, WriteError};
use crate::host::{HostReply, HostRequest, HostedSample};
use crate::qos::Qos;
use crate::run_time::{REGISTRY, TopicDescription};
use crate::sample::{EndpointId, now_ns};
use crate::status::CountStatus;
use crate::wire::ChangeHeader;

/// Where clients find members.
#[derive(Clone, Debug)]
pub(crate) struct HostFinder {
    pub(crate) config: Config,
    /// How long to look for a member, and to wait for an answer.
    pub(crate) timeout: Duration,
}

/// Why there is no reader or writer.
#[derive(Debug)]
enum OpeningError {
    Unserved(ExternalError),
    Refused(String),
}

impl HostFinder {
    fn connect(&self) -> Result<MemberChannel, ExternalError> {
        MemberChannel::connect(&self.config, REGISTRY, self.timeout)
    }

    /// Returns the topics as a member knows them, by the connection of an earlier question if there is one.
    pub(crate) fn topics(
        &self,
        channel: &mut Option<MemberChannel>,
    ) -> Result<Vec<TopicDescription>, ReadError> {
        let known = channel.is_some();
        let asked = match channel {
            Some(channel) => channel,
            None => channel.insert(self.connect()?),
        };
        match ask(asked, &HostRequest::Topics, self.timeout) {
            Ok(HostReply::Topics(topics)) => Ok(topics),
            // The member may have ended since.
            _ if known => {
                *channel = None;
                self.topics(channel)
            }
            Ok(reply) => Err(ReadError::Interrupted(unexpected(&reply).to_string())),
            Err(error) => Err(ReadError::Interrupted(error.to_string())),
        }
    }

    /// Opens a reader or a writer at a member; returns also how long the topic's messages may be.
    fn open(&self, request: &HostRequest) -> Result<(MemberChannel, usize), OpeningError> {
        let begun = Instant::now();
        loop {
            let mut channel = self.connect().map_err(OpeningError::Unserved)?;
            let error = match ask(&mut channel, request, self.timeout) {
                Ok(HostReply::Opened { length_max }) => return Ok((channel, length_max)),
                Ok(HostReply::Refused(cause)) => return Err(OpeningError::Refused(cause)),
                Ok(reply) => unexpected(&reply),
                Err(error) => error,
            };
            // The member may have ended just now.
            if begun.elapsed() >= self.timeout {
                return Err(OpeningError::Refused(format!("{}: {error}", channel.member())));
            }
        }
    }
}

/// Asks a member, and returns its answer.
fn ask(channel: &mut MemberChannel, request: &HostRequest, timeout: Duration) -> io::Result<HostReply> {
    channel.send(&request.encode())?;
    let reply = channel.receive(timeout)?.ok_or(io::ErrorKind::TimedOut)?;
    HostReply::decode(&reply)
}

fn unexpected(reply: &HostReply) -> io::Error {
    let what = match reply {
        HostReply::Refused(cause) => cause.clone(),
        _ => "an unexpected reply: use the same release everywhere".into(),
    };
    io::Error::other(what)
}

impl OpeningError {
    fn of_entity(self, topic: &str) -> EntityError {
        match self {
            Self::Unserved(error) => EntityError::Unserved(error),
            Self::Refused(cause) => EntityError::Refused { topic: topic.into(), cause },
        }
    }
}

/// A reader that a member has for this client.
#[derive(Debug)]
pub(crate) struct HostedReader {
    finder: HostFinder,
    request: HostRequest,
    /// `None` after the member was lost.
    channel: Option<MemberChannel>,
    /// What has come and was not taken.
    pub(crate) arrived: VecDeque<HostedSample>,
    pub(crate) lost: CountStatus,
}

impl HostedReader {
    pub(crate) fn open(finder: HostFinder, topic: &str, qos: Qos) -> Result<Self, EntityError> {
        let request = HostRequest::Read { topic: topic.into(), qos };
        let (channel, _) = finder.open(&request).map_err(|error| error.of_entity(topic))?;
        let channel = Some(channel);
        Ok(Self { finder, request, channel, arrived: VecDeque::new(), lost: CountStatus::default() })
    }

    /// Takes what comes within `patience`, until there is a sample.
    pub(crate) fn pull(&mut self, patience: Duration) -> Result<(), ReadError> {
        let until = Instant::now() + patience;
        while self.arrived.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let channel = match &mut self.channel {
                Some(channel) => channel,
                None => match self.finder.open(&self.request) {
                    Ok((channel, _)) => self.channel.insert(channel),
                    Err(OpeningError::Unserved(error)) => return Err(ReadError::Unserved(error)),
                    Err(OpeningError::Refused(cause)) => return Err(ReadError::Interrupted(cause)),
                },
            };
            let error = match channel.receive(left) {
                Ok(None) => return Ok(()),
                Ok(Some(reply)) => match HostReply::decode(&reply) {
                    Ok(HostReply::Samples(samples)) => {
                        self.arrived.extend(samples);
                        continue;
                    }
                    Ok(HostReply::Lost(samples)) => {
                        self.lost.add(samples);
                        continue;
                    }
                    Ok(reply) => unexpected(&reply),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            self.drop_channel();
            return Err(ReadError::Interrupted(error.to_string()));
        }
        Ok(())
    }

    fn drop_channel(&mut self) {
        // Nothing on the connection is worth waiting for.
        self.channel.take().into_iter().for_each(MemberChannel::abort);
    }
}

impl Drop for HostedReader {
    fn drop(&mut self) {
        self.drop_channel();
    }
}

/// A writer that a member has for this client.
#[derive(Debug)]
pub(crate) struct HostedWriter {
    finder: HostFinder,
    topic: String,
    request: HostRequest,
    /// `None` after the member was lost.
    channel: Option<MemberChannel>,
    length_max: usize,
    /// The lengths of the changes that are on their way.
    under_way: VecDeque<usize>,
    bytes_under_way: usize,
    /// How many changes are at all members.
    written: u64,
}

impl HostedWriter {
    pub(crate) fn open(finder: HostFinder, topic: &str, qos: Qos) -> Result<Self, EntityError> {
        let request = HostRequest::Write { topic: topic.into(), qos };
        let (channel, length_max) = finder.open(&request).map_err(|error| error.of_entity(topic))?;
        let (channel, under_way, topic) = (Some(channel), VecDeque::new(), topic.into());
        Ok(Self { finder, topic, request, channel, length_max, under_way, bytes_under_way: 0, written: 0 })
    }

    /// Sends a change; waits while too many are on their way.
    pub(crate) fn send(
        &mut self,
        kind: ChangeKind,
        key: &[u8],
        data: &[u8],
        patience: Duration,
    ) -> Result<(), WriteError> {
        self.wait_until(patience, |writer| {
            writer.under_way.len() < UNDER_WAY_MAX && writer.bytes_under_way < BYTES_UNDER_WAY_MAX
        })?;
        let writer = EndpointId { node: 0, number: 0 };
        let header = ChangeHeader { kind, topic: 0, writer, source_time: now_ns(), key };
        let (length, length_max) = (header.length_with(data.len()), self.length_max);
        if length > length_max {
            return Err(WriteError::TooLong { length, length_max });
        }
        let mut change = vec![0; length];
        header.write(&mut change).copy_from_slice(data);
        let channel = match &mut self.channel {
            Some(channel) => channel,
            None => self.begin_again()?,
        };
        let sent = channel.send(&change);
        self.under_way.push_back(change.len());
        self.bytes_under_way += change.len();
        // What the member has reported before says more than that the connection has ended.
        sent.or_else(|error| self.receive(Duration::ZERO).and_then(|_| Err(self.lose(&error))))
    }

    /// Connects again, after a member was lost that had written everything.
    fn begin_again(&mut self) -> Result<&mut MemberChannel, WriteError> {
        let (channel, length_max) = self.finder.open(&self.request).map_err(|error| match error {
            OpeningError::Unserved(error) => WriteError::Unserved(error),
            OpeningError::Refused(cause) => {
                WriteError::MemberLost { unknown: 0, cause: format!("topic `{}`: {cause}", self.topic) }
            }
        })?;
        (self.written, self.length_max) = (0, length_max);
        Ok(self.channel.insert(channel))
    }

    /// Waits until everything is at all members.
    pub(crate) fn wait_for_acknowledgments(&mut self, patience: Duration) -> Result<(), WriteError> {
        self.wait_until(patience, |writer| writer.under_way.is_empty())
    }

    /// Ends the connection, and gives the member time to take what is on its way.
    pub(crate) fn close(&mut self) {
        // What has become of the rest is not asked for any more.
        let _ = self.wait_for_acknowledgments(END_PATIENCE);
        self.channel.take().into_iter().for_each(MemberChannel::abort);
    }

    fn wait_until(&mut self, patience: Duration, is_so: impl Fn(&Self) -> bool) -> Result<(), WriteError> {
        let begun = Instant::now();
        while !is_so(self) {
            let left = patience.saturating_sub(begun.elapsed());
            if !self.receive(left)? && left.is_zero() {
                return Err(WriteError::Timeout(patience));
            }
        }
        Ok(())
    }

    /// Takes a report; returns whether there was one.
    fn receive(&mut self, patience: Duration) -> Result<bool, WriteError> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        let reply = channel
            .receive(patience)
            .and_then(|reply| reply.map(|reply| HostReply::decode(&reply)).transpose());
        match reply {
            Ok(None) => Ok(false),
            Ok(Some(HostReply::Written(through))) => {
                while self.written < through {
                    let length = self.under_way.pop_front();
                    self.bytes_under_way -= length.unwrap_or_default();
                    self.written += 1;
                }
                Ok(true)
            }
            Ok(Some(reply)) => Err(self.lose(&unexpected(&reply))),
            Err(error) => Err(self.lose(&error)),
        }
    }

    fn lose(&mut self, error: &io::Error) -> WriteError {
        self.channel.take().into_iter().for_each(MemberChannel::abort);
        let unknown = self.under_way.len() as u64;
        self.under_way.clear();
        self.bytes_under_way = 0;
        WriteError::MemberLost { unknown, cause: error.to_string() }
    }
}

/// How long the end of a writer waits for what is on its way.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How many changes of a writer are on their way, and their bytes.
const UNDER_WAY_MAX: usize = 1024;
const BYTES_UNDER_WAY_MAX: usize = 1 << 20;
