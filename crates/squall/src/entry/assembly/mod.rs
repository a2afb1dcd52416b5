//! Drives a process that meets the other first members ([`squall_protocols::assembly::Assembler`]), over the
//! connections of a [`MeetingPoint`] (Derecho §2.2).

mod frames;
#[cfg(test)]
mod tests;

use std::time::Duration;

use squall_fabric::{Instant, NodeId};
use squall_protocols::assembly::{
    AssembledGroup, Assembler, AssemblyAction, AssemblyFailure, AssemblyProgress, AssemblySettings,
    ContactList, LinkConnection,
};
use squall_transports::bootstrap::{
    Address, BootstrapError, BootstrapListener, BootstrapMember, BootstrapPlan, BootstrapProgress,
    ClaimAnswer, LinkSocket, LinkSource, MeetingEvent, MeetingPoint, SettingDifference,
};
use squall_transports::log;

use crate::entry::failure::failure_of;

/// A group that has been assembled.
#[derive(Debug)]
pub struct ConnectedGroup<S> {
    /// This process's number as a node, which is its rank.
    pub node: NodeId,
    /// The number that identifies this start of the group; no two starts have the same.
    pub session: u64,
    /// All members in the order of their ranks, this process included.
    pub members: Vec<BootstrapMember>,
    /// A blocking stream to each other member, in the order of their ranks. TCP streams have `TCP_NODELAY` set.
    pub streams: Vec<(NodeId, S)>,
}

/// What a process that starts has found.
#[derive(Debug)]
pub(crate) enum MeetOutcome<S> {
    /// It is one of the first members.
    Assembled(ConnectedGroup<S>),
    /// The group is already running, as this contact reports.
    Running(Address),
}

/// Meets the other first members of a group that no process joins later.
///
/// # Errors
/// [`BootstrapError`], with what to do next. All connections are closed then; `listener` stays bound.
pub fn assemble<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
    on_progress: &mut dyn FnMut(BootstrapProgress),
) -> Result<ConnectedGroup<S::Secured>, BootstrapError> {
    match meet(plan, listener, on_progress)? {
        MeetOutcome::Assembled(assembly) => Ok(assembly),
        MeetOutcome::Running(contact) => Err(BootstrapError::Running { contact }),
    }
}

/// Meets the other first members, unless a contact reports that their group is already running.
///
/// # Errors
/// The errors of [`assemble`].
pub(crate) fn meet<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
    on_progress: &mut dyn FnMut(BootstrapProgress),
) -> Result<MeetOutcome<S::Secured>, BootstrapError> {
    let answers = QuestionAnswers { answer: &mut |_| None, later: None };
    meet_answering(plan, listener, answers, on_progress)
}

fn meet_answering<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
    answers: QuestionAnswers<'_>,
    on_progress: &mut dyn FnMut(BootstrapProgress),
) -> Result<MeetOutcome<S::Secured>, BootstrapError> {
    MeetingPoint::with(plan, listener, |point| {
        let own = listener.announced().clone();
        on_progress(BootstrapProgress::Listening { address: listener.address().clone() });
        let contacts = contacts(plan, listener);
        if contacts.own().is_some() {
            on_progress(BootstrapProgress::Joined { joined: 1, members: plan.members });
        }
        let mut settings = AssemblySettings::new(plan.members, plan.timeout, plan.handshake_timeout);
        (settings.agreement, settings.rank) = (plan.agreement.digest(), plan.rank);
        settings.nonce = point.nonce();
        let assembler = Assembler::new(settings, contacts.clone(), own, Instant::default());
        let begun = std::time::Instant::now();
        let (lost, difference) = (String::new(), None);
        AssemblyDriver { point, plan, answers, contacts, assembler, begun, lost, difference, on_progress }
            .run()
    })?
}

/// Returns the plan's contacts, each once; if there are none, the process is its own contact.
fn contacts<S: LinkSocket>(plan: &BootstrapPlan, listener: &BootstrapListener<S>) -> ContactList<Address> {
    let mut all: Vec<Address> = Vec::new();
    for contact in &plan.contacts {
        if !all.contains(contact) {
            all.push(contact.clone());
        }
    }
    if all.is_empty() {
        all.push(listener.address().clone());
    }
    let own = all.iter().position(|contact| listener.is_at(contact));
    ContactList::new(all, own)
}

/// What processes that ask questions get to hear, and those that are none of the members.
pub(crate) struct QuestionAnswers<'a> {
    /// Returns the answer to a question; `None` if there is none.
    pub(crate) answer: &'a mut dyn FnMut(&[u8]) -> Option<Vec<u8>>,
    /// Why a process with the same settings, to which another view begins or none, is to ask again; `None` if it is to be refused.
    pub(crate) later: Option<&'static str>,
}

/// Connects the members of a view that begins, which all know the roster: `view` is the number of their group, that of the view, and how
/// long they may take; `own` is this process's number, and the roster in the order of the view.
///
/// # Errors
/// The errors of [`assemble`]. All connections are closed then; `listener` stays bound.
pub(crate) fn link_members<S: LinkSocket>(
    plan: &BootstrapPlan,
    view: (u64, u64, Duration),
    (own, roster): (NodeId, Vec<BootstrapMember>),
    listener: &BootstrapListener<S>,
    answers: QuestionAnswers<'_>,
    on_progress: &mut dyn FnMut(BootstrapProgress),
) -> Result<ConnectedGroup<S::Secured>, BootstrapError> {
    let (group, number, timeout) = view;
    let place = roster.iter().position(|member| member.node == own);
    let place = u32::try_from(place.expect("it is a member")).expect("few members");
    let plan = BootstrapPlan {
        contacts: roster.iter().map(|member| member.address.clone()).collect(),
        members: u32::try_from(roster.len()).expect("few members"),
        rank: Some(place),
        timeout,
        agreement: plan.agreement.for_start(group, number),
        ..plan.clone()
    };
    // Of the assembly only the members' places are known.
    match meet_answering(&plan, listener, answers, &mut |progress| {
        if !matches!(progress, BootstrapProgress::Listening { .. }) {
            on_progress(progress);
        }
    })? {
        MeetOutcome::Assembled(ConnectedGroup { streams, .. }) => {
            let node = |place: NodeId| roster[place.0 as usize].node;
            let streams = streams.into_iter().map(|(place, stream)| (node(place), stream)).collect();
            Ok(ConnectedGroup { node: own, session: group, members: roster, streams })
        }
        MeetOutcome::Running(contact) => Err(BootstrapError::Running { contact }),
    }
}

struct AssemblyDriver<'m, 'p, 'q, S: LinkSocket> {
    point: &'m mut MeetingPoint<'p, S>,
    plan: &'m BootstrapPlan,
    answers: QuestionAnswers<'q>,
    contacts: ContactList<Address>,
    assembler: Assembler<Address, BootstrapError>,
    /// When the assembler's clock began.
    begun: std::time::Instant,
    /// The process that was lost last, as text.
    lost: String,
    /// In what the process that has sent the last claim differs.
    difference: Option<SettingDifference>,
    on_progress: &'m mut dyn FnMut(BootstrapProgress),
}

impl<S: LinkSocket> AssemblyDriver<'_, '_, '_, S> {
    fn run(&mut self) -> Result<MeetOutcome<S::Secured>, BootstrapError> {
        loop {
            if let Some(met) = self.act()? {
                return Ok(met);
            }
            let until =
                self.assembler.next_deadline().expect("an assembler that has not ended has a deadline");
            for event in self.point.poll(self.real(until), self.on_progress)? {
                self.on_event(event);
                if let Some(met) = self.act()? {
                    return Ok(met);
                }
            }
        }
    }

    /// Hands an event to the assembler.
    fn on_event(&mut self, event: MeetingEvent) {
        let now = self.now();
        let assembler = &mut self.assembler;
        match event {
            MeetingEvent::Asked { visitor, question } => {
                self.point.answer_question(visitor, (self.answers.answer)(&question));
            }
            MeetingEvent::Claimed { visitor, claim }
                if let Some(reason) = self.answers.later
                    && claim.agreement != self.plan.agreement
                    && claim.agreement.has_settings_of(&self.plan.agreement) =>
            {
                self.point.answer(visitor, ClaimAnswer::Later(reason.into()), self.on_progress);
            }
            MeetingEvent::Claimed { visitor, claim } => {
                self.difference = self.plan.agreement.difference(&claim.agreement);
                assembler.handle_claim(now, frames::visitor(visitor), frames::read_claim(claim));
            }
            MeetingEvent::LinkAsked { visitor, session, node } => {
                assembler.handle_link(frames::visitor(visitor), session, node);
            }
            MeetingEvent::Reported { visitor, session } => {
                assembler.handle_report(frames::visitor(visitor), session);
            }
            MeetingEvent::Lost { visitor, peer } => {
                self.lost = peer;
                assembler.handle_lost(now, frames::visitor(visitor));
            }
            MeetingEvent::Noticed(notice) => assembler.handle_notice(now, frames::read_notice(notice)),
            MeetingEvent::Nonsense(what) => assembler.handle_nonsense(what),
            MeetingEvent::CoordinatorLost => assembler.handle_coordinator_lost(now),
            MeetingEvent::Answered(answer) => assembler.handle_answer(now, frames::read_answer(answer)),
            MeetingEvent::Linked => assembler.handle_linked(now),
            MeetingEvent::Failed(error) => assembler.handle_failure(now, failure_of(error)),
        }
    }

    /// Carries out the assembler's actions; returns what the process has found, if this is the end.
    fn act(&mut self) -> Result<Option<MeetOutcome<S::Secured>>, BootstrapError> {
        while let Some(action) = self.assembler.poll_action(self.now()) {
            match action {
                AssemblyAction::Begin(assembled) => return self.begin(assembled).map(Some),
                AssemblyAction::Join(contact) => return Ok(Some(MeetOutcome::Running(contact))),
                AssemblyAction::GiveUp(failure) => return Err(self.explain(failure)),
                AssemblyAction::Progress(progress) => self.report(progress),
                action => self.perform(action),
            }
        }
        Ok(None)
    }

    fn perform(&mut self, action: AssemblyAction<Address>) {
        match action {
            AssemblyAction::Ask { contact, patience, until } => {
                let claim = frames::claim(self.assembler.claim(), self.plan.agreement.clone());
                self.point.ask(&contact, claim, patience, self.real(until));
            }
            AssemblyAction::Link { session, own, node, address, until } => {
                self.point.link(session, own, node, &address, self.real(until));
            }
            AssemblyAction::Keep => self.point.keep(),
            AssemblyAction::Discard => self.point.discard(),
            AssemblyAction::Answer(visitor, answer) => {
                let answer = frames::answer(answer, self.difference.take());
                self.point.answer(visitor.0, answer, self.on_progress);
            }
            AssemblyAction::TakeLink(visitor) => self.point.take_link(visitor.0),
            AssemblyAction::Notify(visitor, notice) => {
                self.point.notify(visitor.0, &frames::notice(notice));
            }
            AssemblyAction::Close(visitor) => self.point.close(visitor.0),
            AssemblyAction::Report { session } => self.point.report(session),
            AssemblyAction::CloseLinks => self.point.close_links(),
            AssemblyAction::Leave => self.point.leave(),
            AssemblyAction::Progress(_)
            | AssemblyAction::Begin(_)
            | AssemblyAction::Join(_)
            | AssemblyAction::GiveUp(_) => unreachable!("`act` has carried these out"),
        }
    }

    fn begin(
        &mut self,
        assembled: AssembledGroup<Address>,
    ) -> Result<MeetOutcome<S::Secured>, BootstrapError> {
        let AssembledGroup { roster, node, links } = assembled;
        let source = |end| match end {
            LinkConnection::Visitor(visitor) => LinkSource::Visitor(visitor.0),
            LinkConnection::Called => LinkSource::Called,
            LinkConnection::Coordinator => LinkSource::Coordinator,
        };
        let streams = self.point.finish(links.into_iter().map(|(node, end)| (node, source(end))))?;
        let members =
            roster.nodes().map(|node| BootstrapMember { node, address: roster.address(node).clone() });
        Ok(MeetOutcome::Assembled(ConnectedGroup {
            node,
            session: roster.session,
            members: members.collect(),
            streams,
        }))
    }

    fn report(&mut self, progress: AssemblyProgress<Address>) {
        let (members, needed, first) = (self.plan.members, self.needed(), self.needed_first());
        (self.on_progress)(match progress {
            AssemblyProgress::Joined { joined } => BootstrapProgress::Joined { joined, members },
            AssemblyProgress::Left(_) => BootstrapProgress::Left { peer: std::mem::take(&mut self.lost) },
            AssemblyProgress::NoQuorum { present } => BootstrapProgress::NoQuorum { present, needed, first },
            AssemblyProgress::Calling { contact, cause } => BootstrapProgress::Calling { contact, cause },
            AssemblyProgress::MemberLost { address } => BootstrapProgress::Left { peer: address.to_string() },
            AssemblyProgress::Following { contact } => {
                return log::debug!(%contact, "following another contact");
            }
        });
    }

    fn explain(&mut self, failure: AssemblyFailure<Address>) -> BootstrapError {
        let (members, waited) = (self.plan.members, self.plan.timeout);
        match failure {
            AssemblyFailure::Hopeless(cause) | AssemblyFailure::Unreachable(cause) => {
                let contacts = self.contacts.all().to_vec();
                let unknown = || BootstrapError::Unreachable { contacts, waited, cause };
                self.assembler.take_error().unwrap_or_else(unknown)
            }
            // If only one other contact is there, and has refused this process, its error says all.
            AssemblyFailure::Incomplete { joined, missing, coordinator } => {
                let error = self.assembler.take_error().filter(|_| joined == 1 && missing.len() == 1);
                error.unwrap_or(BootstrapError::Incomplete { joined, members, missing, coordinator })
            }
            AssemblyFailure::NoQuorum { present, missing } => {
                let (needed, first) = (self.needed(), self.needed_first());
                BootstrapError::NoQuorum { present, needed, first, missing }
            }
            AssemblyFailure::Unready(unready) => BootstrapError::Unready { unready },
            AssemblyFailure::Unlinked(node, address) => {
                BootstrapError::Unlinked { missing: vec![(node, address)] }
            }
            AssemblyFailure::CoordinatorLost(contact) => BootstrapError::CoordinatorLost { contact },
            AssemblyFailure::Nonsense(contact, what) => {
                BootstrapError::Protocol { contact, what: what.into() }
            }
        }
    }

    /// Returns how many contacts have to be among the members: a majority, but at most as many as there are members.
    fn needed(&self) -> u32 {
        let majority = self.contacts.all().len() / 2 + 1;
        u32::try_from(majority).unwrap_or(u32::MAX).min(self.plan.members)
    }

    /// Returns the first contact, if so few members are planned that they are no majority of the contacts without it.
    fn needed_first(&self) -> Option<Address> {
        let is_few = (self.plan.members as usize) < self.contacts.quorum();
        self.contacts.all().first().filter(|_| is_few).cloned()
    }

    /// Returns the current time by the assembler's clock.
    fn now(&self) -> Instant {
        Instant::default() + self.begun.elapsed()
    }

    /// Converts a time of the assembler's clock to the system's.
    fn real(&self, at: Instant) -> std::time::Instant {
        self.begun + at.since(Instant::default())
    }
}
