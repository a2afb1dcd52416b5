//! Thousands of view changes leak nothing: neither memory nor mappings nor file descriptors. This is the only
//! test in its process, because it counts the resources of the process.

#[path = "peers/backend.rs"]
mod backend;
#[path = "peers/mixture.rs"]
mod mixture;

use squall_fabric::{Channel, FabricEvent, MirrorKey, NodeId};
use squall_transports::composite::CompositeFabric;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;

use backend::{Backend, BackendNodes};

#[test]
fn turnover_leaks_nothing() {
    turn_over_mirrors::<ShmFabric>();
    turn_over_mirrors::<TcpFabric>();
    turn_over_mirrors::<CompositeFabric>();
    turn_over_peers::<ShmFabric>();
    turn_over_peers::<TcpFabric>();
    turn_over_peers::<CompositeFabric>();
}

/// Returns the device of a node: none, without RDMA.
fn device_of(_node: NodeId) -> mixture::NodeDevice {
    None
}

/// Repeats 10,000 times: publish for two readers, attach, push, retire, drop. In some rounds a reader never
/// attaches, drops its view early, or does not exist.
fn turn_over_mirrors<F: Backend>() {
    const WORDS: usize = 2048;
    let mut all = BackendNodes::<F>::joined(&[0, 1, 2]);
    let readers = [1, 2].map(NodeId);
    let mut before = Holdings::default();
    for round in 1..=10_000u64 {
        let key = MirrorKey(round);
        let region = all.node(0).register(WORDS);
        let absent = [NodeId(1), NodeId(1_000)];
        let mirror = all.node(0).publish(key, &region, if round % 16 == 0 { &absent } else { &readers });
        let attachment = all.node(1).attach(NodeId(0), key, WORDS);
        all.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(1) });
        let early = (round % 3 > 0).then(|| all.node(2).attach(NodeId(0), key, WORDS));
        (0..WORDS).step_by(512).for_each(|word| region.store_relaxed(word, round));
        region.store(WORDS - 1, round);
        if round % 3 == 1 {
            drop(early);
        }
        all.node(0).push(mirror, 0..WORDS - 1);
        all.node(0).push_word(mirror, WORDS - 1);
        all.until("the last word", |_| attachment.load(WORDS - 1) == round);
        assert!((0..WORDS).step_by(512).all(|word| attachment.load(word) == round));
        all.node(0).retire(mirror);
        [0, 1, 2].into_iter().for_each(|node| all.events(node).clear());
        if round == 1_000 {
            before = Holdings::now();
        }
    }
    all.settle();
    Holdings::now().assert_about(&before, "10,000 mirrors");
}

/// Repeats 2,000 times: a peer is added with a connection, a grant and mirrors, and then removed, alive or
/// dead.
fn turn_over_peers<F: Backend>() {
    const WORDS: usize = 2048;
    let mut all = BackendNodes::<F>::apart(&[0]);
    let mut before = Holdings::default();
    for node in 1..=2_000 {
        let key = MirrorKey(u64::from(node));
        let region = all.node(0).register(WORDS);
        let mirror = all.node(0).publish(key, &region, &[NodeId(node)]);
        let attachment = all.node(0).attach(NodeId(node), key, WORDS);
        all.start(node);
        all.join(0, node);
        let theirs = all.node(node).register(WORDS);
        all.node(node).publish(key, &theirs, &[NodeId(0)]);
        let _attachment = all.node(node).attach(NodeId(0), key, WORDS);
        all.node(0).open(NodeId(node), Channel(1));
        let target = all.node(0).register(16);
        let grant = all.node(0).grant(&target, 0..16, NodeId(node));
        if node % 3 > 0 {
            all.expect(0, "Attached", |event| matches!(event, FabricEvent::Attached { .. }));
        }
        if node % 2 == 0 {
            all.kill(node);
            all.expect_lost(0, node);
        }
        all.node(0).remove(NodeId(node));
        if node % 5 == 0 {
            all.node(0).revoke(&grant);
        }
        all.node(0).retire(mirror);
        all.poll();
        if node % 2 > 0 {
            all.kill(node);
        }
        all.events(0).clear();
        drop(attachment);
        if node == 500 {
            before = Holdings::now();
        }
    }
    all.settle();
    Holdings::now().assert_about(&before, "2,000 peers");
}

/// The resources that this process holds.
#[derive(Clone, Copy, Debug, Default)]
struct Holdings {
    files: usize,
    mappings: usize,
    kilobytes: usize,
}

impl Holdings {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("linux");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("linux");
        let kilobytes = resident.trim().trim_end_matches(" kB").parse().expect("a number");
        let mappings = std::fs::read_to_string("/proc/self/maps").expect("linux").lines().count();
        let files = std::fs::read_dir("/proc/self/fd").expect("linux").count();
        Self { files, mappings, kilobytes }
    }

    fn assert_about(self, before: &Self, what: &str) {
        eprintln!("after {what}: {self:?}, before {before:?}");
        assert!(self.files <= before.files + 8, "files after {what}: {self:?}, before {before:?}");
        assert!(self.mappings <= before.mappings + 40, "mappings after {what}: {self:?}, before {before:?}");
        // A leak of one page per round would be 36 MB or 6 MB.
        assert!(
            self.kilobytes <= before.kilobytes + 4_000,
            "memory after {what}: {self:?}, before {before:?}"
        );
    }
}
