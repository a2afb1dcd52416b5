//! What can be chosen for a socket: its kind, its policy, its ring (EXS §II.C, §IV.B).

use std::fmt;

use squall_fabric::Duration;

use super::credits::CREDITS_MIN;

/// What a socket carries. Both ends choose the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum SocketKind {
    /// A stream of bytes (`SOCK_STREAM`).
    #[default]
    Stream,
    /// Messages with boundaries, always direct, one for each receive (`SOCK_SEQPACKET`) \[E9\].
    Packets,
}

/// How data travels. Both ends choose the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum TransferPolicy {
    /// Direct when an advert is there, else through the ring.
    /// A sender without an advert may wait for one where that has proved faster (module `patience`).
    #[default]
    Dynamic,
    /// As the paper has it (fig. 2, 3): the same, but the sender never waits and takes every advert; and the receiver advertises
    /// all its receives, and none of them twice.
    Reference,
    /// Always wait for an advert (the paper's direct-only baseline).
    Direct,
    /// Never advertise (the paper's indirect-only baseline).
    Indirect,
}

/// The settings of one end of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct StreamSettings {
    /// What the socket carries.
    pub kind: SocketKind,
    /// How data travels.
    pub policy: TransferPolicy,
    /// Advertise receives again that lost their adverts to an indirect transfer, once the ring is empty. Without it
    /// an indirect run ends only when no receive is outstanding, as in the paper, and the peer's sender waits for no
    /// advert. [`TransferPolicy::Dynamic`] and packets only.
    pub renewal: bool,
    /// After adverts in vain a receiver copies up to so many bytes before it renews them, so that they do not cost more
    /// than they bring; four times as much if the next receive has at most 4 KiB. 0 renews whenever the ring is empty.
    pub renewal_gap_bytes: u64,
    /// A receive with space for fewer bytes is not advertised if data may go through the ring: to copy so little costs
    /// both ends less than an advert. For receives that are little longer the sender measures which is faster. 0 advertises
    /// all receives. [`TransferPolicy::Dynamic`] only.
    pub advert_bytes_min: u64,
    /// How fast the peer copies, until that is measured: what a wait for an advert is worth (module `patience`). 0 never
    /// waits. [`TransferPolicy::Dynamic`] only.
    pub copy_bytes_per_us: u64,
    /// The size of this end's ring in words.
    pub ring_words: u64,
    /// How many receives this end posts for the peer's messages and transfers; at least [`CREDITS_MIN`].
    pub credits: u32,
    /// The most sends that may be outstanding.
    pub sends_max: usize,
    /// The most receives that may be outstanding.
    pub receives_max: usize,
    /// How long the peer may take to open its end and to introduce itself; `None` waits for ever.
    pub connect_within: Option<Duration>,
}

impl Default for StreamSettings {
    /// A dynamic stream with a ring of 1 MiB.
    fn default() -> Self {
        Self {
            kind: SocketKind::Stream,
            policy: TransferPolicy::Dynamic,
            renewal: true,
            renewal_gap_bytes: 64 << 10,
            advert_bytes_min: 512,
            copy_bytes_per_us: 4_000,
            ring_words: 1 << 17,
            credits: 64,
            sends_max: 1024,
            receives_max: 1024,
            connect_within: Some(Duration::from_secs(10)),
        }
    }
}

impl StreamSettings {
    /// Whether receives are ever advertised.
    pub(super) fn advertises(&self) -> bool {
        self.kind == SocketKind::Packets || self.policy != TransferPolicy::Indirect
    }

    /// Whether data may ever go through the ring.
    pub(super) fn has_ring(&self) -> bool {
        self.kind == SocketKind::Stream && self.policy != TransferPolicy::Direct
    }

    /// Whether this end chooses how a stream's data travels, beyond the paper's rules.
    fn is_dynamic(&self) -> bool {
        self.kind == SocketKind::Stream && self.policy == TransferPolicy::Dynamic
    }

    /// Whether receives are advertised again.
    pub(super) fn renews(&self) -> bool {
        self.renewal && self.policy != TransferPolicy::Reference
    }

    /// The space that a receive must have to be advertised.
    pub(super) fn advertises_from(&self) -> u64 {
        if self.is_dynamic() { self.advert_bytes_min } else { 0 }
    }

    /// How fast the peer copies, as a measure of what the sender waits for; 0 if it never waits.
    pub(super) fn waits_by(&self) -> u64 {
        if self.is_dynamic() { self.copy_bytes_per_us } else { 0 }
    }

    /// Checks that the settings make sense.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), StreamSettingsError> {
        if self.has_ring() && !(1..=RING_WORDS_MAX).contains(&self.ring_words) {
            return Err(StreamSettingsError::Ring(self.ring_words));
        }
        if !(CREDITS_MIN..=CREDITS_MAX).contains(&self.credits) {
            return Err(StreamSettingsError::Credits(self.credits));
        }
        if self.sends_max == 0 || self.receives_max == 0 {
            return Err(StreamSettingsError::Outstanding);
        }
        Ok(())
    }
}

/// The largest ring: 64 GiB, so that a count of words fits 32 bits with space to spare.
pub const RING_WORDS_MAX: u64 = 1 << 33;
/// The most receives for messages and transfers: what small network cards can hold for one connection.
pub const CREDITS_MAX: u32 = 4096;

/// What is wrong with a socket's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSettingsError {
    /// The ring is empty or too large.
    Ring(u64),
    /// Too few or too many credits.
    Credits(u32),
    /// No send or no receive may be outstanding.
    Outstanding,
}

impl fmt::Display for StreamSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(words) => write!(f, "a ring of {words} words: choose 1 to {RING_WORDS_MAX}"),
            Self::Credits(credits) => {
                write!(f, "{credits} credits: choose {CREDITS_MIN} to {CREDITS_MAX}")
            }
            Self::Outstanding => f.write_str("allow at least one outstanding send and one receive"),
        }
    }
}

impl std::error::Error for StreamSettingsError {}
