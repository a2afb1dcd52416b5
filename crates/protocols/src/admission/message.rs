//! What a member answers a process that asks to join (Derecho §3.3).

use squall_fabric::NodeId;

/// The answer of a member, which is reached at an `A` as all members are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinAnswer<A> {
    /// The process is the leader's candidate.
    Admit(Admitted<A>),
    /// The leader is reached there.
    Redirect(A),
    /// Ask again soon; the reason is for people.
    Wait(String),
    /// Give up; the reason says what to do next.
    Refuse(String),
}

/// What a candidate has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<A> {
    /// The candidate's number, which no node ever had \[J1\].
    pub node: NodeId,
    /// The rank that it will have in the configuration, its tag in the views; no member has it.
    pub rank: u64,
    /// The member that has admitted it.
    pub leader: NodeId,
    /// All members, the leader included, and where each is reached: with whom the candidate links.
    pub members: Vec<(NodeId, A)>,
}
