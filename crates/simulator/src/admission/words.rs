//! What joiners and members do and say to each other, in words, for the story of a run.

use squall_fabric::NodeId;
use squall_protocols::admission::{AdmissionAction, Admitted, JoinAnswer, JoinFailure, JoinerAction};

use super::bus::BusBody;

fn list(nodes: impl Iterator<Item = NodeId>) -> String {
    nodes.map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ")
}

fn admitted(Admitted { node, rank, leader, members }: &Admitted<u32>) -> String {
    let members = list(members.iter().map(|(member, _)| *member));
    format!("admitted as {node} with rank {rank} by {leader}; it links with nodes {members}")
}

/// What a joiner does.
pub(super) fn joiner(action: &JoinerAction<u32>) -> String {
    match action {
        JoinerAction::Ask { contact, .. } => format!("asks process {contact} to admit it"),
        JoinerAction::Link { own, node, .. } => format!("links with {node}, as {own}"),
        JoinerAction::Report { .. } => "reports to the leader that all links are there".into(),
        JoinerAction::Begin(of) => format!("begins to wait for its first view, {}", admitted(of)),
        JoinerAction::Abandon => "closes all links, and tries again".into(),
        JoinerAction::GiveUp(failure) => match failure {
            JoinFailure::Hopeless(why) => format!("gives up, since all contacts refuse it: {why}"),
            JoinFailure::NotAdmitted(why) => format!("gives up, since no member admits it: {why}"),
            JoinFailure::NoView => "gives up, since no view with it has come".into(),
            JoinFailure::NotReady => "gives up, since not all members have begun its first view".into(),
            JoinFailure::Removed(stop) => {
                format!("gives up, since the others have continued without it: {stop}")
            }
        },
    }
}

/// What comes back to a joiner.
pub(super) fn reply(body: &BusBody) -> String {
    match body {
        BusBody::Answer(JoinAnswer::Admit(of)) => format!("is {}", admitted(of)),
        BusBody::Answer(JoinAnswer::Redirect(leader)) => format!("learns that process {leader} leads"),
        BusBody::Answer(JoinAnswer::Wait(why)) => format!("is asked to wait: {why}"),
        BusBody::Answer(JoinAnswer::Refuse(why)) => format!("is refused: {why}"),
        BusBody::Linked => "is linked".into(),
        BusBody::Unheard(why) => format!("is not heard: {why}"),
        BusBody::Broken(why) => format!("loses the connection: {why}"),
        other => format!("hears {other:?}"),
    }
}

/// What a member does for joiners.
pub(super) fn member(action: &AdmissionAction) -> String {
    match action {
        AdmissionAction::Part(node, why) => format!("removes {node} from its network: {why}"),
        AdmissionAction::ReportLost(node) => format!("reports to its group that it has lost {node}"),
        AdmissionAction::Dismiss(node) => format!("closes the connection of {node}, which it admitted"),
        AdmissionAction::Admit(member) => {
            format!("proposes {} with rank {} for the next view", member.node, member.tag)
        }
        AdmissionAction::Renew => "asks for another view of the same members".into(),
    }
}
