//! The genuine shards of a group, beside its subgroups: one [`GenuineMember`] for all of them in each view (RamCast §2.2).

use squall_fabric::{Duration, Fabric, FabricEvent, MirrorId, NodeId};

use super::core::{GroupCore, GroupStage, PresentView, SKIP};
use super::{GroupApplication, GroupEnd};
use crate::coverage::{Point, reach};
use crate::genuine::mutation::{self, GenuineMutation};
use crate::genuine::{
    DeliveredMarks, GenuineCarryover, GenuineMember, GenuineMessage, GenuinePosition, GenuineSendError,
    GenuineSettings, QuorumRule, ShardPlacement,
};
use crate::membership::{LogPeers, Member, MembershipState, Proposal, RankSet, SenderSegment, View};
use crate::mutation::{self as group_mutation, GroupMutation};

/// The shards of the current view, as one member sees them.
pub(super) struct ActiveShards {
    pub(super) member: GenuineMember,
    /// Where each shard's count is, by shard.
    segments: Vec<SenderSegment>,
    /// The first of the states that belong to shards, which are the last ones of the group; `None` if shards have none.
    first_state: Option<usize>,
    /// Membership knows of the state that is held here.
    is_announced: bool,
}

impl ActiveShards {
    pub(super) fn freeze<F: Fabric>(&mut self, fabric: &mut F, member: NodeId) {
        self.member.freeze(fabric, member);
    }

    /// Ends the view: writes what this member counts of its shard, and the state that it holds.
    pub(super) fn wedge(&mut self, counts: &mut [u64], states: &mut [u64]) {
        if let Some((shard, count)) = self.member.wedge() {
            counts[self.segments[shard].counts] = count;
        }
        self.add_state(states);
    }

    /// Adds the state that is held here; returns whether membership did not know of it.
    pub(super) fn hold(&mut self, states: &mut [u64]) -> bool {
        !self.is_announced && self.add_state(states)
    }

    fn add_state(&mut self, states: &mut [u64]) -> bool {
        let Some(state) = self.first_state.zip(self.member.held_state()) else { return false };
        let state = state.0 + state.1;
        states[state / 64] |= 1 << (state % 64);
        self.is_announced = true;
        true
    }

    /// Returns whether this member has its shard's log up to the trims, and fetches it if not \[G11\].
    pub(super) fn has_log(&mut self, proposal: &Proposal) -> bool {
        let first = self.segments.first().map_or(0, |segment| segment.trims);
        self.member.has_log(&proposal.trims[first..first + self.segments.len()])
    }

    /// While this member waits: gets its shard's log up to the trims from others, and sends them theirs \[G11\].
    pub(super) fn exchange_log<F: Fabric>(&mut self, fabric: &mut F, peers: &LogPeers<'_>) -> (u64, usize) {
        let Some(column) = self.member.shard().map(|shard| self.segments[shard].counts) else {
            return (0, 0);
        };
        self.member.exchange_log(fabric, peers.asks, |rank| (peers.count)(rank, column))
    }

    /// Returns whether this member has all of the trim.
    pub(super) fn covers(&self, decision: &Proposal) -> bool {
        self.member.covers(self.trims(decision))
    }

    /// Returns the trims of the shards.
    fn trims<'a>(&self, decision: &'a Proposal) -> &'a [u64] {
        let first = self.segments.first().map_or(0, |segment| segment.trims);
        &decision.trims[first..first + self.segments.len()]
    }
}

/// What a node keeps of its shard on its way from view to view.
pub(super) struct ShardPassage {
    /// Whether the application has the state of its shard.
    state: ShardState,
    /// See [`GroupCore::set_time_base`].
    time_base: Duration,
    /// The view before, until all members are in the present one: some may lack a part of its log \[G11\].
    former: Option<GenuineMember>,
}

impl ShardPassage {
    /// Returns what a node begins with that joins a group, or begins one and holds its initial state.
    pub(super) fn new(settings: Option<&GenuineSettings>, joins: bool) -> Self {
        let awaits = joins && settings.is_some_and(|settings| settings.has_states);
        let state = if awaits { ShardState::Awaited(Vec::new()) } else { ShardState::Held };
        Self { state, time_base: Duration::ZERO, former: None }
    }

    /// Takes an event of the fabric.
    pub(super) fn handle_event(&mut self, event: &FabricEvent) {
        self.former.iter_mut().for_each(|former| former.handle_event(event));
    }

    /// Sends others of the shard what they lack of the log of the view before; returns the amount of work done.
    fn serve<F: Fabric>(&mut self, fabric: &mut F, asks: Option<Vec<u64>>) -> usize {
        let Some(former) = &mut self.former else { return 0 };
        let waiting = asks.map_or(0, |asks| former.serve_asks(fabric, &asks));
        waiting + former.serve(fabric)
    }

    /// Keeps the log of a view that has ended; returns mirrors of the one before, to be retired.
    fn keep(&mut self, former: Option<GenuineMember>) -> Vec<MirrorId> {
        let before = std::mem::replace(&mut self.former, former);
        before.iter().flat_map(GenuineMember::relays).collect()
    }

    /// Retires what is left of the view before: all members are in the present one.
    pub(super) fn retire<F: Fabric>(&mut self, fabric: &mut F) {
        self.keep(None).into_iter().for_each(|mirror| fabric.retire(mirror));
    }
}

/// Whether the application has the state of its shard.
enum ShardState {
    Held,
    /// This node joined: what was delivered since, in order.
    Awaited(Vec<KeptMessage>),
}

/// A message that waits for the state.
struct KeptMessage {
    sender: NodeId,
    number: u64,
    destinations: u64,
    position: GenuinePosition,
    bytes: Vec<u8>,
}

impl KeptMessage {
    fn message(&self) -> GenuineMessage<'_> {
        let Self { sender, number, destinations, position, ref bytes } = *self;
        GenuineMessage { sender, number, destinations, position, bytes }
    }
}

impl ShardState {
    fn deliver(&mut self, message: GenuineMessage<'_>, application: &mut impl GroupApplication) {
        match self {
            Self::Held => application.deliver_genuine(message),
            Self::Awaited(kept) => {
                reach(Point::GenuineKept);
                let GenuineMessage { sender, number, destinations, position, bytes } = message;
                kept.push(KeptMessage { sender, number, destinations, position, bytes: bytes.to_vec() });
            }
        }
    }
}

impl<A: GroupApplication> GroupCore<A> {
    /// Sends a message to the members of all `destinations`, a set of shards as bits; returns its number among the genuine messages
    /// of this node, which begins with 0.
    ///
    /// # Errors
    /// [`GenuineSendError`]; nothing has been sent then. It is [`GenuineSendError::Closed`] in a group without shards, too.
    pub fn multicast(&mut self, destinations: u64, payload: &[u8]) -> Result<u64, GenuineSendError> {
        match &mut self.stage {
            GroupStage::Present(PresentView { shards: Some(shards), .. }) if !self.passage.stands_by() => {
                shards.member.send(destinations, payload)
            }
            _ => Err(GenuineSendError::Closed),
        }
    }

    /// Sets what is added to the fabric's time for the clocks of shards: see [`GenuineMember::set_time_base`].
    pub fn set_time_base(&mut self, base: Duration) {
        self.shard_passage.time_base = base;
        if let GroupStage::Present(PresentView { shards: Some(shards), .. }) = &mut self.stage {
            shards.member.set_time_base(base);
        }
    }

    /// Returns this node's part in the shards of the current view, if the group has shards.
    #[must_use]
    pub const fn genuine_member(&self) -> Option<&GenuineMember> {
        match &self.stage {
            GroupStage::Present(PresentView { shards: Some(shards), .. }) => Some(&shards.member),
            _ => None,
        }
    }

    /// Returns whether a process may join as a member with this tag: if shards have states, a member that this one hears has that of
    /// the process's shard \[G14\].
    #[must_use]
    pub fn takes(&self, tag: u64) -> bool {
        if self.settings.genuine.is_none() {
            return true;
        }
        let GroupStage::Present(PresentView { membership, shards: Some(shards), .. }) = &self.stage else {
            return false;
        };
        let mut next = membership.view().clone();
        next.members.push(Member { node: NOBODY, tag });
        let shard = self.layout.shards(&next).shard_of(next.members.len() - 1);
        let state = shards.first_state.zip(shard).map(|(first, shard)| first + shard);
        state.is_none_or(|state| membership.is_held(state))
            || mutation::is_on(GenuineMutation::AdmitWithoutState)
    }

    /// Returns whether the application has the state of its shard; without states it needs none.
    #[must_use]
    pub const fn has_shard_state(&self) -> bool {
        matches!(self.shard_passage.state, ShardState::Held)
    }

    /// Notes that the application, which joined and takes part, has the state of its shard by now: with these marks
    /// ([`GenuineMember::marks`]) of what is in it, taken at the same moment as the state, in the first view of this node or a later
    /// one. What is not in it and was delivered since is given to the application now. Returns false if it is not taken: this node's
    /// shard is lost, or the view is ending, so that the others do not count on this node: then it
    /// is to be offered again in the next view.
    ///
    /// # Panics
    /// While this node stands by ([`GroupCore::stand_by`]).
    pub fn take_shard_state(&mut self, marks: &DeliveredMarks) -> bool {
        let GroupStage::Present(PresentView { shards: Some(shards), .. }) = &mut self.stage else {
            return false;
        };
        assert!(!self.passage.stands_by(), "[J8] the application has not arrived, and has a state");
        if !shards.member.may_take_state() {
            return false;
        }
        let ShardState::Awaited(kept) = std::mem::replace(&mut self.shard_passage.state, ShardState::Held)
        else {
            return false;
        };
        self.skipped = SKIP;
        shards.member.take_state(marks);
        let is_in_state =
            |kept: &KeptMessage| marks.has(kept.sender, kept.number) || marks.reach(kept.position);
        let missing = kept.iter().filter(|kept| !is_in_state(kept));
        missing.for_each(|kept| self.application.deliver_genuine(kept.message()));
        true
    }

    /// Returns the shards of a view, those without members whose state is lost: no member of the view holds it, and none takes it over
    /// any more, so they cannot give timestamps, and messages to them and others would never be delivered \[G14\].
    pub(super) fn shards_that_count(&self, view: &View) -> ShardPlacement {
        let mut placement = self.layout.shards(view);
        let has_states = self.settings.genuine.as_ref().is_some_and(|settings| settings.has_states);
        // In the first view every member of a shard has its initial state.
        if !has_states || view.holders.is_empty() || mutation::is_on(GenuineMutation::CountLostShard) {
            return placement;
        }
        let first = self.settings.membership.states.saturating_sub(placement.count());
        for shard in 0..placement.count() {
            if view.holders.get(first + shard).is_none_or(RankSet::is_empty) {
                if !placement.members(shard).is_empty() {
                    reach(Point::GenuineStateLost);
                }
                placement.clear(shard);
            }
        }
        placement
    }

    /// Evaluates the shards; returns the amount of work done.
    pub(super) fn poll_shards<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let asks = self.passage.log_asks();
        let served = self.shard_passage.serve(fabric, asks);
        let GroupStage::Present(present) = &mut self.stage else { return served };
        let Some(shards) = &mut present.shards else { return served };
        if present.membership.state() == MembershipState::Opening {
            return served;
        }
        let (state, application) = (&mut self.shard_passage.state, &mut self.application);
        let space = application.genuine_space();
        let work = shards.member.poll(fabric, space, |message| state.deliver(message, application));
        if let Some(failure) = shards.member.failure() {
            self.end(GroupEnd::ShardsFailed(failure));
        } else if present.membership.waits().is_none() && shards.member.is_stranded() {
            present.membership.give_up();
            self.poll_membership(fabric);
        }
        served + work
    }

    /// Ends the shards, which deliver their trims.
    pub(super) fn end_shards(
        &mut self,
        shards: Option<ActiveShards>,
        decision: &Proposal,
    ) -> Result<GenuineCarryover, GroupEnd> {
        let (Some(settings), Some(mut shards)) = (&self.settings.genuine, shards) else {
            return Ok(GenuineCarryover::default());
        };
        let trims = shards.trims(decision).to_vec();
        shards.member.mirrors().for_each(|mirror| self.passage.keep(mirror));
        let (state, application) = (&mut self.shard_passage.state, &mut self.application);
        let hears = !self.passage.stands_by() || group_mutation::is_on(GroupMutation::HearEarly);
        // With a majority for quorum messages are in without the acknowledgement of a node that stands by [J8].
        let deliver = |message: GenuineMessage<'_>| {
            if hears || matches!(state, ShardState::Awaited(_)) {
                state.deliver(message, application);
            }
        };
        let finished = shards.member.finish(&trims, deliver);
        let keeps = settings.quorum == QuorumRule::Majority && !mutation::is_on(GenuineMutation::ForgetLog);
        let relays = self.shard_passage.keep(keeps.then_some(shards.member));
        relays.into_iter().for_each(|mirror| self.passage.keep(mirror));
        finished.map_err(GroupEnd::ShardsFailed)
    }

    /// Begins the shards of a view, whose counts are in `segments`.
    pub(super) fn begin_shards<F: Fabric>(
        &self,
        fabric: &mut F,
        view: &View,
        placement: ShardPlacement,
        segments: &[SenderSegment],
        before: GenuineCarryover,
    ) -> Option<ActiveShards> {
        let settings = self.settings.genuine.clone()?;
        let (segments, has_state) = (segments.to_vec(), self.has_shard_state());
        let first_state = self.settings.membership.states.checked_sub(segments.len());
        let first_state = first_state.filter(|_| settings.has_states);
        let mut member = GenuineMember::new(fabric, view, placement, settings, has_state, before);
        member.set_time_base(self.shard_passage.time_base);
        Some(ActiveShards { member, segments, first_state, is_announced: false })
    }
}

/// Stands for a process that has no number yet.
const NOBODY: NodeId = NodeId(u32::MAX);

#[cfg(test)]
mod tests;
