//! Succession: what a sender had under way goes on in the next view, once and in order \[V7\] (Derecho §3.4).
//!
//! The polling thread moves messages of earlier windows into the present one. It cannot know whether the application
//! still fills a message that it had reserved when its window was closed. So the application takes the next window
//! itself, when it has given the earlier one up; until then the polling thread moves what is committed late.

use std::collections::{BTreeSet, VecDeque};
use std::ops::DerefMut;

use squall_fabric::window::{WindowBacklog, WindowWriter};

use super::{GroupApplication, SubgroupId};

/// The subgroups whose successions are not over.
#[derive(Debug, Default)]
pub(super) struct Successions(BTreeSet<SubgroupId>);

impl Successions {
    /// A view begins with this window.
    pub(super) fn begin_view(
        &mut self,
        id: SubgroupId,
        mut succession: impl DerefMut<Target = Succession>,
        writer: WindowWriter,
    ) {
        succession.begin_view(writer);
        self.0.insert(id);
    }

    /// This member no longer sends there.
    pub(super) fn remove(&mut self, id: SubgroupId, mut succession: impl DerefMut<Target = Succession>) {
        succession.clear();
        self.0.remove(&id);
    }

    /// Moves what is left of earlier views; returns the amount of work done.
    #[inline]
    pub(super) fn poll<A: GroupApplication>(&mut self, application: &mut A) -> usize {
        if self.0.is_empty() { 0 } else { self.advance(application) }
    }

    #[cold]
    fn advance<A: GroupApplication>(&mut self, application: &mut A) -> usize {
        let mut work = 0;
        self.0.retain(|id| {
            let Some(mut succession) = application.try_succession(*id) else { return true };
            work += usize::from(succession.advance() > 0);
            !succession.is_over()
        });
        work
    }
}

/// One sender's way from window to window. Both the polling thread and the application advance it, one at a time; the
/// application takes its writers here.
#[derive(Debug, Default)]
pub struct Succession {
    /// The present window's writer, until the application takes it.
    writer: Option<WindowWriter>,
    /// Windows of earlier views that are not yet empty, or whose writers still live; the messages that go first in front.
    sources: VecDeque<WindowBacklog>,
    /// Whether all messages that are not delivered are in `sources` and the window of `writer`.
    is_complete: bool,
}

impl Succession {
    /// A view has ended with these messages left; they were there before those that had not yet moved.
    pub(super) fn end_view(&mut self, backlog: Option<WindowBacklog>) {
        // A writer that the application has not taken is gone with its window.
        self.writer = None;
        if let Some(backlog) = backlog {
            self.sources.push_front(backlog);
        }
        self.is_complete = true;
    }

    fn begin_view(&mut self, writer: WindowWriter) {
        self.writer = Some(writer);
    }

    /// Nothing goes on.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves what there is space for; returns how many messages were moved.
    pub fn advance(&mut self) -> u64 {
        let Some(writer) = &mut self.writer else { return 0 };
        let mut moved = 0;
        while let Some(source) = self.sources.front_mut() {
            moved += source.move_into(writer);
            if !source.is_done() {
                break;
            }
            self.sources.pop_front();
        }
        moved
    }

    /// The writer of the present view's window, behind all that was committed before. Drop the one before first. `None`
    /// while the view changes, while there is no space for what was committed before, and if it is taken.
    pub fn take_writer(&mut self) -> Option<WindowWriter> {
        self.advance();
        if !self.sources.is_empty() {
            return None;
        }
        let writer = self.writer.take();
        self.is_complete &= writer.is_none();
        writer
    }

    /// Whether the present view's window is here, though it may have no space.
    #[must_use]
    pub const fn has_window(&self) -> bool {
        self.writer.is_some()
    }

    /// How many messages of this sender are committed and not delivered; `None` while the window that holds them is the
    /// application's.
    #[must_use]
    pub fn under_way(&self) -> Option<u64> {
        let moved = self.writer.as_ref().map_or(0, |writer| writer.committed() - writer.delivered());
        let left: u64 = self.sources.iter().map(WindowBacklog::left).sum();
        self.is_complete.then_some(moved + left)
    }

    /// Whether nothing is left to move.
    fn is_over(&self) -> bool {
        self.sources.is_empty()
    }
}
