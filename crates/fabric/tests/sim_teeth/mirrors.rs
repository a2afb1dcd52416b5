//! Readers of mirrors see pushes and stores early, late, or only some of them.

use squall_fabric::conformance::ConformanceCluster;
use squall_fabric::sim::{Adversary, Rule, RuleTrigger, SimConfig, Verdict};
use squall_fabric::{Duration, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};

use crate::sim_harness::AdverseCluster;

/// Node 0 with a mirror of 16 words that all others have attached.
fn mirrored(
    seed: u64,
    config: SimConfig,
    nodes: u32,
) -> (ConformanceCluster<AdverseCluster>, MirrorId, Region, Vec<Region>) {
    AdverseCluster::configure(seed, config);
    let mut cluster = ConformanceCluster::<AdverseCluster>::new(nodes);
    let region = cluster.node(0).register(16);
    let readers: Vec<_> = (1..nodes).map(NodeId).collect();
    let mirror = cluster.node(0).publish(MirrorKey(1), &region, &readers);
    let attachments =
        (1..nodes).map(|reader| cluster.node(reader).attach(NodeId(0), MirrorKey(1), 16)).collect();
    for reader in readers {
        cluster.expect(0, "Attached", |event| *event == FabricEvent::Attached { key: MirrorKey(1), reader });
    }
    (cluster, mirror, region, attachments)
}

fn with(early_sight: bool, rules: Vec<Rule>) -> SimConfig {
    let habit = Adversary {
        glimpse_per_mille: 300,
        delay_max: Duration::from_micros(20),
        late_notice_max: Duration::from_micros(100),
        ..Adversary::default()
    };
    SimConfig {
        adversary: Some(habit),
        early_sight,
        one_sided_progress: true,
        rules,
        ..SimConfig::adversarial(0)
    }
}

/// [M2]: with early sight a reader sees what was never pushed; with copies no reader does.
#[test]
fn stored_words_are_seen_early() {
    for early_sight in [true, false] {
        let mut early = 0;
        for seed in 0..20 {
            let (mut cluster, _, region, attachments) = mirrored(seed, with(early_sight, Vec::new()), 3);
            region.store(3, 1);
            cluster.rounds(5);
            early += attachments.iter().filter(|attachment| attachment.load(3) == 1).count();
        }
        assert_eq!(early > 0, early_sight, "{early} early sights with early_sight {early_sight}");
        // Not always, or a protocol could come to rely on it.
        assert!(early < 40, "every store was seen early");
    }
}

/// Readers see one push at different times.
#[test]
fn readers_see_pushes_at_different_times() {
    let mut alone = 0;
    for seed in 0..20 {
        let (mut cluster, mirror, region, attachments) = mirrored(seed, with(false, Vec::new()), 3);
        region.store(3, 1);
        cluster.node(0).push_word(mirror, 3);
        cluster.until("both", |_| {
            let seen = [0, 1].map(|i| attachments[i].load(3));
            alone += u64::from(seen == [1, 0] || seen == [0, 1]);
            seen == [1, 1]
        });
    }
    assert!(alone > 10);
}

/// A node dies in the middle of a push: some readers get it, others never do.
#[test]
fn a_push_reaches_only_some_readers() {
    for nth in 1..=4u32 {
        let mut reached = [false; 2];
        for seed in 0..30 {
            let rule =
                Rule { when: RuleTrigger::Post { node: 0, nth: u64::from(nth) }, what: Verdict::Crash(0) };
            let (mut cluster, mirror, region, attachments) = mirrored(seed, with(false, vec![rule]), 4);
            region.store(3, 1);
            cluster.node(0).push_word(mirror, 3);
            if nth == 4 {
                // It has pushed to all three readers and dies before its next post.
                cluster.node(0).push_word(mirror, 3);
            }
            for reader in 1..4 {
                cluster.expect(reader, "PeerLost", |event| {
                    matches!(event, FabricEvent::PeerLost { peer: NodeId(0), .. })
                });
            }
            let count = attachments.iter().filter(|attachment| attachment.load(3) == 1).count();
            assert!(count < nth as usize, "reached {count} readers, died before post {nth}");
            reached[0] |= count > 0 && count < 3;
            reached[1] |= count == 0;
        }
        assert_eq!(reached, [nth > 1, true], "dying before post {nth}");
    }
}

/// [M4], [F11]: readers may or may not see what a dead owner stored and never pushed.
#[test]
fn a_dead_owners_last_stores_are_seen_or_not() {
    let mut seen = [false; 2];
    for seed in 0..30 {
        let (mut cluster, _, region, attachments) = mirrored(seed, with(true, Vec::new()), 2);
        region.store(3, 1);
        cluster.kill(0);
        region.store(3, 2);
        cluster.rounds(50);
        assert!(attachments[0].load(3) <= 1, "stores of a dead node must not be seen");
        seen[usize::try_from(attachments[0].load(3)).expect("0 or 1")] = true;
    }
    assert_eq!(seen, [true, true]);
}
