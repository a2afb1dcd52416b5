//! Two nodes and the operations of tests on them, on one thread.

use squall_fabric::conformance::{ConformanceCluster, GrantedLink};
use squall_fabric::{ConnId, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, Token, Write};

use crate::harness::VerbsHarness;

pub(crate) type VerbsNodes = ConformanceCluster<VerbsHarness>;

/// A mirror of node 0 and the attachment of node 1.
pub(crate) struct MirrorPair {
    pub(crate) id: MirrorId,
    pub(crate) region: Region,
    pub(crate) attachment: Region,
}

impl MirrorPair {
    pub(crate) fn new(nodes: &mut VerbsNodes, key: u64, words: usize) -> Self {
        let region = nodes.node(0).register(words);
        let key = MirrorKey(key);
        let id = nodes.node(0).publish(key, &region, &[NodeId(1)]);
        let attachment = nodes.node(1).attach(NodeId(0), key, words);
        nodes.expect(0, "Attached", |event| *event == FabricEvent::Attached { key, reader: NodeId(1) });
        Self { id, region, attachment }
    }

    /// Pushes message `k`: all words from 8 on, then word 0 as the counter.
    pub(crate) fn push(&self, nodes: &mut VerbsNodes, k: u64) {
        (8..self.region.words()).for_each(|word| self.region.store_relaxed(word, k));
        self.region.store(0, k);
        nodes.node(0).push(self.id, 8..self.region.words());
        nodes.node(0).push_word(self.id, 0);
    }

    /// Returns the counter in the attachment, after checking that its payload is not older.
    pub(crate) fn check(&self) -> u64 {
        let seen = self.attachment.load(0);
        let least = (8..self.attachment.words()).map(|word| self.attachment.load_relaxed(word)).min();
        assert!(
            least.is_none_or(|least| least >= seen),
            "counter {seen} was seen before its payload {least:?}"
        );
        seen
    }
}

/// Makes a signalled write of one word and waits for its completion.
pub(crate) fn write(nodes: &mut VerbsNodes, link: &GrantedLink, word: usize, value: u64) {
    let value = [value];
    let write = Write { signal: Some(Token(value[0])), ..link.value(word, &value) };
    nodes.write(link.writer, link.conn, &write);
    nodes.done(link.writer, link.conn, Token(value[0]));
    assert_eq!(link.target.load(word), value[0]);
}

/// Makes a write that must be refused, and waits for the refusal.
pub(crate) fn refused(nodes: &mut VerbsNodes, link: &GrantedLink, conn: ConnId) {
    nodes.write(link.writer, conn, &link.value(0, &[u64::MAX]));
    nodes.until("Refused", |nodes| {
        assert_ne!(link.target.load(0), u64::MAX, "a write that must be refused landed");
        nodes.take(link.writer, |event| *event == FabricEvent::Refused { conn }).is_some()
    });
}
