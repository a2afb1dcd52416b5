//! What drives the cores of a process: the part of the library that the simulator replaces.

use squall_fabric::{BreakReason, Core, Duration, Fabric as _, FabricEvent, Instant, NodeId};
use squall_protocols::admission::{
    AdmissionAction, AdmissionService, Admitted, CallFailure, JoinAnswer, JoinFailure, JoinStanding,
    JoinerAction, LinkVerdict, REMOVALS_MAX,
};
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::{Member, View};

use super::bus::{BusBody, BusMessage};
use super::cluster::{JoinCluster, ProcessNumbers};
use super::process::{
    JoinAttempt, JoinProcess, PendingCall, ViewRecorder, layout, service_settings, settings,
};

impl JoinProcess {
    /// Its nodes in the world: its processor, and what it is in the group.
    pub(super) fn nodes(&self) -> Vec<u32> {
        let (home, node) = (self.home.node().0, self.fabric.node().0);
        if home == node { vec![home] } else { vec![home, node] }
    }

    pub(super) fn node(&self) -> u32 {
        self.fabric.node().0
    }

    /// By the clock of its joiner.
    pub(super) fn now(&self) -> Instant {
        self.home.now()
    }

    pub(super) fn view(&self) -> Option<&View> {
        Some(self.group.as_ref()?.membership()?.view())
    }

    /// When each of its nodes has something to do, by its own clock; `next` is how long from now the next message comes.
    pub(super) fn deadlines(&self, next: Option<Duration>) -> Vec<(u32, Option<Instant>)> {
        let joiner = self.joiner.as_ref().and_then(|joiner| joiner.next_deadline());
        let call = self.call.map(|call| call.until);
        let service = self.service.as_ref().and_then(AdmissionService::next_deadline);
        let message = next.map(|next| self.now() + next + Duration::from_nanos(1));
        let home = [joiner, call, service, message].into_iter().flatten().min();
        let group = self.group.as_ref().and_then(Core::<squall_fabric::sim::SimFabric>::next_deadline);
        match self.nodes()[..] {
            [node] => vec![(node, home.into_iter().chain(group).min())],
            [ref home_node @ .., node] => vec![(home_node[0], home), (node, group)],
            [] => Vec::new(),
        }
    }

    /// Calls another process.
    fn call(&mut self, to: u32, until: Instant) -> u64 {
        self.calls += 1;
        self.call = Some(PendingCall { number: self.calls, to, until, is_report: false });
        self.calls
    }
}

impl JoinCluster {
    /// All that a process does in a turn; whether it worked.
    pub(super) fn step(&mut self, place: u32) -> bool {
        let mut worked = false;
        while let Some(message) = self.bus.take(self.world.now(), place) {
            worked = true;
            self.handle_message(place, message);
        }
        if !self.processes[place as usize].is_up {
            return worked;
        }
        worked |= self.poll_group(place) > 0;
        worked |= self.poll_joiner(place, !worked);
        self.poll_service(place);
        self.check_time(place);
        worked
    }

    fn post(&mut self, from: u32, to: u32, call: u64, body: BusBody) {
        let homes = [from, to].map(|place| self.processes[place as usize].home.node().0);
        let now = self.world.now();
        let body = if self.processes[to as usize].is_up {
            body
        } else {
            let broken = BusBody::Unheard("nobody listens there");
            self.bus.post(now, from, BusMessage { from: to, call, body: broken });
            return self.wake(from);
        };
        if self.world.can_reach(homes[0], homes[1]) {
            self.bus.post(now, to, BusMessage { from, call, body });
            self.wake(to);
            self.wake(from);
        }
    }

    fn handle_message(&mut self, place: u32, message: BusMessage) {
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
                let body = self.take_report(place, from, number);
                let ends = self.plan.leader_ends && place == 0 && matches!(body, BusBody::Reported);
                self.post(place, from, call, body);
                if ends {
                    self.end(place);
                }
            }
            BusBody::Gone { number } => {
                if let Some(service) = &mut self.processes[place as usize].service {
                    service.handle_gone(number);
                }
            }
            BusBody::Answer(_)
            | BusBody::Linked
            | BusBody::Reported
            | BusBody::Unheard(_)
            | BusBody::Broken(_) => self.handle_reply(place, call, body),
        }
    }

    fn answer(&mut self, place: u32, rank: Option<u64>) -> BusBody {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let (Some(service), Some(group)) = (&mut process.service, &process.group) else { return NOT_YET };
        let view = group.membership().map(|membership| self.numbers.translate(membership.view()));
        BusBody::Answer(service.handle_request(now, rank, view.as_ref(), group.is_ready()))
    }

    /// A process says that it is `number`, and links with the member at `place`.
    fn take_link(&mut self, place: u32, from: u32, number: NodeId) -> BusBody {
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

    /// A member gets the connection of a process whose link it has taken.
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
            return self.world.set_linked(own, node.0, true);
        }
        // It was given up meanwhile: the connection is closed.
        let other = self.numbers.owner(node.0);
        let process = &mut self.processes[other as usize];
        if process.attempt.is_some_and(|attempt| attempt.number == number) {
            process.events.push(FabricEvent::PeerLost { peer: NodeId(own), reason: BreakReason::PeerClosed });
            self.wake(other);
        }
    }

    /// A process asks the leader for the rank of the member at `place` \[J2\].
    pub(super) fn claim(&mut self, place: u32) {
        let Some(view) = self.processes[place as usize].view().cloned() else { return };
        let member = view.members.iter().find(|member| self.numbers.owner(member.node.0) == place);
        let Some(rank) = member.map(|member| member.tag) else { return };
        let leader = self.numbers.owner(view.members[0].node.0);
        let BusBody::Answer(JoinAnswer::Admit(admitted)) = self.answer(leader, Some(rank)) else { return };
        let leads = self.processes[leader as usize].view();
        if leads.is_some_and(|view| view.members.iter().any(|member| member.tag == rank)) {
            self.fail("ranks", format!("[J2] a process is admitted with rank {rank}, which a member has"));
        }
        let spent = self.numbers.add_spent(&self.world, place, admitted.node);
        self.world.crash(spent);
        if let Some(service) = &mut self.processes[leader as usize].service {
            service.handle_gone(admitted.node);
        }
    }

    /// A stranger links with the member under the number of a candidate, or one that is given soon.
    pub(super) fn impersonate(&mut self, place: u32) {
        let candidates = self.processes.iter().filter_map(|process| process.service.as_ref()?.candidate());
        let guess = self.processes[place as usize].view().map_or(0, |view| view.id + 1) * 64;
        let number = candidates.max().unwrap_or(NodeId(u32::try_from(guess).expect("few views")));
        // Where it says that it is reached does not matter: nobody calls it before it is a member.
        self.take_link(place, place, number);
        self.wake(place);
    }

    fn take_report(&mut self, place: u32, from: u32, number: NodeId) -> BusBody {
        let candidate = self.processes[place as usize].service.as_ref().and_then(AdmissionService::candidate);
        if candidate != Some(number) {
            return BusBody::Broken("it took too long");
        }
        match self.take_link(place, from, number) {
            BusBody::Linked => {
                self.take_stream(place, number);
                if let Some(service) = &mut self.processes[place as usize].service {
                    service.handle_connected(number);
                }
                BusBody::Reported
            }
            refused => refused,
        }
    }

    fn handle_reply(&mut self, place: u32, call: u64, body: BusBody) {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let Some(call) = process.call.take_if(|under_way| under_way.number == call) else {
            // It was given up: an admission that nobody has waited for is closed.
            if let BusBody::Answer(JoinAnswer::Admit(Admitted { node, leader, .. })) = body {
                let leader = self.numbers.owner(leader_node(&self.numbers, leader).0);
                let spent = self.numbers.add_spent(&self.world, place, node);
                self.world.crash(spent);
                self.post(place, leader, 0, BusBody::Gone { number: node });
            }
            return;
        };
        self.world.note(process.home.node().0, format!("process {place}: {body:?}"));
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
            BusBody::Reported => joiner.handle_reported(),
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

    /// The process has a number: it is a node of the world, without links.
    fn begin_attempt(&mut self, place: u32, leader: u32, admitted: &Admitted<u32>) {
        if self.processes[place as usize].attempt.is_some() {
            self.fail("attempts", format!("[J6] process {place} is admitted, and has an earlier attempt"));
        }
        let node = self.numbers.add_spent(&self.world, place, admitted.node);
        let process = &mut self.processes[place as usize];
        let leader_node = leader_node(&self.numbers, admitted.leader);
        process.attempt = Some(JoinAttempt { number: admitted.node, leader, leader_node });
        process.fabric = self.world.fabric(node);
        process.events.clear();
    }

    fn poll_joiner(&mut self, place: u32, has_seen_all: bool) -> bool {
        let mut worked = false;
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let Some(joiner) = &mut process.joiner else { return false };
        if process.call.take_if(|call| now >= call.until).is_some() {
            joiner.handle_failure(now, CallFailure::Again("no answer has come".into()));
        }
        if let Some(group) = &process.group {
            let leader = process.attempt.map(|attempt| attempt.leader_node);
            let arrival = arrival(group, leader, has_seen_all);
            joiner.handle_arrival(now, arrival);
        }
        while let Some(action) =
            self.processes[place as usize].joiner.as_mut().and_then(|joiner| joiner.poll_action(now))
        {
            worked = true;
            self.act(place, action);
        }
        let process = &mut self.processes[place as usize];
        if process.joiner.as_ref().is_some_and(squall_protocols::admission::Joiner::is_over) {
            process.joiner = None;
            worked = true;
            process.group.iter_mut().for_each(GroupCore::take_part);
            self.become_member(place);
        }
        worked
    }

    fn become_member(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        let (Some(group), Some(attempt)) = (&process.group, process.attempt) else { return };
        let Some(view) = group.membership().map(|membership| membership.view().clone()) else { return };
        process.peers = view.nodes().into_iter().filter(|node| *node != process.fabric.node()).collect();
        let roster =
            view.nodes().into_iter().map(|node| (self.numbers.number(node), self.numbers.owner(node.0)));
        let settings = service_settings(&self.plan);
        process.service = Some(AdmissionService::new(settings, attempt.number, roster.collect()));
        process.attempt = None;
    }

    fn act(&mut self, place: u32, action: JoinerAction<u32>) {
        self.world.note(self.processes[place as usize].home.node().0, format!("process {place}: {action:?}"));
        let process = &mut self.processes[place as usize];
        match action {
            JoinerAction::Ask { contact, until, .. } => {
                let call = process.call(contact, until);
                let rank = self.plan.asks_for_rank.then_some(u64::from(place));
                self.post(place, contact, call, BusBody::Ask { rank });
            }
            JoinerAction::Link { own, address, until, .. } => {
                let call = process.call(address, until);
                self.post(place, address, call, BusBody::Link { number: own });
            }
            JoinerAction::Report { until } => {
                let Some(attempt) = process.attempt else { return };
                let call = process.call(attempt.leader, until);
                process.call.iter_mut().for_each(|call| call.is_report = true);
                self.post(place, attempt.leader, call, BusBody::Report { number: attempt.number });
            }
            JoinerAction::Begin(admitted) => {
                let nodes = admitted.members.iter().filter_map(|(node, _)| self.numbers.node(*node));
                let contacts: Vec<NodeId> = nodes.collect();
                let settings = settings(&self.plan);
                let mut group = GroupCore::join(
                    &mut process.fabric,
                    &contacts,
                    layout(),
                    settings,
                    ViewRecorder::default(),
                );
                group.stand_by();
                process.group = Some(group);
            }
            JoinerAction::Abandon => self.abandon(place),
            JoinerAction::GiveUp(failure) => self.on_given_up(place, &failure),
        }
    }

    fn on_given_up(&mut self, place: u32, failure: &JoinFailure) {
        self.abandon(place);
        self.processes[place as usize].joiner = None;
        let is_stranded = self.plan.is_stranded && place + 1 == self.plan.processes();
        let expected = self.plan.removals(place) + self.processes[place as usize].links_broken;
        if is_stranded || (matches!(failure, JoinFailure::Removed(_)) && expected > REMOVALS_MAX) {
            return self.end(place);
        }
        self.fail("liveness", format!("[J5] process {place} has given up to join: {failure:?}"));
    }

    /// Closes all that the attempt has.
    fn abandon(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        (process.group, process.call) = (None, None);
        if let Some(attempt) = process.attempt.take() {
            self.world.crash(process.node());
            process.fabric = self.world.fabric(process.home.node().0);
            self.post(place, attempt.leader, 0, BusBody::Gone { number: attempt.number });
        }
    }

    fn poll_group(&mut self, place: u32) -> usize {
        let process = &mut self.processes[place as usize];
        let Some(group) = &mut process.group else { return 0 };
        if std::mem::take(&mut process.leaves) {
            group.leave();
        }
        let mut worked = process.fabric.poll(&mut |event| process.events.push(event));
        for event in process.events.drain(..) {
            group.handle_event(&mut process.fabric, &event);
            if let (FabricEvent::PeerLost { peer, .. }, Some(service)) = (&event, &mut process.service) {
                service.handle_peer_lost(self.numbers.number(*peer));
            }
        }
        worked += usize::from(group.application().send());
        let before = group.application_ref().delivered.get();
        worked += group.poll(&mut process.fabric);
        let has_taken = process.joiner.is_some() && group.application_ref().delivered.get() > before;
        if has_taken {
            self.fail("attempts", format!("[J8] process {place} takes messages, and has not arrived"));
        }
        worked
    }

    fn poll_service(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let (Some(service), Some(group)) = (&mut process.service, &process.group) else { return };
        service.handle_timeout(now);
        if let Some(membership) = group.membership().filter(|_| group.is_ready()) {
            let view = self.numbers.translate(membership.view());
            if process.seen.replace(view.id) == Some(view.id) {
                service.poll_view(&view);
            } else {
                let has_lost = |number| self.numbers.node(number).is_some_and(|node| group.has_lost(node));
                let arrived = service.handle_view(&view, has_lost);
                process.peers.extend(arrived.into_iter().filter_map(|number| self.numbers.node(number)));
                let members = membership.view().nodes();
                for departed in process.peers.extract_if(.., |peer| !members.contains(peer)) {
                    process.fabric.remove_peer(departed);
                }
            }
        }
        while let Some(action) =
            self.processes[place as usize].service.as_mut().and_then(AdmissionService::poll_action)
        {
            self.serve(place, action);
        }
    }

    fn serve(&mut self, place: u32, action: AdmissionAction) {
        let process = &mut self.processes[place as usize];
        let Some(group) = &mut process.group else { return };
        self.world.note(process.home.node().0, format!("process {place}: {action:?}"));
        match action {
            AdmissionAction::Part(number, _) => {
                if let Some(node) = self.numbers.node(number) {
                    process.fabric.remove_peer(node);
                    self.world.set_linked(process.fabric.node().0, node.0, false);
                }
            }
            AdmissionAction::ReportLost(number) => {
                if let Some(peer) = self.numbers.node(number) {
                    let lost = FabricEvent::PeerLost { peer, reason: BreakReason::PeerClosed };
                    group.handle_event(&mut process.fabric, &lost);
                }
            }
            AdmissionAction::Admit(member) => {
                if let Some(node) = self.numbers.node(member.node) {
                    group.admit(Member { node, tag: member.tag });
                }
            }
            AdmissionAction::Renew => group.renew(),
            AdmissionAction::Dismiss(number) => {
                let Some(node) = self.numbers.node(number) else { return };
                let candidate = self.numbers.owner(node.0);
                let process = &self.processes[candidate as usize];
                let is_its = process.attempt.is_some_and(|attempt| attempt.number == number);
                if let Some(call) = process.call.filter(|_| is_its) {
                    self.post(
                        place,
                        candidate,
                        call.number,
                        BusBody::Broken("the leader has closed the connection"),
                    );
                }
            }
        }
        self.wake(place);
    }
}

/// The node of a leader, which was admitted under its number.
fn leader_node(numbers: &ProcessNumbers, leader: NodeId) -> NodeId {
    numbers.node(leader).expect("a leader is a member")
}

fn arrival(group: &GroupCore<ViewRecorder>, leader: Option<NodeId>, has_seen_all: bool) -> JoinStanding {
    match group.ended() {
        Some(GroupEnd::Stopped(stop)) => return JoinStanding::Removed(stop),
        Some(GroupEnd::NobodyLeft) => return JoinStanding::Alone,
        Some(GroupEnd::Failed(..)) => return JoinStanding::Failed,
        None => {}
    }
    match group.membership() {
        None => {
            JoinStanding::Waiting { has_lost_leader: leader.is_some_and(|leader| group.has_lost(leader)) }
        }
        Some(_) if group.is_ready() && has_seen_all => JoinStanding::Ready,
        Some(_) => JoinStanding::Opening,
    }
}

const NOT_YET: BusBody = BusBody::Unheard("its group has not come together yet");
