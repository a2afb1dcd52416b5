//! Tests of the registry.

use super::*;
use crate::cache::ChangeKind;
use crate::qos::{HistoryKind, Presentation};
use crate::sample::EndpointId;
use crate::wire::{
    ChangeHeader, begin_set, encode_client, encode_gone, encode_renewal, encode_service, extend_set,
};

fn topic(name: &str, qos: Qos) -> RegisteredTopic {
    RegisteredTopic { name: name.into(), type_name: "T".into(), type_hash: 0, qos }
}

fn apply(registry: &mut TopicRegistry, bytes: Vec<u8>) -> KeptReply {
    let StoreReply::Update(reply) = registry.apply(bytes.into()) else { panic!("it is an update") };
    reply
}

fn create(registry: &mut TopicRegistry, topic: &RegisteredTopic) -> KeptReply {
    apply(registry, topic.encode())
}

fn message(topic: u32, key: u8) -> Vec<u8> {
    let writer = EndpointId { node: 0, number: 0 };
    let header = ChangeHeader { kind: ChangeKind::Data, topic, writer, source_time: 0, key: &[key] };
    let mut bytes = vec![0; header.length_with(0)];
    header.write(&mut bytes);
    bytes
}

fn write(registry: &mut TopicRegistry, topic: u32, key: u8) -> KeptReply {
    apply(registry, message(topic, key))
}

fn transferred(registry: &TopicRegistry) -> TopicRegistry {
    let mut bytes = Vec::new();
    registry.snapshot().write(&mut bytes).expect("memory takes it");
    TopicRegistry::restore(&mut &bytes[..]).expect("it is a state")
}

/// Creating a topic twice finds it; a topic that would differ is refused, and leaves what is there.
#[test]
fn a_topic_is_created_once() {
    let mut registry = TopicRegistry::default();
    for (name, qos, number) in [("a", Qos::ATOMIC, 0), ("b", Qos::KEPT, 1), ("a", Qos::ATOMIC, 0)] {
        assert_eq!(create(&mut registry, &topic(name, qos)), KeptReply::Topic(number));
    }
    assert_eq!(create(&mut registry, &topic("a", Qos::UNORDERED)), KeptReply::QosDiffers(0));
    let service = DurabilityService { history: HistoryKind::KeepLast(1), ..DurabilityService::EVERYTHING };
    let short = Qos { durability_service: Some(service), ..Qos::KEPT };
    assert_eq!(create(&mut registry, &topic("b", short)), KeptReply::QosDiffers(1));
    let reader_s = Qos { history: HistoryKind::KeepLast(1), ..Qos::KEPT };
    assert_eq!(create(&mut registry, &topic("b", reader_s)), KeptReply::Topic(1));
    let other = RegisteredTopic { type_name: "U".into(), ..topic("a", Qos::ATOMIC) };
    assert_eq!(create(&mut registry, &other), KeptReply::TypeDiffers(0));
    assert_eq!(registry.topics().len(), 2);
}

/// A type whose form has changed under the same name is another one; a type without a hash suits by its name.
#[test]
fn hashes_of_types_are_compared_if_both_are_known() {
    let mut registry = TopicRegistry::default();
    let with = |name: &str, type_hash| RegisteredTopic { type_hash, ..topic(name, Qos::ATOMIC) };
    assert_eq!(create(&mut registry, &with("a", 7)), KeptReply::Topic(0));
    assert_eq!(create(&mut registry, &with("a", 8)), KeptReply::TypeDiffers(0));
    assert_eq!(create(&mut registry, &with("a", 0)), KeptReply::Topic(0));
}

/// A creation whose policies are refused, as only a faulty member or client would send it, changes nothing.
#[test]
fn policies_that_are_refused_create_nothing() {
    let mut registry = TopicRegistry::default();
    let everything = DurabilityService::EVERYTHING;
    let none = DurabilityService { samples_max: 0, ..everything };
    let flat = DurabilityService { history: HistoryKind::KeepLast(0), ..everything };
    for service in [none, flat] {
        let wanted = topic("a", Qos { durability_service: Some(service), ..Qos::KEPT });
        assert_eq!(create(&mut registry, &wanted), KeptReply::Malformed);
        assert_eq!(apply(&mut registry, encode_service(service)), KeptReply::Malformed);
    }
    let other = topic("a", Qos { ownership_strength: 7, ..Qos::ATOMIC });
    assert_eq!(create(&mut registry, &other), KeptReply::Malformed);
    assert!(registry.topics().is_empty());
}

#[test]
fn topics_are_bounded() {
    let mut registry = TopicRegistry::default();
    for number in 0..TOPICS_MAX {
        let created = create(&mut registry, &topic(&number.to_string(), Qos::ATOMIC));
        assert_eq!(created, KeptReply::Topic(u32::try_from(number).expect("few")));
    }
    assert_eq!(create(&mut registry, &topic("one more", Qos::ATOMIC)), KeptReply::TooManyTopics);
    assert_eq!(create(&mut registry, &topic("0", Qos::ATOMIC)), KeptReply::Topic(0));
}

/// Each topic has its history; the order extends over all of them, also after the state was transferred.
#[test]
fn histories_are_apart_and_in_one_order() {
    let mut registry = TopicRegistry::default();
    for name in ["a", "b"] {
        create(&mut registry, &topic(name, Qos::KEPT));
    }
    create(&mut registry, &topic("c", Qos::ATOMIC));
    for (topic, key) in [(0, 0), (1, 1), (0, 2)] {
        assert_eq!(write(&mut registry, topic, key), KeptReply::Kept);
    }
    assert_eq!(write(&mut registry, 2, 0), KeptReply::Malformed, "it keeps nothing");
    assert_eq!(write(&mut registry, 9, 0), KeptReply::Malformed, "there is no such topic");
    let mut joiner = transferred(&registry);
    for registry in [&mut registry, &mut joiner] {
        assert_eq!(write(registry, 1, 3), KeptReply::Kept);
        let orders = |topic| registry.history(topic).expect("it keeps").samples(0);
        let orders = |topic| orders(topic).map(|(number, sample)| (number, sample.order)).collect::<Vec<_>>();
        assert_eq!([orders(0), orders(1)], [[(0, 0), (1, 2)], [(0, 1), (1, 3)]]);
        assert_eq!(registry.topics().len(), 3);
    }
}

/// Topics of one profile take turns, whatever other topics there are; those in one order stay together.
#[test]
fn a_lane_follows_from_the_registry() {
    let mut registry = TopicRegistry::default();
    let grouped = Qos { presentation: Presentation::GROUP_COHERENT, ..Qos::ATOMIC };
    let topics = [Qos::ATOMIC, Qos::KEPT, grouped.clone(), Qos::ATOMIC, Qos::UNORDERED, grouped, Qos::ATOMIC];
    for (number, qos) in topics.into_iter().enumerate() {
        create(&mut registry, &topic(&number.to_string(), qos));
    }
    assert_eq!([0, 3, 6].map(|topic| registry.lane(topic, 3)), [1, 2, 1]);
    assert_eq!([2, 5].map(|topic| registry.lane(topic, 3)), [0, 0]);
    assert_eq!([0, 2, 4].map(|topic| registry.lane(topic, 1)), [0, 0, 0]);
}

/// A set is kept as a whole, at one place in the order, or not at all.
#[test]
fn a_set_is_kept_or_not() {
    let mut registry = TopicRegistry::default();
    let two = DurabilityService { history: HistoryKind::KeepAll, samples_max: 2 };
    create(&mut registry, &topic("a", Qos { durability_service: Some(two), ..Qos::KEPT }));
    create(&mut registry, &topic("b", Qos::KEPT));
    let set = |changes: &[(u32, u8)]| {
        let mut set = begin_set();
        changes.iter().for_each(|(topic, key)| extend_set(&mut set, &message(*topic, *key)));
        set
    };
    let places = |registry: &TopicRegistry, topic| {
        let samples = registry.history(topic).expect("it keeps").samples(0);
        samples.map(|(_, sample)| (sample.order, sample.place)).collect::<Vec<_>>()
    };
    assert_eq!(write(&mut registry, 0, 0), KeptReply::Kept);
    assert_eq!(apply(&mut registry, set(&[(1, 0), (0, 1), (0, 2)])), KeptReply::Full);
    assert_eq!(apply(&mut registry, set(&[(1, 0), (7, 1)])), KeptReply::Malformed, "there is no such topic");
    assert!(places(&registry, 1).is_empty());
    assert_eq!(apply(&mut registry, set(&[(1, 0), (0, 1), (1, 2)])), KeptReply::Kept);
    assert_eq!([places(&registry, 0), places(&registry, 1)], [[(0, 0), (1, 1)], [(1, 0), (1, 2)]]);
}

/// Clients outside the group have numbers that no node has, also after a transfer of the state. The first one says where they begin.
#[test]
fn clients_have_numbers_of_their_own() {
    let mut registry = TopicRegistry::default();
    create(&mut registry, &topic("a", Qos::KEPT));
    let admit = |registry: &mut TopicRegistry| apply(registry, encode_client(CLIENT_NUMBERS - 2));
    let client = |step| KeptReply::Client(FIRST_CLIENT + step);
    assert_eq!(admit(&mut registry), KeptReply::Client(u32::MAX - 1));
    let mut joiner = transferred(&registry);
    assert_eq!([admit(&mut registry), admit(&mut joiner)], [KeptReply::Client(u32::MAX); 2]);
    assert_eq!([admit(&mut registry), admit(&mut registry)], [client(0), client(1)]);
    // A number is free when the client has gone and nothing of it is kept; it is given again after all others.
    registry.last_client = Some(u32::MAX);
    let id = EndpointId { node: FIRST_CLIENT, number: 0 };
    let writer = EndpointAnnouncement { id, role: TopicRole::Writer, type_name: "T".into(), qos: Qos::KEPT };
    apply(&mut registry, writer.encode(0));
    let header = ChangeHeader { kind: ChangeKind::Data, topic: 0, writer: id, source_time: 0, key: &[] };
    let mut bytes = vec![0; header.length_with(0)];
    header.write(&mut bytes);
    assert_eq!(apply(&mut registry, bytes.clone()), KeptReply::Kept);
    for node in [FIRST_CLIENT, FIRST_CLIENT + 1] {
        apply(&mut registry, encode_gone(GoneProcess { node, before: u64::MAX }));
        assert_eq!(apply(&mut registry, encode_renewal(node)), KeptReply::Expired);
    }
    assert_eq!(apply(&mut registry, bytes), KeptReply::Expired);
    assert_eq!(apply(&mut registry, writer.encode(0)), KeptReply::Expired);
    assert_eq!([admit(&mut registry), admit(&mut registry)], [client(1), client(2)]);
}

#[test]
fn clients_are_bounded() {
    let mut registry = TopicRegistry::default();
    for _ in 0..CLIENTS_MAX {
        assert!(matches!(apply(&mut registry, encode_client(0)), KeptReply::Client(_)));
    }
    assert_eq!(apply(&mut registry, encode_client(0)), KeptReply::TooManyEndpoints);
    apply(&mut registry, encode_gone(GoneProcess { node: FIRST_CLIENT, before: u64::MAX }));
    assert!(matches!(apply(&mut registry, encode_client(0)), KeptReply::Client(_)));
}

#[test]
fn what_is_no_message_is_refused() {
    assert_eq!(apply(&mut TopicRegistry::default(), vec![0xff]), KeptReply::Malformed);
}
