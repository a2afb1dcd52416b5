//! When source words are read and what a completion means: F5 and F6.

use super::{ConformanceCluster, Harness};
use crate::{Fabric, FabricEvent, Token, Write};

/// F5: a word by reference lands with a value that it held between post and completion, never with a later
/// one.
pub fn f5_source_words_are_read_between_post_and_completion<H: Harness>() {
    const WORDS: usize = 600;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    let source = cluster.node(0).register(WORDS);
    for k in 1..=300u64 {
        let fill = |value| (0..WORDS).for_each(|word| source.store_relaxed(word, value));
        let [at_post, while_queued, after_done] = [10 * k + 1, 10 * k + 2, 10 * k + 3];
        fill(at_post);
        let write = Write { signal: Some(Token(k)), ..link.reference(0, &source, 0..WORDS) };
        cluster.write(0, link.conn, &write);
        if k % 2 == 0 {
            fill(while_queued);
        }
        cluster.done(0, link.conn, Token(k));
        fill(after_done);
        for _ in 0..3 {
            for word in 0..WORDS {
                let landed = link.target.load(word);
                let queued = k % 2 == 0 && landed == while_queued;
                assert!(landed == at_post || queued, "write {k} landed word {word} as {landed}");
            }
            cluster.round();
        }
    }
}

/// F5: words by value are captured at post time, so a guard never precedes the data that it announces.
pub fn f5_values_are_captured_at_post_time<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 8);
    let mut value = [0u64; 8];
    for k in 1..=2_000u64 {
        value.fill(k);
        let write = Write { signal: Some(Token(k)), ..link.value(0, &value) };
        cluster.write(0, link.conn, &write);
        value.fill(u64::MAX);
        if k % 5 == 0 {
            cluster.done(0, link.conn, Token(k));
            for word in 0..8 {
                assert_eq!(link.target.load(word), k, "word {word} after write {k} was done");
            }
        }
    }
}

/// F6: when a signalled write is done, it and all earlier writes have landed, signalled or not, and
/// completions arrive in post order, each once.
pub fn f6_done_covers_all_earlier_posts<H: Harness>() {
    const WORDS: usize = 520;
    const SLOTS: u64 = 6;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, SLOTS as usize * WORDS);
    let source = cluster.node(0).register(SLOTS as usize * WORDS);
    for batch in 1..=150u64 {
        for slot in 0..SLOTS as usize {
            let range = slot * WORDS..(slot + 1) * WORDS;
            range.clone().for_each(|word| source.store_relaxed(word, batch));
            let signal = (slot % 3 == 2).then_some(Token(batch * SLOTS + slot as u64));
            let write = Write { signal, ..link.reference(range.start, &source, range) };
            cluster.write(0, link.conn, &write);
        }
        for slot in [2, 5] {
            let expected = FabricEvent::Done { conn: link.conn, token: Token(batch * SLOTS + slot as u64) };
            let done = cluster.expect(0, "Done", |event| matches!(event, FabricEvent::Done { .. }));
            assert_eq!(done, expected, "completions come in post order");
            for word in 0..(slot + 1) * WORDS {
                assert_eq!(link.target.load(word), batch, "word {word} had not landed at {expected:?}");
            }
        }
    }
    cluster.rounds(20);
    assert_eq!(
        cluster.take(0, |event| matches!(event, FabricEvent::Done { .. })),
        None,
        "each completion arrives once"
    );
}
