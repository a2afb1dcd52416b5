//! The trait's calls: posts go into the peers' queues, and `poll` moves data.

use std::ops::Range;

use squall_fabric::region::Access;
use squall_fabric::{
    Capabilities, Channel, ConnId, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey, NodeId,
    PostError, Region, SEND_BYTES_MAX, Shortage, Token, Write, WriteSource,
};

use super::TcpFabric;
use super::attachments::is_attachment;
use super::connection::{conn_id, split_conn_id};
use super::frame::{TcpCloseReason, TcpFrame, WriteFrame};
use super::memory;
use super::mirror::MirrorSubscriber;
use super::output::OutputQueue;
use super::peer::{TcpLoss, TcpPeer};

impl Fabric for TcpFabric {
    fn node(&self) -> NodeId {
        self.local.grants.owner()
    }

    fn now(&self) -> Instant {
        self.local.clock.now()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { one_sided_progress: false, early_sight: false }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        memory::allocate(self.region_id(), words)
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        assert!(memory.access() == Access::ReadWrite, "{memory:?} cannot be adopted: it is read-only");
        memory.clone().renamed(self.region_id())
    }

    fn release(&mut self, _region: &Region) {
        // Only grants and posts hold it.
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        let place = self.place(peer);
        let peer = &mut self.peers[place];
        if let Some(reason) = peer.lost {
            let conn = conn_id(place, peer.connections.number());
            self.local.events.push_back(FabricEvent::Broken { conn, reason });
            return conn;
        }
        conn_id(place, peer.connections.open(channel, &mut peer.output))
    }

    fn close(&mut self, conn: ConnId) {
        let (peer, number) = self.locate(conn);
        if peer.connections.live(number).is_some() {
            peer.connections.end(number, TcpCloseReason::Closed, &mut peer.output);
            peer.input.cancel(number);
        }
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        self.local.grants.issue(region, range, peer)
    }

    fn revoke(&mut self, grant: &Grant) {
        // Idempotent: a second revocation is confirmed again.
        self.local.grants.revoke(grant);
        self.local.events.push_back(FabricEvent::Revoked { grant: *grant });
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        match &write.source {
            WriteSource::Region(region, range) => region.check(range),
            WriteSource::Value(words) => {
                let most = WriteSource::VALUE_WORDS_MAX;
                assert!(words.len() <= most, "{} words by value, but at most {most} are allowed", words.len())
            }
        }
        let words = u32::try_from(write.source.words()).expect("a write of less than 32 GiB");
        let frame = |connection| {
            TcpFrame::Write(WriteFrame {
                connection,
                key: write.grant.key,
                region: write.grant.region.0,
                first: write.grant.first.saturating_add(write.offset as u64),
                words,
                immediate: write.immediate,
                signal: write.signal.is_some(),
            })
        };
        self.post(conn, write.signal, frame, |output| match &write.source {
            WriteSource::Region(region, range) => output.push_source(region, range.clone()),
            WriteSource::Value(words) => output.push_words(words),
        })
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        assert!(
            bytes.len() <= SEND_BYTES_MAX,
            "a send of {} bytes, but at most {SEND_BYTES_MAX} are allowed",
            bytes.len()
        );
        let length = u32::try_from(bytes.len()).expect("checked above");
        let frame = |connection| TcpFrame::Send { connection, length, signal: signal.is_some() };
        self.post(conn, signal, frame, |output| output.push_bytes(bytes))
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        region.check(&range);
        let (peer, number) = self.locate(conn);
        peer.connections.live(number).ok_or(PostError::NotConnected)?.post_receive(region, range, token)
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let id = self.local.mirrors.publish(key, region, readers);
        for peer in self.peers.iter_mut().filter(|peer| peer.lost.is_none()) {
            if let Err(violation) = peer.subscribe(key, &mut self.local) {
                peer.lose(&TcpLoss::Violation(violation), &mut self.local);
            }
        }
        id
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.sweep_attachments();
        let id = self.region_id();
        let allocate = |words| memory::allocate(id, words).unwrap_or_else(|shortage| shortage.unwind());
        let Some(&place) = self.places.get(&owner) else {
            let attachments = self.awaited_attachments.entry(owner).or_default();
            return attachments.attach(key, words, &self.ended_attachments, allocate).0;
        };
        let peer = &mut self.peers[place];
        let (region, new) = peer.attachments.attach(key, words, &self.ended_attachments, allocate);
        if let Some(attachment) = new.filter(|_| peer.lost.is_none()) {
            peer.output.push_frame(TcpFrame::Attach { attachment, key: key.0, words: words as u64 });
            self.local.counters.frames_sent += 1;
        }
        region
    }

    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        let mirror = self.local.mirrors.mirror(mirror);
        mirror.region.check(&range);
        if range.is_empty() {
            return;
        }
        let mut overrun = false;
        for &MirrorSubscriber { peer, attachment } in &mirror.subscribers {
            let output = &mut self.peers[peer].output;
            output.push_mirror(attachment, &mirror.region, range.clone());
            overrun |= output.is_overrun();
        }
        self.local.counters.frames_sent += mirror.subscribers.len() as u64;
        if overrun {
            self.lose_overrun();
        }
    }

    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        let mirror = self.local.mirrors.mirror(mirror);
        let value = mirror.region.load(word);
        let word = u32::try_from(word).expect("mirrors are checked when they are published");
        let mut overrun = false;
        for &MirrorSubscriber { peer, attachment } in &mirror.subscribers {
            let output = &mut self.peers[peer].output;
            if output.push_mirror_word(attachment, word, value) {
                self.local.counters.frames_sent += 1;
                overrun |= output.is_overrun();
            } else {
                self.local.counters.words_coalesced += 1;
            }
        }
        if overrun {
            self.lose_overrun();
        }
    }

    fn freeze(&mut self, attachment: &Region) {
        assert!(is_attachment(attachment), "{attachment:?} is not an attachment of a mirror");
        // The attachment of a removed peer no longer changes anyway.
        let peers = self.peers.iter_mut().map(|peer| &mut peer.attachments);
        let _ = peers
            .chain(self.awaited_attachments.values_mut())
            .any(|attachments| attachments.freeze(attachment));
    }

    fn retire(&mut self, mirror: MirrorId) {
        let retired = self.local.mirrors.retire(mirror);
        let events = &mut self.local.events;
        events.retain(|event| !matches!(event, FabricEvent::Attached { key, .. } if *key == retired));
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        let frames_before = self.local.counters.frames_received;
        self.sweep_attachments();
        let poll_peer = if self.gathers { TcpPeer::poll_gathered } else { TcpPeer::poll_output };
        let mut work = self.poll_news() + self.poll_output(poll_peer);
        if self.peers.iter().any(TcpPeer::is_watched) {
            self.local.counters.poll_calls += 1;
            self.has_sentinel_news |= self.poller.poll(&mut self.peers);
        }
        work += self.poll_sentinels();
        for place in 0..self.peers.len() {
            let peer = &mut self.peers[place];
            if peer.readable {
                match peer.poll_input(&mut self.buffer, &mut self.local) {
                    // It sends requests without reading the answers.
                    Ok(_) if peer.output.is_overrun() => peer.lose(&TcpLoss::Overrun, &mut self.local),
                    Ok(received) => work += usize::from(received > 0),
                    Err(loss) => self.on_failure(place, &loss),
                }
            }
            work += self.peers[place].poll_stalled(&mut self.local);
        }
        while let Some(event) = self.local.events.pop_front() {
            work += 1;
            sink(event);
        }
        work + usize::try_from(self.local.counters.frames_received - frames_before)
            .expect("one poll's frames")
    }
}

impl TcpFabric {
    /// Returns the peer of a connection, and the connection's number there.
    fn locate(&mut self, conn: ConnId) -> (&mut TcpPeer, u32) {
        let (place, number) = split_conn_id(conn);
        let peer = self.peers.get_mut(place).unwrap_or_else(|| panic!("{conn:?} was never opened here"));
        (peer, number)
    }

    /// Queues a post, header first.
    fn post(
        &mut self,
        conn: ConnId,
        signal: Option<Token>,
        frame: impl FnOnce(u32) -> TcpFrame,
        payload: impl FnOnce(&mut OutputQueue),
    ) -> Result<(), PostError> {
        let (peer, number) = self.locate(conn);
        let full = peer.output.is_full();
        let connection = peer.connections.live(number).ok_or(PostError::NotConnected)?;
        let partner = connection.target()?;
        if full {
            return Err(PostError::Full);
        }
        connection.check_space()?;
        peer.output.push_frame(frame(partner));
        payload(&mut peer.output);
        if let Some(token) = signal {
            connection.on_signalled_post(token, peer.output.end());
        }
        self.local.counters.frames_sent += 1;
        Ok(())
    }

    /// Loses readers that do not take what is pushed to them.
    #[cold]
    fn lose_overrun(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.output.is_overrun()) {
            peer.lose(&TcpLoss::Overrun, &mut self.local);
        }
    }
}
