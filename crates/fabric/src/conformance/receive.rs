//! Sends and writes with immediate: F7.

use super::{ConformanceCluster, Harness};
use crate::{BreakReason, Fabric, FabricEvent, PostError, Region, SEND_BYTES_MAX, Token, Write};

/// F7: each immediate consumes one receive, in order; at its event all earlier writes are visible.
pub fn f7_immediates_consume_receives_in_order<H: Harness>() {
    const WORDS: usize = 530;
    const MESSAGES: u64 = 300;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS * 8 + 1);
    let source = cluster.node(0).register(WORDS * 8);
    let nothing = cluster.node(1).register(1);
    for batch in 0..MESSAGES / 4 {
        let [first, last] = [batch * 4 + 1, batch * 4 + 4];
        for k in first..=last {
            cluster.node(1).post_receive(link.owner_conn, &nothing, 0..0, Token(k)).expect("space for four");
            let slot = usize::try_from(k % 8).expect("small") * WORDS;
            (slot..slot + WORDS).for_each(|word| source.store_relaxed(word, k));
            cluster.write(0, link.conn, &link.reference(slot, &source, slot..slot + WORDS));
            let number = [k];
            let immediate = u32::try_from(k).ok();
            let write = Write { immediate, signal: Some(Token(k)), ..link.value(WORDS * 8, &number) };
            cluster.write(0, link.conn, &write);
        }
        let mut arrived = first;
        let (conn, target) = (link.owner_conn, &link.target);
        // Not `until`: its rounds would collect the events, which are checked here inside the sink, as they
        // are yielded.
        for _ in 0..LOOKS_MAX {
            cluster.node(1).poll(&mut |event| {
                let immediate = u32::try_from(arrived).expect("small");
                assert_eq!(event, FabricEvent::Arrived { conn, token: Token(arrived), immediate });
                assert_filled(target, WORDS, arrived);
                arrived += 1;
            });
            if arrived > last {
                break;
            }
            cluster.step();
            cluster.poll(0);
        }
        assert!(arrived > last, "immediate {arrived} did not arrive within {LOOKS_MAX} polls");
        cluster.done(0, link.conn, Token(last));
    }
}

/// Checks that all earlier writes are visible: slot k of the ring, and the number that came with the
/// immediate.
fn assert_filled(target: &Region, words: usize, k: u64) {
    assert!(target.load(words * 8) >= k, "the number of immediate {k} is not visible");
    let slot = usize::try_from(k % 8).expect("small") * words;
    for word in slot..slot + words {
        assert_eq!(target.load_relaxed(word), k, "word {word} at immediate {k}");
    }
}

/// F7: each send lands in the next receive, with its length, whatever the length is.
pub fn f7_sends_consume_receives_in_order<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (conn, back) = cluster.connect(0, 1, 1);
    let words = SEND_BYTES_MAX / 8;
    let memory = cluster.node(1).register(2 * words + 2);
    for (k, length) in
        [0, 1, 7, 8, 9, 63, 64, 1000, 4096, SEND_BYTES_MAX - 1, SEND_BYTES_MAX].into_iter().enumerate()
    {
        let token = Token(k as u64);
        let first = 1 + k % 2 * words;
        memory.store(first + length.div_ceil(8), 0xdead);
        cluster
            .node(1)
            .post_receive(back, &memory, first..first + length.div_ceil(8), token)
            .expect("space for one");
        let mut bytes: Vec<u8> =
            (0..length).map(|i| u8::try_from((i * 7 + k) % 256).expect("a byte")).collect();
        cluster.node(0).send(conn, &bytes, Some(token)).expect("space for one");
        let expected = bytes.clone();
        bytes.fill(0xff);
        let event = cluster.expect(1, "Received", |event| matches!(event, FabricEvent::Received { .. }));
        assert_eq!(event, FabricEvent::Received { conn: back, token, length });
        let mut received = vec![0; length];
        memory.copy_bytes_out(first, &mut received);
        assert!(received == expected, "a send of {length} bytes arrived changed");
        assert_eq!(memory.load(first + length.div_ceil(8)), 0xdead, "wrote beyond the posted receive");
        cluster.done(0, conn, token);
    }
}

/// F7, F1: a send without a receive stalls; nothing that was posted after it lands before it.
pub fn f7_a_stalled_send_holds_back_what_follows<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 1);
    let memory = cluster.node(1).register(1);
    cluster.node(0).send(link.conn, b"first", None).expect("connected");
    cluster.write(0, link.conn, &link.value(0, &[2]));
    for _ in 0..3 {
        cluster.round();
        assert_eq!(link.target.load(0), 0, "a write overtook a stalled send");
    }
    // The backend's time limit may have passed already; the axiom holds then too.
    if cluster.node(1).post_receive(link.owner_conn, &memory, 0..1, Token(1)).is_err() {
        return;
    }
    cluster.until("the send or the break", |cluster| {
        let received = FabricEvent::Received { conn: link.owner_conn, token: Token(1), length: 5 };
        let broken = cluster.take(0, |event| matches!(event, FabricEvent::Broken { .. })).is_some();
        broken || cluster.take(1, |event| *event == received).is_some() && memory.load(0) != 0
    });
    if cluster.node(0).write(link.conn, link.value(0, &[3])).is_ok() {
        cluster.until("the delayed writes", |_| link.target.load(0) == 3);
    }
}

/// F7: with no receive posted the connection stalls, then breaks.
pub fn f7_without_a_receive_the_connection_breaks<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 1);
    cluster.write(0, link.conn, &Write { immediate: Some(1), ..link.value(0, &[1]) });
    let broken = FabricEvent::Broken { conn: link.conn, reason: BreakReason::ReceiverNotReady };
    cluster.expect(0, "Broken: receiver not ready", |event| *event == broken);
    cluster.expect(
        1,
        "Broken",
        |event| matches!(event, FabricEvent::Broken { conn, .. } if *conn == link.owner_conn),
    );
    assert_eq!(cluster.node(0).write(link.conn, link.value(0, &[2])), Err(PostError::NotConnected));
    assert_eq!(cluster.take(1, |event| matches!(event, FabricEvent::Arrived { .. })), None);
}

/// F7: a send that is longer than its receive breaks the connection and damages nothing.
pub fn f7_a_send_longer_than_its_receive_breaks<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (conn, back) = cluster.connect(0, 1, 1);
    let memory = cluster.node(1).register(4);
    cluster.node(1).post_receive(back, &memory, 1..3, Token(1)).expect("space for one");
    cluster.node(0).send(conn, &[0xff; 17], None).expect("connected");
    let reason = BreakReason::Protocol;
    cluster.expect(0, "Broken", |event| *event == FabricEvent::Broken { conn, reason });
    cluster.expect(1, "Broken", |event| *event == FabricEvent::Broken { conn: back, reason });
    assert_eq!([memory.load(0), memory.load(3)], [0, 0], "wrote beyond the posted receive");
    assert_eq!(cluster.take(1, |event| matches!(event, FabricEvent::Received { .. })), None);
    assert_eq!(cluster.node(0).send(conn, b"", None), Err(PostError::NotConnected));
}

/// Polls before a test fails.
const LOOKS_MAX: usize = 1_000_000;
