//! The hello: its bytes, which versions meet, and what is refused.

use super::super::ends::EncryptionWish;
use super::super::hello::SealedHello;
use super::*;

const PLACE_OF_KIND: usize = 38;

fn range(lowest: u16, highest: u16) -> VersionRange {
    VersionRange::new(lowest, highest).unwrap()
}

/// The process of a release that speaks these versions.
fn of_versions(lowest: u16, highest: u16) -> Proof {
    proof("a", "c").with_versions(range(lowest, highest))
}

/// The plain part, before the caller's key and what is sealed: magic, highest, lowest, and digest of the cluster's name.
#[test]
fn the_plain_part_keeps_its_bytes() {
    let (_, hello) = proof("a", "c").initiate(None, KIND);
    assert_eq!(hello[..12], *b"SQUALL\r\n\x06\x00\x06\x00");
    let digest = [46, 125, 44, 3, 169, 80, 122, 226, 101, 236, 245, 181, 53, 104, 133, 165];
    assert_eq!(hello[12..28], digest);
    assert_eq!((hello.len(), HELLO_HEAD_BYTES, ANSWER_BYTES), (28 + 32 + 156 + 16, 12, 11 + 32 + 3 + 16));
    let (_, hello) = of_versions(0x0506, 0x0708).initiate(None, KIND);
    assert_eq!(hello[..12], *b"SQUALL\r\n\x08\x07\x06\x05");
}

/// Both ends use the highest version that both speak, whichever is the newer release.
#[test]
fn ends_whose_ranges_overlap_choose_the_highest_common_version() {
    for (near, far, chosen) in [
        ((5, 6), (6, 7), 6),
        ((6, 7), (5, 6), 6),
        ((5, 9), (6, 7), 7),
        ((6, 7), (5, 9), 7),
        ((7, 7), (7, 7), 7),
    ] {
        let outcome = meet(&of_versions(near.0, near.1), &of_versions(far.0, far.1));
        let (Ok(near), Ok(far)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((near.version(), far.version()), (chosen, chosen));
    }
}

/// Each end names the versions of both, and the end that has to be replaced.
#[test]
fn ends_whose_ranges_do_not_overlap_name_both() {
    for (near, far, near_is_older) in [((5, 6), (7, 9), true), ((7, 9), (5, 6), false)] {
        let outcome = meet(&of_versions(near.0, near.1), &of_versions(far.0, far.1));
        let (Err(at_near), Err(at_far)) = outcome else { panic!("{outcome:?}") };
        let text = |range: (u16, u16)| format!("versions {} to {} of the protocol", range.0, range.1);
        for (error, own, other, is_older) in
            [(at_near, near, far, near_is_older), (at_far, far, near, !near_is_older)]
        {
            let words = error.to_string();
            let own_words = format!("but this one versions {} to {}", own.0, own.1);
            let advice = if is_older { "at this end" } else { "at the other end" };
            assert!(words.contains(&text(other)) && words.contains(&own_words), "{words}");
            assert!(words.contains(advice), "{words}");
        }
    }
}

/// A range whose lowest version is above its highest is none.
#[test]
fn a_range_that_is_none_is_refused() {
    let proof = proof("a", "c");
    let (_, mut hello) = proof.initiate(None, KIND);
    hello[10..12].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    let Rejection { error, answer } = proof.respond(None, &hello, &[KIND]).unwrap_err();
    assert!(matches!(error, ProofError::NoVersions { lowest: 7, highest: 6 }), "{error}");
    assert_eq!(answer.unwrap()[8..13], [6, 0, 1, 6, 0]);
}

/// A version in the answer that the responder has not chosen is no version, even if the caller speaks it.
#[test]
fn an_older_version_cannot_be_chosen_on_the_path() {
    let near = of_versions(5, 9);
    let (initiator, hello) = near.initiate(None, KIND);
    let (_, mut answer) = of_versions(5, 9).respond(None, &hello, &[KIND]).unwrap();
    assert_eq!(answer[8..10], [9, 0]);
    answer[8] = 8;
    assert!(matches!(initiator.on_answer(&answer), Err(ProofError::Secret)));
    let (_, mut hello) = near.initiate(None, KIND);
    hello[8] = 8;
    let rejection = of_versions(5, 9).respond(None, &hello, &[KIND]).unwrap_err();
    assert!(matches!(rejection.error, ProofError::Secret));
}

/// Sends a hello whose sealed part is changed; returns the errors of caller and responder.
fn refused(served: &[CallerKind], change: impl FnOnce(&mut [u8])) -> (ProofError, ProofError) {
    let proof = proof("a", "c");
    let wish = EncryptionWish { encryption: Encryption::On, ends: None };
    let mut sealed = SealedHello { wish, kind: KIND as u8 }.to_bytes();
    change(&mut sealed);
    let (state, hello) = proof.initiate_with(&sealed);
    let initiator = Initiator::for_tests(state, wish, sealed[PLACE_OF_KIND]);
    let Rejection { error, answer } = proof.respond(None, &hello, served).unwrap_err();
    (initiator.on_answer(&answer.unwrap()).unwrap_err(), error)
}

/// The answer is proved: the caller knows that it has reached the right cluster at a port of another kind.
#[test]
fn a_kind_that_is_not_served_is_refused_with_a_proof() {
    for kind in [CallerKind::Copy as u8, 8, 255] {
        let (near, far) = refused(&[KIND, CallerKind::Question], |sealed| sealed[PLACE_OF_KIND] = kind);
        for error in [near, far] {
            assert!(matches!(error, ProofError::NotServed { kind: found } if found == kind), "{error}");
            let words = if kind == 6 { "copies of files".into() } else { format!("kind {kind}") };
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
}

/// What this release does not use is not ignored: a credential may restrict its caller.
#[test]
fn what_a_later_release_sends_is_refused_with_a_proof() {
    for place in PLACE_OF_KIND + 1..156 {
        let (near, far) = refused(&[KIND], |sealed| sealed[place] = 0x80);
        assert!(matches!((near, far), (ProofError::NotKnown, ProofError::NotKnown)), "byte {place}");
    }
}

#[test]
fn every_changed_bit_of_a_hello_is_refused() {
    let proof = proof("a", "c");
    for bit in 0..HELLO_BYTES * 8 {
        let (_, mut hello) = proof.initiate(None, KIND);
        hello[bit / 8] ^= 1 << (bit % 8);
        assert!(proof.respond(None, &hello, &[KIND]).is_err(), "bit {bit}");
    }
}

#[test]
fn every_part_of_a_hello_is_refused() {
    let proof = proof("a", "c");
    let (_, hello) = proof.initiate(None, KIND);
    for length in 0..HELLO_BYTES {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_all(&hello[..length]).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let error = proof.demand(&mut far, None, &[KIND]).unwrap_err();
        assert!(matches!(error, ProofError::Io(_)), "{length} bytes: {error}");
    }
}

/// Version 1 had messages of other sizes; its first ten bytes have the same meaning.
#[test]
fn an_older_release_is_reported_as_such() {
    const HELLO_BYTES_1: usize = 58;
    let proof = proof("a", "c");
    let (_, hello) = proof.initiate(None, KIND);
    let mut old = hello[..HELLO_BYTES_1].to_vec();
    old[8..10].copy_from_slice(&1u16.to_le_bytes());
    let (mut near, mut far) = UnixStream::pair().unwrap();
    near.write_all(&old).unwrap();
    let error = proof.demand(&mut far, None, &[KIND]).unwrap_err();
    assert!(matches!(error, ProofError::Version { theirs, .. } if theirs == range(1, 1)), "{error}");
    drop(far);
    let mut answer = Vec::new();
    let _ = near.read_to_end(&mut answer);
    assert_eq!(answer[8..10], PROTOCOL_VERSION.to_le_bytes());
}

/// A hello of each version with the proof `("a", "c")` (before version 5 with the purpose `"p"`), as its release sends it; that of
/// version 5 was made by a program of its own. A release with another version adds its own and keeps those before it.
const RECORDED_HELLOS: [(u16, &str); 5] = [
    (
        2,
        concat!(
            "535155414c4c0d0a02002e7d2c03a9507ae265ecf5b5356885a5514e15df10b2124a092b58a9dce2",
            "39d0073eb4899a6c7f4c09e14fb22eb99115b9f08230930ca2e3c2b78c3f64056395b537328eaa98",
            "ecd2237d1a1e5e1cf42f9230c310dc7ef0ce63a25f41c24253c921e19d54c76e",
        ),
    ),
    (
        3,
        concat!(
            "535155414c4c0d0a03002e7d2c03a9507ae265ecf5b5356885a556364984ecc6d864f61a6b4f3114",
            "3a48251bfc20fe449de9c995240199f1bf3aacbaed7c988838993a7ca76e4d63c55e904214774867",
            "b094a417edae9297204f27aa78cc157d3893f01a8d4ae7a8a26acdcafce67355",
        ),
    ),
    (
        4,
        concat!(
            "535155414c4c0d0a04002e7d2c03a9507ae265ecf5b5356885a5b007d78836151375bdcdd930d343",
            "94e0fc9458eb5c65b19eca80b8e24f53e075959dd86d6a148281dfc19caf3d4a544c6eca15ef849d",
            "747d86d0b3bc6820373afc0140718d87a7226c9ed9e1fe5682c313fe72694cbe",
        ),
    ),
    (
        5,
        concat!(
            "535155414c4c0d0a050005002e7d2c03a9507ae265ecf5b5356885a5ceb88469e2334dff1c562cd7",
            "ebbed9c3cb4ca4d7891473eb771fd8044b837cb30e890bc772609c6cbb22992f78744de92fc2abac",
            "0add7f1500d217ebb3e94f9dfb3aaa0bd0b2a850f47a6135f83ce59e8d2d86bb0780f8d6df008e81",
            "70821e94e3c40348621c3991700d18a24ba8fd0f3f89d0ca47fb7898b75d833fcb82fb77eea89d92",
            "0b6b3ec6fd32d461f1752007e6db2955351a0638f2479e8105f2883b3edcf77d87c9d3af035791fb",
            "4048c1f236aa8c858943623562c780e5a007a816943286e22408a6d3054a49dc",
        ),
    ),
    (
        6,
        concat!(
            "535155414c4c0d0a060006002e7d2c03a9507ae265ecf5b5356885a5ada591080239ba9b22375bf2",
            "c377dd760a861dead54295260329b52ae8e66e0b043ce898062fe200542426ec341359df3ee6d306",
            "dd381445802d8fe3fa47a7538a7affd54a3c57edf68dde57142d9229779345b0f01114d4c3290450",
            "a4ce06322baab0a4c0266f36739d234f4b0a594addd72918b387801ba317e2a1ed795aa0d083c033",
            "001dcf6f98ca2063fa393967f7b0b72a1b13ca43198ad5f7004d37b1eb0f973b3f6a67a33359d477",
            "c775da9bf1ccbaeb6a72be83afc61f65b3b0b6aa7d54d46a1bb62b6517781d5a",
        ),
    ),
];

/// This release accepts what it has sent since it exists, and refuses each version before it by its number.
#[test]
fn recorded_hellos_are_accepted_or_refused_by_their_version() {
    assert_eq!(RECORDED_HELLOS.last().unwrap().0, PROTOCOL_VERSION);
    for (version, recorded) in RECORDED_HELLOS {
        let digits = recorded.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let hello: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        let proof = proof("a", "c");
        if version == PROTOCOL_VERSION {
            let (_, answer) = proof.respond(None, hello[..].try_into().unwrap(), &[KIND]).unwrap();
            assert_eq!(answer[..11], *b"SQUALL\r\n\x06\x00\x00");
            continue;
        }
        let Rejection { error, answer } = proof.check_head(hello.first_chunk().unwrap()).unwrap_err();
        assert!(
            matches!(error, ProofError::Version { theirs, .. } if theirs == range(version, version)),
            "{error}"
        );
        // The beginning of an answer, which all versions understand.
        assert_eq!(answer.unwrap()[8..11], [PROTOCOL_VERSION.to_le_bytes()[0], 0, 1]);
    }
}

/// A responder of an older release answers with its version alone, in an answer that is shorter.
#[test]
fn an_older_responder_is_reported_as_such() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    far.write_all(&[&b"SQUALL\r\n\x04\x00\x01"[..], &[0; 49]].concat()).unwrap();
    let error = proof("a", "c").prove(&mut near, None, KIND).unwrap_err();
    assert!(matches!(error, ProofError::Version { theirs, .. } if theirs == range(4, 4)), "{error}");
    let text =
        "the other end speaks version 4 of the protocol, but this one version 6: install this end's release";
    assert!(error.to_string().starts_with(text), "{error}");
}
