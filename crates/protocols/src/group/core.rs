//! The group's core: it drives membership and subgroups from view to view (Derecho §2, §3.4).

use std::collections::BTreeMap;

use squall_fabric::window::INDEXES_MAX;
use squall_fabric::{Core, Fabric, FabricEvent, Instant, NodeId};

use super::active::{ActiveSubgroup, AnySubgroup, UpcallGate, ViewDisk, ViewSubgroups, either};
use super::figures::SubgroupTotals;
use super::flight::FlightRecorder;
use super::register::GroupRegister;
use super::relays::Relays;
use super::rota::SubgroupRota;
use super::shards::{ActiveShards, ShardPassage};
use super::succession::Successions;
use super::timeline::Timeline;
use super::tracks::MessageTracks;
use super::{
    ConsumerStandstill, FlightEvent, GroupApplication, GroupEnd, SubgroupId, SubgroupLayout, ViewChange,
};
use crate::genuine::{GenuineCarryover, GenuineSettings};
use crate::membership::{
    self, FirstView, Member, MemberHindrance, Membership, MembershipState, StopReason, View, ViewChangeStep,
    ViewNotice, ViewPassage,
};
use crate::mutation;
use crate::rdmc;
use crate::restart::{Register, ViewChain};

/// The settings of a group, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// When members are suspected, and when a part of the group may continue.
    pub membership: membership::MembershipSettings,
    /// How bodies of large messages are relayed from member to member; `None`: as suits the longest messages.
    pub relays: Option<rdmc::RdmcSettings>,
    /// The durable subgroups, in an order that stays: the shards of the register ([`GroupApplication::register`]).
    pub durable: Vec<SubgroupId>,
    /// How messages to shards are ordered ([`SubgroupLayout::shards`]); `None`: there are no shards. If they have states, the last
    /// ones of [`membership::MembershipSettings::states`] are theirs.
    pub genuine: Option<GenuineSettings>,
    /// A view ends, and the next one begins, when a sender has sent this many messages and nulls in a subgroup, and
    /// at least twice its window; less than [`INDEXES_MAX`].
    pub view_indexes_max: u64,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self {
            membership: membership::MembershipSettings::default(),
            relays: None,
            durable: Vec::new(),
            genuine: None,
            // A view ends long before the messages sent meanwhile could use up the other half.
            view_indexes_max: INDEXES_MAX / 2,
        }
    }
}

/// A group, as one node sees it. See the module above for the step order and the invariants.
pub struct GroupCore<A: GroupApplication> {
    pub(super) application: A,
    pub(super) layout: Box<dyn SubgroupLayout + Send>,
    pub(super) settings: GroupSettings,
    pub(super) stage: GroupStage<A::Deliver>,
    pub(super) passage: ViewPassage,
    pub(super) successions: Successions,
    pub(super) shard_passage: ShardPassage,
    pub(super) relays: Relays,
    /// What is on the disk of votes and views, in a group with durable subgroups.
    pub(super) register: Option<GroupRegister>,
    /// Weighted evaluations since membership was evaluated.
    pub(super) skipped: u32,
    pub(super) timeline: Timeline,
    pub(super) flight: FlightRecorder,
    /// What the subgroups have done in views that have ended.
    pub(super) past_totals: BTreeMap<SubgroupId, SubgroupTotals>,
    /// When the subgroups were last sampled.
    pub(super) sampled: Option<Instant>,
    pub(super) tracks: MessageTracks,
    pub(super) standstill: Option<ConsumerStandstill>,
    /// What has made this member slow, and when that was noted last.
    pub(super) hindrance: Option<(MemberHindrance, Instant)>,
    /// The subgroups that it was in when the group ended here, and their upcalls.
    pub(super) left: Vec<(SubgroupId, Option<A::Deliver>)>,
}

/// The stage of a node's life in a group.
pub(super) enum GroupStage<D> {
    /// It waits for its first view.
    Joining(ViewNotice, Vec<NodeId>),
    /// It is in a view.
    Present(PresentView<D>),
    Ended(GroupEnd),
}

/// A view, as one member sees it.
pub(super) struct PresentView<D> {
    pub(super) membership: Membership,
    pub(super) subgroups: Vec<ActiveSubgroup<D>>,
    pub(super) rota: SubgroupRota,
    /// The shards, if the group has any.
    pub(super) shards: Option<ActiveShards>,
}

impl<A: GroupApplication> GroupCore<A> {
    /// Begins a group with its first view, at each of its members.
    ///
    /// # Panics
    /// If this node is not a member, or there are durable subgroups and the application has no register.
    pub fn begin<F: Fabric>(
        fabric: &mut F,
        view: View,
        layout: Box<dyn SubgroupLayout + Send>,
        settings: GroupSettings,
        application: A,
    ) -> Self {
        let stage = GroupStage::Ended(GroupEnd::Stopped(StopReason::Left));
        let mut group = Self::new(fabric, layout, settings, application, stage);
        if let Some(register) = &mut group.register {
            register.begin(&view, &*group.layout, None);
        }
        group.shard_passage = ShardPassage::new(None, false);
        group.install(fabric, view, BTreeMap::new(), GenuineCarryover::default());
        group
    }

    /// Joins a group: `contacts` are its members, one of which has been asked to admit this node.
    ///
    /// # Panics
    /// If there are durable subgroups and the application has no register.
    pub fn join<F: Fabric>(
        fabric: &mut F,
        contacts: &[NodeId],
        layout: Box<dyn SubgroupLayout + Send>,
        settings: GroupSettings,
        application: A,
    ) -> Self {
        let notice = ViewNotice::new(fabric, contacts, settings.membership.states, settings.durable.len());
        let stage = GroupStage::Joining(notice, contacts.to_vec());
        Self::new(fabric, layout, settings, application, stage)
    }

    fn new<F: Fabric>(
        fabric: &F,
        layout: Box<dyn SubgroupLayout + Send>,
        settings: GroupSettings,
        mut application: A,
        stage: GroupStage<A::Deliver>,
    ) -> Self {
        Self {
            register: GroupRegister::new(&mut application, &settings.durable),
            application,
            layout,
            relays: Relays::new(fabric.node(), settings.relays.clone()),
            shard_passage: ShardPassage::new(settings.genuine.as_ref(), true),
            settings,
            stage,
            passage: ViewPassage::new(fabric.node()),
            successions: Successions::default(),
            skipped: 0,
            timeline: Timeline::new(),
            flight: FlightRecorder::default(),
            past_totals: BTreeMap::new(),
            sampled: None,
            tracks: MessageTracks::default(),
            standstill: None,
            hindrance: None,
            left: Vec::new(),
        }
    }

    /// Makes this node take part in views, but not in messages, until [`GroupCore::take_part`]. This is for a process
    /// that joins, and may have to join again as another node: a gap would follow the messages that it had taken as
    /// the first node. So upcalls get no view and no message until then \[J8\].
    pub const fn stand_by(&mut self) {
        self.passage.set_standing_by(true);
    }

    /// Lets messages flow to this node and from it from now on.
    pub fn take_part(&mut self) {
        self.passage.set_standing_by(false);
        if let GroupStage::Present(present) = &mut self.stage {
            for active in &mut present.subgroups {
                if let AnySubgroup::Upcall(core) = &mut active.core {
                    core.deliver_mut().into_iter().for_each(UpcallGate::open);
                }
            }
        }
    }

    /// The application.
    pub const fn application(&mut self) -> &mut A {
        &mut self.application
    }

    /// The application.
    #[must_use]
    pub const fn application_ref(&self) -> &A {
        &self.application
    }

    /// Ends the group here, and returns the application as it was before, with all its upcalls: it may join the group
    /// again, as another node.
    #[must_use]
    pub fn into_application(mut self) -> A {
        self.close();
        for (id, deliver) in std::mem::take(&mut self.left) {
            self.application.leave_subgroup(id, deliver);
        }
        self.application
    }

    /// Returns membership of the current view, if there is one.
    #[must_use]
    pub const fn membership(&self) -> Option<&Membership> {
        match &self.stage {
            GroupStage::Present(present) => Some(&present.membership),
            GroupStage::Joining(..) | GroupStage::Ended(_) => None,
        }
    }

    /// Returns the register as it is on the disk, in a group with durable subgroups: for processes that ask whether their group runs
    /// (\[T10\], [`crate::restart::RestartReport::live`]).
    #[must_use]
    pub fn register(&self) -> Option<&Register> {
        self.register.as_ref().map(GroupRegister::durable)
    }

    /// Takes over what another process knows of how earlier views have ended \[T19\]: a joiner knows only of the view before its first
    /// one.
    pub fn extend_register(&mut self, chain: &ViewChain) {
        self.register.iter_mut().for_each(|register| register.extend(chain));
    }

    /// Returns the latest view changes, the oldest first, with the instant of each step of this node.
    #[must_use]
    pub fn timeline(&self) -> impl ExactSizeIterator<Item = &ViewChange> {
        self.timeline.changes()
    }

    /// Returns whether the fabric has lost `node`, which does not return.
    #[must_use]
    pub fn has_lost(&self, node: NodeId) -> bool {
        self.passage.has_lost(node)
    }

    /// Returns whether messages flow: this node is in a view whose members have all attached, and which is not
    /// ending. (A view that is ending does not wait for accused members, so that having attached all others implies
    /// nothing about those.)
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let state = self.membership().map(Membership::state);
        let flows = state == Some(MembershipState::Normal) || mutant!(ReadyWhileEnding);
        flows && self.has_opened()
    }

    /// Returns whether all members of the view have attached, except those that are accused.
    fn has_opened(&self) -> bool {
        match &self.stage {
            GroupStage::Present(present) => {
                present.membership.is_ready()
                    && present.shards.as_ref().is_none_or(|shards| shards.member.is_ready())
                    && present.subgroups.iter().all(|active| either!(&active.core, core => core.is_ready()))
            }
            GroupStage::Joining(..) | GroupStage::Ended(_) => false,
        }
    }

    /// Returns why the group has ended here, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<GroupEnd> {
        match &self.stage {
            GroupStage::Ended(ended) => Some(*ended),
            GroupStage::Joining(..) | GroupStage::Present(_) => None,
        }
    }

    /// Admits a joiner with the next view, if this member leads; the joiner has connections to all members.
    pub fn admit(&mut self, joiner: Member) {
        if let GroupStage::Present(present) = &mut self.stage
            && !self.passage.has_lost(joiner.node)
        {
            present.membership.admit(joiner);
            self.skipped = SKIP;
        }
    }

    /// Ends the view although its members stay ([`crate::membership::Membership::renew`]).
    pub const fn renew(&mut self) {
        if let GroupStage::Present(present) = &mut self.stage {
            present.membership.renew();
            self.skipped = SKIP;
        }
    }

    /// Leaves the group with the next view, or, if only this node holds some state, with the view after another
    /// member has got it \[A9\]. Views that end for other reasons do not change that \[V13\].
    pub fn leave(&mut self) {
        self.passage.set_leaving(!mutant!(ForgetWish));
        if let GroupStage::Present(present) = &mut self.stage {
            present.membership.leave();
            self.skipped = SKIP;
        }
    }

    /// Evaluates everything but the subgroups; returns the amount of work done.
    fn poll_views<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let notified = self.passage.poll(fabric);
        self.retire_past(fabric);
        self.look_at_consumers(fabric);
        self.look_at_indexes();
        let mut work = notified + self.poll_joining(fabric) + self.poll_register();
        work += self.poll_membership(fabric);
        self.shorten_register();
        work += self.poll_register();
        if self.timeline.is_opening() && self.has_opened() {
            let (now, view) = (fabric.now(), self.membership().map_or(0, |membership| membership.view().id));
            self.timeline.note(ViewChangeStep::Ready, now);
            self.flight.note(now, FlightEvent::Opens { view });
        }
        work
    }

    /// Ends a write of the register, and begins the next one.
    fn poll_register(&mut self) -> usize {
        let Self { application, register, .. } = self;
        register.as_mut().map_or(0, |register| register.poll(application))
    }

    /// Returns whether there is something new for membership: from another member, or, while this member may publish it,
    /// a state that it holds; and whether the disk is to be asked. It costs a load for each member, and one more.
    #[inline]
    fn has_news(&mut self) -> bool {
        if self.register.as_ref().is_some_and(GroupRegister::is_writing) {
            return true;
        }
        match &mut self.stage {
            GroupStage::Present(PresentView { membership, .. }) => {
                let is_normal = membership.state() == MembershipState::Normal;
                membership.has_news() || (is_normal && self.application.has_state_news())
            }
            GroupStage::Joining(..) => true,
            GroupStage::Ended(_) => false,
        }
    }

    /// Ends the view before a sender's indexes are used up: a group must never stop because it has sent many
    /// messages.
    fn look_at_indexes(&mut self) {
        let GroupStage::Present(present) = &mut self.stage else { return };
        let is_used_up = |active: &ActiveSubgroup<A::Deliver>| {
            either!(&active.core, core => {
                // A view may begin with a whole window to send again, and has to deliver that at least.
                let most = self.settings.view_indexes_max.max(2 * core.settings().window as u64);
                core.indexes_max() >= most
            })
        };
        // Only work uses indexes up.
        if present.rota.awake().iter().any(|place| is_used_up(&present.subgroups[*place])) {
            present.membership.renew();
        }
    }

    /// Retires what is left of earlier views.
    fn retire_past<F: Fabric>(&mut self, fabric: &mut F) {
        if let GroupStage::Present(present) = &self.stage
            && self.passage.retire(fabric, &present.membership)
        {
            self.passage.lost().for_each(|node| self.relays.part_with(fabric, node));
            self.shard_passage.retire(fabric);
        }
    }

    /// Evaluates membership; returns the amount of work done.
    pub(super) fn poll_membership<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let GroupStage::Present(PresentView { membership, subgroups, shards, .. }) = &mut self.stage else {
            return 0;
        };
        let Self { application, register, layout, .. } = self;
        let disk = register.as_mut().map(|register| ViewDisk { register, layout: &**layout });
        let shards = shards.as_mut();
        let mut work = membership.poll(fabric, &mut ViewSubgroups { application, subgroups, shards, disk });
        self.flight.look(|| fabric.now(), membership);
        if let Some(stop) = membership.stopped() {
            self.timeline.add(ViewChange::stopped(membership));
            self.stop(stop);
        } else if let Some(decision) = membership.decision() {
            let rank = membership.view().rank(self.passage.node()).expect("it is a member of its own view");
            let goes_on = mutant!(GoOnRemoved) && !membership.is_leaving();
            if decision.removes(rank) && (goes_on || !membership.is_known_to_all()) {
                return work;
            }
            let ended = GroupStage::Ended(GroupEnd::Stopped(StopReason::Excluded));
            let GroupStage::Present(present) = std::mem::replace(&mut self.stage, ended) else { return work };
            self.change_view(fabric, present);
            work += 1;
        }
        work
    }

    fn poll_joining<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let GroupStage::Joining(notice, contacts) = &self.stage else { return 0 };
        match self.passage.poll_notice(fabric, notice, contacts) {
            FirstView::Awaited => return 0,
            FirstView::Begins(view, trims) => {
                if let Some(register) = &mut self.register {
                    register.begin(&view, &*self.layout, Some(trims));
                }
                self.install(fabric, view, BTreeMap::new(), GenuineCarryover::default());
            }
            FirstView::Excluded => self.end(GroupEnd::Stopped(StopReason::Excluded)),
            FirstView::NobodyLeft => self.end(GroupEnd::NobodyLeft),
        }
        1
    }
}

impl<F: Fabric, A: GroupApplication> Core<F> for GroupCore<A> {
    fn handle_event(&mut self, fabric: &mut F, event: &FabricEvent) {
        if let Some(noticed) = FlightEvent::of(event) {
            self.flight.note(fabric.now(), noticed);
        }
        self.passage.handle_event(event);
        self.relays.handle_event(fabric, event);
        self.shard_passage.handle_event(event);
        if let GroupStage::Present(present) = &mut self.stage {
            present.membership.handle_event(event);
            for active in &mut present.subgroups {
                either!(&mut active.core, core => core.handle_event(fabric, event));
            }
            present.shards.iter_mut().for_each(|shards| shards.member.handle_event(event));
        }
        self.skipped = SKIP;
    }

    fn poll(&mut self, fabric: &mut F) -> usize {
        let mut due = self.skipped >= SKIP;
        let mut views = if due { self.poll_views(fabric) } else { 0 };
        let subgroups = self.poll_subgroups(fabric);
        let is_idle = views + subgroups == 0;
        // A node that has nothing else to do misses no news, and a busy one asks from time to time.
        if !due && (is_idle || self.skipped.is_multiple_of(ASK)) && self.has_news() {
            due = true;
            views = self.poll_views(fabric);
        }
        // A step may allow the next one.
        self.skipped = match (views > 0, due) {
            (true, _) => SKIP,
            (false, true) => 0,
            (false, false) => self.skipped + if is_idle { IDLE } else { 1 },
        };
        views + subgroups
    }

    fn look_at_all(&mut self) -> bool {
        let GroupStage::Present(PresentView { rota, membership, .. }) = &mut self.stage else { return false };
        rota.look_at_all();
        membership.look_at_all();
        rota.is_in_turn() || membership.looks_in_turn()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let membership = self.membership().and_then(Membership::next_deadline);
        let look = match &self.stage {
            GroupStage::Present(present) => present
                .subgroups
                .iter()
                .filter_map(|active| either!(&active.core, core => core.next_look()))
                .min(),
            GroupStage::Joining(..) => None,
            // Nothing is evaluated any more: a deadline would pass again and again.
            GroupStage::Ended(_) => return None,
        };
        membership.into_iter().chain(self.relays.next_deadline::<F>()).chain(look).min()
    }
}

/// Membership is evaluated in one of this many evaluations while it has no news and messages flow.
pub(super) const SKIP: u32 = 64;

/// An evaluation in which nothing happens counts for this many.
const IDLE: u32 = 4;

/// While messages flow, one of this many evaluations checks for news about membership.
const ASK: u32 = 16;
