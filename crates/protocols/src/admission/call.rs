//! What the driver of a joiner does, and hands in (Derecho §3.3).

use squall_fabric::{Duration, Instant, NodeId};

use super::message::Admitted;
use crate::membership::StopReason;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinerSettings {
    /// For all of it.
    pub timeout: Duration,
    /// For a connection to prove the secret, in the end; it is less in the first rounds, so that a silent contact holds them up
    /// for a moment only.
    pub handshake: Duration,
    /// For a member to answer a request.
    pub answer: Duration,
    /// For the other members to let this process in once it has lost the leader that has admitted it.
    pub orphan: Duration,
    /// For a member that does not hear a link yet to do so.
    pub link: Duration,
    /// The shortest and the longest pause between rounds of attempts.
    pub pauses: [Duration; 2],
    /// For a connection to prove the secret in the first round.
    pub patience_min: Duration,
}

impl JoinerSettings {
    /// For processes on real machines: pauses of 20 to 250 ms, and a second without a leader.
    #[must_use]
    pub const fn new(timeout: Duration, handshake: Duration, answer: Duration) -> Self {
        let (orphan, patience_min) = (Duration::from_secs(1), Duration::from_millis(250));
        let pauses = [Duration::from_millis(20), Duration::from_millis(250)];
        let link = Duration::from_millis(200);
        Self { timeout, handshake, answer, orphan, link, pauses, patience_min }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinerAction<A> {
    /// To ask this contact to be let in, and to hand in its answer ([`super::Joiner::handle_answer`]) or the failure
    /// ([`super::Joiner::handle_failure`]). The connection stays open if the answer is [`super::JoinAnswer::Admit`].
    Ask {
        /// Whom.
        contact: A,
        /// How long it may take to connect and to prove the secret.
        patience: Duration,
        /// When to give up.
        until: Instant,
    },
    /// To link with this member under the number that was given ([`super::Joiner::handle_linked`], [`super::Joiner::handle_failure`]).
    Link {
        /// The number of this process.
        own: NodeId,
        /// The member.
        node: NodeId,
        /// Where it is reached.
        address: A,
        /// When to give up.
        until: Instant,
    },
    /// To report to the leader that all links stand ([`super::Joiner::handle_reported`], [`super::Joiner::handle_failure`]).
    Report {
        /// When to give up.
        until: Instant,
    },
    /// To begin with all links, and to hand in how it stands now and then ([`super::Joiner::handle_arrival`]).
    Begin(Admitted<A>),
    /// To close all connections and links, and the group if it has begun; another attempt follows.
    Abandon,
    /// To close everything: this process does not become a member.
    GiveUp(JoinFailure),
}

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure<E> {
    /// The request was not heard: no process listens there, or it takes no such requests yet.
    Unheard(String),
    /// It may work next time; the text says what happened. The request may have been heard.
    Again(String),
    /// What is reached there has not proved the secret, whatever it says: next time it may be another process.
    Unproved(E),
    /// A process that has proved the secret says so, or the system.
    Never(E),
}

/// How a joiner with all links stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStanding {
    /// It is in no view yet.
    Waiting {
        /// It has lost the leader that has admitted it.
        has_lost_leader: bool,
    },
    /// It is in a view that not all members have begun.
    Opening,
    /// Messages flow, and everything that has come so far was looked at: after a pause the news that the view has begun may lie
    /// before the news that it is over.
    Ready,
    /// The others have gone on without it.
    Removed(StopReason),
    /// It has lost everybody.
    Alone,
    /// The group has failed here, for a reason that another attempt does not change.
    Failed,
}

/// Why a process has not become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinFailure {
    /// What all contacts say can never work; [`super::Joiner::take_error`] has it.
    Hopeless(String),
    /// No member has admitted it in time. What stood in the way last, in words; [`super::Joiner::take_error`] may have more.
    NotAdmitted(String),
    /// It was admitted, and no view has come in time.
    NoView,
    /// It is in a view that not all members have begun in time.
    NotReady,
    /// The others have gone on without it again and again.
    Removed(StopReason),
}

impl<E: ToString> CallFailure<E> {
    /// The failure in words.
    pub(crate) fn into_cause(self) -> String {
        match self {
            Self::Unheard(cause) | Self::Again(cause) => cause,
            Self::Unproved(error) | Self::Never(error) => error.to_string(),
        }
    }
}
