//! A reader without I/O: from announcements and changes to samples and statuses.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use bytes::Bytes;

use crate::buffer::SampleBuffer;
use crate::cache::{Change, ChangeKind, HistoryCache, Insertion, LimitKind, SampleBytes};
use crate::in_place::ReaderUpcall;
use crate::kept::KeptTopic;
use crate::peers::PeerTable;
use crate::qos::{DurabilityKind, ReliabilityKind};
use crate::sample::{EndpointId, Position, nanoseconds};
use crate::short::{SHORT_MAX, SamplePiece};
use crate::status::{CountStatus, SampleRejectedStatus, StatusKind};
use crate::wire::{ChangeHeader, EndpointAnnouncement, TopicFrame, TopicRole};

/// Whether a change has been dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Offer {
    Done,
    /// There is no space: the same change has to be offered again when samples were taken.
    Full,
    /// The reader's upcall has to be made.
    Upcall,
}

/// A change as it comes from the topic.
#[derive(Clone, Debug)]
pub(crate) struct ArrivedChange<'a> {
    pub(crate) header: ChangeHeader<'a>,
    /// Where it is.
    pub(crate) data: &'a [u8],
    /// Its place in its coherent set; 0 if it is by itself.
    pub(crate) place: u32,
    /// The data as readers hold it, from when the first one has stored it.
    copy: OnceCell<Bytes>,
}

impl<'a> ArrivedChange<'a> {
    pub(crate) const fn new(header: ChangeHeader<'a>, data: &'a [u8], place: u32) -> Self {
        Self { header, data, place, copy: OnceCell::new() }
    }

    /// Returns a change that is in a history: readers share the bytes with it.
    pub(crate) fn of_kept(bytes: &'a Bytes, place: u32) -> Option<Self> {
        let Some(TopicFrame::Change(header, data)) = TopicFrame::decode(bytes) else { return None };
        Some(Self { header, data, place, copy: OnceCell::from(bytes.slice_ref(data)) })
    }

    /// Returns the copy of the data that all readers share.
    fn stored(&self) -> SampleBytes {
        SampleBytes::Shared(self.copy.get_or_init(|| SampleBuffer::copy_to_share(self.data)).clone())
    }
}

/// A reader. Announcements, changes and members that have gone come in the order of the topic.
#[derive(Debug)]
pub(crate) struct ReaderCore {
    pub(crate) id: EndpointId,
    pub(crate) peers: PeerTable,
    pub(crate) cache: HistoryCache,
    /// Where the next short samples go.
    piece: SamplePiece,
    /// Of a reader in place, whose cache remains empty.
    pub(crate) upcall: Option<ReaderUpcall>,
    pub(crate) lost: CountStatus,
    pub(crate) rejected: SampleRejectedStatus,
    /// Whether writers wait for this reader rather than losing samples.
    is_reliable: bool,
    /// Whether coherent sets come to it as a whole.
    pub(crate) is_coherent: bool,
    /// Of a topic that has a history: the order of the next message there, if it has not come to it yet.
    pub(crate) behind_at: Option<u64>,
    /// Of a topic that has a history: the next message has come, and there was no space for it.
    pub(crate) is_full: bool,
    /// A writer that has gone has written, as far as this reader knows: the rest of what it left has arrived late.
    has_late: bool,
    /// Of a topic that has a history: the number of the next message that it takes from there; `None` if it takes none before it has
    /// come there itself.
    pub(crate) next_kept: Option<u64>,
    pub(crate) next_announcement: u64,
    /// Of a topic that has a history: how many endpoints had been forgotten there when that was looked at last.
    pub(crate) forgotten: u64,
    /// The number of the first message after it came; the greatest number until it has come.
    came_at: u64,
    /// Whether there is more in the history for it.
    pub(crate) is_behind: bool,
    /// Whether everything that was written before it came has been offered.
    pub(crate) has_history: bool,
}

impl ReaderCore {
    /// `keeps`: whether the topic has a history. Such a topic has no readers in place.
    pub(crate) fn new(own: &EndpointAnnouncement, keeps: bool, upcall: Option<ReaderUpcall>) -> Self {
        let qos = &own.qos;
        let wants_history = qos.durability > DurabilityKind::Volatile;
        let separation = nanoseconds(qos.time_based_filter);
        Self {
            id: own.id,
            peers: PeerTable::new(own, keeps),
            cache: HistoryCache::new(qos.history, qos.resource_limits, separation),
            piece: SamplePiece::default(),
            upcall,
            lost: CountStatus::default(),
            rejected: SampleRejectedStatus::default(),
            is_reliable: qos.reliability == ReliabilityKind::Reliable,
            is_coherent: qos.presentation.coherent_access,
            behind_at: keeps.then_some(0),
            is_full: false,
            has_late: false,
            next_kept: wants_history.then_some(0),
            next_announcement: 0,
            forgotten: 0,
            came_at: u64::MAX,
            is_behind: false,
            has_history: !(keeps && wants_history),
        }
    }

    /// Notes that this reader came to the topic's history before message `next`: it has had what was written earlier, if it wants that.
    pub(crate) fn begin_live(&mut self, next: u64) {
        self.came_at = next;
        self.next_kept.get_or_insert(next);
        self.has_history = true;
    }

    /// Notes that the next message for it has this number: what a short history has replaced since this reader came is lost for it.
    pub(crate) fn pass(&mut self, number: u64) {
        let next = self.next_kept.unwrap_or(number);
        self.lost.add(number.saturating_sub(next.max(self.came_at)));
    }

    pub(crate) fn handle_announcement(&mut self, peer: &EndpointAnnouncement, position: Position, now: u64) {
        if self.peers.handle_announcement(peer) && peer.role == TopicRole::Gone {
            let disposes = peer.qos.autodispose_unregistered_instances;
            self.cache.remove_writer(peer.id, disposes, position, now);
        }
    }

    /// Forgets the peers that have no announcements in the history any more, of which `topic` is all or a part: they have gone. What is left there must
    /// have come to this reader.
    pub(crate) fn retain_announced(
        &mut self,
        topic: &KeptTopic,
        is_announced: impl Fn(EndpointId) -> bool,
        position: Position,
        now: u64,
    ) {
        if std::mem::replace(&mut self.forgotten, topic.forgotten()) == topic.forgotten() {
            return;
        }
        for (writer, disposes) in self.peers.retain_announced(is_announced) {
            self.cache.remove_writer(writer, disposes && !topic.is_lost(writer), position, now);
        }
    }

    /// Returns whether this set has to wait for space.
    pub(crate) fn waits_for(&self, changes: &[ArrivedChange<'_>]) -> bool {
        let (wanted, may_fit) = (self.wanted(changes), self.cache.emptied());
        let exceeded = self.cache.exceeds(wanted.iter().copied());
        let is_passing = exceeded.is_some_and(|reason| reason != LimitKind::Instances);
        is_passing && self.is_reliable && may_fit.exceeds(wanted.into_iter()).is_none()
    }

    /// Returns kinds and keys of the changes that this reader would take.
    fn wanted<'a>(&self, changes: &[ArrivedChange<'a>]) -> Vec<(ChangeKind, &'a [u8])> {
        let matches = |change: &&ArrivedChange<'a>| self.peers.policies(change.header.writer).is_some();
        changes.iter().filter(matches).map(|change| (change.header.kind, change.header.key)).collect()
    }

    /// Takes the changes of a coherent set, all or none. A set that would not even fit an empty reader is rejected.
    pub(crate) fn handle_set(
        &mut self,
        changes: &[ArrivedChange<'_>],
        position: Position,
        now: u64,
    ) -> Offer {
        if self.waits_for(changes) {
            return Offer::Full;
        }
        if let Some(reason) = self.cache.exceeds(self.wanted(changes).into_iter()) {
            self.rejected.add(reason);
            return Offer::Done;
        }
        for change in changes {
            let offer = self.handle_change(change, position, now);
            assert_eq!(offer, Offer::Done, "there is space for the whole set");
        }
        Offer::Done
    }

    /// Takes a change. One of a writer that does not match is passed over, and so is one of a writer that has not been announced: it was
    /// written before they matched.
    pub(crate) fn handle_change(
        &mut self,
        change: &ArrivedChange<'_>,
        position: Position,
        now: u64,
    ) -> Offer {
        self.handle_copied(change, position, now, |change, _| change.stored())
    }

    /// Takes a change as [`ReaderCore::handle_change`] does. There is no other reader, so the copy that it stores is its own.
    #[inline]
    pub(crate) fn handle_alone(&mut self, change: &ArrivedChange<'_>, position: Position, now: u64) -> Offer {
        self.handle_copied(change, position, now, |change, piece| match piece {
            Some(piece) if change.data.len() <= SHORT_MAX => SampleBytes::Shared(piece.copy_of(change.data)),
            _ => SampleBytes::Own(SampleBuffer::copy_of(change.data)),
        })
    }

    #[inline]
    fn handle_copied(
        &mut self,
        change: &ArrivedChange<'_>,
        position: Position,
        now: u64,
        copy: impl FnOnce(&ArrivedChange<'_>, Option<&mut SamplePiece>) -> SampleBytes,
    ) -> Offer {
        let header = &change.header;
        let Some((qos, is_present)) = self.peers.policies(header.writer) else { return Offer::Done };
        let expires = qos.lifespan.map(|lifespan| header.source_time.saturating_add(nanoseconds(lifespan)));
        if self.upcall.is_some() {
            let is_over = expires.is_some_and(|at| at <= now);
            return if is_over { Offer::Done } else { Offer::Upcall };
        }
        // A sample that stays would keep the memory of those that came with it.
        let piece = Some(&mut self.piece).filter(|_| self.cache.is_in_order());
        let insertion = self.cache.insert(Change {
            kind: header.kind,
            writer: header.writer,
            instance: header.key,
            data: || copy(change, piece),
            position,
            place: change.place,
            source_time: header.source_time,
            reception_time: now,
            expires,
        });
        match insertion {
            Insertion::Exceeds(LimitKind::Samples | LimitKind::SamplesPerInstance) if self.is_reliable => {
                return Offer::Full;
            }
            Insertion::Exceeds(reason) => self.rejected.add(reason),
            Insertion::Stored | Insertion::Replaced | Insertion::Dropped => self.has_late |= !is_present,
        }
        Offer::Done
    }

    /// Takes the members of the present view, of a topic that has no history: writers of others have gone.
    pub(crate) fn handle_members(&mut self, nodes: &BTreeSet<u32>, position: Position, now: u64) {
        for writer in self.peers.retain_nodes(nodes) {
            self.cache.remove_writer(writer, false, position, now);
        }
    }

    /// Ends the instances of writers that had gone when they wrote, as another member may do for one that has died.
    pub(crate) fn end_late(&mut self, position: Position, now: u64) {
        if std::mem::take(&mut self.has_late) {
            for (writer, disposes) in self.peers.departed() {
                self.cache.remove_writer(writer, disposes, position, now);
            }
        }
    }

    /// Returns whether the history has nothing for this reader but samples.
    pub(crate) fn takes_only_samples(&self, topic: &KeptTopic) -> bool {
        self.next_announcement == topic.next_announcement()
            && self.forgotten == topic.forgotten()
            && self.next_kept.is_some()
            && !self.has_late
    }

    /// Returns whether a status of this kind has changed since it was asked for last.
    pub(crate) const fn has_changed(&self, kind: StatusKind) -> bool {
        match kind {
            StatusKind::SampleLost => self.lost.total_count_change > 0,
            StatusKind::SampleRejected => self.rejected.total_count_change > 0,
            _ => self.peers.has_changed(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Selection;
    use crate::qos::{HistoryKind, PolicyId, Qos, ResourceLimits};
    use crate::sample::StateMask;

    const WRITER: EndpointId = EndpointId { node: 1, number: 0 };
    const TAKE: Selection<'static> =
        Selection { samples_max: 9, states: StateMask::ANY, instance: None, takes: true, before: None };

    fn announcement(id: EndpointId, role: TopicRole, qos: Qos) -> EndpointAnnouncement {
        EndpointAnnouncement { id, role, type_name: "T".into(), qos }
    }

    fn reader(qos: Qos) -> ReaderCore {
        let keeps = qos.durability > DurabilityKind::Volatile;
        ReaderCore::new(&announcement(EndpointId { node: 0, number: 0 }, TopicRole::Reader, qos), keeps, None)
    }

    fn announce(reader: &mut ReaderCore, role: TopicRole, qos: Qos) {
        reader.handle_announcement(&announcement(WRITER, role, qos), Position::default(), 0);
    }

    fn write(reader: &mut ReaderCore, key: u8, now: u64) -> Offer {
        let header =
            ChangeHeader { kind: ChangeKind::Data, topic: 0, writer: WRITER, source_time: 0, key: &[key] };
        reader.handle_change(&ArrivedChange::new(header, &[key], 0), Position::default(), now)
    }

    fn held(reader: &ReaderCore) -> bool {
        reader.cache.has(StateMask::ANY)
    }

    #[test]
    fn only_a_writer_that_matches_is_read() {
        let mut reader = reader(Qos::KEPT);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        assert!(!held(&reader), "its policies are not known");
        announce(&mut reader, TopicRole::Writer, Qos::ATOMIC);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        assert!(!held(&reader) && reader.has_changed(StatusKind::IncompatibleQos));
        let status = reader.peers.incompatible.report();
        assert_eq!((status.total_count, status.last_policy), (1, Some(PolicyId::Durability)));
        assert!(!reader.has_changed(StatusKind::IncompatibleQos), "it has been reported");

        let mut other = super::tests::reader(Qos::ATOMIC);
        announce(&mut other, TopicRole::Writer, Qos::ATOMIC);
        announce(&mut other, TopicRole::Writer, Qos::ATOMIC);
        assert_eq!(write(&mut other, 0, 0), Offer::Done);
        assert!(held(&other));
        assert_eq!(other.peers.matched.current_count, 1, "an announcement counts once");
    }

    /// That is no mismatch of policies: nothing is reported.
    #[test]
    fn a_writer_in_another_partition_does_not_match() {
        let of = |partition: &str| Qos { partition: vec![partition.into()], ..Qos::ATOMIC };
        for (partition, is_read) in [("south", false), ("north/1", true)] {
            let mut reader = reader(of("north/*"));
            announce(&mut reader, TopicRole::Writer, of(partition));
            assert_eq!(write(&mut reader, 0, 0), Offer::Done);
            assert_eq!(held(&reader), is_read, "{partition}");
            assert!(
                !reader.has_changed(StatusKind::IncompatibleQos)
                    && reader.has_changed(StatusKind::Matched) == is_read
            );
        }
    }

    #[test]
    fn another_type_does_not_match() {
        let mut reader = reader(Qos::ATOMIC);
        let other = announcement(WRITER, TopicRole::Writer, Qos::ATOMIC);
        let other = EndpointAnnouncement { type_name: "U".into(), ..other };
        reader.handle_announcement(&other, Position::default(), 0);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        assert!(!held(&reader) && reader.has_changed(StatusKind::InconsistentTopic));
    }

    /// A reliable reader that is full makes its writers wait; a best-effort one rejects, and says why.
    #[test]
    fn a_full_reader_waits_or_rejects() {
        let limits = ResourceLimits { samples_max: 1, ..ResourceLimits::DEFAULT };
        let mut reliable = reader(Qos { resource_limits: limits, ..Qos::ATOMIC });
        announce(&mut reliable, TopicRole::Writer, Qos::ATOMIC);
        assert_eq!(write(&mut reliable, 0, 0), Offer::Done);
        assert_eq!(write(&mut reliable, 0, 0), Offer::Full);
        assert!(!reliable.has_changed(StatusKind::SampleRejected));

        let mut effort = reader(Qos { resource_limits: limits, ..Qos::UNORDERED });
        announce(&mut effort, TopicRole::Writer, Qos::UNORDERED);
        assert_eq!(write(&mut effort, 0, 0), Offer::Done);
        assert_eq!(write(&mut effort, 0, 0), Offer::Done);
        assert_eq!(effort.rejected.report().last_reason, Some(LimitKind::Samples));

        let one = ResourceLimits { instances_max: 1, ..ResourceLimits::DEFAULT };
        let mut reliable = reader(Qos { resource_limits: one, ..Qos::ATOMIC });
        announce(&mut reliable, TopicRole::Writer, Qos::ATOMIC);
        assert_eq!([write(&mut reliable, 0, 0), write(&mut reliable, 1, 0)], [Offer::Done; 2]);
        assert_eq!(reliable.rejected.report().last_reason, Some(LimitKind::Instances));
    }

    /// Only samples that leave in their order share memory: one of an instance that is seldom written would keep that of others.
    #[test]
    fn samples_of_one_instance_share_memory() {
        let mut reader = reader(Qos::ATOMIC);
        announce(&mut reader, TopicRole::Writer, Qos::ATOMIC);
        for key in [0, 0, 1, 2, 0] {
            let key = &[key];
            let header =
                ChangeHeader { kind: ChangeKind::Data, topic: 0, writer: WRITER, source_time: 0, key };
            let change = ArrivedChange::new(header, key, 0);
            assert_eq!(reader.handle_alone(&change, Position::default(), 0), Offer::Done);
        }
        let samples = reader.cache.select(TAKE, 0);
        let shares = samples.iter().map(|sample| matches!(sample.data, Some(SampleBytes::Shared(_))));
        assert_eq!(shares.collect::<Vec<_>>(), [true, true, true, false, false]);
    }

    /// A set comes as a whole, when there is space for all of it; one that never fits is rejected.
    #[test]
    fn a_set_comes_as_a_whole() {
        let limits = ResourceLimits { samples_max: 2, ..ResourceLimits::DEFAULT };
        let mut reader = reader(Qos { resource_limits: limits, ..Qos::ATOMIC });
        announce(&mut reader, TopicRole::Writer, Qos::ATOMIC);
        let header = |writer, key: &'static [u8]| ChangeHeader {
            kind: ChangeKind::Data,
            topic: 0,
            writer,
            source_time: 0,
            key,
        };
        let change = |place| ArrivedChange::new(header(WRITER, b"k"), &[], place);
        let (position, pair) = (Position::default(), [change(0), change(1)]);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        assert_eq!(reader.handle_set(&pair, position, 0), Offer::Full);
        assert_eq!(reader.cache.select(TAKE, 0).len(), 1, "nothing of the set has come");
        // What a writer that does not match has written takes no space.
        let other = ArrivedChange { header: header(EndpointId { node: 9, number: 9 }, b"k"), ..change(2) };
        assert_eq!(reader.handle_set(&[pair[0].clone(), pair[1].clone(), other], position, 0), Offer::Done);
        let places: Vec<_> = reader.cache.unread_places(None).map(|(_, place)| place).collect();
        assert_eq!(places, [0, 1]);
        assert_eq!(reader.cache.select(TAKE, 0).len(), 2);
        let triple = [change(0), change(1), change(2)];
        assert_eq!(reader.handle_set(&triple, position, 0), Offer::Done);
        assert_eq!(reader.rejected.report().last_reason, Some(LimitKind::Samples));
        assert!(!held(&reader));
    }

    #[test]
    fn the_instances_of_a_member_that_has_gone_have_no_writers() {
        let mut reader = reader(Qos { history: HistoryKind::KeepLast(1), ..Qos::KEPT });
        announce(&mut reader, TopicRole::Writer, Qos::KEPT);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        let loss = announcement(WRITER, TopicRole::Writer, Qos::KEPT).loss();
        reader.handle_announcement(&loss, Position::default(), 0);
        assert_eq!(reader.peers.matched.current_count, 0);
        assert!(reader.cache.has(StateMask::NOT_ALIVE_NO_WRITERS));
        // What it had asked another member to write arrives later: the instance does not remain alive.
        assert_eq!(write(&mut reader, 5, 0), Offer::Done);
        assert!(reader.cache.has(StateMask::ALIVE));
        reader.end_late(Position::default(), 0);
        assert!(!reader.cache.has(StateMask::ALIVE) && !reader.cache.has(StateMask::NOT_ALIVE_DISPOSED));
    }

    #[test]
    fn writers_of_members_outside_of_the_view_have_gone() {
        let mut reader = reader(Qos::ATOMIC);
        announce(&mut reader, TopicRole::Writer, Qos::ATOMIC);
        assert_eq!(write(&mut reader, 0, 0), Offer::Done);
        reader.handle_members(&BTreeSet::from([0, 1]), Position::default(), 0);
        assert_eq!(reader.peers.matched.current_count, 1);
        reader.handle_members(&BTreeSet::from([0]), Position::default(), 0);
        assert_eq!(reader.peers.matched.current_count, 0);
        assert!(reader.cache.has(StateMask::NOT_ALIVE_NO_WRITERS));
    }

    #[test]
    fn a_writer_that_is_closed_leaves_its_instances() {
        let cases = [(false, StateMask::NOT_ALIVE_NO_WRITERS), (true, StateMask::NOT_ALIVE_DISPOSED)];
        for (autodispose_unregistered_instances, states) in cases {
            let mut reader = reader(Qos::ATOMIC);
            announce(&mut reader, TopicRole::Writer, Qos::ATOMIC);
            assert_eq!(write(&mut reader, 0, 0), Offer::Done);
            let qos = Qos { autodispose_unregistered_instances, ..Qos::ATOMIC };
            announce(&mut reader, TopicRole::Gone, qos);
            assert!(reader.cache.has(states) && !reader.cache.has(StateMask::ALIVE));
            assert_eq!(reader.peers.matched.current_count, 0);
        }
    }

    #[test]
    fn a_lifespan_is_the_writers() {
        let mut reader = reader(Qos::ATOMIC);
        let lifespan = Some(std::time::Duration::from_nanos(10));
        announce(&mut reader, TopicRole::Writer, Qos { lifespan, ..Qos::ATOMIC });
        assert_eq!([write(&mut reader, 0, 9), write(&mut reader, 1, 10)], [Offer::Done; 2]);
        assert!(held(&reader));
        assert_eq!(reader.cache.select(TAKE, 9).len(), 1);
    }
}
