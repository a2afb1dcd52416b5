//! The sending side of a topic at a participant: the subgroup itself, or the object that keeps the topic's history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use squall::object::{Object, ObjectError, Pending};
use squall::{SendError, Sender};

use crate::error::WriteError;
use crate::kept::{KeptReply, KeptTopic};
use crate::qos::DurabilityService;
use crate::wire::{ChangeHeader, EndpointAnnouncement, encode_service};

/// Where what this participant writes goes.
#[derive(Debug)]
pub(crate) enum Outlet {
    Multicast(Mutex<Outbound>),
    Kept { object: Object<KeptTopic>, service: DurabilityService },
}

/// The sending end of a subgroup, with what is to be announced before anything else is sent.
#[derive(Debug)]
pub(crate) struct Outbound {
    sender: Sender,
    own: BTreeMap<u16, Vec<u8>>,
    pending: VecDeque<Vec<u8>>,
}

impl Outbound {
    pub(crate) const fn new(sender: Sender) -> Self {
        Self { sender, own: BTreeMap::new(), pending: VecDeque::new() }
    }

    /// Announces all endpoints again, as soon as there is space: a member has come that knows none of them.
    pub(crate) fn announce_again(&mut self) {
        for bytes in self.own.values() {
            if !self.pending.contains(bytes) {
                self.pending.push_back(bytes.clone());
            }
        }
    }

    /// Returns whether announcements wait for space.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sends what is to be announced.
    pub(crate) fn flush(&mut self) -> Result<(), SendError> {
        while let Some(bytes) = self.pending.front() {
            self.sender.send_bytes(bytes)?;
            self.pending.pop_front();
        }
        Ok(())
    }

    fn try_write<F: FnOnce(&mut [u8])>(
        &mut self,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: &mut Option<F>,
    ) -> Result<(), SendError> {
        self.flush()?;
        let mut slot = self.sender.reserve(header.length_with(length))?;
        let data = header.write(&mut slot);
        if let Some(fill) = fill.take() {
            fill(data);
        }
        slot.commit();
        Ok(())
    }
}

impl Outlet {
    /// Returns whether the topic has a history.
    pub(crate) const fn keeps(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }

    /// Says what this participant expects the topic to keep; returns what the topic keeps instead, if it does.
    pub(crate) fn begin(&self, patience: Duration) -> Result<Option<DurabilityService>, WriteError> {
        let Self::Kept { object, service } = self else { return Ok(None) };
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            match update(object, &encode_service(*service), left) {
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
        let bytes = announcement.encode();
        match self {
            Self::Kept { object, service } => keep(object, *service, &bytes, patience),
            Self::Multicast(outbound) => {
                let mut present = lock(outbound);
                let length_max = present.sender.message_max();
                if bytes.len() > length_max {
                    return Err(WriteError::TooLong { length: bytes.len(), length_max });
                }
                present.own.insert(announcement.id.number, bytes.clone());
                present.pending.push_back(bytes);
                drop(present);
                retry(patience, || lock(outbound).flush())
            }
        }
    }

    /// Announces that an endpoint has gone, when there is space.
    pub(crate) fn announce_end(&self, announcement: &EndpointAnnouncement) {
        let bytes = announcement.encode();
        match self {
            Self::Kept { object, .. } => drop(object.update_shard(0, &bytes)),
            Self::Multicast(outbound) => {
                let mut outbound = lock(outbound);
                if outbound.own.remove(&announcement.id.number).is_none() {
                    // It was never announced.
                    return;
                }
                outbound.pending.push_back(bytes);
                // What has no space now is sent before the next sample or view; if the group has ended, it is not needed.
                let _ = outbound.flush();
            }
        }
    }

    /// Writes a change whose data, of `length` bytes, `fill` writes in place.
    pub(crate) fn write(
        &self,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
        patience: Duration,
    ) -> Result<(), WriteError> {
        match self {
            Self::Multicast(outbound) => {
                let mut fill = Some(fill);
                retry(patience, || lock(outbound).try_write(header, length, &mut fill))
            }
            Self::Kept { object, service } => {
                let mut bytes = vec![0; header.length_with(length)];
                fill(header.write(&mut bytes));
                keep(object, *service, &bytes, patience)
            }
        }
    }

    /// Returns whether everything that was sent has been delivered by all members.
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Multicast(outbound) => lock(outbound).sender.is_drained(),
            // Each write waits for its reply, which comes when all members have the message.
            Self::Kept { .. } => true,
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends until there is space, or the time is over.
fn retry(patience: Duration, mut send: impl FnMut() -> Result<(), SendError>) -> Result<(), WriteError> {
    let begun = Instant::now();
    for attempt in 0u32.. {
        match send() {
            Ok(()) => break,
            Err(error) if error.is_passing() && begun.elapsed() < patience => pause(attempt),
            Err(error) => return Err(WriteError::from_send(error, patience)),
        }
    }
    Ok(())
}

/// Adds a message to the history.
fn keep(
    object: &Object<KeptTopic>,
    service: DurabilityService,
    bytes: &Vec<u8>,
    patience: Duration,
) -> Result<(), WriteError> {
    match update(object, bytes, patience)? {
        KeptReply::Kept => Ok(()),
        KeptReply::Full => Err(WriteError::HistoryFull { samples_max: service.samples_max }),
        KeptReply::TooManyEndpoints => Err(WriteError::TooManyEndpoints),
        reply => unreachable!(
            "the topic was begun by this participant, and its messages are well-formed: {reply:?}"
        ),
    }
}

/// Updates the history, and waits for the reply.
fn update(object: &Object<KeptTopic>, bytes: &Vec<u8>, patience: Duration) -> Result<KeptReply, WriteError> {
    let begun = Instant::now();
    object.wait_ready(patience).map_err(|error| match error {
        ObjectError::Unreachable { .. } => WriteError::Timeout(patience),
        error => explain(error),
    })?;
    loop {
        let pending = object.update_shard(0, bytes).map_err(explain)?;
        match wait_reply(pending, begun, patience) {
            // The member was out of the subgroup for a while: the message is in no history.
            Some(Err(ObjectError::NotDelivered)) if begun.elapsed() < patience => {}
            Some(Err(ObjectError::NotDelivered)) => return Err(WriteError::Timeout(patience)),
            Some(reply) => return reply.map_err(explain),
            None => return Err(WriteError::Unknown),
        }
    }
}

/// Waits for a reply until `patience` after `begun`.
fn wait_reply(
    mut pending: Pending<KeptReply>,
    begun: Instant,
    patience: Duration,
) -> Option<Result<KeptReply, ObjectError>> {
    for attempt in 0u32.. {
        match pending.try_wait() {
            Ok(reply) => return Some(reply),
            Err(_) if begun.elapsed() >= patience => return None,
            Err(again) => pending = again,
        }
        pause(attempt);
    }
    None
}

fn explain(error: ObjectError) -> WriteError {
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
