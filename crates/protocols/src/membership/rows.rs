//! What a member reads in the rows of the others, and when (Derecho §3.4, Table 1).
//!
//! A row is read when its heartbeat has changed, since a member posts a heartbeat after everything else that it writes; and once more
//! when it is frozen, since its last words may have come without one. So an evaluation takes a load for each member, and more only for
//! those that have written something: idle members cost little, however many they are. Between evaluations, a look for news looks at some of
//! many members in turn, and at all before the node sleeps.

use squall_fabric::{Fabric, Region};

use super::{Membership, RankSet, Subgroups};
use crate::mutation;

/// A look for news looks at this many members.
const HEARTBEATS_AT_ONCE: usize = 64;

/// What the rows of a view said when they were read last. All sets only grow, but for the news.
#[derive(Debug)]
pub(super) struct SeenRows {
    /// The latest heartbeat of each member, by rank.
    pub(super) heartbeats: Vec<u64>,
    /// The rank at which the next look for news begins.
    next: usize,
    /// The next look for news looks at all.
    looks_at_all: bool,
    /// The members whose heartbeats have changed since the last evaluation.
    news: RankSet,
    /// The members that know the decision.
    pub(super) deciding: RankSet,
    /// The members that wish to leave, or have wedged.
    pub(super) ending: RankSet,
    /// The members that find others too slow.
    pub(super) reporting: RankSet,
}

impl SeenRows {
    pub(super) fn new(members: usize) -> Self {
        let none = RankSet::EMPTY;
        Self {
            heartbeats: vec![0; members],
            next: 0,
            looks_at_all: false,
            news: none,
            deciding: none,
            ending: none,
            reporting: none,
        }
    }
}

impl Membership {
    /// Returns whether another member has written something since the last evaluation, or this member waits for its disk. It
    /// costs one load for each member, in a view of more than 64 members for 64 of them in turn (but see
    /// [`Self::look_at_all`]). It does not read the clock, so evaluations are nevertheless due from time to time.
    #[inline]
    #[must_use]
    pub fn has_news(&mut self) -> bool {
        if self.awaits_disk || self.awaits_log || self.voting.is_some() || self.hears_waiting() {
            return true;
        }
        let members = self.seen.heartbeats.len();
        let looks = if !self.looks_in_turn() || std::mem::take(&mut self.seen.looks_at_all) {
            0..members
        } else {
            let first = self.seen.next;
            let end = members.min(first + HEARTBEATS_AT_ONCE);
            self.seen.next = end % members;
            first..end
        };
        let heartbeat = self.row.heartbeat;
        let is_new = |(row, heard): (&Region, &u64)| heartbeat.load(row) != *heard;
        self.table.rows()[looks.clone()].iter().zip(&self.seen.heartbeats[looks]).any(is_new)
    }

    /// Lets the next look for news look at all members.
    pub const fn look_at_all(&mut self) {
        self.seen.looks_at_all = true;
    }

    /// Returns whether looks for news look at some of the members in turn.
    #[must_use]
    pub const fn looks_in_turn(&self) -> bool {
        self.seen.heartbeats.len() > HEARTBEATS_AT_ONCE
    }

    /// Notes the others' heartbeats: everything posted before them is processed in this evaluation.
    pub(super) fn hear(&mut self) {
        for (rank, (row, heard)) in self.table.rows().iter().zip(&mut self.seen.heartbeats).enumerate() {
            let heartbeat = self.row.heartbeat.load(row);
            if heartbeat != *heard {
                self.seen.news.insert(rank);
                *heard = heartbeat;
            }
        }
    }

    /// Learns which members the others accuse, which of these have answered, and which leaders have resigned. No
    /// member is accused because another one accuses it \[V11\].
    pub(super) fn hear_opinions(&mut self) {
        let own = self.table.rank();
        let news = std::mem::take(&mut self.seen.news);
        if !news.is_empty() {
            news.without(own).iter().for_each(|rank| self.read_row(rank));
        }
        if self.disputed.is_empty() {
            return;
        }
        let unanswered = (self.disputed & self.heard_members()) - self.vouched;
        for rank in unanswered.without(own).iter() {
            let mut answers = self.row.disputed.contains(self.table.row(rank), rank);
            mutant!(VouchUnheard => answers = true);
            if answers {
                self.vouched.insert(rank);
            }
        }
    }

    /// Reads what another member has written.
    fn read_row(&mut self, rank: usize) {
        let all = self.all();
        let row = self.table.row(rank);
        let accused = self.row.accused.load(row) & all;
        self.disputed |= accused | self.row.disputed.load(row) & all;
        if self.row.suspected.contains(row, rank) {
            self.suspected.insert(rank);
        }
        if self.row.waits.load(row) {
            self.waiting.insert(rank);
        }
        let seen = &mut self.seen;
        let signs = [
            (self.row.decided.load(row) > 0, &mut seen.deciding),
            (self.row.leaving.load(row) || !self.row.wedged.is_empty(row), &mut seen.ending),
            (!self.row.slow.is_empty(row), &mut seen.reporting),
        ];
        signs.into_iter().filter(|(shown, _)| *shown).for_each(|(_, set)| set.insert(rank));
        mutant!(TakeOverAccusations => accused.without(self.table.rank()).iter().for_each(|rank| self.accuse(rank)));
    }

    /// Freezes the rows of members that are accused by now: what one wrote before counts, too.
    pub(super) fn freeze_accused<F: Fabric>(
        &mut self,
        fabric: &mut F,
        subgroups: &mut impl Subgroups<F>,
    ) -> usize {
        if self.accused.is_empty() {
            return 0;
        }
        let news = self.accused - self.frozen;
        for rank in news.iter() {
            self.table.freeze(fabric, rank);
            self.table.excuse(rank);
            subgroups.freeze(fabric, self.view.members[rank].node);
            if !mutant!(ForgetLastWords) {
                self.read_row(rank);
            }
        }
        self.frozen |= news;
        usize::from(!news.is_empty())
    }
}
