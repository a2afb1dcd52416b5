//! A reader that begins at an earlier position: first the log, then what is delivered, without a gap or a duplicate (Derecho
//! §3.4, persistent mode).
//!
//! **State.** The reader has returned everything before `next`; everything before `live` was delivered to it and is in the log:
//! what is before both is behind it. While `next < live` it reads the log, and what is delivered meanwhile is *dropped* (its place in
//! the windows is free again, since it is in the log), as long as there is more in the log than the reader has read, or the log lacks what
//! comes next; otherwise it is *kept* for later. When `next >= live`, deliveries are returned as they come.
//!
//! So a reader that is far behind fills no window; and one that has read the end of the log goes over to the deliveries, however
//! fast they come.

use super::version::{CountedLog, LogPart};
use super::{ShardPosition, mutation};

/// Where a reader is that begins at an earlier position. The module's documentation states its law.
#[derive(Clone, Debug)]
pub struct PositionReader {
    next: ShardPosition,
    live: ShardPosition,
    /// The end of the part of the log that was read and is not returned yet, and whether that is all before `live`.
    read: Option<ReadPart>,
    /// The log lacks what comes next.
    is_missing: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReadPart {
    end: ShardPosition,
    is_last: bool,
}

impl PositionReader {
    /// Returns a reader from `from` on, of deliveries that come from `live` on.
    #[must_use]
    pub const fn new(from: ShardPosition, live: ShardPosition) -> Self {
        Self { next: from, live, read: None, is_missing: false }
    }

    /// Returns the position before which everything was returned.
    #[must_use]
    pub const fn next(&self) -> ShardPosition {
        self.next
    }

    /// Returns the position before which everything that is delivered was taken.
    #[must_use]
    pub const fn live(&self) -> ShardPosition {
        self.live
    }

    /// Continues at another position.
    pub const fn seek(&mut self, position: ShardPosition) {
        (self.next, self.read, self.is_missing) = (position, None, false);
    }

    /// Returns whether the reader returns what is delivered.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.read.is_none() && self.next >= self.live
    }

    /// Returns whether the reader returns what is delivered, or does so when all that it has read is returned.
    #[must_use]
    pub fn ends_live(&self) -> bool {
        self.read.map_or(self.next, |read| self.next.max(read.end)) >= self.live
    }

    /// Returns whether what is delivered is to be taken now: it is returned, or dropped since much of the log is still to be
    /// read.
    #[must_use]
    pub fn takes_live(&self) -> bool {
        self.is_live() || self.is_missing || self.read.is_some_and(|read| !read.is_last)
    }

    /// Takes a message that is delivered, when it may ([`PositionReader::takes_live`]); returns whether it is to be returned. Otherwise it
    /// is dropped: it is before the position from which the reader wants messages, or the reader will find it in the log.
    pub fn handle_live(&mut self, view: u64, sequence: u64) -> bool {
        let message = ShardPosition { view, sequence };
        let behind = ShardPosition { view, sequence: sequence + 1 };
        if self.is_live() {
            self.live = behind;
            let is_next = message >= self.next || mutant!(ReturnEarlier);
            if is_next {
                self.next = behind;
            }
            return is_next;
        }
        mutant!(LoseDropped => return false);
        self.live = behind;
        false
    }

    /// Returns the part of the log to read next, when all that was read is returned. `log` counts everything that was delivered to
    /// the reader.
    pub fn poll_part(&mut self, log: &CountedLog) -> Option<LogPart> {
        if self.read.is_some() || self.is_live() {
            return None;
        }
        let part = log.part(self.next, self.live);
        if part.is_none() {
            // What is left are nulls.
            (self.next, self.is_missing) = (self.live, false);
        }
        part
    }

    /// Notes that everything before `end` was read from the log, which counts at least what was delivered to the reader.
    pub fn handle_read(&mut self, end: ShardPosition, log: &CountedLog) {
        self.is_missing = false;
        let is_last = log.part(end, self.live).is_none();
        self.read = Some(ReadPart { end, is_last });
    }

    /// Notes that the log lacks what comes next, which may take a while.
    pub const fn handle_missing(&mut self) {
        self.is_missing = true;
    }

    /// Notes that a message from the log is returned.
    pub fn handle_returned(&mut self, view: u64, sequence: u64) {
        self.next = ShardPosition { view, sequence: sequence + 1 };
    }

    /// Notes that all messages that were read are returned.
    pub fn handle_all_returned(&mut self) {
        if let Some(read) = self.read.take() {
            self.next = self.next.max(read.end);
        }
    }
}
