//! The plan of a run: members, settings, workload and faults, drawn from a seed. A plan is data, so that it can be
//! shrunk.

use std::fmt;

use squall_fabric::sim::{Adversary, Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::multicast::{
    Batching, Carrier, DeliveryMode, LargeMessages, PIECE_BYTES, SubgroupSettings,
};

use crate::coverage::rule_kinds;
use crate::explain::Shrink;
use crate::plan_words;

/// The plan of one run.
#[derive(Clone, Debug)]
pub struct MulticastPlan {
    /// The seed of the plan, on which the contents of messages and all further random choices depend.
    pub seed: u64,
    /// The number of members of the subgroup.
    pub members: usize,
    /// The subgroup's settings.
    pub settings: SubgroupSettings,
    /// The number of messages of each sender, by position among the senders.
    pub messages: Vec<u64>,
    /// The maximum number of messages that a sender commits in one turn.
    pub burst: u64,
    /// The maximum time that a sender waits between two turns in which it sends.
    pub gap_max: Duration,
    /// The maximum pauses of the members that pull their deliveries; `None` for members with upcalls.
    pub pulls: Vec<Option<Duration>>,
    /// The maximum time that a flush of a disk takes.
    pub flush_max: Duration,
    /// The behaviour of the fabric.
    pub adversary: Adversary,
    /// Whether readers share the owner's memory.
    pub early_sight: bool,
    /// Whether writes land without the target's processor.
    pub one_sided_progress: bool,
    /// The faults.
    pub rules: Vec<Rule>,
}

impl MulticastPlan {
    /// Draws the plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let members = 1 + prng.index(5);
        let mut settings = draw_settings(&mut prng, members);
        settings.large = draw_large(&mut Prng::new(seed ^ 0x1a46e), settings.message_max);
        settings.piece_bytes = draw_piece_bytes(seed);
        let mut disk = Prng::new(seed ^ 0xd15c);
        if settings.mode == DeliveryMode::Atomic && disk.chance(200) {
            settings.mode = DeliveryMode::Durable;
        }
        let messages: Vec<u64> = settings.senders.iter().map(|_| prng.below(60)).collect();
        let pulls = (0..members)
            .map(|_| prng.chance(400).then(|| Duration::from_nanos(prng.below(200_000))))
            .collect();
        let plan = Self {
            seed,
            members,
            settings,
            messages,
            burst: 1 + prng.below(20),
            gap_max: Duration::from_nanos(if prng.chance(500) { 0 } else { prng.below(100_000) }),
            pulls,
            flush_max: Duration::from_micros([2, 30, 300][disk.index(3)]),
            adversary: Adversary::drawn(&mut prng),
            early_sight: prng.chance(500),
            one_sided_progress: prng.chance(750),
            rules: draw_rules(&mut prng, members),
        };
        if Prng::new(seed ^ 0x1046).chance(3) { plan.lengthened() } else { plan }
    }

    /// Returns the plan with one sender whose messages make every 16-bit counter wrap \[O6\], and without any fault
    /// that would end the run before.
    fn lengthened(mut self) -> Self {
        self.messages[0] = LONG;
        self.gap_max = Duration::ZERO;
        self.burst = 40;
        self.pulls.fill(None);
        self.rules.retain(|rule| !matches!(rule.what, Verdict::Crash(_)));
        let SubgroupSettings { window, window_bytes, message_max, large, .. } = &mut self.settings;
        (*window, *window_bytes, *message_max, *large) = (20 + *window, 4000, (*message_max).min(8), None);
        self
    }

    /// Returns whether it is one of the long runs.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.messages.contains(&LONG)
    }

    /// Returns the kinds of events that can happen in the run.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let long = self.is_long().then_some("count of records that wraps");
        let durable = (self.settings.mode == DeliveryMode::Durable).then_some("durable messages");
        rule_kinds(&self.rules).into_iter().chain(long).chain(durable).collect()
    }

    /// Returns whether a member dies; then only safety is guaranteed.
    #[must_use]
    pub fn has_crash(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.what, Verdict::Crash(_)))
    }

    /// Returns the latest instant at which a rule takes effect, plus the time that the effect lasts.
    #[must_use]
    pub fn last_fault(&self) -> Duration {
        let end = |rule: &Rule| match (&rule.when, &rule.what) {
            (RuleTrigger::At(at), Verdict::Pause { span, .. }) => at.as_nanos() + span.as_nanos() as u64,
            (RuleTrigger::At(at), _) => at.as_nanos(),
            _ => 0,
        };
        Duration::from_nanos(self.rules.iter().map(end).max().unwrap_or(0))
    }
}

/// More messages than a 16-bit counter can count.
const LONG: u64 = (1 << 16) + 500;

fn draw_settings(prng: &mut Prng, members: usize) -> SubgroupSettings {
    let message_max = [0, 8, 24, 100, 1000][prng.index(5)];
    let mut senders: Vec<usize> = (0..members).filter(|_| prng.chance(700)).collect();
    if senders.is_empty() {
        senders.push(prng.index(members));
    }
    let windows = [3, 10, 40][prng.index(3)];
    let stage = |prng: &mut Prng| prng.chance(750);
    let mode = [
        DeliveryMode::Atomic,
        DeliveryMode::Atomic,
        DeliveryMode::Atomic,
        DeliveryMode::Unordered,
        DeliveryMode::Raw,
    ][prng.index(5)];
    let (window, window_bytes) = (1 + prng.index(windows), 1 + prng.index(4000));
    SubgroupSettings {
        mode,
        window,
        message_max,
        window_bytes,
        piece_bytes: PIECE_BYTES,
        batching: Batching { send: stage(prng), receive: stage(prng), delivery: stage(prng) },
        large: None,
        null_sends: true,
        express: !window_bytes.is_multiple_of(4),
        slow_after: None,
        senders,
    }
}

/// Draws pieces of one or several messages, or of whole windows. They are drawn by numbers of their own, so that the
/// rest of a plan does not depend on them.
pub(crate) fn draw_piece_bytes(seed: u64) -> usize {
    let mut prng = Prng::new(seed ^ 0x91ece);
    if prng.chance(500) { PIECE_BYTES } else { prng.index(600) }
}

/// Draws large messages whose bodies are pushed; [`crate::group`] relays them.
fn draw_large(prng: &mut Prng, message_max: usize) -> Option<LargeMessages> {
    prng.chance(300).then(|| LargeMessages {
        message_max: message_max + 1 + prng.index(500),
        window: 1 + prng.index(5),
        window_bytes: prng.index(3000),
        carrier: Carrier::Pushed,
    })
}

fn draw_rules(prng: &mut Prng, members: usize) -> Vec<Rule> {
    let node = |prng: &mut Prng| u32::try_from(prng.index(members)).expect("few members");
    (0..prng.below(4))
        .map(|_| {
            let at = RuleTrigger::At(Instant::from_nanos(prng.below(2_000_000)));
            match prng.below(6) {
                0 | 1 => {
                    let span = Duration::from_nanos(prng.below(3_000_000));
                    Rule { when: at, what: Verdict::Pause { node: node(prng), span } }
                }
                2 | 3 => {
                    let extra = Duration::from_nanos(prng.below(500_000));
                    Rule { when: at, what: Verdict::Slow { from: node(prng), to: node(prng), extra } }
                }
                4 => Rule { when: at, what: Verdict::Crash(node(prng)) },
                _ => {
                    let when = RuleTrigger::Post { node: node(prng), nth: 1 + prng.below(300) };
                    Rule { when, what: Verdict::Crash(node(prng)) }
                }
            }
        })
        .collect()
}

impl Shrink for MulticastPlan {
    fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        for i in 0..self.rules.len() {
            let mut plan = self.clone();
            plan.rules.remove(i);
            plans.push(plan);
        }
        for i in 0..self.messages.len() {
            for keep in [0, self.messages[i] / 2, self.messages[i].saturating_sub(1)] {
                if keep < self.messages[i] {
                    let mut plan = self.clone();
                    plan.messages[i] = keep;
                    plans.push(plan);
                }
            }
        }
        for i in 0..self.members {
            if self.pulls[i].is_some() {
                let mut plan = self.clone();
                plan.pulls[i] = None;
                plans.push(plan);
            }
        }
        if self.settings.large.is_some() {
            let mut plan = self.clone();
            plan.settings.large = None;
            plans.push(plan);
        }
        let mut calm = self.clone();
        calm.adversary = Adversary { delay_max: self.adversary.delay_max, ..Adversary::default() };
        if calm.adversary != self.adversary {
            plans.push(calm);
        }
        plans
    }
}

impl fmt::Display for MulticastPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubgroupSettings { mode, window, message_max, window_bytes, large, senders, .. } = &self.settings;
        let SubgroupSettings { piece_bytes, batching, .. } = &self.settings;
        writeln!(f, "seed {}: {} members, mode {}", self.seed, self.members, plan_words::mode(*mode))?;
        writeln!(f, "  senders {senders:?} send {:?} messages of 0 to {message_max} bytes", self.messages)?;
        writeln!(f, "  in bursts of up to {}, up to {:?} apart", self.burst, self.gap_max)?;
        writeln!(
            f,
            "  window of {window} messages and {window_bytes} bytes, {}",
            plan_words::batching(*batching)
        )?;
        writeln!(f, "  pieces of {piece_bytes} bytes")?;
        if let Some(large) = large {
            writeln!(f, "  {}", plan_words::large(large))?;
        }
        for (member, pause) in self.pulls.iter().enumerate() {
            if let Some(pause) = pause {
                writeln!(f, "  member {member} pulls, with pauses of up to {pause:?}")?;
            }
        }
        let sight = if self.early_sight { "readers share memory" } else { "readers hold copies" };
        let progress = if self.one_sided_progress { "at once" } else { "when the target polls" };
        writeln!(f, "  {sight}, writes land {progress}")?;
        f.write_str(&plan_words::adversary(&self.adversary, "  "))?;
        for rule in &self.rules {
            writeln!(f, "  fault {rule}")?;
        }
        Ok(())
    }
}
