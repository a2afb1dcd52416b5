//! Total order [O1]: the deliveries of all members, including dead ones, are prefixes of one sequence.

use super::Delivery;
use crate::run::Violation;

/// The common order, as far as any member has delivered it.
#[derive(Debug)]
pub struct DeliveryOrder {
    /// Sender, index and sequence of each message.
    common: Vec<(usize, u64, u64)>,
    /// The number of messages that each member has delivered.
    position: Vec<usize>,
}

impl DeliveryOrder {
    /// Returns a checker for `members` members.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self { common: Vec::new(), position: vec![0; members] }
    }

    /// Checks a delivery.
    ///
    /// # Errors
    /// If another member has delivered a different message at this position, or the sequence number decreases.
    pub fn on_delivery(&mut self, delivery: &Delivery<'_>) -> Result<(), Violation> {
        let position = self.position[delivery.member];
        let this = (delivery.sender, delivery.index, delivery.sequence);
        self.position[delivery.member] += 1;
        let fail = |text: String| Err(Violation { checker: "order", text });
        match self.common.get(position) {
            Some(other) if *other != this => fail(format!(
                "[O1] at place {position} member {} delivers index {} of sender {} (sequence {}), another member index \
                 {} of sender {} (sequence {})",
                delivery.member, this.1, this.0, this.2, other.1, other.0, other.2
            )),
            Some(_) => Ok(()),
            None if self.common.last().is_some_and(|last| last.2 >= this.2) => fail(format!(
                "[O1] member {} delivers sequence {} after a later one",
                delivery.member, this.2
            )),
            None => {
                self.common.push(this);
                Ok(())
            }
        }
    }
}
