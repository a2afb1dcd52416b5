//! Recovery: a state is made again from a checkpoint and the messages behind it (Derecho §3.4, persistent mode).

use super::super::mutation;
use super::{Held, Machine, ReplicaSettings, Sessions, ShardPosition};

/// A state that is made again from the messages of earlier runs, which are in this member's log \[A13\].
#[derive(Debug)]
pub struct StateRecovery<M: Machine> {
    pub(super) held: Held<M>,
    settings: ReplicaSettings,
}

impl<M: Machine> StateRecovery<M> {
    /// Begins with the initial state of the shard.
    #[must_use]
    pub fn new(first: M, settings: ReplicaSettings) -> Self {
        let held = Held { machine: first, sessions: Sessions::default(), position: ShardPosition::default() };
        Self { held, settings }
    }

    /// Begins with the state of a checkpoint, which has everything before `position` \[A16\].
    #[must_use]
    pub const fn resume(
        position: ShardPosition,
        sessions: Sessions,
        machine: M,
        settings: ReplicaSettings,
    ) -> Self {
        Self { held: Held { machine, sessions, position }, settings }
    }

    /// Applies a message that was delivered in an earlier view: all of them in order, behind the position with which it has begun.
    ///
    /// # Panics
    /// If the message is not later than the previous one.
    pub fn apply(&mut self, view: u64, sequence: u64, bytes: &[u8]) {
        let position = ShardPosition { view, sequence: sequence + 1 };
        assert!(self.held.position < position, "[O1] {position:?} after {:?}", self.held.position);
        if mutant!(RecoverWithoutSessions) {
            self.held.sessions = Sessions::default();
        }
        self.held.apply(position, bytes, self.settings, false, |_, _| ());
    }

    /// Returns the state so far.
    #[must_use]
    pub const fn machine(&self) -> &M {
        &self.held.machine
    }

    /// Returns the position up to which messages are applied.
    #[must_use]
    pub const fn position(&self) -> ShardPosition {
        self.held.position
    }
}
