//! Violations by a peer (EXS fig. 2–5): each is detected, and nothing panics.

use squall_fabric::sim::Prng;
use squall_fabric::{Grant, Instant, NodeId, RegionId};

use crate::stream::{
    Advert, CREDITS_MIN, MESSAGE_BYTES_MAX, PeerParameters, Phase, PostRefused, ReceiveMemory, SocketFailure,
    SocketKind, StreamEnd, StreamMessage, StreamOutput, StreamSettings, StreamViolation, TransferArrival,
    TransferPolicy,
};

const NOW: Instant = Instant::from_nanos(0);
const GRANT: Grant =
    Grant { owner: NodeId(1), peer: NodeId(0), region: RegionId(1), first: 0, words: 2, key: 1 };

/// Returns an end with a connected peer of the same kind, a ring of 4 words and 8 credits.
fn end(settings: StreamSettings) -> StreamEnd {
    let mut end = StreamEnd::new(StreamSettings {
        ring_words: 4,
        credits: 8,
        receives_max: 3,
        advert_bytes_min: 0,
        ..settings
    });
    let peer = PeerParameters { ring_words: 4, receives_max: 3, credits: 8, credits_used: 0, renews: true };
    end.handle_peer(&peer).expect("no credit is used");
    end
}

fn stream() -> StreamEnd {
    end(StreamSettings::default())
}

fn post_receive(end: &mut StreamEnd, length: u64) {
    end.post_receive(ReceiveMemory { grant: GRANT, start: 0, length }, false).expect("space");
}

fn advert(phase: u64, sequence: u64, length: u64) -> StreamMessage {
    let advert = Advert { grant: GRANT, start: 0, length, wait_all: false, phase: Phase(phase), sequence };
    StreamMessage { adverts: vec![advert], ..StreamMessage::default() }
}

#[test]
fn wrong_adverts_are_refused() {
    let refused = |message: &StreamMessage| stream().handle_message(message).expect_err("a violation");
    assert_eq!(refused(&advert(1, 0, 4)), StreamViolation::AdvertPhase);
    assert_eq!(refused(&advert(2, 0, 4)), StreamViolation::AdvertOrder);
    assert_eq!(refused(&advert(0, 0, 17)), StreamViolation::AdvertLength);
    assert_eq!(refused(&advert(0, 0, 0)), StreamViolation::AdvertLength);
    assert_eq!(refused(&advert(0, 0, u64::MAX)), StreamViolation::AdvertLength);
    let four = StreamMessage { adverts: vec![advert(0, 0, 4).adverts[0]; 4], ..StreamMessage::default() };
    assert_eq!(refused(&four), StreamViolation::AdvertsTooMany);
    let mut indirect = end(StreamSettings { policy: TransferPolicy::Indirect, ..StreamSettings::default() });
    assert_eq!(indirect.handle_message(&advert(0, 0, 4)), Err(StreamViolation::Unasked));
}

/// [E3] Only a peer that miscounts sends an advert beyond the sent bytes.
#[test]
fn an_advert_for_bytes_that_were_not_sent_is_refused() {
    let mut end = stream();
    end.post_send(3).expect("space");
    assert!(matches!(end.poll_output(NOW, &mut StreamMessage::default()), Some(StreamOutput::Transfer(_))));
    assert_eq!(end.handle_message(&advert(2, 4, 4)), Err(StreamViolation::AdvertOrder));
}

#[test]
fn wrong_transfers_are_refused() {
    let refused = |arrival: TransferArrival| {
        let mut end = stream();
        post_receive(&mut end, 5);
        while end.poll_output(NOW, &mut StreamMessage::default()).is_some() {}
        end.handle_arrival(arrival).expect_err("a violation")
    };
    assert_eq!(refused(TransferArrival::Direct { length: 6 }), StreamViolation::DirectUnexpected);
    assert_eq!(refused(TransferArrival::Direct { length: 0 }), StreamViolation::EmptyTransfer);
    assert_eq!(refused(TransferArrival::Indirect { skip: 0, length: 33 }), StreamViolation::RingOverrun);
    assert_eq!(refused(TransferArrival::Indirect { skip: 1, length: 32 }), StreamViolation::RingOverrun);
    assert_eq!(refused(TransferArrival::Indirect { skip: 0, length: 0 }), StreamViolation::EmptyTransfer);
    let mut unadvertised = stream();
    post_receive(&mut unadvertised, 5);
    assert_eq!(
        unadvertised.handle_arrival(TransferArrival::Direct { length: 1 }),
        Err(StreamViolation::DirectUnexpected)
    );
    let mut direct = end(StreamSettings { policy: TransferPolicy::Direct, ..StreamSettings::default() });
    assert_eq!(
        direct.handle_arrival(TransferArrival::Indirect { skip: 0, length: 1 }),
        Err(StreamViolation::RingOverrun)
    );
}

#[test]
fn wrong_accounts_are_refused() {
    let refused = |message: StreamMessage| stream().handle_message(&message).expect_err("a violation");
    assert_eq!(
        refused(StreamMessage { freed: 1, ..StreamMessage::default() }),
        StreamViolation::FreedTooMuch
    );
    assert_eq!(
        refused(StreamMessage { credits: 1, ..StreamMessage::default() }),
        StreamViolation::CreditsTooMany
    );
    assert_eq!(
        refused(StreamMessage { withdrawn: true, ..StreamMessage::default() }),
        StreamViolation::Unasked
    );
    assert_eq!(
        refused(StreamMessage { end_seen: true, ..StreamMessage::default() }),
        StreamViolation::Unasked
    );
    assert_eq!(
        refused(StreamMessage { too_long: Some(9), ..StreamMessage::default() }),
        StreamViolation::Unasked
    );
    let mut packets = end(StreamSettings { kind: SocketKind::Packets, ..StreamSettings::default() });
    post_receive(&mut packets, 5);
    while packets.poll_output(NOW, &mut StreamMessage::default()).is_some() {}
    let fits = StreamMessage { too_long: Some(5), ..StreamMessage::default() };
    assert_eq!(packets.handle_message(&fits), Err(StreamViolation::Unasked));
    let mut silent = stream();
    assert!((0..8).all(|_| silent.handle_message(&StreamMessage::default()).is_ok()));
    assert_eq!(silent.handle_message(&StreamMessage::default()), Err(StreamViolation::WithoutCredit));
}

#[test]
fn data_after_the_end_is_refused() {
    let ended = || {
        let mut end = stream();
        end.handle_message(&StreamMessage { end: true, ..StreamMessage::default() }).expect("in order");
        end
    };
    assert_eq!(
        ended().handle_message(&StreamMessage { end: true, ..StreamMessage::default() }),
        Err(StreamViolation::AfterEnd)
    );
    assert_eq!(
        ended().handle_arrival(TransferArrival::Indirect { skip: 0, length: 1 }),
        Err(StreamViolation::AfterEnd)
    );
}

/// An invalid call of the user is refused with an error value.
#[test]
fn posts_are_refused_with_a_reason() {
    let mut end = stream();
    assert_eq!(end.post_send(0), Err(PostRefused::Empty));
    let memory = |length| ReceiveMemory { grant: GRANT, start: 0, length };
    assert_eq!(end.post_receive(memory(0), false), Err(PostRefused::Empty));
    (0..3).for_each(|_| post_receive(&mut end, 1));
    assert_eq!(end.post_receive(memory(1), false), Err(PostRefused::Full));
    end.end_stream();
    assert_eq!(end.post_send(1), Err(PostRefused::Ended));
    end.fail(SocketFailure::Aborted);
    assert_eq!(end.post_send(1), Err(PostRefused::Closed));
    assert_eq!(end.post_receive(memory(1), false), Err(PostRefused::Closed));
}

/// No bytes that a peer sends make this end panic.
#[test]
fn arbitrary_bytes_cause_no_panic() {
    for seed in 0..3000 {
        let mut prng = Prng::new(seed);
        let kind = if prng.chance(300) { SocketKind::Packets } else { SocketKind::Stream };
        let mut end = end(StreamSettings { kind, credits: CREDITS_MIN, ..StreamSettings::default() });
        let mut message = StreamMessage::default();
        for _ in 0..30 {
            let _ = end.post_send(prng.below(20));
            let _ = end.post_receive(
                ReceiveMemory { grant: GRANT, start: 0, length: prng.below(17) },
                prng.chance(500),
            );
            while end.poll_output(NOW, &mut message).is_some() {}
            let handled = if prng.chance(500) {
                end.handle_arrival(TransferArrival::from_immediate(garbled(&mut prng)))
            } else {
                message.decode(&garbled_message(&mut prng)).and_then(|()| end.handle_message(&message))
            };
            while let Some(copy) = end.poll_copy(u64::MAX) {
                end.on_copied(copy);
            }
            if let Err(violation) = handled {
                end.fail(SocketFailure::Violation(violation));
                end.handle_released();
            }
        }
    }
}

/// Returns mostly small numbers, so that many pass the first checks.
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
