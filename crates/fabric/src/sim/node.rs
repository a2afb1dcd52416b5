//! One node's access to the simulated network.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::WorldState;
use super::clock::DriftingClock;
use super::connection::PostedReceive;
use super::fault::nanos;
use super::link::{LaneId, LanePayload, LanePost, LaneTarget};
use super::rule::Counted;
use crate::{
    Capabilities, Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey,
    NodeId, PostError, Region, SEND_BYTES_MAX, Shortage, Token, Write, WriteSource,
};

/// The world's state of a node.
#[derive(Debug)]
pub(super) struct SimNode {
    /// The node with which it shares a machine; usually itself.
    pub(super) host: u32,
    /// When its processor will have finished all the work charged to it.
    pub(super) clock: u64,
    pub(super) dial: DriftingClock,
    /// When it polls next; `None` while it sleeps and while it polls.
    pub(super) ready_at: Option<u64>,
    pub(super) state: NodeState,
    /// Whether it was killed, and continues for a moment.
    pub(super) dying: bool,
    /// The number of times that it was paused.
    pub(super) pause: u32,
    /// Events that its next poll yields.
    pub(super) inbox: VecDeque<FabricEvent>,
    /// Lanes whose first post waits for a poll [F12].
    pub(super) arrivals: Vec<LaneId>,
    pub(super) egress: LinkDirection,
    pub(super) ingress: LinkDirection,
    /// The number of posts so far, for rules.
    pub(super) posts: u64,
    pub(super) post_rules: Counted,
    /// The number of requests for memory so far, for rules.
    pub(super) requests: u64,
    pub(super) memory_rules: Counted,
    pub(super) counters: NodeCounters,
}

/// One direction of a node's link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkDirection {
    /// When all earlier posts have passed, and when all earlier posts of a single packet have.
    free_at: u64,
    packets_free_at: u64,
}

impl LinkDirection {
    /// Takes a post that arrives at `at` and occupies the link for `busy_ns`; returns when its first byte
    /// passes.
    pub(super) fn take(&mut self, at: u64, busy_ns: u64, is_packet: bool) -> u64 {
        let free_at = if is_packet { &mut self.packets_free_at } else { &mut self.free_at };
        let begin = at.max(*free_at);
        *free_at = begin + busy_ns;
        if is_packet {
            // The packet delays a longer post that is passing by its own time.
            self.free_at = if self.free_at > begin { self.free_at + busy_ns } else { self.packets_free_at };
        }
        begin
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Running,
    Paused,
    Crashed,
}

/// Statistics of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Writes and sends posted; a push counts once for each reader.
    pub posts: u64,
    /// Bytes posted.
    pub posted_bytes: u64,
    /// Processor time spent on posting.
    pub posting_ns: u64,
    /// Calls of [`Fabric::poll`].
    pub polls: u64,
}

impl SimNode {
    pub(super) fn new(host: u32, dial: DriftingClock, now: u64) -> Self {
        Self {
            host,
            clock: now,
            dial,
            ready_at: Some(now),
            state: NodeState::Running,
            pause: 0,
            inbox: VecDeque::new(),
            arrivals: Vec::new(),
            egress: LinkDirection::default(),
            ingress: LinkDirection::default(),
            posts: 0,
            post_rules: Counted::new(),
            requests: 0,
            dying: false,
            memory_rules: Counted::new(),
            counters: NodeCounters::default(),
        }
    }
}

/// One node's access to the simulated network; see [`super::SimWorld::fabric`].
///
/// After its node has crashed, its calls have no effect, so a core whose node dies in the middle of a poll
/// runs to the end of that poll without consequences.
#[derive(Debug)]
pub struct SimFabric {
    world: Rc<RefCell<WorldState>>,
    node: u32,
    /// Reused by `poll`, which must not borrow the world while it yields.
    yielded: Vec<FabricEvent>,
}

impl SimFabric {
    pub(super) fn new(world: Rc<RefCell<WorldState>>, node: u32) -> Self {
        Self { world, node, yielded: Vec::new() }
    }

    /// Removes a peer deliberately: connections end, mirrors no longer change, and no event reports it here;
    /// the peer loses this node. Earlier pushes may still land [F11].
    pub fn remove_peer(&mut self, peer: NodeId) {
        self.world.borrow_mut().part(self.node, peer.0);
    }

    /// Charges this node's processor with `span` of work: its clock and its next poll are later by that time.
    pub fn charge(&mut self, span: Duration) {
        self.world.borrow_mut().charge(self.node, nanos(span));
    }

    /// Charges the cost of loading `words` of shared memory.
    pub fn charge_loads(&mut self, words: u64) {
        let mut world = self.world.borrow_mut();
        let span = world.config.cost.loads_ns(words);
        world.charge(self.node, span);
    }

    /// Charges the cost of copying `bytes`.
    pub fn charge_copy(&mut self, bytes: u64) {
        let mut world = self.world.borrow_mut();
        let span = world.config.cost.copy_ns(bytes);
        world.charge(self.node, span);
    }

    /// Returns when this node's processor will have finished all the work charged to it, by its own clock.
    #[must_use]
    pub fn busy_until(&self) -> Instant {
        self.world.borrow().clock(self.node)
    }

    /// Returns the statistics of this node.
    #[must_use]
    pub fn counters(&self) -> NodeCounters {
        self.world.borrow().nodes[self.node as usize].counters
    }
}

impl Fabric for SimFabric {
    fn node(&self) -> NodeId {
        NodeId(self.node)
    }

    fn now(&self) -> Instant {
        self.world.borrow().clock(self.node)
    }

    fn capabilities(&self) -> Capabilities {
        let config = &self.world.borrow().config;
        Capabilities { one_sided_progress: config.one_sided_progress, early_sight: config.early_sight }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        let mut world = self.world.borrow_mut();
        world.begin_request(self.node);
        Ok(world.register(self.node, words))
    }

    fn adopt(&mut self, memory: &Region) -> Region {
        self.world.borrow_mut().adopt(self.node, memory)
    }

    fn release(&mut self, region: &Region) {
        self.world.borrow_mut().release(self.node, region);
    }

    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        self.world.borrow_mut().open(self.node, peer.0, channel)
    }

    fn close(&mut self, conn: ConnId) {
        let mut world = self.world.borrow_mut();
        let end = world.end_of(self.node, conn);
        world.close_end(end);
    }

    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        let mut world = self.world.borrow_mut();
        region.check(&range);
        let memory = &world.memories[world.memory_of(region)];
        assert!(
            memory.owner == self.node && memory.attachment.is_none(),
            "node {} can grant its own regions only",
            self.node
        );
        world.grants.issue(self.node, peer.0, region.id(), range)
    }

    fn revoke(&mut self, grant: &Grant) {
        self.world.borrow_mut().revoke(self.node, grant);
    }

    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        let mut world = self.world.borrow_mut();
        let words = u32::try_from(write.source.words()).expect("a write fits 32 GiB");
        let source = match write.source {
            WriteSource::Value(words) => by_value(words),
            WriteSource::Region(region, range) => {
                region.check(&range);
                LanePayload::Reference { memory: world.memory_of(region), first: range.start }
            }
        };
        let target = LaneTarget::Granted { grant: *write.grant, offset: write.offset as u64 };
        let post = LanePost {
            source,
            words,
            target,
            immediate: write.immediate,
            signal: write.signal,
            arrive_at: 0,
        };
        world.post(self.node, conn, post)
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        assert!(
            bytes.len() <= SEND_BYTES_MAX,
            "a send of {} bytes, but at most {SEND_BYTES_MAX} are allowed",
            bytes.len()
        );
        let words = u32::try_from(bytes.len().div_ceil(8)).expect("checked above");
        let source = LanePayload::Bytes(bytes.into());
        let post =
            LanePost { source, words, target: LaneTarget::Receive, immediate: None, signal, arrive_at: 0 };
        self.world.borrow_mut().post(self.node, conn, post)
    }

    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        let mut world = self.world.borrow_mut();
        region.check(&range);
        let memory = world.memory_of(region);
        let cost = world.config.cost.post_receive_ns;
        world.charge(self.node, cost);
        world.post_receive(self.node, conn, PostedReceive { memory, range, token })
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        self.world.borrow_mut().publish(self.node, key, region, readers)
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let mut world = self.world.borrow_mut();
        world.begin_request(self.node);
        world.attach(self.node, owner.0, key, words)
    }

    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        self.world.borrow_mut().push(self.node, mirror, range, false);
    }

    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        self.world.borrow_mut().push(self.node, mirror, word..word + 1, true);
    }

    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        self.world.borrow_mut().push(self.node, mirror, words, true);
    }

    fn freeze(&mut self, attachment: &Region) {
        self.world.borrow_mut().freeze(self.node, attachment);
    }

    fn retire(&mut self, mirror: MirrorId) {
        self.world.borrow_mut().retire(self.node, mirror);
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        let mut yielded = std::mem::take(&mut self.yielded);
        let work = self.world.borrow_mut().poll(self.node, &mut yielded);
        yielded.drain(..).for_each(sink);
        self.yielded = yielded;
        work
    }
}

impl WorldState {
    /// Posts to a connection.
    fn post(&mut self, node: u32, conn: ConnId, post: LanePost) -> Result<(), PostError> {
        if !self.lives(node) {
            return Ok(());
        }
        let lane = self.lane_for_post(node, conn)?;
        if self.begin_post(node) {
            self.enqueue(lane, post);
        }
        Ok(())
    }
}

fn by_value(words: &[u64]) -> LanePayload {
    let mut value = [0; WriteSource::VALUE_WORDS_MAX];
    assert!(
        words.len() <= value.len(),
        "{} words by value, but at most {} are allowed",
        words.len(),
        value.len()
    );
    value[..words.len()].copy_from_slice(words);
    LanePayload::Value(value)
}
