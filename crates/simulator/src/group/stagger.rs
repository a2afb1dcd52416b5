//! Members that look at each other's signs of life at different times, as real ones do: those of a run begin together, and so
//! all of them would notice the end of a pause, or none would.

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};

/// How often members check each other within the time that they wait for a sign of life.
const LOOKS: u32 = 4;

/// Short pauses, one for each of the `members` that begin together, which have no effect on the others: each begins just
/// before its member would check for the first time, and ends within the time between two checks. When twice that time has
/// passed, all have checked.
pub(crate) fn stagger(seed: u64, members: u32, suspicion_after: Duration) -> Vec<Rule> {
    let mut prng = Prng::new(seed ^ 0x57a9);
    let between = suspicion_after / LOOKS;
    let when = RuleTrigger::At(Instant::from_nanos(0) + between.mul_f64(0.95));
    let mut span = || Duration::from_nanos(prng.below(between.as_nanos() as u64));
    (0..members).map(|node| Rule { when, what: Verdict::Pause { node, span: span() } }).collect()
}
