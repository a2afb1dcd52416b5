//! Write delays of genuine multicast, counted without faults (RamCast §3.4).

use squall_protocols::genuine::QuorumRule;
use squall_simulator::genuine::steps::{StepSender, count};

/// Three write delays at all members, whatever the number of shards, as in the paper: record, timestamps, acknowledgements.
#[test]
fn several_shards_take_three_write_delays() {
    for (shards, members) in [(2, 1), (2, 2), (2, 3), (4, 3), (8, 3)] {
        for quorum in [QuorumRule::All, QuorumRule::Majority] {
            let steps = count(shards, members, quorum, StepSender::Outsider);
            assert_eq!((steps.first, steps.last), (3, 3), "{shards} shards of {members}, {quorum:?}");
        }
    }
}

/// One shard saves the delay of the record if its leader sends, and with a majority followers count their own acknowledgement when
/// the timestamp is there.
#[test]
fn one_shard_takes_two_or_three() {
    let steps = |quorum, sender| {
        let steps = count(1, 3, quorum, sender);
        (steps.first, steps.last)
    };
    let (all, majority) = (QuorumRule::All, QuorumRule::Majority);
    assert_eq!(steps(all, StepSender::Leader), (2, 2));
    assert_eq!(steps(all, StepSender::Follower), (3, 3));
    assert_eq!(steps(all, StepSender::Outsider), (3, 3));
    assert_eq!(steps(majority, StepSender::Leader), (1, 2));
    assert_eq!(steps(majority, StepSender::Follower), (2, 3));
    assert_eq!(steps(majority, StepSender::Outsider), (2, 3));
}
