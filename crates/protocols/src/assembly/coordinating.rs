//! The role of a process that gathers others (Derecho §2.2).

use std::collections::BTreeMap;

use squall_fabric::{Instant, NodeId};

use super::MEMBERS_MAX;
use super::action::{
    AssembledGroup, AssemblyAction, AssemblyFailure, AssemblyProgress, LinkConnection, VisitorId,
};
use super::assembler::{Assembler, AssemblerRole};
use super::message::{AssemblyAnswer, AssemblyClaim, AssemblyNotice, AssemblyRefusal, ReleaseReason};
use super::mutation;
use super::roster::{Roster, assign};
use crate::coverage::{Point, reach};

/// A gathered process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Follower<A> {
    rank: Option<u32>,
    listen: A,
    /// Its position on the list of contacts, if it is a contact.
    contact: Option<usize>,
    has_reported: bool,
}

/// A roster whose members are linking with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RosterIntroduction<A> {
    roster: Roster<A>,
    own: NodeId,
    members: BTreeMap<NodeId, VisitorId>,
    /// When the members that have not reported are given up.
    pub(super) until: Instant,
}

impl<A: Clone + Ord, E: ToString> Assembler<A, E> {
    /// Returns the number of gathered processes, this one included.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.followers.len() + 1).expect("at most MEMBERS_MAX")
    }

    /// Returns whether the planned number of processes has been gathered.
    pub(super) fn is_full(&self) -> bool {
        self.count() >= self.settings.members
    }

    /// Returns the number of contacts among the gathered processes and this one.
    pub(super) fn contacts_here(&self) -> u32 {
        u32::try_from(self.places().len()).expect("as many as processes at most")
    }

    pub(super) fn places(&self) -> Vec<usize> {
        self.followers.values().filter_map(|follower| follower.contact).chain(self.contacts.own()).collect()
    }

    /// Handles the claim of a process that has proved the secret.
    pub fn handle_claim(&mut self, now: Instant, visitor: VisitorId, claim: AssemblyClaim<A>) {
        let answer = match &self.role {
            AssemblerRole::Open => match self.judge(&claim) {
                None => return self.accept(now, visitor, claim),
                Some(answer) => {
                    // It precedes this process, which therefore asks it at once \[Q4\].
                    if let (AssemblyAnswer::Later(_), Some((place, _))) = (&answer, claim.contact)
                        && let Some(earlier) = self.contacts.all().get(place as usize).cloned()
                    {
                        self.ask_soon(now, earlier);
                    }
                    answer
                }
            },
            AssemblerRole::Following(following) => AssemblyAnswer::Redirect(following.at.clone()),
            AssemblerRole::Introducing(_) | AssemblerRole::Bound(_) => AssemblyAnswer::Later(LINKING.into()),
            AssemblerRole::Over => AssemblyAnswer::Later(ENDING.into()),
        };
        self.actions.push_back(AssemblyAction::Answer(visitor, answer));
    }

    /// Returns the answer if this process does not accept the claim.
    fn judge(&self, claim: &AssemblyClaim<A>) -> Option<AssemblyAnswer<A>> {
        let refused = |refusal| Some(AssemblyAnswer::Refused(refusal));
        if !self.gathers() || self.count() >= MEMBERS_MAX {
            return Some(AssemblyAnswer::Later(NO_CONTACT.into()));
        }
        let place = claim.contact.as_ref().map(|(place, _)| *place as usize);
        if place < self.contacts.own() && place.is_some() {
            return Some(AssemblyAnswer::Later(EARLIER.into()));
        }
        let members = self.settings.members;
        if claim.members != members {
            return refused(AssemblyRefusal::MemberCount { coordinator: members });
        }
        if claim.agreement != self.settings.agreement {
            return refused(AssemblyRefusal::Agreement);
        }
        if claim.contact.as_ref().is_some_and(|(_, all)| all != self.contacts.all()) {
            return refused(AssemblyRefusal::Contacts);
        }
        if place.is_some() && self.places().iter().any(|taken| Some(*taken) == place) {
            return Some(AssemblyAnswer::Later(TWICE.into()));
        }
        let mut wishes = self.followers.values().map(|follower| follower.rank).chain([self.settings.rank]);
        match claim.rank {
            Some(rank) if rank >= members => refused(AssemblyRefusal::RankOutOfRange { rank }),
            Some(rank) if wishes.any(|wish| wish == Some(rank)) => {
                refused(AssemblyRefusal::RankTaken { rank })
            }
            _ => None,
        }
    }

    fn accept(&mut self, now: Instant, visitor: VisitorId, claim: AssemblyClaim<A>) {
        let contact = claim.contact.map(|(place, _)| place as usize);
        let (rank, listen) = (claim.rank, claim.listen);
        self.followers.insert(visitor, Follower { rank, listen, contact, has_reported: false });
        self.actions.push_back(AssemblyAction::Answer(visitor, AssemblyAnswer::Accepted));
        self.announce(now);
        self.introduce(now);
    }

    /// Sends all followers the number of gathered processes.
    fn announce(&mut self, now: Instant) {
        self.announce_at = now + self.settings.silence / SIGNS;
        let joined = self.count();
        let notices = self.followers.keys().map(|follower| (*follower, AssemblyNotice::Joined { joined }));
        self.actions.extend(notices.map(|(follower, notice)| AssemblyAction::Notify(follower, notice)));
        if std::mem::replace(&mut self.joined, joined) != joined {
            self.actions.push_back(AssemblyAction::Progress(AssemblyProgress::Joined { joined }));
        }
    }

    /// Assigns the ranks and sends the roster, if all have been gathered.
    pub(super) fn introduce(&mut self, now: Instant) {
        if !self.gathers() || !self.is_full() {
            return;
        }
        let mut chosen: Vec<VisitorId> = self.followers.keys().copied().collect();
        // Contacts come first, because a quorum of them is needed.
        chosen.sort_by_key(|follower| self.followers[follower].contact.unwrap_or(usize::MAX));
        chosen.truncate(self.settings.members as usize - 1);
        let places = chosen.iter().filter_map(|follower| self.followers[follower].contact);
        let places: Vec<usize> = places.chain(self.contacts.own()).collect();
        if !self.contacts.is_quorum(&places, self.settings.members) && !mutant!(IgnoreQuorum) {
            reach(Point::QuorumAwaited);
            if !std::mem::replace(&mut self.has_no_quorum, true) {
                let progress = AssemblyProgress::NoQuorum { present: self.contacts_here() };
                self.actions.push_back(AssemblyAction::Progress(progress));
            }
            return;
        }
        chosen.sort_unstable();
        self.send_roster(now, &chosen);
    }

    fn send_roster(&mut self, now: Instant, chosen: &[VisitorId]) {
        let wishes: Vec<Option<u32>> = std::iter::once(self.settings.rank)
            .chain(chosen.iter().map(|follower| self.followers[follower].rank))
            .collect();
        let ranks = assign(&wishes);
        let own = NodeId(ranks[0]);
        let members: BTreeMap<NodeId, VisitorId> =
            ranks[1..].iter().copied().map(NodeId).zip(chosen.iter().copied()).collect();
        let address = |rank: u32| match members.get(&NodeId(rank)) {
            Some(follower) => self.followers[follower].listen.clone(),
            None => self.claim().listen,
        };
        let listen: Vec<A> = (0..self.settings.members).map(address).collect();
        let session = self.settings.nonce.wrapping_add(self.rosters);
        self.rosters += 1;
        for (node, follower) in &members {
            let notice =
                AssemblyNotice::Roster { session, node: *node, coordinator: own, listen: listen.clone() };
            self.actions.push_back(AssemblyAction::Notify(*follower, notice));
        }
        let roster = Roster { session, coordinator: own, listen };
        self.role = AssemblerRole::Introducing(RosterIntroduction {
            roster,
            own,
            members,
            until: now + self.settings.linking,
        });
        self.go_if_linked();
    }

    /// Handles the report of a gathered process that all its links of a session are established.
    pub fn handle_report(&mut self, visitor: VisitorId, session: u64) {
        let AssemblerRole::Introducing(introduction) = &self.role else { return };
        let is_present = introduction.roster.session == session || mutant!(TakeStaleReport);
        if let Some(follower) = self.followers.get_mut(&visitor).filter(|_| is_present) {
            follower.has_reported = true;
            self.go_if_linked();
        }
    }

    fn go_if_linked(&mut self) {
        let AssemblerRole::Introducing(introduction) = &self.role else { return };
        let waits = |follower: &&VisitorId| !self.followers[*follower].has_reported;
        let waiting = introduction.members.values().filter(waits).count();
        if waiting > usize::from(mutant!(GoTooSoon)) {
            return;
        }
        let AssemblerRole::Introducing(RosterIntroduction { roster, own, members, .. }) =
            std::mem::replace(&mut self.role, AssemblerRole::Over)
        else {
            unreachable!("seen above")
        };
        let links: BTreeMap<NodeId, LinkConnection> =
            members.into_iter().map(|(node, follower)| (node, LinkConnection::Visitor(follower))).collect();
        for follower in std::mem::take(&mut self.followers).into_keys() {
            let is_member = links.values().any(|link| *link == LinkConnection::Visitor(follower));
            let notice = if is_member {
                AssemblyNotice::Go
            } else {
                AssemblyNotice::Released(ReleaseReason::Complete)
            };
            self.actions.push_back(AssemblyAction::Notify(follower, notice));
            if !is_member {
                self.actions.push_back(AssemblyAction::Close(follower));
            }
        }
        self.actions.push_back(AssemblyAction::Begin(AssembledGroup { roster, node: own, links }));
    }

    /// Handles the end of the connection with a gathered process, or a message from it that the protocol does not
    /// allow. Links need not be watched: the coordinator notices the death of a member, and the group notices a
    /// broken link.
    pub fn handle_lost(&mut self, now: Instant, visitor: VisitorId) {
        let is_member = |introduction: &RosterIntroduction<A>| {
            introduction.members.iter().find(|(_, member)| **member == visitor).map(|(node, _)| *node)
        };
        match &self.role {
            AssemblerRole::Introducing(introduction) => match is_member(introduction) {
                Some(_) if mutant!(WaitForLost) => {}
                Some(node) => self.gather_again(now, &[node]),
                None => {
                    self.followers.remove(&visitor);
                }
            },
            AssemblerRole::Open
            | AssemblerRole::Following(_)
            | AssemblerRole::Bound(_)
            | AssemblerRole::Over => {
                if self.followers.remove(&visitor).is_some() {
                    self.actions.push_back(AssemblyAction::Progress(AssemblyProgress::Left(visitor)));
                    self.announce(now);
                }
            }
        }
    }

    /// Releases the members of the roster and gathers again, without the lost ones.
    fn gather_again(&mut self, now: Instant, lost: &[NodeId]) {
        let AssemblerRole::Introducing(introduction) = std::mem::replace(&mut self.role, AssemblerRole::Open)
        else {
            return;
        };
        reach(Point::GatheredAgain);
        for node in lost {
            let visitor = introduction.members[node];
            self.followers.remove(&visitor);
            self.actions.push_back(AssemblyAction::Close(visitor));
            let address = introduction.roster.address(*node).clone();
            self.actions.push_back(AssemblyAction::Progress(AssemblyProgress::MemberLost { address }));
        }
        let listen = introduction.roster.address(lost[0]).clone();
        for visitor in introduction.members.values() {
            let Some(follower) = self.followers.get_mut(visitor) else { continue };
            follower.has_reported = false;
            let release = ReleaseReason::MemberLost { node: lost[0], listen: listen.clone() };
            self.actions.push_back(AssemblyAction::Notify(*visitor, AssemblyNotice::Released(release)));
        }
        self.open(now);
        self.announce(now);
        self.introduce(now);
    }

    /// Sends signs of life, and gives up members that take too long.
    pub(super) fn check_coordinating(&mut self, now: Instant) {
        if let AssemblerRole::Introducing(introduction) = &self.role
            && now >= introduction.until
        {
            let late =
                introduction.members.iter().filter(|(_, visitor)| !self.followers[visitor].has_reported);
            let late: Vec<NodeId> = late.map(|(node, _)| *node).collect();
            self.gather_again(now, &late);
        }
        if !self.followers.is_empty() && now >= self.announce_at {
            self.announce(now);
        }
    }

    /// Ends because the time is over before all members have reported.
    pub(super) fn end_unready(&mut self) {
        let AssemblerRole::Introducing(introduction) = self.role.clone() else { return };
        let late = introduction.members.iter().filter(|(_, visitor)| !self.followers[visitor].has_reported);
        let late: Vec<NodeId> = late.map(|(node, _)| *node).collect();
        self.release_all(&ReleaseReason::Unready(late.clone()));
        let named = late.into_iter().map(|node| (node, introduction.roster.address(node).clone()));
        self.give_up(AssemblyFailure::Unready(named.collect()));
    }

    /// Releases all followers, and closes their connections.
    pub(super) fn release_all(&mut self, release: &ReleaseReason<A>) {
        for follower in std::mem::take(&mut self.followers).into_keys() {
            let notice = AssemblyNotice::Released(release.clone());
            self.actions.push_back(AssemblyAction::Notify(follower, notice));
            self.actions.push_back(AssemblyAction::Close(follower));
        }
    }
}

/// The number of signs of life in the time after which the followers of a silent coordinator leave it.
const SIGNS: u32 = 4;
const LINKING: &str = "its members are linking with each other";
const ENDING: &str = "it has just begun, or ended";
const NO_CONTACT: &str = "it is not a contact: give all processes the same `contacts`";
const EARLIER: &str = "it is later on the list of contacts";
const TWICE: &str = "another process claims the same contact: stop one of the two";
