//! Receiving from an earlier position on: first from the log, then what is delivered (Derecho §3.4, "durable" mode).
//!
//! [`PositionReader`] decides what comes from where. The thread that takes messages reads the log, one piece at a time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use squall_protocols::replica::PositionReader;
use squall_protocols::restart::LogStart;

use crate::durable::LogRange;
use crate::error::{GroupError, ReplayError};
use crate::handle::deliveries::{Deliveries, DurablePlace};
use crate::handle::history::{self, StoredMessage};
use crate::slot::Position;
use crate::wait::block_on;

/// A reader of a durable subgroup from an earlier position on; obtained by [`Deliveries::from`].
///
/// A reader that is behind reads this member's log. What is delivered meanwhile is in the log, too, so it takes no place in the windows of
/// the senders, and a reader that is far behind delays no other member. When it has read the log, it takes what is delivered, like
/// [`Deliveries`], in place; between the two nothing is missing, and nothing comes twice. The log is read by the thread that takes messages,
/// which waits for the disk then: a piece of a megabyte takes some milliseconds, and the end of the log some tens of them.
///
/// ```
/// use squall::config::{StorageConfig, SubgroupConfig};
/// use squall::{Config, DeliveryMode, Group, Position};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("doc-deliveries-from-{}", std::process::id());
/// # let path = std::env::temp_dir().join(&name);
/// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
/// let mut config = Config::local(&name, 1).subgroup("orders", orders);
/// config.storage = Some(StorageConfig::new(&path));
/// let mut noted = Position::default(); // the application keeps it with what it has made of the messages
/// for (run, expected) in [(0, vec!["first", "second"]), (1, vec!["second", "first", "second"])] {
///     let mut group = Group::join(config.clone())?;
///     let orders = group.subgroup("orders")?;
///     let (mut sender, deliveries) = (orders.sender()?, orders.deliveries()?);
///     sender.send_bytes(b"first")?;
///     sender.send_bytes(b"second")?;
///     let mut orders = deliveries.from(noted)?;
///     for (number, expected) in expected.iter().enumerate() {
///         assert_eq!(orders.next()?.bytes, expected.as_bytes(), "run {run}");
///         if number == 0 {
///             noted = orders.position();
///         }
///     }
/// }
/// # std::fs::remove_dir_all(path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeliveriesFrom {
    deliveries: Deliveries,
    place: DurablePlace,
    reader: PositionReader,
    /// What was read from the log and not returned yet.
    read: VecDeque<StoredMessage>,
    /// The message from the log that was returned last.
    returned: Option<StoredMessage>,
    /// The next message that is delivered is to be returned.
    has_live: bool,
    /// Messages that were returned since the log has last known the position.
    unnoted: u32,
    /// Whether the log keeps something for this reader.
    is_noted: bool,
}

/// A message of a durable subgroup, from the log or as it is delivered.
///
/// ```
/// use squall::LoggedMessage;
///
/// fn describe(message: &LoggedMessage<'_>) -> String {
///     let way = if message.received.is_some() { "from the log" } else { "live" };
///     format!("{} bytes at {}/{}, {way}", message.bytes.len(), message.view, message.sequence)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedMessage<'a> {
    /// The view in which it was delivered.
    pub view: u64,
    /// Its place in the order of this view. Nulls have places, too.
    pub sequence: u64,
    /// The rank of its sender in the subgroup, in that view.
    pub sender: usize,
    /// When it was received by this member, or the one from which it has the message; `None` if it comes as it is delivered.
    pub received: Option<SystemTime>,
    /// The message.
    pub bytes: &'a [u8],
}

impl DeliveriesFrom {
    /// Returns a reader from `from` on of deliveries that come from `live` on.
    pub(crate) fn new(deliveries: Deliveries, place: DurablePlace, from: Position, live: Position) -> Self {
        let reader = PositionReader::new(from, live);
        let read = VecDeque::new();
        let (returned, has_live, unnoted, is_noted) = (None, false, 0, true);
        let mut new = Self { deliveries, place, reader, read, returned, has_live, unnoted, is_noted };
        new.note_position();
        new
    }

    /// Has the log keep what this reader is going to read from it.
    fn note_position(&mut self) {
        let needed = (!self.is_live()).then(|| self.position());
        if self.is_noted || needed.is_some() {
            self.note(needed);
        }
    }

    fn note(&mut self, needed: Option<Position>) {
        (self.unnoted, self.is_noted) = (0, needed.is_some());
        let start = needed.map(|Position { view, sequence }| LogStart { view, sequence });
        if let Some(log) = self.place.log.borrow() {
            log.note_reader(self.place.id, start);
        }
    }

    /// Notes the position once in a while: what is kept in excess is little.
    fn count_returned(&mut self) {
        self.unnoted += 1;
        if self.unnoted == NOTED_EVERY {
            self.note_position();
        }
    }

    /// Returns the position of this reader: all messages before it were returned, or come before the position at which it has begun. A
    /// reader that begins there continues.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.reader.next()
    }

    /// Returns whether the next message comes as it is delivered, and not from the log.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.read.is_empty() && self.reader.ends_live()
    }

    /// Continues at another position, earlier or later.
    pub fn seek(&mut self, position: Position) {
        // Before anything is given up that it may need.
        self.note(Some(position.min(self.position())));
        self.read.clear();
        self.returned = None;
        if std::mem::take(&mut self.has_live) {
            // It counts as taken, and is in the log.
            self.deliveries.take();
        }
        self.reader.seek(position);
        self.note_position();
    }

    /// Returns the next message, or `None` if there is none now: also while this member enters its group, until its view is on the disk.
    /// The next call releases it. It waits for the disk if it comes from the log.
    ///
    /// # Errors
    /// [`ReplayError`], with what to do next. The call may be repeated.
    pub fn try_next(&mut self) -> Result<Option<LoggedMessage<'_>>, ReplayError> {
        if self.look()? != Sight::Message {
            return Ok(None);
        }
        self.count_returned();
        if let Some(message) = self.read.pop_front() {
            self.reader.handle_returned(message.view, message.sequence);
            let StoredMessage { view, sequence, sender, received, bytes } = self.returned.insert(message);
            let (view, sequence, sender, received) = (*view, *sequence, *sender, Some(*received));
            return Ok(Some(LoggedMessage { view, sequence, sender, received, bytes }));
        }
        self.has_live = false;
        let message = self.deliveries.take();
        Ok(message.map(|message| LoggedMessage {
            view: message.view,
            sequence: message.sequence,
            sender: message.sender,
            received: None,
            bytes: message.bytes,
        }))
    }

    /// Returns the next message; blocks until there is one. The next call releases it. It must not be called on the thread that polls the
    /// group.
    ///
    /// # Errors
    /// [`ReplayError`], with what to do next. The call may be repeated.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<LoggedMessage<'_>, ReplayError> {
        block_on(self.next_async())
    }

    /// Awaits the next message. It runs on any executor, whose thread waits for the disk while messages come from the log.
    ///
    /// # Errors
    /// [`ReplayError`], with what to do next. The call may be repeated.
    pub async fn next_async(&mut self) -> Result<LoggedMessage<'_>, ReplayError> {
        poll_fn(|context| self.poll_ready(context)).await?;
        self.try_next().transpose().expect("poll_ready has found one")
    }

    /// Has this member's log not keep the messages before [`DeliveriesFrom::position`] any more, except those that `retain` in the
    /// configuration names: for an application that keeps on its own disk what it has made of them. Segments of the log, 64 MiB each,
    /// are removed when two such marks, or two checkpoints of an object, are behind all that is in them, of all subgroups; so call it
    /// occasionally, and not for each message. It waits for the disk.
    ///
    /// A member that lacks messages gets them from one of the others, or the mark in their place if that one has discarded them: so let
    /// all members discard about the same.
    ///
    /// # Errors
    /// [`ReplayError::Log`] if the disk has failed; [`ReplayError::Group`] if the group has ended here.
    pub fn discard_log(&self) -> Result<(), ReplayError> {
        let DurablePlace { log, id, retention, .. } = &self.place;
        // What was not delivered may not count in the end.
        let Position { view, sequence } = self.reader.next().min(self.reader.live());
        let log = log.borrow().ok_or_else(|| self.end())?;
        let written = log.write_checkpoint(*id, LogStart { view, sequence }, retention, &mut |_| Ok(()));
        written.map_err(|error| ReplayError::Log { folder: log.folder().into(), cause: error.to_string() })
    }

    fn end(&self) -> ReplayError {
        ReplayError::Group(self.deliveries.status().failure().unwrap_or(GroupError::Left))
    }

    /// Releases everything taken so far, so that its senders can reuse the space.
    pub fn release(&mut self) {
        self.deliveries.release();
    }

    fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Result<(), ReplayError>> {
        let mut is_registered = false;
        loop {
            match self.look()? {
                Sight::Message => return Poll::Ready(Ok(())),
                Sight::Entering => std::thread::sleep(RECORD_PAUSE),
                Sight::Nothing if is_registered => return Poll::Pending,
                Sight::Nothing => {
                    self.deliveries.status().messages.register(context.waker());
                    is_registered = true;
                }
            }
        }
    }

    /// Looks for a message.
    fn look(&mut self) -> Result<Sight, ReplayError> {
        loop {
            if self.has_live {
                return Ok(Sight::Message);
            }
            if !self.read.is_empty() {
                // The end of the group is reported when there is nothing left to return.
                let _ = self.drop_live();
                return Ok(Sight::Message);
            }
            self.reader.handle_all_returned();
            if !self.reader.is_live() {
                if !self.read_log().or_else(|error| self.wait_for_log(error))? {
                    return Ok(Sight::Entering);
                }
            } else if let Some(Position { view, sequence }) = self.deliveries.look_ahead()? {
                self.has_live = self.reader.handle_live(view, sequence);
                if !self.has_live {
                    self.deliveries.take();
                }
            } else {
                if self.is_noted {
                    self.note_position();
                }
                return Ok(Sight::Nothing);
            }
        }
    }

    /// Gives up messages that are in the log, where this reader will find them.
    fn drop_live(&mut self) -> Result<(), ReplayError> {
        for _ in 0..DROPPED_MAX {
            if !self.reader.takes_live() {
                break;
            }
            let Some(Position { view, sequence }) = self.deliveries.look_ahead()? else { break };
            self.reader.handle_live(view, sequence);
            self.deliveries.take();
        }
        Ok(())
    }

    /// Has the others not wait for this reader while it waits for its log.
    fn wait_for_log(&mut self, error: ReplayError) -> Result<bool, ReplayError> {
        self.reader.handle_missing();
        let _ = self.drop_live();
        Err(error)
    }

    /// Reads the next piece of the log, if there is one; false if the view in which this member enters its group is not on the disk yet.
    fn read_log(&mut self) -> Result<bool, ReplayError> {
        let DurablePlace { log, id, shard, .. } = &self.place;
        let log = log.borrow().ok_or_else(|| self.end())?;
        let Some(known) = history::counted(&log, (*id, *shard), self.reader.live(), 0) else {
            drop(log);
            if self.deliveries.status().failure().is_some() {
                return Err(self.end());
            }
            return Ok(false);
        };
        if self.reader.next() < known.oldest {
            return Err(ReplayError::Compacted { oldest: known.oldest });
        }
        let Some(part) = self.reader.poll_part(&known.counted) else { return Ok(true) };
        let range = LogRange { subgroup: *id, view: part.view, from: part.from, to: part.to };
        let sequence = history::read_piece(&log, range, &mut self.read)?;
        self.reader.handle_read(Position { view: part.view, sequence }, &known.counted);
        Ok(true)
    }
}

/// What a reader has before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Message,
    /// None now.
    Nothing,
    /// None until the view in which this member enters its group is on the disk.
    Entering,
}

impl Drop for DeliveriesFrom {
    /// What it has not returned is kept until the member ends.
    fn drop(&mut self) {
        self.note_position();
    }
}

/// After how many messages the log learns how far a reader is.
const NOTED_EVERY: u32 = 64;
/// How many messages are given up at a time.
const DROPPED_MAX: usize = 1024;
/// Between looks whether a view that has begun is on the disk.
const RECORD_PAUSE: Duration = Duration::from_millis(1);
