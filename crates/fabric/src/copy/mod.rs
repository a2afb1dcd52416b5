//! Copies: every loop that moves words into, out of or between regions.
//!
//! **What each copy promises.** It loads and stores each aligned word of a region whole [F3]; among the words
//! of one copy there is no order [F2]. It releases nothing: an announcement of the words is stored with
//! release afterwards. Only [`CopyStrategies::copy_bytes_out`] does not promise whole words, and requires
//! that nothing writes them.
//!
//! | copy | loop | for |
//! |---|---|---|
//! | [`Region::copy_in`](crate::Region::copy_in), [`Region::copy_out`](crate::Region::copy_out) | word by word, a line to a round | values and records |
//! | [`Region::copy_words`](crate::Region::copy_words) | the same, and the string instruction from 256 words on | most copies between regions |
//! | [`Region::copy_words_wide`](crate::Region::copy_words_wide) | 16-byte moves, and the string instruction from 512 words on | words in a cache |
//! | [`CopyStrategies`] | whichever has shown to be the fastest | objects beyond a core's cache |
//! | [`Region::copy_bytes_in`](crate::Region::copy_bytes_in), [`Region::copy_bytes_out`](crate::Region::copy_bytes_out) | word by word | short texts |
//!
//! The loops in assembly are in `instructions`, with the argument for their soundness; everything else is
//! portable.

mod instructions;
mod strategies;
mod strategy;
mod words;

pub use self::strategies::CopyStrategies;

pub(crate) use self::words::LINE_WORDS;

#[cfg(test)]
mod tests {
    use super::strategy::CopyStrategy;
    use crate::atomics::{AtomicBool, Ordering};
    use crate::{Region, RegionId};

    /// F3 while another thread stores into the source and a third reads the target, on all alignments, in
    /// each loop.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "torn words are visible between threads only")]
    fn words_are_never_torn() {
        const WORDS: usize = 601;
        let whole = |k: u64| k << 32 | (!k & 0xffff_ffff);
        let (source, target) = (Region::heap(RegionId(1), WORDS), Region::heap(RegionId(2), WORDS));
        (0..WORDS).for_each(|word| source.store(word, whole(0)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for k in 1..400_000 {
                    source.store_relaxed(k as usize % WORDS, whole(k));
                }
                stop.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for word in 0..WORDS {
                        let seen = target.load(word);
                        assert!(seen == 0 || seen >> 32 == !seen & 0xffff_ffff, "torn word {seen:#x}");
                    }
                }
            });
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let (from, to) = (round % 2, round / 2 % 2);
                for words in [40, 300, 600] {
                    let range = from..from + words;
                    target.copy_words(to, &source, range.clone());
                    target.copy_words_wide(to, &source, range.clone());
                    for strategy in CopyStrategy::ALL {
                        strategy.copy_words(&target, to, &source, range.clone());
                    }
                }
            }
        });
    }
}
