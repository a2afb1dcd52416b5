//! The member's side of a publisher's connection.

use std::future::poll_fn;
use std::io;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::{lock, unless_held};

use super::connection::{ALIVE_EVERY, FrameConnection};
use super::served::{DISK_SHORT, KnownPublisher, KnownPublishers, ServedSubgroup};
use super::wire::{self, BATCH_BYTES_MAX, ExternalNotice, ExternalRequest, HEAD_BYTES_MAX, invalid};
use crate::error::SendError;
use crate::slot::MessageOutcome;
use crate::wait::block_for;

/// Sends a client's messages, until the member or the client ends.
pub(super) fn publish(
    clients: &Mutex<KnownPublishers>,
    (name, source): (&str, &ServedSubgroup),
    number: Option<u64>,
    connection: &mut FrameConnection,
    is_closed: &AtomicBool,
) -> io::Result<()> {
    if let Some(why) = source.publishing_fault() {
        return connection.send(&source.elsewhere(why));
    }
    let (number, client) = lock(clients).enter(number, name);
    connection.frames.set_max(source.message_max.max(BATCH_BYTES_MAX) + HEAD_BYTES_MAX);
    connection.send(&ExternalNotice::Open { client: number, message_max: source.message_max as u64 })?;
    let mut heard = Instant::now();
    loop {
        let received = connection.receive(TICK)?;
        let status = &source.link.status;
        if is_closed.load(Ordering::Relaxed) || status.is_leaving() || status.failure().is_some() {
            return connection
                .send(&ExternalNotice::Ended("the member leaves the group, or has left it".into()));
        }
        match received {
            Some((ExternalRequest::Messages { first, lengths }, payload)) => {
                let parts = wire::split(&lengths, &payload)?;
                let batch = Batch { source, connection: &mut *connection, first, parts: &parts };
                if batch.send(&client)?.is_some() {
                    return Ok(());
                }
                heard = Instant::now();
            }
            Some(_) => return Err(invalid("a second first request")),
            None if connection.is_over() => return Ok(()),
            None if heard.elapsed() > SILENT_MAX => {
                return connection.send(&ExternalNotice::Ended("the client was silent for too long".into()));
            }
            None => {}
        }
    }
}

/// Messages with consecutive numbers, from `first` on.
struct Batch<'a> {
    source: &'a ServedSubgroup,
    connection: &'a mut FrameConnection,
    first: u64,
    parts: &'a [&'a [u8]],
}

/// The connection ends with this batch.
struct Over;

impl Batch<'_> {
    /// Sends what is not sent yet, and reports the outcome.
    fn send(mut self, client: &Mutex<KnownPublisher>) -> io::Result<Option<Over>> {
        // If an earlier connection of the same client is still sending, this one waits for it.
        let mut state = loop {
            if let Some(state) = unless_held(client.try_lock()) {
                break state;
            }
            self.connection.send(&ExternalNotice::Alive)?;
            std::thread::sleep(TICK);
        };
        if self.parts.iter().any(|part| part.len() > self.source.message_max) {
            return Err(invalid("a message that is too long"));
        }
        if self.first == state.first + state.sent.len() as u64 {
            state.first = self.first;
            state.sent.clear();
        } else if self.first != state.first || state.sent.len() > self.parts.len() {
            return Err(invalid("messages whose numbers are out of order"));
        }
        let mut end = None;
        while end.is_none() && state.sent.len() < self.parts.len() {
            let part = self.parts[state.sent.len()];
            match self.send_one(part)? {
                Ok(number) => state.sent.push(number),
                Err(notice) => end = Some(notice),
            }
        }
        self.report(&state.sent, end)
    }

    /// Sends a message as soon as there is space in the window; returns its number by the sender's count, or why it
    /// is not sent.
    fn send_one(&mut self, part: &[u8]) -> io::Result<Result<u64, ExternalNotice>> {
        let source = self.source;
        let attempt = || match source.lease().send(|| source.make_sender(), part) {
            None => Poll::Ready(Err(source.elsewhere("its application has taken the sending end"))),
            Some(Ok(number)) => Poll::Ready(Ok(number)),
            Some(Err(SendError::DiskFull)) => Poll::Ready(Err(source.elsewhere(DISK_SHORT))),
            Some(Err(SendError::Absent)) => Poll::Ready(Err(source.elsewhere("it is not in the subgroup"))),
            Some(Err(error)) if error.is_passing() => Poll::Pending,
            Some(Err(error)) => Poll::Ready(Err(ExternalNotice::Ended(error.to_string()))),
        };
        self.wait_for(attempt)
    }

    /// Waits until the outcome of what was sent is known, and reports it.
    fn report(&mut self, sent: &[u64], end: Option<ExternalNotice>) -> io::Result<Option<Over>> {
        let source = self.source;
        let mut delivered = 0;
        for number in sent {
            let outcome = self.wait_for(|| match source.lease().lend(|| source.make_sender()) {
                None => Poll::Ready(MessageOutcome::Unknown),
                Some(sender) => match sender.outcome(*number) {
                    MessageOutcome::Pending => Poll::Pending,
                    outcome => Poll::Ready(outcome),
                },
            })?;
            if outcome != MessageOutcome::Delivered {
                break;
            }
            delivered += 1;
        }
        self.connection.send(&ExternalNotice::Delivered { through: self.first + delivered })?;
        let end = if delivered < sent.len() as u64 {
            Some(ExternalNotice::Unknown { through: self.first + sent.len() as u64 })
        } else {
            end
        };
        let Some(end) = end else { return Ok(None) };
        self.connection.send(&end)?;
        Ok(Some(Over))
    }

    /// Waits for something that the polling thread does, and keeps telling the client that this member is alive.
    fn wait_for<R>(&mut self, mut look: impl FnMut() -> Poll<R>) -> io::Result<R> {
        let window_space = &self.source.link.status.window_space;
        let mut poll = |context: &mut Context<'_>| {
            if let Poll::Ready(found) = look() {
                return Poll::Ready(found);
            }
            window_space.register(context.waker());
            look()
        };
        loop {
            match block_for(poll_fn(&mut poll), ALIVE_EVERY) {
                Some(found) => return Ok(found),
                None => self.connection.send(&ExternalNotice::Alive)?,
            }
        }
    }
}

/// The interval of checks whether the member has ended.
const TICK: Duration = Duration::from_millis(50);
/// A client that was silent for this long is disconnected; it connects again when it has something to send.
const SILENT_MAX: Duration = Duration::from_secs(600);
