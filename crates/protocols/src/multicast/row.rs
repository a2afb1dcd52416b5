//! The row of a member in a subgroup's table: counts, and the window if it sends (Spindle §2.2–2.3, Table 1).

use squall_fabric::layout::Columns;
use squall_fabric::window::{Announcement, Geometry};
use squall_fabric::{Column, Layout};

use super::{BodyColumns, Mode, Settings};

/// Where things are in the row of each member. Columns that are polled for different reasons lie in cache lines
/// of their own.
#[derive(Clone, Debug)]
pub struct Row {
    /// What this member has sent: the guard of its window.
    pub announced: Column<Announcement>,
    /// Sequences that are here without a gap.
    pub received: Column<u64>,
    /// Sequences delivered (one lane, total order, behind `received`), or indexes delivered of each sender (a lane
    /// each).
    pub delivered: Columns<u64>,
    /// The window.
    pub window: Geometry,
    /// The bodies of large messages, if there may be any.
    pub bodies: Option<BodyColumns>,
    /// Words of the whole row.
    pub words: usize,
}

impl Row {
    /// The row for `settings`, the same at all members.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let mut layout = Layout::new();
        let announced = layout.column();
        let (received, delivered) = match settings.mode {
            Mode::Atomic => {
                let both = layout.list(2);
                (both.column(0), both.part(1..2))
            }
            Mode::Unordered | Mode::Raw => (layout.column(), layout.columns(settings.lanes())),
        };
        let empty = Geometry::new(0, settings.window, settings.message_max, settings.window_bytes);
        let first = layout.block(empty.words());
        let window = Geometry { first, ..empty };
        let bodies = settings.large.as_ref().map(|large| BodyColumns::new(&mut layout, large));
        Self { announced, received, delivered, window, bodies, words: layout.words() }
    }
}
