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
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Accepted,
    Refused(Refusal),
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

/// What a member says to the coordinator when its links stand.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    Linked,
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
            Self::Unusable => f.write_str("it cannot use what this process asked for: run the same release everywhere"),
        }
    }
}
