//! A member that has lost its majority waits, with its state, and ends the view with the others as soon as a majority of them hear each
//! other again \[V17\] (Derecho §3.4; the rules are those of [`crate::ends`]).
//!
//! A member goes over to waiting where it would stop otherwise: when those that it hears and that do not wait are no majority, when all of
//! them have resigned, or, as leader, when its cut leaves no majority \[H1\]. It stays so until the view has ended. It stops only if
//! more members are *dead* than a majority can do without \[H18\]: lost by the fabric, not silent.
//!
//! **State**, from then on: the register, which begins with what the member has echoed, and the ballot that it leads
//! ([`WaitingMember`]); the latest report of each member; its own, in a row of a table of its own. Rows of the view's table are
//! frozen at those that accuse their owners, for the view; the rows of this table never are, and their readers attach whenever they come
//! to wait. So members hear each other again, and nothing of the view's messages passes between them \[H5\].
//!
//! **Step order** of one evaluation: wedge, so that the counts are final \[H2\]; raise the word `waits` in the row of the view, which says
//! that no echo follows; take the reports of the others; take steps of [`WaitingMember::step`] until nothing is due; publish the own
//! report, if it has changed, and then a beat. A member that sees another one's report of how the view has ended takes that over.
//!
//! **Why there is one decision.** The word `waits` stands for a promise above the ballots of all live leaders. A live proposal is decided
//! when a majority has echoed it, and a ballot is led with the promises of a majority: they share a member, whose report has its echo.
//!
//! **Disks.** In a group with durable subgroups the ballots are those of [`crate::restart`], in the same register: a promise or a vote is
//! on the disk before it is reported \[T12\] \[T15\]. A process that has started again takes no part in the ballots of those that wait,
//! nor these in its; a majority has only one of the two, and what one may have decided the other finds in the registers \[T14\]. If
//! members are dead with which, started again, the rest would be a majority, those that wait do not wait for the silent ones without end: they
//! stop after a while, and start again, too.
//!
//! **Copies.** In a shard with a majority for quorum a member may lack what counts. It votes, and installs, when it has that \[H14\], and
//! so asks others for it: by a word beside its report, since its words in the shard's own rows are frozen. A vote of such a member is a
//! copy, and a decision has two of each shard \[H13\], live as well (`agreement.rs`). In all other subgroups every member that stays has
//! what the trims hold.
//!
//! With [`super::PartitionSafety::Off`] no majority is needed, and in a group without a suspicion time no member is only silent: there a
//! member stops.

mod board;
mod room;
mod values;

use squall_fabric::{Fabric, FabricEvent, Instant, MirrorId};

use self::board::{WaitingReport, WaitingRow};
pub(super) use self::room::WaitingRoom;
use self::values::WaitingValues;
use super::{Membership, MembershipSettings, MembershipState, Proposal, RankSet, Subgroups, ViewChangeStep};
use crate::coverage::{Point, reach};
use crate::ends::{
    EndContext, EndReports, EndSettings, WaitReason, WaitingInput, WaitingMember, WaitingStep,
};
use crate::mutation;
use crate::sst::StateTable;

/// The purpose of the mirrors of these rows ([`super::View::key`]): below those of genuine multicast, and above those of all subgroups.
const PURPOSE: u32 = (1 << 19) - 1;

impl Membership {
    /// Returns whether members of this group wait for a majority that they have lost.
    pub(super) fn is_patient(&self) -> bool {
        let waits = self.settings.suspicion_after.is_some() && !mutant!(StopForSilence);
        waits && self.needs_majority()
    }

    /// Returns why this member waits for a majority, if it does.
    #[must_use]
    pub const fn waits(&self) -> Option<WaitReason> {
        self.waits
    }

    /// Returns the mirror of the row by which this member waits, to be retired with that of the view.
    pub(super) fn waiting_mirror(&self) -> Option<MirrorId> {
        self.room.as_ref().map(|room| room.table.mirror())
    }

    /// Returns when the wait needs an evaluation even if nothing happens.
    pub(super) fn waiting_deadline(&self) -> Option<Instant> {
        let room = self.room.as_ref().filter(|_| self.stop.is_none() && self.decision.is_none())?;
        // Each beat looks whether it is time to give up, too.
        room.member.due().into_iter().chain([room.beat_at]).min()
    }

    /// Returns when this member gives up waiting for the silent ones, since members are dead with which it could start again.
    fn restart_is_due(&self, room: &WaitingRoom, now: Instant) -> Option<Instant> {
        let heard = room.heard(now) - self.dead;
        let may_restart = self.settings.has_register && !self.dead.is_empty();
        let helps = !self.suffice(heard.len()) && self.suffice((heard | self.dead).len());
        (may_restart && helps).then(|| room.dead.1 + room.settings.silence * LOST_STATE)
    }

    /// Returns whether the row of a member that waits has changed.
    pub(super) fn hears_waiting(&self) -> bool {
        self.room.as_ref().is_some_and(|room| room.hears_news())
    }

    /// Goes over to waiting with those that wait already when this member comes to the view: they have heard it too late, and it would
    /// continue without them \[H1\].
    pub(super) fn join_those_that_wait(&mut self, now: Instant) {
        mutant!(LeaveThoseThatWait => return);
        let is_late = self.silence.as_ref().is_some_and(|silence| silence.has_just_begun(now));
        if is_late
            && self.waits.is_none()
            && self.is_patient()
            && !(self.waiting & self.heard_members()).is_empty()
        {
            reach(Point::WaitJoined);
            self.begin_waiting(WaitReason::BallotLed);
        }
    }

    /// Goes over to waiting.
    pub(super) fn begin_waiting(&mut self, reason: WaitReason) {
        if self.waits.is_none() {
            reach(Point::WaitsForMajority);
            self.waits = Some(reason);
            self.voting = None;
            self.suspected.insert(self.table.rank());
            // It may hear no member that reports an accusation to it: it answers all.
            self.disputed.insert(self.table.rank());
        }
    }

    /// Returns the words with which members that wait in this view ask for logs, by rank.
    pub(super) fn log_asks(&self) -> Option<Vec<u64>> {
        Some(self.room.as_ref()?.asks())
    }

    /// Returns whether the proposal of a live leader, which `same` have echoed, cannot have been decided if no other member of `stay` has
    /// \[H12\].
    pub(super) fn cannot_be_decided(
        &self,
        proposal: (usize, &Proposal),
        same: RankSet,
        stay: RankSet,
    ) -> bool {
        self.live_values().cannot_be_decided(proposal, same, stay)
    }

    /// Returns the view as those that wait see it.
    fn live_values(&self) -> WaitingValues {
        let members = self.view.members.len();
        let held = |state| (0..members).filter(|rank| self.may_hold(*rank, state)).collect();
        let mut values =
            WaitingValues::new(&self.view, &self.segments, (0..self.row.states).map(held).collect());
        values.note_states(self.table.rank(), &self.states);
        values
    }

    pub(super) fn handle_waiting_event(&mut self, event: &FabricEvent) {
        self.room.iter_mut().for_each(|room| room.table.handle_event(event));
    }

    /// Returns whether all other members have attached this one's row, but for those that are dead: no member waits in an earlier view.
    pub(super) fn has_all_readers(&self) -> bool {
        self.table.readers() + self.dead.len() >= self.view.members.len() - 1
    }

    /// Evaluates the wait for a majority, in a view whose table is open.
    pub(super) fn evaluate_waiting<F: Fabric>(
        &mut self,
        fabric: &mut F,
        subgroups: &mut impl Subgroups<F>,
        now: Instant,
    ) -> usize {
        self.publish(subgroups);
        let work = self.wait(fabric, subgroups, now);
        if self.wedged {
            self.state = MembershipState::Waiting;
        }
        if self.decision.is_some() {
            self.enter_decided(now);
        }
        work + self.flush(fabric)
    }

    /// Evaluates once while this member waits, and the table of the view is open; returns the amount of work done.
    fn wait<F: Fabric>(&mut self, fabric: &mut F, subgroups: &mut impl Subgroups<F>, now: Instant) -> usize {
        if !self.wedged && !self.end_here(now, subgroups) {
            return 0;
        }
        if !self.row.waits.load(self.table.own()) {
            self.table.raise(self.row.waits, true);
        }
        let Some(mut room) = self.room.take().or_else(|| self.enter_room(fabric, now)) else { return 0 };
        if room.dead.0 != self.dead {
            room.dead = (self.dead, now);
        }
        let learned = room.hear(now).and_then(|(rank, proposal)| self.believe(rank, proposal));
        learned.iter().for_each(|_| reach(Point::WaitEndTakenOver));
        room.end = room.end.take().or(learned);
        let mut work = 0;
        let mut lacks = false;
        while !lacks && room.end.is_none() {
            // What it is committed to is on its disk before it is said [T12] [T15].
            if !self.record(&room, subgroups) {
                reach(Point::WaitOnDisk);
                break;
            }
            match self.step_in(&mut room, now) {
                WaitingStep::Nothing => break,
                WaitingStep::Lacks(lacked) => {
                    let lacked = room.values.proposal(&lacked.value);
                    lacks = !self.has_log(&lacked, subgroups);
                    if !lacks {
                        room.hold(&self.segments, &lacked);
                    }
                }
                WaitingStep::Decided(vote) => {
                    let decided = room.values.proposal(&vote.proposal.value);
                    if self.fault(&decided).is_some() {
                        break;
                    }
                    room.end = Some(decided);
                }
                WaitingStep::Promised(_)
                | WaitingStep::Voted(_)
                | WaitingStep::Leads(_)
                | WaitingStep::Proposes => work += 1,
            }
        }
        if let Some(end) = room.end.take() {
            lacks = !self.has_log(&end, subgroups);
            if lacks {
                room.end = Some(end);
            } else {
                let heard = room.said.hears;
                room.say(now, heard, Some(&end));
                reach(Point::WaitEnded);
                self.decision = Some(end);
                work += 1;
            }
        }
        if lacks {
            reach(Point::WaitLacksLog);
            self.awaits_log = true;
        }
        // Those that are heard by now: a provider may be back after this member has learned the end.
        work += room.exchange_log(fabric, subgroups, room.heard(now));
        if now >= room.beat_at {
            room.beat();
            room.beat_at = now + room.settings.silence / MembershipSettings::BEATS;
        }
        work += room.table.flush(fabric);
        if self.decision.is_none() && self.restart_is_due(&room, now).is_some_and(|due| now >= due) {
            reach(Point::WaitGivenUp);
            self.stop_as_minority(self.dead);
        }
        self.room = Some(room);
        work
    }

    /// Says what is so by now, and takes one step of those that wait.
    fn step_in(&self, room: &mut WaitingRoom, now: Instant) -> WaitingStep {
        let own = self.table.rank();
        let heard = room.heard(now);
        room.say(now, heard, None);
        let (placement, counts) = (room.values.placement(), room.values.counts(&room.held));
        let context = EndContext {
            view: room.values.view(),
            own,
            dead: self.dead,
            placement: &placement,
            gives_up_silent: false,
        };
        let input = WaitingInput {
            context,
            now,
            settings: &room.settings,
            fresh: heard,
            counts: &counts,
            is_restarted: false,
            is_wedged: true,
        };
        let reports = room.reports.in_view(room.values.view());
        room.member.step(&input, &reports)
    }

    /// Puts what this member has promised and voted for on its disk, in a group with durable subgroups; returns whether it is there.
    fn record<F: Fabric>(&self, room: &WaitingRoom, subgroups: &mut impl Subgroups<F>) -> bool {
        mutant!(SayBeforeDisk => return true);
        let register = &room.member.register;
        let vote = register.vote().filter(|vote| vote.ballot.is_restart());
        let has_voted = vote.is_none_or(|vote| {
            let proposal = room.values.proposal(&vote.proposal.value);
            subgroups.vote(&self.view, &self.segments, vote.ballot, &proposal)
        });
        let promise = register.promise().filter(|ballot| ballot.is_restart());
        has_voted && promise.is_none_or(|ballot| subgroups.promise(ballot))
    }

    /// Returns what another member says has been decided, if that is valid; accuses the member if it is not.
    fn believe(&mut self, rank: usize, proposal: Proposal) -> Option<Proposal> {
        let fault = self.fault(&proposal);
        fault.into_iter().for_each(|why| self.distrust(rank, why));
        fault.is_none().then_some(proposal)
    }

    /// Says how the view ends to those that wait in it, once it is decided: at once if this member has waited, or knows of one that does,
    /// and else when others have had time to learn it in the usual way \[H16\]. Returns the amount of work done.
    pub(super) fn report_end<F: Fabric>(&mut self, fabric: &mut F, now: Instant) -> usize {
        let Some(decision) = &self.decision else { return 0 };
        if self.room.is_none() {
            let time = self.settings.suspicion_after.map(|after| after / MembershipSettings::BEATS);
            let late = self.steps.at(ViewChangeStep::Decided).zip(time).map(|(at, time)| at + time);
            let is_due = !self.waiting.is_empty() || late.is_some_and(|late| now >= late);
            if !is_due || !self.is_patient() || mutant!(KeepEndSecret) {
                return 0;
            }
            reach(Point::EndReported);
            self.room = self.enter_room(fabric, now);
        }
        let Some(room) = &mut self.room else { return 0 };
        room.hear(now);
        let heard = room.said.hears;
        room.say(now, heard, Some(decision));
        room.table.flush(fabric)
    }

    /// Returns whether the member with this rank has said, as one that waits, that it knows how the view ends.
    pub(super) fn is_informed(&self, rank: usize) -> bool {
        self.room.as_ref().is_some_and(|room| room.informed.contains(rank))
    }

    /// Publishes the row by which this member waits, and attaches those of the others.
    fn enter_room<F: Fabric>(&self, fabric: &mut F, now: Instant) -> Option<Box<WaitingRoom>> {
        let silence = self.settings.suspicion_after?;
        let members = self.view.members.len();
        let row = WaitingRow::new(members, self.segments.len(), &self.row);
        let mut table = StateTable::new(fabric, self.view.key(PURPOSE), &self.view.nodes(), row.words);
        // Each attaches when it waits.
        RankSet::all(members).without(table.rank()).iter().for_each(|rank| table.excuse(rank));
        let values = self.live_values();
        let register = values.first_register(self.echoed.as_ref());
        let own = self.table.own();
        let said = WaitingReport {
            holds: self.states.clone(),
            counts: (0..self.row.counts.count()).map(|i| self.row.counts.column(i).load(own)).collect(),
            ..WaitingReport::default()
        };
        let settings = EndSettings {
            silence,
            gather: silence,
            patience: silence / MembershipSettings::BEATS,
            // Silent holders of a state may come back with the logs.
            lost_shard_after: (!self.settings.has_register).then(|| silence * LOST_STATE),
        };
        Some(Box::new(WaitingRoom {
            table,
            row,
            settings,
            values,
            member: WaitingMember::restored(register),
            reports: EndReports::default(),
            seen: vec![(0, 0); members],
            informed: RankSet::EMPTY,
            held: said.counts.clone(),
            said,
            beat_at: now,
            dead: (self.dead, now),
            counts: vec![None; members],
            end: None,
        }))
    }
}

/// After this many times the suspicion time a leader gives up a state all of whose holders are silent, and members stop that can start again
/// with dead ones: silent ones are waited for longer than otherwise, since states in memory are lost with them.
const LOST_STATE: u32 = 8;
