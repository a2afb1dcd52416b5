//! The adversary: exercises everything that the axioms of [`crate::model`] allow, at random.
//!
//! It decides on delays, on the order in which the words of one write land [F2], on when source words are
//! read [F5], on how late completions arrive [F6], on how much lands around a break [F11], on how slow a
//! revocation is [F9], and on what readers see early [M2]. Crashes, pauses, partitions and breaks are faults:
//! see [`super::Rule`].

use super::Prng;
use crate::Duration;

/// The limits of the adversary. All zeros give a fabric that has no delay and keeps every promise at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adversary {
    /// The maximum delay of a connection; each post is delayed by up to the same again.
    pub delay_max: Duration,
    /// How often a post is delayed for much longer, and everything after it on its connection with it.
    pub stall_per_mille: u32,
    /// The maximum of such a longer delay.
    pub stall_max: Duration,
    /// How often the words of a write land in pieces, in any order and at different times [F2].
    pub scatter_per_mille: u32,
    /// The maximum number of pieces; a short write is cut into single words.
    pub pieces_max: usize,
    /// How often source words are read when they land, instead of when they are posted [F5].
    pub late_source_per_mille: u32,
    /// The maximum delay of a completion after the landing [F6].
    pub late_done_max: Duration,
    /// The maximum delay of a revocation [F9], and of the detection of a break [F11].
    pub late_notice_max: Duration,
    /// How often a poll yields only some of the pending events.
    pub partial_poll_per_mille: u32,
    /// How often a poll of a reader, or a push of an owner, shows the reader everything that is stored [M2].
    pub glimpse_per_mille: u32,
    /// The maximum pause of a node between two polls.
    pub poll_gap_max: Duration,
    /// The maximum offset of a node's clock from the world's time.
    pub clock_offset_max: Duration,
    /// The maximum drift of a node's clock against the world's, in parts per million of the slower one.
    pub clock_drift_max: u32,
}

impl Adversary {
    /// Draws an adversary of a different character for each run: some habits strong, some absent, so that
    /// many seeds reveal bugs that need one habit *without* another (swarm testing). All clocks run at the
    /// same rate.
    #[must_use]
    pub fn drawn(prng: &mut Prng) -> Self {
        let mut up_to = |max_ns: u64| match prng.below(4) {
            0 => Duration::ZERO,
            1 => Duration::from_nanos(prng.below(max_ns / 64 + 1)),
            _ => Duration::from_nanos(prng.below(max_ns + 1)),
        };
        let [delay_max, late_done_max, poll_gap_max] = [20_000, 50_000, 20_000].map(&mut up_to);
        let [late_notice_max, stall_max, clock_offset_max] =
            [500_000, 2_000_000, 3_600_000_000_000].map(up_to);
        let mut often = |max: u64| match prng.below(3) {
            0 => 0,
            _ => u32::try_from(prng.below(max + 1)).expect("at most a thousand"),
        };
        Self {
            delay_max,
            stall_per_mille: often(20),
            stall_max,
            scatter_per_mille: often(1000),
            pieces_max: 2 + usize::try_from(often(14)).expect("small"),
            late_source_per_mille: often(1000),
            late_done_max,
            late_notice_max,
            partial_poll_per_mille: often(500),
            glimpse_per_mille: often(500),
            poll_gap_max,
            clock_offset_max,
            clock_drift_max: 0,
        }
    }

    /// Draws a time of up to `max`; small values are more frequent than large ones.
    pub(super) fn wait_ns(prng: &mut Prng, max: Duration) -> u64 {
        let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX / 4);
        let bound = prng.below(max.saturating_add(1));
        prng.below(bound.saturating_add(1))
    }

    /// Draws the delay of a post, beyond what its connection takes anyway.
    pub(super) fn post_delay_ns(&self, prng: &mut Prng) -> u64 {
        let stalled = prng.chance(self.stall_per_mille);
        Self::wait_ns(prng, if stalled { self.stall_max } else { self.delay_max })
    }

    /// Cuts `words` words into pieces `(first, count)` and shuffles them; the last one in the list lands
    /// first.
    pub(super) fn cut(&self, prng: &mut Prng, words: u32, pieces: &mut Vec<(u32, u32)>) {
        pieces.clear();
        if words < 2 || !prng.chance(self.scatter_per_mille) {
            pieces.push((0, words));
            return;
        }
        let cuts = if words as usize <= self.pieces_max { words } else { self.pieces_max.max(2) as u32 };
        let mut ends: Vec<u32> = match cuts == words {
            true => (1..words).collect(),
            false => (1..cuts).map(|_| 1 + u32_below(prng, words - 1)).collect(),
        };
        ends.push(words);
        ends.sort_unstable();
        ends.dedup();
        let mut first = 0;
        for end in ends {
            pieces.push((first, end - first));
            first = end;
        }
        prng.shuffle(pieces);
    }
}

fn u32_below(prng: &mut Prng, bound: u32) -> u32 {
    u32::try_from(prng.below(u64::from(bound))).expect("below a u32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_word_once() {
        let mut prng = Prng::new(1);
        let mut pieces = Vec::new();
        for words in 0..200 {
            let adversary = Adversary { scatter_per_mille: 800, pieces_max: 6, ..Adversary::default() };
            adversary.cut(&mut prng, words, &mut pieces);
            let mut covered: Vec<u32> =
                pieces.iter().flat_map(|(first, count)| *first..first + count).collect();
            covered.sort_unstable();
            assert_eq!(covered, (0..words).collect::<Vec<_>>());
            assert!(pieces.len() <= 6);
        }
    }
}
