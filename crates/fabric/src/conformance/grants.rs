//! Grants: which peer may write where (F8).

use super::{ConformanceCluster, GrantedLink, Harness};
use crate::{Fabric, FabricEvent, Grant, NodeId, PostError, Region, Token, Write};

/// F8: a grant is plain data; its offsets count from the beginning of its range.
pub fn f8_a_grant_travels_as_plain_data<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let conn = cluster.connect(0, 1, 1).0;
    let target = cluster.node(1).register(2000);
    let [low, high] = [100..110, 1990..2000].map(|range| cluster.node(1).grant(&target, range, NodeId(0)));
    assert_ne!(low.key, high.key, "each grant has its own key");
    for (grant, first, value) in [(high, 1990, 1), (low, 100, 2)] {
        assert_eq!((grant.owner, grant.peer), (NodeId(1), NodeId(0)));
        let grant = Grant::from_bytes(&grant.to_bytes()).expect("its own form");
        let link = GrantedLink { writer: 0, owner: 1, conn, owner_conn: conn, target: target.clone(), grant };
        cluster.write(0, conn, &Write { signal: Some(Token(value)), ..link.value(8, &[value, value]) });
        cluster.done(0, conn, Token(value));
        assert_eq!([8, 9].map(|offset| target.load(first + offset)), [value, value]);
    }
}

/// F8: ranges of one region, even within one cache line, can be granted to different peers.
pub fn f8_neighbours_write_one_region<H: Harness>() {
    const LAPS: u64 = 300;
    let mut cluster = ConformanceCluster::<H>::new(3);
    let target = cluster.node(2).register(20);
    let conns = [0, 1].map(|i| cluster.connect(i, 2, 1).0);
    let grants = [(0, 3..4), (1, 4..6)].map(|(i, range)| cluster.node(2).grant(&target, range, NodeId(i)));
    let links = [0, 1].map(|i| GrantedLink {
        writer: i,
        owner: 2,
        conn: conns[i as usize],
        owner_conn: conns[i as usize],
        target: target.clone(),
        grant: grants[i as usize],
    });
    for k in 1..=LAPS {
        target.store(2, k);
        target.store(6, k);
        cluster.write(0, conns[0], &links[0].value(0, &[k]));
        cluster.write(1, conns[1], &links[1].value(0, &[k, k]));
        cluster.round();
        assert_eq!([2, 6].map(|word| target.load(word)), [k; 2], "the owner's words next to the grants");
    }
    cluster.until("both writers' last words", |_| [3, 4, 5].iter().all(|word| target.load(*word) == LAPS));
    assert_eq!([1, 2, 6, 7].map(|word| target.load(word)), [0, LAPS, LAPS, 0]);
}

/// F8, F10: a write under a key that was never issued, or to a range that was never granted, is refused and
/// does not land.
pub fn f8_a_forged_grant_is_refused<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let target = cluster.node(1).register(64);
    refuse_forgeries(&mut cluster, &target);
}

/// F13: forged grants of adopted memory are refused as well.
pub fn f13_a_forged_grant_of_adopted_memory_is_refused<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let target = cluster.adopt(1, 64);
    refuse_forgeries(&mut cluster, &target);
}

fn refuse_forgeries<H: Harness>(cluster: &mut ConformanceCluster<H>, target: &Region) {
    let grant = cluster.node(1).grant(target, 8..16, NodeId(0));
    let forgeries = [
        Grant { key: grant.key.wrapping_add(1), ..grant },
        Grant { key: grant.key ^ 1 << 63, ..grant },
        Grant { first: 0, words: 64, ..grant },
        Grant { first: grant.first + 1, ..grant },
        Grant { region: crate::RegionId(grant.region.0 ^ 1 << 40), ..grant },
        Grant { first: u64::MAX - 100, words: 64, ..grant },
    ];
    for (channel, forged) in (1..).zip(forgeries) {
        let (conn, owner_conn) = cluster.connect(0, 1, channel);
        let link =
            GrantedLink { writer: 0, owner: 1, conn, owner_conn, target: target.clone(), grant: forged };
        refused(cluster, &link, forged.words as usize);
        assert!((0..64).all(|word| target.load(word) == 0), "a write under {forged:?} landed");
    }
    let (conn, owner_conn) = cluster.connect(0, 1, 100);
    let link = GrantedLink { writer: 0, owner: 1, conn, owner_conn, target: target.clone(), grant };
    cluster.write(0, conn, &link.value(0, &[1; 8]));
    cluster.until("a write under the valid grant", |_| link.target.load(15) == 1);
}

/// F8, F10: a write beyond the end of its grant is refused and does not land.
pub fn f8_a_write_beyond_its_grant_is_refused<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(2);
    let target = cluster.node(1).register(64);
    let grant = cluster.node(1).grant(&target, 8..16, NodeId(0));
    for (channel, words) in (1..).zip([9, 56, usize::MAX / 16]) {
        let (conn, owner_conn) = cluster.connect(0, 1, channel);
        let link = GrantedLink { writer: 0, owner: 1, conn, owner_conn, target: target.clone(), grant };
        refused(&mut cluster, &link, words);
        assert!((0..64).all(|word| target.load(word) == 0), "a write beyond its grant landed");
    }
}

/// F8, F10: a grant cannot be used by another peer.
pub fn f8_a_grant_is_for_its_peer_only<H: Harness>() {
    let mut cluster = ConformanceCluster::<H>::new(3);
    let link = cluster.link(0, 2, 1, 8);
    let (conn, owner_conn) = cluster.connect(1, 2, 1);
    let thief = GrantedLink { writer: 1, conn, owner_conn, ..link.clone() };
    refused(&mut cluster, &thief, 8);
    let liar = cluster.connect(1, 2, 2);
    let grant = Grant { peer: NodeId(1), ..link.grant };
    refused(
        &mut cluster,
        &GrantedLink { writer: 1, conn: liar.0, owner_conn: liar.1, grant, ..link.clone() },
        8,
    );
    assert!((0..8).all(|word| link.target.load(word) == 0), "a write under another peer's grant landed");
    cluster.write(0, link.conn, &link.value(0, &[1]));
    cluster.until("a write of the grant's own peer", |_| link.target.load(0) == 1);
}

/// Writes the last word of the grant; expects a refusal at the writer and a broken connection at both ends.
fn refused<H: Harness>(cluster: &mut ConformanceCluster<H>, link: &GrantedLink, words: usize) {
    let write = Write { signal: Some(Token(1)), ..link.value(words - 1, &[9]) };
    cluster.write(link.writer, link.conn, &write);
    cluster.expect(link.writer, "Refused", |event| *event == FabricEvent::Refused { conn: link.conn });
    let ended =
        |event: &FabricEvent| matches!(event, FabricEvent::Broken { conn, .. } if *conn == link.owner_conn);
    cluster.expect(link.owner, "Broken at the owner", ended);
    let again = cluster.node(link.writer).write(link.conn, link.value(0, &[9]));
    assert_eq!(again, Err(PostError::NotConnected), "a refusal breaks the connection");
    let done = FabricEvent::Done { conn: link.conn, token: Token(1) };
    assert_eq!(cluster.take(link.writer, |event| *event == done), None, "a refused write is never done");
}
