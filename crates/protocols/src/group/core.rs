//! The group's core: drives membership and subgroups, and goes from view to view (Derecho §2, §3.4).

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::window::INDEXES_MAX;
use squall_fabric::{Core, Event, Fabric, Instant, MirrorId, NodeId};

use super::active::{Active, AnySubgroup, Gate, Served, either};
use super::relays::Relays;
use super::succession::Successions;
use super::timeline::Timeline;
use super::{Application, Ended, Layout, Standstill, SubgroupId, ViewChange};
use crate::membership::{self, Greeter, Member, Membership, State, Step, Stop, View, Welcome};
use crate::multicast::Counters;
use crate::mutation::{Mutation, is_on};
use crate::rdmc;

/// Settings of a group, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How members are judged, and when a part of the group goes on.
    pub membership: membership::Settings,
    /// How bodies of large messages go from member to member; `None`: as suits the longest.
    pub relays: Option<rdmc::Settings>,
    /// A view ends, and the next one begins, when a sender has sent so many messages and nulls in a subgroup, and twice its
    /// window; less than [`INDEXES_MAX`].
    pub view_indexes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            membership: membership::Settings::default(),
            relays: None,
            // A view ends long before what is sent meanwhile could use up the other half.
            view_indexes_max: INDEXES_MAX / 2,
        }
    }
}

/// A group, as one node sees it. See the module above for the step order and the invariants.
pub struct Group<A: Application> {
    pub(super) application: A,
    pub(super) layout: Box<dyn Layout + Send>,
    pub(super) settings: Settings,
    pub(super) node: NodeId,
    pub(super) stage: Stage<A::Deliver>,
    /// Nodes that the fabric has lost; none of them comes back.
    pub(super) lost: BTreeSet<NodeId>,
    pub(super) greeters: Vec<Greeter>,
    /// Mirrors of earlier views, which laggards may still read.
    pub(super) past: Vec<MirrorId>,
    pub(super) successions: Successions,
    pub(super) relays: Relays,
    /// Evaluations since membership was looked at.
    pub(super) skipped: u32,
    pub(super) timeline: Timeline,
    pub(super) standstill: Option<Standstill>,
    /// This node wishes to leave, in whichever view.
    pub(super) leaving: bool,
    /// It takes no messages yet.
    pub(super) stands_by: bool,
    /// The subgroups that it was in when the group ended here, and their upcalls.
    pub(super) left: Vec<(SubgroupId, Option<A::Deliver>)>,
}

/// Where a node is on its way through a group.
pub(super) enum Stage<D> {
    /// It waits for its first view.
    Joining(Welcome, Vec<NodeId>),
    /// It is in a view.
    Present(Present<D>),
    Ended(Ended),
}

/// A view, as one member sees it.
pub(super) struct Present<D> {
    pub(super) membership: Membership,
    pub(super) subgroups: Vec<Active<D>>,
}

impl<A: Application> Group<A> {
    /// Begins a group with its first view, at each of its members.
    ///
    /// # Panics
    /// If this node is not a member.
    pub fn begin<F: Fabric>(
        fabric: &mut F,
        view: View,
        layout: Box<dyn Layout + Send>,
        settings: Settings,
        application: A,
    ) -> Self {
        let stage = Stage::Ended(Ended::Stopped(Stop::Left));
        let mut group = Self::new(fabric, layout, settings, application, stage);
        group.install(fabric, view, BTreeMap::new());
        group
    }

    /// Joins a group: `contacts` are its members, one of which has been asked to let this node in.
    pub fn join<F: Fabric>(
        fabric: &mut F,
        contacts: &[NodeId],
        layout: Box<dyn Layout + Send>,
        settings: Settings,
        application: A,
    ) -> Self {
        let welcome = Welcome::new(fabric, contacts, settings.membership.states);
        let stage = Stage::Joining(welcome, contacts.to_vec());
        Self::new(fabric, layout, settings, application, stage)
    }

    fn new<F: Fabric>(
        fabric: &F,
        layout: Box<dyn Layout + Send>,
        settings: Settings,
        application: A,
        stage: Stage<A::Deliver>,
    ) -> Self {
        Self {
            application,
            layout,
            relays: Relays::new(fabric.node(), settings.relays.clone()),
            settings,
            node: fabric.node(),
            stage,
            lost: BTreeSet::new(),
            greeters: Vec::new(),
            past: Vec::new(),
            successions: Successions::default(),
            skipped: 0,
            timeline: Timeline::new(),
            standstill: None,
            leaving: false,
            stands_by: false,
            left: Vec::new(),
        }
    }

    /// From now on this node takes part in views, and in no message, until [`Group::take_part`]: for a process that joins, and may
    /// yet have to come once more as another node. What it had taken as the first would be followed by a gap. So upcalls hear of
    /// no view and no message until then \[J8\].
    pub const fn stand_by(&mut self) {
        self.stands_by = true;
    }

    /// Messages flow to this node and from it from now on.
    pub fn take_part(&mut self) {
        self.stands_by = false;
        if let Stage::Present(present) = &mut self.stage {
            for active in &mut present.subgroups {
                if let AnySubgroup::Upcall(core) = &mut active.core {
                    core.deliver_mut().into_iter().for_each(Gate::open);
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

    /// Ends the group here, and gives the application back as it was before, with all its upcalls: it may come to the group once
    /// more, as another node.
    #[must_use]
    pub fn into_application(mut self) -> A {
        self.close();
        for (id, deliver) in std::mem::take(&mut self.left) {
            self.application.leave_subgroup(id, deliver);
        }
        self.application
    }

    /// The present view, if there is one.
    #[must_use]
    pub const fn membership(&self) -> Option<&Membership> {
        match &self.stage {
            Stage::Present(present) => Some(&present.membership),
            Stage::Joining(..) | Stage::Ended(_) => None,
        }
    }

    /// The latest view changes, the oldest first, with the instant of each step of this node.
    #[must_use]
    pub fn timeline(&self) -> impl ExactSizeIterator<Item = &ViewChange> {
        self.timeline.changes()
    }

    /// Whether the fabric has lost `node`; it does not come back.
    #[must_use]
    pub fn has_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// Whether messages flow: this node is in a view whose members have all attached, and which does not end yet. (A view that
    /// ends does not wait for members that are accused, so that all others having attached says nothing about those.)
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let state = self.membership().map(Membership::state);
        let flows = state == Some(State::Normal) || is_on(Mutation::ReadyWhileEnding);
        flows && self.has_opened()
    }

    /// Whether all members of the view have attached, but for those that are accused.
    fn has_opened(&self) -> bool {
        match &self.stage {
            Stage::Present(present) => {
                present.membership.is_ready()
                    && present.subgroups.iter().all(|active| either!(&active.core, core => core.is_ready()))
            }
            Stage::Joining(..) | Stage::Ended(_) => false,
        }
    }

    /// Why the group has ended here, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<Ended> {
        match &self.stage {
            Stage::Ended(ended) => Some(*ended),
            Stage::Joining(..) | Stage::Present(_) => None,
        }
    }

    /// Lets a joiner in with the next view, if this member leads; it has connections to all members.
    pub fn admit(&mut self, joiner: Member) {
        if let Stage::Present(present) = &mut self.stage
            && !self.lost.contains(&joiner.node)
        {
            present.membership.admit(joiner);
            self.skipped = SKIP;
        }
    }

    /// Ends the view although its members stay ([`crate::membership::Membership::renew`]).
    pub const fn renew(&mut self) {
        if let Stage::Present(present) = &mut self.stage {
            present.membership.renew();
            self.skipped = SKIP;
        }
    }

    /// Leaves the group with the next view, or, if this node alone holds some state, with the one after another member has
    /// got it \[A9\]. Views that end for other reasons do not change that \[V13\].
    pub fn leave(&mut self) {
        self.leaving = !is_on(Mutation::ForgetWish);
        if let Stage::Present(present) = &mut self.stage {
            present.membership.leave();
            self.skipped = SKIP;
        }
    }

    /// What the subgroup `id` has done in the present view.
    #[must_use]
    pub fn counters(&self, id: SubgroupId) -> Option<Counters> {
        let Stage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        Some(either!(&active.core, core => *core.counters()))
    }

    /// All but the subgroups.
    fn poll_views<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let greeted: usize = self.greeters.iter_mut().map(|greeter| greeter.poll(fabric)).sum();
        self.retire_past(fabric);
        self.look_at_consumers(fabric);
        self.look_at_indexes();
        let work = greeted + self.poll_joining(fabric) + self.poll_membership(fabric);
        if self.timeline.is_opening() && self.has_opened() {
            self.timeline.note(Step::Ready, fabric.now());
        }
        work
    }

    /// Whether another member has said something. It costs a few loads, so who is idle asks every time.
    #[inline]
    fn has_news(&self) -> bool {
        match &self.stage {
            Stage::Present(present) => present.membership.has_news() || self.application.has_state_news(),
            Stage::Joining(..) => true,
            Stage::Ended(_) => false,
        }
    }

    /// Ends the view before a sender's indexes are used up: a group must never stop because it has sent much.
    fn look_at_indexes(&mut self) {
        let Stage::Present(present) = &mut self.stage else { return };
        let is_used_up = |active: &Active<A::Deliver>| {
            either!(&active.core, core => {
                // A view may begin with a whole window to send again, and has to deliver that at least.
                let most = self.settings.view_indexes_max.max(2 * core.settings().window as u64);
                core.indexes_max() >= most
            })
        };
        if present.subgroups.iter().any(is_used_up) {
            present.membership.renew();
        }
    }

    /// When all members have begun the present view, nobody reads what is left of earlier ones.
    fn retire_past<F: Fabric>(&mut self, fabric: &mut F) {
        let has_begun = self.membership().is_some_and(Membership::is_ready);
        if has_begun && !(self.past.is_empty() && self.greeters.is_empty()) {
            let greeters = self.greeters.drain(..).map(|greeter| greeter.mirror());
            self.past.drain(..).chain(greeters).for_each(|mirror| fabric.retire(mirror));
            self.lost.iter().for_each(|node| self.relays.part_with(fabric, *node));
        }
    }

    /// Looks at membership; returns the amount of work done.
    fn poll_membership<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let Stage::Present(Present { membership, subgroups }) = &mut self.stage else { return 0 };
        let application = &mut self.application;
        let mut work = membership.poll(fabric, &mut Served { application, subgroups });
        if let Some(stop) = membership.stopped() {
            self.timeline.add(ViewChange::stopped(membership));
            self.stop(stop);
        } else if let Some(decision) = membership.decision() {
            let rank = membership.view().rank(self.node).expect("it is a member of its own view");
            let goes_on = is_on(Mutation::GoOnRemoved) && !membership.is_leaving();
            if decision.removes(rank) && (goes_on || !membership.is_known_to_all()) {
                return work;
            }
            let ended = Stage::Ended(Ended::Stopped(Stop::Excluded));
            let Stage::Present(present) = std::mem::replace(&mut self.stage, ended) else { return work };
            self.change_view(fabric, present);
            work += 1;
        }
        work
    }

    fn poll_joining<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let Stage::Joining(welcome, contacts) = &self.stage else { return 0 };
        if let Some(view) = welcome.view() {
            if view.rank(self.node).is_some() {
                // Who has told this joiner may have died before it told the others.
                for node in view.nodes().into_iter().filter(|node| *node != self.node) {
                    self.greeters.push(Greeter::new(fabric, node, view.clone()));
                }
                self.install(fabric, view, BTreeMap::new());
            } else {
                self.end(Ended::Stopped(Stop::Excluded));
            }
            return 1;
        }
        if contacts.iter().all(|contact| self.lost.contains(contact)) {
            self.end(Ended::NobodyLeft);
            return 1;
        }
        0
    }

    fn poll_subgroups<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let mut work = self.successions.poll(&mut self.application);
        let Stage::Present(present) = &mut self.stage else { return 0 };
        // A view that ends needs everybody.
        let is_open = matches!(present.membership.state(), State::Opening | State::Normal);
        if self.stands_by && is_open && !is_on(Mutation::TakePartEarly) {
            return work;
        }
        for active in &mut present.subgroups {
            work += either!(&mut active.core, core => core.poll(fabric));
            let (view, first) = (present.membership.view(), active.segment.trims);
            either!(&mut active.core, core => self.relays.take_bodies(fabric, view, first, active.id, core));
            if let Some(failure) = either!(&active.core, core => core.failure()) {
                let ended = Ended::Failed(active.id, failure);
                self.end(ended);
                return work + 1;
            }
        }
        let (done, culprit) = self.relays.advance(fabric, &mut present.subgroups);
        culprit.into_iter().for_each(|node| present.membership.suspect(node));
        work + done
    }
}

impl<F: Fabric, A: Application> Core<F> for Group<A> {
    fn handle_event(&mut self, fabric: &mut F, event: &Event) {
        if let Event::PeerLost { peer, .. } = event {
            self.lost.insert(*peer);
        }
        self.greeters.iter_mut().for_each(|greeter| greeter.handle_event(event));
        self.relays.handle_event(fabric, event);
        if let Stage::Present(present) = &mut self.stage {
            present.membership.handle_event(event);
            for active in &mut present.subgroups {
                either!(&mut active.core, core => core.handle_event(fabric, event));
            }
        }
        self.skipped = SKIP;
    }

    fn poll(&mut self, fabric: &mut F) -> usize {
        let mut due = self.skipped >= SKIP;
        let mut views = if due { self.poll_views(fabric) } else { 0 };
        let subgroups = self.poll_subgroups(fabric);
        let is_idle = views + subgroups == 0;
        // Who has nothing else to do misses no news, and who is busy asks now and then.
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

    fn next_deadline(&self) -> Option<Instant> {
        let membership = self.membership().and_then(Membership::next_deadline);
        let look = match &self.stage {
            Stage::Present(present) => present
                .subgroups
                .iter()
                .filter_map(|active| either!(&active.core, core => core.next_look()))
                .min(),
            Stage::Joining(..) | Stage::Ended(_) => None,
        };
        membership.into_iter().chain(self.relays.next_deadline::<F>()).chain(look).min()
    }
}

/// Membership is looked at in one of so many evaluations while nobody says anything about it and messages flow.
pub(super) const SKIP: u32 = 64;

/// An evaluation in which nothing happens counts for so many.
const IDLE: u32 = 4;

/// Whether anybody has said something about membership is asked in one of so many evaluations while messages flow.
const ASK: u32 = 16;
