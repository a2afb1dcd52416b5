//! The table of clients' sessions that comes with a state, from a member.

use squall_fabric::NodeId;
use squall_protocols::replica::{
    Machine, Replica, ReplicaSettings, Sessions, ShardPosition, ShardView, StateReply,
};

/// An object without state: only the sessions count here.
struct Nothing;

impl Machine for Nothing {
    type Reply = ();
    type Snapshot = ();

    fn apply(&mut self, _update: &[u8]) {}

    fn encode((): &()) -> Vec<u8> {
        Vec::new()
    }

    fn query(&self, _query: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    fn snapshot(&self) {}
}

/// A joiner takes a state with these sessions; what it takes it gives in the same words.
pub fn feed(bytes: &[u8]) {
    let (node, other) = (NodeId(1), NodeId(2));
    let mut replica = Replica::new(node, ReplicaSettings::default());
    let nodes = vec![node, other];
    let view =
        ShardView { id: 1, group: nodes.clone(), members: nodes, holders: vec![other], is_first: false };
    replica.begin_view(view, || Nothing);
    let position = ShardPosition::start_of(1);
    if let Ok(sessions) = Sessions::decode(bytes) {
        replica.take_over(position, sessions, Nothing);
        let StateReply::State(snapshot) = replica.provide_state(position) else {
            panic!("it holds the state")
        };
        assert_eq!(snapshot.sessions, bytes);
    }
}

/// None; two, of which one was used; one whose last reply was too long to be kept.
pub fn seeds() -> Vec<Vec<u8>> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let two = [words(&[3, 5, 2, 1, 0, 1, 0, 3, 7, 5, 2]), b"ok".to_vec()].concat();
    let long = words(&[1, 2, 1, 1, 1, 2, 1 << 63 | 70_000]);
    vec![words(&[0, 0, 0]), two, long]
}
