//! Mirrors: one write for each reader, into a view that the reader has registered for the owner.
//!
//! All pushes to one reader go by one queue pair, so that they land in post order whichever mirror they belong to [M1].
//! A reader that freezes a view takes its key back: no push to it lands any more [M3]. A push that was under way is
//! refused, which ends the queue pair. Then the device says exactly which push failed and that all before it were
//! placed [F6], so the owner makes a new queue pair and goes on with the pushes after it, to the other views.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use squall_fabric::{Event, MirrorId, MirrorKey, NodeId, Region, Source};

use super::control::Loss;
use super::domain::{Access, Domain, MemoryKey};
use super::endpoint::{Role, State};
use super::frame::{Frame, Violation};
use super::order;
use super::post::{Payload, Post, Release, Remote, Target};
use super::queue_pair::{Depth, PairName};
use super::retirement::Detachment;
use super::{VerbsError, VerbsFabric};
use crate::slots::Slots;

/// The mirrors that this node has published.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    pub(super) mirrors: Slots<Mirror>,
    pub(super) by_key: BTreeMap<u64, u32>,
}

#[derive(Debug)]
pub(super) struct Mirror {
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
    /// What the reader calls its view.
    view: u32,
    /// Where the view begins.
    memory: Remote,
    /// The key of the mirror's region for posts to this reader.
    key: u32,
}

/// A peer's wish to attach a mirror.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) view: u32,
    pub(super) words: u64,
    pub(super) memory: Remote,
}

/// This node's views of other nodes' mirrors.
#[derive(Default)]
pub(super) struct Views {
    /// By number; numbers are not used again, since refused pushes may name them late.
    pub(super) views: BTreeMap<u32, View>,
    next: u32,
    pub(super) by_key: BTreeMap<(NodeId, u64), u32>,
}

pub(super) struct View {
    pub(super) owner: NodeId,
    /// The owner's place; none if it is no peer yet, or no more.
    pub(super) peer: Option<usize>,
    pub(super) key: u64,
    pub(super) region: Region,
    /// The owner's right to write it; none once it is frozen.
    memory: Option<MemoryKey>,
    pub(super) detachment: Detachment,
}

impl VerbsFabric {
    /// Publishes a mirror.
    ///
    /// # Panics
    /// If the key is in use, or the region is not this node's.
    pub(super) fn publish_mirror(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let place = self.regions.place(region);
        assert!(!self.mirrors.by_key.contains_key(&key.0), "mirror {key:?} is published already");
        let mirror =
            Mirror { key, region: region.clone(), place, readers: readers.to_vec(), subscribers: Vec::new() };
        let id = self.mirrors.mirrors.insert(mirror);
        self.mirrors.by_key.insert(key.0, id);
        let announcement = self.mirrors.mirror(MirrorId(id)).announcement();
        // Who is no peer yet is told when it comes.
        for peer in readers.iter().filter_map(|reader| self.peers.find(*reader)).collect::<Vec<_>>() {
            self.peers[peer].tell(announcement);
            if let Err(loss) = self.subscribe(id, peer) {
                self.lose(peer, &loss);
            }
        }
        MirrorId(id)
    }

    /// Takes a peer's request for a mirror, if there is one that fits. A peer whose view has another size has been told
    /// the right one, and ends the stream.
    fn subscribe(&mut self, id: u32, peer: usize) -> Result<(), Loss> {
        let mirror = self.mirrors.mirrors.at_mut(id).expect("keys name mirrors");
        let Some(request) = self.peers[peer].requests.get(&mirror.key.0).copied() else { return Ok(()) };
        let reader = self.peers[peer].node;
        let fits = request.words == mirror.region.words() as u64 && mirror.readers.contains(&reader);
        if !fits || self.peers[peer].lost.is_some() {
            return Ok(());
        }
        let key = self.regions.local_key(mirror.place, peer, &self.peers[peer].domain);
        let key = key.map_err(Loss::Shortage)?;
        if self.peers[peer].mirror_out.is_none() {
            self.open_mirror_out(peer)?;
        }
        let mirror = self.mirrors.mirrors.at_mut(id).expect("as before");
        let subscriber = Subscriber { peer, view: request.view, memory: request.memory, key };
        mirror.subscribers.push(subscriber);
        self.events.push_back(Event::Attached { key: mirror.key, reader });
        Ok(())
    }

    /// Makes the queue pair for pushes to a peer; pushes wait until the peer has connected its own to it.
    fn open_mirror_out(&mut self, peer: usize) -> Result<u32, Loss> {
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(Role::MirrorOut, peer, &domain, DEPTH_OUT);
        let number = made.map_err(VerbsError::system("ibv_create_qp")).map_err(Loss::Shortage)?;
        let pair = self.endpoints.live(number).expect("just made").pair.name();
        self.peers[peer].mirror_out = Some(number);
        self.peers[peer].tell(Frame::MirrorOpen { number, pair });
        Ok(number)
    }

    /// A view of a mirror of `owner`, which need not be a peer yet.
    ///
    /// # Panics
    /// If the mirror is attached with another size, or its memory cannot be had.
    pub(super) fn attach_view(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.sweep_views();
        if let Some(&view) = self.views.by_key.get(&(owner, key.0)) {
            let region = &self.views.views[&view].region;
            assert!(region.words() == words, "mirror {key:?} is attached with {} words", region.words());
            return region.read_only();
        }
        let region = self.regions.allocate(words);
        self.add_view(owner, key, region.clone());
        region.read_only()
    }

    /// As [`squall_fabric::Fabric::attach`], with memory of another fabric of this node.
    pub(crate) fn attach_over(&mut self, owner: NodeId, key: MirrorKey, memory: &Region) -> Region {
        self.sweep_views();
        self.regions.adopt(memory);
        self.add_view(owner, key, memory.clone());
        memory.read_only()
    }

    fn add_view(&mut self, owner: NodeId, key: MirrorKey, region: Region) {
        let number = self.views.next;
        self.views.next = number.checked_add(1).expect("fewer than 2^32 views");
        self.views.by_key.insert((owner, key.0), number);
        let words = region.words() as u64;
        let detachment = Detachment::Attached;
        let mut view = View { owner, peer: None, key: key.0, region, memory: None, detachment };
        let mut loss = None;
        if let Some(peer) = self.peers.find(owner) {
            let (peer_is_lost, domain) = (self.peers[peer].lost.is_some(), &self.peers[peer].domain);
            match register_view(domain, &view.region) {
                _ if peer_is_lost => view.give_up(),
                Ok(memory) => {
                    let frame = view.attach_to(peer, number, memory);
                    self.peers[peer].tell(frame);
                    let published = self.peers[peer].published.get(&key.0);
                    if published.is_some_and(|published| *published != words) {
                        loss = Some((peer, Loss::Violation(OTHER_SIZE)));
                    }
                }
                Err(error) => {
                    view.give_up();
                    loss = Some((peer, Loss::Shortage(error)));
                }
            }
        }
        self.views.views.insert(number, view);
        if let Some((peer, loss)) = loss {
            self.lose(peer, &loss);
        }
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
                    Some(payload) => (payload.clone(), Release::Nothing),
                    None => {
                        regions.hold(mirror.place);
                        (
                            referenced(&mirror.region, first..last, subscriber.key),
                            Release::Region(mirror.place),
                        )
                    }
                };
                let number = peers[subscriber.peer].mirror_out.expect("made with the first subscriber");
                let post = Post { target: subscriber.target(first), payload, signal: None, release };
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
            let post = Post { target, payload: payload.clone(), signal: None, release: Release::Nothing };
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
                    Err(error) => losses.push((subscriber.peer, Loss::Shortage(error))),
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
                self.lose(peer, &Loss::Overrun);
            }
        }
    }

    /// Stops a view [M3].
    ///
    /// # Panics
    /// If `region` is not a view.
    pub(super) fn freeze_view(&mut self, region: &Region) {
        let named = self.views.views.iter_mut().find(|(_, view)| view.region.pointer(0) == region.pointer(0));
        let (&number, view) = named.unwrap_or_else(|| panic!("{region:?} is not a view of a mirror"));
        let Some((peer, memory)) = view.peer.zip(view.memory.take()) else { return view.give_up() };
        view.detachment = Detachment::Asked;
        if let Err(error) = memory.revoke() {
            tracing::error!(%error, "the key of a view cannot be taken back");
            // Ends the queue pair by which the view is written.
            self.lose(peer, &Loss::Unreachable("a view could not be frozen".into()));
        }
        order::from_device();
        self.peers[peer].tell(Frame::Detach { view: number });
    }

    /// The keys of all views of a peer's mirrors are taken back: it is lost.
    pub(super) fn stop_views(&mut self, peer: usize) {
        for view in self.views.views.values_mut().filter(|view| view.peer == Some(peer)) {
            view.give_up();
        }
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror.subscribers.retain(|subscriber| subscriber.peer != peer);
        }
    }

    /// The peer has published a mirror for this node.
    pub(super) fn on_publish(&mut self, peer: usize, key: u64, words: u64) -> Result<(), Violation> {
        let published = &mut self.peers[peer].published;
        if published.len() >= REQUESTS_MAX {
            return Err(Violation("too many mirrors published"));
        }
        if published.insert(key, words).is_some() {
            return Err(Violation("a mirror published twice"));
        }
        let owner = self.peers[peer].node;
        let view = self.views.by_key.get(&(owner, key)).map(|view| &self.views.views[view]);
        match view.map(|view| view.region.words() as u64 == words) {
            Some(false) => Err(OTHER_SIZE),
            _ => Ok(()),
        }
    }

    /// The peer has a view.
    pub(super) fn on_attach(&mut self, peer: usize, key: u64, request: Request) -> Result<(), Loss> {
        let requests = &mut self.peers[peer].requests;
        if requests.len() >= REQUESTS_MAX {
            return Err(Violation("too many mirrors attached").into());
        }
        if requests.insert(key, request).is_some() {
            return Err(Violation("a mirror attached twice").into());
        }
        match self.mirrors.by_key.get(&key) {
            Some(&id) => self.subscribe(id, peer),
            None => Ok(()),
        }
    }

    /// A view of the peer takes no pushes any more.
    pub(super) fn on_detach(&mut self, peer: usize, view: u32) {
        self.unsubscribe(peer, view);
        let endpoint = self.peers[peer].mirror_out.and_then(|number| self.endpoints.live(number));
        if let Some(endpoint) = endpoint {
            endpoint.drop_waiting(view, |post| self.regions.end_post(&post));
        }
        self.peers[peer].requests.retain(|_, request| request.view != view);
        self.peers[peer].tell(Frame::Detached { view });
    }

    fn unsubscribe(&mut self, peer: usize, view: u32) {
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror.subscribers.retain(|subscriber| (subscriber.peer, subscriber.view) != (peer, view));
        }
    }

    /// The peer has a queue pair for its pushes, instead of the one before.
    pub(super) fn on_mirror_open(&mut self, peer: usize, number: u32, pair: PairName) -> Result<(), Loss> {
        if let Some(before) = self.peers[peer].mirror_in.take() {
            self.end_endpoint(before);
        }
        let domain = self.peers[peer].domain.clone();
        let made = self.endpoints.make(Role::MirrorIn, peer, &domain, DEPTH_IN);
        let ours = made.map_err(|error| Loss::Unreachable(error.to_string()))?;
        self.peers[peer].mirror_in = Some(ours);
        let address = self.peers[peer].address.expect("its first frame");
        let endpoint = self.endpoints.live(ours).expect("just made");
        endpoint.pair.connect(&address, pair, true).map_err(|error| Loss::Unreachable(error.to_string()))?;
        let pair = endpoint.pair.name();
        self.peers[peer].tell(Frame::MirrorAccept { partner: number, pair });
        Ok(())
    }

    /// The peer takes this node's pushes by a queue pair of its own.
    pub(super) fn on_mirror_accept(&mut self, peer: usize, number: u32, pair: PairName) -> Result<(), Loss> {
        if !self.endpoints.was_made(number) {
            return Err(Violation("a queue pair accepted that was never made").into());
        }
        if self.peers[peer].mirror_out != Some(number) {
            // It has been replaced meanwhile.
            return Ok(());
        }
        let address = self.peers[peer].address.expect("its first frame");
        let endpoint = self.endpoints.live(number).expect("the peer's present one");
        if endpoint.state != State::Made {
            return Err(Violation("a queue pair accepted twice").into());
        }
        endpoint.pair.connect(&address, pair, false).map_err(|error| Loss::Unreachable(error.to_string()))?;
        endpoint.state = State::Connected;
        Ok(())
    }

    /// The reader has refused a push to `view`, for it has frozen it. All pushes before it were placed; those after it
    /// go to a new queue pair, except those to the same view.
    pub(super) fn on_push_refused(&mut self, peer: usize, view: u32) {
        self.unsubscribe(peer, view);
        self.counters.mirror_restarts += 1;
        let number = self.peers[peer].mirror_out.take().expect("a push was refused");
        let work = self.endpoints.end(number).expect("a push was refused");
        self.peers[peer].bell.on_gone(work.sent);
        let number = self.open_mirror_out(peer);
        for post in work.posts {
            match (&number, post.target) {
                (Ok(number), Target::View { view: of, .. }) if of != view => {
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

impl Mirrors {
    /// # Panics
    /// If it was not published here, or is retired.
    pub(super) fn mirror(&self, id: MirrorId) -> &Mirror {
        self.mirrors.at(id.0).unwrap_or_else(|| panic!("{id:?} is not published by this node"))
    }
}

impl Mirror {
    /// What its readers are told.
    pub(super) fn announcement(&self) -> Frame {
        Frame::Publish { key: self.key.0, words: self.region.words() as u64 }
    }
}

impl View {
    /// Whether its owner is still to come.
    pub(super) fn is_awaited(&self, owner: NodeId) -> bool {
        self.owner == owner && self.peer.is_none() && self.detachment == Detachment::Attached
    }

    /// Its owner is the peer at `peer`, which is to be told this.
    pub(super) fn attach_to(&mut self, peer: usize, number: u32, memory: MemoryKey) -> Frame {
        let address = self.region.pointer(0).as_ptr().addr() as u64;
        let remote = Remote { address, key: memory.remote() };
        (self.peer, self.memory) = (Some(peer), Some(memory));
        Frame::Attach { view: number, key: self.key, words: self.region.words() as u64, memory: remote }
    }

    /// Nothing of its owner comes any more, and no answer to what it was asked.
    pub(super) fn give_up(&mut self) {
        (self.peer, self.memory, self.detachment) = (None, None, Detachment::Answered);
    }
}

/// Lets the peer of the domain write a view.
pub(super) fn register_view(domain: &Arc<Domain>, region: &Region) -> Result<MemoryKey, VerbsError> {
    let (base, bytes) = (region.pointer(0).cast::<u8>(), (8 * region.words()).max(8));
    let address = base.as_ptr().addr() as u64;
    // SAFETY: a region of at least one page. Its words are atomics; pages that are unmapped while they are registered
    // stay with the device.
    let key = unsafe { domain.register(base, bytes, address, Access::Remote) };
    key.map_err(|source| VerbsError::MemoryLock { bytes, source })
}

impl Subscriber {
    /// Word `word` of the view.
    fn target(&self, word: usize) -> Target {
        let address = self.memory.address.wrapping_add(8 * word as u64);
        Target::View { remote: Remote { address, key: self.memory.key }, view: self.view }
    }
}

/// A few words by value, if they are few.
fn captured(region: &Region, range: Range<usize>) -> Option<Payload> {
    let mut words = [0; Source::VALUE_WORDS_MAX];
    let words = words.get_mut(..range.len())?;
    region.copy_out(range.start, words);
    Some(Payload::words(words))
}

/// Words by reference, under the region's key for the reader.
fn referenced(region: &Region, range: Range<usize>, key: u32) -> Payload {
    let address = region.pointer(range.start).as_ptr().addr() as u64;
    Payload::Memory { address, bytes: 8 * range.len(), key }
}

const DEPTH_OUT: Depth = Depth { posts: 256, receives: 1 };
const DEPTH_IN: Depth = Depth { posts: 1, receives: 1 };

/// A reader for which more pushes wait is given up. The window rule of protocols keeps far below.
const PUSHES_MAX: usize = 1 << 18;

/// Mirrors of one peer.
const REQUESTS_MAX: usize = 1 << 16;

const OTHER_SIZE: Violation = Violation("a mirror published with another size than it was attached with");
