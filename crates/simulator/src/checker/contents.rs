//! FIFO order without gaps or duplicates, and correct bytes [O2] [O3] [N6]: the `k`-th message that a member delivers
//! from a sender is the `k`-th that the sender sent, byte for byte.

use super::Delivery;
use crate::payload;
use crate::run::Violation;

/// Counts deliveries by member and sender.
#[derive(Debug)]
pub struct DeliveryCounts {
    seed: u64,
    message_max: usize,
    /// `delivered[member][sender]`.
    delivered: Vec<Vec<u64>>,
    /// `sent[sender]`.
    sent: Vec<u64>,
}

impl DeliveryCounts {
    /// Returns a checker for `members` members whose payloads derive from `seed`.
    #[must_use]
    pub fn new(seed: u64, members: usize, message_max: usize) -> Self {
        Self { seed, message_max, delivered: vec![vec![0; members]; members], sent: vec![0; members] }
    }

    /// Records that `sender` has sent its next message, and returns the message's number.
    pub fn on_send(&mut self, sender: usize) -> u64 {
        self.sent[sender] += 1;
        self.sent[sender] - 1
    }

    /// Checks a delivery.
    ///
    /// # Errors
    /// If it is not the next message of its sender.
    pub fn on_delivery(&mut self, delivery: &Delivery<'_>) -> Result<(), Violation> {
        let number = &mut self.delivered[delivery.member][delivery.sender];
        let fits = *number < self.sent[delivery.sender]
            && payload::matches(self.seed, delivery.sender, *number, self.message_max, delivery.bytes);
        if !fits {
            return Err(Violation {
                checker: "contents",
                text: format!(
                    "[O2] [O3] member {} delivers {} bytes as message {number} of sender {} (index {}), which is not it",
                    delivery.member,
                    delivery.bytes.len(),
                    delivery.sender,
                    delivery.index
                ),
            });
        }
        *number += 1;
        Ok(())
    }

    /// Returns the number of messages that `member` has delivered from `sender`.
    #[must_use]
    pub fn delivered(&self, member: usize, sender: usize) -> u64 {
        self.delivered[member][sender]
    }

    /// Returns the number of messages that `sender` has sent.
    #[must_use]
    pub fn sent(&self, sender: usize) -> u64 {
        self.sent[sender]
    }

    /// Returns the number of all deliveries.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.delivered.iter().flatten().sum()
    }
}
