//! The messages of members after both ends have proved the secret.

use std::fmt;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use super::pair::PairService;
use super::wall_clock::wall_clock_millis;
use super::{Address, Agreement, SettingDifference};
use crate::session::CallerKind;

/// The first message of the process that has connected.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BootstrapRequest {
    /// To a contact: the sender wants to be one of the first members.
    Join(ClaimFrame),
    /// To a member of lower rank: this connection is the link between the two; `clock` is the sender's wall clock, in milliseconds since
    /// 1970.
    Link { session: u64, node: u32, clock: u64 },
    /// To any member of a running group: the sender wants to join.
    Enter { agreement: Agreement, listen: Vec<String>, name: String, rank: Option<u32> },
    /// To a member of a running group: the sender was admitted, listens at `listen`, and this connection is
    /// the link between the two; `clock` as in a link.
    Hello { session: u64, node: u32, listen: String, clock: u64 },
    /// To any member: a status query.
    Status { question: Vec<u8> },
    /// To a process outside any group: the sender wants a pair of two processes.
    Pair { wish: PairWish },
    /// To a member of a running group: the sender wants a pair with one of its services.
    Serve { service: PairService, wish: PairWish },
    /// To a member: this connection takes the place of the link that this pair had, or is its sentinel (number 0). The caller's ballot is this number and its node, and it
    /// has handled that many words of what the receiver sent it.
    Reopen { pair: [u8; 32], number: u64, node: u32, handled: u64 },
}

impl BootstrapRequest {
    /// Asks for a link as the first member `own`.
    pub(super) fn link(session: u64, own: NodeId) -> Self {
        Self::Link { session, node: own.0, clock: wall_clock_millis() }
    }

    /// Asks for a link as the joiner `node`, which listens at `listen`.
    pub(super) fn hello(session: u64, node: u32, listen: String) -> Self {
        Self::Hello { session, node, listen, clock: wall_clock_millis() }
    }

    /// Returns the kind that the caller's hello must have named.
    pub(super) const fn kind(&self) -> CallerKind {
        match self {
            Self::Join(_) | Self::Enter { .. } => CallerKind::Joiner,
            Self::Link { .. } | Self::Hello { .. } | Self::Reopen { .. } => CallerKind::Member,
            Self::Status { .. } => CallerKind::Question,
            Self::Pair { .. } => CallerKind::Stream,
            Self::Serve { service, .. } => service.kind(),
        }
    }
}

/// The claim of a process that wants to be one of the first members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimFrame {
    /// The number of members that it expects.
    pub members: u32,
    /// The rank that it wants.
    pub rank: Option<u32>,
    /// Everything else that must be equal for all members.
    pub agreement: Agreement,
    /// The address at which it is reached.
    pub listen: Address,
    /// If it listens at a contact: its index in the list of contacts, and that list.
    pub contact: Option<(u32, Vec<Address>)>,
}

/// What a caller of [`super::pair`] wants this connection to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PairWish {
    /// The connection that carries the data.
    Stream,
    /// The control stream of two RDMA devices.
    Rdma,
    /// Either, as the listener decides.
    Any,
    /// The control stream of two RDMA devices if the listener also has one that it would use, otherwise the
    /// connection that carries the data.
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
    /// Do not ask again.
    Denied {
        reason: String,
    },
    /// The process is admitted and may link with the members.
    Admit(AdmissionFrame),
    /// The answer to a status query.
    Status {
        bytes: Vec<u8>,
    },
    /// The pair is connected by RDMA, and this connection is its control stream.
    AcceptedByRdma,
    /// The connection is the link now; the sender has handled that many words of what the receiver sent it.
    Reopened {
        handled: u64,
    },
    /// The sender knows of a ballot with this number, which is not lower.
    BallotTooLow {
        number: u64,
    },
    /// The sender does not have this pair, or has lost it.
    Gone,
}

/// What a joiner that is admitted must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdmissionFrame {
    pub(super) session: u64,
    pub(super) node: u32,
    pub(super) leader: u32,
    /// By number, each with the address at which it listens.
    pub(super) members: Vec<(u32, String)>,
    pub(super) token: Vec<u8>,
}

/// A notice from a coordinator to a process that it has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorNotice {
    /// The number of processes that have been accepted, the coordinator included. Also a sign of life.
    Joined {
        /// The number.
        joined: u32,
    },
    /// The members, in the order of their ranks.
    Roster {
        /// The id of this attempt.
        session: u64,
        /// The rank of the process.
        node: u32,
        /// The rank of the coordinator.
        coordinator: u32,
        /// The addresses at which the members are reached.
        listen: Vec<Address>,
    },
    /// All links are established. The bytes that follow on the connection belong to the members.
    Go,
    /// The process is released; the roster, if there was one, is void.
    Released(ReleaseFrame),
}

/// Why a process is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseFrame {
    /// The coordinator now follows this contact.
    Redirect(Address),
    /// This member was lost; the coordinator starts over, and the processes that it releases stay with it.
    MemberLost {
        /// Its rank.
        node: u32,
        /// The address at which it was reached.
        listen: Address,
    },
    /// This contact reports that the group is running.
    Running(Address),
    /// The group has begun without this process.
    Complete,
    /// The coordinator timed out before these members had all their links.
    Unready(Vec<u32>),
}

/// The report of a member to the coordinator, or of a joiner to the leader, when its links are established.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LinkReport {
    /// The links of the roster with this session.
    Linked {
        session: u64,
    },
    Connected,
}

/// Why a process with the same secret refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The coordinator waits for a different number of members.
    MemberCount {
        /// The number that the coordinator has.
        coordinator: u32,
    },
    /// The configuration that must be equal for all members (such as the subgroups' layout) differs.
    Agreement(Box<SettingDifference>),
    /// Another process has this rank.
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
    /// The contact has a different list of contacts.
    Contacts,
    /// The process is in another session, or expects no link from this rank.
    OtherSession,
    /// The request contains something that cannot be used.
    Unusable,
    /// The group has not been assembled yet.
    Assembling,
    /// The process has no RDMA, which was requested.
    NoRdma,
    /// The process accepts only RDMA.
    RdmaOnly,
}

impl Refusal {
    /// Returns the reason in the words of the process that refuses; `Display` has it in those of the process that is refused.
    #[must_use]
    pub fn at_refusing(&self) -> String {
        let text = match self {
            Self::MemberCount { coordinator } => {
                return format!(
                    "its `members` is not {coordinator}, as it is here (set the same `members` for all processes)"
                );
            }
            Self::Agreement(difference) => {
                return format!("{} (set the same for all processes)", difference.at_refusing());
            }
            Self::RankTaken { rank } => {
                return format!(
                    "it asks for rank {rank}, which another process has (set a different `rank` for each process, or none)"
                );
            }
            Self::RankOutOfRange { rank } => {
                return format!("it asks for rank {rank}, which is not below `members` (correct its `rank`)");
            }
            Self::Complete => {
                "all members have joined already (start no more processes than `members`, or wait for the next start)"
            }
            Self::Contacts => {
                "its list of contacts is not that of this process (set the same `contacts` for all processes)"
            }
            Self::OtherSession => "it is in another session, or no link with it is expected here",
            Self::Assembling => "it wants to join a group that has not been assembled yet",
            Self::NoRdma => "it asks for RDMA, which this process does not use (see `squall doctor`)",
            Self::RdmaOnly => "it does not ask for RDMA, the only transport that this process accepts",
            Self::Unusable => "its request cannot be used (run the same release everywhere)",
        };
        text.into()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberCount { coordinator } => {
                write!(f, "it waits for {coordinator} members (set the same `members` for all processes)")
            }
            Self::Agreement(difference) => {
                write!(f, "{} (set the same for all processes)", difference.at_refused())
            }
            Self::RankTaken { rank } => {
                write!(f, "another process has rank {rank} (set a different `rank` for each process, or none)")
            }
            Self::RankOutOfRange { rank } => {
                write!(f, "there is no rank {rank} (set a `rank` from 0 to `members` - 1, or none)")
            }
            Self::Complete => f.write_str(
                "all members have joined already (start no more processes than `members`, or wait for the next start)",
            ),
            Self::Contacts => {
                f.write_str("its list of contacts is different (set the same `contacts` for all processes)")
            }
            Self::OtherSession => f.write_str("it is in another session, or expects no link from this process"),
            Self::Assembling => f.write_str("its group has not been assembled yet (try again)"),
            Self::NoRdma => f.write_str(
                "it is configured not to use RDMA, or has no usable device (run `squall doctor` there for the reason); choose \
                 another transport",
            ),
            Self::RdmaOnly => {
                f.write_str("it accepts only RDMA (set `verbs` or `auto` at this end, too)")
            }
            Self::Unusable => f.write_str("it cannot use this process's request (run the same release everywhere)"),
        }
    }
}
