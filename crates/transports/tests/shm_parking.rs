//! Parking on shared memory: a node that parks just after a peer has checked its mark is rung nevertheless.
//!
//! A peer that stores something checks the mark at once, when its store may not be visible yet, and so checks
//! it again when the store is visible. These tests single out that case: the sleeper sets its mark between
//! the two checks.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use squall_fabric::{Fabric, MirrorId, MirrorKey, NodeId, Region};
use squall_transports::TransportFabric;
use squall_transports::shm::ShmFabric;

/// A node that stores, and two that read, each through a mirror of its own.
struct Trio {
    writer: ShmFabric,
    readers: [ShmFabric; 2],
    mirrors: [(Region, MirrorId); 2],
}

impl Trio {
    fn new() -> Self {
        let mut pairs = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
        let mut streams = pairs.iter_mut().map(|(ours, _)| ours.try_clone().expect("a descriptor"));
        let streams = vec![(NodeId(1), streams.next().unwrap()), (NodeId(2), streams.next().unwrap())];
        let mut writer = ShmFabric::new(NodeId(0), streams).expect("a fabric");
        let mut peer = 0;
        let mut readers = pairs.map(|(_, theirs)| {
            peer += 1;
            ShmFabric::new(NodeId(peer), vec![(NodeId(0), theirs)]).expect("a fabric")
        });
        let mirrors = [1, 2].map(|reader| {
            let region = writer.register(8);
            let mirror = writer.publish(MirrorKey(u64::from(reader)), &region, &[NodeId(reader)]);
            (region, mirror)
        });
        (1..).zip(&mut readers).for_each(|(key, reader)| _ = reader.attach(NodeId(0), MirrorKey(key), 8));
        let mut trio = Self { writer, readers, mirrors };
        for _ in 0..100 {
            trio.writer.poll(&mut |_| ());
            trio.readers.iter_mut().for_each(|reader| _ = reader.poll(&mut |_| ()));
            std::thread::sleep(Duration::from_micros(300));
        }
        trio
    }

    fn store(&mut self, reader: usize) {
        let (region, mirror) = &self.mirrors[reader];
        region.store(0, region.load(0) + 1);
        self.writer.push_word(*mirror, 0);
    }

    fn poll(&mut self) {
        self.writer.poll(&mut |_| ());
    }

    /// Returns whether the doorbell of a reader rings.
    fn rings(&self, reader: usize) -> bool {
        let mut bell = [PollFd::from_borrowed_fd(self.readers[reader].readiness().0, PollFlags::IN)];
        poll(&mut bell, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a bell") > 0
    }
}

#[test]
fn a_node_that_parks_after_the_first_check_is_rung_by_an_idle_peer() {
    let mut trio = Trio::new();
    trio.store(0);
    trio.poll();
    trio.readers[0].prepare_park();
    assert!(!trio.rings(0), "the mark has not been checked since");
    trio.poll();
    assert!(trio.rings(0));
}

#[test]
fn a_node_that_parks_after_the_first_check_is_rung_by_a_busy_peer() {
    let mut trio = Trio::new();
    trio.store(0);
    trio.poll();
    trio.readers[0].prepare_park();
    for _ in 0..50 {
        trio.store(1);
        trio.poll();
    }
    assert!(trio.rings(0) && !trio.rings(1));
}

#[test]
fn a_node_that_parks_after_the_first_check_is_rung_by_a_parking_peer() {
    let mut trio = Trio::new();
    trio.store(0);
    trio.poll();
    trio.readers[0].prepare_park();
    trio.writer.prepare_park();
    assert!(trio.rings(0));
}

#[test]
fn a_parked_node_is_rung_at_the_first_check() {
    let mut trio = Trio::new();
    trio.readers[0].prepare_park();
    trio.store(0);
    trio.poll();
    assert!(trio.rings(0));
}
