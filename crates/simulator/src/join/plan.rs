//! The plan of a run: members, joiners, what happens to each, and how the messages beside the group travel.

use std::fmt;

use squall_fabric::Duration;
use squall_fabric::sim::{Adversary, Prng};

use crate::admission::BusPlan;
use crate::explain::Shrink;
use crate::group::draw_drift;

/// A run. Processes are numbered: the first members, then the joiners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinPlan {
    /// The order of events is drawn from it.
    pub seed: u64,
    /// Members of the first view; three of them at least are left alone.
    pub members: u32,
    /// Further processes.
    pub joiners: u32,
    /// How long members wait for a sign of life.
    pub suspicion_after: Duration,
    /// The network of the group.
    pub adversary: Adversary,
    /// What goes beside it.
    pub bus: BusPlan,
    /// How long links stand that are of no member.
    pub link_life: Duration,
    /// The number of the first view: numbers of nodes are made of it.
    pub first_view: u64,
    /// How many processes a leader admits in one view.
    pub admissions_max: u32,
    /// Whether each process asks for a rank of its own.
    pub asks_for_rank: bool,
    /// Whether the first leader ends as soon as a candidate has reported to it.
    pub leader_ends: bool,
    /// Whether the last joiner knows one contact only, where no process listens: it gives up in time.
    pub is_stranded: bool,
    /// What happens, and when, in ascending order.
    pub events: Vec<(Duration, JoinEvent)>,
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinEvent {
    /// It starts, and joins.
    Start(u32),
    /// It ends at once.
    Crash(u32),
    /// It stalls.
    Pause(u32, Duration),
    /// It is cut off from all others for a while.
    Cut(u32, Duration),
    /// It leaves.
    Leave(u32),
    /// A process that should not have been started asks for the rank of this member.
    Claim(u32),
    /// A stranger that knows the secret links with it, once or twice, under the number of a candidate, or one that may be given
    /// soon.
    Impostor(u32, u32),
}

impl JoinEvent {
    /// The process that it disturbs, if it disturbs one.
    pub(super) const fn disturbs(self) -> Option<u32> {
        match self {
            Self::Crash(process) | Self::Pause(process, _) | Self::Cut(process, _) | Self::Leave(process) => {
                Some(process)
            }
            Self::Start(_) | Self::Claim(_) | Self::Impostor(..) => None,
        }
    }
}

impl JoinPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x101a);
        let members = 3 + u32::try_from(prng.index(3)).expect("few");
        let joiners = 1 + u32::try_from(prng.index(4)).expect("few");
        let start = |joiner| (micros(&mut prng, 8_000), JoinEvent::Start(joiner));
        let mut events: Vec<_> = (members..members + joiners).map(start).collect();
        let (bus, impostors) = (draw_bus(&mut prng), if prng.chance(300) { 1 + prng.below(2) } else { 0 });
        // All others are a majority of every view, also of one with a joiner whose attempt has just failed.
        let is_calm = bus.loss_per_mille == 0 && bus.late_per_mille == 0 && impostors == 0;
        let most = if is_calm { members.div_ceil(2) - 1 } else { (members - 1) / 3 };
        let leader_ends = most > 0 && prng.chance(100);
        let disturbed = draw_disturbed(&mut prng, members, joiners, u64::from(most) - u64::from(leader_ends));
        for process in disturbed.into_iter().filter(|process| !leader_ends || *process != 0) {
            // Often while a process joins.
            let joins_at = events[prng.index(joiners as usize)].0;
            let at = match prng.chance(500) {
                true => joins_at + micros(&mut prng, 3_000),
                false => micros(&mut prng, 12_000),
            };
            events.extend(draw_disturbance(&mut prng, process, process >= members, at));
        }
        let member = |prng: &mut Prng| u32::try_from(prng.below(u64::from(members))).expect("few");
        let impostor = |prng: &mut Prng| {
            let times = 1 + u32::try_from(prng.below(2)).expect("few");
            (micros(prng, 15_000), JoinEvent::Impostor(member(prng), times))
        };
        events.extend((0..impostors).map(|_| impostor(&mut prng)));
        let claims = prng.below(3);
        events.extend((0..claims).map(|_| (micros(&mut prng, 15_000), JoinEvent::Claim(member(&mut prng)))));
        events.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            members,
            joiners,
            suspicion_after: Duration::from_micros(1_500 + prng.below(2_000)),
            adversary: draw_adversary(seed, &mut prng),
            bus,
            // Longer than a joiner waits for anything, or such that they end within the run.
            link_life: if impostors == 0 && prng.chance(250) { MILLI * 700 } else { MILLI * 40 },
            first_view: draw_first_view(seed),
            admissions_max: if prng.chance(300) {
                1 + u32::try_from(prng.below(3)).expect("few")
            } else {
                64
            },
            asks_for_rank: prng.chance(500),
            leader_ends,
            is_stranded: prng.chance(30),
            events,
        }
    }

    /// How many processes there are.
    #[must_use]
    pub const fn processes(&self) -> u32 {
        self.members + self.joiners
    }

    /// Whether something happens to the process.
    #[must_use]
    pub fn disturbs(&self, process: u32) -> bool {
        let is_ended = self.leader_ends && process == 0;
        is_ended || self.events.iter().any(|(_, event)| event.disturbs() == Some(process))
    }

    /// Whether the process is to be a member in the end, and nothing happens to it.
    #[must_use]
    pub fn is_left_alone(&self, process: u32) -> bool {
        let starts = |(_, event): &(Duration, JoinEvent)| *event == JoinEvent::Start(process);
        let is_stranded = self.is_stranded && process + 1 == self.processes();
        !self.disturbs(process) && !is_stranded && (process < self.members || self.events.iter().any(starts))
    }

    /// How often the others may remove the process while it joins: each impostor may take its number, and each time that
    /// something happens to it may be one.
    #[must_use]
    pub fn removals(&self, process: u32) -> u32 {
        let removes =
            |event: &JoinEvent| matches!(event, JoinEvent::Impostor(..)) || event.disturbs() == Some(process);
        self.events.iter().map(|(_, event)| u32::from(removes(event))).sum()
    }

    /// When the last fault is over.
    #[must_use]
    pub fn last_fault(&self) -> Duration {
        let over = |(at, event): &(Duration, JoinEvent)| match event {
            JoinEvent::Pause(_, span) | JoinEvent::Cut(_, span) => *at + *span,
            _ => *at,
        };
        self.events.iter().map(over).max().unwrap_or_default()
    }

    /// What can happen in the run, by kinds.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let is_late = self.bus.late_per_mille > 0;
        let kinds = self.events.iter().map(|(_, event)| match event {
            JoinEvent::Start(process) if *process < self.members => "member that rejoins",
            JoinEvent::Start(_) => "join",
            JoinEvent::Crash(0) => "crash of the first leader",
            JoinEvent::Crash(_) => "crash at a time",
            JoinEvent::Pause(..) => "pause at a time",
            JoinEvent::Cut(..) => "cut at a time",
            JoinEvent::Leave(_) => "leave",
            JoinEvent::Claim(_) => "rank of another",
            JoinEvent::Impostor(..) => "link under a foreign number",
        });
        let own = [
            (self.bus.loss_per_mille > 0, "lost request"),
            (is_late, "late request"),
            (self.leader_ends, "leader that ends with its candidate"),
            (self.is_stranded, "contact that is not there"),
            (self.admissions_max < 64, "few numbers in a view"),
            (self.first_view > 0, "views of high numbers"),
            (self.adversary.clock_drift_max > 0, "clocks of different rates"),
        ];
        kinds.chain(own.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind))).collect()
    }
}

/// Mostly 0; or near a word's end, or near the last view that has numbers for joiners.
fn draw_first_view(seed: u64) -> u64 {
    let mut prng = Prng::new(seed ^ 0xf1e3);
    [0, 0, 0, 0, 0, 0, 0, (1 << 16) - 2, 1 << 25, (1 << 26) - 300][prng.index(10)]
}

fn draw_bus(prng: &mut Prng) -> BusPlan {
    let often = |prng: &mut Prng| match prng.below(2) {
        0 => 0,
        _ => u32::try_from(prng.below(30)).expect("few"),
    };
    BusPlan {
        delay_max: Duration::from_micros(prng.below(500)),
        loss_per_mille: often(prng),
        late_per_mille: often(prng),
        late_max: Duration::from_millis(12),
    }
}

const MILLI: Duration = Duration::from_millis(1);

/// A network that holds nothing up for about as long as members wait for a sign of life: what is not disturbed must not be
/// removed.
fn draw_adversary(seed: u64, prng: &mut Prng) -> Adversary {
    let drawn = Adversary::drawn(prng);
    let stall_max = drawn.stall_max.min(Duration::from_micros(100));
    Adversary { clock_drift_max: draw_drift(seed), stall_max, ..drawn }
}

/// Later than this a death is known.
const NOTICED_AFTER: Duration = Duration::from_millis(4);

fn micros(prng: &mut Prng, most: u64) -> Duration {
    Duration::from_micros(prng.below(most + 1))
}

/// What happens to a process, from the time `at` on.
fn draw_disturbance(
    prng: &mut Prng,
    process: u32,
    may_leave: bool,
    mut at: Duration,
) -> Vec<(Duration, JoinEvent)> {
    let mut events = Vec::new();
    for _ in 0..1 + prng.below(3) {
        // Clearly shorter or longer than members wait.
        let span = match prng.chance(300) {
            true => micros(prng, 300),
            false => MILLI * 9 + micros(prng, 6_000),
        };
        let event = match prng.below(4) {
            0 => JoinEvent::Pause(process, span),
            1 => JoinEvent::Cut(process, span),
            2 if may_leave => JoinEvent::Leave(process),
            _ => JoinEvent::Crash(process),
        };
        events.push((at, event));
        // Its death is noticed before it rejoins: otherwise it might be two members that are dead.
        at += span + NOTICED_AFTER;
        if prng.chance(200) {
            events.push((at, JoinEvent::Crash(process)));
            break;
        }
        events.push((at, JoinEvent::Start(process)));
        at += micros(prng, 20_000);
    }
    events
}

/// Up to `most` processes that something happens to.
fn draw_disturbed(prng: &mut Prng, members: u32, joiners: u32, most: u64) -> Vec<u32> {
    let mut disturbed: Vec<u32> = Vec::new();
    for _ in 0..prng.below(most + 1) {
        let process = match prng.below(3) {
            0 => 0,
            1 => u32::try_from(prng.below(u64::from(members))).expect("few"),
            _ => members + u32::try_from(prng.below(u64::from(joiners))).expect("few"),
        };
        if !disturbed.contains(&process) {
            disturbed.push(process);
        }
    }
    disturbed
}

impl Shrink for JoinPlan {
    fn smaller(&self) -> Vec<Self> {
        let without = |i: usize| {
            let mut plan = self.clone();
            plan.events.remove(i);
            plan
        };
        let mut plans: Vec<Self> = (0..self.events.len()).map(without).collect();
        if self.leader_ends {
            plans.push(Self { leader_ends: false, ..self.clone() });
        }
        if self.bus.loss_per_mille > 0 || self.bus.late_per_mille > 0 {
            let bus = BusPlan { loss_per_mille: 0, late_per_mille: 0, ..self.bus.clone() };
            plans.push(Self { bus, ..self.clone() });
        }
        plans
    }
}

impl fmt::Display for JoinPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, members, joiners, suspicion_after, bus, admissions_max, asks_for_rank, .. } = self;
        writeln!(
            f,
            "seed {seed}: {members} members, {joiners} joiners, suspicion after {suspicion_after:?}"
        )?;
        let first = self.first_view;
        writeln!(
            f,
            "  {bus:?}, first view {first}, {admissions_max} numbers in a view, asks for ranks: {asks_for_rank}"
        )?;
        if self.leader_ends {
            writeln!(f, "  the first leader ends with its candidate")?;
        }
        self.events.iter().try_for_each(|(at, event)| writeln!(f, "  {at:?}: {event:?}"))
    }
}
