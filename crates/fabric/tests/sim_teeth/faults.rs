//! Faults as data: breaks, crashes, pauses, partitions, slow links; and that one seed is one run.

use squall_fabric::conformance::{ConformanceCluster, GrantedLink};
use squall_fabric::sim::{Adversary, Rule, RuleTrigger, SimConfig, SimWorld, TraceRecord, Verdict};
use squall_fabric::{
    BreakReason, Channel, Duration, Fabric, FabricEvent, Instant, NodeId, PostError, Write, WriteSource,
};

use crate::sim_harness::AdverseCluster;

fn scattering(rules: Vec<Rule>) -> SimConfig {
    let habit = Adversary {
        scatter_per_mille: 1000,
        pieces_max: 8,
        delay_max: Duration::from_micros(10),
        late_notice_max: Duration::from_micros(50),
        ..Adversary::default()
    };
    SimConfig {
        adversary: Some(habit),
        early_sight: false,
        one_sided_progress: true,
        rules,
        ..SimConfig::adversarial(0)
    }
}

fn linked(seed: u64, config: SimConfig) -> (ConformanceCluster<AdverseCluster>, GrantedLink) {
    AdverseCluster::configure(seed, config);
    let mut cluster = ConformanceCluster::<AdverseCluster>::new(2);
    let link = cluster.link(0, 1, 1, 8);
    (cluster, link)
}

/// [F11]: a connection can break after any word of a write, for both ends, and the words then remain
/// unchanged.
#[test]
fn a_break_comes_after_any_word() {
    let mut landed_words = [false; 9];
    for seed in 0..200 {
        let when = RuleTrigger::Piece { from: 0, to: 1, nth: 1 + seed % 8 };
        let (mut cluster, link) =
            linked(seed, scattering(vec![Rule { when, what: Verdict::Break { a: 0, b: 1 } }]));
        cluster.write(0, link.conn, &link.value(0, &[1; 8]));
        let ended = |conn| move |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn: of, .. } if *of == conn);
        cluster.expect(0, "Broken at the writer", ended(link.conn));
        assert_eq!(cluster.node(0).write(link.conn, link.value(0, &[2])), Err(PostError::NotConnected));
        cluster.expect(1, "Broken at the target", ended(link.owner_conn));
        let landed = (0..8).filter(|word| link.target.load(*word) == 1).count();
        cluster.rounds(50);
        assert_eq!((0..8).filter(|word| link.target.load(*word) == 1).count(), landed);
        landed_words[landed] = true;
    }
    assert!(landed_words[..8].iter().all(|seen| *seen), "breaks came after {landed_words:?} words");
}

/// [F11]: around a break some prefix of the posts has landed, including the posts before the writer learns of
/// the break.
#[test]
fn a_break_leaves_a_prefix() {
    const WRITES: usize = 64;
    for seed in 0..200 {
        let when = RuleTrigger::Piece { from: 0, to: 1, nth: 1 + seed % 40 };
        let rules = vec![Rule { when, what: Verdict::Break { a: 0, b: 1 } }];
        AdverseCluster::configure(seed, SimConfig { queue_posts_max: WRITES, ..scattering(rules) });
        let mut cluster = ConformanceCluster::<AdverseCluster>::new(2);
        let link = cluster.link(0, 1, 1, WRITES);
        for word in 0..WRITES {
            if cluster.node(0).write(link.conn, link.value(word, &[1])).is_err() {
                break;
            }
            cluster.round();
        }
        cluster.rounds(200);
        let landed: Vec<u64> = (0..WRITES).map(|word| link.target.load(word)).collect();
        assert!(landed.is_sorted_by(|a, b| a >= b), "seed {seed}: a gap in {landed:?}");
    }
}

/// [F11]: words still land after the *writer* has learned of the break, but not after the target has.
#[test]
fn words_land_after_the_writer_knows_of_the_break() {
    let mut late = 0;
    for seed in 0..100 {
        let when = RuleTrigger::Piece { from: 0, to: 1, nth: 2 };
        let (mut cluster, link) =
            linked(seed, scattering(vec![Rule { when, what: Verdict::Break { a: 0, b: 1 } }]));
        cluster.write(0, link.conn, &link.value(0, &[1; 8]));
        cluster.expect(0, "Broken", |event| matches!(event, FabricEvent::Broken { .. }));
        let at_break: u64 = (0..8).map(|word| link.target.load(word)).sum();
        cluster.rounds(100);
        late += u64::from((0..8).map(|word| link.target.load(word)).sum::<u64>() > at_break);
    }
    assert!(late > 0);
}

/// A short partition only delays; a long one makes both sides lose each other, and they can connect again
/// after it.
#[test]
fn partitions_delay_or_break() {
    for lasts in [false, true] {
        let world = SimWorld::new(3, scattering(Vec::new()), 3);
        let mut nodes: Vec<_> = (0..3).map(|i| world.fabric(i)).collect();
        let target = nodes[1].register(1);
        let grant = nodes[1].grant(&target, 0..1, NodeId(0));
        let conn = open(&world, &mut nodes, 0, 1);
        world.partition(&[vec![0], vec![1, 2]]);
        let write = Write {
            source: WriteSource::Value(&[1]),
            grant: &grant,
            offset: 0,
            immediate: None,
            signal: None,
        };
        nodes[0].write(conn, write.clone()).expect("connected");
        world.advance_to(world.now() + Duration::from_millis(if lasts { 100 } else { 10 }));
        assert_eq!(target.load(0), 0, "nothing passes a cut");
        world.heal();
        world.advance_to(world.now() + Duration::from_millis(100));
        assert_eq!(target.load(0), u64::from(!lasts));
        let mut lost = [0, 1, 2].map(|_| Vec::new());
        for (node, lost) in nodes.iter_mut().zip(&mut lost) {
            poll_all(node, |event| {
                if let FabricEvent::PeerLost { peer, reason } = event {
                    lost.push((peer.0, reason));
                }
            });
        }
        let unreachable = BreakReason::Unreachable;
        let of_0 = if lasts { vec![(1, unreachable), (2, unreachable)] } else { vec![] };
        let of_others = if lasts { vec![(0, unreachable)] } else { vec![] };
        lost[0].sort_unstable_by_key(|(peer, _)| *peer);
        assert_eq!(lost, [of_0, of_others.clone(), of_others]);
        if lasts {
            let conn = open(&world, &mut nodes, 0, 1);
            nodes[0].write(conn, write).expect("connected again");
            world.advance_to(world.now() + Duration::from_millis(10));
            assert_eq!(target.load(0), 1);
        }
    }
}

/// Each cut has to last for the whole time: the time of one that was mended does not count for the next one.
#[test]
fn cuts_do_not_add_up() {
    let at =
        |millis: u64, what| Rule { when: RuleTrigger::At(Instant::from_nanos(millis * 1_000_000)), what };
    let (cut, mend) = (Verdict::Cut { a: 0, b: 1 }, Verdict::Mend { a: 0, b: 1 });
    let rules =
        vec![at(1, cut.clone()), at(2, mend.clone()), at(40, cut.clone()), at(60, mend), at(200, cut)];
    let world = SimWorld::new(2, scattering(rules), 5);
    let mut nodes: Vec<_> = (0..2).map(|i| world.fabric(i)).collect();
    let mut losses_until = |millis: u64| {
        world.advance_to(Instant::from_nanos(millis * 1_000_000));
        let mut losses = 0;
        for node in &mut nodes {
            poll_all(node, |event| losses += u32::from(matches!(event, FabricEvent::PeerLost { .. })));
        }
        losses
    };
    assert_eq!([249, 251].map(&mut losses_until), [0, 2]);
}

/// A paused node is not due to poll, but its memory takes writes; without one-sided progress it does not
/// [F12].
#[test]
fn a_paused_node_does_not_poll() {
    for one_sided_progress in [true, false] {
        let pause = Verdict::Pause { node: 1, span: Duration::from_millis(5) };
        let rule = Rule { when: RuleTrigger::At(Instant::from_nanos(20_000_000)), what: pause };
        let config = SimConfig { one_sided_progress, ..scattering(vec![rule]) };
        let world = SimWorld::new(4, config, 2);
        let mut nodes: Vec<_> = (0..2).map(|i| world.fabric(i)).collect();
        let target = nodes[1].register(1);
        let grant = nodes[1].grant(&target, 0..1, NodeId(0));
        let conn = open(&world, &mut nodes, 0, 1);
        world.advance_to(Instant::from_nanos(20_000_000));
        let write = Write {
            source: WriteSource::Value(&[1]),
            grant: &grant,
            offset: 0,
            immediate: None,
            signal: None,
        };
        nodes[0].write(conn, write).expect("connected");
        let mut polls = Vec::new();
        while let Some(i) = world.next_poll(Instant::from_nanos(24_999_999)) {
            polls.push(i);
            let work = nodes[i as usize].poll(&mut |_| {});
            world.rest(i, work > 0, None);
        }
        assert!(!polls.contains(&1), "a paused node was polled");
        assert_eq!(target.load(0) == 1, one_sided_progress);
        assert_eq!(world.next_poll(Instant::from_nanos(30_000_000)), Some(1), "it continues after its pause");
        nodes[1].poll(&mut |_| {});
        world.advance_to(Instant::from_nanos(40_000_000));
        nodes[1].poll(&mut |_| {});
        assert_eq!(target.load(0), 1);
    }
}

/// A slow path delays what passes in that direction.
#[test]
fn a_slow_link_is_slow() {
    let config = SimConfig::hardware();
    let world = SimWorld::new(5, config, 2);
    let mut nodes: Vec<_> = (0..2).map(|i| world.fabric(i)).collect();
    let target = nodes[1].register(1);
    let grant = nodes[1].grant(&target, 0..1, NodeId(0));
    let conn = open(&world, &mut nodes, 0, 1);
    let write =
        Write { source: WriteSource::Value(&[1]), grant: &grant, offset: 0, immediate: None, signal: None };
    world.strike(&Verdict::Slow { from: 0, to: 1, extra: Duration::from_micros(300) });
    nodes[0].write(conn, write).expect("connected");
    world.advance_to(world.now() + Duration::from_micros(300));
    assert_eq!(target.load(0), 0);
    world.advance_to(world.now() + Duration::from_micros(10));
    assert_eq!(target.load(0), 1);
}

/// The same seed gives the same run, word for word; a different seed a different one.
#[test]
fn one_seed_is_one_run() {
    let run = |seed: u64, records: usize| -> (u64, Vec<TraceRecord>) {
        let when = RuleTrigger::Post { node: 2, nth: 40 };
        let rules = vec![Rule { when, what: Verdict::Crash(2) }];
        let config = SimConfig { trace_records_max: records, rules, ..SimConfig::adversarial(seed) };
        let world = chatter(seed, config);
        (world.trace_hash(), world.trace())
    };
    for seed in 0..20 {
        let (hash, records) = run(seed, 100_000);
        assert_eq!((hash, records.clone()), run(seed, 100_000));
        assert_eq!(hash, run(seed, 0).0, "keeping records changes nothing");
        assert_ne!(hash, run(seed + 1, 0).0);
        assert!(records.len() > 100);
        let text: Vec<_> = records.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|line| line.contains("FAULT: node 2 crashes")), "faults are in the trace");
    }
}

/// Three nodes write to each other in turn.
fn chatter(seed: u64, config: SimConfig) -> SimWorld {
    let world = SimWorld::new(seed, config, 3);
    let mut nodes: Vec<_> = (0..3).map(|i| world.fabric(i)).collect();
    let targets: Vec<_> = nodes.iter_mut().map(|node| node.register(64)).collect();
    let mut links = Vec::new();
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        let conn = nodes[a as usize].open(NodeId(b), Channel(a));
        nodes[b as usize].open(NodeId(a), Channel(a));
        links.push((conn, nodes[b as usize].grant(&targets[b as usize], 0..64, NodeId(a))));
    }
    let mut count = 0;
    while let Some(i) = world.next_poll(Instant::from_nanos(50_000_000)) {
        let node = &mut nodes[i as usize];
        let mut work = node.poll(&mut |_| {});
        let (conn, grant) = &links[i as usize];
        let value = [count; 8];
        let write =
            Write { source: WriteSource::Value(&value), grant, offset: 8, immediate: None, signal: None };
        if count < 1000 && node.write(*conn, write).is_ok() {
            count += 1;
            work += 1;
        }
        let soon = node.now() + Duration::from_micros(100);
        world.rest(i, work > 0, (count < 1000).then_some(soon));
    }
    world
}

/// Clocks of different nodes differ, as the documentation warns.
#[test]
fn clocks_differ() {
    let habit = Adversary { clock_offset_max: Duration::from_secs(3600), ..Adversary::default() };
    let world = SimWorld::new(1, SimConfig { adversary: Some(habit), ..SimConfig::adversarial(1) }, 3);
    let clocks = [0, 1, 2].map(|i| world.fabric(i).now());
    assert!(clocks[0] != clocks[1] && clocks[1] != clocks[2]);
}

/// Opens channel 7 between two nodes and waits until it is connected.
fn open(
    world: &SimWorld,
    nodes: &mut [squall_fabric::sim::SimFabric],
    a: u32,
    b: u32,
) -> squall_fabric::ConnId {
    let conn = nodes[a as usize].open(NodeId(b), Channel(7));
    nodes[b as usize].open(NodeId(a), Channel(7));
    world.advance_to(world.now() + Duration::from_millis(2));
    let mut connected = false;
    poll_all(&mut nodes[a as usize], |event| {
        connected |= event == FabricEvent::Connected { conn, peer: NodeId(b) }
    });
    assert!(connected, "channel 7 connects");
    conn
}

/// Polls until no more events follow: a poll may yield only some of the pending ones.
fn poll_all(node: &mut squall_fabric::sim::SimFabric, mut sink: impl FnMut(FabricEvent)) {
    for _ in 0..20 {
        node.poll(&mut sink);
    }
}
