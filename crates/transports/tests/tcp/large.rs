//! Large memory: ranges that take many reads, whose words must arrive undivided although the kernel splits
//! the stream anywhere.

use squall_fabric::conformance::{ConformanceCluster, Harness};
use squall_fabric::{Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, Token, Write, WriteSource};

use crate::cluster::PlainLoopback;

/// 16 MiB.
const WORDS: usize = 2 << 20;

fn mirror(cluster: &mut ConformanceCluster<PlainLoopback>, words: usize) -> (MirrorId, Region, Region) {
    let region = cluster.node(0).register(words);
    let mirror = cluster.node(0).publish(MirrorKey(1), &region, &[NodeId(1)]);
    let attachment = cluster.node(1).attach(NodeId(0), MirrorKey(1), words);
    cluster.expect(0, "Attached", |event| matches!(event, FabricEvent::Attached { .. }));
    (mirror, region, attachment)
}

/// Each word arrives at its place, whatever precedes it in the stream.
#[test]
fn a_large_range_arrives_word_by_word() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let (mirror, region, attachment) = mirror(&mut cluster, WORDS);
    for (lap, first) in [(1, 1), (2, 2), (3, 77), (4, 1000)] {
        let value = |word: usize| (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lap;
        (first..WORDS).for_each(|word| region.store_relaxed(word, value(word)));
        region.store(0, lap);
        cluster.node(0).push(mirror, first..first + 5);
        cluster.node(0).push(mirror, first + 5..WORDS);
        cluster.node(0).push_word(mirror, 0);
        cluster.until("the counter", |_| attachment.load(0) == lap);
        let wrong = (first..WORDS).find(|word| attachment.load_relaxed(*word) != value(*word));
        assert_eq!(wrong, None, "lap {lap}");
    }
}

/// F6: a payload whose last bytes were read directly into their region is acknowledged by itself: nothing
/// else arrives.
#[test]
fn a_large_write_is_acknowledged_without_further_traffic() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let source = cluster.node(0).register(WORDS);
    let target = cluster.node(1).register(WORDS);
    let grant = cluster.node(1).grant(&target, 0..WORDS, NodeId(0));
    let (near, _) = cluster.connect(0, 1, 1);
    for lap in 0..20_usize {
        let words = (1 << 16) + (lap * 7919) % 50_000;
        let source = WriteSource::Region(&source, 0..words);
        let signal = Some(Token(lap as u64));
        let write = Write { source, grant: &grant, offset: 0, immediate: None, signal };
        cluster.node(0).write(near, write).expect("space");
        cluster.expect(
            0,
            "Done",
            |event| matches!(event, FabricEvent::Done { token, .. } if token.0 == lap as u64),
        );
    }
}

/// F3, F5: the source changes while it is being sent; each word that lands is one that was stored, undivided.
#[test]
fn words_of_a_changing_source_are_not_torn() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let (mirror, region, attachment) = mirror(&mut cluster, WORDS);
    let (mut lap, mut seen) = (0u64, 0);
    while seen < 6 {
        lap += 1;
        let whole = lap << 32 | (!lap & 0xffff_ffff);
        (1..WORDS).for_each(|word| region.store_relaxed(word, whole));
        if region.load(0) == seen {
            region.store(0, seen + 1);
            cluster.node(0).push(mirror, 1..WORDS);
            cluster.node(0).push_word(mirror, 0);
        }
        cluster.poll(0);
        cluster.poll(1);
        let torn = (1..WORDS)
            .map(|word| attachment.load(word))
            .find(|word| *word != 0 && word >> 32 != !word & 0xffff_ffff);
        assert_eq!(torn, None, "torn word {:x?}", torn);
        seen = attachment.load(0);
    }
    assert!(lap > 30, "the source changed only {lap} times while it was sent");
}

/// One large push and many small ones go to three readers at once.
#[test]
fn large_and_small_pushes_keep_their_order() {
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(4);
    let region = cluster.node(0).register(WORDS);
    let readers = [1, 2, 3].map(NodeId);
    let mirror = cluster.node(0).publish(MirrorKey(1), &region, &readers);
    let attachments = [1, 2, 3].map(|reader| cluster.node(reader).attach(NodeId(0), MirrorKey(1), WORDS));
    for _ in readers {
        cluster.expect(0, "Attached", |event| matches!(event, FabricEvent::Attached { .. }));
    }
    for lap in 1..=3 {
        (16..WORDS).for_each(|word| region.store_relaxed(word, lap));
        cluster.node(0).push(mirror, 16..WORDS);
        for word in 0..16 {
            region.store(word, lap);
            cluster.node(0).push_word(mirror, word);
        }
        cluster.until("the last small word", |_| {
            for attachment in &attachments {
                // Each small word announces that those before it and the large range have landed.
                let last = attachment.load(15);
                assert!((0..15).all(|word| attachment.load(word) >= last), "small words overtook each other");
                if attachment.load(0) == lap {
                    assert!([16, 99_999, WORDS - 1].iter().all(|word| attachment.load(*word) == lap));
                }
            }
            attachments.iter().all(|attachment| attachment.load(15) == lap)
        });
        assert!(
            attachments.iter().all(|attachment| (16..WORDS).all(|word| attachment.load_relaxed(word) == lap))
        );
    }
}

/// Each pair of nodes has exactly one stream.
#[test]
fn a_node_needs_one_stream_per_peer() {
    let streams = |peers: &[u32]| {
        let stream = |peer: &u32| (NodeId(*peer), crate::cluster::pair().0);
        squall_transports::tcp::TcpFabric::new(NodeId(0), peers.iter().map(stream).collect())
    };
    assert!(streams(&[2, 1]).is_ok());
    for bad in [&[1, 1][..], &[1, 0]] {
        let error = streams(bad).expect_err("a peer listed twice, or the node itself");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert!(PlainLoopback::new(1).node(0).poll(&mut |event| panic!("{event:?}")) == 0);
}

/// A long payload that ends with the last byte in the socket is acknowledged at once, although nothing
/// follows it (without this, a schedule of blocks stalled).
#[test]
fn a_large_write_completes_although_nothing_follows() {
    const BLOCK: usize = 128 << 10;
    let mut cluster = ConformanceCluster::<PlainLoopback>::new(2);
    let (near, _) = cluster.connect(0, 1, 1);
    let [source, target] = [0, 1].map(|i| cluster.node(i).register(BLOCK));
    let grant = cluster.node(1).grant(&target, 0..BLOCK, NodeId(0));
    for block in 0..10 {
        let write = Write {
            source: WriteSource::Region(&source, 0..BLOCK),
            grant: &grant,
            offset: 0,
            immediate: None,
            signal: Some(Token(block)),
        };
        cluster.node(0).write(near, write).expect("space");
        // All of it enters the sockets before the other end polls.
        for _ in 0..50 {
            cluster.poll(0);
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        cluster.expect(
            0,
            "Done",
            |event| matches!(event, FabricEvent::Done { token: Token(n), .. } if *n == block),
        );
    }
}
