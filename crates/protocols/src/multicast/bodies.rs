//! Large messages: their bodies travel beside the window, and their records take their place in the order
//! (Derecho §3.1, "Large messages"; RDMC §2).
//!
//! A message longer than `message_max` has a record without payload in its sender's window, and a *body* in a ring of its
//! own. The ring has the same size at all members, and bodies lie at the same places in it everywhere, so a receiver
//! needs no memory but what it has from the beginning, and a body is freed as records are.
//!
//! **How bodies travel** ([`Carrier`]). *Pushed*: the ring is a part of the row; a body is pushed before its record is
//! announced, so who sees the announcement has the body \[M1\]. On one host nothing moves, and bodies are read in place.
//! *Relayed*: each member has rings of its own, and somebody outside (the group, by RDMC) carries bodies from ring to
//! ring ([`Subgroup::next_body`], [`Subgroup::on_body`]). Then the row says which indexes have bodies, in a list
//! behind a count, pushed before the announcement.
//!
//! **Invariants.**
//! - \[L1\] An index counts as received only when its body, if it has one, is whole here. So what is stable, and what
//!   a trim covers, has its body at every member that goes on.
//! - \[L2\] The place of a body is written again only when all members have delivered its message and nobody reads it
//!   any more to send it.
//! - `whole` bodies come in order; `0 <= released <= published`, and `published - freed <= LargeMessages::window`.

use std::collections::VecDeque;

use squall_fabric::layout::Columns;
use squall_fabric::window::{MessageBody, WindowGeometry, WindowPublisher};
use squall_fabric::{Column, Fabric, Region, RowLayout};

use super::{Carrier, CorruptMemory, Deliver, LargeMessages, Subgroup, SubgroupFailure, SubgroupSettings};
use crate::coverage::{Point, reach};
use crate::mutation;
use crate::sst::StateTable;

/// Where things about bodies are in a row.
#[derive(Clone, Debug)]
pub struct BodyColumns {
    carrier: Carrier,
    /// Bodies announced: the guard of `indexes`.
    count: Column<u64>,
    /// The index of body `number` at `number % window`.
    indexes: Columns<u64>,
    /// The ring, in the row if bodies are pushed, else in a region of its own.
    pub(super) ring: WindowGeometry,
}

impl BodyColumns {
    pub(super) fn new(layout: &mut RowLayout, large: &LargeMessages) -> Self {
        let LargeMessages { message_max, window, window_bytes, carrier } = *large;
        let empty = WindowGeometry::of_bodies(0, window, message_max, window_bytes);
        let (count, indexes) = (layout.column(), layout.list(window));
        let first = if carrier == Carrier::Pushed { layout.block(empty.words()) } else { 0 };
        Self { carrier, count, indexes, ring: WindowGeometry { first, ..empty } }
    }
}

/// The bodies of a subgroup, as one member sees them.
#[derive(Debug)]
pub(super) struct Bodies {
    columns: BodyColumns,
    /// The region of each sender's ring, by rank among the senders.
    rings: Vec<Region>,
    senders: Vec<Incoming>,
    /// Own bodies that are published and not yet taken by who carries them.
    outgoing: VecDeque<MessageBody>,
}

/// The bodies of one sender.
#[derive(Clone, Debug, Default)]
struct Incoming {
    /// Bodies whose indexes were looked at.
    seen: u64,
    /// Bodies that are here from beginning to end.
    whole: u64,
    /// The indexes of bodies `whole..seen`.
    missing: VecDeque<u64>,
}

impl Bodies {
    /// The rings for the rows of `table`.
    pub(super) fn new<F: Fabric>(
        fabric: &mut F,
        table: &StateTable,
        columns: &BodyColumns,
        settings: &SubgroupSettings,
    ) -> Self {
        let ring = |member: &usize| match columns.carrier {
            Carrier::Pushed => table.row(*member).clone(),
            Carrier::Relayed => fabric.register(columns.ring.words()),
        };
        let rings = settings.senders.iter().map(ring).collect();
        let mut senders = vec![Incoming::default(); settings.senders.len()];
        for (sender, member) in settings.senders.iter().enumerate() {
            // Pushed bodies are here before they are announced, and own ones from the beginning.
            if columns.carrier == Carrier::Pushed || *member == table.rank() {
                senders[sender].whole = u64::MAX;
            }
        }
        Self { columns: columns.clone(), rings, senders, outgoing: VecDeque::new() }
    }

    /// The ring of a sender.
    pub(super) fn ring(&self, sender: usize) -> (&Region, WindowGeometry) {
        (&self.rings[sender], self.columns.ring)
    }

    /// Sends the bodies of what has just been published, or leaves them to who carries them.
    pub(super) fn send(&mut self, publisher: &mut WindowPublisher, table: &mut StateTable) {
        let Self { columns, outgoing, .. } = self;
        let window = columns.indexes.count() as u64;
        let (mut count, mut pushed) = (None, 0);
        publisher.publish_bodies(|body| match columns.carrier {
            Carrier::Pushed => {
                table.append(body.words);
                pushed += 1;
            }
            Carrier::Relayed => {
                let place = place(body.number, window);
                columns.indexes.column(place).store(table.own(), body.index);
                table.append(columns.indexes.words(place..place + 1));
                count = Some(body.number + 1);
                outgoing.push_back(body);
            }
        });
        // The fabric reads a pushed range before it can be delivered everywhere, as with records.
        (0..pushed).for_each(|_| publisher.release_body());
        if let Some(count) = count {
            table.raise(columns.count, count);
        }
    }

    /// Of `announced` indexes of a sender, how many count as received: up to the first whose body is missing \[L1\].
    /// `row` is the sender's, from which `announced` was loaded before. `None` if the row cannot be right.
    pub(super) fn received(&mut self, sender: usize, announced: u64, row: &Region) -> Option<u64> {
        let window = self.columns.indexes.count() as u64;
        let incoming = &mut self.senders[sender];
        if incoming.whole == u64::MAX || mutant!(CountMissingBody) {
            return Some(announced);
        }
        let count = self.columns.count.load(row);
        if count < incoming.seen || count - incoming.seen > window {
            return None;
        }
        for number in incoming.seen..count {
            if number >= incoming.whole {
                incoming.missing.push_back(self.columns.indexes.column(place(number, window)).load(row));
            }
        }
        incoming.seen = count;
        if incoming.missing.front().is_some_and(|index| *index < announced) {
            reach(Point::BodyMissing);
        }
        Some(incoming.missing.front().map_or(announced, |index| announced.min(*index)))
    }
}

impl Incoming {
    fn on_body(&mut self) {
        self.whole += 1;
        self.missing.pop_front();
    }
}

/// A body of this member, to be carried to the other members of the subgroup.
#[derive(Clone, Debug)]
pub struct OutgoingBody {
    /// The region and the first word of its record.
    pub region: Region,
    /// Where it begins in the region.
    pub first: usize,
    /// Its size in bytes, the record's header counted.
    pub bytes: u64,
}

impl<D: Deliver> Subgroup<D> {
    /// The next of the own bodies that is to be carried, in order. When the carrier reads it no more it says so by
    /// [`Subgroup::release_body`].
    pub fn next_body(&mut self) -> Option<OutgoingBody> {
        let (_, sender) = self.publisher.as_ref()?;
        let bodies = self.bodies.as_mut()?;
        let MessageBody { words, .. } = bodies.outgoing.pop_front()?;
        let (region, first) = (bodies.rings[*sender].clone(), words.start);
        Some(OutgoingBody { region, first, bytes: 8 * words.len() as u64 })
    }

    /// The ring of the sender with this rank among the senders, and where in it bodies lie, if bodies are relayed.
    #[must_use]
    pub fn body_ring(&self, sender: usize) -> Option<(&Region, WindowGeometry)> {
        let bodies = self.bodies.as_ref().filter(|bodies| bodies.columns.carrier == Carrier::Relayed)?;
        Some(bodies.ring(sender))
    }

    /// The next body of a sender is whole, in its ring.
    ///
    /// # Panics
    /// If bodies are not relayed, or the sender is this member.
    pub fn on_body(&mut self, sender: usize) {
        let bodies = self.bodies.as_mut().expect("bodies are relayed");
        assert!(bodies.senders[sender].whole < u64::MAX, "the bodies of sender {sender} come otherwise");
        bodies.senders[sender].on_body();
    }

    /// The next of the own bodies is not read any more by who carries it \[L2\].
    ///
    /// # Panics
    /// If it was not taken by [`Subgroup::next_body`].
    pub fn release_body(&mut self) {
        let (publisher, _) = self.publisher.as_mut().expect("a sender");
        publisher.release_body();
    }

    /// How many of the announced indexes of a sender count as received. `None` if the subgroup has failed just now.
    pub(super) fn limit(&mut self, sender: usize) -> Option<u64> {
        let announced = self.announced[sender].indexes;
        let Some(bodies) = &mut self.bodies else { return Some(announced) };
        let member = self.settings.senders[sender];
        let limit = bodies.received(sender, announced, self.table.row(member));
        if limit.is_none() {
            self.fail(SubgroupFailure::Corrupt(CorruptMemory::Announcement { member, index: announced }));
        }
        limit
    }
}

/// Where the index of body `number` stands.
fn place(number: u64, window: u64) -> usize {
    usize::try_from(number % window).expect("below the window")
}
