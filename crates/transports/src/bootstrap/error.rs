//! Errors of the bootstrap, each with what to do next.

use std::io;
use std::time::Duration;

use squall_fabric::NodeId;

use super::{Address, Refusal};
use crate::session::{ProofError, VersionRange, older_end};

squall_fabric::debug_as_text!(BootstrapError);

/// Why the bootstrap failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The plan contradicts itself.
    #[error("the configuration is not consistent: {0}")]
    Plan(String),
    /// Another socket listens at the address.
    #[error("{address} is in use: end the process that listens there, or choose another `listen` address")]
    AddressInUse {
        /// This process's listen address.
        address: Address,
    },
    /// The address belongs to another host.
    #[error("{address} is not an address of this host: set `listen` to one that is")]
    AddressElsewhere {
        /// This process's listen address.
        address: Address,
    },
    /// The socket cannot be opened for another reason.
    #[error("failed to listen at {address}: {cause}")]
    Listen {
        /// This process's listen address.
        address: Address,
        /// The system's error.
        cause: io::Error,
    },
    /// No contact has accepted this process in time.
    #[error(
        "no process at {} has accepted this one within {waited:.1?} (last: {cause}): start a process that \
         listens there, and compare its `listen` with this one's `contacts`",
        addresses(contacts)
    )]
    Unreachable {
        /// The contacts that were asked.
        contacts: Vec<Address>,
        /// How long this process tried.
        waited: Duration,
        /// The last failure.
        cause: String,
    },
    /// The process at the address has another secret, or cannot prove this one.
    #[error("{address} does not have the same secret: compare `secret` (or `secret_file`) of both processes")]
    SecretRefused {
        /// The address that this process connected to.
        address: Address,
    },
    /// The process at the address belongs to another cluster.
    #[error(
        "{address} belongs to another cluster than `{cluster}`: compare the `cluster` names, or correct `contacts`"
    )]
    OtherCluster {
        /// The address that this process connected to.
        address: Address,
        /// This process's cluster.
        cluster: String,
    },
    /// The process at the address uses another version of the protocol.
    #[error(
        "{address} speaks {theirs} of the protocol, but this process {ours}: {}",
        older_end(ours, theirs)
    )]
    OtherVersion {
        /// The address that this process connected to.
        address: Address,
        /// This process's versions.
        ours: VersionRange,
        /// Its versions.
        theirs: VersionRange,
    },
    /// The process at the address does not serve this one.
    #[error("{address} does not serve this process: {cause}")]
    NotServed {
        /// The address that this process connected to.
        address: Address,
        /// What it does not serve.
        cause: ProofError,
    },
    /// The process at the address uses another protocol.
    #[error("the process that listens at {address} is not Squall: correct `contacts`")]
    NotSquall {
        /// The address that this process connected to.
        address: Address,
    },
    /// The process at the address runs under another user, which shared memory does not allow.
    #[error("the process at {address} runs as user {user}: run the members on one host as the same user")]
    OtherUser {
        /// The address that this process connected to.
        address: Address,
        /// The user's number.
        user: u32,
    },
    /// A process with the same secret refused this one.
    #[error("{address} refuses this process: {refusal}")]
    Refused {
        /// The address that this process connected to.
        address: Address,
        /// The reason.
        refusal: Refusal,
    },
    /// The group has been assembled before; it can be joined.
    #[error("a group of this cluster is already running: {contact} is one of its members")]
    Running {
        /// A member.
        contact: Address,
    },
    /// The timeout has passed and members are missing.
    #[error(
        "only {joined} of {members} members have joined before the timeout{}",
        incomplete(missing, coordinator.as_ref())
    )]
    Incomplete {
        /// The number of members that have joined, the coordinator included.
        joined: u32,
        /// The number that is needed.
        members: u32,
        /// The contacts that are not among them, each with what has come of the last call to it.
        missing: Vec<(Address, String)>,
        /// The contact that gathers them, if it is another process.
        coordinator: Option<Address>,
    },
    /// The timeout has passed; enough processes have joined, but too few contacts are among them.
    #[error(
        "enough processes have joined, but only {present} of the contacts are among them, and {needed} are needed{}; missing are {}: \
         start these, beginning with the first",
        if first.is_some() { ", the first one among them" } else { "" },
        with_causes(missing)
    )]
    NoQuorum {
        /// The number of contacts that have joined.
        present: u32,
        /// The number that is needed.
        needed: u32,
        /// The first contact, if so few members are planned that it has to be among them.
        first: Option<Address>,
        /// The other contacts, each with what has come of the last call to it.
        missing: Vec<(Address, String)>,
    },
    /// The timeout has passed and links are missing.
    #[error(
        "failed to link with {} before the timeout: check that these processes run, and that their `listen` \
         addresses can be reached from this host",
        list(missing)
    )]
    Unlinked {
        /// The members without a link, with the addresses at which they listen.
        missing: Vec<(NodeId, Address)>,
    },
    /// The timeout has passed and other members have not connected to each other.
    #[error("{} could not connect to all others before the timeout: see what they report",
        if unready.is_empty() { "other members".into() } else { list(unready) })]
    Unready {
        /// The members whose links are not established, with the addresses at which they listen, as far as
        /// they are known.
        unready: Vec<(NodeId, Address)>,
    },
    /// The coordinator was lost when the other members might have begun.
    #[error(
        "the coordinator at {contact} was lost when the group was about to begin: start this process again, to join \
         the group if the others have begun"
    )]
    CoordinatorLost {
        /// The contact that coordinated.
        contact: Address,
    },
    /// The coordinator sent something that is not valid.
    #[error("the coordinator at {contact} sent {what}: run the same release everywhere")]
    Protocol {
        /// The contact that coordinates, or that has answered.
        contact: Address,
        /// What it sent.
        what: String,
    },
    /// No member has admitted this process in time.
    #[error(
        "no member at {} has admitted this process within {waited:.1?} (last: {cause}): mend \
         that; if no member answers, check that the group runs, and compare `contacts` with the addresses at which its members listen",
        addresses(contacts)
    )]
    NotAdmitted {
        /// The contacts that were asked.
        contacts: Vec<Address>,
        /// How long this process tried.
        waited: Duration,
        /// The last failure, or the last reason to wait.
        cause: String,
    },
    /// The group refuses this process.
    #[error("{address} refuses this process: {reason}")]
    Denied {
        /// The member that refused.
        address: Address,
        /// The reason, and what to do next.
        reason: String,
    },
    /// A member did not answer a query.
    #[error(
        "{address} does not answer ({cause}): check that the member runs and is not stuck, or ask another one"
    )]
    NoAnswer {
        /// The member that was asked.
        address: Address,
        /// The cause.
        cause: String,
    },
    /// A system call failed.
    #[error("failed {doing}: {cause}")]
    System {
        /// What was tried, as `to do something`.
        doing: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl BootstrapError {
    /// Returns whether a process at the address that was called refuses this one, or is none that it could meet.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::SecretRefused { .. }
                | Self::OtherCluster { .. }
                | Self::OtherVersion { .. }
                | Self::NotServed { .. }
                | Self::NotSquall { .. }
                | Self::OtherUser { .. }
                | Self::Refused { .. }
                | Self::Denied { .. }
        )
    }
}

fn list(members: &[(NodeId, Address)]) -> String {
    let each: Vec<_> = members.iter().map(|(node, address)| format!("{node} ({address})")).collect();
    each.join(", ")
}

fn incomplete(missing: &[(Address, String)], coordinator: Option<&Address>) -> String {
    match (coordinator, missing) {
        (Some(coordinator), _) => {
            format!(
                ": see the log of the process at {coordinator}, which gathers them, for those that are missing"
            )
        }
        (None, []) => ": start the others, or raise `timeouts.join`".into(),
        (None, missing) => {
            format!("; missing are {}: start these, or raise `timeouts.join`", with_causes(missing))
        }
    }
}

/// Names addresses, each with a cause, which may begin with the address.
fn with_causes(missing: &[(Address, String)]) -> String {
    let text = |(address, cause): &(Address, String)| match cause.starts_with(&address.to_string()) {
        true => cause.clone(),
        false => format!("{address} ({cause})"),
    };
    missing.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn addresses(contacts: &[Address]) -> String {
    let each: Vec<_> = contacts.iter().map(ToString::to_string).collect();
    each.join(", ")
}

pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> BootstrapError {
    move |cause| BootstrapError::System { doing, cause }
}
