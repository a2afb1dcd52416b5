//! Validation of foreign messages: pure functions from bytes to a value or a refusal.

use squall_fabric::NodeId;

use super::admission::{JoinInfo, TOKEN_BYTES_MAX};
use super::link::LinkSocket;
use super::message::{
    AdmissionFrame, BootstrapAnswer, BootstrapRequest, ClaimFrame, CoordinatorNotice, LinkReport, Refusal,
    ReleaseFrame,
};
use super::wire::FRAME_BYTES_MAX;
use super::{ADDRESS_BYTES_MAX, Address, Agreement, BootstrapMember, MEMBERS_MAX};

/// Returns the joiner as its request describes it.
pub(super) fn join_info<S: LinkSocket>(
    request: &BootstrapRequest,
    agreement: &Agreement,
    stream: &S,
    peer: &str,
) -> Result<JoinInfo, Refusal> {
    let BootstrapRequest::Enter { agreement: theirs, listen, name, rank } = request else {
        return Err(Refusal::Unusable);
    };
    if let Some(difference) = agreement.difference(theirs) {
        return Err(Refusal::Agreement(Box::new(difference)));
    }
    let (name, addresses) = read_entry(listen, name).ok_or(Refusal::Unusable)?;
    let addresses = addresses.into_iter().map(|address| seen_from_here(address, stream)).collect();
    Ok(JoinInfo { name, addresses, rank: *rank, peer: peer.into() })
}

/// Reads the address at which a process that links with this one listens; `None` if it is not usable.
/// Fuzzed as `bootstrap`.
pub(super) fn read_listen<S: LinkSocket>(listen: &str, stream: &S) -> Option<Address> {
    read_address(listen).filter(S::takes).map(|address| seen_from_here(address, stream))
}

/// Returns the name and the addresses of a process that asks to join, if they are usable.
fn read_entry(listen: &[String], name: &str) -> Option<(String, Vec<Address>)> {
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) || listen.len() > ADDRESSES_MAX {
        return None;
    }
    let addresses: Option<Vec<_>> = listen.iter().map(|listen| read_address(listen)).collect();
    let addresses = addresses.filter(|addresses| !addresses.is_empty())?;
    Some((name.into(), addresses))
}

/// Returns a claim, if it is usable, with the address at which its sender is reached from here.
pub(super) fn read_claim<S: LinkSocket>(claim: ClaimFrame, stream: &S) -> Option<ClaimFrame> {
    let takes_all = |all: &[Address]| all.iter().all(S::takes);
    let is_place = |(place, all): &(u32, Vec<Address>)| (*place as usize) < all.len() && takes_all(all);
    if !S::takes(&claim.listen) || !claim.contact.as_ref().is_none_or(is_place) {
        return None;
    }
    Some(ClaimFrame { listen: seen_from_here(claim.listen, stream), ..claim })
}

/// Returns whether all addresses of a notice are usable.
pub(super) fn can_use<S: LinkSocket>(notice: &CoordinatorNotice) -> bool {
    match notice {
        CoordinatorNotice::Roster { listen, .. } => listen.iter().all(S::takes),
        CoordinatorNotice::Released(
            ReleaseFrame::Redirect(address)
            | ReleaseFrame::Running(address)
            | ReleaseFrame::MemberLost { listen: address, .. },
        ) => S::takes(address),
        CoordinatorNotice::Joined { .. }
        | CoordinatorNotice::Go
        | CoordinatorNotice::Released(ReleaseFrame::Complete | ReleaseFrame::Unready(_)) => true,
    }
}

/// Replaces a wildcard address by the one that the process's packets come from, and the zone of an address on one link by this
/// process's.
fn seen_from_here<S: LinkSocket>(listen: Address, stream: &S) -> Address {
    stream.peer_host().map_or_else(|| listen.clone(), |peer| listen.as_reached_by(&peer))
}

/// Returns a notice with the addresses as they are reached from here.
pub(super) fn notice_from<S: LinkSocket>(mut notice: CoordinatorNotice, stream: &S) -> CoordinatorNotice {
    let see = |address: &mut Address| *address = seen_from_here(address.clone(), stream);
    match &mut notice {
        CoordinatorNotice::Roster { listen, .. } => listen.iter_mut().for_each(see),
        CoordinatorNotice::Released(
            ReleaseFrame::Redirect(address)
            | ReleaseFrame::Running(address)
            | ReleaseFrame::MemberLost { listen: address, .. },
        ) => see(address),
        CoordinatorNotice::Joined { .. } | CoordinatorNotice::Go | CoordinatorNotice::Released(_) => {}
    }
    notice
}

/// Reads an address of bounded length. Fuzzed as `bootstrap`.
pub(super) fn read_address(text: &str) -> Option<Address> {
    text.parse().ok().filter(|_| text.len() <= ADDRESS_BYTES_MAX)
}

/// Returns the members of an admission in the order of their numbers, or what is wrong with it.
/// Fuzzed as `bootstrap`.
pub(super) fn read_members(
    admittance: &AdmissionFrame,
    takes: fn(&Address) -> bool,
) -> Result<Vec<BootstrapMember>, &'static str> {
    if admittance.members.len() >= MEMBERS_MAX || admittance.token.len() > TOKEN_BYTES_MAX {
        return Err("an admission that is too long");
    }
    let member = |(node, listen): &(u32, String)| {
        let address = read_address(listen).filter(takes)?;
        Some(BootstrapMember { node: NodeId(*node), address })
    };
    let members: Option<Vec<_>> = admittance.members.iter().map(member).collect();
    let mut members = members.ok_or("an admission with an unusable address")?;
    members.sort_by_key(|member| member.node);
    if members.windows(2).any(|pair| pair[0].node == pair[1].node) {
        return Err("an admission that names a member twice");
    }
    let named = |node| members.iter().any(|member| member.node.0 == node);
    if !named(admittance.leader) || named(admittance.node) {
        return Err("an admission with the wrong members");
    }
    Ok(members)
}

/// Parses bytes as each kind of message by which processes meet, for fuzzing; returns the number of kinds
/// that they match. Fuzzed as `bootstrap`.
///
/// # Panics
/// Panics if a parsed message does not survive a round trip through its encoding.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    fn again<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq>(bytes: &[u8]) -> Option<T> {
        let read: T = postcard::from_bytes(bytes).ok()?;
        let written = postcard::to_stdvec(&read).expect("messages serialise");
        assert!(
            postcard::from_bytes(&written).is_ok_and(|same: T| same == read),
            "the message must survive a round trip"
        );
        Some(read)
    }
    if bytes.len() > FRAME_BYTES_MAX {
        return 0;
    }
    let request: Option<BootstrapRequest> = again(bytes);
    if let Some(BootstrapRequest::Enter { listen, name, .. }) = &request
        && let Some((_, addresses)) = read_entry(listen, name)
    {
        assert!(!addresses.is_empty() && addresses.len() <= ADDRESSES_MAX);
    }
    let answer: Option<BootstrapAnswer> = again(bytes);
    if let Some(BootstrapAnswer::Admit(admittance)) = &answer
        && let Ok(members) = read_members(admittance, |_| true)
    {
        assert!(members.iter().any(|member| member.node.0 == admittance.leader));
    }
    let report: Option<LinkReport> = again(bytes);
    let notice: Option<CoordinatorNotice> = again(bytes);
    [request.is_some(), answer.is_some(), report.is_some(), notice.is_some()].map(usize::from).iter().sum()
}

pub(super) const NAME_BYTES_MAX: usize = 64;
/// One for each kind of network, with a margin.
pub(super) const ADDRESSES_MAX: usize = 4;

const _: () = assert!(MEMBERS_MAX * (ADDRESS_BYTES_MAX + 16) + TOKEN_BYTES_MAX < FRAME_BYTES_MAX);
