//! The sending side of a topic at a participant: the subgroup itself, or the object that keeps the topic's history.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use squall::object::ObjectError;
use squall::{GroupError, MessageOutcome, Payload, SendError};
use squall_fabric::mutex::lock;

use crate::error::WriteError;
use crate::kept::KeptReply;
use crate::lane::TopicLane;
use crate::outbound::Outbound;
use crate::pending_write::PendingWrite;
use crate::qos::DurabilityService;
use crate::sample::now_ns;
use crate::store::HistoryStore;
use crate::wire::{ChangeHeader, EndpointAnnouncement, OWN_SUBGROUP, encode_service};

/// Where what this participant writes in a topic goes.
#[derive(Debug)]
pub(crate) enum Outlet {
    /// A subgroup.
    Lane { lane: Arc<TopicLane>, topic: u32 },
    /// The topic's history.
    Kept { store: Arc<HistoryStore>, topic: u32, service: DurabilityService },
}

impl Outlet {
    /// Returns whether the topic has a history.
    pub(crate) const fn keeps(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }

    /// Lets the topic's thread look again: a reader that was full may be gone.
    pub(crate) fn wake(&self) {
        if let Self::Lane { lane, .. } = self {
            lane.wake();
        }
    }

    /// Notes that samples, of `bytes` together, were taken.
    pub(crate) fn note_taken(&self, samples: usize, bytes: usize) {
        match self {
            Self::Lane { lane, .. } => lane.note_taken(samples, bytes),
            Self::Kept { store, .. } => store.note_taken(samples, bytes),
        }
    }

    /// Notes that a reader's upcalls are to be made.
    pub(crate) fn begin_upcalls(&self) {
        if let Self::Lane { lane, .. } = self {
            lane.begin_upcalls();
        }
    }

    /// Returns the topic's number in what carries it.
    pub(crate) const fn topic(&self) -> u32 {
        match self {
            Self::Lane { topic, .. } | Self::Kept { topic, .. } => *topic,
        }
    }

    /// Says what this participant expects the topic to keep; returns what the topic keeps instead, if it does.
    pub(crate) fn begin(&self, patience: Duration) -> Result<Option<DurabilityService>, WriteError> {
        let Self::Kept { store, service, .. } = self else { return Ok(None) };
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            match store.keeper.update(encode_service(*service), left) {
                Ok(KeptReply::Conflict(present)) => return Ok(Some(present)),
                Ok(_) => return Ok(None),
                // A participant may say it twice.
                Err(WriteError::Unknown) if begun.elapsed() < patience => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Announces an endpoint, or that it has gone. Returns when that is sent.
    pub(crate) fn announce(
        &self,
        announcement: &EndpointAnnouncement,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let bytes = announcement.encode(self.topic());
        match self {
            Self::Kept { store, service, .. } => store.keeper.keep(*service, bytes, patience),
            Self::Lane { lane, topic } => {
                let mut outbound = lock(&lane.outbound);
                let length_max = outbound.message_max();
                if bytes.len() > length_max {
                    return Err(WriteError::TooLong { length: bytes.len(), length_max });
                }
                outbound.announce(*topic, announcement.id.number, bytes);
                drop(outbound);
                retry(patience, || lane.poller.assist(|| lock(&lane.outbound).flush()))
            }
        }
    }

    /// Announces that an endpoint has gone, when there is space.
    pub(crate) fn announce_end(&self, announcement: &EndpointAnnouncement) {
        let bytes = announcement.encode(self.topic());
        match self {
            Self::Kept { store, .. } => store.keeper.mention(bytes),
            Self::Lane { lane, topic } => {
                lock(&lane.outbound).announce_end(*topic, announcement.id.number, bytes);
            }
        }
    }

    /// Writes a change whose data, of `length` bytes, `fill` writes in place.
    pub(crate) fn write(
        &self,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
        patience: Duration,
    ) -> Result<(), WriteError> {
        match self {
            Self::Lane { lane, .. } => {
                let (total, mut fill) = (header.length_with(length), Some(fill));
                let write = |outbound: &mut Outbound| outbound.try_write(header, length, &mut fill);
                lane.send(total, header.source_time, patience, write)
            }
            Self::Kept { store, service, .. } => {
                let mut bytes = vec![0; header.length_with(length)];
                header.put(&mut Payload::over(&mut bytes), fill);
                store.keeper.keep(*service, bytes, patience)
            }
        }
    }

    /// Writes a change, as [`Outlet::write`] does; whether it is in the topic's history is known later.
    pub(crate) fn begin_write(
        &self,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: impl FnOnce(&mut Payload<'_>),
        patience: Duration,
    ) -> Result<PendingWrite, WriteError> {
        match self {
            Self::Lane { .. } => self.write(header, length, fill, patience).map(|()| PendingWrite::done()),
            Self::Kept { store, service, .. } => {
                store.keeper.begin_write(*service, header, length, fill, patience)
            }
        }
    }

    /// Sends the message of a coherent set.
    pub(crate) fn send(&self, message: &[u8], patience: Duration) -> Result<(), WriteError> {
        match self {
            Self::Lane { lane, .. } => {
                lane.send(message.len(), now_ns(), patience, |outbound| outbound.try_send(message))
            }
            Self::Kept { store, service, .. } => store.keeper.keep(*service, message.to_vec(), patience),
        }
    }

    /// Returns whether the topics of both are in one order.
    pub(crate) fn is_in_order_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lane { lane, .. }, Self::Lane { lane: other, .. }) => Arc::ptr_eq(lane, other),
            // A participant's grouped topics are in one object.
            (Self::Kept { topic, .. }, Self::Kept { topic: other, .. }) => {
                [topic, other].iter().all(|topic| **topic != OWN_SUBGROUP)
            }
            _ => false,
        }
    }

    /// Returns the length of the longest message, of a topic that keeps nothing.
    pub(crate) fn message_max(&self) -> usize {
        match self {
            Self::Lane { lane, .. } => lock(&lane.outbound).message_max(),
            Self::Kept { .. } => 0,
        }
    }

    /// Returns how many messages this participant has sent in the subgroup of a topic that keeps nothing.
    pub(crate) fn sent(&self) -> u64 {
        match self {
            Self::Lane { lane, .. } => lock(&lane.outbound).sent(),
            Self::Kept { .. } => 0,
        }
    }

    /// Waits until the first `sent` of these messages were delivered by all members, or what has become of them is not known.
    pub(crate) fn wait_for_outcome(&self, sent: u64, patience: Duration) -> Result<(), WriteError> {
        let Self::Lane { lane, .. } = self else { return self.drain(patience, || None) };
        let Some(last) = sent.checked_sub(1) else { return Ok(()) };
        let outcome = lane.poller.wait_until(patience, || {
            let mut outbound = lane.outbound.try_lock().ok()?;
            Some(outbound.outcome(last)).filter(|outcome| *outcome != MessageOutcome::Pending)
        });
        match outcome {
            Some(MessageOutcome::Delivered) => Ok(()),
            Some(_) => Err(WriteError::Unknown),
            None => Err(WriteError::Timeout(patience)),
        }
    }

    /// Waits until everything that was sent has been delivered by all members, or `has_ended` says why it will not be.
    pub(crate) fn drain(
        &self,
        patience: Duration,
        has_ended: impl Fn() -> Option<GroupError>,
    ) -> Result<(), WriteError> {
        match self {
            Self::Lane { lane, .. } => {
                let outcome = lane.poller.wait_until(patience, || {
                    // A thread that writes at this moment has not drained it.
                    let mut outbound = lane.outbound.try_lock().ok()?;
                    if outbound.is_drained() {
                        Some(Ok(()))
                    } else {
                        has_ended().map(|error| Err(WriteError::Group(error)))
                    }
                });
                outcome.unwrap_or(Err(WriteError::Timeout(patience)))
            }
            Self::Kept { store, .. } => store.keeper.drain(patience),
        }
    }
}

/// Sends until there is space, or the time is over.
fn retry(patience: Duration, mut send: impl FnMut() -> Result<(), SendError>) -> Result<(), WriteError> {
    // Mostly there is space, and the clock costs as much as the rest.
    let mut begun = None;
    for attempt in 0u32.. {
        match send() {
            Ok(()) => break,
            Err(error)
                if error.is_passing() && begun.get_or_insert_with(Instant::now).elapsed() < patience =>
            {
                pause(attempt);
            }
            Err(error) => return Err(WriteError::from_send(error, patience)),
        }
    }
    Ok(())
}

pub(crate) fn explain(error: ObjectError) -> WriteError {
    match error {
        ObjectError::TooLong { bytes, bytes_max } => {
            WriteError::TooLong { length: bytes, length_max: bytes_max }
        }
        ObjectError::Unknown => WriteError::Unknown,
        ObjectError::Group(error) => WriteError::Group(error),
        error => WriteError::History(error),
    }
}

/// Yields at first, since space comes within microseconds, and sleeps later.
pub(crate) fn pause(attempt: u32) {
    if attempt < SPINS { thread::yield_now() } else { thread::sleep(NAP) }
}

const SPINS: u32 = 100;
const NAP: Duration = Duration::from_micros(100);
