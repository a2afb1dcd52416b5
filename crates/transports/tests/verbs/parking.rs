//! Sleep and doorbells: a one-sided write does not wake its target by itself, and yet no sleeper misses one.

use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use squall_fabric::{
    Channel, ConnId, Fabric, FabricEvent, Grant, MirrorKey, NodeId, Token, Write, WriteSource,
};
use squall_transports::TransportFabric;
use squall_transports::verbs::VerbsFabric;

use crate::harness::{fabric, mesh};

/// A node that sleeps whenever it has nothing to do.
struct Sleeper {
    fabric: VerbsFabric,
    events: Vec<FabricEvent>,
    parks: u32,
}

impl Sleeper {
    fn new(i: usize, streams: Vec<(NodeId, TcpStream)>) -> Self {
        Self { fabric: fabric(i, streams), events: Vec::new(), parks: 0 }
    }

    fn poll(&mut self) -> usize {
        let events = &mut self.events;
        self.fabric.poll(&mut |event| events.push(event))
    }

    /// Sleeps until `done` returns true; only a doorbell ends a sleep.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            if self.poll() > 0 {
                continue;
            }
            self.fabric.prepare_park();
            if self.poll() == 0 && !done(self) {
                self.parks += 1;
                self.fabric.park(Some(PATIENCE));
            }
            self.fabric.unpark();
            assert!(begun.elapsed() < PATIENCE, "nothing woke the node that waits for: {what}");
        }
    }

    fn until_event(&mut self, matches: impl Fn(&FabricEvent) -> bool) {
        self.until("an event", |node| node.events.iter().any(&matches));
        self.events.retain(|event| !matches(event));
    }

    fn connect(&mut self, peer: u32) -> ConnId {
        let conn = self.fabric.open(NodeId(peer), Channel(1));
        self.until_event(|event| *event == FabricEvent::Connected { conn, peer: NodeId(peer) });
        conn
    }
}

/// Pushes with pauses so long that both nodes sleep.
pub(crate) fn pushes_wake_a_sleeper() {
    let mut streams = mesh(2);
    let (reader, owner) = (streams.remove(0), streams.remove(0));
    let (sender, commands) = channel::<u64>();
    let pushing = std::thread::spawn(move || push_all(owner, &commands));
    let mut node = Sleeper::new(0, reader);
    let attachment = node.fabric.attach(NodeId(1), MirrorKey(1), 16);
    for k in 1..=ROUNDS {
        sender.send(k).expect("the owner is running");
        node.until("a push", |_| attachment.load(0) >= k);
    }
    drop(sender);
    assert!(node.parks > u32::try_from(ROUNDS / 4).expect("small"), "slept only {} times", node.parks);
    pushing.join().expect("the owner has pushed all");
}

fn push_all(streams: Vec<(NodeId, TcpStream)>, commands: &Receiver<u64>) {
    let mut node = Sleeper::new(1, streams);
    let region = node.fabric.register(16);
    let mirror = node.fabric.publish(MirrorKey(1), &region, &[NodeId(0)]);
    node.until_event(|event| matches!(event, FabricEvent::Attached { .. }));
    loop {
        // Sleep a while here, too, so that the reader is asleep when this is pushed.
        pause(&mut node, PAUSE);
        match commands.try_recv() {
            Ok(k) => {
                region.store(0, k);
                node.fabric.push_word(mirror, 0);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// Makes one-sided writes, then sends.
pub(crate) fn writes_and_sends_wake_a_sleeper() {
    let mut streams = mesh(2);
    let (target, writer) = (streams.remove(0), streams.remove(0));
    let (sender, commands) = channel::<Grant>();
    let (reports, done) = channel::<u64>();
    let writing = std::thread::spawn(move || write_all(writer, &commands, &reports));
    let mut node = Sleeper::new(0, target);
    let conn = node.connect(1);
    let region = node.fabric.register(2);
    let grant = node.fabric.grant(&region, 0..1, NodeId(1));
    sender.send(grant).expect("the writer is running");
    for k in 1..=ROUNDS {
        node.fabric.post_receive(conn, &region, 1..2, Token(k)).expect("space");
        node.until("a write", |_| region.load(0) >= k);
        node.until_event(|event| *event == FabricEvent::Received { conn, token: Token(k), length: 8 });
        assert_eq!(region.load(1), k);
        // The writer continues when this has been seen.
        assert_eq!(done.recv(), Ok(k));
    }
    drop(sender);
    writing.join().expect("the writer has written all");
}

fn write_all(streams: Vec<(NodeId, TcpStream)>, commands: &Receiver<Grant>, reports: &Sender<u64>) {
    let mut node = Sleeper::new(1, streams);
    let conn = node.connect(0);
    let grant = commands.recv().expect("a grant");
    for k in 1..=ROUNDS {
        let word = [k];
        let source = WriteSource::Value(&word);
        let write = Write { source, grant: &grant, offset: 0, immediate: None, signal: Some(Token(k)) };
        node.fabric.write(conn, write).expect("space");
        node.until_event(|event| *event == FabricEvent::Done { conn, token: Token(k) });
        pause(&mut node, PAUSE);
        node.fabric.send(conn, &k.to_ne_bytes(), None).expect("space");
        pause(&mut node, PAUSE);
        reports.send(k).expect("the target is running");
    }
    // The end of this node must not be what wakes the target.
    let _ = commands.recv();
}

/// A waker ends a sleep; without a waker and without traffic a node sleeps until its timeout.
pub(crate) fn only_a_waker_ends_a_quiet_sleep() {
    let mut streams = mesh(2);
    let mut node = Sleeper::new(0, streams.remove(0));
    let _peer = fabric(1, streams.remove(0));
    pause(&mut node, PAUSE);
    let before = node.parks;
    let begun = Instant::now();
    pause(&mut node, Duration::from_millis(400));
    assert!(begun.elapsed() >= Duration::from_millis(400));
    assert!(node.parks - before <= 3, "woke {} times without traffic", node.parks - before);
    let waker = node.fabric.waker();
    let waking = std::thread::spawn(move || {
        std::thread::sleep(PAUSE);
        waker.wake();
    });
    node.fabric.prepare_park();
    let begun = Instant::now();
    node.fabric.park(Some(PATIENCE));
    node.fabric.unpark();
    assert!(begun.elapsed() < PATIENCE / 2, "the waker did not end the sleep");
    waking.join().expect("it only wakes");
}

/// Runs the node for this time; it sleeps when there is nothing to do.
fn pause(node: &mut Sleeper, time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        node.fabric.prepare_park();
        if node.poll() == 0 {
            node.parks += 1;
            node.fabric.park(Some(left));
        }
        node.fabric.unpark();
        node.poll();
    }
}

/// The number of messages, each of which finds its receiver asleep.
const ROUNDS: u64 = 40;

const PAUSE: Duration = Duration::from_millis(4);

/// Far longer than any wake-up takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(8);
