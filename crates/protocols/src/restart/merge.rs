//! Merging logs that are damaged at different places (Derecho §3.4, "Total failures", which does not look at this).
//!
//! If no member has an undamaged log, no quorum \[T13\] can come back, although what one log lacks may be in another one. A record of a shard, a
//! view and a sequence is the same in all logs of one history, so the log of one process, the *target*, takes what it lacks from the others, as
//! if it had fetched it \[T17\]: of ended views up to their trims, of the present one as far as any log reaches without a gap.
//!
//! **What is never done.** Logs of two groups or two histories \[T21\] are not merged. A log takes nothing of a later view than its own: then the one
//! with the later view is the target. The vote and the promise stay as they are.
//!
//! **When the target counts as undamaged.** Then the others believe that it has everything that it has ever acknowledged of its view \[T13\]. So it
//! has to have everything up to the end of *its own* log, and that end has to be known: another log may be a copy that was made earlier,
//! and says nothing of what came later. A log whose own end is not known stays damaged, with all that was found.
//!
//! **Checkpoints** take the place of records only where no log has the records: of those that reach behind the gap, the oldest.

use std::collections::{BTreeMap, BTreeSet};

use super::flushed_log::LogStart;
use super::register::Register;
use super::view_chain::ViewChain;

/// Ranges of sequences, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceRanges {
    /// By their beginnings, the ends.
    ends: BTreeMap<u64, u64>,
}

impl SequenceRanges {
    /// Adds the sequences from `from` up to the one before `to`.
    pub fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        while let Some((begin, end)) = self.ends.range(..=to).next_back().map(|(begin, end)| (*begin, *end)) {
            if end < from {
                break;
            }
            (from, to) = (from.min(begin), to.max(end));
            self.ends.remove(&begin);
        }
        self.ends.insert(from, to);
    }

    /// Up to where all sequences from `from` on are in a range; `from` if it is in none.
    #[must_use]
    pub fn reach(&self, from: u64) -> u64 {
        self.ends.range(..=from).next_back().map_or(from, |(_, end)| from.max(*end))
    }

    /// The first sequence from `from` on that is in a range.
    #[must_use]
    pub fn next(&self, from: u64) -> Option<u64> {
        if self.reach(from) > from {
            Some(from)
        } else {
            self.ends.range(from..).next().map(|(begin, _)| *begin)
        }
    }

    /// One more than the last sequence.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ends.last_key_value().map_or(0, |(_, end)| *end)
    }
}

/// What a log is known to have of a shard, whatever is missing between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPieces {
    /// By view the sequences of which it is known whether they are messages or nulls.
    pub views: BTreeMap<u64, SequenceRanges>,
    /// Where the checkpoints end that can be read.
    pub checkpoints: BTreeSet<LogStart>,
}

impl ShardPieces {
    fn reach(&self, view: u64, from: u64) -> u64 {
        self.views.get(&view).map_or(from, |ranges| ranges.reach(from))
    }

    fn end(&self, view: u64) -> u64 {
        self.views.get(&view).map_or(0, SequenceRanges::end)
    }
}

/// What a log is known to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPieces {
    /// Its register.
    pub register: Register,
    /// By number.
    pub shards: Vec<ShardPieces>,
}

/// Where the target's log of a shard begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardBegin {
    /// What is before is in a checkpoint.
    pub start: LogStart,
    /// That checkpoint cannot be read: another one has to reach as far.
    pub is_lost: bool,
}

/// The log that takes what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeTarget {
    /// Everything that it has.
    pub pieces: LogPieces,
    /// What its log leads to.
    pub chained: Vec<ShardPieces>,
    /// Where its shards begin.
    pub begins: Vec<ShardBegin>,
    /// Whether its log is found damaged; its register may say so, too.
    pub is_damaged: bool,
    /// Whether nothing that it has acknowledged is behind all that it has.
    pub is_end_known: bool,
}

/// What the target takes from one log. Source 0 is the target itself: what its log does not lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// A checkpoint takes the place of everything before.
    Checkpoint {
        /// Whose.
        source: usize,
        /// Of which shard.
        shard: usize,
        /// Where it ends.
        start: LogStart,
    },
    /// Records are appended.
    Records {
        /// Whose.
        source: usize,
        /// Of which shard.
        shard: usize,
        /// Of which view.
        view: u64,
        /// The first sequence.
        from: u64,
        /// One more than the last one.
        to: u64,
    },
}

/// A part of a shard that no log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// Of which shard.
    pub shard: usize,
    /// Where it begins.
    pub from: LogStart,
    /// What is there again.
    pub to: LogStart,
}

/// How logs are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergePlan {
    /// What the target takes, in this order; of each shard a checkpoint comes first.
    pub steps: Vec<MergeStep>,
    /// What stays missing, up to the greatest sequence that the target is known to have had; if its end is not known, up to the greatest that
    /// any log has.
    pub missing: Vec<MissingPart>,
    /// The target's register when it has taken all of this.
    pub register: Register,
    /// Whether the target then has everything that counts, and is not damaged any more.
    pub is_whole: bool,
}

/// Why logs are not merged; the sources are numbered as those of [`MergeStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeConflict {
    /// The target was removed from its group earlier, or has never been a member.
    NoMember,
    /// A log of another group.
    OtherGroup {
        /// Which.
        source: usize,
    },
    /// A log with other shards.
    OtherShards {
        /// Which.
        source: usize,
    },
    /// A log that knows a later view than the target.
    LaterView {
        /// Which.
        source: usize,
        /// The view.
        view: u64,
    },
    /// Two logs of two histories \[T21\].
    OtherHistory {
        /// One.
        source: usize,
        /// The other.
        other: usize,
    },
}

/// Says what `target` takes from `others`, which are the sources from 1 on.
///
/// # Errors
/// If they are not all logs of one history.
pub fn plan_merge(target: &MergeTarget, others: &[LogPieces]) -> Result<MergePlan, MergeConflict> {
    let own = &target.pieces.register;
    let sources: Vec<&LogPieces> = [&target.pieces].into_iter().chain(others).collect();
    check_history(&sources)?;
    let rank = own.view().rank(own.node).ok_or(MergeConflict::NoMember)?;
    let mut register = own.clone();
    let mut plan =
        MergePlan { steps: Vec::new(), missing: Vec::new(), register: own.clone(), is_whole: false };
    let mut has_present = true;
    for shard in (0..own.view().shards.len()).filter(|shard| own.view().shards[*shard].contains(rank)) {
        let begin = target.begins[shard];
        // The trims of earlier views are wanted only if the shard's log begins there.
        if begin.start.view < register.record.chain.known_since(shard) {
            let mut chains: Vec<&ViewChain> =
                others.iter().map(|other| &other.register.record.chain).collect();
            chains.sort_by_key(|chain| std::cmp::Reverse(chain.end()));
            for chain in chains {
                register.extend(chain);
            }
        }
        let merge = ShardMerge {
            shard,
            register: &register,
            chained: &target.chained[shard],
            sources: sources.iter().map(|source| &source.shards[shard]).collect(),
            is_end_known: target.is_end_known,
        };
        let (steps, missing) = merge.plan(begin);
        has_present &= missing.iter().all(|part| part.to.view < own.view().number);
        plan.steps.extend(steps);
        plan.missing.extend(missing);
    }
    if own.is_damaged() || target.is_damaged {
        let is_known = has_present && target.is_end_known;
        register.damaged_in = (!is_known).then_some(own.view().number);
    }
    plan.is_whole = plan.missing.is_empty() && !register.is_damaged();
    plan.register = register;
    Ok(plan)
}

fn check_history(sources: &[&LogPieces]) -> Result<(), MergeConflict> {
    let own = &sources[0].register;
    for (source, pieces) in sources.iter().enumerate().skip(1) {
        let other = &pieces.register;
        if other.group != own.group {
            return Err(MergeConflict::OtherGroup { source });
        }
        if other.layout != own.layout || pieces.shards.len() != sources[0].shards.len() {
            return Err(MergeConflict::OtherShards { source });
        }
    }
    for (source, pieces) in sources.iter().enumerate() {
        for (other, earlier) in sources[..source].iter().enumerate() {
            let (one, two) = (&pieces.register, &earlier.register);
            let is_same_number = one.view().number == two.view().number
                && ![one, two].iter().any(|register| register.view().members.is_empty());
            let is_other_view = is_same_number && one.view().mark() != two.view().mark();
            if is_other_view || one.record.chain.contradicts(&two.record.chain) {
                return Err(MergeConflict::OtherHistory { source, other });
            }
        }
    }
    let later = |(source, pieces): (usize, &&LogPieces)| {
        let view = pieces.register.view();
        view.is_after(own.view()).then_some(MergeConflict::LaterView { source, view: view.number })
    };
    sources.iter().enumerate().find_map(later).map_or(Ok(()), Err)
}

/// The merge of one shard.
struct ShardMerge<'a> {
    shard: usize,
    register: &'a Register,
    chained: &'a ShardPieces,
    sources: Vec<&'a ShardPieces>,
    is_end_known: bool,
}

impl ShardMerge<'_> {
    fn plan(&self, begin: ShardBegin) -> (Vec<MergeStep>, Vec<MissingPart>) {
        let chain = &self.register.record.chain;
        let begun = chain.begun_again(self.shard);
        let begin = if begin.start.view < begun { ShardBegin::default() } else { begin };
        // [T19] What is before the list may be too much or too little.
        let known = LogStart::of_view(chain.known_since(self.shard));
        let (mut from, mut steps) = (begin.start, Vec::new());
        if begin.is_lost || from.view < known.view {
            let Some((start, step)) = self.checkpoint(from.max(known)) else {
                let lost = if begin.is_lost { LogStart::default() } else { from };
                return (steps, vec![self.missing(lost, from.max(known))]);
            };
            (from, steps) = (start, vec![step]);
        }
        loop {
            let (records, missing) = self.walk(from);
            let behind = missing.first().and_then(|gap| self.checkpoint(gap.to));
            match behind {
                Some((start, step)) => (from, steps) = (start, vec![step]),
                None => {
                    steps.extend(records);
                    return (steps, missing);
                }
            }
        }
    }

    /// The oldest checkpoint that reaches up to `least`.
    fn checkpoint(&self, least: LogStart) -> Option<(LogStart, MergeStep)> {
        let last = LogStart { view: self.register.view().number, sequence: u64::MAX };
        let of_source = |(source, pieces): (usize, &&ShardPieces)| {
            Some((*pieces.checkpoints.range(least..=last).next()?, source))
        };
        let (start, source) = self.sources.iter().enumerate().filter_map(of_source).min()?;
        Some((start, MergeStep::Checkpoint { source, shard: self.shard, start }))
    }

    /// What is taken of the records from `from` on, and what no log has of them.
    fn walk(&self, from: LogStart) -> (Vec<MergeStep>, Vec<MissingPart>) {
        let present = self.register.view().number;
        let (mut steps, mut missing) = (Vec::new(), Vec::new());
        let own_end = self.sources[0].end(present);
        let most = self.sources.iter().map(|pieces| pieces.end(present)).max().unwrap_or(0);
        let wanted = if self.is_end_known { own_end } else { most };
        let ended = self.register.record.chain.of_shard(self.shard).map(|(view, trim)| (view, trim, trim));
        let views = ended.chain([(present, u64::MAX, wanted)]);
        for (view, limit, wanted) in views.filter(|(view, ..)| *view >= from.view) {
            let mut at = if view == from.view { from.sequence } else { 0 };
            while let Some((source, to)) = self.holder(view, at, limit) {
                if let Some(source) = source {
                    steps.push(MergeStep::Records { source, shard: self.shard, view, from: at, to });
                }
                at = to;
            }
            missing.extend(self.gaps(view, at, wanted));
        }
        (steps, missing)
    }

    /// Which source has the records from `from` on, and up to where: none if the target's log leads to them.
    fn holder(&self, view: u64, from: u64, limit: u64) -> Option<(Option<usize>, u64)> {
        let reach = |pieces: &ShardPieces| Some(pieces.reach(view, from).min(limit)).filter(|to| *to > from);
        if let Some(to) = reach(self.chained) {
            return Some((None, to));
        }
        if let Some(to) = reach(self.sources[0]) {
            return Some((Some(0), to));
        }
        let others =
            self.sources.iter().enumerate().filter_map(|(source, pieces)| Some((source, reach(pieces)?)));
        let (source, to) = others.max_by_key(|(source, to)| (*to, std::cmp::Reverse(*source)))?;
        Some((Some(source), to))
    }

    /// What no log has of a view between `at` and `end`.
    fn gaps(&self, view: u64, mut at: u64, end: u64) -> Vec<MissingPart> {
        let mut gaps = Vec::new();
        let ranges: Vec<_> = self.sources.iter().filter_map(|pieces| pieces.views.get(&view)).collect();
        while at < end {
            let next = ranges.iter().filter_map(|ranges| ranges.next(at)).min().unwrap_or(end).min(end);
            if next > at {
                let position = |sequence| LogStart { view, sequence };
                gaps.push(self.missing(position(at), position(next)));
            }
            at = ranges.iter().map(|ranges| ranges.reach(next)).max().unwrap_or(end).max(next);
        }
        gaps
    }

    const fn missing(&self, from: LogStart, to: LogStart) -> MissingPart {
        MissingPart { shard: self.shard, from, to }
    }
}

#[cfg(test)]
mod tests;
