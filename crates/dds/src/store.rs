//! The histories of a participant's topics, and how they come to the topics' readers (Spindle §4.6, "volatile storage" and "logged storage").
//!
//! The thread that polls the node hands on the samples that readers have space for ([`HistoryStore::serve`]); a thread that takes samples hands on
//! those for which there was none ([`HistoryStore::note_taken`]). The store's own thread does the rest: announcements, topics in one
//! order with others, the end of the group, and which processes have gone ([`crate::presence`]).
//!
//! **Invariant.** A reader that has not had all of its history gets the rest from the thread that takes its samples, if it was full
//! (`lacks_space`, which is set while the reader is locked); or from the store's thread, whose bell has rung; or after the next poll.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use squall::object::ObjectOptions;
use squall::{Group, GroupError, HandleError, PolledBy, SharedPoller};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::lock;

use crate::error::WriteError;
use crate::gate::OrderGate;
use crate::keeper::Keeper;
use crate::kept::{KeptPart, KeptSample, KeptTopic};
use crate::port::{PortState, TopicPort};
use crate::presence::{GONE_AT_ONCE, GoneProcess, LOOK_PERIOD, Presence, PresenceWatch};
use crate::reader_core::{ArrivedChange, Offer, ReaderCore};
use crate::registry::TopicRegistry;
use crate::sample::{Position, now_ns};
use crate::signal::Signal;
use crate::taking::TakingPace;
use crate::wire::encode_gone;

/// The group, until the participant leaves it.
pub(crate) type SharedGroup = Arc<Mutex<Option<Group>>>;

/// The replicated object that has topics' histories, at a participant, with the ports of the topics that it uses.
#[derive(Debug)]
pub(crate) struct HistoryStore {
    /// The subgroup of the object: a topic that has one for itself, or the registry.
    pub(crate) subgroup: String,
    pub(crate) keeper: Keeper,
    /// This participant's node.
    node: u32,
    group: SharedGroup,
    /// Rung when the thread may have something to do; the bell of all ports.
    pub(crate) bell: Arc<Signal>,
    /// Rung when a topic was created, or something has come to a reader.
    changed: Arc<Signal>,
    shelf: Mutex<StoreShelf>,
    /// Whether a reader was full when something was handed on: then the thread that makes space continues with that.
    lacks_space: AtomicBool,
    taking: TakingPace,
}

#[derive(Debug, Default)]
struct StoreShelf {
    ports: BTreeMap<u32, Arc<TopicPort>>,
    /// How many topics that were created at run time are known.
    topics: usize,
    /// Whether the participant leaves.
    is_closed: bool,
    /// Whether nothing more comes, and why.
    end: Option<Option<GroupError>>,
}

impl HistoryStore {
    /// Takes the object that has the histories: threads that poll call [`HistoryStore::serve`] from now on.
    pub(crate) fn open(
        subgroup: &str,
        node: u32,
        group: &SharedGroup,
        poller: &SharedPoller,
        changed: &Arc<Signal>,
    ) -> Result<Self, HandleError> {
        let bell = Arc::<Signal>::default();
        let to_ring = Arc::clone(&bell);
        let options = ObjectOptions {
            poller: Some(poller.clone()),
            on_applied: Box::new(move || to_ring.ring()),
            ..ObjectOptions::default()
        };
        let mut present = lock(group);
        let present = present.as_mut().expect("the participant has not left");
        let object = present.object_with(subgroup, TopicRegistry::default, options)?;
        let (keeper, shelf) = (Keeper::new(object, poller.clone()), Mutex::default());
        let (group, changed) = (Arc::clone(group), Arc::clone(changed));
        let (lacks_space, taking) = Default::default();
        Ok(Self { subgroup: subgroup.into(), keeper, node, group, bell, changed, shelf, lacks_space, taking })
    }

    /// Connects a topic's port.
    pub(crate) fn connect(&self, topic: u32, port: &Arc<TopicPort>) {
        let mut shelf = lock(&self.shelf);
        match shelf.end.clone() {
            Some(end) => port.finish(end),
            None => drop(shelf.ports.insert(topic, Arc::clone(port))),
        }
        drop(shelf);
        self.bell.ring();
    }

    /// Ends the thread: the participant leaves.
    pub(crate) fn release(&self) {
        lock(&self.shelf).is_closed = true;
        self.bell.ring();
    }

    /// Ends the endpoints that this node has left in the histories: after a restart from logs, nodes have the numbers that they had before.
    /// Returns the numbers of the endpoints of which there is something in the histories, so that no reader takes a new endpoint for one of an earlier
    /// run. The state has to be here, and the participant must not have endpoints yet.
    pub(crate) fn retire(&self, patience: Duration) -> Result<BTreeSet<u16>, WriteError> {
        let node = self.node;
        let look = |registry: &TopicRegistry| (registry.presence(), registry.numbers_of(node));
        let left = self.keeper.object.inspect(0, |_, registry| look(registry));
        let (Presence { order, members, .. }, taken) = left.unwrap_or_default();
        if members.contains(&node) {
            self.keeper.update(encode_gone(GoneProcess { node, before: order }), patience)?;
        }
        Ok(taken)
    }

    /// Proposes which processes have gone, if this is the first member of the view.
    fn review(&self, review: &mut Review) {
        let view = || lock(&self.group).as_ref().map(|group| (group.view().id, nodes_of(group)));
        let Some((id, nodes)) = view() else { return };
        let is_new = review.view != id;
        let is_time = review.looked.elapsed() >= LOOK_PERIOD;
        if !(is_new || is_time) || nodes.first() != Some(&self.node) {
            return;
        }
        let look = |(view, _): (u64, u64), registry: &TopicRegistry| (view, registry.presence());
        let Some((applied, presence)) = self.keeper.object.inspect(0, look) else { return };
        let Some((id, nodes)) = view().filter(|(id, _)| *id >= applied) else { return };
        let mut gone = presence.absent(&nodes);
        if is_time {
            review.looked = Instant::now();
            gone.extend(review.watch.look(&presence.leases));
        }
        review.view = id;
        for gone in gone.into_iter().take(GONE_AT_ONCE) {
            self.keeper.mention(encode_gone(gone));
        }
    }

    /// Hands the histories to readers, until the group ends or the participant leaves.
    pub(crate) fn run(&self) {
        let mut review = Review { watch: PresenceWatch::default(), looked: Instant::now(), view: 0 };
        loop {
            let seen = self.bell.count();
            if lock(&self.shelf).is_closed {
                return self.finish(None);
            }
            if let Some(error) = lock(&self.group).as_ref().and_then(Group::failure) {
                return self.finish(Some(&error));
            }
            let (ports, known) = {
                let shelf = lock(&self.shelf);
                (shelf.ports.clone(), shelf.topics)
            };
            // Before the histories, whose updates would wait otherwise.
            let hold = ports.values().find_map(|port| port.gate.as_ref()).map(OrderGate::hold);
            let moved = self.keeper.object.inspect(0, |_, registry| {
                let pulls = ports.iter().map(|(topic, port)| self.pull_port(*topic, port, registry));
                // All of them are pulled.
                let has_moved = pulls.fold(false, |any, has_moved| any | has_moved);
                (has_moved, registry.topics().len())
            });
            drop(hold);
            let Some((has_moved, topics)) = moved else {
                self.bell.wait(seen, TICK);
                continue;
            };
            self.review(&mut review);
            lock(&self.shelf).topics = topics;
            if topics > known || has_moved {
                self.changed.ring();
            }
            if !has_moved {
                self.bell.wait(seen, TICK);
            }
        }
    }

    fn finish(&self, error: Option<&GroupError>) {
        let mut shelf = lock(&self.shelf);
        shelf.end = Some(error.cloned());
        // A port has the store for its outlet.
        let ports = std::mem::take(&mut shelf.ports);
        drop(shelf);
        ports.values().for_each(|port| port.finish(error.cloned()));
    }

    /// Applies what was delivered, and hands it to readers, after a poll.
    pub(crate) fn serve(&self, by: PolledBy) {
        if by == PolledBy::NoThread || (self.keeper.object.apply_delivered() && !self.hand_on()) {
            self.bell.ring();
        }
    }

    /// Notes that an application's thread has taken samples, of `bytes` together: every so often it polls the node, and it continues with what
    /// a reader had no space for.
    pub(crate) fn note_taken(&self, samples: usize, bytes: usize) {
        if self.taking.is_due(samples, bytes) {
            self.keeper.poller.visit();
        }
        // It was set before the readers were given back, or there was space already.
        if self.lacks_space.swap(false, Ordering::Relaxed) && !self.hand_on() {
            self.bell.ring();
        }
    }

    /// Hands samples to readers, without waiting. Returns false if there is something that only the store's thread does.
    fn hand_on(&self) -> bool {
        let Ok(shelf) = self.shelf.try_lock() else { return false };
        let handed = self.keeper.object.try_inspect(0, |_, registry| {
            let mut handed = Handed { has_moved: false, is_left: registry.topics().len() != shelf.topics };
            for (topic, port) in &shelf.ports {
                if let Some(history) = registry.history(*topic) {
                    self.hand_samples(port, history, &mut handed);
                }
            }
            handed
        });
        drop(shelf);
        let Some(Handed { has_moved, is_left }) = handed else { return false };
        if has_moved {
            self.changed.ring();
        }
        !is_left
    }

    /// Hands samples to the readers of a topic, as [`HistoryStore::hand_on`] does.
    fn hand_samples(&self, port: &TopicPort, history: &KeptTopic, handed: &mut Handed) {
        let mut state = port.state();
        handed.is_left |=
            state.next_announcement != history.next_announcement() || state.forgotten != history.forgotten();
        let now = now_ns();
        for reader in state.readers.values_mut() {
            if reader.next_kept == Some(history.next()) && reader.takes_only_samples(history) {
                continue;
            }
            if port.gate.is_some() || !reader.takes_only_samples(history) {
                handed.is_left = true;
                continue;
            }
            let (before, mut left) = (reader.next_kept, SAMPLES_AT_ONCE);
            let has_all = pull_samples(reader, history, history.next(), &mut left, now);
            handed.has_moved |= reader.next_kept != before;
            if reader.is_full {
                self.lacks_space.store(true, Ordering::Relaxed);
                reader.is_behind = true;
            } else {
                // The last samples may be those of a writer that has gone.
                handed.is_left |= !has_all || reader.is_behind || !reader.takes_only_samples(history);
            }
        }
    }

    /// Hands a topic's history to its port. Returns whether there was something.
    fn pull_port(&self, topic: u32, port: &TopicPort, registry: &TopicRegistry) -> bool {
        let Some(history) = registry.history(topic) else { return false };
        let mut state = port.state();
        for (number, announcement) in history.announcements(state.next_announcement) {
            state.record(&announcement.endpoint);
            state.next_announcement = number + 1;
        }
        let has_forgotten = state.forgotten != history.forgotten();
        if has_forgotten {
            state.forgotten = history.forgotten();
            state.retain_announced(|id| history.is_announced(id));
        }
        let has_moved = pull(&mut state, history, registry.order());
        if state.readers.values().any(|reader| reader.is_full) {
            self.lacks_space.store(true, Ordering::Relaxed);
        }
        has_moved || has_forgotten
    }
}

/// What the store's thread knows of other processes.
struct Review {
    watch: PresenceWatch,
    /// When it looked at the leases of clients.
    looked: Instant,
    /// The view at which it looked.
    view: u64,
}

/// What has become of samples that were to be handed on.
struct Handed {
    has_moved: bool,
    /// Whether there is something for the store's thread.
    is_left: bool,
}

/// Returns the members of the present view.
pub(crate) fn nodes_of(group: &Group) -> BTreeSet<u32> {
    group.view().members.iter().map(|member| member.node.0).collect()
}

/// Hands each reader what it has not had yet. Returns whether there was something.
fn pull(state: &mut PortState, topic: &KeptTopic, order: u64) -> bool {
    let now = now_ns();
    let mut has_moved = false;
    for reader in state.readers.values_mut() {
        let before = (reader.next_announcement, reader.next_kept);
        reader.is_behind = !pull_reader(reader, topic, now);
        if !reader.is_behind {
            let position = Position { view: 0, sequence: order };
            reader.retain_announced(topic, |id| topic.is_announced(id), position, now);
            reader.end_late(position, now);
        }
        if !reader.is_behind {
            reader.behind_at = None;
        }
        has_moved |= before != (reader.next_announcement, reader.next_kept);
    }
    has_moved
}

/// Hands a reader announcements and samples in the order of the topic. Returns whether it has everything now.
pub(crate) fn pull_reader(reader: &mut ReaderCore, topic: &KeptTopic, now: u64) -> bool {
    let mut samples_left = SAMPLES_AT_ONCE;
    loop {
        let announcement = topic.announcements(reader.next_announcement).next();
        let end = announcement.map_or(topic.next(), |(_, announcement)| announcement.next);
        if !pull_samples(reader, topic, end, &mut samples_left, now) {
            return false;
        }
        let Some((number, announcement)) = announcement else { return true };
        let position = Position { view: 0, sequence: announcement.order };
        reader.handle_announcement(&announcement.endpoint, position, now);
        if announcement.endpoint.id == reader.id {
            reader.begin_live(announcement.next);
        }
        reader.next_announcement = number + 1;
    }
}

/// Hands the reader of a client a part of the topic, from sample `first` on. Returns the number of the first sample that it needs next.
pub(crate) fn pull_part(reader: &mut ReaderCore, part: KeptPart, first: u64, now: u64) -> u64 {
    let KeptPart { state, announced, order } = part;
    let topic = KeptTopic::of(state);
    let mut next = first;
    loop {
        let before = reader.next_kept;
        if pull_reader(reader, &topic, now) {
            let position = Position { view: 0, sequence: order };
            reader.end_late(position, now);
            if let Some(announced) = announced {
                reader.retain_announced(&topic, |id| announced.contains(&id), position, now);
            }
            return topic.next();
        }
        // It takes some at a time, unless it is full.
        if reader.next_kept == before {
            return next;
        }
        next = reader.next_kept.unwrap_or(next);
    }
}

/// Hands a reader the samples before number `end`, as long as it has space. Returns whether it has taken all.
fn pull_samples(reader: &mut ReaderCore, topic: &KeptTopic, end: u64, left: &mut usize, now: u64) -> bool {
    let Some(first) = reader.next_kept else { return true };
    let mut samples = topic.samples(first).take_while(|(number, _)| *number < end).peekable();
    while let Some((number, sample)) = samples.next() {
        let (mut last, position) = (number, Position { view: 0, sequence: sample.order });
        let offer = if *left == 0 {
            Offer::Full
        } else if reader.is_coherent {
            // The rest of its coherent set, too.
            let mut changes = Vec::from_iter(arrived(sample));
            while let Some((number, next)) = samples.next_if(|(_, next)| next.order == sample.order) {
                (last, changes) = (number, changes.into_iter().chain(arrived(next)).collect());
            }
            match &*changes {
                [] => Offer::Done,
                [change] => reader.handle_change(change, position, now),
                set => reader.handle_set(set, position, now),
            }
        } else {
            arrived(sample).map_or(Offer::Done, |change| reader.handle_change(&change, position, now))
        };
        reader.is_full = *left > 0 && offer == Offer::Full;
        if offer == Offer::Full {
            reader.behind_at = Some(sample.order);
            return false;
        }
        *left -= 1;
        reader.pass(number);
        reader.next_kept = Some(last + 1);
    }
    reader.is_full = false;
    reader.pass(end);
    reader.next_kept = reader.next_kept.max(Some(end));
    true
}

fn arrived(sample: &KeptSample) -> Option<ArrivedChange<'_>> {
    ArrivedChange::of_kept(&sample.bytes, sample.place)
}

/// How often a thread looks at what rings no bell: the end of the group, and a state that has arrived.
const TICK: Duration = Duration::from_millis(50);
/// How many samples a reader is handed while the object's updates wait.
const SAMPLES_AT_ONCE: usize = 256;
