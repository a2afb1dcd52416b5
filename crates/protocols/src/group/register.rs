//! The register of a group with durable subgroups: votes and views come to the disk before they count (Derecho §3.4, "Total
//! failures").
//!
//! **Law.** The application writes ([`GroupApplication::write_register`]), one write at a time; all else is decided here and in
//! [`RegisterWriter`]. Membership shows an echo when the vote is on the disk \[T6\]. A view that follows is installed at once, its
//! trim is delivered at once \[T7\], and the node shows that it lives; but it takes no message of the new view and no part in its
//! end before that view is on its disk \[T8\].
//!
//! A shard of the register is a durable subgroup, in the order of [`GroupSettings::durable`](super::GroupSettings::durable). What
//! membership counts by senders is one number of sequences there, since messages of such a subgroup are appended in total order.

use super::core::{GroupCore, GroupStage};
use super::{GroupApplication, Placement, SubgroupId, SubgroupLayout};
use crate::coverage::{Point, reach};
use crate::membership::{Membership, Proposal, RankSet, SenderSegment, View};
use crate::multicast::sequences_complete;
use crate::mutation;
use crate::restart::{
    Ballot, DurableView, EndOrigin, Register, RegisterWriter, ViewChain, ViewEnd, ViewRecord, Vote,
    may_forget,
};

/// The register, and which of its shards is which subgroup.
#[derive(Debug)]
pub(super) struct GroupRegister {
    writer: RegisterWriter,
    shards: Vec<SubgroupId>,
    /// The number of the view that is on the disk, if it is the present one.
    recorded: Option<u64>,
}

impl<A: GroupApplication> GroupCore<A> {
    /// Forgets how views have ended that no member needs to know any more \[T19\].
    pub(super) fn shorten_register(&mut self) {
        if let (Some(register), GroupStage::Present(present)) = (&mut self.register, &self.stage) {
            register.forget_before(self.application.log_base(), &present.membership);
        }
    }
}

impl GroupRegister {
    /// Takes the register that the application has on its disk, if there are durable subgroups.
    ///
    /// # Panics
    /// If there are, and it has none.
    pub(super) fn new(application: &mut impl GroupApplication, shards: &[SubgroupId]) -> Option<Self> {
        if shards.is_empty() {
            return None;
        }
        let register = application.register().expect("durable subgroups need a register");
        let mut register =
            Self { writer: RegisterWriter::new(register), shards: shards.to_vec(), recorded: None };
        register.note_recorded();
        Some(register)
    }

    fn note_recorded(&mut self) {
        let number = self.writer.wanted().view().number;
        self.recorded = self.writer.has_recorded_view().then_some(number);
    }

    /// Returns whether `view` is on the disk \[T8\].
    pub(super) fn has_recorded(&self, view: &View) -> bool {
        self.recorded == Some(view.id)
    }

    /// Returns whether a write is under way.
    pub(super) const fn is_writing(&self) -> bool {
        self.writer.is_writing()
    }

    /// Ends a write and begins the next one.
    pub(super) fn poll(&mut self, application: &mut impl GroupApplication) -> usize {
        let mut work = 0;
        if self.writer.is_writing() && application.take_register_written() {
            self.writer.handle_written();
            self.note_recorded();
            work += 1;
        }
        if let Some(register) = self.writer.poll_write() {
            application.write_register(&register);
            work += 1;
        }
        work
    }

    /// Votes, once under each ballot, for how the view ends; returns whether the vote is on the disk \[T6\] \[T15\].
    pub(super) fn vote(&mut self, ballot: Ballot, end: impl FnOnce(&[SubgroupId]) -> ViewEnd) -> bool {
        if self.writer.wanted().vote.as_ref().is_none_or(|vote| vote.ballot != ballot) {
            let end = end(&self.shards);
            // The last members leave. Their group ends without a view after it, so that it can restart from this one.
            if end.next.members.is_empty() {
                return true;
            }
            if !self.writer.change().vote(Vote { ballot, end }) {
                return false;
            }
        }
        self.writer.shows_vote()
    }

    /// Promises to follow a ballot of a member that waits; returns whether the promise is on the disk \[T12\].
    pub(super) fn promise(&mut self, ballot: Ballot) -> bool {
        if self.writer.wanted().promise < Some(ballot) {
            self.writer.change().promise(ballot);
        }
        self.writer.visible_promise() >= Some(ballot)
    }

    /// Begins to record the view that follows, if this node is in one already \[T8\].
    pub(super) fn end_view(&mut self, end: &ViewEnd) {
        self.writer.change().end_view(end);
        self.note_recorded();
    }

    /// Begins to record the first view of this node, in a group that it begins, or joins when the view before has ended with `trims`.
    /// These join its list to those of the members that stay, which have recorded the view before \[T19\]: a majority of joiners must
    /// not make them forget how it has ended.
    pub(super) fn begin(&mut self, view: &View, layout: &dyn SubgroupLayout, trims: Option<Vec<u64>>) {
        let (placements, _) = layout.place(view);
        let mut trims: Vec<Vec<u64>> = trims.into_iter().collect();
        mutant!(JoinWithoutEnd => trims.clear());
        let mut chain = ViewChain::new(view.id - trims.len() as u64);
        trims.iter().for_each(|trims| chain.push(trims));
        let view = durable_view(&self.shards, view, &placements);
        self.writer.change().learn(&ViewRecord { view, chain });
        self.note_recorded();
    }

    /// Forgets how the views before `base` have ended, which checkpoints of this node cover \[T19\], when each member of the present view
    /// has shown that its log is whole. Mostly there is nothing to forget, which one comparison finds.
    pub(super) fn forget_before(&mut self, base: u64, membership: &Membership) {
        let (wanted, view) = (self.writer.wanted(), membership.view());
        if base <= wanted.record.chain.first() || !self.has_recorded(view) || self.writer.is_writing() {
            return;
        }
        let (shards, whole) = (wanted.view().shards.len(), membership.whole_logs());
        let shown = (0..view.members.len()).map(|rank| whole.contains(rank).then(|| vec![true; shards]));
        if may_forget(wanted.view(), &shown.collect::<Vec<_>>()) {
            reach(Point::EndsForgotten);
            self.writer.change().forget_before(base);
        }
    }

    /// Takes over what another process knows of views before those of the register \[T19\].
    pub(super) fn extend(&mut self, chain: &ViewChain) {
        self.writer.change().extend(chain);
    }

    /// Returns the register as it is on the disk.
    pub(super) const fn durable(&self) -> &Register {
        self.writer.durable()
    }

    /// Returns the subgroups that are shards of the register.
    pub(super) fn shards(&self) -> &[SubgroupId] {
        &self.shards
    }
}

/// Returns how `view` ends by `decision`, as the register has it.
pub(super) fn view_end(
    shards: &[SubgroupId],
    layout: &dyn SubgroupLayout,
    view: &View,
    segments: &[SenderSegment],
    decision: &Proposal,
) -> ViewEnd {
    let next = view.next(decision);
    let (placements, _) = layout.place(&next);
    let trim = |id: &SubgroupId| {
        let segment = segments.iter().find(|segment| segment.durable == Some(id.0));
        segment.map_or(0, |segment| {
            sequences_complete(&decision.trims[segment.trims..segment.trims + segment.senders])
        })
    };
    ViewEnd {
        trims: shards.iter().map(trim).collect(),
        next: durable_view(shards, &next, &placements),
        origin: EndOrigin::Live,
    }
}

/// Returns what the register has of a view: its members, and which of them are in which durable subgroup.
///
/// # Panics
/// If a placement has a member that is not in the view.
#[must_use]
pub fn durable_view(shards: &[SubgroupId], view: &View, placements: &[Placement]) -> DurableView {
    let rank = |node| view.rank(node).expect("a subgroup's members are in the view");
    let members = |id: &SubgroupId| {
        let placement = placements.iter().find(|placement| placement.id == *id);
        placement
            .map_or(RankSet::EMPTY, |placement| placement.members.iter().map(|node| rank(*node)).collect())
    };
    DurableView { number: view.id, members: view.nodes(), shards: shards.iter().map(members).collect() }
}
