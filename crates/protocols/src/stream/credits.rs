//! Credits: receives that the peer has posted, each of which allows one send or one write with immediate (EXS §II.B).
//!
//! **Why there is no deadlock \[E6\].** The last credit is reserved for a message that returns credits, and the few
//! before it for messages. Suppose that both ends have no credit left and nothing is in flight. The last message of
//! each end returned credits, so each end sent its last message after it had received the other's: a contradiction.
//! And if an end runs low on credits, its peer owes it most of them, and returns them as soon as it owes half.
//!
//! `Deviation:` (EXS §II.B) the paper reserves no credits.

use super::StreamViolation;
use super::mutation;

/// One end's account of credits in both directions.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Credits {
    /// The posted receives of the peer that this end may use up; `available <= available_max`.
    available: u32,
    /// The total number of receives that the peer has posted.
    available_max: u32,
    /// The receives that this end has posted again and has not reported to the peer; `owed <= owed_max`.
    owed: u32,
    /// The total number of receives that this end has posted.
    owed_max: u32,
    /// The number of owed credits at which they are returned.
    due_at: u32,
}

impl Credits {
    /// Returns the account of an end that posts `receives` receives, before it knows the peer's number.
    pub(super) fn new(receives: u32) -> Self {
        Self {
            available: 0,
            available_max: 0,
            owed: 0,
            owed_max: receives,
            due_at: receives.div_ceil(2).max(1),
        }
    }

    /// Records that the peer has posted `receives` receives, of which `used` are used up already.
    pub(super) fn grant(&mut self, receives: u32, used: u32) {
        (self.available, self.available_max) = (receives - used, receives);
    }

    /// Returns whether a transfer may be posted.
    pub(super) fn allow_transfer(&self) -> bool {
        self.available > if mutant!(NoReserve) { 0 } else { RESERVED_FOR_MESSAGES }
    }

    /// Returns whether a message may be posted. Every message returns all owed credits.
    pub(super) fn allow_message(&self) -> bool {
        self.available > RESERVED_FOR_RETURNS || self.available > 0 && self.owed > 0
    }

    /// Returns whether enough credits are owed to justify a message of their own.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.owed >= self.due_at
    }

    /// Uses up a credit.
    pub(super) fn spend(&mut self) {
        assert!(self.available > 0, "[E6] a post without credit");
        self.available -= 1;
    }

    /// Records that a receive was used up and has been posted again.
    pub(super) fn on_arrival(&mut self) -> Result<(), StreamViolation> {
        if self.owed == self.owed_max {
            return Err(StreamViolation::WithoutCredit);
        }
        self.owed += 1;
        Ok(())
    }

    /// Returns the number of owed credits, which are owed no longer.
    pub(super) fn give_back(&mut self) -> u32 {
        std::mem::take(&mut self.owed)
    }

    /// Records that the peer has returned credits.
    pub(super) fn on_returned(&mut self, credits: u32) -> Result<(), StreamViolation> {
        if credits > self.available_max - self.available {
            return Err(StreamViolation::CreditsTooMany);
        }
        self.available += credits;
        Ok(())
    }
}

/// The minimum number of receives that an end posts: one for a transfer, one for a message, and one for a message
/// that returns credits.
pub const CREDITS_MIN: u32 = RESERVED_FOR_MESSAGES + 2;
/// The last credit is reserved for messages that return credits.
const RESERVED_FOR_RETURNS: u32 = 1;
/// The last credits are not available to transfers: an advert or an acknowledgement must get through when data
/// cannot.
const RESERVED_FOR_MESSAGES: u32 = 2;
