//! Adopted memory: F13 and F14. Properties of any memory are tested beside their axioms.

use std::sync::Arc;

use super::{ConformanceCluster, GrantedLink, Harness};
use crate::{Fabric, FabricEvent, NodeId, Token, Write};

/// F13: adopted memory can be the source of a write, the target of another, and receive sends; each at any
/// word.
pub fn f13_adopted_memory_is_source_and_target<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.adopted_link(0, 1, 1, WORDS);
    let ordinary = cluster.link(0, 1, 2, WORDS);
    let (source, inbox) = (cluster.adopt(0, WORDS), cluster.adopt(1, 8));
    let mut token = 0;
    for (first, words) in [(0, 1), (3, 8), (5, 9), (1, 513), (7, WORDS - 7)] {
        (0..WORDS).for_each(|word| source.store(word, (1000 * first + word) as u64));
        for link in [&link, &ordinary] {
            token += 1;
            let write = link.reference(first, &source, first..first + words);
            cluster.write(0, link.conn, &Write { signal: Some(Token(token)), ..write });
            cluster.done(0, link.conn, Token(token));
            let right = |word: &usize| link.target.load(*word) == (1000 * first + word) as u64;
            assert!((first..first + words).all(|word| right(&word)), "{words} words at {first}");
        }
    }
    cluster.node(1).post_receive(link.owner_conn, &inbox, 3..8, Token(1)).expect("space");
    cluster.until("a receive", |cluster| cluster.node(0).send(link.conn, b"to adopted memory", None).is_ok());
    cluster.expect(1, "Received", |event| matches!(event, FabricEvent::Received { length: 17, .. }));
    let mut bytes = [0; 17];
    inbox.copy_bytes_out(3, &mut bytes);
    assert_eq!(&bytes, b"to adopted memory");
}

/// F13, F1, F4: writes into adopted memory keep their position among all others of their connection: a guard
/// in either kind of memory shows what was written before it in the other.
pub fn f13_writes_of_all_kinds_land_in_post_order<H: Harness>() {
    const LAPS: u64 = 200;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let adopted = cluster.adopted_link(0, 1, 1, WORDS);
    let target = cluster.node(1).register(WORDS);
    let grant = cluster.node(1).grant(&target, 0..WORDS, NodeId(0));
    let ordinary = GrantedLink { target, grant, ..adopted.clone() };
    let source = cluster.node(0).register(LAPS as usize * GUARD);
    let check = || {
        for (guarded, guard) in [(&adopted, &ordinary), (&ordinary, &adopted)] {
            let announced = guard.target.load(GUARD);
            let least = (0..GUARD).map(|word| guarded.target.load_relaxed(word)).min().expect("words");
            assert!(least >= announced, "guard {announced}, but a word before it is {least}");
        }
    };
    for k in 1..=LAPS {
        let range = (k as usize - 1) * GUARD..k as usize * GUARD;
        range.clone().for_each(|word| source.store_relaxed(word, k));
        for link in [&adopted, &ordinary] {
            cluster.write(0, link.conn, &link.reference(0, &source, range.clone()));
        }
        for link in [&ordinary, &adopted] {
            cluster.write(0, link.conn, &link.value(GUARD, &[k]));
        }
        cluster.poll(0);
        check();
        cluster.poll(1);
        check();
    }
    let done = Write { signal: Some(Token(1)), ..ordinary.value(GUARD, &[LAPS]) };
    cluster.write(0, ordinary.conn, &done);
    cluster.done(0, ordinary.conn, Token(1));
    assert_eq!(
        [&adopted, &ordinary].map(|link| link.target.load(GUARD)),
        [LAPS; 2],
        "the completion covers all of them"
    );
}

/// F13, F7: immediates and sends arrive in order among writes into adopted memory, and show what was written
/// before.
pub fn f13_arrivals_show_adopted_memory<H: Harness>() {
    const LAPS: usize = 60;
    let mut cluster = ConformanceCluster::<H>::new(2);
    let link = cluster.adopted_link(0, 1, 1, WORDS);
    let (source, inbox) = (cluster.node(0).register(WORDS), cluster.node(1).register(1));
    for lap in 1..=LAPS {
        for token in 0..2 {
            let token = Token((2 * lap + token) as u64);
            cluster.node(1).post_receive(link.owner_conn, &inbox, 0..1, token).expect("space");
        }
        (0..WORDS).for_each(|word| source.store_relaxed(word, lap as u64));
        let whole = link.reference(0, &source, 0..WORDS);
        let immediate = u32::try_from(lap).ok();
        cluster.write(0, link.conn, &Write { immediate, ..whole });
        cluster.write(0, link.conn, &link.value(GUARD, &[2 * lap as u64]));
        let signal = Some(Token(lap as u64));
        cluster.until("a place", |cluster| cluster.node(0).send(link.conn, b"x", signal).is_ok());
        let arrived = cluster.expect(1, "Arrived", |event| matches!(event, FabricEvent::Arrived { .. }));
        let token = Token(2 * lap as u64);
        assert_eq!(arrived, FabricEvent::Arrived { conn: link.owner_conn, token, immediate: lap as u32 });
        assert!(
            (0..GUARD).all(|word| link.target.load(word) == lap as u64),
            "writes before {lap} have landed"
        );
        cluster.expect(1, "Received", |event| matches!(event, FabricEvent::Received { .. }));
        assert_eq!(link.target.load(GUARD), 2 * lap as u64);
        cluster.done(0, link.conn, Token(lap as u64));
    }
}

/// F14: memory whose grants are revoked and whose posts are done is released, whatever else remains.
pub fn f14_released_memory_is_given_back<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let ordinary = cluster.link(0, 1, 1, WORDS);
    for lap in 1..=3 {
        let [source, target] = [0, 1].map(|node| cluster.adopt(node, WORDS));
        let kept = [&source, &target].map(|region| Arc::downgrade(region.memory()));
        let grant = cluster.node(1).grant(&target, 0..WORDS, NodeId(0));
        let link = GrantedLink { target, grant, ..ordinary.clone() };
        let write = link.reference(0, &source, 0..WORDS);
        cluster.write(0, link.conn, &Write { signal: Some(Token(lap)), ..write });
        cluster.done(0, link.conn, Token(lap));
        cluster.node(1).post_receive(link.owner_conn, &link.target, 0..1, Token(lap)).expect("space");
        cluster.until("a receive", |cluster| cluster.node(0).send(link.conn, b"x", None).is_ok());
        cluster.expect(1, "Received", |event| matches!(event, FabricEvent::Received { .. }));
        cluster.node(1).revoke(&grant);
        cluster.expect(1, "Revoked", |event| *event == FabricEvent::Revoked { grant });
        assert_eq!(kept.each_ref().map(|kept| kept.strong_count() > 0), [true; 2]);
        cluster.node(0).release(&source);
        cluster.node(1).release(&link.target);
        drop((source, link));
        assert_eq!(kept.map(|kept| kept.strong_count()), [0; 2], "something still holds the memory");
    }
}

/// Several pages, and one more word for the guard.
const WORDS: usize = 1301;
const GUARD: usize = WORDS - 1;
