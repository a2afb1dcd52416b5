//! The outbox: a sender's windows, one for each shard, and what it has under way (RamCast §3.2, §3.7) \[G2\] \[G8\].
//!
//! A message has a record in the window of each of its destination shards. A record is freed when all members of that shard have
//! delivered it: what the members of other shards still need of the message is in their own windows.
//!
//! `Deviation:` (§3.7) the paper frees a slot when all destinations have delivered it or have it in a checkpoint; there are no
//! checkpoints here.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::trusted;
use squall_fabric::window::{ReserveError, WindowPublisher, WindowReader, WindowWriter};

use super::ShardPlacement;
use super::mutation;
use super::placement::shards_of;
use super::record::{HEADER_BYTES, RecordHeader};
use super::table::{ShardRow, ShardTable};

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenuineSendError {
    /// A window is full, or messages of an earlier view go first: try again when members have delivered.
    Full,
    /// The view is ending: try again in the next one.
    Closed,
    /// None of the destination shards has a member in this view.
    NoDestination,
    /// The message is longer than the settings allow.
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The longest allowed.
        message_max: usize,
    },
}

impl std::fmt::Display for GenuineSendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full => f.write_str("a window is full: send again when members have delivered"),
            Self::Closed => f.write_str("the view is ending: send again in the next view"),
            Self::NoDestination => {
                f.write_str("no destination shard has a member in this view: choose other destinations")
            }
            Self::TooLong { length, message_max } => {
                write!(
                    f,
                    "a message of {length} bytes exceeds message_max = {message_max}: send less at once"
                )
            }
        }
    }
}

impl std::error::Error for GenuineSendError {}

/// A message of an earlier view that this member does not know to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BacklogMessage {
    pub(super) header: RecordHeader,
    pub(super) payload: Vec<u8>,
}

/// The window for one shard.
#[derive(Debug)]
struct ShardWindow {
    writer: WindowWriter,
    publisher: WindowPublisher,
    /// At the oldest record that is not freed.
    tail: WindowReader,
    freed: u64,
    /// The numbers of the records that are not freed.
    numbers: VecDeque<u64>,
}

/// The windows of a sender in one view.
#[derive(Debug)]
pub(super) struct ShardOutbox {
    /// By shard; `None` for those without members.
    windows: Vec<Option<ShardWindow>>,
    populated: u64,
    message_max: usize,
    /// What is sent before anything new, in the order of numbers.
    backlog: VecDeque<BacklogMessage>,
    /// The number of the next new message.
    number: u64,
    is_closed: bool,
}

impl ShardOutbox {
    pub(super) fn new(
        table: &ShardTable,
        row: &ShardRow,
        placement: &ShardPlacement,
        backlog: VecDeque<BacklogMessage>,
        number: u64,
    ) -> Self {
        let populated = placement.populated();
        let window = |shard: usize| {
            (populated >> shard & 1 == 1).then(|| {
                let region = table.region(shard);
                let (writer, publisher) = trusted::window(region, row.window, None);
                let (tail, numbers) = (WindowReader::new(region, row.window), VecDeque::new());
                ShardWindow { writer, publisher, tail, freed: 0, numbers }
            })
        };
        let message_max = row.window.message_max - HEADER_BYTES;
        let windows = (0..placement.count()).map(window).collect();
        let mut outbox = Self { windows, populated, message_max, backlog, number, is_closed: false };
        outbox.send_backlog();
        outbox
    }

    /// Sends a message; returns its number.
    pub(super) fn send(&mut self, destinations: u64, payload: &[u8]) -> Result<u64, GenuineSendError> {
        if payload.len() > self.message_max {
            return Err(GenuineSendError::TooLong { length: payload.len(), message_max: self.message_max });
        }
        if self.is_closed {
            return Err(GenuineSendError::Closed);
        }
        if destinations & self.populated == 0 {
            return Err(GenuineSendError::NoDestination);
        }
        let header = RecordHeader { destinations, number: self.number };
        if !self.backlog.is_empty() || !self.write(header, payload) {
            return Err(GenuineSendError::Full);
        }
        self.number += 1;
        Ok(header.number)
    }

    /// Sends what was under way in earlier views, as far as there is space; returns how many messages.
    pub(super) fn send_backlog(&mut self) -> usize {
        let before = self.backlog.len();
        while !self.is_closed
            && let Some(BacklogMessage { mut header, payload }) = self.backlog.pop_front()
        {
            // A message whose shards are all gone has nowhere to go.
            if header.destinations & self.populated == 0 {
                continue;
            }
            if mutant!(NumberAgain) {
                header.number = self.number;
                self.number += 1;
            }
            if !self.write(header, &payload) {
                self.backlog.push_front(BacklogMessage { header, payload });
                break;
            }
        }
        before - self.backlog.len()
    }

    /// Writes a record into the window of each destination shard, or into none.
    fn write(&mut self, header: RecordHeader, payload: &[u8]) -> bool {
        let length = HEADER_BYTES + payload.len();
        let destinations = header.destinations & self.populated;
        for shard in shards_of(destinations) {
            match self.window(shard).writer.check_space(length) {
                Ok(()) => {}
                Err(ReserveError::Full | ReserveError::Closed) => return false,
                Err(error) => unreachable!("the length was looked at: {error}"),
            }
        }
        for shard in shards_of(destinations) {
            let ShardWindow { writer, numbers, .. } = self.window(shard);
            let written = writer.send_written(length, |record| header.write(payload, record));
            written.expect("there is space");
            numbers.push_back(header.number);
        }
        true
    }

    fn window(&mut self, shard: usize) -> &mut ShardWindow {
        self.windows[shard].as_mut().expect("a shard with members")
    }

    /// Publishes what was written; returns how many records.
    pub(super) fn publish(&mut self, table: &mut ShardTable, row: &ShardRow) -> u64 {
        let mut count = 0;
        for (shard, window) in self.windows.iter_mut().enumerate() {
            let Some(ShardWindow { publisher, .. }) = window else { continue };
            count += table.publish(shard, row, publisher);
        }
        count
    }

    /// Frees the records that all members of a shard have delivered \[G8\]; `done` says how many records are done at the member
    /// with a rank. Returns how many records.
    pub(super) fn free(&mut self, placement: &ShardPlacement, done: impl Fn(usize, usize) -> u64) -> u64 {
        let mut count = 0;
        for (shard, window) in self.windows.iter_mut().enumerate() {
            let Some(ShardWindow { publisher, tail, freed, numbers, .. }) = window else { continue };
            if publisher.outstanding() == 0 {
                continue;
            }
            let reports = placement.members(shard).iter().map(|rank| done(shard, *rank));
            let least = if mutant!(ReuseAfterFirst) { reports.max() } else { reports.min() };
            let least = least.unwrap_or(0);
            // The reader follows, so that it is at the oldest record when the view ends.
            for index in *freed..least {
                tail.take(index, publisher.announcement()).expect("the own record");
                numbers.pop_front();
            }
            *freed = least.max(*freed);
            count += publisher.free(least);
        }
        count
    }

    /// How many messages are under way in the window that has the most, and how many wait for one.
    pub(super) fn under_way(&self) -> usize {
        let outstanding = |window: &ShardWindow| window.publisher.outstanding() + window.publisher.ready();
        let most = self.windows.iter().flatten().map(outstanding).max().unwrap_or(0);
        self.backlog.len() + usize::try_from(most).expect("a window")
    }

    /// How many messages were sent in all views.
    pub(super) const fn sent(&self) -> u64 {
        self.number
    }

    /// All messages below this number are freed in all their windows, or had none.
    pub(super) fn settled(&self) -> u64 {
        let oldest = self.windows.iter().flatten().filter_map(|window| window.numbers.front().copied());
        let waiting = self.backlog.front().map(|message| message.header.number);
        oldest.chain(waiting).min().unwrap_or(self.number)
    }

    /// Nothing more is sent in this view \[G9\].
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Ends the view: what this member does not know to be delivered, in the order of numbers, and the next number \[G13\].
    pub(super) fn end(&mut self) -> (VecDeque<BacklogMessage>, u64) {
        let mut left = BTreeMap::new();
        for window in self.windows.iter_mut().flatten() {
            let ShardWindow { publisher, tail, freed, .. } = window;
            // What is written and not published is read like the rest.
            publisher.publish(u64::MAX, |_| ());
            let announced = publisher.announcement();
            for index in *freed..announced.indexes {
                let place = tail.take(index, announced).expect("the own record").expect("no nulls are sent");
                let (header, payload) =
                    RecordHeader::split(trusted::payload(tail, place)).expect("the own record");
                left.entry(header.number)
                    .or_insert_with(|| BacklogMessage { header, payload: payload.to_vec() });
            }
        }
        let mut backlog: VecDeque<BacklogMessage> = left.into_values().collect();
        backlog.append(&mut self.backlog);
        mutant!(ForgetBacklog => backlog.clear());
        (backlog, self.number)
    }
}

/// The shards in which a message with these destinations has a record.
pub(super) fn counting(destinations: u64, placement: &ShardPlacement) -> impl Iterator<Item = usize> {
    shards_of(destinations & placement.populated())
}
