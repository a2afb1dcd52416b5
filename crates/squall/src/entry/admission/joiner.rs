//! Drives a process that joins ([`squall_protocols::admission::Joiner`]): first its calls, one after the other on
//! this thread, and then its group until the first view has begun (Derecho §3.3).

use squall_fabric::{Core, Fabric as _, FabricEvent, Instant, NodeId, Reminders};
use squall_protocols::admission::Admitted;
use squall_protocols::admission::{
    CallFailure, JoinAnswer, JoinFailure, JoinStanding, Joiner, JoinerAction, JoinerSettings,
};
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_transports::bootstrap::{
    self, Address, BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, JoinCalls, JoinReply,
    Joined, LinkSocket,
};
use squall_transports::runner::{Driven, IdleLimits, Runner, SETTLED};

use crate::application::GroupHandles;
use crate::entry::failure::failure_of;
use crate::error::{GroupError, JoinError};
use crate::operate::inquiry::JoinToken;
use crate::transport::AnyFabric;

/// A process that joins.
#[derive(Debug)]
pub(crate) struct JoinDriver {
    joiner: Joiner<Address, BootstrapError>,
    contacts: Vec<Address>,
    plan: BootstrapPlan,
    /// When the joiner's clock began.
    begun: std::time::Instant,
    /// The member that has admitted it.
    leader: NodeId,
    /// Which obstacles are reported.
    reminders: Reminders<(Address, String)>,
}

/// The outcome of an attempt to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinOutcome {
    /// Messages can flow, or the group has failed here, as its owner will find.
    In,
    /// The attempt's resources must be closed, and another attempt follows.
    Again,
}

impl JoinDriver {
    /// Returns a process that asks the plan's contacts, starting with `first`.
    pub(crate) fn new<S: LinkSocket>(
        plan: &BootstrapPlan,
        listener: &BootstrapListener<S>,
        first: Option<&Address>,
    ) -> Result<Self, JoinError> {
        let contacts = bootstrap::join_contacts(plan, listener, first)?;
        let settings = JoinerSettings::new(plan.timeout, plan.handshake_timeout, bootstrap::ANSWER_WITHIN);
        let joiner = Joiner::new(settings, contacts.clone(), Instant::default());
        let begun = std::time::Instant::now();
        let reminders = Reminders::default();
        Ok(Self { joiner, contacts, plan: plan.clone(), begun, leader: NodeId(0), reminders })
    }

    /// Calls members until this process is linked to all of them; returns the links and its rank.
    pub(crate) fn link<S: LinkSocket>(
        &mut self,
        name: &str,
        listener: &BootstrapListener<S>,
        on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    ) -> Result<(Joined<S::Secured>, u64), JoinError> {
        let plan = self.plan.clone();
        let joined = JoinCalls::with(&plan, name, listener, |calls| {
            loop {
                match self.joiner.poll_action(self.now()) {
                    None => self.wait(),
                    Some(JoinerAction::Begin(admitted)) => {
                        self.leader = admitted.leader;
                        return Ok((calls.finish()?, admitted.rank));
                    }
                    Some(JoinerAction::Abandon) => calls.abandon(),
                    Some(JoinerAction::GiveUp(failure)) => return Err(self.explain(failure)),
                    Some(call) => self.call(calls, call, on_progress),
                }
            }
        });
        joined?
    }

    fn wait(&self) {
        let until = self.joiner.next_deadline().expect("a joiner without a call has a deadline");
        std::thread::sleep(until.since(self.now()));
    }

    /// Makes a call, and hands its outcome to the joiner.
    fn call<S: LinkSocket>(
        &mut self,
        calls: &mut JoinCalls<'_, S>,
        call: JoinerAction<Address>,
        on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    ) {
        let outcome = match call {
            JoinerAction::Ask { contact, patience, until } => {
                match calls.ask(&contact, patience, self.real(until)) {
                    Ok(reply) => return self.on_reply(contact, reply, on_progress),
                    Err(error) => {
                        if let Some(cause) = self.obstacle(&contact, &error) {
                            on_progress(BootstrapProgress::Calling { contact, cause });
                        }
                        Err(error)
                    }
                }
            }
            JoinerAction::Link { node, address, until, .. } => {
                calls.link(node, &address, self.real(until)).map(|()| self.joiner.handle_linked(self.now()))
            }
            JoinerAction::Report { until } => {
                calls.report(self.real(until)).map(|()| self.joiner.handle_reported())
            }
            JoinerAction::Begin(_) | JoinerAction::Abandon | JoinerAction::GiveUp(_) => {
                unreachable!("these are no calls")
            }
        };
        if let Err(error) = outcome {
            self.joiner.handle_failure(self.now(), failure_of(error));
        }
    }

    fn on_reply(
        &mut self,
        contact: Address,
        reply: JoinReply,
        on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    ) {
        let now = self.now();
        let answer = match reply {
            JoinReply::Redirect(leader) => {
                if self.obstacle(&leader, &"the leader").is_some() {
                    on_progress(BootstrapProgress::Redirected { leader: leader.clone() });
                }
                JoinAnswer::Redirect(leader)
            }
            JoinReply::Wait(reason) => {
                if let Some(reason) = self.obstacle(&contact, &reason) {
                    on_progress(BootstrapProgress::Waiting { contact, reason });
                }
                JoinAnswer::Wait(reason)
            }
            // The token is fuzzed together with the answers to questions. Fuzzed as `inquiry`.
            JoinReply::Admit { node, leader, members, token } => match postcard::from_bytes(&token) {
                Ok(JoinToken { rank }) => {
                    on_progress(BootstrapProgress::Admitted { node, members: members.len() });
                    let members = members.into_iter().map(|member| (member.node, member.address)).collect();
                    JoinAnswer::Admit(Admitted { node, rank, leader, members })
                }
                Err(_) => {
                    let what = "an admission that cannot be read; run the same release at all members".into();
                    let error = BootstrapError::Protocol { contact, what };
                    return self.joiner.handle_failure(now, CallFailure::Never(error));
                }
            },
        };
        self.joiner.handle_answer(now, answer);
    }

    /// Returns an obstacle that is to be reported: at once, and then seldom.
    fn obstacle(&mut self, contact: &Address, obstacle: &impl ToString) -> Option<String> {
        let obstacle = obstacle.to_string();
        self.reminders.note((contact.clone(), obstacle.clone()), self.begun.elapsed()).map(|_| obstacle)
    }

    /// Drives the group until messages can flow to this node and from it.
    pub(crate) fn arrive(
        &mut self,
        fabric: &mut AnyFabric,
        group: &mut GroupCore<GroupHandles>,
        idle: IdleLimits,
    ) -> Result<JoinOutcome, JoinError> {
        let mut runner = Runner::new(idle);
        group.stand_by();
        let mut stack = Stack { fabric, group, deadline: None, events: Vec::new() };
        loop {
            let arrival = stack.arrival(self.leader);
            let now = self.now();
            self.joiner.handle_arrival(now, arrival);
            if self.joiner.is_over() {
                stack.group.take_part();
                return Ok(JoinOutcome::In);
            }
            match self.joiner.poll_action(now) {
                Some(JoinerAction::GiveUp(failure)) => return Err(self.explain(failure)),
                Some(_) => return Ok(JoinOutcome::Again),
                None => {}
            }
            let deadline = self.joiner.next_deadline();
            stack.deadline = deadline.map(|deadline| stack.fabric.now() + deadline.since(now));
            runner.step(&mut stack);
        }
    }

    fn explain(&mut self, failure: JoinFailure) -> JoinError {
        let seconds = self.plan.timeout.as_secs();
        match failure {
            JoinFailure::Hopeless(cause) | JoinFailure::NotAdmitted(cause) => {
                let (contacts, waited) = (self.contacts.clone(), self.plan.timeout);
                let unknown = || BootstrapError::NotAdmitted { contacts, waited, cause };
                self.joiner.take_error().unwrap_or_else(unknown).into()
            }
            JoinFailure::NoView => JoinError::NoView { seconds },
            JoinFailure::NotReady => JoinError::NotReady { seconds },
            JoinFailure::Removed(stop) => GroupError::Stopped(stop).into(),
        }
    }

    /// Returns the current time by the joiner's clock.
    fn now(&self) -> Instant {
        Instant::default() + self.begun.elapsed()
    }

    /// Converts a time of the joiner's clock to the system's.
    fn real(&self, at: Instant) -> std::time::Instant {
        self.begun + at.since(Instant::default())
    }
}

/// A node that waits for its first view.
struct Stack<'a> {
    fabric: &'a mut AnyFabric,
    group: &'a mut GroupCore<GroupHandles>,
    deadline: Option<Instant>,
    events: Vec<FabricEvent>,
}

impl Stack<'_> {
    /// Returns how far the node has come.
    fn arrival(&mut self, leader: NodeId) -> JoinStanding {
        match self.group.ended() {
            Some(GroupEnd::Stopped(stop)) => return JoinStanding::Removed(stop),
            Some(GroupEnd::NobodyLeft) => return JoinStanding::Alone,
            Some(GroupEnd::Failed(..) | GroupEnd::ShardsFailed(_)) => {
                return JoinStanding::Failed;
            }
            None => {}
        }
        if self.group.membership().is_none() {
            return JoinStanding::Waiting { has_lost_leader: self.group.has_lost(leader) };
        }
        let is_ready = self.group.is_ready() && self.is_up_to_date();
        if is_ready { JoinStanding::Ready } else { JoinStanding::Opening }
    }

    /// Processes all that has arrived by now; returns whether messages can still flow.
    fn is_up_to_date(&mut self) -> bool {
        let mut idle = 0;
        for _ in 0..LOOKS_MAX {
            idle = if self.poll() == 0 { idle + 1 } else { 0 };
            if idle == SETTLED {
                break;
            }
        }
        self.group.is_ready()
    }
}

impl Driven for Stack<'_> {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        self.fabric
    }

    fn poll(&mut self) -> usize {
        let work = self.fabric.poll(&mut |event| self.events.push(event));
        for event in self.events.drain(..) {
            self.group.handle_event(self.fabric, &event);
        }
        work + self.group.poll(self.fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let group = Core::<AnyFabric>::next_deadline(self.group);
        group.into_iter().chain(self.deadline).min()
    }
}

/// The limit on evaluations, since there may always be more work.
const LOOKS_MAX: u32 = 1000;
