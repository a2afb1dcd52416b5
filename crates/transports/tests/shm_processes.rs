//! Shared memory between real processes: mirrors, deaths, parking, and a writer that is stopped in the middle
//! of a write.

#[path = "shm/child.rs"]
mod child;
#[path = "shm/roles.rs"]
mod roles;

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use squall_fabric::{BreakReason, Channel, Fabric, FabricEvent, Grant, MirrorKey, NodeId, Region};
use squall_transports::TransportFabric;
use squall_transports::shm::ShmFabric;

use child::{ChildProcess, WordPair, patience, patient, poll_until, role};
use roles::{BLOCK_WORDS, STORM_WORDS};

/// The role of a child of the tests below; not a test of its own.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    roles::play(&role().expect("started by another test"));
}

/// Each process sees the words that the other stores, 20,000 times in turn.
#[test]
fn mirrors_play_ping_pong() {
    let (process, socket) = ChildProcess::start("echo");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    for k in 1..=20_000 {
        pair.say(&mut fabric, k);
        poll_until(&mut fabric, "the echo", |_, _| pair.heard() == k);
    }
    drop(fabric);
    assert!(process.wait().success());
}

/// F11, M4: a killed process is detected at once; what it had stored remains, complete and unchanging.
#[test]
fn a_killed_owner_is_lost_and_its_attachment_survives() {
    let (process, socket) = ChildProcess::start("storm");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let attachment = fabric.attach(NodeId(1), MirrorKey(1), STORM_WORDS);
    poll_until(&mut fabric, "a hundred messages", |_, _| attachment.load(0) >= 100);
    process.signal(Signal::KILL);
    let begin = Instant::now();
    poll_until(&mut fabric, "the report of the death", |_, events| {
        events.contains(&FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::PeerClosed })
    });
    let detected = begin.elapsed();
    let (last, before) = (attachment.load(0), snapshot(&attachment));
    assert!((1..STORM_WORDS).all(|word| attachment.load(word) >= last), "guard {last}, but a word is older");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(snapshot(&attachment), before, "a dead owner's words changed");
    fabric.freeze(&attachment);
    assert_eq!(snapshot(&attachment), before, "freezing changed words");
    assert!(detected < patient(Duration::from_secs(2)), "detected only after {detected:?}");
    eprintln!("death detected after {detected:?}");
}

/// A process that is killed is seen dying by the kernel's mark, before its connection ends; both are reported once.
#[test]
fn a_dying_peer_is_seen_before_it_is_lost() {
    let (process, socket, copy) = ChildProcess::start_with_copy("storm");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let attachment = fabric.attach(NodeId(1), MirrorKey(1), STORM_WORDS);
    poll_until(&mut fabric, "a hundred messages", |_, _| attachment.load(0) >= 100);
    process.signal(Signal::KILL);
    let begin = Instant::now();
    let dying = FabricEvent::PeerDying { peer: NodeId(1) };
    let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::PeerClosed };
    poll_until(&mut fabric, "the sight of the dying peer", |_, events| events == [dying.clone()]);
    eprintln!("seen dying after {:?}", begin.elapsed());
    assert!(!process.wait().success());
    let mut later = Vec::new();
    while begin.elapsed() < Duration::from_millis(100) {
        fabric.poll(&mut |event| later.push(event));
    }
    assert_eq!(later, [], "its connection is still open");
    drop(copy);
    poll_until(&mut fabric, "the report of the death", |_, events| events == [lost.clone()]);
}

/// The kernel's mark wakes a node that sleeps: the connection of the peer stays open, and the wait has no time limit.
#[test]
fn a_dying_peer_wakes_a_parked_node() {
    let (process, socket, copy) = ChildProcess::start_with_copy("echo");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    pair.say(&mut fabric, 1);
    poll_until(&mut fabric, "the echo", |_, _| pair.heard() == 1);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        process.signal(Signal::KILL);
        process
    });
    let (dying, mut is_dying) = (FabricEvent::PeerDying { peer: NodeId(1) }, false);
    while !is_dying {
        fabric.prepare_park();
        let work = fabric.poll(&mut |event| is_dying |= event == dying);
        if work == 0 {
            fabric.park(None);
        }
        fabric.unpark();
    }
    assert!(!killer.join().expect("no panic").wait().success());
    drop(copy);
}

/// A peer that is removed while it is dying, in the middle of a write, is fenced off as soon as its process has ended.
#[test]
fn a_dying_peer_that_is_removed_in_the_middle_of_a_write_is_fenced() {
    let (writer, to_writer, copy) = ChildProcess::start_with_copy("write as node 1");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), to_writer)]).expect("a fabric");
    let region = fabric.register(BLOCK_WORDS);
    let block = fabric.grant(&region, 0..BLOCK_WORDS, NodeId(1));
    send_grant(&mut fabric, NodeId(1), &block);
    poll_until(&mut fabric, "the writer", |_, _| region.load(0) > 0);
    stop_in_the_middle(&mut fabric, &writer, &region, 0..BLOCK_WORDS);
    writer.signal(Signal::KILL);
    let dying = FabricEvent::PeerDying { peer: NodeId(1) };
    poll_until(&mut fabric, "the sight of the dying peer", |_, events| events.contains(&dying));
    assert!(!writer.wait().success());
    fabric.remove_peer(NodeId(1));
    drop(copy);
    fabric.revoke(&block);
    poll_until(&mut fabric, "Revoked", |_, events| events.contains(&FabricEvent::Revoked { grant: block }));
    let landed = snapshot(&region);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(snapshot(&region), landed, "a write landed after Revoked");
}

/// M3: a frozen attachment of a living owner that stores without pause no longer changes, and is consistent.
#[test]
fn a_frozen_attachment_ignores_a_living_owner() {
    let (process, socket) = ChildProcess::start("storm");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let attachment = fabric.attach(NodeId(1), MirrorKey(1), STORM_WORDS);
    let other = fabric.attach(NodeId(1), MirrorKey(2), 1);
    poll_until(&mut fabric, "a hundred messages", |_, _| attachment.load(0) >= 100);
    fabric.freeze(&attachment);
    let before = snapshot(&attachment);
    let last = attachment.load(0);
    assert!((1..STORM_WORDS).all(|word| attachment.load(word) >= last), "guard {last}, but a word is older");
    let progress = other.load(0) + 100;
    poll_until(&mut fabric, "the owner to continue", |_, _| other.load(0) >= progress);
    assert_eq!(snapshot(&attachment), before, "a frozen attachment changed");
    drop(process);
}

/// All shared memory is anonymous, so nothing can remain in a file system.
#[test]
fn shared_memory_has_no_file() {
    let (process, socket) = ChildProcess::start("storm");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let attachment = fabric.attach(NodeId(1), MirrorKey(1), STORM_WORDS);
    poll_until(&mut fabric, "a message", |_, _| attachment.load(0) > 0);
    for pid in [process.pid().as_raw_nonzero().get().to_string(), "self".to_owned()] {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a living process");
        let shared: Vec<_> =
            maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|p| p.ends_with('s'))).collect();
        assert!(!shared.is_empty(), "it shares memory");
        for line in shared {
            assert!(line.ends_with("/memfd:squall (deleted)"), "shared memory in a file: {line}");
        }
    }
}

/// A process that is parked without a deadline is woken by a push, repeatedly.
#[test]
fn a_push_wakes_a_parked_process() {
    let (process, socket) = ChildProcess::start("echo parked");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    let mut times = Vec::new();
    for k in 1..=200 {
        // Long enough for the other to park.
        std::thread::sleep(Duration::from_micros(300));
        let begin = Instant::now();
        pair.say(&mut fabric, k);
        poll_until(&mut fabric, "the echo of a parked process", |_, _| pair.heard() == k);
        times.push(begin.elapsed());
    }
    times.sort();
    eprintln!("echo of a parked process: median {:?}, worst {:?}", times[100], times[199]);
    drop(fabric);
    assert!(process.wait().success());
}

/// A parked process uses no processor time.
#[test]
fn an_idle_process_costs_nothing() {
    let (process, socket) = ChildProcess::start("echo parked");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let mut pair = WordPair::new(&mut fabric, NodeId(1));
    pair.say(&mut fabric, 1);
    poll_until(&mut fabric, "the child to be ready", |_, _| pair.heard() == 1);
    let ticks = || {
        let path = format!("/proc/{}/stat", process.pid().as_raw_nonzero());
        let stat = std::fs::read_to_string(path).expect("a living process");
        let fields = stat.rsplit(") ").next().expect("a name").split(' ');
        let [user, system] = [11, 12].map(|n| fields.clone().nth(n).expect("a field").parse::<u64>());
        user.expect("a number") + system.expect("a number")
    };
    let before = ticks();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        fabric.poll(&mut |_| ());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(ticks() - before <= 2, "an idle process ran for {} ticks of 10 ms in a second", ticks() - before);
    drop(fabric);
    assert!(process.wait().success());
}

/// F9, F10: a writer that is stopped in the middle of a write is revoked nevertheless; what it stores when it
/// continues lands nowhere, and it is refused. A neighbour in the same region keeps writing throughout.
#[test]
fn a_writer_stopped_in_the_middle_is_fenced() {
    let (neighbour, to_neighbour) = ChildProcess::start("count as node 2");
    let (mut writer, to_writer) = ChildProcess::start("write as node 1");
    let peers = vec![(NodeId(1), to_writer), (NodeId(2), to_neighbour)];
    let mut fabric = ShmFabric::new(NodeId(0), peers).expect("a fabric");
    let done = fabric.attach(NodeId(1), MirrorKey(9), 1);
    let region = fabric.register(BLOCK_WORDS + 16);
    let block = fabric.grant(&region, 0..BLOCK_WORDS, NodeId(1));
    let counter = fabric.grant(&region, BLOCK_WORDS..BLOCK_WORDS + 1, NodeId(2));
    send_grant(&mut fabric, NodeId(1), &block);
    send_grant(&mut fabric, NodeId(2), &counter);
    poll_until(&mut fabric, "both writers", |_, _| region.load(0) > 0 && region.load(BLOCK_WORDS) > 0);

    stop_in_the_middle(&mut fabric, &writer, &region, 0..BLOCK_WORDS);
    fabric.revoke(&block);
    poll_until(&mut fabric, "Revoked", |_, events| events.contains(&FabricEvent::Revoked { grant: block }));
    let landed = snapshot(&region);
    let counted = region.load(BLOCK_WORDS);
    poll_until(&mut fabric, "the neighbour", |_, _| region.load(BLOCK_WORDS) > counted + 100);
    writer.signal(Signal::CONT);
    poll_until(&mut fabric, "the end of the refused writer", |_, _| writer.has_ended());
    assert!(writer.wait().success(), "the writer was not refused");
    assert_eq!(snapshot(&region)[..BLOCK_WORDS], landed[..BLOCK_WORDS], "a write landed after Revoked");
    // The last word identifies the last block that has landed completely.
    let complete = landed[BLOCK_WORDS - 1];
    assert!(done.load(0) <= complete, "block {} was done, but only {complete} has landed", done.load(0));
    drop(fabric);
    assert!(neighbour.wait().success());
}

/// Two writers of one region are both stopped in the middle of a write: revoking one cannot wait for the
/// other, so both are refused; the owner of the region gets `Revoked` for each grant that it revokes.
#[test]
fn two_writers_stopped_in_the_middle_are_fenced() {
    let mut writers = [ChildProcess::start("write as node 1"), ChildProcess::start("write as node 2")];
    let sockets = writers.each_ref().map(|(_, socket)| socket.try_clone().expect("a socket"));
    let peers = (1..).map(NodeId).zip(sockets).collect();
    let mut fabric = ShmFabric::new(NodeId(0), peers).expect("a fabric");
    let regions = fabric.register(2 * BLOCK_WORDS);
    let ranges = [0..BLOCK_WORDS, BLOCK_WORDS..2 * BLOCK_WORDS];
    let mut grants = Vec::new();
    for (peer, range) in (1..).map(NodeId).zip(ranges) {
        let grant = fabric.grant(&regions, range.clone(), peer);
        send_grant(&mut fabric, peer, &grant);
        poll_until(&mut fabric, "a writer", |_, _| regions.load(range.start) > 0);
        grants.push(grant);
    }
    for ((writer, _), grant) in writers.iter().zip(&grants) {
        stop_in_the_middle(&mut fabric, writer, &regions, grant.range());
    }
    let begin = Instant::now();
    for grant in &grants {
        fabric.revoke(grant);
        poll_until(&mut fabric, "Revoked", |_, events| {
            events.contains(&FabricEvent::Revoked { grant: *grant })
        });
    }
    eprintln!("two stopped writers revoked after {:?}", begin.elapsed());
    let landed = snapshot(&regions);
    for (writer, _) in &mut writers {
        writer.signal(Signal::CONT);
        poll_until(&mut fabric, "the end of a refused writer", |_, _| writer.has_ended());
    }
    assert!(snapshot(&regions) == landed, "a write landed after Revoked");
    for (writer, _) in writers {
        assert!(writer.wait().success(), "a writer was not refused");
    }
}

/// F9: a writer that is removed as a peer while it is stopped in the middle of a write is fenced off like any
/// other; only then is its place reused.
#[test]
fn a_removed_peer_stopped_in_the_middle_is_fenced() {
    let (mut writer, to_writer) = ChildProcess::start("write as node 1");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), to_writer)]).expect("a fabric");
    let region = fabric.register(BLOCK_WORDS);
    let block = fabric.grant(&region, 0..BLOCK_WORDS, NodeId(1));
    send_grant(&mut fabric, NodeId(1), &block);
    poll_until(&mut fabric, "the writer", |_, _| region.load(0) > 0);
    stop_in_the_middle(&mut fabric, &writer, &region, 0..BLOCK_WORDS);
    fabric.remove_peer(NodeId(1));
    let (next, to_next) = ChildProcess::start("count as node 2");
    fabric.add_peer(NodeId(2), to_next).expect("added");
    fabric.revoke(&block);
    poll_until(&mut fabric, "Revoked", |_, events| events.contains(&FabricEvent::Revoked { grant: block }));
    let landed = snapshot(&region);
    writer.signal(Signal::CONT);
    poll_until(&mut fabric, "the end of the removed writer", |_, _| writer.has_ended());
    assert_eq!(snapshot(&region), landed, "a write landed after Revoked");
    drop(next);
    poll_until(&mut fabric, "the end of the next peer", |_, events| {
        events.contains(&FabricEvent::PeerLost { peer: NodeId(2), reason: BreakReason::PeerClosed })
    });
}

/// Stops the writer repeatedly until it is in the middle of a block.
fn stop_in_the_middle(fabric: &mut ShmFabric, writer: &ChildProcess, region: &Region, block: Range<usize>) {
    let begin = Instant::now();
    loop {
        writer.stop();
        if region.load(block.start) != region.load(block.end - 1) {
            return;
        }
        writer.signal(Signal::CONT);
        std::thread::sleep(Duration::from_micros(300));
        fabric.poll(&mut |_| ());
        assert!(begin.elapsed() < patience(), "the writer never stops in the middle of a block");
    }
}

/// Sends a grant to a child that waits for it on channel 1.
fn send_grant(fabric: &mut ShmFabric, peer: NodeId, grant: &Grant) {
    let conn = fabric.open(peer, Channel(1));
    poll_until(fabric, "Connected", |_, events| events.contains(&FabricEvent::Connected { conn, peer }));
    poll_until(fabric, "a receive", |fabric, _| fabric.send(conn, &grant.to_bytes(), None).is_ok());
}

fn snapshot(region: &Region) -> Vec<u64> {
    let mut words = vec![0; region.words()];
    region.copy_out(0, &mut words);
    words
}
