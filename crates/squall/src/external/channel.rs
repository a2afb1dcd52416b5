//! Connections between a member's application and processes outside the group: messages both ways, whose meaning is the application's.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::bootstrap::Address;

use super::connection::{FrameConnection, MemberFinder, SILENCE_MAX};
use super::error::ExternalError;
use super::wire::{self, BATCH_BYTES_MAX, ExternalNotice, ExternalRequest, HEAD_BYTES_MAX, invalid};
use crate::config::Config;

/// A process outside the group that is connected to this member's application ([`crate::Builder::on_client`]).
#[derive(Debug)]
pub struct ClientChannel<'a> {
    connection: &'a mut FrameConnection,
    is_closed: &'a AtomicBool,
    /// Frames that are not sent yet, and how much of them is.
    unsent: Vec<u8>,
    sent: usize,
    /// When the client last took something, or had nothing to take.
    taken: Instant,
    /// When something was last put.
    put: Instant,
}

impl<'a> ClientChannel<'a> {
    pub(super) fn begin(
        connection: &'a mut FrameConnection,
        is_closed: &'a AtomicBool,
        message_max: usize,
    ) -> Self {
        connection.frames.set_max(message_max.max(BATCH_BYTES_MAX) + HEAD_BYTES_MAX);
        let (now, unsent) = (Instant::now(), Vec::new());
        let mut channel = Self { connection, is_closed, unsent, sent: 0, taken: now, put: now };
        channel.put_notice(&ExternalNotice::Serving, &[]);
        channel
    }

    /// Returns whether the member ends, so that the client is to ask another one. [`ClientChannel::receive`] returns within a short time
    /// then.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Puts a message behind those that are not sent yet; [`ClientChannel::flush`] sends them. A message of more than 256 KiB has to be
    /// one that the group's longest messages would hold.
    pub fn put(&mut self, message: &[u8]) {
        self.put_notice(&ExternalNotice::Application, message);
    }

    /// Shows the client that this member is alive, if nothing else has for a second.
    pub fn keep_alive(&mut self) {
        if self.unsent() == 0 && self.put.elapsed() >= super::connection::ALIVE_EVERY {
            self.put_notice(&ExternalNotice::Alive, &[]);
        }
    }

    fn put_notice(&mut self, notice: &ExternalNotice, message: &[u8]) {
        if self.unsent() == 0 {
            (self.taken, self.sent) = (Instant::now(), 0);
            self.unsent.clear();
        }
        self.put = Instant::now();
        wire::write(notice, &[message], &mut self.unsent);
    }

    /// Returns how many bytes are put and not sent.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.unsent.len() - self.sent
    }

    /// Sends what was put, as far as the client takes it within `patience`; returns whether nothing is left.
    ///
    /// # Errors
    /// If the connection has ended, or the client has taken nothing for a minute.
    pub fn flush(&mut self, patience: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        while self.unsent() > 0 {
            if let Some(written) = self.connection.stream.try_write(&self.unsent[self.sent..])? {
                self.sent += written;
                self.taken = Instant::now();
                continue;
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() || self.is_closing() {
                break;
            }
            if self.connection.is_over() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let waited = Instant::now();
            self.connection.stream.wait_for(Some(left.min(LOOK)), || false)?;
            if waited.elapsed() < PAUSE {
                // There is something to read, which ends such a wait at once.
                std::thread::sleep(PAUSE);
            }
        }
        if self.unsent() > 0 && self.taken.elapsed() > STALL_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client has taken nothing for a minute"));
        }
        // What is in the buffers of the stream leaves while it is driven.
        self.connection.stream.drive();
        Ok(self.unsent() == 0)
    }

    /// Returns the next message of the client; `None` if none comes within `patience`, or the member ends. What was put is sent
    /// meanwhile, as far as the client takes it.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let until = Instant::now() + patience;
        loop {
            self.flush(Duration::ZERO)?;
            let left = until.saturating_duration_since(Instant::now());
            match self.connection.receive(left.min(LOOK))? {
                Some((ExternalRequest::Application, message)) => return Ok(Some(message)),
                Some(_) => return Err(invalid("a second first request")),
                None if self.connection.is_over() => return Err(io::ErrorKind::UnexpectedEof.into()),
                None if left.is_zero() || self.is_closing() => return Ok(None),
                None => {}
            }
        }
    }

    /// Returns the next message of the client, if it has arrived together with the one before.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn receive_next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.connection.frames.next()? {
            Some((ExternalRequest::Application, message)) => Ok(Some(message)),
            Some(_) => Err(invalid("a second first request")),
            None => Ok(None),
        }
    }

    /// Returns whether the other end has gone.
    pub fn is_over(&mut self) -> bool {
        self.connection.is_over()
    }

    /// Sends what is left, and that the member ends, if it does.
    pub(super) fn end(mut self) -> io::Result<()> {
        if self.is_closing() {
            self.put_notice(&ExternalNotice::Ended("the member has left the group".into()), &[]);
        }
        self.connection.stream.set_write_timeout(Some(END_PATIENCE));
        self.connection.stream.write_all(&self.unsent[self.sent..])
    }
}

/// A connection to a member's application, from outside the group ([`crate::Builder::on_client`]).
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::MemberChannel;
/// use squall::{Config, Group};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-member-channel-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// // The member says everything twice.
/// let echo = |client: &mut squall::external::ClientChannel<'_>| loop {
///     if let Some(message) = client.receive(Duration::from_secs(1))? {
///         client.put(&message.repeat(2));
///         client.flush(Duration::from_secs(1))?;
///     } else if client.is_closing() {
///         return Ok(());
///     }
/// };
/// let member = Group::builder(config.clone()).on_message("log", |_| ()).on_client("log", echo).join()?;
/// let mut channel = MemberChannel::connect(&config, "log", Duration::from_secs(10))?;
/// channel.send(b"so ")?;
/// assert_eq!(channel.receive(Duration::from_secs(10))?.as_deref(), Some(&b"so so "[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemberChannel {
    connection: FrameConnection,
    member: Address,
    /// When something was last sent.
    sent: Instant,
}

impl MemberChannel {
    /// Connects to the application of a member of `subgroup`. `config` is the members' configuration; any contact that answers is
    /// sufficient.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str, timeout: Duration) -> Result<Self, ExternalError> {
        let mut finder = MemberFinder::new(config, subgroup)?;
        let request = ExternalRequest::Connect { subgroup: subgroup.into() };
        let found = finder.find(&request, timeout)?;
        let (mut connection, member) = (found.connection, found.member);
        let longest = |subgroup: &crate::config::SubgroupConfig| {
            subgroup.message_max.max(subgroup.large_max.unwrap_or(0))
        };
        let longest = config.subgroups.values().map(longest).max().unwrap_or(0);
        connection.frames.set_max(longest.max(BATCH_BYTES_MAX) + HEAD_BYTES_MAX);
        Ok(Self { connection, member, sent: Instant::now() })
    }

    /// Returns the address of the member.
    #[must_use]
    pub const fn member(&self) -> &Address {
        &self.member
    }

    /// Ends the connection at once: what is on its way may be lost.
    pub fn abort(self) {
        self.connection.stream.abort();
    }

    /// Sends a message; returns when it has left this process.
    ///
    /// # Errors
    /// If the connection has ended, or the member takes nothing for 10 s.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(message.len() + 8);
        wire::write(&ExternalRequest::Application, &[message], &mut frame);
        self.sent = Instant::now();
        self.connection.stream.write_all(&frame)
    }

    /// Returns the next message; `None` if none comes within `patience`.
    ///
    /// # Errors If the connection has ended, with the reason if the member has given one; or if nothing has come for 10 s since the last
    /// message was sent: a member whose client awaits something calls [`ClientChannel::keep_alive`].
    pub fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.connection.receive(left)? {
                Some((ExternalNotice::Application, message)) => return Ok(Some(message)),
                Some((ExternalNotice::Alive, _)) => {}
                Some((ExternalNotice::Ended(why), _)) => return Err(io::Error::other(why)),
                Some(_) => return Err(invalid("an unexpected notice")),
                None if self.connection.heard.max(self.sent).elapsed() > SILENCE_MAX => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the member was silent for too long",
                    ));
                }
                None => return Ok(None),
            }
        }
    }
}

/// Between attempts to send while there is something to read.
const PAUSE: Duration = Duration::from_millis(1);
/// Between looks whether the member ends.
const LOOK: Duration = Duration::from_millis(50);
/// A client that takes nothing for this long is disconnected.
const STALL_MAX: Duration = Duration::from_secs(60);
/// How long a member that ends waits for a client to take what is left.
const END_PATIENCE: Duration = Duration::from_millis(200);
