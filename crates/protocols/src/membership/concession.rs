//! Concessions: a member that stalled does not blame the members that noticed (not in Derecho §2).
//!
//! A member that stalls for about as long as the others wait is accused by some of them, while others hear it again
//! in time. To all of them it looks as if single links were bad, and the rule for bad links may remove the accuser,
//! which is healthy. Only the member that stalled can know better: its own clock has advanced between two of its
//! checks of the others' signs of life. So it *concedes*: its row says that an accusation against it is deserved, if
//! it learns of the accusation between such a pause and the end of the time that members wait for a sign. An
//! accusation that is caused by the pause was made before the next sign of life arrived, so it arrives within that
//! time. A later one has another reason, and is weighed like any other. A concession ends with the view. What a
//! member knows about its pauses is kept, since the next view may begin while it stalls.
//!
//! `Deviation:` in Derecho (§3.4) every suspected member is removed. Here a member that stalled is removed instead of
//! its accusers.
//!
//! A concession removes no member by itself: for each accusation one of the two ends is removed in any case, and the
//! concession says which one (`cut.rs`). When a whole machine stalled, no member accuses another, since each gives
//! the others time (`silence.rs`).
//!
//! A member that concedes posts that before its answer to the accusation, and others read it after the answer. A
//! leader lets an accused member that it hears stay only after the member's answer, so it knows of a concession by
//! then. A leader that does not hear a member need not know: if the cut does not contain that member, it contains the
//! leader, which resigns. And a leader that hears them takes over as long as the members that concede are fewer than
//! the others: they are too few for each of the others to have a different one that it does not hear.

use squall_fabric::Instant;

use super::{Membership, RankSet};
use crate::coverage::{Point, reach};
use crate::mutation;

impl Membership {
    /// Takes over what this member knows about its own pauses from its part in the previous view.
    pub fn follow(&mut self, earlier: &Self) {
        mutant!(ForgetPause => return);
        if let (Some(silence), Some(earlier)) = (&mut self.silence, &earlier.silence) {
            silence.follow(earlier);
        }
    }

    /// Concedes if this member learns that it is accused, and has stalled \[V15\]. The clock is read only in that
    /// case, and at this moment: the pause may have come in the middle of this evaluation.
    pub(super) fn concede(&mut self, now: impl FnOnce() -> Instant) {
        let own = self.table.rank();
        if !self.disputed.contains(own) {
            return;
        }
        let accuses_this = |rank: &usize| self.row.accused.contains(self.table.row(*rank), own);
        // A member that this one no longer hears may accuse it, too.
        let accusers = (0..self.view.members.len()).filter(accuses_this).collect::<RankSet>().with(own);
        let is_news = std::mem::replace(&mut self.accusers, accusers) != accusers;
        let has_paused = || self.silence.as_ref().is_some_and(|silence| silence.has_paused(now()));
        if is_news && has_paused() && !mutant!(NeverConcede) {
            reach(Point::Conceded);
            self.concedes = true;
        }
    }

    /// Publishes that this member concedes, before its answer, and again if a reader has missed it.
    pub(super) fn publish_concession(&mut self, is_missed: bool) {
        if self.concedes && (is_missed || !self.row.concedes.load(self.table.own())) {
            self.table.raise(self.row.concedes, true);
        }
    }

    /// Returns the ranks that concede, according to the rows as they are now.
    pub(super) fn conceding(&self) -> RankSet {
        let concedes = |rank: &usize| self.row.concedes.load(self.table.row(*rank));
        (0..self.view.members.len()).filter(concedes).collect()
    }
}
