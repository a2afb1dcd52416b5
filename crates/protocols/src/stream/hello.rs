//! Introduction: what each end tells the other first (EXS §II.B: credits and ring are known before data flows).

use squall_fabric::{GRANT_BYTES, Grant};

use super::credits::CREDITS_MIN;
use super::{CREDITS_MAX, Kind, MESSAGE_BYTES_MAX, Message, Policy, RING_WORDS_MAX, Settings, Violation};

/// The first message of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) kind: Kind,
    pub(super) policy: Policy,
    /// Receives that this end has posted.
    pub(super) credits: u32,
    /// The most adverts that this end will have out.
    pub(super) receives_max: u32,
    /// Whether it advertises again when its ring is empty.
    pub(super) renewal: bool,
    /// The peer's right to write this end's ring: all of it.
    pub(super) ring: Grant,
}

/// The length of a [`Hello`].
pub(super) const HELLO_BYTES: usize = 16 + GRANT_BYTES;

/// First byte, and the version of the protocol behind it.
const MARK: [u8; 2] = [0xe6, 1];

impl Hello {
    /// What an end with these settings and this ring says.
    pub(super) fn new(settings: &Settings, ring: Grant) -> Self {
        let receives_max = u32::try_from(settings.receives_max).unwrap_or(u32::MAX);
        let Settings { kind, policy, credits, renewal, .. } = *settings;
        Self { kind, policy, credits, receives_max, renewal, ring }
    }

    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let kind = match self.kind {
            Kind::Stream => 0,
            Kind::Packets => 1,
        };
        let policy = match self.policy {
            Policy::Dynamic => 0,
            Policy::Direct => 1,
            Policy::Indirect => 2,
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&[MARK[0], MARK[1], kind, policy]);
        bytes[4..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.receives_max.to_le_bytes());
        bytes[12] = u8::from(self.renewal);
        bytes[16..].copy_from_slice(&self.ring.to_bytes());
        bytes
    }

    /// Reads an introduction. Fuzzed as `stream`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| Violation::Garbled)?;
        if bytes[..2] != MARK {
            return Err(Violation::Mismatch);
        }
        let kind = match bytes[2] {
            0 => Kind::Stream,
            1 => Kind::Packets,
            _ => return Err(Violation::Garbled),
        };
        let policy = match bytes[3] {
            0 => Policy::Dynamic,
            1 => Policy::Direct,
            2 => Policy::Indirect,
            _ => return Err(Violation::Garbled),
        };
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let ring = Grant::from_bytes(&bytes[16..]).map_err(|_| Violation::Garbled)?;
        let renewal = half(12) == 1;
        let hello = Self { kind, policy, credits: half(4), receives_max: half(8), renewal, ring };
        let is_sound = half(12) <= 1
            && (CREDITS_MIN..=CREDITS_MAX).contains(&hello.credits)
            && hello.receives_max > 0
            && ring.words <= RING_WORDS_MAX;
        if is_sound { Ok(hello) } else { Err(Violation::Garbled) }
    }

    /// Checks that an end with `settings` can talk to this one.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), Violation> {
        let is_alike = self.kind == settings.kind && self.policy == settings.policy;
        let has_ring = !settings.has_ring() || self.ring.words > 0;
        if is_alike && has_ring { Ok(()) } else { Err(Violation::Mismatch) }
    }
}

/// Reads bytes as an introduction and as a later message, for fuzzing; returns how many of these they are.
/// Fuzzed as `stream`.
///
/// # Panics
/// If what was read is not read again from what is written of it.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    let mut kinds = 0;
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        kinds += 1;
    }
    let (mut message, mut again) = (Message::default(), Message::default());
    if message.decode(bytes).is_ok() {
        let mut written = [0; MESSAGE_BYTES_MAX];
        let length = message.encode(&mut written);
        assert_eq!(again.decode(&written[..length]), Ok(()));
        assert_eq!(again, message);
        kinds += 1;
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::{NodeId, RegionId};

    fn hello() -> Hello {
        let ring =
            Grant { owner: NodeId(1), peer: NodeId(2), region: RegionId(3), first: 0, words: 5, key: 6 };
        Hello {
            kind: Kind::Packets,
            policy: Policy::Indirect,
            credits: 7,
            receives_max: 8,
            renewal: true,
            ring,
        }
    }

    #[test]
    fn the_portable_form_returns_the_same_hello() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn bad_bytes_are_refused() {
        assert_eq!(Hello::decode(&[0; 3]), Err(Violation::Garbled));
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), Err(Violation::Mismatch));
        for (at, value) in [(2, 2), (3, 3), (4, 0), (7, 1), (8, 0), (12, 2), (13, 1), (47, 0xff)] {
            let mut bytes = hello().encode();
            bytes[at] = value;
            assert_eq!(Hello::decode(&bytes), Err(Violation::Garbled), "byte {at} is {value}");
        }
    }

    #[test]
    fn another_kind_or_policy_is_refused() {
        let settings = Settings { kind: Kind::Packets, policy: Policy::Indirect, ..Settings::default() };
        assert_eq!(hello().check(&settings), Ok(()));
        assert_eq!(hello().check(&Settings::default()), Err(Violation::Mismatch));
        let direct = Settings { policy: Policy::Direct, ..settings };
        assert_eq!(hello().check(&direct), Err(Violation::Mismatch));
    }
}
