//! Which way of copying is the fastest here, found out while copying (RDMC §2, fig. 1, on one host).
//!
//! What wins depends on the processor, on how much of an object is in its cache, and on who else copies: stores past the
//! cache are 1.6 to 2.7 times as fast as those through it on one machine, and less than a third as fast on another
//! (docs/results/rdmc.md). So whoever copies measures.
//!
//! **State**, for each size of objects: what a way last cost, how many blocks until it is tried again, and the *best*.
//!
//! **Rules.** A way costs what its last block cost, but never much more than before: a block during which the processor
//! was given to somebody else tells nothing. The cheapest is the best and copies all blocks but trials; a way that loses
//! its trial is tried again after twice as many blocks, so trials cost less and less, and a wrong measurement
//! does not last.

use super::Stores;
use crate::Duration;

/// The ways of copying objects of each size.
#[derive(Debug, Default)]
pub struct Ways {
    /// By size: each for those of less than twice the size of the one before.
    sizes: [Ranking; SIZES],
}

impl Ways {
    /// How the next block of an object of so many bytes is copied.
    #[must_use]
    pub fn choose(&mut self, object_bytes: usize) -> Stores {
        if object_bytes < MEASURED_MIN { Stores::Cached } else { self.ranking(object_bytes).choose() }
    }

    /// A block of `bytes` bytes of such an object took so long.
    pub fn note(&mut self, object_bytes: usize, stores: Stores, bytes: usize, took: Duration) {
        if object_bytes >= MEASURED_MIN && bytes > 0 {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.ranking(object_bytes).note(stores, nanos.saturating_mul(COST_BYTES) / bytes as u64);
        }
    }

    fn ranking(&mut self, object_bytes: usize) -> &mut Ranking {
        let doubled = (object_bytes / MEASURED_MIN).ilog2() as usize;
        &mut self.sizes[doubled.min(SIZES - 1)]
    }
}

/// The ways of copying objects of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Ranking {
    /// As [`Stores::ALL`].
    ways: [Way; Stores::ALL.len()],
    best: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Nanoseconds for [`COST_BYTES`], once it has been tried.
    cost: Option<u64>,
    /// Blocks until it is tried again, and how many it was the last time.
    wait: u64,
    pause: u64,
}

impl Ranking {
    fn choose(&mut self) -> Stores {
        let is_measured = self.ways[self.best].cost.is_some();
        let mut chosen = self.best;
        for (i, way) in self.ways.iter_mut().enumerate().filter(|(i, _)| is_measured && *i != self.best) {
            match way.wait.checked_sub(1) {
                Some(wait) => way.wait = wait,
                None => chosen = i,
            }
        }
        Stores::ALL[chosen]
    }

    fn note(&mut self, stores: Stores, cost: u64) {
        let tried = Stores::ALL.iter().position(|way| *way == stores).expect("one of all");
        let way = &mut self.ways[tried];
        let cost = way.cost.map_or(cost, |before| cost.min(before + before / GROWTH + 1));
        way.cost = Some(cost);
        if tried == self.best {
            return;
        }
        if self.ways[self.best].cost.is_some_and(|best| cost < best) {
            // Who was the best is tried again soon: it may have been a matter of luck.
            self.ways[self.best] = Way { wait: 1, pause: 1, ..self.ways[self.best] };
            self.best = tried;
        } else {
            let pause = (2 * self.ways[tried].pause).clamp(1, PAUSE_MAX);
            self.ways[tried] = Way { wait: pause, pause, ..self.ways[tried] };
        }
    }
}

/// Smaller objects fit a core's cache together with their copy; there the processor's own copy is the best.
const MEASURED_MIN: usize = 512 << 10;
/// The last is that of all objects of 2^50 bytes and more.
const SIZES: usize = 32;
const COST_BYTES: u64 = 64 << 10;
/// A way's cost grows by a sixteenth with each block that took longer.
const GROWTH: u64 = 16;
/// At 256 KiB a block, one trial of each way for a GiB.
const PAUSE_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 256 << 10;

    /// Copies blocks, each way at its price, and `spike` blocks at a hundred times of it; how often each way was taken.
    fn copy(ways: &mut Ways, blocks: u64, prices: [u64; 3], spike: impl Fn(u64) -> bool) -> [u64; 3] {
        let mut taken = [0; 3];
        for block in 0..blocks {
            let stores = ways.choose(64 << 20);
            let way = Stores::ALL.iter().position(|all| *all == stores).expect("one of all");
            taken[way] += 1;
            let nanos = prices[way] * if spike(block) { 100 } else { 1 };
            ways.note(64 << 20, stores, BLOCK, Duration::from_nanos(nanos));
        }
        taken
    }

    /// Whichever it is, and trials are few.
    #[test]
    fn the_fastest_way_copies_nearly_all_blocks() {
        for prices in [[10_000, 40_000, 15_000], [40_000, 10_000, 15_000], [40_000, 30_000, 20_000]] {
            let taken = copy(&mut Ways::default(), 1000, prices, |_| false);
            let best = (0..3).min_by_key(|way| prices[*way]).expect("three");
            assert!(taken[best] > 970, "{taken:?} at {prices:?}");
            assert!(taken.iter().all(|taken| *taken > 5), "{taken:?}: a way is not tried again");
        }
    }

    /// One block in five takes a hundred times as long, whichever way it goes.
    #[test]
    fn interruptions_do_not_mislead() {
        for phase in 0..5 {
            let prices = [40_000, 20_000, 30_000];
            let taken = copy(&mut Ways::default(), 1000, prices, |block| block % 5 == phase);
            assert!(taken[1] > 900, "{taken:?} of 1000");
        }
    }

    /// What was measured does not bind for ever.
    #[test]
    fn a_machine_that_changes_is_noticed() {
        let mut ways = Ways::default();
        copy(&mut ways, 1000, [40_000, 20_000, 30_000], |_| false);
        let taken = copy(&mut ways, 10_000, [10_000, 20_000, 30_000], |_| false);
        assert!(taken[0] > 7_000, "{taken:?}");
    }

    #[test]
    fn small_objects_are_not_measured() {
        let mut ways = Ways::default();
        for _ in 0..100 {
            assert_eq!(ways.choose(MEASURED_MIN - 1), Stores::Cached);
            ways.note(MEASURED_MIN - 1, Stores::Cached, BLOCK, Duration::from_secs(1));
        }
    }
}
