//! Copying words between regions that others may read or write meanwhile.
//!
//! Each aligned word is loaded whole and stored whole [F3]; between the words there is no order [F2]. A loop over
//! atomics does that, but compilers do not widen it (23 GiB/s where the cache gives 50), so long copies on x86-64
//! use 16-byte moves, whose aligned 8-byte halves are never torn on any x86-64 processor.

use std::time::Instant;

use squall_fabric::Region;
use squall_fabric::bulk::{self, Ways};

/// Copies `words` words.
///
/// # Panics
/// If a range ends beyond its region or the target is read-only.
#[inline]
pub(super) fn copy_words(source: &Region, from: usize, target: &Region, to: usize, words: usize) {
    source.check(&(from..from + words));
    target.check(&(to..to + words));
    if words >= LONG_WORDS_MIN {
        return target.copy_words(to, source, from..from + words);
    }
    let wide = words - words % BLOCK_WORDS;
    if words >= WIDE_WORDS_MIN && cfg!(target_arch = "x86_64") {
        assert!(target.access() == squall_fabric::region::Access::ReadWrite, "the target is written");
        copy_blocks(source, from, target, to, wide);
        copy_each(source, from + wide, target, to + wide, words - wide);
    } else {
        copy_each(source, from, target, to, words);
    }
}

/// As [`copy_words`]. What is so long that it pushes everything else out of the cache is copied by the way that has shown to
/// be the fastest for that.
#[inline]
pub(super) fn copy_long(
    source: &Region,
    from: usize,
    target: &Region,
    to: usize,
    words: usize,
    ways: &mut Ways,
) {
    if words < MEASURED_WORDS_MIN {
        return copy_words(source, from, target, to, words);
    }
    for done in (0..words).step_by(MEASURED_BLOCK_WORDS) {
        let count = MEASURED_BLOCK_WORDS.min(words - done);
        let (stores, begun) = (ways.choose(8 * words), Instant::now());
        bulk::copy_words(source, from + done, target, to + done, count, stores);
        ways.note(8 * words, stores, 8 * count, begun.elapsed());
    }
}

fn copy_each(source: &Region, from: usize, target: &Region, to: usize, words: usize) {
    for word in 0..words {
        target.store_relaxed(to + word, source.load_relaxed(from + word));
    }
}

#[cfg(target_arch = "x86_64")]
fn copy_blocks(source: &Region, from: usize, target: &Region, to: usize, words: usize) {
    let (source, target) = (source.pointer(from).as_ptr(), target.pointer(to).as_ptr());
    // SAFETY: both ranges lie inside their regions, which the caller checked and which outlive the call; the target is
    // writable. The block stands for relaxed loads and stores of the words, one by one, in some order: each
    // move is of two aligned words, and a processor splits it, if at all, between them.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups xmm0, [{source}]",
            "movups xmm1, [{source} + 16]",
            "movups xmm2, [{source} + 32]",
            "movups xmm3, [{source} + 48]",
            "movups [{target}], xmm0",
            "movups [{target} + 16], xmm1",
            "movups [{target} + 32], xmm2",
            "movups [{target} + 48], xmm3",
            "add {source}, 64",
            "add {target}, 64",
            "dec {blocks}",
            "jnz 2b",
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            blocks = inout(reg) words / BLOCK_WORDS => _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_blocks(source: &Region, from: usize, target: &Region, to: usize, words: usize) {
    copy_each(source, from, target, to, words);
}

/// From here on several ways of copying are compared, by blocks of so many words.
const MEASURED_WORDS_MIN: usize = 1 << 20;
const MEASURED_BLOCK_WORDS: usize = 1 << 15;
/// One turn of the wide loop, a cache line.
const BLOCK_WORDS: usize = 8;
/// From here on the fabric's own copy is as fast, and faster where no cache holds the words.
const LONG_WORDS_MIN: usize = 512;
/// Below this the simple loop is as fast.
const WIDE_WORDS_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;
    use squall_fabric::atomics::{AtomicBool, Ordering};

    #[test]
    fn exactly_the_words_are_copied() {
        let source = Region::heap(RegionId(1), 700);
        (0..700).for_each(|word| source.store(word, 1000 + word as u64));
        for words in (0..80).chain([250, 511, 512, 600]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 7)] {
                let target = Region::heap(RegionId(2), 700);
                copy_words(&source, from, &target, to, words);
                for word in 0..700 {
                    let inside = (to..to + words).contains(&word);
                    let expected = if inside { 1000 + (word - to + from) as u64 } else { 0 };
                    assert_eq!(target.load(word), expected, "word {word} of {words} from {from} to {to}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "words 1..17 of 16")]
    fn a_copy_beyond_the_end_panics() {
        let region = Region::heap(RegionId(1), 16);
        copy_words(&region, 0, &region, 1, 16);
    }

    /// F3 while another thread stores into the source and a third reads the target, on all alignments.
    #[test]
    fn words_are_never_torn() {
        let whole = |k: u64| k << 32 | (!k & 0xffff_ffff);
        let (source, target) = (Region::heap(RegionId(1), 41), Region::heap(RegionId(2), 41));
        (0..41).for_each(|word| source.store(word, whole(0)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for k in 1..200_000 {
                    source.store_relaxed(k as usize % 41, whole(k));
                }
                stop.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for word in 0..41 {
                        let seen = target.load(word);
                        assert!(seen == 0 || seen >> 32 == !seen & 0xffff_ffff, "torn word {seen:#x}");
                    }
                }
            });
            let mut shift = 0;
            while !stop.load(Ordering::Relaxed) {
                shift = (shift + 1) % 2;
                copy_words(&source, shift, &target, 1 - shift, 40);
            }
        });
    }
}
