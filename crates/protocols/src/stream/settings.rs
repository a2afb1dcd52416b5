//! The settings of a socket: its kind, its policy, its ring (EXS §II.C, §IV.B).

use std::fmt;

use squall_fabric::Duration;

use super::credits::CREDITS_MIN;

/// The kind of a socket, the same at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum SocketKind {
    /// A stream of bytes (`SOCK_STREAM`).
    #[default]
    Stream,
    /// Messages with boundaries, one for each receive, which are always direct (`SOCK_SEQPACKET`) \[E9\].
    Packets,
}

/// The route of data, the same at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum TransferPolicy {
    /// Direct when there is an advert, otherwise through the ring. A sender without an advert may wait for one where that has
    /// proved faster (module `patience`).
    #[default]
    Dynamic,
    /// The paper's rule (fig. 2, 3): the same, but the sender never waits and takes every advert, and the receiver advertises
    /// each receive exactly once.
    Reference,
    /// Always direct: the sender waits for an advert (the paper's direct-only baseline).
    Direct,
    /// Always through the ring: the receiver never advertises (the paper's indirect-only baseline).
    Indirect,
}

/// The settings of one end of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct StreamSettings {
    /// The kind of the socket.
    pub kind: SocketKind,
    /// The route of data.
    pub policy: TransferPolicy,
    /// Whether receives that lost their adverts to an indirect transfer are advertised again once the ring is empty.
    /// Otherwise an indirect run ends only when no receive is outstanding, as in the paper.
    pub renewal: bool,
    /// The maximum number of bytes that a receiver copies after unused adverts before it renews them, so that adverts
    /// do not cost more than they save; four times as many if the next receive has at most 4 KiB. With 0 it renews
    /// them whenever the ring is empty.
    pub renewal_gap_bytes: u64,
    /// The minimum space in bytes of a receive that is advertised, if data may go through the ring: a short copy
    /// costs both ends less than an advert. For receives that are only slightly longer, the sender measures which is
    /// faster. With 0 all receives are advertised, as in the paper.
    pub advert_bytes_min: u64,
    /// The assumed speed of the peer's copies, in bytes per microsecond, which determines how long to wait for an
    /// advert (module `patience`). A measured speed replaces it, limited to within a factor of four of this value.
    /// With 0 the sender never waits, as in the paper.
    pub copy_bytes_per_us: u64,
    /// The size of this end's ring in words.
    pub ring_words: u64,
    /// The number of receives that this end posts for the peer's messages and transfers; at least [`CREDITS_MIN`].
    pub credits: u32,
    /// The maximum number of outstanding sends.
    pub sends_max: usize,
    /// The maximum number of outstanding receives.
    pub receives_max: usize,
    /// The time in which the peer must open its end and introduce itself; with `None` this end waits forever.
    pub connect_within: Option<Duration>,
}

impl Default for StreamSettings {
    /// Returns the settings of a dynamic stream with a ring of 1 MiB.
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
    /// Returns whether receives are ever advertised.
    pub(super) fn advertises(&self) -> bool {
        self.kind == SocketKind::Packets || self.policy != TransferPolicy::Indirect
    }

    /// Returns whether data may ever go through the ring.
    pub(super) fn has_ring(&self) -> bool {
        self.kind == SocketKind::Stream && self.policy != TransferPolicy::Direct
    }

    /// Returns whether this end chooses how a stream's data travels, beyond the paper's rules.
    fn is_dynamic(&self) -> bool {
        self.kind == SocketKind::Stream && self.policy == TransferPolicy::Dynamic
    }

    /// Returns whether receives are advertised again.
    pub(super) fn renews(&self) -> bool {
        self.renewal && self.policy != TransferPolicy::Reference
    }

    /// Returns the minimum space of a receive that is advertised.
    pub(super) fn advertises_from(&self) -> u64 {
        if self.is_dynamic() { self.advert_bytes_min } else { 0 }
    }

    /// How fast the peer copies, as a measure of what the sender waits for; 0 if it never waits.
    pub(super) fn waits_by(&self) -> u64 {
        if self.is_dynamic() { self.copy_bytes_per_us } else { 0 }
    }

    /// Checks that the settings are valid.
    ///
    /// # Errors
    /// The first invalid setting.
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

/// The maximum size of the ring in words: 64 GiB.
pub const RING_WORDS_MAX: u64 = 1 << 33;
/// The maximum number of receives for messages and transfers: small network cards can hold this many for one
/// connection.
pub const CREDITS_MAX: u32 = 4096;

/// Why a socket's settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSettingsError {
    /// The ring is empty or too large.
    Ring(u64),
    /// There are too few or too many credits.
    Credits(u32),
    /// The settings allow no outstanding send, or no outstanding receive.
    Outstanding,
}

impl fmt::Display for StreamSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(words) => write!(f, "a ring of {words} words is out of range: choose 1 to {RING_WORDS_MAX}"),
            Self::Credits(credits) => {
                write!(f, "{credits} credits are out of range: choose {CREDITS_MIN} to {CREDITS_MAX}")
            }
            Self::Outstanding => f.write_str("the settings allow no outstanding send or no outstanding receive: allow at least one of each"),
        }
    }
}

impl std::error::Error for StreamSettingsError {}
