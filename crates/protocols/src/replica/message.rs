//! What an update carries beside its bytes, and where it stands in the order (Derecho §3.4, app. A).

/// A place in the order of a shard: behind all messages of earlier views and so many sequences of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The view.
    pub view: u64,
    /// Sequences of the view that lie before.
    pub sequence: u64,
}

impl Position {
    /// Where a view begins.
    #[must_use]
    pub const fn start_of(view: u64) -> Self {
        Self { view, sequence: 0 }
    }
}

/// Whose an update is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its sender's own; the number is the sender's.
    Member(u64),
    /// It opens a session for a client; the number is the sender's.
    Open(u64),
    /// A client's, which the sender passes on.
    Session {
        /// Which session.
        id: u64,
        /// Ascending within the session.
        number: u64,
    },
}

/// What stands before an update's bytes in a message: two words, little endian.
pub const HEADER_BYTES: usize = 16;

/// Sessions are numbered from 1 by the order in which they are opened, so these mean none.
const MEMBER: u64 = 0;
const OPEN: u64 = u64::MAX;

impl Origin {
    /// Writes the header.
    ///
    /// # Panics
    /// If `header` is shorter than [`HEADER_BYTES`].
    pub fn encode(self, header: &mut [u8]) {
        let (id, number) = match self {
            Self::Member(number) => (MEMBER, number),
            Self::Open(number) => (OPEN, number),
            Self::Session { id, number } => (id, number),
        };
        header[..8].copy_from_slice(&id.to_le_bytes());
        header[8..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
    }

    /// Reads the header; the rest are the update's bytes. `None` if the message is too short to be an update.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (id, rest) = message.split_first_chunk()?;
        let (number, update) = rest.split_first_chunk()?;
        let (id, number) = (u64::from_le_bytes(*id), u64::from_le_bytes(*number));
        let origin = match id {
            MEMBER => Self::Member(number),
            OPEN => Self::Open(number),
            id => Self::Session { id, number },
        };
        Some((origin, update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header comes out as it went in, and what is too short is no update.
    #[test]
    fn headers_survive_the_way() {
        for origin in [Origin::Member(7), Origin::Open(1), Origin::Session { id: 3, number: u64::MAX }] {
            let mut message = [9; HEADER_BYTES + 2];
            origin.encode(&mut message);
            assert_eq!(Origin::decode(&message), Some((origin, &[9, 9][..])));
        }
        assert_eq!(Origin::decode(&[0; HEADER_BYTES - 1]), None);
    }
}
