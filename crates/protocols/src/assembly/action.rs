//! What the driver of an assembly does, and how it ends (Derecho §2.2).

use std::collections::BTreeMap;

use squall_fabric::{Duration, Instant, NodeId};

use super::message::{AssemblyAnswer, AssemblyNotice};
use super::roster::Roster;

/// A connection that another process has made with this one. The driver gives them out in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitorId(pub u64);

/// What a process wants, and how long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssemblySettings {
    /// `1 <= members <= MEMBERS_MAX`.
    pub members: u32,
    /// A digest of whatever else all members must have the same.
    pub agreement: [u8; 32],
    /// The rank that this process wants.
    pub rank: Option<u32>,
    /// A number that no other process has: the names of sessions are made of it.
    pub nonce: u64,
    /// For all of it.
    pub timeout: Duration,
    /// For all members to report, after which the coordinator continues without those that have not.
    pub linking: Duration,
    /// For a coordinator to be silent, after which a follower leaves it.
    pub silence: Duration,
    /// For a connection to prove the secret, in the end; it is less in the first rounds.
    pub handshake: Duration,
    /// For a connection to prove the secret in the first round.
    pub patience_min: Duration,
    /// The shortest and the longest pause between rounds of the contacts.
    pub pauses: [Duration; 2],
}

impl AssemblySettings {
    /// For processes on real machines.
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

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyAction<A> {
    /// To send this process's claim ([`super::Assembler::claim`]) to a contact, and to hand in what has come of it
    /// ([`super::Assembler::handle_answer`], [`super::Assembler::handle_failure`]).
    Ask {
        /// Which.
        contact: A,
        /// How long it may take to connect and to prove the secret.
        patience: Duration,
        /// When to give up.
        until: Instant,
    },
    /// To link with a member, and to hand in what has come of it ([`super::Assembler::handle_linked`],
    /// [`super::Assembler::handle_failure`]).
    Link {
        /// Names the attempt.
        session: u64,
        /// The rank of this process.
        own: NodeId,
        /// The member.
        node: NodeId,
        /// Where it is reached.
        address: A,
        /// When to give up.
        until: Instant,
    },
    /// To keep the connection of the last call: with the coordinator, or with the member that it was to link with.
    Keep,
    /// To close the connection of the last call, which is of no use any more.
    Discard,
    /// To send an answer to a claim, and to close the connection unless it is [`AssemblyAnswer::Accepted`].
    Answer(VisitorId, AssemblyAnswer<A>),
    /// To accept a link.
    TakeLink(VisitorId),
    /// To send a notice to a process that was gathered.
    Notify(VisitorId, AssemblyNotice<A>),
    /// To close the connection with a process that was gathered.
    Close(VisitorId),
    /// To report to the coordinator that all links of this session stand.
    Report {
        /// Its name.
        session: u64,
    },
    /// To close all links with members; the connection with the coordinator is none.
    CloseLinks,
    /// To close the connection with the coordinator.
    Leave,
    /// To report to people.
    Progress(AssemblyProgress<A>),
    /// To begin.
    Begin(AssembledGroup<A>),
    /// To join the group that runs: this contact says so.
    Join(A),
    /// To close everything: this process gives up.
    GiveUp(AssemblyFailure<A>),
}

/// What happens, for people to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyProgress<A> {
    /// How many have been gathered, the coordinator included.
    Joined {
        /// The number.
        joined: u32,
    },
    /// A process that was gathered has gone.
    Left(VisitorId),
    /// As many as planned are here, and too few contacts are among them.
    NoQuorum {
        /// How many are here.
        present: u32,
    },
    /// A contact gathers that comes before this one, or is named by another.
    Following {
        /// Where it is reached.
        contact: A,
    },
    /// A contact does not accept this process yet.
    Calling {
        /// Which.
        contact: A,
        /// Why not.
        cause: String,
    },
    /// A member was lost before the first view had begun; the others are gathered again.
    MemberLost {
        /// Where it was reached.
        address: A,
    },
}

/// A group that can begin its first view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembledGroup<A> {
    /// Its members.
    pub roster: Roster<A>,
    /// The rank of this process.
    pub node: NodeId,
    /// The connection with each other member.
    pub links: BTreeMap<NodeId, LinkConnection>,
}

/// Which connection a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkConnection {
    /// A visitor's.
    Visitor(VisitorId),
    /// The one that [`AssemblyAction::Link`] has made.
    Called,
    /// The connection with the coordinator.
    Coordinator,
}

/// Why a process has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyFailure<A> {
    /// What all contacts say can never work; [`super::Assembler::take_error`] has it.
    Hopeless(String),
    /// No contact has accepted this process; [`super::Assembler::take_error`] may have more.
    Unreachable(String),
    /// Members are missing.
    Incomplete {
        /// How many have been gathered, the coordinator included.
        joined: u32,
    },
    /// As many as planned are here, and too few contacts are among them.
    NoQuorum {
        /// How many contacts are here.
        present: u32,
    },
    /// Members have not reported in time.
    Unready(Vec<(NodeId, A)>),
    /// A member cannot be reached.
    Unlinked(NodeId, A),
    /// The coordinator was lost when the others might have begun.
    CoordinatorLost(A),
    /// The coordinator has sent something that it must not.
    Nonsense(A, &'static str),
}
