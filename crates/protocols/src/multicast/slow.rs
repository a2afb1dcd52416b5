//! Slow consumers: which member holds a subgroup up, and for how long (Derecho §3.4).
//!
//! A message keeps its place in its sender's window until all members have delivered it, so a consumer that stops
//! fills all windows. This core determines which member that is. It decides nothing: [`crate::group`] reports the
//! member if the settings say so ([`SubgroupSettings::slow_after`](super::SubgroupSettings::slow_after)), and the
//! member leaves in a view on which all agree.
//!
//! **State.** For each member, how far it had delivered when this one last checked, and since when it has made no
//! progress while this one waited for it; and the same for this member's own consumer.
//!
//! **Law.** This member *waits for* another if its application found no space for a message, the oldest message in
//! its window is stable, and the other member has not delivered it. So it does not wait here for a member that has
//! not received the message: membership decides whether that one lives. A member that makes progress, by one message,
//! begins anew; a consumer that is slow but makes progress is never excluded. A member waits for its own consumer if
//! the consumer could take a message.
//!
//! **Invariant.** `since <= now`; and a member that made progress between two checks, or that this one did not wait
//! for at one of them, has a later `since` than the first check.

use squall_fabric::{Duration, Instant, NodeId};

use super::subgroup::DeliveryOutlet;
use super::{Deliver, DeliveryMode, Subgroup};
use crate::mutation;

/// The progress of a consumer, and how long it has made none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stand {
    position: u64,
    since: Option<Instant>,
}

impl Stand {
    fn note(&mut self, is_waited_for: bool, position: u64, now: Instant) {
        let has_moved = self.position != position && !mutant!(SlowThoughMoving);
        let stands = is_waited_for && !has_moved;
        let since = self.since.filter(|_| stands).unwrap_or(now);
        *self = Self { position, since: is_waited_for.then_some(since) };
    }
}

/// A member that holds up a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldUp {
    /// The member.
    pub member: NodeId,
    /// Since when it has made no progress, although others waited for it.
    pub since: Instant,
}

/// What one member knows about the consumers of a subgroup.
#[derive(Debug)]
pub(super) struct ConsumerProgress {
    interval: Duration,
    next: Instant,
    /// By rank.
    stands: Vec<Stand>,
    own: Stand,
}

impl ConsumerProgress {
    pub(super) fn new(members: usize, slow_after: Option<Duration>) -> Self {
        let interval = slow_after.map_or(INTERVAL, |after| (after / LOOKS).min(INTERVAL));
        let stands = vec![Stand::default(); members];
        Self { interval, next: Instant::from_nanos(0), stands, own: Stand::default() }
    }

    /// Returns whether it is time to check.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }
}

impl<D: Deliver> Subgroup<D> {
    /// Checks how much each member has delivered, if it is time.
    pub fn look_at_consumers(&mut self, now: Instant) {
        if !self.is_ready() || self.wedged || !self.consumers.is_due(now) {
            return;
        }
        let oldest = self.oldest_waiting();
        let lane = self.own_lane();
        for rank in 0..self.members().len() {
            let delivered = self.row.delivered.column(lane).load(self.table.row(rank));
            let is_waited_for = oldest.is_some_and(|oldest| delivered <= oldest);
            self.consumers.stands[rank].note(is_waited_for, delivered, now);
        }
        if let DeliveryOutlet::Pull(offer) = &self.outlet {
            let (position, waits) = offer.standing();
            self.consumers.own.note(waits, position, now);
            if self.consumers.own.since.is_some_and(|since| now.since(since) >= self.consumers.interval) {
                offer.urge();
            }
        }
    }

    /// Returns the member that this one's application has waited for the longest, if it waits for any.
    #[must_use]
    pub fn held_up_by(&self) -> Option<HeldUp> {
        let stands = self.consumers.stands.iter().zip(self.members());
        let held = stands.filter_map(|(stand, member)| Some(HeldUp { member: *member, since: stand.since? }));
        held.min_by_key(|held| held.since)
    }

    /// Returns since when this member's own consumer has made no progress, although there were messages.
    #[must_use]
    pub const fn stands_still_since(&self) -> Option<Instant> {
        self.consumers.own.since
    }

    /// Returns when to check again, if there is anything to check.
    #[must_use]
    pub fn next_look(&self) -> Option<Instant> {
        let sends = self.publisher.as_ref().is_some_and(|(publisher, _)| publisher.outstanding() > 0);
        let waits = matches!(&self.outlet, DeliveryOutlet::Pull(offer) if offer.standing().1);
        (!self.wedged && (sends || waits)).then_some(self.consumers.next)
    }

    /// Returns the position, in the units of `delivered`, of the oldest message in this member's window, if the
    /// application found no space, and all members have the message.
    fn oldest_waiting(&self) -> Option<u64> {
        let (publisher, sender) = self.publisher.as_ref()?;
        let index = publisher.oldest().filter(|_| publisher.is_starved())?;
        match self.settings.mode {
            DeliveryMode::Atomic | DeliveryMode::Durable => {
                let sequence = index * self.announced.len() as u64 + *sender as u64;
                (sequence < self.stable).then_some(sequence)
            }
            DeliveryMode::Unordered | DeliveryMode::Raw => Some(index),
        }
    }

    /// Returns the lane in which this member's messages are delivered.
    fn own_lane(&self) -> usize {
        match (&self.publisher, self.settings.mode) {
            (Some((_, sender)), DeliveryMode::Unordered | DeliveryMode::Raw) => *sender,
            _ => 0,
        }
    }
}

/// How often consumers are checked within [`SubgroupSettings::slow_after`](super::SubgroupSettings::slow_after).
const LOOKS: u32 = 8;

/// The longest interval between checks, for status reports.
const INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use squall_fabric::sim::{SimConfig, SimWorld};
    use squall_fabric::{Core, Fabric, MirrorKey, NodeId};

    use super::*;
    use crate::multicast::{Message, Subgroup, SubgroupSettings, ViewStart};

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_consumer_that_makes_progress_begins_anew() {
        let mut stand = Stand::default();
        for (millis, waited_for, position, since) in [
            (1, false, 0, None),
            (2, true, 0, Some(2)),
            (3, true, 0, Some(2)),
            (4, true, 1, Some(4)),
            (5, false, 1, None),
            (6, true, 1, Some(6)),
        ] {
            stand.note(waited_for, position, at(millis));
            assert_eq!(stand.since, since.map(at), "at {millis}");
        }
    }

    /// A sender without space knows the member whose consumer has stopped, and that member knows it, too; when it
    /// takes its messages, no member is held up.
    #[test]
    fn a_sender_finds_the_consumer_that_has_stopped() {
        let world = SimWorld::new(1, SimConfig::hardware(), 2);
        let mut fabrics = [world.fabric(0), world.fabric(1)];
        let nodes = [NodeId(0), NodeId(1)];
        let settings = SubgroupSettings { window: 4, senders: vec![0], ..SubgroupSettings::new(2, 8) };
        let [here, there] = &mut fabrics;
        let start = ViewStart::default;
        let (mut sender, writer) =
            Subgroup::new(here, MirrorKey(1), &nodes, settings.clone(), start(), |_: Message<'_>| ());
        let (mut slow, _, mut pull) = Subgroup::pulled(there, MirrorKey(1), &nodes, settings, start());
        let mut writer = writer.expect("it sends");
        let mut settle = |sender: &mut Subgroup<_>, slow: &mut Subgroup<_>| {
            let end = here.now() + Duration::from_millis(5);
            // The simulated world does not wake a node when its application does something.
            (0..2).for_each(|node| world.wake(node));
            while let Some(node) = world.next_poll(end) {
                let mut events = Vec::new();
                let work = if node == 0 {
                    here.poll(&mut |event| events.push(event));
                    events.iter().for_each(|event| sender.handle_event(here, event));
                    sender.poll(here)
                } else {
                    there.poll(&mut |event| events.push(event));
                    events.iter().for_each(|event| slow.handle_event(there, event));
                    slow.poll(there)
                };
                world.rest(node, work > 0 || !events.is_empty(), None);
            }
        };
        settle(&mut sender, &mut slow);
        while writer.send(1, |bytes| bytes[0] = 1).is_ok() {}
        settle(&mut sender, &mut slow);
        for (millis, since) in [(1000, 1000), (1200, 1000), (1900, 1000)] {
            sender.look_at_consumers(at(millis));
            slow.look_at_consumers(at(millis));
            assert_eq!(sender.held_up_by(), Some(HeldUp { member: NodeId(1), since: at(since) }));
            assert_eq!(slow.stands_still_since(), Some(at(since)));
        }
        assert!(pull.is_urged() && sender.next_look().is_some() && slow.next_look().is_some());
        while pull.next_message().expect("nothing is corrupt").is_some() {}
        pull.release();
        settle(&mut sender, &mut slow);
        sender.look_at_consumers(at(2000));
        slow.look_at_consumers(at(2000));
        assert_eq!((sender.held_up_by(), slow.stands_still_since()), (None, None));
        assert!(!pull.is_urged() && sender.next_look().is_none() && slow.next_look().is_none());
    }
}
