//! What happens to processes, and what has to come back of it.

use std::collections::BTreeSet;

use squall_fabric::{Duration, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{DurableView, Register, Vote};

use super::checks::{is_quorum, leaves_one_copy};
use super::plan::{RestartStrike, TailDamage};
use super::process::{ProcessActivity, SimProcess};
use super::world::RestartWorld;

impl RestartWorld<'_> {
    pub(super) fn go_through_plan(&mut self) {
        for strike in &self.plan.strikes {
            self.await_strike(strike);
            if self.oracle.violation.is_some() {
                return;
            }
            self.strike(strike);
        }
    }

    fn await_strike(&mut self, strike: &RestartStrike) {
        self.events.clear();
        let until = self.after(strike.after);
        self.pass(until, |world| {
            world.begin_to_leave();
            let is_reached = |(event, nth)| world.events.get(&event).is_some_and(|count| *count >= nth);
            strike.event.is_some_and(is_reached)
        });
        let until = self.after(strike.then);
        self.pass(until, |_| false);
    }

    /// Processes begin to wish to leave, and those that have left end.
    fn begin_to_leave(&mut self) {
        for (at, slot) in &self.plan.leaves {
            let is_time = self.now.as_nanos() >= u64::try_from(at.as_nanos()).expect("short");
            self.processes[*slot].wishes_to_leave |= is_time;
        }
        self.depart();
    }

    fn strike(&mut self, strike: &RestartStrike) {
        let back = self.back(strike);
        self.cut = strike.cut;
        for slot in 0..self.processes.len() {
            let is = |set: u32| set >> slot & 1 == 1;
            if is(strike.victims) && self.processes[slot].is_up() {
                let is_hurt = is(strike.damaged) && self.may_hurt(slot);
                self.crash(slot);
                if is_hurt {
                    self.hurt_log(slot);
                }
                if strike.forgetful == Some(slot) {
                    self.forget_register(slot);
                }
            }
            let process = &self.processes[slot];
            if !process.is_up() && !process.is_gone {
                let most = u64::try_from(strike.back_within.as_nanos()).expect("short");
                let pause = Duration::from_nanos(self.prng.below(most));
                let at = self.after(pause);
                self.processes[slot].wakes_at = is(back).then_some(at);
            }
        }
    }

    /// The processes that are to be there after a strike: a majority of the last view, whatever the plan says.
    fn back(&mut self, strike: &RestartStrike) -> u32 {
        let mut back = strike.back;
        let Some((_, view)) = self.oracle.views.last_key_value() else { return back };
        let view = view.clone();
        let mut slots: Vec<usize> = view
            .members
            .iter()
            .filter_map(|node| self.slot(*node))
            .filter(|slot| !self.processes[*slot].is_gone)
            .collect();
        self.prng.shuffle(&mut slots);
        for slot in &slots {
            let here = slots.iter().filter(|slot| back >> **slot & 1 == 1).count();
            if here < view.majority() {
                back |= 1 << slot;
            }
        }
        back
    }

    pub(super) fn slot(&self, node: NodeId) -> Option<usize> {
        self.processes.iter().position(|process| process.node == node)
    }

    /// The register is lost: the process comes back as another node, with its log.
    fn forget_register(&mut self, slot: usize) {
        let node = NodeId(self.processes[slot].node.0 + 100);
        let view = DurableView { shards: vec![RankSet::EMPTY; self.plan.shards], ..DurableView::default() };
        self.processes[slot].node = node;
        self.processes[slot].disk.replace_register(&Register::new(1, node, view));
        self.note(slot, &|| format!("has lost its register and is {node}"));
    }

    fn hurt_log(&mut self, slot: usize) {
        self.hurts += 1;
        let shards: Vec<usize> = (0..self.plan.shards).collect();
        self.hurt.extend(shards.into_iter().map(|shard| (shard, slot)));
        let records = 1 + self.prng.below(4);
        self.processes[slot].disk.damage(records, self.plan.damage == TailDamage::Known);
        self.note(slot, &|| format!("loses {records} records"));
    }

    /// Whether the end of this log may be lost: another log has what has to survive. What one process alone can have is not taken.
    fn may_hurt(&mut self, slot: usize) -> bool {
        let is_first =
            (0..self.plan.shards).all(|shard| self.hurt.get(&shard).is_none_or(|hurt| *hurt == slot));
        let may = self.plan.damage != TailDamage::None && self.hurts < HURTS_MAX && is_first;
        may && self.prng.chance(500) && (0..self.plan.shards).all(|shard| self.is_elsewhere(slot, shard))
    }

    fn is_elsewhere(&self, slot: usize, shard: usize) -> bool {
        let own = self.processes[slot].disk.synced_content(shard);
        let is_alone = |view: &DurableView| view.shards[shard].len() < 2;
        if self.oracle.views.get(&self.processes[slot].stored().view().number).is_some_and(is_alone) {
            return false;
        }
        self.oracle.views.iter().all(|(number, view)| {
            let key = (*number, shard);
            let voted =
                self.votes(*number).into_iter().filter(|vote| leaves_one_copy(view, shard, &vote.end));
            let voted = voted.map(|vote| vote.end.trims[shard]).max().unwrap_or(0);
            let is_single = self
                .oracle
                .views
                .get(&(number + 1))
                .is_some_and(|next| (view.shards[shard] & view.kept(next)).len() < 2);
            let ended = self.oracle.trims.get(number).filter(|_| is_single).map_or(0, |trims| trims[shard]);
            let needed = match is_alone(view) {
                true => u64::MAX,
                false => self.oracle.delivered.get(&key).copied().unwrap_or(0).max(voted).max(ended),
            };
            let needed = needed.min(own.count(*number));
            let has_it = |(other, process): (usize, &SimProcess)| {
                let content = process.disk.synced_content(shard);
                let first = process.stored().record.chain.first();
                let is_certain = content.base.view > *number || *number >= first;
                other != slot && !process.is_gone && is_certain && content.count(*number) >= needed
            };
            needed == 0 || self.processes.iter().enumerate().any(has_it)
        })
    }

    /// The votes on all disks for how a view ends.
    pub(super) fn votes(&self, view: u64) -> Vec<Vote> {
        let here = self.processes.iter().filter(|process| !process.is_gone);
        here.map(SimProcess::stored)
            .filter(|register| register.view().number == view)
            .filter_map(|register| register.vote.clone())
            .collect()
    }

    /// No faults any more: first a majority of the last view comes back, then all processes.
    pub(super) fn settle(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        (self.is_calm, self.cut) = (true, 0);
        let calm = RestartStrike { victims: 0, ..NO_STRIKE };
        let back = self.back(&calm);
        self.revive(back);
        self.await_service("a majority");
        self.revive(u32::MAX);
        self.await_service("all processes");
    }

    fn revive(&mut self, back: u32) {
        for slot in 0..self.processes.len() {
            let process = &mut self.processes[slot];
            if !process.is_up() {
                let comes = back >> slot & 1 == 1 || process.wakes_at.is_some();
                process.wakes_at = (comes && !process.is_gone).then_some(self.now);
            }
        }
    }

    /// If those that are there can restart, they do in time, and deliver new messages.
    fn await_service(&mut self, who: &str) {
        if self.oracle.violation.is_some() {
            return;
        }
        // A leader that has died may still propose, by a message that is late.
        let until = self.after(UNDER_WAY_MAX);
        self.pass(until, |_| false);
        let must_settle = self.can_restart();
        let until = self.after(if must_settle { SETTLE } else { SETTLE / 5 });
        let mut next_look = self.now;
        let mut is_settled = false;
        self.pass(until, |world| {
            world.depart();
            if world.now >= next_look {
                next_look = world.after(LOOK);
                is_settled = world.is_settled();
            }
            is_settled
        });
        if must_settle && !is_settled {
            let text = format!("{who} could restart, and do not within {SETTLE:?}: {}", self.describe());
            self.oracle.fail("availability", text);
        }
    }

    /// Whether those that are there, or come now, are a quorum of the views that may be the last one, with all that counts of earlier
    /// ones.
    fn can_restart(&self) -> bool {
        let here =
            |process: &&SimProcess| !process.is_gone && (process.is_up() || process.wakes_at.is_some());
        let here: Vec<&SimProcess> = self.processes.iter().filter(here).collect();
        let up: BTreeSet<NodeId> = here.iter().map(|process| process.node).collect();
        let Some((last, _)) = self.oracle.views.last_key_value() else { return false };
        let known = here.iter().map(|process| process.stored()).filter(|own| !own.view().members.is_empty());
        let Some(known) = known.map(|own| own.view().number).max() else { return false };
        let is_good = |process: &&&SimProcess, view: u64| {
            !process.disk.is_damaged && process.stored().damaged_in != Some(view)
        };
        let has_quorum = |view: &DurableView| {
            let good = here.iter().filter(|process| is_good(process, view.number));
            is_quorum(view, &up, &good.map(|process| process.node).collect())
        };
        let has_base = |shard: usize| {
            self.oracle.trims.iter().all(|(view, trims)| {
                let has_it = |process: &&SimProcess| {
                    let content = process.disk.content(shard);
                    let first = process.stored().record.chain.first();
                    (content.base.view > *view || *view >= first) && content.count(*view) >= trims[shard]
                };
                trims[shard] == 0 || here.iter().any(has_it)
            })
        };
        // All that had the beginning of a log may have left, before those that joined had it.
        let views = self.oracle.trims.keys().chain(self.oracle.views.keys());
        let first = views.copied().min().unwrap_or(0);
        let has_beginning = |shard: usize| {
            let begins_again = |process: &&SimProcess| process.stored().record.chain.begun_again(shard) > 0;
            let has_it = |process: &&SimProcess| process.disk.content(shard).base.view >= first;
            here.iter().any(|process| begins_again(process) || has_it(process))
        };
        // Or only a process that is away has it: what was before the list of the latest record here, which all adopt.
        let records = here.iter().map(|process| &process.stored().record);
        let listed = records.max_by_key(|record| record.view.number).map_or(0, |record| record.chain.first());
        let is_complete =
            |process: &SimProcess, shard: usize| process.disk.content(shard).base.view >= listed;
        let away = || self.processes.iter().filter(|process| !process.is_gone && !up.contains(&process.node));
        let is_away = |shard: usize| {
            !here.iter().any(|process| is_complete(process, shard))
                && away().any(|process| is_complete(process, shard))
        };
        // What a vote here counts on may be lost here, and be with a process that is away; the vote may have been decided.
        let has_voted = |process: &&SimProcess| {
            let own = process.stored();
            let vote = own.vote.as_ref().filter(|_| own.view().number == *last);
            let is_here = |shard: usize, trim: u64| {
                trim == 0 || here.iter().any(|process| process.disk.content(shard).count(*last) >= trim)
            };
            vote.is_none_or(|vote| (0..).zip(&vote.end.trims).all(|(shard, trim)| is_here(shard, *trim)))
        };
        self.oracle.views.range(known..).all(|(_, view)| has_quorum(view))
            && here.iter().all(has_voted)
            && self.votes(*last).iter().all(|vote| has_quorum(&vote.end.next))
            && (0..self.plan.shards).all(|shard| has_base(shard) && has_beginning(shard) && !is_away(shard))
    }

    /// Whether all that are there are live in one view of exactly them, with everything, and deliver.
    fn is_settled(&self) -> bool {
        let up = || self.processes.iter().filter(|process| process.is_up() && process.left_for.is_none());
        let Some((last, view)) = self.oracle.views.last_key_value() else { return false };
        let is_fine = |process: &SimProcess| {
            process.live().is_some_and(|member| {
                let first = member.record().chain.first();
                let mut shards = member.record().view.shards_of(process.node);
                member.record().view.number == *last
                    && member.is_running()
                    && shards.all(|shard| {
                        let content = process.disk.synced_content(shard);
                        member.delivered[shard] > 0 && self.oracle.has_all(shard, *last, &content, first)
                    })
            })
        };
        up().all(is_fine) && up().count() == view.members.len() && !view.members.is_empty()
    }

    fn describe(&self) -> String {
        let one = |process: &SimProcess| {
            let own = process.stored();
            let kind = match &process.activity {
                ProcessActivity::Down => "down",
                ProcessActivity::Restarting(_) => "waiting",
                ProcessActivity::Live(_) => "live",
            };
            let vote = own.vote.as_ref().map(|vote| vote.ballot);
            format!(
                "{} {kind} in view {}, promise {:?}, vote {vote:?}",
                process.node,
                own.view().number,
                own.promise
            )
        };
        self.processes.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

const NO_STRIKE: RestartStrike = RestartStrike {
    event: None,
    after: Duration::ZERO,
    then: Duration::ZERO,
    victims: 0,
    damaged: 0,
    forgetful: None,
    cut: 0,
    back: 0,
    back_within: Duration::from_nanos(1),
};
/// Ends of logs that are lost in a run.
const HURTS_MAX: u32 = 2;
/// Those that can restart do so, and deliver, within this time.
const SETTLE: Duration = Duration::from_millis(150);
/// No message is under way for longer.
const UNDER_WAY_MAX: Duration = Duration::from_millis(7);
/// Between two looks at whether they do.
const LOOK: Duration = Duration::from_millis(1);
