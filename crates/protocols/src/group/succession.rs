//! Succession: what a sender had under way goes on in the next view, once and in order \[V7\] (Derecho §3.4).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::window::{Remains, Writer};

use super::SubgroupId;

/// The successions of all subgroups in which this member sends.
#[derive(Debug, Default)]
pub(super) struct Successions {
    by_subgroup: BTreeMap<SubgroupId, Succession>,
    /// Some of them have not yet handed their window's writer over.
    are_under_way: bool,
}

impl Successions {
    /// A view has ended with these messages left.
    pub(super) fn end_view(&mut self, id: SubgroupId, remains: Option<Remains>) {
        self.by_subgroup.entry(id).or_default().end_view(remains);
    }

    /// A view begins with this window.
    pub(super) fn begin_view(&mut self, id: SubgroupId, writer: Writer) {
        self.by_subgroup.entry(id).or_default().begin_view(writer);
        self.are_under_way = true;
    }

    /// This member no longer sends there.
    pub(super) fn remove(&mut self, id: SubgroupId) {
        self.by_subgroup.remove(&id);
    }

    /// Nothing goes on.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves what is left of earlier views, and hands the writers over; returns the amount of work done.
    #[inline]
    pub(super) fn poll(&mut self, hand_over: impl FnMut(SubgroupId, Writer)) -> usize {
        if self.are_under_way { self.advance(hand_over) } else { 0 }
    }

    #[cold]
    fn advance(&mut self, mut hand_over: impl FnMut(SubgroupId, Writer)) -> usize {
        let mut work = 0;
        self.are_under_way = false;
        for (id, succession) in &mut self.by_subgroup {
            let (moved, writer) = succession.advance();
            work += usize::from(moved > 0);
            self.are_under_way |= succession.writer.is_some();
            if let Some(writer) = writer {
                hand_over(*id, writer);
                work += 1;
            }
        }
        work
    }
}

/// One sender's way from window to window.
#[derive(Debug, Default)]
struct Succession {
    /// The present window's writer, until the application has it.
    writer: Option<Writer>,
    /// Windows of earlier views that are not yet empty, the messages that go first in front.
    sources: VecDeque<Remains>,
}

impl Succession {
    /// A view has ended with these messages left; they were there before those that had not yet moved.
    fn end_view(&mut self, remains: Option<Remains>) {
        // A writer that the application has not taken is gone with its window.
        self.writer = None;
        if let Some(remains) = remains {
            self.sources.push_front(remains);
        }
    }

    /// A view begins with this window.
    fn begin_view(&mut self, writer: Writer) {
        self.writer = Some(writer);
    }

    /// Moves what there is room for. Returns how many messages were moved, and the writer when it is the
    /// application's turn.
    fn advance(&mut self) -> (u64, Option<Writer>) {
        let Some(writer) = &mut self.writer else { return (0, None) };
        let mut moved = 0;
        while let Some(source) = self.sources.front_mut() {
            moved += source.move_into(writer);
            if !source.is_done() {
                return (moved, None);
            }
            self.sources.pop_front();
        }
        (moved, self.writer.take())
    }
}
