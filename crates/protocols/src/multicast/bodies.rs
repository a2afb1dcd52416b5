//! Large messages: their bodies are sent outside the window, and their records take their place in the order (Derecho
//! §3.1, "Large messages"; RDMC §2).
//!
//! A message longer than `message_max` has a record without payload in its sender's window, and a *body* in a
//! separate ring. The ring has the same size at all members, and a body has the same position in it everywhere, so a
//! receiver needs no memory beyond what it has from the beginning, and bodies are freed like records.
//!
//! **How bodies are sent** ([`Carrier`]). *Pushed*: the ring is a part of the row; a body is pushed before its record
//! is announced, so a member that sees the announcement has the body \[M1\]. On one host nothing is copied, and
//! bodies are read in place. *Relayed*: each member has rings of its own, and a carrier outside this core (the group,
//! by RDMC) copies bodies from ring to ring ([`Subgroup::next_body`], [`Subgroup::on_body`]). Then the row has a list
//! of the indexes that have bodies, guarded by a count and pushed before the announcement.
//!
//! **Invariants.**
//! - \[L1\] An index counts as received only when its body, if it has one, has arrived completely. So what is stable,
//!   and what a trim covers, has its body at every member that continues.
//! - \[L2\] The memory of a body is written again only when all members have delivered its message and no carrier
//!   reads it any more to send it.
//! - Bodies become `whole` in order; `0 <= released <= published`, and `published - freed <= LargeMessages::window`.

use std::collections::VecDeque;

use squall_fabric::layout::Columns;
use squall_fabric::window::{MessageBody, WindowGeometry, WindowPublisher};
use squall_fabric::{Column, Fabric, Region, RowLayout};

use super::{Carrier, CorruptMemory, Deliver, LargeMessages, Subgroup, SubgroupFailure, SubgroupSettings};
use crate::coverage::{Point, reach};
use crate::mutation;
use crate::sst::StateTable;

/// The columns of a row that concern bodies.
#[derive(Clone, Debug)]
pub struct BodyColumns {
    carrier: Carrier,
    /// The number of bodies announced: the guard of `indexes`.
    count: Column<u64>,
    /// The index of body `number` at `number % window`.
    indexes: Columns<u64>,
    /// The ring, in the row if bodies are pushed, else in a separate region.
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
    /// This member's bodies that are published and not yet taken by their carrier.
    outgoing: VecDeque<MessageBody>,
}

/// The bodies of one sender.
#[derive(Clone, Debug, Default)]
struct Incoming {
    /// The number of bodies whose indexes were read.
    seen: u64,
    /// The number of bodies that have arrived completely.
    whole: u64,
    /// The indexes of bodies `whole..seen`.
    missing: VecDeque<u64>,
}

impl Bodies {
    /// Returns the rings for the rows of `table`.
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
            // Pushed bodies arrive before they are announced, and this member has its own from the beginning.
            if columns.carrier == Carrier::Pushed || *member == table.rank() {
                senders[sender].whole = u64::MAX;
            }
        }
        Self { columns: columns.clone(), rings, senders, outgoing: VecDeque::new() }
    }

    /// Returns the ring of a sender.
    pub(super) fn ring(&self, sender: usize) -> (&Region, WindowGeometry) {
        (&self.rings[sender], self.columns.ring)
    }

    /// Sends the bodies of what has just been published, or queues them for their carrier.
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

    /// Returns how many of the `announced` indexes of a sender count as received: those before the first whose body
    /// is missing \[L1\]. `row` is the sender's, from which `announced` was loaded before. Returns `None` if the row
    /// is not valid.
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

/// A body of this member that is to be sent to the other members of the subgroup.
#[derive(Clone, Debug)]
pub struct OutgoingBody {
    /// The region that contains it.
    pub region: Region,
    /// The word of the region at which its record begins.
    pub first: usize,
    /// Its size in bytes, including the record's header.
    pub bytes: u64,
}

impl<D: Deliver> Subgroup<D> {
    /// Returns the next of this member's bodies that is to be sent, in order. The carrier calls
    /// [`Subgroup::release_body`] when it no longer reads the body.
    pub fn next_body(&mut self) -> Option<OutgoingBody> {
        let (_, sender) = self.publisher.as_ref()?;
        let bodies = self.bodies.as_mut()?;
        let MessageBody { words, .. } = bodies.outgoing.pop_front()?;
        let (region, first) = (bodies.rings[*sender].clone(), words.start);
        Some(OutgoingBody { region, first, bytes: 8 * words.len() as u64 })
    }

    /// Returns the ring of the sender with this rank among the senders, and its geometry, if bodies are relayed.
    #[must_use]
    pub fn body_ring(&self, sender: usize) -> Option<(&Region, WindowGeometry)> {
        let bodies = self.bodies.as_ref().filter(|bodies| bodies.columns.carrier == Carrier::Relayed)?;
        Some(bodies.ring(sender))
    }

    /// Notes that the next body of a sender has arrived completely in its ring.
    ///
    /// # Panics
    /// If bodies are not relayed, or the sender is this member.
    pub fn on_body(&mut self, sender: usize) {
        let bodies = self.bodies.as_mut().expect("bodies are relayed");
        assert!(bodies.senders[sender].whole < u64::MAX, "the bodies of sender {sender} are not relayed");
        bodies.senders[sender].on_body();
    }

    /// Notes that the carrier no longer reads the next of this member's bodies \[L2\].
    ///
    /// # Panics
    /// If it was not taken by [`Subgroup::next_body`].
    pub fn release_body(&mut self) {
        let (publisher, _) = self.publisher.as_mut().expect("a sender");
        publisher.release_body();
    }

    /// Returns how many of the announced indexes of a sender count as received; `None` if the subgroup has failed
    /// just now.
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

/// Returns the position of the index of body `number`.
fn place(number: u64, window: u64) -> usize {
    usize::try_from(number % window).expect("below the window")
}
