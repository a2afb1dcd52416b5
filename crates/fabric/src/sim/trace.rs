//! The trace of a run: what happened to which node at which virtual time, and a hash of all of it.
//!
//! The hash always covers the whole run. Of the records themselves, only the latest are kept, as many as the
//! configuration says.

use std::collections::VecDeque;
use std::fmt;

use super::Verdict;
use super::prng::mix;
use crate::{FabricEvent, MirrorKey};

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    /// Virtual time since the beginning of the world, in nanoseconds.
    pub at_ns: u64,
    /// The node to which it happened.
    pub node: u32,
    /// What happened.
    pub what: Happening,
}

/// An occurrence in a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// The node posted a write, a send or a push.
    Posted {
        /// The receiver.
        to: u32,
        /// Words of payload.
        words: u32,
        /// The mirror and the first word, if it was a push.
        mirror: Option<(MirrorKey, usize)>,
    },
    /// The node pushed words of a mirror whose memory its readers share.
    Shown {
        /// The mirror.
        key: MirrorKey,
        /// The first word.
        first: usize,
        /// The number of words.
        words: usize,
    },
    /// Words landed in the node's memory: a whole write or a piece of one.
    Landed {
        /// The writer.
        from: u32,
        /// The first word, within the region.
        first: usize,
        /// The number of words.
        words: u32,
        /// The value of the first word.
        value: u64,
    },
    /// The node refused a write.
    RefusedWrite {
        /// The writer.
        from: u32,
    },
    /// A revocation by this node took effect.
    Revoked {
        /// The peer whose right ended.
        peer: u32,
    },
    /// A poll yielded an event.
    Yielded(FabricEvent),
    /// A fault was applied (the record's node is the first that it names).
    Fault(Verdict),
    /// A note of the driver.
    Note(String),
    /// A remark of the driver on what happens inside of the node. It is no event of the run, so the hash omits it.
    Remark(NodeRemark),
}

/// What a driver remarks on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRemark {
    /// What it is about.
    pub kind: RemarkKind,
    /// The remark in words.
    pub text: String,
}

/// What a remark is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemarkKind {
    /// The node enters a period, such as a view, or another step of the period that it is in.
    Enters {
        /// The period's name.
        period: String,
        /// The step's name.
        step: &'static str,
    },
    /// The node suspects another.
    Suspects,
    /// The node ends by itself.
    Ends,
}

/// The trace of a world's run.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    records_max: usize,
    records: VecDeque<TraceRecord>,
}

impl Trace {
    pub(super) fn new(records_max: usize) -> Self {
        Self { hash: 0, records_max, records: VecDeque::new() }
    }

    #[inline]
    pub(super) fn add(&mut self, at_ns: u64, node: u32, what: Happening) {
        let [kind, a, b] = what.digest();
        self.fold(at_ns);
        self.fold(u64::from(node) << 8 | kind);
        self.fold(a);
        self.fold(b);
        if self.records_max > 0 {
            self.keep(TraceRecord { at_ns, node, what });
        }
    }

    /// Adds a remark, which the hash omits.
    pub(super) fn remark(&mut self, at_ns: u64, node: u32, remark: NodeRemark) {
        if self.records_max > 0 {
            self.keep(TraceRecord { at_ns, node, what: Happening::Remark(remark) });
        }
    }

    pub(super) const fn keeps_records(&self) -> bool {
        self.records_max > 0
    }

    #[inline]
    fn fold(&mut self, value: u64) {
        self.hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn keep(&mut self, record: TraceRecord) {
        if self.records.len() == self.records_max {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    pub(super) fn hash(&self) -> u64 {
        mix(self.hash)
    }

    pub(super) fn records(&self) -> Vec<TraceRecord> {
        self.records.iter().cloned().collect()
    }
}

impl Happening {
    /// Returns three words that differ where happenings differ.
    fn digest(&self) -> [u64; 3] {
        match self {
            Self::Posted { to, words, .. } => [1, u64::from(*to), u64::from(*words)],
            Self::Shown { key, first, words } => [8, key.0, mix(*first as u64) ^ *words as u64],
            Self::Landed { from, first, words, value } => {
                [2, u64::from(*from) << 32 | u64::from(*words), mix(*first as u64) ^ value]
            }
            Self::RefusedWrite { from } => [3, u64::from(*from), 0],
            Self::Revoked { peer } => [4, u64::from(*peer), 0],
            Self::Yielded(event) => digest_event(event),
            Self::Fault(verdict) => [6, text_digest(&verdict.to_string()), 0],
            Self::Note(text) | Self::Remark(NodeRemark { text, .. }) => [7, text_digest(text), 0],
        }
    }
}

fn digest_event(event: &FabricEvent) -> [u64; 3] {
    match event {
        FabricEvent::Connected { conn, peer } => [16, conn.0, u64::from(peer.0)],
        FabricEvent::Attached { key, reader } => [17, key.0, u64::from(reader.0)],
        FabricEvent::Done { conn, token } => [18, conn.0, token.0],
        FabricEvent::Arrived { conn, token, immediate } => {
            [19, conn.0 << 32 | u64::from(*immediate), token.0]
        }
        FabricEvent::Received { conn, token, length } => [20, mix(conn.0) ^ *length as u64, token.0],
        FabricEvent::Revoked { grant } => [21, grant.key, grant.region.0],
        FabricEvent::Refused { conn } => [22, conn.0, 0],
        FabricEvent::Broken { conn, reason } => [23, conn.0, *reason as u64],
        FabricEvent::PeerDying { peer } => [25, u64::from(peer.0), 0],
        FabricEvent::PeerLost { peer, reason } => [24, u64::from(peer.0), *reason as u64],
    }
}

fn text_digest(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |digest, byte| mix(digest ^ u64::from(byte)))
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (micros, nanos) = (self.at_ns / 1000, self.at_ns % 1000);
        write!(f, "{micros:>9}.{nanos:03} µs  node {:<3} {}", self.node, self.what)
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Posted { to, words, mirror: None } => write!(f, "posts {words} words to node {to}"),
            Self::Posted { to, words, mirror: Some((MirrorKey(key), first)) } => {
                write!(f, "pushes {words} words of mirror {key:#x} to node {to}, from word {first} on")
            }
            Self::Shown { key: MirrorKey(key), first, words } => {
                write!(f, "pushes {words} words of mirror {key:#x}, from word {first} on")
            }
            Self::Landed { from, first, words, value } => {
                write!(f, "receives {words} words of node {from} at word {first}, the first being {value:#x}")
            }
            Self::RefusedWrite { from } => write!(f, "refuses a write of node {from}"),
            Self::Revoked { peer } => write!(f, "has revoked a grant of node {peer}"),
            Self::Yielded(event) => write!(f, "gets {event:?}"),
            Self::Fault(verdict) => write!(f, "FAULT: {verdict}"),
            Self::Note(text) | Self::Remark(NodeRemark { text, .. }) => f.write_str(text),
        }
    }
}
