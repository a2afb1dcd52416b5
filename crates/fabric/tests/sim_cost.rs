//! The cost model predicts: the times of the simulated fabric for single writes, streams, pushes and busy
//! nodes follow from the named parameters (Spindle §3.2, figure 1).

use squall_fabric::sim::{CostModel, SimConfig, SimFabric, SimWorld};
use squall_fabric::{
    Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, MirrorKey, NodeId, Region, Token, Write,
    WriteSource,
};

/// The one-way time from the end of the post to the landing is 1.73 µs for a word and 2.46 µs for 4 KiB;
/// counted from the call, one post more.
#[test]
fn a_write_takes_as_long_as_on_the_testbed() {
    for (words, expected_ns) in [(1, 1_000 + 1_731), (512, 1_000 + 2_460)] {
        let mut pair = Pair::new(words);
        let begin = pair.world.now();
        pair.write(0..words, Some(Token(1)));
        assert_eq!(
            pair.nodes[0].now().since(begin),
            Duration::from_micros(1),
            "the poster is busy while it posts"
        );
        pair.until_landed(words - 1);
        assert_eq!(pair.world.now().since(begin), Duration::from_nanos(expected_ns));
        while pair.nodes[0].poll(&mut |event| assert!(matches!(event, FabricEvent::Done { .. }))) == 0 {
            assert!(pair.world.step(), "the completion is in flight");
        }
        assert_eq!(pair.world.now().since(begin), Duration::from_nanos(expected_ns + 1_730));
    }
}

/// A stream of large writes is limited by the link, 12.5 GB/s.
#[test]
fn a_stream_fills_the_link() {
    const WRITES: usize = 1000;
    let mut pair = Pair::new(4096);
    let begin = pair.world.now();
    for _ in 0..WRITES {
        pair.write(0..4096, None);
    }
    pair.source.store(4095, 7);
    while pair.world.step() {}
    let seconds = pair.world.now().since(begin).as_secs_f64();
    let rate = (WRITES * 4096 * 8) as f64 / seconds;
    assert!((12.3e9..12.5e9).contains(&rate), "{rate:.3e} bytes per second");
}

/// Small writes are limited by the poster's processor, 1 µs each.
#[test]
fn small_writes_are_limited_by_posting() {
    let mut pair = Pair::new(8);
    let begin = pair.world.now();
    for _ in 0..1000 {
        pair.write(0..8, None);
    }
    assert_eq!(pair.nodes[0].now().since(begin), Duration::from_millis(1));
    while pair.world.step() {}
    assert!(pair.world.now().since(begin) < Duration::from_micros(1_003));
    assert_eq!(pair.nodes[0].counters().posts, 1000);
    assert_eq!(pair.nodes[0].counters().posting_ns, 1_000_000);
}

/// Many writers share the receiver's link; the pushes to many readers share the writer's.
#[test]
fn links_are_shared() {
    const BYTES: u64 = 100 * 20 * 1024 * 15;
    let expected = BYTES as f64 / 12.5e9;
    for pushing in [true, false] {
        let world = SimWorld::new(1, SimConfig::hardware(), 16);
        let mut nodes: Vec<_> = (0..16).map(|i| world.fabric(i)).collect();
        let seconds =
            if pushing { push_to_all(&world, &mut nodes) } else { write_to_one(&world, &mut nodes) };
        assert!((expected..expected * 1.02).contains(&seconds), "{seconds} instead of {expected} seconds");
    }
}

/// A small write that reaches a receiver while a large one is arriving takes its own time on the link, and no
/// more.
#[test]
fn a_small_write_does_not_cost_a_large_one_its_place() {
    let (large_ns, _) = large_and_small(0, 2_735);
    let alone = CostModel::SPINDLE.wire_ns(800_000) + CostModel::SPINDLE.post_ns;
    assert!((alone..alone + 10).contains(&large_ns), "{large_ns} ns instead of {alone}");
}

/// With packets, a small write passes between those of a large one; without, it waits for the end.
#[test]
fn a_packet_does_not_wait_for_a_large_write() {
    let (large_ns, small_ns) = large_and_small(4096, 40_000);
    assert!((2_730..2_740).contains(&small_ns), "{small_ns} ns");
    assert!((2_730..45_000).contains(&large_and_small(0, 40_000).1), "it waits");
    assert!(large_and_small(0, 40_000).1 > 39_000, "until the large one has passed");
    let alone = CostModel::SPINDLE.wire_ns(800_000) + CostModel::SPINDLE.post_ns;
    assert!((alone..alone + 10).contains(&large_ns), "{large_ns} ns instead of {alone}");
}

/// Node 1 writes 800 kB to node 0, and node 2 writes a word `before_end_ns` before the large write has
/// passed; returns how long each takes.
fn large_and_small(packet_bytes: u64, before_end_ns: u64) -> (u64, u64) {
    let cost = CostModel { packet_bytes, ..CostModel::SPINDLE };
    let alone = cost.wire_ns(800_000) + cost.post_ns;
    let world = SimWorld::new(1, SimConfig { cost, ..SimConfig::hardware() }, 3);
    let mut nodes: Vec<_> = (0..3).map(|i| world.fabric(i)).collect();
    let target = nodes[0].register(100_001);
    let grants = [1, 2].map(|i| nodes[0].grant(&target, 0..100_001, NodeId(i)));
    let conns = [1, 2].map(|i| {
        nodes[0].open(NodeId(i), Channel(0));
        nodes[i as usize].open(NodeId(0), Channel(0))
    });
    while world.step() {}
    let source = nodes[1].register(100_000);
    source.store(99_999, 1);
    let begin = world.now();
    let large = WriteSource::Region(&source, 0..100_000);
    let write = Write { source: large, grant: &grants[0], offset: 0, immediate: None, signal: None };
    nodes[1].write(conns[0], write).expect("connected");
    world.advance_to(begin + Duration::from_nanos(alone - before_end_ns));
    let (small, small_begin) = (WriteSource::Value(&[7]), world.now());
    let write = Write { source: small, grant: &grants[1], offset: 100_000, immediate: None, signal: None };
    nodes[2].write(conns[1], write).expect("connected");
    let mut took = [None; 2];
    while took.contains(&None) {
        assert!(world.step(), "the writes are in flight");
        for (i, (word, begin)) in [(99_999, begin), (100_000, small_begin)].into_iter().enumerate() {
            if target.load(word) != 0 {
                took[i].get_or_insert(world.now().since(begin).as_nanos() as u64);
            }
        }
    }
    (took[0].expect("landed"), took[1].expect("landed"))
}

/// Node 0 pushes 100 times 20 KiB to 15 readers; returns how long it takes until all have landed.
fn push_to_all(world: &SimWorld, nodes: &mut [SimFabric]) -> f64 {
    let region = nodes[0].register(2560);
    let readers: Vec<_> = (1..16).map(NodeId).collect();
    let mirror = nodes[0].publish(MirrorKey(1), &region, &readers);
    let attachments: Vec<_> =
        nodes[1..].iter_mut().map(|node| node.attach(NodeId(0), MirrorKey(1), 2560)).collect();
    while world.step() {}
    region.store(2559, 1);
    let begin = world.now();
    (0..100).for_each(|_| nodes[0].push(mirror, 0..2560));
    while world.step() {}
    assert!(attachments.iter().all(|attachment| attachment.load(2559) == 1));
    world.now().since(begin).as_secs_f64()
}

/// 15 nodes write 100 times 20 KiB each to node 0; returns how long it takes until all have landed.
fn write_to_one(world: &SimWorld, nodes: &mut [SimFabric]) -> f64 {
    let links: Vec<_> = (1..16)
        .map(|i| {
            let target = nodes[0].register(2560);
            let grant = nodes[0].grant(&target, 0..2560, NodeId(i));
            nodes[0].open(NodeId(i), Channel(0));
            (nodes[i as usize].open(NodeId(0), Channel(0)), nodes[i as usize].register(2560), grant)
        })
        .collect();
    while world.step() {}
    let begin = world.now();
    for (node, (conn, source, grant)) in nodes[1..].iter_mut().zip(&links) {
        for _ in 0..100 {
            let source = WriteSource::Region(source, 0..2560);
            node.write(*conn, Write { source, grant, offset: 0, immediate: None, signal: None })
                .expect("connected");
        }
    }
    while world.step() {}
    world.now().since(begin).as_secs_f64()
}

/// A node is due to poll only when its processor is free; a sleeping node wakes when something lands.
#[test]
fn busy_nodes_poll_later() {
    let mut pair = Pair::new(8);
    while let Some(i) = pair.world.next_poll(pair.world.now() + Duration::from_millis(1)) {
        pair.nodes[i as usize].poll(&mut |_| {});
        pair.world.rest(i, false, None);
    }
    let begin = pair.world.now();
    pair.write(0..8, None);
    pair.nodes[1].charge(Duration::from_micros(50));
    let poll = pair.world.next_poll(begin + Duration::from_millis(1));
    assert_eq!((poll, pair.world.now().since(begin)), (Some(1), Duration::from_micros(50)));
    pair.nodes[1].charge_copy(10 * 1024);
    pair.nodes[1].charge_loads(100);
    let busy = CostModel::SPINDLE.copy_ns(10 * 1024) + CostModel::SPINDLE.loads_ns(100);
    assert_eq!(pair.nodes[1].busy_until().since(begin), Duration::from_nanos(50_000 + busy));
    let deadline = pair.nodes[1].now() + Duration::from_micros(7);
    pair.world.rest(1, false, Some(deadline));
    assert_eq!(pair.world.next_poll(begin + Duration::from_millis(1)), Some(1));
    assert_eq!(pair.world.now().since(begin), Duration::from_nanos(57_000 + busy), "a deadline wakes");
    pair.world.rest(1, false, None);
    assert_eq!(pair.world.next_poll(begin + Duration::from_millis(1)), None, "nothing more happens");
    assert_eq!(pair.world.now(), begin + Duration::from_millis(1));
}

/// Node 0 with a connection to node 1 and a grant over `words` words.
struct Pair {
    world: SimWorld,
    nodes: Vec<SimFabric>,
    source: Region,
    target: Region,
    conn: ConnId,
    grant: Grant,
}

impl Pair {
    fn new(words: usize) -> Self {
        let world = SimWorld::new(1, SimConfig::hardware(), 2);
        let mut nodes: Vec<_> = (0..2).map(|i| world.fabric(i)).collect();
        let [source, target] = [0, 1].map(|i| nodes[i].register(words));
        let grant = nodes[1].grant(&target, 0..words, NodeId(0));
        let conn = nodes[0].open(NodeId(1), Channel(1));
        nodes[1].open(NodeId(0), Channel(1));
        while world.step() {}
        nodes[0].poll(&mut |event| assert!(matches!(event, FabricEvent::Connected { .. })));
        world.advance_to(Instant::from_nanos(1_000_000));
        source.store(words - 1, 1);
        Self { world, nodes, source, target, conn, grant }
    }

    fn write(&mut self, range: std::ops::Range<usize>, signal: Option<Token>) {
        let source = WriteSource::Region(&self.source, range);
        let write = Write { source, grant: &self.grant, offset: 0, immediate: None, signal };
        self.nodes[0].write(self.conn, write).expect("connected and not full");
    }

    fn until_landed(&self, word: usize) {
        while self.target.load(word) == 0 {
            assert!(self.world.step(), "the write is in flight");
        }
    }
}

/// Readers get a push in the order in which their owner named them, whichever attached first.
#[test]
fn pushes_go_to_the_readers_in_the_order_in_which_they_are_named() {
    let world = SimWorld::new(1, SimConfig::hardware(), 4);
    let mut nodes: Vec<_> = (0..4).map(|i| world.fabric(i)).collect();
    let attach = |node: &mut SimFabric| node.attach(NodeId(0), MirrorKey(1), 10_000);
    let attachments: Vec<_> = nodes[1..].iter_mut().map(attach).collect();
    let region = nodes[0].register(10_000);
    let mirror = nodes[0].publish(MirrorKey(1), &region, &[NodeId(3), NodeId(1), NodeId(2)]);
    while world.step() {}
    region.store(9_999, 1);
    nodes[0].push(mirror, 0..10_000);
    let mut landed = Vec::new();
    while world.step() {
        let here = |i: &usize| attachments[i - 1].load(9_999) == 1 && !landed.contains(i);
        let next: Vec<_> = (1..4).filter(here).collect();
        landed.extend(next);
    }
    assert_eq!(landed, [3, 1, 2]);
}
