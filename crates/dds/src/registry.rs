//! The replicated object of a domain: the topics that were created at run time, and the histories of topics that keep samples.
//!
//! Every member of the group has it, so creating a topic is one update, and a topic has the same number everywhere: its place among the
//! topics. Where a topic's samples travel follows from the registry alone ([`TopicRegistry::lane`]): the subgroups are there from the start, and
//! carry all topics of their profile, so no view changes. A topic that has a subgroup of its own and keeps samples has such an object for
//! itself, without a list of topics.
//!
//! Invariants: `topics` only grows. A topic whose profile keeps samples has a history. Orders of samples grow in each history, and
//! a sample's order is below `order`. Those of [`crate::presence`] say which endpoints of processes that have gone are ended.
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
use crate::presence::{GoneProcess, Presence};
use crate::qos::{DurabilityService, PresentationScope, Profile, Qos};
use crate::wire::{
    EndpointAnnouncement, OWN_SUBGROUP, RegisteredTopic, SetChange, TopicFrame, TopicRole, decode_service,
    read_set,
};

/// The topics of a domain, and their histories.
#[derive(Debug, Default)]
pub(crate) struct TopicRegistry {
    topics: Vec<Arc<RegisteredTopic>>,
    histories: BTreeMap<u32, KeptTopic>,
    /// The order of the next sample of any topic.
    order: u64,
    /// The clients outside the group that are there, each with the order of the last update by which it has said so.
    leases: BTreeMap<u32, u64>,
    /// The number of the latest client; `None` before the first one.
    last_client: Option<u32>,
}

/// What is the same at all members.
#[derive(Debug, Serialize, Deserialize)]
struct RegistryState {
    topics: Vec<Arc<RegisteredTopic>>,
    histories: BTreeMap<u32, KeptState>,
    order: u64,
    leases: BTreeMap<u32, u64>,
    last_client: Option<u32>,
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

    /// Returns the numbers of the endpoints of `node` of which there is something in the histories.
    pub(crate) fn numbers_of(&self, node: u32) -> BTreeSet<u16> {
        self.histories.values().flat_map(|history| history.numbers_of(node)).collect()
    }

    /// Returns which processes have something in the histories.
    pub(crate) fn presence(&self) -> Presence {
        let open = self.histories.values().flat_map(KeptTopic::endpoints);
        let members = open.map(|(id, _)| id.node).filter(|node| *node < FIRST_CLIENT).collect();
        Presence { order: self.order, members, leases: self.leases.clone() }
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

    /// Gives a client outside the group a number above all nodes, and a lease. Numbers are given one after the other, so one of a client that has gone
    /// is given again after all others; the first client chooses where they begin.
    fn admit(&mut self, first: u32) -> KeptReply {
        if self.leases.len() >= CLIENTS_MAX {
            return KeptReply::TooManyEndpoints;
        }
        let first = self.last_client.map_or(first % CLIENT_NUMBERS, |last| last - FIRST_CLIENT + 1);
        let is_in_use = |node: &u32| {
            let mut histories = self.histories.values();
            self.leases.contains_key(node)
                || histories.any(|history| history.numbers_of(*node).next().is_some())
        };
        let numbers = (0..CLIENT_NUMBERS).map(|step| FIRST_CLIENT + (first + step) % CLIENT_NUMBERS);
        let Some(node) = numbers.into_iter().find(|node| !is_in_use(node)) else {
            return KeptReply::TooManyEndpoints;
        };
        self.last_client = Some(node);
        self.renew(node);
        KeptReply::Client(node)
    }

    fn renew(&mut self, client: u32) {
        let order = self.next_order();
        self.leases.insert(client, order);
    }

    /// Returns whether this is a client that was taken to have gone.
    fn is_expired(&self, node: u32) -> bool {
        node >= FIRST_CLIENT && !self.leases.contains_key(&node)
    }

    /// Ends what a process that has gone has announced before an order, unless it is a client that has said later that it is there.
    fn end_process(&mut self, gone: GoneProcess) {
        if self.leases.get(&gone.node).is_some_and(|lease| *lease >= gone.before) {
            return;
        }
        self.leases.remove(&gone.node);
        let order = self.next_order();
        self.histories.values_mut().for_each(|history| history.end_process(gone, order));
    }

    fn announce(&mut self, topic: u32, endpoint: EndpointAnnouncement) -> KeptReply {
        let order = self.next_order();
        let Some(history) = self.histories.get_mut(&topic) else { return KeptReply::Malformed };
        let (node, is_gone) = (endpoint.id.node, endpoint.role == TopicRole::Gone);
        if let Some(lease) = self.leases.get_mut(&node) {
            *lease = order;
        } else if node >= FIRST_CLIENT && !is_gone {
            return KeptReply::Expired;
        }
        match history.announce(endpoint, order) {
            KeptReply::Kept => KeptReply::Announced(history.next()),
            reply => reply,
        }
    }

    /// Keeps all of these changes, or none, at one place in the order.
    fn keep_set(&mut self, changes: &[SetChange<'_>]) -> KeptReply {
        let topics: BTreeSet<u32> = changes.iter().map(|change| change.header.topic).collect();
        if changes.iter().any(|change| self.is_expired(change.header.writer.node)) {
            return KeptReply::Expired;
        }
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
            Some(TopicFrame::Client(first)) => self.admit(first),
            Some(TopicFrame::Renewal(client)) if self.leases.contains_key(&client) => {
                self.renew(client);
                KeptReply::Kept
            }
            Some(TopicFrame::Renewal(_)) => KeptReply::Expired,
            Some(TopicFrame::Gone(gone)) => {
                self.end_process(gone);
                KeptReply::Kept
            }
            Some(TopicFrame::Creation(body)) => {
                RegisteredTopic::decode(body).map_or(KeptReply::Malformed, |topic| self.create(topic))
            }
            Some(TopicFrame::Service(body)) => decode_service(body).map_or(KeptReply::Malformed, |service| {
                self.histories.entry(OWN_SUBGROUP).or_default().serve(service)
            }),
            Some(TopicFrame::Announcement(topic, body)) => {
                let endpoint = EndpointAnnouncement::decode(body);
                endpoint.map_or(KeptReply::Malformed, |endpoint| self.announce(topic, endpoint))
            }
            Some(TopicFrame::Change(header, _)) => {
                let Some(history) = self.histories.get_mut(&header.topic) else {
                    return KeptReply::Malformed;
                };
                // Of what members write, this costs a comparison.
                if header.writer.node >= FIRST_CLIENT && !self.leases.contains_key(&header.writer.node) {
                    return KeptReply::Expired;
                }
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
        let (leases, last_client) = (self.leases.clone(), self.last_client);
        let state = RegistryState { topics, histories, order: self.order, leases, last_client };
        Snapshot::new(move |sink: &mut dyn Write| {
            let mut sink = io::BufWriter::new(sink);
            postcard::to_io(&state, &mut sink).map_err(io::Error::other)?;
            sink.flush()
        })
    }

    fn restore(source: &mut dyn Read) -> io::Result<Self> {
        let RegistryState { topics, histories, order, leases, last_client } = restored(source)?;
        let histories = histories.into_iter().map(|(topic, state)| (topic, KeptTopic::of(state)));
        Ok(Self { topics, histories: histories.collect(), order, leases, last_client })
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
pub(crate) const FIRST_CLIENT: u32 = u32::MAX - (CLIENT_NUMBERS - 1);
const CLIENT_NUMBERS: u32 = 1 << 24;
/// The bound of the clients outside the group that are there, or have gone within a lease: each is in the memory of every participant.
pub(crate) const CLIENTS_MAX: usize = 65_536;
/// The bound of the topics of a domain: each is in the memory of every participant.
pub(crate) const TOPICS_MAX: usize = 4096;

#[cfg(test)]
mod tests;
