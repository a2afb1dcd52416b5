//! The stream of a TCP peer, into a living fabric that has given that peer everything it may have: a mirror, a view,
//! a connection, a grant, posted receives. A peer that breaks the protocol is disconnected; nothing lands outside of
//! what was granted.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use squall_fabric::{Channel, Fabric, MirrorKey, NodeId, Region, Token};
use squall_transports::tcp::TcpFabric;

/// Words of each region here.
const WORDS: usize = 64;
/// The peer may write these words of the granted region.
const GRANTED: std::ops::Range<usize> = 16..32;
/// The value of words that the peer must not write.
const UNTOUCHED: u64 = 0x5175_616c_6c21;
/// More than any input needs.
const POLLS: usize = 64;

/// Sends the bytes as the peer.
pub fn feed(bytes: &[u8]) {
    let (ours, mut theirs) = pair();
    let mut fabric = TcpFabric::new(SELF, vec![(PEER, ours)]).expect("a fabric of one peer");
    let (own, granted, _view) = everything_a_peer_may_have(&mut fabric);
    // What it has received before it disconnects us does not matter here.
    let _ = theirs.write_all(bytes);
    drain(&mut fabric);
    drop(theirs);
    drain(&mut fabric);
    for word in (0..WORDS).filter(|word| !GRANTED.contains(word)) {
        assert_eq!(granted.load(word), UNTOUCHED, "word {word} was not granted");
    }
    assert!((0..WORDS).all(|word| own.load(word) == UNTOUCHED), "only the owner writes into its mirror");
}

/// A frame of each kind, as `squall_transports::tcp` describes them.
pub fn seeds() -> Vec<Vec<u8>> {
    let header = |kind: u8, flags: u8, id: u32, a: u32, b: u32| {
        let head = u64::from(kind) | u64::from(flags) << 8 | u64::from(id) << 32;
        vec![head, u64::from(a) | u64::from(b) << 32]
    };
    let connect = [header(5, 0, 0, 7, 0), header(6, 0, 0, 0, 0)].concat();
    let mirror = [header(1, 0, 0, 1, 2), vec![3, 4]].concat();
    let write = [header(2, 3, 0, 9, 2), vec![1, 1, 16], vec![5, 6]].concat();
    let send = [header(3, 1, 0, 9, 0), vec![7, 8]].concat();
    let rest = [header(4, 0, 0, 1, 0), header(8, 0, 0, 0, 0), vec![1, 64], header(7, 0, 0, 1, 0)].concat();
    let goodbye = header(9, 0, 0, 0, 0);
    let crossed = [header(1, 0, 1, u32::MAX, 2), vec![3, 4]].concat();
    let detach =
        [header(8, 0, 5, 0, 0), vec![1, 64], header(10, 0, 5, 1, 0), header(11, 0, 1, 0, 0)].concat();
    let streams = [
        connect.clone(),
        [crossed, detach].concat(),
        mirror.clone(),
        [connect.clone(), write.clone()].concat(),
        [connect.clone(), send.clone()].concat(),
        [connect, mirror, write, send, rest, goodbye].concat(),
    ];
    streams.map(|words| words.into_iter().flat_map(u64::to_le_bytes).collect()).to_vec()
}

const SELF: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);

/// Both ends of a connection over loopback. The second one leaves nothing behind when it is closed.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (ours, _) = listener.accept().expect("it has connected");
    set_socket_linger(&theirs, Some(Duration::ZERO)).expect("a socket");
    (ours, theirs)
}

/// Returns the region of the mirror, the region of which a part is granted, and view 0; view 1 is dropped already.
fn everything_a_peer_may_have(fabric: &mut TcpFabric) -> (Region, Region, Region) {
    let [own, granted, receives] = [(); 3].map(|()| fabric.register(WORDS));
    for word in 0..WORDS {
        own.store(word, UNTOUCHED);
        granted.store(word, UNTOUCHED);
    }
    fabric.grant(&granted, GRANTED, PEER);
    fabric.publish(MirrorKey(1), &own, &[PEER]);
    let view = fabric.attach(PEER, MirrorKey(2), WORDS);
    drop(fabric.attach(PEER, MirrorKey(3), WORDS));
    let connection = fabric.open(PEER, Channel(7));
    for (token, first) in [0, 16, 32].into_iter().enumerate() {
        let posted = fabric.post_receive(connection, &receives, first..first + 16, Token(token as u64));
        posted.expect("a receive can be posted before `Connected`");
    }
    (own, granted, view)
}

fn drain(fabric: &mut TcpFabric) {
    for _ in 0..POLLS {
        if fabric.poll(&mut |_event| {}) == 0 {
            return;
        }
    }
}
