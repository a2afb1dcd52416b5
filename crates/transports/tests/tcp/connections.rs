//! Connections that open, close, break and open again at both ends, in any order.

use squall_fabric::conformance::Harness;
use squall_fabric::{BreakReason, Channel, ConnId, Fabric, FabricEvent, NodeId, PostError, Token, Write};
use squall_transports::TransportFabric as _;

use crate::cluster::{GatheringLoopback, PlainLoopback};
use crate::raw::Xorshift;

/// Both ends open and close two channels and poll at random. In the end both leave all channels open: then
/// all are connected, to each other.
#[test]
fn incarnations_connect_to_each_other() {
    for seed in 1..=300 {
        let mut random = Xorshift::new(seed);
        let mut cluster = PlainLoopback::new(2);
        let mut ends = [End::default(), End::default()];
        for _ in 0..random.below(60) {
            let (node, channel) = (random.below(2), random.below(2));
            match random.below(4) {
                0 => ends[node].open(&mut cluster, node, channel),
                1 => ends[node].close(&mut cluster, node, channel),
                _ => ends[node].poll(&mut cluster, node),
            }
        }
        for (node, channel) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            ends[node].open(&mut cluster, node, channel);
        }
        for _ in 0..1000 {
            for (node, end) in ends.iter_mut().enumerate() {
                end.poll(&mut cluster, node);
                // Reopens what the other end had closed.
                (0..2).for_each(|channel| end.open(&mut cluster, node, channel));
            }
        }
        for channel in 0..2 {
            assert_paired(&mut cluster, &ends, channel, seed);
        }
    }
}

/// Checks that a message arrives in each direction.
fn assert_paired(cluster: &mut PlainLoopback, ends: &[End; 2], channel: usize, seed: u64) {
    let conns = [0, 1].map(|node: usize| ends[node].channels[channel].expect("open").0);
    assert!(ends.iter().all(|end| end.channels[channel].expect("open").1), "seed {seed}: {ends:?}");
    for (from, to) in [(0u32, 1u32), (1, 0)] {
        let memory = cluster.node(to).register(1);
        let receive = cluster.node(to).post_receive(conns[to as usize], &memory, 0..1, Token(1));
        receive.expect("connected");
        cluster.node(from).send(conns[from as usize], b"hello", None).expect("connected");
        let mut received = false;
        for _ in 0..1000 {
            cluster.node(from).poll(&mut |event| panic!("seed {seed}: {event:?}"));
            cluster.node(to).poll(&mut |event| {
                assert!(matches!(event, FabricEvent::Received { conn, .. } if conn == conns[to as usize]));
                received = true;
            });
        }
        assert!(received, "seed {seed}: channel {channel} from {from} to {to}");
    }
}

/// What one end knows of its channels: the connection, and whether it is connected.
#[derive(Debug, Default)]
struct End {
    channels: [Option<(ConnId, bool)>; 2],
}

impl End {
    fn open(&mut self, cluster: &mut PlainLoopback, node: usize, channel: usize) {
        if self.channels[channel].is_none() {
            let number = u32::try_from(channel).expect("small");
            let peer = NodeId(u32::try_from(1 - node).expect("small"));
            let conn = node_of(cluster, node).open(peer, Channel(number));
            self.channels[channel] = Some((conn, false));
        }
    }

    fn close(&mut self, cluster: &mut PlainLoopback, node: usize, channel: usize) {
        if let Some((conn, _)) = self.channels[channel].take() {
            node_of(cluster, node).close(conn);
        }
    }

    fn poll(&mut self, cluster: &mut PlainLoopback, node: usize) {
        let channels = &mut self.channels;
        node_of(cluster, node).poll(&mut |event| {
            let (conn, connected) = match event {
                FabricEvent::Connected { conn, .. } => (conn, true),
                FabricEvent::Broken { conn, reason: BreakReason::PeerClosed } => (conn, false),
                other => panic!("{other:?}"),
            };
            // Events that were queued when this end closed are ignored.
            let Some(channel) = channels.iter_mut().find(|channel| channel.is_some_and(|(of, _)| of == conn))
            else {
                return;
            };
            *channel = connected.then_some((conn, true));
        });
    }
}

fn node_of(cluster: &mut PlainLoopback, node: usize) -> &mut <PlainLoopback as Harness>::Fabric {
    cluster.node(u32::try_from(node).expect("small"))
}

/// A revocation while a long write is landing: what has landed remains, nothing follows, the writer is
/// refused and the stream continues [F9, F10].
#[test]
fn a_write_that_is_landing_is_cut_off_by_revocation() {
    const WORDS: usize = 2 << 20;
    for polls in [1, 2, 5] {
        let mut cluster = squall_fabric::conformance::ConformanceCluster::<PlainLoopback>::new(2);
        let link = cluster.link(0, 1, 1, WORDS);
        let source = cluster.node(0).register(WORDS);
        (0..WORDS).for_each(|word| source.store_relaxed(word, 1));
        let write = Write { signal: Some(Token(1)), ..link.reference(0, &source, 0..WORDS) };
        cluster.node(0).write(link.conn, write).expect("space");
        for _ in 0..polls {
            cluster.poll(0);
            cluster.poll(1);
        }
        cluster.node(1).revoke(&link.grant);
        let landed = |last: usize| (0..last).take_while(|word| link.target.load(*word) == 1).count();
        let before = landed(WORDS);
        assert!(before > 0 && before < WORDS, "{before} words of the write have landed");
        let refused = FabricEvent::Refused { conn: link.conn };
        cluster.expect(0, "Refused", |event| *event == refused);
        cluster.expect(1, "Revoked", |event| matches!(event, FabricEvent::Revoked { .. }));
        assert_eq!(landed(WORDS), before, "words landed after the revocation");
        let done = cluster.take(0, |event| matches!(event, FabricEvent::Done { .. }));
        assert_eq!(done, None, "a refused write never completes");
        let other = cluster.link(0, 1, 2, 1);
        cluster.write(0, other.conn, &other.value(0, &[7]));
        cluster.until("another connection continues", |_| other.target.load(0) == 7);
    }
}

/// What arrived is handled before it is acknowledged: an acknowledgement goes with a post, before a sleep, or after some polls, and not earlier.
#[test]
fn acknowledgements_are_gathered() {
    let mut cluster = squall_fabric::conformance::ConformanceCluster::<GatheringLoopback>::new(2);
    let (there, back) = (cluster.link(0, 1, 1, 1), cluster.link(1, 0, 2, 1));
    let is_done = |event: &FabricEvent| matches!(event, FabricEvent::Done { .. });
    for (round, ends) in ["a post", "a sleep", "some polls"].into_iter().enumerate() {
        (0..8).for_each(|_| (0..2).for_each(|node| cluster.poll(node)));
        let value = [round as u64 + 1];
        cluster.write(0, there.conn, &Write { signal: Some(Token(1)), ..there.value(0, &value) });
        cluster.poll(0);
        let calls = cluster.node(1).counters().send_calls;
        while there.target.load(0) != value[0] {
            cluster.poll(1);
        }
        cluster.poll(1);
        assert_eq!(cluster.node(1).counters().send_calls, calls, "it waits for {ends}");
        match ends {
            "a post" => {
                cluster.write(1, back.conn, &back.value(0, &value));
                cluster.poll(1);
            }
            "a sleep" => cluster.node(1).prepare_park(),
            _ => (0..4).for_each(|_| cluster.poll(1)),
        }
        cluster.node(1).unpark();
        assert_eq!(cluster.node(1).counters().send_calls, calls + 1, "one call with {ends}");
        cluster.expect(0, "Done", is_done);
    }
}

/// An end that closes while a long write is landing sees no more of it.
#[test]
fn a_write_that_is_landing_is_cut_off_by_close() {
    const WORDS: usize = 2 << 20;
    let mut cluster = squall_fabric::conformance::ConformanceCluster::<PlainLoopback>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    let source = cluster.node(0).register(WORDS);
    (0..WORDS).for_each(|word| source.store_relaxed(word, 1));
    cluster.node(0).write(link.conn, link.reference(0, &source, 0..WORDS)).expect("space");
    cluster.poll(0);
    cluster.poll(1);
    cluster.node(1).close(link.owner_conn);
    let landed = || (0..WORDS).filter(|word| link.target.load(*word) == 1).count();
    let before = landed();
    assert!(before > 0 && before < WORDS);
    cluster.expect(0, "Broken", |event| matches!(event, FabricEvent::Broken { .. }));
    assert_eq!(landed(), before, "words landed after the close");
    assert_eq!(cluster.node(0).write(link.conn, link.value(0, &[1])), Err(PostError::NotConnected));
}
