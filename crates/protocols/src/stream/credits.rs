//! Credits: receives that the peer has posted, each good for one send or one write with immediate (EXS §II.B).
//!
//! **Why nobody starves \[E6\].** The last credit is kept for a message that returns credits, and the next few for
//! messages. Suppose that both ends have no credit left and nothing is under way. The last message of each end
//! returned credits, so each end sent its last message after it had received the other's: a contradiction. And an
//! end whose credits run low has most of them owed by its peer, which returns them as soon as it owes half.

use super::StreamViolation;
use super::mutation;

/// One end's account of credits in both directions.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Credits {
    /// Posted receives of the peer that this end may use up; `available <= available_max`.
    available: u32,
    /// What the peer has posted in all.
    available_max: u32,
    /// Receives that are posted here again and that the peer does not know of; `owed <= owed_max`.
    owed: u32,
    /// What is posted here in all.
    owed_max: u32,
    /// From so many on they are to be returned.
    due_at: u32,
}

impl Credits {
    /// The account of an end that posts `receives` receives; what the peer posts is not yet known.
    pub(super) fn new(receives: u32) -> Self {
        Self {
            available: 0,
            available_max: 0,
            owed: 0,
            owed_max: receives,
            due_at: receives.div_ceil(2).max(1),
        }
    }

    /// The peer has posted `receives` receives, and `used` of them are used up already.
    pub(super) fn grant(&mut self, receives: u32, used: u32) {
        (self.available, self.available_max) = (receives - used, receives);
    }

    /// Whether a transfer may be posted.
    pub(super) fn allow_transfer(&self) -> bool {
        self.available > if mutant!(NoReserve) { 0 } else { RESERVED_FOR_MESSAGES }
    }

    /// Whether a message may be posted; every message returns all that is owed.
    pub(super) fn allow_message(&self) -> bool {
        self.available > RESERVED_FOR_RETURNS || self.available > 0 && self.owed > 0
    }

    /// Whether so much is owed that a message is due for it alone.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.owed >= self.due_at
    }

    /// Uses a credit up.
    pub(super) fn spend(&mut self) {
        assert!(self.available > 0, "[E6] a post without credit");
        self.available -= 1;
    }

    /// A receive was used up and is posted again.
    pub(super) fn on_arrival(&mut self) -> Result<(), StreamViolation> {
        if self.owed == self.owed_max {
            return Err(StreamViolation::WithoutCredit);
        }
        self.owed += 1;
        Ok(())
    }

    /// Returns all that is owed.
    pub(super) fn give_back(&mut self) -> u32 {
        std::mem::take(&mut self.owed)
    }

    /// The peer has returned credits.
    pub(super) fn on_returned(&mut self, credits: u32) -> Result<(), StreamViolation> {
        if credits > self.available_max - self.available {
            return Err(StreamViolation::CreditsTooMany);
        }
        self.available += credits;
        Ok(())
    }
}

/// The fewest receives that an end may post: one transfer, one message and one return.
pub const CREDITS_MIN: u32 = RESERVED_FOR_MESSAGES + 2;
/// The last credit is for messages that return credits.
const RESERVED_FOR_RETURNS: u32 = 1;
/// The last credits are not for transfers: an advert or an acknowledgement must get through when data cannot.
const RESERVED_FOR_MESSAGES: u32 = 2;
