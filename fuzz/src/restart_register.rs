//! The register of a process with durable shards, as it is found on its disk.

use squall_fabric::NodeId;
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{Ballot, DurableView, EndOrigin, Register, ViewEnd, Vote};

/// What is read is written as the same bytes.
pub fn feed(bytes: &[u8]) {
    if let Ok(register) = Register::decode(bytes) {
        assert_eq!(register.encode(), bytes);
    }
}

/// A process that waits to join, and a member that has voted in its second view.
pub fn seeds() -> Vec<Vec<u8>> {
    let view = |number, members: &[u32]| {
        let members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        DurableView { number, members, shards: vec![RankSet::of(0); 2] }
    };
    let end = |next| ViewEnd { trims: vec![3, 0], next, origin: EndOrigin::Live };
    let waiting = Register::new(1, NodeId(9), DurableView::default());
    let mut member = Register::new(1, NodeId(0), view(0, &[0, 1, 2]));
    member.end_view(&end(view(1, &[0, 2])));
    member.start(true);
    member.vote(Vote { ballot: Ballot::live(0), end: end(view(2, &[0])) });
    vec![waiting.encode(), member.encode()]
}
