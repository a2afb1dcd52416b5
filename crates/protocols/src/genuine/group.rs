//! A group with genuine multicast between its shards: membership and the shards, from view to view (beside RamCast §3.5).

use std::fmt;

use squall_fabric::{Core, Fabric, FabricEvent, Instant, MirrorId, NodeId};

use super::marks::DeliveredMarks;
use super::mutation;
use super::wedge::GenuineCarryover;
use super::{
    GenuineFailure, GenuineMember, GenuineMessage, GenuineSendError, GenuineSettings, QuorumRule,
    ShardPlacement,
};
use crate::coverage::{Point, reach};
use crate::membership::{
    FirstView, Member, Membership, MembershipSettings, MembershipState, StopReason, View, ViewNotice,
    ViewPassage,
};

/// The application side of a group, as the polling thread calls it.
pub trait GenuineApplication {
    /// Which members of a view form which shard. All members must come to the same result, so it looks at the view alone; a
    /// member never changes its shard. The group also asks for views that do not come.
    fn place(&self, view: &View) -> ShardPlacement;

    /// A view is installed: all that is delivered from now on is delivered in it, at all its members. The first one of a node that
    /// stood by is the one in which it takes part ([`GenuineGroup::take_part`]).
    fn install(&mut self, view: &View, placement: &ShardPlacement);

    /// Takes a message. A node that joined is given what came after its first view began only when it has the state
    /// ([`GenuineGroup::take_state`]).
    fn deliver(&mut self, message: GenuineMessage<'_>);
}

/// Settings of a group, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenuineGroupSettings {
    /// How members are judged; [`MembershipSettings::states`] is the number of shards.
    pub membership: MembershipSettings,
    /// How messages are ordered.
    pub multicast: GenuineSettings,
}

/// Why a group has ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenuineEnd {
    /// Membership has ended it.
    Stopped(StopReason),
    /// The order cannot continue.
    Failed(GenuineFailure),
    /// All members that this node had asked to join are gone.
    Deserted,
    /// The view has ended, and there is none after it with [`QuorumRule::Majority`].
    Unfollowed,
}

impl fmt::Display for GenuineEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(stop) => stop.fmt(f),
            Self::Failed(failure) => failure.fmt(f),
            Self::Deserted => f.write_str("the members that were to let this one in are gone: join again"),
            Self::Unfollowed => f.write_str(
                "the view has ended, and with a majority for quorum there is no next one: begin a new group, or let all \
                 members acknowledge",
            ),
        }
    }
}

impl std::error::Error for GenuineEnd {}

/// A group, as one node sees it: it drives [`Membership`] and [`GenuineMember`], and goes from view to view.
pub struct GenuineGroup<A> {
    application: A,
    settings: GenuineGroupSettings,
    stage: GenuineStage,
    passage: ViewPassage,
    state: ShardState,
}

/// Where a node is on its way through a group.
enum GenuineStage {
    /// It waits for its first view.
    Joining(ViewNotice, Vec<NodeId>),
    /// It is in a view.
    Present(Box<Membership>, Box<GenuineMember>),
    Ended(GenuineEnd),
}

/// Whether the application has the state of its shard.
enum ShardState {
    Held,
    /// It joined: what was delivered since, in order.
    Awaited(Vec<KeptMessage>),
}

/// A message that waits for the state.
struct KeptMessage {
    sender: NodeId,
    number: u64,
    destinations: u64,
    position: super::GenuinePosition,
    bytes: Vec<u8>,
}

impl<A: GenuineApplication> GenuineGroup<A> {
    /// Begins a group with its first view, at each of its members, each of which has the state with which its shard begins.
    ///
    /// # Panics
    /// If this node is not a member.
    pub fn begin<F: Fabric>(
        fabric: &mut F,
        view: &View,
        settings: GenuineGroupSettings,
        application: A,
    ) -> Self {
        let stage = GenuineStage::Ended(GenuineEnd::Deserted);
        let mut group = Self::new(fabric, settings, application, stage, ShardState::Held);
        group.install(fabric, view.clone(), GenuineCarryover::default());
        group
    }

    /// Joins a group: `contacts` are its members, one of which has been asked to let this node in.
    pub fn join<F: Fabric>(
        fabric: &mut F,
        contacts: &[NodeId],
        settings: GenuineGroupSettings,
        application: A,
    ) -> Self {
        let notice = ViewNotice::new(fabric, contacts, settings.membership.states, 0);
        let stage = GenuineStage::Joining(notice, contacts.to_vec());
        Self::new(fabric, settings, application, stage, ShardState::Awaited(Vec::new()))
    }

    fn new<F: Fabric>(
        fabric: &F,
        settings: GenuineGroupSettings,
        application: A,
        stage: GenuineStage,
        state: ShardState,
    ) -> Self {
        Self { application, settings, stage, passage: ViewPassage::new(fabric.node()), state }
    }

    /// Makes this node take part in views, and keeps them from its application, until [`GenuineGroup::take_part`]; nothing can be
    /// sent until then. This is for a process that joins, and may have to join again as another node \[J8\]. The node acknowledges
    /// messages meanwhile: the application, which has no state yet, is given none of them.
    pub const fn stand_by(&mut self) {
        self.passage.set_standing_by(true);
    }

    /// Lets the application take part from now on, beginning with the present view.
    pub fn take_part(&mut self) {
        self.passage.set_standing_by(false);
        if let GenuineStage::Present(membership, _) = &self.stage {
            let view = membership.view();
            self.application.install(view, &self.application.place(view));
        }
    }

    /// Ends the group here, and returns the application: it may join the group again, as another node.
    #[must_use]
    pub fn into_application(self) -> A {
        self.application
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

    /// The present view, if there is one.
    #[must_use]
    pub const fn membership(&self) -> Option<&Membership> {
        match &self.stage {
            GenuineStage::Present(membership, _) => Some(membership),
            GenuineStage::Joining(..) | GenuineStage::Ended(_) => None,
        }
    }

    /// This node's part in the present view, if there is one.
    #[must_use]
    pub const fn member(&self) -> Option<&GenuineMember> {
        match &self.stage {
            GenuineStage::Present(_, member) => Some(member),
            GenuineStage::Joining(..) | GenuineStage::Ended(_) => None,
        }
    }

    /// Why the group has ended here, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<GenuineEnd> {
        match &self.stage {
            GenuineStage::Ended(ended) => Some(*ended),
            GenuineStage::Joining(..) | GenuineStage::Present(..) => None,
        }
    }

    /// Whether the fabric has lost `node`; it does not come back.
    #[must_use]
    pub fn has_lost(&self, node: NodeId) -> bool {
        self.passage.has_lost(node)
    }

    /// Whether messages flow: this node is in a view that is not ending, and all its members have attached, but for those that are
    /// accused.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.stage {
            GenuineStage::Present(membership, member) => {
                membership.state() == MembershipState::Normal && membership.is_ready() && member.is_ready()
            }
            GenuineStage::Joining(..) | GenuineStage::Ended(_) => false,
        }
    }

    /// Whether a process may join as a member with this tag: its shard, if it belongs to one, has a member with its state that this
    /// one hears \[G14\], and the group can have another view.
    #[must_use]
    pub fn takes(&self, tag: u64) -> bool {
        let GenuineStage::Present(membership, _) = &self.stage else { return false };
        let mut next = membership.view().clone();
        next.members.push(Member { node: NOBODY, tag });
        let shard = self.application.place(&next).shard_of(next.members.len() - 1);
        let is_held = shard.is_none_or(|shard| membership.is_held(shard)) || mutant!(AdmitWithoutState);
        is_held && self.settings.multicast.quorum != QuorumRule::Majority
    }

    /// Whether the application has the state of its shard.
    #[must_use]
    pub const fn has_state(&self) -> bool {
        matches!(self.state, ShardState::Held)
    }

    /// Sends a message to the members of all `destinations`, a set of bits; returns its number.
    ///
    /// # Errors
    /// [`GenuineSendError`]; nothing has been sent then.
    pub fn send(&mut self, destinations: u64, payload: &[u8]) -> Result<u64, GenuineSendError> {
        match &mut self.stage {
            GenuineStage::Present(_, member) if !self.passage.stands_by() => {
                member.send(destinations, payload)
            }
            _ => Err(GenuineSendError::Closed),
        }
    }

    /// The application, which joined and takes part, has the state of its shard by now: with these marks ([`GenuineMember::marks`]) of what is
    /// in it, taken at the same moment as the state, in the first view of this node or a later one. What is not in it and was
    /// delivered since is given to the application now.
    pub fn take_state(&mut self, marks: &DeliveredMarks) {
        let GenuineStage::Present(_, member) = &mut self.stage else { return };
        assert!(!self.passage.stands_by(), "[J8] the application has not arrived, and has a state");
        let ShardState::Awaited(kept) = std::mem::replace(&mut self.state, ShardState::Held) else { return };
        member.take_state(marks);
        let missing = kept.iter().filter(|kept| !marks.has(kept.sender, kept.number));
        missing.for_each(|kept| self.application.deliver(kept.message()));
    }

    /// Lets a joiner in with the next view, if this member leads; it has connections to all members, and a tag with which the group
    /// takes it ([`GenuineGroup::takes`]).
    pub fn admit(&mut self, joiner: Member) {
        if let GenuineStage::Present(membership, _) = &mut self.stage
            && !self.passage.has_lost(joiner.node)
        {
            membership.admit(joiner);
        }
    }

    /// Ends the view although its members stay ([`Membership::renew`]).
    pub const fn renew(&mut self) {
        if let GenuineStage::Present(membership, _) = &mut self.stage {
            membership.renew();
        }
    }

    /// Leaves the group with the next view, or, if this node alone holds its shard's state, with the one after another member
    /// has got it.
    pub fn leave(&mut self) {
        self.passage.set_leaving(true);
        if let GenuineStage::Present(membership, _) = &mut self.stage {
            membership.leave();
        }
    }

    fn poll_joining<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let GenuineStage::Joining(notice, contacts) = &self.stage else { return 0 };
        match self.passage.poll_notice(fabric, notice, contacts) {
            FirstView::Awaited => return 0,
            FirstView::Begins(view, _) => self.install(fabric, view, GenuineCarryover::default()),
            FirstView::Excluded => self.end(GenuineEnd::Stopped(StopReason::Excluded)),
            FirstView::NobodyLeft => self.end(GenuineEnd::Deserted),
        }
        1
    }

    fn poll_membership<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let GenuineStage::Present(membership, member) = &mut self.stage else { return 0 };
        let work = membership.poll(fabric, &mut **member);
        if let Some(stop) = membership.stopped() {
            self.end(GenuineEnd::Stopped(stop));
            return work + 1;
        }
        let Some(decision) = membership.decision() else { return work };
        let rank = membership.view().rank(self.passage.node()).expect("it is a member of its own view");
        if decision.removes(rank) && !membership.is_known_to_all() {
            return work;
        }
        let ended = GenuineStage::Ended(GenuineEnd::Stopped(StopReason::Excluded));
        let GenuineStage::Present(membership, member) = std::mem::replace(&mut self.stage, ended) else {
            return work;
        };
        self.change_view(fabric, *membership, *member);
        work + 1
    }

    /// Ends the view as decided and begins the next one.
    fn change_view<F: Fabric>(&mut self, fabric: &mut F, membership: Membership, member: GenuineMember) {
        if self.settings.multicast.quorum == QuorumRule::Majority {
            return self.end(GenuineEnd::Unfollowed);
        }
        let decision = membership.decision().expect("it has been decided").clone();
        let rank = membership.view().rank(self.passage.node()).expect("it is a member of its own view");
        let next = membership.view().next(&decision);
        if decision.removes(rank) && !member.covers(&decision.trims) {
            return self.end(GenuineEnd::Stopped(StopReason::Excluded));
        }
        let mirrors: Vec<MirrorId> = member.mirrors().collect();
        let (state, application) = (&mut self.state, &mut self.application);
        let before = match member.finish(&decision.trims, |message| state.deliver(message, application)) {
            Ok(before) => before,
            Err(failure) => return self.end(GenuineEnd::Failed(failure)),
        };
        if decision.removes(rank) {
            let leaves = membership.is_leaving();
            reach(if leaves { Point::GenuineLeft } else { Point::GenuineExcluded });
            return self.end(GenuineEnd::Stopped(if leaves {
                StopReason::Left
            } else {
                StopReason::Excluded
            }));
        }
        mirrors.into_iter().for_each(|mirror| self.passage.keep(mirror));
        self.passage.end_view(fabric, &membership, &decision, &next, &[]);
        self.install(fabric, next, before);
        if let GenuineStage::Present(present, _) = &mut self.stage {
            present.follow(&membership);
        }
    }

    fn install<F: Fabric>(&mut self, fabric: &mut F, view: View, before: GenuineCarryover) {
        let placement = self.application.place(&view);
        let settings = self.settings.clone();
        let membership = self.passage.begin_view(fabric, &view, placement.segments(), settings.membership);
        if !self.passage.stands_by() || mutant!(InstallEarly) {
            self.application.install(&view, &placement);
        }
        let has_state = self.has_state();
        let member = GenuineMember::new(fabric, &view, placement, settings.multicast, has_state, before);
        self.stage = GenuineStage::Present(Box::new(membership), Box::new(member));
    }

    fn end(&mut self, ended: GenuineEnd) {
        self.stage = GenuineStage::Ended(ended);
    }

    fn poll_member<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let GenuineStage::Present(membership, member) = &mut self.stage else { return 0 };
        if membership.state() == MembershipState::Opening {
            return 0;
        }
        let (state, application) = (&mut self.state, &mut self.application);
        let work = member.poll(fabric, |message| state.deliver(message, application));
        if let Some(failure) = member.failure() {
            self.end(GenuineEnd::Failed(failure));
        }
        work
    }
}

impl<F: Fabric, A: GenuineApplication> Core<F> for GenuineGroup<A> {
    fn handle_event(&mut self, _fabric: &mut F, event: &FabricEvent) {
        self.passage.handle_event(event);
        if let GenuineStage::Present(membership, member) = &mut self.stage {
            membership.handle_event(event);
            member.handle_event(event);
        }
    }

    fn poll(&mut self, fabric: &mut F) -> usize {
        let notified = self.passage.poll(fabric);
        if let GenuineStage::Present(membership, _) = &self.stage {
            self.passage.retire(fabric, membership);
        }
        let views = self.poll_joining(fabric) + self.poll_membership(fabric);
        notified + views + self.poll_member(fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.membership().and_then(Membership::next_deadline)
    }
}

impl ShardState {
    fn deliver(&mut self, message: GenuineMessage<'_>, application: &mut impl GenuineApplication) {
        match self {
            Self::Held => application.deliver(message),
            Self::Awaited(kept) => {
                reach(Point::GenuineKept);
                let GenuineMessage { sender, number, destinations, position, bytes } = message;
                kept.push(KeptMessage { sender, number, destinations, position, bytes: bytes.to_vec() });
            }
        }
    }
}

impl KeptMessage {
    fn message(&self) -> GenuineMessage<'_> {
        let Self { sender, number, destinations, position, ref bytes } = *self;
        GenuineMessage { sender, number, destinations, position, bytes }
    }
}

impl<A> fmt::Debug for GenuineGroup<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenuineGroup").field("node", &self.passage.node()).finish_non_exhaustive()
    }
}

/// Stands for a process that has no number yet.
const NOBODY: NodeId = NodeId(u32::MAX);

#[cfg(test)]
mod tests;
