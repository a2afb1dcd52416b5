//! Reports: what members of a view say about themselves while it ends, beside the rows of its table (Derecho §3.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::{Duration, Instant, NodeId};

use super::Ballot;
use super::mutation;
use super::view::EndingView;
use super::vote::{EndProposal, EndVote};
use crate::members::RankSet;

/// What a member has said for the end of its view: in its row when it has wedged, or in its report when it has promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndAnswer {
    /// By shard, how much of each column it has. They are final \[H2\], and those of durable shards are on its disk.
    pub counts: Vec<Vec<u64>>,
    /// By shard, whether it holds its state, or in a durable shard everything before the view \[H19\] \[K17\].
    pub whole: Vec<bool>,
    /// Whether it has restarted in this view, with its register and without its memory \[H20\].
    pub is_restarted: bool,
    /// Whether there may have been more in its logs \[T9\].
    pub is_damaged: bool,
    /// Whether it wishes to leave.
    pub leaves: bool,
    /// The members from which it has a fresh report.
    pub hears: RankSet,
    /// Its latest vote.
    pub vote: Option<EndVote>,
}

/// Answers by rank.
pub type EndAnswers<'a> = BTreeMap<usize, &'a EndAnswer>;

/// A report of a process to all members of its view \[H4\].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndReport {
    /// The start of the process, and the number of the report within it: an older report never replaces a newer one.
    pub order: (u64, u64),
    /// The view in which the process is; none if it is in no view.
    pub view: Option<u64>,
    /// The newest view of which it knows.
    pub newest: u64,
    /// Whether it waits; else it is live.
    pub waits: bool,
    /// The processes in no view from which it has a fresh report \[H19\].
    pub candidates: Vec<NodeId>,
    /// What it has, and its vote.
    pub answer: Arc<EndAnswer>,
    /// Its promise.
    pub promise: Option<Ballot>,
    /// The ballot that it leads.
    pub lead: Option<Ballot>,
    /// What it proposes under that ballot.
    pub proposal: Option<EndProposal>,
}

impl EndReport {
    /// Returns the highest ballot of which this report shows anything.
    #[must_use]
    pub fn highest(&self) -> Option<Ballot> {
        self.promise.max(self.lead)
    }
}

/// Reports by rank.
pub type RankedReports<'a> = BTreeMap<usize, &'a EndReport>;

/// The latest report of each process, and when a sign of it came last.
#[derive(Clone, Debug, Default)]
pub struct EndReports {
    latest: BTreeMap<NodeId, (Arc<EndReport>, Instant)>,
}

impl EndReports {
    /// Takes a report, unless a later one of this process is here \[H4\]; returns whether it was taken.
    pub fn take(&mut self, now: Instant, from: NodeId, report: Arc<EndReport>) -> bool {
        let is_old = self.latest.get(&from).is_some_and(|(earlier, _)| earlier.order >= report.order);
        if is_old {
            return false;
        }
        self.latest.insert(from, (report, now));
        true
    }

    /// Notes a sign of life of a process that has reported before.
    pub fn hear(&mut self, now: Instant, from: NodeId) {
        if let Some((_, at)) = self.latest.get_mut(&from) {
            *at = now;
        }
    }

    /// Forgets a process.
    pub fn forget(&mut self, node: NodeId) {
        self.latest.remove(&node);
    }

    /// Returns the latest report of a process.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&EndReport> {
        self.latest.get(&node).map(|(report, _)| &**report)
    }

    /// Returns the reports of members of a view that are in it; votes, promises and counts of others do not count \[H4\].
    #[must_use]
    pub fn in_view(&self, view: &EndingView) -> RankedReports<'_> {
        let is_in = |report: &EndReport| {
            report.view == Some(view.number) || mutant!(CountOtherViews) && report.view.is_some()
        };
        let mut reports = RankedReports::new();
        for (node, (report, _)) in &self.latest {
            if let Some(rank) = view.rank(*node).filter(|_| is_in(report)) {
                reports.insert(rank, report);
            }
        }
        mutant!(CountStrangers => self.add_strangers(view, &mut reports));
        reports
    }

    /// Counts processes that are no members as if they had the ranks behind the others.
    fn add_strangers<'a>(&'a self, view: &EndingView, reports: &mut RankedReports<'a>) {
        let strangers = self.latest.iter().filter(|(node, _)| view.rank(**node).is_none());
        for (i, (_, (report, _))) in strangers.enumerate() {
            reports.insert(view.members.len() + i, report);
        }
    }

    /// Returns the members of a view of which something was heard within `silence`.
    #[must_use]
    pub fn heard(&self, view: &EndingView, now: Instant, silence: Duration) -> RankSet {
        let is_heard = |node: NodeId| self.latest.get(&node).is_some_and(|(_, at)| now < *at + silence);
        (0..view.members.len()).filter(|rank| is_heard(view.members[*rank].node)).collect()
    }
}
