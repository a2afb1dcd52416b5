//! Which member leads a ballot, and when (Derecho §3.4; after Rapid's cut, see `membership/cut.rs`).

use squall_fabric::{Duration, Instant};

use super::Ballot;
use super::mutation;
use super::report::RankedReports;
use super::view::EndingView;
use crate::members::{RankSet, least_cover};

/// Returns a least set of members without which the others of `among` hear each other; `hears` has by rank which a member hears.
#[must_use]
pub fn apart(among: RankSet, hears: impl Fn(usize) -> RankSet) -> RankSet {
    mutant!(KeepApart => return RankSet::EMPTY);
    let members = among.iter().last().map_or(0, |last| last + 1);
    let mut links = vec![RankSet::EMPTY; members];
    for rank in among.iter() {
        for other in (among - hears(rank)).without(rank).iter() {
            links[rank].insert(other);
            links[other].insert(rank);
        }
    }
    least_cover(&links).members
}

/// Returns the club \[H6\]: the members of the view whose reports are fresh, less a least set that covers all pairs of which one
/// does not hear the other.
#[must_use]
pub fn club(reports: &RankedReports<'_>, fresh: RankSet) -> RankSet {
    let here = fresh & reports.keys().copied().collect();
    here - apart(here, |rank| reports[&rank].answer.hears)
}

/// How long members wait while a view ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndSettings {
    /// A report that is older does not count for the club, and a leader waits as long for answers: the suspicion time.
    pub silence: Duration,
    /// The time since the club last grew after which its lowest member leads \[H6\].
    pub gather: Duration,
    /// How much longer each further member waits.
    pub patience: Duration,
    /// After this a leader gives up a shard in memory whose holders are only silent; none: it never does. It has no effect where any
    /// shard is durable.
    pub lost_shard_after: Option<Duration>,
}

/// When a member of the club is to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadDue {
    /// It does not lead: the club is no majority, or the member is not in it.
    Never,
    /// It leads then, if nothing changes before.
    At(Instant),
    /// It leads now.
    Now,
}

/// The patience of a member that has led in vain doubles this often.
const ATTEMPTS_MAX: u32 = 5;

/// The club as a member sees it.
#[derive(Clone, Copy, Debug)]
pub struct ClubGathering<'a> {
    /// The view.
    pub view: &'a EndingView,
    /// The members that are not known to be dead: when all of them are in the club, none is waited for.
    pub living: RankSet,
    /// The rank of this member.
    pub own: usize,
    /// The club.
    pub club: RankSet,
}

/// Since when the club has not grown, and how often this member has led in vain.
#[derive(Clone, Debug, Default)]
pub struct LeadTimer {
    gathered: Option<(Instant, Option<Ballot>)>,
    club: RankSet,
    attempts: u32,
}

impl LeadTimer {
    /// Returns when this member is to lead \[H6\]. `seen` is the highest ballot that any report shows.
    pub fn due(
        &mut self,
        now: Instant,
        settings: &EndSettings,
        gathering: &ClubGathering<'_>,
        seen: Option<Ballot>,
    ) -> LeadDue {
        let club = gathering.club;
        if club.len() < least_majority(gathering.view) || !club.contains(gathering.own) {
            self.gathered = None;
            return LeadDue::Never;
        }
        let has_grown = !club.is_subset(&self.club);
        if has_grown || self.gathered.is_none_or(|(_, before)| before != seen) {
            self.gathered = Some((now, seen));
        }
        self.club = club;
        let since = self.gathered.map_or(now, |(since, _)| since);
        let at = since + self.delay(settings, gathering, seen);
        if at <= now { LeadDue::Now } else { LeadDue::At(at) }
    }

    fn delay(&self, settings: &EndSettings, gathering: &ClubGathering<'_>, seen: Option<Ballot>) -> Duration {
        let is_first = gathering.club.first() == Some(gathering.own);
        if is_first && gathering.living.is_subset(&gathering.club) {
            return Duration::ZERO;
        }
        if is_first && !seen.is_some_and(Ballot::is_restart) {
            return settings.gather;
        }
        let rank = u32::try_from(gathering.own).unwrap_or(u32::MAX);
        let turns = rank.saturating_add(1) << self.attempts.min(ATTEMPTS_MAX);
        settings.gather + settings.patience * turns
    }

    /// The member leads: once more in vain, unless the view ends by it.
    pub fn lead(&mut self) {
        self.attempts += 1;
    }
}

/// Returns how many members of a view are enough: a majority, dead ones counted.
pub(super) fn least_majority(view: &EndingView) -> usize {
    mutant!(EndWithHalf => return view.members.len().div_ceil(2));
    view.majority()
}
