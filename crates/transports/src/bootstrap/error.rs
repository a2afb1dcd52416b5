//! What can go wrong while members meet, and what to do next.

use std::io;
use std::time::Duration;

use squall_fabric::NodeId;

use super::{Address, Refusal};

/// Why no group came together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The plan contradicts itself.
    #[error("the plan cannot be followed: {0}")]
    Plan(String),
    /// Another socket listens at the address.
    #[error("{address} is in use: end the process that listens there, or choose another `listen` address")]
    AddressInUse {
        /// Our listen address.
        address: Address,
    },
    /// The address belongs to another host.
    #[error("{address} is not an address of this host: choose one that is as `listen`")]
    AddressElsewhere {
        /// Our listen address.
        address: Address,
    },
    /// The socket cannot be opened for another reason.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// Our listen address.
        address: Address,
        /// What the system says.
        cause: io::Error,
    },
    /// No contact has accepted this process in time.
    #[error(
        "nobody at {} has accepted this process within {waited:.1?} (last: {cause}): start a process that \
         listens there, and compare its `listen` with our `contacts`",
        addresses(contacts)
    )]
    Unreachable {
        /// The contacts that were asked.
        contacts: Vec<Address>,
        /// How long we tried.
        waited: Duration,
        /// The last failure.
        cause: String,
    },
    /// The process at the address has another secret, or cannot prove ours.
    #[error("{address} does not have our secret: compare `secret` (or `secret_file`) of both processes")]
    SecretRefused {
        /// Whom we connected to.
        address: Address,
    },
    /// The process at the address belongs to another cluster.
    #[error(
        "{address} belongs to another cluster than `{cluster}`: compare the `cluster` names, or correct `contacts`"
    )]
    OtherCluster {
        /// Whom we connected to.
        address: Address,
        /// Our cluster.
        cluster: String,
    },
    /// The process at the address speaks another version.
    #[error(
        "{address} speaks version {theirs} of the protocol and we speak {ours}: run the same release everywhere"
    )]
    OtherVersion {
        /// Whom we connected to.
        address: Address,
        /// Our version.
        ours: u16,
        /// Its version.
        theirs: u16,
    },
    /// The process at the address speaks another protocol.
    #[error("what listens at {address} is not Squall: correct `contacts`")]
    NotSquall {
        /// Whom we connected to.
        address: Address,
    },
    /// The process at the address runs under another user, which shared memory does not allow.
    #[error("{address} is held by user {user}: members on one host must run under the same user")]
    OtherUser {
        /// Whom we connected to.
        address: Address,
        /// The user's number.
        user: u32,
    },
    /// A process that has our secret refused us.
    #[error("{address} refuses this process: {refusal}")]
    Refused {
        /// Whom we connected to.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// The group has come together before; it can be joined.
    #[error("a group of this cluster runs already: {contact} is one of its members")]
    Running {
        /// A member.
        contact: Address,
    },
    /// The time is over and members are missing.
    #[error(
        "{joined} of {members} members have joined within the time: start the others, or raise `timeouts.join`"
    )]
    Incomplete {
        /// How many have joined, the coordinator included.
        joined: u32,
        /// How many are needed.
        members: u32,
    },
    /// The time is over, and as many processes as planned are here, but too few contacts are among them.
    #[error(
        "enough processes are here, but only {present} of the contacts ({}) are among them, and {needed} are needed: \
         start those that listen at the others, the first one before all",
        addresses(contacts)
    )]
    NoQuorum {
        /// How many contacts are here.
        present: u32,
        /// How many are needed.
        needed: u32,
        /// All of them.
        contacts: Vec<Address>,
    },
    /// The time is over and links are missing.
    #[error(
        "no link with {} within the time: look whether these processes run, and whether their `listen` \
         addresses can be reached from here",
        list(missing)
    )]
    Unlinked {
        /// The members without a link, with the addresses at which they listen.
        missing: Vec<(NodeId, Address)>,
    },
    /// The time is over and other members have not connected to each other.
    #[error("{} could not connect to all others within the time: see what they report",
        if unready.is_empty() { "other members".into() } else { list(unready) })]
    Unready {
        /// The members whose links do not stand, with the addresses at which they listen, as far as is known.
        unready: Vec<(NodeId, Address)>,
    },
    /// The coordinator was lost when the others might have begun.
    #[error(
        "the coordinator at {contact} has gone when the group was about to begin: start this process again, to join \
         the group if the others have begun"
    )]
    CoordinatorLost {
        /// The contact that coordinated.
        contact: Address,
    },
    /// The coordinator says what makes no sense.
    #[error("the coordinator at {contact} sent {what}: run the same release everywhere")]
    Protocol {
        /// The contact that coordinates, or that has answered.
        contact: Address,
        /// What it sent.
        what: String,
    },
    /// No member has admitted this process in time.
    #[error(
        "no member at {} has admitted this process within {waited:.1?} (last: {cause}): look whether the group \
         runs, and compare `contacts` with where its members listen",
        addresses(contacts)
    )]
    NotAdmitted {
        /// Whom we asked.
        contacts: Vec<Address>,
        /// How long we tried.
        waited: Duration,
        /// The last failure, or what we were told to wait for.
        cause: String,
    },
    /// The group does not want this process.
    #[error("{address} refuses this process: {reason}")]
    Denied {
        /// Who said so.
        address: Address,
        /// Why, and what to do next.
        reason: String,
    },
    /// A member that was asked something did not answer.
    #[error(
        "{address} gives no answer ({cause}): look whether the member runs and is not stuck, or ask another"
    )]
    NoAnswer {
        /// Whom we asked.
        address: Address,
        /// What went wrong.
        cause: String,
    },
    /// The system failed.
    #[error("the system refused {doing}: {cause}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        cause: io::Error,
    },
}

fn list(members: &[(NodeId, Address)]) -> String {
    let each: Vec<_> = members.iter().map(|(node, address)| format!("{node} ({address})")).collect();
    each.join(", ")
}

fn addresses(contacts: &[Address]) -> String {
    let each: Vec<_> = contacts.iter().map(ToString::to_string).collect();
    each.join(", ")
}

pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> BootstrapError {
    move |cause| BootstrapError::System { doing, cause }
}
