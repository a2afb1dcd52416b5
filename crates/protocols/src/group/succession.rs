//! Succession: a sender's messages in flight continue in the next view, once and in order \[V7\] (Derecho §3.4).
//!
//! The polling thread moves messages of earlier windows into the current one. It cannot know whether the application
//! is still filling a message that it had reserved when its window was closed. So the application takes the next
//! window itself, when it has given up the earlier one; until then the polling thread moves messages that are
//! committed late.

use std::collections::{BTreeSet, VecDeque};
use std::ops::DerefMut;

use squall_fabric::window::{WindowBacklog, WindowWriter};

use super::{GroupApplication, SubgroupId};

/// The subgroups whose successions still have messages to move.
#[derive(Debug, Default)]
pub(super) struct Successions(BTreeSet<SubgroupId>);

impl Successions {
    /// Begins a view with this window.
    pub(super) fn begin_view(
        &mut self,
        id: SubgroupId,
        mut succession: impl DerefMut<Target = Succession>,
        writer: WindowWriter,
    ) {
        succession.begin_view(writer);
        self.0.insert(id);
    }

    /// Removes the succession of a subgroup in which this member no longer sends.
    pub(super) fn remove(&mut self, id: SubgroupId, mut succession: impl DerefMut<Target = Succession>) {
        succession.clear();
        self.0.remove(&id);
    }

    /// Moves the remaining messages of earlier views; returns the amount of work done.
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

/// One sender's messages that pass from window to window. Both the polling thread and the application advance it, one
/// at a time; the application takes its writers from it.
#[derive(Debug, Default)]
pub struct Succession {
    /// The current window's writer, until the application takes it.
    writer: Option<WindowWriter>,
    /// Windows of earlier views that are not empty yet, or whose writers still exist; the messages that are to be
    /// moved first are in front.
    sources: VecDeque<WindowBacklog>,
    /// Whether all undelivered messages are in `sources` and the window of `writer`.
    is_complete: bool,
}

impl Succession {
    /// Ends a view with these messages left, which precede those that had not been moved yet.
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

    /// Drops all messages: nothing continues.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves as many messages as there is space for; returns their number.
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

    /// Takes the writer of the current view's window, positioned after all that was committed before. The caller
    /// drops the previous writer first. Returns `None` while the view changes, while there is no space for what was
    /// committed before, and if the writer has been taken.
    pub fn take_writer(&mut self) -> Option<WindowWriter> {
        self.advance();
        if !self.sources.is_empty() {
            return None;
        }
        let writer = self.writer.take();
        self.is_complete &= writer.is_none();
        writer
    }

    /// Returns whether the current view's window is available, although it may have no space.
    #[must_use]
    pub const fn has_window(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns how many messages of this sender are committed and not delivered; `None` while the application has the
    /// window that holds them.
    #[must_use]
    pub fn under_way(&self) -> Option<u64> {
        let moved = self.writer.as_ref().map_or(0, |writer| writer.committed() - writer.delivered());
        let left: u64 = self.sources.iter().map(WindowBacklog::left).sum();
        self.is_complete.then_some(moved + left)
    }

    /// Returns whether nothing is left to move.
    fn is_over(&self) -> bool {
        self.sources.is_empty()
    }
}
