//! Mirrors, one writer and many readers: M1 to M5.

use super::{ConformanceCluster, Harness};
use crate::{Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, WriteSource};

/// M1, with the pattern of every protocol: store the payload, store the counter, push the payload, push the
/// counter. For several readers, and for small and large payloads.
pub fn m1_pushes_arrive_in_order_at_every_reader<H: Harness>() {
    for (words, messages) in [(1, 3_000), (40, 1_000), (1300, 200)] {
        let mut cluster = ConformanceCluster::<H>::new(4);
        let mirror = Mirror::new(&mut cluster, 16 + SLOTS * words, 3);
        let mut seen = [0; 3];
        let mut sent = 0;
        cluster.until("all messages", |cluster| {
            // A slot is reused when all readers have passed it.
            while sent < messages && sent < seen.iter().min().expect("readers") + SLOTS as u64 {
                sent += 1;
                mirror.publish_message(cluster, words, sent);
            }
            for (attachment, seen) in mirror.attachments.iter().zip(&mut seen) {
                *seen = look(attachment, words, *seen);
            }
            seen == [messages; 3]
        });
    }
}

/// M1 is per reader, not per mirror: a counter in one mirror may announce payload in another of the same owner.
pub fn m1_order_holds_across_mirrors<H: Harness>() {
    const WORDS: usize = 700;
    let mut cluster = ConformanceCluster::<H>::new(3);
    let payload = Mirror::new(&mut cluster, WORDS, 2);
    let counter = Mirror::with_key(&mut cluster, MirrorKey(78), 16, 2);
    for k in 1..=300u64 {
        (0..WORDS).for_each(|word| payload.region.store_relaxed(word, k));
        counter.region.store(0, k);
        cluster.node(0).push(payload.id, 0..WORDS);
        cluster.node(0).push_word(counter.id, 0);
        for _ in 0..3 {
            for (counter, payload) in counter.attachments.iter().zip(&payload.attachments) {
                let seen = counter.load(0);
                let least = (0..WORDS).map(|word| payload.load_relaxed(word)).min();
                assert!(least >= Some(seen), "counter {seen} was seen before its payload {least:?}");
            }
            cluster.round();
        }
    }
    cluster.until("the last counter", |_| {
        counter.attachments.iter().all(|attachment| attachment.load(0) == 300)
    });
}

/// M1, F5: `push_word` pushes the value at the time of the push.
pub fn m1_values_are_captured_at_push_time<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let mirror = Mirror::new(&mut cluster, 16, 1);
    let early = cluster.node(0).capabilities().early_sight;
    let mut pushed = 0;
    for k in 1..=2_000u64 {
        mirror.region.store(3, 2 * k);
        cluster.node(0).push_word(mirror.id, 3);
        mirror.region.store(3, 2 * k + 1);
        let seen = mirror.attachments[0].load(3);
        assert!(seen <= 2 * k + 1, "a value from the future: {seen} at {k}");
        assert!(early || seen.is_multiple_of(2), "{seen} was stored, but never pushed");
        assert!(early || seen >= pushed, "word decreased from {pushed} to {seen} [S1]");
        pushed = seen;
        if k % 7 == 0 {
            cluster.round();
        }
    }
    cluster.until("the last value", |_| mirror.attachments[0].load(3) >= 4_000);
}

/// M1, F5: `push_values` pushes the values at the time of the push, after everything pushed before.
pub fn m1_few_words_are_pushed_by_value<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let mirror = Mirror::new(&mut cluster, 32, 2);
    let early = cluster.node(0).capabilities().early_sight;
    for k in 1..=1_000u64 {
        mirror.region.store(0, 2 * k);
        cluster.node(0).push_word(mirror.id, 0);
        (8..8 + WriteSource::VALUE_WORDS_MAX).for_each(|word| mirror.region.store(word, 2 * k));
        cluster.node(0).push_values(mirror.id, 8..8 + WriteSource::VALUE_WORDS_MAX);
        (8..8 + WriteSource::VALUE_WORDS_MAX).for_each(|word| mirror.region.store(word, 2 * k + 1));
        for attachment in &mirror.attachments {
            for word in 8..8 + WriteSource::VALUE_WORDS_MAX {
                let seen = attachment.load(word);
                assert!(early || seen.is_multiple_of(2), "{seen} was stored, but never pushed");
                assert!(
                    attachment.load(0) + 1 >= seen,
                    "word {word} with {seen} arrived before an earlier push"
                );
            }
        }
        if k % 7 == 0 {
            cluster.round();
        }
    }
    let last = |attachment: &Region| {
        (8..8 + WriteSource::VALUE_WORDS_MAX).all(|word| attachment.load(word) >= 2_000)
    };
    cluster.until("the last values", |_| mirror.attachments.iter().all(last));
}

/// M2: stored words are seen early in store order, or not at all; after the push they are seen in any case.
pub fn m2_sight_follows_store_order<H: Harness>() {
    const WORDS: usize = 700;
    let mut cluster = ConformanceCluster::<H>::new(3);
    let mirror = Mirror::new(&mut cluster, 16 + WORDS, 2);
    let early = cluster.node(0).capabilities().early_sight;
    for k in 1..=100u64 {
        (16..16 + WORDS).for_each(|word| mirror.region.store_relaxed(word, k));
        mirror.region.store(0, k);
        for _ in 0..5 {
            for attachment in &mirror.attachments {
                let seen = attachment.load(0);
                assert!(early || seen < k, "counter {k} was seen before its push");
                let payload = (16..16 + WORDS).map(|word| attachment.load_relaxed(word)).min();
                assert!(payload >= Some(seen), "counter {seen} was seen before its payload {payload:?}");
            }
            cluster.round();
        }
        cluster.node(0).push(mirror.id, 16..16 + WORDS);
        cluster.node(0).push_word(mirror.id, 0);
        cluster.until("the pushed counter", |_| {
            mirror.attachments.iter().all(|attachment| attachment.load(0) == k)
        });
    }
}

/// M3: after `freeze` the words never change for this reader, whatever the owner pushes or has in flight.
pub fn m3_a_frozen_attachment_never_changes<H: Harness>() {
    const WORDS: usize = 700;
    for messages in [0, 1, 5, 30] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let mirror = Mirror::new(&mut cluster, 16 + SLOTS * WORDS, 1);
        for k in 1..=messages {
            mirror.publish_message(&mut cluster, WORDS, k);
            cluster.round();
        }
        mirror.publish_message(&mut cluster, WORDS, messages + 1);
        cluster.step();
        cluster.node(1).freeze(&mirror.attachments[0]);
        let frozen = snapshot(&mirror.attachments[0]);
        for k in 2..50 {
            mirror.publish_message(&mut cluster, WORDS, messages + k);
            cluster.round();
            assert!(snapshot(&mirror.attachments[0]) == frozen, "a frozen attachment changed");
        }
    }
}

/// M3: a freeze affects this reader only; the others see later pushes.
pub fn m3_other_readers_do_not_freeze<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let mirror = Mirror::new(&mut cluster, 32, 2);
    let other = Mirror::with_key(&mut cluster, MirrorKey(78), 32, 2);
    cluster.node(1).freeze(&mirror.attachments[0]);
    for mirror in [&mirror, &other] {
        mirror.region.store(0, 5);
        cluster.node(0).push_word(mirror.id, 0);
    }
    cluster.until("the push at the other reader", |_| mirror.attachments[1].load(0) == 5);
    cluster.until("the push of another mirror", |_| {
        other.attachments.iter().all(|attachment| attachment.load(0) == 5)
    });
    assert_eq!(mirror.attachments[0].load(0), 0, "a frozen attachment changed");
}

/// M4: the owner's death changes nothing in its attachments; its readers get `PeerLost`.
pub fn m4_an_attachment_outlives_its_owner<H: Harness>() {
    const WORDS: usize = 700;
    let mut cluster = ConformanceCluster::<H>::new(3);
    let mirror = Mirror::new(&mut cluster, 16 + SLOTS * WORDS, 2);
    for k in 1..=3 {
        mirror.publish_message(&mut cluster, WORDS, k);
    }
    cluster.until("message 3", |_| mirror.attachments.iter().all(|attachment| attachment.load(0) == 3));
    mirror.publish_message(&mut cluster, WORDS, 4);
    cluster.kill(0);
    for reader in [1, 2] {
        cluster.expect(reader, "PeerLost", |event| {
            matches!(event, FabricEvent::PeerLost { peer: NodeId(0), .. })
        });
    }
    let last = [0, 1].map(|i| snapshot(&mirror.attachments[i]));
    cluster.rounds(50);
    for (attachment, last) in mirror.attachments.iter().zip(last) {
        assert!(snapshot(attachment) == last, "a dead owner's attachment changed");
        assert!(look(attachment, WORDS, 3) >= 3);
    }
    cluster.node(1).freeze(&mirror.attachments[0]);
    assert!(
        look(&mirror.attachments[0], WORDS, 3) >= 3,
        "freezing a dead owner's attachment keeps its words"
    );
}

/// M5: in either order of publishing and attaching, attachments read as zeros until the owner writes, and
/// pushes after `Attached` arrive.
pub fn m5_pushes_after_attached_arrive<H: Harness>() {
    for publish_first in [true, false] {
        let mut cluster = ConformanceCluster::<H>::new(3);
        let region = cluster.node(0).register(40);
        let key = MirrorKey(u64::MAX - 5);
        let publish = |cluster: &mut ConformanceCluster<H>| {
            cluster.node(0).publish(key, &region, &[NodeId(1), NodeId(2)])
        };
        let early = publish_first.then(|| publish(&mut cluster));
        cluster.rounds(3);
        let first = cluster.node(1).attach(NodeId(0), key, 40);
        assert!((0..40).all(|word| first.load(word) == 0), "an attachment begins as zeros");
        let mirror = early.unwrap_or_else(|| publish(&mut cluster));
        cluster.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(1) });
        region.store(39, 1);
        cluster.node(0).push_word(mirror, 39);
        cluster.until("a push to the first reader", |_| first.load(39) == 1);
        let second = cluster.node(2).attach(NodeId(0), key, 40);
        cluster.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(2) });
        region.store(39, 2);
        region.store(20, 7);
        cluster.node(0).push(mirror, 20..21);
        cluster.node(0).push_word(mirror, 39);
        cluster.until("a push to both readers", |_| first.load(39) == 2 && second.load(39) == 2);
        assert_eq!([first.load(20), second.load(20)], [7, 7]);
    }
}

/// M5: an attachment whose size differs from the published one is never filled; its owner is disconnected.
pub fn m5_a_mirror_of_another_size_disconnects_its_owner<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let region = cluster.node(0).register(64);
    cluster.node(0).publish(MirrorKey(1), &region, &[NodeId(1)]);
    let attachment = cluster.node(1).attach(NodeId(0), MirrorKey(1), 32);
    region.store(0, 1);
    cluster.expect(1, "PeerLost", |event| matches!(event, FabricEvent::PeerLost { peer: NodeId(0), .. }));
    assert!((0..32).all(|word| attachment.load(word) == 0), "an attachment of another size was filled");
    assert_eq!(cluster.take(0, |event| matches!(event, FabricEvent::Attached { .. })), None);
}

/// A mirror of node 0, attached by nodes 1, 2, ….
struct Mirror {
    id: MirrorId,
    region: Region,
    attachments: Vec<Region>,
}

impl Mirror {
    fn new<H: Harness>(cluster: &mut ConformanceCluster<H>, words: usize, readers: u32) -> Self {
        Self::with_key(cluster, MirrorKey(77), words, readers)
    }

    fn with_key<H: Harness>(
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

    /// Publishes message `k`: payload, counter with release, push of the payload, push of the counter [M2].
    fn publish_message<H: Harness>(&self, cluster: &mut ConformanceCluster<H>, words: usize, k: u64) {
        let slot = slot(words, k);
        slot.clone().for_each(|word| self.region.store_relaxed(word, k));
        self.region.store(0, k);
        cluster.node(0).push(self.id, slot);
        cluster.node(0).push_word(self.id, 0);
    }
}

/// Reads as a reader does: the counter, then all slots that it announces and that are not reused.
fn look(attachment: &Region, words: usize, before: u64) -> u64 {
    let seen = attachment.load(0);
    assert!(seen >= before, "the counter decreased from {before} to {seen}");
    for k in before + 1..=seen {
        for word in slot(words, k) {
            let payload = attachment.load_relaxed(word);
            assert_eq!(payload, k, "counter {seen} was seen before message {k}, word {word}");
        }
    }
    seen
}

fn slot(words: usize, k: u64) -> std::ops::Range<usize> {
    let first = 16 + usize::try_from(k).expect("small") % SLOTS * words;
    first..first + words
}

fn snapshot(attachment: &Region) -> Vec<u64> {
    let mut words = vec![0; attachment.words()];
    attachment.copy_out(0, &mut words);
    words
}

/// Messages in flight at once.
const SLOTS: usize = 4;
