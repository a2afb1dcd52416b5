//! A member's side of admission: which process is admitted, and under which number and rank (Derecho §3.3).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Duration, Instant, NodeId};

use super::links::{LinkVerdict, PendingLinks};
use super::message::{Admitted, JoinAnswer};
use super::mutation;
use super::number::{ADMISSIONS_MAX, NodeNumbers, NumbersExhausted, view_of};
use crate::coverage::{Point, reach};
use crate::membership::{MEMBERS_MAX, Member, View};

/// A member's side of admission. `A` is the type of the members' addresses.
///
/// **Law.** The driver hands in the requests and links of processes outside the group
/// ([`AdmissionService::handle_request`], [`AdmissionService::handle_link`]), the events of the candidate's
/// connection ([`AdmissionService::handle_connected`], [`AdmissionService::handle_gone`]), losses of peers
/// ([`AdmissionService::handle_peer_lost`]), each view as soon as all members have begun it
/// ([`AdmissionService::handle_view`]), and the time ([`AdmissionService::handle_timeout`], at
/// [`AdmissionService::next_deadline`] or earlier). After each of these, and from time to time once all members have
/// begun the view ([`AdmissionService::poll_view`]), it takes the actions ([`AdmissionService::poll_action`]) until
/// there are none.
#[derive(Debug)]
pub struct AdmissionService<A> {
    settings: AdmissionSettings,
    node: NodeId,
    /// Returns the addresses of the members, and of the processes that have linked.
    roster: BTreeMap<NodeId, A>,
    roster_changed: bool,
    /// The process that this member admitted and that is not a member yet. Only a leader has one.
    candidate: Option<Candidate>,
    /// The links of processes that are in no view.
    links: PendingLinks,
    numbers: NodeNumbers,
    /// The latest view that all members have begun, and its leader.
    latest: Option<(u64, NodeId)>,
    /// Numbers of views before this one were assigned by leaders that lead no more.
    outdated_before: u64,
    actions: VecDeque<AdmissionAction>,
}

/// The settings of admission, the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// The time in which a candidate must have linked with all members.
    pub candidate_life: Duration,
    /// How long a process that is in no view may keep its link. It covers the time that a candidate takes to link,
    /// and the time that views take when members fail meanwhile.
    pub link_life: Duration,
    /// The number of processes that a leader admits in one view; at most [`ADMISSIONS_MAX`].
    pub admissions_max: u32,
    /// The most members that a view may have; at most [`MEMBERS_MAX`].
    pub members_max: usize,
}

impl Default for AdmissionSettings {
    /// Returns ten seconds, two minutes, all numbers of a view, and [`MEMBERS_MAX`].
    fn default() -> Self {
        Self {
            candidate_life: Duration::from_secs(10),
            link_life: Duration::from_secs(120),
            admissions_max: ADMISSIONS_MAX,
            members_max: MEMBERS_MAX,
        }
    }
}

/// A process that has been admitted.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    node: NodeId,
    rank: u64,
    /// Whether it has reported that all its links are established.
    is_connected: bool,
    /// The view in which the group was asked to admit it.
    proposed_in: Option<u64>,
    /// The deadline for its links.
    until: Instant,
}

/// An action for the driver to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionAction {
    /// Removes this process, which is in no view, from the fabric. The text says why.
    Part(NodeId, &'static str),
    /// Reports to the group that this member has lost the process, or has no link with it \[J3\].
    ReportLost(NodeId),
    /// Closes the connection of the process that this member admitted.
    Dismiss(NodeId),
    /// Proposes the process for the next view.
    Admit(Member),
    /// Asks the group for the next view, with the same members \[J1\].
    Renew,
}

impl<A: Clone> AdmissionService<A> {
    /// Returns the service of member `node`, which knows the addresses in `roster`.
    #[must_use]
    pub fn new(settings: AdmissionSettings, node: NodeId, roster: BTreeMap<NodeId, A>) -> Self {
        let (links, numbers) = (PendingLinks::new(settings.link_life), NodeNumbers::default());
        let actions = VecDeque::new();
        Self {
            settings,
            node,
            roster,
            roster_changed: true,
            candidate: None,
            links,
            numbers,
            latest: None,
            outdated_before: 0,
            actions,
        }
    }

    /// Returns the addresses of the members, and of the processes that have linked.
    #[must_use]
    pub const fn roster(&self) -> &BTreeMap<NodeId, A> {
        &self.roster
    }

    /// Returns whether the roster has changed since the last call.
    pub const fn take_roster_change(&mut self) -> bool {
        std::mem::replace(&mut self.roster_changed, false)
    }

    /// Returns the number of linked processes that are in no view.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Returns the process that this member admitted and that is not a member yet.
    #[must_use]
    pub fn candidate(&self) -> Option<NodeId> {
        self.candidate.map(|candidate| candidate.node)
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<AdmissionAction> {
        self.actions.pop_front()
    }

    /// Handles a request to join, with the rank that the process asks for, if any. `view` is the group's view, or
    /// `None` if the group has ended at this member; `is_ready` says whether messages flow in the view, and `takes`
    /// whether the group can have a further member with a rank, which no member has: with genuine multicast only if
    /// there is the state that such a member needs \[G14\].
    pub fn handle_request(
        &mut self,
        now: Instant,
        rank: Option<u64>,
        view: Option<&View>,
        is_ready: bool,
        takes: impl Fn(u64) -> bool,
    ) -> JoinAnswer<A> {
        let wait = |reason: &str| JoinAnswer::Wait(reason.into());
        let Some(view) = view else { return wait("its group has ended") };
        let leader = view.members[0].node;
        if leader != self.node && !mutant!(AdmitEverywhere) {
            reach(Point::JoinRedirected);
            return self
                .roster
                .get(&leader)
                .cloned()
                .map_or_else(|| wait(WITHOUT_LEADER), JoinAnswer::Redirect);
        }
        if !is_ready {
            return wait("its view is changing");
        }
        self.handle_timeout(now, |node| view.rank(node).is_some());
        if self.candidate.is_some() && !mutant!(AdmitTwo) {
            reach(Point::JoinDeferred);
            return wait("another process is joining");
        }
        let most = self.settings.members_max;
        if view.members.len() >= most {
            let text = format!("its group has {most} members, which is the maximum");
            return JoinAnswer::Refuse(text);
        }
        match free_rank(rank, view, takes) {
            Ok(rank) => self.admit(now, rank, view),
            Err(reason) => JoinAnswer::Wait(reason),
        }
    }

    fn admit(&mut self, now: Instant, rank: u64, view: &View) -> JoinAnswer<A> {
        let member = |node: NodeId| Some((node, self.roster.get(&node)?.clone()));
        let Some(members) = view.nodes().into_iter().map(member).collect::<Option<Vec<_>>>() else {
            return JoinAnswer::Wait("it does not know the addresses of all members yet".into());
        };
        let node = match self.numbers.next(view.id, self.settings.admissions_max) {
            Ok(node) => node,
            Err(NumbersExhausted::Group) => {
                return JoinAnswer::Refuse(
                    "its group has used up all node numbers: restart the group".into(),
                );
            }
            Err(NumbersExhausted::View) => {
                reach(Point::NumbersRenewed);
                if !mutant!(NeverRenew) {
                    self.actions.push_back(AdmissionAction::Renew);
                }
                return JoinAnswer::Wait("it needs a new view for further node numbers".into());
            }
        };
        reach(Point::Admitted);
        let until = now + self.settings.candidate_life;
        self.candidate = Some(Candidate { node, rank, is_connected: false, proposed_in: None, until });
        JoinAnswer::Admit(Admitted { node, rank, leader: self.node, members })
    }

    /// Handles a new link of a process that calls itself `node` and gives `address` as its address. `view` is the
    /// group's view, whether or not all members have begun it; `is_lost` says whether the group has lost the node
    /// before.
    pub fn handle_link(
        &mut self,
        now: Instant,
        node: NodeId,
        address: A,
        view: &View,
        is_lost: bool,
    ) -> LinkVerdict {
        self.handle_timeout(now, |node| view.rank(node).is_some());
        // A member has its links already, even if its first view has only just begun. A process that the group has
        // lost would be suspected as soon as it became a member, so it has to ask for another number.
        let is_about_to_be = self.actions.contains(&AdmissionAction::ReportLost(node));
        let is_lost = (is_lost || is_about_to_be) && !mutant!(TakeLost);
        let verdict = match view.rank(node).is_some() || is_lost || self.is_outdated(node) {
            true => LinkVerdict::Close,
            false => self.links.judge(node, self.roster.contains_key(&node), view.id, now),
        };
        match verdict {
            LinkVerdict::Take => {
                self.roster.insert(node, address);
                self.roster_changed = true;
            }
            LinkVerdict::Close => reach(Point::LinkClosed),
            LinkVerdict::Report => {
                reach(Point::LinkReported);
                self.forget(node, "a second link uses its number, or there are too many links");
                self.report_lost(node);
            }
        }
        verdict
    }

    /// Returns whether the leader that assigned this number leads no more: no view will come with it \[J11\].
    fn is_outdated(&self, node: NodeId) -> bool {
        view_of(node).is_some_and(|given| given < self.outdated_before) && !mutant!(KeepOutdated)
    }

    /// Returns whether this member has accepted the link of `node` and still has it.
    #[must_use]
    pub fn has_taken(&self, node: NodeId, view: &View) -> bool {
        self.links.contains(node) || view.rank(node).is_some() && self.roster.contains_key(&node)
    }

    /// Handles that the fabric has not accepted the link, or has nothing left of it.
    pub fn handle_link_failed(&mut self, node: NodeId) {
        self.links.remove(node);
        self.strike_off(node);
        self.report_lost(node);
    }

    fn report_lost(&mut self, node: NodeId) {
        mutant!(RefuseSilently => return);
        self.actions.push_back(AdmissionAction::ReportLost(node));
    }

    /// Handles the report of candidate `node` that all its links are established.
    pub fn handle_connected(&mut self, node: NodeId) {
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.node == node) {
            candidate.is_connected = true;
        }
    }

    /// Handles the end of the connection of candidate `node`. If it has not reported, it is no candidate any more.
    pub fn handle_gone(&mut self, node: NodeId) {
        let has_gone =
            self.candidate.is_some_and(|candidate| candidate.node == node && !candidate.is_connected);
        if has_gone && !mutant!(KeepCandidate) {
            reach(Point::CandidateGone);
            self.candidate = None;
        }
    }

    /// Handles that the fabric has lost this node; `is_member` says whether it is in the group's view, whether or not all members have
    /// begun that. A member's link is left to the group, which uses it until the next view \[J10\].
    pub fn handle_peer_lost(&mut self, node: NodeId, is_member: bool) {
        if is_member && !mutant!(PartMember) {
            if self.links.contains(node) {
                reach(Point::JoinerLostEarly);
            }
            return;
        }
        self.forget(node, "its link has ended");
    }

    /// Removes the link and the candidacy of a process that is in no view.
    fn forget(&mut self, node: NodeId, why: &'static str) {
        if self.links.remove(node) {
            self.part(node, why);
        }
        self.candidate = self.candidate.filter(|candidate| candidate.node != node || mutant!(KeepCandidate));
    }

    fn part(&mut self, node: NodeId, why: &'static str) {
        self.strike_off(node);
        self.actions.push_back(AdmissionAction::Part(node, why));
    }

    fn strike_off(&mut self, node: NodeId) {
        self.roster_changed |= self.roster.remove(&node).is_some();
    }

    /// Handles that all members have begun `view`. Returns the members whose links were pending here; the driver
    /// counts them among its peers. `has_lost` says whether the group has lost a process that was a member of an
    /// earlier view; `takes` is as for [`AdmissionService::handle_request`].
    ///
    /// A joiner may have been a member only of a view that ended before all members had begun it. It can ask again as
    /// soon as it sees that its links have ended.
    pub fn handle_view(
        &mut self,
        view: &View,
        has_lost: impl Fn(NodeId) -> bool,
        takes: impl Fn(u64) -> bool,
    ) -> Vec<NodeId> {
        let is_member = |node: NodeId| view.rank(node).is_some() && !mutant!(PartMember);
        for node in self.links.take(|node| has_lost(node) && !is_member(node)) {
            reach(Point::JoinerRemoved);
            self.part(node, "it was removed before its first view had begun");
        }
        self.candidate = self.candidate.filter(|candidate| !has_lost(candidate.node));
        let latest = self.latest.replace((view.id, view.members[0].node));
        if let Some((earlier, _)) = latest.filter(|(_, leader)| *leader != view.members[0].node) {
            self.outdated_before = earlier + 1;
        }
        let is_outdated = |node: &NodeId| self.is_outdated(*node) && !is_member(*node);
        for node in self.links.nodes().filter(is_outdated).collect::<Vec<_>>() {
            reach(Point::JoinerOutdated);
            self.forget(node, "the leader that admitted it leads no more");
        }
        let arrived = self.links.take(|node| view.rank(node).is_some());
        let links = &self.links;
        self.roster.retain(|node, _| view.rank(*node).is_some() || links.contains(*node));
        self.roster_changed = true;
        self.poll_view(view, takes);
        arrived
    }

    /// Proposes the candidate for the next view, or forgets it if it is a member of this view. The driver calls this
    /// from time to time while messages flow in `view`; `takes` is as for [`AdmissionService::handle_request`].
    ///
    /// A candidate that the group takes no more loses its link with this member, and asks again.
    pub fn poll_view(&mut self, view: &View, takes: impl Fn(u64) -> bool) {
        let Some(mut candidate) = self.candidate else { return };
        if view.rank(candidate.node).is_some() {
            self.candidate = None;
        } else if view.members[0].node != self.node && !mutant!(AdmitEverywhere) {
            self.forget(candidate.node, "another member is the leader now");
            self.candidate = None;
        } else if candidate.is_connected && candidate.proposed_in != Some(view.id) {
            if !takes(candidate.rank) {
                reach(Point::CandidateUntaken);
                self.forget(candidate.node, "no member has the state that it needs any more");
                self.candidate = None;
                return;
            }
            candidate.proposed_in = Some(view.id);
            self.candidate = Some(candidate);
            let member = Member { node: candidate.node, tag: candidate.rank };
            self.actions.push_back(AdmissionAction::Admit(member));
        }
    }

    /// Closes the links, and dismisses the candidate, whose time is over; `is_member` says whether a process is in the group's view.
    pub fn handle_timeout(&mut self, now: Instant, is_member: impl Fn(NodeId) -> bool) {
        for node in self.links.take_expired(now, |node| is_member(node) && !mutant!(PartMember)) {
            reach(Point::LinkExpired);
            self.part(node, "it did not become a member in time");
            self.candidate = self.candidate.filter(|candidate| candidate.node != node);
        }
        let is_over = |candidate: &Candidate| !candidate.is_connected && candidate.until <= now;
        if let Some(candidate) = self.candidate.filter(is_over)
            && !mutant!(KeepCandidate)
        {
            reach(Point::CandidateLate);
            self.candidate = None;
            self.actions.push_back(AdmissionAction::Dismiss(candidate.node));
        }
    }

    /// Returns when to call [`AdmissionService::handle_timeout`] if there is no input before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let candidate = self.candidate.filter(|candidate| !candidate.is_connected && !mutant!(KeepCandidate));
        [self.links.next_deadline(), candidate.map(|candidate| candidate.until)].into_iter().flatten().min()
    }
}

/// Returns the rank of a candidate: the one that it asks for, or the lowest that no member has \[J2\], of those with which the
/// group takes a member.
///
/// # Errors
/// Returns why there is none.
fn free_rank(rank: Option<u64>, view: &View, takes: impl Fn(u64) -> bool) -> Result<u64, String> {
    let holder = |rank: u64| view.members.iter().find(|member| member.tag == rank);
    let Some(rank) = rank else {
        // The view has a place, so it leaves one of these ranks free.
        let lowest = (0..MEMBERS_MAX as u64).find(|rank| holder(*rank).is_none() && takes(*rank));
        return lowest.ok_or_else(|| {
            reach(Point::JoinUntaken);
            "no member has a state that a further member needs".into()
        });
    };
    if let Some(member) = holder(rank).filter(|_| !mutant!(AdmitTakenRank)) {
        let Member { node, tag } = member;
        return Err(format!("{node} has rank {tag}: stop that process, or ask for another rank"));
    }
    if takes(rank) {
        return Ok(rank);
    }
    reach(Point::JoinUntaken);
    Err(format!("no member has the state that a member with rank {rank} needs: ask for another rank"))
}

/// The reason that a member gives when it cannot redirect.
const WITHOUT_LEADER: &str = "it does not know the leader's address yet";

#[cfg(test)]
mod tests;
