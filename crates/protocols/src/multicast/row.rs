//! The row of a member in a subgroup's table: counts, and the window if it sends (Spindle §2.2–2.3, Table 1).

use squall_fabric::layout::Columns;
use squall_fabric::window::{Announcement, ExpressSlot, WindowGeometry};
use squall_fabric::{Column, Region, RowLayout};

use super::{BodyColumns, DeliveryMode, SubgroupSettings};
use crate::express::with_express;

/// The layout of each member's row. Columns that are polled for different reasons are in different cache lines.
#[derive(Clone, Debug)]
pub struct MulticastRow {
    /// What this member has sent: the guard of its window. The window's express slot fills the rest of its cache
    /// line, so that polling both touches one line.
    pub announced: Column<Announcement>,
    /// The number of sequences that the member has without a gap; in mode `Durable`, on its disk.
    pub received: Column<u64>,
    /// The number of sequences delivered (one lane in total order, stored after `received`), or of indexes delivered
    /// of each sender (one lane each).
    pub delivered: Columns<u64>,
    /// The window.
    pub window: WindowGeometry,
    /// The columns of large messages' bodies, if large messages are allowed.
    pub bodies: Option<BodyColumns>,
    /// The number of words of the whole row.
    pub words: usize,
}

impl MulticastRow {
    /// Returns the row's layout for `settings`, which is the same at all members.
    #[must_use]
    pub fn new(settings: &SubgroupSettings) -> Self {
        let mut layout = RowLayout::new();
        let announced = layout.list(1 + ExpressSlot::WORDS).column(0);
        let express = settings.express.then(|| ExpressSlot::at(announced.word() + 1));
        let (received, delivered) = match settings.mode {
            DeliveryMode::Atomic | DeliveryMode::Durable => {
                let both = layout.list(2);
                (both.column(0), both.part(1..2))
            }
            DeliveryMode::Unordered | DeliveryMode::Raw => {
                (layout.column(), layout.columns(settings.lanes()))
            }
        };
        let empty = WindowGeometry::new(0, settings.window, settings.message_max, settings.window_bytes);
        let first = layout.block(empty.words());
        let window = WindowGeometry { first, express, ..empty };
        let bodies = settings.large.as_ref().map(|large| BodyColumns::new(&mut layout, large));
        Self { announced, received, delivered, window, bodies, words: layout.words() }
    }

    /// Returns what a member has sent, if its stored announcement is `stored`: an express record after that counts,
    /// too, if all of it is in `row`.
    #[inline]
    pub(super) fn with_express(&self, row: &Region, stored: Announcement) -> Announcement {
        match self.window.express {
            Some(express) => with_express(express, row, stored),
            None => stored,
        }
    }

    /// Returns what a member has sent, as far as `row` shows. It may be less than what was seen before, while the
    /// express slot is rewritten: then all members have delivered the slot's former message.
    #[must_use]
    pub fn announcement(&self, row: &Region) -> Announcement {
        self.with_express(row, self.announced.load(row))
    }
}
