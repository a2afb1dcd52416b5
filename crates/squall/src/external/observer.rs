//! The client's half of observing.

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverOptions {
    /// Bytes of messages that may wait at the member for this observer; the member takes at most 64 MiB. What comes when
    /// they are full is lost.
    pub queue_bytes: u64,
    /// How long to look for a member, at the beginning and whenever one is lost.
    pub timeout: Duration,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self { queue_bytes: 16 << 20, timeout: Duration::from_secs(10) }
    }
}

/// What an observer sees.
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
        /// Its place in the total order of the view, messages without content counted; without a total order, among those
        /// of its sender.
        sequence: u64,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Messages are missing here.
    Lost {
        /// How many: they did not fit into the queue. `None`: the observer has connected with another member, or anew, and
        /// there may be some that neither has sent to it, or none.
        messages: Option<u64>,
        /// Why, for people.
        cause: String,
    },
}

/// Sees what is delivered in a subgroup, from outside the group; see [`super`].
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
    /// Which start of the group it is.
    group: Option<u64>,
    /// Why the last connection has ended, until that is reported.
    gap: Option<String>,
    /// When something came last.
    heard: Instant,
    /// The last view that was seen.
    view: Option<u64>,
    /// The ranks of the members of that view.
    ranks: BTreeMap<NodeId, u64>,
    /// The last message of each sender in it, by view and sequence.
    last: BTreeMap<NodeId, (u64, u64)>,
}

impl Observer {
    /// Connects with a member of `subgroup`. `config` is the members' configuration; any contact that answers will do.
    ///
    /// # Errors
    /// [`ExternalError`], with what to do next.
    pub fn connect(config: &Config, subgroup: &str) -> Result<Self, ExternalError> {
        Self::connect_with(config, subgroup, ObserverOptions::default())
    }

    /// As [`Observer::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(
        config: &Config,
        subgroup: &str,
        options: ObserverOptions,
    ) -> Result<Self, ExternalError> {
        let finder = MemberFinder::new(config, subgroup)?;
        let (view, ranks, last) = (None, BTreeMap::new(), BTreeMap::new());
        let (found, group, gap, heard) = (None, None, None, Instant::now());
        let mut observer = Self { finder, options, found, group, gap, heard, view, ranks, last };
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
            // Its views are counted anew.
            self.group = Some(group);
            self.view = None;
            self.last.clear();
        }
        self.found = Some(found);
        self.heard = Instant::now();
        Ok(())
    }

    /// Where the member listens that this observer is connected with; none while another one is looked for.
    #[must_use]
    pub fn member(&self) -> Option<&Address> {
        self.found.as_ref().map(|found| &found.member)
    }

    /// The next thing; blocks until there is one. If the member is lost, another one is looked for.
    ///
    /// # Errors
    /// That no member serves this observer any more. It may be called again.
    #[expect(clippy::should_implement_trait, reason = "it may fail and go on")]
    pub fn next(&mut self) -> Result<Observed, ExternalError> {
        loop {
            if let Some(observed) = self.next_within(Duration::from_secs(1))? {
                return Ok(observed);
            }
        }
    }

    /// The next thing, or `None` if there is none within `patience`; it takes longer if another member is to be found.
    ///
    /// # Errors
    /// As [`Observer::next`].
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
                    self.heard = Instant::now();
                    if let Some(observed) = self.take(notice, payload) {
                        return Ok(Some(observed));
                    }
                }
                Ok(None) if self.heard.elapsed() > SILENCE_MAX => {
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

    fn lose(&mut self, cause: String) {
        if let Some(found) = self.found.take() {
            found.connection.stream.abort();
        }
        self.gap =
            Some(format!("the connection with its member has ended ({cause}), and there is a new one"));
    }

    /// What a notice means for the application.
    fn take(&mut self, notice: ExternalNotice, bytes: Vec<u8>) -> Option<Observed> {
        match notice {
            ExternalNotice::View { id, members } => self.begin_view(id, &members),
            ExternalNotice::Message { view, node, sequence } => {
                let node = NodeId(node);
                // Another member may send again what the one before has sent.
                let is_past = self.view.is_some_and(|present| view < present);
                if is_past || self.last.get(&node).is_some_and(|last| *last >= (view, sequence)) {
                    return None;
                }
                self.last.insert(node, (view, sequence));
                let rank = self.ranks.get(&node).copied();
                Some(Observed::Message { view, node, rank, sequence, bytes })
            }
            ExternalNotice::Lost { messages } => {
                let cause = "they did not fit into this observer's queue at its member".into();
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
            | ExternalNotice::Unknown { .. } => {
                self.lose("an answer to something else".into());
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
            // Nothing of it is waited for.
            found.connection.stream.abort();
        }
    }
}
