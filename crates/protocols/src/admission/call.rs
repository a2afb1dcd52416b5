//! The actions that the driver of a joiner carries out, and what it hands in (Derecho §3.3).

use squall_fabric::{Duration, Instant, NodeId};

use super::message::Admitted;
use crate::membership::StopReason;

/// The time limits of a joiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinerSettings {
    /// For the whole join.
    pub timeout: Duration,
    /// For a connection to prove the secret in the later rounds. The first rounds allow less, so that a silent
    /// contact delays them only briefly.
    pub handshake: Duration,
    /// For a member to answer a request.
    pub answer: Duration,
    /// For the other members to admit this process after it has lost the leader that admitted it, or after a silent leader could have
    /// answered. They may be waiting for a majority meanwhile; if they continue without it, they close their links \[J11\], so this is long.
    pub orphan: Duration,
    /// For a member that does not accept links yet to begin to accept them.
    pub link: Duration,
    /// The shortest and the longest pause between rounds of attempts.
    pub pauses: [Duration; 2],
    /// For a connection to prove the secret in the first round.
    pub patience_min: Duration,
}

impl JoinerSettings {
    /// Returns the settings for real machines: pauses of 20 to 250 ms, and 10 seconds without a leader.
    #[must_use]
    pub const fn new(timeout: Duration, handshake: Duration, answer: Duration) -> Self {
        let (orphan, patience_min) = (Duration::from_secs(10), Duration::from_millis(250));
        let pauses = [Duration::from_millis(20), Duration::from_millis(250)];
        let link = Duration::from_millis(200);
        Self { timeout, handshake, answer, orphan, link, pauses, patience_min }
    }
}

/// An action for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinerAction<A> {
    /// Asks this contact to admit this process. The driver hands in the answer ([`super::Joiner::handle_answer`]) or
    /// the failure ([`super::Joiner::handle_failure`]). The connection stays open if the answer is
    /// [`super::JoinAnswer::Admit`].
    Ask {
        /// The contact.
        contact: A,
        /// The time limit for connecting and proving the secret.
        patience: Duration,
        /// When the driver gives up.
        until: Instant,
    },
    /// Links with this member under the assigned number ([`super::Joiner::handle_linked`],
    /// [`super::Joiner::handle_failure`]).
    Link {
        /// The number of this process.
        own: NodeId,
        /// The member.
        node: NodeId,
        /// Its address.
        address: A,
        /// When the driver gives up.
        until: Instant,
    },
    /// Sends the leader the report that all links are established ([`super::Joiner::handle_reported`],
    /// [`super::Joiner::handle_failure`]). It has no answer.
    Report {
        /// When the driver gives up.
        until: Instant,
    },
    /// Starts the group with all links. From then on the driver hands in the standing of this process from time to
    /// time ([`super::Joiner::handle_arrival`]).
    Begin(Admitted<A>),
    /// Closes all connections and links, and the group if it has started; another attempt follows.
    Abandon,
    /// Closes everything: this process does not become a member.
    GiveUp(JoinFailure),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure<E> {
    /// The request was not received: no process listens at the address, or the process does not accept such requests
    /// yet.
    Unheard(String),
    /// The call may succeed next time; the text says what happened. The request may have been received.
    Again(String),
    /// The process at the address has not proved the secret, whatever it says. Next time it may be another process.
    Unproved(E),
    /// The call can never succeed, according to a process that has proved the secret, or to the operating system.
    Never(E),
}

/// The standing of a joiner that has all its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStanding {
    /// It is in no view yet.
    Waiting {
        /// Whether it has lost the leader that admitted it.
        has_lost_leader: bool,
    },
    /// It is in a view that not all members have begun yet.
    Opening,
    /// Messages flow, and everything received so far has been processed: after a pause, the notice that the view has
    /// begun may be followed in the queue by the notice that it has ended.
    Ready,
    /// The others have continued without it.
    Removed(StopReason),
    /// It has lost all other members.
    Alone,
    /// The group has failed at this process, for a reason that another attempt does not remove.
    Failed,
}

/// Why a process did not become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinFailure {
    /// According to all contacts, the join can never succeed; [`super::Joiner::take_error`] returns the error.
    Hopeless(String),
    /// No member admitted it in time. The text is the latest obstacle; [`super::Joiner::take_error`] may return an
    /// error with details.
    NotAdmitted(String),
    /// It was admitted, but no view came in time.
    NoView,
    /// It is in a view that not all members began in time.
    NotReady,
    /// The others have continued without it repeatedly.
    Removed(StopReason),
}

impl<E: ToString> CallFailure<E> {
    /// Returns the failure as text.
    pub(crate) fn into_cause(self) -> String {
        match self {
            Self::Unheard(cause) | Self::Again(cause) => cause,
            Self::Unproved(error) | Self::Never(error) => error.to_string(),
        }
    }
}
