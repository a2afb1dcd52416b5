//! A process of the model: what it holds in memory and on its disk, its row, and what it has seen of others.

use std::collections::BTreeMap;
use std::sync::Arc;

use squall_fabric::NodeId;
use squall_protocols::ends::{EndAnswer, EndReport, EndReports, EndValue, EndVote, KnownEnds, WaitingMember};
use squall_protocols::membership::RankSet;

use super::plan::SLOTS_MAX;

/// What a process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndsMode {
    /// It is in no view.
    #[default]
    Outside,
    /// It takes part in its view.
    Live,
    /// It waits \[H1\].
    Waits,
}

/// A member's row in the table of its view: a history of single writes, which each reader reads in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EndsRow {
    pub(super) view: u64,
    /// By shard, the own counts that it acknowledges, by column.
    pub(super) acks: Vec<Vec<u64>>,
    pub(super) accused: RankSet,
    pub(super) suspected: RankSet,
    pub(super) waits: bool,
    /// Its final answer, once it has wedged.
    pub(super) answer: Option<Arc<EndAnswer>>,
    pub(super) echo: Option<EndVote>,
    pub(super) decided: Option<Arc<EndValue>>,
    pub(super) leaves: bool,
}

/// What a process has of a shard in its present view.
#[derive(Clone, Debug, Default)]
pub(super) struct EndsPart {
    /// By column, the number of messages that it has.
    pub(super) got: Vec<usize>,
    /// The same on its disk.
    pub(super) flushed: Vec<usize>,
    /// The number of messages of the shard's order that it has delivered, or has in the state that it has taken over.
    pub(super) delivered: usize,
    /// Whether it holds the state.
    pub(super) is_whole: bool,
    /// Messages that it counts and does not have, by a mutation.
    pub(super) missing: u64,
}

/// A message of its own that a process does not know to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndsUnderway {
    pub(super) message: usize,
    pub(super) shard: usize,
    pub(super) column: usize,
    pub(super) count: u64,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct EndsProcess {
    pub(super) is_up: bool,
    /// When it starts, if it is down.
    pub(super) wakes: Option<u64>,
    /// It has left, or has ended for good.
    pub(super) is_gone: bool,
    /// The number of its starts.
    pub(super) starts: u64,
    pub(super) node: NodeId,
    pub(super) mode: EndsMode,
    /// Its view, if it is in one; else the newest that it knows.
    pub(super) view: usize,
    /// The newest view of which it knows.
    pub(super) newest: usize,
    /// It has restarted in its view, with its register and without its memory.
    pub(super) is_restarted: bool,
    pub(super) leaves: bool,
    /// It has left, and its view ended so that the others could spare it.
    pub(super) is_spared: bool,
    pub(super) parts: Vec<EndsPart>,
    /// By view and shard, what it had when the view ended.
    pub(super) past: BTreeMap<(usize, usize), Vec<usize>>,
    /// By durable shard, the view before which it has everything on its disk.
    pub(super) full: Vec<usize>,
    pub(super) row: EndsRow,
    /// By view, what it wrote to its row.
    pub(super) rows: Vec<Vec<Arc<EndsRow>>>,
    /// How much of its last row each reader can see, once it does not write any more.
    pub(super) visible: [usize; SLOTS_MAX],
    /// How much it has read of the rows of each other process.
    pub(super) read: [usize; SLOTS_MAX],
    pub(super) seen: Vec<Arc<EndsRow>>,
    /// When it heard a sign of life in its view, and any report.
    pub(super) beats: [u64; SLOTS_MAX],
    pub(super) heard: [u64; SLOTS_MAX],
    pub(super) sent_reports: Vec<(NodeId, Arc<EndReport>)>,
    pub(super) read_reports: [usize; SLOTS_MAX],
    pub(super) latest: Vec<Option<(NodeId, Arc<EndReport>)>>,
    pub(super) reports: EndReports,
    pub(super) member: WaitingMember,
    /// Members of the view that it knows to be dead, and those whose connection it has lost in this view.
    pub(super) dead: RankSet,
    pub(super) lost: RankSet,
    /// How its view has ended.
    pub(super) end: Option<Arc<EndValue>>,
    pub(super) known: KnownEnds,
    pub(super) underway: Vec<EndsUnderway>,
    /// Messages that it sends again under another identity, by a mutation.
    pub(super) resend: Vec<usize>,
}

/// A process that is down, as node 0.
impl Default for EndsProcess {
    fn default() -> Self {
        Self {
            is_up: false,
            wakes: None,
            is_gone: false,
            is_spared: false,
            starts: 0,
            node: NodeId(0),
            mode: EndsMode::default(),
            view: 0,
            newest: 0,
            is_restarted: false,
            leaves: false,
            parts: Vec::new(),
            past: BTreeMap::new(),
            full: Vec::new(),
            row: EndsRow::default(),
            rows: Vec::new(),
            visible: [0; SLOTS_MAX],
            read: [0; SLOTS_MAX],
            seen: Vec::new(),
            beats: [0; SLOTS_MAX],
            heard: [0; SLOTS_MAX],
            sent_reports: Vec::new(),
            read_reports: [0; SLOTS_MAX],
            latest: Vec::new(),
            reports: EndReports::default(),
            member: WaitingMember::default(),
            dead: RankSet::EMPTY,
            lost: RankSet::EMPTY,
            end: None,
            known: KnownEnds::default(),
            underway: Vec::new(),
            resend: Vec::new(),
        }
    }
}

impl EndsProcess {
    pub(super) fn is_in_view(&self) -> bool {
        self.is_up && self.mode != EndsMode::Outside
    }

    /// The own row has changed.
    pub(super) fn post(&mut self) {
        while self.rows.len() <= self.view {
            self.rows.push(Vec::new());
        }
        self.rows[self.view].push(Arc::new(self.row.clone()));
    }

    /// Returns the number of writes to its row of a view.
    pub(super) fn written(&self, view: usize) -> usize {
        self.rows.get(view).map_or(0, Vec::len)
    }
}

/// Returns the row of a member of which nothing has been read: it is of no view.
pub(super) fn no_row() -> Arc<EndsRow> {
    Arc::new(EndsRow { view: u64::MAX, ..EndsRow::default() })
}
