//! The two ends of a proof between their messages.

use super::{
    CHALLENGE_BYTES, GO_ON, MAGIC, NONCE_BYTES, OTHER_CLUSTER, OTHER_SECRET, PROTOCOL_VERSION, Proof,
    ProofError, TAG_BYTES, VERDICT_BYTES,
};

/// Which end a tag is made by.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Initiator = 1,
    Responder = 2,
}

#[derive(Debug)]
pub(super) struct Nonces {
    pub(super) initiator: [u8; NONCE_BYTES],
    pub(super) responder: [u8; NONCE_BYTES],
}

/// The initiator between its hello and the challenge.
#[derive(Debug)]
pub struct Initiator<'p> {
    pub(super) proof: &'p Proof,
    pub(super) nonce: [u8; NONCE_BYTES],
}

impl<'p> Initiator<'p> {
    /// Takes the challenge; the tag is to be sent.
    ///
    /// # Errors
    /// [`ProofError::NotSquall`], [`ProofError::Version`] or [`ProofError::Cluster`].
    pub fn on_challenge(
        self,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Result<(Proven<'p>, [u8; TAG_BYTES]), ProofError> {
        let mut challenge = Reader(challenge);
        if challenge.take::<8>() != MAGIC {
            return Err(ProofError::NotSquall);
        }
        let theirs = u16::from_le_bytes(challenge.take());
        if theirs != PROTOCOL_VERSION {
            return Err(ProofError::Version { ours: PROTOCOL_VERSION, theirs });
        }
        match challenge.take::<1>()[0] {
            GO_ON => {}
            OTHER_CLUSTER => return Err(ProofError::Cluster),
            _ => return Err(ProofError::NotSquall),
        }
        let nonces = Nonces { initiator: self.nonce, responder: challenge.take() };
        let tag = self.proof.tag(Role::Initiator, &nonces);
        Ok((Proven { proof: self.proof, nonces }, tag))
    }
}

/// The initiator between its tag and the verdict.
#[derive(Debug)]
pub struct Proven<'p> {
    proof: &'p Proof,
    nonces: Nonces,
}

impl Proven<'_> {
    /// Takes the verdict: with `Ok`, both ends have proved the secret.
    ///
    /// # Errors
    /// [`ProofError::Secret`] if either end refuses the other's proof.
    pub fn on_verdict(self, verdict: &[u8; VERDICT_BYTES]) -> Result<(), ProofError> {
        let mut verdict = Reader(verdict);
        let accepted = verdict.take::<1>()[0] == GO_ON;
        let holds = self.proof.holds(Role::Responder, &self.nonces, &verdict.take());
        if accepted && holds { Ok(()) } else { Err(ProofError::Secret) }
    }
}

/// The responder between its challenge and the tag.
#[derive(Debug)]
pub struct Responder<'p> {
    pub(super) proof: &'p Proof,
    pub(super) nonces: Nonces,
}

impl Responder<'_> {
    /// Takes the tag; the verdict is to be sent in any case. With `Ok`, the initiator has proved the secret.
    #[must_use = "the verdict is to be sent, and the outcome says whether to go on"]
    pub fn on_tag(self, tag: &[u8; TAG_BYTES]) -> ([u8; VERDICT_BYTES], Result<(), ProofError>) {
        let holds = self.proof.holds(Role::Initiator, &self.nonces, tag);
        let mut verdict = Writer::new();
        if !holds {
            // Without our tag: it would help who guesses.
            verdict.put(&[OTHER_SECRET]);
            verdict.put(&[0; TAG_BYTES]);
            return (verdict.finish(), Err(ProofError::Secret));
        }
        verdict.put(&[GO_ON]);
        verdict.put(&self.proof.tag(Role::Responder, &self.nonces));
        (verdict.finish(), Ok(()))
    }
}

/// Reads fields of fixed sizes from a message of fixed size.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the sizes of the fields add up");
        self.0 = rest;
        *field
    }
}

/// Writes fields of fixed sizes into a message of fixed size.
pub(super) struct Writer<const N: usize>([u8; N], usize);

impl<const N: usize> Writer<N> {
    pub(super) const fn new() -> Self {
        Self([0; N], 0)
    }

    pub(super) fn put(&mut self, field: &[u8]) {
        self.0[self.1..self.1 + field.len()].copy_from_slice(field);
        self.1 += field.len();
    }

    pub(super) fn finish(self) -> [u8; N] {
        assert_eq!(self.1, N, "the sizes of the fields add up");
        self.0
    }
}
