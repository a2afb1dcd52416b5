//! The control messages of a peer on the same host, into a living fabric. They come from a process of the same user that
//! has proved the secret, and yet a broken one must not take others with it.

use std::io::Write;
use std::os::unix::net::UnixStream;

use squall_fabric::{Channel, Fabric, MirrorKey, NodeId};
use squall_transports::shm::ShmFabric;

const WORDS: usize = 64;
const POLLS: usize = 64;

/// Sends the bytes as the peer, without any file.
pub fn feed(bytes: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), ours)]).expect("a fabric of one peer");
    let (granted, own) = (fabric.register(WORDS), fabric.register(WORDS));
    fabric.grant(&granted, 0..WORDS / 2, NodeId(1));
    fabric.publish(MirrorKey(1), &own, &[NodeId(1)]);
    let view = fabric.attach(NodeId(1), MirrorKey(2), WORDS);
    fabric.open(NodeId(1), Channel(7));
    let _ = theirs.write_all(bytes);
    drain(&mut fabric);
    drop(theirs);
    drain(&mut fabric);
    assert!((0..WORDS).all(|word| view.load(word) == 0), "a view without its owner's pages reads as zeros");
}

/// The kinds of messages with bodies of the right length.
pub fn seeds() -> Vec<Vec<u8>> {
    let lengths = [0, 16, 12, 13, 16, 8, 34, 8, 8, 8];
    let message = |kind: u8| [vec![kind], vec![0; lengths[usize::from(kind)]]].concat();
    (0..10).map(message).collect()
}

fn drain(fabric: &mut ShmFabric) {
    for _ in 0..POLLS {
        if fabric.poll(&mut |_event| {}) == 0 {
            return;
        }
    }
}
