//! Delivery latency: from the sending of a message to its delivery at the sender, of a few of its messages (Spindle §4.1.1), and where
//! that time went.
//!
//! Which message is measured is chosen among those of the next period, as many as were sent in the last one, so that the first
//! message of a burst counts no more than the others. Messages that a view change sends again are not measured, and neither are those
//! of subgroups without a total order, which wait for no other member.

use squall_fabric::{DurationHistogram, Fabric, Instant};

use super::{Deliver, Subgroup, WindowTimes};

/// The way of a message of this member, from being sent to being delivered here: `sent <= announced <= stable <= delivered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTrack {
    /// Its place among the messages and nulls of this member in the view, from 0.
    pub index: u64,
    /// When the application sent it.
    pub sent: Instant,
    /// When the polling thread announced it to the others.
    pub announced: Instant,
    /// When this member knew that all had received it, and in a durable subgroup, had it on their disks.
    pub stable: Instant,
    /// When the application had got it, and what was delivered with it, or could pull it.
    pub delivered: Instant,
}

/// What a subgroup knows of the latency of its own messages.
#[derive(Debug)]
pub(super) struct DeliveryLatency {
    pub(super) histogram: DurationHistogram,
    /// The writer is asked for the time of a message.
    pub(super) is_asked: bool,
    /// The message under way is delivered when this many sequences are; `u64::MAX`: none is under way.
    pub(super) awaited: u64,
    /// The message under way, as far as it has come.
    track: MessageTrack,
    /// The latest message that was delivered, until it is taken.
    ended: Option<MessageTrack>,
    /// The number of messages sent when the writer was asked last.
    asked_at: u64,
    asked: u64,
}

impl Default for DeliveryLatency {
    fn default() -> Self {
        Self {
            histogram: DurationHistogram::default(),
            is_asked: false,
            awaited: u64::MAX,
            track: MessageTrack::default(),
            ended: None,
            asked_at: 0,
            asked: 0,
        }
    }
}

impl DeliveryLatency {
    /// Notes that all members have the message under way.
    #[cold]
    pub(super) const fn reach_all(&mut self, now: Instant) {
        self.track.stable = now;
    }

    /// Counts the message under way, which has been delivered.
    #[cold]
    pub(super) fn end(&mut self, now: Instant) {
        self.histogram.note(now.since(self.track.sent));
        self.awaited = u64::MAX;
        self.track.delivered = now;
        self.ended = Some(self.track);
    }
}

impl<D: Deliver> Subgroup<D> {
    /// Asks the writer for the time of one of its next messages, unless one is under way. Call it periodically: a question that has
    /// not been answered since the last call is asked again, for an earlier message.
    pub fn sample_latency(&mut self) {
        let Some((publisher, _)) = &mut self.publisher else { return };
        if !self.settings.mode.is_ordered() || self.latency.awaited != u64::MAX {
            return;
        }
        let latency = &mut self.latency;
        let sent = self.counters.messages_sent;
        // Spread by a multiplication: nothing here may be random.
        let later = latency.asked.wrapping_mul(SPREAD) % (sent - latency.asked_at).max(1);
        (latency.is_asked, latency.asked_at, latency.asked) = (true, sent, latency.asked.wrapping_add(1));
        publisher.ask_time(later);
    }

    /// Looks whether the message that the writer was asked for has been sent.
    #[cold]
    pub(super) fn begin_latency<F: Fabric>(&mut self, fabric: &F) {
        let Some((publisher, sender)) = &mut self.publisher else { return };
        if let Some((index, sent)) = publisher.take_time() {
            self.latency.is_asked = false;
            self.latency.track =
                MessageTrack { index, sent, announced: fabric.now(), ..MessageTrack::default() };
            self.latency.awaited = index * self.settings.senders.len() as u64 + *sender as u64 + 1;
        }
    }

    /// Returns the way of the latest message that was measured, once.
    #[must_use]
    pub const fn take_track(&mut self) -> Option<MessageTrack> {
        self.latency.ended.take()
    }

    /// Returns how long messages took, and for how long the application found no space for them.
    #[must_use]
    pub const fn times(&self) -> WindowTimes {
        WindowTimes { latencies: self.latency.histogram, full: self.fullness.total }
    }
}

/// The golden ratio of 64-bit numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
    use squall_fabric::window::WindowWriter;
    use squall_fabric::{Core as _, Duration, Fabric as _, MirrorKey, NodeId};

    use super::MessageTrack;
    use crate::multicast::{Message, Subgroup, SubgroupSettings, ViewStart};

    type Upcall = fn(Message<'_>);

    /// Three members, of which the first one sends.
    struct Scene {
        world: SimWorld,
        fabrics: [SimFabric; 3],
        groups: Vec<Subgroup<Upcall>>,
        writer: WindowWriter,
    }

    impl Scene {
        fn new() -> Self {
            let world = SimWorld::new(1, SimConfig::hardware(), 3);
            let mut fabrics = [0, 1, 2].map(|node| world.fabric(node));
            let nodes = [0, 1, 2].map(NodeId);
            let begin = |fabric: &mut SimFabric| {
                let settings =
                    SubgroupSettings { window: 4, senders: vec![0], ..SubgroupSettings::new(3, 8) };
                let deliver: Upcall = |_| ();
                Subgroup::new(fabric, MirrorKey(1), &nodes, settings, ViewStart::default(), deliver)
            };
            let (groups, writers): (Vec<_>, Vec<_>) = fabrics.iter_mut().map(begin).unzip();
            let writer = writers.into_iter().next().flatten().expect("it sends");
            let mut scene = Self { world, fabrics, groups, writer };
            scene.settle(None);
            scene
        }

        fn settle(&mut self, stopped: Option<u32>) {
            let end = self.fabrics[0].now() + Duration::from_millis(5);
            (0..3).for_each(|node| self.world.wake(node));
            while let Some(node) = self.world.next_poll(end) {
                let (group, fabric) = (&mut self.groups[node as usize], &mut self.fabrics[node as usize]);
                let mut events = Vec::new();
                fabric.poll(&mut |event| events.push(event));
                events.iter().for_each(|event| group.handle_event(fabric, event));
                let work = if stopped == Some(node) { 0 } else { group.poll(fabric) };
                self.world.rest(node, work > 0 || !events.is_empty(), None);
            }
        }

        /// Sends a message, as the library does; returns whether there was space.
        fn send(&mut self) -> bool {
            if self.writer.needs_attention() && self.writer.wants_time() {
                self.writer.note_time(self.fabrics[0].now());
            }
            self.writer.send(1, |bytes| bytes[0] = 1).is_ok()
        }
    }

    /// A message has its way measured once, if it was asked for; what it waits for is between the right steps.
    #[test]
    fn the_way_of_a_message_is_measured() {
        let mut scene = Scene::new();
        assert!(scene.send());
        scene.settle(None);
        assert_eq!(scene.groups[0].take_track(), None, "it was not asked for");
        scene.groups[0].sample_latency();
        let sent_at = scene.fabrics[0].now();
        assert!(scene.send());
        scene.settle(Some(2));
        assert_eq!(scene.groups[0].take_track(), None, "a member does not have it");
        let continued = scene.fabrics[0].now();
        scene.settle(None);
        let track = scene.groups[0].take_track().expect("it is delivered");
        let MessageTrack { index, sent, announced, stable, delivered } = track;
        assert_eq!((index, sent), (1, sent_at), "{track:?}");
        assert!(sent <= announced && announced < continued, "{track:?}");
        assert!(continued <= stable && stable <= delivered, "{track:?}");
        assert_eq!(scene.groups[0].take_track(), None, "it was taken");
        let times = scene.groups[0].times();
        assert_eq!((times.latencies.count(), times.latencies.sum()), (1, delivered.since(sent)));
    }

    /// While a member takes nothing, the window of a sender is full from the first message on that finds no space.
    #[test]
    fn a_window_that_is_full_is_seen() {
        let mut scene = Scene::new();
        let look = |scene: &mut Scene| {
            scene.groups[0].sample_fullness(scene.fabrics[0].now());
            scene.groups[0].times().full
        };
        look(&mut scene);
        (0..4).for_each(|_| assert!(scene.send()));
        scene.settle(Some(2));
        assert_eq!(look(&mut scene), Duration::ZERO, "no message waits");
        assert!(!scene.send());
        let waits = scene.fabrics[0].now();
        scene.settle(Some(2));
        look(&mut scene);
        scene.settle(Some(2));
        assert!(look(&mut scene) >= scene.fabrics[0].now().since(waits), "it has waited since then");
        scene.settle(None);
        look(&mut scene);
        let before = look(&mut scene);
        assert!(scene.send());
        scene.settle(None);
        assert_eq!(look(&mut scene), before, "there is space");
    }
}
