//! The object that keeps the histories of topics, as this participant updates it.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use squall::object::{Object, ObjectError, Pending};
use squall::{Payload, SharedPoller};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::lock;

use crate::buffer::HistoryMessage;
use crate::error::WriteError;
use crate::kept::KeptReply;
use crate::outbound::{Passing, PassingPace};
use crate::outlet::explain;
use crate::pending_write::PendingWrite;
use crate::qos::DurabilityService;
use crate::registry::{StoreQuery, StoreReply, TopicRegistry};
use crate::wire::ChangeHeader;

/// The object that keeps histories. A thread that waits for a reply polls the node meanwhile: otherwise another thread would have to be
/// woken for that, or would look only after a while.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) object: Object<TopicRegistry>,
    pub(crate) poller: SharedPoller,
    /// Whether the histories have been here.
    is_ready: AtomicBool,
    /// Of writes whose outcome is asked for later.
    pace: Mutex<PassingPace>,
}

impl Keeper {
    pub(crate) fn new(object: Object<TopicRegistry>, poller: SharedPoller) -> Self {
        let (is_ready, pace) = Default::default();
        Self { object, poller, is_ready, pace }
    }

    /// Adds a message to the history.
    pub(crate) fn keep(
        &self,
        service: DurabilityService,
        bytes: Vec<u8>,
        patience: Duration,
    ) -> Result<(), WriteError> {
        settle(self.update(bytes, patience)?, service)
    }

    /// Adds a change, whose data, of `length` bytes, `fill` writes in place, to the history; whether it is there is known later.
    pub(crate) fn begin_write(
        &self,
        service: DurabilityService,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
        patience: Duration,
    ) -> Result<PendingWrite, WriteError> {
        self.wait_ready(patience)?;
        let (message, now) = (header.length_with(length), header.source_time);
        let mut prefix = [0; PREFIX_MAX];
        let prefix = length_prefix(message, &mut prefix);
        let written = self.object.update_written(0, prefix.len() + message, |update| {
            update.put(prefix);
            header.put(update, fill);
        });
        let pending = written.map_err(explain)?;
        let passing = lock(&self.pace).note(now);
        match passing {
            Passing::AfterPause => self.poller.assist(|| ()),
            Passing::Together => self.poller.relieve(),
            Passing::Later => {}
        }
        Ok(PendingWrite::new(pending, service, self.poller.clone()))
    }

    /// Adds a message to the history, and waits for no reply.
    pub(crate) fn mention(&self, bytes: Vec<u8>) {
        drop(self.object.update_shard(0, &HistoryMessage::from(bytes)));
        self.poller.attend();
    }

    /// Updates the history, and waits for the reply.
    pub(crate) fn update(&self, bytes: Vec<u8>, patience: Duration) -> Result<KeptReply, WriteError> {
        let (begun, bytes) = (Instant::now(), HistoryMessage::from(bytes));
        loop {
            let pending = self.begin_update(&bytes, patience.saturating_sub(begun.elapsed()))?;
            match poll_for_reply(pending, &self.poller, patience.saturating_sub(begun.elapsed())) {
                // The member was out of the subgroup for a while: the message is in no history.
                Some(Err(ObjectError::NotDelivered)) if begun.elapsed() < patience => {}
                Some(Err(ObjectError::NotDelivered)) => return Err(WriteError::Timeout(patience)),
                Some(reply) => return reply.map_err(explain).and_then(outcome),
                None => return Err(WriteError::Unknown),
            }
        }
    }

    /// Updates the history, as soon as it is here.
    fn begin_update(
        &self,
        bytes: &HistoryMessage,
        patience: Duration,
    ) -> Result<Pending<StoreReply>, WriteError> {
        self.wait_ready(patience)?;
        self.object.update_shard(0, bytes).map_err(explain)
    }

    /// Waits until the history is here.
    fn wait_ready(&self, patience: Duration) -> Result<(), WriteError> {
        // Only once: while this member is out of the subgroup later, its object asks other members.
        if !self.is_ready.load(Ordering::Relaxed) {
            self.object.wait_ready(patience).map_err(|error| match error {
                ObjectError::Unreachable { .. } => WriteError::Timeout(patience),
                error => explain(error),
            })?;
            self.is_ready.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until all members have what was written.
    pub(crate) fn drain(&self, patience: Duration) -> Result<(), WriteError> {
        // The query is in one order with the updates before it, and has its reply when all members have it.
        let pending = self.object.query_latest(b"", &StoreQuery::Topics).map_err(explain)?;
        match poll_for_reply(pending, &self.poller, patience) {
            Some(reply) => reply.map(drop).map_err(explain),
            None => Err(WriteError::Timeout(patience)),
        }
    }
}

/// The bytes of the longest serialised length.
const PREFIX_MAX: usize = 10;

/// Returns what precedes the bytes of a message of this length in an update, as a [`HistoryMessage`] is serialised.
fn length_prefix(length: usize, space: &mut [u8; PREFIX_MAX]) -> &[u8] {
    postcard::to_slice(&length, space).expect("a length fits there")
}

/// Translates what has become of a message of a topic.
pub(crate) fn settle(reply: KeptReply, service: DurabilityService) -> Result<(), WriteError> {
    match reply {
        KeptReply::Kept | KeptReply::Announced(_) => Ok(()),
        KeptReply::Full => Err(WriteError::HistoryFull { samples_max: service.samples_max }),
        KeptReply::TooManyEndpoints => Err(WriteError::TooManyEndpoints),
        // A participant has begun the topic before; a client may have done so in a domain that is no more.
        _ => Err(WriteError::Restarted),
    }
}

/// Returns what has become of an update.
pub(crate) fn outcome(reply: StoreReply) -> Result<KeptReply, WriteError> {
    match reply {
        StoreReply::Update(reply) => Ok(reply),
        _ => Err(WriteError::History(ObjectError::Form("the answer to a query, for an update".into()))),
    }
}

/// Waits for a reply, at most for `patience`, and polls the node meanwhile.
pub(crate) fn poll_for_reply(
    pending: Pending<StoreReply>,
    poller: &SharedPoller,
    patience: Duration,
) -> Option<Result<StoreReply, ObjectError>> {
    let waker = Waker::from(Arc::new(PollerBell(poller.clone())));
    let mut context = Context::from_waker(&waker);
    let mut pending = pin!(pending);
    poller.wait_until_notified(patience, || match pending.as_mut().poll(&mut context) {
        Poll::Ready(reply) => Some(reply),
        Poll::Pending => None,
    })
}

/// Lets a thread that polls look for its reply.
struct PollerBell(SharedPoller);

impl Wake for PollerBell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Waits for a reply until `patience` after `begun`, outside of the group.
pub(crate) fn wait_reply(
    pending: Pending<StoreReply>,
    begun: Instant,
    patience: Duration,
) -> Option<Result<StoreReply, ObjectError>> {
    let waker = Waker::from(Arc::new(Unparker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut pending = pin!(pending);
    loop {
        if let Poll::Ready(reply) = pending.as_mut().poll(&mut context) {
            return Some(reply);
        }
        let left = patience.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
        thread::park_timeout(left);
    }
}

/// Wakes a thread that waits for a reply.
struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_as_it_is_serialised() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 1 << 21] {
            let message = HistoryMessage::from(vec![7; length]);
            let written = [length_prefix(length, &mut [0; PREFIX_MAX]), &message.0].concat();
            assert_eq!(written, postcard::to_stdvec(&message).expect("it can be serialised"), "{length}");
        }
        assert_eq!(length_prefix(usize::MAX, &mut [0; PREFIX_MAX]).len(), PREFIX_MAX);
    }
}
