//! Counters of a subgroup's work, for figures and for cost models (Spindle §4.1.1 reports the same).

use std::ops::AddAssign;

use squall_fabric::{Duration, DurationHistogram};

/// Counts since the subgroup began. They are plain numbers, which can be read at no cost to the subgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastCounters {
    /// Evaluations of the subgroup's predicates.
    pub polls: u64,
    /// Words of other members' rows that were loaded.
    pub words_polled: u64,
    /// Evaluations that sent messages.
    pub send_batches: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Of these, messages whose record and announcement were sent in one write.
    pub express: u64,
    /// Nulls sent.
    pub nulls_sent: u64,
    /// Times that `received` was published.
    pub receive_batches: u64,
    /// Sequences received.
    pub sequences_received: u64,
    /// Times that `delivered` was published.
    pub delivery_batches: u64,
    /// Messages delivered, nulls not counted.
    pub messages_delivered: u64,
    /// Bytes delivered.
    pub bytes_delivered: u64,
    /// Posts handed to the fabric: each is one write per reader on fabrics that copy.
    pub posts: u64,
}

impl AddAssign for MulticastCounters {
    fn add_assign(&mut self, other: Self) {
        self.polls += other.polls;
        self.words_polled += other.words_polled;
        self.send_batches += other.send_batches;
        self.messages_sent += other.messages_sent;
        self.express += other.express;
        self.nulls_sent += other.nulls_sent;
        self.receive_batches += other.receive_batches;
        self.sequences_received += other.sequences_received;
        self.delivery_batches += other.delivery_batches;
        self.messages_delivered += other.messages_delivered;
        self.bytes_delivered += other.bytes_delivered;
        self.posts += other.posts;
    }
}

/// Times of this member's window since the subgroup began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowTimes {
    /// How long the messages of this member took from being sent to being delivered here, or offered to a consumer that pulls them:
    /// of a few of them.
    pub latencies: DurationHistogram,
    /// For how long the application found no space for a message: estimated from looks at the window.
    pub full: Duration,
}

impl AddAssign<&Self> for WindowTimes {
    fn add_assign(&mut self, other: &Self) {
        self.latencies += &other.latencies;
        self.full += other.full;
    }
}
