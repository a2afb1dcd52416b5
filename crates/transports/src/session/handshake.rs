//! The handshake: both ends prove that they know the cluster secret, and agree on keys for their connection,
//! before anything else is read.
//!
//! It is the pattern `NNpsk0` of the Noise framework. Its pre-shared key is derived from the secret; its
//! prologue contains the caller's versions and the cluster, so nothing on the path can change either; and
//! the initiator's role is a part of the pattern. Both ends contribute keys that they create for this
//! connection and forget (X25519), so an attacker that has recorded the traffic cannot decrypt it later, even
//! with the secret.
//!
//! | message | bytes |
//! |---|---|
//! | hello, initiator | magic 8, highest and lowest version 2 + 2, digest of the cluster name 16, key 32, sealed 156, tag 16 |
//! | answer, responder | magic 8, version chosen 2, judgement 1, key 32, outcome 1, version chosen 2, tag 16 |
//! | confirmation, initiator | the first record of the session |
//!
//! `bootstrap/hello.md` lays out the sealed part (`hello.rs`), which says what the caller is. All messages
//! have fixed sizes, and the first twelve bytes of a hello keep their meaning in later versions. The initiator
//! shows its proof first (the tag of the hello): a client that only connects learns nothing from which the
//! secret could be guessed. A responder accepts the initiator only after it has opened a first record, because
//! a hello can be replayed, and its keys cannot. Wish and outcome ([`Encryption`]) are under the tags, and so
//! is the version chosen: nothing on the path can make two ends give up encryption, or speak an older version.
//!
//! Judgements are sent without a proof: they are hints for people, and no more. That a caller of its kind is not
//! served is an outcome, with a proof.

use std::fmt;
use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use snow::HandshakeState;

use super::SessionKeys;
use super::ends::{ConnectionEnds, Encryption, EncryptionWish};
use super::hello::{
    CallerKind, HELLO_HEAD_BYTES, MAGIC, SEALED_BYTES, SealedHello, SealedReading, VersionRange, caller_text,
};
use crate::bootstrap::Secret;

/// The highest version of the protocol that this build speaks: the format of everything that members, clients and hosts send each
/// other.
///
/// A release that changes any of it has a higher version. Its tests keep the recorded hellos of the versions before it
/// (`session/tests`), so that it refuses them with words, and `tests/tidy/formats.txt` what this one sends.
pub const PROTOCOL_VERSION: u16 = 6;

/// The lowest version that it speaks.
pub const PROTOCOL_VERSION_LOWEST: u16 = 6;

const VERSIONS: VersionRange = VersionRange::new(PROTOCOL_VERSION_LOWEST, PROTOCOL_VERSION)
    .expect("the lowest is not above the highest");

/// The bytes of the initiator's first message.
pub const HELLO_BYTES: usize = HELLO_HEAD_BYTES + DIGEST_BYTES + KEY_BYTES + SEALED_BYTES + TAG_BYTES;
/// The bytes of the answer to a hello.
pub const ANSWER_BYTES: usize = ANSWER_HEAD_BYTES + KEY_BYTES + OUTCOME_BYTES + TAG_BYTES;

const DIGEST_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
/// Magic, version, judgement.
const ANSWER_HEAD_BYTES: usize = 8 + 2 + 1;
/// The outcome and the version chosen.
const OUTCOME_BYTES: usize = 1 + 2;

/// AES-GCM, because processors encrypt it three times as fast as ChaCha20-Poly1305 (6 and 1.8 GB/s on an
/// Intel Xeon).
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

const GO_ON: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_CLUSTER: u8 = 2;
const OTHER_SECRET: u8 = 3;

const PLAIN: u8 = 0;
const SEALED: u8 = 1;
const NOT_SERVED: u8 = 2;
const NOT_KNOWN: u8 = 3;

/// Why two ends do not accept each other.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The other end uses another protocol.
    #[error("the other end does not use Squall's protocol: check the address and the port")]
    NotSquall,
    /// The two ends have no version of the protocol in common.
    #[error(
        "the other end speaks {theirs} of the protocol, but this one {ours}: {}",
        older_end(ours, theirs)
    )]
    Version {
        /// The versions of this end.
        ours: VersionRange,
        /// The versions that the other end sent.
        theirs: VersionRange,
    },
    /// The other end sent a range of versions that is none.
    #[error(
        "the other end says that it speaks versions {lowest} to {highest} of the protocol, which are none: it is no Squall"
    )]
    NoVersions {
        /// The lowest.
        lowest: u16,
        /// The highest.
        highest: u16,
    },
    /// The secret is right, but callers of this kind are not served at that port.
    #[error("that port does not serve {}: check the address and the port, and run the same release at both ends", caller_text(*kind))]
    NotServed {
        /// The number of the kind.
        kind: u8,
    },
    /// The secret is right, but the hello has something that the responder's release does not know.
    #[error(
        "the called end does not know all that the caller's hello contains: install the caller's release there, too"
    )]
    NotKnown,
    /// The other end belongs to another cluster.
    #[error("the other end belongs to another cluster: compare the `cluster` names")]
    Cluster,
    /// The other end refused this end's proof, or could not give its own.
    #[error("the two ends do not have the same secret: compare the `secret` of both")]
    Secret,
    /// The connection failed during the proof.
    #[error("the connection failed during the proof: {0}")]
    Io(io::Error),
}

impl From<io::Error> for ProofError {
    fn from(cause: io::Error) -> Self {
        Self::Io(cause)
    }
}

/// Returns what to do when two ends have no version in common.
pub(crate) const fn older_end(ours: &VersionRange, theirs: &VersionRange) -> &'static str {
    if theirs.is_older(ours) {
        "install this end's release at the other end, too (`squall --version` prints the version)"
    } else {
        "install the other end's release at this end, too (`squall --version` prints the version)"
    }
}

/// A hello that the responder rejects.
#[derive(Debug)]
pub struct Rejection {
    /// The cause.
    pub error: ProofError,
    /// The answer for the initiator, unless that does not use the protocol.
    pub answer: Option<[u8; ANSWER_BYTES]>,
}

impl Rejection {
    /// The caller learns the responder's versions, and may not continue.
    fn new(error: ProofError, versions: VersionRange, judgement: u8) -> Self {
        let [highest, lowest] = versions.to_bytes();
        let mut answer = [0; ANSWER_BYTES];
        answer[..ANSWER_HEAD_BYTES].copy_from_slice(&answer_head(highest, judgement));
        answer[ANSWER_HEAD_BYTES..][..2].copy_from_slice(&lowest);
        Self { error, answer: Some(answer) }
    }

    #[cfg(test)]
    pub(super) fn answer_for_tests() -> [u8; ANSWER_BYTES] {
        Self::new(ProofError::Secret, VERSIONS, GO_ON).answer.expect("just made")
    }

    /// Returns the answer's bytes, or none.
    #[must_use]
    pub fn answer_bytes(&self) -> &[u8] {
        self.answer.as_ref().map_or(&[], |answer| answer.as_slice())
    }
}

/// A caller that has been answered.
#[derive(Debug)]
pub struct AnsweredCaller {
    /// The keys of the connection.
    pub session: SessionKeys,
    /// What the caller is.
    pub kind: CallerKind,
}

/// What both ends must have in common, to prove it to each other.
#[derive(Clone, Debug)]
pub struct Proof {
    secret: Secret,
    cluster: String,
    encryption: Encryption,
    versions: VersionRange,
}

impl Proof {
    /// Creates the proof of the processes of a cluster.
    #[must_use]
    pub fn new(secret: &Secret, cluster: &str) -> Self {
        let (secret, cluster) = (secret.clone(), cluster.into());
        Self { secret, cluster, encryption: Encryption::On, versions: VERSIONS }
    }

    /// Returns the same proof, with this end's wish for the data after the proof.
    #[must_use]
    pub fn with_encryption(self, encryption: Encryption) -> Self {
        Self { encryption, ..self }
    }

    /// Returns the same proof, of a release that speaks other versions.
    #[cfg(test)]
    pub(super) fn with_versions(self, versions: VersionRange) -> Self {
        Self { versions, ..self }
    }

    /// Begins as the initiator, which sends the hello. `ends` is how this end sees the connection, if it is a
    /// TCP connection.
    ///
    /// # Panics
    /// Panics if the kernel provides no random bytes.
    #[must_use]
    pub fn initiate(&self, ends: Option<ConnectionEnds>, kind: CallerKind) -> (Initiator, [u8; HELLO_BYTES]) {
        let wish = EncryptionWish { encryption: self.encryption, ends };
        let kind = kind as u8;
        let (state, hello) = self.initiate_with(&SealedHello { wish, kind }.to_bytes());
        (Initiator { state, wish, versions: self.versions, kind }, hello)
    }

    pub(super) fn initiate_with(&self, sealed: &[u8; SEALED_BYTES]) -> (HandshakeState, [u8; HELLO_BYTES]) {
        let mut hello = [0; HELLO_BYTES];
        let (head, rest) = hello.split_first_chunk_mut().expect(SIZES);
        let [highest, lowest] = self.versions.to_bytes();
        *head = [&MAGIC[..], &highest, &lowest].concat().try_into().expect(SIZES);
        let mut state = self.handshake(head, true);
        let (digest, message) = rest.split_at_mut(DIGEST_BYTES);
        digest.copy_from_slice(&self.cluster_digest());
        let written = state.write_message(sealed, message).expect(SIZES);
        assert_eq!(written, message.len(), "{SIZES}");
        (state, hello)
    }

    /// Checks the beginning of a hello; returns the version that both ends speak.
    ///
    /// # Errors
    /// Returns [`Rejection`], as for [`Proof::respond`]: the length of the rest is unknown.
    pub fn check_head(&self, head: &[u8; HELLO_HEAD_BYTES]) -> Result<u16, Rejection> {
        let (magic, versions) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Rejection { error: ProofError::NotSquall, answer: None });
        }
        let ours = self.versions;
        let reject = |error| Err(Rejection::new(error, ours, OTHER_VERSION));
        match VersionRange::from_bytes([versions[0], versions[1]], [versions[2], versions[3]]) {
            Ok(theirs) => match ours.chosen(&theirs) {
                Some(version) => Ok(version),
                None => reject(ProofError::Version { ours, theirs }),
            },
            Err((lowest, highest)) => reject(ProofError::NoVersions { lowest, highest }),
        }
    }

    /// Handles the hello as the responder, which sends the answer. The initiator has proved the secret only
    /// when a first record of the session has been opened. `ends` is how this end sees the connection, if it
    /// is a TCP connection; `served` are the kinds of callers that this end serves. Fuzzed as `proof`, as is
    /// [`Initiator::on_answer`].
    ///
    /// # Errors
    /// Returns [`Rejection`]: send its answer, if there is one, and close the connection.
    ///
    /// # Panics
    /// Panics if the kernel provides no random bytes.
    pub fn respond(
        &self,
        ends: Option<ConnectionEnds>,
        hello: &[u8; HELLO_BYTES],
        served: &[CallerKind],
    ) -> Result<(AnsweredCaller, [u8; ANSWER_BYTES]), Rejection> {
        let (head, rest) = hello.split_first_chunk().expect(SIZES);
        let version = self.check_head(head)?;
        let (digest, message) = rest.split_at(DIGEST_BYTES);
        if digest != self.cluster_digest() {
            return Err(Rejection::new(ProofError::Cluster, self.versions, OTHER_CLUSTER));
        }
        let stranger = || Rejection::new(ProofError::Secret, self.versions, OTHER_SECRET);
        let mut state = self.handshake(head, false);
        let mut sealed = [0; SEALED_BYTES + TAG_BYTES];
        let read = state.read_message(message, &mut sealed).map_err(|_| stranger())?;
        let sealed = sealed[..read].try_into().map_err(|_| stranger())?;
        let refused = |state: &mut HandshakeState, error, outcome| {
            let answer = Some(answer_to(state, version, outcome));
            Err(Rejection { error, answer })
        };
        let SealedHello { wish, kind } = match SealedHello::read(sealed) {
            SealedReading::Hello(hello) => hello,
            SealedReading::Unknown => return refused(&mut state, ProofError::NotKnown, NOT_KNOWN),
            SealedReading::Garbled => return Err(stranger()),
        };
        let Some(served) = served.iter().copied().find(|served| *served as u8 == kind) else {
            return refused(&mut state, ProofError::NotServed { kind }, NOT_SERVED);
        };
        let is_sealed = EncryptionWish { encryption: self.encryption, ends }.settle(&wish);
        let answer = answer_to(&mut state, version, if is_sealed { SEALED } else { PLAIN });
        let session = SessionKeys::new(state, is_sealed, version).expect(TWO_MESSAGES);
        Ok((AnsweredCaller { session, kind: served }, answer))
    }

    /// Proves the secret to the peer behind `stream` and demands its proof; the peer runs [`Proof::demand`].
    /// Reads and writes block for as long as the stream allows: set its timeouts first.
    ///
    /// # Errors
    /// Returns [`ProofError`]; the caller must then close the connection.
    pub fn prove(
        &self,
        stream: &mut (impl Read + Write),
        ends: Option<ConnectionEnds>,
        kind: CallerKind,
    ) -> Result<SessionKeys, ProofError> {
        let (initiator, hello) = self.initiate(ends, kind);
        stream.write_all(&hello)?;
        let mut answer = [0; ANSWER_BYTES];
        let (head, rest) = answer.split_at_mut(ANSWER_HEAD_BYTES);
        stream.read_exact(head)?;
        if head[..8] != MAGIC {
            return Err(ProofError::NotSquall);
        }
        match head[10] {
            GO_ON => stream.read_exact(rest)?,
            // Another release has closed the connection, and what it does not send stays zero.
            OTHER_VERSION => drop(stream.read_exact(&mut rest[..2])),
            _ => {}
        }
        let mut session = initiator.on_answer(&answer)?;
        session.records.seal(&[]);
        session.records.flush(stream)?;
        Ok(session)
    }

    /// Demands the proof of the peer behind `stream` and answers with this end's own; the peer runs
    /// [`Proof::prove`]. Reads and writes block for as long as the stream allows: set its timeouts first.
    ///
    /// # Errors
    /// Returns [`ProofError`]; the caller must then close the connection.
    pub fn demand(
        &self,
        stream: &mut (impl Read + Write),
        ends: Option<ConnectionEnds>,
        served: &[CallerKind],
    ) -> Result<AnsweredCaller, ProofError> {
        let mut hello = [0; HELLO_BYTES];
        let (head, rest) = hello.split_first_chunk_mut().expect(SIZES);
        stream.read_exact(head)?;
        let responded = self.check_head(head).map(|_| stream.read_exact(rest));
        let responded = match responded {
            Ok(read) => read.map(|()| self.respond(ends, &hello, served))?,
            Err(rejection) => Err(rejection),
        };
        match responded {
            Ok((mut caller, answer)) => {
                stream.write_all(&answer)?;
                caller.session.records.confirm(stream)?;
                Ok(caller)
            }
            Err(rejection) => {
                stream.write_all(rejection.answer_bytes())?;
                Err(rejection.error)
            }
        }
    }

    fn cluster_digest(&self) -> [u8; DIGEST_BYTES] {
        let digest = Sha256::digest(self.cluster.as_bytes());
        *digest.first_chunk().expect("a digest has 32 bytes")
    }

    /// `head` is the beginning of the hello, as it was sent.
    fn handshake(&self, head: &[u8; HELLO_HEAD_BYTES], initiates: bool) -> HandshakeState {
        let mut key =
            Hmac::<Sha256>::new_from_slice(self.secret.bytes()).expect("HMAC takes keys of any length");
        key.update(b"squall: the pre-shared key of Noise sessions, from the cluster secret");
        let key: [u8; KEY_BYTES] = key.finalize().into_bytes().into();
        let mut prologue = b"squall session".to_vec();
        prologue.extend(head);
        prologue.extend((self.cluster.len() as u64).to_le_bytes());
        prologue.extend(self.cluster.as_bytes());
        let builder = snow::Builder::new(PATTERN.parse().expect("a pattern that the library supports"));
        let builder = builder.prologue(&prologue).and_then(|builder| builder.psk(0, &key)).expect("set once");
        let state = if initiates { builder.build_initiator() } else { builder.build_responder() };
        state.expect("the pattern needs nothing else, and the kernel gives random bytes")
    }
}

/// The initiator between its hello and the answer.
pub struct Initiator {
    state: HandshakeState,
    wish: EncryptionWish,
    versions: VersionRange,
    kind: u8,
}

impl Initiator {
    /// Handles the answer: if it returns `Ok`, the responder has proved the secret for this connection, and a
    /// first record is due.
    ///
    /// # Errors
    /// Returns [`ProofError`]. With [`ProofError::NotServed`] and [`ProofError::NotKnown`] the responder has
    /// proved the secret, too; what else but [`ProofError::Secret`] is returned could have been sent without
    /// knowledge of the secret.
    pub fn on_answer(mut self, answer: &[u8; ANSWER_BYTES]) -> Result<SessionKeys, ProofError> {
        let (head, message) = answer.split_at(ANSWER_HEAD_BYTES);
        self.check_answer(head, [message[0], message[1]])?;
        let mut outcome = [0; OUTCOME_BYTES + TAG_BYTES];
        let read = self.state.read_message(message, &mut outcome).map_err(|_| ProofError::Secret)?;
        let [outcome, version @ ..] = &outcome[..read] else { return Err(ProofError::Secret) };
        let is_sealed = match *outcome {
            // The version in the head has no proof.
            _ if version != &head[8..10] => return Err(ProofError::Secret),
            PLAIN if !self.wish.insists() => false,
            // Data on a Unix socket are never encrypted.
            SEALED if self.wish.ends.is_some() => true,
            NOT_SERVED => return Err(ProofError::NotServed { kind: self.kind }),
            NOT_KNOWN => return Err(ProofError::NotKnown),
            _ => return Err(ProofError::Secret),
        };
        let version = u16::from_le_bytes([head[8], head[9]]);
        Ok(SessionKeys::new(self.state, is_sealed, version).expect(TWO_MESSAGES))
    }

    /// Checks what has no proof; `lowest` is the lowest version of a responder that has refused this end.
    fn check_answer(&self, head: &[u8], lowest: [u8; 2]) -> Result<(), ProofError> {
        if head[..8] != MAGIC {
            return Err(ProofError::NotSquall);
        }
        let (ours, sent) = (self.versions, [head[8], head[9]]);
        let chosen = VersionRange::only(u16::from_le_bytes(sent));
        match head[10] {
            GO_ON if ours.chosen(&chosen).is_some() => Ok(()),
            GO_ON => Err(ProofError::Version { ours, theirs: chosen }),
            OTHER_VERSION => Err(match VersionRange::from_bytes(sent, lowest) {
                Ok(theirs) => ProofError::Version { ours, theirs },
                Err((lowest, highest)) => ProofError::NoVersions { lowest, highest },
            }),
            OTHER_CLUSTER => Err(ProofError::Cluster),
            OTHER_SECRET => Err(ProofError::Secret),
            _ => Err(ProofError::NotSquall),
        }
    }
}

#[cfg(test)]
impl Initiator {
    pub(super) const fn for_tests(state: HandshakeState, wish: EncryptionWish, kind: u8) -> Self {
        Self { state, wish, versions: VERSIONS, kind }
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("wish", &self.wish).finish_non_exhaustive()
    }
}

fn answer_head(version: [u8; 2], judgement: u8) -> [u8; ANSWER_HEAD_BYTES] {
    let mut head = [0; ANSWER_HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..10].copy_from_slice(&version);
    head[10] = judgement;
    head
}

/// Returns the answer to a hello whose caller knows the secret.
fn answer_to(state: &mut HandshakeState, version: u16, outcome: u8) -> [u8; ANSWER_BYTES] {
    let version = version.to_le_bytes();
    let mut answer = [0; ANSWER_BYTES];
    answer[..ANSWER_HEAD_BYTES].copy_from_slice(&answer_head(version, GO_ON));
    let message = &mut answer[ANSWER_HEAD_BYTES..];
    let written = state.write_message(&[outcome, version[0], version[1]], message).expect(SIZES);
    assert_eq!(written, message.len(), "{SIZES}");
    answer
}

const TWO_MESSAGES: &str = "two messages are the whole handshake";
const SIZES: &str = "the sizes of the fields add up";
