//! Delivery latency: from the sending of a message to its delivery at the sender, of a few of its messages (Spindle §4.1.1).
//!
//! Which message is measured is chosen among those of the next period, as many as were sent in the last one, so that the first
//! message of a burst counts no more than the others. Messages that a view change sends again are not measured, and neither are those
//! of subgroups without a total order, which wait for no other member.

use squall_fabric::{DurationHistogram, Instant};

use super::{Deliver, Subgroup};

/// What a subgroup knows of the latency of its own messages.
#[derive(Debug)]
pub(super) struct DeliveryLatency {
    pub(super) histogram: DurationHistogram,
    /// The writer is asked for the time of a message.
    pub(super) is_asked: bool,
    /// The message under way is delivered when this many sequences are; `u64::MAX`: none is under way.
    pub(super) awaited: u64,
    sent: Instant,
    /// The number of messages sent when the writer was asked last.
    asked_at: u64,
    asked: u64,
}

impl Default for DeliveryLatency {
    fn default() -> Self {
        Self {
            histogram: DurationHistogram::default(),
            is_asked: false,
            awaited: u64::MAX,
            sent: Instant::default(),
            asked_at: 0,
            asked: 0,
        }
    }
}

impl DeliveryLatency {
    /// Counts the message under way, which has been delivered.
    #[cold]
    pub(super) fn end(&mut self, now: Instant) {
        self.histogram.note(now.since(self.sent));
        self.awaited = u64::MAX;
    }
}

impl<D: Deliver> Subgroup<D> {
    /// Asks the writer for the time of one of its next messages, unless one is under way. Call it periodically: a question that has
    /// not been answered since the last call is asked again, for an earlier message.
    pub fn sample_latency(&mut self) {
        let Some((publisher, _)) = &mut self.publisher else { return };
        if !self.settings.mode.is_ordered() || self.latency.awaited != u64::MAX {
            return;
        }
        let latency = &mut self.latency;
        let sent = self.counters.messages_sent;
        // Spread by a multiplication: nothing here may be random.
        let later = latency.asked.wrapping_mul(SPREAD) % (sent - latency.asked_at).max(1);
        (latency.is_asked, latency.asked_at, latency.asked) = (true, sent, latency.asked.wrapping_add(1));
        publisher.ask_time(later);
    }

    /// Looks whether the message that the writer was asked for has been sent.
    #[cold]
    pub(super) fn begin_latency(&mut self) {
        let Some((publisher, sender)) = &mut self.publisher else { return };
        if let Some((index, sent)) = publisher.take_time() {
            self.latency.is_asked = false;
            self.latency.sent = sent;
            self.latency.awaited = index * self.settings.senders.len() as u64 + *sender as u64 + 1;
        }
    }

    /// Returns how long the messages of this member took from being sent to being delivered here, or offered to a consumer that pulls
    /// them: of a few of them.
    #[must_use]
    pub const fn latencies(&self) -> &DurationHistogram {
        &self.latency.histogram
    }
}

/// The golden ratio of 64-bit numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
