//! Runs with everything that the axioms allow, without faults (EXS fig. 2–5): no byte is lost, changed or out of
//! order.

use squall_fabric::sim::SimConfig;
use squall_protocols::stream::Statistics;

use crate::net::adversarial;

/// [E8] Everything that is sent is received, both streams end, both ends close in order, and each kind of transfer
/// occurs.
#[test]
fn streams_survive_the_adversary() {
    let mut all = Statistics::default();
    for seed in 0..400 {
        println!("seed {seed}");
        let mut net = adversarial(seed, |_, _| ());
        net.run(|_, _| ());
        net.assert_complete();
        for node in &net.nodes {
            let own = node.socket.statistics();
            all.direct += own.direct;
            all.indirect += own.indirect;
            all.mode_switches += own.mode_switches;
            all.shifted += own.shifted;
        }
    }
    println!("{all:?}");
    assert!(all.direct > 10_000 && all.indirect > 10_000 && all.mode_switches > 1_000, "{all:?}");
    assert!(all.shifted > 300, "{all:?}");
}

/// The same seed gives the same run, to the last event.
#[test]
fn runs_can_be_repeated() {
    let hash = |seed| {
        let mut net = adversarial(seed, |_, _| ());
        net.run(|_, _| ());
        net.world.trace_hash()
    };
    assert!((0..10).all(|seed| hash(seed) == hash(seed)));
    assert_ne!(hash(1), hash(2));
}

/// When both ends are done, no more messages flow [E6].
#[test]
fn an_idle_connection_is_silent() {
    for seed in 0..50 {
        let mut net =
            adversarial(seed, |config, _| *config = SimConfig { adversary: None, ..config.clone() });
        net.run(|_, _| ());
        while net.world.step() {}
        assert_eq!(net.world.next_event_at(), None);
    }
}

/// The same test over many more runs, in release builds.
#[test]
#[ignore = "takes minutes"]
fn streams_survive_the_adversary_for_long() {
    for seed in 1_000..21_000 {
        println!("seed {seed}");
        let mut net = adversarial(seed, |_, _| ());
        net.run(|_, _| ());
        net.assert_complete();
    }
}
