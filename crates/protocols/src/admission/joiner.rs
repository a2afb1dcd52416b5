//! The joiner: asks until a leader admits it, links with all members, and waits for its first view (Derecho §3.3).

use std::collections::BTreeMap;

use squall_fabric::{Backoff, Duration, Instant};

use super::call::{CallFailure, JoinFailure, JoinStanding, JoinerAction, JoinerSettings};
use super::message::{Admitted, JoinAnswer};
use super::mutation;
use crate::coverage::{Point, reach};

/// A process that joins a group. `A` is the type of addresses, and `E` the driver's type for errors that another
/// attempt does not remove.
///
/// **Law.** The driver takes an action ([`Joiner::poll_action`]), carries it out, and hands in the result with the
/// `handle_*` method that the action names; then it takes the next action. While there is none, it waits until
/// [`Joiner::next_deadline`]. Calls ([`JoinerAction::Ask`], [`JoinerAction::Link`], [`JoinerAction::Report`]) end at
/// their `until` at the latest, and the driver aborts them when the connection with the leader that admitted this
/// process ends.
///
/// Bounded: one call at a time, at most [`HOPS_MAX`] redirections in a row, [`JoinerSettings::pauses`] between rounds
/// of the contacts, [`REMOVALS_MAX`] further attempts after the others have continued without this process, and
/// [`JoinerSettings::timeout`] for the whole join.
#[derive(Debug)]
pub struct Joiner<A, E> {
    settings: JoinerSettings,
    contacts: Vec<A>,
    /// The addresses of the members of the latest admission. They are asked as well, because the contacts may be
    /// gone.
    members: Vec<A>,
    deadline: Instant,
    state: State<A>,
    /// Whether the action of the present state has been taken.
    is_under_way: bool,
    /// The number of contacts asked so far, without redirections.
    asked: usize,
    hops: u32,
    /// The leader that was named last.
    leader: Option<A>,
    pause: Backoff<Duration>,
    /// How long a contact may take to connect and to prove the secret; a slow network has its time later.
    patience: Backoff<Duration>,
    removals: u32,
    /// Permanent errors by contact, reported by processes that have proved the secret.
    hopeless: BTreeMap<A, E>,
    /// Errors by contact, of those where a process listens that has not proved the secret.
    unproved: BTreeMap<A, E>,
    /// The latest failure.
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State<A> {
    /// Asks the next contact at this time.
    Pausing(Instant),
    Asking(A),
    /// Links with the members from `next` on, except the leader. The next try is not before `at`; the first try with
    /// this member was at `since`.
    Linking {
        admitted: Admitted<A>,
        next: usize,
        at: Instant,
        since: Instant,
    },
    Reporting {
        admitted: Admitted<A>,
    },
    /// All links are established, and the report is on its way to the leader.
    Beginning {
        admitted: Admitted<A>,
    },
    /// Waits for its first view.
    Arriving {
        orphan_until: Option<Instant>,
    },
    /// Closes all connections and links, and asks again at this time.
    Abandoning(Instant),
    Ending(JoinFailure),
    Over,
}

impl<A: Clone + Ord, E> Joiner<A, E> {
    /// Returns a joiner that asks `contacts`.
    ///
    /// # Panics
    /// If `contacts` is empty.
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
            unproved: BTreeMap::new(),
            cause,
        }
    }

    /// Takes the error that explains the failure, if the driver has handed one in.
    pub fn take_error(&mut self) -> Option<E> {
        self.hopeless.pop_first().or_else(|| self.unproved.pop_first()).map(|(_, error)| error)
    }

    /// Returns the next action; `None` to wait until [`Joiner::next_deadline`], or for the result of the last action.
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
            State::Beginning { admitted } => {
                let orphan_until = now + self.settings.answer + self.settings.orphan;
                let is_bounded = !mutant!(WaitForDeadLeader);
                self.state = State::Arriving { orphan_until: is_bounded.then_some(orphan_until) };
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

    /// Returns when to poll again if there is no input before.
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

    /// Returns the next contact in turn: the contacts of the configuration, followed by the known members.
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

    /// Returns whether the next contact begins another round.
    fn is_round_over(&self) -> bool {
        let known = self.members.iter().filter(|member| !self.contacts.contains(member)).count();
        self.asked.is_multiple_of(self.contacts.len() + known)
    }

    fn enter(&mut self, state: State<A>) {
        (self.state, self.is_under_way) = (state, false);
    }

    /// Handles the answer of a contact.
    pub fn handle_answer(&mut self, now: Instant, answer: JoinAnswer<A>) {
        let State::Asking(contact) = self.state.clone() else { return };
        self.unproved.remove(&contact);
        self.hopeless.remove(&contact);
        match answer {
            JoinAnswer::Admit(admitted) => self.on_admitted(now, admitted),
            JoinAnswer::Redirect(leader) if leader == contact => self.pause(now, NO_LEADER.into()),
            JoinAnswer::Redirect(leader) if self.hops < HOPS_MAX => {
                self.hops += 1;
                self.leader = Some(leader.clone());
                self.enter(State::Asking(leader));
            }
            // While the leadership changes, members may redirect to each other in a cycle.
            JoinAnswer::Redirect(_) => self.pause(now, NO_LEADER.into()),
            JoinAnswer::Wait(reason) | JoinAnswer::Refuse(reason) => self.pause(now, reason),
        }
    }

    fn on_admitted(&mut self, now: Instant, admitted: Admitted<A>) {
        self.members = admitted.members.iter().map(|(_, address)| address.clone()).collect();
        self.hops = 0;
        self.link_from(now, admitted, 0);
    }

    /// Links with the members from `next` on, and reports once all links are established.
    fn link_from(&mut self, now: Instant, admitted: Admitted<A>, next: usize) {
        let others = admitted.members.iter().enumerate().skip(next);
        let next = others.into_iter().find(|(_, (node, _))| *node != admitted.leader).map(|(next, _)| next);
        self.enter(match next {
            Some(next) => State::Linking { admitted, next, at: now, since: now },
            None => State::Reporting { admitted },
        });
    }

    /// Handles that the requested link is established.
    pub fn handle_linked(&mut self, now: Instant) {
        if let State::Linking { admitted, next, .. } = self.state.clone() {
            self.link_from(now, admitted, next + 1);
        }
    }

    /// Handles that the report is on its way. This process does not wait for an answer: the next view may count on it \[J9\] before one
    /// could come from a leader that is silent, and members wait for a sign of life from it as from all others.
    pub fn handle_reported(&mut self) {
        if let State::Reporting { admitted } = self.state.clone() {
            self.enter(State::Beginning { admitted });
        }
    }

    /// Handles the failure of a call, or a permanent refusal by a contact ([`JoinAnswer::Refuse`]), for which only
    /// the driver can build the error.
    pub fn handle_failure(&mut self, now: Instant, failure: CallFailure<E>)
    where
        E: ToString,
    {
        match self.state.clone() {
            State::Asking(contact) => self.on_contact_failed(now, contact, failure),
            // The peer may have become a member only just now, and be about to accept links.
            State::Linking { admitted, next, since, .. }
                if matches!(failure, CallFailure::Unheard(_)) && now < since + self.settings.link =>
            {
                reach(Point::LinkTriedAgain);
                let at = now + self.settings.pauses[0];
                self.enter(State::Linking { admitted, next, at, since });
            }
            // A member is unreachable, or the leader is gone. By the time this process asks again, the group knows
            // which of them is dead.
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
        self.unproved.remove(&contact);
        let cause = match failure {
            CallFailure::Unheard(cause) | CallFailure::Again(cause) => cause,
            CallFailure::Unproved(error) => {
                let cause = error.to_string();
                self.unproved.insert(contact, error);
                cause
            }
            CallFailure::Never(error) => {
                let cause = error.to_string();
                self.hopeless.insert(contact, error);
                cause
            }
        };
        // No contact is left by which this process could be admitted.
        let refuses = |contact| self.hopeless.contains_key(contact) || self.unproved.contains_key(contact);
        match self.contacts.iter().all(refuses) {
            true => self.enter(State::Ending(JoinFailure::Hopeless(cause))),
            false => self.ask_next(now, cause),
        }
    }

    /// Handles the standing of this process, which has all its links.
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
            // The leader may have taken the report, and the next view may count on this process \[J9\]: if it left, a leader that
            // dies now would cost the group two members.
            JoinStanding::Waiting { has_lost_leader: true } if mutant!(AbandonReport) => {
                self.close_and_ask(now)
            }
            JoinStanding::Waiting { has_lost_leader: true } if !mutant!(WaitForDeadLeader) => {
                let soon = now + self.settings.orphan;
                let until = orphan_until.map_or(soon, |until| until.min(soon));
                self.state = State::Arriving { orphan_until: Some(until) };
            }
            JoinStanding::Waiting { .. } => {}
        }
    }

    /// Returns whether this process has become a member, or has given up.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Closes all connections and links of this attempt \[J6\], and asks again after a pause.
    fn abandon(&mut self, now: Instant, cause: String) {
        match self.next_try(now, cause) {
            Some(at) => self.close_and_ask(at),
            None => self.time_is_over(),
        }
    }

    fn close_and_ask(&mut self, at: Instant) {
        // The next round starts with the contacts of the configuration.
        (self.hops, self.asked) = (0, 0);
        self.enter(if mutant!(KeepAttempt) { State::Pausing(at) } else { State::Abandoning(at) });
    }

    /// Asks the next contact: at once, or after a pause once all have been asked.
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

    /// Returns when to ask again after a failure, if there is time.
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

/// The maximum number of consecutive redirections.
pub const HOPS_MAX: u32 = 4;
/// How often a joiner asks again after the others have continued without it. Each attempt costs them two views, and
/// after this many removals the cause is not a temporary pause of this process.
pub const REMOVALS_MAX: u32 = 2;
/// By which factor a contact may exceed the handshake's time limit in the last rounds: it may serve other processes
/// first.
const PATIENCE_FACTOR: u32 = 5;
const NO_LEADER: &str = "it does not know the leader";

#[cfg(test)]
mod tests;
