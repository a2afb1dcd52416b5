//! What processes that assemble send each other (Derecho §2.2).

use squall_fabric::NodeId;

/// What a process says that wants to be among the first members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssemblyClaim<A> {
    /// The number of members that it expects.
    pub members: u32,
    /// A digest of whatever else all members must have the same.
    pub agreement: [u8; 32],
    /// The rank that it wants.
    pub rank: Option<u32>,
    /// Where it is reached.
    pub listen: A,
    /// If it listens at a contact: its place, and the list that it has.
    pub contact: Option<(u32, Vec<A>)>,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyAnswer<A> {
    /// The process is gathered; the connection stays open, for [`AssemblyNotice`]s.
    Accepted,
    /// That contact gathers.
    Redirect(A),
    /// Ask again; the reason is for people.
    Later(String),
    /// The process cannot be a member, or not with this configuration.
    Refused(AssemblyRefusal),
    /// The group runs.
    Running,
}

/// Why a claim, or a link, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyRefusal {
    /// The coordinator waits for another number of members.
    MemberCount {
        /// The number that the coordinator has.
        coordinator: u32,
    },
    /// What all members must have the same differs.
    Agreement,
    /// The contact has another list of contacts.
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

/// What a coordinator sends to a process that it has gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyNotice<A> {
    /// How many processes have been gathered, the coordinator included. Also a sign of life.
    Joined {
        /// The number.
        joined: u32,
    },
    /// The members, in the order of their ranks.
    Roster {
        /// Names this attempt; no two have the same name.
        session: u64,
        /// The rank of the process, its number in the first view.
        node: NodeId,
        /// That of the coordinator.
        coordinator: NodeId,
        /// Where each is reached.
        listen: Vec<A>,
    },
    /// All links stand.
    Go,
    /// The roster, if there was one, is void: the coordinator never says go for it.
    Released(ReleaseReason<A>),
}

/// Why a process is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseReason<A> {
    /// The coordinator follows this contact.
    Redirect(A),
    /// This member was lost. The coordinator gathers again, and those that it releases stay with it.
    MemberLost {
        /// Its rank.
        node: NodeId,
        /// Where it was reached.
        listen: A,
    },
    /// The group runs, says this contact.
    Running(A),
    /// The group has begun without this process.
    Complete,
    /// The time of the coordinator is over before these members had all their links.
    Unready(Vec<NodeId>),
}
