//! The walk of a batch: each sender's records in turn, without the nulls (Spindle §3.1, §3.5).

use std::sync::Arc;

use squall_fabric::window::{Announcement, WindowReader, WindowRecord};
use squall_fabric::{NodeId, Region, trusted};

use super::consumer::{Message, TakenMessage};
use super::{CorruptMemory, MulticastRow};
use crate::coverage::{Point, reach};
use crate::mutation;

/// A sender's window, as a consumer reads it.
#[derive(Debug)]
pub(super) struct SenderWindow {
    /// Rank among the members.
    pub(super) member: usize,
    pub(super) node: NodeId,
    pub(super) row: Region,
    pub(super) columns: Arc<MulticastRow>,
    pub(super) announced: Announcement,
    pub(super) reader: WindowReader,
    /// The number of messages that this member has delivered in an earlier view and that are sent again.
    pub(super) known: u64,
}

/// The state of one batch, separate from the consumer's so that it stays in registers.
pub(super) struct Walk {
    pub(super) next_sender: usize,
    pub(super) round: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// The number of sequences or indexes taken without an error.
    pub(super) taken: u64,
}

impl Walk {
    /// Hands over what is below `limit`: of each sender in turn if `ordered`, else of one.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        senders: &mut [SenderWindow],
        view: u64,
        ordered: bool,
        limit: u64,
        deliver: &mut impl FnMut(Message<'_>) -> bool,
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        let mut refused = None;
        while self.taken < limit && refused.is_none() {
            refused = self.run_round(senders, view, ordered, limit - self.taken, deliver)?;
            if !ordered || self.next_sender == senders.len() {
                self.round += 1;
            }
            if self.next_sender == senders.len() {
                self.next_sender = 0;
            }
        }
        Ok(refused)
    }

    /// Hands over the rest of a round, but at most `count` messages.
    #[inline(always)]
    fn run_round(
        &mut self,
        senders: &mut [SenderWindow],
        view: u64,
        ordered: bool,
        count: u64,
        deliver: &mut impl FnMut(Message<'_>) -> bool,
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        let (first, index) = (self.next_sender, self.round);
        let rest = if ordered { &mut senders[first..] } else { &mut senders[first..=first] };
        let count = usize::try_from(count).map_or(rest.len(), |count| rest.len().min(count));
        for (place, source) in rest[..count].iter_mut().enumerate() {
            let taken = source.take(index)?;
            let sequence = self.taken;
            self.taken += 1;
            if ordered {
                self.next_sender += 1;
            }
            let Some(record) = taken else { continue };
            let bytes = source.payload(record);
            if !deliver(Message { view, sender: source.member, node: source.node, index, sequence, bytes }) {
                return Ok(Some(TakenMessage { sender: first + place, index, sequence, record }));
            }
            self.messages += 1;
            self.bytes += bytes.len() as u64;
        }
        Ok(None)
    }
}

impl SenderWindow {
    // It is called for each message; without inlining its result would go through memory.
    #[inline(always)]
    pub(super) fn take(&mut self, index: u64) -> Result<Option<WindowRecord>, CorruptMemory> {
        if self.known == 0
            && !mutant!(EmptyIsNull)
            && let Some(record) = self.reader.take_sure(index)
        {
            return Ok(Some(record));
        }
        if index < self.announced.indexes && self.reader.has_taken(self.announced) {
            return Ok(None);
        }
        self.take_other(index)
    }

    /// Takes what is not a short message whose announcement has been seen.
    #[inline(never)]
    fn take_other(&mut self, index: u64) -> Result<Option<WindowRecord>, CorruptMemory> {
        if self.announced.indexes <= index {
            self.announced = self.columns.announcement(&self.row);
            if self.announced.indexes <= index {
                return Err(CorruptMemory::Announcement { member: self.member, index });
            }
        }
        let taken = self.reader.take(index, self.announced);
        if mutant!(EmptyIsNull) {
            return Ok(taken.unwrap_or(None).filter(|record| !self.payload(*record).is_empty()));
        }
        let record = taken.map_err(|record| CorruptMemory::Record { member: self.member, record })?;
        if self.known > 0 && record.is_some() && !mutant!(DeliverKnown) {
            reach(Point::KnownPassedOver);
            self.known -= 1;
            return Ok(None);
        }
        Ok(record)
    }

    /// Notes what the sender has announced, which is not less than before, and lets its next messages enter this core's cache.
    #[inline]
    pub(super) fn foresee(&mut self, announced: Announcement) {
        self.announced = self.announced.max(announced);
        self.reader.note_announced(self.announced);
        self.reader.foresee();
    }

    /// Returns the bytes of a record that was taken, in place, until the consumer reports its index as delivered [O5].
    #[inline(always)]
    pub(super) fn payload(&self, record: WindowRecord) -> &[u8] {
        trusted::payload(&self.reader, record)
    }
}
