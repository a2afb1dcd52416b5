//! Tests of what comes after the end of a view (Derecho §3.4).

use std::sync::Arc;

use super::*;
use crate::ends::mutation::{EndMutation, with};
use crate::ends::{
    EndReport, KnownEnds, MessageFate, NoWayBack, may_admit, may_depart, message_fate, no_way_back,
};

/// [H16]
#[test]
fn how_a_view_has_ended_is_reported_to_those_behind() {
    let view = view(3, &[]);
    let mut known = KnownEnds::default();
    let end = Arc::new(value(&view, 0b011, &[]));
    known.note(4, end.clone());
    assert_eq!((known.report_to(4), known.report_to(3)), (Some(&end), None));
    assert_eq!(with(EndMutation::KeepEndSilent, || known.report_to(4).cloned()), None);
    assert!(may_depart(set(0b011), set(0b001), set(0b010)) && !may_depart(set(0b011), set(0b001), set(0)));
}

/// What is beyond the trims is sent again, in unordered subgroups as well [H17] [H22].
#[test]
fn the_fate_of_a_message_is_known_from_the_trims() {
    let view = view(3, &[(MEMORY, 0b111)]);
    let end = value(&view, 0b011, &[5]);
    let fate = |end: Option<&EndValue>, stays, count| message_fate(end, stays, 0, 0, count);
    assert_eq!(
        (fate(Some(&end), true, 5), fate(Some(&end), false, 5)),
        (MessageFate::Delivered, MessageFate::Delivered)
    );
    assert_eq!(
        (fate(Some(&end), true, 6), fate(Some(&end), false, 6)),
        (MessageFate::SendAgain, MessageFate::NotDelivered)
    );
    assert_eq!(fate(None, false, 1), MessageFate::Unknown);
    assert_eq!(with(EndMutation::ResendUnknown, || fate(None, false, 1)), MessageFate::SendAgain);
    let given_up = EndValue { given_up: vec![true], ..end };
    assert_eq!(fate(Some(&given_up), true, 5), MessageFate::SendAgain, "it begins anew");
    assert_eq!(fate(Some(&given_up), false, 5), MessageFate::NotDelivered);
}

/// [H18]
#[test]
fn a_member_ends_for_deaths_alone() {
    let memory = view(5, &[(MEMORY, 0b1_1111), (MAJORITY, 0b0_0111)]);
    let why = |view: &EndingView, dead, restarted, silent| {
        no_way_back(view, set(dead), set(restarted), set(silent))
    };
    assert_eq!(why(&memory, 0b1_1000, 0, 0b1_1110), None);
    assert_eq!(why(&memory, 0b1_1100, 0, 0), Some(NoWayBack::Majority(3)));
    assert_eq!(why(&memory, 0b0_0011, 0, 0), Some(NoWayBack::Quorum(1, 2)));
    let for_silence = || why(&memory, 0, 0, 0b1_1110).is_some();
    assert!(!for_silence() && with(EndMutation::EndForSilence, for_silence));
    // Processes with registers may return.
    let durable = view(5, &[(DURABLE, 0b1_1111), (MAJORITY, 0b0_0111)]);
    assert_eq!(why(&durable, 0b1_1100, 0, 0), None);
    assert_eq!(why(&durable, 0b0_0001, 0b0_0010, 0), Some(NoWayBack::Quorum(1, 2)), "their memory does not");
    assert_eq!(why(&durable, 0b0_0001, 0b0_0110, 0), None, "a shard that is wholly gone is given up");
}

/// [H19] [J1]
#[test]
fn a_joiner_is_heard_by_all_and_was_no_member() {
    let report = |hears, leaves| EndReport {
        answer: Arc::new(EndAnswer { hears: set(hears), leaves, ..EndAnswer::default() }),
        ..EndReport::default()
    };
    let admits = |report: &EndReport, hear_it, was_member| {
        may_admit((NodeId(9), report), set(0b0111), set(hear_it), |_| was_member)
    };
    assert!(admits(&report(0b0111, false), 0b0111, false));
    assert!(!admits(&report(0b0011, false), 0b0111, false) && !admits(&report(0b0111, false), 0b1011, false));
    assert!(!admits(&report(0b0111, true), 0b0111, false));
    // A request counts once: a stale one of a process that was let in, and removed before it knew.
    let stale = || admits(&report(0b0111, false), 0b0111, true);
    assert!(!stale() && with(EndMutation::AdmitFormer, stale));
}

/// [K5] [K11]
#[test]
fn the_next_view_is_as_the_value_says() {
    let view = view(4, &[(MEMORY, 0b1110)]);
    let value = EndValue {
        joins: vec![member(9)],
        placement: vec![set(0b1101)],
        whole: vec![set(0b0100)],
        floor: 12,
        ..value(&view, 0b1011, &[3])
    };
    let next = view.next(&value);
    let nodes: Vec<NodeId> = next.members.iter().map(|member| member.node).collect();
    assert_eq!((nodes, next.number, next.floor), ([0, 1, 3, 9].map(NodeId).to_vec(), 5, 12));
    assert_eq!((next.shards[0].members, next.shards[0].leader()), (set(0b1101), Some(2)));
    assert_eq!(view.kept(&value, 0), set(0b1000), "rank 0 was not in the shard, and rank 1 is not any more");
    assert_eq!(view.shards[0].leader(), Some(1));
    assert_eq!((next.rank(NodeId(3)), next.shards[0].columns, next.majority()), (Some(2), 1, 3));
    assert!(!view.is_durable());
}
