//! Drives a member's side of admission ([`squall_protocols::admission`]) on its polling thread: hands events of the
//! member's admission listener to the core, and carries out the core's actions (Derecho §3.3).

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use squall_fabric::{BreakReason, Core as _, Fabric as _, FabricEvent, Instant, NodeId};
use squall_protocols::admission::{
    AdmissionAction, AdmissionService, AdmissionSettings, Admitted, JoinAnswer, LinkVerdict,
};
use squall_protocols::group::GroupCore;
use squall_protocols::membership::View;
use squall_transports::TransportFabric as _;
use squall_transports::bootstrap::{
    self, Address, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, BootstrapError, JoinInfo,
};
use squall_transports::log;
use squall_transports::session::PeerStream;

use crate::application::GroupHandles;
use crate::config::Config;
use crate::entry::listener::AnyListener;
use crate::operate::inquiry::JoinToken;
use crate::status::GroupStatus;
use crate::transport::{AnyFabric, AnyStream};

/// The admission listener of a member, and the core that decides there.
#[derive(Debug)]
pub(crate) struct MemberAdmission {
    // Declared before the admission listener so that it is dropped first; otherwise the listener would wait for it.
    events: AnyEvents,
    listener: AdmissionListener,
    service: AdmissionService<Address>,
    /// Holds a copy of the roster, which application threads read.
    status: Arc<GroupStatus>,
}

#[derive(Debug)]
enum AnyEvents {
    Unix(AdmissionEvents<UnixStream>),
    Tcp(AdmissionEvents<PeerStream>),
}

impl MemberAdmission {
    /// Opens the admission listener of a member. The roster in `status` has the members' addresses.
    pub(crate) fn open(
        listener: AnyListener,
        config: &Config,
        session: u64,
        status: Arc<GroupStatus>,
        fabric: &AnyFabric,
    ) -> Result<Self, BootstrapError> {
        let (mut plan, waker) = (config.plan(), fabric.waker());
        (plan.services, plan.links) = (status.services().clone(), status.links().clone());
        *status.listen() = Some(listener.address().clone());
        let (admission_listener, events) = match listener {
            AnyListener::Unix(listener) => {
                let (admission_listener, events) = AdmissionListener::open(listener, &plan, session, waker)?;
                (admission_listener, AnyEvents::Unix(events))
            }
            AnyListener::Tcp(listener) => {
                let (admission_listener, events) = AdmissionListener::open(listener, &plan, session, waker)?;
                (admission_listener, AnyEvents::Tcp(events))
            }
        };
        let roster = status.roster().clone();
        let service = AdmissionService::new(AdmissionSettings::default(), fabric.node(), roster);
        Ok(Self { events, listener: admission_listener, service, status })
    }

    /// Processes what has arrived; returns a question that is not about joining. It costs one load when nothing has
    /// arrived.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        fabric: &mut AnyFabric,
        group: &mut GroupCore<GroupHandles>,
    ) -> Option<(Asker, Vec<u8>)> {
        loop {
            let event = match &mut self.events {
                AnyEvents::Unix(events) => {
                    events.poll_event().map(|event| with_any_stream(event, AnyStream::Unix))
                }
                AnyEvents::Tcp(events) => {
                    events.poll_event().map(|event| with_any_stream(event, AnyStream::Tcp))
                }
            }?;
            if let Some(question) = self.handle(event, fabric, group) {
                return Some(question);
            }
        }
    }

    #[cold]
    fn handle(
        &mut self,
        event: AdmissionEvent<AnyStream>,
        fabric: &mut AnyFabric,
        group: &mut GroupCore<GroupHandles>,
    ) -> Option<(Asker, Vec<u8>)> {
        match event {
            AdmissionEvent::JoinAsked { asker, info } => self.on_join_asked(asker, &info, fabric, group),
            AdmissionEvent::LinkAsked { asker, node, address } => {
                self.on_link_asked(asker, node, address, fabric, group);
            }
            AdmissionEvent::Peer { node, address, stream } => {
                self.on_peer(node, address, stream, fabric, group)
            }
            AdmissionEvent::LinkFailed { node } => self.service.handle_link_failed(node),
            AdmissionEvent::Connected { node } => {
                self.service.handle_connected(node);
                if let Some(membership) = group.membership().filter(|_| group.is_ready()) {
                    self.service.poll_view(membership.view(), |tag| group.takes(tag));
                }
            }
            AdmissionEvent::Gone { node } => self.service.handle_gone(node),
            AdmissionEvent::StatusAsked { asker, question } => return Some((asker, question)),
            // Other kinds are meant for later versions.
            _ => {}
        }
        self.act(fabric, group);
        None
    }

    fn on_join_asked(
        &mut self,
        asker: Asker,
        info: &JoinInfo,
        fabric: &AnyFabric,
        group: &GroupCore<GroupHandles>,
    ) {
        let (rank, view) = (info.rank.map(u64::from), group.membership().map(|membership| membership.view()));
        match self.service.handle_request(fabric.now(), rank, view, group.is_ready(), |tag| group.takes(tag))
        {
            JoinAnswer::Redirect(leader) => asker.redirect(&leader),
            JoinAnswer::Wait(reason) => asker.wait(&reason),
            JoinAnswer::Refuse(reason) => asker.refuse(&reason),
            JoinAnswer::Admit(Admitted { node, rank, leader, members }) => {
                let members =
                    members.into_iter().map(|(node, address)| bootstrap::BootstrapMember { node, address });
                let token = postcard::to_stdvec(&JoinToken { rank }).expect("a number serialises");
                asker.admit(&bootstrap::Admission { node, leader, members: members.collect(), token });
            }
        }
    }

    fn on_link_asked(
        &mut self,
        asker: Asker,
        node: NodeId,
        address: Address,
        fabric: &AnyFabric,
        group: &GroupCore<GroupHandles>,
    ) {
        match self.judge_link(node, address, fabric, group) {
            Some(LinkVerdict::Take) => asker.take_link(node),
            Some(verdict) => asker.refuse(&verdict.to_string()),
            None => asker.wait("the member's group has ended"),
        }
    }

    /// Returns whether the link of a process is taken; `None` if the group has ended.
    fn judge_link(
        &mut self,
        node: NodeId,
        address: Address,
        fabric: &AnyFabric,
        group: &GroupCore<GroupHandles>,
    ) -> Option<LinkVerdict> {
        let (view, is_lost) = (group.membership()?.view(), group.has_lost(node));
        let text = address.to_string();
        let verdict = self.service.handle_link(fabric.now(), node, address, view, is_lost);
        if verdict != LinkVerdict::Take {
            log::warn!(%node, address = text, "refused a link: {verdict}");
        }
        Some(verdict)
    }

    fn on_peer(
        &mut self,
        node: NodeId,
        address: Address,
        stream: AnyStream,
        fabric: &mut AnyFabric,
        group: &GroupCore<GroupHandles>,
    ) {
        let Some(membership) = group.membership() else { return };
        let text = address.to_string();
        let is_taken = self.service.has_taken(node, membership.view());
        // The connection over which it was admitted here is its link with this member.
        let is_candidate = self.service.candidate() == Some(node);
        let takes = is_taken
            || is_candidate && self.judge_link(node, address, fabric, group) == Some(LinkVerdict::Take);
        if !takes {
            return log::warn!(%node, address = text, "closed the link of a process that was given up");
        }
        if let Err(error) = fabric.add_peer(node, stream) {
            log::warn!(%node, address = text, %error, "failed to add the link of a joiner");
            self.service.handle_link_failed(node);
        }
    }

    /// Ends what has taken too long; it is called occasionally.
    pub(crate) fn handle_timeout(&mut self, fabric: &mut AnyFabric, group: &mut GroupCore<GroupHandles>) {
        let view = group.membership().map(|membership| membership.view());
        self.service.handle_timeout(fabric.now(), |node| view.is_some_and(|view| view.rank(node).is_some()));
        self.act(fabric, group);
    }

    /// Returns the time at which there is something to do without an event.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.service.next_deadline()
    }

    /// Handles an event of the fabric.
    pub(crate) fn handle_event(
        &mut self,
        event: &FabricEvent,
        fabric: &mut AnyFabric,
        group: &mut GroupCore<GroupHandles>,
    ) {
        if let FabricEvent::PeerLost { peer, .. } = event {
            let is_member =
                group.membership().is_some_and(|membership| membership.view().rank(*peer).is_some());
            self.service.handle_peer_lost(*peer, is_member);
            self.act(fabric, group);
        }
    }

    /// Begins a view, once all members have begun it. Returns the members that were joiners.
    pub(crate) fn begin_view(
        &mut self,
        view: &View,
        fabric: &mut AnyFabric,
        group: &mut GroupCore<GroupHandles>,
    ) -> Vec<NodeId> {
        let arrived = self.service.handle_view(view, |node| group.has_lost(node), |tag| group.takes(tag));
        self.act(fabric, group);
        arrived
    }

    /// Puts the candidate into the next view, or notes that it has entered this one; it is called occasionally while
    /// messages flow.
    pub(crate) fn poll_view(&mut self, fabric: &mut AnyFabric, group: &mut GroupCore<GroupHandles>) {
        let Some(membership) = group.membership() else { return };
        self.service.poll_view(membership.view(), |tag| group.takes(tag));
        self.act(fabric, group);
    }

    /// Carries out the core's actions.
    fn act(&mut self, fabric: &mut AnyFabric, group: &mut GroupCore<GroupHandles>) {
        while let Some(action) = self.service.poll_action() {
            match action {
                AdmissionAction::Part(node, why) => {
                    log::info!(%node, why, "closed the link of a process that is not a member");
                    fabric.remove_peer(node);
                }
                AdmissionAction::ReportLost(peer) => {
                    let lost = FabricEvent::PeerLost { peer, reason: BreakReason::PeerClosed };
                    group.handle_event(fabric, &lost);
                }
                AdmissionAction::Dismiss(node) => self.listener.dismiss(node),
                AdmissionAction::Admit(member) => group.admit(member),
                AdmissionAction::Renew => group.renew(),
            }
        }
        if self.service.take_roster_change() {
            self.status.set_roster(self.service.roster().clone());
        }
    }
}

fn with_any_stream<S>(event: AdmissionEvent<S>, any: fn(S) -> AnyStream) -> AdmissionEvent<AnyStream> {
    match event {
        AdmissionEvent::LinkAsked { asker, node, address } => {
            AdmissionEvent::LinkAsked { asker, node, address }
        }
        AdmissionEvent::Peer { node, address, stream } => {
            AdmissionEvent::Peer { node, address, stream: any(stream) }
        }
        AdmissionEvent::LinkFailed { node } => AdmissionEvent::LinkFailed { node },
        AdmissionEvent::JoinAsked { asker, info } => AdmissionEvent::JoinAsked { asker, info },
        AdmissionEvent::Connected { node } => AdmissionEvent::Connected { node },
        AdmissionEvent::Gone { node } => AdmissionEvent::Gone { node },
        AdmissionEvent::StatusAsked { asker, question } => AdmissionEvent::StatusAsked { asker, question },
        _ => unreachable!("all kinds of events are handled above"),
    }
}
