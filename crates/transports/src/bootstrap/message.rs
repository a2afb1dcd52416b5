//! What members say to each other once both ends have proved the secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Address;

/// The first message of who has connected.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BootstrapRequest {
    /// To a contact: let me be one of the first members.
    Join(ClaimFrame),
    /// To a member of lower rank: this connection is the link between us.
    Link { session: u64, node: u32 },
    /// To any member of a group that runs: take me in.
    Enter { agreement: [u8; 32], listen: Vec<String>, name: String, rank: Option<u32> },
    /// To a member of a group that runs: I was admitted, I listen there, and this connection is the link between us.
    Hello { session: u64, node: u32, listen: String },
    /// To any member: how are you?
    Status { question: Vec<u8> },
    /// To a process outside any group: let us be two.
    Pair { wish: PairWish },
}

/// What a process says of itself that wants to be one of the first members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimFrame {
    /// The number of members that it expects.
    pub members: u32,
    /// The rank that it wants.
    pub rank: Option<u32>,
    /// A digest of whatever else all members must have the same.
    pub agreement: [u8; 32],
    /// Where it is reached.
    pub listen: Address,
    /// If it listens at a contact: its place, and the list that it has.
    pub contact: Option<(u32, Vec<Address>)>,
}

/// What a caller of [`super::pair`] would have this connection become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PairWish {
    /// What moves the data.
    Stream,
    /// The control stream of two RDMA devices.
    Rdma,
    /// Either, as the door likes.
    Any,
    /// The control stream of two RDMA devices if the door has one, too, that it would use, else what moves the data.
    RdmaIfYouToo,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BootstrapAnswer {
    Accepted,
    Refused(Refusal),
    /// Ask the leader instead.
    Redirect {
        leader: String,
    },
    /// To a claim: ask again; there is no group yet.
    Later {
        reason: String,
    },
    /// There is a group: ask again soon.
    Wait {
        reason: String,
    },
    /// Ask no more.
    Denied {
        reason: String,
    },
    /// You are in, as far as links go.
    Admit(AdmissionFrame),
    /// What was asked for.
    Status {
        bytes: Vec<u8>,
    },
    /// The pair is joined by RDMA, and this connection is its control stream.
    AcceptedByRdma,
}

/// What who is admitted has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdmissionFrame {
    pub(super) session: u64,
    pub(super) node: u32,
    pub(super) leader: u32,
    /// By number, each with the address at which it listens.
    pub(super) members: Vec<(u32, String)>,
    pub(super) token: Vec<u8>,
}

/// What a coordinator sends to a process that it has gathered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorNotice {
    /// How many processes have been gathered, the coordinator included. Also a sign of life.
    Joined {
        /// The number.
        joined: u32,
    },
    /// The members, in the order of their ranks.
    Roster {
        /// Names this attempt.
        session: u64,
        /// The rank of the process.
        node: u32,
        /// That of the coordinator.
        coordinator: u32,
        /// Where each is reached.
        listen: Vec<Address>,
    },
    /// All links stand. What follows on the connection belongs to the members.
    Go,
    /// The roster, if there was one, is void.
    Released(ReleaseFrame),
}

/// Why a process is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseFrame {
    /// The coordinator follows this contact.
    Redirect(Address),
    /// This member was lost; the coordinator gathers again, and those that it releases stay with it.
    MemberLost {
        /// Its rank.
        node: u32,
        /// Where it was reached.
        listen: Address,
    },
    /// The group runs, says this contact.
    Running(Address),
    /// The group has begun without this process.
    Complete,
    /// The time of the coordinator is over before these members had all their links.
    Unready(Vec<u32>),
}

/// What a member reports to the coordinator, or a joiner to the leader, when its links stand.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LinkReport {
    /// Those of the roster with this name.
    Linked {
        session: u64,
    },
    Connected,
}

/// Why a request was refused by a process that shares our secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The coordinator waits for another number of members.
    MemberCount {
        /// The number that the coordinator has.
        coordinator: u32,
    },
    /// What all members must have the same (the subgroups' layout) differs.
    Agreement,
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
    /// All members have joined already.
    Complete,
    /// The contact has another list of contacts.
    Contacts,
    /// The process is in another session, or expects no link from this rank.
    OtherSession,
    /// The request holds something that cannot be used.
    Unusable,
    /// The group has not come together yet.
    Assembling,
    /// It was asked for RDMA and has none.
    NoRdma,
    /// It takes RDMA and nothing else.
    RdmaOnly,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberCount { coordinator } => {
                write!(f, "it waits for {coordinator} members: give all processes the same `members`")
            }
            Self::Agreement => {
                f.write_str("its subgroups are configured differently: give all processes the same `subgroups`")
            }
            Self::RankTaken { rank } => {
                write!(f, "rank {rank} is taken by another process: give each process its own `rank`, or none")
            }
            Self::RankOutOfRange { rank } => {
                write!(f, "there is no rank {rank}: choose a `rank` from 0 to `members` - 1, or none")
            }
            Self::Complete => f.write_str(
                "all members have joined already: start no more processes than `members`, or wait for the next start",
            ),
            Self::Contacts => {
                f.write_str("its list of contacts is different: give all processes the same `contacts`")
            }
            Self::OtherSession => f.write_str("it is in another session, or expects no link from this process"),
            Self::Assembling => f.write_str("its group has not come together yet: try again"),
            Self::NoRdma => f.write_str(
                "it was told not to use RDMA, or has no device that it can use (`squall doctor` there says why): choose \
                 another transport",
            ),
            Self::RdmaOnly => {
                f.write_str("it takes RDMA and nothing else: let this end choose `verbs` or `auto`, too")
            }
            Self::Unusable => f.write_str("it cannot use what this process asked for: run the same release everywhere"),
        }
    }
}
