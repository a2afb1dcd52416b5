//! Control messages between neighbours, little-endian (RDMC §3.2, "Initialization" and "Data Transfer Schedules").

use std::fmt;

use squall_fabric::{GRANT_BYTES, Grant, NodeId};

use super::{FailureCause, GroupId, ObjectSlot};

/// A message between neighbours, apart from blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmcMessage {
    /// The first message of a connection: the peer may write into these words how many receives it has posted.
    Hello {
        /// A word for the number of receives, and one for each slot (`Announce`).
        credits: Grant,
    },
    /// The sender has created the group.
    Join {
        /// The group.
        group: GroupId,
        /// A digest of settings and members, by which differences are found.
        digest: u64,
    },
    /// An object will be sent.
    Announce {
        /// The group.
        group: GroupId,
        /// The object's number.
        number: u64,
        /// Its size.
        bytes: u64,
        /// Its slot at the sender, to which targets report how far the sender may go.
        slot: ObjectSlot,
    },
    /// *Ready for block* before the object is announced: for the object's first block, if the object fits.
    Offer {
        /// The group.
        group: GroupId,
        /// The object's number.
        number: u64,
        /// As in `Ready`.
        slot: u8,
        /// As in `Ready`; its size is that of the offered memory.
        grant: Grant,
    },
    /// *Ready for block*: the answer to `Announce`.
    Ready {
        /// The group.
        group: GroupId,
        /// The object's number.
        number: u64,
        /// The value of the upper 8 bits of immediate values.
        slot: u8,
        /// The grant to write the object; its first word is the object's first.
        grant: Grant,
        /// The source may send in steps below this one; greater bounds are reported by writes to the word of its
        /// slot.
        bound: u64,
        /// The blocks that need not be sent.
        held: BlockSummary,
    },
    /// The group has failed; the sender posts no more blocks of it [B7].
    Failed {
        /// The group.
        group: GroupId,
        /// Why.
        cause: FailureCause,
    },
    /// The answer to `Failed` by a member that does not know the group (any more): no block comes from there.
    Stopped {
        /// The group.
        group: GroupId,
    },
}

/// The blocks of an object that a member holds, as far as a message can describe them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSummary {
    /// All blocks below this one are held.
    pub prefix: u64,
    /// A bit for each of the blocks that follow.
    pub window: [u64; WINDOW_BLOCKS as usize / 64],
}

impl BlockSummary {
    /// Returns whether it says that `block` is held.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        match block.checked_sub(self.prefix) {
            None => true,
            Some(i) if i < WINDOW_BLOCKS => {
                let word = usize::try_from(i / 64).expect("small");
                self.window[word] >> (i % 64) & 1 == 1
            }
            Some(_) => false,
        }
    }
}

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedMessage;

impl fmt::Display for MalformedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these bytes are not a message of RDMC: run the same release at all members")
    }
}

impl std::error::Error for MalformedMessage {}

impl RdmcMessage {
    /// Returns the group that it is about.
    #[must_use]
    pub const fn group(&self) -> Option<GroupId> {
        match self {
            Self::Hello { .. } => None,
            Self::Join { group, .. }
            | Self::Announce { group, .. }
            | Self::Offer { group, .. }
            | Self::Ready { group, .. }
            | Self::Failed { group, .. }
            | Self::Stopped { group } => Some(*group),
        }
    }

    /// Returns the bytes of the message and their number.
    #[must_use]
    pub fn encode(&self) -> ([u8; MESSAGE_BYTES_MAX], usize) {
        let mut writer = Writer { bytes: [0; MESSAGE_BYTES_MAX], length: 0 };
        match self {
            Self::Hello { credits } => writer.kind(HELLO).bytes(&credits.to_bytes()),
            Self::Join { group, digest } => writer.kind(JOIN).word(group.0).word(*digest),
            Self::Announce { group, number, bytes, slot } => {
                writer.kind(ANNOUNCE).word(group.0).word(*number).word(*bytes);
                writer.bytes(&[slot.index]).bytes(&slot.uses.to_le_bytes())
            }
            Self::Offer { group, number, slot, grant } => {
                writer.kind(OFFER).word(group.0).word(*number).bytes(&[*slot]).bytes(&grant.to_bytes())
            }
            Self::Ready { group, number, slot, grant, bound, held } => {
                writer.kind(READY).word(group.0).word(*number).bytes(&[*slot]).bytes(&grant.to_bytes());
                held.window
                    .iter()
                    .fold(writer.word(*bound).word(held.prefix), |writer, word| writer.word(*word))
            }
            Self::Failed { group, cause } => {
                let member = cause.member().0.to_le_bytes();
                writer.kind(FAILED).word(group.0).bytes(&[cause_code(*cause)]).bytes(&member)
            }
            Self::Stopped { group } => writer.kind(STOPPED).word(group.0),
        };
        (writer.bytes, writer.length)
    }

    /// Reads a message; whether its values are valid is checked later. Fuzzed as `rdmc`.
    ///
    /// # Errors
    /// If the bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut reader = Reader { rest: bytes };
        let [kind] = reader.array()?;
        let message = match kind {
            HELLO => Self::Hello { credits: reader.grant()? },
            JOIN => Self::Join { group: GroupId(reader.word()?), digest: reader.word()? },
            ANNOUNCE => reader.announce()?,
            OFFER => reader.offer()?,
            READY => reader.ready()?,
            FAILED => Self::Failed { group: GroupId(reader.word()?), cause: reader.cause()? },
            STOPPED => Self::Stopped { group: GroupId(reader.word()?) },
            _ => return Err(MalformedMessage),
        };
        if reader.rest.is_empty() { Ok(message) } else { Err(MalformedMessage) }
    }
}

struct Writer {
    bytes: [u8; MESSAGE_BYTES_MAX],
    length: usize,
}

impl Writer {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.bytes(&[kind])
    }

    fn word(&mut self, word: u64) -> &mut Self {
        self.bytes(&word.to_le_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(MalformedMessage)?;
        self.rest = rest;
        Ok(*array)
    }

    fn word(&mut self) -> Result<u64, MalformedMessage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn grant(&mut self) -> Result<Grant, MalformedMessage> {
        Grant::from_bytes(&self.array::<GRANT_BYTES>()?).map_err(|_| MalformedMessage)
    }

    fn announce(&mut self) -> Result<RdmcMessage, MalformedMessage> {
        let group = GroupId(self.word()?);
        let [number, bytes] = [self.word()?, self.word()?];
        let [index] = self.array()?;
        let slot = ObjectSlot { index, uses: u32::from_le_bytes(self.array()?) };
        Ok(RdmcMessage::Announce { group, number, bytes, slot })
    }

    fn offer(&mut self) -> Result<RdmcMessage, MalformedMessage> {
        let (group, number) = (GroupId(self.word()?), self.word()?);
        let [slot] = self.array()?;
        Ok(RdmcMessage::Offer { group, number, slot, grant: self.grant()? })
    }

    fn ready(&mut self) -> Result<RdmcMessage, MalformedMessage> {
        let (group, number) = (GroupId(self.word()?), self.word()?);
        let [slot] = self.array()?;
        let (grant, bound) = (self.grant()?, self.word()?);
        let mut held = BlockSummary { prefix: self.word()?, ..BlockSummary::default() };
        for word in &mut held.window {
            *word = self.word()?;
        }
        Ok(RdmcMessage::Ready { group, number, slot, grant, bound, held })
    }

    fn cause(&mut self) -> Result<FailureCause, MalformedMessage> {
        let [code] = self.array()?;
        let member = NodeId(u32::from_le_bytes(self.array()?));
        let cause = CAUSES.get(usize::from(code)).ok_or(MalformedMessage)?;
        Ok(cause(member))
    }
}

fn cause_code(cause: FailureCause) -> u8 {
    let code = CAUSES.iter().position(|other| other(cause.member()) == cause);
    u8::try_from(code.expect("all causes are listed")).expect("few causes")
}

const CAUSES: [fn(NodeId) -> FailureCause; 6] = [
    FailureCause::Lost,
    FailureCause::Refused,
    FailureCause::Disagreed,
    FailureCause::Breached,
    FailureCause::Left,
    FailureCause::Wedged,
];

/// How many blocks a summary describes beyond the first missing one. The schedules receive blocks nearly in order: a
/// pipeline of 2^20 members has 20 out of order.
pub(super) const WINDOW_BLOCKS: u64 = 512;
/// The longest message.
pub(super) const MESSAGE_BYTES_MAX: usize = 34 + GRANT_BYTES + WINDOW_BLOCKS as usize / 8;

const HELLO: u8 = 1;
const JOIN: u8 = 2;
const ANNOUNCE: u8 = 3;
const READY: u8 = 4;
const FAILED: u8 = 5;
const STOPPED: u8 = 6;
const OFFER: u8 = 7;

#[cfg(test)]
mod tests {
    use squall_fabric::RegionId;
    use squall_fabric::sim::Prng;

    use super::*;

    fn examples() -> Vec<RdmcMessage> {
        let (owner, peer, region) = (NodeId(1), NodeId(2), RegionId(3));
        let grant = Grant { owner, peer, region, first: 4, words: 5, key: 6 };
        let group = GroupId(u64::MAX);
        let held = BlockSummary { prefix: 7, window: [1, 2, 3, 4, 5, 6, 7, 8] };
        let mut messages = vec![
            RdmcMessage::Hello { credits: grant },
            RdmcMessage::Join { group, digest: 9 },
            RdmcMessage::Announce { group, number: 10, bytes: 11, slot: ObjectSlot { index: 7, uses: 8 } },
            RdmcMessage::Ready { group, number: 12, slot: 255, grant, bound: 3, held },
            RdmcMessage::Offer { group, number: 14, slot: 15, grant },
            RdmcMessage::Stopped { group },
        ];
        messages.extend(CAUSES.map(|cause| RdmcMessage::Failed { group, cause: cause(NodeId(13)) }));
        messages
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in examples() {
            let (bytes, length) = message.encode();
            assert_eq!(RdmcMessage::decode(&bytes[..length]), Ok(message));
        }
        let longest = examples().iter().map(|message| message.encode().1).max();
        assert_eq!(longest, Some(MESSAGE_BYTES_MAX));
    }

    #[test]
    fn other_lengths_and_garbage_are_refused() {
        for message in examples() {
            let (bytes, length) = message.encode();
            (0..length).for_each(|cut| assert_eq!(RdmcMessage::decode(&bytes[..cut]), Err(MalformedMessage)));
            let longer = [&bytes[..length], &[0]].concat();
            assert_eq!(RdmcMessage::decode(&longer), Err(MalformedMessage));
        }
        let mut prng = Prng::new(1);
        for _ in 0..20_000 {
            let length = prng.index(MESSAGE_BYTES_MAX + 2);
            let bytes: Vec<u8> = (0..length).map(|_| prng.draw() as u8 & 0x87).collect();
            if let Ok(message) = RdmcMessage::decode(&bytes) {
                let (again, length) = message.encode();
                assert_eq!(&again[..length], &bytes[..], "a message has one form");
            }
        }
    }
}
