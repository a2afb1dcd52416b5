//! Retired mirrors: M6, and M1 across mirrors that are created and retired.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{ConformanceCluster, Harness};
use crate::{Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};

/// M1: in either direction between two mirrors of one owner, a word arrives after everything pushed before it
/// in the other mirror. Protocols rely on both: data and then a wedge in another mirror; data after the wedge
/// and then a word that announces it.
pub fn m1_words_of_one_mirror_follow_those_of_another<H: Harness>() {
    const WORDS: usize = 300;
    let mut cluster = ConformanceCluster::<H>::new(3);
    let [a, b] = [1, 2].map(|key| Mirror::new(&mut cluster, MirrorKey(key), 8 + WORDS, 2));
    for k in 1..=300u64 {
        for (data, word) in [(&a, &b), (&b, &a)] {
            (8..8 + WORDS).for_each(|word| data.region.store_relaxed(word, k));
            // First store another word of the data's own mirror, so that words follow words as well.
            data.region.store(1, k);
            word.region.store(0, k);
            cluster.node(0).push(data.id, 8..8 + WORDS);
            cluster.node(0).push_word(data.id, 1);
            cluster.node(0).push_word(word.id, 0);
            for (data, word) in data.attachments.iter().zip(&word.attachments) {
                let seen = word.load(0);
                assert!(data.load(1) >= seen, "wedge {seen} was seen before the word before it");
                let least = (8..8 + WORDS).map(|word| data.load_relaxed(word)).min();
                assert!(least >= Some(seen), "wedge {seen} was seen before its data {least:?}");
            }
            cluster.round();
        }
    }
    cluster.until("the last wedge", |_| a.attachments.iter().all(|attachment| attachment.load(0) == 300));
}

/// M6: earlier pushes arrive, then the attachments no longer change; other mirrors are unaffected; the id is
/// not valid any more.
pub fn m6_a_retired_mirror_keeps_its_readers<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let [ended, other] = [1, 2].map(|key| Mirror::new(&mut cluster, MirrorKey(key), 300, 2));
    for k in 1..=20 {
        (0..300).for_each(|word| ended.region.store_relaxed(word, k));
        cluster.node(0).push(ended.id, 0..300);
    }
    cluster.node(0).retire(ended.id);
    let node = cluster.node(0);
    let push = catch_unwind(AssertUnwindSafe(|| node.push(ended.id, 0..300)));
    assert!(push.is_err(), "a push of a retired mirror must panic");
    let holds = |attachment: &Region, value| (0..300).all(|word| attachment.load(word) == value);
    cluster.until("the earlier pushes", |_| ended.attachments.iter().all(|attachment| holds(attachment, 20)));
    drop(ended.region);
    cluster.node(1).freeze(&ended.attachments[0]);
    other.region.store(7, 7);
    cluster.node(0).push_word(other.id, 7);
    cluster.until("another mirror's word", |_| {
        other.attachments.iter().all(|attachment| attachment.load(7) == 7)
    });
    cluster.kill(0);
    for reader in [1, 2] {
        cluster.expect(reader, "PeerLost", |event| {
            matches!(event, FabricEvent::PeerLost { peer: NodeId(0), .. })
        });
    }
    assert!(
        ended.attachments.iter().all(|attachment| holds(attachment, 20)),
        "a retired mirror's attachment changed"
    );
}

/// M6: a reader that has not attached by then never will, whatever was in flight, and no peer is
/// disconnected.
pub fn m6_no_reader_attaches_a_retired_mirror<H: Harness>() {
    for rounds in [0, 1, 2, 5] {
        let mut cluster = ConformanceCluster::<H>::new(3);
        let other = Mirror::new(&mut cluster, MirrorKey(2), 8, 2);
        let (key, readers) = (MirrorKey(1), [NodeId(1), NodeId(2)]);
        let early = cluster.node(1).attach(NodeId(0), key, 8);
        let region = cluster.node(0).register(8);
        let mirror = cluster.node(0).publish(key, &region, &readers);
        cluster.rounds(rounds);
        while cluster.take(0, |event| matches!(event, FabricEvent::Attached { .. })).is_some() {}
        cluster.node(0).retire(mirror);
        let late = cluster.node(2).attach(NodeId(0), key, 8);
        other.region.store(0, 1);
        cluster.node(0).push_word(other.id, 0);
        cluster.until("another mirror's word", |_| {
            other.attachments.iter().all(|attachment| attachment.load(0) == 1)
        });
        cluster.rounds(50);
        assert_eq!(cluster.take(0, |event| matches!(event, FabricEvent::Attached { .. })), None);
        assert!([early, late].iter().all(|attachment| (0..8).all(|word| attachment.load(word) == 0)));
        for node in 0..3 {
            assert_eq!(cluster.take(node, |event| matches!(event, FabricEvent::PeerLost { .. })), None);
        }
    }
}

/// M6: mirrors are created and retired beside a permanent one; each shows its own words and no others.
pub fn m6_mirrors_come_and_go<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let stays = Mirror::new(&mut cluster, MirrorKey(u64::MAX), 16, 2);
    for round in 1..=150u64 {
        let mirror = Mirror::new(&mut cluster, MirrorKey(round), 40, 2);
        (0..40).for_each(|word| mirror.region.store_relaxed(word, round << 8 | word as u64));
        stays.region.store(0, round);
        cluster.node(0).push(mirror.id, 0..40);
        cluster.node(0).push_word(stays.id, 0);
        cluster.until("the word of the mirror that stays", |_| {
            stays.attachments.iter().all(|attachment| attachment.load(0) == round)
        });
        for attachment in &mirror.attachments {
            assert!(
                (0..40).all(|word| attachment.load(word) == round << 8 | word as u64),
                "round {round} [M1]"
            );
        }
        // Alternately, the owner retires it first, or the readers drop it first, while pushes are in flight.
        if round % 2 == 0 {
            cluster.node(0).push(mirror.id, 0..40);
            drop(mirror.attachments);
            cluster.rounds(usize::try_from(round % 5).expect("small"));
            cluster.node(0).push(mirror.id, 0..40);
        }
        cluster.node(0).retire(mirror.id);
    }
}

/// A mirror of node 0, attached by nodes 1, 2, ….
struct Mirror {
    id: MirrorId,
    region: Region,
    attachments: Vec<Region>,
}

impl Mirror {
    fn new<H: Harness>(
        cluster: &mut ConformanceCluster<H>,
        key: MirrorKey,
        words: usize,
        readers: u32,
    ) -> Self {
        let region = cluster.node(0).register(words);
        let nodes: Vec<_> = (1..=readers).map(NodeId).collect();
        let id = cluster.node(0).publish(key, &region, &nodes);
        let attachments =
            (1..=readers).map(|reader| cluster.node(reader).attach(NodeId(0), key, words)).collect();
        for reader in nodes {
            cluster.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader });
        }
        Self { id, region, attachments }
    }
}
