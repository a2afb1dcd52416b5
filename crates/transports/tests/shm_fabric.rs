//! Tests of shared memory within one process, of what is specific to this backend and so not part of the
//! conformance suite.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use squall_fabric::{
    BreakReason, Channel, Fabric, FabricEvent, MirrorKey, NodeId, PostError, Token, Write, WriteSource,
};
use squall_transports::TransportFabric;
use squall_transports::shm::ShmFabric;

/// Two connected nodes and the events that they have yielded.
struct Two {
    nodes: [ShmFabric; 2],
    events: [Vec<FabricEvent>; 2],
}

impl Two {
    fn new() -> Self {
        let (a, b) = UnixStream::pair().expect("sockets");
        let nodes = [(0, 1, a), (1, 0, b)];
        let nodes = nodes.map(|(node, peer, stream)| {
            ShmFabric::new(NodeId(node), vec![(NodeId(peer), stream)]).expect("a fabric")
        });
        Self { nodes, events: [Vec::new(), Vec::new()] }
    }

    fn poll(&mut self, node: usize) {
        let events = &mut self.events[node];
        self.nodes[node].poll(&mut |event| events.push(event));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            self.poll(0);
            self.poll(1);
            assert!(begin.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}");
        }
    }

    fn expect(&mut self, node: usize, event: &FabricEvent) {
        self.until(&format!("{event:?}"), |two| two.events[node].contains(event));
    }
}

/// A peer may learn of a grant by another way than the socket and use it before its pages have arrived: then
/// the queue is full, but the write is never refused [F8].
#[test]
fn a_grant_can_overtake_its_pages() {
    let mut two = Two::new();
    let conn = two.nodes[0].open(NodeId(1), Channel(1));
    two.nodes[1].open(NodeId(0), Channel(1));
    two.expect(0, &FabricEvent::Connected { conn, peer: NodeId(1) });
    let region = two.nodes[1].register(3000);
    // These exceed what the socket holds: the last ones wait at their owner.
    let grants: Vec<_> =
        (0..3000).map(|word| two.nodes[1].grant(&region, word..word + 1, NodeId(0))).collect();
    let mut full = 0;
    for (word, grant) in grants.iter().enumerate().rev() {
        let value = [word as u64 + 1];
        let (source, offset) = (WriteSource::Value(&value), 0);
        two.until("the pages of the grant", |two| {
            let write = Write { source: source.clone(), grant, offset, immediate: None, signal: None };
            match two.nodes[0].write(conn, write) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    full += 1;
                    false
                }
            }
        });
    }
    assert!(full > 0, "the pages were never late, so the test proves nothing");
    assert!((0..3000).all(|word| region.load(word) == word as u64 + 1));
    assert!(!two.events[0].contains(&FabricEvent::Refused { conn }));
}

/// The k-th connection that one end opens pairs with the k-th of the other, whatever crosses in transit.
#[test]
fn connections_pair_in_the_order_of_opening() {
    let mut two = Two::new();
    let channel = Channel(4);
    let first = two.nodes[0].open(NodeId(1), channel);
    two.nodes[0].close(first);
    let second = two.nodes[0].open(NodeId(1), channel);
    // Its partner was closed before it was opened.
    let early = two.nodes[1].open(NodeId(0), channel);
    two.expect(1, &FabricEvent::Broken { conn: early, reason: BreakReason::PeerClosed });
    assert!(two.events[0].is_empty(), "{:?}", two.events[0]);
    let partner = two.nodes[1].open(NodeId(0), channel);
    two.expect(0, &FabricEvent::Connected { conn: second, peer: NodeId(1) });
    two.expect(1, &FabricEvent::Connected { conn: partner, peer: NodeId(0) });
    let memory = two.nodes[1].register(1);
    two.nodes[1].post_receive(partner, &memory, 0..1, Token(1)).expect("space");
    two.nodes[0].send(second, b"hello", None).expect("connected");
    two.expect(1, &FabricEvent::Received { conn: partner, token: Token(1), length: 5 });
    assert_eq!(two.nodes[0].send(first, b"", None), Err(PostError::NotConnected), "the first remains closed");
}

/// What was posted before a close arrives before the report of the close [F6].
#[test]
fn a_close_is_reported_after_earlier_posts() {
    let mut two = Two::new();
    let conn = two.nodes[0].open(NodeId(1), Channel(1));
    let back = two.nodes[1].open(NodeId(0), Channel(1));
    two.expect(0, &FabricEvent::Connected { conn, peer: NodeId(1) });
    let memory = two.nodes[1].register(8);
    for k in 0..8 {
        two.nodes[1].post_receive(back, &memory, k..k + 1, Token(k as u64)).expect("space");
    }
    (0..8).for_each(|_| two.nodes[0].send(conn, b"last", None).expect("space"));
    two.nodes[0].close(conn);
    two.expect(1, &FabricEvent::Broken { conn: back, reason: BreakReason::PeerClosed });
    let received = two.events[1].iter().filter(|event| matches!(event, FabricEvent::Received { .. })).count();
    assert_eq!(received, 8, "{:?}", two.events[1]);
    let broken = two.events[1].iter().position(|event| matches!(event, FabricEvent::Broken { .. }));
    let last = two.events[1].iter().rposition(|event| matches!(event, FabricEvent::Received { .. }));
    assert!(last < broken, "{:?}", two.events[1]);
}

/// A mirror of many huge pages, and one of slightly more than a page, show the owner's words from the first
/// to the last.
#[test]
fn mirrors_of_all_sizes_are_complete() {
    let mut two = Two::new();
    for (key, words) in [(1, 1), (2, 512), (3, 513), (4, 1 << 18), (5, (4 << 20) + 3)] {
        let region = two.nodes[0].register(words);
        two.nodes[0].publish(MirrorKey(key), &region, &[NodeId(1)]);
        let attachment = two.nodes[1].attach(NodeId(0), MirrorKey(key), words);
        two.expect(0, &FabricEvent::Attached { key: MirrorKey(key), reader: NodeId(1) });
        for word in [0, words / 2, words - 1] {
            region.store(word, key * 100 + 1);
            assert_eq!(attachment.load(word), key * 100 + 1, "word {word} of {words}");
        }
        two.nodes[1].freeze(&attachment);
        for word in [0, words / 2, words - 1] {
            region.store(word, 0);
            assert_eq!(attachment.load(word), key * 100 + 1, "frozen word {word} of {words}");
        }
    }
}

/// A dropped attachment is released, and its memory can be attached again under another key.
#[test]
fn a_dropped_attachment_is_released() {
    let mut two = Two::new();
    let region = two.nodes[0].register(16);
    for key in 0..2000 {
        two.nodes[0].publish(MirrorKey(key), &region, &[NodeId(1)]);
        let attachment = two.nodes[1].attach(NodeId(0), MirrorKey(key), 16);
        two.expect(0, &FabricEvent::Attached { key: MirrorKey(key), reader: NodeId(1) });
        region.store(0, key);
        assert_eq!(attachment.load(0), key);
        two.events[0].clear();
    }
}

/// A waker on another thread ends a park without a deadline; the first wake-up does not end a second park.
#[test]
fn a_waker_ends_a_park() {
    let mut two = Two::new();
    two.until("the first frames", |two| two.nodes[0].poll(&mut |_| ()) == 0);
    for _ in 0..20 {
        let node = &mut two.nodes[0];
        let waker = node.waker();
        node.prepare_park();
        node.poll(&mut |_| ());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                waker.wake();
            });
            node.park(Some(PATIENCE));
        });
        assert!(begin.elapsed() < PATIENCE, "the waker did not end the park");
        node.unpark();
        node.prepare_park();
        let begin = Instant::now();
        node.park(Some(Duration::from_millis(3)));
        assert!(begin.elapsed() >= Duration::from_millis(3), "an earlier wake-up ended a later park");
        node.unpark();
    }
}

/// A doorbell that is taken by the last poll before the park must end the park: its cause may have been
/// stored after the protocol cores were polled.
#[test]
fn a_doorbell_before_the_park_ends_it() {
    let mut two = Two::new();
    let region = two.nodes[0].register(1);
    let mirror = two.nodes[0].publish(MirrorKey(1), &region, &[NodeId(1)]);
    let _attachment = two.nodes[1].attach(NodeId(0), MirrorKey(1), 1);
    two.expect(0, &FabricEvent::Attached { key: MirrorKey(1), reader: NodeId(1) });
    while two.nodes[1].poll(&mut |_| ()) > 0 {}
    two.nodes[1].prepare_park();
    region.store(0, 1);
    two.nodes[0].push_word(mirror, 0);
    two.poll(0);
    let work = two.nodes[1].poll(&mut |_| ());
    let begin = Instant::now();
    two.nodes[1].park(Some(PATIENCE));
    assert!(begin.elapsed() < PATIENCE / 2, "parked although rung; the poll before it found {work}");
    two.nodes[1].unpark();
}

/// Everything that a peer does for a parked node wakes it, and so does the peer's death.
#[test]
fn everything_wakes_a_parked_node() {
    let mut two = Two::new();
    let conn = two.nodes[0].open(NodeId(1), Channel(1));
    let back = two.nodes[1].open(NodeId(0), Channel(1));
    two.expect(0, &FabricEvent::Connected { conn, peer: NodeId(1) });
    two.expect(1, &FabricEvent::Connected { conn: back, peer: NodeId(0) });
    let region = two.nodes[1].register(1);
    let grant = two.nodes[1].grant(&region, 0..1, NodeId(0));
    let write = |immediate| Write {
        source: WriteSource::Value(&[1]),
        grant: &grant,
        offset: 0,
        immediate,
        signal: None,
    };
    // The first write fetches the pages of the grant, which is not tested here.
    two.until("the pages of the grant", |two| two.nodes[0].write(conn, write(None)).is_ok());
    for k in 0..2 {
        two.nodes[1].post_receive(back, &region, 0..1, Token(k)).expect("space");
    }
    let wakes: [(&str, Action<'_>); 5] = [
        ("a write", &|node| node.write(conn, write(None)).expect("connected")),
        ("a write with immediate", &|node| node.write(conn, write(Some(1))).expect("connected")),
        ("a send", &|node| node.send(conn, b"wake up", None).expect("connected")),
        ("a receive", &|node| {
            let memory = node.register(1);
            node.post_receive(conn, &memory, 0..1, Token(1)).expect("space");
        }),
        ("a close", &|node| node.close(conn)),
    ];
    for (what, wake) in wakes {
        assert_woken(&mut two.nodes, what, wake);
    }
    let [dying, mut living] = two.nodes;
    while living.poll(&mut |_| ()) > 0 {}
    living.prepare_park();
    while living.poll(&mut |_| ()) > 0 {}
    drop(dying);
    let begin = Instant::now();
    living.park(Some(PATIENCE));
    assert!(begin.elapsed() < PATIENCE / 2, "a death did not end the park");
}

/// An action of a node that must wake another.
type Action<'a> = &'a dyn Fn(&mut ShmFabric);

/// Checks that an action of node 0 ends the park of node 1.
fn assert_woken([waking, parked]: &mut [ShmFabric; 2], what: &str, wake: Action<'_>) {
    // This takes the doorbell of the previous action.
    while parked.poll(&mut |_| ()) > 0 {}
    parked.prepare_park();
    while parked.poll(&mut |_| ()) > 0 {}
    let begin = Instant::now();
    parked.park(Some(Duration::from_millis(2)));
    assert!(begin.elapsed() >= Duration::from_millis(2), "something before {what} ended the park");
    wake(waking);
    waking.poll(&mut |_| ());
    let begin = Instant::now();
    parked.park(Some(PATIENCE));
    assert!(begin.elapsed() < PATIENCE / 2, "{what} did not end the park");
    parked.unpark();
}

/// Two threads that park whenever there is nothing to do pass a number back and forth: no wake-up is ever
/// lost.
#[test]
fn no_wake_up_is_lost() {
    const LAPS: u64 = 10_000;
    let mut two = Two::new();
    let regions = [0, 1].map(|i: usize| two.nodes[i].register(1));
    let mirrors = [0, 1].map(|i: usize| {
        let reader = NodeId(1 - i as u32);
        two.nodes[i].publish(MirrorKey(1), &regions[i], &[reader])
    });
    let attachments = [0, 1].map(|i: usize| two.nodes[i].attach(NodeId(1 - i as u32), MirrorKey(1), 1));
    for reader in [1, 0] {
        two.expect(1 - reader as usize, &FabricEvent::Attached { key: MirrorKey(1), reader: NodeId(reader) });
    }
    std::thread::scope(|scope| {
        for ((i, node), (region, attachment)) in
            two.nodes.iter_mut().enumerate().zip(regions.iter().zip(&attachments))
        {
            let mirror = mirrors[i];
            scope.spawn(move || {
                // Node 0 begins; each replies with the other's number plus one.
                let (mut seen, mut lap) = (0, 0);
                if i == 0 {
                    region.store(0, 1);
                    node.push_word(mirror, 0);
                }
                while lap < LAPS {
                    node.prepare_park();
                    let mut work = node.poll(&mut |_| ());
                    let number = attachment.load(0);
                    if number != seen {
                        (seen, lap, work) = (number, lap + 1, work + 1);
                        region.store(0, number + 1);
                        node.push_word(mirror, 0);
                    }
                    if work == 0 {
                        let begin = Instant::now();
                        node.park(Some(PATIENCE));
                        assert!(begin.elapsed() < PATIENCE, "node {i} missed the wake-up of lap {lap}");
                    }
                    node.unpark();
                }
                node.prepare_park();
                node.unpark();
            });
        }
    });
}

const PATIENCE: Duration = Duration::from_secs(10);
