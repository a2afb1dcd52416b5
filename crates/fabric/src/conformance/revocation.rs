//! Revocation and the refusal that follows it: F9 and F10, the fencing of RamCast.

use super::{ConformanceCluster, GrantedLink, Harness};
use crate::{Fabric, FabricEvent, NodeId, PostError, Region, Token, Write};

/// F9: after `Revoked` nothing more lands, however often the writer tries.
pub fn f9_nothing_lands_after_revoked<H: Harness>() {
    for warm_up in [0, 1, 7, 40] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let link = cluster.link(0, 1, 1, WORDS);
        let mut writer = Persistent::new(&mut cluster, &link);
        fence(&mut cluster, &link, &mut writer, warm_up);
    }
}

/// F9: revoking one peer's grant does not disturb another's, even within the same cache line.
pub fn f9_neighbours_keep_writing<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let target = cluster.node(2).register(4);
    let links = [0, 1].map(|i| {
        let (conn, owner_conn) = cluster.connect(i, 2, 1);
        let word = 1 + i as usize;
        let grant = cluster.node(2).grant(&target, word..word + 1, NodeId(i));
        GrantedLink { writer: i, owner: 2, conn, owner_conn, target: target.clone(), grant }
    });
    for k in 1..=200u64 {
        target.store(0, k);
        cluster.write(1, links[1].conn, &links[1].value(0, &[k]));
        match cluster.node(0).write(links[0].conn, links[0].value(0, &[k])) {
            Ok(()) | Err(PostError::Full) => {}
            Err(PostError::NotConnected) => assert!(k > 100, "refused before the revocation"),
        }
        if k == 100 {
            cluster.node(2).revoke(&links[0].grant);
        }
        cluster.round();
    }
    cluster.expect(2, "Revoked", |event| *event == FabricEvent::Revoked { grant: links[0].grant });
    cluster.until("the neighbour's last word", |_| target.load(2) == 200);
    assert_eq!([target.load(0), target.load(3)], [200, 0]);
}

/// F10: every write that completes, before the revocation or later, was visible to the owner at `Revoked`.
pub fn f10_done_means_placed_before_the_revocation<H: Harness>() {
    for warm_up in [0, 3, 20] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let link = cluster.link(0, 1, 1, WORDS);
        let mut writer = Persistent::new(&mut cluster, &link);
        let placed = fence(&mut cluster, &link, &mut writer, warm_up);
        cluster.rounds(50);
        writer.collect(&mut cluster);
        assert!(writer.done <= placed[COUNTER], "write {} was done, but {placed:?} had landed", writer.done);
    }
}

/// F10: the refused writer's connection is unusable; a new incarnation works with a new grant, and is refused
/// again with the old one.
pub fn f10_a_refusal_breaks_until_opened_again<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    refuse_again_and_again(&mut cluster, link);
}

/// F13: adopted memory is fenced like any other; completed writes had landed, and a refusal breaks the
/// connection.
pub fn f13_adopted_memory_is_fenced<H: Harness>() {
    for warm_up in [0, 1, 7, 40] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let link = cluster.adopted_link(0, 1, 1, WORDS);
        let mut writer = Persistent::new(&mut cluster, &link);
        let placed = fence(&mut cluster, &link, &mut writer, warm_up);
        cluster.rounds(50);
        writer.collect(&mut cluster);
        assert!(writer.done <= placed[COUNTER], "write {} was done, but {placed:?} had landed", writer.done);
    }
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.adopted_link(0, 1, 1, WORDS);
    refuse_again_and_again(&mut cluster, link);
}

fn refuse_again_and_again<H: Harness>(cluster: &mut ConformanceCluster<H>, mut link: GrantedLink) {
    for lap in 0..3 {
        let mut writer = Persistent::new(cluster, &link);
        fence(cluster, &link, &mut writer, 5);
        let ended = |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn, .. } if *conn == link.owner_conn);
        cluster.expect(1, "Broken at the owner", ended);
        assert_eq!(cluster.node(0).write(link.conn, link.value(0, &[1])), Err(PostError::NotConnected));
        assert_eq!(cluster.node(0).send(link.conn, b"", None), Err(PostError::NotConnected));
        let (conn, owner_conn) = cluster.connect(0, 1, 1);
        link = GrantedLink { conn, owner_conn, ..link };
        if lap == 1 {
            // The old grant remains invalid on the new connection.
            cluster.write(0, conn, &link.value(0, &[u64::MAX]));
            cluster.expect(0, "Refused", |event| *event == FabricEvent::Refused { conn });
            cluster.expect(
                1,
                "Broken",
                |event| matches!(event, FabricEvent::Broken { conn, .. } if *conn == owner_conn),
            );
            assert_ne!(link.target.load(0), u64::MAX, "a write under a revoked grant landed");
            (link.conn, link.owner_conn) = cluster.connect(0, 1, 1);
        }
        link.grant = cluster.node(1).grant(&link.target, 0..WORDS, NodeId(0));
        cluster.write(0, link.conn, &Write { signal: Some(Token(0)), ..link.value(COUNTER, &[0]) });
        cluster.done(0, link.conn, Token(0));
        assert_eq!(link.target.load(COUNTER), 0, "the new grant on the new connection works");
    }
}

/// A writer that repeats its block and its counter until it is refused.
struct Persistent {
    link: GrantedLink,
    source: Region,
    posted: u64,
    done: u64,
    refused: bool,
}

impl Persistent {
    fn new<H: Harness>(cluster: &mut ConformanceCluster<H>, link: &GrantedLink) -> Self {
        let source = cluster.node(link.writer).register(COUNTER);
        Self { link: link.clone(), source, posted: 0, done: 0, refused: false }
    }

    /// Posts one block by reference and its number by value.
    fn post<H: Harness>(&mut self, cluster: &mut ConformanceCluster<H>) {
        let number = [self.posted + 1];
        (0..COUNTER).for_each(|word| self.source.store_relaxed(word, number[0]));
        let block = self.link.reference(0, &self.source, 0..COUNTER);
        let counter = Write { signal: Some(Token(number[0])), ..self.link.value(COUNTER, &number) };
        let node = cluster.node(self.link.writer);
        if node.write(self.link.conn, block).is_ok() && node.write(self.link.conn, counter).is_ok() {
            self.posted += 1;
        }
        self.collect(cluster);
    }

    /// Takes completions and the refusal.
    fn collect<H: Harness>(&mut self, cluster: &mut ConformanceCluster<H>) {
        let conn = self.link.conn;
        while let Some(event) = cluster.take(self.link.writer, |event| match event {
            FabricEvent::Done { conn: of, .. } | FabricEvent::Refused { conn: of } => *of == conn,
            _ => false,
        }) {
            match event {
                FabricEvent::Done { token, .. } => {
                    assert!(!self.refused, "{token:?} is done after the refusal");
                    self.done = token.0;
                }
                _ => self.refused = true,
            }
        }
    }
}

/// Revokes while the writer writes; returns what the owner saw at `Revoked`, which never changes again.
fn fence<H: Harness>(
    cluster: &mut ConformanceCluster<H>,
    link: &GrantedLink,
    writer: &mut Persistent,
    warm_up: usize,
) -> Vec<u64> {
    for _ in 0..warm_up {
        writer.post(cluster);
        cluster.round();
    }
    assert!(!writer.refused, "refused before the revocation");
    cluster.node(link.owner).revoke(&link.grant);
    let mut placed = None;
    cluster.until("Revoked and Refused", |cluster| {
        let revoked = FabricEvent::Revoked { grant: link.grant };
        if cluster.take(link.owner, |event| *event == revoked).is_some() {
            placed = Some(snapshot(&link.target));
        }
        if let Some(placed) = &placed {
            assert!(
                writer.done <= placed[COUNTER],
                "write {} was done but not visible at Revoked",
                writer.done
            );
        }
        writer.post(cluster);
        writer.refused && placed.is_some()
    });
    let placed = placed.expect("`until` returns when it is there");
    let block = placed[..COUNTER].iter().min().expect("a block");
    assert!(*block >= placed[COUNTER], "the counter {} landed before its block", placed[COUNTER]);
    for _ in 0..100 {
        assert!(snapshot(&link.target) == placed, "a write landed after Revoked");
        writer.post(cluster);
        cluster.round();
    }
    placed
}

fn snapshot(target: &Region) -> Vec<u64> {
    let mut words = vec![0; target.words()];
    target.copy_out(0, &mut words);
    words
}

/// A block of more than a page, followed by its counter.
const WORDS: usize = 601;
const COUNTER: usize = 600;
