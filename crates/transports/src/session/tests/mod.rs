//! The handshake succeeds between the right ends only, and records return nothing but what was sent.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::bootstrap::Secret;

mod hello;

fn proof(secret: &str, cluster: &str) -> Proof {
    Proof::new(&Secret::new(format!("{secret}, sixteen bytes or more")).unwrap(), cluster)
}

/// The kind of all callers here, unless a test says otherwise.
const KIND: CallerKind = CallerKind::Stream;

type Outcome = Result<SessionKeys, ProofError>;

/// Runs both ends over a socket; returns the outcome of each.
fn meet(initiator: &Proof, responder: &Proof) -> (Outcome, Outcome) {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let responding =
            scope.spawn(move || responder.demand(&mut far, None, &[KIND]).map(|caller| caller.session));
        (initiator.prove(&mut near, None, KIND), responding.join().unwrap())
    })
}

/// Returns two sessions that belong together.
fn sessions() -> (SessionKeys, SessionKeys) {
    let proof = proof("a", "c");
    let (initiator, hello) = proof.initiate(None, KIND);
    let (responder, answer) = proof.respond(None, &hello, &[KIND]).unwrap();
    (initiator.on_answer(&answer).unwrap(), responder.session)
}

/// Returns connected streams over TCP, with a session each.
fn streams(encryption: Encryption) -> (PeerStream, PeerStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let proof = proof("a", "c").with_encryption(encryption);
    std::thread::scope(|scope| {
        let responding = scope.spawn(|| {
            let ends = ConnectionEnds::of(&far).unwrap();
            let caller = proof.demand(&mut far, Some(ends), &[KIND]).unwrap();
            PeerStream::new(far, caller.session)
        });
        let ends = ConnectionEnds::of(&near).unwrap();
        let session = proof.prove(&mut near, Some(ends), KIND).unwrap();
        (PeerStream::new(near, session), responding.join().unwrap())
    })
}

#[test]
fn the_same_secret_convinces_both_ends() {
    let proof = proof("a", "c");
    let (Ok(mut near), Ok(mut far)) = meet(&proof, &proof) else { panic!("the same secret") };
    near.records.seal(b"to the responder");
    assert!(far.records.fill(&mut near.records.pending()).unwrap());
    assert_eq!(far.records.opened(), b"to the responder");
    far.records.seal(b"and back");
    assert!(near.records.fill(&mut far.records.pending()).unwrap());
    assert_eq!(near.records.opened(), b"and back");
}

#[test]
fn whatever_differs_convinces_neither() {
    let own = proof("a", "c");
    let outcome = meet(&own, &proof("b", "c"));
    assert!(matches!(outcome, (Err(ProofError::Secret), Err(ProofError::Secret))));
    let outcome = meet(&own, &proof("a", "other cluster"));
    assert!(matches!(outcome, (Err(ProofError::Cluster), Err(ProofError::Cluster))));
}

/// A recorded handshake cannot be replayed, since it does not contain the initiator's key.
#[test]
fn a_repeated_hello_gets_nothing_but_an_answer() {
    let proof = proof("a", "c");
    let (initiator, hello) = proof.initiate(None, KIND);
    let (_, answer) = proof.respond(None, &hello, &[KIND]).unwrap();
    let mut first = initiator.on_answer(&answer).unwrap();
    first.records.seal(b"let me in");
    let recorded = first.records.pending().to_vec();

    let (mut near, mut far) = UnixStream::pair().unwrap();
    near.write_all(&hello).unwrap();
    near.write_all(&recorded).unwrap();
    let error = proof.demand(&mut far, None, &[KIND]).unwrap_err();
    assert!(matches!(error, ProofError::Io(_)), "{error}");
}

/// A message that is sent back to its sender proves nothing.
#[test]
fn a_reflected_hello_is_refused() {
    let proof = proof("a", "c");
    let (initiator, hello) = proof.initiate(None, KIND);
    let mut answer = Rejection::answer_for_tests();
    let key_and_tag = hello.len() - (ANSWER_BYTES - 11);
    answer[11..].copy_from_slice(&hello[key_and_tag..]);
    assert!(matches!(initiator.on_answer(&answer), Err(ProofError::Secret)));
}

#[test]
fn each_connection_has_keys_of_its_own() {
    let (mut near, _) = sessions();
    let (_, mut other) = sessions();
    near.records.seal(b"for another connection");
    assert!(other.records.fill(&mut near.records.pending()).is_err());
}

/// What two ends settle about their data holds for both, and cannot be altered on the path.
#[test]
fn encryption_cannot_be_disabled_on_the_path() {
    let at = |own: &str, peer: &str| Some(ConnectionEnds::new(own.parse().unwrap(), peer.parse().unwrap()));
    let proof = proof("a", "c");
    let (near, far) = (at("192.0.2.1:5", "192.0.2.2:7"), at("192.0.2.2:7", "192.0.2.1:5"));
    for place in 0..HELLO_BYTES {
        let (initiator, mut hello) = proof.initiate(near, KIND);
        let (caller, mut answer) = proof.respond(far, &hello, &[KIND]).unwrap();
        assert!(caller.session.is_sealed());
        answer[place.min(ANSWER_BYTES - 1)] ^= 1;
        assert!(initiator.on_answer(&answer).is_err(), "byte {place} of the answer");
        hello[place] ^= 1;
        assert!(proof.respond(far, &hello, &[KIND]).is_err(), "byte {place} of the hello");
    }
}

#[test]
fn streams_within_a_host_are_plain_unless_an_end_insists() {
    for encryption in [Encryption::Off, Encryption::On, Encryption::Always] {
        let (mut near, mut far) = streams(encryption);
        let sealed = encryption == Encryption::Always;
        assert_eq!((near.is_sealed(), far.is_sealed()), (sealed, sealed));
        let long: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        let sent = long.clone();
        let sending = std::thread::spawn(move || near.write_all(&sent).map(|()| near));
        let mut received = vec![0; long.len()];
        far.read_exact(&mut received).unwrap();
        assert!(received == long);
        drop(sending.join().unwrap().unwrap());
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0, "the end of the stream is reported");
    }
}

/// A relay forwards the handshake. It sees only records, and what it adds or changes ends the connection.
#[test]
fn a_relay_of_the_handshake_gets_nothing_but_a_closed_connection() {
    let word = b"a message that no third party may see or write";
    for attack in [Attack::Inject, Attack::Alter, Attack::Repeat, Attack::Reorder, Attack::Drop, Attack::Cut]
    {
        let relay = Relay::start(attack);
        // Both ends are on the loopback, where data are not encrypted; but the relay is in between.
        let ends = ConnectionEnds::of(&relay.near).unwrap();
        let mut near = relay.near;
        let session = proof("a", "c").prove(&mut near, Some(ends), KIND).unwrap();
        let mut near = PeerStream::new(near, session);
        assert!(near.is_sealed(), "the ends see two connections");
        for _ in 0..3 {
            let _ = near.write_all(word);
        }
        let heard = relay.far.join().unwrap();
        let seen = relay.between.join().unwrap();
        assert!(
            !seen.windows(12).any(|part| word.windows(12).any(|word| word == part)),
            "{attack:?}: the relay sees plain text"
        );
        assert!(word.repeat(3).starts_with(&heard.0), "{attack:?}: {:?}", heard.0);
        assert!(heard.0.len() < 3 * word.len(), "{attack:?} is detected");
        assert!(heard.1.is_err() || attack == Attack::Cut, "{attack:?}: {:?}", heard.1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Inject,
    Alter,
    Repeat,
    Reorder,
    Drop,
    Cut,
}

/// An honest end that calls the wrong address, a relay that forwards its bytes, and an honest listener.
struct Relay {
    near: TcpStream,
    /// What the relay has seen.
    between: std::thread::JoinHandle<Vec<u8>>,
    /// What the listener received, and how it ended.
    far: std::thread::JoinHandle<(Vec<u8>, std::io::Result<usize>)>,
}

impl Relay {
    fn start(attack: Attack) -> Self {
        let [listener, stranger] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(stranger.local_addr().unwrap()).unwrap();
        let far = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let ends = ConnectionEnds::of(&stream).unwrap();
            let session = proof("a", "c").demand(&mut stream, Some(ends), &[KIND]).unwrap().session;
            let (mut stream, mut heard) = (PeerStream::new(stream, session), Vec::new());
            let outcome = stream.read_to_end(&mut heard);
            (heard, outcome)
        });
        let between = std::thread::spawn(move || {
            let (mut caller, _) = stranger.accept().unwrap();
            let mut called = TcpStream::connect(address).unwrap();
            let mut hello = [0; HELLO_BYTES];
            caller.read_exact(&mut hello).unwrap();
            called.write_all(&hello).unwrap();
            let mut answer = [0; ANSWER_BYTES];
            called.read_exact(&mut answer).unwrap();
            caller.write_all(&answer).unwrap();
            let confirmation = record(&mut caller);
            called.write_all(&confirmation).unwrap();
            let mut records = [(); 3].map(|()| record(&mut caller));
            let seen = [&hello[..], &answer, &confirmation, &records.concat()].concat();
            match attack {
                Attack::Inject => records[1] = [&20u16.to_le_bytes()[..], &[7; 20]].concat(),
                Attack::Alter => *records[1].last_mut().unwrap() ^= 0x10,
                Attack::Repeat => records[1] = records[0].clone(),
                Attack::Reorder => records.swap(1, 2),
                Attack::Drop => records[1].clear(),
                Attack::Cut => records[2].clear(),
            }
            let _ = called.write_all(&records.concat());
            seen
        });
        Self { near, between, far }
    }
}

/// Reads the next record, as a relay sees it.
fn record(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut record = length.to_vec();
    record.resize(2 + usize::from(u16::from_le_bytes(length)), 0);
    stream.read_exact(&mut record[2..]).unwrap();
    record
}

/// The keys are changed regularly, at both ends at the same record.
#[test]
fn a_session_outlives_its_keys() {
    let (mut near, mut far) = sessions();
    for k in 0..(1u64 << 20) + 3 {
        near.records.seal(&k.to_le_bytes());
        assert!(far.records.fill(&mut near.records.pending()).unwrap());
        assert_eq!(far.records.opened(), k.to_le_bytes());
        far.records.on_taken(8);
        let sent = near.records.pending().len();
        near.records.on_sent(sent);
    }
}

proptest! {
    #[test]
    fn a_random_hello_is_not_answered(hello in any::<[u8; 32]>()) {
        let mut message = [0; HELLO_BYTES];
        message[..32].copy_from_slice(&hello);
        prop_assume!(!hello.starts_with(b"SQUALL"));
        prop_assert!(proof("a", "c").respond(None, &message, &[KIND]).unwrap_err().answer.is_none());
    }

    /// However the bytes of records are cut, all arrive; and after one changed bit, nothing of its record or
    /// of later ones is returned.
    #[test]
    fn one_changed_bit_is_detected(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..6),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
        piece in 1..400usize,
    ) {
        let (mut near, far) = sessions();
        messages.iter().for_each(|message| near.records.seal(message));
        let sent = near.records.pending().to_vec();
        let mut altered = sent.clone();
        let place = place.index(sent.len());
        altered[place] ^= 1u8 << bit;
        let untouched: usize = {
            let mut end = 0;
            let whole = |message: &&Vec<u8>| { end += 2 + message.len() + 16; end <= place };
            messages.iter().take_while(whole).map(Vec::len).sum()
        };
        let (mut other, mut shown) = (far, Vec::new());
        let mut target = vec![0; OPENING_BYTES];
        let mut failed = false;
        'all: for piece in altered.chunks(piece) {
            other.records.free_space(piece.len())[..piece.len()].copy_from_slice(piece);
            other.records.on_received(piece.len());
            loop {
                match other.records.open(&mut target) {
                    Ok(Some(bytes)) => shown.extend_from_slice(&target[..bytes]),
                    Ok(None) => break,
                    Err(_) => { failed = true; break 'all }
                }
            }
        }
        prop_assert_eq!(&shown[..], &messages.concat()[..untouched]);
        // A length that was increased waits for bytes that do not arrive.
        prop_assert!(failed || shown.len() < messages.concat().len());
        prop_assert!(!failed || other.records.open(&mut target).is_err(), "the error is permanent");
    }

    /// Whatever arrives in place of a handshake or of records, no plain text is returned.
    #[test]
    fn garbage_shows_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let (_, mut far) = sessions();
        prop_assert_eq!(open_foreign(&mut far, &bytes), 0);
    }
}
