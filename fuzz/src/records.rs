//! The records of a session, replaced by bytes of an attacker on the network: none of them is ever accepted.

use squall_transports::bootstrap::Secret;
use squall_transports::session::{CallerKind, Proof, SessionKeys, open_foreign};

/// Gives the bytes to a session in the place of the other end's records.
pub fn feed(bytes: &[u8]) {
    assert_eq!(open_foreign(&mut session(), bytes), 0, "a stranger is heard");
}

/// Lengths with nothing behind them, with too little, and with what does not verify; and one that is too long.
pub fn seeds() -> Vec<Vec<u8>> {
    let record = |length: u16, bytes: usize| [&length.to_le_bytes()[..], &vec![7; bytes]].concat();
    vec![record(16, 0), record(16, 15), record(16, 16), record(40, 80), record(15, 15), record(u16::MAX, 100)]
}

fn session() -> SessionKeys {
    let secret = Secret::new("a secret of many bytes").expect("it is long enough");
    let proof = Proof::new(&secret, "kitchen");
    let (_initiator, hello) = proof.initiate(None, CallerKind::Question);
    proof.respond(None, &hello, &[CallerKind::Question]).expect("a good hello").0.session
}
