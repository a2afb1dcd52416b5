//! Messages to several shards of a group in one order: genuine atomic multicast (RamCast §2.2).
//!
//! A group whose configuration has [`[genuine]`](crate::config::GenuineConfig) has shards: sets of its members, none of which have
//! common members. Any member sends a message to any set of shards ([`crate::Group::multicast`], or a [`MulticastSender`]). All
//! members of these shards deliver it, in one order of all messages of all shards, and no other member takes part. The order is
//! that of [`GenuineMessage::position`], which is the same at all members; it grows from message to message.
//!
//! ```
//! use std::sync::mpsc::channel;
//!
//! use squall::config::GenuineConfig;
//! use squall::{Config, Group, MessageOutcome};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::local(&format!("doc-genuine-{}", std::process::id()), 1);
//! config.genuine = Some(GenuineConfig::default().shard("accounts", &[0]));
//! let (deliveries, delivered) = channel();
//! let upcall = move |message: squall::genuine::GenuineMessage<'_>| {
//!     deliveries.send((message.position, message.bytes.to_vec())).ok();
//! };
//! let mut group = Group::builder(config).on_multicast(upcall).join()?;
//! let mut sender = group.multicast_sender()?;
//! sender.send(&["accounts"], b"debit")?;
//! sender.send(&["accounts"], b"credit")?;
//! assert_eq!(sender.wait_for_outcome(1), MessageOutcome::Delivered);
//! let (first, second) = (delivered.recv()?, delivered.recv()?);
//! assert!(first.0 < second.0);
//! # Ok(())
//! # }
//! ```
//!
//! **Views.** A message that is in flight when a view ends is delivered at its end, by all members of all its shards, or it is sent
//! again in the next one, and delivered once. What a member had in flight when it died may be lost, at all members. A process that
//! joins under a rank of a shard delivers what comes from its first view on. If all members of a shard die, those that have joined it
//! meanwhile are sent again what only the dead had delivered, if its sender had not learned of that.
//!
//! **Limits.** Messages are delivered to an upcall, and are not longer than `message_max`. The messages of one sender may be delivered
//! in another order than they were sent, unless it waits for each ([`MulticastSender::wait_for_outcome`]). A shard
//! that takes no messages holds up those of the same sender to other shards, when `window` of them wait. A member of a shard without an
//! upcall ([`Builder::on_multicast`](crate::Builder::on_multicast)) drops what is delivered to it. Nothing is logged.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use squall_fabric::window::{
    ReserveError, WindowGeometry, WindowPublisher, WindowReader, WindowRecord, WindowWriter,
};
use squall_fabric::{Region, RegionId, trusted};
use squall_protocols::genuine::{GenuineMember, GenuineSendError};
pub use squall_protocols::genuine::{GenuineMessage, GenuinePosition, Timestamp};
use squall_protocols::group::{GroupApplication, GroupCore};

use crate::config::GenuineConfig;
use crate::error::SendError;
use crate::handle::node_handle::NodeHandle;
use crate::slot::MessageOutcome;
use crate::wait::block_on;

/// Bytes before a message that waits for the polling thread: the set of its shards.
const HEADER_BYTES: usize = 8;

/// The sending end of a member for messages to shards. There is one; it may move between threads.
///
/// ```
/// use squall::SendError;
/// use squall::genuine::MulticastSender;
///
/// /// Sends a payment to both shards that it is about; returns its number, to wait for.
/// fn pay(sender: &mut MulticastSender, payment: &[u8]) -> Result<u64, SendError> {
///     sender.send_blocking(&["accounts", "orders"], payment)?;
///     Ok(sender.sent() - 1)
/// }
/// ```
#[derive(Debug)]
pub struct MulticastSender {
    writer: WindowWriter,
    config: Arc<GenuineConfig>,
    link: NodeHandle,
}

impl MulticastSender {
    /// Sends a copy of `bytes` to all members of `shards`, which the configuration names. Shards without members in the view do not
    /// count: a message to none but such shards is delivered to no member, and counts as delivered.
    ///
    /// # Errors
    /// [`SendError::UnknownShard`] or [`SendError::NoShard`]; [`SendError::Full`] if `window` messages of this member are in flight;
    /// or another error. It never blocks. While the view changes, messages wait.
    pub fn send(&mut self, shards: &[&str], bytes: &[u8]) -> Result<(), SendError> {
        let destinations = self.set(shards)?;
        self.send_to(destinations, bytes)
    }

    /// Returns the set of these shards.
    fn set(&self, shards: &[&str]) -> Result<u64, SendError> {
        let destinations = self.config.destinations(shards);
        destinations.map_err(|name| SendError::UnknownShard(name.into()))
    }

    /// Sends a message to a set of shards.
    fn send_to(&mut self, destinations: u64, bytes: &[u8]) -> Result<(), SendError> {
        if let Some(failure) = self.link.status.failure() {
            return Err(failure.into());
        }
        if destinations == 0 {
            return Err(SendError::NoShard);
        }
        let (length, message_max) = (bytes.len(), self.config.message_max);
        if length > message_max {
            return Err(SendError::TooLong { length, message_max });
        }
        let written = self.writer.send_written(HEADER_BYTES + length, |payload| {
            payload.put(&destinations.to_le_bytes());
            payload.put(bytes);
        });
        match written {
            Ok(()) => {
                self.link.waker.wake();
                Ok(())
            }
            Err(ReserveError::Full) => Err(SendError::Full),
            Err(error) => unreachable!("the window stays open, and the length was looked at: {error}"),
        }
    }

    /// Sends a message like [`MulticastSender::send`], but blocks while the window is full. It must not be called on the thread that
    /// polls the group.
    ///
    /// # Errors
    /// The errors of [`MulticastSender::send`], without [`SendError::Full`].
    pub fn send_blocking(&mut self, shards: &[&str], bytes: &[u8]) -> Result<(), SendError> {
        self.send_to_blocking(self.set(shards)?, bytes)
    }

    /// Sends a message to a set of shards, but blocks while the window is full.
    pub(crate) fn send_to_blocking(&mut self, destinations: u64, bytes: &[u8]) -> Result<(), SendError> {
        let status = Arc::clone(&self.link.status);
        block_on(poll_fn(|context| match self.send_to(destinations, bytes) {
            Err(error) if error.is_passing() => {
                status.window_space.register(context.waker());
                match self.send_to(destinations, bytes) {
                    Err(error) if error.is_passing() => Poll::Pending,
                    result => Poll::Ready(result),
                }
            }
            result => Poll::Ready(result),
        }))
    }

    /// Returns the number of messages that have been sent, which is also the number of the next one.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.writer.committed()
    }

    /// Returns what has become of message `number` of this sender; the first one has number 0. A message is reported as delivered
    /// after those sent before it.
    #[must_use]
    pub fn outcome(&self, number: u64) -> MessageOutcome {
        // Read before the window, which is freed before the group fails.
        let has_ended = self.link.status.failure().is_some();
        match self.writer.delivered() {
            delivered if number < delivered => MessageOutcome::Delivered,
            _ if has_ended => MessageOutcome::Unknown,
            _ => MessageOutcome::Pending,
        }
    }

    /// Waits until it is known what has become of message `number`, which has been sent. It must not be called on the thread that
    /// polls the group.
    #[must_use]
    pub fn wait_for_outcome(&self, number: u64) -> MessageOutcome {
        block_on(poll_fn(|context| {
            if self.outcome(number) == MessageOutcome::Pending {
                self.link.status.window_space.register(context.waker());
            }
            match self.outcome(number) {
                MessageOutcome::Pending => Poll::Pending,
                outcome => Poll::Ready(outcome),
            }
        }))
    }
}

/// The polling thread's end: it moves messages from the application's window into those of the current view.
#[derive(Debug)]
pub(crate) struct MulticastOutlet {
    publisher: WindowPublisher,
    reader: WindowReader,
    /// Records taken from the window; `freed <= taken`.
    taken: u64,
    freed: u64,
    /// The record that was taken and is not sent yet.
    waiting: Option<WindowRecord>,
    /// For each record that is sent and not freed, its number in the group; none for one whose shards had no members.
    numbers: VecDeque<Option<u64>>,
    /// How many records there were when this member was asked to leave.
    earlier: Option<u64>,
}

impl MulticastOutlet {
    /// Moves what there is, and frees what is delivered; returns the amount of work done.
    #[inline]
    pub(crate) fn poll<A: GroupApplication>(&mut self, group: &mut GroupCore<A>) -> usize {
        if self.publisher.ready() == 0 && self.publisher.outstanding() == 0 {
            return 0;
        }
        self.send(group) + self.free(group.genuine_member())
    }

    /// Moves records into the windows of the view, as long as these have space. Not fuzzed: this process has written the records.
    fn send<A: GroupApplication>(&mut self, group: &mut GroupCore<A>) -> usize {
        self.publisher.publish(u64::MAX, |_| ());
        let (announced, mut work) = (self.publisher.announcement(), 0);
        loop {
            if self.waiting.is_none() && self.taken < announced.indexes {
                self.waiting = self.reader.take(self.taken, announced).expect("the own record");
                self.taken += 1;
            }
            let Some(place) = self.waiting else { return work };
            let record = trusted::payload(&self.reader, place);
            let (destinations, bytes) = record.split_first_chunk().expect("the header");
            let number = match group.multicast(u64::from_le_bytes(*destinations), bytes) {
                Ok(number) => Some(number),
                Err(GenuineSendError::NoDestination) => None,
                Err(GenuineSendError::Full | GenuineSendError::Closed) => return work,
                Err(error @ GenuineSendError::TooLong { .. }) => unreachable!("{error}"),
            };
            self.numbers.push_back(number);
            self.waiting = None;
            work += 1;
        }
    }

    /// Returns whether everything is delivered that was sent when this was asked first.
    pub(crate) fn has_delivered_earlier(&mut self) -> bool {
        let sent = self.publisher.announcement().indexes + self.publisher.ready();
        self.freed >= *self.earlier.get_or_insert(sent)
    }

    fn free(&mut self, member: Option<&GenuineMember>) -> usize {
        let Some(settled) = member.map(GenuineMember::settled) else { return 0 };
        let is_settled = |number: &mut Option<u64>| number.is_none_or(|number| number < settled);
        while self.numbers.pop_front_if(is_settled).is_some() {
            self.freed += 1;
        }
        usize::try_from(self.publisher.free(self.freed)).expect("a window")
    }
}

/// Returns both ends between the application and the polling thread.
pub(crate) fn open(config: &Arc<GenuineConfig>) -> (WindowWriter, MulticastOutlet) {
    let message_max = config.message_max + HEADER_BYTES;
    let geometry = WindowGeometry::new(0, config.window, message_max, config.window_bytes);
    let region = Region::heap(RegionId(0), geometry.words());
    let (writer, publisher) = trusted::window(&region, geometry, None);
    let reader = WindowReader::new(&region, geometry);
    let outlet = MulticastOutlet {
        publisher,
        reader,
        taken: 0,
        freed: 0,
        waiting: None,
        numbers: VecDeque::new(),
        earlier: None,
    };
    (writer, outlet)
}

impl MulticastSender {
    pub(crate) const fn new(writer: WindowWriter, config: Arc<GenuineConfig>, link: NodeHandle) -> Self {
        Self { writer, config, link }
    }
}
