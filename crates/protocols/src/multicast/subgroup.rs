//! The core of a subgroup: it sends, receives, delivers and frees, as predicates over its table (Spindle §2.4, §3).
//!
//! See the module above for the step order and the invariants.

use std::sync::Arc;

use squall_fabric::window::{Announcement, INDEXES_MAX, WindowPublisher, WindowWriter};
use squall_fabric::{Core, Fabric, FabricEvent, MirrorKey, NodeId, trusted};

use super::acknowledgement::AnnouncedProgress;
use super::bodies::Bodies;
use super::durable::Persistence;
use super::freeing::WindowFullness;
use super::latency::DeliveryLatency;
use super::nulls::RoundsOwed;
use super::pull::{Handoff, HandoffProducer, NoUpcall, Pull};
use super::send::piece_words;
use super::slow::ConsumerProgress;
use super::{
    Consumer, CorruptMemory, Deliver, DeliveryMode, MulticastCounters, MulticastRow, SubgroupFailure,
    SubgroupSettings, ViewStart, sequences_complete,
};
use crate::mutation;
use crate::sst::StateTable;

/// A subgroup of a fixed list of members, as one member sees it.
#[derive(Debug)]
pub struct Subgroup<D> {
    pub(super) start: ViewStart,
    pub(super) table: StateTable,
    pub(super) row: MulticastRow,
    pub(super) settings: SubgroupSettings,
    /// The words that an evaluation sends at most, if that is more than one message.
    pub(super) piece_words: usize,
    /// This member's window, if it sends, and its rank among the senders.
    pub(super) publisher: Option<(WindowPublisher, usize)>,
    /// The bodies of large messages, if these are allowed.
    pub(super) bodies: Option<Bodies>,
    /// Announcements as last seen, by sender.
    pub(super) announced: Vec<Announcement>,
    /// The indexes that the announcements' own words had last, without express records.
    announced_indexes: Vec<u64>,
    /// Their indexes, as far as they count as received: `indexes[i] <= announced[i].indexes`.
    pub(super) indexes: Vec<u64>,
    /// The rank of each member among the senders.
    pub(super) sender_ranks: Vec<Option<usize>>,
    /// What this member owes as a sender.
    pub(super) rounds: RoundsOwed,
    /// `0 <= delivered <= stable <= received` in total order; `received` is what this member acknowledges.
    pub(super) received: u64,
    pub(super) stable: u64,
    pub(super) progress_announced: AnnouncedProgress,
    pub(super) outlet: DeliveryOutlet<D>,
    /// The least `delivered` of all members that was last freed up to.
    pub(super) freed: u64,
    /// For how long the application found no space in its window.
    pub(super) fullness: WindowFullness,
    pub(super) failure: Option<SubgroupFailure>,
    /// The view has ended: nothing is sent or acknowledged any more.
    pub(super) wedged: bool,
    pub(super) counters: MulticastCounters,
    pub(super) latency: DeliveryLatency,
    pub(super) consumers: ConsumerProgress,
    /// The log of a durable subgroup.
    pub(super) persistence: Option<Persistence>,
    /// When it is wedged: the number of indexes of each sender that count.
    pub(super) counts: Option<Vec<u64>>,
}

/// The most members whose lines an evaluation prefetches: as many loads as a core has under way, about.
const PREFETCHED_PEERS: usize = 8;

/// Where deliveries go.
#[derive(Debug)]
pub(super) enum DeliveryOutlet<D> {
    /// To an upcall on the polling thread.
    Upcall { consumer: Consumer, deliver: D },
    /// To the holder of the [`Pull`].
    Pull(HandoffProducer),
}

impl<D: Deliver> Subgroup<D> {
    /// Joins the subgroup `key` of `members` in a view; messages are delivered to `deliver`, on the thread that
    /// polls. Returns a writer if this member sends.
    ///
    /// # Panics
    /// If the settings do not fit the members ([`SubgroupSettings::check`]), or if this node is not a member.
    pub fn new<F: Fabric>(
        fabric: &mut F,
        key: MirrorKey,
        members: &[NodeId],
        settings: SubgroupSettings,
        start: ViewStart,
        deliver: D,
    ) -> (Self, Option<WindowWriter>) {
        Self::build(fabric, key, members, settings, start, |consumer| DeliveryOutlet::Upcall {
            consumer,
            deliver,
        })
    }

    fn build<F: Fabric>(
        fabric: &mut F,
        key: MirrorKey,
        members: &[NodeId],
        settings: SubgroupSettings,
        start: ViewStart,
        outlet: impl FnOnce(Consumer) -> DeliveryOutlet<D>,
    ) -> (Self, Option<WindowWriter>) {
        settings.check(members.len()).expect("the caller has checked the settings");
        let row = MulticastRow::new(&settings);
        let table = StateTable::new(fabric, key, members, row.words);
        let bodies = row.bodies.as_ref().map(|columns| Bodies::new(fabric, &table, columns, &settings));
        let (writer, publisher) = match settings.senders.iter().position(|member| *member == table.rank()) {
            Some(sender) => {
                let ring = bodies.as_ref().map(|bodies| bodies.ring(sender));
                let (writer, publisher) = trusted::window(table.own(), row.window, ring);
                (Some(writer), Some((publisher, sender)))
            }
            None => (None, None),
        };
        let outlet = outlet(Consumer::new(&table, &row, &settings, &start, bodies.as_ref()));
        let consumers = ConsumerProgress::new(members.len(), settings.slow_after);
        let senders = settings.senders.len();
        let sender_rank = |rank| settings.senders.iter().position(|member| *member == rank);
        let sender_ranks = (0..members.len()).map(sender_rank).collect();
        let subgroup = Self {
            start,
            table,
            row,
            piece_words: piece_words(fabric, &settings),
            settings,
            publisher,
            bodies,
            announced: vec![Announcement::default(); senders],
            announced_indexes: vec![0; senders],
            indexes: vec![0; senders],
            sender_ranks,
            rounds: RoundsOwed::default(),
            received: 0,
            stable: 0,
            progress_announced: AnnouncedProgress::default(),
            outlet,
            freed: 0,
            fullness: WindowFullness::default(),
            failure: None,
            wedged: false,
            counters: MulticastCounters::default(),
            latency: DeliveryLatency::default(),
            consumers,
            persistence: None,
            counts: None,
        };
        (subgroup, writer)
    }

    /// Returns whether all members have attached, so that messages flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.table.is_ready()
    }

    /// Returns why the subgroup has stopped, if it has.
    #[must_use]
    pub const fn failure(&self) -> Option<SubgroupFailure> {
        self.failure
    }

    /// Returns counters of what has been done so far.
    #[must_use]
    pub const fn counters(&self) -> &MulticastCounters {
        &self.counters
    }

    /// Returns the table of rows, for checkers and tools.
    #[must_use]
    pub const fn table(&self) -> &StateTable {
        &self.table
    }

    /// Returns the layout of each row.
    #[must_use]
    pub const fn row(&self) -> &MulticastRow {
        &self.row
    }

    /// Returns the members by rank.
    #[must_use]
    pub fn members(&self) -> &[NodeId] {
        self.table.members()
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &SubgroupSettings {
        &self.settings
    }

    /// Returns the upcall, unless deliveries are pulled.
    pub const fn deliver_mut(&mut self) -> Option<&mut D> {
        match &mut self.outlet {
            DeliveryOutlet::Upcall { deliver, .. } => Some(deliver),
            DeliveryOutlet::Pull(_) => None,
        }
    }

    /// Ends the subgroup at this member: the writer and a pulling consumer learn that it is closed.
    pub fn close(&mut self) {
        if let Some((publisher, _)) = &self.publisher {
            publisher.close();
        }
        if let DeliveryOutlet::Pull(handoff) = &self.outlet {
            handoff.close();
        }
    }

    pub(super) fn fail(&mut self, failure: SubgroupFailure) {
        self.failure = Some(failure);
        self.close();
    }

    /// Lets the lines that this evaluation reads of the other members arrive at the same time.
    #[inline]
    fn prefetch_peers(&self) {
        for (rank, row) in self.table.rows().iter().enumerate().take(PREFETCHED_PEERS) {
            if rank != self.table.rank() {
                row.prefetch(self.row.announced.word());
                row.prefetch(self.row.received.word());
            }
        }
    }

    /// Reads all announcements, fills rounds by nulls, and stores `received`; returns the amount of work done.
    fn receive(&mut self, sent: u64) -> usize {
        let mut work = 0;
        for sender in 0..self.announced.len() {
            let announced = match self.look_at(sender) {
                Ok(announced) if announced == self.announced[sender] => continue,
                Ok(announced) => announced,
                Err(corrupt) => {
                    self.fail(SubgroupFailure::Corrupt(corrupt));
                    return work;
                }
            };
            self.note_announced(sender, self.announced[sender], announced);
            self.announced[sender] = announced;
            if let DeliveryOutlet::Upcall { consumer, .. } = &mut self.outlet {
                consumer.foresee(sender, announced);
            }
            work = 1;
        }
        self.counters.words_polled += self.announced.len() as u64;
        if self.settings.batching.receive {
            if !self.take_announced() {
                return work;
            }
            if work > 0 || !mutant!(OneNullPerReceipt) {
                self.fill_rounds(sent);
            }
            self.acknowledge();
        } else {
            work = work.max(self.receive_singly(sent));
        }
        work
    }

    /// Returns the largest number of messages and nulls of one sender that count as received here.
    #[must_use]
    pub fn indexes_max(&self) -> u64 {
        self.indexes.iter().copied().max().unwrap_or(0)
    }

    /// Returns what a sender has announced by now.
    #[inline]
    pub(super) fn look_at(&mut self, sender: usize) -> Result<Announcement, CorruptMemory> {
        let member = self.settings.senders[sender];
        let row = self.table.row(member);
        let stored = self.row.announced.load(row);
        let announced = self.row.with_express(row, self.announced[sender].max(stored));
        if stored.indexes < self.announced_indexes[sender] || announced.indexes >= INDEXES_MAX {
            return Err(CorruptMemory::Announcement { member, index: self.announced_indexes[sender] });
        }
        self.announced_indexes[sender] = stored.indexes;
        Ok(announced)
    }

    /// Counts everything that is announced and complete as received; returns false if the subgroup has failed.
    #[inline]
    pub(super) fn take_announced(&mut self) -> bool {
        if self.bodies.is_none() {
            for (indexes, announced) in self.indexes.iter_mut().zip(&self.announced) {
                *indexes = announced.indexes;
            }
            return true;
        }
        for sender in 0..self.indexes.len() {
            let Some(limit) = self.limit(sender) else { return false };
            self.indexes[sender] = limit;
        }
        true
    }

    /// Receives without batching: one message of each sender, each with its own acknowledgement.
    fn receive_singly(&mut self, sent: u64) -> usize {
        let mut work = 0;
        for sender in 0..self.indexes.len() {
            if self.limit(sender).is_some_and(|limit| self.indexes[sender] < limit) {
                self.indexes[sender] += 1;
                self.fill_rounds(sent);
                self.acknowledge();
                self.announce();
                work = 1;
            }
        }
        if self.is_durable() {
            // The disk may have more by now.
            self.acknowledge();
        }
        work
    }

    /// Stores `received` if it has grown. Without a total order no member waits for it.
    #[inline]
    fn acknowledge(&mut self) {
        let complete = match self.settings.mode {
            DeliveryMode::Atomic => sequences_complete(&self.indexes),
            DeliveryMode::Durable => self.persist(),
            DeliveryMode::Unordered | DeliveryMode::Raw => return,
        };
        if complete > self.received {
            self.counters.sequences_received += complete - self.received;
            self.counters.receive_batches += 1;
            self.received = complete;
            self.table.note(self.row.received, complete);
        }
    }

    /// Updates `stable` to the least `received` of all members: everything below is stable [O4].
    #[inline]
    pub(super) fn update_stable(&mut self) {
        if self.received == self.stable {
            return;
        }
        let mut stable = self.received;
        let members = self.table.members().len();
        for rank in 0..members {
            mutant!(DeliverUnstable => continue);
            mutant!(StableWithoutLast if rank == members - 1 => continue);
            if rank != self.table.rank() {
                stable = stable.min(self.received_at_least(rank));
            }
        }
        self.counters.words_polled += members as u64 - 1;
        if stable > self.stable {
            self.stable = stable;
            if self.persistence.is_some() {
                self.report_stable();
            }
        }
    }

    /// Delivers what is stable and stores `delivered`; returns the amount of work done.
    fn deliver(&mut self) -> usize {
        let mut work = 0;
        for lane in 0..self.row.delivered.count() {
            let mut sender = lane;
            mutant!(LaneOfNextSender => sender = (lane + 1) % self.indexes.len());
            let limit = match self.settings.mode {
                DeliveryMode::Atomic | DeliveryMode::Durable => self.stable,
                DeliveryMode::Unordered | DeliveryMode::Raw => self.indexes[sender],
            };
            match self.deliver_lane(lane, limit) {
                Ok(done) => work |= done,
                Err(corrupt) => {
                    self.fail(SubgroupFailure::Corrupt(corrupt));
                    return work;
                }
            }
        }
        work
    }

    fn deliver_lane(&mut self, lane: usize, limit: u64) -> Result<usize, CorruptMemory> {
        let mut news = false;
        let delivered = match &mut self.outlet {
            DeliveryOutlet::Upcall { consumer, deliver } => {
                if limit == consumer.taken()[lane] {
                    return Ok(0);
                }
                let count = if self.settings.batching.delivery { u64::MAX } else { 1 };
                consumer.consume(lane, limit, count, deliver)?;
                let (messages, bytes) = consumer.handed_over();
                self.counters.messages_delivered = messages;
                self.counters.bytes_delivered = bytes;
                consumer.taken()[lane]
            }
            DeliveryOutlet::Pull(handoff) => {
                news = handoff.offer(lane, limit);
                handoff.released(lane)
            }
        };
        let column = self.row.delivered.column(lane);
        if delivered == self.table.own().load_relaxed(column.word()) {
            return Ok(usize::from(news && !mutant!(SilentWork)));
        }
        self.counters.delivery_batches += 1;
        self.table.note(column, delivered);
        self.report_delivered(delivered);
        let own = self.publisher.as_ref().is_some_and(|(_, own)| *own == lane);
        if !self.settings.mode.is_ordered() && !own {
            self.table.publish(column.word()..column.word() + 1);
        }
        Ok(1)
    }
}

impl Subgroup<NoUpcall> {
    /// Joins like [`Subgroup::new`], but messages wait for the holder of the [`Pull`], on any thread.
    ///
    /// # Panics
    /// If [`Subgroup::new`] would panic.
    pub fn pulled<F: Fabric>(
        fabric: &mut F,
        key: MirrorKey,
        members: &[NodeId],
        settings: SubgroupSettings,
        start: ViewStart,
    ) -> (Self, Option<WindowWriter>, Pull) {
        let lanes = settings.lanes();
        let (handoff, senders) = (Arc::new(Handoff::new(lanes)), settings.senders.len());
        let mut consumer = None;
        let (subgroup, writer) = Self::build(fabric, key, members, settings, start, |built| {
            consumer = Some(built);
            DeliveryOutlet::Pull(HandoffProducer::new(Arc::clone(&handoff), senders))
        });
        (subgroup, writer, Pull::new(consumer.expect("built above"), handoff))
    }
}

impl<F: Fabric, D: Deliver> Core<F> for Subgroup<D> {
    fn handle_event(&mut self, _fabric: &mut F, event: &FabricEvent) {
        self.table.handle_event(event);
    }

    #[inline]
    fn poll(&mut self, fabric: &mut F) -> usize {
        if !self.table.is_ready() || self.failure.is_some() || self.wedged {
            return 0;
        }
        self.counters.polls += 1;
        self.prefetch_peers();
        let sent = self.send();
        if sent > 0 && self.latency.is_asked {
            self.begin_latency(fabric);
        }
        let mut work = usize::from(sent > 0) + self.receive(sent);
        if self.settings.mode.is_ordered() {
            self.update_stable();
        }
        let is_stable = self.stable >= self.latency.awaited;
        if is_stable {
            self.latency.reach_all(fabric.now());
        }
        work += self.deliver();
        if is_stable {
            self.latency.end(fabric.now());
        }
        self.announce();
        self.fill_ahead(sent);
        work += self.free(work == 0);
        let posts = self.table.flush(fabric);
        self.counters.posts += posts as u64;
        mutant!(SilentWork => return work);
        work + posts
    }
}
