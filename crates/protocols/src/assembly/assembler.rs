//! The assembler of a process, which gathers, or asks contacts until one accepts it (Derecho §2.2). Its roles as a
//! coordinator and as a follower are in files of their own.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Backoff, Duration, Instant, NodeId, Reminders};

use super::action::{AssemblyAction, AssemblyFailure, AssemblyProgress, AssemblySettings, VisitorId};
use super::contacts::ContactList;
use super::coordinating::{Follower, RosterIntroduction};
use super::following::{FollowedCoordinator, RosterBinding};
use super::message::{AssemblyAnswer, AssemblyClaim};
use super::mutation;
use crate::admission::CallFailure;

/// A process that assembles with others. `A` is the type of addresses, and `E` the driver's type for errors that
/// another attempt does not remove.
///
/// **Law.** The driver takes an action ([`Assembler::poll_action`]), carries it out, and takes the next. While there
/// is none, it waits until [`Assembler::next_deadline`], and hands in events with the `handle_*` methods. One call
/// ([`AssemblyAction::Ask`], [`AssemblyAction::Link`]) is in progress at a time; its result is followed by
/// [`AssemblyAction::Keep`] or [`AssemblyAction::Discard`]. A call may take long; everything else continues
/// meanwhile.
///
/// Bounded: at most [`super::MEMBERS_MAX`] followers, and at most as many links as members.
#[derive(Debug)]
pub struct Assembler<A, E> {
    pub(super) settings: AssemblySettings,
    pub(super) contacts: ContactList<A>,
    listen: A,
    pub(super) deadline: Instant,
    pub(super) role: AssemblerRole<A>,
    pub(super) actions: VecDeque<AssemblyAction<A>>,
    /// The call in progress.
    pub(super) call: Option<AssemblerCall<A>>,
    /// The gathered processes, in the order of their arrival.
    pub(super) followers: BTreeMap<VisitorId, Follower<A>>,
    /// When to send the followers the next sign of life.
    pub(super) announce_at: Instant,
    /// Whether the missing quorum has been reported.
    pub(super) has_no_quorum: bool,
    /// Links that arrived before the roster.
    pub(super) early: BTreeMap<VisitorId, (u64, NodeId)>,
    /// The number of rosters that this process has made.
    pub(super) rosters: u64,
    /// The latest number of gathered processes.
    pub(super) joined: u32,
    /// The number of other contacts asked in this round.
    asked: usize,
    /// When to ask the next contact.
    ask_at: Instant,
    /// The contact to ask next, if it is not the next on the list.
    next_contact: Option<A>,
    /// The number of consecutive redirections.
    hops: u32,
    pause: Backoff<Duration>,
    /// How long a contact may take to connect and to prove the secret. Later rounds leave enough time for a slow network.
    patience: Backoff<Duration>,
    /// Permanent errors by contact, reported by processes that have proved the secret.
    hopeless: BTreeMap<A, E>,
    /// Errors by contact, of those where a process listens that has not proved the secret.
    unproved: BTreeMap<A, E>,
    /// The contacts that follow another one, which they name, by themselves.
    redirections: BTreeMap<A, A>,
    /// The latest failure of a call.
    cause: String,
    /// Why each contact has not accepted this process, or not joined it, the last time it was asked.
    obstacles: BTreeMap<A, String>,
    /// Which obstacles are reported.
    reminders: Reminders<(A, String)>,
}

/// The role of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AssemblerRole<A> {
    /// It asks contacts, and gathers if it is a contact.
    Open,
    /// It has sent the roster to the processes that it has gathered.
    Introducing(RosterIntroduction<A>),
    /// A contact has accepted it.
    Following(FollowedCoordinator<A>),
    /// It has the roster of a coordinator.
    Bound(RosterBinding<A>),
    /// It has begun, joins the group that runs, or has given up.
    Over,
}

/// A call in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AssemblerCall<A> {
    Ask(A),
    Link { session: u64, node: NodeId },
}

impl<A: Clone + Ord, E: ToString> Assembler<A, E> {
    /// Returns the assembler of a process whose address is `listen`.
    ///
    /// # Panics
    /// If the number of members is out of range.
    #[must_use]
    pub fn new(settings: AssemblySettings, contacts: ContactList<A>, listen: A, now: Instant) -> Self {
        assert!((1..=super::MEMBERS_MAX).contains(&settings.members), "{} members", settings.members);
        let mut assembler = Self {
            deadline: now + settings.timeout,
            pause: Backoff::new(settings.pauses[0], settings.pauses[1]),
            patience: Backoff::new(settings.patience_min, settings.handshake.max(settings.patience_min)),
            settings,
            contacts,
            listen,
            role: AssemblerRole::Open,
            actions: VecDeque::new(),
            call: None,
            followers: BTreeMap::new(),
            announce_at: now,
            has_no_quorum: false,
            early: BTreeMap::new(),
            rosters: 0,
            joined: 1,
            asked: 0,
            ask_at: now,
            next_contact: None,
            hops: 0,
            hopeless: BTreeMap::new(),
            unproved: BTreeMap::new(),
            redirections: BTreeMap::new(),
            cause: String::new(),
            obstacles: BTreeMap::new(),
            reminders: Reminders::default(),
        };
        assembler.introduce(now);
        assembler
    }

    /// Returns the claim of this process.
    #[must_use]
    pub fn claim(&self) -> AssemblyClaim<A> {
        let own = self.contacts.own().map(|own| u32::try_from(own).expect("the list of contacts is short"));
        AssemblyClaim {
            members: self.settings.members,
            agreement: self.settings.agreement,
            rank: self.settings.rank,
            listen: self.listen.clone(),
            contact: own.map(|own| (own, self.contacts.all().to_vec())),
        }
    }

    /// Takes the error that explains the failure, if the driver has handed one in.
    pub fn take_error(&mut self) -> Option<E> {
        self.hopeless.pop_first().or_else(|| self.unproved.pop_first()).map(|(_, error)| error)
    }

    /// Returns whether this process gathers others.
    pub(super) fn gathers(&self) -> bool {
        let is_one = match mutant!(FirstOnly) {
            true => self.contacts.own() == Some(0),
            false => self.contacts.own().is_some(),
        };
        is_one && self.role == AssemblerRole::Open
    }

    /// Returns the next action; `None` to wait until [`Assembler::next_deadline`], or for an event.
    pub fn poll_action(&mut self, now: Instant) -> Option<AssemblyAction<A>> {
        if self.actions.is_empty() {
            self.check_time(now);
        }
        if self.actions.is_empty() && self.call.is_none() {
            match &self.role {
                AssemblerRole::Open => self.ask(now),
                AssemblerRole::Bound(_) => self.link(now),
                AssemblerRole::Introducing(_) | AssemblerRole::Following(_) | AssemblerRole::Over => {}
            }
        }
        self.actions.pop_front()
    }

    /// Returns when to poll again if there is no event before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let can_call = self.call.is_none();
        let announce = (!self.followers.is_empty()).then_some(self.announce_at);
        let own = match &self.role {
            AssemblerRole::Over => return None,
            AssemblerRole::Open => (can_call && self.has_contacts()).then_some(self.ask_at),
            AssemblerRole::Introducing(introduction) => Some(introduction.until),
            AssemblerRole::Following(_) | AssemblerRole::Bound(_) => self.link_at(),
        };
        let end = (!mutant!(WaitForEver)).then_some(self.deadline);
        own.into_iter().chain(self.silent_at()).chain(announce).chain(end).min()
    }

    fn has_contacts(&self) -> bool {
        self.contacts.others().next().is_some()
    }

    fn check_time(&mut self, now: Instant) {
        if self.role == AssemblerRole::Over {
            return;
        }
        if now >= self.deadline && !mutant!(WaitForEver) {
            return self.end_late();
        }
        self.check_coordinating(now);
        self.check_following(now);
    }

    /// Ends because the time is over.
    fn end_late(&mut self) {
        let failure = match &self.role {
            AssemblerRole::Introducing(_) => return self.end_unready(),
            AssemblerRole::Bound(binding) => binding.late(),
            AssemblerRole::Following(following) => AssemblyFailure::Incomplete {
                joined: self.joined,
                missing: Vec::new(),
                coordinator: Some(following.at.clone()),
            },
            AssemblerRole::Open | AssemblerRole::Over => match self.gathers() {
                true if self.is_full() => {
                    AssemblyFailure::NoQuorum { present: self.contacts_here(), missing: self.missing() }
                }
                true => AssemblyFailure::Incomplete {
                    joined: self.count(),
                    missing: self.missing(),
                    coordinator: None,
                },
                false => AssemblyFailure::Unreachable(self.cause.clone()),
            },
        };
        self.give_up(failure);
    }

    /// Gives up without a notice: the others see the end of their connections.
    pub(super) fn give_up(&mut self, failure: AssemblyFailure<A>) {
        self.role = AssemblerRole::Over;
        self.actions.push_back(AssemblyAction::GiveUp(failure));
    }

    /// Asks the next contact.
    fn ask(&mut self, now: Instant) {
        if now < self.ask_at || !self.has_contacts() {
            return;
        }
        let next = self.next_contact.take();
        let contact = next.unwrap_or_else(|| {
            let place = self.asked;
            self.asked += 1;
            self.contacts.others().nth(place).expect("a round asks each contact once").clone()
        });
        self.call = Some(AssemblerCall::Ask(contact.clone()));
        let (patience, until) =
            (self.patience.spacing(), self.deadline.min(now + self.settings.handshake * PATIENCE));
        self.actions.push_back(AssemblyAction::Ask { contact, patience, until });
    }

    /// Handles the answer of a contact to the claim.
    pub fn handle_answer(&mut self, now: Instant, answer: AssemblyAnswer<A>) {
        let Some(AssemblerCall::Ask(contact)) = self.call.take() else { return };
        self.unproved.remove(&contact);
        self.hopeless.remove(&contact);
        self.redirections.remove(&contact);
        if self.role != AssemblerRole::Open {
            return self.actions.push_back(AssemblyAction::Discard);
        }
        match answer {
            AssemblyAnswer::Accepted => {
                self.actions.push_back(AssemblyAction::Keep);
                return self.follow(now, contact);
            }
            AssemblyAnswer::Running => {
                self.actions.push_back(AssemblyAction::Discard);
                return self.join(contact);
            }
            AssemblyAnswer::Redirect(other)
                if self.hops < HOPS_MAX && self.contacts.others().any(|one| *one == other) =>
            {
                self.hops += 1;
                self.redirections.insert(contact, other.clone());
                self.ask_soon(now, other);
            }
            AssemblyAnswer::Redirect(_) => {
                self.on_unaccepted(now, contact, "it follows another contact".into())
            }
            AssemblyAnswer::Later(reason) => self.on_unaccepted(now, contact, reason),
            AssemblyAnswer::Refused(_) => {
                unreachable!("the driver hands in a refusal with handle_failure")
            }
        }
        self.actions.push_back(AssemblyAction::Discard);
    }

    /// Handles the failure of a call, or a permanent refusal by a contact ([`AssemblyAnswer::Refused`]), for which
    /// only the driver can build the error.
    pub fn handle_failure(&mut self, now: Instant, failure: CallFailure<E>) {
        match self.call.take() {
            Some(AssemblerCall::Ask(contact)) if self.role == AssemblerRole::Open => {
                self.on_contact_failed(now, contact, failure)
            }
            Some(AssemblerCall::Link { session, node }) => self.on_link_failed(now, session, node, failure),
            Some(AssemblerCall::Ask(_)) | None => {}
        }
    }

    fn on_contact_failed(&mut self, now: Instant, contact: A, failure: CallFailure<E>) {
        self.unproved.remove(&contact);
        self.redirections.remove(&contact);
        let cause = match failure {
            CallFailure::Unheard(cause) | CallFailure::Again(cause) => cause,
            CallFailure::Unproved(error) => {
                let cause = error.to_string();
                self.unproved.insert(contact.clone(), error);
                cause
            }
            CallFailure::Never(error) => {
                let cause = error.to_string();
                self.hopeless.insert(contact.clone(), error);
                cause
            }
        };
        if self.is_refused() {
            return self.give_up(AssemblyFailure::Hopeless(cause));
        }
        self.report_obstacle(now, contact, cause);
        self.ask_next(now);
    }

    /// Returns whether all other contacts refuse this process. What a process says that has not proved the secret counts only if this
    /// process has gathered none, and if those that refuse it could begin without it: then it is the one that is wrong, and a stranger
    /// at one address does not end the first contact of two.
    fn is_refused(&self) -> bool {
        let refuses = |contact: &A| self.hopeless.contains_key(contact);
        // A contact that follows another one leaves the decision to that.
        let is_final = |contact: &A| refuses(contact) || self.redirections.get(contact).is_some_and(refuses);
        if self.contacts.others().all(is_final) {
            return true;
        }
        let places: Vec<usize> =
            (0..self.contacts.all().len()).filter(|place| Some(*place) != self.contacts.own()).collect();
        self.followers.is_empty()
            && self.contacts.is_quorum(&places, self.settings.members)
            && self.contacts.others().all(|contact| is_final(contact) || self.unproved.contains_key(contact))
    }

    /// Handles that a contact answers, and has not accepted this process.
    fn on_unaccepted(&mut self, now: Instant, contact: A, reason: String) {
        // A process that gathers waits for contacts after it on the list to ask it, and they do so at once.
        let place = self.contacts.all().iter().position(|one| *one == contact);
        match self.gathers() && place > self.contacts.own() {
            true => drop(self.obstacles.insert(contact, NOT_JOINED.into())),
            false => self.report_obstacle(now, contact, reason),
        }
        self.ask_next(now);
    }

    /// Continues with the next contact: at once, or after a pause once all have been asked.
    fn ask_next(&mut self, now: Instant) {
        self.hops = 0;
        self.ask_at = now;
        if self.asked >= self.contacts.others().count() {
            self.asked = 0;
            self.ask_at = now + self.pause.grow();
            self.patience.grow();
        }
    }

    /// Reports an obstacle at once, and then seldom.
    pub(super) fn report_obstacle(&mut self, now: Instant, contact: A, cause: String) {
        self.cause.clone_from(&cause);
        self.obstacles.insert(contact.clone(), cause.clone());
        let since_origin = now.since(Instant::default());
        if self.reminders.note((contact.clone(), cause.clone()), since_origin).is_some() {
            self.actions.push_back(AssemblyAction::Progress(AssemblyProgress::Calling { contact, cause }));
        }
    }

    /// Returns the contacts that are not here, each with what has come of the last call to it.
    fn missing(&self) -> Vec<(A, String)> {
        let is_here = |place: usize| self.places().contains(&place);
        let missing = self.contacts.all().iter().enumerate().filter(|(place, _)| !is_here(*place));
        let cause = |contact| self.obstacles.get(contact).map_or(NOT_ASKED, String::as_str).to_owned();
        missing.map(|(_, contact)| (contact.clone(), cause(contact))).collect()
    }

    /// Asks this contact before any other.
    pub(super) fn ask_soon(&mut self, now: Instant, contact: A) {
        (self.next_contact, self.ask_at) = (Some(contact), now);
    }

    /// Stops following a coordinator, and asks the contacts again.
    pub(super) fn open(&mut self, now: Instant) {
        self.role = AssemblerRole::Open;
        self.early.clear();
        (self.asked, self.hops, self.ask_at) = (0, 0, now + self.settings.pauses[0]);
        self.pause.reset();
    }

    /// Joins the running group that this contact reported.
    pub(super) fn join(&mut self, contact: A) {
        let release = super::message::ReleaseReason::Running(contact.clone());
        self.release_all(&release);
        self.role = AssemblerRole::Over;
        self.actions.push_back(AssemblyAction::Join(contact));
    }
}

/// The maximum number of consecutive redirections.
const HOPS_MAX: u32 = 4;
/// The time limit of a call to a contact, in handshakes: the contact may serve other processes first.
const PATIENCE: u32 = 5;
const NOT_JOINED: &str = "it runs, and has not joined this process: see its log";
const NOT_ASKED: &str = "it has not been asked yet";
