//! What must hold in each run, by a list of everything that was decided and delivered.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{
    DurableView, FetchRequest, LogStart, LogState, Register, ViewEnd, ViewRecord, copies_needed,
};

use super::disk::ShardContent;
use crate::run::Violation;

/// What is known of the run as a whole.
#[derive(Debug, Default)]
pub(super) struct RestartOracle {
    /// By number, all views that were ever decided.
    pub(super) views: BTreeMap<u64, DurableView>,
    /// By view, the trims with which it was decided to end.
    pub(super) trims: BTreeMap<u64, Vec<u64>>,
    /// Messages there are, by view and shard.
    pub(super) sent: BTreeMap<(u64, usize), u64>,
    /// Messages that were delivered as durable anywhere.
    pub(super) delivered: BTreeMap<(u64, usize), u64>,
    /// Which process has been live in which view.
    lived: BTreeSet<(u64, NodeId)>,
    pub(super) violation: Option<Violation>,
}

/// By view and shard, a number of sequences.
type ShardCounts = BTreeMap<(u64, usize), u64>;

/// What is left of a group whose processes have all died.
#[derive(Debug, Default)]
pub(crate) struct RestartRemains {
    /// The register of each process, and by view and shard how many sequences are in its log.
    pub(crate) disks: Vec<(Register, ShardCounts)>,
    /// The number of the first view. There was nothing before it, as its members know.
    pub(crate) first_view: u64,
    /// The view before which a process' checkpoints cover everything, if it is not the first one.
    pub(crate) bases: BTreeMap<NodeId, u64>,
    /// How the views before the last one have ended, with the trim of each shard.
    pub(crate) ends: BTreeMap<u64, Vec<u64>>,
    /// All views that were installed.
    pub(crate) views: Vec<DurableView>,
    /// By view and shard, how many sequences were delivered.
    pub(crate) delivered: ShardCounts,
    /// The views in which processes have acted.
    pub(crate) lived: Vec<(u64, NodeId)>,
}

impl RestartRemains {
    /// Where the log of a process begins, by shard: none of one that does not know the beginning, since it joined later, nor of a
    /// shard that begins again later, whose checkpoints are removed when a log is opened.
    pub(crate) fn begin_of(&self, register: &Register, shard: usize) -> Option<LogStart> {
        let is_of_first = |view: &&DurableView| view.number == self.first_view;
        let first = self.views.iter().find(is_of_first)?;
        // Some views have no members in a shard, of too few.
        let is_own = || self.views.iter().any(|view| view.shards_of(register.node).any(|own| own == shard));
        let base = self.bases.get(&register.node).copied().filter(|_| is_own()).unwrap_or(0);
        let begin = LogStart::of_view(base.max(self.first_view));
        let is_void = begin.view < register.record.chain.begun_again(shard);
        (first.members.contains(&register.node) && !is_void).then_some(begin)
    }

    /// By view how many messages of a shard a checkpoint has that covers everything before `begin`.
    pub(super) fn before(&self, begin: LogStart, shard: usize) -> BTreeMap<u64, u64> {
        let ends = self.ends.range(..begin.view).map(|(view, trims)| (*view, trims[shard]));
        ends.filter(|(_, trim)| *trim > 0).collect()
    }
}

impl RestartOracle {
    /// Takes over what has happened so far.
    pub(super) fn recall(&mut self, remains: &RestartRemains) {
        self.views.extend(remains.views.iter().map(|view| (view.number, view.clone())));
        self.delivered.clone_from(&remains.delivered);
        self.lived.extend(&remains.lived);
        for (key, count) in remains.disks.iter().flat_map(|(_, log)| log) {
            let sent = self.sent.entry(*key).or_default();
            *sent = (*count).max(*sent);
        }
    }

    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    /// \[T8\] A process records this view, so it is decided; true if that was not known.
    pub(super) fn observe(&mut self, node: NodeId, record: &ViewRecord) -> bool {
        let ViewRecord { chain, view: present } = record;
        for view in chain.first()..chain.end() {
            let trims = (0..present.shards.len())
                .map(|shard| chain.trim_of(view, shard).expect("a view of the list"));
            let trims: Vec<u64> = trims.collect();
            let known = self.trims.entry(view).or_insert_with(|| trims.clone());
            if *known != trims {
                let text = format!("{node}: view {view} ends with {trims:?}, and with {known:?}");
                return self.conflict(text);
            }
            for (shard, trim) in trims.iter().enumerate() {
                let delivered = self.delivered.get(&(view, shard)).copied().unwrap_or(0);
                if *trim < delivered {
                    let text = format!(
                        "[P1] {node}: view {view} ends with {trim} messages of shard {shard}, and {delivered} were delivered"
                    );
                    self.fail("lost", text);
                }
            }
        }
        let (view, is_new) = (
            record.view.clone(),
            !self.views.contains_key(&record.view.number) && !record.view.members.is_empty(),
        );
        if is_new {
            self.views.insert(view.number, view);
        } else if let Some(known) = self.views.get(&view.number).filter(|known| **known != view)
            && !view.members.is_empty()
        {
            let text = format!("{node}: view {} is {view:?}, and {known:?}", view.number);
            return self.conflict(text);
        }
        is_new
    }

    fn conflict(&mut self, text: String) -> bool {
        self.fail("one chain of views", text);
        false
    }

    /// A member is live in a view \[T8\].
    pub(super) fn enter(&mut self, node: NodeId, view: u64) {
        if !self.lived.insert((view, node)) {
            self.fail("live once", format!("[T8] {node} is live in view {view} for the second time"));
        }
    }

    /// \[P1\], \[P2\]: a member delivers messages of a view up to `count`; `content` is what its log has of the shard, `log` what it
    /// takes for it.
    pub(super) fn deliver(
        &mut self,
        node: NodeId,
        (view, shard, count): (u64, usize, u64),
        content: &ShardContent,
        log: &LogState,
    ) {
        for (earlier, trims) in self.trims.range(..view) {
            let (held, taken) = (content.count(*earlier), log.shards[shard].count(*earlier));
            let trim = trims[shard];
            let is_covered = content.base.view > *earlier;
            if held < trim || is_covered && held != trim || taken > trim {
                let held = held.max(taken);
                let text = format!(
                    "[P2] {node} delivers {count} of view {view} with {held} messages of view {earlier} in shard {shard}, which has {trim}"
                );
                self.violation.get_or_insert(Violation { checker: "same prefix", text });
                return;
            }
        }
        let base = content.base;
        if let Some(trims) = self.trims.get(&base.view)
            && trims[shard] < base.sequence
        {
            let trim = trims[shard];
            self.fail(
                "checkpoint",
                format!("[T19] {node} has a checkpoint at {base:?}, and {trim} messages count"),
            );
        }
        if let Some(trims) = self.trims.get(&view)
            && trims[shard] < count
        {
            let text = format!(
                "[P1] {node} delivers {count} messages of view {view} in shard {shard}, which has ended with {}",
                trims[shard]
            );
            self.fail("lost", text);
        }
        if content.count(view) < count {
            self.fail("lost", format!("[P1] {node} delivers {count} of view {view} and has fewer"));
        }
        let delivered = self.delivered.entry((view, shard)).or_default();
        *delivered = count.max(*delivered);
    }

    /// \[P3\] A process asks for what it lacks.
    pub(super) fn fetch(&mut self, node: NodeId, request: FetchRequest, log: &LogState) {
        if let FetchRequest::Records { shard, view, from, to } = request
            && (from < log.shards[shard].count(view) || to <= from)
        {
            self.fail("only what is missing", format!("[P3] {node} asks for {request:?}, and has it"));
        }
    }

    /// Whether what `holder` has of a shard is all that counts of the views before `view`.
    pub(super) fn has_all(&self, shard: usize, view: u64, holder: &ShardContent, first: u64) -> bool {
        self.trims.range(..view).all(|(earlier, trims)| {
            let is_certain = holder.base.view > *earlier || *earlier >= first;
            is_certain && holder.count(*earlier) >= trims[shard]
        })
    }
}

/// Whether the processes `up`, `good` of which have undamaged logs, are a quorum of a view \[T13\].
pub(super) fn is_quorum(view: &DurableView, up: &BTreeSet<NodeId>, good: &BTreeSet<NodeId>) -> bool {
    let here = |ranks: RankSet, of: &BTreeSet<NodeId>| {
        let members = view.members.iter().enumerate();
        let members = members.filter(|(rank, node)| ranks.contains(*rank) && of.contains(node));
        members.count()
    };
    let has_logs = |shard: &RankSet| {
        shard.is_empty() || here(*shard, up) >= copies_needed(shard.len()) && here(*shard, good) >= 1
    };
    here(view.ranks(), up) >= view.majority() && view.shards.iter().all(has_logs)
}

/// Whether an end leaves fewer than two of a shard's logs in the group: what only they can have has no second copy.
pub(super) fn leaves_one_copy(view: &DurableView, shard: usize, end: &ViewEnd) -> bool {
    let kept = view.shards[shard] & view.kept(&end.next);
    kept.len() < 2
}
