//! What the row of a member announces whose window has an express slot (Spindle §2.3).

use squall_fabric::Region;
use squall_fabric::window::{Announcement, ExpressSlot};

use crate::coverage::{Point, reach};
use crate::mutation;

/// Returns what is announced in `row`, where the announcement's own word is `stored`: what is in the express slot counts, too, if it
/// comes after that and all of it is there.
#[inline]
pub(crate) fn with_express(express: ExpressSlot, row: &Region, stored: Announcement) -> Announcement {
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
