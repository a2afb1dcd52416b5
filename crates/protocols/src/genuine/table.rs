//! The mirrors of a view: what a member writes to the members of each shard, and what all write to its own
//! (RamCast §3.2, §3.3) \[G16\].
//!
//! A member has one mirror for each shard, which the members of that shard alone read, and one small mirror for each other
//! member, for how many of its records are done \[G8\]. So bytes go to the members of destination shards only, and on one host
//! one store serves all members of a shard.
//!
//! Pushes of all mirrors of a member reach a reader in their order \[M1\]: so a leader's acknowledgement comes after all
//! timestamps that it has given before \[G5\].

use std::collections::BTreeSet;
use std::ops::Range;

use squall_fabric::layout::{Columns, Word};
use squall_fabric::window::{Announcement, ExpressSlot, WindowGeometry, WindowPublisher};
use squall_fabric::{Column, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, RowLayout};

use super::log::LogGeometry;
use super::mutation;
use super::record::HEADER_BYTES;
use super::{GenuineSettings, SHARDS_MAX, ShardPlacement};
use crate::express::with_express;
use crate::membership::{MEMBERS_MAX, View};

/// The purposes of the mirrors ([`View::key`]), beyond those of other subgroups.
const FIRST_PURPOSE: u32 = 1 << 19;

/// Where things are in a member's mirror for one shard; the same for all shards.
#[derive(Clone, Debug)]
pub(super) struct ShardRow {
    /// What the member has sent to the shard; the express slot follows.
    announced: Column<Announcement>,
    /// The timestamp of its own shard up to which it has everything \[G5\].
    pub(super) acknowledged: Column<u64>,
    /// One more than what it counts of its own shard, once it has wedged, with a majority for quorum \[G11\].
    pub(super) closed: Column<u64>,
    /// Which member it asks for the log of its shard ([`LogRequest`](super::relay::LogRequest)), or 0.
    pub(super) asks: Column<u64>,
    pub(super) log: LogGeometry,
    pub(super) window: WindowGeometry,
    words: usize,
}

impl ShardRow {
    /// The mirrors of a member that leads a shard or not, in a view of `members`.
    pub(super) fn new(settings: &GenuineSettings, members: usize, leads: bool) -> Self {
        let mut layout = RowLayout::new();
        let announced = layout.list(1 + ExpressSlot::WIDE_WORDS).column(0);
        let express = settings.express.then(|| ExpressSlot::wide(announced.word() + 1));
        let (acknowledged, closed, asks) = (layout.column(), layout.column(), layout.column());
        let entries = if leads { 2 * members * settings.window } else { 0 };
        let log = LogGeometry { first: 0, entries };
        let log = LogGeometry { first: layout.block(log.words()), ..log };
        let message_max = settings.message_max + HEADER_BYTES;
        let window = WindowGeometry::new(0, settings.window, message_max, settings.window_bytes);
        let window = WindowGeometry { first: layout.block(window.words()), express, ..window };
        Self { announced, acknowledged, closed, asks, log, window, words: layout.words() }
    }
}

impl ShardRow {
    /// What a member has sent to the own shard, whose row is `row`.
    pub(super) fn announcement(&self, row: &Region) -> Announcement {
        let stored = self.announced.load(row);
        self.window.express.map_or(stored, |express| with_express(express, row, stored))
    }
}

/// What this member writes to one shard.
#[derive(Debug)]
struct ShardMirror {
    mirror: MirrorId,
    region: Region,
}

/// The mirrors, as one member sees them.
#[derive(Debug)]
pub(super) struct ShardTable {
    rank: usize,
    own: Option<usize>,
    /// By shard; `None` for those without members.
    shards: Vec<Option<ShardMirror>>,
    /// What each member writes to the own shard, by rank; none without one.
    rows: Vec<Region>,
    /// How many records of each other member are done here, by rank; none without an own shard.
    reports: Vec<Option<ShardMirror>>,
    /// How many of this member's records are done at each member that is in a shard, by rank.
    reported: Vec<Option<Region>>,
    done: Column<u64>,
    /// The key of the relay for rank 0: those of the other ranks follow.
    relays: MirrorKey,
    /// Mirrors and readers that are not attached: nothing is stored before there are none \[S4\].
    awaited: BTreeSet<(u64, NodeId)>,
    /// What has been stored and is not posted, in order.
    posts: Vec<ShardPost>,
}

#[derive(Clone, Debug)]
enum ShardPost {
    /// Words by reference, which a later guard announces.
    List(MirrorId, Range<usize>),
    /// One word by value.
    Guard(MirrorId, usize),
}

impl ShardTable {
    pub(super) fn new<F: Fabric>(
        fabric: &mut F,
        view: &View,
        placement: &ShardPlacement,
        settings: &GenuineSettings,
    ) -> Self {
        let (nodes, node) = (view.nodes(), fabric.node());
        let rank = view.rank(node).expect("it is a member of its own view");
        let own = placement.shard_of(rank);
        let words = |rank: usize| ShardRow::new(settings, nodes.len(), placement.leads(rank)).words;
        let mut layout = RowLayout::new();
        let done: Columns<u64> = layout.columns(1);
        let mut awaited = BTreeSet::new();
        let mut publish = |fabric: &mut F, key: MirrorKey, words: usize, readers: Vec<NodeId>| {
            let region = fabric.register(words);
            awaited.extend(readers.iter().map(|reader| (key.0, *reader)));
            ShardMirror { mirror: fabric.publish(key, &region, &readers), region }
        };
        let shards: Vec<Option<ShardMirror>> = (0..placement.count())
            .map(|shard| {
                let others = placement.members(shard).iter().filter(|other| **other != rank);
                let readers = others.map(|other| nodes[*other]).collect();
                let exists = !placement.members(shard).is_empty();
                exists.then(|| publish(fabric, shard_key(view, shard), words(rank), readers))
            })
            .collect();
        let reports = (0..nodes.len()).map(|writer| {
            let is_needed = own.is_some() && writer != rank;
            is_needed.then(|| publish(fabric, report_key(view, writer), layout.words(), vec![nodes[writer]]))
        });
        let reports = reports.collect();
        let attach_row = |fabric: &mut F, shard: usize, writer: usize| match &shards[shard] {
            Some(mirror) if writer == rank => mirror.region.clone(),
            _ => fabric.attach(nodes[writer], shard_key(view, shard), words(writer)),
        };
        let writers = if own.is_some() { nodes.len() } else { 0 };
        let rows = (0..writers).map(|writer| attach_row(fabric, own.expect("a shard"), writer)).collect();
        let reported = (0..nodes.len()).map(|other| {
            let reports = other != rank && placement.shard_of(other).is_some();
            reports.then(|| fabric.attach(nodes[other], report_key(view, rank), layout.words()))
        });
        let reported = reported.collect();
        let (done, relays) = (done.column(0), view.key(FIRST_PURPOSE + SHARDS_AND_MEMBERS));
        Self { rank, own, shards, rows, reports, reported, done, relays, awaited, posts: Vec::new() }
    }

    pub(super) fn handle_event(&mut self, event: &FabricEvent) {
        if let FabricEvent::Attached { key, reader } = event {
            self.awaited.remove(&(key.0, *reader));
        }
    }

    /// A member is suspected: it need not attach any more. Nothing of a message is written after that.
    pub(super) fn excuse(&mut self, node: NodeId) {
        self.awaited.retain(|(_, reader)| *reader != node);
    }

    /// The key of the mirror by which any member sends the one with this rank a part of the log \[G11\].
    pub(super) fn relay_key(&self, rank: usize) -> MirrorKey {
        MirrorKey(self.relays.0 + rank as u64)
    }

    /// Whether all readers are attached \[S4\].
    pub(super) fn is_ready(&self) -> bool {
        self.awaited.is_empty()
    }

    /// The own shard.
    pub(super) const fn own(&self) -> Option<usize> {
        self.own
    }

    /// What the member with this rank writes to the own shard.
    pub(super) fn row(&self, rank: usize) -> &Region {
        &self.rows[rank]
    }

    /// The own region for a shard that has members.
    pub(super) fn region(&self, shard: usize) -> &Region {
        &self.mirror(shard).region
    }

    /// Queues words for the members of a shard, which a later guard announces.
    pub(super) fn append(&mut self, shard: usize, words: Range<usize>) {
        let mirror = self.mirror(shard).mirror;
        self.posts.push(ShardPost::List(mirror, words));
    }

    /// Publishes what was written to the window for a shard: what is alone there and short by one write, else all of it and behind that
    /// its announcement. Returns how many records.
    pub(super) fn publish(&mut self, shard: usize, row: &ShardRow, publisher: &mut WindowPublisher) -> u64 {
        if publisher.wants_express()
            && let Some(words) = publisher.publish_express()
        {
            self.append(shard, words);
            return 1;
        }
        let published = publisher.publish(u64::MAX, |words| self.append(shard, words));
        if published > 0 {
            self.raise(shard, row.announced, publisher.announcement());
        }
        published
    }

    /// Stores a word for the members of a shard, which get it after all that was stored before.
    ///
    /// # Panics
    /// If the value is below the present one \[S1\].
    pub(super) fn raise<T: Word>(&mut self, shard: usize, column: Column<T>, value: T) {
        let ShardMirror { mirror, region } = self.mirror(shard);
        let before = region.load_relaxed(column.word());
        assert!(before <= value.to_word(), "[S1] column {} back from {before}", column.word());
        let post = ShardPost::Guard(*mirror, column.word());
        column.store(region, value);
        self.posts.push(post);
    }

    /// Stores an acknowledgement for the members of a shard.
    pub(super) fn acknowledge(&mut self, shard: usize, column: Column<u64>, value: u64) {
        self.raise(shard, column, value);
        mutant!(AcknowledgeFirst => self.posts.rotate_right(1));
    }

    /// Reports that `done` records of another member are done here.
    pub(super) fn report(&mut self, rank: usize, done: u64) {
        let Some(ShardMirror { mirror, region }) = &self.reports[rank] else { return };
        if self.done.load(region) < done {
            self.done.store(region, done);
            self.posts.push(ShardPost::Guard(*mirror, self.done.word()));
        }
    }

    /// How many records of this member are done at another one.
    pub(super) fn reported(&self, rank: usize) -> u64 {
        self.reported[rank].as_ref().map_or(0, |region| self.done.load(region))
    }

    /// Posts what was stored, in order; returns the number of posts.
    pub(super) fn flush<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let count = self.posts.len();
        for post in self.posts.drain(..) {
            match post {
                ShardPost::List(mirror, words) => fabric.push(mirror, words),
                ShardPost::Guard(mirror, word) => fabric.push_word(mirror, word),
            }
        }
        count
    }

    /// Nothing of the member with this rank changes here any more \[S5\].
    pub(super) fn freeze<F: Fabric>(&self, fabric: &mut F, rank: usize) {
        if rank != self.rank {
            self.rows
                .get(rank)
                .into_iter()
                .chain(&self.reported[rank])
                .for_each(|region| fabric.freeze(region));
        }
    }

    /// The own mirrors, to be retired when no member reads them any more.
    pub(super) fn mirrors(&self) -> impl Iterator<Item = MirrorId> {
        self.shards.iter().chain(&self.reports).flatten().map(|mirror| mirror.mirror)
    }

    fn mirror(&self, shard: usize) -> &ShardMirror {
        self.shards[shard].as_ref().expect("a shard with members")
    }
}

/// The purposes of mirrors for shards, and for reports.
const SHARDS_AND_MEMBERS: u32 = (SHARDS_MAX + MEMBERS_MAX) as u32;

// A purpose has 20 bits, and those of relays are the last ones.
const _: () = assert!(FIRST_PURPOSE + SHARDS_AND_MEMBERS + MEMBERS_MAX as u32 <= 1 << 20);

/// The mirror of each member for a shard.
fn shard_key(view: &View, shard: usize) -> MirrorKey {
    view.key(FIRST_PURPOSE + u32::try_from(shard).expect("few shards"))
}

/// The mirror of each member for the reports to the member with this rank.
fn report_key(view: &View, rank: usize) -> MirrorKey {
    view.key(FIRST_PURPOSE + u32::try_from(SHARDS_MAX + rank).expect("few members"))
}

/// Whether a mirror belongs to genuine multicast: for those who count what passes on the network \[G16\].
#[must_use]
pub const fn is_genuine_mirror(key: MirrorKey) -> bool {
    // Beyond the keys of views there are those of other protocols.
    key.0 >> 63 == 0 && key.0 & FIRST_PURPOSE as u64 != 0
}
