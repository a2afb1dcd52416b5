//! The introduction that each end sends first (EXS §II.B: credits and ring are known before data flows).

use squall_fabric::{GRANT_BYTES, Grant};

use super::credits::CREDITS_MIN;
use super::{
    CREDITS_MAX, MESSAGE_BYTES_MAX, RING_WORDS_MAX, SocketKind, StreamMessage, StreamSettings,
    StreamViolation, TransferPolicy,
};

/// The first message of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamHello {
    pub(super) kind: SocketKind,
    pub(super) policy: TransferPolicy,
    /// The number of receives that this end has posted.
    pub(super) credits: u32,
    /// The maximum number of this end's outstanding adverts.
    pub(super) receives_max: u32,
    /// Whether this end advertises again when its ring is empty.
    pub(super) renewal: bool,
    /// The peer's right to write all of this end's ring.
    pub(super) ring: Grant,
}

/// The length of a [`StreamHello`].
pub(super) const HELLO_BYTES: usize = 16 + GRANT_BYTES;

/// The first byte, followed by the version of the protocol.
const MARK: [u8; 2] = [0xe6, 1];

impl StreamHello {
    /// Returns the introduction of an end with these settings and this ring.
    pub(super) fn new(settings: &StreamSettings, ring: Grant) -> Self {
        let receives_max = u32::try_from(settings.receives_max).unwrap_or(u32::MAX);
        let StreamSettings { kind, policy, credits, .. } = *settings;
        Self { kind, policy, credits, receives_max, renewal: settings.renews(), ring }
    }

    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let kind = match self.kind {
            SocketKind::Stream => 0,
            SocketKind::Packets => 1,
        };
        let policy = match self.policy {
            TransferPolicy::Dynamic => 0,
            TransferPolicy::Direct => 1,
            TransferPolicy::Indirect => 2,
            TransferPolicy::Reference => 3,
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&[MARK[0], MARK[1], kind, policy]);
        bytes[4..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.receives_max.to_le_bytes());
        bytes[12] = u8::from(self.renewal);
        bytes[16..].copy_from_slice(&self.ring.to_bytes());
        bytes
    }

    /// Decodes an introduction. Fuzzed as `stream`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StreamViolation> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| StreamViolation::Garbled)?;
        if bytes[..2] != MARK {
            return Err(StreamViolation::Mismatch);
        }
        let kind = match bytes[2] {
            0 => SocketKind::Stream,
            1 => SocketKind::Packets,
            _ => return Err(StreamViolation::Garbled),
        };
        let policy = match bytes[3] {
            0 => TransferPolicy::Dynamic,
            1 => TransferPolicy::Direct,
            2 => TransferPolicy::Indirect,
            3 => TransferPolicy::Reference,
            _ => return Err(StreamViolation::Garbled),
        };
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let ring = Grant::from_bytes(&bytes[16..]).map_err(|_| StreamViolation::Garbled)?;
        let renewal = half(12) == 1;
        let hello = Self { kind, policy, credits: half(4), receives_max: half(8), renewal, ring };
        let is_sound = half(12) <= 1
            && (CREDITS_MIN..=CREDITS_MAX).contains(&hello.credits)
            && hello.receives_max > 0
            && ring.words <= RING_WORDS_MAX;
        if is_sound { Ok(hello) } else { Err(StreamViolation::Garbled) }
    }

    /// Checks that an end with `settings` is compatible with the sender of this introduction.
    pub(super) fn check(&self, settings: &StreamSettings) -> Result<(), StreamViolation> {
        let is_alike = self.kind == settings.kind && self.policy == settings.policy;
        let has_ring = !settings.has_ring() || self.ring.words > 0;
        if is_alike && has_ring { Ok(()) } else { Err(StreamViolation::Mismatch) }
    }
}

/// Decodes bytes as an introduction and as a later message, and returns how many of the two succeed.
/// Fuzzed as `stream`.
///
/// # Panics
/// If a decoded value differs after it was encoded and decoded again.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    let mut kinds = 0;
    if let Ok(hello) = StreamHello::decode(bytes) {
        assert_eq!(StreamHello::decode(&hello.encode()), Ok(hello));
        kinds += 1;
    }
    let (mut message, mut again) = (StreamMessage::default(), StreamMessage::default());
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

    fn hello() -> StreamHello {
        let ring =
            Grant { owner: NodeId(1), peer: NodeId(2), region: RegionId(3), first: 0, words: 5, key: 6 };
        StreamHello {
            kind: SocketKind::Packets,
            policy: TransferPolicy::Indirect,
            credits: 7,
            receives_max: 8,
            renewal: true,
            ring,
        }
    }

    #[test]
    fn a_decoded_hello_equals_the_encoded_one() {
        let policies = [
            TransferPolicy::Dynamic,
            TransferPolicy::Reference,
            TransferPolicy::Direct,
            TransferPolicy::Indirect,
        ];
        for policy in policies {
            let hello = StreamHello { policy, ..hello() };
            assert_eq!(StreamHello::decode(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn bad_bytes_are_refused() {
        assert_eq!(StreamHello::decode(&[0; 3]), Err(StreamViolation::Garbled));
        assert_eq!(StreamHello::decode(&[0; HELLO_BYTES]), Err(StreamViolation::Mismatch));
        for (at, value) in [(2, 2), (3, 4), (4, 0), (7, 1), (8, 0), (12, 2), (13, 1), (47, 0xff)] {
            let mut bytes = hello().encode();
            bytes[at] = value;
            assert_eq!(StreamHello::decode(&bytes), Err(StreamViolation::Garbled), "byte {at} is {value}");
        }
    }

    #[test]
    fn another_kind_or_policy_is_refused() {
        let settings = StreamSettings {
            kind: SocketKind::Packets,
            policy: TransferPolicy::Indirect,
            ..StreamSettings::default()
        };
        assert_eq!(hello().check(&settings), Ok(()));
        assert_eq!(hello().check(&StreamSettings::default()), Err(StreamViolation::Mismatch));
        let direct = StreamSettings { policy: TransferPolicy::Direct, ..settings };
        assert_eq!(hello().check(&direct), Err(StreamViolation::Mismatch));
    }
}
