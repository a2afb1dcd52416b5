//! The history of a topic: what readers that come later get (OMG DDS 1.4 §2.2.3.4; Spindle §4.6, "volatile storage" and "logged
//! storage").
//!
//! Histories are the state of a replicated object ([`crate::registry`]), which every member of the group has. A member that joins gets them
//! by the object's state transfer, and after a restart each member makes them again from its log, if the object has one. A reader remembers
//! the number of the next sample and of the next announcement, so it gets each one once and in order, whether it reads the transferred state
//! or what was applied later.
//!
//! What an endpoint has announced is needed as long as the endpoint is there, or a message of it is kept. Then it is forgotten, so that endpoints
//! may come and go for as long as the topic is there. The endpoints of a process that has died are ended by another one ([`crate::presence`]).
//! Invariants:
//! - Numbers of announcements grow, and so do the numbers of the first messages after them.
//! - An endpoint is open if its last announcement is not that it has gone.
//! - An endpoint has announcements if it is open, or has been announced and has messages that are kept: so a reader that comes at any moment knows
//!   the writer of each message, and no others that have gone.
//! - `forgotten` counts endpoints whose announcements are not there any more. A reader, or a port, for which it has changed may have read that one of
//!   them came, and not that it has gone: it forgets those that have no announcement. Nothing of theirs comes to it any more. `lost` has those
//!   of them that have not disposed of their instances, although they had announced that they would: their processes have died.
//! - All of this follows from the messages and their order, so it is the same at all members.
//!
//! `Deviation:` (Spindle §4.6) each receiver stores incoming samples in memory, or appends them to a log. As an object's state, they reach a
//! joiner together with their place in the order.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::cache::ChangeKind;
use crate::presence::GoneProcess;
use crate::qos::{DurabilityService, HistoryKind};
use crate::queue::SampleQueue;
use crate::sample::EndpointId;
use crate::wire::{ChangeHeader, EndpointAnnouncement, TopicFrame, TopicRole};

/// A topic's history, at one member.
#[derive(Debug, Default)]
pub(crate) struct KeptTopic {
    kept: KeptState,
    instances: KeptInstances,
    /// Those that have announcements or messages.
    endpoints: BTreeMap<EndpointId, KeptEndpoint>,
}

/// What there is of an endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeptEndpoint {
    /// The numbers of its announcements.
    announcements: Vec<u64>,
    /// How many of its messages are kept.
    messages: usize,
    is_open: bool,
}

/// What is the same at all members.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptState {
    /// What the first participant said that is to be kept; `None` before that.
    service: Option<DurabilityService>,
    /// The number of the next message.
    next: u64,
    samples: SampleQueue<KeptSample>,
    announcements: BTreeMap<u64, KeptAnnouncement>,
    /// The number of the next announcement.
    next_announcement: u64,
    /// How many endpoints have been forgotten.
    forgotten: u64,
    /// The latest of those that would have disposed of their instances, and have gone with their processes instead.
    lost: VecDeque<EndpointId>,
}

/// A part of a history, for a client outside the group.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptPart {
    /// Can be read as a history.
    pub(crate) state: KeptState,
    /// The endpoints that have announcements, if some have been forgotten since the client asked last.
    pub(crate) announced: Option<BTreeSet<EndpointId>>,
    /// The order of the next message of any topic.
    pub(crate) order: u64,
}

/// A message that is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptSample {
    /// Its place among the messages of all topics of the object.
    pub(crate) order: u64,
    /// Its place in the coherent set that has this order; 0 if it is by itself.
    pub(crate) place: u32,
    pub(crate) bytes: Bytes,
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

/// The instances by their keys. A topic without keys has one, which is not looked up: that would take a hash, and a comparison with the empty
/// key, which is slow where it has no memory.
#[derive(Debug, Default)]
struct KeptInstances {
    without_key: KeptInstance,
    by_key: HashMap<Vec<u8>, KeptInstance>,
}

impl KeptInstances {
    fn find(&self, key: &[u8]) -> Option<&KeptInstance> {
        if key.is_empty() {
            return Some(&self.without_key).filter(|instance| !instance.entries.is_empty());
        }
        self.by_key.get(key)
    }

    fn find_mut(&mut self, key: &[u8]) -> Option<&mut KeptInstance> {
        if key.is_empty() {
            return Some(&mut self.without_key).filter(|instance| !instance.entries.is_empty());
        }
        self.by_key.get_mut(key)
    }

    fn push(&mut self, key: &[u8], entry: KeptEntry) {
        let instance =
            if key.is_empty() { &mut self.without_key } else { self.by_key.entry(key.into()).or_default() };
        instance.push(entry);
    }
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
    /// The endpoint is announced, before the message of this number.
    Announced(u64),
    /// There are as many endpoints, or clients, as there may be.
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
    /// The client was taken to have gone ([`crate::presence`]); nothing is kept of this message.
    Expired,
}

impl KeptTopic {
    pub(crate) fn of(kept: KeptState) -> Self {
        let mut topic = Self { kept, ..Self::default() };
        for (number, sample) in topic.kept.samples.iter() {
            if let Some(TopicFrame::Change(header, _)) = TopicFrame::decode(&sample.bytes) {
                topic.instances.push(header.key, KeptEntry::of(number, &header));
                topic.endpoints.entry(header.writer).or_default().messages += 1;
            }
        }
        for (number, announcement) in &topic.kept.announcements {
            topic
                .endpoints
                .entry(announcement.endpoint.id)
                .or_default()
                .note(*number, &announcement.endpoint);
        }
        topic
    }

    /// Returns what is the same at all members. Samples are shared, not copied.
    pub(crate) const fn state(&self) -> &KeptState {
        &self.kept
    }

    /// Returns a part of the history, from this announcement and sample on, for a client that has seen this number of endpoints forgotten;
    /// `order` is that of the next message of any topic.
    /// Bounded, unless a single coherent set is longer.
    pub(crate) fn part(&self, announcement: u64, first: u64, forgotten: u64, order: u64) -> KeptPart {
        let (mut bytes, mut samples, mut last) = (0, Vec::new(), None);
        let mut next = self.kept.next;
        for (number, sample) in self.samples(first) {
            if bytes > PART_BYTES && last != Some(sample.order) {
                next = number;
                break;
            }
            (bytes, last) = (bytes + sample.bytes.len(), Some(sample.order));
            samples.push((number, sample));
        }
        let announced = self.announcements(announcement).take_while(|(_, each)| each.next <= next);
        let announcements: BTreeMap<_, _> =
            announced.take(PART_ANNOUNCEMENTS).map(|(number, each)| (number, each.clone())).collect();
        if let Some(last) =
            announcements.values().last().filter(|_| announcements.len() == PART_ANNOUNCEMENTS)
        {
            // What comes after the next announcement has to wait for it.
            next = next.min(last.next);
        }
        let mut of_part = SampleQueue::new();
        for (number, sample) in samples.into_iter().take_while(|(number, _)| *number < next) {
            of_part.push(number, sample.clone());
        }
        let announced = self.endpoints.keys().copied().filter(|id| self.is_announced(*id));
        let announced = (forgotten != self.kept.forgotten).then(|| announced.collect());
        let lost = announced.as_ref().map_or_else(VecDeque::new, |_| self.kept.lost.clone());
        let state = KeptState {
            service: self.kept.service,
            next,
            samples: of_part,
            announcements,
            next_announcement: self.kept.next_announcement,
            forgotten: self.kept.forgotten,
            lost,
        };
        KeptPart { state, announced, order }
    }

    /// Returns the endpoints that have been announced and have not gone, with what they do.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (EndpointId, TopicRole)> {
        let present = self.endpoints.values().filter_map(|endpoint| self.present(endpoint));
        present.map(|each| (each.endpoint.id, each.endpoint.role))
    }

    /// Returns the endpoints of `node` of which there is something.
    fn endpoints_of(&self, node: u32) -> impl Iterator<Item = (EndpointId, &KeptEndpoint)> {
        let of = |number| EndpointId { node, number };
        self.endpoints.range(of(0)..=of(u16::MAX)).map(|(id, endpoint)| (*id, endpoint))
    }

    /// Returns the numbers of the endpoints of `node` of which there is something.
    pub(crate) fn numbers_of(&self, node: u32) -> impl Iterator<Item = u16> {
        self.endpoints_of(node).map(|(id, _)| id.number)
    }

    /// Ends the endpoints that a process which has gone has announced before an order. The announcements that they have gone have this `order`.
    pub(crate) fn end_process(&mut self, GoneProcess { node, before }: GoneProcess, order: u64) {
        let open = self.endpoints_of(node).filter_map(|(_, endpoint)| self.present(endpoint));
        let ends: Vec<_> = open.filter(|each| each.order < before).map(|each| each.endpoint.loss()).collect();
        for end in ends {
            self.announce(end, order);
        }
    }

    /// Returns what an endpoint that is open has announced.
    fn present(&self, endpoint: &KeptEndpoint) -> Option<&KeptAnnouncement> {
        let last = endpoint.announcements.last().filter(|_| endpoint.is_open)?;
        self.kept.announcements.get(last)
    }

    /// Returns whether the history has announcements of an endpoint.
    pub(crate) fn is_announced(&self, id: EndpointId) -> bool {
        self.endpoints.get(&id).is_some_and(|endpoint| !endpoint.announcements.is_empty())
    }

    /// Returns whether an endpoint that is forgotten has left its instances as they were.
    pub(crate) fn is_lost(&self, id: EndpointId) -> bool {
        self.kept.lost.contains(&id)
    }

    /// Returns how many endpoints have been forgotten.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.kept.forgotten
    }

    /// Returns the announcements from number `first` on, with their numbers.
    pub(crate) fn announcements(&self, first: u64) -> impl Iterator<Item = (u64, &KeptAnnouncement)> {
        self.kept.announcements.range(first..).map(|(number, announcement)| (*number, announcement))
    }

    /// Returns the number of the next announcement.
    pub(crate) const fn next_announcement(&self) -> u64 {
        self.kept.next_announcement
    }

    /// Returns the number of the next sample.
    pub(crate) const fn next(&self) -> u64 {
        self.kept.next
    }

    /// Returns the messages that are kept, from number `first` on.
    pub(crate) fn samples(&self, first: u64) -> impl Iterator<Item = (u64, &KeptSample)> {
        self.kept.samples.from(first)
    }

    /// Keeps a message, which is a change of this topic and has this order and place in its set, and forgets what is too old for it.
    pub(crate) fn keep(&mut self, bytes: Bytes, (order, place): (u64, u32)) -> KeptReply {
        let Some(TopicFrame::Change(header, _)) = TopicFrame::decode(&bytes) else {
            return KeptReply::Malformed;
        };
        let Some(service) = self.kept.service else { return KeptReply::Malformed };
        let entry = KeptEntry::of(self.kept.next, &header);
        let mut present = self.instances.find_mut(header.key);
        let mut replaces = false;
        if entry.kind == ChangeKind::Data {
            let of_data = present.as_ref().map_or(0, |instance| instance.of_data);
            replaces = matches!(service.history, HistoryKind::KeepLast(depth) if of_data >= depth);
        } else if present.as_ref().is_none_or(|instance| entry.repeats(&instance.entries)) {
            // So the changes of state in a history are bounded by its data and its writers.
            return KeptReply::Kept;
        }
        if !replaces && self.kept.samples.len() >= service.samples_max {
            return KeptReply::Full;
        }
        // By how many more messages of its writer are kept than before; mostly one takes the place of another one.
        let mut more = 1_isize;
        if let Some(instance) = present.as_deref_mut().filter(|_| replaces) {
            // The oldest sample with data, and what was said of its instance before.
            while let Some(oldest) = instance.pop() {
                self.kept.samples.remove(oldest.number);
                if oldest.writer == entry.writer {
                    more -= 1;
                } else if let Some(endpoint) = self.endpoints.get_mut(&oldest.writer) {
                    endpoint.messages -= 1;
                    forget(&mut self.kept, &mut self.endpoints, oldest.writer);
                }
                if oldest.has_data() {
                    break;
                }
            }
        }
        if more != 0 {
            let messages = &mut self.endpoints.entry(entry.writer).or_default().messages;
            *messages = messages.checked_add_signed(more).expect("this one is among them");
        }
        match present {
            Some(instance) => instance.push(entry),
            None => self.instances.push(header.key, entry),
        }
        self.kept.samples.push(entry.number, KeptSample { order, place, bytes });
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
                .or_insert_with(|| self.instances.find(header.key).map_or(0, |instance| instance.of_data));
            if !matches!(service.history, HistoryKind::KeepLast(depth) if *of_key >= depth) {
                (*of_key, length) = (*of_key + 1, length + 1);
            }
        }
        length <= service.samples_max
    }

    pub(crate) fn announce(&mut self, announcement: EndpointAnnouncement, order: u64) -> KeptReply {
        let (id, is_gone) = (announcement.id, announcement.role == TopicRole::Gone);
        let present = self.endpoints.get(&id).and_then(|endpoint| self.present(endpoint));
        let is_repeated = present.is_some_and(|present| *present.endpoint == announcement);
        if is_repeated || (is_gone && present.is_none()) {
            return KeptReply::Kept;
        }
        // A writer that has gone, and of which messages are kept, has two announcements.
        let announcements_max = ANNOUNCEMENTS_MAX + 2 * self.kept.samples.len();
        if !is_gone && self.kept.announcements.len() >= announcements_max {
            return KeptReply::TooManyEndpoints;
        }
        // It is another one, of a later run.
        self.kept.lost.retain(|lost| *lost != id);
        let number = self.kept.next_announcement;
        self.kept.next_announcement += 1;
        self.endpoints.entry(id).or_default().note(number, &announcement);
        let endpoint = announcement.into();
        self.kept.announcements.insert(number, KeptAnnouncement { next: self.kept.next, order, endpoint });
        forget(&mut self.kept, &mut self.endpoints, id);
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

impl KeptEndpoint {
    fn note(&mut self, number: u64, announcement: &EndpointAnnouncement) {
        self.announcements.push(number);
        self.is_open = announcement.role != TopicRole::Gone;
    }
}

/// Forgets an endpoint that has gone, if none of its messages is kept.
fn forget(kept: &mut KeptState, endpoints: &mut BTreeMap<EndpointId, KeptEndpoint>, id: EndpointId) {
    let is_needed = |endpoint: &KeptEndpoint| endpoint.is_open || endpoint.messages > 0;
    let Some(endpoint) = endpoints.get(&id).filter(|endpoint| !is_needed(endpoint)) else { return };
    let announced = endpoint.announcements.iter().filter_map(|number| kept.announcements.remove(number));
    let announced: Vec<_> = announced.map(|each| each.endpoint).collect();
    if let [first, .., last] = &announced[..] {
        let disposes = |endpoint: &EndpointAnnouncement| endpoint.qos.autodispose_unregistered_instances;
        if first.role == TopicRole::Writer && disposes(first) && !disposes(last) {
            kept.lost.push_back(id);
            kept.lost.drain(..kept.lost.len().saturating_sub(LOST_MAX));
        }
    }
    kept.forgotten += u64::from(!announced.is_empty());
    endpoints.remove(&id);
}

/// How many bytes of samples a client gets at a time, and how many announcements.
const PART_BYTES: usize = 1 << 20;
const PART_ANNOUNCEMENTS: usize = 256;
/// The bound of the announcements in a topic's history, besides two for each message that is kept, whose writer may have gone. Above it only endpoints
/// that are there can go.
pub(crate) const ANNOUNCEMENTS_MAX: usize = 65_536;
/// How many writers that are forgotten are known to have gone with their processes. Of one before these, a reader that has known it and read nothing
/// since takes the instances to be disposed of.
const LOST_MAX: usize = 256;

#[cfg(test)]
mod tests;
