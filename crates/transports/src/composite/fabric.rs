//! The trait's calls: each goes to the part of its peer; calls that concern several parts go to all of them.

use std::ops::Range;

use squall_fabric::{
    Capabilities, Channel, ConnId, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey, NodeId,
    PostError, Region, Shortage, Token, Write,
};

use super::joining::CompositeAttachment;
use crate::tcp;

use super::{ALL_TRANSPORTS, CompositeFabric, Mirror, PeerTransport, TRANSPORTS, named, split};

/// Calls the same method of the part that `$transport` names.
macro_rules! part {
    ($self:expr, $transport:expr, $part:ident => $call:expr) => {
        match $transport {
            PeerTransport::Shm => {
                let $part = &mut $self.shm;
                $call
            }
            PeerTransport::Verbs => {
                let $part = $self.verbs.as_mut().expect($crate::composite::fabric::NO_PART);
                $call
            }
            PeerTransport::Tcp => {
                let $part = $self.tcp.as_mut().expect($crate::composite::fabric::NO_PART);
                $call
            }
        }
    };
}

pub(super) use part;

/// The bug if there is no part for a chosen transport.
pub(super) const NO_PART: &str = "the part was created for its first peer";

impl Fabric for CompositeFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn capabilities(&self) -> Capabilities {
        let is_used = |transport| self.choices.iter().any(|choice| choice.transport == transport);
        Capabilities {
            one_sided_progress: !is_used(PeerTransport::Tcp),
            early_sight: is_used(PeerTransport::Shm),
        }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        match self.no_shm {
            None => self.shm.try_register(words),
            // Memory that cannot be shared serves the other parts.
            Some(_) => tcp::memory::allocate_pages(self.shm.next_region_id(), words),
        }
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
        let transport = self.transport_to(peer);
        named(part!(self, transport, part => part.open(peer, channel)), transport)
    }

    fn close(&mut self, conn: ConnId) {
        let (transport, conn) = split(conn);
        part!(self, transport, part => part.close(conn));
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        let transport = self.transport_to(peer);
        part!(self, transport, part => part.grant(region, range, peer))
    }

    fn revoke(&mut self, grant: &Grant) {
        // The grants of a removed peer went with it, and any part confirms that; but on shared memory the
        // peer may be in the middle of a write.
        let transport = self.transport_if_met(grant.peer).unwrap_or(PeerTransport::Shm);
        part!(self, transport, part => part.revoke(grant));
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        let (transport, conn) = split(conn);
        part!(self, transport, part => part.write(conn, write))
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        let (transport, conn) = split(conn);
        part!(self, transport, part => part.send(conn, bytes, signal))
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        let (transport, conn) = split(conn);
        part!(self, transport, part => part.post_receive(conn, region, range, token))
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let awaited = readers.iter().copied().filter(|reader| self.transport_if_met(*reader).is_none());
        let awaited: Vec<_> = awaited.collect();
        let mut ids = [None; TRANSPORTS];
        for transport in ALL_TRANSPORTS {
            let theirs =
                readers.iter().copied().filter(|reader| self.transport_if_met(*reader) == Some(transport));
            let mut theirs: Vec<_> = theirs.collect();
            if !theirs.is_empty() {
                theirs.extend(&awaited);
                ids[transport as usize] =
                    Some(part!(self, transport, part => part.publish(key, region, &theirs)));
            }
        }
        let region = (!awaited.is_empty()).then(|| region.clone());
        MirrorId(self.mirrors.insert(Mirror { key, region, ids, awaited }))
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.sweep_attachments();
        let Some(transport) = self.transport_if_met(owner) else {
            return self.await_attachment(owner, key, words);
        };
        let attachment = part!(self, transport, part => part.attach(owner, key, words));
        // A mirror that was attached before keeps its entry.
        self.attachments
            .entry(attachment.pointer(0).as_ptr().addr())
            .and_modify(|known| {
                if let CompositeAttachment::Of(before) = known {
                    *before = transport;
                }
            })
            .or_insert(CompositeAttachment::Of(transport));
        attachment
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

    fn freeze(&mut self, attachment: &Region) {
        self.freeze_attachment(attachment);
    }

    fn retire(&mut self, mirror: MirrorId) {
        let ids = self.mirrors.remove(mirror.0);
        let ids = ids.unwrap_or_else(|| panic!("{mirror:?} is not published by this node"));
        for (transport, id) in ALL_TRANSPORTS.into_iter().zip(ids.ids) {
            if let Some(id) = id {
                part!(self, transport, part => part.retire(id));
            }
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        let mut work = 0;
        if !self.meetings.is_empty() {
            work += self.poll_meetings();
        }
        while let Some(event) = self.events.pop_front() {
            work += 1;
            sink(event);
        }
        work += self.shm.poll(&mut |event| sink(translate(event, PeerTransport::Shm)));
        if let Some(part) = &mut self.verbs {
            work += part.poll(&mut |event| sink(translate(event, PeerTransport::Verbs)));
        }
        if let Some(part) = &mut self.tcp {
            work += part.poll(&mut |event| sink(translate(event, PeerTransport::Tcp)));
        }
        self.move_regions();
        work
    }
}

impl CompositeFabric {
    /// Returns the ids of a mirror in the parts.
    ///
    /// # Panics
    /// Panics if this node has not published it.
    #[inline]
    fn mirror(&self, mirror: MirrorId) -> [Option<MirrorId>; TRANSPORTS] {
        let mirror_of = self.mirrors.at(mirror.0);
        mirror_of.unwrap_or_else(|| panic!("{mirror:?} is not published by this node")).ids
    }

    /// Lets regions move that wait for it, once the device no longer writes their old pages.
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

/// Translates an event of a part: the connection gets its id in this fabric.
fn translate(event: FabricEvent, transport: PeerTransport) -> FabricEvent {
    match event {
        FabricEvent::Connected { conn, peer } => {
            FabricEvent::Connected { conn: named(conn, transport), peer }
        }
        FabricEvent::Done { conn, token } => FabricEvent::Done { conn: named(conn, transport), token },
        FabricEvent::Arrived { conn, token, immediate } => {
            FabricEvent::Arrived { conn: named(conn, transport), token, immediate }
        }
        FabricEvent::Received { conn, token, length } => {
            FabricEvent::Received { conn: named(conn, transport), token, length }
        }
        FabricEvent::Refused { conn } => FabricEvent::Refused { conn: named(conn, transport) },
        FabricEvent::Broken { conn, reason } => FabricEvent::Broken { conn: named(conn, transport), reason },
        other @ (FabricEvent::Attached { .. }
        | FabricEvent::Revoked { .. }
        | FabricEvent::PeerDying { .. }
        | FabricEvent::PeerLost { .. }) => other,
    }
}
