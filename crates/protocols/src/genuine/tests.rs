//! The rules of the order, one by one (RamCast §3.4).

use super::mutation::{GenuineMutation, with};
use super::order::{LogCoverage, ShardOrder};
use super::pending::MessageKey;
use super::{QuorumRule, ShardPlacement, Timestamp};

const M: MessageKey = (0, 0);
const N: MessageKey = (1, 0);

/// Shard 0 of ranks 0 to 2, shard 1 of rank 3.
fn placement() -> ShardPlacement {
    ShardPlacement::new(vec![vec![0, 1, 2], vec![3]])
}

fn at(clock: u64, shard: usize) -> Timestamp {
    Timestamp { clock, shard }
}

/// A member of shard 0 that has the record of M, for both shards, and its timestamps 1 and 20.
fn order_with_m() -> ShardOrder {
    let mut order = ShardOrder::new(0, 2, false);
    order.on_record(M, 0b11);
    order.on_timestamp(M, at(1, 0));
    order.on_timestamp(M, at(20, 1));
    order
}

fn next(order: &ShardOrder, quorum: QuorumRule, acknowledged: &[u64]) -> Option<MessageKey> {
    order.next(&placement(), quorum, acknowledged).map(|(key, _)| key)
}

/// \[G4\] \[G6\] The final timestamp is the greatest one; every member of each shard has to acknowledge its shard's timestamp, or
/// more than half of them, the leader among these.
#[test]
fn a_message_waits_for_the_acknowledgements_of_its_shards() {
    let order = order_with_m();
    let (all, majority) = (QuorumRule::All, QuorumRule::Majority);
    assert_eq!(order.next(&placement(), all, &[1, 1, 1, 20]), Some((M, at(20, 1))));
    assert_eq!(next(&order, all, &[1, 1, 0, 20]), None);
    assert_eq!(next(&order, all, &[1, 1, 1, 19]), None);
    assert_eq!(next(&order, majority, &[1, 1, 0, 20]), Some(M));
    assert_eq!(next(&order, majority, &[1, 0, 0, 20]), None);
    assert_eq!(next(&order, majority, &[0, 1, 1, 20]), None, "the leader may give a smaller timestamp");
}

/// \[G6\] What has a timestamp of the shard, and may yet be ordered before, holds the rest back, with its record or without.
#[test]
fn what_may_come_before_is_waited_for() {
    let acknowledged = [2, 2, 2, 20];
    let mut order = order_with_m();
    order.on_timestamp(N, at(2, 0));
    assert_eq!(next(&order, QuorumRule::All, &acknowledged), None, "N may be for shard 0 alone");
    order.on_record(N, 0b11);
    assert_eq!(next(&order, QuorumRule::All, &acknowledged), None, "its other timestamp may be small");
    order.on_timestamp(N, at(21, 1));
    assert_eq!(next(&order, QuorumRule::All, &acknowledged), Some(M));
    order.on_delivery(M);
    assert_eq!(next(&order, QuorumRule::All, &acknowledged), None);
    assert_eq!(next(&order, QuorumRule::All, &[2, 2, 2, 21]), Some(N));
}

/// A message waits for the members whose acknowledgement is missing, and for a leader whose timestamp is.
#[test]
fn who_is_behind_is_counted() {
    let mut order = order_with_m();
    let behind = |order: &ShardOrder, acknowledged: &[u64]| {
        let mut counts = [0; 4];
        order.count_missing(&placement(), QuorumRule::All, acknowledged, &mut counts);
        counts
    };
    assert_eq!(behind(&order, &[1, 1, 1, 20]), [0; 4]);
    assert_eq!(behind(&order, &[1, 0, 1, 19]), [0, 1, 0, 1]);
    order.on_record(N, 0b11);
    assert_eq!(behind(&order, &[1, 1, 1, 20]), [1, 0, 0, 1], "both leaders owe N a timestamp");
    order.on_timestamp(N, at(2, 0));
    assert_eq!(behind(&order, &[1, 1, 2, 20]), [0, 0, 0, 1], "one does, and no other is to blame");
    assert_eq!((order.pending(), order.clock()), (2, 2));
}

/// \[G5\] An acknowledgement has no gaps, and says which shards it is for and to what the clock has to be raised.
#[test]
fn an_acknowledgement_covers_what_is_complete_without_a_gap() {
    let mut order = ShardOrder::new(0, 2, false);
    order.on_timestamp(M, at(1, 0));
    order.on_timestamp(N, at(2, 0));
    order.on_record(N, 0b1);
    assert_eq!(order.cover(), None, "the record of M is missing");
    order.on_record(M, 0b11);
    assert_eq!(order.cover(), None, "a timestamp of M is missing");
    order.on_timestamp(M, at(20, 1));
    assert_eq!(order.cover(), Some(LogCoverage { reach: 2, destinations: 0b11, clock: 20 }));
    assert_eq!((order.cover(), order.reach()), (None, 2));
}

/// \[G7\] A leader gives N a timestamp and then acknowledges M, while this member reads: if it has read the acknowledgement first,
/// it does not count it; if it reads it last, it has missed the timestamp.
#[test]
fn acknowledgements_are_read_before_timestamps() {
    let mut order = order_with_m();
    let (before, after) = ([0, 1, 1, 20], [1, 1, 1, 20]);
    assert_eq!(next(&order, QuorumRule::All, &after), Some(M), "and N, which comes first, is not here");
    order.on_timestamp(N, at(2, 0));
    order.on_record(N, 0b1);
    assert_eq!(next(&order, QuorumRule::All, &before), None);
    assert_eq!(next(&order, QuorumRule::All, &[2, 2, 2, 20]), Some(N));
}

/// \[G10\] \[G12\] A message is in if each of its shards has it within its trim.
#[test]
fn the_trims_of_all_shards_decide() {
    let mut order = order_with_m();
    order.on_record(N, 0b1);
    order.on_timestamp(N, at(2, 0));
    let held = |order: &ShardOrder, trims: [Option<u64>; 2]| {
        order.held(&trims).map(|held| held.into_iter().map(|(key, _)| key).collect::<Vec<_>>())
    };
    assert_eq!(held(&order, [Some(2), Some(20)]), Ok(vec![N, M]));
    assert_eq!(held(&order, [Some(2), Some(19)]), Ok(vec![N]));
    assert_eq!(held(&order, [Some(1), None]), Ok(vec![M]), "all members of shard 1 are gone");
    assert_eq!(held(&order, [Some(0), Some(20)]), Ok(vec![]));
    order.on_timestamp((2, 0), at(3, 0));
    assert_eq!(held(&order, [Some(3), Some(20)]), Err((2, 0)), "no record, though it is within the trim");
    let own = || held(&order, [Some(2), Some(19)]);
    assert_eq!(with(GenuineMutation::OwnTrimDecides, own), Ok(vec![N, M]));
}

/// \[G17\] A message that was delivered in an earlier view holds nothing back, whatever comes of it, and when.
#[test]
fn what_was_delivered_before_has_no_place() {
    let (mut order, late) = (order_with_m(), (2, 0));
    order.drop_message(M);
    order.drop_message(late);
    order.on_record(N, 0b1);
    order.on_timestamp(N, at(2, 0));
    order.on_timestamp(late, at(3, 0));
    order.on_record(late, 0b11);
    assert_eq!(order.cover(), Some(LogCoverage { reach: 3, destinations: 0b1, clock: 2 }));
    assert_eq!(next(&order, QuorumRule::All, &[3, 3, 3, 0]), Some(N));
    let held = order.held(&[Some(3), Some(20)]).unwrap();
    assert_eq!(held, [(N, at(2, 0))]);
}

/// \[G10\] A trim below what was delivered would be a fault of the agreement.
#[test]
#[should_panic(expected = "[G10]")]
fn what_was_delivered_is_within_the_trim() {
    let mut order = order_with_m();
    order.on_delivery(M);
    let _ = order.held(&[Some(0), Some(20)]);
}
