//! The thread of a topic: takes what the group delivers, and hands it to the topic's readers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use squall::object::Object;
use squall::{Deliveries, DeliveryEvent, Group, ReceiveError};

use crate::kept::KeptTopic;
use crate::outlet::{Outlet, lock};
use crate::port::{PortState, TopicPort};
use crate::reader_core::{Offer, ReaderCore};
use crate::sample::{Position, now_ns};
use crate::wire::TopicFrame;

/// The group, until the participant leaves it.
pub(crate) type SharedGroup = Arc<Mutex<Option<Group>>>;

/// Runs a topic that keeps nothing, until the group ends.
pub(crate) fn run_multicast(port: &TopicPort, mut deliveries: Deliveries) {
    loop {
        let is_announcing = match &port.outlet {
            Outlet::Multicast(outbound) => {
                let mut outbound = lock(outbound);
                // What has no space now is tried again below; an error of the group comes from the deliveries, too.
                let _ = outbound.flush();
                outbound.has_pending()
            }
            Outlet::Kept { .. } => false,
        };
        let event =
            if is_announcing { deliveries.try_next_event() } else { deliveries.next_event().map(Some) };
        match event {
            Ok(Some(DeliveryEvent::Message(message))) => {
                let position = Position { view: message.view, sequence: message.sequence };
                port.handle_message(message.bytes, position);
            }
            Ok(Some(DeliveryEvent::View(view))) => {
                let nodes = view.members.iter().map(|member| member.node.0).collect();
                let has_new = port.handle_view(nodes, Position { view: view.id, sequence: 0 });
                if let (true, Outlet::Multicast(outbound)) = (has_new, &port.outlet) {
                    lock(outbound).announce_again();
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => thread::sleep(NAP),
            Err(ReceiveError::Group(error)) => return port.finish(Some(error)),
            Err(_) => return port.finish(None),
        }
    }
}

/// Runs a topic whose history an object keeps, until the group ends or the participant leaves.
pub(crate) fn run_kept(port: &TopicPort, object: &Object<KeptTopic>, group: &SharedGroup) {
    let mut announcements = 0;
    loop {
        let seen = port.bell.count();
        if port.state().is_closed {
            return port.finish(None);
        }
        if let Some(error) = lock(group).as_ref().and_then(Group::failure) {
            return port.finish(Some(error));
        }
        let moved = object.inspect(0, |_, topic| {
            topic.attach(&port.bell);
            let mut state = port.state();
            for announcement in topic.announcements(announcements) {
                state.record(&announcement.endpoint);
                announcements += 1;
            }
            pull(&mut state, topic)
        });
        let has_moved = moved.unwrap_or(false);
        // The view is looked at after the history: it has every member that has announced something there and has not gone.
        let nodes = lock(group).as_ref().map(nodes_of).filter(|_| moved.is_some());
        if let Some(nodes) = nodes.filter(|nodes| has_moved || *nodes != port.state().nodes) {
            port.handle_view(nodes, Position::default());
        }
        if has_moved {
            port.changed.ring();
        } else {
            port.bell.wait(seen, TICK);
        }
    }
}

fn nodes_of(group: &Group) -> BTreeSet<u32> {
    group.view().members.iter().map(|member| member.node.0).collect()
}

/// Hands each reader what it has not had yet. Returns whether there was something.
fn pull(state: &mut PortState, topic: &KeptTopic) -> bool {
    let now = now_ns();
    let mut has_moved = false;
    for reader in state.readers.values_mut() {
        let before = (reader.next_announcement, reader.next_kept);
        reader.is_behind = !pull_reader(reader, topic, now);
        has_moved |= before != (reader.next_announcement, reader.next_kept);
    }
    has_moved
}

/// Hands a reader announcements and samples in the order of the topic. Returns whether it has everything now.
fn pull_reader(reader: &mut ReaderCore, topic: &KeptTopic, now: u64) -> bool {
    let mut samples_left = SAMPLES_AT_ONCE;
    loop {
        let announcement = topic.announcements(reader.next_announcement).first();
        let end = announcement.map_or(topic.next(), |announcement| announcement.next);
        if !pull_samples(reader, topic, end, &mut samples_left, now) {
            return false;
        }
        let Some(announcement) = announcement else { return true };
        reader.handle_announcement(&announcement.endpoint, Position::default(), now);
        if announcement.endpoint.id == reader.id {
            reader.begin_live(announcement.next);
        }
        reader.next_announcement += 1;
    }
}

/// Hands a reader the samples before number `end`, as long as it has space. Returns whether it has taken all.
fn pull_samples(reader: &mut ReaderCore, topic: &KeptTopic, end: u64, left: &mut usize, now: u64) -> bool {
    let Some(first) = reader.next_kept else { return true };
    for (number, bytes) in topic.samples(first).take_while(|(number, _)| *number < end) {
        let Some(TopicFrame::Change(header, data)) = TopicFrame::decode(bytes) else { continue };
        let position = Position { view: 0, sequence: number };
        if *left == 0 || reader.handle_change(&header, &Arc::from(data), position, now) == Offer::Full {
            return false;
        }
        *left -= 1;
        reader.pass(number);
        reader.next_kept = Some(number + 1);
    }
    reader.pass(end);
    reader.next_kept = reader.next_kept.max(Some(end));
    true
}

/// How long a thread with announcements that have no space sleeps.
const NAP: Duration = Duration::from_micros(200);
/// How often a thread looks at what rings no bell: the end of the group, and a state that has arrived.
const TICK: Duration = Duration::from_millis(50);
/// How many samples a reader is handed while the object's updates wait.
const SAMPLES_AT_ONCE: usize = 256;
