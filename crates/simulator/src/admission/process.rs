//! A process of a run: it joins, is a member, and ends (Derecho §3.3).

use squall_fabric::sim::SimFabric;
use squall_fabric::{Core, Duration, Fabric as _, FabricEvent, Instant, NodeId};
use squall_protocols::admission::{AdmissionService, JoinStanding, Joiner};
use squall_protocols::group::{GroupApplication, GroupCore, GroupEnd};
use squall_protocols::membership::View;

use super::story::ToldProcess;

/// A call that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCall {
    pub(crate) number: u64,
    pub(crate) to: u32,
    /// By the clock of the process.
    pub(crate) until: Instant,
    pub(crate) is_report: bool,
}

/// What a joiner has of the group: a number, and a node of the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinAttempt {
    pub(crate) number: NodeId,
    /// The process that has admitted it.
    pub(crate) leader: u32,
    pub(crate) leader_node: NodeId,
}

pub(crate) struct JoinProcess<A: GroupApplication> {
    pub(crate) place: u32,
    /// Its processor, and the clock of its joiner.
    pub(crate) home: SimFabric,
    /// It runs, and listens for others.
    pub(crate) is_up: bool,
    pub(crate) joiner: Option<Joiner<u32, String>>,
    /// When it has begun to join, by the world's clock.
    pub(crate) started: Instant,
    pub(crate) call: Option<PendingCall>,
    pub(crate) calls: u64,
    pub(crate) attempt: Option<JoinAttempt>,
    /// Its node in the group.
    pub(crate) fabric: SimFabric,
    pub(crate) events: Vec<FabricEvent>,
    pub(crate) group: Option<GroupCore<A>>,
    /// What a failed attempt has left of its application.
    pub(crate) application: Option<A>,
    pub(crate) service: Option<AdmissionService<u32>>,
    /// The nodes with which it has links as a member.
    pub(crate) peers: Vec<NodeId>,
    /// How often its link with the leader has broken as it reported: the others then continue without it.
    pub(crate) links_broken: u32,
    /// The latest view that was ready.
    pub(crate) seen: Option<u64>,
    pub(super) told: ToldProcess,
}

impl<A: GroupApplication> JoinProcess<A> {
    /// A process that has not started.
    pub(crate) fn new(place: u32, home: SimFabric, fabric: SimFabric) -> Self {
        let started = Instant::from_nanos(0);
        Self {
            place,
            home,
            is_up: false,
            joiner: None,
            started,
            call: None,
            calls: 0,
            attempt: None,
            fabric,
            events: Vec::new(),
            group: None,
            application: None,
            service: None,
            peers: Vec::new(),
            links_broken: 0,
            seen: None,
            told: ToldProcess::default(),
        }
    }

    /// Its nodes in the world: its processor, and what it is in the group.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let (home, node) = (self.home.node().0, self.fabric.node().0);
        if home == node { vec![home] } else { vec![home, node] }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.fabric.node()
    }

    /// By the clock of its processor.
    pub(crate) fn now(&self) -> Instant {
        self.home.now()
    }

    /// By the clock of its node in the group.
    pub(crate) fn member_now(&self) -> Instant {
        self.fabric.now()
    }

    pub(crate) fn view(&self) -> Option<&View> {
        Some(self.group.as_ref()?.membership()?.view())
    }

    /// Its application, once it is a member.
    pub(crate) fn member(&self) -> Option<&A> {
        self.group.as_ref().filter(|_| self.joiner.is_none()).map(GroupCore::application_ref)
    }

    /// When each of its nodes has something to do, by its own clock; `next` is how long from now the next message comes, `home`
    /// and `member` are what its program has to do at its processor and in the group.
    pub(crate) fn deadlines(
        &self,
        next: Option<Duration>,
        home: Option<Instant>,
        member: Option<Instant>,
    ) -> Vec<(u32, Option<Instant>)> {
        let joiner = self.joiner.as_ref().and_then(|joiner| joiner.next_deadline());
        let call = self.call.map(|call| call.until);
        let service = self.service.as_ref().and_then(AdmissionService::next_deadline);
        let message = next.map(|next| self.now() + next + Duration::from_nanos(1));
        let home = [joiner, call, service, message, home].into_iter().flatten().min();
        let group = self.group.as_ref().and_then(Core::<SimFabric>::next_deadline);
        let group = group.into_iter().chain(member).min();
        match self.nodes()[..] {
            [node] => vec![(node, home.into_iter().chain(group).min())],
            [ref home_node @ .., node] => vec![(home_node[0], home), (node, group)],
            [] => Vec::new(),
        }
    }

    /// Calls another process.
    pub(super) fn call(&mut self, to: u32, until: Instant) -> u64 {
        self.calls += 1;
        self.call = Some(PendingCall { number: self.calls, to, until, is_report: false });
        self.calls
    }

    /// How it stands as a joiner; `has_seen_all`: nothing that has come so far waits for it.
    pub(super) fn standing(&self, has_seen_all: bool) -> Option<JoinStanding> {
        let group = self.group.as_ref()?;
        let leader = self.attempt.map(|attempt| attempt.leader_node);
        Some(match (group.ended(), group.membership()) {
            (Some(GroupEnd::Stopped(stop)), _) => JoinStanding::Removed(stop),
            (Some(GroupEnd::NobodyLeft), _) => JoinStanding::Alone,
            (Some(_), _) => JoinStanding::Failed,
            (None, None) => {
                JoinStanding::Waiting { has_lost_leader: leader.is_some_and(|leader| group.has_lost(leader)) }
            }
            (None, Some(_)) if group.is_ready() && has_seen_all => JoinStanding::Ready,
            (None, Some(_)) => JoinStanding::Opening,
        })
    }
}
