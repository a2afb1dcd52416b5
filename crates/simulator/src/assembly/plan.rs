//! The plan of a run: processes, contacts, and events.

use std::fmt;

use squall_fabric::Duration;
use squall_fabric::sim::Prng;
use squall_protocols::assembly::AssemblySettings;

use crate::explain::Shrink;

/// The plan of a run. Process *i* listens at address *i*; the first processes are the contacts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssemblyPlan {
    /// The seed from which delays are drawn.
    pub seed: u64,
    /// The number of members of the group.
    pub members: u32,
    /// The number of further processes.
    pub spares: u32,
    /// The number of processes that are contacts.
    pub contacts: u32,
    /// The rank for which each process asks.
    pub ranks: Vec<Option<u32>>,
    /// The maximum delay of a message.
    pub delay_max: Duration,
    /// The events with their times, in ascending order.
    pub events: Vec<(Duration, AssemblyEvent)>,
}

/// An event of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssemblyEvent {
    /// A process starts, unless it is running.
    Start(u32),
    /// A process dies.
    Crash(u32),
    /// A process stalls.
    Halt(u32, Duration),
    /// The processes of this set are cut off from all others; an empty set heals the network.
    Cut(u32),
}

impl AssemblyPlan {
    /// Draws the plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0xa55e);
        let few = |prng: &mut Prng, most: u64| u32::try_from(prng.below(most + 1)).expect("few");
        let members = 1 + few(&mut prng, 4);
        let spares = match prng.chance(300) {
            // There are enough processes for two groups.
            true => members,
            false => few(&mut prng, 2),
        };
        let processes = members + spares;
        let contacts = 1 + few(&mut prng, u64::from(processes.min(4)) - 1);
        let asks = prng.chance(400);
        let mut free: Vec<u32> = (0..members).collect();
        prng.shuffle(&mut free);
        let mut rank = |prng: &mut Prng| if asks && prng.chance(500) { free.pop() } else { None };
        let ranks = (0..processes).map(|_| if spares == 0 { rank(&mut prng) } else { None }).collect();
        let spread = [100, 3_000, 30_000][prng.index(3)];
        let at = |prng: &mut Prng, most: u64| Duration::from_micros(prng.below(most + 1));
        let mut events: Vec<_> =
            (0..processes).map(|process| (at(&mut prng, spread), AssemblyEvent::Start(process))).collect();
        let starts_again = prng.chance(500);
        for _ in 0..prng.below(5) {
            let process = few(&mut prng, u64::from(processes) - 1);
            // Half of the faults occur around the time when the members link with each other.
            let last = events
                .iter()
                .filter(|(_, event)| matches!(event, AssemblyEvent::Start(_)))
                .map(|(at, _)| *at)
                .max();
            let when = match prng.chance(500) {
                true => last.expect("all start") + at(&mut prng, 2_000),
                false => at(&mut prng, spread + 10_000),
            };
            match prng.below(3) {
                0 => {
                    events.push((when, AssemblyEvent::Crash(process)));
                    if starts_again && prng.chance(700) {
                        events.push((when + at(&mut prng, 10_000), AssemblyEvent::Start(process)));
                    }
                }
                1 if prng.chance(300) => events.push((when, AssemblyEvent::Halt(process, FOREVER))),
                1 => events.push((when, AssemblyEvent::Halt(process, at(&mut prng, 40_000)))),
                _ => {
                    let set = few(&mut prng, (1 << processes) - 1);
                    events.push((when, AssemblyEvent::Cut(set)));
                    events.push((when + at(&mut prng, 40_000), AssemblyEvent::Cut(0)));
                }
            }
        }
        events.sort_by_key(|(at, _)| *at);
        let delay_max = Duration::from_micros(1 + prng.below(400));
        Self { seed, members, spares, contacts, ranks, delay_max, events }
    }

    /// Returns the number of processes.
    #[must_use]
    pub const fn processes(&self) -> u32 {
        self.members + self.spares
    }

    /// Returns whether any process restarts.
    #[must_use]
    pub fn starts_again(&self) -> bool {
        let starts =
            |process| self.events.iter().filter(|(_, event)| *event == AssemblyEvent::Start(process)).count();
        (0..self.processes()).any(|process| starts(process) > 1)
    }

    /// Returns when the last fault is over.
    #[must_use]
    pub fn last_fault(&self) -> Duration {
        let over = |(at, event): &(Duration, AssemblyEvent)| match event {
            AssemblyEvent::Halt(_, span) if *span < FOREVER => *at + *span,
            _ => *at,
        };
        self.events.iter().map(over).max().unwrap_or_default()
    }

    /// Returns the kinds of events that can happen in the run.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let kinds = self.events.iter().map(|(_, event)| match event {
            AssemblyEvent::Start(_) => "start at a time",
            AssemblyEvent::Crash(0) => "crash of the first contact",
            AssemblyEvent::Crash(_) => "crash at a time",
            AssemblyEvent::Halt(_, FOREVER) => "halt forever",
            AssemblyEvent::Halt(..) => "pause at a time",
            AssemblyEvent::Cut(0) => "heal",
            AssemblyEvent::Cut(_) => "partition",
        });
        let own = [
            (self.starts_again(), "process that starts again"),
            (self.spares >= self.members, "processes for two groups"),
            (self.ranks.iter().any(Option::is_some), "ranks that are asked for"),
        ];
        kinds.chain(own.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind))).collect()
    }

    /// Returns the settings of a process.
    pub(super) fn settings(&self, process: u32, life: u32) -> AssemblySettings {
        AssemblySettings {
            members: self.members,
            agreement: [0; 32],
            rank: self.ranks[process as usize],
            nonce: u64::from(process) << 32 | u64::from(life) << 16,
            timeout: TIMEOUT,
            linking: Duration::from_millis(25),
            silence: Duration::from_millis(8),
            handshake: Duration::from_millis(4),
            patience_min: Duration::from_millis(1),
            pauses: [Duration::from_micros(200), Duration::from_millis(2)],
        }
    }
}

impl Shrink for AssemblyPlan {
    fn smaller(&self) -> Vec<Self> {
        let without = |i: usize| {
            let mut plan = self.clone();
            plan.events.remove(i);
            plan
        };
        let mut plans: Vec<Self> = (0..self.events.len()).map(without).collect();
        if self.ranks.iter().any(Option::is_some) {
            plans.push(Self { ranks: vec![None; self.ranks.len()], ..self.clone() });
        }
        plans
    }
}

impl fmt::Display for AssemblyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, members, spares, contacts, ranks, delay_max, .. } = self;
        writeln!(
            f,
            "seed {seed}: {members} members, {spares} spare processes, {contacts} contacts, ranks {ranks:?}, delays up to {delay_max:?}"
        )?;
        self.events.iter().try_for_each(|(at, event)| match event {
            AssemblyEvent::Cut(set) => writeln!(f, "  {at:?}: Cut({set:#b})"),
            event => writeln!(f, "  {at:?}: {event:?}"),
        })
    }
}

/// The length of a halt that does not end within the run.
const FOREVER: Duration = Duration::from_secs(1_000);
/// The time limit of a process's attempt to assemble.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);
