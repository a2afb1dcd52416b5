//! The client's side of publishing.

use std::io::{self, Write as _};
use std::time::Duration;

use super::connection::{FoundMember, MemberFinder, SILENCE_MAX};
use super::error::{ExternalError, PublishError};
use super::wire::{self, BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ExternalNotice, ExternalRequest};
use crate::config::Config;

/// Sends messages to a subgroup from outside the group; see [`super`].
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::Publisher;
/// use squall::{Config, Group};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-publisher-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let _member = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
///
/// let mut publisher = Publisher::connect_with(&config, "log", Duration::from_secs(5))?;
/// publisher.publish(&["one", "two"])?; // returns when all members have delivered both
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Publisher {
    finder: MemberFinder,
    subgroup: String,
    timeout: Duration,
    resends: bool,
    session: Option<Session>,
}

/// A connection to a member that takes messages.
#[derive(Debug)]
struct Session {
    found: FoundMember,
    /// This client's number at the member.
    client: u64,
    /// The number of the next message.
    next: u64,
    message_max: usize,
}

/// The outcome of a batch that was not delivered completely.
#[derive(Debug)]
struct Cut {
    /// The number of messages that are delivered; they are the first ones.
    delivered: usize,
    /// The number of messages after them whose outcome is unknown; the rest were not sent.
    unknown: usize,
    cause: String,
}

impl Publisher {
    /// Connects to a member of `subgroup` that takes clients' messages. `config` is the members' configuration; any
    /// contact that answers is sufficient.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str) -> Result<Self, ExternalError> {
        Self::connect_with(config, subgroup, Duration::from_secs(10))
    }

    /// Connects like [`Publisher::connect`], and looks for a member for up to `timeout`, now and whenever one is
    /// lost.
    ///
    /// # Errors
    /// The errors of [`Publisher::connect`].
    pub fn connect_with(config: &Config, subgroup: &str, timeout: Duration) -> Result<Self, ExternalError> {
        let finder = MemberFinder::new(config, subgroup)?;
        let (subgroup, resends, session) = (subgroup.to_owned(), false, None);
        let mut publisher = Self { finder, subgroup, timeout, resends, session };
        publisher.session()?;
        Ok(publisher)
    }

    /// Sets whether messages whose delivery is unknown are sent again through another member: then none is missing,
    /// and some may be delivered twice. Otherwise [`Publisher::publish`] returns an error with their number.
    pub const fn set_resend(&mut self, resends: bool) {
        self.resends = resends;
    }

    /// Returns the length of the longest message in bytes, if a member is connected.
    #[must_use]
    pub fn message_max(&self) -> Option<usize> {
        self.session.as_ref().map(|session| session.message_max)
    }

    /// Sends messages in their order, and returns when all members have delivered them. It waits while the group does.
    ///
    /// # Errors
    /// [`PublishError`], with the number of messages that are delivered and of those for which that is unknown.
    pub fn publish<M: AsRef<[u8]>>(&mut self, messages: &[M]) -> Result<(), PublishError> {
        let mut delivered = 0;
        while delivered < messages.len() {
            let failed = |cause| PublishError { delivered, unknown: 0, cause };
            let message_max = self.session().map_err(failed)?.message_max;
            let batch = batch(&messages[delivered..], message_max).map_err(failed)?;
            let Err(cut) = self.publish_batch(&batch) else {
                delivered += batch.len();
                continue;
            };
            delivered += cut.delivered;
            if cut.unknown > 0 && !self.resends {
                let cause = ExternalError::MemberLost { cause: cut.cause };
                return Err(PublishError { delivered, unknown: cut.unknown, cause });
            }
        }
        Ok(())
    }

    fn session(&mut self) -> Result<&mut Session, ExternalError> {
        if self.session.is_none() {
            let request = ExternalRequest::Publish { subgroup: self.subgroup.clone(), client: None };
            let found = self.finder.find(&request, self.timeout)?;
            self.session = Session::begin(found);
        }
        self.session.as_mut().ok_or_else(|| ExternalError::Unserved {
            subgroup: self.subgroup.clone(),
            tried_for: Duration::ZERO,
            cause: "a member sent an unexpected answer: run the same release everywhere".into(),
        })
    }

    /// Sends a batch, and again to the same member if the connection breaks. Afterwards there is a session only if
    /// all messages are delivered.
    fn publish_batch(&mut self, batch: &[&[u8]]) -> Result<(), Cut> {
        let nothing = || Cut { delivered: 0, unknown: 0, cause: "there is no connection".into() };
        let mut session = self.session.take().ok_or_else(nothing)?;
        let first = session.next;
        let mut delivered = 0;
        let mut attempts = 0;
        loop {
            let error = match session.exchange(first, batch, &mut delivered) {
                Ok(None) => {
                    session.next = first + batch.len() as u64;
                    self.session = Some(session);
                    return Ok(());
                }
                Ok(Some(cut)) => return Err(cut),
                Err(error) => error,
            };
            attempts += 1;
            let again = if attempts > RESUMPTIONS_MAX { None } else { self.resume(&session) };
            session = match again {
                Some(resumed) => resumed,
                None => {
                    let unknown = batch.len() - delivered;
                    return Err(Cut { delivered, unknown, cause: error.to_string() });
                }
            };
        }
    }

    /// Opens another connection to the same member, if it remembers this client.
    fn resume(&self, session: &Session) -> Option<Session> {
        let request =
            ExternalRequest::Publish { subgroup: self.subgroup.clone(), client: Some(session.client) };
        let FoundMember { member, .. } = &session.found;
        let found = self.finder.call(member, &request).ok()?;
        Session::begin(found).filter(|resumed| resumed.client == session.client)
    }
}

impl Session {
    fn begin(found: FoundMember) -> Option<Self> {
        let ExternalNotice::Open { client, message_max } = found.notice else { return None };
        let message_max = usize::try_from(message_max).unwrap_or(usize::MAX);
        Some(Self { found, client, next: 0, message_max })
    }

    /// Sends a batch and awaits its outcome; counts its delivered messages in `delivered`.
    fn exchange(&mut self, first: u64, batch: &[&[u8]], delivered: &mut usize) -> io::Result<Option<Cut>> {
        let length = |message: &&[u8]| u32::try_from(message.len()).expect("batches are bounded");
        let lengths = batch.iter().map(length).collect();
        let mut bytes = Vec::new();
        wire::write(&ExternalRequest::Messages { first, lengths }, batch, &mut bytes);
        // If the connection breaks, the member may have sent the reason before.
        let written = self.found.connection.stream.write_all(&bytes);
        loop {
            let received = self.found.connection.receive::<ExternalNotice>(SILENCE_MAX);
            let received = match (received, &written) {
                (Err(_), Err(error)) => return Err(error.kind().into()),
                (received, _) => received?,
            };
            let Some((notice, _)) = received else { return Err(io::ErrorKind::TimedOut.into()) };
            let count = |through: u64| {
                let count = usize::try_from(through.saturating_sub(first)).unwrap_or(usize::MAX);
                count.min(batch.len())
            };
            match notice {
                ExternalNotice::Alive => {}
                ExternalNotice::Delivered { through } => {
                    *delivered = count(through).max(*delivered);
                    if *delivered == batch.len() {
                        return Ok(None);
                    }
                }
                ExternalNotice::Unknown { through } => {
                    let unknown = count(through).saturating_sub(*delivered);
                    let cause = "the member cannot report what has become of them".into();
                    return Ok(Some(Cut { delivered: *delivered, unknown, cause }));
                }
                ExternalNotice::Elsewhere { why: cause, .. } | ExternalNotice::Ended(cause) => {
                    return Ok(Some(Cut { delivered: *delivered, unknown: 0, cause }));
                }
                _ => return Err(wire::invalid("an unexpected notice")),
            }
        }
    }
}

/// Returns as many of the first messages as fit into one batch.
fn batch<M: AsRef<[u8]>>(messages: &[M], message_max: usize) -> Result<Vec<&[u8]>, ExternalError> {
    let mut batch: Vec<&[u8]> = Vec::new();
    let mut bytes = 0;
    for message in messages.iter().map(AsRef::as_ref).take(BATCH_MESSAGES_MAX) {
        let is_too_long = message.len() > message_max;
        if !batch.is_empty() && (is_too_long || bytes + message.len() > BATCH_BYTES_MAX) {
            break;
        }
        if is_too_long {
            return Err(ExternalError::TooLong { length: message.len(), message_max });
        }
        bytes += message.len();
        batch.push(message);
    }
    Ok(batch)
}

/// How often a batch is sent again to the same member.
const RESUMPTIONS_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch ends before a message that is too long, which alone is an error, and at its limits.
    #[test]
    fn batches_have_limits() {
        let cut = |messages: &[&[u8]], max| batch(messages, max).map(|batch| batch.len());
        assert_eq!(cut(&[b"a", b"", b"bc"], 2), Ok(3));
        assert_eq!(cut(&[b"a", b"abc", b"d"], 2), Ok(1));
        assert_eq!(cut(&[b"abc", b"d"], 2), Err(ExternalError::TooLong { length: 3, message_max: 2 }));
        assert_eq!(cut(&[b"" as &[u8]; 2000], 2), Ok(BATCH_MESSAGES_MAX));
        let long = vec![0; BATCH_BYTES_MAX];
        assert_eq!(cut(&[&long, b"a"], usize::MAX), Ok(1));
        assert_eq!(cut(&[b"a", &long], usize::MAX), Ok(1));
    }
}
