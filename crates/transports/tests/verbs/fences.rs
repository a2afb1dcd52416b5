//! Grants, freezes and incarnations beyond the axioms: what the device must keep apart.

use squall_fabric::conformance::GrantedLink;
use squall_fabric::{Fabric, FabricEvent, Grant, NodeId, Token, Write};

use crate::nodes::{MirrorPair, VerbsNodes, refused, write};

/// A peer's grant is revoked while it has another one: the other one, on another connection, remains usable.
pub(crate) fn one_grant_of_two_is_revoked() {
    let mut nodes = VerbsNodes::new(2);
    let fenced = nodes.link(0, 1, 1, 64);
    let shared = nodes.link(0, 1, 2, 64);
    write(&mut nodes, &fenced, 0, 1);
    write(&mut nodes, &shared, 0, 2);
    nodes.node(1).revoke(&fenced.grant);
    nodes.expect(1, "Revoked", |event| *event == FabricEvent::Revoked { grant: fenced.grant });
    write(&mut nodes, &shared, 1, 3);
    refused(&mut nodes, &fenced, fenced.conn);
    write(&mut nodes, &shared, 2, 4);
    // Then the last grant is revoked.
    nodes.node(1).revoke(&shared.grant);
    refused(&mut nodes, &shared, shared.conn);
}

/// Revokes and grants again with no write in between: the connection remains, and the old grant does not.
pub(crate) fn a_new_grant_revives_the_connection() {
    let mut nodes = VerbsNodes::new(2);
    let mut link = nodes.link(0, 1, 1, 8);
    for k in 1..20 {
        write(&mut nodes, &link, 0, k);
        nodes.node(1).revoke(&link.grant);
        let old = link.grant;
        link.grant = nodes.node(1).grant(&link.target, 0..8, NodeId(0));
        assert_ne!(old.key, link.grant.key);
    }
    let old = link.grant;
    nodes.node(1).revoke(&old);
    let grant = nodes.node(1).grant(&link.target, 0..8, NodeId(0));
    write(&mut nodes, &GrantedLink { grant, ..link.clone() }, 0, 77);
    refused(&mut nodes, &GrantedLink { grant: old, ..link.clone() }, link.conn);
}

/// A reader freezes one mirror while pushes to several are in flight: the others lose no push and see none
/// twice.
pub(crate) fn a_freeze_does_not_disturb_other_mirrors() {
    let mut restarts = 0;
    for burst in [1, 3, 12] {
        let mut nodes = VerbsNodes::new(2);
        let mirrors: Vec<_> = (0..4).map(|key| MirrorPair::new(&mut nodes, key, 600)).collect();
        let live = mirrors.last().expect("four");
        let mut seen = 0;
        for k in 1..=90_u64 {
            // The order differs each time, so that the push that is refused has others before and after it.
            for step in 0..4 {
                mirrors[(step + usize::try_from(k).expect("small")) % 4].push(&mut nodes, k);
            }
            if k % burst == 0 {
                nodes.poll(0);
            }
            if k % 30 == 0 {
                // Freeze three of them, one after another, with pushes in flight.
                let frozen = &mirrors[usize::try_from(k / 30).expect("small") - 1];
                nodes.node(1).freeze(&frozen.attachment);
                let counter = frozen.check();
                nodes.rounds(20);
                assert_eq!(frozen.check(), counter, "a frozen attachment changed");
            }
            let now = live.check();
            assert!(now >= seen, "the counter went back from {seen} to {now}");
            seen = now;
        }
        nodes.until("the last message", |_| live.check() == 90);
        restarts += nodes.node(0).counters().mirror_restarts;
    }
    assert!(restarts > 0, "no push was in flight at any freeze, so the test proves nothing");
}

/// A node uses a grant of another peer, altered to name itself: its own domain does not know the key.
pub(crate) fn a_stolen_grant_is_refused() {
    let mut nodes = VerbsNodes::new(3);
    let rightful = nodes.link(0, 2, 1, 8);
    // The thief has a valid grant, so it is not its queue pair that refuses the write.
    let own = nodes.link(1, 2, 1, 8);
    write(&mut nodes, &own, 0, 1);
    let stolen = GrantedLink {
        grant: Grant { peer: NodeId(1), ..rightful.grant },
        target: rightful.target.clone(),
        ..own.clone()
    };
    refused(&mut nodes, &stolen, own.conn);
    write(&mut nodes, &rightful, 0, 2);
}

/// A channel can be opened any number of times, each time as a new incarnation; grants remain.
pub(crate) fn channels_can_be_reopened() {
    let mut nodes = VerbsNodes::new(2);
    let mut link = nodes.link(0, 1, 1, 4);
    for k in 1..=60 {
        write(&mut nodes, &link, 0, k);
        let (closer, conn) = if k % 2 == 0 { (0, link.conn) } else { (1, link.owner_conn) };
        nodes.node(closer).close(conn);
        let (conn, owner_conn) = (link.conn, link.owner_conn);
        let [other, theirs] = if closer == 0 { [1, owner_conn.0] } else { [0, conn.0] };
        let ended =
            |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn, .. } if conn.0 == theirs);
        nodes.expect(u32::try_from(other).expect("0 or 1"), "Broken", ended);
        (link.conn, link.owner_conn) = nodes.connect(0, 1, 1);
    }
}

/// A write that is longer than one message of the device lands completely, with one immediate.
pub(crate) fn a_write_of_several_messages_lands_completely() {
    const WORDS: usize = 9 << 17;
    let mut nodes = VerbsNodes::new(2);
    let link = nodes.link(0, 1, 1, WORDS);
    let source = nodes.node(0).register(WORDS);
    (0..WORDS).for_each(|word| source.store_relaxed(word, 1 + word as u64));
    let nothing = nodes.node(1).register(1);
    nodes.node(1).post_receive(link.owner_conn, &nothing, 0..0, Token(5)).expect("space");
    let write = Write { immediate: Some(9), signal: Some(Token(1)), ..link.reference(0, &source, 0..WORDS) };
    nodes.write(0, link.conn, &write);
    let arrived = FabricEvent::Arrived { conn: link.owner_conn, token: Token(5), immediate: 9 };
    nodes.expect(1, "Arrived", |event| *event == arrived);
    assert!((0..WORDS).all(|word| link.target.load_relaxed(word) == 1 + word as u64));
    nodes.done(0, link.conn, Token(1));
}

/// Posts form chains: many posts need few doorbells and fewer completions.
pub(crate) fn posts_share_doorbells_and_completions() {
    let mut nodes = VerbsNodes::new(2);
    let link = nodes.link(0, 1, 1, 1);
    let before = nodes.node(0).counters();
    for k in 1..=200 {
        nodes.write(0, link.conn, &link.value(0, &[k]));
    }
    nodes.until("the last write", |_| link.target.load(0) == 200);
    let after = nodes.node(0).counters();
    assert_eq!(after.posts - before.posts, 200);
    assert!(after.doorbells - before.doorbells <= 7, "{} doorbells", after.doorbells - before.doorbells);
    assert!(after.completions - before.completions <= 7);
}
