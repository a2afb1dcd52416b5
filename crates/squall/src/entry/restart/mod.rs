//! How a group comes back from its logs after all its processes have died (Derecho §3.4, "Total failures").
//!
//! A process that finds a view in its register does not begin a group. It meets the others of its group, those of that view above
//! all, and the core ([`squall_protocols::restart`]) decides how the last view has ended, and which view follows. Any members that
//! are a quorum \[T13\] do that, wherever they run: a process is found at the contacts, and by those that know it.
//!
//! # Order
//! 1. *Meet* ([`RestartDriver`]). Processes call each other ([`exchange`]), and exchange the messages of the core and the addresses at
//!    which they listen. What a log lacks is fetched from the others ([`fetch`]). Processes without a log wait: to them the group is
//!    about to run. If a member of a group that runs answers, the process joins that group.
//! 2. *Link.* The members of the new view, which is on their disks, connect as the first members of a group do
//!    ([`crate::entry::assembly::link_members`]): all of them, or none begins. Meanwhile they answer the others, some of which may not know yet
//!    how the view has ended.
//! 3. *Begin.* The group runs, from the new view on, with the nodes' numbers and the group's number of before \[T8\].
//!
//! If a member dies before 3, the others give up that view after [`LINK_TIMEOUT`] and meet again: it is in their registers, none
//! was live in it, and it ends as any other view does \[T18\].

mod base;
mod driver;
mod exchange;
mod fetch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_protocols::group::{SubgroupId, SubgroupLayout};
use squall_protocols::membership::View;
use squall_protocols::restart::{LogState, Register, RestartMessage, RestartReport};
use squall_transports::bootstrap::{
    Address, BootstrapError, BootstrapListener, BootstrapMember, BootstrapPlan, BootstrapProgress, LinkSocket,
};
use squall_transports::log;

pub(crate) use self::base::{BaseFetcher, answer_fetch};
use self::driver::{OtherContacts, RestartDriver, RestartEnd, refusal};
use self::exchange::Exchange;
use crate::durable::ProcessLog;
use crate::entry::assembly::{ConnectedGroup, QuestionAnswers, link_members};
use crate::error::JoinError;
use crate::operate::calls::{RestartAnswer, RestartCall, RestartProcess};
use crate::operate::inquiry::{self, StatusQuestion};

/// What a process needs to restart its group.
pub(crate) struct RestartRequest<'a> {
    /// Its log, which has a register with a view.
    pub(crate) log: &'a ProcessLog,
    /// The durable subgroups.
    pub(crate) shards: &'a [SubgroupId],
    /// Makes the layout of the configuration.
    pub(crate) layout: &'a dyn Fn() -> Box<dyn SubgroupLayout + Send>,
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum RestartOutcome<S> {
    /// The process is connected to the other members of a view that begins.
    Begun(View, ConnectedGroup<S>),
    /// Its group runs, and the process is to join.
    Join,
}

impl RestartRequest<'_> {
    /// Meets the others until the group begins again, or is found running.
    pub(crate) fn run<S: LinkSocket>(
        &self,
        plan: &BootstrapPlan,
        listener: &Arc<BootstrapListener<S>>,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Result<RestartOutcome<S::Secured>, JoinError> {
        on_progress(BootstrapProgress::Listening { address: listener.address().clone() });
        let deadline = Instant::now() + plan.timeout;
        let (own, addresses): (Vec<_>, Vec<_>) =
            plan.contacts.iter().cloned().partition(|contact| listener.is_at(contact));
        let own = own.first().unwrap_or(listener.announced());
        let (list, others) = (plan.contacts.as_slice(), addresses.as_slice());
        let are_quorum = 2 * others.len() + usize::from(others.first() == list.first()) > list.len();
        loop {
            let exchange = Exchange::open(plan, listener)?;
            let layout = (self.layout)();
            let contacts = OtherContacts { addresses: addresses.clone(), are_quorum };
            let mut driver = RestartDriver::new(self.log, self.shards, layout, exchange, contacts, own);
            let end = driver.run(deadline, on_progress)?;
            let members = match &end {
                RestartEnd::Enter(record) => driver.members(record),
                RestartEnd::Join => None,
            };
            // From now on another part of this process listens.
            let (register, state, others) = driver.end();
            self.log.set_register(register.clone());
            let RestartEnd::Enter(record) = end else { return Ok(RestartOutcome::Join) };
            let Some(members) = members else {
                log::info!(view = record.view.number, "not all members of the next view are here");
                continue;
            };
            let view = View {
                id: record.view.number,
                ..View::first(members.iter().map(|(member, _)| *member).collect())
            };
            let roster: Vec<BootstrapMember> = members
                .into_iter()
                .map(|(member, address)| BootstrapMember { node: member.node, address })
                .collect();
            let linking = Linking { register, state, others, request: self };
            if let Some(group) = linking.link(plan, deadline, roster, listener, on_progress)? {
                return Ok(RestartOutcome::Begun(view, group));
            }
            // [T18] None of them is live in this view, or those that are have seen the link break.
        }
    }
}

/// A member of a view that begins, while it links with the others.
struct Linking<'a> {
    register: Register,
    state: LogState,
    others: Vec<RestartProcess>,
    request: &'a RestartRequest<'a>,
}

impl Linking<'_> {
    /// Connects to the other members; `None` if that has failed.
    fn link<S: LinkSocket>(
        &self,
        plan: &BootstrapPlan,
        deadline: Instant,
        roster: Vec<BootstrapMember>,
        listener: &Arc<BootstrapListener<S>>,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Result<Option<ConnectedGroup<S::Secured>>, JoinError> {
        let own = roster.iter().find(|member| member.node == self.register.node);
        let own = own.expect("it is a member").address.clone();
        let timeout = deadline.saturating_duration_since(Instant::now()).min(LINK_TIMEOUT);
        let view = self.register.view().number;
        let mut count = 0;
        let mut answer = |question: &[u8]| {
            count += 1;
            self.answer(&own, count, question)
        };
        let answers = QuestionAnswers { answer: &mut answer, later: Some(exchange::RESTARTS) };
        let group = self.register.group;
        let linked = link_members(
            plan,
            (group, view, timeout),
            (self.register.node, roster),
            listener,
            answers,
            on_progress,
        );
        match linked {
            Ok(group) => Ok(Some(group)),
            Err(error @ BootstrapError::Refused { .. }) => Err(error.into()),
            Err(error) if Instant::now() < deadline => {
                log::info!(view, %error, "the members of the next view have not all linked; they meet again");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers processes that do not know of the view yet.
    fn answer(&self, own: &Address, count: u64, question: &[u8]) -> Option<Vec<u8>> {
        let Self { register, state, others, request } = self;
        match inquiry::read_question(question)? {
            StatusQuestion::Restart(call) => {
                let sender = RestartProcess {
                    node: register.node.0,
                    starts: register.starts,
                    rank: register.tag,
                    address: own.to_string(),
                };
                let answer = answer_of_member(register, count, sender, others.clone(), &call, false);
                Some(inquiry::write(&answer))
            }
            StatusQuestion::Fetch(call) => {
                Some(inquiry::write(&fetch::answer(request.log, request.shards, register, state, call)))
            }
            _ => None,
        }
    }
}

/// The answer of a member of a view that runs, or begins, to a process that restarts \[T10\]; `order` grows from answer to answer.
pub(crate) fn answer_of_member(
    register: &Register,
    order: u64,
    sender: RestartProcess,
    others: Vec<RestartProcess>,
    call: &RestartCall,
    runs: bool,
) -> RestartAnswer {
    if let Some(refusal) = refusal(register.group, register.layout, runs, call) {
        return refusal;
    }
    let shards = register.view().shards.len();
    let report = RestartReport::live(LINK_ORDER + order, register);
    let heard = call.messages.iter().filter_map(|message| RestartMessage::decode(message, shards).ok());
    let views = heard.filter_map(|message| match message {
        RestartMessage::Report(report) => report.missing_views(register),
        RestartMessage::Views(_) => None,
    });
    let messages = [RestartMessage::Report(Box::new(report))].into_iter().chain(views.take(1));
    RestartAnswer::Heard(Box::new(RestartCall {
        group: register.group,
        layout: register.layout,
        sender,
        others,
        messages: messages.map(|message| message.encode(shards)).collect(),
    }))
}

/// How long the members of a view that begins may take to connect.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// Reports of a member that has entered a view come after those that it made before.
const LINK_ORDER: u64 = 1 << 62;
