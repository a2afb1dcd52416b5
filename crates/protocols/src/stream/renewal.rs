//! Renewal: when a receiver whose ring is empty advertises its outstanding receives again.
//!
//! `Deviation:` (EXS fig. 3, fig. 7) the paper's receiver never does. A sender that stays ahead takes none of these
//! adverts, so after each phase of adverts in vain twice as much has to be copied before the next, up to a limit: direct
//! transfer resumes after a bounded number of bytes, and the adverts cost little of what the copies cost. A sender that
//! says that it waits for adverts gets them at once.

use squall_fabric::Trial;

use super::patience::SHORT_MAX;

/// How long a receiver holds adverts back.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Renewal {
    /// The most bytes that are copied between two phases of adverts.
    gap_max: u64,
    /// When the next phase begins, in bytes that are copied.
    phase: Trial,
    /// Whether the present phase has brought a direct transfer.
    was_used: bool,
}

impl Renewal {
    pub(super) fn new(gap_max: u64) -> Self {
        Self { gap_max, phase: Trial::new(GAP_MIN, gap_max), was_used: false }
    }

    /// Whether a new phase may begin.
    pub(super) fn is_due(&self) -> bool {
        self.phase.is_due()
    }

    /// A direct transfer has come.
    pub(super) fn on_direct(&mut self) {
        self.phase.reset();
        self.was_used = true;
    }

    /// An indirect transfer has ended a direct phase; the next receive has so much space.
    pub(super) fn on_voided(&mut self, space: u64) {
        if !self.was_used {
            self.phase.set_most(if space <= SHORT_MAX { SHORT_FACTOR * self.gap_max } else { self.gap_max });
            self.phase.fail();
        }
        self.was_used = false;
    }

    /// The sender waits for adverts: they will not be in vain.
    pub(super) fn on_awaited(&mut self) {
        self.phase.hasten();
    }

    /// Bytes were copied out of the ring.
    pub(super) fn on_copied(&mut self, bytes: u64) {
        self.phase.advance(bytes);
    }
}

/// What a message with adverts costs at both ends, in bytes that could be copied instead.
const GAP_MIN: u64 = 4096;
/// Adverts for receives of so few bytes save little, and may be so many times rarer.
const SHORT_FACTOR: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 1 << 20;

    #[test]
    fn adverts_in_vain_become_rare_and_never_cease() {
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
    fn who_waits_for_adverts_gets_them() {
        let mut renewal = Renewal::new(10_000);
        renewal.on_voided(LONG);
        assert!(!renewal.is_due());
        renewal.on_awaited();
        assert!(renewal.is_due());
        renewal.on_voided(LONG);
        assert!(!renewal.is_due(), "it was in vain after all");
    }

    #[test]
    fn for_short_receives_they_become_rarer() {
        let mut renewal = Renewal::new(10_000);
        (0..6).for_each(|_| renewal.on_voided(SHORT_MAX));
        renewal.on_copied(39_999);
        assert!(!renewal.is_due());
        renewal.on_copied(1);
        assert!(renewal.is_due());
    }

    #[test]
    fn without_a_limit_they_are_renewed_at_once() {
        let mut renewal = Renewal::new(0);
        renewal.on_voided(LONG);
        assert!(renewal.is_due());
    }
}
