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
    #[inline]
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
            let source = &mut senders[self.next_sender];
            if let Some(record) = source.take(self.round)? {
                let bytes = source.payload(record);
                let (sender, node) = (source.member, source.node);
                let (index, sequence) = (self.round, self.taken);
                if deliver(Message { view, sender, node, index, sequence, bytes }) {
                    self.messages += 1;
                    self.bytes += bytes.len() as u64;
                } else {
                    refused = Some(TakenMessage { sender: self.next_sender, index, sequence, record });
                }
            }
            self.taken += 1;
            if ordered {
                self.next_sender += 1;
            }
            if !ordered || self.next_sender == senders.len() {
                self.round += 1;
            }
            if self.next_sender == senders.len() {
                self.next_sender = 0;
            }
        }
        Ok(refused)
    }
}

impl SenderWindow {
    // It is called for each message, from one place only; without inlining its result would go through memory.
    #[inline(always)]
    pub(super) fn take(&mut self, index: u64) -> Result<Option<WindowRecord>, CorruptMemory> {
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

    /// Returns the bytes of a record that was taken, in place, until the consumer reports its index as delivered [O5].
    #[inline(always)]
    pub(super) fn payload(&self, record: WindowRecord) -> &[u8] {
        trusted::payload(&self.reader, record)
    }
}
