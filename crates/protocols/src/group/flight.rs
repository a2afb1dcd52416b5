//! The flight recorder: what a node has noticed lately, kept always, and read when something has gone wrong (Derecho §3.4
//! measures the steps of a view change; the causes are here).
//!
//! **State.** A ring of the latest events, how many there were in all, and what the node had noticed when it last looked.
//!
//! **Step order.** After membership was evaluated, [`FlightRecorder::look`] compares its marks with those of the previous look, and
//! records each difference once. What is no state of membership is recorded where it happens ([`FlightRecorder::note`]).
//!
//! **Invariants.** At most [`EVENTS_KEPT`] events are kept: the latest ones, in the order of their instants, and their numbers have no
//! gap. A mark that does not change is recorded once in a view. The recorder decides nothing, sends nothing, and is not on the path of
//! a message: a look that finds nothing new costs a comparison of some words in one of 64 evaluations.

use std::collections::VecDeque;
use std::fmt;

use squall_fabric::{BreakReason, Duration, FabricEvent, Instant, NodeId};

use super::{HoldUp, SlowCause, SubgroupId};
use crate::membership::{Member, Membership, MembershipMarks, RankSet};
use crate::mutation;

/// The number of events that are kept: several view changes with all that leads to them.
pub const EVENTS_KEPT: usize = 256;

/// What a node has noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlightEvent {
    /// It has begun a view with this number, of this many members.
    Begins {
        /// The number of the view.
        view: u64,
        /// The number of its members.
        members: usize,
    },
    /// All members of the view have attached: messages flow.
    Opens {
        /// The number of the view.
        view: u64,
    },
    /// The process of a node is being ended.
    SeesDying(NodeId),
    /// The fabric has lost all connections to a node.
    Loses(NodeId, BreakReason),
    /// It does not hear a member, and accuses it.
    Accuses(Member),
    /// A member does not hear this one.
    AccusedBy(Member),
    /// It does not follow a member as leader any more, although it hears it, or has resigned as leader itself.
    Unfollows(Member),
    /// It has stalled, and concedes that an accusation is caused by that.
    Concedes,
    /// It was polled this much later than it had asked for: its process was stopped, or its polling thread was busy with something
    /// else.
    Stalls(Duration),
    /// A member holds this one up in a subgroup for most of the time.
    HeldUp(SubgroupId, NodeId, SlowCause),
    /// No member has held it up in the subgroup since then.
    Released(SubgroupId),
    /// It reports a member whose consumer has held it up for too long, so that it leaves.
    FindsSlow(Member),
    /// It wants to leave.
    Leaves,
    /// It sends and acknowledges nothing any more in the view.
    Wedges,
    /// It hears no majority of the view, and waits for one with its state.
    WaitsForMajority,
    /// It votes for the proposal of a leader, which may be itself.
    Follows(Member),
    /// It knows how the view ends.
    Decides {
        /// The number of members that are not in the next view.
        removed: usize,
        /// The number of members that are new in it.
        joined: usize,
    },
    /// The trim of a subgroup: this many messages and nulls of all senders are delivered in the view.
    Trims(SubgroupId, u64),
}

impl FlightEvent {
    /// Returns what a node notices by an event of the fabric.
    pub(super) const fn of(event: &FabricEvent) -> Option<Self> {
        match event {
            FabricEvent::PeerDying { peer } => Some(Self::SeesDying(*peer)),
            FabricEvent::PeerLost { peer, reason } => Some(Self::Loses(*peer, *reason)),
            _ => None,
        }
    }

    /// Returns the kind of event in one or two words.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Begins { .. } => "view begins",
            Self::Opens { .. } => "messages flow",
            Self::SeesDying(_) => "dying",
            Self::Loses(..) => "connection lost",
            Self::Accuses(_) => "accuses",
            Self::AccusedBy(_) => "is accused",
            Self::Unfollows(_) => "leader left",
            Self::Concedes => "concedes",
            Self::Stalls(_) => "stall",
            Self::HeldUp(..) => "held up",
            Self::Released(_) => "released",
            Self::FindsSlow(_) => "slow member",
            Self::Leaves => "leaves",
            Self::Wedges => "wedges",
            Self::WaitsForMajority => "no majority",
            Self::Follows(_) => "votes",
            Self::Decides { .. } => "decides",
            Self::Trims(..) => "trim",
        }
    }
}

impl fmt::Display for FlightEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |member: &Member| format!("rank {} ({})", member.tag, member.node);
        match self {
            Self::Begins { view, members } => write!(f, "begins view {view} of {members} members"),
            Self::Opens { view } => write!(f, "all members of view {view} have attached: messages flow"),
            Self::SeesDying(node) => write!(f, "sees that the process of {node} is being ended"),
            Self::Loses(node, reason) => write!(f, "loses the connections to {node}: {reason}"),
            Self::Accuses(member) => write!(f, "does not hear {}, and accuses it", named(member)),
            Self::AccusedBy(member) => write!(f, "is accused by {}", named(member)),
            Self::Unfollows(member) => write!(f, "does not follow {} as leader", named(member)),
            Self::Concedes => f.write_str("has stalled, and concedes that it is accused because of that"),
            Self::Stalls(late) => {
                write!(f, "was polled {:.1} ms later than it had asked for", late.as_secs_f64() * 1000.0)
            }
            Self::HeldUp(subgroup, node, cause) => {
                write!(f, "{subgroup}: {node} holds this member up by its {cause}")
            }
            Self::Released(subgroup) => write!(f, "{subgroup}: no member holds this one up any more"),
            Self::FindsSlow(member) => write!(f, "reports {} as too slow", named(member)),
            Self::Leaves => f.write_str("wants to leave"),
            Self::Wedges => f.write_str("sends and acknowledges nothing any more in this view"),
            Self::WaitsForMajority => {
                f.write_str("hears no majority of the view, and waits for one with its state")
            }
            Self::Follows(member) => write!(f, "votes for the proposal of {}", named(member)),
            Self::Decides { removed, joined } => {
                write!(f, "knows how the view ends: {removed} members leave it, {joined} join")
            }
            Self::Trims(subgroup, indexes) => {
                write!(f, "{subgroup}: {indexes} messages and nulls are delivered in this view")
            }
        }
    }
}

/// The latest events of a node.
#[derive(Clone, Debug, Default)]
pub struct FlightRecorder {
    /// The latest events, the oldest first: `events.len() <= EVENTS_KEPT`.
    events: VecDeque<(Instant, FlightEvent)>,
    /// How many events there were: `events.len() <= recorded`.
    recorded: u64,
    /// What membership had noticed at the last look.
    seen: MembershipMarks,
    /// The subgroups in which a member holds this one up.
    held_up: Vec<(SubgroupId, NodeId, SlowCause)>,
}

impl FlightRecorder {
    /// Returns how many events there were in all.
    #[must_use]
    pub const fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Returns the events that are kept, the oldest first, with the instants at which they were noticed.
    pub fn events(&self) -> impl ExactSizeIterator<Item = &(Instant, FlightEvent)> {
        self.events.iter()
    }

    /// Records an event.
    #[cold]
    pub(super) fn note(&mut self, now: Instant, event: FlightEvent) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back((now, event));
        self.recorded += 1;
    }

    /// Records what membership has noticed since the last look.
    #[inline]
    pub(super) fn look(&mut self, now: impl FnOnce() -> Instant, membership: &Membership) {
        debug_assert_eq!(membership.has_noticed_since(&self.seen), membership.marks() != self.seen);
        if membership.has_noticed_since(&self.seen) {
            self.compare(now(), membership, membership.marks());
        }
    }

    #[cold]
    fn compare(&mut self, now: Instant, membership: &Membership, marks: MembershipMarks) {
        let seen = std::mem::replace(&mut self.seen, marks);
        let seen = if seen.view == marks.view && !mutant!(RecordAgain) {
            seen
        } else {
            // The wish to leave continues from view to view.
            MembershipMarks { view: marks.view, leaving: seen.leaving, ..MembershipMarks::default() }
        };
        let own = membership.table().rank();
        let mut each = |set: RankSet, event: fn(Member) -> FlightEvent| {
            set.iter().for_each(|rank| self.note(now, event(membership.member(rank))));
        };
        each(marks.accused - seen.accused, FlightEvent::Accuses);
        each((marks.accusers - seen.accusers).without(own), FlightEvent::AccusedBy);
        each(marks.suspected - marks.accused - seen.suspected, FlightEvent::Unfollows);
        each(marks.slow - seen.slow, FlightEvent::FindsSlow);
        let is_new = |now: bool, before: bool| now && !before;
        let simple = [
            (is_new(marks.concedes, seen.concedes), FlightEvent::Concedes),
            (is_new(marks.leaving, seen.leaving), FlightEvent::Leaves),
            (is_new(marks.wedged, seen.wedged), FlightEvent::Wedges),
            (is_new(marks.waits, seen.waits), FlightEvent::WaitsForMajority),
        ];
        simple.into_iter().filter(|(is_new, _)| *is_new).for_each(|(_, event)| self.note(now, event));
        if let Some(leader) = marks.echoed.filter(|leader| seen.echoed != Some(*leader)) {
            self.note(now, FlightEvent::Follows(membership.member(leader)));
        }
        if let Some(decision) = membership.decision().filter(|_| !seen.decided) {
            let (removed, joined) = (decision.removed.len(), decision.joins.len());
            self.note(now, FlightEvent::Decides { removed, joined });
        }
    }

    /// Records that the node was polled late, if it was: `due` is when it had asked for that.
    #[inline]
    pub(super) fn look_at_clock(&mut self, now: Instant, due: Option<Instant>) {
        if let Some(late) = due.map(|due| now.since(due)).filter(|late| *late >= STALL_AFTER) {
            self.note(now, FlightEvent::Stalls(late));
        }
    }

    /// Records that a member begins or ceases to hold this one up in a subgroup, once for each member and cause meanwhile: why it does may
    /// become known only when it says so.
    #[inline]
    pub(super) fn look_at_hold_up(&mut self, now: Instant, id: SubgroupId, hold_up: Option<HoldUp>) {
        if hold_up.is_none() && self.held_up.is_empty() {
            return;
        }
        let percent = hold_up.map_or(0, |hold_up| hold_up.percent);
        if percent < RELEASED_BELOW {
            let before = self.held_up.len();
            self.held_up.retain(|(other, ..)| *other != id);
            if self.held_up.len() < before {
                self.note(now, FlightEvent::Released(id));
            }
        } else if let Some(HoldUp { member, cause, percent }) = hold_up
            && percent >= HELD_UP_FROM
            && !self.held_up.contains(&(id, member, cause))
        {
            self.held_up.push((id, member, cause));
            self.note(now, FlightEvent::HeldUp(id, member, cause));
        }
    }

    /// Records that a view has begun: what was noticed in earlier views is noticed anew.
    pub(super) fn begin_view(&mut self, now: Instant, view: u64, members: usize) {
        self.held_up.clear();
        self.note(now, FlightEvent::Begins { view, members });
    }
}

/// A node that is polled later than this after it is due has stalled: a busy machine lets a thread wait for some tens of milliseconds.
pub const STALL_AFTER: Duration = Duration::from_millis(100);

/// A member that is held up in this many of a hundred moments of a second is recorded as held up: shorter pauses are normal.
pub const HELD_UP_FROM: u32 = 50;

/// And as released when it is held up in fewer than these.
const RELEASED_BELOW: u32 = 25;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn names(recorder: &FlightRecorder) -> Vec<&'static str> {
        recorder.events().map(|(_, event)| event.name()).collect()
    }

    #[test]
    fn the_latest_events_are_kept_and_counted() {
        let mut recorder = FlightRecorder::default();
        let all = 2 * EVENTS_KEPT as u64 + 3;
        (0..all).for_each(|view| recorder.note(at(view), FlightEvent::Opens { view }));
        assert_eq!((recorder.recorded(), recorder.events().len()), (all, EVENTS_KEPT));
        let views = recorder.events().map(|(_, event)| *event);
        let latest = all - EVENTS_KEPT as u64..all;
        assert!(views.eq(latest.map(|view| FlightEvent::Opens { view })));
    }

    /// A deadline that has passed by a little is no stall, and neither is a long sleep that was asked for.
    #[test]
    fn a_node_that_is_polled_late_has_stalled() {
        let mut recorder = FlightRecorder::default();
        recorder.look_at_clock(at(5000), None);
        recorder.look_at_clock(at(5000), Some(at(6000)));
        recorder.look_at_clock(at(5000), Some(at(4901)));
        assert_eq!(recorder.recorded(), 0);
        recorder.look_at_clock(at(5000), Some(at(4900)));
        let (_, event) = recorder.events().next().expect("it has stalled");
        assert_eq!(event.to_string(), "was polled 100.0 ms later than it had asked for");
    }

    /// At full load a window is full many times in a second: only a member that is held up for long is recorded, once for each cause.
    #[test]
    fn a_member_that_is_held_up_for_long_is_recorded_once() {
        let mut recorder = FlightRecorder::default();
        let id = SubgroupId(1);
        let mut look = |id, cause, percent| {
            let held = HoldUp { member: NodeId(7), cause, percent };
            recorder.look_at_hold_up(at(0), id, (percent > 0).then_some(held));
            recorder.recorded()
        };
        assert_eq!([0, 20, 45, 10, 0].map(|percent| look(id, SlowCause::Link, percent)), [0; 5]);
        assert_eq!([50, 100, 30, 100].map(|percent| look(id, SlowCause::Link, percent)), [1; 4]);
        // It says why; its first words were late.
        assert_eq!([30, 60, 90].map(|percent| look(id, SlowCause::Processor, percent)), [1, 2, 2]);
        assert_eq!(look(id, SlowCause::Link, 90), 2);
        look(SubgroupId(0), SlowCause::Disk, 0);
        assert_eq!([20, 0, 0].map(|percent| look(id, SlowCause::Processor, percent)), [3; 3]);
        assert_eq!(look(id, SlowCause::Processor, 90), 4);
        assert_eq!(names(&recorder), ["held up", "held up", "released", "held up"]);
    }
}
