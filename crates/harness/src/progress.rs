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
    /// For each member: what all members do together, if others join later, and what is known of them changes it.
    total: u64,
    /// What each of the first members contributes to that, if others join later.
    share: u64,
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
    /// A display for `members`, and `joiners` later, that do `total` things each, called `what`. A quiet one shows nothing. With joiners,
    /// the things are those that the members send in equal shares; a joiner sends as much, and a member that dies no more.
    pub(crate) fn new(members: usize, joiners: usize, total: u64, what: &'static str, quiet: bool) -> Self {
        let terminal = console::user_attended_stderr() && !quiet;
        let bars = terminal
            .then(|| Bars { all: ProgressBar::new(total * (members + joiners) as u64), members: Vec::new() });
        let now = Instant::now();
        let (done, pids, gone) = (vec![0; members + joiners], Vec::new(), Vec::new());
        let share = if joiners > 0 { total / members as u64 } else { 0 };
        Self {
            members,
            what,
            total,
            share,
            done,
            pids,
            gone,
            bars,
            begun: now,
            next_line: now + LINE_PERIOD,
            quiet,
        }
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

    /// Changes what is to be done, for each member and all of them.
    fn set_total(&mut self, total: u64) {
        self.total = total;
        if let Some(bars) = &self.bars {
            bars.members.iter().for_each(|bar| bar.set_length(total));
            bars.all.set_length(total * self.done.len() as u64);
        }
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
        if rank >= self.members {
            self.set_total(self.total + self.share);
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
        if self.gone.contains(&member) {
            return;
        }
        self.gone.push(member);
        // As messages of all members alternate, its part of them is done as far as it has delivered all.
        let sent = (self.done[member] as f64 / self.total.max(1) as f64).min(1.0) * self.share as f64;
        self.set_total(self.total - (self.share - sent as u64).min(self.total));
        if self.quiet {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Three members send 100 lines each. One dies after a third of all, and another joins, which sends 100 lines, too.
    #[test]
    fn what_is_to_be_done_changes_with_the_members() {
        let mut display = ProgressDisplay::new(3, 1, 300, "lines", true);
        (0..3).for_each(|rank| display.on_started(rank, 0));
        display.on_progress(2, 100);
        display.on_gone(0, 2);
        display.on_gone(1, 2);
        assert_eq!(display.total, 233, "two thirds of its lines will not come");
        display.on_started(3, 0);
        assert_eq!(display.total, 333);
        let mut calm = ProgressDisplay::new(3, 0, 300, "messages", true);
        calm.on_gone(0, 2);
        assert_eq!(calm.total, 300, "without joiners the rest is done by the others");
    }
}
