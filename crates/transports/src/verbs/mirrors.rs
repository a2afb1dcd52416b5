//! Mirrors: one write for each reader, into an attachment that the reader has registered for the owner.
//!
//! All pushes to one reader go by one queue pair, so that they land in post order whichever mirror they belong to [M1].
//! A reader that freezes an attachment takes its key back: no push to it lands any more [M3]. A push that was under way is
//! refused, which ends the queue pair. Then the device says exactly which push failed and that all before it were
//! placed [F6], so the owner makes a new queue pair and goes on with the pushes after it, to the other attachments.

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
    /// Who may attach.
    pub(super) readers: Vec<NodeId>,
    /// Who has attached: pushes go to them.
    subscribers: Vec<Subscriber>,
}

/// A reader that has attached.
#[derive(Clone, Copy, Debug)]
struct Subscriber {
    /// The reader's place among the peers.
    peer: usize,
    /// What the reader calls its attachment.
    attachment: u32,
    /// Where the attachment begins.
    memory: RemoteMemory,
    /// The key of the mirror's region for posts to this reader.
    key: u32,
}

/// A peer's wish to attach a mirror.
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
    /// If the key is in use, or the region is not this node's.
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
        // Who is no peer yet is told when it comes.
        for peer in readers.iter().filter_map(|reader| self.peers.find(*reader)).collect::<Vec<_>>() {
            self.peers[peer].send(announcement);
            if let Err(loss) = self.subscribe(id, peer) {
                self.lose(peer, &loss);
            }
        }
        MirrorId(id)
    }

    /// Takes a peer's request for a mirror, if there is one that fits. A peer whose attachment has another size has been told
    /// the right one, and ends the stream.
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
        mirror.subscribers.push(subscriber);
        self.events.push_back(FabricEvent::Attached { key: mirror.key, reader });
        Ok(())
    }

    /// Makes the queue pair for pushes to a peer; pushes wait until the peer has connected its own to it.
    fn open_mirror_out(&mut self, peer: usize) -> Result<u32, VerbsLoss> {
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(EndpointRole::MirrorOut, peer, &domain, DEPTH_OUT);
        let number = made.map_err(VerbsError::system("ibv_create_qp")).map_err(VerbsLoss::Shortage)?;
        let pair = self.endpoints.live(number).expect("just made").pair.name();
        self.peers[peer].mirror_out = Some(number);
        self.peers[peer].send(VerbsFrame::MirrorOpen { number, pair });
        Ok(number)
    }

    /// Brings words of a mirror to its readers, by reference; few words go by value, which is allowed too [F5].
    ///
    /// # Panics
    /// If the mirror is not this node's or the range lies outside it.
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

    /// Brings the present values of a few words to all readers, by one write each.
    ///
    /// # Panics
    /// If the mirror is not this node's, the words lie outside it, or are too many to go by value.
    pub(super) fn push_value(&mut self, mirror: MirrorId, words: Range<usize>) {
        let Self { mirrors, peers, endpoints, counters, .. } = self;
        let mirror = mirrors.mirror(mirror);
        let payload = captured(&mirror.region, words.clone()).expect("few enough to go by value");
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

    /// The region at `place` has moved: pushes of it name its new pages. A reader for which these cannot be locked is
    /// lost.
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

    /// Gives up readers that do not take what is pushed to them.
    #[cold]
    fn lose_overrun(&mut self) {
        for peer in self.peers.all() {
            let endpoint = self.peers[peer].mirror_out.and_then(|number| self.endpoints.live(number));
            if endpoint.is_some_and(|endpoint| endpoint.outstanding() > PUSHES_MAX) {
                self.lose(peer, &VerbsLoss::Overrun);
            }
        }
    }

    /// The keys of all attachments of a peer's mirrors are taken back: it is lost.
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

    /// The peer has an attachment.
    pub(super) fn on_attach(
        &mut self,
        peer: usize,
        key: u64,
        request: VerbsAttachRequest,
    ) -> Result<(), VerbsLoss> {
        let requests = &mut self.peers[peer].requests;
        if requests.len() >= REQUESTS_MAX {
            return Err(VerbsViolation("too many mirrors attached").into());
        }
        if requests.insert(key, request).is_some() {
            return Err(VerbsViolation("a mirror attached twice").into());
        }
        match self.mirrors.by_key.get(&key) {
            Some(&id) => self.subscribe(id, peer),
            None => Ok(()),
        }
    }

    /// An attachment of the peer takes no pushes any more.
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

    /// The peer has a queue pair for its pushes, instead of the one before.
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

    /// The peer takes this node's pushes by a queue pair of its own.
    pub(super) fn on_mirror_accept(
        &mut self,
        peer: usize,
        number: u32,
        pair: PairName,
    ) -> Result<(), VerbsLoss> {
        if !self.endpoints.was_made(number) {
            return Err(VerbsViolation("a queue pair accepted that was never made").into());
        }
        if self.peers[peer].mirror_out != Some(number) {
            // It has been replaced meanwhile.
            return Ok(());
        }
        let address = self.peers[peer].address.expect("its first frame");
        let endpoint = self.endpoints.live(number).expect("the peer's present one");
        if endpoint.state != EndpointState::Made {
            return Err(VerbsViolation("a queue pair accepted twice").into());
        }
        endpoint
            .pair
            .connect(&address, pair, false)
            .map_err(|error| VerbsLoss::Unreachable(error.to_string()))?;
        endpoint.state = EndpointState::Connected;
        Ok(())
    }

    /// The reader has refused a push to `attachment`, for it has frozen it. All pushes before it were placed; those after it
    /// go to a new queue pair, except those to the same attachment.
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
    /// # Panics
    /// If it was not published here, or is retired.
    pub(super) fn mirror(&self, id: MirrorId) -> &VerbsMirror {
        self.mirrors.at(id.0).unwrap_or_else(|| panic!("{id:?} is not published by this node"))
    }
}

impl VerbsMirror {
    /// What its readers are told.
    pub(super) fn announcement(&self) -> VerbsFrame {
        VerbsFrame::Publish { key: self.key.0, words: self.region.words() as u64 }
    }
}

impl Subscriber {
    /// Word `word` of the attachment.
    fn target(&self, word: usize) -> VerbsTarget {
        let address = self.memory.address.wrapping_add(8 * word as u64);
        VerbsTarget::Attachment {
            remote: RemoteMemory { address, key: self.memory.key },
            attachment: self.attachment,
        }
    }
}

/// A few words by value, if they are few.
fn captured(region: &Region, range: Range<usize>) -> Option<PostData> {
    let mut words = [0; WriteSource::VALUE_WORDS_MAX];
    let words = words.get_mut(..range.len())?;
    region.copy_out(range.start, words);
    Some(PostData::words(words))
}

/// Words by reference, under the region's key for the reader.
fn referenced(region: &Region, range: Range<usize>, key: u32) -> PostData {
    let address = region.pointer(range.start).as_ptr().addr() as u64;
    PostData::Memory { address, bytes: 8 * range.len(), key }
}

const DEPTH_OUT: QueueDepth = QueueDepth { posts: 256, receives: 1 };
const DEPTH_IN: QueueDepth = QueueDepth { posts: 1, receives: 1 };

/// A reader for which more pushes wait is given up. The window rule of protocols keeps far below.
const PUSHES_MAX: usize = 1 << 18;

/// Mirrors of one peer.
pub(super) const REQUESTS_MAX: usize = 1 << 16;
