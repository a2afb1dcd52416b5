//! Bootstrap: how the members of a fixed list find and trust each other (Derecho §2.2 begins with it; views,
//! joins and leaves build upon it).
//!
//! **Law.** Every process binds a [`Listener`] and calls [`assemble`] with the same [`Plan`]. The process that
//! listens at the first contact coordinates:
//!
//! 1. The others connect to it, prove the secret ([`Proof`]) and ask to join. It refuses those whose plan
//!    differs, forgets those who die, and waits until there are as many as planned.
//! 2. It gives out ranks (itself 0, to the others what they have asked for, else by arrival) and sends to each
//!    the roster: all members in the order of their ranks, and a session number.
//! 3. Member *i* connects to each *j* with 0 < *j* < *i*, proves the secret and names the session; its
//!    connection with the coordinator is kept as the link with member 0.
//! 4. Each reports to the coordinator when all its links stand; when all have, the coordinator says go, and
//!    `assemble` returns everywhere. Before that, whoever dies ends the attempt for all, with its name.
//!
//! Nothing that comes from a socket is parsed before the proof, frames are bounded, every wait has a deadline,
//! and at most `Plan::unauthenticated_max` connections wait for their proof. So a port scanner, a silent client
//! or a wrong secret costs a closed connection and nothing else. Over Unix sockets the peer's user must be ours.
//!
//! A group that runs is joined at the [`desk`] of any member, by [`JoinCalls`]. [`meet`] finds out which it is to be: a process
//! that starts cannot know whether it is one of the first, or one that has died and comes again.
//!
//! All frames travel in the encrypted records of a session ([`crate::session`]), on every kind of socket: a relay that passes the
//! proof on can neither read nor write them. After the bootstrap the streams carry nothing of it any more: not a byte is read
//! beyond its last frame. What follows is encrypted if the session says so ([`Encryption`]).

mod address;
mod calls;
mod coordinator;
pub mod desk;
mod error;
mod link;
mod listener;
mod member;
mod mesh;
mod message;
pub mod pair;
mod porter;
mod reception;
mod request;
mod scout;
mod secret;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use squall_fabric::NodeId;

pub use self::address::{ADDRESS_BYTES_MAX, Address, AddressError};
pub use self::calls::{ANSWER_WITHIN, JoinCalls, JoinReply, Joined, Met, ask, join_contacts, meet};
pub use self::desk::{Admission, Asker, Desk, DeskEvent, DeskEvents, JoinInfo};
pub use self::error::BootstrapError;
pub use self::link::Link;
pub use self::listener::Listener;
pub use self::member::CallError;
pub use self::message::Refusal;
#[doc(hidden)]
pub use self::request::read_foreign;
use self::scout::Scout;
pub use self::secret::{SECRET_BYTES_MIN, Secret, SecretTooShort};
pub use crate::session::{Encryption, Proof, ProofError};

/// The most members of a group: a full mesh of more is beyond what the multicast is for.
pub const MEMBERS_MAX: usize = 512;

/// What all members have agreed on beforehand, and what this one wants.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster's name, the same everywhere.
    pub cluster: String,
    /// The cluster's secret, the same everywhere.
    pub secret: Secret,
    /// The first is where the coordinator listens. Without any, this process coordinates.
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

impl Plan {
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

    fn check(&self, coordinates: bool) -> Result<(), BootstrapError> {
        let fail = |text: String| Err(BootstrapError::Plan(text));
        if self.members == 0 || self.members as usize > MEMBERS_MAX {
            return fail(format!("{} members: choose 1 to {MEMBERS_MAX}", self.members));
        }
        if self.unauthenticated_max == 0 {
            return fail("nobody may connect: let `unauthenticated_max` be at least 1".into());
        }
        match self.rank {
            Some(rank) if coordinates && rank != 0 => fail(format!(
                "the process at the first contact has rank 0, not {rank}: change `rank` or `contacts`"
            )),
            _ => Ok(()),
        }
    }
}

/// A member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub node: NodeId,
    /// Where it listens.
    pub address: Address,
}

/// The group that came together.
#[derive(Debug)]
pub struct Assembly<S> {
    /// Our rank.
    pub node: NodeId,
    /// Names this start of the group; no two starts have the same.
    pub session: u64,
    /// All members in the order of their ranks, ourselves included.
    pub members: Vec<Member>,
    /// A blocking stream to each other member, in the order of their ranks. TCP streams have no delay set.
    pub streams: Vec<(NodeId, S)>,
}

/// What happens meanwhile, for people to see.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// This process listens and begins.
    Listening {
        /// Where, with the port that the kernel has chosen.
        address: Address,
    },
    /// The coordinator does not answer yet.
    Calling {
        /// The first contact.
        contact: Address,
        /// Why not.
        cause: String,
    },
    /// So many have joined, the coordinator included.
    Joined {
        /// `1 <= joined <= members`.
        joined: u32,
        /// The number needed.
        members: u32,
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

/// Meets the other members; returns when all links stand.
///
/// # Errors
/// [`BootstrapError`], each with what to do next. All connections are closed then; `listener` stays bound.
pub fn assemble<S: Link>(
    plan: &Plan,
    listener: &Listener<S>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Assembly<S::Secured>, BootstrapError> {
    assemble_unless(&Scout::none(), plan, listener, on_progress)
}

/// Meets the other members, unless the scout finds a group that runs.
fn assemble_unless<S: Link>(
    scout: &Scout,
    plan: &Plan,
    listener: &Listener<S>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Assembly<S::Secured>, BootstrapError> {
    let contact = plan.contacts.first().filter(|contact| !listener.is_at(contact));
    plan.check(contact.is_none())?;
    on_progress(Progress::Listening { address: listener.address().clone() });
    match contact {
        None => coordinator::coordinate(plan, listener, scout, on_progress),
        Some(contact) if S::takes(contact) => member::join(plan, contact, listener, scout, on_progress),
        Some(contact) => {
            let text = format!("{} and the contact {contact} are of different kinds", listener.address());
            Err(BootstrapError::Plan(text))
        }
    }
}

/// The purpose of the proofs of this sub-protocol.
const PURPOSE: &str = "bootstrap";
