//! The rules of a durable view that runs and ends (Derecho §3.4): the pieces that membership and groups need so that a live view
//! change and a restart are one consensus.
//!
//! They are functions of what the rows of the view show. Membership's own rules of when to propose, to echo and to decide stay as
//! they are; these say what the values are, and what must be on the disk.

use crate::ends::Ballot;
use squall_fabric::NodeId;

use super::flushed_log::FlushedLog;
use super::mutation;
use super::placement::keep_holders;
use super::register::ViewRecord;
use super::view_end::{DurableView, EndOrigin, ViewEnd, Vote};
use crate::membership::RankSet;

/// Up to which sequence a shard's messages are durable \[T2\]: the least that all its members in this view have persisted, joiners
/// too; none while the own base is not whole on the own disk.
///
/// `persisted` is by the rank of the shard's members; `joiners` says which of them have no base yet.
#[must_use]
pub fn deliverable(persisted: &[u64], joiners: &[bool], has_base: bool) -> u64 {
    let counted = persisted.iter().zip(joiners);
    let counted = counted.filter(|(_, joiner)| !**joiner || !mutant!(DeliverWithoutJoiners));
    let mut counts: Vec<u64> = counted.map(|(count, _)| *count).collect();
    counts.sort_unstable();
    let least = match mutant!(DeliverAtMajority) {
        true => counts.get(counts.len().saturating_sub(1) / 2),
        false => counts.first(),
    };
    least.copied().filter(|_| has_base).unwrap_or(0)
}

/// The counts that a member publishes when it has wedged, by shard; none before all it counts is on the disk \[T4\].
#[must_use]
pub fn wedge_counts(log: &FlushedLog, view: &DurableView) -> Option<Vec<u64>> {
    if !log.is_flushed() && !mutant!(CountUnflushed) {
        return None;
    }
    Some(log.appended().shards.iter().map(|shard| shard.count(view.number)).collect())
}

/// What a leader of a live view proposes \[T5\]: the least durable counts of the members that stay. A shard of which no member stays
/// cannot end: none knows what was delivered. Then the members stop, and a restart ends the view when a member of the shard is back.
///
/// `stay` are the ranks that stay; `counts` and `whole` are by rank, what each has published ([`wedge_counts`]) and for which shards
/// it has the base; `next` is the next view as the layout wants it.
#[must_use]
pub fn live_end(
    record: &ViewRecord,
    stay: RankSet,
    counts: &[Vec<u64>],
    whole: &[Vec<bool>],
    next: DurableView,
) -> Option<ViewEnd> {
    let view = &record.view;
    let trim = |(shard, members): (usize, &RankSet)| {
        let least = (*members & stay).iter().map(|rank| counts[rank][shard]).min();
        match mutant!(TrimOrphanToZero) {
            // A shard that never had a member has nothing to lose.
            _ if members.is_empty() => Some(0),
            true => least.or(Some(0)),
            false => least,
        }
    };
    let trims = view.shards.iter().enumerate().map(trim).collect::<Option<_>>()?;
    let next = keep_holders(view, stay, whole, next);
    Some(ViewEnd { trims, next, origin: EndOrigin::Live })
}

/// Whether a member may echo an end \[T6\]: what counts of its shards is on its disk, as it said when it wedged.
#[must_use]
pub fn may_echo(log: &FlushedLog, view: &DurableView, own: NodeId, end: &ViewEnd) -> bool {
    let log = log.durable();
    let mut shards = view.shards_of(own);
    mutant!(CountUnflushed) || shards.all(|shard| log.shards[shard].count(view.number) >= end.trims[shard])
}

/// Whether a member may forget the trims of the views before the present one \[T19\], which checkpoints of its own shards cover: all
/// members are live in the present view, so that they know these trims, and each is whole in all its shards. A member of other shards
/// needs the trims as much, and it may have been away. Of a shard that has no member in this view, no member would know them later.
///
/// `whole` is by rank what each member shows of itself, by shard; none for a member that has not been seen in the present view.
#[must_use]
pub fn may_forget(view: &DurableView, whole: &[Option<Vec<bool>>]) -> bool {
    let is_whole = |(rank, shown): (usize, &Option<Vec<bool>>)| {
        let has_all = |shown: &Vec<bool>| view.shards_of(view.members[rank]).all(|shard| shown[shard]);
        shown.as_ref().is_some_and(has_all)
    };
    let has_members = view.shards.iter().all(|members| !members.is_empty());
    mutant!(ForgetTooSoon) || (has_members && whole.iter().enumerate().all(is_whole))
}

/// Whether a live view's end is decided \[T7\]: all members that stay have echoed the leader's proposal, `echoes`, in which the
/// leader's own comes first. They are a majority of the view.
#[must_use]
pub fn is_decided<'a>(mut echoes: impl Iterator<Item = Option<&'a Vote>>, leader: Ballot) -> bool {
    let is_one = |echo: Option<&Vote>| echo.is_some_and(|echo| echo.ballot == leader);
    let first = echoes.next().is_some_and(is_one);
    first && (mutant!(DecideByOneEcho) || echoes.all(is_one))
}

#[cfg(test)]
mod tests {
    use super::super::flushed_log::LogState;
    use super::super::mutation::{RestartMutation, with};
    use super::super::register::tests::view;
    use super::super::view_chain::ViewChain;
    use super::*;

    #[test]
    fn a_shard_without_a_member_that_stays_cannot_end() {
        let mut present = view(0, &[0, 1, 2, 3]);
        present.shards = [0b0011, 0b1100].map(RankSet::from_bits).to_vec();
        let record = ViewRecord { view: present, chain: ViewChain::default() };
        let counts = [[5, 0], [3, 0], [0, 7], [0, 8]].map(Vec::from);
        let next = || DurableView {
            number: 1,
            shards: [0b011, 0b100].map(RankSet::from_bits).to_vec(),
            ..view(1, &[0, 1, 3])
        };
        let end = live_end(&record, RankSet::from_bits(0b1011), &counts, &vec![vec![true; 2]; 4], next())
            .expect("both have members");
        assert_eq!(end.trims, [3, 8]);
        assert_eq!(
            live_end(&record, RankSet::from_bits(0b0011), &counts, &vec![vec![true; 2]; 4], next()),
            None
        );
    }

    /// A process of one shard made checkpoints and forgot how a view had ended while both members of another shard were away.
    #[test]
    fn trims_are_kept_until_all_members_are_whole() {
        let mut present = view(3, &[0, 1, 2]);
        present.shards = [0b001, 0b110].map(RankSet::from_bits).to_vec();
        let of_one = || vec![Some(vec![true, false]), Some(vec![false, true]), None];
        assert!(!may_forget(&present, &of_one()));
        let mut of_all = of_one();
        of_all[2] = Some(vec![false, true]);
        assert!(may_forget(&present, &of_all));
        let orphaned = DurableView { shards: [0b111, 0].map(RankSet::from_bits).to_vec(), ..present.clone() };
        assert!(!may_forget(&orphaned, &vec![Some(vec![true; 2]); 3]), "no member has the second one");
        of_all[1] = Some(vec![true, false]);
        assert!(!may_forget(&present, &of_all), "it has another shard's");
    }

    #[test]
    fn all_members_of_a_shard_persist_what_is_delivered() {
        assert_eq!(deliverable(&[4, 2, 3], &[false; 3], true), 2);
        assert_eq!(deliverable(&[4, 2, 3], &[false, true, false], true), 2, "a joiner counts");
        assert_eq!(deliverable(&[4, 2, 3], &[false; 3], false), 0);
        let caught = || deliverable(&[4, 2, 3], &[false, true, false], true) == 3;
        assert!(with(RestartMutation::DeliverWithoutJoiners, caught));
    }

    #[test]
    fn counts_of_a_wedged_member_are_on_its_disk() {
        let mut log = FlushedLog::new(LogState::new(1));
        log.append(0, 0, 4);
        let counts = |log: &FlushedLog| wedge_counts(log, &view(0, &[0]));
        assert_eq!(counts(&log), None);
        assert!(with(RestartMutation::CountUnflushed, || counts(&log).is_some()));
        assert!(log.poll_flush());
        log.handle_flushed();
        assert_eq!(counts(&log), Some(vec![4]));
    }
}
