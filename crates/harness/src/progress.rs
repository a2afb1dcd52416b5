//! Progress of the members: a bar for each and one for all on a terminal, else a line every two seconds.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::cluster::ClusterObserver;
use crate::terminal::{bars, output, units};

/// Time between two lines where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(2);

/// Shows progress on standard error.
pub(crate) struct ProgressDisplay {
    /// The members with which the work begins.
    members: usize,
    what: &'static str,
    /// For each member.
    total: u64,
    done: Vec<u64>,
    pids: Vec<u32>,
    gone: Vec<usize>,
    bars: Option<Bars>,
    begun: Instant,
    next_line: Instant,
    quiet: bool,
}

struct Bars {
    all: ProgressBar,
    members: Vec<ProgressBar>,
}

impl ProgressDisplay {
    /// A display for `members`, and `joiners` later, that do `total` things each, called `what`. A quiet one shows nothing.
    pub(crate) fn new(members: usize, joiners: usize, total: u64, what: &'static str, quiet: bool) -> Self {
        let terminal = console::user_attended_stderr() && !quiet;
        let bars = terminal
            .then(|| Bars { all: ProgressBar::new(total * (members + joiners) as u64), members: Vec::new() });
        let now = Instant::now();
        let (done, pids, gone) = (vec![0; members + joiners], Vec::new(), Vec::new());
        Self { members, what, total, done, pids, gone, bars, begun: now, next_line: now + LINE_PERIOD, quiet }
    }

    /// Removes the bars, so that results can be printed.
    pub(crate) fn finish(&mut self) {
        if let Some(bars) = self.bars.take() {
            bars.members.iter().for_each(ProgressBar::finish_and_clear);
            bars.all.finish_and_clear();
            bars::clear();
        }
    }

    /// The process of each member.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    fn line(&mut self) {
        if self.quiet || self.bars.is_some() || Instant::now() < self.next_line {
            return;
        }
        self.next_line = Instant::now() + LINE_PERIOD;
        let parts = self.done.iter().map(|done| format!("{:.0} %", percent(*done, self.total)));
        let parts: Vec<_> = parts.collect();
        let rate = self.done.iter().sum::<u64>() as f64 / self.begun.elapsed().as_secs_f64();
        let per_member = units::count(rate / self.done.len() as f64);
        output::note(format_args!("members at {}; {per_member} {}/s each", parts.join(", "), self.what));
    }
}

impl ClusterObserver for ProgressDisplay {
    fn on_started(&mut self, rank: usize, pid: u32) {
        self.pids.push(pid);
        if let Some(bars) = &mut self.bars {
            let bar = bars::show(ProgressBar::new(self.total));
            bar.set_style(bars::style("{prefix:22} {bar:32} {percent:>3} %  {msg}"));
            bar.set_prefix(format!("member {rank} (pid {pid})"));
            bars.members.push(bar);
        }
    }

    fn on_joined(&mut self, joined: usize) {
        if joined < self.members {
            return;
        }
        self.begun = Instant::now();
        if let Some(bars) = &mut self.bars {
            bars.all = bars::show(bars.all.clone());
            bars.all.set_style(bars::style("{prefix:22} {bar:32} {percent:>3} %  {elapsed}"));
            bars.all.set_prefix("all");
        }
    }

    fn on_gone(&mut self, _rank: usize, member: usize) {
        // All others report it.
        if self.quiet || self.gone.contains(&member) {
            return;
        }
        self.gone.push(member);
        if let Some(bars) = &self.bars {
            bars.members[member].abandon_with_message("gone");
        }
        output::note(format_args!("member {member} is gone, the group continues without it"));
    }

    fn on_progress(&mut self, rank: usize, done: u64) {
        self.done[rank] = done;
        if let Some(bars) = &self.bars {
            let rate = units::count(done as f64 / self.begun.elapsed().as_secs_f64());
            bars.members[rank].set_message(format!("{rate} {}/s", self.what));
            bars.members[rank].set_position(done);
            bars.all.set_position(self.done.iter().sum());
        }
        self.line();
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.finish();
    }
}

fn percent(done: u64, total: u64) -> f64 {
    if total == 0 { 100.0 } else { done as f64 * 100.0 / total as f64 }
}
