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
mod hello;
mod keys;
mod record;
mod stream;
#[cfg(test)]
mod tests;

pub use self::ends::{ConnectionEnds, Encryption};
pub(crate) use self::handshake::older_end;
pub use self::handshake::{
    ANSWER_BYTES, AnsweredCaller, HELLO_BYTES, Initiator, PROTOCOL_VERSION, PROTOCOL_VERSION_LOWEST, Proof,
    ProofError, Rejection,
};
pub use self::hello::{CallerKind, HELLO_HEAD_BYTES, VersionRange};
use self::keys::RecordKeys;
pub(crate) use self::record::{INBOUND_BYTES, OPENING_BYTES, RECORD_BYTES_MAX, Records};
pub use self::stream::{PeerStream, PrefaceStream, SealedHalf};

/// The keys of a connection, and whether its data must be encrypted with them, too.
#[derive(Debug)]
pub struct SessionKeys {
    pub(crate) records: Box<Records>,
    is_sealed: bool,
    version: u16,
    /// The hash of the handshake: both ends' ephemeral keys are in it.
    handshake: [u8; 32],
}

impl SessionKeys {
    /// Creates the session of a handshake that is finished.
    fn new(noise: snow::HandshakeState, is_sealed: bool, version: u16) -> Result<Self, snow::Error> {
        let handshake = noise.get_handshake_hash().try_into().expect("a hash of SHA-256");
        let keys = RecordKeys::Own(noise.into_transport_mode()?);
        Ok(Self { records: Box::new(Records::new(keys)), is_sealed, version, handshake })
    }

    /// Returns the version of the protocol that the ends have chosen for this connection.
    #[must_use]
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// Returns a stream of records, for what the ends say before they use the connection otherwise: of the other end's bytes it reads
    /// none beyond those that it returns.
    pub fn preface<S>(&mut self, stream: S) -> PrefaceStream<'_, S> {
        PrefaceStream::new(stream, &mut self.records)
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

/// Parses bytes as the sealed part of a hello, for fuzzing; returns whether this release understands them.
/// Fuzzed as `encryption`.
///
/// # Panics
/// Panics if the hello does not survive a round trip through its encoding, or an end does not agree with
/// itself.
pub fn read_foreign(bytes: &[u8]) -> bool {
    use hello::{SealedHello, SealedReading};
    let Ok(bytes) = <&[u8; hello::SEALED_BYTES]>::try_from(bytes) else { return false };
    let reading = SealedHello::read(bytes);
    let SealedReading::Hello(hello) = reading else { return false };
    assert_eq!(SealedHello::read(&hello.to_bytes()), reading);
    let wish = hello.wish;
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
