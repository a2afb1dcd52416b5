//! How often a thread that takes samples polls the node.

use squall_fabric::atomics::{AtomicUsize, Ordering};

/// Counts what applications have taken since one of their threads polled for that: as long as there are more samples, such a thread waits for
/// nothing, and so would not poll.
#[derive(Debug, Default)]
pub(crate) struct TakingPace(AtomicUsize);

impl TakingPace {
    /// Notes that samples, of `bytes` together, were taken; returns whether this thread is to poll.
    pub(crate) fn is_due(&self, samples: usize, bytes: usize) -> bool {
        let weight = samples + bytes / SAMPLE_BYTES;
        let taken = self.0.load(Ordering::Relaxed) + weight;
        let is_due = taken >= TAKEN_MAX;
        // Threads that take at the same time may overwrite each other's count: then the node is polled a little later.
        self.0.store(if is_due { 0 } else { taken }, Ordering::Relaxed);
        is_due
    }
}

/// A thread polls after this many; each has a weight of 1, and of 1 more for each [`SAMPLE_BYTES`].
const TAKEN_MAX: usize = 64;
const SAMPLE_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_samples_or_long_ones_are_due() {
        let pace = TakingPace::default();
        assert!((1..TAKEN_MAX).all(|_| !pace.is_due(1, 8)));
        assert!(pace.is_due(1, 8) && !pace.is_due(1, 8));
        assert!(pace.is_due(1, TAKEN_MAX * SAMPLE_BYTES));
    }
}
