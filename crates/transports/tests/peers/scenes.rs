//! Requirements for peers that are added later and for peers that are removed, on every transport.

use squall_fabric::{Channel, FabricEvent, MirrorKey, NodeId, PostError, Region, Token, Write, WriteSource};

use crate::backend::{Backend, BackendNodes};

/// Passes the ids of all scenes to a macro.
macro_rules! each {
    ($take:ident) => {
        $take! {
            a_later_peer_is_like_any_other,
            mirrors_and_attachments_wait_for_their_peer,
            a_removed_peer_is_forgotten,
            grants_of_a_removed_peer_end,
            connection_ids_are_not_reused,
            a_peer_that_never_joins_can_be_removed,
            a_node_is_added_once,
            a_peer_that_dies_while_joining_is_lost,
            a_retired_mirror_is_not_shown_to_later_peers,
        }
    };
}
pub(crate) use each;

/// Exchanges a message, a write under a grant and a word in a mirror in each direction.
fn assert_joined<F: Backend>(all: &mut BackendNodes<F>, a: u32, b: u32) {
    let key = MirrorKey(u64::from(a + 1) << 32 | u64::from(b));
    let channel = Channel(3);
    let ends = [(a, b), (b, a)].map(|(own, peer)| {
        let fabric = all.node(own);
        let (memory, region) = (fabric.register(8), fabric.register(8));
        let conn = fabric.open(NodeId(peer), channel);
        fabric.post_receive(conn, &memory, 0..8, Token(1)).expect("space");
        let mirror = fabric.publish(key, &region, &[NodeId(peer)]);
        let attachment = fabric.attach(NodeId(peer), key, 8);
        let target = fabric.register(8);
        let grant = fabric.grant(&target, 0..8, NodeId(peer));
        (own, peer, conn, memory, region, mirror, attachment, target, grant)
    });
    for (own, peer, conn, ..) in &ends {
        let connected = FabricEvent::Connected { conn: *conn, peer: NodeId(*peer) };
        all.expect(*own, "Connected", |event| *event == connected);
        let attached = FabricEvent::Attached { key, reader: NodeId(*peer) };
        all.expect(*own, "Attached", |event| *event == attached);
    }
    for (i, (own, _, conn, _, region, mirror, ..)) in ends.iter().enumerate() {
        let grant = &ends[1 - i].8;
        let fabric = all.node(*own);
        fabric.send(*conn, b"hello", None).expect("connected");
        region.store(0, 7);
        fabric.push_word(*mirror, 0);
        all.until("a write to be accepted", |all| {
            let source = WriteSource::Value(&[9]);
            let write = Write { source, grant, offset: 3, immediate: None, signal: Some(Token(5)) };
            all.node(*own).write(*conn, write) != Err(PostError::Full)
        });
    }
    for (own, _, conn, memory, _, mirror, attachment, target, _) in &ends {
        all.expect(
            *own,
            "Received",
            |event| matches!(event, FabricEvent::Received { conn: at, .. } if at == conn),
        );
        all.expect(*own, "Done", |event| matches!(event, FabricEvent::Done { conn: at, .. } if at == conn));
        all.until("the word and the write", |_| attachment.load(0) == 7 && target.load(3) == 9);
        assert_eq!(memory.load(0), u64::from_le_bytes(*b"hello\0\0\0"));
        all.node(*own).retire(*mirror);
    }
    for (own, _, conn, ..) in ends {
        all.node(own).close(conn);
    }
    all.settle();
}

pub(crate) fn a_later_peer_is_like_any_other<F: Backend>() {
    let mut all = BackendNodes::<F>::joined(&[0, 1]);
    assert_joined(&mut all, 0, 1);
    all.start(7);
    all.join(0, 7);
    all.poll();
    all.join(7, 1);
    assert_joined(&mut all, 0, 7);
    assert_joined(&mut all, 1, 7);
    all.start(8);
    [0, 1, 7].into_iter().for_each(|peer| all.join(8, peer));
    assert_joined(&mut all, 7, 8);
}

/// M5, in every order of peer, mirror and attachment at both ends.
pub(crate) fn mirrors_and_attachments_wait_for_their_peer<F: Backend>() {
    for order in 0..16 {
        let mut all = BackendNodes::<F>::apart(&[0, 1]);
        let key = MirrorKey(4);
        let region = all.node(0).register(300);
        let (publish_late, attach_late) = (order & 1 > 0, order & 2 > 0);
        let mut mirror = (!publish_late).then(|| all.node(0).publish(key, &region, &[NodeId(1)]));
        let mut attachment = (!attach_late).then(|| all.node(1).attach(NodeId(0), key, 300));
        let (at_0, at_1) = F::pair();
        if order & 4 > 0 {
            all.node(0).add(NodeId(1), at_0).expect("added");
            all.settle();
            all.node(1).add(NodeId(0), at_1).expect("added");
        } else {
            all.node(1).add(NodeId(0), at_1).expect("added");
            all.settle();
            all.node(0).add(NodeId(1), at_0).expect("added");
        }
        if order & 8 > 0 {
            all.settle();
        }
        let mirror = *mirror.get_or_insert_with(|| all.node(0).publish(key, &region, &[NodeId(1)]));
        let attachment = attachment.get_or_insert_with(|| all.node(1).attach(NodeId(0), key, 300));
        all.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(1) });
        (0..300).for_each(|word| region.store(word, 5));
        all.node(0).push(mirror, 0..299);
        all.node(0).push_word(mirror, 299);
        all.until("the last word", |_| attachment.load(299) == 5);
        assert!((0..300).all(|word| attachment.load(word) == 5));
    }
}

fn mirror_of<F: Backend>(all: &mut BackendNodes<F>, owner: u32, reader: u32, value: u64) -> Region {
    let key = MirrorKey(50);
    let region = all.node(owner).register(16);
    let mirror = all.node(owner).publish(key, &region, &[NodeId(reader)]);
    let attachment = all.node(reader).attach(NodeId(owner), key, 16);
    all.expect(owner, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(reader) });
    region.store(0, value);
    all.node(owner).push_word(mirror, 0);
    all.until("its word", |_| attachment.load(0) == value);
    attachment
}

/// After a removal this end yields no event, the other end reports the loss, attachments remain readable, and
/// the host's next incarnation is another node.
pub(crate) fn a_removed_peer_is_forgotten<F: Backend>() {
    let mut all = BackendNodes::<F>::joined(&[0, 1, 2]);
    let attachment = mirror_of(&mut all, 1, 0, 77);
    let conn = all.node(0).open(NodeId(1), Channel(1));
    all.node(1).open(NodeId(0), Channel(1));
    all.expect(0, "Connected", |event| *event == FabricEvent::Connected { conn, peer: NodeId(1) });
    all.events(0).clear();
    all.node(0).remove(NodeId(1));
    all.expect_lost(1, 0);
    all.settle();
    assert_eq!(*all.events(0), [], "a deliberate removal yields no event");
    assert_eq!(attachment.load(0), 77, "its attachment remains readable [M4]");
    all.node(0).freeze(&attachment);
    assert_eq!(attachment.load(0), 77);
    assert_eq!(all.node(0).send(conn, b"?", None), Err(PostError::NotConnected));
    all.node(0).remove(NodeId(1));
    all.kill(1);
    all.expect_lost(2, 1);
    all.node(2).remove(NodeId(1));
    all.start(3);
    all.join(3, 0);
    all.join(2, 3);
    assert_eq!(all.node(0).send(conn, b"?", None), Err(PostError::NotConnected));
    assert_joined(&mut all, 0, 3);
    assert_joined(&mut all, 3, 2);
    assert_joined(&mut all, 0, 2);
    assert_eq!(attachment.load(0), 77);
}

/// F9: the revocation of a removed peer's grant is confirmed, and nothing lands any more.
pub(crate) fn grants_of_a_removed_peer_end<F: Backend>() {
    let mut all = BackendNodes::<F>::joined(&[0, 1]);
    let conn = all.node(1).open(NodeId(0), Channel(1));
    all.node(0).open(NodeId(1), Channel(1));
    all.expect(1, "Connected", |event| *event == FabricEvent::Connected { conn, peer: NodeId(0) });
    let region = all.node(0).register(4);
    let grants = [0, 1].map(|word| all.node(0).grant(&region, word..word + 1, NodeId(1)));
    all.node(0).revoke(&grants[1]);
    all.node(0).remove(NodeId(1));
    all.expect(0, "Revoked", |event| *event == FabricEvent::Revoked { grant: grants[1] });
    let write = Write {
        source: WriteSource::Value(&[1]),
        grant: &grants[0],
        offset: 0,
        immediate: None,
        signal: None,
    };
    let _ = all.node(1).write(conn, write);
    all.settle();
    assert_eq!(region.load(0), 0, "a write has landed after the removal");
    all.node(0).revoke(&grants[0]);
    all.expect(0, "Revoked", |event| *event == FabricEvent::Revoked { grant: grants[0] });
}

/// Places are reused, connection ids are not.
pub(crate) fn connection_ids_are_not_reused<F: Backend>() {
    let mut all = BackendNodes::<F>::apart(&[0]);
    let mut ids = Vec::new();
    for node in 1..40 {
        all.start(node);
        all.join(0, node);
        ids.push(all.node(0).open(NodeId(node), Channel(1)));
        if node % 2 == 0 {
            all.node(node).open(NodeId(0), Channel(1));
            all.settle();
        }
        all.node(0).remove(NodeId(node));
        for id in &ids {
            assert_eq!(all.node(0).send(*id, b"?", None), Err(PostError::NotConnected));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 39);
}

pub(crate) fn a_peer_that_never_joins_can_be_removed<F: Backend>() {
    let mut all = BackendNodes::<F>::joined(&[0, 1]);
    let region = all.node(0).register(4);
    let mirror = all.node(0).publish(MirrorKey(1), &region, &[NodeId(1), NodeId(9)]);
    let (from_1, from_9) =
        (all.node(1).attach(NodeId(0), MirrorKey(1), 4), all.node(0).attach(NodeId(9), MirrorKey(1), 4));
    all.expect(0, "Attached", |event| matches!(event, FabricEvent::Attached { reader: NodeId(1), .. }));
    all.node(0).remove(NodeId(9));
    region.store(0, 1);
    all.node(0).push_word(mirror, 0);
    all.until("the word", |_| from_1.load(0) == 1);
    assert_eq!(from_9.load(0), 0);
    all.node(0).freeze(&from_9);
    drop(from_9);
    all.node(0).retire(mirror);
    assert_joined(&mut all, 0, 1);
}

pub(crate) fn a_node_is_added_once<F: Backend>() {
    let mut all = BackendNodes::<F>::joined(&[0, 1]);
    for node in [0, 1] {
        let error = all.node(0).add(NodeId(node), F::pair().0).expect_err("it is a peer already");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert_joined(&mut all, 0, 1);
}

/// However far a peer has progressed before it dies, it is lost once, and the words that it had shown remain.
pub(crate) fn a_peer_that_dies_while_joining_is_lost<F: Backend>() {
    let (near, far) = F::pair();
    drop(far);
    let mut all = BackendNodes::<F>::apart(&[0]);
    all.node(0).add(NodeId(1), near).expect("its death is reported later");
    all.expect_lost(0, 1);
    let (key, mut attached, mut seen) = (MirrorKey(1), 0, 0);
    for step in 0..60 {
        let mut all = BackendNodes::<F>::apart(&[0, 1]);
        let region = all.node(0).register(16);
        let mirror = all.node(0).publish(key, &region, &[NodeId(1)]);
        let (at_0, at_1) = F::pair();
        all.node(1).add(NodeId(0), at_1).expect("added");
        all.node(0).add(NodeId(1), at_0).expect("added");
        let attachment = all.node(0).attach(NodeId(1), key, 16);
        all.meet(0, 1);
        let conn = all.node(0).open(NodeId(1), Channel(1));
        let theirs = all.node(1).register(16);
        theirs.store(0, 1);
        let _attachment = all.node(1).attach(NodeId(0), key, 16);
        let their_mirror = all.node(1).publish(key, &theirs, &[NodeId(0)]);
        all.node(1).open(NodeId(0), Channel(1));
        for hop in 0..step {
            let one = if hop % 2 == 0 { 0 } else { 1 };
            let mut events = Vec::new();
            all.node(one).poll(&mut |event| events.push(event));
            all.events(one).extend(events);
            all.node(1).push_word(their_mirror, 0);
            if hop % 5 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        }
        all.kill(1);
        region.store(0, 2);
        all.node(0).push_word(mirror, 0);
        let _ = all.node(0).send(conn, b"?", None);
        all.expect_lost(0, 1);
        all.settle();
        let events = all.events(0);
        assert!(
            !events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. })),
            "lost twice: {events:?}"
        );
        assert!(
            events.iter().any(|event| matches!(event, FabricEvent::Broken { conn: at, .. } if *at == conn))
        );
        attached += usize::from(events.iter().any(|event| matches!(event, FabricEvent::Attached { .. })));
        assert!(attachment.load(0) <= 1);
        seen += attachment.load(0);
        all.node(0).remove(NodeId(1));
        all.start(2);
        all.join(0, 2);
        assert_eq!(mirror_of(&mut all, 2, 0, step).load(0), step);
    }
    assert!(
        attached > 0 && attached < 60 && seen > 0,
        "{attached} of 60 peers attached, and {seen} showed their word"
    );
}

pub(crate) fn a_retired_mirror_is_not_shown_to_later_peers<F: Backend>() {
    let mut all = BackendNodes::<F>::apart(&[0, 1]);
    let region = all.node(0).register(4);
    let mirror = all.node(0).publish(MirrorKey(1), &region, &[NodeId(1)]);
    region.store(0, 1);
    all.node(0).retire(mirror);
    let attachment = all.node(1).attach(NodeId(0), MirrorKey(1), 4);
    all.join(0, 1);
    assert_joined(&mut all, 0, 1);
    assert_eq!(attachment.load(0), 0);
    assert!(!all.events(0).iter().any(|event| matches!(event, FabricEvent::Attached { .. })));
}
