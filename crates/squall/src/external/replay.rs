//! The client's side of reading a durable subgroup from a position on (Derecho §3.4, "durable" mode; app. A: external clients).

use std::io;
use std::time::{Duration, Instant, UNIX_EPOCH};

use squall_transports::bootstrap::Address;

use super::connection::{FoundMember, MemberFinder, SILENCE_MAX};
use super::error::ExternalError;
use super::wire::{ExternalNotice, ExternalRequest};
use crate::config::Config;
use crate::handle::history::StoredMessage;
use crate::slot::Position;

/// How to read.
///
/// ```no_run
/// use squall::external::{ExternalError, Replay, ReplayOptions};
/// use squall::{Config, Position};
///
/// /// Continues at a position that was noted with its group, unless another group has begun meanwhile.
/// fn resume(config: &Config, noted: (u64, Position)) -> Result<Replay, ExternalError> {
///     let (group, position) = noted;
///     let options = ReplayOptions { group: Some(group), ..ReplayOptions::default() };
///     Replay::connect_with(config, "orders", position, options)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// How long to look for a member, at first and whenever one is lost.
    pub timeout: Duration,
    /// The group to which the position belongs ([`Replay::group`]), if that is to be checked.
    pub group: Option<u64>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), group: None }
    }
}

/// Reads a durable subgroup from a position on, from outside the group; see [`super`].
///
/// A position at which nothing is yet is waited for. To be sure that the group is still the one of a position that was noted, note
/// [`Replay::group`], too, and give it to [`ReplayOptions`].
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
    options: ReplayOptions,
    found: Option<FoundMember>,
    /// The number of the group.
    group: Option<u64>,
    /// Everything before was returned.
    next: Position,
    /// Whether the last connection has brought no message.
    is_vain: bool,
}

impl Replay {
    /// Connects to a member of `subgroup`, to read from position `from` on. `config` is the members' configuration; any contact that
    /// answers is sufficient.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str, from: Position) -> Result<Self, ExternalError> {
        Self::connect_with(config, subgroup, from, ReplayOptions::default())
    }

    /// Connects like [`Replay::connect`], with options.
    ///
    /// # Errors
    /// The errors of [`Replay::connect`], and [`ExternalError::OtherGroup`].
    pub fn connect_with(
        config: &Config,
        subgroup: &str,
        from: Position,
        options: ReplayOptions,
    ) -> Result<Self, ExternalError> {
        let (finder, cluster) = (MemberFinder::new(config, subgroup)?, config.cluster.clone());
        let (found, group) = (None, options.group);
        let mut replay = Self { finder, cluster, options, found, group, next: from, is_vain: false };
        replay.reconnect()?;
        Ok(replay)
    }

    /// Returns the position before which everything was returned: a reader that begins there gets the next message.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.next
    }

    /// Returns the number of the group whose positions these are, if a member has served this reader. A group that begins anew, without
    /// its logs, has another one.
    #[must_use]
    pub const fn group(&self) -> Option<u64> {
        self.group
    }

    /// Returns the address of the member that this reader is connected to; `None` while it looks for another one.
    #[must_use]
    pub fn member(&self) -> Option<&Address> {
        self.found.as_ref().map(|found| &found.member)
    }

    fn reconnect(&mut self) -> Result<(), ExternalError> {
        if self.is_vain {
            std::thread::sleep(PAUSE);
        }
        let Position { view, sequence } = self.next;
        let subgroup: String = self.finder.subgroup().into();
        let request = ExternalRequest::Replay { subgroup: subgroup.clone(), view, sequence };
        let found = self.finder.find(&request, self.options.timeout)?;
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
            _ => return Err(self.unserved("the member sent an unexpected notice".into())),
        }
        self.found = Some(found);
        self.is_vain = true;
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
                    if let Some(message) = self.take(notice, bytes)? {
                        return Ok(Some(message));
                    }
                }
                Ok(None) if self.is_silent() => self.lose(),
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    // It would be the same with each member.
                    self.lose();
                    return Err(self.unserved(error.to_string()));
                }
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

    fn is_silent(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.connection.heard.elapsed() > SILENCE_MAX)
    }

    fn unserved(&self, cause: String) -> ExternalError {
        ExternalError::Unserved { subgroup: self.finder.subgroup().into(), tried_for: Duration::ZERO, cause }
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
                self.is_vain = false;
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

/// Before the next attempt, if the last connection has brought no message.
const PAUSE: Duration = Duration::from_millis(20);
