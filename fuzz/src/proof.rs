//! The handshake that proves the cluster's secret, the only parser that strangers can reach: both ends, each message replaced
//! by foreign bytes. No peer is accepted that does not know the secret.

use squall_transports::bootstrap::Secret;
use squall_transports::session::{ANSWER_BYTES, CallerKind, HELLO_BYTES, Proof};

/// Gives the bytes to a responder as hello, and to an initiator as answer.
pub fn feed(bytes: &[u8]) {
    let proof = proof();
    assert!(proof.respond(None, &chunk::<HELLO_BYTES>(bytes), &[KIND]).is_err(), "a stranger is believed");
    let (initiator, _hello) = proof.initiate(None, KIND);
    assert!(initiator.on_answer(&chunk::<ANSWER_BYTES>(bytes)).is_err(), "a stranger is believed");
}

/// A hello and an answer of ends that share another secret: no change of a few bits makes them good ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let proof = proof_of("another secret of many bytes");
    let (_initiator, hello) = proof.initiate(None, KIND);
    let (_session, answer) = proof.respond(None, &hello, &[KIND]).expect("a good hello");
    vec![hello.to_vec(), answer.to_vec()]
}

const KIND: CallerKind = CallerKind::Question;

fn proof() -> Proof {
    proof_of("a secret of many bytes")
}

fn proof_of(secret: &str) -> Proof {
    Proof::new(&Secret::new(secret).expect("it is long enough"), "kitchen")
}

/// The first `N` bytes, filled up with zeros.
fn chunk<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut chunk = [0; N];
    let length = bytes.len().min(N);
    chunk[..length].copy_from_slice(&bytes[..length]);
    chunk
}
