//! Peers that do not take what is sent to them, or post no receives for it: memory remains bounded.

use std::time::{Duration, Instant};

use squall_fabric::conformance::{ConformanceCluster, Harness};
use squall_fabric::{BreakReason, Fabric, FabricEvent, MirrorKey, NodeId};
use squall_transports::tcp::TcpFabric;

use crate::cluster::{PlainLoopback, pair};
use crate::raw::{ACCEPT, ATTACH, OPEN, SEND, Victim, frame};

/// A reader that never reads is lost; another reader of the same mirror sees every push.
#[test]
fn a_reader_that_never_reads_is_lost() {
    for words in [100, 130] {
        let (near, mut stuck) = pair();
        let (to_good, from_good) = pair();
        let mut owner =
            TcpFabric::new(NodeId(0), vec![(NodeId(1), near), (NodeId(2), to_good)]).expect("streams");
        let mut good = TcpFabric::new(NodeId(2), vec![(NodeId(0), from_good)]).expect("a stream");
        let region = owner.register(words + 16);
        let mirror = owner.publish(MirrorKey(1), &region, &[NodeId(1), NodeId(2)]);
        let attachment = good.attach(NodeId(0), MirrorKey(1), words + 16);
        std::io::Write::write_all(&mut stuck, &frame(ATTACH, 0, 0, 0, 0, &[1, words as u64 + 16]))
            .expect("space");
        let (mut attached, mut lost, mut pushes) = (0, None, 0u64);
        while lost.is_none() {
            for _ in 0..if attached == 2 { 100 } else { 0 } {
                pushes += 1;
                region.store(0, pushes);
                owner.push(mirror, 16..16 + words);
                owner.push_word(mirror, 0);
            }
            good.poll(&mut |event| panic!("{event:?}"));
            owner.poll(&mut |event| match event {
                FabricEvent::Attached { .. } => attached += 1,
                FabricEvent::PeerLost { peer, reason } => lost = Some((peer, reason)),
                other => panic!("{other:?}"),
            });
            assert!(pushes < 400_000, "{pushes} pushes of {words} words wait for a reader that never reads");
        }
        assert_eq!(lost, Some((NodeId(1), BreakReason::Unreachable)));
        let begin = Instant::now();
        while attachment.load(0) < pushes {
            good.poll(&mut |event| panic!("{event:?}"));
            owner.poll(&mut |event| panic!("{event:?}"));
            assert!(begin.elapsed() < Duration::from_secs(10), "push {} of {pushes}", attachment.load(0));
        }
    }
}

/// Sends without a receive break their connection as soon as they take too much memory, not a second later;
/// the stream and other connections continue.
#[test]
fn sends_without_a_receive_take_bounded_memory() {
    let mut victim = Victim::new();
    let conn = victim.fabric.open(NodeId(1), squall_fabric::Channel(5));
    victim.feed(&[frame(OPEN, 0, 0, 5, 0, &[]), frame(ACCEPT, 0, 0, 0, 0, &[])].concat());
    let send = frame(SEND, 0, 0, 1 << 16, 0, &[7; 1 << 13]);
    let (begin, mut fed) = (Instant::now(), 0);
    let broken = FabricEvent::Broken { conn, reason: BreakReason::ReceiverNotReady };
    while !victim.events.contains(&broken) {
        assert!(victim.feed(&send));
        fed += 1;
        assert!(fed < 400, "{fed} sends of 64 KiB wait for a receive");
    }
    assert!(fed > 200, "16 MiB may wait, but only {fed} sends of 64 KiB did");
    assert!(begin.elapsed() < Duration::from_secs(1), "the timeout broke it, not the limit of memory");
    assert!(victim.feed(&send.repeat(3)) && !victim.is_lost());
}

/// Stalled posts are executed in order once receives are posted, even while the payload of the last one is in
/// transit.
#[test]
fn stalled_posts_resume_in_order() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let link = cluster.link(0, 1, 1, 4096);
    let source = cluster.node(0).register(4096);
    let memory = cluster.node(1).register(8);
    for k in 1..=6u64 {
        (0..4096).for_each(|word| source.store_relaxed(word, k));
        cluster.node(0).send(link.conn, &k.to_le_bytes(), None).expect("space");
        cluster.node(0).write(link.conn, link.reference(0, &source, 0..4096)).expect("space");
        cluster.write(0, link.conn, &link.value(0, &[k]));
        cluster.rounds(3);
    }
    assert_eq!(link.target.load(0), 0, "writes overtook a stalled send");
    for k in 1..=6u64 {
        let token = squall_fabric::Token(k);
        cluster.node(1).post_receive(link.owner_conn, &memory, 0..1, token).expect("connected");
        cluster.expect(1, "Received", |event| {
            *event == FabricEvent::Received { conn: link.owner_conn, token, length: 8 }
        });
        assert_eq!(memory.load(0), k);
        cluster.until("the writes after it", |_| link.target.load(0) == k && link.target.load(4095) == k);
        cluster.rounds(3);
        assert_eq!(link.target.load(0), k, "the writes after the next send overtook it");
    }
}

/// A connection that breaks because it has no receive does not affect the node's other connections.
#[test]
fn a_missing_receive_breaks_only_its_connection() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let stalled = cluster.link(0, 1, 1, 1);
    let other = cluster.link(0, 1, 2, 1);
    cluster.node(0).send(stalled.conn, b"no receive", None).expect("connected");
    let mut k = 0;
    let reason = BreakReason::ReceiverNotReady;
    cluster.until("the break", |cluster| {
        k += 1;
        cluster.write(0, other.conn, &other.value(0, &[k]));
        cluster.take(0, |event| *event == FabricEvent::Broken { conn: stalled.conn, reason }).is_some()
    });
    cluster.until("the last write", |_| other.target.load(0) == k);
    assert!(PlainLoopback::new(2).node(0).counters().frames_sent == 0);
}
