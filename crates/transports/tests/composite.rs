//! The composite fabric: the conformance suite on each mixture that every machine can have, and who chooses what.
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

use squall_fabric::{Event, Fabric as _, MirrorKey, NodeId};
use squall_transports::composite::{CompositeFabric, CompositeSettings, Way};

use backend::Backend as _;
use cluster::{Nodes, Parts};

/// Without RDMA.
const fn settings(shm: bool) -> CompositeSettings {
    CompositeSettings { shm, verbs: None }
}

fn device_of(_node: NodeId) -> mixture::Device {
    None
}

/// All on shared memory, as members of one host are.
struct OneHost;

impl Parts for OneHost {
    fn settings(_node: u32) -> CompositeSettings {
        settings(true)
    }
}

/// Nodes 1 and 3 reach nobody by shared memory: each node 0 has peers on both.
struct TwoHosts;

impl Parts for TwoHosts {
    fn settings(node: u32) -> CompositeSettings {
        settings(node.is_multiple_of(2))
    }
}

mod one_host {
    squall_fabric::conformance_suite!(super::cluster::Nodes<super::OneHost>);
}

mod two_hosts {
    squall_fabric::conformance_suite!(super::cluster::Nodes<super::TwoHosts>);
}

#[test]
fn each_pair_takes_the_best_way_and_says_why() {
    let mut nodes = Nodes::<TwoHosts>::build(3);
    let ways = |nodes: &mut Nodes<TwoHosts>, i| {
        let choices = nodes.fabric(i).choices().iter();
        choices.map(|choice| (choice.peer, choice.way)).collect::<Vec<_>>()
    };
    assert_eq!(ways(&mut nodes, 0), [(NodeId(1), Way::Tcp), (NodeId(2), Way::Shm)]);
    assert_eq!(ways(&mut nodes, 1), [(NodeId(0), Way::Tcp), (NodeId(2), Way::Tcp)]);
    assert_eq!(ways(&mut nodes, 2), [(NodeId(0), Way::Shm), (NodeId(1), Way::Tcp)]);
    let reason = nodes.fabric(0).choices()[0].reason.clone();
    assert_eq!(reason, "shared memory is switched off; RDMA is switched off");
}

/// However far the meeting has come, a newcomer that dies is lost once, and nothing else is disturbed.
#[test]
fn a_newcomer_that_dies_in_the_meeting_is_lost() {
    for (newcomer, steps) in [(2, 12), (3, 12)] {
        for step in 0..steps {
            let mut all = backend::Nodes::<CompositeFabric>::joined(&[0, 1]);
            all.start(newcomer);
            let (key, region) = (MirrorKey(9), all.node(0).register(8));
            all.node(0).publish(key, &region, &[NodeId(1), NodeId(newcomer)]);
            let view = all.node(0).attach(NodeId(newcomer), key, 8);
            let seen = all.node(1).attach(NodeId(0), key, 8);
            let (at_0, at_newcomer) = CompositeFabric::pair();
            all.node(0).add(NodeId(newcomer), at_0).expect("begun");
            all.node(newcomer).add(NodeId(0), at_newcomer).expect("begun");
            for turn in 0..step {
                let mut events = Vec::new();
                let one = if turn % 2 == 0 { 0 } else { newcomer };
                all.node(one).poll(&mut |event| events.push(event));
                all.events(one).extend(events);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            all.kill(newcomer);
            all.expect_lost(0, newcomer);
            all.settle();
            let losses = all.events(0).iter().filter(|event| matches!(event, Event::PeerLost { .. })).count();
            assert_eq!((losses, view.load(0), seen.load(0)), (0, 0, 0), "after {step} polls");
            all.node(0).remove(NodeId(newcomer));
            all.node(0).freeze(&view);
            all.start(newcomer + 2);
            all.join(0, newcomer + 2);
        }
    }
}

/// Who connects and says nothing, or nonsense, is lost; the others do not wait for it.
#[test]
fn a_newcomer_that_speaks_nonsense_is_lost() {
    use std::io::Write as _;
    let mut all = backend::Nodes::<CompositeFabric>::joined(&[0, 2]);
    let (near, mut far) = CompositeFabric::pair();
    all.node(0).add(NodeId(4), near).expect("begun");
    all.settle();
    far.write_all(&[7; 88]).expect("connected");
    all.expect_lost(0, 4);
    assert_eq!(all.node(0).choices().len(), 1);
}

/// A view that was attached before anybody knew the way is the same afterwards, frozen or not.
#[test]
fn views_wait_for_the_way() {
    for newcomer in [2, 3] {
        let mut all = backend::Nodes::<CompositeFabric>::apart(&[0, newcomer]);
        let keys = [1, 2].map(MirrorKey);
        let views = keys.map(|key| all.node(0).attach(NodeId(newcomer), key, 600));
        let again = all.node(0).attach(NodeId(newcomer), keys[0], 600);
        all.node(0).freeze(&views[1]);
        all.join(0, newcomer);
        let regions = keys.map(|_| all.node(newcomer).register(600));
        let mirrors = [0, 1].map(|i| all.node(newcomer).publish(keys[i], &regions[i], &[NodeId(0)]));
        let attached = Event::Attached { key: keys[0], reader: NodeId(0) };
        all.expect(newcomer, "Attached", |event| *event == attached);
        let store = |all: &mut backend::Nodes<CompositeFabric>, value| {
            regions.iter().for_each(|region| region.store(599, value));
            mirrors.iter().for_each(|mirror| all.node(newcomer).push_word(*mirror, 599));
        };
        store(&mut all, 5);
        all.until("the word", |_| views[0].load(599) == 5 && again.load(599) == 5);
        let late = all.node(0).attach(NodeId(newcomer), keys[0], 600);
        assert_eq!(late.load(599), 5, "it is the same view");
        all.node(0).freeze(&late);
        store(&mut all, 6);
        all.settle();
        assert_eq!([views[0].load(599), late.load(599), views[1].load(599)], [5, 5, 0], "frozen");
    }
}
