//! Conversions between the assembler's messages and the frames of the bootstrap.

use squall_fabric::NodeId;
use squall_protocols::assembly::{
    AssemblyAnswer, AssemblyClaim, AssemblyNotice, AssemblyRefusal, ReleaseReason, VisitorId,
};
use squall_transports::bootstrap::{self as frame, Address, ClaimAnswer, CoordinatorNotice, Refusal};

pub(super) const fn visitor(number: u64) -> VisitorId {
    VisitorId(number)
}

pub(super) fn claim(claim: AssemblyClaim<Address>, agreement: frame::Agreement) -> frame::ClaimFrame {
    let AssemblyClaim { members, agreement: _, rank, listen, contact } = claim;
    frame::ClaimFrame { members, agreement, rank, listen, contact }
}

pub(super) fn read_claim(claim: frame::ClaimFrame) -> AssemblyClaim<Address> {
    let frame::ClaimFrame { members, agreement, rank, listen, contact } = claim;
    AssemblyClaim { members, agreement: agreement.digest(), rank, listen, contact }
}

/// `difference` is that of the configuration of the process that is answered.
pub(super) fn answer(
    answer: AssemblyAnswer<Address>,
    difference: Option<frame::SettingDifference>,
) -> ClaimAnswer {
    match answer {
        AssemblyAnswer::Accepted => ClaimAnswer::Accepted,
        AssemblyAnswer::Redirect(contact) => ClaimAnswer::Redirect(contact),
        AssemblyAnswer::Later(reason) => ClaimAnswer::Later(reason),
        AssemblyAnswer::Running => ClaimAnswer::Running,
        AssemblyAnswer::Refused(refusal) => ClaimAnswer::Refused(match refusal {
            AssemblyRefusal::MemberCount { coordinator } => Refusal::MemberCount { coordinator },
            AssemblyRefusal::Agreement => Refusal::Agreement(Box::new(difference.unwrap_or_default())),
            AssemblyRefusal::Contacts => Refusal::Contacts,
            AssemblyRefusal::RankTaken { rank } => Refusal::RankTaken { rank },
            AssemblyRefusal::RankOutOfRange { rank } => Refusal::RankOutOfRange { rank },
            AssemblyRefusal::OtherSession => Refusal::OtherSession,
        }),
    }
}

/// After any refusal here the process asks again: refusals that are final arrive as failures.
pub(super) fn read_answer(answer: ClaimAnswer) -> AssemblyAnswer<Address> {
    match answer {
        ClaimAnswer::Accepted => AssemblyAnswer::Accepted,
        ClaimAnswer::Redirect(contact) => AssemblyAnswer::Redirect(contact),
        ClaimAnswer::Later(reason) => AssemblyAnswer::Later(reason),
        ClaimAnswer::Refused(refusal) => AssemblyAnswer::Later(refusal.to_string()),
        ClaimAnswer::Running => AssemblyAnswer::Running,
    }
}

pub(super) fn notice(notice: AssemblyNotice<Address>) -> CoordinatorNotice {
    match notice {
        AssemblyNotice::Joined { joined } => CoordinatorNotice::Joined { joined },
        AssemblyNotice::Roster { session, node, coordinator, listen } => {
            CoordinatorNotice::Roster { session, node: node.0, coordinator: coordinator.0, listen }
        }
        AssemblyNotice::Go => CoordinatorNotice::Go,
        AssemblyNotice::Released(release) => CoordinatorNotice::Released(match release {
            ReleaseReason::Redirect(contact) => frame::ReleaseFrame::Redirect(contact),
            ReleaseReason::MemberLost { node, listen } => {
                frame::ReleaseFrame::MemberLost { node: node.0, listen }
            }
            ReleaseReason::Running(contact) => frame::ReleaseFrame::Running(contact),
            ReleaseReason::Complete => frame::ReleaseFrame::Complete,
            ReleaseReason::Unready(nodes) => {
                frame::ReleaseFrame::Unready(nodes.into_iter().map(|node| node.0).collect())
            }
        }),
    }
}

pub(super) fn read_notice(notice: CoordinatorNotice) -> AssemblyNotice<Address> {
    match notice {
        CoordinatorNotice::Joined { joined } => AssemblyNotice::Joined { joined },
        CoordinatorNotice::Roster { session, node, coordinator, listen } => {
            AssemblyNotice::Roster { session, node: NodeId(node), coordinator: NodeId(coordinator), listen }
        }
        CoordinatorNotice::Go => AssemblyNotice::Go,
        CoordinatorNotice::Released(release) => AssemblyNotice::Released(match release {
            frame::ReleaseFrame::Redirect(contact) => ReleaseReason::Redirect(contact),
            frame::ReleaseFrame::MemberLost { node, listen } => {
                ReleaseReason::MemberLost { node: NodeId(node), listen }
            }
            frame::ReleaseFrame::Running(contact) => ReleaseReason::Running(contact),
            frame::ReleaseFrame::Complete => ReleaseReason::Complete,
            frame::ReleaseFrame::Unready(nodes) => {
                ReleaseReason::Unready(nodes.into_iter().map(NodeId).collect())
            }
        }),
    }
}
