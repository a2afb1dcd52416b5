//! The trait's calls: posts wait in their endpoints; `poll` passes them to the device and reports what it has
//! done.

use std::ops::Range;

use squall_fabric::region::Access;
use squall_fabric::{
    Capabilities, Channel, ConnId, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey, NodeId,
    PostError, Region, SEND_BYTES_MAX, Shortage, Token, Write, WriteSource,
};

use super::control::VerbsLoss;
use super::endpoint::{EndpointState, VerbsReceive};
use super::grants::target;
use super::order;
use super::post::{PostData, PostRelease, RemoteMemory, VerbsPost, VerbsTarget};
use super::{VerbsError, VerbsFabric};

impl Fabric for VerbsFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { one_sided_progress: true, early_sight: false }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        self.regions.try_allocate(words)
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        self.regions.take_in(memory)
    }

    fn release(&mut self, region: &Region) {
        self.regions.forget(region);
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        self.open_channel(peer, channel)
    }

    fn close(&mut self, conn: ConnId) {
        self.close_connection(conn);
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        let place = self.place_of(peer);
        self.regions.place(region);
        let first = self.grants.count(place, None) == 0;
        let domain = &self.peers[place].domain;
        let (grant, shortage) = self.grants.issue(self.node, region, range, (place, peer), domain);
        match shortage {
            Some(error) => self.lose(place, &VerbsLoss::Shortage(error)),
            None if first => self.set_writable(place, true),
            None => {}
        }
        grant
    }

    fn revoke(&mut self, grant: &Grant) {
        // The grants of a removed peer went with it.
        if let Some(place) = self.peers.find(grant.peer) {
            self.take_back(grant, place);
        }
        order::from_device();
        self.events.push_back(FabricEvent::Revoked { grant: *grant });
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        match &write.source {
            WriteSource::Region(region, range) => region.check(range),
            WriteSource::Value(words) => {
                let most = WriteSource::VALUE_WORDS_MAX;
                assert!(
                    words.len() <= most,
                    "{} words by value, but at most {most} are allowed",
                    words.len()
                );
            }
        }
        let (number, peer) = self.connections.connected(conn)?;
        let words = write.source.words();
        let remote = target(write.grant, write.offset, words, self.node, self.peers[peer].node);
        match write.source {
            WriteSource::Region(region, range) if words > WriteSource::VALUE_WORDS_MAX => {
                self.write_range(number, (region, range), remote, (write.immediate, write.signal))
            }
            // A few words are written by value, which is allowed for other writes, too [F5].
            WriteSource::Region(region, range) => {
                let mut captured = [0; WriteSource::VALUE_WORDS_MAX];
                region.copy_out(range.start, &mut captured[..words]);
                self.write_value(number, &captured[..words], remote, (write.immediate, write.signal))
            }
            WriteSource::Value(value) => {
                self.write_value(number, value, remote, (write.immediate, write.signal))
            }
        }
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        assert!(
            bytes.len() <= SEND_BYTES_MAX,
            "a send of {} bytes, but at most {SEND_BYTES_MAX} are allowed",
            bytes.len()
        );
        let (number, peer) = self.connections.connected(conn)?;
        self.check_space(number, 1)?;
        let endpoint = self.endpoints.live(number).expect("of a live connection");
        if let Err(error) = endpoint.prepare_capture(bytes.len()) {
            return Err(self.run_short(peer, error));
        }
        let endpoint = self.endpoints.live(number).expect("as before");
        let (payload, release) = endpoint.capture(bytes)?;
        self.endpoints.push(number, VerbsPost { target: VerbsTarget::Receive, payload, signal, release });
        Ok(())
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        region.check(&range);
        assert!(
            region.access() == Access::ReadWrite,
            "an attachment of another node's mirror cannot receive"
        );
        let (number, peer) = self.connections.live(conn)?;
        let place = self.regions.place(region);
        let key = self.key_of(place, peer)?;
        let endpoint = self.endpoints.live(number).expect("of a live connection");
        endpoint.post_receive(number, VerbsReceive { region: region.clone(), range, token, key })
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        self.publish_mirror(key, region, readers)
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.attach_mirror(owner, key, words)
    }

    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        self.push_range(mirror, range);
    }

    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        self.push_value(mirror, word..word + 1);
    }

    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        self.push_value(mirror, words);
    }

    fn freeze(&mut self, attachment: &Region) {
        self.freeze_attachment(attachment);
    }

    fn retire(&mut self, mirror: MirrorId) {
        self.retire_mirror(mirror);
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        let mut work = self.flush_posts();
        let completed = self.poll_completions();
        work += completed + self.poll_control();
        if completed > 0 {
            // The completions have made space.
            work += self.flush_posts();
        }
        self.flush_control();
        while let Some(event) = self.events.pop_front() {
            work += 1;
            sink(event);
        }
        work
    }
}

impl VerbsFabric {
    /// Revokes a grant of the peer at `place`.
    fn take_back(&mut self, grant: &Grant, place: usize) {
        // First the queue pairs, which is fast, if the peer has no other grants; then the key, for good.
        if self.grants.count(place, Some(grant)) == 0 {
            self.set_writable(place, false);
        }
        if let Err(error) = self.grants.revoke(grant) {
            crate::log::error!(%error, "failed to revoke a grant's key: {} is fenced off", grant.peer);
            self.fence_off(place);
        }
    }

    /// Returns the key of the region at `place` for posts of the peer at `peer`. If its memory cannot be
    /// locked the peer is lost: the connection breaks, and the log has the reason.
    fn key_of(&mut self, place: usize, peer: usize) -> Result<u32, PostError> {
        let key = self.regions.local_key(place, peer, &self.peers[peer].domain);
        key.map_err(|error| self.run_short(peer, error))
    }

    /// Loses the peer at `peer`, because this node lacks the memory to work with it.
    #[cold]
    fn run_short(&mut self, peer: usize, error: VerbsError) -> PostError {
        self.lose(peer, &VerbsLoss::Shortage(error));
        PostError::NotConnected
    }

    fn check_space(&mut self, number: u32, posts: usize) -> Result<(), PostError> {
        let endpoint = self.endpoints.live(number).expect("of a live connection");
        match endpoint.state {
            EndpointState::Failed => Err(PostError::NotConnected),
            _ if endpoint.has_space(posts) => Ok(()),
            _ => Err(PostError::Full),
        }
    }

    fn write_value(
        &mut self,
        number: u32,
        words: &[u64],
        remote: RemoteMemory,
        (immediate, signal): (Option<u32>, Option<Token>),
    ) -> Result<(), PostError> {
        self.check_space(number, 1)?;
        let target = VerbsTarget::Memory { remote, immediate };
        let payload = PostData::words(words);
        self.endpoints.push(number, VerbsPost { target, payload, signal, release: PostRelease::Nothing });
        Ok(())
    }

    /// Posts as many writes as the device needs for the range; the last one has the immediate value and the
    /// signal.
    fn write_range(
        &mut self,
        number: u32,
        (region, range): (&Region, Range<usize>),
        remote: RemoteMemory,
        (immediate, signal): (Option<u32>, Option<Token>),
    ) -> Result<(), PostError> {
        let longest = self.message_words_max;
        self.check_space(number, range.len().div_ceil(longest))?;
        let place = self.regions.place(region);
        let peer = self.endpoints.live(number).expect("checked above").peer;
        let key = self.key_of(place, peer)?;
        let mut first = range.start;
        while first < range.end {
            let last = range.end.min(first + longest);
            let ends = last == range.end;
            let address = remote.address.wrapping_add(8 * (first - range.start) as u64);
            let remote = RemoteMemory { address, key: remote.key };
            let target = VerbsTarget::Memory { remote, immediate: immediate.filter(|_| ends) };
            let source = region.pointer(first).as_ptr().addr() as u64;
            let payload = PostData::Memory { address: source, bytes: 8 * (last - first), key };
            self.regions.hold(place);
            let (signal, release) = (signal.filter(|_| ends), PostRelease::Region(place));
            self.endpoints.push(number, VerbsPost { target, payload, signal, release });
            first = last;
        }
        Ok(())
    }
}
