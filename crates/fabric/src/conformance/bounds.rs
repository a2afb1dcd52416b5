//! Outcomes of posting: *full* and *not connected* are values, misuse is a panic, and nothing grows without
//! bound.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{ConformanceCluster, Harness};
use crate::{
    Channel, Fabric, FabricEvent, MirrorKey, NodeId, PostError, SEND_BYTES_MAX, Token, Write, WriteSource,
};

/// A connection that only one end has opened takes receives, but no posts.
pub fn nothing_is_posted_before_connected<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let target = cluster.node(1).register(1);
    let grant = cluster.node(1).grant(&target, 0..1, NodeId(0));
    let conn = cluster.node(0).open(NodeId(1), Channel(1));
    let write =
        Write { source: WriteSource::Value(&[1]), grant: &grant, offset: 0, immediate: None, signal: None };
    cluster.rounds(10);
    assert_eq!(cluster.node(0).write(conn, write.clone()), Err(PostError::NotConnected));
    assert_eq!(cluster.node(0).send(conn, b"", None), Err(PostError::NotConnected));
    let memory = cluster.node(0).register(1);
    cluster.node(0).post_receive(conn, &memory, 0..1, Token(5)).expect("allowed before Connected");
    let back = cluster.node(1).open(NodeId(0), Channel(1));
    cluster.expect(0, "Connected", |event| matches!(event, FabricEvent::Connected { .. }));
    cluster.expect(1, "Connected", |event| matches!(event, FabricEvent::Connected { .. }));
    cluster.write(0, conn, &write);
    cluster.until("the write", |_| target.load(0) == 1);
    cluster.node(1).send(back, b"late", None).expect("connected");
    let received = FabricEvent::Received { conn, token: Token(5), length: 4 };
    cluster.expect(0, "the receive that was posted early", |event| *event == received);
}

/// If the node does not poll, signalled writes end in `Full`; each accepted write completes once, in order.
pub fn signalled_writes_fill_a_queue<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 1);
    for lap in 0..3 {
        let mut taken = 0;
        let full = (0..POSTS_MAX).find_map(|k| {
            let number = [k];
            let write = Write { signal: Some(Token(k)), ..link.value(0, &number) };
            let posted = cluster.node(0).write(link.conn, write);
            taken += u64::from(posted.is_ok());
            posted.err()
        });
        assert_eq!(full, Some(PostError::Full), "lap {lap}: {POSTS_MAX} signalled writes were accepted");
        assert!(taken > 0, "lap {lap}: no write was accepted");
        for k in 0..taken {
            let done = cluster.expect(0, "Done", |event| matches!(event, FabricEvent::Done { .. }));
            assert_eq!(done, FabricEvent::Done { conn: link.conn, token: Token(k) });
        }
        assert_eq!(link.target.load(0), taken - 1);
    }
}

/// If the node does not poll, sends end in `Full`; each accepted send arrives once, in order.
pub fn sends_fill_a_queue<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (conn, back) = cluster.connect(0, 1, 1);
    let memory = cluster.node(1).register(1);
    let mut posted_receives = 0;
    let mut post_receives = |cluster: &mut ConformanceCluster<H>| {
        while cluster.node(1).post_receive(back, &memory, 0..1, Token(posted_receives)).is_ok() {
            posted_receives += 1;
            assert!(posted_receives < POSTS_MAX, "{POSTS_MAX} receives were accepted");
        }
    };
    post_receives(&mut cluster);
    let mut taken = 0;
    let full = (0..POSTS_MAX).find_map(|k| {
        let posted = cluster.node(0).send(conn, &k.to_le_bytes(), None);
        taken += u64::from(posted.is_ok());
        posted.err()
    });
    assert_eq!(full, Some(PostError::Full), "{POSTS_MAX} sends were accepted");
    let mut arrived = 0;
    cluster.until("all sends", |cluster| {
        while cluster.take(1, |event| matches!(event, FabricEvent::Received { .. })).is_some() {
            arrived += 1;
        }
        post_receives(cluster);
        arrived == taken
    });
    cluster.node(0).send(conn, b"again", None).expect("space again");
}

/// Receives end in `Full`.
pub fn receives_fill_a_queue<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let (_, back) = cluster.connect(0, 1, 1);
    let memory = cluster.node(1).register(1);
    let full = (0..POSTS_MAX).find_map(|k| cluster.node(1).post_receive(back, &memory, 0..1, Token(k)).err());
    assert_eq!(full, Some(PostError::Full), "{POSTS_MAX} receives were accepted");
}

/// A writer that posts without signals and without polling gets `Full` or is served at once; it gets no other
/// error.
pub fn an_endless_writer_is_held_back<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 512);
    let source = cluster.node(0).register(512);
    let mut last = 0;
    for k in 1..=20_000u64 {
        let number = [k];
        let node = cluster.node(0);
        let posts = [link.reference(0, &source, 0..511), link.value(511, &number)];
        match posts.map(|write| node.write(link.conn, write)) {
            [_, Ok(())] => last = k,
            [_, Err(error)] => assert_eq!(error, PostError::Full),
        }
    }
    assert!(last > 0, "no write was accepted");
    cluster.until("the last number that was accepted", |_| link.target.load(511) == last);
}

/// Misuse by the caller panics and is never an event or an error.
pub fn misuse_panics<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 16);
    let region = cluster.node(0).register(8);
    let mirror = cluster.node(0).publish(MirrorKey(1), &region, &[NodeId(1)]);
    let long = [0; WriteSource::VALUE_WORDS_MAX + 1];
    let bytes = vec![0; SEND_BYTES_MAX + 1];
    let mut panics = |what: &str, misuse: &mut dyn FnMut(&mut H::Fabric)| {
        let node = cluster.node(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| misuse(node)));
        assert!(outcome.is_err(), "{what} must panic");
    };
    panics("a value too long", &mut |node| {
        let _ = node.write(link.conn, link.value(0, &long));
    });
    panics("a source beyond its region", &mut |node| {
        let _ = node.write(link.conn, link.reference(0, &region, 4..9));
    });
    panics("a send too long", &mut |node| {
        let _ = node.send(link.conn, &bytes, None);
    });
    panics("a grant beyond its region", &mut |node| {
        let _ = node.grant(&region, 4..9, NodeId(1));
    });
    panics("a push beyond its region", &mut |node| node.push(mirror, 4..9));
    panics("a pushed word beyond its region", &mut |node| node.push_word(mirror, 8));
    panics("a receive beyond its region", &mut |node| {
        let _ = node.post_receive(link.conn, &region, 4..9, Token(1));
    });
}

/// More posts than any queue should hold.
const POSTS_MAX: u64 = 1_000_000;
