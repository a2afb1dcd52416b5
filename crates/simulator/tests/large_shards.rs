//! Shards in groups of more than 64 members (RamCast §2.2).

use squall_simulator::{genuine, sweep};

#[test]
fn genuine_multicast_holds_in_large_groups() {
    let summary = sweep(&genuine::LARGE, 0..5, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", (genuine::LARGE.draw)(*seed));
    }
    assert!(summary.delivered > 1_000, "the scenario does too little: {}", summary.delivered);
}
