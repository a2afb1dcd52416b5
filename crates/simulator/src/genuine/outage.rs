//! The plan of a run in which the paths between members fail for a while, mostly with a majority for quorum (RamCast §2.2) \[G11\] \[V17\].

use squall_fabric::sim::{Adversary, Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::genuine::QuorumRule;

use super::plan::GenuinePlan;
use crate::group::{FOR_EVER, GroupPlan};
use crate::outage::{Outage, OutageReturn, draw_outage};

impl GenuinePlan {
    /// Perhaps nothing happens but outages and deaths, while some members are behind the others of their shards.
    pub(super) fn draw_outages(&mut self) {
        let mut prng = Prng::new(self.group.seed ^ 0x07a6e);
        if self.counts_words || self.standstill.is_some() || !prng.chance(150) {
            return;
        }
        let (seed, members) = (self.group.seed, self.group.members);
        let calm = GroupPlan::calm(seed, members);
        let suspicion = Duration::from_nanos(400_000 + prng.below(1_200_000));
        let clock_drift_max = self.group.adversary.clock_drift_max.min(10_000);
        self.group = GroupPlan {
            subgroups: Vec::new(),
            messages: self.group.messages,
            burst: self.group.burst,
            gap_max: self.group.gap_max,
            early_sight: self.group.early_sight,
            suspicion_after: Some(suspicion),
            unreachable_after: FOR_EVER,
            adversary: Adversary { clock_drift_max, ..calm.adversary.clone() },
            ..calm
        };
        self.homes.truncate(members as usize);
        if prng.chance(800) {
            self.settings.quorum = QuorumRule::Majority;
        }
        for _ in 0..prng.below(3) {
            self.add_lag(&mut prng);
        }
        let mut begin = Duration::from_nanos(prng.below(800_000));
        self.keeps_all = prng.chance(500);
        for _ in 0..1 + prng.below(2) {
            let outage = match self.keeps_all {
                true => Outage {
                    begin,
                    span: suspicion.mul_f64(2.1 + 0.1 * prng.below(40) as f64),
                    alone: (0..members).collect(),
                    back: OutageReturn::AtOnce,
                    is_one_way: false,
                },
                false => draw_outage(&mut prng, members, begin, suspicion),
            };
            begin = outage.end() + suspicion.mul_f64(2.0 + 0.1 * prng.below(80) as f64);
            for (at, what) in outage.faults(members, &mut prng) {
                self.group.rules.push(Rule { when: RuleTrigger::At(Instant::from_nanos(0) + at), what });
            }
        }
        for _ in 0..if self.keeps_all { 0 } else { prng.below(3) } {
            let node = u32::try_from(prng.below(u64::from(members))).expect("few");
            let last = u64::try_from(begin.as_nanos()).expect("a short run");
            let when = RuleTrigger::At(Instant::from_nanos(prng.below(last)));
            self.group.rules.push(Rule { when, what: Verdict::Crash(node) });
        }
    }

    /// What the others write comes late to one member, which lacks a part when the paths fail.
    fn add_lag(&mut self, prng: &mut Prng) {
        let members = self.group.members;
        let to = u32::try_from(prng.below(u64::from(members))).expect("few");
        // Some round trips, in which it gets what it lacks, take less than others wait for a sign of life.
        let suspicion = self.group.suspicion_after.unwrap_or_default().as_nanos() as u64;
        let extra = Duration::from_nanos(5_000 + prng.below(suspicion / 20));
        for from in (0..members).filter(|from| *from != to) {
            let when = RuleTrigger::At(Instant::from_nanos(0));
            self.group.rules.push(Rule { when, what: Verdict::Slow { from, to, extra } });
        }
    }
}
