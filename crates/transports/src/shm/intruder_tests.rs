//! Peers that violate the protocol: they are disconnected with a reason, without other consequences.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use squall_fabric::{
    BreakReason, Channel, ConnId, Fabric, FabricEvent, MirrorKey, NodeId, PostError, Region, Token,
};

use super::ShmFabric;
use super::link;
use super::memory::{INTERNAL, ShmSegment};
use super::ring::{
    self, HEAD, IMMEDIATE, INLINE_WORDS_MAX, RECEIVES, REMOTE_COPY, REMOTE_COPY_WITH_IMMEDIATE, RING, SEND,
};
use super::socket::UnixSocket;
use super::wire::{ProbeWord, ShmMessage};

/// A fabric with one honest peer and one that does what a test prescribes.
struct Stage {
    fabric: ShmFabric,
    honest: ShmFabric,
    intruder: UnixSocket,
    events: Vec<FabricEvent>,
    /// Keeps the memory that the intruder has shared alive.
    _shown: Arc<ShmSegment>,
}

const HONEST: NodeId = NodeId(1);
const INTRUDER: NodeId = NodeId(2);
const WITNESS: ProbeWord = ProbeWord { pid: 1, address: 8, word: 7 };
const GREETING: ShmMessage = ShmMessage::Hello { node: INTRUDER.0, witness: WITNESS };

impl Stage {
    /// Creates a stage whose intruder has sent no greeting.
    fn silent() -> Self {
        let [(a, b), (c, d)] = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
        let fabric = ShmFabric::new(NodeId(0), vec![(HONEST, a), (INTRUDER, c)]).expect("a fabric");
        let honest = ShmFabric::new(HONEST, vec![(NodeId(0), b)]).expect("a fabric");
        let shown = ShmSegment::new(link::PAGE_WORDS).expect("memory");
        let intruder = UnixSocket::new(d).expect("same user");
        Self { fabric, honest, intruder, events: Vec::new(), _shown: shown }
    }

    /// Creates a stage whose intruder has sent a valid greeting.
    fn after_hello() -> Self {
        let mut stage = Self::silent();
        let file = stage._shown.file().try_clone().expect("a file");
        stage.says(GREETING, Some(&file));
        stage.settle();
        assert_eq!(stage.fabric.links[1].life, link::PeerLiveness::Up);
        stage
    }

    /// Same as `after_hello`, but connected on channel 1: also returns the connection, and the page range
    /// that the intruder shares.
    fn connected() -> (Self, ConnId, Region) {
        let mut stage = Self::after_hello();
        let conn = stage.fabric.open(INTRUDER, Channel(1));
        let segment = ShmSegment::new(ring::PAGE_WORDS).expect("memory");
        let page = segment.region(INTERNAL, ring::PAGE_WORDS);
        let file = segment.file().try_clone().expect("a file");
        stage.says(ShmMessage::Open { channel: 1, index: 1 }, Some(&file));
        stage.settle();
        assert!(stage.events.contains(&FabricEvent::Connected { conn, peer: INTRUDER }));
        (stage, conn, page)
    }

    fn says(&mut self, message: ShmMessage, file: Option<&OwnedFd>) {
        self.intruder.send(message, file.map(AsFd::as_fd)).expect("open");
    }

    /// Makes the fabric look at the intruder's rings, as a new count of posts would.
    fn posts(&mut self) {
        self.fabric.links[1].look_again = true;
    }

    fn settle(&mut self) {
        for _ in 0..5 {
            self.fabric.pace.hurry();
            self.honest.pace.hurry();
            let events = &mut self.events;
            self.fabric.poll(&mut |event| events.push(event));
            self.honest.poll(&mut |_| ());
        }
    }

    /// Asserts that the intruder is disconnected for violating the protocol, and that the honest peer is not
    /// disturbed.
    fn assert_disconnected(mut self) {
        self.settle();
        let lost = FabricEvent::PeerLost { peer: INTRUDER, reason: BreakReason::Protocol };
        assert!(self.events.contains(&lost), "{:?}", self.events);
        let region = self.fabric.register(1);
        self.fabric.publish(MirrorKey(1), &region, &[HONEST]);
        let attachment = self.honest.attach(NodeId(0), MirrorKey(1), 1);
        self.settle();
        region.store(0, 7);
        assert_eq!(attachment.load(0), 7, "the honest peer is still served");
        assert!(self.events.contains(&FabricEvent::Attached { key: MirrorKey(1), reader: HONEST }));
    }
}

fn plain_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("intruder", flags).expect("a file");
    rustix::fs::ftruncate(&file, bytes).expect("a size");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

#[test]
fn a_peer_without_hello_is_disconnected() {
    for message in [ShmMessage::Doorbell, ShmMessage::Attached { key: 1 }, ShmMessage::Withdrawn { key: 1 }] {
        let mut stage = Stage::silent();
        stage.says(message, None);
        stage.assert_disconnected();
    }
}

#[test]
fn a_wrong_hello_disconnects() {
    let good = plain_file(link::PAGE_WORDS as u64 * 8, SealFlags::SHRINK);
    let shrinking = plain_file(link::PAGE_WORDS as u64 * 8, SealFlags::empty());
    let small = plain_file(8, SealFlags::SHRINK);
    let another = ShmMessage::Hello { node: 9, witness: WITNESS };
    for (message, file) in [(another, &good), (GREETING, &shrinking), (GREETING, &small)] {
        let mut stage = Stage::silent();
        stage.says(message, Some(file));
        stage.assert_disconnected();
    }
    let mut stage = Stage::after_hello();
    stage.says(GREETING, Some(&good));
    stage.assert_disconnected();
}

#[test]
fn control_messages_out_of_turn_disconnect() {
    let file = plain_file(1 << 20, SealFlags::SHRINK);
    let reason = BreakReason::PeerClosed;
    let granted = |key, first, words| ShmMessage::Granted { key, region: 1, first, words, moves: 0 };
    for (message, file) in [
        (ShmMessage::Open { channel: 1, index: 2 }, Some(&file)),
        (ShmMessage::Open { channel: 1, index: 0 }, Some(&file)),
        (ShmMessage::Close { channel: 1, index: 1, reason }, None),
        (ShmMessage::Attached { key: 1 }, None),
        (granted(0xffff, 0, 1), Some(&file)),
        (granted(1 << 16, 0, 1 << 17 | 1), Some(&file)),
        (granted(1 << 16, u64::MAX, 2), Some(&file)),
        (granted(1 << 16, 1 << 60, 1 << 60), Some(&file)),
    ] {
        let mut stage = Stage::after_hello();
        stage.says(message, file);
        stage.assert_disconnected();
    }
}

#[test]
fn a_mirror_published_twice_disconnects() {
    for attached in [true, false] {
        let mut stage = Stage::after_hello();
        let file = plain_file(4096, SealFlags::SHRINK);
        let _attachment = attached.then(|| stage.fabric.attach(INTRUDER, MirrorKey(5), 4));
        stage.says(ShmMessage::Mirror { key: 5, words: 4 }, Some(&file));
        stage.settle();
        assert!(!stage.events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. })));
        stage.says(ShmMessage::Mirror { key: 5, words: 4 }, Some(&file));
        stage.assert_disconnected();
    }
}

/// The attachment of a mirror whose file is smaller than announced keeps its zeros; the process is not killed
/// (SIGBUS).
#[test]
fn a_mirror_with_too_small_a_file_disconnects() {
    let mut stage = Stage::after_hello();
    let attachment = stage.fabric.attach(INTRUDER, MirrorKey(5), 100_000);
    let file = plain_file(4096, SealFlags::SHRINK);
    stage.says(ShmMessage::Mirror { key: 5, words: 100_000 }, Some(&file));
    stage.settle();
    assert!((0..100_000).step_by(100).all(|word| attachment.load(word) == 0));
    stage.assert_disconnected();
}

#[test]
fn invalid_ring_contents_disconnect() {
    let lies: [&dyn Fn(&Region); 5] = [
        // A request with more words than fit.
        &|page| page.store(RING, (INLINE_WORDS_MAX as u64 + 1) << 40 | REMOTE_COPY_WITH_IMMEDIATE),
        // A kind that does not exist.
        &|page| page.store(RING, 99),
        // An immediate of more than 32 bits.
        &|page| page.store(RING, u64::MAX << 8 | IMMEDIATE),
        // Longer than a send can be.
        &|page| page.store(RING, 1 << 30 | SEND),
        // Without a receive.
        &|page| {
            page.store(RING, 8 << 8 | SEND);
            page.store(RING + 2, 8 << 8 | SEND);
        },
    ];
    for lie in lies {
        let (mut stage, conn, page) = Stage::connected();
        let memory = stage.fabric.register(1 << 14);
        stage.fabric.post_receive(conn, &memory, 0..1 << 14, Token(1)).expect("space");
        lie(&page);
        stage.posts();
        stage.settle();
        let broken = FabricEvent::Broken { conn, reason: BreakReason::Protocol };
        assert!(stage.events.contains(&broken), "{:?}", stage.events);
        stage.assert_disconnected();
    }
}

/// Requests to copy a write that cannot be served end their connection, and nothing else.
#[test]
fn a_bad_request_breaks_its_connection_only() {
    for (change, reason) in [
        // Another key, region, first word, number of words.
        ([1, 0, 0, 0, 0, 0, 0], BreakReason::Refused),
        ([0, 1, 0, 0, 0, 0, 0], BreakReason::Refused),
        ([0, 0, 1, 0, 0, 0, 0], BreakReason::Refused),
        ([0, 0, 0, 1, 0, 0, 0], BreakReason::Refused),
        // Beyond the grant, in three ways.
        ([0, 0, 0, 0, 1, 0, 0], BreakReason::Refused),
        ([0, 0, 0, 0, 0, 1, 0], BreakReason::Refused),
        ([0, 0, 0, 0, u64::MAX, 0, 0], BreakReason::Refused),
        // From a process whose memory cannot be read.
        ([0; 7], BreakReason::Unreachable),
    ] {
        let (mut stage, conn, page) = Stage::connected();
        let target = stage.fabric.adopt(&Region::heap(INTERNAL, 8));
        let grant = stage.fabric.grant(&target, 0..8, INTRUDER);
        let right = [grant.key, grant.region.0, 0, 8, 0, 8, 8];
        for (word, (right, change)) in (RING + 1..).zip(right.into_iter().zip(change)) {
            page.store(word, right.wrapping_add(change));
        }
        page.store(RING, REMOTE_COPY);
        stage.posts();
        stage.settle();
        assert!(
            stage.events.contains(&FabricEvent::Broken { conn, reason }),
            "{change:?}: {:?}",
            stage.events
        );
        assert!(!stage.events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. })));
        assert!((0..8).all(|word| target.load(word) == 0), "{change:?} landed");
    }
}

/// A request that comes with some of its words, or that has an immediate but finds no receive.
#[test]
fn an_invalid_request_disconnects() {
    for header in [1 << 40 | REMOTE_COPY, REMOTE_COPY_WITH_IMMEDIATE] {
        let (mut stage, conn, page) = Stage::connected();
        let target = stage.fabric.adopt(&Region::heap(INTERNAL, 8));
        let grant = stage.fabric.grant(&target, 0..8, INTRUDER);
        let request = [grant.key, grant.region.0, 0, 8, 0, 8, 8];
        (RING + 1..).zip(request).for_each(|(word, value)| page.store(word, value));
        page.store(RING, header);
        stage.posts();
        stage.settle();
        let broken = FabricEvent::Broken { conn, reason: BreakReason::Protocol };
        assert!(stage.events.contains(&broken), "{:?}", stage.events);
        stage.assert_disconnected();
    }
}

/// A reader that claims to have read what was never sent is detected when the ring is full.
#[test]
fn an_invalid_head_disconnects() {
    let (mut stage, conn, page) = Stage::connected();
    page.store(RECEIVES, u64::MAX);
    page.store(HEAD, 1 << 40);
    let bytes = [0; 1 << 16];
    let posted = (0..10).map(|_| stage.fabric.send(conn, &bytes, None)).find(Result::is_err);
    assert_eq!(posted, Some(Err(PostError::NotConnected)));
    stage.assert_disconnected();
}

/// Any bytes lead to a disconnection, at the latest when the socket closes; nothing panics.
#[test]
fn noise_is_survived() {
    use std::io::Write as _;
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..200 {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let mut fabric = ShmFabric::new(NodeId(0), vec![(INTRUDER, ours)]).expect("a fabric");
        let length = noise() % 200;
        // Existing kinds are more frequent than others, so that some bodies are parsed.
        let byte = |n: u64| if n & 3 == 0 { (n >> 8) as u8 & 7 } else { (n >> 8) as u8 };
        let bytes: Vec<u8> = (0..length).map(|_| byte(noise())).collect();
        theirs.write_all(&bytes).expect("space");
        drop(theirs);
        let mut lost = false;
        for _ in 0..3 {
            fabric.pace.hurry();
            fabric.poll(&mut |event| lost |= matches!(event, FabricEvent::PeerLost { .. }));
        }
        assert!(lost, "round {round}: {bytes:?}");
    }
}
