//! Copy strategies: measures while copying which loop copies large objects fastest here (RDMC §2, fig. 1, on
//! one host).
//!
//! The fastest depends on the processor, on how much of an object is in its cache, and on which other
//! processes copy: non-temporal stores are 1.6 to 2.7 times as fast as stores through the cache on one
//! machine, and less than a third as fast on another (docs/results/rdmc.md). So each user measures.
//!
//! **State**, for each size of objects: the last cost of each strategy, the number of blocks until it is
//! tried again, and the *best*.
//!
//! **Rules.** A strategy's cost is that of its last block, but never much more than before: a block during
//! which the processor ran another thread is no measurement. The cheapest is the best and copies all blocks
//! except trials; a strategy that loses its trial is tried again after twice as many blocks, so trials cost
//! less and less, and a wrong measurement does not last.

use std::ops::Range;

use super::strategy::CopyStrategy;
use crate::{Instant, Region, Trial};

/// Copies large objects, each with the strategy that has proved fastest for its size.
#[derive(Debug, Default)]
pub struct CopyStrategies {
    /// By size: each entry is for objects of up to twice the size of the previous entry's.
    sizes: [Ranking; SIZES],
}

impl CopyStrategies {
    /// Copies the words of `range` into `target`, as [`Region::copy_words_wide`] does. A range that is large
    /// enough to evict everything else from the cache is copied in blocks whose time is measured with the
    /// clock `now`.
    ///
    /// # Panics
    /// Panics if a range ends beyond its region or the target is read-only.
    #[inline]
    pub fn copy_words(
        &mut self,
        target: &Region,
        first: usize,
        source: &Region,
        range: Range<usize>,
        now: impl Fn() -> Instant,
    ) {
        if range.len() < MEASURED_WORDS_MIN {
            return target.copy_words_wide(first, source, range);
        }
        let words = range.len();
        for done in (0..words).step_by(BLOCK_WORDS) {
            let count = BLOCK_WORDS.min(words - done);
            let from = range.start + done;
            self.measure(8 * words, 8 * count, &now, |strategy| {
                strategy.copy_words(target, first + done, source, from..from + count);
            });
        }
    }

    /// Copies bytes out of a region, beginning at its byte `first`: a block of an object of `object_bytes`
    /// bytes, measured with the clock `now`. Nothing may write these bytes meanwhile.
    ///
    /// # Panics
    /// Panics if the bytes end beyond the region.
    pub fn copy_bytes_out(
        &mut self,
        source: &Region,
        first: usize,
        target: &mut [u8],
        object_bytes: usize,
        now: impl Fn() -> Instant,
    ) {
        self.measure(object_bytes, target.len(), now, |strategy| {
            strategy.copy_bytes_out(source, first, target)
        });
    }

    /// Copies a block of `bytes` bytes with the chosen strategy and notes its cost.
    fn measure(
        &mut self,
        object_bytes: usize,
        bytes: usize,
        now: impl Fn() -> Instant,
        copy: impl FnOnce(CopyStrategy),
    ) {
        if object_bytes < MEASURED_BYTES_MIN || bytes == 0 {
            return copy(CopyStrategy::String);
        }
        let doubled = (object_bytes / MEASURED_BYTES_MIN).ilog2() as usize;
        let ranking = &mut self.sizes[doubled.min(SIZES - 1)];
        let (strategy, begun) = (ranking.choose(), now());
        copy(strategy);
        let nanos = u64::try_from(now().since(begun).as_nanos()).unwrap_or(u64::MAX);
        ranking.note(strategy, nanos.saturating_mul(COST_BYTES) / bytes as u64);
    }
}

/// The strategies for objects of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Ranking {
    /// Indexed as [`CopyStrategy::ALL`].
    records: [Record; CopyStrategy::ALL.len()],
    best: usize,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Nanoseconds for [`COST_BYTES`], once the strategy has been tried.
    cost: Option<u64>,
    /// When it is tried again, in blocks.
    trial: Trial,
}

impl Default for Record {
    fn default() -> Self {
        Self { cost: None, trial: Trial::new(1, SPACING_MAX) }
    }
}

impl Ranking {
    fn choose(&mut self) -> CopyStrategy {
        let is_measured = self.records[self.best].cost.is_some();
        let mut chosen = self.best;
        for (i, record) in self.records.iter_mut().enumerate().filter(|(i, _)| is_measured && *i != self.best)
        {
            if record.trial.is_due() {
                chosen = i;
            }
            record.trial.advance(1);
        }
        CopyStrategy::ALL[chosen]
    }

    fn note(&mut self, strategy: CopyStrategy, cost: u64) {
        let tried = CopyStrategy::ALL.iter().position(|each| *each == strategy).expect("one of all");
        let record = &mut self.records[tried];
        let cost = record.cost.map_or(cost, |before| cost.min(before + before / GROWTH + 1));
        record.cost = Some(cost);
        if tried == self.best {
            return;
        }
        if self.records[self.best].cost.is_some_and(|best| cost < best) {
            // The former best is tried again soon: its loss may have been chance.
            self.records[self.best].trial.reset();
            self.records[self.best].trial.fail();
            self.best = tried;
        } else {
            self.records[tried].trial.fail();
        }
    }
}

/// Objects with at least this many words are copied between regions in measured blocks.
const MEASURED_WORDS_MIN: usize = 1 << 20;
const BLOCK_WORDS: usize = 1 << 15;
/// Smaller objects fit a core's cache together with their copy; there the processor's own copy is the
/// fastest.
const MEASURED_BYTES_MIN: usize = 512 << 10;
/// The last entry is for all objects of 2^50 bytes and more.
const SIZES: usize = 32;
const COST_BYTES: u64 = 64 << 10;
/// A strategy's cost grows by at most a sixteenth with each slower block.
const GROWTH: u64 = 16;
/// With blocks of 256 KiB, one trial of each strategy per GiB.
const SPACING_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::RegionId;

    const BLOCK: usize = 256 << 10;

    /// Copies blocks, each strategy at its price, and `spike` blocks at a hundred times the price; returns
    /// how often each was used.
    fn copy(
        strategies: &mut CopyStrategies,
        blocks: u64,
        prices: [u64; 3],
        spike: impl Fn(u64) -> bool,
    ) -> [u64; 3] {
        let (clock, mut taken) = (Cell::new(0), [0; 3]);
        for block in 0..blocks {
            strategies.measure(
                64 << 20,
                BLOCK,
                || Instant::from_nanos(clock.get()),
                |strategy| {
                    let chosen =
                        CopyStrategy::ALL.iter().position(|all| *all == strategy).expect("one of all");
                    taken[chosen] += 1;
                    clock.set(clock.get() + prices[chosen] * if spike(block) { 100 } else { 1 });
                },
            );
        }
        taken
    }

    /// Whichever strategy is the fastest, the others are rarely tried.
    #[test]
    fn the_fastest_strategy_copies_nearly_all_blocks() {
        for prices in [[10_000, 40_000, 15_000], [40_000, 10_000, 15_000], [40_000, 30_000, 20_000]] {
            let taken = copy(&mut CopyStrategies::default(), 1000, prices, |_| false);
            let best = (0..3).min_by_key(|strategy| prices[*strategy]).expect("three");
            assert!(taken[best] > 970, "{taken:?} at {prices:?}");
            assert!(taken.iter().all(|taken| *taken > 5), "{taken:?}: a strategy is not tried again");
        }
    }

    /// One block in five takes a hundred times as long, whichever strategy copies it.
    #[test]
    fn interruptions_do_not_mislead() {
        for phase in 0..5 {
            let prices = [40_000, 20_000, 30_000];
            let taken = copy(&mut CopyStrategies::default(), 1000, prices, |block| block % 5 == phase);
            assert!(taken[1] > 900, "{taken:?} of 1000");
        }
    }

    /// A measurement does not hold forever.
    #[test]
    fn a_machine_that_changes_is_noticed() {
        let mut strategies = CopyStrategies::default();
        copy(&mut strategies, 1000, [40_000, 20_000, 30_000], |_| false);
        let taken = copy(&mut strategies, 10_000, [10_000, 20_000, 30_000], |_| false);
        assert!(taken[0] > 7_000, "{taken:?}");
    }

    #[test]
    fn small_objects_are_not_measured() {
        let mut strategies = CopyStrategies::default();
        let clock = || panic!("the clock is read");
        for _ in 0..100 {
            strategies.measure(MEASURED_BYTES_MIN - 1, BLOCK, clock, |strategy| {
                assert_eq!(strategy, CopyStrategy::String);
            });
        }
        let (source, target) = (Region::heap(RegionId(1), 600), Region::heap(RegionId(2), 600));
        source.store(599, 7);
        strategies.copy_words(&target, 0, &source, 0..600, clock);
        assert_eq!(target.load(599), 7);
    }

    /// A whole object of words is copied in blocks, the last of which is shorter.
    #[test]
    fn large_objects_are_copied_whole() {
        const WORDS: usize = MEASURED_WORDS_MIN + 100;
        let (source, target) = (Region::heap(RegionId(1), WORDS + 3), Region::heap(RegionId(2), WORDS + 2));
        (0..WORDS + 3).for_each(|word| source.store(word, 1 + word as u64));
        let now = || Instant::from_nanos(0);
        CopyStrategies::default().copy_words(&target, 1, &source, 3..3 + WORDS, now);
        assert!((0..WORDS).all(|word| target.load(1 + word) == 4 + word as u64));
        assert_eq!((target.load(0), target.load(WORDS + 1)), (0, 0));
    }
}
