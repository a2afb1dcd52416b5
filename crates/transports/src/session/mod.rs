//! Sessions: what two ends of a connection share once they have proved the cluster secret to each other.
//!
//! A handshake of the Noise framework (`handshake.rs`) proves the secret and agrees on keys for this
//! connection alone. Later data travel in records (`record.rs`), which no third party can read, alter, replay
//! or omit. A relay that forwards the handshake has no keys, so it can only forward the records, or close the
//! connection.
//!
//! The messages by which processes meet are always in records. The data of a fabric, which follow them, are
//! in records if [`Encryption`] demands it; by default on all connections between hosts.

mod ends;
mod handshake;
mod keys;
mod record;
mod stream;
#[cfg(test)]
mod tests;

pub use self::ends::{ConnectionEnds, Encryption};
pub(crate) use self::handshake::older_end;
pub use self::handshake::{
    ANSWER_BYTES, HELLO_BYTES, HELLO_HEAD_BYTES, Initiator, PROTOCOL_VERSION, Proof, ProofError, Rejection,
};
use self::keys::RecordKeys;
pub(crate) use self::record::{INBOUND_BYTES, OPENING_BYTES, RECORD_BYTES_MAX, Records};
pub use self::stream::{PeerStream, SealedHalf};

/// The keys of a connection, and whether its data must be encrypted with them, too.
#[derive(Debug)]
pub struct SessionKeys {
    pub(crate) records: Box<Records>,
    is_sealed: bool,
}

impl SessionKeys {
    pub(crate) fn new(keys: snow::TransportState, is_sealed: bool) -> Self {
        Self { records: Box::new(Records::new(RecordKeys::Own(keys))), is_sealed }
    }

    /// Returns two handles of a stream, for a thread that reads and one that writes; all bytes travel in
    /// records.
    pub fn halves<R, W>(self, reader: R, writer: W) -> (SealedHalf<R>, SealedHalf<W>) {
        let (reading, writing) = self.records.halves();
        (SealedHalf::new(reader, reading), SealedHalf::new(writer, writing))
    }

    /// Returns whether the data after the messages by which the ends meet travel in records, too. Both ends
    /// get the same result.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.is_sealed
    }
}

/// Parses bytes as an end's wish for encryption, for fuzzing; returns whether they are one.
/// Fuzzed as `encryption`.
///
/// # Panics
/// Panics if the wish does not survive a round trip through its encoding, or an end does not agree with
/// itself.
pub fn read_foreign(bytes: &[u8]) -> bool {
    let Ok(bytes) = <&[u8; ends::WISH_BYTES]>::try_from(bytes) else { return false };
    let Some(wish) = ends::EncryptionWish::from_bytes(bytes) else { return false };
    assert_eq!(ends::EncryptionWish::from_bytes(&wish.to_bytes()), Some(wish));
    assert!(wish.settle(&wish) || !wish.insists(), "an end that requires encryption gets it");
    true
}

/// Passes foreign bytes to a session in place of records, for fuzzing. Returns how many of them were
/// accepted, which must be none.
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
