//! Concessions: a member that stalled does not blame those that noticed (beside Derecho §2).
//!
//! A member that stalls for about as long as the others wait is accused by some of them, while others hear it again in
//! time. To all it looks as if single links were bad, and the rule for these may remove the accuser, which is healthy. Only the
//! member that stalled can know better: its own clock has advanced between two of its looks at the others' signs of life.
//! So it *concedes*: its row says that an accusation against it is deserved, if it learns of it between such a pause and the end
//! of the time that members wait for a sign. An accusation that stems from the pause was made before the next sign of life
//! arrived, so it arrives in that time. One that comes later has another reason, and is weighed like any other. What a member
//! has conceded is over with the view. What it knows of its pauses is not: the next view may begin while it stalls.
//!
//! `Deviation:` for Derecho (§3.4) every suspected member goes. Here a member that stalled goes in place of its accusers.
//!
//! A concession removes no member by itself: for each accusation one of the two ends goes in any case, and it says which one
//! (`cut.rs`). When a whole machine stalled, no member accuses another, since each gives the others time (`silence.rs`).
//!
//! A member that concedes posts that before its answer to the accusation, and others read it after the answer. A leader
//! lets an accused member that it hears stay only after its answer, so it knows by then. A leader that does not hear a member
//! need not know: if the cut has not got that member, it has got the leader, which resigns. And one that hears them comes to
//! lead as long as those that concede are fewer than the others: not every one of the others has one of them to itself.

use squall_fabric::Instant;

use super::Membership;
use super::cut::{everybody, ranks};
use crate::coverage::{Point, reach};
use crate::mutation;

impl Membership {
    /// Takes over what this member knows of its own pauses from its part in the view before.
    pub fn follow(&mut self, earlier: &Self) {
        mutant!(ForgetPause => return);
        if let (Some(silence), Some(earlier)) = (&mut self.silence, &earlier.silence) {
            silence.follow(earlier);
        }
    }

    /// Concedes if this member learns that it is accused, and has stalled \[V15\]. The clock is looked at in that case alone,
    /// and now: the pause may have come in the middle of this evaluation.
    pub(super) fn concede(&mut self, now: impl FnOnce() -> Instant) {
        let own = self.table.rank();
        if self.disputed >> own & 1 == 0 {
            return;
        }
        let accuses_this = |rank: &usize| self.row.accused.load(self.table.row(*rank)) >> own & 1 == 1;
        let others = everybody(self.view.members.len()) & !(1 << own);
        // A member that this one does not hear any more may accuse it.
        let accusers = ranks(others).filter(accuses_this).fold(1 << own, |all, rank| all | 1 << rank);
        let is_news = std::mem::replace(&mut self.accusers, accusers) != accusers;
        let has_paused = || self.silence.as_ref().is_some_and(|silence| silence.has_paused(now()));
        if is_news && has_paused() && !mutant!(NeverConcede) {
            reach(Point::Conceded);
            self.concedes = true;
        }
    }

    /// Puts into the row that this member concedes, before its answer; once more if a reader has missed it.
    pub(super) fn publish_concession(&mut self, is_missed: bool) {
        if self.concedes && (is_missed || !self.row.concedes.load(self.table.own())) {
            self.table.raise(self.row.concedes, true);
        }
    }

    /// The ranks that concede, by the rows as they are now.
    pub(super) fn conceding(&self) -> u64 {
        let concedes = |rank: &usize| self.row.concedes.load(self.table.row(*rank));
        ranks(everybody(self.view.members.len())).filter(concedes).fold(0, |all, rank| all | 1 << rank)
    }
}
