//! What a peer must not do (EXS fig. 2–5): each is found out, and nothing panics.

use squall_fabric::sim::Prng;
use squall_fabric::{Grant, Instant, NodeId, RegionId};

use crate::stream::{
    Advert, Arrival, CREDITS_MIN, End, Failure, Kind, MESSAGE_BYTES_MAX, Memory, Message, Output, Peer,
    Phase, Policy, PostRefused, Settings, Violation,
};

const NOW: Instant = Instant::from_nanos(0);
const GRANT: Grant =
    Grant { owner: NodeId(1), peer: NodeId(0), region: RegionId(1), first: 0, words: 2, key: 1 };

/// An end with a connected peer of the same kind, a ring of 4 words and 8 credits.
fn end(settings: Settings) -> End {
    let mut end =
        End::new(Settings { ring_words: 4, credits: 8, receives_max: 3, advert_bytes_min: 0, ..settings });
    let peer = Peer { ring_words: 4, receives_max: 3, credits: 8, credits_used: 0, renews: true };
    end.handle_peer(&peer).expect("no credit is used");
    end
}

fn stream() -> End {
    end(Settings::default())
}

fn post_receive(end: &mut End, length: u64) {
    end.post_receive(Memory { grant: GRANT, start: 0, length }, false).expect("room");
}

fn advert(phase: u64, sequence: u64, length: u64) -> Message {
    let advert = Advert { grant: GRANT, start: 0, length, wait_all: false, phase: Phase(phase), sequence };
    Message { adverts: vec![advert], ..Message::default() }
}

#[test]
fn wrong_adverts_are_refused() {
    let refused = |message: &Message| stream().handle_message(message).expect_err("a violation");
    assert_eq!(refused(&advert(1, 0, 4)), Violation::AdvertPhase);
    assert_eq!(refused(&advert(2, 0, 4)), Violation::AdvertOrder);
    assert_eq!(refused(&advert(0, 0, 17)), Violation::AdvertLength);
    assert_eq!(refused(&advert(0, 0, 0)), Violation::AdvertLength);
    assert_eq!(refused(&advert(0, 0, u64::MAX)), Violation::AdvertLength);
    let four = Message { adverts: vec![advert(0, 0, 4).adverts[0]; 4], ..Message::default() };
    assert_eq!(refused(&four), Violation::AdvertsTooMany);
    let mut indirect = end(Settings { policy: Policy::Indirect, ..Settings::default() });
    assert_eq!(indirect.handle_message(&advert(0, 0, 4)), Err(Violation::Unasked));
}

/// [E3] An advert beyond what was sent can only come from a peer that miscounts.
#[test]
fn an_advert_for_bytes_that_were_not_sent_is_refused() {
    let mut end = stream();
    end.post_send(3).expect("room");
    assert!(matches!(end.poll_output(NOW, &mut Message::default()), Some(Output::Transfer(_))));
    assert_eq!(end.handle_message(&advert(2, 4, 4)), Err(Violation::AdvertOrder));
}

#[test]
fn wrong_transfers_are_refused() {
    let refused = |arrival: Arrival| {
        let mut end = stream();
        post_receive(&mut end, 5);
        while end.poll_output(NOW, &mut Message::default()).is_some() {}
        end.handle_arrival(arrival).expect_err("a violation")
    };
    assert_eq!(refused(Arrival::Direct { length: 6 }), Violation::DirectUnexpected);
    assert_eq!(refused(Arrival::Direct { length: 0 }), Violation::EmptyTransfer);
    assert_eq!(refused(Arrival::Indirect { skip: 0, length: 33 }), Violation::RingOverrun);
    assert_eq!(refused(Arrival::Indirect { skip: 1, length: 32 }), Violation::RingOverrun);
    assert_eq!(refused(Arrival::Indirect { skip: 0, length: 0 }), Violation::EmptyTransfer);
    let mut unadvertised = stream();
    post_receive(&mut unadvertised, 5);
    assert_eq!(unadvertised.handle_arrival(Arrival::Direct { length: 1 }), Err(Violation::DirectUnexpected));
    let mut direct = end(Settings { policy: Policy::Direct, ..Settings::default() });
    assert_eq!(direct.handle_arrival(Arrival::Indirect { skip: 0, length: 1 }), Err(Violation::RingOverrun));
}

#[test]
fn wrong_accounts_are_refused() {
    let refused = |message: Message| stream().handle_message(&message).expect_err("a violation");
    assert_eq!(refused(Message { freed: 1, ..Message::default() }), Violation::FreedTooMuch);
    assert_eq!(refused(Message { credits: 1, ..Message::default() }), Violation::CreditsTooMany);
    assert_eq!(refused(Message { withdrawn: true, ..Message::default() }), Violation::Unasked);
    assert_eq!(refused(Message { end_seen: true, ..Message::default() }), Violation::Unasked);
    assert_eq!(refused(Message { too_long: Some(9), ..Message::default() }), Violation::Unasked);
    let mut packets = end(Settings { kind: Kind::Packets, ..Settings::default() });
    post_receive(&mut packets, 5);
    while packets.poll_output(NOW, &mut Message::default()).is_some() {}
    let fits = Message { too_long: Some(5), ..Message::default() };
    assert_eq!(packets.handle_message(&fits), Err(Violation::Unasked));
    let mut silent = stream();
    assert!((0..8).all(|_| silent.handle_message(&Message::default()).is_ok()));
    assert_eq!(silent.handle_message(&Message::default()), Err(Violation::WithoutCredit));
}

#[test]
fn nothing_comes_after_the_end() {
    let ended = || {
        let mut end = stream();
        end.handle_message(&Message { end: true, ..Message::default() }).expect("in order");
        end
    };
    assert_eq!(
        ended().handle_message(&Message { end: true, ..Message::default() }),
        Err(Violation::AfterEnd)
    );
    assert_eq!(ended().handle_arrival(Arrival::Indirect { skip: 0, length: 1 }), Err(Violation::AfterEnd));
}

/// What the user may not do is refused with a value.
#[test]
fn posts_are_refused_with_a_reason() {
    let mut end = stream();
    assert_eq!(end.post_send(0), Err(PostRefused::Empty));
    let memory = |length| Memory { grant: GRANT, start: 0, length };
    assert_eq!(end.post_receive(memory(0), false), Err(PostRefused::Empty));
    (0..3).for_each(|_| post_receive(&mut end, 1));
    assert_eq!(end.post_receive(memory(1), false), Err(PostRefused::Full));
    end.end_stream();
    assert_eq!(end.post_send(1), Err(PostRefused::Ended));
    end.fail(Failure::Aborted);
    assert_eq!(end.post_send(1), Err(PostRefused::Closed));
    assert_eq!(end.post_receive(memory(1), false), Err(PostRefused::Closed));
}

/// A peer that sends any bytes never makes this end panic.
#[test]
fn any_bytes_are_survived() {
    for seed in 0..3000 {
        let mut prng = Prng::new(seed);
        let kind = if prng.chance(300) { Kind::Packets } else { Kind::Stream };
        let mut end = end(Settings { kind, credits: CREDITS_MIN, ..Settings::default() });
        let mut message = Message::default();
        for _ in 0..30 {
            let _ = end.post_send(prng.below(20));
            let _ =
                end.post_receive(Memory { grant: GRANT, start: 0, length: prng.below(17) }, prng.chance(500));
            while end.poll_output(NOW, &mut message).is_some() {}
            let handled = if prng.chance(500) {
                end.handle_arrival(Arrival::from_immediate(garbled(&mut prng)))
            } else {
                message.decode(&garbled_message(&mut prng)).and_then(|()| end.handle_message(&message))
            };
            while let Some(copy) = end.poll_copy(u64::MAX) {
                end.on_copied(copy);
            }
            if let Err(violation) = handled {
                end.fail(Failure::Violation(violation));
                end.handle_released();
            }
        }
    }
}

/// Mostly small numbers, so that many pass the first checks.
fn garbled(prng: &mut Prng) -> u32 {
    let length = prng.below(20) as u32;
    if prng.chance(100) { prng.draw() as u32 } else { length | (prng.below(16) as u32) << 28 }
}

fn garbled_message(prng: &mut Prng) -> Vec<u8> {
    let mut message = advert(prng.below(6), prng.below(20), 1 + prng.below(16));
    message.withdraw = prng.chance(100);
    message.withdrawn = prng.chance(100);
    message.end = prng.chance(50);
    message.too_long = prng.chance(100).then(|| prng.below(30));
    message.credits = prng.below(3) as u32;
    message.freed = prng.below(2);
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = message.encode(&mut bytes);
    if prng.chance(100) {
        bytes[prng.index(length)] = prng.draw() as u8;
    }
    bytes[..length].to_vec()
}
