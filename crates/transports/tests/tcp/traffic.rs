//! Traffic: what a node has sent to a peer is what the peer has received from it.

use squall_fabric::conformance::{ConformanceCluster, Harness};
use squall_fabric::{Fabric, FabricEvent, MirrorKey, NodeId};
use squall_transports::composite::PeerTransport;
use squall_transports::tcp::TcpFabric;
use squall_transports::{PeerTraffic, TransportFabric as _};

use crate::cluster::{PlainLoopback, SealedLoopback};

const WORDS: usize = 10_000;

fn traffic(fabric: &TcpFabric, peer: u32) -> PeerTraffic {
    let mut found = Vec::new();
    fabric.traffic(&mut |traffic| found.push(traffic));
    assert_eq!(found.len(), 2, "one line for each peer");
    *found.iter().find(|traffic| traffic.peer == NodeId(peer)).expect("it is a peer")
}

/// Node 0 pushes a mirror to node 1 only, node 2 gets nothing of it.
fn each_end_counts_the_same<H: Harness<Fabric = TcpFabric>>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let region = cluster.node(0).register(WORDS);
    let mirror = cluster.node(0).publish(MirrorKey(1), &region, &[NodeId(1)]);
    let attachment = cluster.node(1).attach(NodeId(0), MirrorKey(1), WORDS);
    cluster.expect(0, "Attached", |event| matches!(event, FabricEvent::Attached { .. }));
    let before = traffic(cluster.node(0), 1).sent;
    region.store(0, 7);
    cluster.node(0).push(mirror, 1..WORDS);
    cluster.node(0).push_word(mirror, 0);
    cluster.until("the last word", |_| attachment.load(0) == 7);
    let sent = traffic(cluster.node(0), 1);
    assert_eq!(sent.transport, PeerTransport::Tcp);
    assert!(sent.sent >= before + 8 * WORDS as u64, "{sent:?} after {before}");
    for (one, other) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        let (sent, received) = (traffic(cluster.node(one), other).sent, traffic(cluster.node(other), one));
        assert_eq!(Some(sent), received.received, "from {one} to {other}");
    }
    assert!(traffic(cluster.node(0), 2).sent < 8 * WORDS as u64, "it is no reader");
}

#[test]
fn plain_streams_count_what_they_carry() {
    each_end_counts_the_same::<PlainLoopback>();
}

#[test]
fn encrypted_streams_count_what_they_carry() {
    each_end_counts_the_same::<SealedLoopback>();
}
