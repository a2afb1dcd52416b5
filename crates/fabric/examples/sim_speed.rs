//! Measures how many writes a second the simulated fabric performs by wall clock: `cargo run --release -p
//! squall-fabric --example sim_speed`. A measurement, not a test.

use squall_fabric::sim::{SimConfig, SimWorld};
use squall_fabric::{Fabric, Instant, MirrorKey, NodeId};

fn main() {
    for (name, nodes, words, config) in [
        ("cost model, 2 nodes, 8 B", 2, 1, SimConfig::hardware()),
        ("cost model, 16 nodes, 8 B", 16, 1, SimConfig::hardware()),
        ("cost model, 16 nodes, 10 KiB", 16, 1280, SimConfig::hardware()),
        ("adversary, 4 nodes, 64 B", 4, 8, SimConfig { early_sight: false, ..SimConfig::adversarial(7) }),
        (
            "adversary with early sight, 4 nodes, 64 B",
            4,
            8,
            SimConfig { early_sight: true, ..SimConfig::adversarial(7) },
        ),
    ] {
        let (pushes, polls, seconds) = push_around(config, nodes, words);
        let rate = pushes as f64 / seconds / 1e6;
        println!("{name:45} {rate:6.2} M writes/s, {:6.2} M polls/s", polls as f64 / seconds / 1e6);
    }
}

/// Every node pushes a range and a guard in each step; returns the writes, the steps and the wall-clock
/// seconds.
fn push_around(config: SimConfig, count: u32, words: usize) -> (u64, u64, f64) {
    let world = SimWorld::new(7, config, count);
    let mut nodes: Vec<_> = (0..count).map(|i| world.fabric(i)).collect();
    let regions: Vec<_> = nodes.iter_mut().map(|node| node.register(16 + words)).collect();
    let mut mirrors = Vec::new();
    for (i, node) in (0..).zip(&mut nodes) {
        let readers: Vec<_> = (0..count).filter(|j| *j != i).map(NodeId).collect();
        mirrors.push(node.publish(MirrorKey(1), &regions[i as usize], &readers));
        readers.iter().for_each(|owner| drop(node.attach(*owner, MirrorKey(1), 16 + words)));
    }
    world.advance_to(Instant::from_nanos(10_000_000));
    #[expect(clippy::disallowed_types, reason = "this program measures the wall clock")]
    let begin = std::time::Instant::now();
    let [mut pushes, mut polls] = [0, 0];
    while pushes < 3_000_000 {
        let Some(i) = world.next_poll(Instant::from_nanos(u64::MAX)) else { break };
        let node = &mut nodes[i as usize];
        node.poll(&mut |_| {});
        regions[i as usize].store(0, polls);
        node.push(mirrors[i as usize], 16..16 + words);
        node.push_word(mirrors[i as usize], 0);
        world.rest(i, true, None);
        pushes += 2 * u64::from(count - 1);
        polls += 1;
    }
    (pushes, polls, begin.elapsed().as_secs_f64())
}
