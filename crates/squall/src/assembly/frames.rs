//! What the assembler says, as the frames have it, and the other way.

use squall_fabric::NodeId;
use squall_protocols::assembly::{
    AssemblyAnswer, AssemblyNotice, AssemblyRefusal, Claim, Release, VisitorId,
};
use squall_transports::bootstrap::{self as frame, Address, ClaimAnswer, Notice, Refusal};

pub(super) const fn visitor(number: u64) -> VisitorId {
    VisitorId(number)
}

pub(super) fn claim(claim: Claim<Address>) -> frame::Claim {
    let Claim { members, agreement, rank, listen, contact } = claim;
    frame::Claim { members, agreement, rank, listen, contact }
}

pub(super) fn read_claim(claim: frame::Claim) -> Claim<Address> {
    let frame::Claim { members, agreement, rank, listen, contact } = claim;
    Claim { members, agreement, rank, listen, contact }
}

pub(super) fn answer(answer: AssemblyAnswer<Address>) -> ClaimAnswer {
    match answer {
        AssemblyAnswer::Accepted => ClaimAnswer::Accepted,
        AssemblyAnswer::Redirect(contact) => ClaimAnswer::Redirect(contact),
        AssemblyAnswer::Later(reason) => ClaimAnswer::Later(reason),
        AssemblyAnswer::Running => ClaimAnswer::Running,
        AssemblyAnswer::Refused(refusal) => ClaimAnswer::Refused(match refusal {
            AssemblyRefusal::MemberCount { coordinator } => Refusal::MemberCount { coordinator },
            AssemblyRefusal::Agreement => Refusal::Agreement,
            AssemblyRefusal::Contacts => Refusal::Contacts,
            AssemblyRefusal::RankTaken { rank } => Refusal::RankTaken { rank },
            AssemblyRefusal::RankOutOfRange { rank } => Refusal::RankOutOfRange { rank },
            AssemblyRefusal::OtherSession => Refusal::OtherSession,
        }),
    }
}

/// Whatever a refusal says, the process asks again: for good ones are failures.
pub(super) fn read_answer(answer: ClaimAnswer) -> AssemblyAnswer<Address> {
    match answer {
        ClaimAnswer::Accepted => AssemblyAnswer::Accepted,
        ClaimAnswer::Redirect(contact) => AssemblyAnswer::Redirect(contact),
        ClaimAnswer::Later(reason) => AssemblyAnswer::Later(reason),
        ClaimAnswer::Refused(refusal) => AssemblyAnswer::Later(refusal.to_string()),
        ClaimAnswer::Running => AssemblyAnswer::Running,
    }
}

pub(super) fn notice(notice: AssemblyNotice<Address>) -> Notice {
    match notice {
        AssemblyNotice::Joined { joined } => Notice::Joined { joined },
        AssemblyNotice::Roster { session, node, coordinator, listen } => {
            Notice::Roster { session, node: node.0, coordinator: coordinator.0, listen }
        }
        AssemblyNotice::Go => Notice::Go,
        AssemblyNotice::Released(release) => Notice::Released(match release {
            Release::Redirect(contact) => frame::Release::Redirect(contact),
            Release::MemberLost { node, listen } => frame::Release::MemberLost { node: node.0, listen },
            Release::Running(contact) => frame::Release::Running(contact),
            Release::Complete => frame::Release::Complete,
            Release::Unready(nodes) => {
                frame::Release::Unready(nodes.into_iter().map(|node| node.0).collect())
            }
        }),
    }
}

pub(super) fn read_notice(notice: Notice) -> AssemblyNotice<Address> {
    match notice {
        Notice::Joined { joined } => AssemblyNotice::Joined { joined },
        Notice::Roster { session, node, coordinator, listen } => {
            AssemblyNotice::Roster { session, node: NodeId(node), coordinator: NodeId(coordinator), listen }
        }
        Notice::Go => AssemblyNotice::Go,
        Notice::Released(release) => AssemblyNotice::Released(match release {
            frame::Release::Redirect(contact) => Release::Redirect(contact),
            frame::Release::MemberLost { node, listen } => Release::MemberLost { node: NodeId(node), listen },
            frame::Release::Running(contact) => Release::Running(contact),
            frame::Release::Complete => Release::Complete,
            frame::Release::Unready(nodes) => Release::Unready(nodes.into_iter().map(NodeId).collect()),
        }),
    }
}
