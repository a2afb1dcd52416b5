//! Bootstrap: how processes find and trust each other (Derecho §2.2 begins with it; views, joins and leaves build upon it).
//!
//! **Law.** Every process binds a [`BootstrapListener`] and has a [`BootstrapPlan`]. How the first members meet is decided by a
//! core (`squall_protocols::assembly`), which the crate `squall` drives; the sockets are here, in a [`MeetingPoint`]:
//!
//! 1. A process connects to a contact, proves the secret ([`Proof`]) and sends its [`ClaimFrame`]. A contact that accepts it
//!    keeps the connection, over which it sends [`CoordinatorNotice`]s: how many it has gathered, and then the roster.
//! 2. A member connects to others of the roster, proves the secret and names the session. These connections and the one with
//!    the coordinator become the links, when the coordinator has said go.
//!
//! Nothing that comes from a socket is parsed before the proof, frames are bounded, every wait has a deadline,
//! and at most `BootstrapPlan::unauthenticated_max` connections wait for their proof. So a port scanner, a silent client
//! or a wrong secret costs a closed connection and nothing else. Over Unix sockets the peer's user must be ours.
//!
//! A group that runs is joined at the [`admission`] of any member, by [`JoinCalls`]. A process that starts cannot know whether
//! it is one of the first, or one that has died and comes again: it sends its claim, and an admission listener answers that the
//! group runs.
//!
//! All frames travel in the encrypted records of a session ([`crate::session`]), on every kind of socket: a relay that passes the
//! proof on can neither read nor write them. After the bootstrap the streams carry nothing of it any more: not a byte is read
//! beyond its last frame. What follows is encrypted if the session says so ([`Encryption`]).

mod address;
pub mod admission;
mod caller;
mod calls;
mod error;
mod handshake_queue;
mod link;
mod listener;
mod meeting;
mod message;
pub mod pair;
mod pre_join_responder;
mod request;
mod secret;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use squall_fabric::NodeId;

pub use self::address::{ADDRESS_BYTES_MAX, Address, AddressError};
pub use self::admission::{Admission, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, JoinInfo};
pub use self::caller::CallError;
pub use self::calls::{ANSWER_WITHIN, JoinCalls, JoinReply, Joined, ask, join_contacts};
pub use self::error::BootstrapError;
pub use self::link::LinkSocket;
pub use self::listener::BootstrapListener;
pub use self::meeting::{ClaimAnswer, LinkSource, MeetingEvent, MeetingPoint};
pub use self::message::{ClaimFrame, CoordinatorNotice, Refusal, ReleaseFrame};
#[doc(hidden)]
pub use self::request::read_foreign;
pub use self::secret::{SECRET_BYTES_MIN, Secret, SecretTooShort};
pub use crate::session::{Encryption, Proof, ProofError};

/// The most members of a group: a full mesh of more is beyond what the multicast is for.
pub const MEMBERS_MAX: usize = 512;

/// What all members have agreed on beforehand, and what this one wants.
#[derive(Clone, Debug)]
pub struct BootstrapPlan {
    /// The cluster's name, the same everywhere.
    pub cluster: String,
    /// The cluster's secret, the same everywhere.
    pub secret: Secret,
    /// Where some of the processes listen, the same everywhere, in the same order; any of these may coordinate. Without any,
    /// this process does.
    pub contacts: Vec<Address>,
    /// `1 <= members <= MEMBERS_MAX`, the same everywhere.
    pub members: u32,
    /// The rank that this process asks for.
    pub rank: Option<u32>,
    /// A digest of whatever else must be the same everywhere, such as the subgroups' layout.
    pub agreement: [u8; 32],
    /// The time for all of it.
    pub timeout: Duration,
    /// The time for one connection to prove the secret and say what it wants.
    pub handshake_timeout: Duration,
    /// The most connections that wait for their proof; at least 1.
    pub unauthenticated_max: usize,
    /// Whether the links are encrypted when they stand.
    pub encryption: Encryption,
}

impl BootstrapPlan {
    /// A plan with the usual limits: a minute in all, two seconds per handshake, 64 connections without proof.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret, members: u32) -> Self {
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            contacts: Vec::new(),
            members,
            rank: None,
            agreement: [0; 32],
            timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(2),
            unauthenticated_max: 64,
            encryption: Encryption::On,
        }
    }

    /// Sets the agreement to a digest of `description`.
    pub fn agree_on(&mut self, description: &[u8]) {
        self.agreement = Sha256::digest(description).into();
    }

    /// What both ends of each connection have to prove.
    fn proof(&self) -> Proof {
        Proof::new(&self.secret, &self.cluster, PURPOSE).with_encryption(self.encryption)
    }

    fn check(&self, takes: fn(&Address) -> bool, own: &Address) -> Result<(), BootstrapError> {
        let fail = |text: String| Err(BootstrapError::Plan(text));
        if self.members == 0 || self.members as usize > MEMBERS_MAX {
            return fail(format!("{} members: choose 1 to {MEMBERS_MAX}", self.members));
        }
        if self.unauthenticated_max == 0 {
            return fail("nobody may connect: let `unauthenticated_max` be at least 1".into());
        }
        if self.contacts.len() > MEMBERS_MAX {
            return fail(format!("{} contacts: name at most {MEMBERS_MAX}", self.contacts.len()));
        }
        match self.contacts.iter().find(|contact| !takes(contact)) {
            Some(contact) => fail(format!("{own} and the contact {contact} are of different kinds")),
            None => Ok(()),
        }
    }
}

/// A member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapMember {
    /// Its rank.
    pub node: NodeId,
    /// Where it listens.
    pub address: Address,
}

/// What happens meanwhile, for people to see.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootstrapProgress {
    /// This process listens and begins.
    Listening {
        /// Where, with the port that the kernel has chosen.
        address: Address,
    },
    /// A contact does not accept this process yet, or a member no link.
    Calling {
        /// Which.
        contact: Address,
        /// Why not.
        cause: String,
    },
    /// How many have joined, as far as this process knows.
    Joined {
        /// `1 <= joined <= members`.
        joined: u32,
        /// The number needed.
        members: u32,
    },
    /// As many processes as planned are here, but too few contacts are among them.
    NoQuorum {
        /// How many contacts are here.
        present: u32,
        /// How many are needed.
        needed: u32,
    },
    /// A member that had joined has gone again; another may take its place.
    Left {
        /// The peer in words.
        peer: String,
    },
    /// A member has named the leader, whom we ask next.
    Redirected {
        /// Where it listens.
        leader: Address,
    },
    /// A member cannot admit us now; we ask again.
    Waiting {
        /// Whom we asked.
        contact: Address,
        /// Why.
        reason: String,
    },
    /// The leader has admitted us; we connect to the members.
    Admitted {
        /// Our number.
        node: NodeId,
        /// How many members there are.
        members: usize,
    },
    /// A connection was closed because it did not prove the secret or asked for what cannot be.
    Rejected {
        /// The peer in words.
        peer: String,
        /// What was wrong.
        cause: String,
    },
}

/// The purpose of the proofs of this sub-protocol.
const PURPOSE: &str = "bootstrap";
