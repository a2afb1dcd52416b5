//! The answers of a member to a process that asks to join (Derecho §3.3).

use squall_fabric::NodeId;

/// A member's answer to a request to join. `A` is the type of the members' addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinAnswer<A> {
    /// The process is the leader's candidate.
    Admit(Admitted<A>),
    /// The leader is reached at this address.
    Redirect(A),
    /// The process is to ask again soon. The reason is meant for people.
    Wait(String),
    /// The process is to give up. The reason says what to do next.
    Refuse(String),
}

/// What a candidate needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<A> {
    /// The candidate's number, which no node has ever had \[J1\].
    pub node: NodeId,
    /// The rank that it will have in the configuration, which is its tag in the views. No member has this rank.
    pub rank: u64,
    /// The member that admitted it.
    pub leader: NodeId,
    /// The members with which the candidate links, the leader included, and the address of each.
    pub members: Vec<(NodeId, A)>,
}
