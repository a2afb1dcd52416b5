//! What drives the cores of a process: the part of the library that the simulator replaces (Derecho §3.3).

use squall_fabric::{BreakReason, Core as _, Fabric as _, FabricEvent, NodeId};
use squall_protocols::admission::{AdmissionAction, AdmissionService, CallFailure, Joiner, JoinerAction};
use squall_protocols::group::GroupCore;
use squall_protocols::membership::Member;

use super::{BusBody, JOIN_TIMEOUT, JoinHost, SimAdmission, words};

impl<H: JoinHost> SimAdmission<H> {
    /// Lets a joiner act; `has_seen_all`: nothing that has come so far waits for its group.
    pub(crate) fn poll_joiner(&mut self, place: u32, has_seen_all: bool) -> bool {
        let mut worked = false;
        let process = &mut self.processes[place as usize];
        let (now, standing) = (process.now(), process.standing(has_seen_all));
        let Some(joiner) = &mut process.joiner else { return false };
        if process.call.take_if(|call| now >= call.until).is_some() {
            joiner.handle_failure(now, CallFailure::Again("no answer has come".into()));
        }
        if let Some(standing) = standing {
            joiner.handle_arrival(now, standing);
        }
        while let Some(action) =
            self.processes[place as usize].joiner.as_mut().and_then(|joiner| joiner.poll_action(now))
        {
            worked = true;
            self.act(place, action);
        }
        let process = &mut self.processes[place as usize];
        if process.joiner.as_ref().is_some_and(Joiner::is_over) {
            (process.joiner, process.call) = (None, None);
            worked = true;
            process.group.iter_mut().for_each(GroupCore::take_part);
            self.become_member(place);
        }
        self.check_time(place);
        worked
    }

    fn become_member(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        let (Some(group), Some(attempt)) = (&process.group, process.attempt) else { return };
        let Some(view) = group.membership().map(|membership| membership.view().clone()) else { return };
        let roster =
            view.nodes().into_iter().map(|node| (self.numbers.number(node), self.numbers.owner(node.0)));
        let settings = self.host.admission_settings();
        process.service = Some(AdmissionService::new(settings, attempt.number, roster.collect()));
        process.attempt = None;
    }

    fn act(&mut self, place: u32, action: JoinerAction<u32>) {
        self.world.note(
            self.processes[place as usize].home.node().0,
            format!("process {place}: {}", words::joiner(&action)),
        );
        let process = &mut self.processes[place as usize];
        match action {
            JoinerAction::Ask { contact, until, .. } => {
                let call = process.call(contact, until);
                let rank = self.host.rank(place);
                self.post(place, contact, call, BusBody::Ask { rank });
            }
            JoinerAction::Link { own, address, until, .. } => {
                let call = process.call(address, until);
                self.post(place, address, call, BusBody::Link { number: own });
            }
            JoinerAction::Report { until } => {
                let Some(attempt) = process.attempt else { return };
                // It has no answer, and its connection stands: it is the link with the leader.
                let call = process.call(attempt.leader, until + JOIN_TIMEOUT);
                process.call.iter_mut().for_each(|call| call.is_report = true);
                self.post(place, attempt.leader, call, BusBody::Report { number: attempt.number });
                let joiner = self.processes[place as usize].joiner.as_mut().expect("it joins");
                joiner.handle_reported();
            }
            JoinerAction::Begin(admitted) => {
                let nodes = admitted.members.iter().filter_map(|(node, _)| self.numbers.node(*node));
                let contacts: Vec<NodeId> = nodes.collect();
                process.peers.clone_from(&contacts);
                let ((layout, settings), left) = (self.host.group_settings(), process.application.take());
                let application = self.host.application(place, process.node(), left);
                let mut group =
                    GroupCore::join(&mut process.fabric, &contacts, layout, settings, application);
                group.stand_by();
                process.group = Some(group);
            }
            JoinerAction::Abandon => self.abandon(place),
            JoinerAction::GiveUp(failure) => {
                self.abandon(place);
                self.processes[place as usize].joiner = None;
                self.given_up.push((place, failure));
            }
        }
    }

    fn abandon(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        process.call = None;
        process.told.forget();
        process.application = process.group.take().map(GroupCore::into_application);
        if let Some(attempt) = process.attempt.take() {
            self.world.crash(process.node().0);
            process.fabric = self.world.fabric(process.home.node().0);
            self.post(place, attempt.leader, 0, BusBody::Gone { number: attempt.number });
        }
    }

    /// Takes what has come to the process as a node of the group; returns how much. What comes while a joiner still links with
    /// the members waits for its group.
    pub(crate) fn poll_fabric(&mut self, place: u32) -> usize {
        let process = &mut self.processes[place as usize];
        if process.group.is_none() && process.attempt.is_none() {
            return 0;
        }
        process.fabric.poll(&mut |event| process.events.push(event))
    }

    /// Hands what was taken to the group and to the service, whose actions are taken at once: the next view may begin afterwards.
    pub(crate) fn handle_events(&mut self, place: u32) {
        if self.processes[place as usize].group.is_none() {
            return;
        }
        for event in std::mem::take(&mut self.processes[place as usize].events) {
            let process = &mut self.processes[place as usize];
            let Some(group) = &mut process.group else { return };
            group.handle_event(&mut process.fabric, &event);
            if let (FabricEvent::PeerLost { peer, .. }, Some(service)) = (&event, &mut process.service) {
                let is_member = group.membership().is_some_and(|of| of.view().rank(*peer).is_some());
                service.handle_peer_lost(self.numbers.number(*peer), is_member);
                self.take_actions(place);
            }
        }
    }

    /// Lets a member's service act.
    pub(crate) fn poll_service(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        let now = process.now();
        let (Some(service), Some(group)) = (&mut process.service, &process.group) else { return };
        let view = group.membership().map(|membership| membership.view());
        let node = |number| self.numbers.node(number);
        service.handle_timeout(now, |number| {
            node(number).is_some_and(|node| view.is_some_and(|view| view.rank(node).is_some()))
        });
        if let Some(membership) = group.membership().filter(|_| group.is_ready()) {
            let view = self.numbers.translate(membership.view());
            let takes = |tag| group.takes(tag);
            if process.seen.replace(view.id) == Some(view.id) {
                service.poll_view(&view, takes);
            } else {
                let has_lost = |number| self.numbers.node(number).is_some_and(|node| group.has_lost(node));
                let arrived = service.handle_view(&view, has_lost, takes);
                process.peers.extend(arrived.into_iter().filter_map(|number| self.numbers.node(number)));
                let members = membership.view().nodes();
                for departed in process.peers.extract_if(.., |peer| !members.contains(peer)) {
                    process.fabric.remove_peer(departed);
                }
            }
        }
        self.take_actions(place);
    }

    pub(super) fn take_actions(&mut self, place: u32) {
        while let Some(action) =
            self.processes[place as usize].service.as_mut().and_then(AdmissionService::poll_action)
        {
            self.serve(place, action);
        }
    }

    fn serve(&mut self, place: u32, action: AdmissionAction) {
        let process = &mut self.processes[place as usize];
        let Some(group) = &mut process.group else { return };
        self.world.note(process.home.node().0, format!("process {place}: {}", words::member(&action)));
        match action {
            AdmissionAction::Part(number, _) => {
                if let Some(node) = self.numbers.node(number) {
                    if group.membership().is_some_and(|of| of.view().rank(node).is_some()) {
                        let text =
                            format!("process {place} closes its link with {node}, which is in its view");
                        return self.fail("members keep their links", text);
                    }
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
