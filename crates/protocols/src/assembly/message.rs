//! The messages of assembly (Derecho §2.2).

use squall_fabric::NodeId;

/// The claim of a process that asks to be among the first members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssemblyClaim<A> {
    /// The number of members that it expects.
    pub members: u32,
    /// A digest of everything else that all members must have in common.
    pub agreement: [u8; 32],
    /// The rank that it asks for.
    pub rank: Option<u32>,
    /// Its address.
    pub listen: A,
    /// If it is a contact, its position on the list of contacts, and the list that it has.
    pub contact: Option<(u32, Vec<A>)>,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyAnswer<A> {
    /// The process is gathered. The connection stays open for [`AssemblyNotice`]s.
    Accepted,
    /// The process is to ask this contact, which gathers.
    Redirect(A),
    /// The process is to ask again later. The reason is meant for people.
    Later(String),
    /// The process cannot be a member, or not with its configuration.
    Refused(AssemblyRefusal),
    /// The group is already running.
    Running,
}

/// Why a claim, or a link, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyRefusal {
    /// The coordinator expects another number of members.
    MemberCount {
        /// The number that the coordinator expects.
        coordinator: u32,
    },
    /// The digests of what all members must have in common differ.
    Agreement,
    /// The two processes have different lists of contacts.
    Contacts,
    /// Another process has asked for this rank.
    RankTaken {
        /// The rank.
        rank: u32,
    },
    /// The rank is not below the number of members.
    RankOutOfRange {
        /// The rank.
        rank: u32,
    },
    /// No link is expected from this process.
    OtherSession,
}

/// A notice from a coordinator to a process that it has gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyNotice<A> {
    /// The number of gathered processes. It also serves as a sign of life.
    Joined {
        /// The number.
        joined: u32,
    },
    /// The members of the first view.
    Roster {
        /// Names this attempt; no two attempts have the same name.
        session: u64,
        /// The rank of the process, its number in the first view.
        node: NodeId,
        /// The rank of the coordinator.
        coordinator: NodeId,
        /// The address of each member, in the order of the ranks.
        listen: Vec<A>,
    },
    /// All links are established: the first view begins.
    Go,
    /// The roster, if there was one, is void: the coordinator never sends go for it.
    Released(ReleaseReason<A>),
}

/// Why a process is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseReason<A> {
    /// The coordinator follows this contact.
    Redirect(A),
    /// This member was lost. The coordinator gathers again, and the released processes stay with it.
    MemberLost {
        /// Its rank.
        node: NodeId,
        /// Its address.
        listen: A,
    },
    /// The group is already running, as this contact reported.
    Running(A),
    /// The group has begun without this process.
    Complete,
    /// The coordinator's time is over, and these members have not reported all their links.
    Unready(Vec<NodeId>),
}
