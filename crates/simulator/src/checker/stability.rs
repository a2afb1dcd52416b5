//! Stability before delivery [O4]: when a member delivers a message, every member has it in its own memory. The
//! checker reads all members' memories, and does not rely on what they publish.

use squall_fabric::Region;
use squall_protocols::multicast::MulticastRow;

use super::Delivery;
use crate::run::Violation;

/// Each member's copy of each sender's row.
#[derive(Debug)]
pub struct Stability {
    row: MulticastRow,
    /// `views[member][sender]`: the member's own copy of the sender's row.
    views: Vec<Vec<Region>>,
}

impl Stability {
    /// Returns a checker that reads `views[member][sender]`.
    #[must_use]
    pub const fn new(row: MulticastRow, views: Vec<Vec<Region>>) -> Self {
        Self { row, views }
    }

    /// Checks a delivery in total order.
    ///
    /// # Errors
    /// If some member has not received the message yet.
    pub fn on_delivery(&self, delivery: &Delivery<'_>) -> Result<(), Violation> {
        for (member, views) in self.views.iter().enumerate() {
            if self.row.announcement(&views[delivery.sender]).indexes <= delivery.index {
                return Err(Violation {
                    checker: "stability",
                    text: format!(
                        "[O4] member {} delivers index {} of sender {}, which member {member} has not received",
                        delivery.member, delivery.index, delivery.sender
                    ),
                });
            }
        }
        Ok(())
    }
}
