//! A member's part in one view: suspicion, wedge, and driving the agreement (Derecho §3.4).

use squall_fabric::{BreakReason, Fabric, FabricEvent, Instant, NodeId};

use super::cut::HearingReports;
use super::row::SetColumn;
use super::rows::SeenRows;
use super::silence::Silence;
use super::waiting::WaitingRoom;
use super::{
    Member, MembershipRow, MembershipSettings, Proposal, RankSet, SenderSegment, StopReason, Subgroups, View,
    ViewChangeStep, ViewChangeSteps,
};
use crate::coverage::{Point, reach};
use crate::ends::WaitReason;
use crate::mutation;
use crate::sst::StateTable;

/// The state of the current view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MembershipState {
    /// Members are attaching each other's rows.
    Opening,
    /// Messages flow.
    Normal,
    /// The view is ending.
    Wedged,
    /// The view is ending, and this member waits for a majority of its members.
    Waiting,
    /// The next view is decided.
    Decided,
}

/// One member's part in one view. See the module above for the step order and the invariants.
#[derive(Debug)]
pub struct Membership {
    pub(super) view: View,
    pub(super) settings: MembershipSettings,
    pub(super) segments: Vec<SenderSegment>,
    pub(super) row: MembershipRow,
    pub(super) table: StateTable,
    /// The ranks that this member does not hear; only grows. `frozen ⊆ accused`.
    pub(super) accused: RankSet,
    pub(super) frozen: RankSet,
    /// The ranks that any member accuses, as far as this one knows: `accused ⊆ disputed`.
    pub(super) disputed: RankSet,
    /// The disputed ranks that have answered: `vouched ⊆ disputed`.
    pub(super) vouched: RankSet,
    /// What was reported when this member last determined the cut, and that cut: to find it may take milliseconds.
    pub(super) judged: Option<(HearingReports, Option<RankSet>)>,
    /// The ranks that this member no longer follows: `accused ⊆ suspected`. Besides the accused, these are leaders
    /// that have resigned, and this member once it has resigned.
    pub(super) suspected: RankSet,
    pub(super) wedged: bool,
    pub(super) leaving: bool,
    /// It leaves because others find it too slow.
    pub(super) is_slow: bool,
    /// The ranks whose consumers hold this member up for too long; only grows.
    pub(super) slow: RankSet,
    /// The states that this member holds, as published.
    pub(super) states: Vec<u64>,
    /// The joiners that this member knows of; they matter if it leads.
    pub(super) joins: Vec<Member>,
    /// This member wants the view to end although its members stay.
    pub(super) renewing: bool,
    /// The ranks that accuse this member, as far as it knows, and its own rank if any does.
    pub(super) accusers: RankSet,
    /// It has stalled, and an accusation against it is caused by that \[V15\].
    pub(super) concedes: bool,
    pub(super) silence: Option<Silence>,
    /// The proposal for which this member votes, and the rank of its leader, until it may show its echo \[T6\].
    pub(super) voting: Option<(usize, Proposal)>,
    /// The proposal that was echoed last, and the rank of its leader.
    pub(super) echoed: Option<(usize, Proposal)>,
    /// The number of proposals that were echoed.
    pub(super) echoes: usize,
    pub(super) decision: Option<Proposal>,
    pub(super) stop: Option<StopReason>,
    pub(super) state: MembershipState,
    pub(super) steps: ViewChangeSteps,
    pub(super) seen: SeenRows,
    /// A sign of life is due.
    owes_sign: bool,
    /// Its subgroups have ended, for a reason that may be gone by now, and it wedges when its disk has what they count.
    pub(super) awaits_disk: bool,
    /// There is a decision, and this member lacks a part of what it installs \[G11\].
    pub(super) awaits_log: bool,
    /// The members that are lost for good: not silent, but dead, or removed by this one.
    pub(super) dead: RankSet,
    /// A member has said that it has removed this one.
    pub(super) is_removed: bool,
    /// The members that say that they wait for a majority.
    pub(super) waiting: RankSet,
    /// Why this member waits for a majority; it does so until the view ends.
    pub(super) waits: Option<WaitReason>,
    /// What it waits with, once it has wedged, or says how the view has ended with.
    pub(super) room: Option<Box<WaitingRoom>>,
    /// The members whose rows violated the protocol, and how.
    pub(super) distrusted: Vec<(NodeId, &'static str)>,
}

impl Membership {
    /// Begins a view. `lost` are the nodes that the fabric has reported as lost so far.
    ///
    /// # Panics
    /// If this node is not a member, or the view has more than [`super::MEMBERS_MAX`] members.
    pub fn new<F: Fabric>(
        fabric: &mut F,
        view: View,
        segments: Vec<SenderSegment>,
        settings: MembershipSettings,
        lost: impl IntoIterator<Item = NodeId>,
    ) -> Self {
        assert!(view.members.len() <= super::MEMBERS_MAX, "a group of {}", view.members.len());
        let row = MembershipRow::new(view.members.len(), &segments, settings.states);
        let table = StateTable::new(fabric, view.key(0), &view.nodes(), row.words);
        let silence = Silence::new(&settings, view.members.len(), fabric.now());
        let seen = SeenRows::new(view.members.len());
        let mut membership = Self {
            view,
            settings,
            segments,
            table,
            accused: RankSet::EMPTY,
            frozen: RankSet::EMPTY,
            disputed: RankSet::EMPTY,
            vouched: RankSet::EMPTY,
            judged: None,
            suspected: RankSet::EMPTY,
            wedged: false,
            leaving: false,
            is_slow: false,
            slow: RankSet::EMPTY,
            states: vec![0; row.holds.count()],
            row,
            joins: Vec::new(),
            renewing: false,
            accusers: RankSet::EMPTY,
            concedes: false,
            silence,
            voting: None,
            echoed: None,
            echoes: 0,
            decision: None,
            stop: None,
            state: MembershipState::Opening,
            steps: ViewChangeSteps::default(),
            seen,
            owes_sign: false,
            awaits_disk: false,
            awaits_log: false,
            dead: RankSet::EMPTY,
            is_removed: false,
            waiting: RankSet::EMPTY,
            waits: None,
            room: None,
            distrusted: Vec::new(),
        };
        lost.into_iter().for_each(|node| membership.suspect(node));
        membership
    }

    /// Returns the view.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// Returns how the view ends, once that is decided.
    #[must_use]
    pub const fn decision(&self) -> Option<&Proposal> {
        self.decision.as_ref()
    }

    /// Returns whether all members that stay know the decision, too. A member that leaves waits for that, since no
    /// member can learn anything from it later.
    #[must_use]
    pub fn is_known_to_all(&self) -> bool {
        if self.waits.is_some() {
            // Those that wait know it from their votes.
            return true;
        }
        let removed = self.decision.as_ref().map_or(RankSet::EMPTY, |decision| decision.removed);
        let knows = |rank| self.row.decided.load(self.table.row(rank)) > 0 || self.is_informed(rank);
        (self.heard_members() - removed).iter().all(knows)
    }

    /// Returns why this member has stopped, if it has.
    #[must_use]
    pub const fn stopped(&self) -> Option<StopReason> {
        self.stop
    }

    /// Returns the columns of each subgroup.
    #[must_use]
    pub fn segments(&self) -> &[SenderSegment] {
        &self.segments
    }

    /// Returns the state of the view.
    #[must_use]
    pub const fn state(&self) -> MembershipState {
        self.state
    }

    /// Returns when this member took each step towards the end of the view.
    #[must_use]
    pub const fn steps(&self) -> &ViewChangeSteps {
        &self.steps
    }

    /// Returns whether all live members have attached.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.table.is_ready()
    }

    /// Returns the lowest rank that this member does not suspect, if there is one.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (self.all() - self.suspected).first()
    }

    /// Returns whether this member leads the view.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader() == Some(self.table.rank())
    }

    /// Returns whether this member does not hear the member with this rank.
    #[must_use]
    pub const fn accuses(&self, rank: usize) -> bool {
        self.accused.contains(rank)
    }

    /// Handles an event of the fabric.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        self.table.handle_event(event);
        self.handle_waiting_event(event);
        match event {
            FabricEvent::PeerDying { .. } if mutant!(AwaitLoss) => {}
            // A dying member does not run any more, so it is as good as lost [V16]; its row is frozen as that of any other.
            FabricEvent::PeerDying { peer } | FabricEvent::PeerLost { peer, .. } => {
                if matches!(event, FabricEvent::PeerDying { .. }) {
                    reach(Point::DyingAccused);
                }
                let removed = matches!(event, FabricEvent::PeerLost { reason: BreakReason::Removed, .. });
                self.is_removed |= removed && self.view.rank(*peer).is_some();
                self.suspect(*peer);
            }
            // A sign that was given before a reader attached may have missed it.
            FabricEvent::Attached { key, .. } if *key == self.view.key(0) => {
                let is_mute = mutant!(MuteUntilDue) || mutant!(MuteWhileOpening) && !self.table.is_ready();
                self.owes_sign |= self.silence.is_some() && !is_mute;
            }
            _ => {}
        }
    }

    /// Leaves the group with the next view, or, if this member alone holds some state, as soon as another one has it.
    pub fn leave(&mut self) {
        self.leaving = !mutant!(StayForEver);
    }

    /// Evaluates once; returns the amount of work done.
    pub fn poll<F: Fabric>(&mut self, fabric: &mut F, subgroups: &mut impl Subgroups<F>) -> usize {
        if self.stop.is_some() {
            return 0;
        }
        let now = fabric.now();
        self.hear();
        self.suspect_silent(now);
        if self.decision.is_some() {
            reach(Point::SignAfterDecision);
            // A member that remains until all know the decision continues to hear and to give signs of life.
            self.hear_opinions();
            self.report_end(fabric, now);
            self.flush(fabric);
            return 0;
        }
        self.hear_opinions();
        self.concede(|| fabric.now());
        if !self.disputed.is_empty() {
            self.steps.note_first(ViewChangeStep::Suspected, now);
        }
        let mut work = self.freeze_accused(fabric, subgroups);
        let is_open = self.table.is_ready() && subgroups.may_act(&self.view);
        // A decision counts, whatever has happened to the members that made it.
        if is_open && self.take_over_decision(subgroups) {
            if self.decision.is_some() {
                self.enter_decided(now);
                self.report_end(fabric, now);
                work += 1;
            }
            // A member that waits gets what it lacks beside its reports.
            if self.decision.is_some() || self.waits.is_none() {
                return work + self.flush(fabric);
            }
        }
        if self.must_stop() {
            return work + 1;
        }
        if is_open {
            self.join_those_that_wait(now);
            if self.waits.is_some() {
                return work + self.evaluate_waiting(fabric, subgroups, now);
            }
        }
        if !is_open {
            reach(Point::SignWhileOpening);
            // Signs of life are given from the first evaluation on: a member that does not attach is the only one
            // that is not heard.
            return work + self.flush(fabric);
        }
        self.state = self.state.max(MembershipState::Normal);
        self.heed_slow();
        self.publish(subgroups);
        if !self.wedged && (self.awaits_disk || self.must_wedge()) {
            work += usize::from(self.end_here(now, subgroups));
        }
        if self.wedged {
            work += self.agree(now, subgroups);
            // A leader may have resigned by now, or found that it has no majority.
            self.publish(subgroups);
            if self.must_stop() {
                return work + 1;
            }
            if self.waits.is_some() {
                return work + self.evaluate_waiting(fabric, subgroups, now);
            }
        }
        if self.decision.is_some() {
            self.enter_decided(now);
        }
        work + self.flush(fabric)
    }

    /// Returns when to poll even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let signs = self.silence.as_ref().filter(|_| self.stop.is_none()).map(Silence::deadline);
        signs.into_iter().chain(self.waiting_deadline()).min()
    }

    /// Returns the table of rows, for checkers and tools.
    #[must_use]
    pub const fn table(&self) -> &StateTable {
        &self.table
    }

    /// Returns all ranks of the view.
    pub(super) fn all(&self) -> RankSet {
        RankSet::all(self.view.members.len())
    }

    /// Returns the ranks that this member does not accuse, including its own.
    pub(super) fn heard_members(&self) -> RankSet {
        self.all() - self.accused
    }

    /// Returns what all members report about each other, as far as this one knows.
    pub(super) fn reports(&self) -> HearingReports {
        let own = self.table.rank();
        let column = |column: SetColumn, here: RankSet| {
            let reported = |rank| if rank == own { here } else { column.load(self.table.row(rank)) };
            (0..self.view.members.len()).map(reported).collect()
        };
        HearingReports {
            accused: column(self.row.accused, self.accused),
            vouched: column(self.row.vouched, self.vouched),
            // Read after the answers, which are posted later.
            concedes: self.conceding(),
        }
    }

    pub(super) fn enter_decided(&mut self, now: Instant) {
        self.state = MembershipState::Decided;
        self.steps.note_first(ViewChangeStep::Decided, now);
    }

    /// Posts what was stored, in order, and the heartbeat last, since idle members read only that.
    pub(super) fn flush<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let says = self.table.has_posts() && !mutant!(SilentNews);
        if says || self.owes_sign {
            self.owes_sign = false;
            let (heartbeat, own) = (self.row.heartbeat, self.table.rank());
            self.seen.heartbeats[own] += 1;
            self.table.renew(heartbeat, self.seen.heartbeats[own]);
        }
        self.table.flush(fabric)
    }

    /// Gives a sign of life and checks those of the others, if it is time.
    fn suspect_silent(&mut self, now: Instant) {
        let Some(silence) = &mut self.silence else { return };
        if !silence.is_due(now) {
            return;
        }
        let (own, heartbeat) = (self.table.rank(), self.row.heartbeat);
        let signs = self.table.rows().iter().map(|row| heartbeat.load(row));
        let mut silent = RankSet::EMPTY;
        silence.look(now, signs, |rank| silent.insert(rank));
        silent.without(own).iter().for_each(|rank| self.accuse(rank));
        self.owes_sign = self.table.is_ready() || !mutant!(MuteWhileOpening);
    }

    /// Publishes this member's opinions of the others, its states and the wish to leave, before anything that depends
    /// on them.
    pub(super) fn publish<F>(&mut self, subgroups: &mut impl Subgroups<F>) {
        // A member that was accused before it attached, and lives, has to learn of it: it may lead members that hear
        // it.
        let is_missed = self.table.take_late_reader() && !mutant!(MissLateReader);
        self.publish_concession(is_missed);
        let MembershipRow { accused, disputed, vouched, suspected, .. } = self.row;
        let opinions = [
            (accused, self.accused),
            (disputed, self.disputed),
            (vouched, self.vouched),
            (
                suspected,
                if self.voting.is_some() { self.suspected - self.withheld() } else { self.suspected },
            ),
        ];
        let is_news = |(column, value): &(SetColumn, RankSet)| !column.is(self.table.own(), value);
        if is_missed {
            reach(Point::LateReader);
        }
        if is_missed || opinions.iter().any(is_news) {
            opinions.iter().for_each(|(column, value)| column.note(&mut self.table, value));
            self.table.publish(self.row.opinions());
        }
        if is_missed && self.row.waits.load(self.table.own()) {
            self.table.raise(self.row.waits, true);
        }
        if !self.wedged && subgroups.hold(&mut self.states) {
            self.publish_states();
        }
        if self.leaving && !self.row.leaving.load(self.table.own()) && self.may_end_view() {
            self.table.raise(self.row.leaving, true);
            self.seen.ending.insert(self.table.rank());
        }
        if !self.row.whole.load(self.table.own()) && subgroups.has_whole_log(&self.view) {
            self.table.raise(self.row.whole, true);
        }
    }

    fn must_wedge(&self) -> bool {
        let ending = &self.seen.ending;
        let has_reason = || !ending.is_empty() && !(*ending & self.heard_members()).is_empty();
        !self.disputed.is_empty() || self.renewing || self.can_admit() || has_reason()
    }

    /// Wedges, as soon as the subgroups have what they count; returns whether they have.
    pub(super) fn end_here<F>(&mut self, now: Instant, subgroups: &mut impl Subgroups<F>) -> bool {
        let has_wedged = self.wedge(subgroups);
        if has_wedged {
            self.state = MembershipState::Wedged;
            self.steps.note_first(ViewChangeStep::Wedged, now);
        }
        has_wedged
    }

    /// Ends the view here, as soon as the subgroups have what they count; returns whether they have.
    fn wedge<F>(&mut self, subgroups: &mut impl Subgroups<F>) -> bool {
        let mut counts = vec![0; self.row.counts.count()];
        self.awaits_disk = !subgroups.wedge(&mut counts, &mut self.states);
        if self.awaits_disk {
            return false;
        }
        self.note_reason();
        self.publish_states();
        for (i, count) in counts.iter().enumerate() {
            self.row.counts.column(i).store(self.table.own(), *count);
        }
        if !counts.is_empty() {
            self.table.append(self.row.counts.words(0..counts.len()));
        }
        let readers = (0..self.view.members.len()).filter(|rank| !self.table.is_excused(*rank)).collect();
        self.row.wedged.raise(&mut self.table, &readers);
        self.wedged = true;
        true
    }
}
