//! How a member of a running view ends it: wedge, propose, echo, decide (Derecho §3.4), with votes in the register.

use squall_fabric::{Instant, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{
    Ballot, DurableView, ViewEnd, Vote, copies_needed, is_decided, live_end, may_echo, wedge_counts,
};

use super::live::{LiveAction, LiveContext, LiveMember, LiveRow};

impl LiveMember {
    pub(super) fn change(&mut self, context: &mut LiveContext<'_>) {
        let (own, all) = (self.own_rank(), self.record().view.ranks());
        let before = self.suspected;
        let is_accused = self.take_over_suspicions(own, all);
        let is_ahead = context.now < self.ahead_until;
        let stay = all - self.suspected;
        if is_accused || !self.suspected.is_empty() && !self.can_continue(stay) {
            // A process that is ahead reports how the view has ended.
            self.actions.extend((!is_ahead).then_some(LiveAction::Stop(None)));
            return;
        }
        let leader = stay.first().expect("it stays itself");
        let is_leader = leader == own;
        let joins = if is_leader { self.joins(context.now, stay) } else { Vec::new() };
        let leaver = self.leaver(stay).filter(|_| is_leader);
        let wants_change = is_leader
            && (!joins.is_empty() || leaver.is_some())
            && (self.delivered.iter().any(|count| *count > 0) || context.prng.chance(100));
        let has_wedged = |rank: &usize| self.rows.get(rank).is_some_and(|row| row.counts.is_some());
        let is_over = !self.suspected.is_empty() || stay.iter().any(|rank| has_wedged(&rank)) || wants_change;
        if is_over && self.counts.is_none() {
            self.counts = wedge_counts(&self.log, &self.record().view);
            return;
        }
        if self.counts.is_none() || self.suspected != before {
            return;
        }
        self.vote(stay, leader, &joins, leaver);
        self.decide(stay, leader);
    }

    /// What others say of members; whether they suspect this one.
    fn take_over_suspicions(&mut self, own: usize, all: RankSet) -> bool {
        let mut is_accused = false;
        for rank in all.iter() {
            if let Some(row) = self.rows.get(&rank).filter(|_| !self.suspected.contains(rank)) {
                is_accused |= row.suspected.contains(own);
                self.suspected |= (row.suspected & all).without(own);
            }
        }
        is_accused
    }

    /// Whether those that stay are a majority, with a member of each shard \[T5\].
    fn can_continue(&self, stay: RankSet) -> bool {
        let record = self.record();
        let none = vec![vec![0; record.view.shards.len()]; record.view.members.len()];
        let not_whole = vec![vec![false; record.view.shards.len()]; record.view.members.len()];
        let next = self.next_view(stay, &[], None);
        stay.len() >= record.view.majority() && live_end(record, stay, &none, &not_whole, next).is_some()
    }

    /// Processes to let in: fewer than members stay.
    fn joins(&self, now: Instant, stay: RankSet) -> Vec<NodeId> {
        let view = &self.record().view;
        let most = stay.len().max(2) - 1;
        let asks = self.waiting.iter().filter(|(node, (report, heard_at))| {
            report.wants_to_join
                && now < *heard_at + super::live::SUSPICION
                && view.rank(**node).is_none()
                && report.view <= Some(view.number)
        });
        asks.map(|(node, _)| *node).take(most).collect()
    }

    /// A member that wishes to leave, if others have what it has.
    fn leaver(&self, stay: RankSet) -> Option<usize> {
        let view = &self.record().view;
        let wishes = |rank: &usize| match self.rows.get(rank) {
            _ if *rank == self.own_rank() => self.wishes_to_leave,
            row => row.is_some_and(|row| row.wishes_to_leave),
        };
        let leaver = stay.iter().find(wishes)?;
        let others = stay.without(leaver);
        let is_whole = |rank: usize, shard: usize| match self.rows.get(&rank) {
            _ if rank == self.own_rank() => self.log.durable().is_whole(shard, self.record()),
            row => row.is_some_and(|row| row.whole[shard]),
        };
        let has_copies = |shard: usize| {
            let holders = (others & view.shards[shard]).iter().filter(|rank| is_whole(*rank, shard)).count();
            holders >= copies_needed(view.shards[shard].len()).max(1)
        };
        let may_leave = view.shards_of(view.members[leaver]).all(has_copies) && others.len() >= 2;
        may_leave.then_some(leaver)
    }

    fn next_view(&self, stay: RankSet, joins: &[NodeId], leaver: Option<usize>) -> DurableView {
        let view = &self.record().view;
        let stay = stay.iter().filter(|rank| Some(*rank) != leaver).map(|rank| view.members[rank]);
        self.placement.view(view.number + 1, stay.chain(joins.iter().copied()).collect())
    }

    /// Proposes as leader, or echoes the leader's proposal \[T6\].
    fn vote(&mut self, stay: RankSet, leader: usize, joins: &[NodeId], leaver: Option<usize>) {
        let ballot = Ballot::live(u32::try_from(leader).expect("few members"));
        let own = self.own_rank();
        let voted = self.file.wanted().vote.as_ref().map(|vote| vote.ballot);
        if voted >= Some(ballot) {
            return;
        }
        let end = match leader == own {
            true => self.proposal(stay, own, joins, leaver),
            false => {
                let echo = self.rows.get(&leader).and_then(|row| row.echo.as_ref());
                echo.filter(|echo| echo.ballot == ballot).map(|echo| echo.end.clone())
            }
        };
        let register = self.file.wanted();
        if let Some(end) = end.filter(|end| may_echo(&self.log, register.view(), register.node, end)) {
            self.file.change().vote(Vote { ballot, end });
        }
    }

    /// What this leader proposes, when all that stay have wedged and follow it \[D1\]: the latest earlier proposal, or its own \[T5\].
    fn proposal(
        &self,
        stay: RankSet,
        own: usize,
        joins: &[NodeId],
        leaver: Option<usize>,
    ) -> Option<ViewEnd> {
        let view = &self.record().view;
        let below = RankSet::all(own);
        let follows = |rank: usize| match self.rows.get(&rank) {
            _ if rank == own => true,
            row => row.is_some_and(|row| row.counts.is_some() && below.is_subset(&row.suspected)),
        };
        if !stay.iter().all(follows) {
            return None;
        }
        let echoes = self.rows.values().filter_map(|row| row.echo.as_ref());
        let earlier = echoes.chain(&self.file.wanted().vote).max_by_key(|vote| vote.ballot);
        if let Some(earlier) = earlier {
            return Some(earlier.end.clone());
        }
        let none = vec![0; view.shards.len()];
        let counts = |rank: usize| match self.rows.get(&rank) {
            _ if rank == own => self.counts.clone().unwrap_or_default(),
            row => row.and_then(|row| row.counts.clone()).unwrap_or_else(|| none.clone()),
        };
        let whole = |rank: usize| match self.rows.get(&rank) {
            _ if rank == own => self.own_whole(),
            row => row.map_or_else(|| vec![false; view.shards.len()], |row: &LiveRow| row.whole.clone()),
        };
        let every = 0..view.members.len();
        let counts: Vec<Vec<u64>> = every.clone().map(counts).collect();
        let whole: Vec<Vec<bool>> = every.map(whole).collect();
        live_end(self.record(), stay, &counts, &whole, self.next_view(stay, joins, leaver))
    }

    pub(super) fn own_whole(&self) -> Vec<bool> {
        let log = self.log.durable();
        (0..log.shards.len()).map(|shard| log.is_whole(shard, self.record())).collect()
    }

    /// Decides, when all that stay have echoed \[T7\].
    fn decide(&mut self, stay: RankSet, leader: usize) {
        let ballot = Ballot::live(u32::try_from(leader).expect("few members"));
        let own = self.own_rank();
        let echo = |rank: usize| match self.rows.get(&rank) {
            _ if rank == own => self.file.visible_vote(),
            row => row.and_then(|row| row.echo.as_ref()),
        };
        let others = stay.iter().filter(|rank| *rank != leader);
        if !is_decided([leader].into_iter().chain(others).map(echo), ballot) {
            return;
        }
        let own_echo = self.file.visible_vote().filter(|vote| vote.ballot == ballot);
        if let Some(vote) = own_echo.cloned() {
            self.end(vote.end);
        }
    }
}
