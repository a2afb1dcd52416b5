//! The proof of the cluster's secret, the only thing that strangers can reach: both ends, each message replaced by
//! foreign bytes. Nobody who does not know the secret is ever believed.

use squall_transports::bootstrap::{CHALLENGE_BYTES, HELLO_BYTES, Proof, Secret, TAG_BYTES, VERDICT_BYTES};

/// Gives the bytes to a responder as hello and tag, and to an initiator as challenge and verdict.
pub fn feed(bytes: &[u8]) {
    let secret = Secret::new("a secret that nobody can guess").expect("it is long enough");
    let proof = Proof::new(&secret, "kitchen", "fuzz");
    if let Ok((responder, _challenge)) = proof.respond(&chunk::<HELLO_BYTES>(bytes, 0)) {
        let (_verdict, outcome) = responder.on_tag(&chunk::<TAG_BYTES>(bytes, HELLO_BYTES));
        assert!(outcome.is_err(), "a stranger is believed");
    }
    let (initiator, _hello) = proof.initiate();
    if let Ok((waiting, _tag)) = initiator.on_challenge(&chunk::<CHALLENGE_BYTES>(bytes, 0)) {
        let verdict = chunk::<VERDICT_BYTES>(bytes, CHALLENGE_BYTES);
        assert!(waiting.on_verdict(&verdict).is_err(), "a stranger is believed");
    }
}

/// A good hello, and a good challenge with a bad verdict.
pub fn seeds() -> Vec<Vec<u8>> {
    let secret = Secret::new("a secret that nobody can guess").expect("it is long enough");
    let proof = Proof::new(&secret, "kitchen", "fuzz");
    let (_initiator, hello) = proof.initiate();
    let (_responder, challenge) = proof.respond(&hello).expect("a good hello");
    vec![[&hello[..], &[0; TAG_BYTES]].concat(), [&challenge[..], &[0; VERDICT_BYTES]].concat()]
}

/// `N` bytes from `start`, filled up with zeros.
fn chunk<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    let mut chunk = [0; N];
    let rest = bytes.get(start..).unwrap_or(&[]);
    let length = rest.len().min(N);
    chunk[..length].copy_from_slice(&rest[..length]);
    chunk
}
