//! Slow members: which one holds a subgroup up, for how long (Derecho §3.4), and in which part of the way of a message.
//!
//! A message keeps its place in its sender's window until all members have delivered it, so a consumer that stops
//! fills all windows. This core determines which member that is. It decides nothing: [`crate::group`] reports the
//! member if the settings say so ([`SubgroupSettings::slow_after`](super::SubgroupSettings::slow_after)), and the
//! member leaves in a view on which all agree.
//!
//! **State.** For each member, how far it had delivered when this one last checked, and since when it has made no
//! progress while this one waited for it; and the same for this member's own consumer. For the last checks, whom each blames.
//!
//! **Law.** This member *waits for* another if its application found no space for a message, the oldest message in
//! its window is stable, and the other member has not delivered it. So it does not wait here for a member that has
//! not received the message: membership decides whether that one lives. A member that makes progress, by one message,
//! begins anew; a consumer that is slow but makes progress is never excluded. A member waits for its own consumer if
//! the consumer could take a message.
//!
//! **Blame.** A member that is slow holds the others up, too, though it makes progress. A check *blames* a member if this one's
//! application found no space, and a message that was published at the check before is still in its window: if the oldest one is not
//! stable, the member that has acknowledged the least, else the one that has delivered the least. So a group that is busy and takes
//! each message from its senders within [`INTERVAL`] has nothing to blame. [`Subgroup::slowest`] sums the last [`CHECKS`] up.
//!
//! **Invariant.** `since <= now`; and a member that made progress between two checks, or that this one did not wait
//! for at one of them, has a later `since` than the first check.

use std::collections::VecDeque;

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

/// What a message waits for at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStage {
    /// To be acknowledged: the member does not have it, in a durable subgroup not on its disk.
    Acknowledgement,
    /// To be taken by the member's consumer.
    Consumer,
}

/// The member that a sender has waited for the most in the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowestMember {
    /// The member; it may be the sender itself.
    pub member: NodeId,
    /// Where most of the messages waited.
    pub stage: MessageStage,
    /// In how many of a hundred checks it was so.
    pub percent: u32,
}

/// What one member knows about the progress of all in a subgroup.
#[derive(Debug)]
pub(super) struct ConsumerProgress {
    interval: Duration,
    next: Instant,
    /// By rank.
    stands: Vec<Stand>,
    own: Stand,
    /// The index after the last one that was published at the last check.
    published: u64,
    /// The rank that each of the last [`CHECKS`] blames, if it blames any.
    blames: VecDeque<Option<(usize, MessageStage)>>,
    /// What they sum up to: the rank, the stage, and in how many of a hundred.
    slowest: Option<(usize, MessageStage, u32)>,
    is_disk_slow: bool,
}

impl ConsumerProgress {
    pub(super) fn new(members: usize, slow_after: Option<Duration>) -> Self {
        let interval = slow_after.map_or(INTERVAL, |after| (after / LOOKS).min(INTERVAL));
        let stands = vec![Stand::default(); members];
        let (next, own, blames) = (Instant::from_nanos(0), Stand::default(), VecDeque::with_capacity(CHECKS));
        Self { interval, next, stands, own, published: 0, blames, slowest: None, is_disk_slow: false }
    }

    /// Returns whether it is time to check.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    fn blame(&mut self, blamed: Option<(usize, MessageStage)>) {
        if self.blames.len() == CHECKS {
            self.blames.pop_front();
        }
        self.blames.push_back(blamed);
        let count = |wanted| self.blames.iter().flatten().filter(|blame| **blame == wanted).count();
        let most = self.blames.iter().flatten().copied().max_by_key(|blame| count(*blame));
        let percent = |blame| u32::try_from(100 * count(blame) / CHECKS).expect("at most 100");
        self.slowest = most.map(|(rank, stage)| (rank, stage, percent((rank, stage))));
    }

    /// What is known is of the last second.
    fn is_current(&self, now: Instant) -> bool {
        now.since(self.next) < self.interval * u32::try_from(CHECKS).expect("few")
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
        let blamed = self.blamed(lane);
        self.consumers.blame(blamed);
        self.consumers.is_disk_slow = self.is_behind_on_disk(now);
        let published = self.publisher.as_ref().map(|(publisher, _)| publisher.announcement().indexes);
        self.consumers.published = published.unwrap_or_default();
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
        let waits = waits || self.waits_for_disk();
        (!self.wedged && (sends || waits)).then_some(self.consumers.next)
    }

    /// Returns the member for which this one's application has waited the most in the last second, if it waits for any.
    #[must_use]
    pub fn slowest(&self, now: Instant) -> Option<SlowestMember> {
        let (rank, stage, percent) = self.consumers.slowest.filter(|_| self.consumers.is_current(now))?;
        Some(SlowestMember { member: self.members()[rank], stage, percent })
    }

    /// Returns whether messages came to this member's disk late, at the last check.
    #[must_use]
    pub const fn is_disk_slow(&self) -> bool {
        self.consumers.is_disk_slow
    }

    /// Returns the rank of the member that holds up the oldest message, and where, if that message has waited since the last check.
    fn blamed(&self, lane: usize) -> Option<(usize, MessageStage)> {
        let (publisher, _) = self.publisher.as_ref()?;
        publisher.oldest().filter(|oldest| *oldest < self.consumers.published)?;
        let position = self.oldest_unfreed()?;
        let ranks = 0..self.members().len();
        if self.settings.mode.is_ordered() && position >= self.stable {
            let received = |rank: &usize| {
                if *rank == self.table.rank() { self.received } else { self.received_at_least(*rank) }
            };
            return Some((ranks.min_by_key(received)?, MessageStage::Acknowledgement));
        }
        let column = self.row.delivered.column(lane);
        let delivered = |rank: &usize| column.load(self.table.row(*rank));
        let slowest = ranks.min_by_key(delivered).filter(|rank| delivered(rank) <= position);
        Some((slowest?, MessageStage::Consumer))
    }

    /// Returns the position, in the units of `delivered`, of the oldest message in this member's window, if the
    /// application found no space.
    fn oldest_unfreed(&self) -> Option<u64> {
        let (publisher, sender) = self.publisher.as_ref()?;
        let index = publisher.oldest().filter(|_| publisher.is_starved())?;
        let senders = self.announced.len() as u64;
        Some(if self.settings.mode.is_ordered() { index * senders + *sender as u64 } else { index })
    }

    /// The same, if all members have the message.
    fn oldest_waiting(&self) -> Option<u64> {
        self.oldest_unfreed().filter(|position| !self.settings.mode.is_ordered() || *position < self.stable)
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
const INTERVAL: Duration = Duration::from_millis(50);

/// The checks of about a second.
const CHECKS: usize = 20;

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
        let slowest = |percent| SlowestMember { member: NodeId(1), stage: MessageStage::Consumer, percent };
        assert_eq!(sender.slowest(at(1900)), Some(slowest(10)), "two checks found an older message");
        assert_eq!(sender.slowest(at(3000)), None, "it was not checked for a second");
        assert!(pull.is_urged() && sender.next_look().is_some() && slow.next_look().is_some());
        while pull.next_message().expect("nothing is corrupt").is_some() {}
        pull.release();
        settle(&mut sender, &mut slow);
        sender.look_at_consumers(at(2000));
        slow.look_at_consumers(at(2000));
        assert_eq!((sender.held_up_by(), slow.stands_still_since()), (None, None));
        assert!(!pull.is_urged() && sender.next_look().is_none() && slow.next_look().is_none());
    }
    /// A member that acknowledges nothing is to blame for that; a window that is filled again and again has no such
    /// member while messages leave it.
    #[test]
    fn a_sender_blames_the_member_that_acknowledges_late() {
        let world = SimWorld::new(1, SimConfig::hardware(), 2);
        let mut fabrics = [world.fabric(0), world.fabric(1)];
        let nodes = [NodeId(0), NodeId(1)];
        let settings = SubgroupSettings { window: 4, senders: vec![0], ..SubgroupSettings::new(2, 8) };
        let start = ViewStart::default;
        let [here, there] = &mut fabrics;
        let drop_it: fn(Message<'_>) = |_| ();
        let (mut sender, writer) =
            Subgroup::new(here, MirrorKey(1), &nodes, settings.clone(), start(), drop_it);
        let (mut other, _) = Subgroup::new(there, MirrorKey(1), &nodes, settings, start(), drop_it);
        let mut writer = writer.expect("it sends");
        type Member = Subgroup<fn(Message<'_>)>;
        let mut settle = |sender: &mut Member, other: Option<&mut Member>| {
            let mut subgroups = [Some(sender), other];
            let mut fabrics = [&mut *here, &mut *there];
            let end = fabrics[0].now() + Duration::from_millis(5);
            (0..2).for_each(|node| world.wake(node));
            while let Some(node) = world.next_poll(end) {
                let mut events = Vec::new();
                fabrics[node as usize].poll(&mut |event| events.push(event));
                let work = subgroups[node as usize].as_mut().map_or(0, |subgroup| {
                    events.iter().for_each(|event| subgroup.handle_event(fabrics[node as usize], event));
                    subgroup.poll(fabrics[node as usize])
                });
                world.rest(node, work > 0 || !events.is_empty(), None);
            }
        };
        let mut fill = || while writer.send(1, |bytes| bytes[0] = 1).is_ok() {};
        let mut millis = 1000;
        let mut look = |sender: &mut Member| {
            millis += 50;
            sender.look_at_consumers(at(millis));
            sender.slowest(at(millis))
        };
        for _ in 0..CHECKS {
            settle(&mut sender, Some(&mut other));
            fill();
            assert_eq!(look(&mut sender), None, "all of them are new");
        }
        settle(&mut sender, None);
        assert_eq!(look(&mut sender), None, "they were published since the last check");
        for check in 1..=CHECKS {
            settle(&mut sender, None);
            fill();
            let percent = u32::try_from(100 * check / CHECKS).unwrap();
            let blamed = SlowestMember { member: NodeId(1), stage: MessageStage::Acknowledgement, percent };
            assert_eq!(look(&mut sender), Some(blamed));
        }
    }
}
