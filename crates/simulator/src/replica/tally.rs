//! What has happened in runs: a scenario that does nothing finds nothing (Derecho app. A).

/// What has happened, over all nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaTally {
    /// Updates delivered.
    pub delivered: u64,
    /// Updates acknowledged.
    pub acknowledged: u64,
    /// Updates of which their senders know that they are in no state.
    pub denied: u64,
    /// Updates of which their senders know nothing.
    pub unknown: u64,
    /// Queries answered.
    pub answered: u64,
    /// States taken over.
    pub transfers: u64,
    /// Providers that died or stopped while they gave a state.
    pub interrupted: u64,
    /// Shards whose state was lost, over their members.
    pub lost: u64,
    /// Conversations of clients that ended without all answers.
    pub repeated: u64,
    /// Messages with more than one update.
    pub together: u64,
    /// Queries for the latest state that were answered.
    pub latest: u64,
}

impl ReplicaTally {
    const fn counts(&mut self) -> [&mut u64; 11] {
        let Self {
            delivered,
            acknowledged,
            denied,
            unknown,
            answered,
            transfers,
            interrupted,
            lost,
            repeated,
            together,
            latest,
        } = self;
        [
            delivered,
            acknowledged,
            denied,
            unknown,
            answered,
            transfers,
            interrupted,
            lost,
            repeated,
            together,
            latest,
        ]
    }

    /// The least of all counts.
    #[must_use]
    pub fn least(mut self) -> u64 {
        self.counts().into_iter().map(|count| *count).min().unwrap_or(0)
    }
}

impl std::ops::AddAssign for ReplicaTally {
    fn add_assign(&mut self, mut other: Self) {
        for (count, more) in self.counts().into_iter().zip(other.counts()) {
            *count += *more;
        }
    }
}
