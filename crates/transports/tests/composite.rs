//! The composite fabric: the conformance suite on each mixture of transports that every machine offers, and
//! the choice of the transport.
//!
//! Mixtures with RDMA need a device: `verbs.rs` runs them.

#[path = "peers/backend.rs"]
mod backend;
#[path = "composite/cluster.rs"]
mod cluster;
#[path = "peers/mixture.rs"]
mod mixture;
#[path = "composite/parking.rs"]
mod parking;

use squall_fabric::{Fabric as _, FabricEvent, MirrorKey, NodeId};
use squall_transports::TransportFabric as _;
use squall_transports::composite::{CompositeFabric, CompositeSettings, PeerTransport};
use squall_transports::session::PeerStream;

use backend::Backend as _;
use cluster::{CompositeNodes, NodeParts};

/// Returns settings without RDMA.
const fn settings(shm: bool) -> CompositeSettings {
    CompositeSettings { shm, verbs: None, relinking: None }
}

fn device_of(_node: NodeId) -> mixture::NodeDevice {
    None
}

/// All nodes use shared memory, as members on one host do.
struct OneHost;

impl NodeParts for OneHost {
    fn settings(_node: u32) -> CompositeSettings {
        settings(true)
    }
}

/// Nodes 1 and 3 reach no peer by shared memory: node 0 has peers of both kinds.
struct TwoHosts;

impl NodeParts for TwoHosts {
    fn settings(node: u32) -> CompositeSettings {
        settings(node.is_multiple_of(2))
    }
}

mod one_host {
    squall_fabric::conformance_suite!(super::cluster::CompositeNodes<super::OneHost>);
}

mod two_hosts {
    squall_fabric::conformance_suite!(super::cluster::CompositeNodes<super::TwoHosts>);
}

#[test]
fn each_pair_uses_the_best_transport_and_reports_the_reason() {
    let mut nodes = CompositeNodes::<TwoHosts>::build(3);
    let transports = |nodes: &mut CompositeNodes<TwoHosts>, i| {
        let choices = nodes.fabric(i).choices().iter();
        choices.map(|choice| (choice.peer, choice.transport)).collect::<Vec<_>>()
    };
    assert_eq!(transports(&mut nodes, 0), [(NodeId(1), PeerTransport::Tcp), (NodeId(2), PeerTransport::Shm)]);
    assert_eq!(transports(&mut nodes, 1), [(NodeId(0), PeerTransport::Tcp), (NodeId(2), PeerTransport::Tcp)]);
    assert_eq!(transports(&mut nodes, 2), [(NodeId(0), PeerTransport::Shm), (NodeId(1), PeerTransport::Tcp)]);
    let reason = nodes.fabric(0).choices()[0].reason.clone();
    assert_eq!(
        reason,
        "it runs on this host, but does not share memory (its log says why); RDMA is disabled"
    );
}

/// Memory that is not shared is registered with devices, which number a region's words from the beginning of its first page.
#[test]
fn every_region_begins_at_a_page_boundary() {
    for shm in [true, false] {
        let mut fabric = CompositeFabric::new(NodeId(0), Vec::<(NodeId, PeerStream)>::new(), &settings(shm))
            .unwrap_or_else(|error| panic!("{error}"));
        for words in [0, 1, 7, 511, 512, 513, 100_000] {
            let region = fabric.register(words);
            assert_eq!(region.pointer(0).addr().get() % 4096, 0, "{words} words, shared memory: {shm}");
        }
    }
}

/// A node counts what it exchanges with its peers elsewhere; those on its host read its memory.
#[test]
fn only_transports_that_carry_something_have_traffic() {
    let mut nodes = CompositeNodes::<TwoHosts>::build(3);
    let peers = |nodes: &mut CompositeNodes<TwoHosts>, i| {
        let mut peers = Vec::new();
        nodes.fabric(i).traffic(&mut |traffic| peers.push((traffic.peer, traffic.transport)));
        peers
    };
    assert_eq!(peers(&mut nodes, 0), [(NodeId(1), PeerTransport::Tcp)]);
    assert_eq!(peers(&mut nodes, 1), [(NodeId(0), PeerTransport::Tcp), (NodeId(2), PeerTransport::Tcp)]);
}

/// A joiner that dies is lost once, and disturbs nothing else, however far the meeting has progressed.
#[test]
fn a_joiner_that_dies_in_the_meeting_is_lost() {
    for (joiner, steps) in [(2, 12), (3, 12)] {
        for step in 0..steps {
            let mut all = backend::BackendNodes::<CompositeFabric>::joined(&[0, 1]);
            all.start(joiner);
            let (key, region) = (MirrorKey(9), all.node(0).register(8));
            all.node(0).publish(key, &region, &[NodeId(1), NodeId(joiner)]);
            let attachment = all.node(0).attach(NodeId(joiner), key, 8);
            let seen = all.node(1).attach(NodeId(0), key, 8);
            let (at_0, at_joiner) = CompositeFabric::pair();
            all.node(0).add(NodeId(joiner), at_0).expect("begun");
            all.node(joiner).add(NodeId(0), at_joiner).expect("begun");
            for hop in 0..step {
                let mut events = Vec::new();
                let one = if hop % 2 == 0 { 0 } else { joiner };
                all.node(one).poll(&mut |event| events.push(event));
                all.events(one).extend(events);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            all.kill(joiner);
            all.expect_lost(0, joiner);
            all.settle();
            let losses =
                all.events(0).iter().filter(|event| matches!(event, FabricEvent::PeerLost { .. })).count();
            assert_eq!((losses, attachment.load(0), seen.load(0)), (0, 0, 0), "after {step} polls");
            all.node(0).remove(NodeId(joiner));
            all.node(0).freeze(&attachment);
            all.start(joiner + 2);
            all.join(0, joiner + 2);
        }
    }
}

/// A joiner that connects and sends nothing, or garbage, is lost; the others do not wait for it.
#[test]
fn a_joiner_that_sends_garbage_is_lost() {
    use std::io::Write as _;
    let mut all = backend::BackendNodes::<CompositeFabric>::joined(&[0, 2]);
    let (near, mut far) = CompositeFabric::pair();
    all.node(0).add(NodeId(4), near).expect("begun");
    all.settle();
    far.write_all(&[7; 88]).expect("connected");
    all.expect_lost(0, 4);
    assert_eq!(all.node(0).choices().len(), 1);
}

/// An attachment that was created before the transport was chosen remains the same afterwards, frozen or not.
#[test]
fn attachments_wait_for_the_transport() {
    for joiner in [2, 3] {
        let mut all = backend::BackendNodes::<CompositeFabric>::apart(&[0, joiner]);
        let keys = [1, 2].map(MirrorKey);
        let attachments = keys.map(|key| all.node(0).attach(NodeId(joiner), key, 600));
        let again = all.node(0).attach(NodeId(joiner), keys[0], 600);
        all.node(0).freeze(&attachments[1]);
        all.join(0, joiner);
        let regions = keys.map(|_| all.node(joiner).register(600));
        let mirrors = [0, 1].map(|i| all.node(joiner).publish(keys[i], &regions[i], &[NodeId(0)]));
        let attached = FabricEvent::Attached { key: keys[0], reader: NodeId(0) };
        all.expect(joiner, "Attached", |event| *event == attached);
        let store = |all: &mut backend::BackendNodes<CompositeFabric>, value| {
            regions.iter().for_each(|region| region.store(599, value));
            mirrors.iter().for_each(|mirror| all.node(joiner).push_word(*mirror, 599));
        };
        store(&mut all, 5);
        all.until("the word", |_| attachments[0].load(599) == 5 && again.load(599) == 5);
        let late = all.node(0).attach(NodeId(joiner), keys[0], 600);
        assert_eq!(late.load(599), 5, "it is the same attachment");
        all.node(0).freeze(&late);
        store(&mut all, 6);
        all.settle();
        assert_eq!([attachments[0].load(599), late.load(599), attachments[1].load(599)], [5, 5, 0], "frozen");
    }
}
