//! What can be chosen for genuine multicast (RamCast §2.2, §3.7).
//!
//! `Deviation:` (§2.2) a quorum is by default all members of the view; the paper's is f + 1 of 2f + 1.

/// Whose acknowledgements a delivery waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuorumRule {
    /// All members of each destination shard in the view, as in Derecho: all but one of a shard may die.
    #[default]
    All,
    /// More than half of the members of each destination shard in the view, among them its leader, as in RamCast: a follower
    /// that stalls delays no delivery, until the windows of those that send to it are full \[G8\]. When a view ends, members get
    /// what they lack of their shard's log from others \[G11\]. A group in which a shard of three or more members loses more than half of
    /// them before the next view stops ([`StopReason::QuorumLost`](crate::membership::StopReason::QuorumLost)). Shards of one or two
    /// members have no other majority than all.
    Majority,
}

impl QuorumRule {
    /// How many of the `members` members of a shard have to acknowledge.
    #[must_use]
    pub const fn least(self, members: usize) -> usize {
        match self {
            Self::All => members,
            Self::Majority => members / 2 + 1,
        }
    }
}

/// Settings of genuine multicast, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenuineSettings {
    /// Whose acknowledgements a delivery waits for.
    pub quorum: QuorumRule,
    /// The most messages that a sender has under way to a shard.
    pub window: usize,
    /// Whether each shard has a state, which a joiner takes over from another member with the marks of what is in it \[G14\].
    /// Without states a joiner is given what is delivered from the first view on in which it takes part \[G17\] \[J8\].
    pub has_states: bool,
    /// Whether a message of up to 88 bytes that is alone in its window travels in one write with its announcement
    /// ([`ExpressSlot`](squall_fabric::window::ExpressSlot)). That is worthwhile where a push is a transfer; in shared memory it is not.
    pub express: bool,
    /// The longest message in bytes.
    pub message_max: usize,
    /// The most bytes of a sender's window for a shard (and always space for two of the longest messages).
    pub window_bytes: usize,
}

impl GenuineSettings {
    /// Windows of `window` messages of up to `message_max` bytes each, for shards without states.
    #[must_use]
    pub const fn new(window: usize, message_max: usize) -> Self {
        Self {
            quorum: QuorumRule::All,
            window,
            has_states: false,
            express: true,
            message_max,
            window_bytes: usize::MAX,
        }
    }
}
