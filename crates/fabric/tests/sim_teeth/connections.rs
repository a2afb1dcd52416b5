//! The adversary's effects on writes, completions and revocations.

use squall_fabric::conformance::{ConformanceCluster, GrantedLink};
use squall_fabric::sim::{Adversary, SimConfig};
use squall_fabric::{Duration, Fabric, FabricEvent, Token, Write};

use crate::sim_harness::AdverseCluster;

/// Returns a configuration whose adversary has one habit.
fn with(habit: Adversary) -> SimConfig {
    SimConfig {
        adversary: Some(habit),
        early_sight: false,
        one_sided_progress: true,
        ..SimConfig::adversarial(0)
    }
}

fn scattering() -> Adversary {
    Adversary {
        scatter_per_mille: 1000,
        pieces_max: 8,
        delay_max: Duration::from_micros(10),
        late_source_per_mille: 1000,
        ..Adversary::default()
    }
}

/// Two nodes, and a connection with a grant over `words` words.
fn linked(seed: u64, config: SimConfig, words: usize) -> (ConformanceCluster<AdverseCluster>, GrantedLink) {
    AdverseCluster::configure(seed, config);
    let mut cluster = ConformanceCluster::<AdverseCluster>::new(2);
    let link = cluster.link(0, 1, 1, words);
    (cluster, link)
}

/// [F2]: some words of a write are seen before others, and later words before earlier ones.
#[test]
fn torn_writes_are_seen() {
    let [mut torn, mut backwards] = [0, 0];
    for seed in 0..20 {
        let (mut cluster, link) = linked(seed, with(scattering()), 4);
        cluster.write(0, link.conn, &link.value(0, &[1; 4]));
        cluster.until("the last word", |_| {
            let seen = [0, 1, 2, 3].map(|word| link.target.load(word));
            torn += u64::from(seen.contains(&0) && seen.contains(&1));
            backwards += u64::from(seen.is_sorted() && seen != [0; 4] && seen != [1; 4]);
            seen == [1; 4]
        });
    }
    assert!(torn > 20 && backwards > 5, "torn {torn}, backwards {backwards}");
}

/// [F5]: source words are read after the post, within one run at different times; without the habit, at the
/// post.
#[test]
fn source_words_are_read_late() {
    for (late_source_per_mille, expected) in [(1000, [false, true]), (0, [true, false])] {
        let [mut at_post, mut later] = [false, false];
        for seed in 0..30 {
            let habit = Adversary { late_source_per_mille, ..scattering() };
            let (mut cluster, link) = linked(seed, with(habit), 4);
            let source = cluster.node(0).register(4);
            cluster.write(0, link.conn, &link.reference(0, &source, 0..4));
            for k in 1..20 {
                (0..4).for_each(|word| source.store(word, k));
                cluster.step();
            }
            let landed = [0, 1, 2, 3].map(|word| link.target.load(word));
            at_post |= landed == [0; 4];
            later |= !landed.contains(&0) && landed.iter().any(|value| *value != landed[0]);
        }
        assert_eq!([at_post, later], expected, "with late reads {late_source_per_mille} times in 1000");
    }
}

/// The error that [F5] forbids is detected: a guard by reference precedes the data that it announces.
#[test]
fn a_guard_by_reference_is_caught() {
    let early_guards = |by_value: bool| -> u64 {
        let mut early = 0;
        for seed in 0..20 {
            let (mut cluster, link) = linked(seed, with(scattering()), 16);
            let source = cluster.node(0).register(16);
            for k in 1..8 {
                source.store(usize::try_from(k).expect("small"), k);
                source.store(0, k);
                let slot = usize::try_from(k).expect("small");
                cluster.write(0, link.conn, &link.reference(slot, &source, slot..slot + 1));
                let value = [k];
                let guard = if by_value { link.value(0, &value) } else { link.reference(0, &source, 0..1) };
                cluster.write(0, link.conn, &guard);
                cluster.step();
                let seen = link.target.load(0);
                early += (1..=seen)
                    .filter(|k| link.target.load(usize::try_from(*k).expect("small")) == 0)
                    .count() as u64;
            }
        }
        early
    };
    assert!(early_guards(false) > 10, "the error was detected {} times", early_guards(false));
    assert_eq!(early_guards(true), 0);
}

/// [F6]: a completion can come long after the landing.
#[test]
fn completions_come_late() {
    let habit = Adversary { late_done_max: Duration::from_millis(1), ..Adversary::default() };
    let mut latest = Duration::ZERO;
    for seed in 0..20 {
        let (mut cluster, link) = linked(seed, with(habit.clone()), 1);
        cluster.write(0, link.conn, &Write { signal: Some(Token(1)), ..link.value(0, &[1]) });
        cluster.until("landing", |_| link.target.load(0) == 1);
        let landed = cluster.node(0).now();
        cluster.done(0, link.conn, Token(1));
        latest = latest.max(cluster.node(0).now().since(landed));
    }
    assert!(latest > Duration::from_micros(100), "at most {latest:?} late");
}

/// [F1] promises nothing between connections: later posts on another one land first.
#[test]
fn connections_overtake_each_other() {
    let habit = Adversary { delay_max: Duration::from_micros(50), ..Adversary::default() };
    let mut overtaken = 0;
    for seed in 0..20 {
        let (mut cluster, first) = linked(seed, with(habit.clone()), 1);
        let second = cluster.link(0, 1, 2, 1);
        cluster.write(0, first.conn, &first.value(0, &[1]));
        cluster.write(0, second.conn, &second.value(0, &[1]));
        cluster.until("both", |_| {
            let seen = [first.target.load(0), second.target.load(0)];
            overtaken += u64::from(seen == [0, 1]);
            seen == [1, 1]
        });
    }
    assert!(overtaken > 0);
}

/// [F9]: writes land between `revoke` and `Revoked`, and some are refused in the middle.
#[test]
fn revocation_is_slow() {
    let habit = Adversary { late_notice_max: Duration::from_micros(500), ..scattering() };
    let [mut landed, mut in_part] = [0, 0];
    for seed in 0..40 {
        let (mut cluster, link) = linked(seed, with(habit.clone()), 4);
        cluster.node(1).revoke(&link.grant);
        for k in 1.. {
            let _ = cluster.node(0).write(link.conn, link.value(0, &[k; 4]));
            cluster.round();
            if cluster.take(1, |event| matches!(event, FabricEvent::Revoked { .. })).is_some() {
                break;
            }
        }
        let seen = [0, 1, 2, 3].map(|word| link.target.load(word));
        landed += u64::from(seen != [0; 4]);
        in_part += u64::from(seen.iter().any(|value| *value != seen[0]));
    }
    assert!(landed > 10 && in_part > 0, "landed in {landed} of 40 runs, in part in {in_part}");
}
