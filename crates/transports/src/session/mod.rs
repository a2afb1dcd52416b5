//! Sessions: what two ends of a connection share once they have proved the cluster secret to each other.
//!
//! A handshake of the Noise framework (`handshake.rs`) proves the secret and agrees on keys for this connection alone. What
//! follows travels in records (`record.rs`), which nobody else can read, alter, repeat or leave out. A relay that passes the
//! handshake on has no keys, so all that it can do then is to pass the records on, or to close the connection.
//!
//! The messages by which processes meet are always in records. What follows them, the data of a fabric, is so if
//! [`Encryption`] demands it; by default on all connections between hosts.

mod ends;
mod handshake;
mod keys;
mod record;
mod stream;
#[cfg(test)]
mod tests;

pub use self::ends::{ConnectionEnds, Encryption};
pub use self::handshake::{
    ANSWER_BYTES, HELLO_BYTES, HELLO_HEAD_BYTES, Initiator, PROTOCOL_VERSION, Proof, ProofError, Rejection,
};
use self::keys::RecordKeys;
pub(crate) use self::record::{INBOUND_BYTES, OPENING_BYTES, RECORD_BYTES_MAX, Records};
pub use self::stream::{PeerStream, SealedHalf};

/// The keys of a connection, and whether its data are to be encrypted by them, too.
#[derive(Debug)]
pub struct SessionKeys {
    pub(crate) records: Box<Records>,
    is_sealed: bool,
}

impl SessionKeys {
    pub(crate) fn new(keys: snow::TransportState, is_sealed: bool) -> Self {
        Self { records: Box::new(Records::new(RecordKeys::Own(keys))), is_sealed }
    }

    /// Two handles of a stream, for a thread that reads and one that writes, all whose bytes travel in records.
    pub fn halves<R, W>(self, reader: R, writer: W) -> (SealedHalf<R>, SealedHalf<W>) {
        let (reading, writing) = self.records.halves();
        (SealedHalf::new(reader, reading), SealedHalf::new(writer, writing))
    }

    /// Whether what follows the messages by which the ends meet travels in records, too. Both ends say the same.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.is_sealed
    }
}

/// Reads bytes as an end's wish for encryption, for fuzzing; returns whether they are one. Fuzzed as `encryption`.
///
/// # Panics
/// If the wish is not read again from what is written of it, or an end does not agree with itself.
pub fn read_foreign(bytes: &[u8]) -> bool {
    let Ok(bytes) = <&[u8; ends::WISH_BYTES]>::try_from(bytes) else { return false };
    let Some(wish) = ends::EncryptionWish::from_bytes(bytes) else { return false };
    assert_eq!(ends::EncryptionWish::from_bytes(&wish.to_bytes()), Some(wish));
    assert!(wish.settle(&wish) || !wish.insists(), "an end that insists on encryption gets it");
    true
}

/// Gives foreign bytes to a session in the place of records, for fuzzing. Returns how many of them were shown, which is none.
#[must_use]
pub fn open_foreign(session: &mut SessionKeys, bytes: &[u8]) -> usize {
    let (mut stream, mut shown) = (bytes, 0);
    while matches!(session.records.fill(&mut stream), Ok(true)) {
        let opened = session.records.opened().len();
        session.records.on_taken(opened);
        shown += opened;
    }
    shown
}
