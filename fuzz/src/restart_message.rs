//! What processes that restart send each other.

use squall_fabric::NodeId;
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{DurableView, EndOrigin, Register, RestartMessage, RestartReport, ViewEnd};

/// How many durable shards the reader has.
const SHARDS: usize = 2;

/// What is read is written as the same bytes.
pub fn feed(bytes: &[u8]) {
    if let Ok(message) = RestartMessage::decode(bytes, SHARDS) {
        assert_eq!(message.encode(SHARDS), bytes);
    }
}

/// The report of a member of a view that runs, one of a process that leads, and how views have ended.
pub fn seeds() -> Vec<Vec<u8>> {
    let view = |number, members: &[u32]| {
        let members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        DurableView { number, members, shards: vec![RankSet::of(0); 2] }
    };
    let end = |next| ViewEnd { trims: vec![3, 0], next, origin: EndOrigin::Restart };
    let mut member = Register::new(1, NodeId(0), view(0, &[0, 1, 2]));
    member.end_view(&end(view(1, &[0, 2])));
    let live = RestartReport::live(7, &member);
    let leading = RestartReport {
        is_live: false,
        counts: vec![5, 6],
        whole: vec![true, false],
        proposal: Some(end(view(2, &[0]))),
        ..live.clone()
    };
    let reports = [live, leading].map(|report| RestartMessage::Report(Box::new(report)));
    let views = RestartMessage::Views(Box::new(member.record));
    reports.into_iter().chain([views]).map(|message| message.encode(SHARDS)).collect()
}
