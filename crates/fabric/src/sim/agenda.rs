//! The agenda of the world: the actions scheduled in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::connection::{BreakNotice, EndId};
use super::grants::GrantIndex;
use super::link::LaneId;
use super::mirror::AttachmentId;
use crate::BreakReason;

/// A scheduled action.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimAction {
    /// The first post of a lane may proceed.
    Lane(LaneId),
    /// Completions of a connection's end are due.
    Completions(EndId),
    /// Both ends are open, so they connect.
    Connect(EndId),
    /// The end learns that its connection is broken.
    Break(EndId, BreakNotice),
    /// The oldest post of the lane (given by its number) has waited long enough for a receive.
    ReceiverNotReady(LaneId, u64),
    /// The reader and the owner of a mirror have found each other.
    Attach(AttachmentId),
    /// A reader that shares the owner's memory sees what is stored there.
    Glimpse { owner: u32, reader: u32 },
    /// No further write under the grant lands.
    Revoked(GrantIndex),
    /// A node that was seen dying ends.
    Crash(u32),
    /// A node sees that another is dying.
    See { node: u32, dying: u32 },
    /// A node learns that it has lost another.
    Lose { node: u32, peer: u32, reason: BreakReason },
    /// Two nodes have been separated since their paths were cut or joined for that many times.
    Unreachable { nodes: [u32; 2], cuts: u32 },
    /// A rule is due.
    Rule(usize),
    /// A paused node continues, unless it was paused again or resumed since (the pause's number is given).
    Resume { node: u32, pause: u32 },
}

/// Actions ordered by time; of two at the same time, the one entered first comes first.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry {
    at: u64,
    number: u64,
    action: SimAction,
}

impl Agenda {
    /// Enters `action` for time `at`.
    pub(super) fn enter(&mut self, at: u64, action: SimAction) {
        self.entries.push(Reverse(Entry { at, number: self.entered, action }));
        self.entered += 1;
    }

    /// Returns the time of the next action.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next action.
    pub(super) fn take(&mut self) -> Option<(u64, SimAction)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.action))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
