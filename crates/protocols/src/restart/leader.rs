//! The leader of a restart: it gathers a quorum of the last view and proposes how that view ends (Derecho §3.4, "Total failures").

use squall_fabric::{Duration, Instant};

use super::member::{RestartMembers, Restarter};
use super::message::RestartReport;
use super::mutation;
use super::placement::keep_holders;
use super::view_chain::LOST;
use super::view_end::{EndOrigin, ViewEnd, Vote, copies_needed};
use crate::coverage::{Point, reach};
use crate::ends::Ballot;
use crate::membership::RankSet;

/// What a leader is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestartLead {
    /// Its right to propose.
    pub(super) ballot: Ballot,
    /// What it proposes.
    pub(super) proposal: Option<ViewEnd>,
    /// Since when it leads.
    since: Instant,
}

impl Restarter {
    /// A leader that sees a higher promise cannot propose any more \[T11\].
    pub(super) fn step_down(&mut self, members: &RestartMembers) {
        let highest = members.values().filter_map(|report| report.promise.max(report.lead)).max();
        if self.lead.as_ref().is_some_and(|lead| Some(lead.ballot) < highest) {
            reach(Point::RestartLeadLost);
            self.lead = None;
        }
    }

    /// The lowest present member waits for those that are absent, and for others that may know a later view \[T21\]; every other one waits
    /// for a leader to fail, the longer the more members that are present have their turn before it. Members that do not hear the same
    /// others may lead at the same time: the higher ballot counts then, and the other one waits from when it sees that.
    fn lead_delay(&self, members: &RestartMembers) -> Duration {
        let own = self.view().rank(self.node()).unwrap_or(0);
        let place = members.range(..own).count();
        let turns = (u32::try_from(place).expect("few members") + 1) << self.attempts.min(ATTEMPTS_MAX);
        let are_all = members.len() == self.view().members.len() && self.heard() >= self.others;
        match place == 0 && leading(members).is_none() {
            true if are_all => Duration::ZERO,
            true => self.settings.gather,
            false => self.settings.gather + self.settings.patience * turns,
        }
    }

    /// Begins to lead, if this process is to, with a ballot above all that it has seen \[T11\]. The own promise comes first: it is
    /// on the disk before others see that this process leads.
    pub(super) fn start_to_lead(&mut self, now: Instant, members: &RestartMembers) {
        let is_member = self.file.durable().is_member();
        if !is_member || self.hears_a_group() || !self.is_quorum(members, members.keys().copied().collect()) {
            self.quorum_since = None;
            return;
        }
        let seen = members.values().filter_map(|report| report.promise.max(report.lead)).max();
        let seen = seen.max(self.file.wanted().promise);
        if self.quorum_since.is_none_or(|(_, ballot)| ballot != seen) {
            self.quorum_since = Some((now, seen));
        }
        if self.lead.is_some() {
            return;
        }
        let behind_another = seen.is_some_and(Ballot::is_restart) && leading(members).is_none();
        mutant!(WaitForDeadLeader if behind_another => return);
        let is_lowest = members.keys().next() == self.view().rank(self.node()).as_ref();
        mutant!(LeadByLowestOnly if !is_lowest => return);
        let at = self.quorum_since.map_or(now, |(since, _)| since) + self.lead_delay(members);
        if now < at {
            self.lead_at = Some(at);
            return;
        }
        reach(if behind_another { Point::RestartLeadTakenOver } else { Point::RestartLed });
        let ballot = Ballot::above(seen, self.node());
        self.file.change().promise(ballot);
        self.attempts += 1;
        self.lead = Some(RestartLead { ballot, proposal: None, since: now });
    }

    /// Whether these ranks can end the view \[T13\]: a majority of its members, and of each shard two logs, or its only one, of
    /// which one is not damaged.
    fn is_quorum(&self, members: &RestartMembers, ranks: RankSet) -> bool {
        let view = self.view();
        let all = view.members.len();
        let outsiders = if mutant!(CountOutsiders) { self.outsiders() } else { 0 };
        let needed = match () {
            () if mutant!(RestartWithHalf) => all.div_ceil(2),
            () if mutant!(RestartWithTwo) => all.min(2),
            () => view.majority(),
        };
        let has_logs = |shard: &RankSet| {
            let here = *shard & ranks;
            let good = here.iter().any(|rank| !members[&rank].is_damaged);
            let is_enough = here.len() >= copies_needed(shard.len());
            shard.is_empty()
                || mutant!(NeedNoLog)
                || mutant!(NeedOneLog) && good
                || is_enough && (good || mutant!(TrustDamaged))
        };
        ranks.len() + outsiders >= needed && view.shards.iter().all(has_logs)
    }

    /// Proposes, when a quorum has promised \[T13\], and all others that are here have, or have had their time.
    pub(super) fn propose(&mut self, now: Instant, members: &RestartMembers) {
        let Some(lead) = self.lead.as_ref().filter(|lead| lead.proposal.is_none()) else { return };
        let has_promised = |report: &RestartReport| report.promise == Some(lead.ballot);
        let promised = members.iter().filter(|(_, report)| has_promised(report));
        let promised: RankSet = promised.map(|(rank, _)| *rank).collect();
        let own = self.view().rank(self.node()).expect("a leader is a member");
        let until = lead.since + self.settings.patience;
        let are_all = members.len() == promised.len();
        if !promised.contains(own) || !self.is_quorum(members, promised) {
            return;
        }
        if !are_all && now < until {
            self.lead_at = Some(until);
            return;
        }
        let proposal = self.adopted(members, promised).unwrap_or_else(|| self.new_end(members, promised));
        if let Some(lead) = &mut self.lead {
            lead.proposal = Some(proposal);
        }
    }

    /// The vote of the highest ballot, if what it is for may have been decided \[T14\]: those that answered with it and those that are
    /// away are a majority, and, of each shard, as many as a restart needs. A live decision needs no copies: those that stay hold
    /// everything, but some of those that the end keeps may have been suspected since.
    fn adopted(&self, members: &RestartMembers, promised: RankSet) -> Option<ViewEnd> {
        let counts = |vote: &&Vote| match vote.ballot.is_restart() {
            _ if mutant!(IgnoreVotes) => false,
            true => !mutant!(IgnoreAcceptances),
            false => true,
        };
        let votes = promised.iter().filter_map(|rank| members[&rank].vote.as_ref()).filter(counts);
        let vote = match mutant!(AdoptLowest) {
            true => votes.min_by_key(|vote| vote.ballot),
            false => votes.max_by_key(|vote| vote.ballot),
        }?;
        let view = self.view();
        let has_it = |rank: &usize| {
            let is_away = !promised.contains(*rank);
            is_away || members[rank].vote.as_ref().is_some_and(|other| other.end == vote.end)
        };
        let may_have = |ranks: RankSet| ranks.iter().filter(has_it).count();
        let kept = view.kept(&vote.end.next);
        let has_copies = |shard: &RankSet| may_have(*shard) >= copies_needed((*shard & kept).len());
        let needs_copies = vote.end.origin == EndOrigin::Restart || mutant!(PresumeCopies);
        let may_be_decided = may_have(view.ranks()) >= view.majority()
            && (!needs_copies || mutant!(DecideWithoutCopies) || view.shards.iter().all(has_copies));
        let is_adopted = may_be_decided || mutant!(AdoptAny);
        reach(match vote.ballot.is_restart() {
            _ if !is_adopted => Point::RestartVoteDropped,
            true => Point::RestartAcceptanceAdopted,
            false => Point::RestartEchoAdopted,
        });
        is_adopted.then(|| vote.end.clone())
    }

    /// A new end of the view \[T14\]: of each shard the longest log that has answered counts, for a damaged one what it still has. The
    /// next members are those that have answered.
    fn new_end(&self, members: &RestartMembers, promised: RankSet) -> ViewEnd {
        reach(Point::RestartProposedNew);
        let view = self.view();
        let shard_trim = |(shard, ranks): (usize, &RankSet)| {
            let answered = || (*ranks & promised).iter().map(|rank| &members[&rank]);
            let count = |report: &RestartReport| report.counts[shard];
            let trim = match () {
                () if mutant!(TrimToShortest) => answered().map(count).min(),
                () if mutant!(TrimToShortestUndamaged) => {
                    answered().filter(|report| !report.is_damaged).map(count).min()
                }
                () => answered().map(count).max(),
            };
            trim.unwrap_or(0)
        };
        let mut trims: Vec<u64> = view.shards.iter().enumerate().map(shard_trim).collect();
        self.added.iter().for_each(|shard| trims[*shard] = LOST);
        let stay = promised.iter().map(|rank| view.members[rank]).collect();
        let next = self.placement.view(view.number + 1, stay);
        let none = vec![false; view.shards.len()];
        let whole =
            |rank| members.get(&rank).map_or(none.clone(), |report: &RestartReport| report.whole.clone());
        let whole: Vec<Vec<bool>> = (0..view.members.len()).map(whole).collect();
        let next = keep_holders(view, promised, &whole, next);
        ViewEnd { trims, next, origin: EndOrigin::Restart }
    }

    /// Decides, when enough members have accepted \[T16\]: a majority of the view, and of each shard two of those that the end keeps.
    pub(super) fn decide(&mut self, members: &RestartMembers) {
        let Some((ballot, end)) =
            self.lead.as_ref().and_then(|lead| Some((lead.ballot, lead.proposal.clone()?)))
        else {
            return;
        };
        let has_accepted =
            |report: &RestartReport| report.vote.as_ref().is_some_and(|vote| vote.ballot == ballot);
        let accepted = members.iter().filter(|(_, report)| has_accepted(report));
        let accepted: RankSet = accepted.map(|(rank, _)| *rank).collect();
        let view = self.view();
        let all = view.members.len();
        let needed = match () {
            () if mutant!(DecideByOneAcceptance) => 1,
            () if mutant!(RestartWithHalf) => all.div_ceil(2),
            () if mutant!(RestartWithTwo) => all.min(2),
            () => view.majority(),
        };
        let kept = view.kept(&end.next);
        let has_copies = |shard: &RankSet| (*shard & accepted).len() >= copies_needed((*shard & kept).len());
        let own = view.rank(self.node()).expect("a leader is a member");
        if !accepted.contains(own)
            || accepted.len() < needed
            || !mutant!(DecideWithoutCopies) && !view.shards.iter().all(has_copies)
        {
            return;
        }
        reach(Point::RestartDecided);
        self.record(&end);
    }
}

/// The member that leads with the highest ballot, if no promise is above it: its rank.
pub(super) fn leading(members: &RestartMembers) -> Option<usize> {
    let promised = members.values().filter_map(|report| report.promise).max();
    let (rank, report) = members.iter().max_by_key(|(_, report)| report.lead)?;
    (report.lead.is_some() && report.lead >= promised).then_some(*rank)
}

/// The patience of a member that has led in vain doubles this often.
const ATTEMPTS_MAX: u32 = 5;
