//! The polling thread's figures, for those who watch over the member.
//!
//! Their cost on the path of a message is none: whether to write them is checked where the state is checked for changes, in one of 512
//! busy evaluations, and they are written [`PERIOD`] apart. What happened after the last time is written before the thread rests for
//! long ([`FiguresWriter::deadline`]).

use std::sync::Arc;
use std::time::Instant as WallInstant;

use squall_fabric::{Duration, Fabric as _, Instant};
use squall_protocols::group::{SubgroupId, ViewChange};
use squall_protocols::membership::ViewChangeStep;
use squall_transports::TransportFabric as _;

use super::Stack;
use crate::operate::metrics::{FiguresBoard, ShardFigures};

/// When the polling thread writes its figures, and where.
#[derive(Debug)]
pub(super) struct FiguresWriter {
    board: Arc<FiguresBoard>,
    /// When they were written last.
    written: Option<Instant>,
    /// There was work since then.
    pub(super) has_news: bool,
}

impl FiguresWriter {
    pub(super) const fn new(board: Arc<FiguresBoard>) -> Self {
        Self { board, written: None, has_news: true }
    }

    /// Returns whether to write now. Some figures change without work: a member that waits for another one does none.
    fn is_due(&self, now: Instant) -> bool {
        let Some(written) = self.written else { return true };
        now.since(written) >= if self.has_news { PERIOD } else { REST_PERIOD }
    }

    /// Returns when to write what is new, if anything is.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.written.filter(|_| self.has_news).map(|written| written + PERIOD)
    }
}

impl Stack {
    /// Shows that this thread lives, and measures and writes what is due. While messages flow, only one of [`BUSY_LOOKS`] calls reads
    /// the clock for that, which is still far more often than anything is due.
    pub(super) fn watch(&mut self, is_busy: bool) {
        if let Some(writer) = &self.figures {
            writer.board.look();
        }
        self.looks = self.looks.wrapping_add(1);
        if !is_busy || self.ended || self.looks.is_multiple_of(BUSY_LOOKS) {
            let now = self.fabric.now();
            self.group.sample(now);
            self.write_figures(now);
        }
    }

    /// Writes the figures if it is time, or if this member has just ended.
    fn write_figures(&mut self, now: Instant) {
        let Some(mut writer) = self.figures.take() else { return };
        if (self.ended || writer.is_due(now)) && self.write_figures_now(&writer.board, now) {
            writer.written = Some(now);
            writer.has_news = false;
        }
        self.figures = Some(writer);
    }

    /// Writes the figures; returns false if a reader has them.
    fn write_figures_now(&self, board: &FiguresBoard, now: Instant) -> bool {
        let Some(mut figures) = board.try_write() else { return false };
        let wall_now = WallInstant::now();
        let wall = |since: Instant| wall_now.checked_sub(now.since(since)).unwrap_or(wall_now);
        let Self { fabric, group, names, log, .. } = self;
        figures.written = Some(wall_now);
        figures.ready = group.is_ready();
        figures.wedged = group.is_wedged();
        figures.lacks_majority = group.lacks_majority();
        if let Some(view) = group.membership().map(|membership| membership.view())
            && (figures.view != view.id || figures.members.is_empty())
        {
            figures.view = view.id;
            figures.members.clear();
            figures.members.extend(view.members.iter().map(|member| (member.node, member.tag)));
        }
        for change in group.timeline() {
            if change.steps.at(ViewChangeStep::Ready).is_some() {
                figures.changes.note(change.to, duration(change));
            }
        }
        figures.subgroups.resize_with(names.len(), Default::default);
        for (id, subgroup) in (0..).map(SubgroupId).zip(&mut figures.subgroups) {
            subgroup.totals = group.totals(id);
            subgroup.window = group.window_use(id);
            subgroup.lags.clear();
            group.lags(id, |node, lag| subgroup.lags.push((node, lag)));
            subgroup.held_up_by = group.held_up_by(id).map(|held| (held.member, wall(held.since)));
            subgroup.hold_up = group.hold_up(id, now);
            subgroup.stood_still = group.stands_still_since(id).map(wall);
            subgroup.unpersisted = log.as_ref().and_then(|log| log.unpersisted(id));
            subgroup.times = group.times(id);
        }
        figures.log = log.as_ref().map(|log| log.tally());
        figures.traffic.clear();
        fabric.traffic(&mut |traffic| figures.traffic.push(traffic));
        figures.shards = self.shard_figures();
        true
    }
}

impl Stack {
    /// Returns what this member has done in the shards, and which members it waits for; `None` without shards, or a view.
    pub(super) fn shard_figures(&self) -> Option<ShardFigures> {
        let member = self.group.genuine_member()?;
        let own = member.progress().map(|progress| (self.shards[progress.shard].clone(), progress));
        let mut behind = Vec::new();
        member.behind(|node, count| behind.push((node, count)));
        let lacked_state = member.lacked_state().map(|shard| self.shards[shard].clone());
        let (sent, under_way) = (member.sent(), member.under_way());
        Some(ShardFigures { sent, under_way, own, behind, lacked_state })
    }
}

/// Returns how long a view change took, from the first step to the last one; `None` for a member's first view.
pub(super) fn duration(change: &ViewChange) -> Option<Duration> {
    let began = [ViewChangeStep::Suspected, ViewChangeStep::Wedged];
    let began = began.into_iter().filter_map(|step| change.steps.at(step)).min()?;
    Some(change.steps.at(ViewChangeStep::Ready)?.since(began))
}

/// A busy thread looks some ten thousand times in a second.
const BUSY_LOOKS: u32 = 8;
/// Between writings, while there is something new.
const PERIOD: Duration = Duration::from_millis(10);
/// Between writings while there is nothing new and the thread happens to be awake.
const REST_PERIOD: Duration = Duration::from_secs(1);
