//! Sending: messages are built in place in the sender's own window (Spindle §3.1).

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::window::{Payload, Reservation, ReserveError, WindowWriter};
use squall_transports::Waker;

use super::node_handle::{MemberClock, NodeHandle};
use crate::error::SendError;
use crate::slot::MessageOutcome;
use crate::slot::{NextWindow, SubgroupSlot};
use crate::status::GroupStatus;
use crate::wait::block_on;

/// The sending end of a subgroup. Each member has one; it may move between threads.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::MessageOutcome;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-sender-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"first")?; // never blocks: a full window is an error
/// sender.send(6, |message| message.copy_from_slice(b"second"))?; // in place
/// sender.send_blocking(5, |message| message.copy_from_slice(b"third"))?; // waits for space
/// for text in ["first", "second", "third"] {
///     assert_eq!(deliveries.next()?.bytes, text.as_bytes());
/// }
/// deliveries.release();
/// assert_eq!(sender.wait_for_outcome(2), MessageOutcome::Delivered);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sender {
    /// The current view's window; none while the view changes.
    writer: Option<WindowWriter>,
    /// The number of messages that were sent and delivered before the first one of the window, which begins with
    /// those that were in flight.
    before: u64,
    /// While there is no window: the number of messages sent, and how many of them are known to be delivered.
    known: (u64, u64),
    /// The view since which this member has been in the subgroup.
    since: Option<u64>,
    /// The messages that were in flight when this member left the subgroup for a while.
    dropped: Vec<Range<u64>>,
    slot: Arc<SubgroupSlot>,
    message_max: usize,
    waker: Waker,
    status: Arc<GroupStatus>,
    clock: MemberClock,
    /// Whether the disk of this member's log is nearly full; none if the subgroup is not durable.
    is_disk_short: Option<Arc<AtomicBool>>,
}

/// A message under construction, in place; dereferences to its bytes, which are zeros at first. Dropping it sends
/// nothing.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-slot-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let mut sender = group.subgroup("log")?.sender()?;
/// let mut slot = sender.reserve(4)?;
/// slot.copy_from_slice(&7u32.to_le_bytes());
/// slot.commit();
/// drop(sender.reserve(8)?); // sends nothing
/// assert_eq!(sender.sent(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MessageSlot<'a> {
    reservation: Reservation<'a>,
    waker: &'a Waker,
}

impl MessageSlot<'_> {
    /// Sends the message.
    #[inline]
    pub fn commit(self) {
        self.reservation.commit();
        self.waker.wake();
    }
}

impl std::ops::Deref for MessageSlot<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.reservation
    }
}

impl std::ops::DerefMut for MessageSlot<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.reservation
    }
}

/// Messages that are sent together: see [`Sender::burst`].
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-burst-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// let mut burst = sender.burst();
/// for number in 0..10_u64 {
///     burst.send_written(8, |payload| payload.put(&number.to_le_bytes()))?;
/// }
/// drop(burst); // sends them
/// for number in 0..10_u64 {
///     assert_eq!(deliveries.next()?.bytes, number.to_le_bytes());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SendBurst<'a> {
    sender: &'a mut Sender,
}

impl SendBurst<'_> {
    /// Adds a message of `length` bytes that `write` writes from its beginning to its end; bytes that it leaves out
    /// become zeros.
    ///
    /// # Errors
    /// The errors of [`Sender::send`]. After [`SendError::Full`] the messages before are on their way; after another one they are when
    /// the burst is dropped.
    #[inline]
    pub fn send_written(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), SendError> {
        let added = self.sender.timed_window()?.add_written(length, write);
        added.map_err(|error| {
            self.sender.waker.wake();
            explain(error)
        })
    }
}

impl Drop for SendBurst<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(writer) = &self.sender.writer {
            writer.show();
        }
        self.sender.waker.wake();
    }
}

impl Sender {
    pub(crate) fn new(
        slot: Arc<SubgroupSlot>,
        message_max: usize,
        link: NodeHandle,
        is_disk_short: Option<Arc<AtomicBool>>,
    ) -> Self {
        let NodeHandle { waker, status, clock, .. } = link;
        Self {
            writer: None,
            before: 0,
            known: (0, 0),
            since: None,
            dropped: Vec::new(),
            slot,
            message_max,
            waker,
            status,
            clock,
            is_disk_short,
        }
    }

    /// Returns the window to send in. A window that was closed with its view is replaced by the next one, if there is
    /// one.
    #[inline]
    fn window(&mut self) -> Result<&mut WindowWriter, SendError> {
        if self.writer.as_ref().is_none_or(WindowWriter::is_closed) {
            self.change_window()?;
        }
        self.known_window()
    }

    /// Returns the window to send in, which learns when the next message is sent if it asks for that.
    #[inline]
    fn timed_window(&mut self) -> Result<&mut WindowWriter, SendError> {
        if self.is_disk_short.as_ref().is_some_and(|is_short| is_short.load(Ordering::Relaxed)) {
            return Err(SendError::DiskFull);
        }
        if self.writer.as_ref().is_none_or(WindowWriter::needs_attention) {
            self.attend()?;
        }
        self.known_window()
    }

    /// Not by `ok_or`, which would drop an error for each message that is sent.
    #[inline(always)]
    fn known_window(&mut self) -> Result<&mut WindowWriter, SendError> {
        match &mut self.writer {
            Some(writer) => Ok(writer),
            None => Err(SendError::ViewChanging),
        }
    }

    #[cold]
    fn attend(&mut self) -> Result<(), SendError> {
        let clock = self.clock;
        let writer = self.window()?;
        if writer.wants_time() {
            writer.note_time(clock.now());
        }
        Ok(())
    }

    #[cold]
    fn change_window(&mut self) -> Result<(), SendError> {
        let (sent, delivered) = self.counts();
        self.known = (sent, delivered);
        let gave_up = self.writer.take().is_some();
        let NextWindow { writer, since, is_full, under_way } = self.slot.next_window();
        if gave_up || is_full || writer.is_some() {
            // The window may hold messages that were committed before.
            self.waker.wake();
        }
        if since != self.since {
            if self.since.is_some() && delivered < sent {
                self.dropped.push(delivered..sent);
            }
            self.since = since;
        }
        if let Some(under_way) = under_way {
            self.known.1 = sent - under_way;
        }
        if let Some(writer) = writer {
            // The messages in flight are already in it, in front of all that will be sent.
            self.before = sent - writer.committed();
            self.writer = Some(writer);
            self.known = self.counts();
        }
        self.writer.take_if(|writer| writer.is_closed());
        match (&self.writer, self.status.failure()) {
            (Some(_), _) => Ok(()),
            (None, Some(error)) => Err(error.into()),
            (None, None) if since.is_none() => Err(SendError::Absent),
            (None, None) if is_full => Err(SendError::Full),
            (None, None) => Err(SendError::ViewChanging),
        }
    }

    /// Returns the length of the longest message in bytes.
    #[must_use]
    pub const fn message_max(&self) -> usize {
        self.message_max
    }

    /// Reserves a message of `length` bytes, all zeros, to be filled and committed.
    ///
    /// # Errors
    /// [`SendError::Full`] if the window has no space now, or another error; those after which it is worth trying
    /// again are [`SendError::is_passing`]. It never blocks.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<MessageSlot<'_>, SendError> {
        self.timed_window()?;
        let Self { writer: Some(writer), waker, .. } = self else { return Err(SendError::ViewChanging) };
        match writer.reserve(length) {
            Ok(reservation) => Ok(MessageSlot { reservation, waker }),
            Err(error) => Err(explain(error)),
        }
    }

    /// Checks that a message of `length` bytes could be sent now; then the next one of this length can.
    ///
    /// ```
    /// # use squall::config::SubgroupConfig;
    /// # use squall::{Config, Group, SendError};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = Config::local(&format!("doc-check-{}", std::process::id()), 1);
    /// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
    /// let mut sender = group.subgroup("log")?.sender()?;
    /// sender.check_space(5)?;
    /// sender.send_bytes(b"hello")?;
    /// assert!(matches!(sender.check_space(usize::MAX / 2), Err(SendError::TooLong { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Sender::reserve`].
    pub fn check_space(&mut self, length: usize) -> Result<(), SendError> {
        self.timed_window()?.check_space(length).map_err(explain)
    }

    /// Sends a message of `length` bytes, all zeros at first, that `fill` writes in place.
    ///
    /// # Errors
    /// [`SendError::Full`] if the window has no space now, or another error; those after which it is worth trying
    /// again are [`SendError::is_passing`]. It never blocks.
    #[inline]
    pub fn send(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        self.timed_window()?.send(length, fill).map_err(explain)?;
        self.waker.wake();
        Ok(())
    }

    /// Sends a message that `write` writes from its beginning to its end. Its memory is not cleared before, which
    /// makes this the fastest way to send. Bytes that `write` leaves out become zeros.
    ///
    /// # Errors
    /// The errors of [`Sender::send`].
    #[inline]
    pub fn send_written(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), SendError> {
        self.timed_window()?.send_written(length, write).map_err(explain)?;
        self.waker.wake();
        Ok(())
    }

    /// Begins a burst: messages that the polling thread sees together, when the burst is dropped. Each costs less than
    /// with [`Sender::send_written`], and is sent a little later.
    #[inline]
    pub const fn burst(&mut self) -> SendBurst<'_> {
        SendBurst { sender: self }
    }

    /// Sends a copy of `bytes`.
    ///
    /// # Errors
    /// The errors of [`Sender::send`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.send_written(bytes.len(), |payload| payload.put(bytes))
    }

    /// Sends a message like [`Sender::send`], but blocks while the window is full or the view changes. It must not be
    /// called on the thread that polls the group.
    ///
    /// # Errors
    /// [`SendError::TooLong`], or an error that says that the group has ended.
    pub fn send_blocking(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        for _ in 0..SPINS {
            match self.reserve(length) {
                Ok(mut slot) => {
                    fill(&mut slot);
                    slot.commit();
                    return Ok(());
                }
                Err(error) if error.is_passing() => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        block_on(self.send_async(length, fill))
    }

    /// Sends a message like [`Sender::send`], but awaits space in the window, and the next view if the current one
    /// ends. It runs on any executor.
    ///
    /// # Errors
    /// [`SendError::TooLong`], or an error that says that the group has ended.
    pub async fn send_async(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let mut fill = Some(fill);
        poll_fn(|context| match self.try_fill(length, &mut fill) {
            Err(error) if error.is_passing() => {
                self.status.window_space.register(context.waker());
                match self.try_fill(length, &mut fill) {
                    Err(error) if error.is_passing() => Poll::Pending,
                    result => Poll::Ready(result),
                }
            }
            result => Poll::Ready(result),
        })
        .await
    }

    /// Sends a message that `fill` writes in place; `fill` is consumed if there is space.
    fn try_fill(
        &mut self,
        length: usize,
        fill: &mut Option<impl FnOnce(&mut [u8])>,
    ) -> Result<(), SendError> {
        let mut slot = self.reserve(length)?;
        if let Some(fill) = fill.take() {
            fill(&mut slot);
        }
        slot.commit();
        Ok(())
    }

    /// Returns the number of messages that have been sent, which is also the number of the next one.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.counts().0
    }

    /// Returns what has become of message `number`; the first message has number 0.
    #[must_use]
    pub fn outcome(&mut self, number: u64) -> MessageOutcome {
        // After a view change, messages in flight continue in the next window.
        let has_ended = self.window().is_err_and(|error| !error.is_passing());
        match self.counts() {
            _ if self.dropped.iter().any(|dropped| dropped.contains(&number)) => MessageOutcome::Unknown,
            (_, delivered) if number < delivered => MessageOutcome::Delivered,
            _ if has_ended => MessageOutcome::Unknown,
            _ => MessageOutcome::Pending,
        }
    }

    /// Waits until it is known what has become of message `number`, which has been sent. It must not be called on the
    /// thread that polls the group.
    #[must_use]
    pub fn wait_for_outcome(&mut self, number: u64) -> MessageOutcome {
        block_on(poll_fn(|context| {
            if self.outcome(number) == MessageOutcome::Pending {
                self.status.window_space.register(context.waker());
            }
            match self.outcome(number) {
                MessageOutcome::Pending => Poll::Pending,
                outcome => Poll::Ready(outcome),
            }
        }))
    }

    /// Returns whether all messages sent so far have been delivered by all members.
    #[must_use]
    pub fn is_drained(&mut self) -> bool {
        // The next send reports whether the group has ended.
        let _ = self.window();
        let (sent, delivered) = self.counts();
        sent == delivered
    }

    /// Returns the number of messages sent, and how many of them all members have delivered, as far as this member
    /// knows.
    fn counts(&self) -> (u64, u64) {
        let in_window =
            |writer: &WindowWriter| (self.before + writer.committed(), self.before + writer.delivered());
        self.writer.as_ref().map_or(self.known, in_window)
    }
}

#[cold]
fn explain(error: ReserveError) -> SendError {
    match error {
        ReserveError::Full => SendError::Full,
        // The view has ended just now.
        ReserveError::Closed => SendError::ViewChanging,
        ReserveError::TooLong { length, message_max } => SendError::TooLong { length, message_max },
    }
}

/// How often a blocking send tries again before it sleeps: a full window empties within microseconds.
const SPINS: usize = 100;
