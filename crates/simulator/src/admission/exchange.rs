//! What processes say to each other beside the group, and what comes of it: the part of the library that the simulator replaces
//! (Derecho §3.3).

use squall_fabric::{BreakReason, Fabric as _, FabricEvent, NodeId};
use squall_protocols::admission::{AdmissionService, Admitted, CallFailure, JoinAnswer, LinkVerdict};

use super::process::JoinAttempt;
use super::{BusBody, BusMessage, JoinHost, SimAdmission, words};

impl<H: JoinHost> SimAdmission<H> {
    pub(super) fn post(&mut self, from: u32, to: u32, call: u64, body: BusBody) {
        let now = self.world.now();
        let body = if self.processes[to as usize].is_up {
            body
        } else {
            let broken = BusBody::Unheard("no process listens there");
            self.bus.post(now, from, BusMessage { from: to, call, body: broken });
            return self.wake(from);
        };
        self.bus.post(now, to, BusMessage { from, call, body });
        self.wake(to);
        self.wake(from);
    }

    /// Takes the next message that has come to the process.
    pub(crate) fn take_next(&mut self, place: u32) -> Option<BusMessage> {
        let (now, processes, world) = (self.world.now(), &self.processes, &self.world);
        let home = |place: u32| processes[place as usize].home.node().0;
        self.bus.take(now, place, |from| world.can_reach(home(from), home(place)))
    }

    /// Takes a message, and the actions of the service after it, before the next view can begin; whether it was the report of a
    /// candidate, which is taken.
    pub(crate) fn handle_message(&mut self, place: u32, message: BusMessage) -> bool {
        let is_report = self.take_message(place, message);
        self.take_actions(place);
        is_report
    }

    fn take_message(&mut self, place: u32, message: BusMessage) -> bool {
        let BusMessage { from, call, body } = message;
        match body {
            BusBody::Ask { rank } => {
                let body = self.answer(place, rank);
                self.post(place, from, call, body);
            }
            BusBody::Link { number } => {
                let body = self.take_link(place, from, number);
                if matches!(body, BusBody::Linked) {
                    // The thread that has heard the request answers it, and then hands the connection over.
                    self.bus.hand_over(self.world.now(), place, BusBody::Stream { number });
                }
                self.post(place, from, call, body);
            }
            BusBody::Stream { number } => self.take_stream(place, number),
            BusBody::Report { number } => {
                let refusal = self.take_report(place, from, number).err();
                let is_taken = refusal.is_none();
                refusal.into_iter().for_each(|refusal| self.post(place, from, call, refusal));
                return is_taken;
            }
            BusBody::Gone { number } => {
                if let Some(service) = &mut self.processes[place as usize].service {
                    service.handle_gone(number);
                }
            }
            BusBody::Answer(_) | BusBody::Linked | BusBody::Unheard(_) | BusBody::Broken(_) => {
                self.handle_reply(place, call, body)
            }
        }
        false
    }

    pub(crate) fn answer(&mut self, place: u32, rank: Option<u64>) -> BusBody {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let (Some(service), Some(group)) = (&mut process.service, &process.group) else { return NOT_YET };
        let view = group.membership().map(|membership| self.numbers.translate(membership.view()));
        let (is_ready, takes) = (group.is_ready(), |tag| group.takes(tag));
        BusBody::Answer(service.handle_request(now, rank, view.as_ref(), is_ready, takes))
    }

    /// Takes the link of a process that calls itself `number`, and the actions of the service after it.
    pub(crate) fn take_link(&mut self, place: u32, from: u32, number: NodeId) -> BusBody {
        let answer = self.judge_link(place, from, number);
        self.take_actions(place);
        answer
    }

    fn judge_link(&mut self, place: u32, from: u32, number: NodeId) -> BusBody {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let (Some(service), Some(group)) = (&mut process.service, &process.group) else { return NOT_YET };
        let Some(membership) = group.membership() else { return NOT_YET };
        let (view, node) = (self.numbers.translate(membership.view()), self.numbers.node(number));
        let is_lost = node.is_some_and(|node| group.has_lost(node));
        let verdict = service.handle_link(now, number, from, &view, is_lost);
        match verdict {
            LinkVerdict::Take => BusBody::Linked,
            LinkVerdict::Close | LinkVerdict::Report => BusBody::Broken("the member does not take the link"),
        }
    }

    fn take_stream(&mut self, place: u32, number: NodeId) {
        let process = &mut self.processes[place as usize];
        let (own, view) = (process.node(), process.view().map(|view| self.numbers.translate(view)));
        let Some(node) = self.numbers.node(number) else { return };
        let is_taken = process
            .service
            .as_ref()
            .zip(view)
            .is_some_and(|(service, view)| service.has_taken(number, &view));
        if is_taken {
            return self.world.set_linked(own.0, node.0, true);
        }
        // It was given up meanwhile.
        self.close_stream(own, number);
    }

    /// A member closes the connection of a joiner that it has not taken, or dies before it has.
    pub(super) fn close_stream(&mut self, member: NodeId, number: NodeId) {
        let Some(node) = self.numbers.node(number) else { return };
        let joiner = self.numbers.owner(node.0);
        let process = &mut self.processes[joiner as usize];
        if process.node() == node {
            process.events.push(FabricEvent::PeerLost { peer: member, reason: BreakReason::PeerClosed });
            self.wake(joiner);
        }
    }

    /// Takes a report, which is not answered, or returns that the connection ends.
    fn take_report(&mut self, place: u32, from: u32, number: NodeId) -> Result<(), BusBody> {
        let candidate = self.processes[place as usize].service.as_ref().and_then(AdmissionService::candidate);
        if candidate != Some(number) {
            return Err(BusBody::Broken("it took too long"));
        }
        match self.take_link(place, from, number) {
            BusBody::Linked => {
                self.take_stream(place, number);
                if let Some(service) = &mut self.processes[place as usize].service {
                    service.handle_connected(number);
                }
                Ok(())
            }
            refused => Err(refused),
        }
    }

    fn handle_reply(&mut self, place: u32, call: u64, body: BusBody) {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let Some(call) = process.call.take_if(|under_way| under_way.number == call) else {
            // It was given up: an admission for which the joiner no longer waits is closed.
            if let BusBody::Answer(JoinAnswer::Admit(Admitted { node, leader, .. })) = body {
                let leader = self.numbers.owner(self.leader_node(leader).0);
                let spent = self.add_spent(place, node);
                self.world.crash(spent);
                self.post(place, leader, 0, BusBody::Gone { number: node });
            }
            return;
        };
        self.world.note(process.home.node().0, format!("process {place}: {}", words::reply(&body)));
        let Some(joiner) = &mut process.joiner else { return };
        match body {
            BusBody::Answer(JoinAnswer::Refuse(reason)) => {
                joiner.handle_failure(now, CallFailure::Never(reason))
            }
            BusBody::Answer(JoinAnswer::Admit(admitted)) => {
                self.begin_attempt(place, call.to, &admitted);
                let joiner = self.processes[place as usize].joiner.as_mut().expect("it joins");
                joiner.handle_answer(now, JoinAnswer::Admit(admitted));
            }
            BusBody::Answer(answer) => joiner.handle_answer(now, answer),
            BusBody::Linked => joiner.handle_linked(now),
            BusBody::Unheard(cause) => joiner.handle_failure(now, CallFailure::Unheard(cause.into())),
            BusBody::Broken(cause) => {
                joiner.handle_failure(now, CallFailure::Again(cause.into()));
                // That connection is the link with the leader.
                if let Some(attempt) = process.attempt.filter(|_| call.is_report) {
                    process.links_broken += 1;
                    let (peer, reason) = (attempt.leader_node, BreakReason::PeerClosed);
                    process.events.push(FabricEvent::PeerLost { peer, reason });
                }
            }
            BusBody::Ask { .. }
            | BusBody::Link { .. }
            | BusBody::Stream { .. }
            | BusBody::Report { .. }
            | BusBody::Gone { .. } => unreachable!("a request"),
        }
    }

    fn begin_attempt(&mut self, place: u32, leader: u32, admitted: &Admitted<u32>) {
        if self.processes[place as usize].attempt.is_some() {
            self.fail("attempts", format!("[J6] process {place} is admitted, and has an earlier attempt"));
        }
        self.attempts += 1;
        let (node, leader_node) = (self.add_spent(place, admitted.node), self.leader_node(admitted.leader));
        let process = &mut self.processes[place as usize];
        process.attempt = Some(JoinAttempt { number: admitted.node, leader, leader_node });
        process.fabric = self.world.fabric(node);
        process.events.clear();
    }

    /// A number was given to a process, which is a further node of the world then.
    pub(crate) fn add_spent(&mut self, place: u32, number: NodeId) -> u32 {
        let home = self.processes[place as usize].home.node().0;
        self.numbers.add_spent(&self.world, place, home, number)
    }

    /// The node of a leader, which was admitted under its number.
    fn leader_node(&self, leader: NodeId) -> NodeId {
        self.numbers.node(leader).expect("a leader is a member")
    }
}

/// The process there is not a member.
const NOT_YET: BusBody = BusBody::Unheard("its group has not come together yet");
