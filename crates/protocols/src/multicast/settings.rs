//! The settings of a subgroup (Spindle §3, §4).

use std::fmt;

use squall_fabric::Duration;
use squall_fabric::window::RECORDS_MAX;

/// When and in which order messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Total order, when all members have received (Derecho's atomic multicast).
    #[default]
    Atomic,
    /// Total order, when all members have the message on their disks (Derecho's durable mode).
    Durable,
    /// FIFO per sender, at receipt; after a view change, surviving senders send their messages in flight again.
    Unordered,
    /// FIFO per sender, at receipt, without guarantees across a view change.
    Raw,
}

impl DeliveryMode {
    /// Returns whether all members deliver all messages in the same order.
    #[inline]
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::Atomic | Self::Durable)
    }
}

/// The stages that process everything that is available, instead of one message at a time (Spindle §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Send all committed messages by one push.
    pub send: bool,
    /// Acknowledge all received messages by one push.
    pub receive: bool,
    /// Deliver all stable messages and acknowledge them by one push.
    pub delivery: bool,
}

impl Batching {
    /// All stages on.
    pub const ALL: Self = Self { send: true, receive: true, delivery: true };
    /// All stages off: the baseline of Spindle's figures.
    pub const NONE: Self = Self { send: false, receive: false, delivery: false };
}

/// Settings of large messages, whose bodies are outside the window (Derecho §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeMessages {
    /// The length of the longest message in bytes; above [`SubgroupSettings::message_max`].
    pub message_max: usize,
    /// The largest number of bodies that a sender may have in flight; `1..=BODIES_MAX`.
    pub window: usize,
    /// The largest number of bytes of bodies that a sender may have in flight; one of the longest bodies fits in any
    /// case. Each member has space for that many bytes of each sender, and for one more of the longest bodies.
    pub window_bytes: usize,
    /// How bodies are sent.
    pub carrier: Carrier,
}

/// How the bodies of large messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// From the sender to each member, like records. On one host nothing is copied.
    Pushed,
    /// From member to member, by RDMC.
    Relayed,
}

/// The largest number of bodies that a sender may have in flight: each is one transfer, and a word of the row.
pub const BODIES_MAX: usize = 64;

/// The bytes that an evaluation sends at most by a device, unless a single message is longer. A piece is pushed by two writes to
/// each reader, record and announcement, of about 1 µs each; on a link of 12.5 GB/s its bytes take 5 µs. So posting
/// costs less than half of the time. The size was chosen in the simulator's model of Spindle's testbed, with messages of 10 KB.
pub const PIECE_BYTES: usize = 64 << 10;

/// The settings of a subgroup, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubgroupSettings {
    /// When and in which order messages are delivered.
    pub mode: DeliveryMode,
    /// The largest number of messages that a sender may have in flight; `1..=RECORDS_MAX`.
    pub window: usize,
    /// The length of the longest message in bytes.
    pub message_max: usize,
    /// The largest number of bytes that a sender may have in flight; at least two of the longest messages fit in any
    /// case.
    pub window_bytes: usize,
    /// The most bytes that an evaluation sends, if that is more than one message and a device carries what is pushed: see
    /// [`PIECE_BYTES`].
    pub piece_bytes: usize,
    /// The stages that process everything that is available.
    pub batching: Batching,
    /// Settings of messages longer than `message_max`, if they are allowed.
    pub large: Option<LargeMessages>,
    /// Whether a sender without messages fills the rounds that others have begun (Spindle §3.3).
    pub null_sends: bool,
    /// Whether a short message that is alone in its window is sent in one write
    /// ([`ExpressSlot`](squall_fabric::window::ExpressSlot)). That is worthwhile where a push is a transfer; in
    /// shared memory two stores are cheaper than a check.
    pub express: bool,
    /// A member whose consumer holds up a sender for this long, without taking a single message, is excluded, if the
    /// rest is a majority. `None`: the others wait.
    pub slow_after: Option<Duration>,
    /// The ranks of the members that send, ascending; not empty.
    pub senders: Vec<usize>,
}

impl SubgroupSettings {
    /// Returns settings in which delivery is atomic, all optimisations are on, the window has 256 messages and at
    /// most 16 MiB, and all of `members` members send.
    #[must_use]
    pub fn new(members: usize, message_max: usize) -> Self {
        Self {
            mode: DeliveryMode::Atomic,
            window: 256,
            message_max,
            window_bytes: 16 << 20,
            piece_bytes: PIECE_BYTES,
            batching: Batching::ALL,
            large: None,
            null_sends: true,
            express: true,
            slow_after: None,
            senders: (0..members).collect(),
        }
    }

    /// Checks that the settings are valid for `members` members.
    ///
    /// # Errors
    /// The first setting that is not valid.
    pub fn check(&self, members: usize) -> Result<(), SubgroupSettingsError> {
        if !(1..=RECORDS_MAX).contains(&self.window) {
            return Err(SubgroupSettingsError::Window(self.window));
        }
        if u32::try_from(self.message_max).is_err() {
            return Err(SubgroupSettingsError::MessageMax(self.message_max));
        }
        if let Some(LargeMessages { message_max, window, .. }) = self.large {
            if message_max <= self.message_max || u32::try_from(message_max).is_err() {
                return Err(SubgroupSettingsError::LargeMax {
                    large_max: message_max,
                    message_max: self.message_max,
                });
            }
            if !(1..=BODIES_MAX).contains(&window) {
                return Err(SubgroupSettingsError::LargeWindow(window));
            }
        }
        if self.senders.is_empty() || !self.senders.is_sorted_by(|a, b| a < b) {
            return Err(SubgroupSettingsError::Senders);
        }
        match self.senders.last() {
            Some(last) if *last >= members => {
                Err(SubgroupSettingsError::UnknownSender { rank: *last, members })
            }
            _ => Ok(()),
        }
    }

    /// Returns the length of the longest message in bytes, including large messages.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.large.map_or(self.message_max, |large| large.message_max)
    }

    /// Returns the number of `delivered` counts of a member: one in total order, else one per sender.
    #[must_use]
    pub fn lanes(&self) -> usize {
        if self.mode.is_ordered() { 1 } else { self.senders.len() }
    }
}

/// What is wrong with a subgroup's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubgroupSettingsError {
    /// The window is 0 or too large.
    Window(usize),
    /// The longest message is 4 GiB or more.
    MessageMax(usize),
    /// The longest large message is no longer than other messages, or 4 GiB or more.
    LargeMax {
        /// The length of the longest large message in bytes.
        large_max: usize,
        /// The length of the longest other message in bytes.
        message_max: usize,
    },
    /// The window for large messages is 0 or too large.
    LargeWindow(usize),
    /// There are no senders, or they are not in ascending order.
    Senders,
    /// A sender that is not a member.
    UnknownSender {
        /// The rank that was named.
        rank: usize,
        /// The number of members.
        members: usize,
    },
}

impl fmt::Display for SubgroupSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(window) => write!(f, "a window of {window} messages: choose 1 to {RECORDS_MAX}"),
            Self::MessageMax(bytes) => write!(f, "message_max of {bytes} bytes: choose less than 4 GiB"),
            Self::LargeMax { large_max, message_max } => write!(
                f,
                "large_max of {large_max} bytes: choose more than message_max ({message_max}), and less than 4 GiB"
            ),
            Self::LargeWindow(window) => {
                write!(f, "a window of {window} large messages: choose 1 to {BODIES_MAX}")
            }
            Self::Senders => f.write_str("senders: name at least one, in ascending order, each once"),
            Self::UnknownSender { rank, members } => {
                write!(
                    f,
                    "sender {rank} is not among the {members} members (ranks begin at 0): name another rank, or add members"
                )
            }
        }
    }
}

impl std::error::Error for SubgroupSettingsError {}
