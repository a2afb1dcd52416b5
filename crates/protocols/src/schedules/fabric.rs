//! A fabric inside one process whose words arrive one by one, at points of an explored schedule (Derecho §3.1–3.2).
//! It has mirrors only, and a node may die at any word.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use squall_fabric::explore::sync::Mutex;
use squall_fabric::explore::{draw, yield_now};
use squall_fabric::{
    BreakReason, Capabilities, Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, MirrorId,
    MirrorKey, NodeId, PostError, Region, RegionId, Shortage, Token, Write,
};

/// When a member's stores become visible to its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreVisibility {
    /// At once: readers map the owner's memory [M2].
    Shared,
    /// Word by word, in no order within a push [F2], while the owner pushes.
    Pushed,
    /// The same, some time after the push; words by reference are read only then [F5]. [`MemoryWorld::land`] does it.
    Later,
}

/// The state that all nodes share.
#[derive(Debug)]
pub(super) struct MemoryWorld {
    landing: StoreVisibility,
    nodes: Mutex<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    published: BTreeMap<(NodeId, MirrorKey), (Region, Vec<NodeId>)>,
    views: BTreeMap<(NodeId, MirrorKey), Vec<View>>,
    events: BTreeMap<NodeId, Vec<FabricEvent>>,
    dead: BTreeSet<NodeId>,
    /// The run has ended: no node publishes any more.
    closed: bool,
    /// The pushes in flight from one node to another, in order.
    lanes: BTreeMap<(NodeId, NodeId), VecDeque<Words>>,
}

/// A reader's copy of a mirror.
#[derive(Clone, Debug)]
struct View {
    reader: NodeId,
    copy: Region,
    /// False after a freeze, and once the owner is gone.
    open: Arc<Mutex<bool>>,
}

impl View {
    fn land(&self, word: usize, value: u64) {
        let open = self.open.lock().expect("no panic");
        if *open {
            self.copy.store(word, value);
        }
    }
}

/// A push in flight.
#[derive(Debug)]
struct Words {
    view: View,
    source: Source,
    /// The words that have not arrived.
    words: VecDeque<usize>,
}

#[derive(Clone, Debug)]
enum Source {
    Region(Region),
    Value(u64),
}

impl Source {
    fn load(&self, word: usize) -> u64 {
        match self {
            Self::Region(region) => region.load_relaxed(word),
            Self::Value(value) => *value,
        }
    }
}

impl MemoryWorld {
    /// Returns a network of nodes with the numbers `0..nodes`.
    pub(super) fn new(landing: StoreVisibility, nodes: u32) -> Arc<Self> {
        let events = (0..nodes).map(|node| (NodeId(node), Vec::new())).collect();
        Arc::new(Self { landing, nodes: Mutex::new(Nodes { events, ..Nodes::default() }) })
    }

    pub(super) fn fabric(self: &Arc<Self>, node: u32) -> MemoryFabric {
        let world = Arc::clone(self);
        MemoryFabric { world, node: NodeId(node), mirrors: Vec::new(), regions: 0, now: 0, pushes_left: None }
    }

    /// Delivers a word in flight, from any node; returns whether there was one.
    pub(super) fn land(&self) -> bool {
        let mut nodes = self.nodes.lock().expect("no panic");
        let busy: Vec<_> =
            nodes.lanes.iter().filter(|(_, lane)| !lane.is_empty()).map(|(ends, _)| *ends).collect();
        if busy.is_empty() {
            return false;
        }
        let lane = nodes.lanes.get_mut(&busy[draw(busy.len())]).expect("a lane");
        let push = lane.front_mut().expect("it is busy");
        if let Some(word) = push.words.pop_front() {
            push.view.land(word, push.source.load(word));
        }
        if push.words.is_empty() {
            lane.pop_front();
        }
        true
    }

    /// Ends the run, so that no node waits for another any more.
    pub(super) fn close(&self) {
        self.nodes.lock().expect("no panic").closed = true;
    }

    /// Ends the process of a node: some prefix of what it has pushed has arrived, and the others learn of its end
    /// [F11].
    pub(super) fn crash(&self, node: NodeId) {
        let mut nodes = self.nodes.lock().expect("no panic");
        nodes.dead.insert(node);
        nodes.lanes.retain(|(from, to), _| *from != node && *to != node);
        for (_, views) in nodes.views.iter().filter(|((owner, _), _)| *owner == node) {
            views.iter().for_each(|view| *view.open.lock().expect("no panic") = false);
        }
        let lost = FabricEvent::PeerLost { peer: node, reason: BreakReason::PeerClosed };
        nodes
            .events
            .iter_mut()
            .filter(|(other, _)| **other != node)
            .for_each(|(_, events)| events.push(lost.clone()));
    }
}

/// One node's access.
#[derive(Debug)]
pub(super) struct MemoryFabric {
    world: Arc<MemoryWorld>,
    node: NodeId,
    mirrors: Vec<(MirrorKey, Region)>,
    regions: u64,
    now: u64,
    /// The number of words until this node dies in the middle of a push, if it does.
    pushes_left: Option<usize>,
}

impl MemoryFabric {
    /// Lets the node die when it has pushed `words` words: it unwinds to the nearest [`Shortage::catch`].
    pub(super) fn die_after(&mut self, words: usize) {
        self.pushes_left = Some(words);
    }

    fn views_of(&self, key: MirrorKey) -> Vec<View> {
        let nodes = self.world.nodes.lock().expect("no panic");
        nodes.views.get(&(self.node, key)).cloned().unwrap_or_default()
    }

    fn bring(&mut self, mirror: MirrorId, words: Range<usize>, source: Option<Source>) {
        let (key, region) = self.mirrors[mirror.0 as usize].clone();
        let source = source.unwrap_or(Source::Region(region));
        let count = words.len();
        for view in self.views_of(key) {
            // There is no order among the words of one push.
            let offset = if count > 1 { draw(count) } else { 0 };
            let words = (0..count).map(|i| words.start + (i + offset) % count);
            if self.world.landing == StoreVisibility::Later {
                let push = Words { source: source.clone(), words: words.collect(), view: view.clone() };
                self.spend();
                let mut nodes = self.world.nodes.lock().expect("no panic");
                nodes.lanes.entry((self.node, view.reader)).or_default().push_back(push);
                continue;
            }
            for word in words {
                self.spend();
                view.land(word, source.load(word));
            }
        }
        if self.world.landing == StoreVisibility::Shared {
            self.spend();
        }
    }

    fn spend(&mut self) {
        self.pushes_left = self.pushes_left.map(|left| left.saturating_sub(1));
        if self.pushes_left == Some(0) {
            Shortage::new("this node dies".into()).unwind();
        }
    }
}

impl Fabric for MemoryFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    /// Returns a time that advances by one millisecond with each poll.
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now * 1_000_000)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { one_sided_progress: true, early_sight: self.world.landing == StoreVisibility::Shared }
    }

    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        self.regions += 1;
        Ok(Region::heap(RegionId(self.regions), words))
    }

    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let mut nodes = self.world.nodes.lock().expect("no panic");
        nodes.published.insert((self.node, key), (region.clone(), readers.to_vec()));
        let waiting: Vec<_> =
            nodes.views.get(&(self.node, key)).into_iter().flatten().map(|view| view.reader).collect();
        let attached = waiting.into_iter().map(|reader| FabricEvent::Attached { key, reader });
        nodes.events.entry(self.node).or_default().extend(attached);
        self.mirrors.push((key, region.clone()));
        MirrorId(u32::try_from(self.mirrors.len() - 1).expect("few mirrors"))
    }

    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        self.regions += 1;
        loop {
            let mut nodes = self.world.nodes.lock().expect("no panic");
            let published = nodes.published.get(&(owner, key)).map(|(region, _)| region.clone());
            let is_shared = self.world.landing == StoreVisibility::Shared;
            if is_shared && published.is_none() && !nodes.closed && !nodes.dead.contains(&owner) {
                // A node that attaches has published its own mirrors, so none waits forever.
                drop(nodes);
                yield_now();
                continue;
            }
            if published.is_some() {
                let attached = FabricEvent::Attached { key, reader: self.node };
                nodes.events.entry(owner).or_default().push(attached);
            }
            if let Some(memory) = published.filter(|_| is_shared) {
                return memory.read_only();
            }
            let copy = Region::heap(RegionId(self.regions), words);
            let open = Arc::new(Mutex::new(!nodes.dead.contains(&owner)));
            let view = View { reader: self.node, copy: copy.clone(), open };
            nodes.views.entry((owner, key)).or_default().push(view);
            return copy.read_only();
        }
    }

    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        self.bring(mirror, range, None);
    }

    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        let value = Source::Value(self.mirrors[mirror.0 as usize].1.load(word));
        self.bring(mirror, word..word + 1, Some(value));
    }

    fn freeze(&mut self, view: &Region) {
        let nodes = self.world.nodes.lock().expect("no panic");
        // Shared memory no longer changes when its owner is dead, and no live node is suspected here.
        let views = nodes.views.values().flatten();
        let found = views.filter(|other| other.copy.pointer(0) == view.pointer(0));
        found.for_each(|view| *view.open.lock().expect("no panic") = false);
    }

    fn retire(&mut self, mirror: MirrorId) {
        let key = self.mirrors[mirror.0 as usize].0;
        let mut nodes = self.world.nodes.lock().expect("no panic");
        nodes.views.remove(&(self.node, key));
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        self.now += 1;
        let mut nodes = self.world.nodes.lock().expect("no panic");
        let events = std::mem::take(nodes.events.entry(self.node).or_default());
        drop(nodes);
        let count = events.len();
        events.into_iter().for_each(sink);
        count
    }

    fn adopt(&mut self, _: &Region) -> Region {
        unreachable!("mirrors only")
    }

    fn release(&mut self, _: &Region) {
        unreachable!("mirrors only")
    }

    fn open(&mut self, _: NodeId, _: Channel) -> ConnId {
        unreachable!("mirrors only")
    }

    fn close(&mut self, _: ConnId) {}

    fn grant(&mut self, _: &Region, _: Range<usize>, _: NodeId) -> Grant {
        unreachable!("mirrors only")
    }

    fn revoke(&mut self, _: &Grant) {
        unreachable!("mirrors only")
    }

    fn write(&mut self, _: ConnId, _: Write<'_>) -> Result<(), PostError> {
        unreachable!("mirrors only")
    }

    fn send(&mut self, _: ConnId, _: &[u8], _: Option<Token>) -> Result<(), PostError> {
        unreachable!("mirrors only")
    }

    fn post_receive(&mut self, _: ConnId, _: &Region, _: Range<usize>, _: Token) -> Result<(), PostError> {
        unreachable!("mirrors only")
    }
}

/// The time between two readings of this fabric's clock.
pub(super) const TICK: Duration = Duration::from_millis(1);
