//! How a joiner of a shard gets the state: which member it asks, for how long, and when it takes over what has
//! arrived (Derecho §3.3, app. A).
//!
//! **State** of a [`StateTransfer`]: idle until some time; waiting for a state provider; or with a state that waits for the next
//! view, because this one is about to end ([`HoldDecision::Later`]).
//!
//! **Step order.** [`StateTransfer::poll_ask`] returns the member to ask next. The driver then calls exactly one of
//! [`StateTransfer::handle_state`], [`StateTransfer::handle_refusal`], if the provider has no state or the connection
//! fails, and [`StateTransfer::handle_silence`], if it is silent for [`AskForState::silence`]. Pauses grow with each
//! failure, and so does the patience with silent providers, since a snapshot may take time. After a state has
//! arrived, and when a view begins, the driver calls [`StateTransfer::poll_take_over`].

use squall_fabric::{Backoff, Duration, Instant, NodeId};

use super::core::{Machine, Replica, SnapshotOutcome};
use super::holding::HoldDecision;
use super::message::ShardPosition;
use super::sessions::Sessions;
use crate::coverage::{Point, reach};

/// The timeouts and pauses of a joiner.
#[derive(Clone, Copy, Debug)]
pub struct StateTransferSettings {
    /// How long a state provider may be silent, at first.
    pub silence: Duration,
    /// How long a state provider may be silent at most, when that was too short.
    pub silence_max: Duration,
    /// The pause between two requests, at first.
    pub pause: Duration,
    /// The longest pause between two requests.
    pub pause_max: Duration,
}

/// A state provider to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskForState {
    /// The member to ask.
    pub node: NodeId,
    /// The state has to be at or after this position.
    pub since: ShardPosition,
    /// How long the provider may be silent.
    pub silence: Duration,
}

/// A state that has arrived.
#[derive(Debug)]
pub struct ArrivedState<M> {
    /// It contains everything up to this position.
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

/// The state transfer of a joiner, see the module's documentation.
#[derive(Debug)]
pub struct StateTransfer<M> {
    /// How long the next provider may be silent.
    silence: Backoff<Duration>,
    /// The pause before the next request.
    pause: Backoff<Duration>,
    phase: Phase<M>,
}

impl<M: Machine> StateTransfer<M> {
    /// Returns a joiner that has asked no member yet.
    #[must_use]
    pub const fn new(settings: StateTransferSettings) -> Self {
        Self {
            silence: Backoff::new(settings.silence, settings.silence_max),
            pause: Backoff::new(settings.pause, settings.pause_max),
            phase: Phase::Idle { next_at: Instant::from_nanos(0) },
        }
    }

    /// Returns the member to ask now, if it is time to ask one.
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

    /// Waits before the next request.
    fn rest(&mut self, now: Instant) {
        self.phase = Phase::Idle { next_at: now + self.pause.grow() };
    }

    /// Notes that the provider has no such state, or cannot be reached.
    pub fn handle_refusal(&mut self, now: Instant) {
        self.rest(now);
    }

    /// Notes that the provider is silent.
    pub fn handle_silence(&mut self, now: Instant) {
        reach(Point::ProviderSilent);
        self.silence.grow();
        self.rest(now);
    }

    /// Notes that the provider's state has arrived.
    pub fn handle_state(&mut self, state: ArrivedState<M>) {
        self.phase = Phase::Arrived(state);
    }

    /// Takes over a state that has arrived, if the current view permits it: `hold` is
    /// [`Holding::hold`](super::Holding::hold). Returns `None` if there is no state, or if it has to wait for the
    /// next view.
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

    /// Returns whether a provider is being asked.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asked)
    }

    /// Returns when [`StateTransfer::poll_ask`] has to be called at the latest, while the replica waits for a state.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle { next_at } => Some(next_at),
            Phase::Asked | Phase::Arrived(_) => None,
        }
    }
}
