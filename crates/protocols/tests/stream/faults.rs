//! Connections that end at any moment (EXS §II.B): crash, break, partition, abort. No end hangs, no acknowledged data
//! is lost, and every end reports the reason.

use squall_fabric::sim::{Prng, Rule, RuleTrigger, SimConfig, Verdict};
use squall_fabric::{BreakReason, Duration, Instant};
use squall_protocols::stream::{
    Completion, SocketFailure, SocketKind, StreamSettings, StreamViolation, TransferPolicy,
};

use crate::net::{SocketNet, adversarial, plans};

fn add(config: &mut SimConfig, when: RuleTrigger, what: Verdict) {
    config.rules.push(Rule { when, what });
}

/// Returns a moment within a run: most runs take between 0.1 and 100 ms.
fn moment(prng: &mut Prng) -> RuleTrigger {
    let magnitude = 10_u64.pow(4 + prng.below(5) as u32);
    RuleTrigger::At(Instant::from_nanos(prng.below(magnitude)))
}

/// Returns a post within a run.
fn post(prng: &mut Prng) -> RuleTrigger {
    let most = 1 << prng.below(9);
    RuleTrigger::Post { node: prng.below(2) as u32, nth: 1 + prng.below(most) }
}

fn run(seed: u64, change: impl FnOnce(&mut SimConfig, &mut Prng)) -> SocketNet {
    println!("seed {seed}");
    let mut net = adversarial(seed, change);
    net.run(|_, _| ());
    net.assert_nothing_acknowledged_is_lost();
    net
}

/// Returns why the ends of a run failed.
fn failures(net: &SocketNet) -> impl Iterator<Item = SocketFailure> {
    net.living().filter_map(|node| node.user.closed.flatten())
}

/// A process dies: the other gets all acknowledged data, and learns of the death.
#[test]
fn a_killed_peer_is_reported() {
    let mut reported = 0;
    for seed in 0..300 {
        let net = run(seed, |config, prng| {
            let when = if prng.chance(500) { moment(prng) } else { post(prng) };
            add(config, when, Verdict::Crash(prng.below(2) as u32));
        });
        reported += failures(&net).count();
    }
    assert!(reported > 100, "{reported} of 300");
}

/// The connection between two living ends breaks: both learn of it.
#[test]
fn a_broken_connection_is_reported_at_both_ends() {
    let mut reported = 0;
    for seed in 0..300 {
        let net = run(seed, |config, prng| {
            let from = prng.below(2) as u32;
            let piece = RuleTrigger::Piece { from, to: 1 - from, nth: 1 + prng.below(100) };
            let when = if prng.chance(500) { moment(prng) } else { piece };
            add(config, when, Verdict::Break { a: 0, b: 1 });
        });
        reported += usize::from(failures(&net).count() == 2);
    }
    assert!(reported > 100, "{reported} of 300");
}

/// A partition that lasts breaks the connection; one that heals soon does not.
#[test]
fn a_partition_is_reported_if_it_lasts() {
    let (mut reported, mut healed) = (0, 0);
    for seed in 0..100 {
        let net = run(seed, |config, prng| {
            let begin = Instant::from_nanos(prng.below(2_000_000));
            add(config, RuleTrigger::At(begin), Verdict::Partition(vec![vec![0], vec![1]]));
            if seed % 2 == 0 {
                add(config, RuleTrigger::At(begin + Duration::from_millis(20)), Verdict::Heal);
            }
        });
        let broken = failures(&net).count();
        assert!(seed % 2 == 1 || broken == 0, "a short partition breaks nothing");
        reported += usize::from(broken == 2);
        healed += usize::from(broken == 0 && seed % 2 == 0);
    }
    assert!(reported > 15 && healed == 50, "{reported} reported, {healed} healed");
}

/// A process that pauses and a slow path only cause delays.
#[test]
fn pauses_and_slow_paths_lose_nothing() {
    for seed in 0..100 {
        let net = run(seed, |config, prng| {
            let node = prng.below(2) as u32;
            add(config, moment(prng), Verdict::Pause { node, span: Duration::from_millis(3) });
            let extra = Duration::from_micros(prng.below(300));
            add(config, moment(prng), Verdict::Slow { from: node, to: 1 - node, extra });
        });
        net.assert_complete();
    }
}

/// A user aborts at any moment: the other learns of it, and keeps the acknowledged data.
#[test]
fn an_abort_is_reported_to_the_peer() {
    let mut reported = 0;
    for seed in 0..300 {
        println!("seed {seed}");
        let mut net = adversarial(seed, |_, _| ());
        let magnitude = 1 << net.world.draw(|prng| prng.below(10));
        let mut steps = 1 + net.world.draw(|prng| prng.below(magnitude));
        net.run(|net, i| {
            steps -= u64::from(steps > 0);
            if steps == 1 {
                let node = &mut net.nodes[i as usize];
                node.socket.abort(&mut node.fabric);
            }
        });
        net.assert_nothing_acknowledged_is_lost();
        let found: Vec<SocketFailure> = failures(&net).collect();
        assert!(
            found.iter().all(|failure| matches!(
                failure,
                SocketFailure::Aborted | SocketFailure::Broken(_) | SocketFailure::Unanswered
            )),
            "{found:?}"
        );
        reported += usize::from(found.len() == 2);
    }
    assert!(reported > 100, "{reported} of 300");
}

/// Incompatible ends report it instead of waiting for each other.
#[test]
fn ends_of_different_kinds_disconnect_at_once() {
    let stream = StreamSettings::default();
    let others = [
        StreamSettings { kind: SocketKind::Packets, ..stream.clone() },
        StreamSettings { policy: TransferPolicy::Direct, ..stream.clone() },
        StreamSettings { policy: TransferPolicy::Indirect, ..stream.clone() },
    ];
    for (seed, other) in (0..).zip(others) {
        let plans = plans(&mut Prng::new(seed), SocketKind::Stream);
        let mut net = SocketNet::new(seed, SimConfig::adversarial(seed), [stream.clone(), other], plans);
        net.run(|_, _| ());
        let found: Vec<SocketFailure> = failures(&net).collect();
        assert!(found.contains(&SocketFailure::Violation(StreamViolation::Mismatch)), "{found:?}");
        assert_eq!(found.len(), 2);
        assert_eq!(net.nodes[0].user.got + net.nodes[1].user.got, 0);
    }
}

/// The peer is dead before the connection opens.
#[test]
fn a_peer_that_was_never_there_is_reported() {
    let mut net = adversarial(1, |config, _| {
        add(config, RuleTrigger::At(Instant::from_nanos(0)), Verdict::Crash(1));
        config.cost.connect_ns = 1_000_000;
    });
    net.run(|_, _| ());
    let failure = net.nodes[0].user.closed.flatten();
    let expected =
        [BreakReason::PeerClosed, BreakReason::Unreachable].map(|reason| Some(SocketFailure::Broken(reason)));
    assert!(expected.contains(&failure), "{failure:?}");
    assert!(!net.nodes[0].user.is_connected);
    assert_eq!(net.nodes[0].socket.poll_completion(), None::<Completion>);
}

/// Crashes, breaks and pauses together, over many more runs, in release builds.
#[test]
#[ignore = "takes minutes"]
fn streams_survive_all_faults_for_long() {
    for seed in 1_000..21_000 {
        run(seed, |config, prng| {
            let node = prng.below(2) as u32;
            let verdict = match prng.below(3) {
                0 => Verdict::Crash(node),
                1 => Verdict::Break { a: 0, b: 1 },
                _ => Verdict::Partition(vec![vec![0], vec![1]]),
            };
            let when = if prng.chance(500) { moment(prng) } else { post(prng) };
            add(config, when, verdict);
            add(config, moment(prng), Verdict::Pause { node, span: Duration::from_millis(3) });
        });
    }
}
