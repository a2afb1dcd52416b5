//! What members say to each other once both ends have proved the secret.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first message of who has connected.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// To the coordinator: take me in.
    Join { members: u32, rank: Option<u32>, agreement: [u8; 32], listen: String },
    /// To a member of lower rank: this connection is the link between us.
    Link { session: u64, node: u32 },
    /// To any member of a group that runs: take me in.
    Enter { agreement: [u8; 32], listen: Vec<String>, name: String, rank: Option<u32> },
    /// To a member of a group that runs: I was admitted, I listen there, and this connection is the link between us.
    Hello { session: u64, node: u32, listen: String },
    /// To any member: how are you?
    Status { question: Vec<u8> },
    /// To a process outside any group: let us be two.
    Pair { wish: Wish },
}

impl Request {
    /// The answer to a request that only a group that runs can take.
    pub(super) fn too_early(&self) -> Option<Refusal> {
        match self {
            Self::Join { .. } | Self::Link { .. } | Self::Pair { .. } => None,
            Self::Enter { .. } | Self::Hello { .. } | Self::Status { .. } => Some(Refusal::Assembling),
        }
    }
}

/// What a caller of [`super::pair`] would have this connection become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wish {
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
pub(super) enum Answer {
    Accepted,
    Refused(Refusal),
    /// Ask the leader instead.
    Redirect {
        leader: String,
    },
    /// Ask again soon.
    Wait {
        reason: String,
    },
    /// Ask no more.
    Denied {
        reason: String,
    },
    /// You are in, as far as links go.
    Admit(Admittance),
    /// What was asked for.
    Status {
        bytes: Vec<u8>,
    },
    /// The pair is joined by RDMA, and this connection is its control stream.
    AcceptedByRdma,
}

/// What who is admitted has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Admittance {
    pub(super) session: u64,
    pub(super) node: u32,
    pub(super) leader: u32,
    /// By number, each with the address at which it listens.
    pub(super) members: Vec<(u32, String)>,
    pub(super) token: Vec<u8>,
}

/// What the coordinator says to those whom it has taken in.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Notice {
    /// So many processes have joined, the coordinator included.
    Joined { joined: u32 },
    /// All have joined. The members are in the order of their ranks.
    Roster { session: u64, node: u32, listen: Vec<String> },
    /// All links stand.
    Go,
    /// The bootstrap is over without a result.
    Stopped(Stop),
}

/// What a member says to the coordinator, or a newcomer to the leader, when its links stand.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    Linked,
    Connected,
}

/// Why the coordinator gave up.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stop {
    /// The time was over when so many had joined.
    Incomplete { joined: u32 },
    /// The time was over before these members had all their links.
    Unready { nodes: Vec<u32> },
    /// A member died after all had joined. Who hears of it may not have the roster yet.
    MemberLost { node: u32, listen: String },
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
    /// The rank is not below the number of members, or it is the coordinator's 0.
    RankOutOfRange {
        /// The rank.
        rank: u32,
    },
    /// All members have joined already.
    Complete,
    /// The process does not coordinate.
    NotCoordinator {
        /// The first of its own contacts.
        coordinator: String,
    },
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
            Self::RankOutOfRange { rank } => write!(
                f,
                "rank {rank} cannot be had: the coordinator has 0, the others may ask for 1 to `members` - 1"
            ),
            Self::Complete => f.write_str(
                "all members have joined already: start no more processes than `members`, or wait for the next start",
            ),
            Self::NotCoordinator { coordinator } => write!(
                f,
                "it does not coordinate, its own first contact is {coordinator}: give all processes the same `contacts`"
            ),
            Self::OtherSession => f.write_str("it is in another session: start all processes again"),
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
