//! A node sleeps on all its parts at once.

use std::time::{Duration, Instant};

use squall_fabric::{Fabric as _, FabricEvent, MirrorKey, NodeId};
use squall_transports::TransportFabric as _;
use squall_transports::composite::CompositeFabric;

use crate::TwoHosts;
use crate::cluster::CompositeNodes;

/// Longer than any machine takes to transfer a word.
const LIMIT: Duration = Duration::from_secs(20);

/// Node 0 sleeps; a push of node 2 by shared memory wakes it, then one of node 1 by TCP, then a waker.
#[test]
fn every_part_and_the_waker_end_a_sleep() {
    let mut nodes = CompositeNodes::<TwoHosts>::build(3);
    let mut mirrors = Vec::new();
    for owner in [2, 1] {
        let key = MirrorKey(1);
        let region = nodes.fabric(owner).register(8);
        let mirror = nodes.fabric(owner).publish(key, &region, &[NodeId(0)]);
        let attachment = nodes.fabric(0).attach(NodeId(u32::try_from(owner).unwrap()), key, 8);
        let mut attached = false;
        let begun = Instant::now();
        while !attached {
            assert!(begun.elapsed() < LIMIT, "node {owner} is attached");
            nodes.fabric(0).poll(&mut |_| ());
            nodes.fabric(owner).poll(&mut |event| attached |= matches!(event, FabricEvent::Attached { .. }));
        }
        mirrors.push((owner, region, mirror, attachment));
    }
    for (owner, region, mirror, attachment) in &mirrors {
        sleep(nodes.fabric(0));
        region.store(0, 7);
        nodes.fabric(*owner).push_word(*mirror, 0);
        nodes.fabric(*owner).poll(&mut |_| ());
        wake_up(nodes.fabric(0), || attachment.load(0) == 7);
    }
    sleep(nodes.fabric(0));
    let waker = nodes.fabric(0).waker();
    let ringer = std::thread::spawn(move || waker.wake());
    let begun = Instant::now();
    nodes.fabric(0).park(Some(LIMIT));
    assert!(begun.elapsed() < LIMIT, "the waker did not end the sleep");
    nodes.fabric(0).unpark();
    ringer.join().unwrap();
    // Its descriptor alone shows all that ends a sleep.
    sleep(nodes.fabric(0));
    nodes.fabric(0).waker().wake();
    let (ready, _) = nodes.fabric(0).readiness();
    assert!(squall_transports::wait_readable(&[ready], Some(LIMIT)).expect("a descriptor"));
    nodes.fabric(0).unpark();
}

/// Prepares the node so that the next `park` would block.
fn sleep(node: &mut CompositeFabric) {
    node.prepare_park();
    while node.poll(&mut |_| ()) > 0 {}
}

fn wake_up(node: &mut CompositeFabric, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    loop {
        node.park(Some(LIMIT));
        node.unpark();
        node.poll(&mut |_| ());
        if is_there() {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "the push did not wake the node");
        sleep(node);
    }
}
