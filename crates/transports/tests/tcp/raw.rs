//! A fabric whose only peer is a plain stream, and frames written by hand according to the table of the wire
//! format, so that the documentation is tested, too.

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use squall_fabric::{Fabric, FabricEvent, NodeId};
use squall_transports::tcp::TcpFabric;

use crate::cluster::pair;

pub(crate) const MIRROR: u8 = 1;
pub(crate) const WRITE: u8 = 2;
pub(crate) const SEND: u8 = 3;
pub(crate) const ACK: u8 = 4;
pub(crate) const OPEN: u8 = 5;
pub(crate) const ACCEPT: u8 = 6;
pub(crate) const CLOSE: u8 = 7;
pub(crate) const ATTACH: u8 = 8;
pub(crate) const DETACHED: u8 = 11;
pub(crate) const HANDLED: u8 = 12;

/// Encodes a header and the words that follow it.
pub(crate) fn frame(kind: u8, flags: u8, id: u32, a: u32, b: u32, more: &[u64]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    for number in [id, a, b] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(more.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// The fabric of node 0 and the raw end of its stream to node 1.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) fabric: TcpFabric,
    pub(crate) raw: TcpStream,
    pub(crate) events: Vec<FabricEvent>,
}

impl Victim {
    pub(crate) fn new() -> Self {
        let (near, raw) = pair();
        raw.set_nonblocking(true).expect("a socket");
        let fabric = TcpFabric::new(NodeId(0), vec![(NodeId(1), near)]).expect("a connected stream");
        Self { fabric, raw, events: Vec::new() }
    }

    pub(crate) fn poll(&mut self) {
        let events = &mut self.events;
        self.fabric.poll(&mut |event| events.push(event));
    }

    /// Sends bytes, and polls whenever the socket accepts no more. Returns whether all were sent.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> bool {
        let begin = Instant::now();
        while !bytes.is_empty() {
            match self.raw.write(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.poll(),
                Err(_) => return false,
            }
            assert!(begin.elapsed() < PATIENCE, "the fabric does not take what is sent to it");
        }
        self.poll();
        true
    }

    /// Polls until an event matches.
    pub(crate) fn expect(&mut self, what: &str, matches: impl Fn(&FabricEvent) -> bool) -> FabricEvent {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(&matches) {
                return self.events.remove(at);
            }
            self.poll();
            assert!(begin.elapsed() < PATIENCE, "waited for: {what}; events: {:?}", self.events);
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. }))
    }
}

/// A fixed pseudo-random sequence (xorshift).
#[derive(Debug)]
pub(crate) struct Xorshift(u64);

impl Xorshift {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
