//! The full mesh: member *i* connects to each *j* with 0 < *j* < *i* and is connected to by all higher ones.
//!
//! Nobody waits in a circle: a member accepts links as soon as its own calls to lower ranks are done, and rank 1
//! has none to make.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use squall_fabric::NodeId;

use super::error::system;
use super::link::Link;
use super::member::{CallError, Caller, Joining, Roster};
use super::message::{Answer, Notice, Refusal, Report, Request};
use super::reception::Visitor;
use super::wire::{Until, Wire, poll_for};
use super::{Assembly, BootstrapError, Member};

/// A pause before the next attempt to connect to a member.
const PAUSE: Duration = Duration::from_millis(20);

type Links<S> = BTreeMap<NodeId, Wire<S>>;

impl<S: Link> Joining<'_, '_, S> {
    /// Connects to all members of lower rank but the coordinator.
    pub(super) fn link_lower(
        &mut self,
        caller: &Caller<'_>,
        roster: &Roster,
    ) -> Result<Links<S>, BootstrapError> {
        let lower = &roster.members[1..roster.node.0 as usize];
        lower.iter().map(|member| Ok((member.node, self.link_with(member, caller, roster)?))).collect()
    }

    fn link_with(
        &mut self,
        member: &Member,
        caller: &Caller<'_>,
        roster: &Roster,
    ) -> Result<Wire<S>, BootstrapError> {
        let request = Request::Link { session: roster.session, node: roster.node.0 };
        // It listens since before it joined, so soon means now or never.
        let patience = self.deadline.min(Instant::now() + caller.plan.handshake_timeout);
        loop {
            let until = Until { deadline: self.deadline, abandon: Some(self.coordinator.as_fd()) };
            match caller.call(&member.address, &request, until) {
                Ok(wire) => return Ok(wire),
                Err(CallError::Never(error)) => return Err(error),
                Err(CallError::Unheard(_) | CallError::Again(_) | CallError::Unproved(_)) => {}
            }
            // If the member has died, the coordinator knows and says so.
            let word = &mut [PollFd::new(&self.coordinator, PollFlags::IN)];
            poll_for(word, PAUSE).map_err(system("to wait for the coordinator"))?;
            if self.poll_notice(&roster.members)?.is_some() {
                return Err(self.nonsense("a notice out of place"));
            }
            if Instant::now() >= patience {
                return Err(BootstrapError::Unlinked {
                    missing: vec![(member.node, member.address.clone())],
                });
            }
        }
    }

    /// Is connected to by all members of higher rank; reports; waits for the word to go.
    pub(super) fn link_higher(
        mut self,
        roster: Roster,
        lower: Links<S>,
    ) -> Result<Assembly<S::Secured>, BootstrapError> {
        let mut links = lower;
        let mut reported = false;
        loop {
            for visitor in std::mem::take(&mut self.early) {
                self.on_link(visitor, &roster, &mut links);
            }
            if !reported && links.len() + 2 == roster.members.len() {
                reported = true;
                // If the coordinator has gone, `poll_notice` finds out.
                let _ = self.coordinator.write_frame(&Report::Linked, self.deadline);
            }
            match self.poll_notice(&roster.members)? {
                Some(Notice::Go) if reported => return self.finish(roster, links),
                Some(_) => return Err(self.nonsense("a notice out of place")),
                None => {}
            }
            if Instant::now() >= self.deadline {
                return Err(unfinished(&roster, &links));
            }
            self.receive()?;
        }
    }

    fn on_link(&mut self, mut visitor: Visitor<S>, roster: &Roster, links: &mut Links<S>) {
        let Request::Link { session, node } = visitor.request else {
            unreachable!("`receive` keeps only these")
        };
        let node = NodeId(node);
        let known = (node.0 as usize) < roster.members.len() && node > roster.node;
        if session != roster.session || !known || links.contains_key(&node) {
            return visitor.turn_away(Refusal::OtherSession, self.on_progress);
        }
        // If it has gone, the coordinator tells.
        let _ = visitor.wire.write_frame(&Answer::Accepted, self.deadline);
        links.insert(node, visitor.wire);
    }

    fn finish(self, roster: Roster, mut links: Links<S>) -> Result<Assembly<S::Secured>, BootstrapError> {
        links.insert(NodeId(0), self.coordinator);
        let streams = links.into_iter().map(|(node, wire)| Ok((node, wire.into_stream()?)));
        let streams = streams.collect::<Result<_, _>>().map_err(system("to make a socket blocking"))?;
        Ok(Assembly { node: roster.node, session: roster.session, members: roster.members, streams })
    }
}

/// The time is over: whom we miss; if nobody, others miss each other, and the coordinator has not said whom.
fn unfinished<S>(roster: &Roster, links: &Links<S>) -> BootstrapError {
    let others = roster.members[1..].iter().filter(|member| member.node != roster.node);
    let missing: Vec<_> = others
        .filter(|member| !links.contains_key(&member.node))
        .map(|member| (member.node, member.address.clone()))
        .collect();
    if missing.is_empty() {
        return BootstrapError::Unready { unready: Vec::new() };
    }
    BootstrapError::Unlinked { missing }
}
