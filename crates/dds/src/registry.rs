//! The replicated object of a domain: the topics that were created at run time, and the histories of topics that keep samples.
//!
//! Every member of the group has it, so creating a topic is one update, and a topic has the same number everywhere: its place among the
//! topics. Where a topic's samples travel follows from the registry alone ([`TopicRegistry::lane`]): the subgroups are there from the start, and
//! carry all topics of their profile, so no view changes. A topic that has a subgroup of its own and keeps samples has such an object for
//! itself, without a list of topics.
//!
//! Invariants: `topics` only grows. A topic whose profile keeps samples has a history. Orders of samples grow in each history, and
//! a sample's order is below `order`.
//!
//! `Deviation:` (Spindle §4.6) each topic has a subgroup. Here topics that are created at run time share a fixed set of subgroups, so that
//! neither creating one nor fifty idle ones cost the others anything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use squall::object::{Replicated, Snapshot, restored};

use crate::buffer::{HistoryMessage, SampleBuffer};
use crate::kept::{KeptPart, KeptReply, KeptState, KeptTopic};
use crate::qos::{DurabilityService, PresentationScope, Profile, Qos};
use crate::wire::{
    EndpointAnnouncement, OWN_SUBGROUP, RegisteredTopic, SetChange, TopicFrame, decode_service, read_set,
};

/// The topics of a domain, and their histories.
#[derive(Debug, Default)]
pub(crate) struct TopicRegistry {
    topics: Vec<Arc<RegisteredTopic>>,
    histories: BTreeMap<u32, KeptTopic>,
    /// The order of the next sample of any topic.
    order: u64,
    /// How many clients outside the group there have been.
    clients: u32,
}

/// What is the same at all members.
#[derive(Debug, Serialize, Deserialize)]
struct RegistryState {
    topics: Vec<Arc<RegisteredTopic>>,
    histories: BTreeMap<u32, KeptState>,
    order: u64,
    clients: u32,
}

/// What clients outside the group ask for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum StoreQuery {
    /// The topics that were created at run time.
    Topics,
    /// A part of a topic's history, from this announcement and this sample on, for a client that has seen this number of endpoints forgotten.
    Part { topic: u32, announcement: u64, first: u64, forgotten: u64 },
}

/// What the registry answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StoreReply {
    Update(KeptReply),
    Topics(Vec<Arc<RegisteredTopic>>),
    /// `None` if the topic has no history.
    Part(Option<Box<KeptPart>>),
}

impl TopicRegistry {
    /// Returns the topics that were created at run time; each has its place as its number.
    pub(crate) fn topics(&self) -> &[Arc<RegisteredTopic>] {
        &self.topics
    }

    /// Returns the topic of this name, and its number.
    pub(crate) fn find(&self, name: &str) -> Option<(u32, &Arc<RegisteredTopic>)> {
        (0..).zip(&self.topics).find(|(_, topic)| topic.name == name)
    }

    /// Returns the history of a topic; `None` if it has none.
    pub(crate) fn history(&self, topic: u32) -> Option<&KeptTopic> {
        self.histories.get(&topic)
    }

    /// Returns the announcements of the endpoints of `node` that are open in histories, each with its topic, and the number after the
    /// greatest one that is known of the node.
    pub(crate) fn endpoints_of(&self, node: u32) -> (Vec<(u32, Arc<EndpointAnnouncement>)>, u32) {
        let (mut open, mut next) = (Vec::new(), 0);
        for (topic, history) in &self.histories {
            let (of_topic, next_of_topic) = history.endpoints_of(node);
            open.extend(of_topic.into_iter().map(|endpoint| (*topic, endpoint)));
            next = next.max(next_of_topic);
        }
        (open, next)
    }

    /// Returns which of the lanes of its profile carries a topic that keeps nothing: topics that are in one order with others are in the first
    /// one, and the rest takes turns on the others, if there are any.
    pub(crate) fn lane(&self, topic: u32, lanes: usize) -> usize {
        let Some(of) = self.topics.get(topic as usize).filter(|of| lanes > 1 && !is_grouped(&of.qos)) else {
            return 0;
        };
        let takes_turns = |before: &&Arc<RegisteredTopic>| {
            before.qos.profile() == of.qos.profile() && !is_grouped(&before.qos)
        };
        1 + self.topics[..topic as usize].iter().filter(takes_turns).count() % (lanes - 1)
    }

    fn create(&mut self, wanted: RegisteredTopic) -> KeptReply {
        if let Some((number, present)) = self.find(&wanted.name) {
            return match () {
                () if !present.has_type_of(&wanted) => KeptReply::TypeDiffers(number),
                () if !present.suits(&wanted.qos) => KeptReply::QosDiffers(number),
                () => KeptReply::Topic(number),
            };
        }
        if self.topics.len() >= TOPICS_MAX {
            return KeptReply::TooManyTopics;
        }
        let number = u32::try_from(self.topics.len()).expect("topics are bounded");
        if keeps(wanted.qos.profile()) {
            let mut history = KeptTopic::default();
            history.serve(service(&wanted.qos));
            self.histories.insert(number, history);
        }
        self.topics.push(Arc::new(wanted));
        KeptReply::Topic(number)
    }

    /// Returns the order of the next sample.
    pub(crate) const fn order(&self) -> u64 {
        self.order
    }

    const fn next_order(&mut self) -> u64 {
        let order = self.order;
        self.order += 1;
        order
    }

    /// Gives a client outside the group a number, below those of the clients before it and above all nodes.
    fn admit(&mut self) -> KeptReply {
        let node = u32::MAX - self.clients;
        if node < FIRST_CLIENT {
            return KeptReply::TooManyEndpoints;
        }
        self.clients += 1;
        KeptReply::Client(node)
    }

    /// Keeps all of these changes, or none, at one place in the order.
    fn keep_set(&mut self, changes: &[SetChange<'_>]) -> KeptReply {
        let topics: BTreeSet<u32> = changes.iter().map(|change| change.header.topic).collect();
        for topic in topics {
            let Some(history) = self.histories.get(&topic) else { return KeptReply::Malformed };
            let of_topic = changes.iter().map(|change| change.header).filter(|header| header.topic == topic);
            if !history.admits(of_topic) {
                return KeptReply::Full;
            }
        }
        let order = self.next_order();
        for (place, change) in (0..).zip(changes) {
            let history = self.histories.get_mut(&change.header.topic).expect("it was there before");
            let kept = history.keep(SampleBuffer::copy_to_share(change.bytes), (order, place));
            if kept != KeptReply::Kept {
                debug_assert!(false, "there was space for the whole set: {kept:?}");
                return kept;
            }
        }
        KeptReply::Kept
    }

    fn change(&mut self, bytes: Bytes) -> KeptReply {
        match TopicFrame::decode(&bytes) {
            None => KeptReply::Malformed,
            Some(TopicFrame::Client) => self.admit(),
            Some(TopicFrame::Creation(body)) => {
                RegisteredTopic::decode(body).map_or(KeptReply::Malformed, |topic| self.create(topic))
            }
            Some(TopicFrame::Service(body)) => decode_service(body).map_or(KeptReply::Malformed, |service| {
                self.histories.entry(OWN_SUBGROUP).or_default().serve(service)
            }),
            Some(TopicFrame::Announcement(topic, body)) => {
                let order = self.next_order();
                let history = self.histories.get_mut(&topic);
                let announced = history.zip(EndpointAnnouncement::decode(body));
                announced
                    .map_or(KeptReply::Malformed, |(history, endpoint)| history.announce(endpoint, order))
            }
            Some(TopicFrame::Change(header, _)) => {
                let Some(history) = self.histories.get_mut(&header.topic) else {
                    return KeptReply::Malformed;
                };
                let order = self.order;
                self.order += 1;
                history.keep(bytes, (order, 0))
            }
            Some(TopicFrame::Set(body)) => {
                read_set(body).map_or(KeptReply::Malformed, |changes| self.keep_set(&changes))
            }
        }
    }
}

impl RegisteredTopic {
    /// Returns whether another description is of the same type: by its name, and by its hash if both have one.
    fn has_type_of(&self, other: &Self) -> bool {
        let hashes = [self.type_hash, other.type_hash];
        self.type_name == other.type_name && (hashes.contains(&0) || self.type_hash == other.type_hash)
    }

    /// Returns whether a topic with the policies `wanted` would work as this one does; other policies are those of writers and readers.
    fn suits(&self, wanted: &Qos) -> bool {
        let of = |qos: &Qos| (qos.profile(), is_grouped(qos), keeps(qos.profile()).then(|| service(qos)));
        of(&self.qos) == of(wanted)
    }
}

impl Replicated for TopicRegistry {
    type Update = HistoryMessage;
    type Query = StoreQuery;
    type Reply = StoreReply;

    fn apply(&mut self, HistoryMessage(bytes): HistoryMessage) -> StoreReply {
        StoreReply::Update(self.change(bytes))
    }

    fn query(&self, query: StoreQuery) -> StoreReply {
        match query {
            StoreQuery::Topics => StoreReply::Topics(self.topics.clone()),
            StoreQuery::Part { topic, announcement, first, forgotten } => {
                let part = |history: &KeptTopic| history.part(announcement, first, forgotten, self.order);
                StoreReply::Part(self.histories.get(&topic).map(part).map(Box::new))
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let histories = self.histories.iter().map(|(topic, history)| (*topic, history.state().clone()));
        let (topics, histories) = (self.topics.clone(), histories.collect());
        let state = RegistryState { topics, histories, order: self.order, clients: self.clients };
        Snapshot::new(move |sink: &mut dyn Write| {
            let mut sink = io::BufWriter::new(sink);
            postcard::to_io(&state, &mut sink).map_err(io::Error::other)?;
            sink.flush()
        })
    }

    fn restore(source: &mut dyn Read) -> io::Result<Self> {
        let RegistryState { topics, histories, order, clients } = restored(source)?;
        let histories = histories.into_iter().map(|(topic, state)| (topic, KeptTopic::of(state)));
        Ok(Self { topics, histories: histories.collect(), order, clients })
    }
}

/// Returns whether topics of this profile have a history.
pub(crate) const fn keeps(profile: Profile) -> bool {
    matches!(profile, Profile::Kept | Profile::Logged)
}

/// Returns whether a topic with these policies is in one order with others.
pub(crate) fn is_grouped(qos: &Qos) -> bool {
    qos.presentation.scope == PresentationScope::Group
}

/// Returns what a topic with these policies keeps.
pub(crate) fn service(qos: &Qos) -> DurabilityService {
    qos.durability_service.unwrap_or(DurabilityService::EVERYTHING)
}

/// Clients outside the group have numbers from here on, which nodes reach after some 66 million views.
pub(crate) const FIRST_CLIENT: u32 = u32::MAX - (1 << 24);
/// The bound of the topics of a domain: each is in the memory of every participant.
pub(crate) const TOPICS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::ChangeKind;
    use crate::qos::{HistoryKind, Presentation};
    use crate::sample::EndpointId;
    use crate::wire::{ChangeHeader, begin_set, encode_client, encode_service, extend_set};

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
        let service =
            DurabilityService { history: HistoryKind::KeepLast(1), ..DurabilityService::EVERYTHING };
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
            let orders =
                |topic| orders(topic).map(|(number, sample)| (number, sample.order)).collect::<Vec<_>>();
            assert_eq!([orders(0), orders(1)], [[(0, 0), (1, 2)], [(0, 1), (1, 3)]]);
            assert_eq!(registry.topics().len(), 3);
        }
    }

    /// Topics of one profile take turns, whatever other topics there are; those in one order stay together.
    #[test]
    fn a_lane_follows_from_the_registry() {
        let mut registry = TopicRegistry::default();
        let grouped = Qos { presentation: Presentation::GROUP_COHERENT, ..Qos::ATOMIC };
        let topics =
            [Qos::ATOMIC, Qos::KEPT, grouped.clone(), Qos::ATOMIC, Qos::UNORDERED, grouped, Qos::ATOMIC];
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
        assert_eq!(
            apply(&mut registry, set(&[(1, 0), (7, 1)])),
            KeptReply::Malformed,
            "there is no such topic"
        );
        assert!(places(&registry, 1).is_empty());
        assert_eq!(apply(&mut registry, set(&[(1, 0), (0, 1), (1, 2)])), KeptReply::Kept);
        assert_eq!([places(&registry, 0), places(&registry, 1)], [[(0, 0), (1, 1)], [(1, 0), (1, 2)]]);
    }

    /// Clients outside the group have numbers that no node has, also after a transfer of the state.
    #[test]
    fn clients_have_numbers_of_their_own() {
        let mut registry = TopicRegistry::default();
        let admit = |registry: &mut TopicRegistry| apply(registry, encode_client());
        assert_eq!(admit(&mut registry), KeptReply::Client(u32::MAX));
        let mut joiner = transferred(&registry);
        assert_eq!([admit(&mut registry), admit(&mut joiner)], [KeptReply::Client(u32::MAX - 1); 2]);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(apply(&mut TopicRegistry::default(), vec![0xff]), KeptReply::Malformed);
    }
}
