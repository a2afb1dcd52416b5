//! Many view changes leak nothing: neither queue pairs, memory keys and domains of the device nor file
//! descriptors.

use std::process::Command;
use std::time::{Duration, Instant};

use squall_fabric::{Channel, Fabric as _, FabricEvent, MirrorKey, NodeId, Write, WriteSource};
use squall_transports::verbs::VerbsFabric;

use crate::backend::{Backend as _, BackendNodes};

/// A peer is added with connections, grants and mirrors, under load of another, and then removed, alive or
/// dead.
pub(crate) fn turnover_leaks_nothing() {
    const WORDS: usize = 512;
    let mut all = BackendNodes::<VerbsFabric>::joined(&[0, 1]);
    let lasting = all.node(0).register(WORDS);
    let key = MirrorKey(0);
    let readers: Vec<_> = (1..=ROUNDS + 1).map(NodeId).collect();
    let mirror = all.node(0).publish(key, &lasting, &readers);
    let seen = all.node(1).attach(NodeId(0), key, WORDS);
    all.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(1) });
    let mut before = None;
    for node in 2..=ROUNDS + 1 {
        let round = u64::from(node);
        all.start(node);
        all.join(0, node);
        let attachment = all.node(node).attach(NodeId(0), key, WORDS);
        let (own, theirs) = (MirrorKey(round), all.node(node).register(WORDS));
        all.node(node).publish(own, &theirs, &[NodeId(0)]);
        let shown = all.node(0).attach(NodeId(node), own, WORDS);
        let conn = all.node(0).open(NodeId(node), Channel(1));
        all.node(node).open(NodeId(0), Channel(1));
        let target = all.node(0).register(16);
        let grants = [0, 1].map(|_| all.node(0).grant(&target, 0..16, NodeId(node)));
        if node % 3 > 0 {
            all.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(node) });
            all.expect(0, "Connected", |event| matches!(event, FabricEvent::Connected { .. }));
            let grant = all.node(node).grant(&theirs, 8..WORDS, NodeId(0));
            let source = WriteSource::Region(&lasting, 0..64);
            let write = Write { source, grant: &grant, offset: 0, immediate: None, signal: None };
            all.node(0).write(conn, write).expect("connected");
        }
        (0..WORDS).for_each(|word| lasting.store_relaxed(word, round));
        all.node(0).push(mirror, 0..WORDS - 1);
        all.node(0).push_word(mirror, WORDS - 1);
        all.until("the last word at the remaining peer", |_| seen.load(WORDS - 1) == round);
        if node % 2 == 0 {
            all.kill(node);
            all.expect_lost(0, node);
        }
        all.node(0).remove(NodeId(node));
        all.node(0).revoke(&grants[node as usize % 2]);
        if node % 2 > 0 {
            all.kill(node);
        }
        [0, 1].into_iter().for_each(|node| all.events(node).clear());
        drop((attachment, shown));
        if node == ROUNDS / 4 {
            rest(&mut all);
            before = Some(holdings());
        }
    }
    rest(&mut all);
    assert_eq!(Some(holdings()), before, "after {ROUNDS} peers, and after a quarter of them");
}

/// Waits until software devices have released what ended last.
fn rest(all: &mut BackendNodes<VerbsFabric>) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        all.settle();
    }
}

/// Returns what the devices and this process hold: the objects of each device as `rdma resource` counts them,
/// and open files.
fn holdings() -> (String, usize) {
    let shown = Command::new("rdma").args(["resource", "show"]).output().expect("iproute2 is installed");
    let devices = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(devices.contains("qp "), "`rdma resource show` prints {devices:?}");
    (devices, std::fs::read_dir("/proc/self/fd").expect("linux").count())
}

const ROUNDS: u32 = 120;
