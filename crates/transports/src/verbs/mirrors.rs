//! Mirrors: one write for each reader, into an attachment that the reader has registered for the owner.
//!
//! All pushes to one reader use one queue pair, so they land in post order whichever mirror they belong to
//! [M1]. A reader that freezes an attachment revokes its key: no push to it lands any more [M3]. A push that
//! was in flight is refused, which ends the queue pair. The device then reports exactly which push failed,
//! and that all pushes before it have landed [F6], so the owner creates a new queue pair and continues with
//! the later pushes to the other attachments.

use std::collections::BTreeMap;
use std::ops::Range;

use squall_fabric::{FabricEvent, MirrorId, MirrorKey, NodeId, Region, WriteSource};

use super::control::VerbsLoss;
use super::endpoint::{EndpointRole, EndpointState};
use super::frame::{VerbsFrame, VerbsViolation};
use super::post::{PostData, PostRelease, RemoteMemory, VerbsPost, VerbsTarget};
use super::queue_pair::{PairName, QueueDepth};
use super::{VerbsError, VerbsFabric};
use crate::slot_map::SlotMap;

/// The mirrors that this node has published.
#[derive(Debug, Default)]
pub(super) struct VerbsMirrors {
    pub(super) mirrors: SlotMap<VerbsMirror>,
    pub(super) by_key: BTreeMap<u64, u32>,
}

#[derive(Debug)]
pub(super) struct VerbsMirror {
    pub(super) key: MirrorKey,
    region: Region,
    /// The region's place in the table.
    place: usize,
    /// The nodes that may attach it.
    pub(super) readers: Vec<NodeId>,
    /// The readers that have attached it, to which pushes go, in the order of `readers`.
    subscribers: Vec<Subscriber>,
}

/// A reader that has attached.
#[derive(Clone, Copy, Debug)]
struct Subscriber {
    /// The reader's place among the peers.
    peer: usize,
    /// The reader's number for its attachment.
    attachment: u32,
    /// Where the attachment begins.
    memory: RemoteMemory,
    /// The key of the mirror's region for posts to this reader.
    key: u32,
}

/// A peer's request to attach a mirror.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerbsAttachRequest {
    pub(super) attachment: u32,
    pub(super) words: u64,
    pub(super) memory: RemoteMemory,
}

impl VerbsFabric {
    /// Publishes a mirror.
    ///
    /// # Panics
    /// Panics if the key is in use, or the region is not this node's.
    pub(super) fn publish_mirror(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let place = self.regions.place(region);
        assert!(!self.mirrors.by_key.contains_key(&key.0), "mirror {key:?} is published already");
        let mirror = VerbsMirror {
            key,
            region: region.clone(),
            place,
            readers: readers.to_vec(),
            subscribers: Vec::new(),
        };
        let id = self.mirrors.mirrors.insert(mirror);
        self.mirrors.by_key.insert(key.0, id);
        let announcement = self.mirrors.mirror(MirrorId(id)).announcement();
        // A reader that is not a peer yet is notified when it is added.
        for peer in readers.iter().filter_map(|reader| self.peers.find(*reader)).collect::<Vec<_>>() {
            self.peers[peer].send(announcement);
            if let Err(loss) = self.subscribe(id, peer) {
                self.lose(peer, &loss);
            }
        }
        MirrorId(id)
    }

    /// Accepts a peer's request for a mirror, if there is one that fits. A peer whose attachment has another
    /// size has been sent the right size, and ends the stream.
    fn subscribe(&mut self, id: u32, peer: usize) -> Result<(), VerbsLoss> {
        let mirror = self.mirrors.mirrors.at_mut(id).expect("keys name mirrors");
        let Some(request) = self.peers[peer].requests.get(&mirror.key.0).copied() else { return Ok(()) };
        let reader = self.peers[peer].node;
        let fits = request.words == mirror.region.words() as u64 && mirror.readers.contains(&reader);
        if !fits || self.peers[peer].lost.is_some() {
            return Ok(());
        }
        let key = self.regions.local_key(mirror.place, peer, &self.peers[peer].domain);
        let key = key.map_err(VerbsLoss::Shortage)?;
        if self.peers[peer].mirror_out.is_none() {
            self.open_mirror_out(peer)?;
        }
        let mirror = self.mirrors.mirrors.at_mut(id).expect("as before");
        let subscriber = Subscriber { peer, attachment: request.attachment, memory: request.memory, key };
        let position = |peer: usize| mirror.position(self.peers[peer].node);
        let at = mirror.subscribers.partition_point(|other| position(other.peer) < position(peer));
        mirror.subscribers.insert(at, subscriber);
        self.events.push_back(FabricEvent::Attached { key: mirror.key, reader });
        Ok(())
    }

    /// Creates the queue pair for pushes to a peer; pushes wait until the peer has connected its own to it.
    fn open_mirror_out(&mut self, peer: usize) -> Result<u32, VerbsLoss> {
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(EndpointRole::MirrorOut, peer, &domain, DEPTH_OUT);
        let number = made.map_err(VerbsError::system("ibv_create_qp")).map_err(VerbsLoss::Shortage)?;
        let pair = self.endpoints.live(number).expect("just made").pair.name();
        self.peers[peer].mirror_out = Some(number);
        self.peers[peer].send(VerbsFrame::MirrorOpen { number, pair });
        Ok(number)
    }

    /// Pushes words of a mirror to its readers, by reference; a few words are pushed by value, which [F5]
    /// permits.
    ///
    /// # Panics
    /// Panics if the mirror is not this node's or the range is outside it.
    pub(super) fn push_range(&mut self, mirror: MirrorId, range: Range<usize>) {
        let Self { mirrors, peers, endpoints, regions, message_words_max, .. } = self;
        let mirror = mirrors.mirror(mirror);
        mirror.region.check(&range);
        let mut overrun = false;
        let mut first = range.start;
        while first < range.end {
            let last = range.end.min(first + *message_words_max);
            let short = captured(&mirror.region, first..last);
            for subscriber in &mirror.subscribers {
                let (payload, release) = match &short {
                    Some(payload) => (payload.clone(), PostRelease::Nothing),
                    None => {
                        regions.hold(mirror.place);
                        (
                            referenced(&mirror.region, first..last, subscriber.key),
                            PostRelease::Region(mirror.place),
                        )
                    }
                };
                let number = peers[subscriber.peer].mirror_out.expect("made with the first subscriber");
                let post = VerbsPost { target: subscriber.target(first), payload, signal: None, release };
                overrun |= endpoints.push(number, post) > PUSHES_MAX;
            }
            first = last;
        }
        if overrun {
            self.lose_overrun();
        }
    }

    /// Pushes the current values of a few words to all readers, in one write to each.
    ///
    /// # Panics
    /// Panics if the mirror is not this node's, or the words are outside it or are too many for a write by
    /// value.
    pub(super) fn push_value(&mut self, mirror: MirrorId, words: Range<usize>) {
        let Self { mirrors, peers, endpoints, counters, .. } = self;
        let mirror = mirrors.mirror(mirror);
        let payload = captured(&mirror.region, words.clone()).expect("few enough for a write by value");
        let mut overrun = false;
        for subscriber in &mirror.subscribers {
            let number = peers[subscriber.peer].mirror_out.expect("made with the first subscriber");
            let target = subscriber.target(words.start);
            let endpoint = endpoints.live(number).expect("it lives as long as its peer");
            if endpoint.replace_newest(target, &payload) {
                counters.words_coalesced += words.len() as u64;
                continue;
            }
            let post =
                VerbsPost { target, payload: payload.clone(), signal: None, release: PostRelease::Nothing };
            overrun |= endpoints.push(number, post) > PUSHES_MAX;
        }
        if overrun {
            self.lose_overrun();
        }
    }

    /// Handles the move of the region at `place`: later pushes use keys of its new pages. Readers for which
    /// these cannot be locked are lost.
    pub(super) fn renew_mirror_keys(&mut self, place: usize) {
        let Self { mirrors, regions, peers, .. } = self;
        let mut losses = Vec::new();
        for mirror in mirrors.mirrors.iter_mut().filter(|mirror| mirror.place == place) {
            for subscriber in &mut mirror.subscribers {
                match regions.local_key(place, subscriber.peer, &peers[subscriber.peer].domain) {
                    Ok(key) => subscriber.key = key,
                    Err(error) => losses.push((subscriber.peer, VerbsLoss::Shortage(error))),
                }
            }
        }
        losses.iter().for_each(|(peer, loss)| self.lose(*peer, loss));
    }

    /// Loses readers that do not take what is pushed to them.
    #[cold]
    fn lose_overrun(&mut self) {
        for peer in self.peers.all() {
            let endpoint = self.peers[peer].mirror_out.and_then(|number| self.endpoints.live(number));
            if endpoint.is_some_and(|endpoint| endpoint.outstanding() > PUSHES_MAX) {
                self.lose(peer, &VerbsLoss::Overrun);
            }
        }
    }

    /// Revokes the keys of all attachments of a lost peer's mirrors.
    pub(super) fn stop_attachments(&mut self, peer: usize) {
        for attachment in
            self.attachments.attachments.values_mut().filter(|attachment| attachment.peer == Some(peer))
        {
            attachment.give_up();
        }
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror.subscribers.retain(|subscriber| subscriber.peer != peer);
        }
    }

    /// Handles a peer's attachment of a mirror.
    pub(super) fn on_attach(
        &mut self,
        peer: usize,
        key: u64,
        request: VerbsAttachRequest,
    ) -> Result<(), VerbsLoss> {
        let requests = &mut self.peers[peer].requests;
        if requests.len() >= REQUESTS_MAX {
            return Err(VerbsViolation("too many attached mirrors").into());
        }
        if requests.insert(key, request).is_some() {
            return Err(VerbsViolation("a second attachment of one mirror").into());
        }
        match self.mirrors.by_key.get(&key) {
            Some(&id) => self.subscribe(id, peer),
            None => Ok(()),
        }
    }

    /// Handles the end of an attachment of the peer: it accepts no more pushes.
    pub(super) fn on_detach(&mut self, peer: usize, attachment: u32) {
        self.unsubscribe(peer, attachment);
        let endpoint = self.peers[peer].mirror_out.and_then(|number| self.endpoints.live(number));
        if let Some(endpoint) = endpoint {
            endpoint.drop_waiting(attachment, |post| self.regions.end_post(&post));
        }
        self.peers[peer].requests.retain(|_, request| request.attachment != attachment);
        self.peers[peer].send(VerbsFrame::Detached { attachment });
    }

    fn unsubscribe(&mut self, peer: usize, attachment: u32) {
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror
                .subscribers
                .retain(|subscriber| (subscriber.peer, subscriber.attachment) != (peer, attachment));
        }
    }

    /// Handles the peer's new queue pair for its pushes, which replaces the previous one.
    pub(super) fn on_mirror_open(
        &mut self,
        peer: usize,
        number: u32,
        pair: PairName,
    ) -> Result<(), VerbsLoss> {
        if let Some(before) = self.peers[peer].mirror_in.take() {
            self.end_endpoint(before);
        }
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(EndpointRole::MirrorIn, peer, &domain, DEPTH_IN);
        let ours = made.map_err(|error| VerbsLoss::Unreachable(error.to_string()))?;
        self.peers[peer].mirror_in = Some(ours);
        let address = self.peers[peer].address.expect("its first frame");
        let endpoint = self.endpoints.live(ours).expect("just made");
        endpoint
            .pair
            .connect(&address, pair, true)
            .map_err(|error| VerbsLoss::Unreachable(error.to_string()))?;
        let pair = endpoint.pair.name();
        self.peers[peer].send(VerbsFrame::MirrorAccept { partner: number, pair });
        Ok(())
    }

    /// Handles the connection of a queue pair of the peer, which takes this node's pushes.
    pub(super) fn on_mirror_accept(
        &mut self,
        peer: usize,
        number: u32,
        pair: PairName,
    ) -> Result<(), VerbsLoss> {
        if !self.endpoints.was_made(number) {
            return Err(VerbsViolation("an acceptance of a queue pair that was never created").into());
        }
        if self.peers[peer].mirror_out != Some(number) {
            // It has been replaced meanwhile.
            return Ok(());
        }
        let address = self.peers[peer].address.expect("its first frame");
        let endpoint = self.endpoints.live(number).expect("the peer's present one");
        if endpoint.state != EndpointState::Made {
            return Err(VerbsViolation("a second acceptance of a queue pair").into());
        }
        endpoint
            .pair
            .connect(&address, pair, false)
            .map_err(|error| VerbsLoss::Unreachable(error.to_string()))?;
        endpoint.state = EndpointState::Connected;
        Ok(())
    }

    /// Handles the reader's refusal of a push to `attachment`, which it has frozen. All pushes before it have
    /// landed; those after it go to a new queue pair, except those to the same attachment.
    pub(super) fn on_push_refused(&mut self, peer: usize, attachment: u32) {
        self.unsubscribe(peer, attachment);
        self.counters.mirror_restarts += 1;
        let number = self.peers[peer].mirror_out.take().expect("a push was refused");
        let work = self.endpoints.end(number).expect("a push was refused");
        self.peers[peer].bell.on_gone(work.sent);
        let number = self.open_mirror_out(peer);
        for post in work.posts {
            match (&number, post.target) {
                (Ok(number), VerbsTarget::Attachment { attachment: of, .. }) if of != attachment => {
                    self.endpoints.push(*number, post);
                }
                _ => self.regions.end_post(&post),
            }
        }
        if let Err(loss) = number {
            self.lose(peer, &loss);
        }
    }
}

impl VerbsMirrors {
    /// Returns a published mirror.
    ///
    /// # Panics
    /// Panics if it was not published here, or is retired.
    pub(super) fn mirror(&self, id: MirrorId) -> &VerbsMirror {
        self.mirrors.at(id.0).unwrap_or_else(|| panic!("{id:?} is not published by this node"))
    }
}

impl VerbsMirror {
    fn position(&self, reader: NodeId) -> Option<usize> {
        self.readers.iter().position(|other| *other == reader)
    }

    /// Returns the frame that announces it to its readers.
    pub(super) fn announcement(&self) -> VerbsFrame {
        VerbsFrame::Publish { key: self.key.0, words: self.region.words() as u64 }
    }
}

impl Subscriber {
    /// Returns the place of word `word` of the attachment.
    fn target(&self, word: usize) -> VerbsTarget {
        let address = self.memory.address.wrapping_add(8 * word as u64);
        VerbsTarget::Attachment {
            remote: RemoteMemory { address, key: self.memory.key },
            attachment: self.attachment,
        }
    }
}

/// Returns the words by value, if they are few enough.
fn captured(region: &Region, range: Range<usize>) -> Option<PostData> {
    let mut words = [0; WriteSource::VALUE_WORDS_MAX];
    let words = words.get_mut(..range.len())?;
    region.copy_out(range.start, words);
    Some(PostData::words(words))
}

/// Returns the words by reference, under the region's key for the reader.
fn referenced(region: &Region, range: Range<usize>, key: u32) -> PostData {
    let address = region.pointer(range.start).as_ptr().addr() as u64;
    PostData::Memory { address, bytes: 8 * range.len(), key }
}

const DEPTH_OUT: QueueDepth = QueueDepth { posts: 256, receives: 1 };
const DEPTH_IN: QueueDepth = QueueDepth { posts: 1, receives: 1 };

/// A reader for which more pushes than this wait is lost. The window rule of protocols keeps the number far
/// below.
const PUSHES_MAX: usize = 1 << 18;

/// The most mirrors that one peer attaches.
pub(super) const REQUESTS_MAX: usize = 1 << 16;
