//! Tests of histories.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::qos::Qos;

const WRITER: EndpointId = EndpointId { node: 0, number: 0 };

fn message(kind: ChangeKind, key: u8, number: u8) -> Vec<u8> {
    let header = ChangeHeader { kind, topic: 0, writer: WRITER, source_time: 0, key: &[key] };
    let mut bytes = vec![0; header.length_with(1)];
    header.write(&mut bytes)[0] = number;
    bytes
}

fn apply(topic: &mut KeptTopic, bytes: &[u8]) -> KeptReply {
    topic.keep(Bytes::copy_from_slice(bytes), (0, 0))
}

fn topic(history: HistoryKind, samples_max: usize) -> KeptTopic {
    let mut topic = KeptTopic::default();
    assert_eq!(topic.serve(DurabilityService { history, samples_max }), KeptReply::Kept);
    topic
}

fn contents(topic: &KeptTopic) -> Vec<u8> {
    topic.samples(0).map(|(_, sample)| *sample.bytes.last().expect("it has data")).collect()
}

fn transferred(topic: &KeptTopic) -> KeptTopic {
    let bytes = postcard::to_stdvec(topic.state()).expect("it can be serialised");
    KeptTopic::of(postcard::from_bytes(&bytes).expect("it is a state"))
}

#[test]
fn a_short_history_keeps_the_latest_of_each_instance() {
    let mut topic = topic(HistoryKind::KeepLast(1), 3);
    for (kind, key, number) in
        [(ChangeKind::Data, 0, 0), (ChangeKind::Dispose, 0, 1), (ChangeKind::Data, 1, 2)]
    {
        assert_eq!(apply(&mut topic, &message(kind, key, number)), KeptReply::Kept);
    }
    assert_eq!(
        apply(&mut topic, &message(ChangeKind::Data, 2, 3)),
        KeptReply::Full,
        "a new instance needs space"
    );
    assert_eq!(apply(&mut topic, &message(ChangeKind::Data, 0, 4)), KeptReply::Kept);
    assert_eq!(contents(&topic), [1, 2, 4]);
}

#[test]
fn a_full_history_refuses() {
    let mut topic = topic(HistoryKind::KeepAll, 2);
    let replies = [0, 1, 2].map(|number| apply(&mut topic, &message(ChangeKind::Data, 0, number)));
    assert_eq!(replies, [KeptReply::Kept, KeptReply::Kept, KeptReply::Full]);
    assert_eq!(contents(&topic), [0, 1]);
}

/// Disposing of an instance again and again must not fill the history.
#[test]
fn a_change_of_state_is_kept_once() {
    let mut topic = topic(HistoryKind::KeepAll, 3);
    assert_eq!(apply(&mut topic, &message(ChangeKind::Dispose, 0, 0)), KeptReply::Kept);
    assert!(contents(&topic).is_empty(), "there is no such instance");
    assert_eq!(apply(&mut topic, &message(ChangeKind::Data, 0, 1)), KeptReply::Kept);
    for number in 2..9 {
        assert_eq!(apply(&mut topic, &message(ChangeKind::Dispose, 0, number)), KeptReply::Kept);
    }
    assert_eq!(contents(&topic), [1, 2]);
    assert_eq!(apply(&mut topic, &message(ChangeKind::Data, 0, 9)), KeptReply::Kept);
    assert_eq!(contents(&topic), [1, 2, 9]);
}

/// Members that would keep different samples would have different histories.
#[test]
fn the_first_participant_says_what_is_kept() {
    let mut topic = topic(HistoryKind::KeepAll, 2);
    let present = DurabilityService { history: HistoryKind::KeepAll, samples_max: 2 };
    let other = DurabilityService { samples_max: 3, ..present };
    assert_eq!(topic.serve(other), KeptReply::Conflict(present));
    assert_eq!(topic.serve(present), KeptReply::Kept);
    assert_eq!(apply(&mut KeptTopic::default(), &message(ChangeKind::Data, 0, 0)), KeptReply::Malformed);
}

#[test]
fn an_endpoint_goes_once() {
    let mut topic = topic(HistoryKind::KeepAll, 2);
    let announcement =
        |role| EndpointAnnouncement { id: WRITER, role, type_name: "T".into(), qos: Qos::KEPT };
    for role in [TopicRole::Gone, TopicRole::Writer, TopicRole::Gone, TopicRole::Gone] {
        assert_eq!(topic.announce(announcement(role), 0), KeptReply::Kept);
    }
    assert_eq!((topic.announcements(0).count(), topic.forgotten()), (0, 1));
    let roles =
        |topic: &KeptTopic| topic.announcements(0).map(|(_, each)| each.endpoint.role).collect::<Vec<_>>();
    assert_eq!(topic.announce(announcement(TopicRole::Writer), 0), KeptReply::Kept);
    assert_eq!(topic.announce(announcement(TopicRole::Writer), 0), KeptReply::Kept);
    assert_eq!(roles(&topic), [TopicRole::Writer]);
    assert_eq!(apply(&mut topic, &message(ChangeKind::Data, 0, 0)), KeptReply::Kept);
    assert_eq!(topic.announce(announcement(TopicRole::Gone), 0), KeptReply::Kept);
    assert_eq!(roles(&topic), [TopicRole::Writer, TopicRole::Gone], "a message of it is there");
    assert_eq!(transferred(&topic).endpoints().count(), 0);
}

#[test]
fn announcements_are_bounded() {
    let mut topic = topic(HistoryKind::KeepAll, 2);
    let announce = |topic: &mut KeptTopic, number: usize, role| {
        let id = EndpointId { node: u32::try_from(number).expect("few"), number: 0 };
        topic.announce(EndpointAnnouncement { id, role, type_name: "T".into(), qos: Qos::KEPT }, 0)
    };
    for number in 0..ANNOUNCEMENTS_MAX {
        assert_eq!(announce(&mut topic, number, TopicRole::Reader), KeptReply::Kept);
    }
    let one_more = announce(&mut topic, ANNOUNCEMENTS_MAX, TopicRole::Reader);
    assert_eq!(one_more, KeptReply::TooManyEndpoints);
    assert_eq!(announce(&mut topic, 0, TopicRole::Gone), KeptReply::Kept);
}

/// Writers of which a sample is kept may be more than there may be endpoints: the samples bound them.
#[test]
fn writers_that_have_gone_leave_space_for_others() {
    let mut topic = topic(HistoryKind::KeepAll, ANNOUNCEMENTS_MAX);
    for node in 0..u32::try_from(ANNOUNCEMENTS_MAX / 2 + 1).expect("few") {
        let id = EndpointId { node, number: 0 };
        let writer =
            EndpointAnnouncement { id, role: TopicRole::Writer, type_name: "T".into(), qos: Qos::KEPT };
        assert_eq!(topic.announce(writer.clone(), 0), KeptReply::Kept);
        let header = ChangeHeader { kind: ChangeKind::Data, topic: 0, writer: id, source_time: 0, key: &[] };
        let mut bytes = vec![0; header.length_with(0)];
        header.write(&mut bytes);
        assert_eq!(apply(&mut topic, &bytes), KeptReply::Kept);
        topic.end_process(GoneProcess { node, before: u64::MAX }, 0);
    }
    assert!(topic.announcements(0).count() > ANNOUNCEMENTS_MAX);
}

proptest! {
    /// What is read in parts, in any steps, is what is read at once: every announcement before the samples after it.
    #[test]
    fn parts_are_the_history(events in proptest::collection::vec(any::<bool>(), 0..600)) {
        let mut topic = topic(HistoryKind::KeepAll, 1000);
        for (number, is_sample) in events.iter().enumerate() {
            if *is_sample {
                let bytes = [message(ChangeKind::Data, 0, 0), vec![0; 20_000]].concat();
                let order = u64::try_from(number).expect("few");
                topic.keep(bytes.into(), (order, 0));
            } else {
                let id = EndpointId { node: u32::try_from(number).expect("few"), number: 0 };
                topic.announce(EndpointAnnouncement { id, role: TopicRole::Reader, type_name: "T".into(), qos: Qos::KEPT }, 0);
            }
        }
        let (mut announcement, mut first, mut read) = (0, 0, 0);
        while topic.announcements(announcement).next().is_some() || first != topic.next() {
            let part = topic.part(announcement, first, 0, 0).state;
            prop_assert!(part.samples.iter().map(|(number, _)| number).eq(first..part.next), "nothing is left out");
            let bytes: usize = part.samples.iter().map(|(_, sample)| sample.bytes.len()).sum();
            prop_assert!(bytes <= PART_BYTES + 40_000);
            for (number, each) in &part.announcements {
                let next = topic.announcements(announcement).next();
                prop_assert_eq!(next.map(|(number, next)| (number, next.next)), Some((*number, each.next)));
                prop_assert!((first..=part.next).contains(&each.next), "in its place");
                announcement = number + 1;
            }
            // No announcement that is not in the part belongs before a sample that is.
            let next = topic.announcements(announcement).next();
            prop_assert!(next.is_none_or(|(_, next)| next.next >= part.next));
            read += part.samples.len();
            prop_assert!(part.next > first || !part.announcements.is_empty(), "it proceeds");
            first = part.next;
        }
        prop_assert_eq!(read, topic.samples(0).count());
    }

    /// A member that gets the state at any moment holds what the others hold, then and afterwards.
    #[test]
    fn a_transferred_history_continues_as_the_original(
        messages in proptest::collection::vec((0u8..4, 0u8..3), 0..40),
        at in 0usize..40,
        depth in 0usize..3,
    ) {
        let history = if depth == 0 { HistoryKind::KeepAll } else { HistoryKind::KeepLast(depth) };
        let mut topic = topic(history, 10);
        let mut joiner = None;
        for (number, (kind, key)) in messages.into_iter().enumerate() {
            if number == at {
                joiner = Some(transferred(&topic));
            }
            let kind = [ChangeKind::Data, ChangeKind::Data, ChangeKind::Dispose, ChangeKind::Unregister][usize::from(kind)];
            let bytes = message(kind, key, u8::try_from(number).expect("few"));
            let reply = apply(&mut topic, &bytes);
            if let Some(joiner) = &mut joiner {
                prop_assert_eq!(apply(joiner, &bytes), reply);
                prop_assert_eq!(contents(joiner), contents(&topic));
            }
        }
        prop_assert!(topic.kept.samples.len() <= 10);
    }
}
