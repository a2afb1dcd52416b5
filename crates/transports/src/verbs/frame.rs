//! Frames of the control stream: connection set-up, mirrors, breaks and doorbells. Data never travels here.
//!
//! A frame has 40 bytes, little-endian: its kind and three numbers of 4 bytes, then three numbers of 8 bytes.

use squall_fabric::BreakReason;

use super::device::PortAddress;
use super::post::RemoteMemory;
use super::queue_pair::PairName;

/// The size of every frame, in bytes.
pub(super) const FRAME_BYTES: usize = 40;

/// A message from one peer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsFrame {
    /// The first frame: how to reach the sender's port.
    Hello { address: PortAddress },
    /// The sender has opened a channel; `number` identifies this incarnation.
    Open { number: u32, channel: u32, pair: PairName },
    /// The sender has connected its `number` to the receiver's `partner`.
    Accept { number: u32, partner: u32 },
    /// The sender's `number` has ended.
    Close { number: u32, reason: VerbsCloseReason },
    /// The sender publishes a mirror for the receiver.
    Publish { key: u64, words: u64 },
    /// The sender has an attachment for a mirror of the receiver.
    Attach { attachment: u32, key: u64, words: u64, memory: RemoteMemory },
    /// The sender's attachment accepts no more pushes.
    Detach { attachment: u32 },
    /// The sender has a queue pair for its pushes, which replaces the previous one.
    MirrorOpen { number: u32, pair: PairName },
    /// The sender has connected a queue pair to the receiver's `partner`, for the receiver's pushes.
    MirrorAccept { partner: u32, pair: PairName },
    /// The sender is about to sleep and asks for a `Ring` when something has been written to it.
    Parking,
    /// Something has been written to the receiver.
    Ring,
    /// The receiver violated the protocol; the stream ends.
    Goodbye,
    /// The sender makes no more posts to the receiver's attachment.
    Detached { attachment: u32 },
    /// The sender has retired a mirror that it had published to the receiver.
    Retire { key: u64 },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsCloseReason {
    Closed,
    Refused,
    ReceiverNotReady,
    Protocol,
    Unreachable,
}

/// How a peer violated the protocol of the control stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsViolation(pub(super) &'static str);

/// The numbers of a frame in wire format.
#[derive(Clone, Copy, Default)]
struct Raw {
    kind: u32,
    small: [u32; 3],
    large: [u64; 3],
}

impl VerbsFrame {
    /// Encodes the frame.
    pub(super) fn to_bytes(self) -> [u8; FRAME_BYTES] {
        self.raw().to_bytes()
    }

    fn raw(self) -> Raw {
        let raw = |kind, small, large| Raw { kind, small, large };
        match self {
            Self::Hello { address: PortAddress { lid, mtu, ethernet, gid } } => {
                let (high, low) = gid.split_at(8);
                let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                let port = u32::from(lid) << 16 | u32::from(mtu) << 8 | u32::from(ethernet);
                raw(1, [VERSION, port, 0], [half(high), half(low), 0])
            }
            Self::Open { number, channel, pair } => {
                raw(2, [number, pair.number, pair.first_packet], [u64::from(channel), 0, 0])
            }
            Self::Accept { number, partner } => raw(3, [number, partner, 0], [0; 3]),
            Self::Close { number, reason } => raw(4, [number, reason.code(), 0], [0; 3]),
            Self::Publish { key, words } => raw(5, [0; 3], [key, words, 0]),
            Self::Attach { attachment, key, words, memory } => {
                raw(6, [attachment, memory.key, 0], [key, words, memory.address])
            }
            Self::Detach { attachment } => raw(7, [attachment, 0, 0], [0; 3]),
            Self::MirrorOpen { number, pair } => raw(8, [number, pair.number, pair.first_packet], [0; 3]),
            Self::MirrorAccept { partner, pair } => raw(9, [partner, pair.number, pair.first_packet], [0; 3]),
            Self::Parking => raw(10, [0; 3], [0; 3]),
            Self::Ring => raw(11, [0; 3], [0; 3]),
            Self::Goodbye => raw(12, [0; 3], [0; 3]),
            Self::Detached { attachment } => raw(13, [attachment, 0, 0], [0; 3]),
            Self::Retire { key } => raw(14, [0; 3], [key, 0, 0]),
        }
    }

    /// Decodes a frame. Fuzzed as `verbs`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one frame.
    pub(super) fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Result<Self, VerbsViolation> {
        let raw = Raw::from_bytes(bytes);
        let ([a, b, c], [x, y, z]) = (raw.small, raw.large);
        let pair = PairName { number: b, first_packet: c };
        let frame = match raw.kind {
            1 if a == VERSION => {
                let mut gid = [0; 16];
                gid[..8].copy_from_slice(&x.to_le_bytes());
                gid[8..].copy_from_slice(&y.to_le_bytes());
                let [lid_high, lid_low, mtu, ethernet] = b.to_be_bytes();
                let lid = u16::from_be_bytes([lid_high, lid_low]);
                Self::Hello { address: PortAddress { lid, mtu, ethernet: ethernet == 1, gid } }
            }
            1 => return Err(VerbsViolation("an unknown version of the control protocol")),
            2 => {
                let channel =
                    u32::try_from(x).map_err(|_| VerbsViolation("a channel number of more than 32 bits"))?;
                Self::Open { number: a, channel, pair }
            }
            3 => Self::Accept { number: a, partner: b },
            4 => Self::Close { number: a, reason: VerbsCloseReason::from_code(b)? },
            5 => Self::Publish { key: x, words: y },
            6 => {
                Self::Attach { attachment: a, key: x, words: y, memory: RemoteMemory { address: z, key: b } }
            }
            7 => Self::Detach { attachment: a },
            8 => Self::MirrorOpen { number: a, pair },
            9 => Self::MirrorAccept { partner: a, pair },
            10 => Self::Parking,
            11 => Self::Ring,
            12 => Self::Goodbye,
            13 => Self::Detached { attachment: a },
            14 => Self::Retire { key: x },
            _ => return Err(VerbsViolation("a frame of unknown kind")),
        };
        // Reserved fields must be zero, so that they can be given a meaning later.
        if frame.to_bytes() == *bytes {
            Ok(frame)
        } else {
            Err(VerbsViolation("a frame whose reserved fields are not zero"))
        }
    }
}

impl Raw {
    fn to_bytes(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let small = std::iter::once(self.kind).chain(self.small);
        for (place, number) in bytes[..16].chunks_mut(4).zip(small) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (place, number) in bytes[16..].chunks_mut(8).zip(self.large) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; FRAME_BYTES]) -> Self {
        let small = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("4 bytes"));
        let large = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        Self { kind: small(0), small: [1, 2, 3].map(small), large: [2, 3, 4].map(large) }
    }
}

impl VerbsCloseReason {
    const ALL: [Self; 5] =
        [Self::Closed, Self::Refused, Self::ReceiverNotReady, Self::Protocol, Self::Unreachable];

    fn code(self) -> u32 {
        match self {
            Self::Closed => 1,
            Self::Refused => 2,
            Self::ReceiverNotReady => 3,
            Self::Protocol => 4,
            Self::Unreachable => 5,
        }
    }

    fn from_code(code: u32) -> Result<Self, VerbsViolation> {
        let reason = Self::ALL.into_iter().find(|reason| reason.code() == code);
        reason.ok_or(VerbsViolation("an unknown close reason"))
    }
}

impl From<VerbsCloseReason> for BreakReason {
    fn from(reason: VerbsCloseReason) -> Self {
        match reason {
            VerbsCloseReason::Closed => Self::PeerClosed,
            VerbsCloseReason::Refused => Self::Refused,
            VerbsCloseReason::ReceiverNotReady => Self::ReceiverNotReady,
            VerbsCloseReason::Protocol => Self::Protocol,
            VerbsCloseReason::Unreachable => Self::Unreachable,
        }
    }
}

/// Nodes of different versions do not communicate.
const VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> Vec<VerbsFrame> {
        let gid = std::array::from_fn(|i| u8::try_from(i).expect("small") + 1);
        let pair = PairName { number: 17, first_packet: 0xff_ffff };
        let memory = RemoteMemory { address: u64::MAX - 7, key: u32::MAX };
        let mut frames = vec![
            VerbsFrame::Hello { address: PortAddress { lid: 0xabcd, mtu: 5, ethernet: true, gid } },
            VerbsFrame::Open { number: 1, channel: u32::MAX, pair },
            VerbsFrame::Accept { number: 2, partner: 3 },
            VerbsFrame::Publish { key: u64::MAX, words: 5 },
            VerbsFrame::Attach { attachment: 6, key: 7, words: 8, memory },
            VerbsFrame::Detach { attachment: 9 },
            VerbsFrame::MirrorOpen { number: 10, pair },
            VerbsFrame::MirrorAccept { partner: 11, pair },
            VerbsFrame::Parking,
            VerbsFrame::Ring,
            VerbsFrame::Goodbye,
            VerbsFrame::Detached { attachment: 12 },
            VerbsFrame::Retire { key: 13 },
        ];
        frames.extend(VerbsCloseReason::ALL.map(|reason| VerbsFrame::Close { number: 4, reason }));
        frames
    }

    #[test]
    fn encoded_frames_decode_to_the_same_frames() {
        for frame in frames() {
            assert_eq!(VerbsFrame::from_bytes(&frame.to_bytes()), Ok(frame));
        }
    }

    #[test]
    fn invalid_frames_are_violations() {
        for frame in frames() {
            let mut bytes = frame.to_bytes();
            bytes[0] = 99;
            assert!(VerbsFrame::from_bytes(&bytes).is_err(), "an unknown kind");
        }
        let mut bytes = VerbsFrame::Ring.to_bytes();
        bytes[39] = 1;
        assert!(VerbsFrame::from_bytes(&bytes).is_err(), "reserved fields");
        let mut bytes = frames()[0].to_bytes();
        bytes[4] = 9;
        assert_eq!(
            VerbsFrame::from_bytes(&bytes),
            Err(VerbsViolation("an unknown version of the control protocol"))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in proptest::array::uniform32(any::<u8>()), tail in any::<u64>()) {
            let mut frame = [0; FRAME_BYTES];
            frame[..32].copy_from_slice(&bytes);
            frame[32..].copy_from_slice(&tail.to_le_bytes());
            frame[0] %= 16;
            frame[1..4].fill(0);
            if let Ok(read) = VerbsFrame::from_bytes(&frame) {
                prop_assert_eq!(read.to_bytes(), frame);
            }
        }
    }
}
