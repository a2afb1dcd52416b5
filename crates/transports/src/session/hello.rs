//! The hello of a connection as bytes: pure, since the plain part comes from strangers. The layout is that of
//! `bootstrap/hello.md`.

use std::fmt;

use super::ends::{EncryptionWish, WISH_BYTES};

/// The magic of all versions.
pub(super) const MAGIC: [u8; 8] = *b"SQUALL\r\n";
/// The bytes at the beginning of a hello, whose meaning no version changes.
pub const HELLO_HEAD_BYTES: usize = MAGIC.len() + 2 + 2;
/// The bytes of what the hello contains under its seal.
pub(super) const SEALED_BYTES: usize = WISH_BYTES + 2 + UNUSED_BYTES;
/// Pair, ballot, handled and credential.
const UNUSED_BYTES: usize = 32 + 12 + 8 + 64;
/// The first version whose hello has a range: older ones have something else after the version.
const FIRST_RANGED: u16 = 5;

/// The versions of the protocol that an end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// `lowest <= highest`.
    lowest: u16,
    highest: u16,
}

impl VersionRange {
    /// The versions from `lowest` to `highest`; `None` if these are none.
    #[must_use]
    pub const fn new(lowest: u16, highest: u16) -> Option<Self> {
        if lowest <= highest { Some(Self { lowest, highest }) } else { None }
    }

    pub(super) const fn only(version: u16) -> Self {
        Self { lowest: version, highest: version }
    }

    /// Returns the highest version that both ends speak.
    #[must_use]
    pub fn chosen(&self, other: &Self) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }

    /// Returns whether all of these versions are older than all of `other`.
    pub(super) const fn is_older(&self, other: &Self) -> bool {
        self.highest < other.lowest
    }

    /// Returns the highest and the lowest, as they are sent.
    pub(super) const fn to_bytes(self) -> [[u8; 2]; 2] {
        [self.highest.to_le_bytes(), self.lowest.to_le_bytes()]
    }

    /// Reads a range whose end may be a release that sends only its version; an error has the two numbers of what is no range.
    /// Fuzzed as `proof`.
    pub(super) fn from_bytes(highest: [u8; 2], lowest: [u8; 2]) -> Result<Self, (u16, u16)> {
        let (highest, lowest) = (u16::from_le_bytes(highest), u16::from_le_bytes(lowest));
        if highest < FIRST_RANGED {
            return Ok(Self::only(highest));
        }
        Self::new(lowest, highest).ok_or((lowest, highest))
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.lowest, self.highest) {
            (lowest, highest) if lowest == highest => write!(f, "version {highest}"),
            (lowest, highest) => write!(f, "versions {lowest} to {highest}"),
        }
    }
}

/// What the caller of a connection is: the acceptor hands the connection on by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallerKind {
    /// A process that wants to be one of the first members, or to join.
    Joiner = 0,
    /// A member that links with another.
    Member = 1,
    /// An end of a stream.
    Stream = 2,
    /// A client of a log.
    LogClient = 3,
    /// A client of objects.
    ObjectClient = 4,
    /// A client of topics.
    TopicClient = 5,
    /// A copy of files.
    Copy = 6,
    /// A question about a group's status, or control.
    Question = 7,
}

impl CallerKind {
    const ALL: [Self; 8] = [
        Self::Joiner,
        Self::Member,
        Self::Stream,
        Self::LogClient,
        Self::ObjectClient,
        Self::TopicClient,
        Self::Copy,
        Self::Question,
    ];

    /// Returns the kind of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Describes a caller, by the number of its kind, which may be of a later release.
pub(super) fn caller_text(kind: u8) -> String {
    let known = match CallerKind::from_number(kind) {
        Some(CallerKind::Joiner) => "processes that join a group",
        Some(CallerKind::Member) => "members of a group",
        Some(CallerKind::Stream) => "streams",
        Some(CallerKind::LogClient) => "clients of a log",
        Some(CallerKind::ObjectClient) => "clients of objects",
        Some(CallerKind::TopicClient) => "clients of topics",
        Some(CallerKind::Copy) => "copies of files",
        Some(CallerKind::Question) => "questions about a group",
        None => return format!("callers of kind {kind}, which only another release knows"),
    };
    known.into()
}

/// What a hello contains under its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SealedHello {
    pub(super) wish: EncryptionWish,
    /// The number of a [`CallerKind`], or one that another release knows.
    pub(super) kind: u8,
}

/// What the sealed part of a hello is to a release that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealedReading {
    /// All of it is understood.
    Hello(SealedHello),
    /// It has something that this release does not know, which must not be ignored: a credential that restricts its caller, for
    /// example.
    Unknown,
    /// It is none.
    Garbled,
}

impl SealedHello {
    pub(super) fn to_bytes(self) -> [u8; SEALED_BYTES] {
        let mut bytes = [0; SEALED_BYTES];
        bytes[..WISH_BYTES].copy_from_slice(&self.wish.to_bytes());
        bytes[WISH_BYTES] = self.kind;
        bytes
    }

    /// Reads what an end that knows the secret has sent. Fuzzed as `encryption`.
    pub(super) fn read(bytes: &[u8; SEALED_BYTES]) -> SealedReading {
        let (wish, rest) = bytes.split_first_chunk().expect("it begins with the wish");
        let Some(wish) = EncryptionWish::from_bytes(wish) else { return SealedReading::Garbled };
        let [kind, flags_and_unused @ ..] = rest else { unreachable!("the sizes are constants") };
        if flags_and_unused.iter().any(|byte| *byte != 0) {
            return SealedReading::Unknown;
        }
        SealedReading::Hello(Self { wish, kind: *kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lowest: u16, highest: u16) -> VersionRange {
        VersionRange::new(lowest, highest).unwrap()
    }

    #[test]
    fn the_highest_version_of_both_is_chosen() {
        for (ours, theirs, chosen) in [
            ((5, 5), (5, 5), Some(5)),
            ((5, 7), (6, 9), Some(7)),
            ((5, 9), (6, 7), Some(7)),
            ((5, 6), (7, 8), None),
            ((u16::MAX, u16::MAX), (0, u16::MAX), Some(u16::MAX)),
            ((0, 0), (1, u16::MAX), None),
        ] {
            let (ours, theirs) = (range(ours.0, ours.1), range(theirs.0, theirs.1));
            assert_eq!((ours.chosen(&theirs), theirs.chosen(&ours)), (chosen, chosen), "{ours}; {theirs}");
        }
    }

    #[test]
    fn a_range_is_read_as_it_was_written() {
        assert_eq!(VersionRange::new(6, 5), None);
        let read =
            |highest: u16, lowest: u16| VersionRange::from_bytes(highest.to_le_bytes(), lowest.to_le_bytes());
        assert_eq!(read(7, 6), Ok(range(6, 7)));
        assert_eq!(read(7, 8), Err((8, 7)));
        // Older releases have the digest of the cluster's name there.
        assert_eq!(read(4, 0x7d2e), Ok(range(4, 4)));
        let [highest, lowest] = range(5, 300).to_bytes();
        assert_eq!((highest, lowest), ([44, 1], [5, 0]));
    }

    /// The numbers are those of `hello.md`, and never change.
    #[test]
    fn kinds_have_their_numbers() {
        for (number, kind) in (0..).zip(CallerKind::ALL) {
            assert_eq!((kind as u8, CallerKind::from_number(number)), (number, Some(kind)));
        }
        assert!((8..=255).all(|number| CallerKind::from_number(number).is_none()));
        assert!(caller_text(8).contains("kind 8") && !caller_text(6).contains('6'));
    }

    /// Wish 38, kind 1, flags 1, pair 32, ballot 12, handled 8, credential 64.
    #[test]
    fn the_sealed_part_keeps_its_layout() {
        let wish = EncryptionWish { encryption: super::super::Encryption::Always, ends: None };
        let hello = SealedHello { wish, kind: CallerKind::Copy as u8 };
        let bytes = hello.to_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[38]), (156, 2, 6));
        assert!(bytes[1..38].iter().chain(&bytes[39..]).all(|byte| *byte == 0));
        assert_eq!(SealedHello::read(&bytes), SealedReading::Hello(hello));
        for place in 39..bytes.len() {
            let mut other = bytes;
            other[place] = 1;
            assert_eq!(SealedHello::read(&other), SealedReading::Unknown, "byte {place}");
        }
        let mut other = bytes;
        other[0] = 3;
        assert_eq!(SealedHello::read(&other), SealedReading::Garbled);
    }
}
