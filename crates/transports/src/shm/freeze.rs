//! Freezing an attachment: from then on its words never change for this reader [M3].
//!
//! The owner may be alive and storing, and its stores cannot be stopped. So the words are copied until the
//! copy is *consistent*; then the copy replaces the owner's pages, at the same addresses.
//!
//! **Rule.** A copy is consistent if there is an instant such that every word was read with the same value
//! before it and after it. Then no guard of the copy is newer than what it guards: the guard was stored
//! before the instant (guards are monotone, so it had that value all the time), what it guards was stored
//! before the guard, and was read again after the instant, so it is as new as the guard announces, or newer.
//!
//! Reading a large attachment twice takes milliseconds, in which a live owner always stores something: a
//! heartbeat, a counter of another subgroup. So words that change are read in a separate *hot* set: the
//! instant is between two equal readings of the hot words, which are few and take less than a microsecond;
//! the cold words are compared once before and once after. A cold word that has changed becomes hot, and the
//! cold words are compared again. The window rule ends this: a reader that has frozen an attachment
//! acknowledges nothing more, so its owner runs out of slots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::Region;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;

use super::ShmFabric;
use super::mirrors::{AttachmentState, ShmAttachment};
use crate::shortage;

impl ShmFabric {
    pub(super) fn freeze_attachment(&mut self, region: &Region) {
        let attachment: Arc<ShmAttachment> =
            region.memory().clone().downcast().unwrap_or_else(|_| panic!("{region:?} is not an attachment"));
        let mut state = lock(&attachment.state);
        if *state == AttachmentState::Attached {
            let twin = attachment.mapping.private_twin();
            let twin =
                twin.unwrap_or_else(|error| shortage::shortage("memory to freeze a row", &error).unwind());
            if !copy_consistently(attachment.mapping.words(), twin.words(), FREEZE_MAX) {
                crate::log::warn!(
                    view = ?region,
                    "the owner of a frozen attachment stores into it without pause: a guard may be newer than the words that it guards"
                );
            }
            attachment.mapping.replace_by(twin).expect("a range of this process can be moved");
        }
        *state = AttachmentState::Frozen;
    }
}

/// Copies `source`, which others may write, into `copy`; returns whether the copy is consistent. It always
/// is, unless that took longer than `patience`.
fn copy_consistently(source: &[AtomicU64], copy: &[AtomicU64], patience: Duration) -> bool {
    let begin = Instant::now();
    let mut is_hot = vec![false; source.len()];
    let mut hot = Vec::new();
    compare(source, copy, &is_hot, &mut Vec::new());
    loop {
        if !settle(source, copy, &hot, begin, patience) {
            return false;
        }
        let cold = hot.len();
        compare(source, copy, &is_hot, &mut hot);
        if hot.len() == cold {
            return true;
        }
        for word in &hot[cold..] {
            is_hot[*word] = true;
        }
        if begin.elapsed() > patience {
            return false;
        }
    }
}

/// Updates the words that are not hot and collects those that had changed.
fn compare(source: &[AtomicU64], copy: &[AtomicU64], is_hot: &[bool], changed: &mut Vec<usize>) {
    for (word, is_hot) in is_hot.iter().enumerate() {
        // SYNC: pairs with the owner's release stores, and keeps the readings in order.
        let value = source[word].load(Ordering::Acquire);
        if !is_hot && value != copy[word].load(Ordering::Relaxed) {
            copy[word].store(value, Ordering::Relaxed);
            changed.push(word);
        }
    }
}

/// Reads the hot words until two readings are equal; returns whether that happened in time.
fn settle(
    source: &[AtomicU64],
    copy: &[AtomicU64],
    hot: &[usize],
    begin: Instant,
    patience: Duration,
) -> bool {
    loop {
        for _ in 0..SETTLE_READS {
            for word in hot {
                // SYNC: pairs with the owner's release stores, and keeps the readings in order.
                copy[*word].store(source[*word].load(Ordering::Acquire), Ordering::Relaxed);
            }
            // SYNC: as above.
            let unchanged =
                |word: &usize| source[*word].load(Ordering::Acquire) == copy[*word].load(Ordering::Relaxed);
            if hot.iter().all(unchanged) {
                return true;
            }
        }
        if begin.elapsed() > patience {
            return false;
        }
    }
}

/// An owner that keeps the window rule stops long before.
const FREEZE_MAX: Duration = Duration::from_millis(100);
/// The readings between two looks at the clock, which is expensive compared with reading a few words.
const SETTLE_READS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::atomics::AtomicBool;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_quiet_attachment_is_copied() {
        let (source, copy) = (words(5000), words(5000));
        (0..5000).for_each(|word| source[word].store(word as u64, Ordering::Relaxed));
        assert!(copy_consistently(&source, &copy, FREEZE_MAX));
        assert!((0..5000).all(|word| copy[word].load(Ordering::Relaxed) == word as u64));
    }

    /// A live owner with a heartbeat and a window of slots at both ends of the attachment: no guard is newer
    /// than what it guards, at lower or at higher addresses, and chains of guards hold too.
    #[test]
    fn a_guard_is_never_newer_than_what_it_guards() {
        const WORDS: usize = 4096;
        const HEARTBEAT: usize = 7;
        const SECOND: usize = 100;
        const FIRST: usize = WORDS - 3;
        let stop = AtomicBool::new(false);
        let source = words(WORDS);
        std::thread::scope(|scope| {
            let stop_at_end = StopAtEnd(&stop);
            scope.spawn(|| store_messages(&source, &stop, [HEARTBEAT, SECOND, FIRST]));
            // Until the owner has stored something during many of the copies.
            let mut disturbed = 0;
            for round in 0..ROUNDS_MAX {
                let before = source[SECOND].load(Ordering::Relaxed);
                let copy = words(WORDS);
                let consistent = copy_consistently(&source, &copy, Duration::from_secs(5));
                assert!(consistent, "round {round}: the copy did not become consistent");
                disturbed += u64::from(source[SECOND].load(Ordering::Relaxed) != before);
                assert_guards_hold(&copy, [SECOND, FIRST]);
                if disturbed == 100 {
                    break;
                }
            }
            drop(stop_at_end);
        });
    }

    /// An owner that never pauses delays the reader for its patience, and no longer.
    #[test]
    fn patience_ends() {
        let source = words(64);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop_at_end = StopAtEnd(&stop);
            scope.spawn(|| {
                for k in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    source[k % 64].store(k as u64, Ordering::Relaxed);
                }
            });
            let begin = Instant::now();
            let _ = copy_consistently(&source, &words(64), Duration::from_millis(20));
            assert!(begin.elapsed() < Duration::from_secs(5));
            drop(stop_at_end);
        });
    }

    /// Asserts that the second guard is not ahead of the first, nor the first ahead of its slots.
    fn assert_guards_hold(copy: &[AtomicU64], [second, first]: [usize; 2]) {
        let load = |word: usize| copy[word].load(Ordering::Relaxed);
        let (first, second) = (load(first), load(second));
        assert!(first >= second, "guard {second} guards a guard with {first}");
        let slots = [slot_low(first), slot_high(first)].map(load);
        assert!(slots.iter().all(|slot| *slot >= first), "guard {first}, but its slots hold {slots:?}");
    }

    /// Stores message k: two slots, then the first guard, then the second guard; a heartbeat in between.
    fn store_messages(source: &[AtomicU64], stop: &AtomicBool, [heartbeat, second, first]: [usize; 3]) {
        // SYNC: pairs with the acquire loads of `copy_consistently`.
        let release = |word: usize, value| source[word].store(value, Ordering::Release);
        for k in 1.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            release(slot_low(k), k);
            release(heartbeat, k);
            release(slot_high(k), k);
            release(first, k);
            release(second, k);
            // About one message a microsecond: the owner has other work, too.
            for _ in 0..300 {
                std::hint::spin_loop();
            }
        }
    }

    fn slot_low(k: u64) -> usize {
        200 + (k % 16) as usize
    }

    fn slot_high(k: u64) -> usize {
        4000 + (k % 16) as usize
    }

    /// On a machine with one free processor copies are seldom disturbed.
    const ROUNDS_MAX: u64 = 20_000;

    struct StopAtEnd<'a>(&'a AtomicBool);

    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
