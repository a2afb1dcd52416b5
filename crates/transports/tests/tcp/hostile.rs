//! Peers that send garbage, half frames, huge lengths, or frames for which they have no right.

use std::io::Read as _;

use squall_fabric::{
    BreakReason, Channel, ConnId, Fabric, FabricEvent, Grant, MirrorKey, NodeId, Region, Token,
};

use crate::raw::{
    ACCEPT, ACK, ATTACH, CLOSE, DETACHED, HANDLED, MIRROR, OPEN, SEND, Victim, WRITE, Xorshift, frame,
};

/// A victim with one of everything that frames can address: connection 0 on channel 5, attachment 0, a grant,
/// a published mirror and posted receives.
struct Scene {
    victim: Victim,
    conn: ConnId,
    attachment: Region,
    granted: Region,
    grant: Grant,
    inbox: Region,
}

impl Scene {
    fn new() -> Self {
        let mut victim = Victim::new();
        let fabric = &mut victim.fabric;
        let conn = fabric.open(NodeId(1), Channel(5));
        let attachment = fabric.attach(NodeId(1), MirrorKey(9), 100);
        let granted = fabric.register(64);
        let grant = fabric.grant(&granted, 8..40, NodeId(1));
        let mirror = fabric.register(16);
        fabric.publish(MirrorKey(4), &mirror, &[NodeId(1)]);
        let inbox = fabric.register(64);
        for token in 0..3 {
            let first = 8 + 16 * token;
            fabric.post_receive(conn, &inbox, first..first + 8, Token(token as u64)).expect("space");
        }
        Self { victim, conn, attachment, granted, grant, inbox }
    }

    /// Returns frames of every kind, as a correct peer sends them.
    fn conversation(&self) -> Vec<u8> {
        let Grant { key, region, .. } = self.grant;
        let bytes = u64::from_le_bytes(*b"squall\0\0");
        [
            frame(OPEN, 0, 0, 5, 0, &[]),
            frame(ACCEPT, 0, 0, 0, 0, &[]),
            frame(ATTACH, 0, 3, 0, 0, &[4, 16]),
            frame(MIRROR, 0, 0, 10, 30, &[7; 30]),
            frame(WRITE, 3, 0, 77, 32, &[&[key, region.0, 8], &[6; 32][..]].concat()),
            frame(SEND, 1, 0, 6, 0, &[bytes]),
            frame(MIRROR, 0, 0, 99, 1, &[8]),
            frame(WRITE, 0, 0, 0, 1, &[key, region.0, 39, 5]),
            frame(SEND, 0, 0, 0, 0, &[]),
            frame(ACK, 0, 0, 0, 0, &[]),
        ]
        .concat()
    }

    /// Checks the effects of the conversation.
    fn assert_done(&mut self) {
        let conn = self.conn;
        let expected = [
            FabricEvent::Connected { conn, peer: NodeId(1) },
            FabricEvent::Attached { key: MirrorKey(4), reader: NodeId(1) },
            FabricEvent::Arrived { conn, token: Token(0), immediate: 77 },
            FabricEvent::Received { conn, token: Token(1), length: 6 },
            FabricEvent::Received { conn, token: Token(2), length: 0 },
        ];
        while self.victim.events.len() < expected.len() && !self.victim.is_lost() {
            self.victim.poll();
        }
        assert_eq!(self.victim.events, expected);
        assert!((10..40).all(|word| self.attachment.load(word) == 7) && self.attachment.load(99) == 8);
        assert!((8..39).all(|word| self.granted.load(word) == 6) && self.granted.load(39) == 5);
        assert_eq!(self.inbox.load(24), u64::from_le_bytes(*b"squall\0\0"));
    }

    /// Checks the memory that no peer may ever reach.
    fn assert_unharmed(&self) {
        let outside = (0..8).chain(40..64).all(|word| self.granted.load(word) == 0);
        assert!(outside, "a write outside its grant landed");
        let mut between = (0..64).filter(|word| *word < 8 || word % 16 < 8 || *word >= 48);
        assert!(between.all(|word| self.inbox.load(word) == 0), "a send landed beside its receive");
    }

    fn lost(&mut self) -> BreakReason {
        let event = self.victim.expect("PeerLost", |event| matches!(event, FabricEvent::PeerLost { .. }));
        let FabricEvent::PeerLost { reason, .. } = event else { unreachable!("matched above") };
        reason
    }
}

/// The frames have the same effect however the stream is divided into reads.
#[test]
fn frames_in_pieces_of_any_size_have_the_same_effect() {
    for size in [1, 2, 3, 7, 8, 9, 15, 16, 17, 100, 4096] {
        let mut scene = Scene::new();
        for piece in scene.conversation().chunks(size) {
            assert!(scene.victim.feed(piece));
        }
        scene.assert_done();
        scene.assert_unharmed();
    }
}

/// Damaged conversations: the fabric neither panics nor lets anything land where it must not.
#[test]
fn garbage_at_random_offsets_is_survived() {
    let mut lost = 0;
    for seed in 1..=1500 {
        let mut random = Xorshift::new(seed);
        let mut scene = Scene::new();
        let bytes = damage(scene.conversation(), &mut random);
        let mut rest = &bytes[..];
        while !rest.is_empty() && !scene.victim.is_lost() {
            let piece = rest.len().min(1 + random.below(200));
            if !scene.victim.feed(&rest[..piece]) {
                break;
            }
            rest = &rest[piece..];
        }
        for _ in 0..3 {
            scene.victim.poll();
        }
        scene.assert_unharmed();
        lost += u32::from(scene.victim.is_lost());
    }
    assert!(lost > 200, "much damage breaks the format, but only {lost} of 1500 peers were disconnected");
}

/// Overwrites, removes, repeats or inserts a few bytes.
fn damage(mut bytes: Vec<u8>, random: &mut Xorshift) -> Vec<u8> {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(64)).min(bytes.len());
        let noise = [0, 1, 0x7f, 0xff, random.next().to_le_bytes()[0]][random.below(5)];
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = noise,
            2 => bytes[at..end].fill(noise),
            3 => drop(bytes.drain(at..end)),
            _ => {
                let repeated = bytes[at..end].to_vec();
                bytes.splice(at..at, repeated);
            }
        }
        if bytes.is_empty() {
            bytes.push(noise);
        }
    }
    bytes
}

/// A peer that uses another protocol altogether.
#[test]
fn a_peer_with_another_protocol_is_disconnected() {
    let mut scene = Scene::new();
    scene.victim.feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(scene.lost(), BreakReason::Protocol);
    let conn = scene.conn;
    assert!(scene.victim.events.contains(&FabricEvent::Broken { conn, reason: BreakReason::Protocol }));
    // The peer gets a goodbye, and then the stream ends.
    scene.victim.raw.set_nonblocking(false).expect("a socket");
    let mut answer = Vec::new();
    let _ = scene.victim.raw.read_to_end(&mut answer);
    assert!(answer.ends_with(&frame(9, 0, 0, 0, 0, &[])), "no goodbye in {answer:?}");
}

/// Each of these frames disconnects the peer, whatever preceded it.
#[test]
fn invalid_frames_disconnect() {
    let connected = [frame(OPEN, 0, 0, 5, 0, &[]), frame(ACCEPT, 0, 0, 0, 0, &[])].concat();
    let forbidden = [
        ("an unknown kind", frame(14, 0, 0, 0, 0, &[])),
        ("more words handled than were sent", frame(HANDLED, 0, 0, 1 << 20, 0, &[])),
        ("a huge number of words handled", frame(HANDLED, 0, 0, u32::MAX, u32::MAX, &[])),
        ("a confirmation for an attachment that is in use", frame(DETACHED, 0, 0, 0, 0, &[])),
        ("a confirmation for an attachment that never existed", frame(DETACHED, 0, 1, 0, 0, &[])),
        ("an unknown flag", frame(WRITE, 4, 0, 0, 0, &[0, 0, 0])),
        ("a reserved byte", [1, 0, 1, 0].into_iter().chain([0; 12]).collect()),
        ("an attachment that never existed", frame(MIRROR, 0, 1, 0, 1, &[0])),
        ("a push beyond its mirror", frame(MIRROR, 0, 0, 99, 2, &[0, 0])),
        ("a push of a huge range", frame(MIRROR, 0, 0, u32::MAX, u32::MAX, &[0])),
        ("a connection that never existed", frame(SEND, 0, 1, 0, 0, &[])),
        ("a send that exceeds the maximum", frame(SEND, 0, 0, (1 << 16) + 1, 0, &[])),
        ("an acknowledgement of nothing", frame(ACK, 0, 0, 1, 0, &[])),
        ("a huge acknowledgement", frame(ACK, 0, 0, u32::MAX, u32::MAX, &[])),
        ("a channel opened twice", frame(OPEN, 0, 1, 5, 0, &[])),
        ("a connection accepted twice", frame(ACCEPT, 0, 0, 0, 0, &[])),
        ("an acceptance of a connection that never existed", frame(ACCEPT, 0, 7, 0, 0, &[])),
        ("an unknown close reason", frame(CLOSE, 0, 0, 9, 0, &[])),
        ("a size that differs from the published one", frame(ATTACH, 0, 0, 0, 0, &[4, 17])),
        ("a second attachment of one mirror", frame(ATTACH, 0, 0, 0, 0, &[8, 1]).repeat(2)),
    ];
    for (what, bytes) in forbidden {
        let mut scene = Scene::new();
        assert!(scene.victim.feed(&connected) && !scene.victim.is_lost());
        scene.victim.feed(&bytes);
        assert_eq!(scene.lost(), BreakReason::Protocol, "{what}");
        scene.assert_unharmed();
    }
    let mut scene = Scene::new();
    scene.victim.feed(&frame(SEND, 0, 0, 0, 0, &[]));
    assert_eq!(scene.lost(), BreakReason::Protocol, "a send before the connection is accepted");
}

/// A write of 32 GiB without a grant is refused at its header; its payload goes nowhere, and the stream
/// remains open.
#[test]
fn a_huge_write_is_refused_at_its_header() {
    let mut scene = Scene::new();
    let mut bytes = [frame(OPEN, 0, 0, 5, 0, &[]), frame(ACCEPT, 0, 0, 0, 0, &[])].concat();
    bytes.extend(frame(WRITE, 1, 0, 0, u32::MAX, &[scene.grant.key, scene.grant.region.0, 8]));
    bytes.resize(bytes.len() + (1 << 20), 0xff);
    assert!(scene.victim.feed(&bytes));
    let broken = FabricEvent::Broken { conn: scene.conn, reason: BreakReason::Refused };
    scene.victim.expect("the refusal", |event| *event == broken);
    scene.assert_unharmed();
    assert!(!scene.victim.is_lost());
}

/// The stream ends in the middle of a frame: what has arrived is a prefix, and the peer is lost at once.
#[test]
fn a_peer_that_dies_in_mid_frame_leaves_a_prefix() {
    let whole = frame(MIRROR, 0, 0, 0, 100, &[u64::MAX; 100]);
    for cut in [1, 15, 16, 17, 24, 100, 399, whole.len() - 1] {
        let mut scene = Scene::new();
        scene.victim.feed(&whole[..cut]);
        scene.victim.raw.shutdown(std::net::Shutdown::Both).expect("connected");
        assert_eq!(scene.lost(), BreakReason::PeerClosed);
        let landed = cut.saturating_sub(16) / 8;
        assert!((0..landed).all(|word| scene.attachment.load(word) == u64::MAX), "cut at byte {cut}");
        assert!((landed..100).all(|word| scene.attachment.load(word) == 0), "cut at byte {cut}");
    }
}

/// A lost peer remains lost: connections to it break, attachments show zeros, and pushes go nowhere.
#[test]
fn operations_on_a_lost_peer_have_no_effect() {
    let mut scene = Scene::new();
    scene.victim.feed(&[0xff; 16]);
    scene.lost();
    let fabric = &mut scene.victim.fabric;
    let conn = fabric.open(NodeId(1), Channel(6));
    let attachment = fabric.attach(NodeId(1), MirrorKey(10), 4);
    let mirror = fabric.publish(MirrorKey(11), &attachment, &[NodeId(1)]);
    fabric.push(mirror, 0..4);
    fabric.push_word(mirror, 0);
    fabric.close(scene.conn);
    scene
        .victim
        .expect("Broken", |event| *event == FabricEvent::Broken { conn, reason: BreakReason::Protocol });
    assert_eq!(attachment.load(0), 0);
}

/// Pushes that cross the report that their attachment is dropped go nowhere, whatever range they name (found
/// by fuzzing); the confirmation frees the attachment's number once.
#[test]
fn pushes_to_a_dropped_attachment_go_nowhere() {
    let mut scene = Scene::new();
    drop(scene.victim.fabric.attach(NodeId(1), MirrorKey(10), 4));
    scene.victim.poll();
    assert!(scene.victim.feed(&frame(MIRROR, 0, 1, u32::MAX, 2, &[7, 7])));
    assert!(scene.victim.feed(&frame(MIRROR, 0, 0, 3, 1, &[5])));
    assert_eq!(scene.attachment.load(3), 5, "the stream continues");
    assert!(scene.victim.feed(&frame(DETACHED, 0, 1, 0, 0, &[])));
    scene.assert_unharmed();
    assert!(!scene.victim.is_lost());
    scene.victim.feed(&frame(DETACHED, 0, 1, 0, 0, &[]));
    assert_eq!(scene.lost(), BreakReason::Protocol, "confirmed twice");
}
