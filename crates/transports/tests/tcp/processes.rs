//! Two real processes, one of which is killed in the middle of a frame.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use squall_fabric::{Fabric, FabricEvent, MirrorKey, NodeId};
use squall_transports::tcp::TcpFabric;

use crate::patience::patient;

/// 16 MiB, and the counter.
const WORDS: usize = (2 << 20) + 16;
const PORT: &str = "SQUALL_TCP_TEST_PORT";

/// The other process: pushes the whole mirror repeatedly, two pushes ahead of what is acknowledged.
#[test]
#[ignore = "the second process of the tests below"]
fn endless_writer() {
    let port: u16 = std::env::var(PORT).expect("set by the first process").parse().expect("a port");
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the first process listens");
    let mut fabric = TcpFabric::new(NodeId(1), vec![(NodeId(0), stream)]).expect("a stream");
    let region = fabric.register(WORDS);
    let mirror = fabric.publish(MirrorKey(1), &region, &[NodeId(0)]);
    let acks = fabric.attach(NodeId(0), MirrorKey(2), 1);
    let (mut attached, mut pushed, mut alone) = (false, 0, false);
    while !alone {
        fabric.poll(&mut |event| match event {
            FabricEvent::Attached { .. } => attached = true,
            FabricEvent::PeerLost { .. } => alone = true,
            _ => {}
        });
        if attached && pushed < acks.load(0) + 2 {
            pushed += 1;
            (16..WORDS).for_each(|word| region.store_relaxed(word, pushed));
            region.store(0, pushed);
            fabric.push(mirror, 16..WORDS);
            fabric.push_word(mirror, 0);
        }
    }
}

fn second_process() -> (Child, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "processes::endless_writer", "--ignored", "--quiet"])
        .env(PORT, port.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("this test runs again");
    (child, listener.accept().expect("the second process connects").0)
}

/// The reader always sees complete pushes up to the counter; a kill in the middle of a frame is detected at
/// once and leaves the attachment readable [F4, F11, M1, M4].
#[test]
fn a_writer_killed_in_mid_frame_leaves_a_readable_attachment() {
    for kill_at in [2, 3, 5] {
        let (mut child, stream) = second_process();
        let mut fabric = TcpFabric::new(NodeId(0), vec![(NodeId(1), stream)]).expect("a stream");
        let attachment = fabric.attach(NodeId(1), MirrorKey(1), WORDS);
        let ack = fabric.register(1);
        let mirror = fabric.publish(MirrorKey(2), &ack, &[NodeId(1)]);
        let check = |seen: u64| {
            let counter = attachment.load(0);
            assert!(counter >= seen, "the counter went back from {seen} to {counter}");
            let oldest = (16..WORDS).map(|word| attachment.load_relaxed(word)).min().expect("words");
            assert!(oldest >= counter, "push {counter} is announced, but a word is of push {oldest}");
            counter
        };
        let begin = Instant::now();
        let (mut seen, mut killed, mut lost) = (0, None, false);
        while !lost {
            fabric.poll(&mut |event| lost |= matches!(event, FabricEvent::PeerLost { .. }));
            if attachment.load(0) > seen {
                seen = check(seen);
                ack.store(0, seen);
                fabric.push_word(mirror, 0);
            }
            // This is the middle of the next frame, because the writer is two pushes ahead.
            if seen == kill_at && killed.is_none() && attachment.load_relaxed(16) > seen {
                child.kill().expect("it is running");
                killed = Some(Instant::now());
            }
            assert!(begin.elapsed() < patient(Duration::from_secs(60)), "push {seen}");
        }
        let killed = killed.expect("nothing else ends the second process");
        assert!(
            killed.elapsed() < patient(Duration::from_secs(5)),
            "its death was detected after {:?}",
            killed.elapsed()
        );
        check(seen);
        let snapshot: Vec<u64> = (0..WORDS).map(|word| attachment.load_relaxed(word)).collect();
        for _ in 0..100 {
            fabric.poll(&mut |event| panic!("{event:?}"));
        }
        assert!(
            (0..WORDS).all(|word| attachment.load_relaxed(word) == snapshot[word]),
            "a dead owner's attachment changed"
        );
        child.wait().expect("it was killed");
    }
}
