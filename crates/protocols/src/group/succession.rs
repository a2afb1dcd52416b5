//! Succession: what a sender had under way goes on in the next view, once and in order \[V7\] (Derecho §3.4).

use std::collections::VecDeque;

use squall_fabric::window::{Remains, Writer};

/// One sender's way from window to window.
#[derive(Debug, Default)]
pub(super) struct Succession {
    /// The present window's writer, until the application has it.
    writer: Option<Writer>,
    /// Windows of earlier views that are not yet empty, the messages that go first in front.
    sources: VecDeque<Remains>,
}

impl Succession {
    /// A view has ended with these messages left; they were there before those that had not yet moved.
    pub(super) fn end_view(&mut self, remains: Option<Remains>) {
        // A writer that the application has not taken is gone with its window.
        self.writer = None;
        if let Some(remains) = remains {
            self.sources.push_front(remains);
        }
    }

    /// A view begins with this window.
    pub(super) fn begin_view(&mut self, writer: Writer) {
        self.writer = Some(writer);
    }

    /// Whether the present window's writer is still here.
    pub(super) const fn is_under_way(&self) -> bool {
        self.writer.is_some()
    }

    /// Moves what there is room for. Returns how many messages were moved, and the writer when it is the
    /// application's turn.
    pub(super) fn advance(&mut self) -> (u64, Option<Writer>) {
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
