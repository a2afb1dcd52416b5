//! Crashes, breaks and progress: F11 and F12.

use super::{ConformanceCluster, GrantedLink, Harness};
use crate::{BreakReason, Channel, Fabric, FabricEvent, NodeId, PostError, Token, Write};

/// F11: some prefix of a dead writer's posts has landed, the last write perhaps in part; after that nothing
/// changes.
pub fn f11_a_prefix_of_a_dead_writer_has_landed<H: Harness>() {
    a_prefix_has_landed::<H>(|cluster, words| cluster.link(0, 1, 1, words));
}

/// F13: the same in adopted memory.
pub fn f13_a_prefix_of_a_dead_writer_has_landed<H: Harness>() {
    a_prefix_has_landed::<H>(|cluster, words| cluster.adopted_link(0, 1, 1, words));
}

fn a_prefix_has_landed<H: Harness>(link: impl Fn(&mut ConformanceCluster<H>, usize) -> GrantedLink) {
    const WORDS: usize = 600;
    const SLOTS: usize = 40;
    for rounds in [0, 1, 3, 10] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let link = link(&mut cluster, SLOTS * WORDS);
        let source = cluster.node(0).register(SLOTS * WORDS);
        (0..SLOTS * WORDS).for_each(|word| source.store_relaxed(word, 1));
        for slot in 0..SLOTS {
            let range = slot * WORDS..(slot + 1) * WORDS;
            cluster.write(0, link.conn, &link.reference(range.start, &source, range));
        }
        cluster.rounds(rounds);
        cluster.kill(0);
        lost(&mut cluster, 1, 0, link.owner_conn);
        let mut landed = vec![0; SLOTS * WORDS];
        link.target.copy_out(0, &mut landed);
        let full = landed.chunks(WORDS).take_while(|slot| !slot.contains(&0)).count();
        let after = landed.chunks(WORDS).skip(full + 1).flatten().sum::<u64>();
        assert_eq!(after, 0, "writes landed after write {full}, which did not land completely");
        cluster.rounds(20);
        let mut later = vec![0; SLOTS * WORDS];
        link.target.copy_out(0, &mut later);
        assert!(landed == later, "a write landed after Broken");
    }
}

/// F11: a node that writes to a dead node learns of the death; the connection is unusable.
pub fn f11_a_dead_target_breaks_its_writers<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let links = [0, 1].map(|i| cluster.link(i, 2, 1, 4));
    for link in &links {
        cluster.write(link.writer, link.conn, &Write { signal: Some(Token(1)), ..link.value(0, &[1]) });
        cluster.done(link.writer, link.conn, Token(1));
    }
    cluster.kill(2);
    // One writer continues to write until it learns of the death; the other learns of it without writing.
    cluster.until("NotConnected", |cluster| {
        let post = cluster.node(0).write(links[0].conn, links[0].value(0, &[2]));
        post == Err(PostError::NotConnected)
    });
    for link in &links {
        lost(&mut cluster, link.writer, 2, link.conn);
        let post = cluster.node(link.writer).write(link.conn, link.value(0, &[3]));
        assert_eq!(post, Err(PostError::NotConnected));
    }
}

/// F11: a death breaks the connections of the dead node and no others.
pub fn f11_survivors_keep_talking<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let link = cluster.link(0, 1, 1, 1);
    let dead = cluster.link(2, 1, 1, 1);
    for k in 1..=100u64 {
        cluster.write(0, link.conn, &Write { signal: Some(Token(k)), ..link.value(0, &[k]) });
        if k < 50 {
            cluster.write(2, dead.conn, &dead.value(0, &[k]));
        }
        if k == 50 {
            cluster.kill(2);
        }
        cluster.done(0, link.conn, Token(k));
    }
    lost(&mut cluster, 1, 2, dead.owner_conn);
    assert_eq!(link.target.load(0), 100);
    for (node, conn) in [(0, link.conn), (1, link.owner_conn)] {
        let of_living =
            |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn: of, .. } if *of == conn);
        assert_eq!(cluster.take(node, of_living), None, "a connection between live nodes broke");
    }
}

/// F11: `Broken` answers `open` to a lost node, before its death is known and after.
pub fn f11_opening_to_the_dead_breaks<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    cluster.connect(0, 1, 1);
    let early = cluster.node(0).open(NodeId(2), Channel(1));
    cluster.kill(2);
    let unknown = cluster.node(1).open(NodeId(2), Channel(1));
    let broken = |conn| move |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn: of, .. } if *of == conn);
    cluster.expect(0, "Broken, opened before the death", broken(early));
    cluster.expect(1, "Broken, opened before the death is known", broken(unknown));
    cluster.expect(0, "PeerLost", |event| matches!(event, FabricEvent::PeerLost { peer: NodeId(2), .. }));
    let late = cluster.node(0).open(NodeId(2), Channel(2));
    cluster.expect(0, "Broken, opened after the death is known", broken(late));
}

/// A close breaks only this connection, for the peer too; the connection can be opened again.
pub fn f11_close_breaks_the_other_end<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 1);
    let other = cluster.link(0, 1, 2, 1);
    cluster.node(1).close(link.owner_conn);
    let broken = FabricEvent::Broken { conn: link.conn, reason: BreakReason::PeerClosed };
    cluster.expect(0, "Broken", |event| *event == broken);
    assert_eq!(cluster.node(0).write(link.conn, link.value(0, &[1])), Err(PostError::NotConnected));
    assert_eq!(cluster.node(1).send(link.owner_conn, b"", None), Err(PostError::NotConnected));
    cluster.write(0, other.conn, &other.value(0, &[1]));
    cluster.until("a write on another connection", |_| other.target.load(0) == 1);
    let (conn, _) = cluster.connect(0, 1, 1);
    assert_ne!(conn, link.conn, "a new incarnation has a new id");
    cluster.write(0, conn, &link.value(0, &[2]));
    cluster.until("a write on the new incarnation", |_| link.target.load(0) == 2);
}

/// F12: with one-sided progress, writes land and complete even if the target never polls.
pub fn f12_writes_land_without_the_target<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    if !cluster.node(0).capabilities().one_sided_progress {
        eprintln!("SKIPPED: this backend declares that its targets must poll (one_sided_progress) [F12]");
        return;
    }
    let link = cluster.link(0, 1, 1, 1500);
    let source = cluster.node(0).register(1500);
    for k in 1..=50u64 {
        (0..1500).for_each(|word| source.store_relaxed(word, k));
        cluster.write(0, link.conn, &Write { signal: Some(Token(k)), ..link.reference(0, &source, 0..1500) });
        let done = FabricEvent::Done { conn: link.conn, token: Token(k) };
        let what = format!("write {k}, while its target does not poll");
        cluster.until_alone(0, &what, |cluster| cluster.take(0, |event| *event == done).is_some());
        assert!((0..1500).all(|word| link.target.load(word) == k), "write {k} had not landed");
    }
}

/// Expects both events of a loss: the connection is broken and the peer is lost.
fn lost<H: Harness>(cluster: &mut ConformanceCluster<H>, node: u32, dead: u32, conn: crate::ConnId) {
    cluster.expect(
        node,
        "Broken",
        |event| matches!(event, FabricEvent::Broken { conn: of, .. } if *of == conn),
    );
    cluster.expect(
        node,
        "PeerLost",
        |event| matches!(event, FabricEvent::PeerLost { peer, .. } if *peer == NodeId(dead)),
    );
}
