//! Order and visibility of one-sided writes: F1 to F4.

use super::{ConformanceCluster, GrantedLink, Harness};
use crate::{Fabric, Region, Token, Write, WriteSource};

/// F1: a reader that sees write k sees all writes before it. By value, over a few words, many times.
pub fn f1_writes_of_one_connection_land_in_post_order<H: Harness>() {
    const WORDS: u64 = 8;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 8);
    for k in 1..=20_000u64 {
        let write = [k];
        cluster.write(0, link.conn, &link.value(usize(k % WORDS), &write));
        if k % 3 == 0 {
            cluster.round();
        }
        // Every word is a guard for all others: when one shows v, the others hold the last writes up to v.
        for guard in 0..WORDS {
            let seen = link.target.load(usize(guard));
            for word in (0..WORDS).filter(|word| seen >= WORDS && *word != guard) {
                let expected = seen - (seen + WORDS - word) % WORDS;
                let found = link.target.load_relaxed(usize(word));
                assert!(
                    found >= expected,
                    "saw write {seen} before write {expected}: word {word} holds {found}"
                );
            }
        }
    }
    cluster.until("the last write", |_| link.target.load(usize(20_000 % WORDS)) == 20_000);
}

/// F1 promises nothing between connections: a connection that stalls [F7] does not delay another.
pub fn f1_connections_do_not_wait_for_each_other<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let stalled = cluster.connect(0, 1, 1).0;
    let link = cluster.link(0, 1, 2, 1);
    cluster.node(0).send(stalled, b"no receive is posted", None).expect("connected");
    cluster.write(0, link.conn, &link.value(0, &[7]));
    cluster.until("the write on the other connection", |_| link.target.load(0) == 7);
}

/// F2: the words of one write land in any order, but exactly these words, with the source's values.
pub fn f2_a_write_lands_in_its_range_only<H: Harness>() {
    const WORDS: usize = 3000;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    let source = cluster.node(0).register(WORDS);
    for word in 0..WORDS {
        source.store_relaxed(word, 1 + word as u64);
    }
    let mut expected = vec![0; WORDS];
    for (token, (first, count)) in
        [(0, 1), (5, 11), (511, 514), (1030, 0), (1040, 1900)].into_iter().enumerate()
    {
        let token = Token(token as u64);
        let write = Write { signal: Some(token), ..link.reference(first, &source, first..first + count) };
        cluster.write(0, link.conn, &write);
        cluster.done(0, link.conn, token);
        for (word, value) in expected.iter_mut().enumerate().skip(first).take(count) {
            *value = 1 + word as u64;
        }
        let mut landed = vec![0; WORDS];
        link.target.copy_out(0, &mut landed);
        assert!(landed == expected, "the write of {count} words at {first} landed elsewhere");
    }
}

/// F3: each word that a reader loads was written as a whole.
pub fn f3_words_are_never_torn<H: Harness>() {
    const WORDS: usize = 700;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, WORDS);
    let source = cluster.node(0).register(WORDS);
    for k in 1..=500u64 {
        let whole = k << 32 | (!k & 0xffff_ffff);
        for word in 0..WORDS {
            source.store_relaxed(word, whole);
        }
        let write = Write { signal: Some(Token(k)), ..link.reference(0, &source, 0..WORDS) };
        cluster.write(0, link.conn, &write);
        cluster.until("Done", |cluster| {
            for word in 0..WORDS {
                let seen = link.target.load(word);
                assert!(seen == 0 || seen >> 32 == !seen & 0xffff_ffff, "torn word {seen:#x}");
            }
            cluster.take(0, |event| matches!(event, crate::FabricEvent::Done { .. })).is_some()
        });
    }
}

/// F4: payload, then the counter by value; a reader that sees the counter sees the payload. Small and large
/// payloads.
pub fn f4_a_guard_shows_what_landed_before_it<H: Harness>() {
    for (words, repetitions) in [(1, 5_000), (40, 2_000), (1300, 400)] {
        let mut cluster = ConformanceCluster::<H>::new(2);
        let link = cluster.link(0, 1, 1, 16 + SLOTS * words);
        let guard = Guard { link: link.clone(), word: 0 };
        litmus(&mut cluster, &link, &guard, words, repetitions);
    }
}

/// F4 across regions: everything that landed earlier on the *connection* is visible, whichever region it went
/// to.
pub fn f4_a_guard_in_another_region_shows_it_too<H: Harness>() {
    let words = 600;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.link(0, 1, 1, 16 + SLOTS * words);
    let target = cluster.node(1).register(4);
    let grant = cluster.node(1).grant(&target, 1..3, crate::NodeId(0));
    let guard = Guard { link: GrantedLink { target, grant, ..link.clone() }, word: 1 };
    litmus(&mut cluster, &link, &guard, words, 500);
}

/// A counter at word 0 of its grant, and at `word` of its region.
struct Guard {
    link: GrantedLink,
    word: usize,
}

/// Sends messages 1, 2, … through a ring of [`SLOTS`] slots of `words` words, each announced by the guard.
fn litmus<H: Harness>(
    cluster: &mut ConformanceCluster<H>,
    link: &GrantedLink,
    guard: &Guard,
    words: usize,
    repetitions: u64,
) {
    let source = cluster.node(0).register(SLOTS * words);
    let mut seen = 0;
    for k in 1..=repetitions {
        let slot = usize(k) % SLOTS * words;
        if k > SLOTS as u64 {
            // The source slot may be reused when its last write is done [F5].
            cluster.done(0, link.conn, Token(k - SLOTS as u64));
        }
        for word in slot..slot + words {
            source.store_relaxed(word, k);
        }
        cluster.write(0, link.conn, &link.reference(16 + slot, &source, slot..slot + words));
        let announce = [k];
        let signalled = Write {
            source: WriteSource::Value(&announce),
            grant: &guard.link.grant,
            offset: 0,
            immediate: None,
            signal: Some(Token(k)),
        };
        cluster.write(0, link.conn, &signalled);
        for _ in 0..3 {
            seen = look(&link.target, &guard.link.target, guard.word, words, seen);
            cluster.step();
        }
        cluster.round();
    }
    cluster.until("the last message", |_| {
        seen = look(&link.target, &guard.link.target, guard.word, words, seen);
        seen == repetitions
    });
}

/// Reads as the reader does: the guard, then the whole slot that it announces.
fn look(target: &Region, guard: &Region, word: usize, words: usize, before: u64) -> u64 {
    let seen = guard.load(word);
    assert!(seen >= before, "the guard decreased from {before} to {seen}");
    let slot = 16 + usize(seen) % SLOTS * words;
    for place in slot..slot + words {
        let payload = target.load_relaxed(place);
        // The next message in this slot may have begun to land; an older one must not be there.
        let newer = payload >= seen && (payload - seen).is_multiple_of(SLOTS as u64);
        assert!(seen == 0 || newer, "guard {seen} announced, but word {place} holds {payload}");
    }
    seen
}

/// Messages in flight at once.
const SLOTS: usize = 4;

fn usize(value: u64) -> usize {
    usize::try_from(value).expect("fits")
}
