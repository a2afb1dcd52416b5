//! The trait's calls: each goes to the part of its peer; what concerns several goes to all of them.

use std::ops::Range;

use squall_fabric::{
    Capabilities, Channel, ConnId, Event, Fabric, Grant, Instant, MirrorId, MirrorKey, NodeId, PostError,
    Region, Shortage, Token, Write,
};

use super::joining::View;
use super::{ALL_WAYS, CompositeFabric, Mirror, WAYS, Way, named, split};

/// Calls the same method of the part that `$way` names.
macro_rules! part {
    ($self:expr, $way:expr, $part:ident => $call:expr) => {
        match $way {
            Way::Shm => {
                let $part = &mut $self.shm;
                $call
            }
            Way::Verbs => {
                let $part = $self.verbs.as_mut().expect($crate::composite::fabric::NO_PART);
                $call
            }
            Way::Tcp => {
                let $part = $self.tcp.as_mut().expect($crate::composite::fabric::NO_PART);
                $call
            }
        }
    };
}

pub(super) use part;

/// What is wrong if there is none for a way that was chosen.
pub(super) const NO_PART: &str = "made for the first peer by this way";

impl Fabric for CompositeFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn capabilities(&self) -> Capabilities {
        let is_used = |way| self.choices.iter().any(|choice| choice.way == way);
        Capabilities { one_sided_progress: !is_used(Way::Tcp), early_sight: is_used(Way::Shm) }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        self.shm.try_register(words)
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        self.shm.adopt(memory)
    }

    fn release(&mut self, region: &Region) {
        self.shm.release(region);
        if let Some(part) = &mut self.verbs {
            part.release(region);
        }
        if let Some(part) = &mut self.tcp {
            part.release(region);
        }
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        let way = self.way_to(peer);
        named(part!(self, way, part => part.open(peer, channel)), way)
    }

    fn close(&mut self, conn: ConnId) {
        let (way, conn) = split(conn);
        part!(self, way, part => part.close(conn));
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        let way = self.way_to(peer);
        part!(self, way, part => part.grant(region, range, peer))
    }

    fn revoke(&mut self, grant: &Grant) {
        // With a peer that was removed its grants went, and any part answers so; but on shared memory it may be in the
        // middle of a write.
        let way = self.way_if_met(grant.peer).unwrap_or(Way::Shm);
        part!(self, way, part => part.revoke(grant));
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        let (way, conn) = split(conn);
        part!(self, way, part => part.write(conn, write))
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        let (way, conn) = split(conn);
        part!(self, way, part => part.send(conn, bytes, signal))
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        let (way, conn) = split(conn);
        part!(self, way, part => part.post_receive(conn, region, range, token))
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let awaited = readers.iter().copied().filter(|reader| self.way_if_met(*reader).is_none());
        let awaited: Vec<_> = awaited.collect();
        let mut ids = [None; WAYS];
        for way in ALL_WAYS {
            let theirs = readers.iter().copied().filter(|reader| self.way_if_met(*reader) == Some(way));
            let mut theirs: Vec<_> = theirs.collect();
            if !theirs.is_empty() {
                theirs.extend(&awaited);
                ids[way as usize] = Some(part!(self, way, part => part.publish(key, region, &theirs)));
            }
        }
        let region = (!awaited.is_empty()).then(|| region.clone());
        MirrorId(self.mirrors.insert(Mirror { key, region, ids, awaited }))
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.sweep_views();
        let Some(way) = self.way_if_met(owner) else { return self.await_view(owner, key, words) };
        let view = part!(self, way, part => part.attach(owner, key, words));
        // One that was attached before stays what it is.
        self.views
            .entry(view.pointer(0).as_ptr().addr())
            .and_modify(|known| {
                if let View::Of(before) = known {
                    *before = way;
                }
            })
            .or_insert(View::Of(way));
        view
    }

    #[inline]
    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        let [shm, verbs, tcp] = self.mirror(mirror);
        if let Some(mirror) = shm {
            self.shm.push(mirror, range.clone());
        }
        if let (Some(part), Some(mirror)) = (&mut self.verbs, verbs) {
            part.push(mirror, range.clone());
        }
        if let (Some(part), Some(mirror)) = (&mut self.tcp, tcp) {
            part.push(mirror, range);
        }
    }

    #[inline]
    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        let [shm, verbs, tcp] = self.mirror(mirror);
        if let Some(mirror) = shm {
            self.shm.push_word(mirror, word);
        }
        if let (Some(part), Some(mirror)) = (&mut self.verbs, verbs) {
            part.push_word(mirror, word);
        }
        if let (Some(part), Some(mirror)) = (&mut self.tcp, tcp) {
            part.push_word(mirror, word);
        }
    }

    #[inline]
    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        let [shm, verbs, tcp] = self.mirror(mirror);
        if let Some(mirror) = shm {
            self.shm.push_values(mirror, words.clone());
        }
        if let (Some(part), Some(mirror)) = (&mut self.verbs, verbs) {
            part.push_values(mirror, words.clone());
        }
        if let (Some(part), Some(mirror)) = (&mut self.tcp, tcp) {
            part.push_values(mirror, words);
        }
    }

    fn freeze(&mut self, view: &Region) {
        self.freeze_view(view);
    }

    fn retire(&mut self, mirror: MirrorId) {
        let ids = self.mirrors.remove(mirror.0);
        let ids = ids.unwrap_or_else(|| panic!("{mirror:?} is not published by this node"));
        for (way, id) in ALL_WAYS.into_iter().zip(ids.ids) {
            if let Some(id) = id {
                part!(self, way, part => part.retire(id));
            }
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn FnMut(Event)) -> usize {
        let mut work = 0;
        if !self.meetings.is_empty() {
            work += self.poll_meetings();
        }
        while let Some(event) = self.events.pop_front() {
            work += 1;
            sink(event);
        }
        work += self.shm.poll(&mut |event| sink(translate(event, Way::Shm)));
        if let Some(part) = &mut self.verbs {
            work += part.poll(&mut |event| sink(translate(event, Way::Verbs)));
        }
        if let Some(part) = &mut self.tcp {
            work += part.poll(&mut |event| sink(translate(event, Way::Tcp)));
        }
        self.move_regions();
        work
    }
}

impl CompositeFabric {
    /// What the parts call a mirror.
    ///
    /// # Panics
    /// If it is not published here.
    #[inline]
    fn mirror(&self, mirror: MirrorId) -> [Option<MirrorId>; WAYS] {
        let mirror_of = self.mirrors.at(mirror.0);
        mirror_of.unwrap_or_else(|| panic!("{mirror:?} is not published by this node")).ids
    }

    /// Lets regions move that wait for it, once the device writes their old pages no more.
    fn move_regions(&mut self) {
        let (shm, Some(verbs)) = (&mut self.shm, &mut self.verbs) else { return };
        let bases = shm.held_moves();
        if bases.is_empty() {
            return;
        }
        bases.iter().for_each(|base| verbs.leave_pages(*base));
        shm.release_moves();
        bases.iter().for_each(|base| verbs.enter_pages(*base));
    }
}

/// An event of a part, with the connection as this fabric names it.
fn translate(event: Event, way: Way) -> Event {
    match event {
        Event::Connected { conn, peer } => Event::Connected { conn: named(conn, way), peer },
        Event::Done { conn, token } => Event::Done { conn: named(conn, way), token },
        Event::Arrived { conn, token, immediate } => {
            Event::Arrived { conn: named(conn, way), token, immediate }
        }
        Event::Received { conn, token, length } => Event::Received { conn: named(conn, way), token, length },
        Event::Refused { conn } => Event::Refused { conn: named(conn, way) },
        Event::Broken { conn, reason } => Event::Broken { conn: named(conn, way), reason },
        other @ (Event::Attached { .. } | Event::Revoked { .. } | Event::PeerLost { .. }) => other,
    }
}
