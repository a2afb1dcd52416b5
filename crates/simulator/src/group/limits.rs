//! Counts that begin just below a limit, or have a low one, memory that runs short, and clocks that differ. All of it is drawn
//! from the seed alone, beside the rest of the plan, so that the rest does not depend on it.

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_protocols::admission::VIEWS_WITH_NUMBERS;
use squall_protocols::group::GroupSettings;

/// Where a run's counts begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterLimits {
    /// The number of the first view.
    pub first_view: u64,
    /// A view ends when a sender has sent so much ([`GroupSettings::view_indexes_max`]).
    pub view_indexes_max: u64,
}

impl CounterLimits {
    /// Views are counted from 0, and end for other reasons.
    #[must_use]
    pub fn usual() -> Self {
        Self { first_view: 0, view_indexes_max: GroupSettings::default().view_indexes_max }
    }

    /// Those of `seed`: mostly the usual ones.
    pub(super) fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x11b17);
        // Where a word of 16, 26, 32 or 44 bits would end: the numbers of nodes and the keys of mirrors are made of these.
        let bits = [0, 0, 0, 0, 0, 0, 16, 26, 32, 44][prng.index(10)];
        let end = if bits == 26 { VIEWS_WITH_NUMBERS } else { 1 << bits };
        let first_view = if bits == 0 { 0 } else { end - 1 - prng.below(3) - 40 * u64::from(bits == 44) };
        let view_indexes_max =
            if prng.chance(150) { 1 + prng.below(60) } else { Self::usual().view_indexes_max };
        Self { first_view, view_indexes_max }
    }

    /// How many views end at most since a sender has sent so much, where `messages` are sent in all.
    pub(super) fn views(&self, messages: u64) -> u64 {
        if self.is_low() { messages } else { 0 }
    }

    /// Whether views end because of what is sent.
    pub(super) fn is_low(&self) -> bool {
        self.view_indexes_max < Self::usual().view_indexes_max
    }
}

/// In some runs a node gets no memory at one of its requests, of which it has some in each view.
pub(super) fn draw_shortage(seed: u64, nodes: u64) -> Option<Rule> {
    let mut prng = Prng::new(seed ^ 0x5604);
    let node = u32::try_from(prng.below(nodes)).expect("few");
    let when = RuleTrigger::Memory { node, nth: 1 + prng.below(80) };
    prng.chance(120).then_some(Rule { when, what: Verdict::Crash(node) })
}

/// How much the rates of clocks differ, in millionths: as real ones do, far more, or not at all.
pub(crate) fn draw_drift(seed: u64) -> u32 {
    let mut prng = Prng::new(seed ^ DRIFT);
    [0, 0, 0, 0, 0, 0, 1_000, 1_000, 1_000, 500_000][prng.index(10)]
}

/// With this the seeds that have found something, and are pinned in tests, keep their clocks as they were.
const DRIFT: u64 = 0xd607;
