//! Continuing from the log of one process, when the logs of a majority are lost, so that no quorum \[T13\] can come back (Derecho §3.4, "Total
//! failures", which does not look at this).
//!
//! No protocol may decide this, since the others may only be away: a person does, who accepts that what is in no other log than theirs
//! is lost. The present view ends as this log is. Of each shard that the process has, all that is in its log counts; of others, which
//! are not in it, nothing has ever counted: they begin again in the next view, and what the log has of them from when the process was
//! their member, also in checkpoints, is void. The next view has this process alone, so that it restarts at once, and others join.
//!
//! The group gets another number: if the others were only away, their logs and this one have parted here, and none of them takes part
//! in this group again.
//!
//! A copy of a log that was made earlier may lack what was delivered since, and the promises of its member: it never restarts by itself,
//! also if its member was the only one.
//!
//! A log with a hole is no prefix of what was delivered, so nothing is continued from it: a member that has joined and has not
//! fetched what is earlier than its first view \[T3\], or one whose log of a view that has ended was damaged.

use super::flushed_log::LogState;
use super::mutation;
use super::register::{Register, ViewRecord};
use super::view_chain::{LOST, ViewChain};
use super::view_end::DurableView;
use crate::membership::RankSet;

/// How a process continues alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvage {
    /// Its register when it does.
    pub register: Register,
    /// What becomes of each durable shard, by number.
    pub shards: Vec<SalvagedShard>,
    /// Whether the tail of the log was damaged: it may have had more.
    pub is_damaged: bool,
}

/// What becomes of a durable shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SalvagedShard {
    /// All of earlier views stays, and this much of the last one.
    Kept {
        /// Sequences of the last view: messages, and nulls of senders that were silent.
        sequences: u64,
        /// How many more are known to have been in other logs. There may have been others.
        missing: u64,
    },
    /// It was not in this log: all of it is lost.
    Lost,
}

/// Why a process cannot continue alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SalvageError {
    /// It was removed from its group earlier, or has never been a member.
    NoMember,
    /// Its log of this shard lacks a part of an earlier view.
    Hole {
        /// The shard.
        shard: usize,
    },
    /// It is the only member of its view: it restarts by itself, and loses nothing.
    IsQuorum,
}

impl Register {
    /// How this process, whose log is `log`, continues as the group with the number `group`, with what others had lost; `is_copy` if the log
    /// is a copy that was made earlier.
    ///
    /// # Errors
    /// If its log is no beginning of what was delivered, or it needs no such thing.
    pub fn salvage(&self, log: &LogState, group: u64, is_copy: bool) -> Result<Salvage, SalvageError> {
        let (view, record) = (self.view(), &self.record);
        let rank = view.rank(self.node).ok_or(SalvageError::NoMember)?;
        if view.majority() == 1 && !self.is_damaged() && !is_copy {
            return Err(SalvageError::IsQuorum);
        }
        let has = |shard: usize| view.shards[shard].contains(rank);
        let hole = (0..view.shards.len()).find(|shard| has(*shard) && !log.is_whole(*shard, record));
        if let Some(shard) = hole.filter(|_| !mutant!(SalvageHole)) {
            return Err(SalvageError::Hole { shard });
        }
        let kept = |shard: usize| {
            let sequences = log.shards[shard].count(view.number);
            let voted = self.vote.as_ref().map_or(0, |vote| vote.end.trims[shard]);
            SalvagedShard::Kept { sequences, missing: voted.saturating_sub(sequences) }
        };
        let shards: Vec<_> = (0..view.shards.len())
            .map(|shard| if has(shard) { kept(shard) } else { SalvagedShard::Lost })
            .collect();
        let mut chain = ViewChain::new(record.chain.first());
        let mut trims = vec![0; shards.len()];
        for ended in record.chain.first()..record.chain.end() {
            set_trims(&mut trims, &shards, 0, |shard| record.chain.entry(ended, shard).unwrap_or(0));
            chain.push(&trims);
        }
        set_trims(&mut trims, &shards, LOST, |shard| log.shards[shard].count(view.number));
        mutant!(SalvageLess => trims.fill(0));
        chain.push(&trims);
        let next = DurableView {
            number: if mutant!(SalvageSameView) { view.number } else { view.number + 1 },
            members: vec![self.node],
            shards: (0..shards.len()).map(|shard| RankSet::all(usize::from(has(shard)))).collect(),
        };
        let register = Register {
            group: if mutant!(SalvageSameGroup) { self.group } else { group },
            damaged_in: None,
            record: ViewRecord { view: next, chain },
            promise: self.promise.filter(|_| mutant!(SalvagePromises)),
            vote: self.vote.clone().filter(|_| mutant!(SalvagePromises)),
            ..self.clone()
        };
        Ok(Salvage { register, shards, is_damaged: self.is_damaged() })
    }
}

fn set_trims(trims: &mut [u64], shards: &[SalvagedShard], lost: u64, trim: impl Fn(usize) -> u64) {
    for (shard, (slot, is)) in trims.iter_mut().zip(shards).enumerate() {
        let is_lost = *is == SalvagedShard::Lost && !mutant!(SalvageOthers);
        *slot = if is_lost { lost } else { trim(shard) };
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::super::flushed_log::LogStart;
    use super::super::view_end::{EndOrigin, ViewEnd, Vote};
    use super::*;
    use crate::ends::Ballot;

    const SELF: NodeId = NodeId(4);

    /// View 3 of three members: shard 0 is of all, shard 1 of the others alone, shard 2 of this process and another one.
    fn register() -> Register {
        let view = DurableView {
            number: 3,
            members: vec![NodeId(2), SELF, NodeId(7)],
            shards: [7, 5, 6].map(RankSet::from_bits).to_vec(),
        };
        let mut chain = ViewChain::new(1);
        chain.push(&[10, 20, 30]);
        chain.push(&[0, 5, 0]);
        Register {
            tag: 1,
            layout: 9,
            record: ViewRecord { view, chain },
            ..Register::new(77, SELF, DurableView::default())
        }
    }

    fn log(counts: [(usize, u64, u64); 4]) -> LogState {
        let mut log = LogState::new(3);
        counts.into_iter().for_each(|(shard, view, count)| log.raise(shard, view, count));
        log.shards.iter_mut().for_each(|shard| shard.base = LogStart::of_view(1));
        log
    }

    #[test]
    fn all_of_the_own_log_counts_and_nothing_of_others() {
        let mut register = register();
        let log = log([(0, 1, 12), (2, 1, 30), (0, 3, 8), (2, 3, 0)]);
        let next = DurableView {
            number: 4,
            members: vec![SELF],
            shards: [1, 0, 1].map(RankSet::from_bits).to_vec(),
        };
        let trims = vec![9, 1, 0];
        let vote = Vote {
            ballot: Ballot::live(0),
            end: ViewEnd { trims, next: next.clone(), origin: EndOrigin::Live },
        };
        assert!(register.vote(vote));
        let Salvage { register: salvaged, shards, is_damaged } =
            register.salvage(&log, 78, false).expect("it can");
        let kept = |sequences, missing| SalvagedShard::Kept { sequences, missing };
        assert_eq!(shards, [kept(8, 1), SalvagedShard::Lost, kept(0, 0)]);
        assert!(!is_damaged);
        let mut chain = ViewChain::new(1);
        [[10, 0, 30], [0, 0, 0], [8, LOST, 0]].iter().for_each(|trims| chain.push(trims));
        let record = ViewRecord { view: next, chain };
        assert_eq!(salvaged, Register { group: 78, record, promise: None, vote: None, ..register });
        assert_eq!([0, 1, 2].map(|shard| salvaged.record.chain.begun_again(shard)), [0, 4, 0]);
        for shard in [0, 2] {
            assert!(log.is_whole(shard, &salvaged.record), "it has all that counts");
        }
        assert_eq!(salvaged.salvage(&log, 79, false), Err(SalvageError::IsQuorum));
        assert!(salvaged.salvage(&log, 79, true).is_ok(), "a copy may lack what came later");
    }

    #[test]
    fn a_damaged_tail_is_accepted() {
        let mut register = register();
        register.start(true);
        let salvage = register
            .salvage(&log([(0, 1, 10), (2, 1, 30), (0, 3, 8), (2, 3, 1)]), 78, false)
            .expect("it can");
        assert!(salvage.is_damaged && !salvage.register.is_damaged());
    }

    #[test]
    fn a_log_with_a_hole_is_no_beginning() {
        let lacks = |counts, shard| {
            assert_eq!(register().salvage(&log(counts), 78, false), Err(SalvageError::Hole { shard }));
        };
        lacks([(0, 1, 9), (2, 1, 30), (0, 3, 8), (2, 3, 1)], 0);
        lacks([(0, 1, 10), (2, 1, 29), (0, 3, 8), (2, 3, 1)], 2);
        let removed = Register { node: NodeId(9), ..register() };
        assert_eq!(removed.salvage(&LogState::new(3), 78, false), Err(SalvageError::NoMember));
    }
}
