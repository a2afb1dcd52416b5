//! The trait that every backend implements: `sim`, `shm`, `tcp`, `verbs`. Its promises are the axioms
//! F1–F14 and M1–M6 of [`crate::model`]; the conformance suite tests each on each backend.

use std::fmt;
use std::ops::Range;

use crate::{FabricEvent, Grant, Instant, Region, Shortage, Token};

/// A node of the fabric: one process in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Names a connection between two nodes; both ends use the same number for the same purpose. Writes on one
/// channel are ordered [F1]; a channel is also a permission domain (verbs: one queue pair each).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u32);

/// One incarnation of a connection, as this node names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Names a mirror of one owner. Both sides derive it (view, subgroup, purpose), so no descriptor needs to
/// travel: `(owner, key, words)` is the mirror's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorKey(pub u64);

/// A mirror that this node has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(pub u32);

/// Where the words of a write come from.
#[derive(Clone, Debug)]
pub enum WriteSource<'a> {
    /// Words of a registered region, by reference: they may be read at any time until completion [F5].
    Region(&'a Region, Range<usize>),
    /// Words by value, captured at post time. For guards, and for at most [`WriteSource::VALUE_WORDS_MAX`] words.
    Value(&'a [u64]),
}

impl WriteSource<'_> {
    /// The most words that can be written by value (verbs: what fits inline on common NICs).
    pub const VALUE_WORDS_MAX: usize = 8;

    /// The number of words that will be written.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Self::Region(_, range) => range.len(),
            Self::Value(words) => words.len(),
        }
    }
}

/// A one-sided write.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// What to write.
    pub source: WriteSource<'a>,
    /// The right to write there.
    pub grant: &'a Grant,
    /// First word to write, counted from the beginning of the granted range.
    pub offset: usize,
    /// With an immediate value the write consumes a posted receive of the peer [F7].
    pub immediate: Option<u32>,
    /// Ask for [`FabricEvent::Done`] with this token [F6].
    pub signal: Option<Token>,
}

/// Why a post was not taken. Nothing has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue of the connection is full; poll and try again.
    Full,
    /// The connection is broken or not yet connected.
    NotConnected,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the connection's queue is full: poll the fabric, then post again",
            Self::NotConnected => "the connection is not connected: wait for `Connected`, or open a new one",
        })
    }
}

impl std::error::Error for PostError {}

/// What a backend can do beyond the axioms, so that tests know which to skip and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Writes land without the target's CPU [F12].
    pub one_sided_progress: bool,
    /// Readers of a mirror may see stored words before they are pushed [M2].
    pub early_sight: bool,
}

/// One node's access to the network. See [`crate::model`] for what each call promises.
///
/// All calls are non-blocking. Misuse (a range outside its region, an unknown id) panics: it is a bug of the
/// calling protocol, never the effect of what a peer does.
pub trait Fabric {
    /// This node.
    fn node(&self) -> NodeId;

    /// Virtual time in the simulator, the monotonic clock elsewhere.
    fn now(&self) -> Instant;

    /// What this backend can do beyond the axioms.
    fn capabilities(&self) -> Capabilities;

    /// Allocates `words` zeroed words that the fabric can read and write.
    ///
    /// # Errors
    /// [`Shortage`]; nothing has changed then.
    fn try_register(&mut self, words: usize) -> Result<Region, Shortage>;

    /// As [`Fabric::try_register`], for a core that cannot continue without the memory: it unwinds to the driver
    /// ([`Shortage::catch`]).
    fn register(&mut self, words: usize) -> Region {
        self.try_register(words).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// Takes memory that something else has allocated, as a region of this fabric: for whatever a region is for, but no
    /// mirror [F13]. Whoever made `memory` has promised that it is valid as long as its keeper lives
    /// ([`Region::from_raw`]).
    ///
    /// # Panics
    /// If the region is read-only or larger than the fabric can name.
    fn adopt(&mut self, memory: &Region) -> Region;

    /// Forgets an adopted region whose grants are revoked and whose posts are done [F14]: what is left of it are the
    /// clones that others hold. Without this it is forgotten some time after the last clone is dropped.
    fn release(&mut self, region: &Region);

    /// Opens the connection `channel` to `peer`. Both ends open it; [`FabricEvent::Connected`] answers both, and
    /// [`FabricEvent::Broken`] if the peer is lost. After a break, opening again makes a new incarnation once the
    /// peer has also opened again.
    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId;

    /// Closes a connection; the peer sees [`FabricEvent::Broken`] with [`crate::BreakReason::PeerClosed`].
    fn close(&mut self, conn: ConnId);

    /// Lets `peer` write `range` of `region` [F8].
    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant;

    /// Takes a grant back; [`FabricEvent::Revoked`] answers [F9].
    fn revoke(&mut self, grant: &Grant);

    /// Posts a one-sided write.
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError>;

    /// Posts a two-sided send of at most [`SEND_BYTES_MAX`] bytes, captured at post time.
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError>;

    /// Posts memory for one incoming send, or for one write with immediate (which leaves it untouched).
    /// A send that is longer than `range` breaks the connection with [`crate::BreakReason::Protocol`].
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then. Allowed before [`FabricEvent::Connected`].
    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError>;

    /// Publishes `region` as a mirror for `readers`; each reader attaches it by `(owner, key, words)`.
    /// [`FabricEvent::Attached`] tells for each reader when pushes reach it: do not store into the region before
    /// all readers are attached [S4], since a reader that attaches late sees only what is pushed later. A reader
    /// that is not a peer yet is waited for [M5]. A key is published once.
    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId;

    /// A read-only attachment of the mirror `key` of `owner`. It reads as zeros until the owner has published it
    /// with the same number of words; an owner that publishes another size is disconnected. An owner that is not
    /// a peer yet is waited for [M5]. The attachment's memory is given back with the last clone of it [M6], and then the
    /// key is not attached again. If memory or addresses are short, it unwinds as [`Fabric::register`] does.
    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region;

    /// Brings the words of `range` to all readers, by reference [F5]. Such a range never holds a guard.
    /// Never fails: what waits is bounded by the window rule of the protocol, and a lost reader is skipped.
    fn push(&mut self, mirror: MirrorId, range: Range<usize>);

    /// Brings the present value of `word` to all readers, by value, after everything pushed before [M1].
    fn push_word(&mut self, mirror: MirrorId, word: usize);

    /// Brings the present values of a few adjacent words to all readers, by value, after everything pushed before
    /// \[M1\]. There is no order among them: fabrics that copy bring up to [`WriteSource::VALUE_WORDS_MAX`] by one
    /// write \[F2\].
    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        words.for_each(|word| self.push_word(mirror, word));
    }

    /// Stops an attachment: its words never change again for this reader [M3].
    fn freeze(&mut self, attachment: &Region);

    /// Ends a mirror: nothing is pushed to its readers any more, who keep their attachments until they drop them [M6].
    /// From now on `mirror` names nothing.
    fn retire(&mut self, mirror: MirrorId);

    /// Moves data and yields events; returns the number of things done (0: idle).
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize;
}

/// The most bytes that one two-sided send carries.
pub const SEND_BYTES_MAX: usize = 1 << 16;
