//! The world of a run: processes, links, time in steps, and what the plan makes happen.

use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_fabric::{Duration, NodeId};
use squall_protocols::ends::{EndingShard, EndingView, MessageFate};
use squall_protocols::membership::{Member, RankSet};

use super::EndsTally;
use super::oracle::{EndsMessage, EndsViewState};
use super::plan::{EndsEvent, EndsFault, EndsLayout, EndsLinks, EndsPlan, EndsShard, SLOTS_MAX};
use super::process::{EndsMode, EndsPart, EndsProcess, no_row};
use crate::run::{RunOutcome, Violation};

/// The most views of a run.
pub(super) const VIEWS_MAX: usize = 80;

/// Which links are bad: from each process to each.
pub(super) type BadLinks = [[bool; SLOTS_MAX]; SLOTS_MAX];

/// The world of a run. One process takes a step at a time; time is the number of steps.
pub(super) struct EndsWorld<'a> {
    pub(super) plan: &'a EndsPlan,
    pub(super) prng: Prng,
    pub(super) step: u64,
    /// The suspicion time, in steps.
    pub(super) silence: u64,
    pub(super) is_chaos: bool,
    pub(super) processes: Vec<EndsProcess>,
    pub(super) bad: BadLinks,
    /// In eighths: how long each process waits for each other one before it accuses it.
    pub(super) jitter: [[u64; SLOTS_MAX]; SLOTS_MAX],
    /// How much slower a process reads each other one.
    slow: [[usize; SLOTS_MAX]; SLOTS_MAX],
    pub(super) views: Vec<EndsViewState>,
    /// By shard, the messages that were delivered anywhere, in their order.
    pub(super) orders: Vec<Vec<usize>>,
    /// By shard, the timestamp of the last of them.
    pub(super) last_times: Vec<u64>,
    pub(super) messages: Vec<EndsMessage>,
    pub(super) fates: Vec<(usize, MessageFate)>,
    pub(super) replied: Vec<usize>,
    pub(super) deaths: usize,
    pub(super) false_accusations: usize,
    trap: Option<(EndsEvent, u32, bool)>,
    /// The process of the last strike, and the directions of its links that are left: to others, from others.
    cornered: Option<(usize, bool, bool)>,
    pub(super) lost_shards: usize,
    pub(super) gone: usize,
    pub(super) ended: usize,
    pub(super) violation: Option<Violation>,
    pub(super) tally: EndsTally,
    trace: Vec<TraceRecord>,
    trace_records_max: usize,
    hash: u64,
}

/// Returns another incarnation of the process of a node.
pub(super) const fn next_incarnation(node: NodeId) -> NodeId {
    NodeId(node.0 + 8)
}

/// Returns the members of each shard, for the members of a view.
pub(super) fn place(shards: &[EndsShard], members: &[Member]) -> Vec<RankSet> {
    let all: u64 = members.iter().map(|member| 1 << (member.tag % 64)).sum();
    let of = |(number, shard): (usize, &EndsShard)| {
        let by_number = |parts: usize, part: usize| {
            let ranks = members.iter().enumerate().filter(|(_, member)| member.tag as usize % parts == part);
            ranks.map(|(rank, _)| rank).collect()
        };
        match shard.layout {
            EndsLayout::Everywhere => RankSet::all(members.len()),
            EndsLayout::ByNumber(part, parts) => by_number(parts, part),
            EndsLayout::Moving(most) => {
                let weight =
                    |rank: &usize| Prng::new(all << 16 | members[*rank].tag << 8 | number as u64).draw();
                let mut ranks: Vec<usize> = (0..members.len()).collect();
                ranks.sort_by_key(weight);
                ranks.into_iter().take(most).collect()
            }
        }
    };
    shards.iter().enumerate().map(of).collect()
}

impl<'a> EndsWorld<'a> {
    pub(super) fn new(plan: &'a EndsPlan, trace_records_max: usize) -> Self {
        let mut prng = Prng::new(plan.seed ^ 0xe4d51);
        let slots = plan.processes;
        let jitter = [[(); SLOTS_MAX]; SLOTS_MAX].map(|row| row.map(|()| [5, 8, 8, 8, 13][prng.index(5)]));
        let uneven = |prng: &mut Prng| if plan.is_uneven { [1, 1, 1, 1, 3, 8][prng.index(6)] } else { 1 };
        let slow = [[(); SLOTS_MAX]; SLOTS_MAX].map(|row| row.map(|()| uneven(&mut prng)));
        let mut world = Self {
            plan,
            prng,
            step: 1,
            silence: 45 * (slots * slots) as u64,
            is_chaos: true,
            processes: Vec::new(),
            bad: [[false; SLOTS_MAX]; SLOTS_MAX],
            jitter,
            slow,
            views: vec![first_view(plan)],
            orders: vec![Vec::new(); plan.shards.len()],
            last_times: vec![0; plan.shards.len()],
            messages: Vec::new(),
            fates: Vec::new(),
            replied: Vec::new(),
            deaths: plan.deaths,
            false_accusations: plan.false_accusations,
            trap: None,
            cornered: None,
            lost_shards: 0,
            gone: 0,
            ended: 0,
            violation: None,
            tally: EndsTally::default(),
            trace: Vec::new(),
            trace_records_max,
            hash: 0,
        };
        world.processes = (0..slots).map(|slot| world.first_process(slot)).collect();
        (0..plan.members).for_each(|slot| world.enter(slot, 0, None));
        world
    }

    fn first_process(&mut self, slot: usize) -> EndsProcess {
        let is_member = slot < self.plan.members;
        let late = self.prng.below(6 * self.silence);
        EndsProcess {
            is_up: is_member,
            wakes: (!is_member).then_some(late),
            node: NodeId(u32::try_from(slot).unwrap_or(0)),
            parts: vec![EndsPart::default(); self.plan.shards.len()],
            full: vec![0; self.plan.shards.len()],
            seen: vec![no_row(); self.plan.processes],
            latest: vec![None; self.plan.processes],
            heard: [1; SLOTS_MAX],
            ..EndsProcess::default()
        }
    }

    pub(super) fn run(mut self) -> (RunOutcome, EndsTally) {
        for fault in &self.plan.faults {
            self.bear(fault);
            if self.violation.is_some() {
                break;
            }
        }
        self.is_chaos = false;
        self.trap = None;
        self.settle();
        let outcome = RunOutcome {
            violation: self.violation,
            elapsed: Duration::from_micros(self.step),
            delivered: self.tally.delivered,
            trace_hash: self.hash,
            trace: self.trace,
        };
        (outcome, self.tally)
    }

    pub(super) fn note(&mut self, slot: usize, text: impl Fn() -> String) {
        self.hash = (self.hash.rotate_left(5) ^ self.step ^ slot as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
        if self.trace_records_max == 0 {
            return;
        }
        if self.trace.len() == self.trace_records_max {
            self.trace.remove(0);
        }
        let node = u32::try_from(slot).unwrap_or(0);
        self.trace.push(TraceRecord { at_ns: 1000 * self.step, node, what: Happening::Note(text()) });
    }

    /// A fault of the plan: links are bad for a while, and a process that does something is struck.
    fn bear(&mut self, fault: &EndsFault) {
        self.set_links(fault.links);
        self.trap = fault.strike;
        self.cornered = None;
        self.pass(self.silence * fault.lasts / 8, |world| world.cornered.is_some());
        if let Some((slot, out, into)) = self.cornered.take() {
            let mut bad = links(fault.then.0);
            for other in (0..SLOTS_MAX).filter(|other| *other != slot) {
                bad[slot][other] |= out;
                bad[other][slot] |= into;
            }
            self.heal(bad);
            self.trap = fault.again;
            let from = self.step + 2 * self.silence;
            self.pass(self.silence * fault.then.1, |world| world.cornered.is_some() && world.step > from);
        }
        if let Some(slot) = fault.death {
            self.kill(slot);
        }
        // A plan that was made smaller may lack the process.
        let leaver =
            fault.leaver.filter(|slot| self.processes.get(*slot).is_some_and(EndsProcess::is_in_view));
        if let Some(slot) = leaver {
            self.note(slot, || "wishes to leave".into());
            let process = &mut self.processes[slot];
            process.leaves = true;
            process.row.leaves = true;
            process.post();
        }
    }

    pub(super) fn set_links(&mut self, now: EndsLinks) {
        self.note(0, || format!("links: {now:?}"));
        self.heal(links(now));
    }

    /// Links change; a pair whose link returns may find that its connection of the view is lost.
    fn heal(&mut self, bad: BadLinks) {
        let slots = self.processes.len();
        for (a, b) in (0..slots).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let was_bad = self.bad[a][b] || self.bad[b][a];
            let returns = was_bad && !bad[a][b] && !bad[b][a] && self.plan.losses > 0;
            let is_same = self.processes[a].view == self.processes[b].view;
            if !returns || self.prng.index(self.plan.losses) > 0 || !is_same {
                continue;
            }
            for (one, other) in [(a, b), (b, a)] {
                let rank = self.views[self.processes[one].view].view.rank(self.processes[other].node);
                if let Some(rank) = rank {
                    self.processes[one].lost.insert(rank);
                }
            }
        }
        self.bad = bad;
    }

    /// A process has done something: the strike of the plan may follow.
    pub(super) fn reach(&mut self, event: EndsEvent, slot: usize) {
        match self.trap {
            Some((awaited, left, kills)) if awaited == event && left > 1 => {
                self.trap = Some((awaited, left - 1, kills));
            }
            Some((awaited, _, kills)) if awaited == event => {
                self.trap = None;
                self.strike(slot, kills);
            }
            _ => {}
        }
    }

    fn strike(&mut self, slot: usize, kills: bool) {
        if kills && self.deaths > 0 {
            self.kill(slot);
            self.cornered = Some((slot, false, false));
            return;
        }
        let (out, into) = [(true, true), (true, false), (false, true)][self.prng.index(3)];
        self.note(slot, || format!("is cut off: to others {out}, from others {into}"));
        for other in (0..SLOTS_MAX).filter(|other| *other != slot) {
            self.bad[slot][other] |= out;
            self.bad[other][slot] |= into;
        }
        self.cornered = Some((slot, out, into));
    }

    fn kill(&mut self, slot: usize) {
        if !self.processes[slot].is_up || self.deaths == 0 {
            return;
        }
        self.deaths -= 1;
        self.note(slot, || "dies".into());
        let view = self.processes[slot].view;
        let written = self.processes[slot].written(view);
        for reader in 0..self.processes.len() {
            let is_there = self.processes[reader].view == view;
            let read = if is_there { self.processes[reader].read[slot].min(written) } else { 0 };
            let visible = read + self.prng.index(written - read + 1);
            self.processes[slot].visible[reader] = visible;
        }
        let process = &mut self.processes[slot];
        process.is_up = false;
        process.wakes = match self.prng.index(3) {
            0 => Some(self.step + self.silence),
            1 => Some(self.step + 4 * self.silence),
            _ => None,
        };
    }

    /// Lets steps pass; returns whether it ended because `is_over` said so.
    pub(super) fn pass(&mut self, steps: u64, mut is_over: impl FnMut(&Self) -> bool) -> bool {
        for i in 0..steps {
            self.step += 1;
            let slot = self.prng.index(self.processes.len());
            let process = &self.processes[slot];
            if !process.is_up {
                if process.wakes.is_some_and(|at| self.step >= at) && !process.is_gone {
                    self.boot(slot);
                }
            } else if self.prng.index(2) == 0 {
                self.read(slot);
            } else {
                self.act(slot);
            }
            if self.violation.is_some() {
                return false;
            }
            if i % 64 == 0 && is_over(self) {
                return true;
            }
        }
        false
    }

    /// A process does something of its own.
    fn act(&mut self, slot: usize) {
        self.report(slot);
        if self.processes[slot].mode == EndsMode::Outside {
            return self.ask(slot);
        }
        if self.processes[slot].end.is_some() {
            return self.install(slot);
        }
        if self.prng.index(3) == 0 {
            return self.multicast(slot);
        }
        match self.processes[slot].mode == EndsMode::Live && self.prng.index(3) > 0 {
            true => self.live(slot),
            false => self.ballots(slot),
        }
    }

    /// Reads something of another process, if the link is good.
    fn read(&mut self, slot: usize) {
        let other = self.prng.index(self.processes.len());
        let is_slow = self.is_chaos && self.slow[slot][other] > 1;
        if other == slot || self.bad[other][slot] || is_slow && self.prng.index(self.slow[slot][other]) > 0 {
            return;
        }
        if self.prng.index(2) == 0 {
            self.read_report(slot, other);
        } else if self.processes[slot].is_in_view() {
            self.read_row(slot, other);
        }
    }

    pub(super) fn newest(&self) -> usize {
        self.views.len() - 1
    }
}

fn links(of: EndsLinks) -> BadLinks {
    let mut bad = [[false; SLOTS_MAX]; SLOTS_MAX];
    for (a, b) in (0..SLOTS_MAX).flat_map(|a| (0..SLOTS_MAX).map(move |b| (a, b))) {
        bad[a][b] = of.are_bad(a, b);
    }
    bad
}

fn first_view(plan: &EndsPlan) -> EndsViewState {
    let member = |slot: usize| Member { node: NodeId(u32::try_from(slot).unwrap_or(0)), tag: slot as u64 };
    let members: Vec<Member> = (0..plan.members).map(member).collect();
    let placed = place(&plan.shards, &members);
    let shard = |(number, shard): (usize, &EndsShard)| EndingShard {
        kind: shard.kind,
        members: placed[number],
        whole: placed[number],
        columns: if shard.kind.is_timed { 1 } else { members.len() },
    };
    let shards = plan.shards.iter().enumerate().map(shard).collect();
    EndsViewState {
        view: EndingView { number: 0, members, shards, floor: 0 },
        base: vec![0; plan.shards.len()],
        sent: vec![Vec::new(); plan.shards.len()],
        begins: vec![true; plan.shards.len()],
        decided: None,
        lived: Vec::new(),
    }
}
