//! Renewal: the rule when a receiver whose ring is empty advertises its outstanding receives again.
//!
//! `Deviation:` (EXS fig. 3, fig. 7) the paper's receiver never does so. A sender that remains ahead uses none of
//! these adverts, so after each phase of unused adverts the receiver copies twice as many bytes before the next one,
//! up to a limit: direct transfer resumes after a bounded number of bytes, and the adverts cost little compared to
//! the copies. A sender that reports that it waits for adverts gets them at once.

use squall_fabric::Trial;

use super::patience::SHORT_MAX;

/// The rule by which a receiver renews its adverts.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Renewal {
    /// The maximum number of bytes that are copied between two phases of adverts.
    gap_max: u64,
    /// When the next phase begins, in copied bytes.
    phase: Trial,
    /// Whether the present phase has brought a direct transfer.
    was_used: bool,
}

impl Renewal {
    pub(super) fn new(gap_max: u64) -> Self {
        Self { gap_max, phase: Trial::new(GAP_MIN, gap_max), was_used: false }
    }

    /// Returns whether a new phase may begin.
    pub(super) fn is_due(&self) -> bool {
        self.phase.is_due()
    }

    /// Records a direct transfer.
    pub(super) fn on_direct(&mut self) {
        self.phase.reset();
        self.was_used = true;
    }

    /// Records that an indirect transfer has ended a direct phase. `space` is that of the next receive.
    pub(super) fn on_voided(&mut self, space: u64) {
        if !self.was_used {
            self.phase.set_most(if space <= SHORT_MAX { SHORT_FACTOR * self.gap_max } else { self.gap_max });
            self.phase.fail();
        }
        self.was_used = false;
    }

    /// Records that the sender waits for adverts, and so will use them.
    pub(super) fn on_awaited(&mut self) {
        self.phase.hasten();
    }

    /// Records that bytes were copied out of the ring.
    pub(super) fn on_copied(&mut self, bytes: u64) {
        self.phase.advance(bytes);
    }
}

/// The cost of a message with adverts at both ends, in bytes that could be copied instead.
const GAP_MIN: u64 = 4096;
/// By this factor adverts for short receives, which save little, may be rarer.
const SHORT_FACTOR: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 1 << 20;

    #[test]
    fn unused_adverts_become_rare_and_never_cease() {
        let mut renewal = Renewal::new(10_000);
        assert!(renewal.is_due(), "the first phase begins at once");
        for gap in [4096, 8192, 10_000, 10_000] {
            renewal.on_voided(LONG);
            renewal.on_copied(gap - 1);
            assert!(!renewal.is_due(), "{gap}");
            renewal.on_copied(1);
            assert!(renewal.is_due(), "{gap}");
        }
        renewal.on_direct();
        renewal.on_voided(LONG);
        assert!(renewal.is_due(), "the phase was worth it");
    }

    #[test]
    fn a_sender_that_waits_for_adverts_gets_them() {
        let mut renewal = Renewal::new(10_000);
        renewal.on_voided(LONG);
        assert!(!renewal.is_due());
        renewal.on_awaited();
        assert!(renewal.is_due());
        renewal.on_voided(LONG);
        assert!(!renewal.is_due(), "the adverts were not used after all");
    }

    #[test]
    fn adverts_for_short_receives_become_rarer() {
        let mut renewal = Renewal::new(10_000);
        (0..6).for_each(|_| renewal.on_voided(SHORT_MAX));
        renewal.on_copied(39_999);
        assert!(!renewal.is_due());
        renewal.on_copied(1);
        assert!(renewal.is_due());
    }

    #[test]
    fn adverts_without_a_gap_are_renewed_at_once() {
        let mut renewal = Renewal::new(0);
        renewal.on_voided(LONG);
        assert!(renewal.is_due());
    }
}
