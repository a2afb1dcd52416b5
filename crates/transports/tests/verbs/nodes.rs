//! Two nodes and what tests do with them, on one thread.

use squall_fabric::conformance::{Cluster, Link};
use squall_fabric::{ConnId, Event, Fabric, MirrorId, MirrorKey, NodeId, Region, Token, Write};

use crate::harness::VerbsHarness;

pub(crate) type Nodes = Cluster<VerbsHarness>;

/// A mirror of node 0 and the view of node 1.
pub(crate) struct Mirror {
    pub(crate) id: MirrorId,
    pub(crate) region: Region,
    pub(crate) view: Region,
}

impl Mirror {
    pub(crate) fn new(nodes: &mut Nodes, key: u64, words: usize) -> Self {
        let region = nodes.node(0).register(words);
        let key = MirrorKey(key);
        let id = nodes.node(0).publish(key, &region, &[NodeId(1)]);
        let view = nodes.node(1).attach(NodeId(0), key, words);
        nodes.expect(0, "Attached", |event| *event == Event::Attached { key, reader: NodeId(1) });
        Self { id, region, view }
    }

    /// Message `k`: all words from 8 on, then word 0 as counter.
    pub(crate) fn push(&self, nodes: &mut Nodes, k: u64) {
        (8..self.region.words()).for_each(|word| self.region.store_relaxed(word, k));
        self.region.store(0, k);
        nodes.node(0).push(self.id, 8..self.region.words());
        nodes.node(0).push_word(self.id, 0);
    }

    /// The counter in the view, whose payload must not be older.
    pub(crate) fn look(&self) -> u64 {
        let seen = self.view.load(0);
        let least = (8..self.view.words()).map(|word| self.view.load_relaxed(word)).min();
        assert!(
            least.is_none_or(|least| least >= seen),
            "counter {seen} was seen before its payload {least:?}"
        );
        seen
    }
}

/// A signalled write of one word that must be done.
pub(crate) fn write(nodes: &mut Nodes, link: &Link, word: usize, value: u64) {
    let value = [value];
    let write = Write { signal: Some(Token(value[0])), ..link.value(word, &value) };
    nodes.write(link.writer, link.conn, &write);
    nodes.done(link.writer, link.conn, Token(value[0]));
    assert_eq!(link.target.load(word), value[0]);
}

/// A write that must be refused.
pub(crate) fn refused(nodes: &mut Nodes, link: &Link, conn: ConnId) {
    nodes.write(link.writer, conn, &link.value(0, &[u64::MAX]));
    nodes.until("Refused", |nodes| {
        assert_ne!(link.target.load(0), u64::MAX, "a write that must be refused landed");
        nodes.take(link.writer, |event| *event == Event::Refused { conn }).is_some()
    });
}
