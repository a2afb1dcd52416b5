//! The adversary: does all that the axioms of [`crate::model`] allow, by chance.
//!
//! It decides on delays, on the order in which the words of one write land [F2], on when source words are read
//! [F5], on how late completions come [F6], on how much lands around a break [F11], on how slow a revocation is
//! [F9], and on what readers see early [M2]. Crashes, pauses, partitions and breaks are faults: see
//! [`super::Rule`].

use super::Prng;
use crate::Duration;

/// How far the adversary goes. All zeros is a fabric without delay that keeps every promise at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adversary {
    /// Each connection has a delay of its own up to this, and each post up to as much again.
    pub delay_max: Duration,
    /// How often a post is held up much longer, and everything behind it on its connection with it.
    pub stall_per_mille: u32,
    /// How long then, at most.
    pub stall_max: Duration,
    /// How often the words of a write land in pieces, in any order and at different times [F2].
    pub scatter_per_mille: u32,
    /// Into how many pieces, at most; a short write is cut into single words.
    pub pieces_max: usize,
    /// How often source words are read when they land, instead of when they are posted [F5].
    pub late_source_per_mille: u32,
    /// How long completions wait after the landing, at most [F6].
    pub late_done_max: Duration,
    /// How long a revocation takes, at most [F9]; as long may pass until a break is noticed [F11].
    pub late_notice_max: Duration,
    /// How often a poll yields only some of the events that wait.
    pub partial_poll_per_mille: u32,
    /// How often a poll of a reader, or a push of an owner, shows the reader all that is stored [M2].
    pub glimpse_per_mille: u32,
    /// How long a node rests between two polls, at most.
    pub poll_gap_max: Duration,
    /// Clocks of different nodes differ by up to this.
    pub clock_offset_max: Duration,
    /// Clocks of different nodes run faster or slower than the world's by up to so many millionths of the slower one.
    pub clock_drift_max: u32,
}

impl Adversary {
    /// An adversary of its own kind for each run: some habits strong, some absent, so that over many seeds bugs
    /// appear that need one habit *without* another (swarm testing). All clocks run alike.
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

    /// Up to `max`, small values more often than great ones.
    pub(super) fn wait_ns(prng: &mut Prng, max: Duration) -> u64 {
        let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX / 4);
        let bound = prng.below(max.saturating_add(1));
        prng.below(bound.saturating_add(1))
    }

    /// How long a post is held up, over what its connection takes anyway.
    pub(super) fn post_delay_ns(&self, prng: &mut Prng) -> u64 {
        let stalled = prng.chance(self.stall_per_mille);
        Self::wait_ns(prng, if stalled { self.stall_max } else { self.delay_max })
    }

    /// Cuts `words` words into pieces `(first, count)` and brings them into any order; the last one lands first.
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
