//! The joiner: asks until a leader admits it, links with all members, and waits for its first view (Derecho §3.3).

use std::collections::BTreeMap;

use squall_fabric::{Backoff, Duration, Instant};

use super::call::{CallFailure, JoinFailure, JoinStanding, JoinerAction, JoinerSettings};
use super::message::{Admitted, JoinAnswer};
use super::mutation;
use crate::coverage::{Point, reach};

/// A process that joins a group whose members are each reached at an `A`. What cannot be helped is an `E` of the driver.
///
/// **Law.** The driver takes an action ([`Joiner::poll_action`]), carries it out, and hands in what has come of it with the
/// `handle_*` named there; then it takes the next. While there is none it waits until [`Joiner::next_deadline`]. Calls
/// ([`JoinerAction::Ask`], [`JoinerAction::Link`], [`JoinerAction::Report`]) are over at their `until` at the latest, and the
/// driver gives them up when the connection with the leader that has admitted this process ends.
///
/// Bounded: one call at a time, at most [`HOPS_MAX`] redirections in a row, [`JoinerSettings::pauses`] between
/// rounds of the contacts, [`REMOVALS_MAX`] further attempts after the others have gone on without this process, and
/// [`JoinerSettings::timeout`] for all of it.
#[derive(Debug)]
pub struct Joiner<A, E> {
    settings: JoinerSettings,
    contacts: Vec<A>,
    /// Where the members of the latest admission are reached: they are asked as well, should the contacts be gone.
    members: Vec<A>,
    deadline: Instant,
    state: State<A>,
    /// The action was taken.
    is_under_way: bool,
    /// Contacts asked so far, redirections not counted.
    asked: usize,
    hops: u32,
    /// The leader that was named last.
    leader: Option<A>,
    pause: Backoff<Duration>,
    /// How long a contact may take to connect and to prove the secret; a slow network has its time later.
    patience: Backoff<Duration>,
    removals: u32,
    /// What can never work, by contact: processes that have proved the secret say so.
    hopeless: BTreeMap<A, E>,
    /// What some process without a proof said last.
    unproved: Option<E>,
    /// The last failure.
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State<A> {
    /// Asks the next contact then.
    Pausing(Instant),
    Asking(A),
    /// Links with the members from `next` on, other than the leader: not before `at`, and with this one since `since`.
    Linking {
        admitted: Admitted<A>,
        next: usize,
        at: Instant,
        since: Instant,
    },
    Reporting {
        admitted: Admitted<A>,
    },
    /// All links stand, and the leader knows it, or may know it.
    Beginning {
        admitted: Admitted<A>,
        is_known: bool,
    },
    /// Waits for its first view.
    Arriving {
        orphan_until: Option<Instant>,
    },
    /// Closes all that it has, and asks again then.
    Abandoning(Instant),
    Ending(JoinFailure),
    Over,
}

impl<A: Clone + Ord, E> Joiner<A, E> {
    /// A process that asks `contacts`, of which there must be one.
    ///
    /// # Panics
    /// If there are no contacts.
    #[must_use]
    pub fn new(settings: JoinerSettings, contacts: Vec<A>, now: Instant) -> Self {
        assert!(!contacts.is_empty(), "a joiner without contacts");
        let (members, hopeless, cause) = (Vec::new(), BTreeMap::new(), String::new());
        let patience_max = settings.handshake.max(settings.patience_min) * PATIENCE_FACTOR;
        Self {
            settings,
            contacts,
            members,
            deadline: now + settings.timeout,
            state: State::Pausing(now),
            is_under_way: false,
            asked: 0,
            hops: 0,
            leader: None,
            pause: Backoff::new(settings.pauses[0], settings.pauses[1]),
            patience: Backoff::new(settings.patience_min, patience_max),
            removals: 0,
            hopeless,
            unproved: None,
            cause,
        }
    }

    /// The error of the failure, if the driver has handed one in that explains it.
    pub fn take_error(&mut self) -> Option<E> {
        self.hopeless.pop_first().map(|(_, error)| error).or_else(|| self.unproved.take())
    }

    /// What to do next; `None`: to wait until [`Joiner::next_deadline`], or for what comes of the last action.
    pub fn poll_action(&mut self, now: Instant) -> Option<JoinerAction<A>> {
        if let State::Pausing(at) = self.state
            && now >= at
        {
            self.state = State::Asking(self.next_contact());
        }
        if std::mem::replace(&mut self.is_under_way, true) {
            return None;
        }
        let until = self.deadline.min(now + self.settings.handshake);
        match self.state.clone() {
            State::Pausing(at) | State::Linking { at, .. } if now < at => {
                self.is_under_way = false;
                None
            }
            State::Pausing(_) | State::Over => {
                self.is_under_way = false;
                None
            }
            State::Arriving { .. } => None,
            State::Asking(contact) => {
                let until = self.deadline.min(now + self.settings.answer);
                Some(JoinerAction::Ask { contact, patience: self.patience.spacing(), until })
            }
            State::Linking { admitted, next, .. } => {
                let (node, address) = admitted.members[next].clone();
                Some(JoinerAction::Link { own: admitted.node, node, address, until })
            }
            State::Reporting { .. } => {
                let until = self.deadline.min(now + self.settings.answer);
                Some(JoinerAction::Report { until })
            }
            State::Beginning { admitted, is_known } => {
                let orphan_until = (!is_known).then_some(now + self.settings.orphan);
                self.state = State::Arriving { orphan_until };
                Some(JoinerAction::Begin(admitted))
            }
            State::Abandoning(at) => {
                self.enter(State::Pausing(at));
                Some(JoinerAction::Abandon)
            }
            State::Ending(failure) => {
                self.enter(State::Over);
                Some(JoinerAction::GiveUp(failure))
            }
        }
    }

    /// When there is something to do, if nothing comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Pausing(at) => Some(*at),
            State::Linking { at, .. } if !self.is_under_way => Some(*at),
            State::Arriving { orphan_until } => {
                Some(orphan_until.map_or(self.deadline, |at| at.min(self.deadline)))
            }
            _ => None,
        }
    }

    /// The next contact in turn; after the contacts of the configuration the members that are known.
    fn next_contact(&mut self) -> A {
        if let Some(leader) = self.leader.clone().filter(|_| mutant!(AskOneLeader)) {
            return leader;
        }
        let known = self.members.iter().filter(|member| !self.contacts.contains(member));
        let all: Vec<&A> = self.contacts.iter().chain(known).collect();
        let contact = all[self.asked % all.len()].clone();
        self.asked += 1;
        contact
    }

    /// Whether the contact that comes next begins another round.
    fn is_round_over(&self) -> bool {
        let known = self.members.iter().filter(|member| !self.contacts.contains(member)).count();
        self.asked.is_multiple_of(self.contacts.len() + known)
    }

    fn enter(&mut self, state: State<A>) {
        (self.state, self.is_under_way) = (state, false);
    }

    /// A contact has answered.
    pub fn handle_answer(&mut self, now: Instant, answer: JoinAnswer<A>) {
        let State::Asking(contact) = self.state.clone() else { return };
        self.unproved = None;
        self.hopeless.remove(&contact);
        match answer {
            JoinAnswer::Admit(admitted) => self.on_admitted(now, admitted),
            JoinAnswer::Redirect(leader) if leader == contact => self.pause(now, NO_LEADER.into()),
            JoinAnswer::Redirect(leader) if self.hops < HOPS_MAX => {
                self.hops += 1;
                self.leader = Some(leader.clone());
                self.enter(State::Asking(leader));
            }
            // Members may name each other in a circle while leadership changes.
            JoinAnswer::Redirect(_) => self.pause(now, NO_LEADER.into()),
            JoinAnswer::Wait(reason) | JoinAnswer::Refuse(reason) => self.pause(now, reason),
        }
    }

    fn on_admitted(&mut self, now: Instant, admitted: Admitted<A>) {
        self.members = admitted.members.iter().map(|(_, address)| address.clone()).collect();
        self.hops = 0;
        self.link_from(now, admitted, 0);
    }

    /// Links with the members from `next` on; reports when there are no more.
    fn link_from(&mut self, now: Instant, admitted: Admitted<A>, next: usize) {
        let others = admitted.members.iter().enumerate().skip(next);
        let next = others.into_iter().find(|(_, (node, _))| *node != admitted.leader).map(|(next, _)| next);
        self.enter(match next {
            Some(next) => State::Linking { admitted, next, at: now, since: now },
            None => State::Reporting { admitted },
        });
    }

    /// The link that was asked for stands.
    pub fn handle_linked(&mut self, now: Instant) {
        if let State::Linking { admitted, next, .. } = self.state.clone() {
            self.link_from(now, admitted, next + 1);
        }
    }

    /// The leader has taken the report.
    pub fn handle_reported(&mut self) {
        if let State::Reporting { admitted } = self.state.clone() {
            self.enter(State::Beginning { admitted, is_known: true });
        }
    }

    /// A call has failed, or a contact has refused this process for good ([`JoinAnswer::Refuse`]), which only the driver can put
    /// into words.
    pub fn handle_failure(&mut self, now: Instant, failure: CallFailure<E>)
    where
        E: ToString,
    {
        match self.state.clone() {
            State::Asking(contact) => self.on_contact_failed(now, contact, failure),
            // It may have become a member just now, and be about to take links.
            State::Linking { admitted, next, since, .. }
                if matches!(failure, CallFailure::Unheard(_)) && now < since + self.settings.link =>
            {
                reach(Point::LinkTriedAgain);
                let at = now + self.settings.pauses[0];
                self.enter(State::Linking { admitted, next, at, since });
            }
            // The leader may have taken the report, and the next view may count on this process \[J9\]: else a leader that dies
            // now would cost the group two members.
            State::Reporting { admitted } if !mutant!(AbandonReport) => {
                reach(Point::ReportUnanswered);
                self.enter(State::Beginning { admitted, is_known: false });
            }
            // A member cannot be reached, or the leader has gone. Which of them is dead the group knows when this process asks
            // again.
            State::Linking { .. } | State::Reporting { .. } => {
                reach(Point::LinkMissing);
                self.abandon(now, failure.into_cause());
            }
            _ => {}
        }
    }

    fn on_contact_failed(&mut self, now: Instant, contact: A, failure: CallFailure<E>)
    where
        E: ToString,
    {
        match failure {
            CallFailure::Unheard(cause) | CallFailure::Again(cause) => self.ask_next(now, cause),
            CallFailure::Unproved(error) => {
                let cause = error.to_string();
                self.unproved = Some(error);
                self.ask_next(now, cause);
            }
            CallFailure::Never(error) => {
                let cause = error.to_string();
                self.hopeless.insert(contact, error);
                match self.contacts.iter().all(|contact| self.hopeless.contains_key(contact)) {
                    true => self.enter(State::Ending(JoinFailure::Hopeless(cause))),
                    false => self.ask_next(now, cause),
                }
            }
        }
    }

    /// How this process stands with all links.
    pub fn handle_arrival(&mut self, now: Instant, arrival: JoinStanding) {
        let State::Arriving { orphan_until } = self.state else { return };
        let is_late = now >= self.deadline;
        match arrival {
            JoinStanding::Ready | JoinStanding::Failed => self.enter(State::Over),
            JoinStanding::Removed(stop) if self.removals == REMOVALS_MAX || mutant!(GiveUpRemoved) => {
                self.enter(State::Ending(JoinFailure::Removed(stop)));
            }
            JoinStanding::Removed(_) => {
                reach(Point::JoinedAgain);
                self.removals += 1;
                self.close_and_ask(now);
            }
            JoinStanding::Alone => self.close_and_ask(now),
            JoinStanding::Waiting { .. } if is_late => self.enter(State::Ending(JoinFailure::NoView)),
            JoinStanding::Opening if is_late => self.enter(State::Ending(JoinFailure::NotReady)),
            JoinStanding::Opening => self.state = State::Arriving { orphan_until: None },
            JoinStanding::Waiting { .. } if orphan_until.is_some_and(|until| now >= until) => {
                reach(Point::JoinerOrphaned);
                self.close_and_ask(now);
            }
            // The others may let it in yet, if the leader has told them.
            JoinStanding::Waiting { has_lost_leader: true } if !mutant!(WaitForDeadLeader) => {
                let until = orphan_until.unwrap_or(now + self.settings.orphan);
                self.state = State::Arriving { orphan_until: Some(until) };
            }
            JoinStanding::Waiting { .. } => {}
        }
    }

    /// Whether this process has become a member, or has given up.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Closes all that this attempt has \[J6\], and asks again after a pause.
    fn abandon(&mut self, now: Instant, cause: String) {
        match self.next_try(now, cause) {
            Some(at) => self.close_and_ask(at),
            None => self.time_is_over(),
        }
    }

    fn close_and_ask(&mut self, at: Instant) {
        // The contacts of the configuration first.
        (self.hops, self.asked) = (0, 0);
        self.enter(if mutant!(KeepAttempt) { State::Pausing(at) } else { State::Abandoning(at) });
    }

    /// Goes on with the next contact: at once, or, when all have been asked, after a pause.
    fn ask_next(&mut self, now: Instant, cause: String) {
        self.hops = 0;
        if self.is_round_over() {
            return self.pause(now, cause);
        }
        self.cause = cause;
        match now >= self.deadline {
            true => self.time_is_over(),
            false => self.enter(State::Pausing(now)),
        }
    }

    /// Asks the next contact after a pause, if there is time.
    fn pause(&mut self, now: Instant, cause: String) {
        match self.next_try(now, cause) {
            Some(at) => self.enter(State::Pausing(at)),
            None => self.time_is_over(),
        }
    }

    /// When to ask again after a failure, if there is time.
    fn next_try(&mut self, now: Instant, cause: String) -> Option<Instant> {
        (self.cause, self.hops) = (cause, 0);
        let at = now + self.pause.grow();
        self.patience.grow();
        (at < self.deadline || mutant!(AskForEver)).then_some(at)
    }

    fn time_is_over(&mut self) {
        reach(Point::JoinGivenUp);
        let cause = std::mem::take(&mut self.cause);
        self.enter(State::Ending(JoinFailure::NotAdmitted(cause)));
    }
}

/// Members that name another leader, one after the other.
pub const HOPS_MAX: u32 = 4;
/// How often a joiner asks once more after the others have gone on without it. Each time costs them two views; more often than
/// that, it is no pause that keeps it out.
pub const REMOVALS_MAX: u32 = 2;
/// How much longer than a handshake a contact may take to prove the secret in the last rounds: others may be served before.
const PATIENCE_FACTOR: u32 = 5;
const NO_LEADER: &str = "it does not know the leader";

#[cfg(test)]
mod tests;
