//! The client's side of reading a durable subgroup from a position on.

use std::io;
use std::time::{Duration, Instant, UNIX_EPOCH};

use squall_transports::bootstrap::Address;

use super::connection::{FoundMember, MemberFinder, SILENCE_MAX};
use super::error::ExternalError;
use super::wire::{ExternalNotice, ExternalRequest};
use crate::Position;
use crate::config::Config;
use crate::history::StoredMessage;

/// Reads a durable subgroup from a position on, from outside the group; see [`super`].
///
/// ```
/// use squall::config::{StorageConfig, SubgroupConfig};
/// use squall::external::{Publisher, Replay};
/// use squall::{Config, DeliveryMode, Group, Position};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-replay-{}", std::process::id());
/// # let path = std::env::temp_dir().join(&name);
/// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
/// let mut config = Config::local(&name, 1).subgroup("orders", orders);
/// config.storage = Some(StorageConfig::new(&path));
/// let member = Group::builder(config.clone()).on_message("orders", |_| ()).join()?;
/// Publisher::connect(&config, "orders")?.publish(&["first", "second"])?;
///
/// let mut orders = Replay::connect(&config, "orders", Position::default())?; // from the beginning
/// assert_eq!(orders.next()?.bytes, b"first");
/// let noted = orders.position(); // the application keeps it with what it has made of the messages
/// drop(orders);
/// assert_eq!(Replay::connect(&config, "orders", noted)?.next()?.bytes, b"second");
/// # drop(member);
/// # std::fs::remove_dir_all(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Replay {
    finder: MemberFinder,
    cluster: String,
    timeout: Duration,
    found: Option<FoundMember>,
    /// The number of the group.
    group: Option<u64>,
    /// Everything before was returned.
    next: Position,
    /// When something was last received.
    heard: Instant,
}

impl Replay {
    /// Connects to a member of `subgroup`, to read from position `from` on. `config` is the members' configuration; any contact that
    /// answers is sufficient.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str, from: Position) -> Result<Self, ExternalError> {
        Self::connect_within(config, subgroup, from, TIMEOUT)
    }

    /// Connects like [`Replay::connect`], and looks for a member for up to `timeout`, now and whenever one is lost.
    ///
    /// # Errors
    /// The errors of [`Replay::connect`].
    pub fn connect_within(
        config: &Config,
        subgroup: &str,
        from: Position,
        timeout: Duration,
    ) -> Result<Self, ExternalError> {
        let (finder, cluster) = (MemberFinder::new(config, subgroup)?, config.cluster.clone());
        let (found, group, heard) = (None, None, Instant::now());
        let mut replay = Self { finder, cluster, timeout, found, group, next: from, heard };
        replay.reconnect()?;
        Ok(replay)
    }

    /// Returns the position before which everything was returned: a reader that begins there gets the next message.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.next
    }

    /// Returns the address of the member that this reader is connected to; `None` while it looks for another one.
    #[must_use]
    pub fn member(&self) -> Option<&Address> {
        self.found.as_ref().map(|found| &found.member)
    }

    fn reconnect(&mut self) -> Result<(), ExternalError> {
        let Position { view, sequence } = self.next;
        let subgroup: String = self.finder.subgroup().into();
        let request = ExternalRequest::Replay { subgroup: subgroup.clone(), view, sequence };
        let found = self.finder.find(&request, self.timeout)?;
        match found.notice {
            ExternalNotice::Replaying { group } => {
                if *self.group.get_or_insert(group) != group {
                    found.connection.stream.abort();
                    return Err(ExternalError::OtherGroup { cluster: self.cluster.clone() });
                }
            }
            ExternalNotice::NoLog => return Err(ExternalError::NoLog { subgroup }),
            ExternalNotice::Compacted { view, sequence } => {
                let oldest = Position { view, sequence };
                return Err(ExternalError::Compacted { subgroup, oldest });
            }
            _ => {
                let (tried_for, cause) = (Duration::ZERO, "the member sent an unexpected notice".into());
                return Err(ExternalError::Unserved { subgroup, tried_for, cause });
            }
        }
        self.found = Some(found);
        self.heard = Instant::now();
        Ok(())
    }

    /// Returns the next message; blocks until there is one. If the member is lost, the reader continues with another one: no message
    /// is missing, and none comes twice.
    ///
    /// # Errors
    /// [`ExternalError`] if no member serves this reader any more, or the next message is not kept. The call may be repeated.
    #[expect(clippy::should_implement_trait, reason = "it may fail and then continue")]
    pub fn next(&mut self) -> Result<StoredMessage, ExternalError> {
        loop {
            if let Some(message) = self.next_within(Duration::from_secs(1))? {
                return Ok(message);
            }
        }
    }

    /// Returns the next message, or `None` if there is none within `patience`; it takes longer if another member has to be found.
    ///
    /// # Errors
    /// The errors of [`Replay::next`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<StoredMessage>, ExternalError> {
        let until = Instant::now() + patience;
        loop {
            if self.found.is_none() {
                self.reconnect()?;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.receive(left) {
                Ok(Some((notice, bytes))) => {
                    self.heard = Instant::now();
                    if let Some(message) = self.take(notice, bytes)? {
                        return Ok(Some(message));
                    }
                }
                Ok(None) if self.heard.elapsed() > SILENCE_MAX => self.lose(),
                Ok(None) => return Ok(None),
                Err(_) => self.lose(),
            }
        }
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<(ExternalNotice, Vec<u8>)>> {
        match &mut self.found {
            Some(found) => found.connection.receive(patience),
            None => Ok(None),
        }
    }

    fn lose(&mut self) {
        if let Some(found) = self.found.take() {
            found.connection.stream.abort();
        }
    }

    /// Returns what a notice means for the application.
    fn take(
        &mut self,
        notice: ExternalNotice,
        bytes: Vec<u8>,
    ) -> Result<Option<StoredMessage>, ExternalError> {
        match notice {
            ExternalNotice::Stored { view, sequence, sender, received } => {
                let position = Position { view, sequence };
                if position < self.next {
                    // Not what was asked for.
                    self.lose();
                    return Ok(None);
                }
                self.next = Position { view, sequence: sequence.saturating_add(1) };
                let received = UNIX_EPOCH + Duration::from_nanos(received);
                Ok(Some(StoredMessage { view, sequence, sender: sender as usize, received, bytes }))
            }
            ExternalNotice::Alive => Ok(None),
            ExternalNotice::Compacted { view, sequence } => {
                self.lose();
                let (subgroup, oldest) = (self.finder.subgroup().into(), Position { view, sequence });
                Err(ExternalError::Compacted { subgroup, oldest })
            }
            // The member ends, or sends what it should not: another one continues.
            _ => {
                self.lose();
                Ok(None)
            }
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // Nothing on the connection is worth waiting for.
        self.lose();
    }
}

/// How long to look for a member.
const TIMEOUT: Duration = Duration::from_secs(10);
