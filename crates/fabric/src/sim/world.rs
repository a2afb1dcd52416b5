//! The world: all nodes, the network between them, and virtual time.

use std::collections::BTreeMap;

use super::agenda::{Agenda, SimAction};
use super::connection::{ConnectionEnd, EndId};
use super::grants::SimGrants;
use super::link::{Lane, LaneId, LanePayload, LanePost};
use super::mirror::{AttachmentId, SimAttachment, SimMirror};
use super::node::{NodeState, SimNode};
use super::rule::Counted;
use super::trace::{Happening, Trace};
use super::{Prng, Rule, SimConfig};
use crate::region::Access;
use crate::{Duration, FabricEvent, Region, RegionId};

#[derive(Debug)]
pub(super) struct WorldState {
    pub(super) config: SimConfig,
    pub(super) prng: Prng,
    /// Only for the rates of clocks, so that nothing else depends on them.
    pub(super) rates: Prng,
    /// Virtual time in nanoseconds; never decreases.
    pub(super) now: u64,
    pub(super) agenda: Agenda,
    pub(super) nodes: Vec<SimNode>,
    /// `paths[from][to]`.
    pub(super) paths: Vec<Vec<NetworkPath>>,
    pub(super) memories: Vec<SimMemory>,
    pub(super) lanes: Vec<Lane>,
    pub(super) ends: Vec<ConnectionEnd>,
    /// The latest end of (node, peer, channel).
    pub(super) openings: BTreeMap<(u32, u32, u32), EndId>,
    pub(super) grants: SimGrants,
    pub(super) mirrors: Vec<SimMirror>,
    /// By owner and key.
    pub(super) mirror_keys: BTreeMap<(u32, u64), usize>,
    /// The number of mirrors ever retired.
    pub(super) retirements: u64,
    pub(super) attachments: Vec<SimAttachment>,
    /// By owner, key and reader.
    pub(super) attachment_keys: BTreeMap<(u32, u64, u32), AttachmentId>,
    /// Actions that wait for paths to be joined again.
    pub(super) delayed: Vec<SimAction>,
    pub(super) rules: Vec<Rule>,
    /// The number of nodes that have crashed.
    pub(super) deaths: u32,
    /// The node that polls now, for fabrics without one-sided progress [F12].
    pub(super) polling: Option<u32>,
    pub(super) trace: Trace,
}

/// One direction between two nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkPath {
    pub(super) cut: bool,
    /// How often it was cut or joined.
    pub(super) cuts: u32,
    /// Whether the two have no link, not yet or not any more: nothing passes between them, and neither
    /// reports the other as lost.
    pub(super) unlinked: bool,
    pub(super) extra: Duration,
    /// Whether `from` has noticed the loss of `to`: `paths[node][peer].lost` is what `node` knows.
    pub(super) lost: bool,
    /// The lane of all mirrors of `from` that `to` reads.
    pub(super) mirror_lane: Option<LaneId>,
    /// What `to` has attached of `from`, or waits to attach.
    pub(super) asked: Vec<AttachmentId>,
    /// Those that are attached.
    pub(super) attachments: Vec<AttachmentId>,
    pub(super) glimpse_scheduled: bool,
    /// The number of pieces of writes that have arrived.
    pub(super) pieces: u64,
    pub(super) piece_rules: Counted,
}

impl NetworkPath {
    /// Returns whether nothing passes.
    pub(super) const fn is_shut(&self) -> bool {
        self.cut || self.unlinked
    }
}

/// A region of some node.
#[derive(Debug)]
pub(super) struct SimMemory {
    pub(super) owner: u32,
    pub(super) region: Region,
    /// The attachment whose memory this is, if it is one.
    pub(super) attachment: Option<AttachmentId>,
}

impl WorldState {
    pub(super) fn new(seed: u64, config: SimConfig, nodes: u32) -> Self {
        let trace = Trace::new(config.trace_records_max);
        let rules = config.rules.clone();
        let mut world = Self {
            config,
            prng: Prng::new(seed),
            rates: Prng::new(seed ^ 0xc10c),
            now: 0,
            agenda: Agenda::default(),
            nodes: Vec::new(),
            paths: Vec::new(),
            memories: Vec::new(),
            lanes: Vec::new(),
            ends: Vec::new(),
            openings: BTreeMap::new(),
            grants: SimGrants::default(),
            mirrors: Vec::new(),
            mirror_keys: BTreeMap::new(),
            retirements: 0,
            attachments: Vec::new(),
            attachment_keys: BTreeMap::new(),
            delayed: Vec::new(),
            rules: Vec::new(),
            deaths: 0,
            polling: None,
            trace,
        };
        for _ in 0..nodes {
            world.add_node();
        }
        rules.into_iter().for_each(|rule| world.add_rule(rule));
        world
    }

    /// Adds a node, reachable from all others.
    pub(super) fn add_node(&mut self) -> u32 {
        let dial = self.draw_dial();
        self.nodes.push(SimNode::new(self.node_count(), dial, self.now));
        for row in &mut self.paths {
            row.push(NetworkPath::default());
        }
        self.paths.push(vec![NetworkPath::default(); self.nodes.len()]);
        self.node_count() - 1
    }

    /// A further node on the machine of `host`, which shares its paths, and its faults.
    pub(super) fn add_node_at(&mut self, host: u32) -> u32 {
        let node = self.add_node();
        self.nodes[node as usize].host = host;
        for (from, to) in (0..node).flat_map(|other| [(node, other), (other, node)]) {
            let NetworkPath { cut, extra, .. } = *self.path(self.host(from), self.host(to));
            let path = self.path_mut(from, to);
            (path.cut, path.extra) = (cut, extra);
        }
        // A process that dies visibly still acts for a moment: what it begins then dies with it.
        if self.nodes[host as usize].dying {
            self.kill(node);
        }
        node
    }

    pub(super) fn host(&self, node: u32) -> u32 {
        self.nodes[node as usize].host
    }

    /// The node and those that share its machine with it, if it was there first.
    pub(super) fn hosted(&self, host: u32) -> Vec<u32> {
        (0..self.node_count()).filter(|node| *node == host || self.host(*node) == host).collect()
    }

    pub(super) fn node_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("few nodes")
    }

    /// Performs the next action of the agenda; returns false if there is none.
    pub(super) fn act(&mut self) -> bool {
        let Some((at, action)) = self.agenda.take() else { return false };
        self.now = self.now.max(at);
        match action {
            SimAction::Lane(lane) => self.on_lane(lane),
            SimAction::Completions(end) => self.on_completions(end),
            SimAction::Connect(end) => self.on_connect(end),
            SimAction::Break(end, broke) => self.on_break(end, broke),
            SimAction::ReceiverNotReady(lane, post) => self.on_receiver_not_ready(lane, post),
            SimAction::Attach(attachment) => self.on_attach(attachment),
            SimAction::Glimpse { owner, reader } => self.on_glimpse(owner, reader),
            SimAction::Revoked(grant) => self.on_revoked(grant),
            SimAction::Crash(node) => self.crash(node),
            SimAction::See { node, dying } => self.on_see(node, dying),
            SimAction::Lose { node, peer, reason } => self.on_lose(node, peer, reason),
            SimAction::Unreachable { nodes, cuts } => self.on_unreachable(nodes, cuts),
            SimAction::Rule(rule) => self.on_rule(rule),
            SimAction::Resume { node, pause } => self.on_resume(node, pause),
        }
        true
    }

    /// Advances time and performs all actions on the way.
    pub(super) fn advance_to(&mut self, at: u64) {
        while self.agenda.next_at().is_some_and(|next| next <= at) {
            self.act();
        }
        self.now = self.now.max(at);
    }

    pub(super) fn register(&mut self, owner: u32, words: usize) -> Region {
        let id = RegionId(self.memories.len() as u64);
        let region = Region::heap(id, words);
        self.memories.push(SimMemory { owner, region: region.clone(), attachment: None });
        region
    }

    /// Adopts memory that was allocated outside the fabric [F13].
    pub(super) fn adopt(&mut self, owner: u32, memory: &Region) -> Region {
        assert!(memory.access() == Access::ReadWrite, "{memory:?} cannot be adopted: it is read-only");
        let region = memory.clone().renamed(RegionId(self.memories.len() as u64));
        self.memories.push(SimMemory { owner, region: region.clone(), attachment: None });
        region
    }

    /// Forgets adopted memory [F14].
    pub(super) fn release(&mut self, owner: u32, region: &Region) {
        let memory = self.memory_of(region);
        assert!(self.memories[memory].owner == owner, "node {owner} can release its own regions only");
        assert!(!self.grants.is_granted(region.id()), "{region:?} is granted: wait for `Revoked`");
        let reads = |post: &LanePost| matches!(post.source, LanePayload::Reference { memory: source, .. } if source == memory);
        let is_read = self.lanes.iter().any(|lane| lane.posts.iter().any(reads));
        assert!(!is_read, "{region:?} is the source of a post: wait for `Done`");
        self.memories[memory].region = Region::heap(region.id(), 0);
    }

    /// Returns the index of a region that this world has registered.
    pub(super) fn memory_of(&self, region: &Region) -> usize {
        let index = usize::try_from(region.id().0).expect("a region of this world");
        let known =
            self.memories.get(index).is_some_and(|memory| memory.region.pointer(0) == region.pointer(0));
        assert!(known, "{region:?} is not a region of this world");
        index
    }

    pub(super) fn path(&self, from: u32, to: u32) -> &NetworkPath {
        &self.paths[from as usize][to as usize]
    }

    pub(super) fn path_mut(&mut self, from: u32, to: u32) -> &mut NetworkPath {
        &mut self.paths[from as usize][to as usize]
    }

    pub(super) fn lives(&self, node: u32) -> bool {
        self.nodes[node as usize].state != NodeState::Crashed
    }

    /// Queues an event for a node; its next poll yields it.
    pub(super) fn push_event(&mut self, node: u32, event: FabricEvent) {
        if self.lives(node) {
            self.nodes[node as usize].inbox.push_back(event);
            self.touch(node);
        }
    }

    /// Counts and charges a post; returns false if the node dies before it.
    pub(super) fn begin_post(&mut self, node: u32) -> bool {
        self.charge(node, self.config.cost.post_ns);
        self.nodes[node as usize].counters.posting_ns += self.config.cost.post_ns;
        self.begin_free_post(node)
    }

    /// Counts a post that costs nothing; returns false if the node dies before it.
    pub(super) fn begin_free_post(&mut self, node: u32) -> bool {
        if !self.lives(node) {
            return false;
        }
        let host = self.host(node) as usize;
        self.nodes[host].posts += 1;
        let count = self.nodes[host].posts;
        while let Some(rule) = super::rule::due(&mut self.nodes[host].post_rules, count) {
            self.on_rule(rule);
        }
        self.lives(node)
    }

    /// Polls a node's events into `yielded`; returns the amount of work done.
    pub(super) fn poll(&mut self, node: u32, yielded: &mut Vec<FabricEvent>) -> usize {
        if self.nodes[node as usize].state != NodeState::Running {
            return 0;
        }
        self.charge(node, self.config.cost.poll_ns);
        self.nodes[node as usize].counters.polls += 1;
        if self.config.early_sight && self.config.adversary.is_some() {
            self.glimpse_at_poll(node);
        }
        let moved = self.land_arrivals(node);
        let waiting = self.nodes[node as usize].inbox.len();
        let partial = self.config.adversary.as_ref().map_or(0, |adversary| adversary.partial_poll_per_mille);
        let count = if waiting > 1 && self.prng.chance(partial) { self.prng.index(waiting) } else { waiting };
        self.charge(node, self.config.cost.event_ns * count as u64);
        for _ in 0..count {
            let event = self.nodes[node as usize].inbox.pop_front().expect("counted");
            if let FabricEvent::Done { conn, .. } = event {
                let lane = self.ends[self.end_of(node, conn)].lane.expect("it was connected");
                self.lanes[lane].outstanding -= 1;
            }
            self.trace.add(self.now, node, Happening::Yielded(event.clone()));
            yielded.push(event);
        }
        count + moved
    }

    /// Lands the writes that have waited for this node to poll, without one-sided progress [F12].
    fn land_arrivals(&mut self, node: u32) -> usize {
        let arrivals = std::mem::take(&mut self.nodes[node as usize].arrivals);
        self.polling = Some(node);
        for lane in &arrivals {
            self.run_lane(*lane);
        }
        self.polling = None;
        arrivals.len()
    }
}
