//! After the last fault: everything that is possible has to happen.

use squall_protocols::ends::{ShardQuorum, apart};
use squall_protocols::membership::RankSet;

use super::plan::EndsLinks;
use super::process::{EndsMode, EndsProcess};
use super::world::EndsWorld;

impl EndsWorld<'_> {
    /// Faults are over: some links may stay bad for a while, then all are good, and all settle in one view.
    pub(super) fn settle(&mut self) {
        if self.violation.is_none() && self.plan.links_stay_bad {
            self.settle_with_bad_links();
        }
        if self.violation.is_some() {
            return;
        }
        self.set_links(EndsLinks::Good);
        self.wake();
        let from = self.step + 5 * self.silence;
        let is_over = |world: &Self| world.is_settled() || world.step > from && world.is_hopeless();
        self.pass(150 * self.silence, is_over);
        if self.violation.is_some() {
            return;
        }
        let is_settled = self.is_settled();
        if !is_settled && self.is_hopeless() {
            self.tally.hopeless += 1;
        } else if !is_settled {
            let text = self.describe();
            self.fail("stuck", text);
        }
        if self.violation.is_none() {
            self.check_reports(is_settled);
        }
        if is_settled && self.tally.delivered == 0 {
            self.fail("idle", "nothing was delivered".into());
        }
    }

    /// Some links stay bad: a majority of the newest view whose members hear each other has to continue, if it has what it needs.
    fn settle_with_bad_links(&mut self) {
        let links = EndsLinks::draw(&mut self.prng, self.plan.members);
        self.set_links(links);
        self.wake();
        let is_ready = |world: &Self| {
            let newest = world.newest();
            world.is_ready(newest, world.views[newest].view.ranks())
        };
        if self.pass(90 * self.silence, is_ready) || self.violation.is_some() || self.is_hopeless() {
            return;
        }
        if self.is_able() {
            let text = self.describe();
            self.fail("partial", text);
        }
    }

    /// In a group whose registers are on disks all processes start again, but those that have left; one that died while it was leaving does, too.
    fn wake(&mut self) {
        if !self.views[0].view.is_durable() {
            return;
        }
        for process in self.processes.iter_mut().filter(|process| !process.is_gone) {
            process.wakes = Some(0);
        }
    }

    /// Returns whether these members of a view are live in it, whole, and have delivered messages.
    fn is_ready(&self, view: usize, ranks: RankSet) -> bool {
        let state = &self.views[view];
        ranks.iter().all(|rank| {
            let process = &self.processes[state.slot(rank)];
            let is_in = process.is_up && process.mode == EndsMode::Live && process.view == view;
            let is_calm = process.row.answer.is_none() && process.row.accused.is_empty();
            let serves = |shard: usize| {
                let part = &process.parts[shard];
                part.is_whole && part.delivered > 0
            };
            let shards = 0..self.plan.shards.len();
            let mut own = shards.filter(|shard| state.view.shards[*shard].members.contains(rank));
            self.is_alive(view, rank) && is_in && is_calm && own.all(serves)
        })
    }

    /// Returns whether all processes that are up are live in one view of exactly them.
    fn is_settled(&self) -> bool {
        let newest = self.newest();
        let state = &self.views[newest];
        let up = self.processes.iter().filter(|process| process.is_up).count();
        up == state.view.members.len() && self.is_ready(newest, state.view.ranks())
    }

    /// Returns whether no further view is possible: no majority of the newest one is left, or a shard has lost what it needs for good.
    pub(super) fn is_hopeless(&self) -> bool {
        let newest = self.newest();
        let is_known = self.processes.iter().any(|process| process.is_up && process.newest >= newest);
        newest > 0 && !is_known && self.is_lost_for_good(newest - 1) || self.is_lost_for_good(newest)
    }

    fn is_lost_for_good(&self, view: usize) -> bool {
        let state = &self.views[view];
        let alive: RankSet = state.view.ranks().iter().filter(|rank| self.is_alive(view, *rank)).collect();
        let has_memory = |rank: &usize| {
            let process = &self.processes[state.slot(*rank)];
            !process.is_restarted || process.view < view
        };
        let is_lost = |shard: usize| {
            let (of, kind) = (&state.view.shards[shard], self.plan.shards[shard].kind);
            let (size, here) = (of.members.len(), of.members & alive);
            let quorum = kind.quorum_of(size);
            match (kind.is_durable, kind.quorum) {
                _ if size == 0 => false,
                (false, ShardQuorum::All) => false,
                (false, ShardQuorum::Majority) => {
                    let left = here.iter().filter(has_memory).count();
                    size > 2 && left > 0 && size - left >= quorum && !state.view.is_durable()
                }
                (true, _) => {
                    here.len() < size.min(2).max(size + 1 - quorum) || self.has_lost_base(view, shard)
                }
            }
        };
        alive.len() < state.view.majority()
            || alive.iter().any(|rank| self.is_torn(view, state.slot(rank)))
            || (0..self.plan.shards.len()).any(is_lost)
    }

    /// Returns whether what was before a view of a durable shard is with no process that may return: one that was leaving was excluded, and
    /// has ended with it. One that the others let go has taken nothing along.
    fn has_lost_base(&self, view: usize, shard: usize) -> bool {
        let left = |process: &&EndsProcess| !process.is_gone || process.is_spared;
        let full = self.processes.iter().filter(left).map(|process| process.full[shard]).max().unwrap_or(0);
        let ended = self.views[full].decided.as_ref().filter(|_| full < view);
        ended.is_some_and(|value| {
            let has_it = |slot: usize| {
                let counts = self.counts_of(slot, full, shard);
                counts.is_some_and(|counts| value.is_reached(shard, &counts))
            };
            let slots = 0..self.processes.len();
            !slots.into_iter().any(|slot| left(&&self.processes[slot]) && has_it(slot))
        })
    }

    /// Returns whether a process cannot continue to a view, since no process that is there or may return has what it lacks.
    fn is_torn(&self, view: usize, slot: usize) -> bool {
        let process = &self.processes[slot];
        let Some(value) = process.end.clone().filter(|_| process.view + 1 == view) else { return false };
        let lacks = self.lacks(slot, &value);
        lacks.is_some_and(|shard| !self.is_held(slot, process.view, &value, shard, false))
    }

    /// Returns whether the members of the newest view that hear each other are a majority with all that they need.
    fn is_able(&self) -> bool {
        let newest = self.newest();
        let state = &self.views[newest];
        let alive: RankSet = state.view.ranks().iter().filter(|rank| self.is_alive(newest, *rank)).collect();
        let hears = |rank: usize| {
            let good = |other: &usize| !self.bad[state.slot(*other)][state.slot(rank)];
            state.view.ranks().iter().filter(good).collect()
        };
        let club = alive - apart(alive, hears);
        let process = |rank: usize| &self.processes[state.slot(rank)];
        let is_held = |shard: usize| {
            let (of, kind) = (state.view.shards[shard].members, self.plan.shards[shard].kind);
            let here = of & club;
            let with_memory = here.iter().filter(|rank| !process(*rank).is_restarted).count();
            let is_whole = here.iter().any(|rank| process(rank).parts[shard].is_whole);
            let is_enough = match (kind.is_durable, kind.quorum) {
                (true, _) => here.len() >= of.len().min(2).max(of.len() + 1 - kind.quorum_of(of.len())),
                (false, ShardQuorum::All) => !here.is_empty(),
                (false, ShardQuorum::Majority) => 2 * with_memory > of.len(),
            };
            of.is_empty() || is_enough && is_whole
        };
        let is_known = alive.iter().all(|rank| process(rank).end.is_none())
            && club.iter().any(|rank| process(rank).view == newest);
        // What may have been decided is taken over, and then its next members are needed.
        let fits = |rank: usize| {
            let own = process(rank);
            let vote = own.member.register.vote().filter(|_| own.view == newest);
            vote.is_none_or(|vote| {
                let value = &vote.proposal.value;
                let kept = |shard: usize| state.view.kept(value, shard);
                let has_copies = |shard: usize| (kept(shard) & club).len() >= kept(shard).len().min(2);
                2 * (value.stay & club).len() > value.stay.len()
                    && (0..self.plan.shards.len()).all(has_copies)
            })
        };
        let shards = 0..self.plan.shards.len();
        2 * club.len() > state.view.members.len()
            && shards.into_iter().all(is_held)
            && is_known
            && alive.iter().all(fits)
    }

    /// Describes the processes, for people.
    fn describe(&self) -> String {
        let newest = self.newest();
        let state = &self.views[newest];
        let members: Vec<usize> = (0..state.view.members.len()).map(|rank| state.slot(rank)).collect();
        let mut text = format!("newest view {newest} of processes {members:?}:");
        for (slot, process) in self.processes.iter().enumerate() {
            let register = &process.member.register;
            let parts = process.parts.iter().map(|part| (part.is_whole, part.delivered, part.got.clone()));
            let vote = register.vote().map(|vote| vote.ballot);
            let lead =
                process.member.lead().map(|lead| (lead.ballot, lead.obstacle, lead.proposal.is_some()));
            text.push_str(&format!(
                "\n  process {slot}: up {}, gone {}, {:?}, view {}, newest {}, restarted {}, end {}, promise {:?}, vote {vote:?}, lead {lead:?}, leaves {}, accuses {:?}, wedged {}, parts {:?}",
                process.is_up, process.is_gone, process.mode, process.view, process.newest, process.is_restarted,
                process.end.is_some(), register.promise(), process.leaves, process.row.accused, process.row.answer.is_some(),
                parts.collect::<Vec<_>>()
            ));
        }
        text
    }
}
