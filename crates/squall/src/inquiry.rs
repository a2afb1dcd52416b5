//! What members can be asked through their admission listeners, by each other and by who looks after them.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_transports::bootstrap::{self, Address, BootstrapError, BootstrapPlan};

use crate::admission::JoinToken;
use crate::config::Config;
use crate::status::GroupStatus;

/// What can be asked. Nothing at all is a question, too, by which a process finds out whether a group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StatusQuestion {
    /// How is the member? Answered by [`MemberStatus`].
    Status,
    /// Where are its objects served? Answered by an address, if there is one.
    Service,
    /// Where does it serve external clients? Answered by an address, if it does.
    Clients,
}

/// How a member is, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its number as a node, which no other process ever has.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// The number of its view.
    pub view: u64,
    /// Whether all members of the view have begun it: messages flow.
    pub ready: bool,
    /// The members of the view, the oldest first, which leads.
    pub members: Vec<MemberLine>,
    /// The members that wish to leave and hold a state that no other member has yet, as a set of places in `members`.
    pub leaving: u64,
    /// For each subgroup of the configuration, in the order of their names, the members that hold its state, as a set of
    /// places in `members`.
    pub holders: Vec<u64>,
    /// The subgroups that it is in.
    pub subgroups: Vec<SubgroupLine>,
}

/// A member in a [`MemberStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberLine {
    /// Its number as a node.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// Where it listens; empty if that is not known.
    pub address: String,
}

/// A subgroup in a [`MemberStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubgroupLine {
    /// Its name.
    pub name: String,
    /// Messages that this member has sent in the present view.
    pub sent: u64,
    /// Messages that this member has delivered in the present view.
    pub delivered: u64,
    /// Who holds it up, as far as this member knows: it has found no space for a message.
    pub held_up_by: Option<HeldUpLine>,
    /// For how long this member's own consumer has taken nothing, although there were messages, in milliseconds.
    pub stood_still_millis: Option<u64>,
}

/// A member that holds a subgroup up, in a [`SubgroupLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldUpLine {
    /// Its number as a node.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// For how long it has delivered nothing, although others waited for it, in milliseconds.
    pub millis: u64,
}

/// Asks the member that listens at `address` how it is. Of `config` only the cluster, its secret and the transport
/// matter.
///
/// # Errors
/// [`BootstrapError`], with what to do next.
pub fn ask_status(config: &Config, address: &Address) -> Result<MemberStatus, BootstrapError> {
    ask(&config.plan(), address, StatusQuestion::Status)
}

/// Where the objects of the member `node` are served; asks it. `None` if it is not a member, or serves none.
pub(crate) fn ask_service(
    plan: &BootstrapPlan,
    status: &GroupStatus,
    node: NodeId,
) -> Result<Option<Address>, BootstrapError> {
    let Some(address) = status.roster().get(&node).cloned() else { return Ok(None) };
    ask_service_at(plan, &address)
}

/// Where the objects of the member are served that listens at `address`; asks it. `None` if it serves none.
pub(crate) fn ask_service_at(
    plan: &BootstrapPlan,
    address: &Address,
) -> Result<Option<Address>, BootstrapError> {
    let service: Option<String> = ask(plan, address, StatusQuestion::Service)?;
    Ok(service.and_then(|service| service.parse().ok()))
}

/// Where the member that listens at `address` serves external clients; asks it. `None`: it does not, or not yet.
pub(crate) fn ask_clients_at(
    plan: &BootstrapPlan,
    address: &Address,
) -> Result<Option<Address>, BootstrapError> {
    let service: Option<String> = ask(plan, address, StatusQuestion::Clients)?;
    Ok(service.and_then(|service| service.parse().ok()))
}

fn ask<T: DeserializeOwned>(
    plan: &BootstrapPlan,
    address: &Address,
    question: StatusQuestion,
) -> Result<T, BootstrapError> {
    let question = write(&question);
    let answer = if address.is_unix() {
        bootstrap::ask::<UnixStream>(plan, address, &question)?
    } else {
        bootstrap::ask::<TcpStream>(plan, address, &question)?
    };
    postcard::from_bytes(&answer).map_err(|_| BootstrapError::Protocol {
        contact: address.clone(),
        what: "an answer that cannot be read".into(),
    })
}

/// Reads a question. Fuzzed as `inquiry`.
pub(crate) fn read_question(bytes: &[u8]) -> Option<StatusQuestion> {
    postcard::from_bytes(bytes).ok()
}

pub(crate) fn write(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain values serialise")
}

/// Reads bytes as a question, as the answer to each question, and as the token of an admission, for fuzzing; returns how
/// many of these they are. Fuzzed as `inquiry`.
///
/// # Panics
/// If what was read is not read again from what is written of it.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    fn again<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) -> usize {
        let Ok(read) = postcard::from_bytes::<T>(bytes) else { return 0 };
        assert!(postcard::from_bytes(&write(&read)).is_ok_and(|same: T| same == read), "not read again");
        1
    }
    again::<StatusQuestion>(bytes)
        + again::<MemberStatus>(bytes)
        + again::<Option<String>>(bytes)
        + again::<JoinToken>(bytes)
}
