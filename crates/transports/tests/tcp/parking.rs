//! Parking: no event is missed, and no processor time is wasted.

use std::time::{Duration, Instant};

use squall_fabric::conformance::Harness;
use squall_fabric::{Channel, Fabric, FabricEvent, MirrorKey, NodeId};
use squall_transports::TransportFabric;
use squall_transports::tcp::TcpFabric;

use crate::cluster::{PlainLoopback, pair};
use crate::patience::patient;

/// Parks as a runner does; returns the time that it slept.
fn park(fabric: &mut TcpFabric, timeout: Option<Duration>) -> Duration {
    let begin = Instant::now();
    fabric.prepare_park();
    let mut idle = true;
    fabric.poll(&mut |event| idle = panic_on(&event));
    if idle {
        fabric.park(timeout);
    }
    fabric.unpark();
    begin.elapsed()
}

fn panic_on(event: &FabricEvent) -> bool {
    panic!("{event:?}")
}

fn settle(cluster: &mut PlainLoopback) {
    for _ in 0..100 {
        cluster.node(0).poll(&mut |_| {});
        cluster.node(1).poll(&mut |_| {});
    }
}

#[test]
fn a_park_ends_with_its_timeout() {
    let mut cluster = PlainLoopback::new(2);
    settle(&mut cluster);
    for timeout in [Duration::from_micros(300), Duration::from_millis(30)] {
        let slept = park(cluster.node(0), Some(timeout));
        assert!(slept >= timeout && slept < timeout + late(), "{slept:?} of {timeout:?}");
    }
}

/// An idle node uses no processor time.
#[test]
fn a_parked_node_sleeps() {
    let mut cluster = PlainLoopback::new(2);
    settle(&mut cluster);
    let before = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let slept = park(cluster.node(0), Some(Duration::from_millis(200)));
    let after = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let used = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    assert!(slept >= Duration::from_millis(200));
    let used = Duration::from_nanos(u64::try_from(used).expect("time passes"));
    assert!(used < patient(Duration::from_millis(5)), "{used:?} of processor time in {slept:?} of sleep");
}

#[test]
fn a_waker_ends_a_park() {
    let mut cluster = PlainLoopback::new(2);
    settle(&mut cluster);
    let waker = cluster.node(0).waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let slept = park(cluster.node(0), Some(LONG));
    assert!(slept < Duration::from_millis(50) + late(), "{slept:?}");
    thread.join().expect("the waker's thread");
    // The doorbell is reset.
    assert!(park(cluster.node(0), Some(Duration::from_millis(20))) >= Duration::from_millis(20));
}

/// A push of a peer ends the park, repeatedly: no event is lost between two parks.
#[test]
fn a_peers_push_ends_a_park() {
    let (near, far) = pair();
    let mut reader = TcpFabric::new(NodeId(0), vec![(NodeId(1), near)]).expect("a stream");
    let attachment = reader.attach(NodeId(1), MirrorKey(1), 1);
    let ack = reader.register(1);
    let ack_mirror = reader.publish(MirrorKey(2), &ack, &[NodeId(1)]);
    let thread = std::thread::spawn(move || {
        let mut owner = TcpFabric::new(NodeId(1), vec![(NodeId(0), far)]).expect("a stream");
        let region = owner.register(1);
        let mirror = owner.publish(MirrorKey(1), &region, &[NodeId(0)]);
        let acks = owner.attach(NodeId(0), MirrorKey(2), 1);
        let mut attached = false;
        while !attached {
            owner.poll(&mut |event| attached |= matches!(event, FabricEvent::Attached { .. }));
        }
        for k in 1..=PUSHES {
            std::thread::sleep(Duration::from_micros(200));
            region.store(0, k);
            owner.push_word(mirror, 0);
            while acks.load(0) < k {
                owner.poll(&mut |event| panic!("{event:?}"));
            }
        }
    });
    let mut seen = 0;
    while seen < PUSHES {
        reader.prepare_park();
        reader.poll(&mut |event| assert!(matches!(event, FabricEvent::Attached { .. })));
        if attachment.load(0) == seen {
            let begin = Instant::now();
            reader.park(Some(LONG));
            assert!(begin.elapsed() < late(), "push {} was missed", seen + 1);
        }
        reader.unpark();
        reader.poll(&mut |event| assert!(matches!(event, FabricEvent::Attached { .. })));
        if attachment.load(0) > seen {
            seen = attachment.load(0);
            ack.store(0, seen);
            reader.push_word(ack_mirror, 0);
        }
    }
    // The last acknowledgement is sent by the next poll.
    reader.poll(&mut |_| {});
    thread.join().expect("the owner's thread");
}

/// What was posted is sent before the node sleeps, and it sleeps no longer than a stalled send may wait.
#[test]
fn a_park_sends_what_was_posted_and_wakes_for_a_stalled_send() {
    let mut cluster = PlainLoopback::new(2);
    let conn = cluster.node(0).open(NodeId(1), Channel(1));
    cluster.node(1).open(NodeId(0), Channel(1));
    settle(&mut cluster);
    cluster.node(0).send(conn, b"no receive", None).expect("connected");
    cluster.node(0).prepare_park();
    cluster.node(0).unpark();
    cluster.node(1).poll(&mut |event| panic!("{event:?}"));
    assert_eq!(cluster.node(1).counters().frames_received, 3, "an open, an accept and the send");
    let slept = park(cluster.node(1), Some(LONG));
    assert!(slept > Duration::from_millis(500) && slept < Duration::from_secs(1) + late(), "{slept:?}");
    let mut broken = false;
    cluster.node(1).poll(&mut |event| broken |= matches!(event, FabricEvent::Broken { .. }));
    assert!(broken);
}

/// The death of a peer ends a park.
#[test]
fn a_death_ends_a_park() {
    let mut cluster = PlainLoopback::new(2);
    settle(&mut cluster);
    cluster.kill(1);
    let node = cluster.node(0);
    node.prepare_park();
    node.park(Some(LONG));
    node.unpark();
    let mut lost = false;
    node.poll(&mut |event| lost |= matches!(event, FabricEvent::PeerLost { peer: NodeId(1), .. }));
    assert!(lost);
    // The next park is not disturbed.
    assert!(park(cluster.node(0), Some(Duration::from_millis(20))) >= Duration::from_millis(20));
}

/// Returns how late a busy machine may wake a thread.
fn late() -> Duration {
    patient(Duration::from_secs(2))
}

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);
const PUSHES: u64 = 300;
