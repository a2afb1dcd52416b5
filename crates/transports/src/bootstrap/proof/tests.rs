//! The proof convinces whom it should and nobody else.

use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

fn proof(secret: &str, cluster: &str, purpose: &str) -> Proof {
    Proof::new(&Secret::new(format!("{secret}, sixteen bytes or more")).unwrap(), cluster, purpose)
}

/// Runs both ends over a socket; what each concludes.
fn meet(initiator: &Proof, responder: &Proof) -> (Result<(), ProofError>, Result<(), ProofError>) {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let responding = scope.spawn(move || responder.demand(&mut far));
        (initiator.prove(&mut near), responding.join().unwrap())
    })
}

#[test]
fn the_same_secret_convinces_both_ends() {
    let proof = proof("a", "c", "p");
    assert!(matches!(meet(&proof, &proof), (Ok(()), Ok(()))));
}

#[test]
fn whatever_differs_convinces_neither() {
    let own = proof("a", "c", "p");
    for other in [proof("b", "c", "p"), proof("a", "c", "other purpose")] {
        assert!(matches!(meet(&own, &other), (Err(ProofError::Secret), Err(ProofError::Secret))));
    }
    let outcome = meet(&own, &proof("a", "other cluster", "p"));
    assert!(matches!(outcome, (Err(ProofError::Cluster), Err(ProofError::Cluster))));
}

#[test]
fn another_version_is_named_to_both_ends() {
    let proof = proof("a", "c", "p");
    let (initiator, mut hello) = proof.initiate();
    hello[8..10].copy_from_slice(&7u16.to_le_bytes());
    let rejection = proof.respond(&hello).unwrap_err();
    assert!(matches!(rejection.error, ProofError::Version { ours: PROTOCOL_VERSION, theirs: 7 }));

    let mut answer = rejection.answer.unwrap();
    answer[8..10].copy_from_slice(&7u16.to_le_bytes());
    let error = initiator.on_challenge(&answer).unwrap_err();
    assert!(matches!(error, ProofError::Version { ours: PROTOCOL_VERSION, theirs: 7 }));
}

/// Who sends a proof back to its maker has not proved anything: the role is in it.
#[test]
fn a_reflected_proof_is_refused() {
    let proof = proof("a", "c", "p");
    let (initiator, hello) = proof.initiate();
    // The attacker answers with the nonce that it got, and then with the tag that it got.
    let nonce: [u8; NONCE_BYTES] = *hello.last_chunk().unwrap();
    let (proven, tag) = initiator.on_challenge(&challenge(GO_ON, &nonce)).unwrap();
    let mut verdict = Writer::new();
    verdict.put(&[GO_ON]);
    verdict.put(&tag);
    assert!(matches!(proven.on_verdict(&verdict.finish()), Err(ProofError::Secret)));
}

/// Who has recorded a proof cannot use it again: the other end's nonce is in it.
#[test]
fn a_replayed_proof_is_refused() {
    let proof = proof("a", "c", "p");
    let (initiator, hello) = proof.initiate();
    let (responder, challenge) = proof.respond(&hello).unwrap();
    let (_, tag) = initiator.on_challenge(&challenge).unwrap();
    assert!(responder.on_tag(&tag).1.is_ok());

    let (responder, _) = proof.respond(&hello).unwrap();
    let (verdict, outcome) = responder.on_tag(&tag);
    assert!(matches!(outcome, Err(ProofError::Secret)));
    assert_eq!(verdict[1..], [0; TAG_BYTES], "a refusal shows no tag");
}

proptest! {
    #[test]
    fn a_random_hello_is_not_answered(hello in any::<[u8; 32]>()) {
        let mut message = [0; HELLO_BYTES];
        message[..32].copy_from_slice(&hello);
        prop_assume!(!hello.starts_with(&MAGIC));
        prop_assert!(proof("a", "c", "p").respond(&message).unwrap_err().answer.is_none());
    }

    #[test]
    fn one_changed_bit_is_noticed(byte in 0..TAG_BYTES, bit in 0..8) {
        let proof = proof("a", "c", "p");
        let (initiator, hello) = proof.initiate();
        let (responder, challenge) = proof.respond(&hello).unwrap();
        let (_, mut tag) = initiator.on_challenge(&challenge).unwrap();
        tag[byte] ^= 1u8 << bit;
        prop_assert!(responder.on_tag(&tag).1.is_err());
    }
}
