//! Memory that cannot be locked: the node that needs it loses its peer, gets the reason, and does not panic.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use squall_fabric::conformance::GrantedLink;
use squall_fabric::{BreakReason, Fabric, FabricEvent, MirrorKey, NodeId, PostError, Token};

use crate::nodes::{VerbsNodes, write};

type Scene = fn(&mut VerbsNodes, &GrantedLink);

/// Each scene needs memory that is not locked yet.
const SCENES: [(&str, Scene); 6] = [
    ("a write", |nodes, link| {
        let source = nodes.node(0).register(WORDS);
        let posted = nodes.node(0).write(link.conn, link.reference(0, &source, 0..WORDS));
        assert_eq!(posted, Err(PostError::NotConnected));
    }),
    ("a send", |nodes, link| {
        assert_eq!(nodes.node(0).send(link.conn, &[1; 1000], None), Err(PostError::NotConnected));
    }),
    ("a receive", |nodes, link| {
        let target = nodes.node(0).register(WORDS);
        let posted = nodes.node(0).post_receive(link.conn, &target, 0..WORDS, Token(1));
        assert_eq!(posted, Err(PostError::NotConnected));
    }),
    ("a grant", |nodes, _| {
        let target = nodes.node(0).register(WORDS);
        let grant = nodes.node(0).grant(&target, 0..WORDS, NodeId(1));
        nodes.node(0).revoke(&grant);
    }),
    ("an attachment", |nodes, _| {
        nodes.node(0).attach(NodeId(1), MirrorKey(1), WORDS);
    }),
    ("a mirror", |nodes, _| {
        // The attachment may lock its memory.
        let unlimited = Limit::replace(None);
        nodes.node(1).attach(NodeId(0), MirrorKey(1), WORDS);
        nodes.rounds(100);
        drop(unlimited);
        let mirror = nodes.node(0).register(WORDS);
        nodes.node(0).publish(MirrorKey(1), &mirror, &[NodeId(1)]);
    }),
];

pub(crate) fn a_lack_of_lockable_memory_breaks_the_connection() {
    for (what, scene) in SCENES {
        let mut nodes = VerbsNodes::new(2);
        let link = nodes.link(0, 1, 1, WORDS);
        write(&mut nodes, &link, 0, 1);
        let limit = Limit::replace(Some(0));
        scene(&mut nodes, &link);
        let broken = FabricEvent::Broken { conn: link.conn, reason: BreakReason::Shortage };
        nodes.expect(0, what, |event| *event == broken);
        let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::Shortage };
        nodes.expect(0, what, |event| *event == lost);
        drop(limit);
    }
}

/// A limit of locked memory that also applies to root, until this is dropped.
struct Limit {
    before: (Rlimit, CapabilitySets),
}

impl Limit {
    fn replace(bytes: Option<u64>) -> Self {
        let before = (getrlimit(Resource::Memlock), capabilities(None).expect("those of this thread"));
        let mut allowed = before.1;
        allowed.effective.set(CapabilitySet::IPC_LOCK, bytes.is_none());
        set_capabilities(None, allowed).expect("this program runs as root");
        setrlimit(Resource::Memlock, Rlimit { current: bytes, ..before.0 }).expect("below the hard limit");
        Self { before }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let (limit, allowed) = self.before;
        set_capabilities(None, allowed).expect("as before");
        setrlimit(Resource::Memlock, limit).expect("as before");
    }
}

const WORDS: usize = 10_000;
