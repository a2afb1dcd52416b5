//! How a joiner of a shard gets the state: whom it asks, for how long, and when it takes over what has come (Derecho §3.3,
//! app. A).
//!
//! **State** of a [`StateTransfer`]: idle until some time; waiting for a state provider; or with a state that waits for the next
//! view, because this one is about to end ([`HoldDecision::Later`]).
//!
//! **Step order.** [`StateTransfer::poll_ask`] says whom to ask next. The driver then calls exactly one of
//! [`StateTransfer::handle_state`], [`StateTransfer::handle_refusal`], if the provider has none or the connection fails, and
//! [`StateTransfer::handle_silence`], if it says nothing for as long as [`AskForState::silence`]. Pauses grow with each that
//! fails, and so does the patience with those that say nothing, as a snapshot may take its time. After a state has come, and
//! when a view begins, [`StateTransfer::poll_take_over`].

use squall_fabric::{Backoff, Duration, Instant, NodeId};

use super::core::{Machine, Replica, SnapshotOutcome};
use super::holding::HoldDecision;
use super::message::ShardPosition;
use super::sessions::Sessions;
use crate::coverage::{Point, reach};

/// How patient a joiner is.
#[derive(Clone, Copy, Debug)]
pub struct StateTransferSettings {
    /// How long a state provider may say nothing, at first.
    pub silence: Duration,
    /// And at most, when that was too short.
    pub silence_max: Duration,
    /// Between two questions, at first.
    pub pause: Duration,
    /// And at most.
    pub pause_max: Duration,
}

/// A state provider to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskForState {
    /// Whom.
    pub node: NodeId,
    /// For a state at or behind this position.
    pub since: ShardPosition,
    /// For how long it may say nothing.
    pub silence: Duration,
}

/// A state that has come.
#[derive(Debug)]
pub struct ArrivedState<M> {
    /// All up to here is in it.
    pub position: ShardPosition,
    /// The clients' sessions.
    pub sessions: Sessions,
    /// The state itself.
    pub machine: M,
}

#[derive(Debug)]
enum Phase<M> {
    Idle { next_at: Instant },
    Asked,
    Arrived(ArrivedState<M>),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct StateTransfer<M> {
    /// How long the next provider may say nothing.
    silence: Backoff<Duration>,
    /// Between two questions.
    pause: Backoff<Duration>,
    phase: Phase<M>,
}

impl<M: Machine> StateTransfer<M> {
    /// A joiner that has asked nobody yet.
    #[must_use]
    pub const fn new(settings: StateTransferSettings) -> Self {
        Self {
            silence: Backoff::new(settings.silence, settings.silence_max),
            pause: Backoff::new(settings.pause, settings.pause_max),
            phase: Phase::Idle { next_at: Instant::from_nanos(0) },
        }
    }

    /// Whom to ask now, if anybody.
    pub fn poll_ask(&mut self, now: Instant, replica: &mut Replica<M>) -> Option<AskForState> {
        if !replica.is_waiting() {
            // The next stay in the shard begins anew.
            self.silence.reset();
            self.pause.reset();
            return None;
        }
        if !matches!(self.phase, Phase::Idle { next_at } if next_at <= now) {
            return None;
        }
        let Some((node, since)) = replica.ask() else {
            self.rest(now);
            return None;
        };
        self.phase = Phase::Asked;
        Some(AskForState { node, since, silence: self.silence.spacing() })
    }

    /// Waits before the next question.
    fn rest(&mut self, now: Instant) {
        self.phase = Phase::Idle { next_at: now + self.pause.grow() };
    }

    /// The provider has no such state, or cannot be reached.
    pub fn handle_refusal(&mut self, now: Instant) {
        self.rest(now);
    }

    /// The provider says nothing.
    pub fn handle_silence(&mut self, now: Instant) {
        reach(Point::ProviderSilent);
        self.silence.grow();
        self.rest(now);
    }

    /// The provider's state is here.
    pub fn handle_state(&mut self, state: ArrivedState<M>) {
        self.phase = Phase::Arrived(state);
    }

    /// Takes over a state that has come, if the present view lets it: `hold` is [`Holding::hold`](super::Holding::hold).
    /// `None` if there is none, or it has to wait for the next view.
    pub fn poll_take_over(
        &mut self,
        now: Instant,
        replica: &mut Replica<M>,
        hold: impl FnOnce(u64) -> HoldDecision,
    ) -> Option<SnapshotOutcome> {
        let Phase::Arrived(state) = &self.phase else { return None };
        let hold = replica.wants(state.position).map_or(HoldDecision::NotWanted, hold);
        if hold == HoldDecision::Later {
            reach(Point::StateWaited);
            return None;
        }
        let arrived = std::mem::replace(&mut self.phase, Phase::Idle { next_at: now });
        match (hold, arrived) {
            (HoldDecision::Counted, Phase::Arrived(ArrivedState { position, sessions, machine })) => {
                Some(replica.take_over(position, sessions, machine))
            }
            _ => {
                self.rest(now);
                Some(SnapshotOutcome::NotWanted)
            }
        }
    }

    /// Whether a provider is being asked.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asked)
    }

    /// When [`StateTransfer::poll_ask`] has to be called at the latest, while the replica waits for a state.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle { next_at } => Some(next_at),
            Phase::Asked | Phase::Arrived(_) => None,
        }
    }
}
