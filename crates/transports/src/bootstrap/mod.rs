//! Bootstrap: how processes find and authenticate each other (the start of Derecho §2.2; views, joins and
//! leaves build upon it).
//!
//! **Contract.** Every process binds a [`BootstrapListener`] and has a [`BootstrapPlan`]. A core
//! (`squall_protocols::assembly`), which the crate `squall` drives, decides how the first members meet; the
//! sockets are here, in a [`MeetingPoint`]:
//!
//! 1. A process connects to a contact, proves the secret ([`Proof`]) and sends its [`ClaimFrame`]. A contact
//!    that accepts it keeps the connection, over which it sends [`CoordinatorNotice`]s: the number of
//!    processes that it has accepted, and then the roster.
//! 2. A member connects to others of the roster, proves the secret and names the session. These connections
//!    and the one with the coordinator become the links, when the coordinator has sent
//!    [`CoordinatorNotice::Go`].
//!
//! Nothing that comes from a socket is parsed before the proof, frames are bounded, every wait has a
//! deadline, and at most `BootstrapPlan::unauthenticated_max` connections wait for their proof. So a port
//! scanner, a silent client or a wrong secret costs a closed connection and nothing else. Over Unix sockets
//! the peer must run as the same user.
//!
//! A process joins a running group at the [`admission`] of any member, by [`JoinCalls`]. A process that
//! starts cannot know whether it is one of the first, or one that has died and rejoins: it sends its claim,
//! and an admission listener answers that the group is running.
//!
//! A member's port also takes the callers of its services ([`pair::PairServices`]): clients of its log and its
//! objects. `hello.md` beside this file lays out the first message of a connection for all that is to come.
//!
//! All frames travel in the encrypted records of a session ([`crate::session`]), on every kind of socket: a
//! relay that forwards the proof can neither read nor write them. After the bootstrap the streams carry no
//! more bootstrap data: not a byte is read beyond its last frame. Later data are encrypted if the session
//! says so ([`Encryption`]).

mod address;
pub mod admission;
mod agreement;
mod attempts;
mod caller;
mod calls;
mod error;
mod handshake_queue;
mod link;
mod listener;
mod meeting;
mod message;
mod own_addresses;
pub mod pair;
mod pre_join_responder;
mod relinking;
mod request;
mod secret;
#[cfg(test)]
mod tests;
mod wall_clock;
mod wire;

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use squall_fabric::NodeId;

pub use self::address::{ADDRESS_BYTES_MAX, Address, AddressError};
pub use self::admission::{
    Admission, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, JoinInfo, QUESTION_BYTES_MAX,
};
pub use self::agreement::{Agreement, SettingDifference};
pub use self::caller::CallError;
pub use self::calls::{ANSWER_WITHIN, JoinCalls, JoinReply, Joined, ask, join_contacts};
pub use self::error::BootstrapError;
pub use self::link::{LinkSocket, connect_within};
pub use self::listener::BootstrapListener;
pub use self::meeting::{ClaimAnswer, LinkSource, MeetingEvent, MeetingPoint};
pub use self::message::{ClaimFrame, CoordinatorNotice, Refusal, ReleaseFrame};
pub use self::relinking::{MemberLinks, Relinking};
#[doc(hidden)]
pub use self::request::read_foreign;
pub use self::secret::{SECRET_BYTES_MIN, Secret, SecretTooShort};
pub use self::wall_clock::{clock_lead_millis, described_lead, wall_clock_millis};
use crate::session::CallerKind;
pub use crate::session::{Encryption, Proof, ProofError};

/// The most members of a group: a full mesh of more is beyond the purpose of the multicast.
pub const MEMBERS_MAX: usize = 1024;

/// What all members must agree on beforehand, and what this member wants.
#[derive(Clone, Debug)]
pub struct BootstrapPlan {
    /// The cluster's name, the same for all members.
    pub cluster: String,
    /// The cluster's secret, the same for all members.
    pub secret: Secret,
    /// The addresses at which some of the processes listen, the same for all members, in the same order; any
    /// of these may coordinate. Without contacts, this process coordinates.
    pub contacts: Vec<Address>,
    /// `1 <= members <= MEMBERS_MAX`, the same for all members.
    pub members: u32,
    /// The rank that this process requests.
    pub rank: Option<u32>,
    /// Everything else that must be the same for all members, such as the subgroups' layout.
    pub agreement: Agreement,
    /// The timeout of the whole bootstrap.
    pub timeout: Duration,
    /// The timeout for one connection to prove the secret and send its request.
    pub handshake_timeout: Duration,
    /// The most connections that wait for their proof; at least 1.
    pub unauthenticated_max: usize,
    /// Whether the links are encrypted once they are established.
    pub encryption: Encryption,
    /// What a member serves at its port, beside its group.
    pub services: pair::PairServices,
    /// Its links, which are opened again when they break.
    pub links: MemberLinks,
}

impl BootstrapPlan {
    /// Creates a plan with the default limits: a minute in total, two seconds per handshake, 64 connections
    /// without proof.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret, members: u32) -> Self {
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            contacts: Vec::new(),
            members,
            rank: None,
            agreement: Agreement::default(),
            timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(2),
            unauthenticated_max: 64,
            encryption: Encryption::On,
            services: pair::PairServices::default(),
            links: MemberLinks::default(),
        }
    }

    /// Returns what both ends of each connection must prove.
    fn proof(&self) -> Proof {
        Proof::new(&self.secret, &self.cluster).with_encryption(self.encryption)
    }

    fn check(&self, takes: fn(&Address) -> bool, own: &Address) -> Result<(), BootstrapError> {
        let fail = |text: String| Err(BootstrapError::Plan(text));
        if self.members == 0 || self.members as usize > MEMBERS_MAX {
            return fail(format!("`members` is {}: set it to 1 to {MEMBERS_MAX}", self.members));
        }
        if self.unauthenticated_max == 0 {
            return fail(
                "`unauthenticated_max` is 0, so no process could connect: set it to at least 1".into(),
            );
        }
        if self.contacts.len() > MEMBERS_MAX {
            return fail(format!("there are {} `contacts`: list at most {MEMBERS_MAX}", self.contacts.len()));
        }
        match self.contacts.iter().find(|contact| !takes(contact)) {
            Some(contact) => fail(format!(
                "{own} and the contact {contact} are of different kinds: use either TCP or Unix addresses"
            )),
            None => Ok(()),
        }
    }
}

/// Returns a digest (SHA-256) of what processes have to agree on.
#[must_use]
pub fn digest(description: &[u8]) -> [u8; 32] {
    Sha256::digest(description).into()
}

/// A member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapMember {
    /// Its rank.
    pub node: NodeId,
    /// The address at which it listens.
    pub address: Address,
}

/// The progress of the bootstrap, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootstrapProgress {
    /// This process listens and begins.
    Listening {
        /// The address, with the port that the kernel has chosen.
        address: Address,
    },
    /// A contact does not accept this process yet or is not there, or a member does not accept a link. The same is reported seldom.
    Calling {
        /// The address of the contact or member.
        contact: Address,
        /// The cause.
        cause: String,
    },
    /// The number of processes that have joined, as far as this process knows.
    Joined {
        /// `1 <= joined <= members`.
        joined: u32,
        /// The number that is needed.
        members: u32,
    },
    /// Enough processes have joined, but too few contacts are among them.
    NoQuorum {
        /// The number of contacts that have joined.
        present: u32,
        /// The number of contacts that are needed.
        needed: u32,
        /// The first contact, if so few members are planned that it has to be among them.
        first: Option<Address>,
    },
    /// A member that had joined was lost; another process may take its place.
    Left {
        /// A description of the peer.
        peer: String,
    },
    /// The group restarts from its logs: how many members of its last view are here.
    Restarting {
        /// The number of that view.
        view: u64,
        /// How many of its members are here, this process included.
        present: usize,
        /// How many members it has.
        members: usize,
        /// How many have to be here.
        needed: usize,
    },
    /// A member has named the leader, which this process asks next.
    Redirected {
        /// The address at which the leader listens.
        leader: Address,
    },
    /// A member cannot admit this process now, which asks again.
    Waiting {
        /// The member that was asked.
        contact: Address,
        /// The reason.
        reason: String,
    },
    /// The leader has admitted this process, which connects to the members.
    Admitted {
        /// This process's number.
        node: NodeId,
        /// The number of members.
        members: usize,
    },
    /// A connection was closed because it did not prove the secret or its request was invalid.
    Rejected {
        /// A description of the peer.
        peer: String,
        /// The cause.
        cause: String,
    },
}

/// The callers of a member's port, and of the port of a process that is to be one.
const MEMBER_CALLERS: &[CallerKind] = &[
    CallerKind::Joiner,
    CallerKind::Member,
    CallerKind::LogClient,
    CallerKind::ObjectClient,
    CallerKind::Question,
];
