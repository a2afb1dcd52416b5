//! The actions of the driver of an assembly, and the outcomes of an assembly (Derecho §2.2).

use std::collections::BTreeMap;

use squall_fabric::{Duration, Instant, NodeId};

use super::message::{AssemblyAnswer, AssemblyNotice};
use super::roster::Roster;

/// Identifies a connection that another process has made to this one. The driver assigns these in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitorId(pub u64);

/// The settings and the time limits of a process that assembles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssemblySettings {
    /// `1 <= members <= MEMBERS_MAX`.
    pub members: u32,
    /// A digest of everything else that all members must have in common.
    pub agreement: [u8; 32],
    /// The rank that this process asks for.
    pub rank: Option<u32>,
    /// A number that no other process has. The names of sessions derive from it.
    pub nonce: u64,
    /// The time limit for the whole assembly.
    pub timeout: Duration,
    /// The time in which all members must report; then the coordinator continues without those that have not.
    pub linking: Duration,
    /// How long a coordinator may be silent before a follower leaves it.
    pub silence: Duration,
    /// The time limit for a connection to prove the secret in the later rounds; the first rounds allow less.
    pub handshake: Duration,
    /// The time limit for a connection to prove the secret in the first round.
    pub patience_min: Duration,
    /// The shortest and the longest pause between rounds of attempts at all contacts.
    pub pauses: [Duration; 2],
}

impl AssemblySettings {
    /// Returns the settings for real machines.
    #[must_use]
    pub fn new(members: u32, timeout: Duration, handshake: Duration) -> Self {
        Self {
            members,
            agreement: [0; 32],
            rank: None,
            nonce: 0,
            timeout,
            linking: timeout / 2,
            silence: (handshake * 2).max(Duration::from_secs(2)),
            handshake,
            patience_min: Duration::from_millis(250).min(handshake),
            pauses: [Duration::from_millis(10), Duration::from_millis(250)],
        }
    }
}

/// An action for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyAction<A> {
    /// Sends this process's claim ([`super::Assembler::claim`]) to a contact. The driver hands in the result
    /// ([`super::Assembler::handle_answer`], [`super::Assembler::handle_failure`]).
    Ask {
        /// The contact.
        contact: A,
        /// The time limit for connecting and proving the secret.
        patience: Duration,
        /// When the driver gives up.
        until: Instant,
    },
    /// Links with a member. The driver hands in the result ([`super::Assembler::handle_linked`],
    /// [`super::Assembler::handle_failure`]).
    Link {
        /// Names the attempt.
        session: u64,
        /// The rank of this process.
        own: NodeId,
        /// The member.
        node: NodeId,
        /// Its address.
        address: A,
        /// When the driver gives up.
        until: Instant,
    },
    /// Keeps the connection of the last call: with the coordinator, or with the member to be linked.
    Keep,
    /// Closes the connection of the last call, which is not needed any more.
    Discard,
    /// Sends an answer to a claim, and closes the connection unless the answer is [`AssemblyAnswer::Accepted`].
    Answer(VisitorId, AssemblyAnswer<A>),
    /// Accepts a link.
    TakeLink(VisitorId),
    /// Sends a notice to a gathered process.
    Notify(VisitorId, AssemblyNotice<A>),
    /// Closes the connection with a gathered process.
    Close(VisitorId),
    /// Reports to the coordinator that all links of this session are established.
    Report {
        /// Names the session.
        session: u64,
    },
    /// Closes all links with members. The connection with the coordinator is not one of them.
    CloseLinks,
    /// Closes the connection with the coordinator.
    Leave,
    /// Reports progress to people.
    Progress(AssemblyProgress<A>),
    /// Begins the first view.
    Begin(AssembledGroup<A>),
    /// Joins the running group that this contact reported.
    Join(A),
    /// Closes everything: this process gives up.
    GiveUp(AssemblyFailure<A>),
}

/// The progress of an assembly, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyProgress<A> {
    /// The number of gathered processes has changed.
    Joined {
        /// Their number, the coordinator included.
        joined: u32,
    },
    /// A gathered process is gone.
    Left(VisitorId),
    /// The planned number of processes has been gathered, but too few of them are contacts.
    NoQuorum {
        /// The number of contacts among them.
        present: u32,
    },
    /// This process follows a contact that gathers.
    Following {
        /// Its address.
        contact: A,
    },
    /// A contact has not accepted this process yet, or is not there. A process that gathers reports this, too.
    Calling {
        /// The contact.
        contact: A,
        /// The reason.
        cause: String,
    },
    /// A member was lost before the first view began; the others are gathered again.
    MemberLost {
        /// Its address.
        address: A,
    },
}

/// A group that is ready to begin its first view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembledGroup<A> {
    /// Its members.
    pub roster: Roster<A>,
    /// The rank of this process.
    pub node: NodeId,
    /// The connection with each of the other members.
    pub links: BTreeMap<NodeId, LinkConnection>,
}

/// The connection that serves as a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkConnection {
    /// The connection of a visitor.
    Visitor(VisitorId),
    /// The connection that [`AssemblyAction::Link`] made.
    Called,
    /// The connection with the coordinator.
    Coordinator,
}

/// Why a process gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyFailure<A> {
    /// According to all contacts, the assembly can never succeed; [`super::Assembler::take_error`] returns the error.
    Hopeless(String),
    /// No contact accepted this process; [`super::Assembler::take_error`] may return an error with details.
    Unreachable(String),
    /// Members are missing.
    Incomplete {
        /// The number of gathered processes, the coordinator included.
        joined: u32,
        /// The contacts that are not among them, each with what has come of the last call to it; none if this process follows another.
        missing: Vec<(A, String)>,
        /// The contact that this process follows.
        coordinator: Option<A>,
    },
    /// The planned number of processes has been gathered, but too few of them are contacts.
    NoQuorum {
        /// The number of contacts among them.
        present: u32,
        /// The other contacts, each with what has come of the last call to it.
        missing: Vec<(A, String)>,
    },
    /// These members did not report in time.
    Unready(Vec<(NodeId, A)>),
    /// This member is unreachable.
    Unlinked(NodeId, A),
    /// The coordinator was lost at a time when the others may have begun.
    CoordinatorLost(A),
    /// The coordinator sent something that the protocol does not allow.
    Nonsense(A, &'static str),
}
