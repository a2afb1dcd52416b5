//! The role of a process that a contact has accepted (Derecho §2.2).

use std::collections::BTreeMap;

use squall_fabric::{Instant, NodeId};

use super::action::{
    AssembledGroup, AssemblyAction, AssemblyFailure, AssemblyProgress, LinkConnection, VisitorId,
};
use super::assembler::{Assembler, AssemblerCall, AssemblerRole};
use super::message::{AssemblyAnswer, AssemblyNotice, AssemblyRefusal, ReleaseReason};
use super::mutation;
use super::roster::Roster;
use crate::admission::CallFailure;
use crate::coverage::{Point, reach};

/// A coordinator that has not sent a roster yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FollowedCoordinator<A> {
    pub(super) at: A,
    /// When the latest notice arrived.
    pub(super) heard: Instant,
}

/// A received roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RosterBinding<A> {
    pub(super) following: FollowedCoordinator<A>,
    roster: Roster<A>,
    own: NodeId,
    links: BTreeMap<NodeId, LinkConnection>,
    has_reported: bool,
    /// When to try to link with the next member.
    link_at: Instant,
}

impl<A: Clone> RosterBinding<A> {
    fn others(&self) -> impl Iterator<Item = NodeId> {
        let (own, coordinator) = (self.own, self.roster.coordinator);
        self.roster.nodes().filter(move |node| *node != own && *node != coordinator)
    }

    /// Returns the member with which this process links next.
    fn next(&self) -> Option<NodeId> {
        self.others().find(|node| *node < self.own && !self.links.contains_key(node))
    }

    fn is_linked(&self) -> bool {
        self.others().all(|node| self.links.contains_key(&node))
    }

    /// Returns the failure at the deadline.
    pub(super) fn late(&self) -> AssemblyFailure<A> {
        match self.others().find(|node| !self.links.contains_key(node)) {
            Some(node) => AssemblyFailure::Unlinked(node, self.roster.address(node).clone()),
            // Links between other members are missing, and the coordinator has not said which.
            None => AssemblyFailure::Unready(Vec::new()),
        }
    }
}

impl<A: Clone + Ord, E: ToString> Assembler<A, E> {
    /// Follows a contact that has accepted this process.
    pub(super) fn follow(&mut self, now: Instant, contact: A) {
        if mutant!(FollowNobody) && self.gathers() {
            self.actions.push_back(AssemblyAction::Leave);
            return self.open(now);
        }
        if !self.followers.is_empty() {
            reach(Point::ContactYielded);
        }
        if !mutant!(KeepGathered) {
            self.release_all(&ReleaseReason::Redirect(contact.clone()));
        }
        let progress = AssemblyProgress::Following { contact: contact.clone() };
        self.actions.push_back(AssemblyAction::Progress(progress));
        self.role = AssemblerRole::Following(FollowedCoordinator { at: contact, heard: now });
        self.has_no_quorum = false;
    }

    /// Returns the coordinator that this process follows.
    fn following(&mut self) -> Option<&mut FollowedCoordinator<A>> {
        match &mut self.role {
            AssemblerRole::Following(following) => Some(following),
            AssemblerRole::Bound(binding) => Some(&mut binding.following),
            AssemblerRole::Open | AssemblerRole::Introducing(_) | AssemblerRole::Over => None,
        }
    }

    /// Handles a notice of the coordinator.
    pub fn handle_notice(&mut self, now: Instant, notice: AssemblyNotice<A>) {
        let Some(following) = self.following() else { return };
        following.heard = now;
        match notice {
            AssemblyNotice::Joined { joined } => {
                if std::mem::replace(&mut self.joined, joined) != joined {
                    self.actions.push_back(AssemblyAction::Progress(AssemblyProgress::Joined { joined }));
                }
            }
            AssemblyNotice::Roster { session, node, coordinator, listen } => {
                self.on_roster(now, Roster { session, coordinator, listen }, node);
            }
            AssemblyNotice::Go => self.on_go(),
            AssemblyNotice::Released(release) => self.on_released(now, release),
        }
    }

    fn on_roster(&mut self, now: Instant, mut roster: Roster<A>, own: NodeId) {
        let AssemblerRole::Following(following) = self.role.clone() else {
            return self.handle_nonsense("a second roster");
        };
        let members = self.settings.members;
        let is_sound = roster.listen.len() == members as usize
            && own.0 < members
            && roster.coordinator.0 < members
            && own != roster.coordinator
            && (self.settings.rank.is_none_or(|rank| rank == own.0) || mutant!(IgnoreRanks));
        if !is_sound {
            return self.handle_nonsense("an impossible roster");
        }
        // The coordinator's own address may be a wildcard, but this one has reached it.
        roster.listen[roster.coordinator.0 as usize] = following.at.clone();
        let links = BTreeMap::new();
        self.role = AssemblerRole::Bound(RosterBinding {
            following,
            roster,
            own,
            links,
            has_reported: false,
            link_at: now,
        });
        for (visitor, (session, node)) in std::mem::take(&mut self.early) {
            self.handle_link(visitor, session, node);
        }
        self.report_if_linked();
    }

    fn on_go(&mut self) {
        match std::mem::replace(&mut self.role, AssemblerRole::Over) {
            AssemblerRole::Bound(RosterBinding { roster, own, mut links, has_reported: true, .. }) => {
                links.insert(roster.coordinator, LinkConnection::Coordinator);
                self.actions.push_back(AssemblyAction::Begin(AssembledGroup { roster, node: own, links }));
            }
            before => {
                self.role = before;
                self.handle_nonsense("go before the report");
            }
        }
    }

    fn on_released(&mut self, now: Instant, release: ReleaseReason<A>) {
        let binding = match &self.role {
            AssemblerRole::Bound(binding) => Some(binding.clone()),
            _ => None,
        };
        let Some(FollowedCoordinator { at, .. }) = self.following().cloned() else { return };
        if binding.is_some() {
            self.actions.push_back(AssemblyAction::CloseLinks);
        }
        match release {
            ReleaseReason::MemberLost { listen, .. } if binding.is_some() => {
                self.actions
                    .push_back(AssemblyAction::Progress(AssemblyProgress::MemberLost { address: listen }));
                self.role = AssemblerRole::Following(FollowedCoordinator { at, heard: now });
            }
            ReleaseReason::MemberLost { .. } => {
                self.handle_nonsense("the loss of a member before the roster")
            }
            ReleaseReason::Redirect(contact) => {
                self.leave(now);
                if self.contacts.all().contains(&contact) {
                    self.ask_soon(now, contact);
                }
            }
            ReleaseReason::Running(contact) => {
                self.actions.push_back(AssemblyAction::Leave);
                self.join(contact);
            }
            ReleaseReason::Complete => {
                self.actions.push_back(AssemblyAction::Leave);
                self.join(at);
            }
            ReleaseReason::Unready(nodes) => {
                let named = binding.iter().flat_map(|binding| {
                    let known = nodes.iter().filter(|node| node.0 < self.settings.members);
                    known.map(|node| (*node, binding.roster.address(*node).clone()))
                });
                let failure = AssemblyFailure::Unready(named.collect());
                self.give_up(failure);
            }
        }
    }

    /// Handles a message of the coordinator that the protocol does not allow, or that the driver cannot read.
    pub fn handle_nonsense(&mut self, what: &'static str) {
        let Some(FollowedCoordinator { at, .. }) = self.following().cloned() else { return };
        self.give_up(AssemblyFailure::Nonsense(at, what));
    }

    /// Handles the end of the connection with the coordinator.
    pub fn handle_coordinator_lost(&mut self, now: Instant) {
        if let AssemblerRole::Bound(binding) = &self.role
            && binding.has_reported
            && !mutant!(ReportTwice)
        {
            // The others may have begun \[Q1\].
            reach(Point::CoordinatorLostLate);
            return self.give_up(AssemblyFailure::CoordinatorLost(binding.following.at.clone()));
        }
        if self.following().is_some() {
            self.leave(now);
        }
    }

    /// Leaves the coordinator, and asks the contacts again.
    fn leave(&mut self, now: Instant) {
        if matches!(self.role, AssemblerRole::Bound(_)) {
            self.actions.push_back(AssemblyAction::CloseLinks);
        }
        self.actions.push_back(AssemblyAction::Leave);
        self.open(now);
        self.introduce(now);
    }

    /// Leaves a coordinator that stalls, unless the others may have begun.
    pub(super) fn check_following(&mut self, now: Instant) {
        if self.silent_at().is_some_and(|at| now >= at) {
            reach(Point::SilentCoordinatorLeft);
            self.leave(now);
        }
    }

    /// Returns when to leave the coordinator if it stays silent.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let heard = match &self.role {
            AssemblerRole::Following(following) => following.heard,
            AssemblerRole::Bound(binding) if !binding.has_reported => binding.following.heard,
            _ => return None,
        };
        (!mutant!(StayWithSilent)).then(|| heard + self.settings.silence)
    }

    /// When to link with the next member.
    pub(super) fn link_at(&self) -> Option<Instant> {
        match &self.role {
            AssemblerRole::Bound(binding) if self.call.is_none() && binding.next().is_some() => {
                Some(binding.link_at)
            }
            _ => None,
        }
    }

    /// Links with the next member of a lower rank.
    pub(super) fn link(&mut self, now: Instant) {
        let AssemblerRole::Bound(binding) = &self.role else { return };
        let Some(node) = binding.next().filter(|_| now >= binding.link_at) else { return };
        let (session, address) = (binding.roster.session, binding.roster.address(node).clone());
        self.call = Some(AssemblerCall::Link { session, node });
        let until = self.deadline.min(now + self.settings.handshake);
        self.actions.push_back(AssemblyAction::Link { session, own: binding.own, node, address, until });
    }

    /// Handles that the requested link is established.
    pub fn handle_linked(&mut self, now: Instant) {
        let Some(AssemblerCall::Link { session: asked, node }) = self.call.take() else { return };
        match &mut self.role {
            AssemblerRole::Bound(binding)
                if binding.roster.session == asked && !binding.links.contains_key(&node) =>
            {
                binding.links.insert(node, LinkConnection::Called);
                binding.link_at = now;
                self.actions.push_back(AssemblyAction::Keep);
                self.report_if_linked();
            }
            _ => self.actions.push_back(AssemblyAction::Discard),
        }
    }

    /// Tries the link again later: if the member has died, the coordinator knows, and if it is unreachable, the
    /// coordinator continues without the members that have not reported.
    pub(super) fn on_link_failed(&mut self, now: Instant, asked: u64, node: NodeId, failure: CallFailure<E>) {
        let pause = self.settings.pauses[0];
        let AssemblerRole::Bound(binding) = &mut self.role else { return };
        if binding.roster.session != asked {
            return;
        }
        binding.link_at = now + pause;
        let contact = binding.roster.address(node).clone();
        self.report_obstacle(now, contact, failure.into_cause());
    }

    /// Handles the request for a link by a member that has proved the secret.
    pub fn handle_link(&mut self, visitor: VisitorId, asked: u64, node: NodeId) {
        let members = self.settings.members as usize;
        match &mut self.role {
            AssemblerRole::Bound(binding)
                if binding.roster.session == asked
                    && node > binding.own
                    && binding.others().any(|other| other == node)
                    && !binding.links.contains_key(&node) =>
            {
                binding.links.insert(node, LinkConnection::Visitor(visitor));
                self.actions.push_back(AssemblyAction::TakeLink(visitor));
                self.report_if_linked();
            }
            // The roster is on its way.
            AssemblerRole::Following(_) if self.early.len() < members => {
                self.early.insert(visitor, (asked, node));
            }
            _ => {
                let answer = AssemblyAnswer::Refused(AssemblyRefusal::OtherSession);
                self.actions.push_back(AssemblyAction::Answer(visitor, answer));
            }
        }
    }

    fn report_if_linked(&mut self) {
        if let AssemblerRole::Bound(binding) = &mut self.role
            && binding.is_linked()
            && !std::mem::replace(&mut binding.has_reported, true)
        {
            let session = binding.roster.session;
            self.actions.push_back(AssemblyAction::Report { session });
        }
    }
}
