//! Interruptions: a connection breaks and is opened again within the view (beside Derecho §3.4). What was written comes when it is open again, so
//! that cores see a pause of one pair of members.

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};

use super::cluster::UNREACHABLE_AFTER;

/// Perhaps one pair after the other of some is interrupted, each for less time than it takes to lose each other.
pub(crate) fn draw_interruptions(seed: u64, nodes: u64) -> Vec<Rule> {
    draw_interruptions_of(UNREACHABLE_AFTER.mul_f64(0.8), seed, nodes)
}

/// As [`draw_interruptions`], each for at most `longest`.
pub(crate) fn draw_interruptions_of(longest: Duration, seed: u64, nodes: u64) -> Vec<Rule> {
    let mut prng = Prng::new(seed ^ INTERRUPTIONS);
    if nodes < 2 || !prng.chance(60) {
        return Vec::new();
    }
    let most = longest.as_nanos() as u64;
    let mut rules = Vec::new();
    for _ in 0..1 + prng.below(3) {
        let a = prng.below(nodes);
        let b = (a + 1 + prng.below(nodes - 1)) % nodes;
        let [a, b] = [a, b].map(|node| u32::try_from(node).expect("few"));
        let begin = Instant::from_nanos(prng.below(3_000_000));
        let longest = 1 + prng.below(most);
        let end = begin + Duration::from_nanos(1 + prng.below(longest));
        rules.push(Rule { when: RuleTrigger::At(begin), what: Verdict::Cut { a, b } });
        rules.push(Rule { when: RuleTrigger::At(end), what: Verdict::Mend { a, b } });
    }
    rules
}

/// Returns how long all interruptions take together; `None` if some path is cut for good, or at no certain time.
pub(super) fn interrupted(rules: &[Rule]) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for rule in rules {
        let Verdict::Cut { a, b } = rule.what else { continue };
        let RuleTrigger::At(begin) = rule.when else { return None };
        let mended = |rule: &Rule| match rule.when {
            RuleTrigger::At(at) if at >= begin && rule.what == (Verdict::Mend { a, b }) => Some(at),
            _ => None,
        };
        total += rules.iter().filter_map(mended).min()?.since(begin);
    }
    Some(total)
}

/// With this the seeds that have found something, and are pinned in tests, have none.
const INTERRUPTIONS: u64 = 0xdb63;
