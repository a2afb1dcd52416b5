//! The cluster under test: polls all nodes, keeps their events, and fails the test after a bounded time.

use std::collections::VecDeque;

use super::Harness;
use crate::{
    Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, NodeId, PostError, Region, RegionId,
    Token, Write, WriteSource,
};

/// A [`Harness`] with the events that its nodes have yielded and no test has taken yet.
#[derive(Debug)]
pub struct ConformanceCluster<H: Harness> {
    harness: H,
    events: Vec<VecDeque<FabricEvent>>,
    alive: Vec<bool>,
    rounds: usize,
}

/// A connection from `writer` to `owner` with a grant over one whole region of `owner`.
#[derive(Clone, Debug)]
pub struct GrantedLink {
    /// The node that writes.
    pub writer: u32,
    /// The node that owns the memory.
    pub owner: u32,
    /// The connection as the writer names it.
    pub conn: ConnId,
    /// The connection as the owner names it.
    pub owner_conn: ConnId,
    /// The owner's memory; the suite reads it directly.
    pub target: Region,
    /// The grant of all of it.
    pub grant: Grant,
}

impl<H: Harness> ConformanceCluster<H> {
    /// Creates a cluster of `nodes` nodes that can reach each other.
    #[must_use]
    pub fn new(nodes: u32) -> Self {
        let events = (0..nodes).map(|_| VecDeque::new()).collect();
        Self { harness: H::new(nodes), events, alive: vec![true; nodes as usize], rounds: 0 }
    }

    /// Returns node `i`'s access to the network.
    pub fn node(&mut self, i: u32) -> &mut H::Fabric {
        assert!(self.alive[i as usize], "node {i} is dead");
        self.harness.node(i)
    }

    /// Kills node `i` as `kill -9` would.
    pub fn kill(&mut self, i: u32) {
        self.alive[i as usize] = false;
        self.harness.kill(i);
    }

    /// Polls node `i` once and keeps its events.
    pub fn poll(&mut self, i: u32) {
        let events = &mut self.events[i as usize];
        self.harness.node(i).poll(&mut |event| events.push_back(event));
    }

    /// Lets some time pass without polling.
    pub fn step(&mut self) {
        self.harness.step();
    }

    /// Polls every node once, then lets some time pass.
    pub fn round(&mut self) {
        let nodes = self.alive.len();
        for step in self.rounds..self.rounds + nodes {
            let i = step % nodes;
            if self.alive[i] {
                self.poll(u32::try_from(i).expect("few nodes"));
            }
        }
        self.rounds += 1;
        self.step();
    }

    /// Runs `count` rounds.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Runs rounds until `done` returns true; before each, `done` inspects the cluster and may post.
    ///
    /// # Panics
    /// Panics if it takes too long.
    pub fn until(&mut self, what: &str, done: impl FnMut(&mut Self) -> bool) {
        self.repeat_until(what, Self::round, done);
    }

    /// Same as [`ConformanceCluster::until`], but only node `i` polls.
    ///
    /// # Panics
    /// Panics if it takes too long.
    pub fn until_alone(&mut self, i: u32, what: &str, done: impl FnMut(&mut Self) -> bool) {
        let poll = |cluster: &mut Self| {
            cluster.poll(i);
            cluster.step();
        };
        self.repeat_until(what, poll, done);
    }

    fn repeat_until(
        &mut self,
        what: &str,
        round: impl Fn(&mut Self),
        mut done: impl FnMut(&mut Self) -> bool,
    ) {
        let begin = self.now();
        for number in 0..ROUNDS_MAX {
            if done(self) {
                return;
            }
            round(self);
            assert!(
                number < ROUNDS_MIN || self.now().since(begin) < PATIENCE,
                "waited {PATIENCE:?} for: {what}"
            );
        }
        panic!("waited {ROUNDS_MAX} rounds for: {what}");
    }

    /// Takes the first event of node `i` that matches, if there is one.
    pub fn take(&mut self, i: u32, matches: impl FnMut(&FabricEvent) -> bool) -> Option<FabricEvent> {
        let events = &mut self.events[i as usize];
        let at = events.iter().position(matches)?;
        events.remove(at)
    }

    /// Runs rounds until node `i` yields an event that matches, and takes it.
    ///
    /// # Panics
    /// Panics if it takes too long.
    pub fn expect(
        &mut self,
        i: u32,
        what: &str,
        mut matches: impl FnMut(&FabricEvent) -> bool,
    ) -> FabricEvent {
        let mut found = None;
        self.until(what, |cluster| {
            found = cluster.take(i, &mut matches);
            found.is_some()
        });
        found.expect("`until` returns when it is found")
    }

    /// Opens `channel` between `a` and `b` and waits until both are connected.
    pub fn connect(&mut self, a: u32, b: u32, channel: u32) -> (ConnId, ConnId) {
        let conn_a = self.node(a).open(NodeId(b), Channel(channel));
        let conn_b = self.node(b).open(NodeId(a), Channel(channel));
        self.expect(a, "Connected", |event| {
            *event == FabricEvent::Connected { conn: conn_a, peer: NodeId(b) }
        });
        self.expect(b, "Connected", |event| {
            *event == FabricEvent::Connected { conn: conn_b, peer: NodeId(a) }
        });
        (conn_a, conn_b)
    }

    /// Creates a connection and a grant over `words` new words of `owner`.
    pub fn link(&mut self, writer: u32, owner: u32, channel: u32, words: usize) -> GrantedLink {
        let target = self.node(owner).register(words);
        self.link_over(writer, owner, channel, target)
    }

    /// Same as [`ConformanceCluster::link`], over memory that the owner has adopted.
    pub fn adopted_link(&mut self, writer: u32, owner: u32, channel: u32, words: usize) -> GrantedLink {
        let target = self.adopt(owner, words);
        self.link_over(writer, owner, channel, target)
    }

    /// Allocates memory outside the fabric and lets node `i` adopt it; it does not begin at a page boundary.
    pub fn adopt(&mut self, i: u32, words: usize) -> Region {
        self.node(i).adopt(&Region::heap(RegionId(0), words))
    }

    fn link_over(&mut self, writer: u32, owner: u32, channel: u32, target: Region) -> GrantedLink {
        let (conn, owner_conn) = self.connect(writer, owner, channel);
        let words = target.words();
        let grant = self.node(owner).grant(&target, 0..words, NodeId(writer));
        GrantedLink { writer, owner, conn, owner_conn, target, grant }
    }

    /// Posts a write, with rounds in between while the queue is full.
    ///
    /// # Panics
    /// Panics if the connection is not open.
    pub fn write(&mut self, i: u32, conn: ConnId, write: &Write<'_>) {
        self.until("space in the queue", |cluster| match cluster.node(i).write(conn, write.clone()) {
            Ok(()) => true,
            Err(PostError::Full) => false,
            Err(error) => panic!("{error}"),
        });
    }

    /// Waits until the signalled post `token` of node `i` is done.
    pub fn done(&mut self, i: u32, conn: ConnId, token: Token) {
        self.expect(i, "Done", |event| *event == FabricEvent::Done { conn, token });
    }

    /// Returns the clock of a node that is alive.
    fn now(&mut self) -> Instant {
        let living = self.alive.iter().position(|alive| *alive).expect("a node is alive");
        self.harness.node(u32::try_from(living).expect("few nodes")).now()
    }
}

impl GrantedLink {
    /// Returns a write of `words` by value at word `offset`.
    #[must_use]
    pub fn value<'a>(&'a self, offset: usize, words: &'a [u64]) -> Write<'a> {
        Write { source: WriteSource::Value(words), grant: &self.grant, offset, immediate: None, signal: None }
    }

    /// Returns a write of `range` of `source` by reference at word `offset`.
    #[must_use]
    pub fn reference<'a>(
        &'a self,
        offset: usize,
        source: &'a Region,
        range: std::ops::Range<usize>,
    ) -> Write<'a> {
        let source = WriteSource::Region(source, range);
        Write { source, grant: &self.grant, offset, immediate: None, signal: None }
    }
}

/// Long enough to detect a dead node by its silence, and for a receiver that is not ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// Fewer rounds than this never count as too long, whatever the clock shows (a debugger, a paused machine).
const ROUNDS_MIN: usize = 1_000;
/// Ends the test of a fabric whose clock does not advance.
const ROUNDS_MAX: usize = 20_000_000;
