//! The newcomer: asks the members of a group that runs until its leader admits it, links with all, reports.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::desk::ANSWER_TIMEOUT;
use super::error::system;
use super::link::Link;
use super::member::{CallError, Caller};
use super::message::{Admittance, Answer, Refusal, Report, Request};
use super::porter::Porter;
use super::request::{NAME_BYTES_MAX, read_address, read_members};
use super::scout::Scout;
use super::wire::{Until, Wire};
use super::{Address, Assembly, BootstrapError, Listener, Member, Plan, Progress, assemble_unless};

/// What a newcomer has when all its links stand. It is a member as soon as the leader's group says so.
#[derive(Debug)]
pub struct Joined<S> {
    /// Our number.
    pub node: NodeId,
    /// The group's, as in [`super::Assembly`]; for [`super::Desk::open`].
    pub session: u64,
    /// The member that has admitted us.
    pub leader: NodeId,
    /// All members, without us, in the order of their numbers.
    pub members: Vec<Member>,
    /// A blocking stream to each of them, in the same order. TCP streams have no delay set.
    pub streams: Vec<(NodeId, S)>,
    /// What the leader's code has for ours.
    pub token: Vec<u8>,
}

/// Joins a group that runs: asks the plan's contacts in turn, again and again, until the leader admits this process
/// and links with all members stand, or the plan's time is over. `listener` is where this process will be reached; `name`
/// is for people to see. The plan's `members` does not matter.
///
/// # Errors
/// [`BootstrapError`], each with what to do next. All connections are closed then; `listener` stays bound.
pub fn join<S: Link>(
    plan: &Plan,
    name: &str,
    listener: &Listener<S>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Joined<S::Secured>, BootstrapError> {
    join_by(None, plan, name, listener, on_progress)
}

/// Joins, and asks `first` before the other contacts.
fn join_by<S: Link>(
    first: Option<&Address>,
    plan: &Plan,
    name: &str,
    listener: &Listener<S>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Joined<S::Secured>, BootstrapError> {
    let others = plan.contacts.iter().filter(|contact| !listener.is_at(contact));
    let mut contacts: Vec<Address> = others.filter(|contact| S::takes(contact)).cloned().collect();
    contacts.sort_by_key(|contact| Some(contact) != first);
    if contacts.is_empty() {
        let own = listener.address();
        let text =
            format!("none of the `contacts` is another process's of the same kind as {own}: name a member");
        return Err(BootstrapError::Plan(text));
    }
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let text = format!("the name {name:?} cannot be used: choose one of at most {NAME_BYTES_MAX} bytes");
        return Err(BootstrapError::Plan(text));
    }
    on_progress(Progress::Listening { address: listener.address().clone() });
    let deadline = Instant::now() + plan.timeout;
    let proof = plan.proof();
    let caller = Caller { plan, proof: &proof, deadline, patience: PATIENCE_MIN };
    let (agreement, listen, name) = (plan.agreement, vec![listener.address().to_string()], name.into());
    let request = Request::Enter { agreement, listen, name, rank: plan.rank };
    let own = listener.address().to_string();
    let (hopeless, judged, cause) = (BTreeMap::new(), None, String::new());
    let entering = Entering { caller, request, own, contacts, hopeless, judged, cause, on_progress };
    let porter = Porter::new(plan, listener, &proof)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| porter.serve());
        let outcome = entering.enter::<S>();
        porter.dismiss();
        // A panic of the porter has been printed by its thread.
        let _ = serving.join();
        outcome
    })
}

/// How a process has come into a group.
#[derive(Debug)]
pub enum Entered<S> {
    /// With the first members.
    Assembled(Assembly<S>),
    /// Later; it is a member as soon as the leader's group says so.
    Joined(Joined<S>),
}

/// Meets the other members, or joins their group if it runs already: any of the contacts may say so, also where this
/// process would coordinate.
///
/// # Errors
/// [`BootstrapError`], each with what to do next. All connections are closed then; `listener` stays bound.
pub fn enter<S: Link>(
    plan: &Plan,
    name: &str,
    listener: &Listener<S>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Entered<S::Secured>, BootstrapError> {
    let others = plan.contacts.iter().filter(|contact| !listener.is_at(contact) && S::takes(contact));
    let scout = Scout::send::<S>(plan, others.cloned().collect())?;
    match assemble_unless(&scout, plan, listener, on_progress) {
        Ok(assembly) => Ok(Entered::Assembled(assembly)),
        Err(
            BootstrapError::Running { contact: first }
            | BootstrapError::Refused { refusal: Refusal::Complete, address: first },
        ) => join_by(Some(&first), plan, name, listener, on_progress).map(Entered::Joined),
        Err(error) => Err(error),
    }
}

struct Entering<'p, 'c> {
    caller: Caller<'p>,
    request: Request,
    /// Where we listen.
    own: String,
    contacts: Vec<Address>,
    /// What can never work, by contact: processes that have proved the secret say so.
    hopeless: BTreeMap<Address, BootstrapError>,
    /// What some process without a proof said last.
    judged: Option<BootstrapError>,
    /// The last failure.
    cause: String,
    on_progress: &'c mut dyn FnMut(Progress),
}

/// What to do after an attempt that has not led in.
enum Next {
    /// Ask this one at once.
    Ask(Address),
    /// Go on with the next contact at once, or after a pause.
    Turn,
    Pause,
}

impl Entering<'_, '_> {
    fn enter<S: Link>(mut self) -> Result<Joined<S::Secured>, BootstrapError> {
        let (mut turn, mut pause, mut hops, mut named) = (0, PAUSE_MIN, 0, None);
        loop {
            let contact: Address = match named.take() {
                Some(leader) => leader,
                None => {
                    turn += 1;
                    self.contacts[(turn - 1) % self.contacts.len()].clone()
                }
            };
            let next = match self.attempt::<S>(&contact) {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(next)) => next,
                Err(error) => {
                    self.cause = error.to_string();
                    self.hopeless.insert(contact, error);
                    if let Some(error) = self.give_up() {
                        return Err(error);
                    }
                    Next::Turn
                }
            };
            // Members may name each other in a circle while leadership changes.
            match next {
                Next::Ask(leader) if hops < HOPS_MAX => {
                    hops += 1;
                    named = Some(leader);
                    continue;
                }
                Next::Turn if turn % self.contacts.len() != 0 => {
                    hops = 0;
                    continue;
                }
                Next::Ask(_) | Next::Turn | Next::Pause => hops = 0,
            }
            if Instant::now() + pause >= self.caller.deadline {
                return Err(self.time_is_over());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            // A silent contact holds the first rounds up for a moment only, and a slow network has its time later.
            let patience = self.caller.plan.handshake_timeout.max(PATIENCE_MIN) * PATIENCE_FACTOR;
            self.caller.patience = (self.caller.patience * 2).min(patience);
        }
    }

    /// Hopeless is what no contact can change.
    fn give_up(&mut self) -> Option<BootstrapError> {
        let all = self.contacts.iter().all(|contact| self.hopeless.contains_key(contact));
        all.then(|| self.hopeless.remove(&self.contacts[0])).flatten()
    }

    fn time_is_over(mut self) -> BootstrapError {
        if let Some((_, error)) = self.hopeless.pop_first() {
            return error;
        }
        if let Some(error) = self.judged {
            return error;
        }
        let (waited, cause) = (self.caller.plan.timeout, self.cause);
        BootstrapError::NotAdmitted { contacts: self.contacts, waited, cause }
    }

    fn attempt<S: Link>(
        &mut self,
        contact: &Address,
    ) -> Result<Result<Joined<S::Secured>, Next>, BootstrapError> {
        let deadline = self.caller.deadline.min(Instant::now() + VERDICT_PATIENCE);
        let asked = self.caller.ask::<S>(contact, &self.request, deadline.into());
        let (wire, answer) = match asked {
            Ok(asked) => asked,
            Err(CallError::Never(error)) => return Err(error),
            Err(CallError::Unproved(error)) => {
                let cause = error.to_string();
                self.judged = Some(error);
                return Ok(Err(self.unreached(contact, cause)));
            }
            Err(CallError::Again(cause)) => return Ok(Err(self.unreached(contact, cause))),
        };
        self.judged = None;
        self.hopeless.remove(contact);
        match answer {
            Answer::Admit(admittance) => self.link(contact, wire, &admittance),
            Answer::Redirect { leader } => Ok(Err(self.redirected::<S>(contact, &leader))),
            Answer::Wait { reason } => Ok(Err(self.told_to_wait(contact, reason))),
            Answer::Refused(
                refusal @ (Refusal::Assembling
                | Refusal::Complete
                | Refusal::OtherSession
                | Refusal::NotCoordinator { .. }),
            ) => Ok(Err(self.told_to_wait(contact, refusal.to_string()))),
            Answer::Refused(refusal) => Err(BootstrapError::Refused { address: contact.clone(), refusal }),
            Answer::Denied { reason } => Err(BootstrapError::Denied { address: contact.clone(), reason }),
            Answer::Accepted | Answer::AcceptedByRdma | Answer::Status { .. } => {
                Err(nonsense(contact, "an answer to something else"))
            }
        }
    }

    fn unreached(&mut self, contact: &Address, cause: String) -> Next {
        if self.cause != cause {
            self.cause.clone_from(&cause);
            (self.on_progress)(Progress::Calling { contact: contact.clone(), cause });
        }
        Next::Turn
    }

    fn told_to_wait(&mut self, contact: &Address, reason: String) -> Next {
        if self.cause != reason {
            self.cause.clone_from(&reason);
            (self.on_progress)(Progress::Waiting { contact: contact.clone(), reason });
        }
        Next::Pause
    }

    fn redirected<S: Link>(&mut self, contact: &Address, leader: &str) -> Next {
        match read_address(leader).filter(S::takes) {
            Some(leader) if leader != *contact => {
                (self.on_progress)(Progress::Redirected { leader: leader.clone() });
                Next::Ask(leader)
            }
            _ => self.told_to_wait(contact, "it does not know the leader".into()),
        }
    }

    /// Connects to all members and reports it. A member that cannot be reached may be dead, which the group will know
    /// when we ask again.
    fn link<S: Link>(
        &mut self,
        contact: &Address,
        mut leader: Wire<S>,
        admittance: &Admittance,
    ) -> Result<Result<Joined<S::Secured>, Next>, BootstrapError> {
        let mut members = read_members(admittance, S::takes).map_err(|what| nonsense(contact, what))?;
        // Its own word may be a wildcard, but here we have reached it.
        let leads = |member: &&mut Member| member.node.0 == admittance.leader;
        members.iter_mut().filter(leads).for_each(|member| member.address.clone_from(contact));
        let Admittance { session, node, leader: admitted_by, token, .. } = admittance;
        let (node, admitted_by) = (NodeId(*node), NodeId(*admitted_by));
        (self.on_progress)(Progress::Admitted { node, members: members.len() });
        let request = Request::Hello { session: *session, node: node.0, listen: self.own.clone() };
        let mut wires = BTreeMap::new();
        for member in members.iter().filter(|member| member.node != admitted_by) {
            let deadline = self.caller.deadline.min(Instant::now() + self.caller.plan.handshake_timeout);
            let until = Until { deadline, abandon: Some(leader.as_fd()) };
            match self.call_member(&member.address, &request, until) {
                Ok(wire) => wires.insert(member.node, wire),
                Err(cause) => {
                    let cause = format!("no link with {} at {}: {cause}", member.node, member.address);
                    return Ok(Err(self.told_to_wait(contact, cause)));
                }
            };
        }
        let deadline = self.caller.deadline.min(Instant::now() + VERDICT_PATIENCE);
        let welcome = leader.write_frame(&Report::Connected, deadline);
        match welcome.and_then(|()| leader.read_frame(deadline)) {
            Ok(Answer::Accepted) => {}
            Ok(_) => return Err(nonsense(contact, "an answer to something else")),
            Err(error) => return Ok(Err(self.unreached(contact, error.to_string()))),
        }
        wires.insert(admitted_by, leader);
        let streams = wires.into_iter().map(|(node, wire)| Ok((node, wire.into_stream()?)));
        let streams = streams.collect::<Result<_, _>>().map_err(system("to make a socket blocking"))?;
        let (session, token) = (*session, token.clone());
        Ok(Ok(Joined { node, session, leader: admitted_by, members, streams, token }))
    }

    /// Calls a member, and a few times more if it is busy: it listens since before we were admitted, so soon means now
    /// or never, and the group finds out sooner than we that it is dead.
    fn call_member<S: Link>(
        &self,
        address: &Address,
        request: &Request,
        until: Until<'_>,
    ) -> Result<Wire<S>, String> {
        let patience = until.deadline.min(Instant::now() + LINK_PATIENCE);
        loop {
            match self.caller.call(address, request, until) {
                Ok(wire) => return Ok(wire),
                Err(CallError::Never(error)) => return Err(error.to_string()),
                Err(CallError::Unproved(error)) if Instant::now() + PAUSE_MIN >= patience => {
                    return Err(error.to_string());
                }
                Err(CallError::Again(cause)) if Instant::now() + PAUSE_MIN >= patience => {
                    return Err(cause);
                }
                Err(CallError::Again(_) | CallError::Unproved(_)) => std::thread::sleep(PAUSE_MIN),
            }
        }
    }
}

/// Asks a member of a group that runs something that its code understands; waits for the answer, for the plan's
/// `handshake_timeout` and as long as the member may take.
///
/// # Errors
/// [`BootstrapError`], each with what to do next.
pub fn ask<S: Link>(plan: &Plan, address: &Address, question: &[u8]) -> Result<Vec<u8>, BootstrapError> {
    let deadline = Instant::now() + plan.handshake_timeout + VERDICT_PATIENCE;
    let proof = plan.proof();
    let caller = Caller { plan, proof: &proof, deadline, patience: plan.timeout };
    let no_answer = |cause: String| BootstrapError::NoAnswer { address: address.clone(), cause };
    let request = Request::Status { question: question.into() };
    match caller.ask::<S>(address, &request, deadline.into()) {
        Ok((_, Answer::Status { bytes })) => Ok(bytes),
        Ok((_, Answer::Wait { reason } | Answer::Denied { reason })) => Err(no_answer(reason)),
        Ok((_, Answer::Refused(refusal))) => Err(no_answer(refusal.to_string())),
        Ok(_) => Err(nonsense(address, "an answer to something else")),
        Err(CallError::Again(cause)) => Err(no_answer(cause)),
        Err(CallError::Never(error) | CallError::Unproved(error)) => Err(error),
    }
}

fn nonsense(contact: &Address, what: &str) -> BootstrapError {
    BootstrapError::Protocol { contact: contact.clone(), what: what.into() }
}

/// Pauses between rounds of attempts.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How long a contact may take to prove the secret in the first round, and how much longer than a handshake in the last: others
/// may be served before us.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const PATIENCE_FACTOR: u32 = 5;
/// How long a member that does not accept is called again.
const LINK_PATIENCE: Duration = Duration::from_millis(200);
/// Members that name another leader, one after the other.
const HOPS_MAX: u32 = 4;
/// A little more than a desk lets its member think.
const VERDICT_PATIENCE: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(2));
