//! The composite fabric: the conformance suite on each mixture that every machine can have, and who chooses what.
//!
//! Mixtures with RDMA need a device: `verbs.rs` runs them.

#[path = "composite/cluster.rs"]
mod cluster;
#[path = "composite/parking.rs"]
mod parking;

use squall_fabric::NodeId;
use squall_transports::composite::{CompositeSettings, Way};

use cluster::{Nodes, Parts};

/// Without RDMA.
const fn settings(shm: bool) -> CompositeSettings {
    CompositeSettings { shm, verbs: None }
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
