//! The client's side of observing.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_protocols::membership::Member;
use squall_transports::bootstrap::Address;

use super::connection::{FoundMember, MemberFinder, SILENCE_MAX};
use super::error::ExternalError;
use super::wire::{ExternalNotice, ExternalRequest};
use crate::config::Config;

/// How to observe.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::{Observer, ObserverOptions};
/// use squall::{Config, Group};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-observer-options-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let _member = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
///
/// let options = ObserverOptions { queue_bytes: 1 << 20, timeout: Duration::from_secs(5) };
/// let mut observer = Observer::connect_with(&config, "log", options)?;
/// while observer.next_within(Duration::from_millis(10))?.is_some() {}
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverOptions {
    /// The bytes of messages that the member may queue for this observer; the member allows at most 64 MiB. Messages
    /// that arrive when the queue is full are lost.
    pub queue_bytes: u64,
    /// How long to look for a member, at first and whenever one is lost.
    pub timeout: Duration,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self { queue_bytes: 16 << 20, timeout: Duration::from_secs(10) }
    }
}

/// What an observer receives.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::{Observed, Observer};
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-observed-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let _member = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
///
/// match Observer::connect(&config, "log")?.next()? {
///     Observed::View { id, members } => println!("view {id} of {} members", members.len()),
///     Observed::Message { node, bytes, .. } => println!("{node}: {bytes:?}"),
///     Observed::Lost { cause, .. } => println!("messages are missing here: {cause}"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// The messages from here on are delivered in this view.
    View {
        /// The view's number.
        id: u64,
        /// The members of the subgroup in it, with their ranks in the configuration as tags.
        members: Vec<Member>,
    },
    /// A message.
    Message {
        /// The view in which it is delivered.
        view: u64,
        /// The sender.
        node: NodeId,
        /// The sender's rank in the configuration, if its view has been seen.
        rank: Option<u64>,
        /// Its place in the total order of the view, counting null messages; without a total order, its place among
        /// the messages of its sender.
        sequence: u64,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Messages are missing here.
    Lost {
        /// The number of messages that did not fit into the queue. `None`: the observer has connected again, to the
        /// same or another member, and there may be messages that were sent to it over neither connection, or none.
        messages: Option<u64>,
        /// Why, as text.
        cause: String,
    },
}

/// Receives what is delivered in a subgroup, from outside the group; see [`super`].
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::{Observed, Observer, Publisher};
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-external-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let member = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
/// let mut observer = Observer::connect(&config, "log")?;
/// Publisher::connect(&config, "log")?.publish(&["hello"])?;
/// loop {
///     if let Observed::Message { bytes, rank, .. } = observer.next()? {
///         assert_eq!((&*bytes, rank), (&b"hello"[..], Some(0)));
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Observer {
    finder: MemberFinder,
    options: ObserverOptions,
    found: Option<FoundMember>,
    /// The number that identifies the group's start.
    group: Option<u64>,
    /// Why the last connection has ended, until that is reported.
    gap: Option<String>,
    /// The last view that was seen.
    view: Option<u64>,
    /// The ranks of the members of that view.
    ranks: BTreeMap<NodeId, u64>,
    /// The last message of each sender in it, by view and sequence.
    last: BTreeMap<NodeId, (u64, u64)>,
}

impl Observer {
    /// Connects to a member of `subgroup`. `config` is the members' configuration; any contact that answers is
    /// sufficient.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str) -> Result<Self, ExternalError> {
        Self::connect_with(config, subgroup, ObserverOptions::default())
    }

    /// Connects like [`Observer::connect`], with options.
    ///
    /// # Errors
    /// The errors of [`Observer::connect`].
    pub fn connect_with(
        config: &Config,
        subgroup: &str,
        options: ObserverOptions,
    ) -> Result<Self, ExternalError> {
        let finder = MemberFinder::new(config, subgroup)?;
        let (view, ranks, last) = (None, BTreeMap::new(), BTreeMap::new());
        let (found, group, gap) = (None, None, None);
        let mut observer = Self { finder, options, found, group, gap, view, ranks, last };
        observer.reconnect()?;
        Ok(observer)
    }

    fn reconnect(&mut self) -> Result<(), ExternalError> {
        let (subgroup, queue_bytes) = (self.finder.subgroup().into(), self.options.queue_bytes);
        let found =
            self.finder.find(&ExternalRequest::Observe { subgroup, queue_bytes }, self.options.timeout)?;
        if let ExternalNotice::Observing { group } = found.notice
            && self.group != Some(group)
        {
            // This is another start of the group, whose views are numbered anew.
            self.group = Some(group);
            self.view = None;
            self.last.clear();
        }
        self.found = Some(found);
        Ok(())
    }

    /// Returns the address of the member that this observer is connected to; `None` while it looks for another one.
    #[must_use]
    pub fn member(&self) -> Option<&Address> {
        self.found.as_ref().map(|found| &found.member)
    }

    /// Returns the next item; blocks until there is one. If the member is lost, the observer looks for another one.
    ///
    /// # Errors
    /// [`ExternalError`] if no member serves this observer any more. The call may be repeated.
    #[expect(clippy::should_implement_trait, reason = "it may fail and then continue")]
    pub fn next(&mut self) -> Result<Observed, ExternalError> {
        loop {
            if let Some(observed) = self.next_within(Duration::from_secs(1))? {
                return Ok(observed);
            }
        }
    }

    /// Returns the next item, or `None` if there is none within `patience`; it takes longer if another member has to
    /// be found.
    ///
    /// # Errors
    /// The errors of [`Observer::next`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Observed>, ExternalError> {
        let until = Instant::now() + patience;
        loop {
            if self.found.is_none() {
                self.reconnect()?;
                if let Some(cause) = self.gap.take() {
                    return Ok(Some(Observed::Lost { messages: None, cause }));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.receive(left) {
                Ok(Some((notice, payload))) => {
                    if let Some(observed) = self.take(notice, payload) {
                        return Ok(Some(observed));
                    }
                }
                Ok(None) if self.is_silent() => {
                    self.lose("the member was silent for too long".into());
                }
                Ok(None) => return Ok(None),
                Err(error) => self.lose(error.to_string()),
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

    fn lose(&mut self, cause: String) {
        if let Some(found) = self.found.take() {
            found.connection.stream.abort();
        }
        self.gap =
            Some(format!("the connection with its member has ended ({cause}), and there is a new one"));
    }

    /// Returns what a notice means for the application.
    fn take(&mut self, notice: ExternalNotice, bytes: Vec<u8>) -> Option<Observed> {
        match notice {
            ExternalNotice::View { id, members } => self.begin_view(id, &members),
            ExternalNotice::Message { view, node, sequence } => {
                let node = NodeId(node);
                // Another member may send again what the previous one has sent.
                let is_past = self.view.is_some_and(|present| view < present);
                if is_past || self.last.get(&node).is_some_and(|last| *last >= (view, sequence)) {
                    return None;
                }
                self.last.insert(node, (view, sequence));
                let rank = self.ranks.get(&node).copied();
                Some(Observed::Message { view, node, rank, sequence, bytes })
            }
            ExternalNotice::Lost { messages } => {
                let cause = "they did not fit into this observer's queue at the member".into();
                Some(Observed::Lost { messages: Some(messages), cause })
            }
            ExternalNotice::Elsewhere { why: cause, .. } | ExternalNotice::Ended(cause) => {
                self.lose(cause);
                None
            }
            ExternalNotice::Alive => None,
            ExternalNotice::Observing { .. }
            | ExternalNotice::Open { .. }
            | ExternalNotice::Delivered { .. }
            | ExternalNotice::Replaying { .. }
            | ExternalNotice::Stored { .. }
            | ExternalNotice::Compacted { .. }
            | ExternalNotice::NoLog
            | ExternalNotice::Serving
            | ExternalNotice::Application
            | ExternalNotice::Unknown { .. } => {
                self.lose("the member sent an unexpected notice".into());
                None
            }
        }
    }

    fn begin_view(&mut self, id: u64, members: &[(u32, u64)]) -> Option<Observed> {
        // A member that is behind may send a view again.
        if self.view.is_some_and(|view| view >= id) {
            return None;
        }
        self.view = Some(id);
        let members: Vec<Member> =
            members.iter().map(|(node, tag)| Member { node: NodeId(*node), tag: *tag }).collect();
        self.ranks = members.iter().map(|member| (member.node, member.tag)).collect();
        self.last.retain(|node, _| self.ranks.contains_key(node));
        Some(Observed::View { id, members })
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if let Some(found) = self.found.take() {
            // Nothing on the connection is worth waiting for.
            found.connection.stream.abort();
        }
    }
}
