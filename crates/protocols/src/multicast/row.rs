//! The row of a member in a subgroup's table: counts, and the window if it sends (Spindle §2.2–2.3, Table 1).

use squall_fabric::layout::Columns;
use squall_fabric::window::{Announcement, ExpressSlot, WindowGeometry};
use squall_fabric::{Column, Region, RowLayout};

use super::{BodyColumns, DeliveryMode, SubgroupSettings};
use crate::coverage::{Point, reach};
use crate::mutation;

/// Where things are in the row of each member. Columns that are polled for different reasons lie in cache lines
/// of their own.
#[derive(Clone, Debug)]
pub struct MulticastRow {
    /// What this member has sent: the guard of its window. The window's express slot fills the rest of its line, so that
    /// who polls both polls one line.
    pub announced: Column<Announcement>,
    /// Sequences that are here without a gap.
    pub received: Column<u64>,
    /// Sequences delivered (one lane, total order, behind `received`), or indexes delivered of each sender (a lane
    /// each).
    pub delivered: Columns<u64>,
    /// The window.
    pub window: WindowGeometry,
    /// The bodies of large messages, if there may be any.
    pub bodies: Option<BodyColumns>,
    /// Words of the whole row.
    pub words: usize,
}

impl MulticastRow {
    /// The row for `settings`, the same at all members.
    #[must_use]
    pub fn new(settings: &SubgroupSettings) -> Self {
        let mut layout = RowLayout::new();
        let announced = layout.list(1 + ExpressSlot::WORDS).column(0);
        let express = settings.express.then(|| ExpressSlot::at(announced.word() + 1));
        let (received, delivered) = match settings.mode {
            DeliveryMode::Atomic => {
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

    /// What a member has sent, if its announcement says `stored`: the express record behind that counts, too, if all of it
    /// is in `row`.
    #[inline]
    pub(super) fn with_express(&self, row: &Region, stored: Announcement) -> Announcement {
        let Some(express) = self.window.express else { return stored };
        let claimed = express.announcement(row);
        if claimed.indexes <= stored.indexes {
            return stored;
        }
        if express.is_whole(row) || mutant!(PartOfExpress) {
            reach(Point::ExpressTaken);
            claimed
        } else {
            stored
        }
    }

    /// What a member has sent, as far as `row` shows. It may be less than what was seen before, while the express slot is
    /// written anew: then all members have delivered what lay in it.
    #[must_use]
    pub fn announcement(&self, row: &Region) -> Announcement {
        self.with_express(row, self.announced.load(row))
    }
}
