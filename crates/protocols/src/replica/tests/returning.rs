//! A member that leaves its shard and comes back while a state is on its way to it (Derecho app. A).

use squall_fabric::NodeId;

use super::world::List;
use crate::replica::{Give, Position, Replica, Settings, ShardView};

fn view(id: u64, members: &[u32]) -> ShardView {
    let nodes = |nodes: &[u32]| nodes.iter().copied().map(NodeId).collect();
    ShardView { id, group: nodes(&[0, 1, 2]), members: nodes(members) }
}

/// What is on its way still counts: another newcomer is not told that there is nothing \[A7\].
#[test]
fn an_open_question_outlives_a_stay_elsewhere() {
    let mut replica = Replica::new(NodeId(1), Settings::default());
    let first = List::default;
    replica.begin_view(view(1, &[0, 1]), first);
    assert_eq!(replica.ask().map(|(node, ..)| node), Some(NodeId(0)));
    replica.begin_view(view(2, &[0, 2]), first);
    replica.begin_view(view(3, &[1, 2]), first);
    let since = Position::start_of(3);
    assert!(matches!(replica.give(NodeId(2), 3, since), Give::NotYet), "node 0 may be giving it the state");
    replica.handle_no_answer();
    assert!(matches!(replica.give(NodeId(2), 3, since), Give::Nothing));
}
