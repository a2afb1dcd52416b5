//! The history of a topic: what readers that come later get (OMG DDS 1.4 §2.2.3.4; Spindle §4.6, "volatile storage" and "logged
//! storage").
//!
//! Histories are the state of a replicated object ([`crate::registry`]), which every member of the group has. A member that joins gets them
//! by the object's state transfer, and after a restart each member makes them again from its log, if the object has one. A reader remembers
//! the number of the next sample, so it gets each one once and in order, whether it reads the transferred state or what was applied
//! later.
//!
//! `Deviation:` (Spindle §4.6) each receiver stores incoming samples in memory, or appends them to a log. As an object's state, they reach a
//! joiner together with their place in the order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cache::ChangeKind;
use crate::qos::{DurabilityService, HistoryKind};
use crate::sample::EndpointId;
use crate::wire::{ChangeHeader, EndpointAnnouncement, TopicFrame, TopicRole};

/// A topic's history, at one member.
#[derive(Debug, Default)]
pub(crate) struct KeptTopic {
    kept: KeptState,
    /// The messages of each instance, oldest first.
    instances: BTreeMap<Vec<u8>, KeptInstance>,
    /// The endpoints that have been announced and have not gone.
    open: BTreeSet<EndpointId>,
}

/// What is the same at all members.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptState {
    /// What the first participant said that is to be kept; `None` before that.
    service: Option<DurabilityService>,
    /// The number of the next message.
    next: u64,
    samples: BTreeMap<u64, KeptSample>,
    announcements: Vec<KeptAnnouncement>,
}

/// A message that is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptSample {
    /// Its place among the messages of all topics of the object.
    pub(crate) order: u64,
    /// Its place in the coherent set that has this order; 0 if it is by itself.
    pub(crate) place: u32,
    pub(crate) bytes: Arc<[u8]>,
}

/// What an endpoint has said of itself, with its order and the number of the first message after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptAnnouncement {
    pub(crate) next: u64,
    pub(crate) order: u64,
    pub(crate) endpoint: Arc<EndpointAnnouncement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptEntry {
    number: u64,
    kind: ChangeKind,
    writer: EndpointId,
}

/// The messages of an instance, oldest first: `of_data` of them have data.
#[derive(Debug, Default)]
struct KeptInstance {
    entries: VecDeque<KeptEntry>,
    of_data: usize,
}

impl KeptInstance {
    fn push(&mut self, entry: KeptEntry) {
        self.of_data += usize::from(entry.has_data());
        self.entries.push_back(entry);
    }

    fn pop(&mut self) -> Option<KeptEntry> {
        let oldest = self.entries.pop_front()?;
        self.of_data -= usize::from(oldest.has_data());
        Some(oldest)
    }
}

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeptReply {
    Kept,
    Full,
    /// There are [`ANNOUNCEMENTS_MAX`] announcements.
    TooManyEndpoints,
    /// The topic keeps something else than this participant expects.
    Conflict(DurabilityService),
    /// It is no message of a topic.
    Malformed,
    /// The topic has been created, or was there, with this number.
    Topic(u32),
    /// The topic with this number has the name, and another type.
    TypeDiffers(u32),
    /// The topic with this number has the name, and other policies.
    QosDiffers(u32),
    /// There are as many topics as there may be.
    TooManyTopics,
    /// A client outside the group has this number.
    Client(u32),
}

impl KeptTopic {
    pub(crate) fn of(kept: KeptState) -> Self {
        let mut topic = Self { kept, ..Self::default() };
        for (number, sample) in &topic.kept.samples {
            if let Some(TopicFrame::Change(header, _)) = TopicFrame::decode(&sample.bytes) {
                topic.instances.entry(header.key.into()).or_default().push(KeptEntry::of(*number, &header));
            }
        }
        for announcement in &topic.kept.announcements {
            note_endpoint(&mut topic.open, &announcement.endpoint);
        }
        topic
    }

    /// Returns what is the same at all members. Samples are shared, not copied.
    pub(crate) const fn state(&self) -> &KeptState {
        &self.kept
    }

    /// Returns a part of the history, from these announcements and samples on, which can be read as a history: its first announcement has
    /// number 0. Bounded, unless a single coherent set is longer.
    pub(crate) fn part(&self, announcements: usize, first: u64) -> KeptState {
        let (mut bytes, mut samples, mut last) = (0, BTreeMap::new(), None);
        let mut next = self.kept.next;
        for (number, sample) in self.samples(first) {
            if bytes > PART_BYTES && last != Some(sample.order) {
                next = number;
                break;
            }
            (bytes, last) = (bytes + sample.bytes.len(), Some(sample.order));
            samples.insert(number, sample.clone());
        }
        let announced = self.announcements(announcements).iter().take_while(|each| each.next <= next);
        let announcements: Vec<_> = announced.take(PART_ANNOUNCEMENTS).cloned().collect();
        if let Some(last) = announcements.last().filter(|_| announcements.len() == PART_ANNOUNCEMENTS) {
            // What comes after the next announcement has to wait for it.
            next = next.min(last.next);
            samples.split_off(&next);
        }
        KeptState { service: self.kept.service, next, samples, announcements }
    }

    /// Returns the endpoints that have been announced and have not gone, with what they do; those of members that have died included.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (EndpointId, TopicRole)> {
        let is_open = |(id, _): &(EndpointId, TopicRole)| self.open.contains(id);
        let announced = self.kept.announcements.iter().map(|each| (each.endpoint.id, each.endpoint.role));
        announced.filter(|(_, role)| *role != TopicRole::Gone).filter(is_open)
    }

    /// Returns the announcements of the endpoints of `node` that are open, and the number after its greatest one.
    pub(crate) fn endpoints_of(&self, node: u32) -> (Vec<Arc<EndpointAnnouncement>>, u32) {
        let announced = self.kept.announcements.iter().map(|each| &each.endpoint);
        let of_node: Vec<_> = announced.filter(|endpoint| endpoint.id.node == node).collect();
        let next = of_node.iter().map(|endpoint| u32::from(endpoint.id.number) + 1).max().unwrap_or_default();
        let is_open = |endpoint: &&Arc<EndpointAnnouncement>| {
            endpoint.role != TopicRole::Gone && self.open.contains(&endpoint.id)
        };
        (of_node.into_iter().filter(is_open).cloned().collect(), next)
    }

    /// Returns the announcements from `first` on.
    pub(crate) fn announcements(&self, first: usize) -> &[KeptAnnouncement] {
        self.kept.announcements.get(first..).unwrap_or_default()
    }

    /// Returns the number of the next sample.
    pub(crate) const fn next(&self) -> u64 {
        self.kept.next
    }

    /// Returns the messages that are kept, from number `first` on.
    pub(crate) fn samples(&self, first: u64) -> impl Iterator<Item = (u64, &KeptSample)> {
        self.kept.samples.range(first..).map(|(number, sample)| (*number, sample))
    }

    /// Keeps a change, which has this order and place in its set, and forgets what is too old for it.
    pub(crate) fn keep(
        &mut self,
        header: &ChangeHeader<'_>,
        bytes: Arc<[u8]>,
        (order, place): (u64, u32),
    ) -> KeptReply {
        let (key, mut entry) = (header.key, KeptEntry::of(0, header));
        let Some(service) = self.kept.service else { return KeptReply::Malformed };
        let present = self.instances.get(key);
        let mut replaces = false;
        if entry.kind == ChangeKind::Data {
            let of_data = present.map_or(0, |instance| instance.of_data);
            replaces = matches!(service.history, HistoryKind::KeepLast(depth) if of_data >= depth);
        } else if present.is_none_or(|instance| entry.repeats(&instance.entries)) {
            // So the changes of state in a history are bounded by its data and its writers.
            return KeptReply::Kept;
        }
        if !replaces && self.kept.samples.len() >= service.samples_max {
            return KeptReply::Full;
        }
        entry.number = self.kept.next;
        let instance = self.instances.entry(key.into()).or_default();
        if replaces {
            // The oldest sample with data, and what was said of its instance before.
            while let Some(oldest) = instance.pop() {
                self.kept.samples.remove(&oldest.number);
                if oldest.has_data() {
                    break;
                }
            }
        }
        instance.push(entry);
        self.kept.samples.insert(entry.number, KeptSample { order, place, bytes });
        self.kept.next += 1;
        KeptReply::Kept
    }

    /// Returns whether all these changes can be kept. May say no if changes of state in between make the difference.
    pub(crate) fn admits<'a>(&self, changes: impl Iterator<Item = ChangeHeader<'a>>) -> bool {
        let Some(service) = self.kept.service else { return false };
        let mut of_data = BTreeMap::<&[u8], usize>::new();
        let mut length = self.kept.samples.len();
        for header in changes {
            if header.kind != ChangeKind::Data {
                length += 1;
                continue;
            }
            let of_key = of_data
                .entry(header.key)
                .or_insert_with(|| self.instances.get(header.key).map_or(0, |instance| instance.of_data));
            if !matches!(service.history, HistoryKind::KeepLast(depth) if *of_key >= depth) {
                (*of_key, length) = (*of_key + 1, length + 1);
            }
        }
        length <= service.samples_max
    }

    pub(crate) fn announce(&mut self, announcement: EndpointAnnouncement, order: u64) -> KeptReply {
        let is_gone = announcement.role == TopicRole::Gone;
        if is_gone && !self.open.contains(&announcement.id) {
            return KeptReply::Kept;
        }
        if !is_gone && self.kept.announcements.len() >= ANNOUNCEMENTS_MAX {
            return KeptReply::TooManyEndpoints;
        }
        note_endpoint(&mut self.open, &announcement);
        self.kept.announcements.push(KeptAnnouncement {
            next: self.kept.next,
            order,
            endpoint: announcement.into(),
        });
        KeptReply::Kept
    }

    /// Takes what a participant expects the topic to keep; the first one decides.
    pub(crate) fn serve(&mut self, service: DurabilityService) -> KeptReply {
        match *self.kept.service.get_or_insert(service) {
            present if present == service => KeptReply::Kept,
            present => KeptReply::Conflict(present),
        }
    }
}

impl KeptEntry {
    const fn of(number: u64, header: &ChangeHeader<'_>) -> Self {
        Self { number, kind: header.kind, writer: header.writer }
    }

    fn has_data(&self) -> bool {
        self.kind == ChangeKind::Data
    }

    /// Returns whether this change of state has been made since the last sample with data.
    fn repeats(&self, entries: &VecDeque<Self>) -> bool {
        let mut since = entries.iter().rev().take_while(|entry| !entry.has_data());
        since.any(|entry| entry.kind == self.kind && entry.writer == self.writer)
    }
}

fn note_endpoint(open: &mut BTreeSet<EndpointId>, announcement: &EndpointAnnouncement) {
    if announcement.role == TopicRole::Gone {
        open.remove(&announcement.id);
    } else {
        open.insert(announcement.id);
    }
}

/// How many bytes of samples a client gets at a time, and how many announcements.
const PART_BYTES: usize = 1 << 20;
const PART_ANNOUNCEMENTS: usize = 256;
/// The bound of the announcements in a topic's history. Above it only endpoints that are there can go.
pub(crate) const ANNOUNCEMENTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
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
        let Some(TopicFrame::Change(header, _)) = TopicFrame::decode(bytes) else { panic!("{bytes:?}") };
        topic.keep(&header, bytes.into(), (0, 0))
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
        assert_eq!(topic.announcements(0).len(), 2);
        assert_eq!(topic.announcements(1)[0].endpoint.role, TopicRole::Gone);
        assert!(transferred(&topic).open.is_empty());
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

    proptest! {
        /// What is read in parts, in any steps, is what is read at once: every announcement before the samples after it.
        #[test]
        fn parts_are_the_history(events in proptest::collection::vec(any::<bool>(), 0..600)) {
            let mut topic = topic(HistoryKind::KeepAll, 1000);
            for (number, is_sample) in events.iter().enumerate() {
                if *is_sample {
                    let bytes = [message(ChangeKind::Data, 0, 0), vec![0; 20_000]].concat();
                    let Some(TopicFrame::Change(header, _)) = TopicFrame::decode(&bytes) else { panic!("{bytes:?}") };
                    let order = u64::try_from(number).expect("few");
                    topic.keep(&header, bytes.as_slice().into(), (order, 0));
                } else {
                    let id = EndpointId { node: u32::try_from(number).expect("few"), number: 0 };
                    topic.announce(EndpointAnnouncement { id, role: TopicRole::Reader, type_name: "T".into(), qos: Qos::KEPT }, 0);
                }
            }
            let (mut announcements, mut first, mut read) = (0, 0, 0);
            while (announcements, first) != (topic.announcements(0).len(), topic.next()) {
                let part = topic.part(announcements, first);
                prop_assert!(part.samples.keys().copied().eq(first..part.next), "nothing is left out");
                let bytes: usize = part.samples.values().map(|sample| sample.bytes.len()).sum();
                prop_assert!(bytes <= PART_BYTES + 40_000);
                for each in &part.announcements {
                    prop_assert_eq!(each.next, topic.announcements(announcements)[0].next);
                    prop_assert!((first..=part.next).contains(&each.next), "in its place");
                    announcements += 1;
                }
                // No announcement that is not in the part belongs before a sample that is.
                prop_assert!(topic.announcements(announcements).first().is_none_or(|next| next.next >= part.next));
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
}
