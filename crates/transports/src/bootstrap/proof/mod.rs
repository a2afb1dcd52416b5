//! The proof of the cluster secret: challenge and response in both directions, before anything else is read.
//!
//! The initiator says hello with a nonce, the responder answers with its own; each then shows an HMAC-SHA256,
//! keyed by the secret, over version, role, purpose, cluster name and both nonces. So nothing secret is on the
//! wire, an old proof is worth nothing, a proof cannot be sent back to who made it (its role is in it), and a
//! proof made for one purpose is worth nothing for another. The initiator shows its proof first: who
//! only connects learns nothing to guess the secret from.
//!
//! All four messages have fixed sizes, which later versions keep, so that nothing is parsed before the proof:
//!
//! | message | bytes |
//! |---|---|
//! | hello, initiator | magic 8, version 2, digest of the cluster name 16, nonce 32 |
//! | challenge, responder | magic 8, version 2, judgement 1, nonce 32 |
//! | tag, initiator | 32 |
//! | verdict, responder | judgement 1, tag 32 |
//!
//! [`Proof`] makes the messages and moves no bytes itself; [`Proof::prove`] and [`Proof::demand`] do it over a
//! blocking stream. It does not encrypt: on networks where others can write into connections, run it in TLS.

mod ends;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub use self::ends::{Initiator, Proven, Responder};
use self::ends::{Nonces, Reader, Role, Writer};
use super::secret::{Secret, random_bytes};

/// The protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// Bytes of the first message of the initiator.
pub const HELLO_BYTES: usize = 8 + 2 + DIGEST_BYTES + NONCE_BYTES;
/// Bytes of the answer to a hello.
pub const CHALLENGE_BYTES: usize = 8 + 2 + 1 + NONCE_BYTES;
/// Bytes of the initiator's proof.
pub const TAG_BYTES: usize = 32;
/// Bytes of the responder's judgement and proof.
pub const VERDICT_BYTES: usize = 1 + TAG_BYTES;

const MAGIC: [u8; 8] = *b"SQUALL\r\n";
const NONCE_BYTES: usize = 32;
const DIGEST_BYTES: usize = 16;

const GO_ON: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_CLUSTER: u8 = 2;
const OTHER_SECRET: u8 = 3;

/// Why two ends do not trust each other.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The other end speaks another protocol.
    #[error("the other end does not speak Squall's protocol: is this the right port?")]
    NotSquall,
    /// The other end is of another version.
    #[error(
        "the other end speaks version {theirs} of the protocol and this one {ours}: run the same release"
    )]
    Version {
        /// [`PROTOCOL_VERSION`].
        ours: u16,
        /// What the other end said.
        theirs: u16,
    },
    /// The other end is of another cluster.
    #[error("the other end belongs to another cluster: compare the `cluster` names")]
    Cluster,
    /// The other end refused our proof, or could not give its own.
    #[error("the two ends do not have the same secret: compare the `secret` of both")]
    Secret,
    /// The connection failed first.
    #[error("the connection failed during the proof: {0}")]
    Io(#[from] io::Error),
}

/// A hello that the responder does not take.
#[derive(Debug)]
pub struct Rejection {
    /// What is wrong with it.
    pub error: ProofError,
    /// What tells the initiator, unless it does not speak the protocol.
    pub answer: Option<[u8; CHALLENGE_BYTES]>,
}

impl Rejection {
    /// The answer, or nothing.
    #[must_use]
    pub fn answer_bytes(&self) -> &[u8] {
        self.answer.as_ref().map_or(&[], |answer| answer.as_slice())
    }
}

/// What both ends must have the same, to prove it to each other.
#[derive(Clone, Debug)]
pub struct Proof {
    secret: Secret,
    cluster: String,
    purpose: String,
}

impl Proof {
    /// The proof for one `purpose` (the name of the sub-protocol that follows on the connection).
    #[must_use]
    pub fn new(secret: &Secret, cluster: &str, purpose: &str) -> Self {
        Self { secret: secret.clone(), cluster: cluster.into(), purpose: purpose.into() }
    }

    /// Begins as the initiator, who sends the hello.
    ///
    /// # Panics
    /// If the kernel gives no random bytes.
    #[must_use]
    pub fn initiate(&self) -> (Initiator<'_>, [u8; HELLO_BYTES]) {
        let nonce = random_bytes();
        let mut hello = Writer::new();
        hello.put(&MAGIC);
        hello.put(&PROTOCOL_VERSION.to_le_bytes());
        hello.put(&self.cluster_digest());
        hello.put(&nonce);
        (Initiator { proof: self, nonce }, hello.finish())
    }

    /// Begins as the responder, with the hello that was received; the challenge is to be sent.
    ///
    /// # Errors
    /// [`Rejection`]: send its answer, if there is one, and close the connection.
    ///
    /// # Panics
    /// If the kernel gives no random bytes.
    pub fn respond(
        &self,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Responder<'_>, [u8; CHALLENGE_BYTES]), Rejection> {
        let mut hello = Reader(hello);
        if hello.take::<8>() != MAGIC {
            return Err(Rejection { error: ProofError::NotSquall, answer: None });
        }
        let theirs = u16::from_le_bytes(hello.take());
        let digest = hello.take::<DIGEST_BYTES>();
        let nonces = Nonces { initiator: hello.take(), responder: random_bytes() };
        let reject = |error, judgement| {
            let answer = Some(challenge(judgement, &nonces.responder));
            Err(Rejection { error, answer })
        };
        if theirs != PROTOCOL_VERSION {
            return reject(ProofError::Version { ours: PROTOCOL_VERSION, theirs }, OTHER_VERSION);
        }
        if digest != self.cluster_digest() {
            return reject(ProofError::Cluster, OTHER_CLUSTER);
        }
        let challenge = challenge(GO_ON, &nonces.responder);
        Ok((Responder { proof: self, nonces }, challenge))
    }

    /// Proves the secret to the peer behind `stream` and demands its proof; the peer runs [`Proof::demand`].
    /// Reads and writes block as long as the stream lets them: set its timeouts before.
    ///
    /// # Errors
    /// [`ProofError`]; close the connection then.
    pub fn prove(&self, stream: &mut (impl Read + Write)) -> Result<(), ProofError> {
        let (initiator, hello) = self.initiate();
        stream.write_all(&hello)?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge)?;
        let (waiting, tag) = initiator.on_challenge(&challenge)?;
        stream.write_all(&tag)?;
        let mut verdict = [0; VERDICT_BYTES];
        stream.read_exact(&mut verdict)?;
        waiting.on_verdict(&verdict)
    }

    /// Demands the proof of the peer behind `stream` and answers with our own; the peer runs [`Proof::prove`].
    /// Reads and writes block as long as the stream lets them: set its timeouts before.
    ///
    /// # Errors
    /// [`ProofError`]; close the connection then.
    pub fn demand(&self, stream: &mut (impl Read + Write)) -> Result<(), ProofError> {
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello)?;
        let responder = match self.respond(&hello) {
            Ok((responder, challenge)) => {
                stream.write_all(&challenge)?;
                responder
            }
            Err(rejection) => {
                stream.write_all(rejection.answer_bytes())?;
                return Err(rejection.error);
            }
        };
        let mut tag = [0; TAG_BYTES];
        stream.read_exact(&mut tag)?;
        let (verdict, outcome) = responder.on_tag(&tag);
        stream.write_all(&verdict)?;
        outcome
    }

    fn cluster_digest(&self) -> [u8; DIGEST_BYTES] {
        let digest = Sha256::digest(self.cluster.as_bytes());
        Reader(&digest).take()
    }

    fn mac(&self, role: Role, nonces: &Nonces) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.secret.bytes()).expect("HMAC takes keys of any length");
        mac.update(b"squall proof of the cluster secret");
        mac.update(&PROTOCOL_VERSION.to_le_bytes());
        mac.update(&[role as u8]);
        for text in [&self.purpose, &self.cluster] {
            mac.update(&(text.len() as u64).to_le_bytes());
            mac.update(text.as_bytes());
        }
        mac.update(&nonces.initiator);
        mac.update(&nonces.responder);
        mac
    }

    fn tag(&self, role: Role, nonces: &Nonces) -> [u8; TAG_BYTES] {
        self.mac(role, nonces).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    fn holds(&self, role: Role, nonces: &Nonces, tag: &[u8; TAG_BYTES]) -> bool {
        self.mac(role, nonces).verify_slice(tag).is_ok()
    }
}

fn challenge(judgement: u8, nonce: &[u8; NONCE_BYTES]) -> [u8; CHALLENGE_BYTES] {
    let mut challenge = Writer::new();
    challenge.put(&MAGIC);
    challenge.put(&PROTOCOL_VERSION.to_le_bytes());
    challenge.put(&[judgement]);
    challenge.put(nonce);
    challenge.finish()
}
