//! After the end of a view: how it is reported, what becomes of those that it left behind, and when no end is possible (Derecho §3.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::NodeId;

use super::mutation;
use super::report::EndReport;
use super::value::EndValue;
use super::view::{EndingView, ShardQuorum};
use crate::members::RankSet;

/// How the views have ended that a process has seen, for the life of the process, whether or not it is a member \[H16\].
#[derive(Clone, Debug, Default)]
pub struct KnownEnds(BTreeMap<u64, Arc<EndValue>>);

impl KnownEnds {
    /// Notes how a view has ended.
    pub fn note(&mut self, view: u64, value: Arc<EndValue>) {
        self.0.insert(view, value);
    }

    /// Returns how a view has ended.
    #[must_use]
    pub fn of(&self, view: u64) -> Option<&Arc<EndValue>> {
        self.0.get(&view)
    }

    /// Returns what to report to a process that is in `view`: how that has ended.
    #[must_use]
    pub fn report_to(&self, view: u64) -> Option<&Arc<EndValue>> {
        mutant!(KeepEndSilent => return None);
        self.of(view)
    }
}

/// What becomes of a message that a member has sent in a view and does not know to be delivered \[H17\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFate {
    /// It is within the trims: all members have it.
    Delivered,
    /// It is not, and its sender is in the next view: it is sent again \[V7\].
    SendAgain,
    /// It is not, and its sender is not.
    NotDelivered,
    /// The sender cannot learn how the view has ended.
    Unknown,
}

/// Returns what becomes of a message of a shard whose count is `count` in `column`, once its sender knows how the view has ended, or that
/// it cannot learn that.
#[must_use]
pub fn message_fate(
    end: Option<&EndValue>,
    stays: bool,
    shard: usize,
    column: usize,
    count: u64,
) -> MessageFate {
    let trim = |end: &EndValue| end.trims.get(shard).and_then(|trims| trims.get(column)).copied();
    match end {
        _ if !stays && mutant!(ResendUnknown) => MessageFate::SendAgain,
        None => MessageFate::Unknown,
        Some(end)
            if end.given_up.get(shard) != Some(&true) && trim(end).is_some_and(|trim| count <= trim) =>
        {
            MessageFate::Delivered
        }
        Some(_) if stays => MessageFate::SendAgain,
        Some(_) => MessageFate::NotDelivered,
    }
}

/// Returns whether a leaver may end its process: all that stay have entered the next view, or are dead \[H16\].
#[must_use]
pub fn may_depart(stay: RankSet, entered: RankSet, dead: RankSet) -> bool {
    stay.is_subset(&(entered | dead))
}

/// Why no end of a view is possible any more \[H18\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWayBack {
    /// That many of its members are known to be dead.
    Majority(usize),
    /// That many members of a shard are.
    Quorum(usize, usize),
}

/// Returns why no end of the view is possible, if that is known: for silence a member waits. In a group with durable shards a process that
/// died may return with its register; then only memory is lost.
///
/// `dead` are the members that are known to be dead, `restarted` those that have answered as restarted in this view.
#[must_use]
pub fn no_way_back(
    view: &EndingView,
    dead: RankSet,
    restarted: RankSet,
    silent: RankSet,
) -> Option<NoWayBack> {
    let dead = if mutant!(EndForSilence) { dead | silent } else { dead } & view.ranks();
    let left = (view.ranks() - dead).len();
    if !view.is_durable() && left < view.majority() {
        return Some(NoWayBack::Majority(dead.len()));
    }
    let lost = |(number, shard): (usize, &super::EndingShard)| {
        let (size, gone) = (shard.members.len(), (shard.members & (dead | restarted)).len());
        let is_majority = !shard.kind.is_durable && shard.kind.quorum == ShardQuorum::Majority && size > 2;
        // Where all are gone, the shard is given up.
        (is_majority && gone < size && gone >= shard.kind.quorum_of(size))
            .then_some(NoWayBack::Quorum(number, gone))
    };
    view.shards.iter().enumerate().find_map(lost)
}

/// Returns whether a live leader admits the process that reports as `candidate` \[H19\]: all members that stay hear it, and it them; and it
/// has never been a member \[J1\].
#[must_use]
pub fn may_admit(
    candidate: (NodeId, &EndReport),
    stay: RankSet,
    hear_it: RankSet,
    has_been_member: impl Fn(NodeId) -> bool,
) -> bool {
    let (node, report) = candidate;
    let is_outside = report.view.is_none() && !report.answer.leaves;
    let is_new = !has_been_member(node) || mutant!(AdmitFormer);
    is_outside && is_new && stay.is_subset(&hear_it) && stay.is_subset(&report.answer.hears)
}
