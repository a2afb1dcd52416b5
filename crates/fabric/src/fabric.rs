//! The trait that every backend implements: `sim`, `shm`, `tcp`, `verbs`. Its promises are the axioms F1–F14
//! and M1–M6 of [`crate::model`]; the conformance suite tests each of them on each backend.

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

/// The name of a connection between two nodes; both ends use the same number for the same purpose. Writes on
/// one channel are ordered [F1]; a channel is also a permission domain (verbs: one queue pair each).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u32);

/// One incarnation of a connection, as this node names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// The name of a mirror of one owner. Both sides derive it (view, subgroup, purpose), so no descriptor needs
/// to travel: `(owner, key, words)` is the mirror's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorKey(pub u64);

/// A mirror that this node has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(pub u32);

/// The source of the words of a write.
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

    /// Returns the number of words that will be written.
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
    /// The grant that allows it.
    pub grant: &'a Grant,
    /// First word to write, counted from the beginning of the granted range.
    pub offset: usize,
    /// An immediate value; with one, the write consumes a posted receive of the peer [F7].
    pub immediate: Option<u32>,
    /// If set, [`FabricEvent::Done`] reports the completion with this token [F6].
    pub signal: Option<Token>,
}

/// Why a post was rejected. Nothing has been sent.
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
            Self::Full => "the connection's queue is full (poll the fabric, then post again)",
            Self::NotConnected => "the connection is not open (wait for `Connected`, or open a new one)",
        })
    }
}

impl std::error::Error for PostError {}

/// What a backend guarantees beyond the axioms, so that tests know which cases to skip and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Writes land without the target's CPU [F12].
    pub one_sided_progress: bool,
    /// Readers of a mirror may see stored words before they are pushed [M2].
    pub early_sight: bool,
}

/// One node's access to the network. See [`crate::model`] for what each call promises.
///
/// No call blocks. Misuse (a range outside its region, an unknown id) panics: it is a bug of the calling
/// protocol, never the effect of what a peer does.
pub trait Fabric {
    /// Returns this node.
    fn node(&self) -> NodeId;

    /// Returns virtual time in the simulator, and the monotonic clock elsewhere.
    fn now(&self) -> Instant;

    /// Returns what this backend guarantees beyond the axioms.
    fn capabilities(&self) -> Capabilities;

    /// Allocates `words` zeroed words that the fabric can read and write.
    ///
    /// # Errors
    /// Returns [`Shortage`] if allocation fails; nothing has changed then.
    fn try_register(&mut self, words: usize) -> Result<Region, Shortage>;

    /// Same as [`Fabric::try_register`], for a core that cannot continue without the memory: on failure it
    /// unwinds to the driver ([`Shortage::catch`]).
    fn register(&mut self, words: usize) -> Region {
        self.try_register(words).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// Registers memory that something else has allocated, as a region that can be used like any other but not
    /// as a mirror [F13]. The creator of `memory` has promised that it is valid for as long as its
    /// keeper lives ([`Region::from_raw`]).
    ///
    /// # Panics
    /// Panics if the region is read-only or larger than the fabric can name.
    fn adopt(&mut self, memory: &Region) -> Region;

    /// Forgets an adopted region whose grants are revoked and whose posts are done [F14]; only the clones
    /// that others hold remain. Without this call it is forgotten some time after the last clone is dropped.
    fn release(&mut self, region: &Region);

    /// Opens the connection `channel` to `peer`. Both ends must open it; both then get
    /// [`FabricEvent::Connected`], or [`FabricEvent::Broken`] if the peer is lost. After a break, opening
    /// again makes a new incarnation once the peer has also opened again.
    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId;

    /// Closes a connection; the peer gets [`FabricEvent::Broken`] with [`crate::BreakReason::PeerClosed`].
    fn close(&mut self, conn: ConnId);

    /// Grants `peer` the right to write `range` of `region` [F8].
    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant;

    /// Revokes a grant; [`FabricEvent::Revoked`] confirms it [F9].
    fn revoke(&mut self, grant: &Grant);

    /// Posts a one-sided write.
    ///
    /// # Errors
    /// Returns [`PostError`]; nothing has been posted then.
    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError>;

    /// Posts a two-sided send of at most [`SEND_BYTES_MAX`] bytes, captured at post time.
    ///
    /// # Errors
    /// Returns [`PostError`]; nothing has been posted then.
    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError>;

    /// Posts memory for one incoming send, or for one write with immediate (which leaves it untouched).
    /// Allowed before [`FabricEvent::Connected`]. A send that is longer than `range` breaks the connection
    /// with [`crate::BreakReason::Protocol`].
    ///
    /// # Errors
    /// Returns [`PostError`]; nothing has been posted then.
    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError>;

    /// Publishes `region` as a mirror for `readers`; each reader attaches it by `(owner, key, words)`.
    ///
    /// [`FabricEvent::Attached`] reports for each reader that pushes now reach it: do not store into the
    /// region before all readers are attached [S4], since a reader that attaches late sees only what is
    /// pushed later. The mirror waits for a reader that is not a peer yet [M5]. A key is published once.
    ///
    /// A fabric that posts one write per reader posts them in the order of `readers`, as far as it decides the
    /// order: where owners name different readers first, their pushes do not meet at one reader's link.
    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId;

    /// Attaches the mirror `key` of `owner`, read-only.
    ///
    /// The attachment reads as zeros until the owner has published it with the same number of words; an owner
    /// that publishes another size is disconnected. The attachment waits for an owner that is not a peer yet
    /// [M5]. Its memory is freed with its last clone [M6]; after that the key is not attached again. If
    /// memory or address space is short, the call unwinds as [`Fabric::register`] does.
    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region;

    /// Pushes the words of `range` to all readers, by reference [F5]. Such a range never holds a guard, but for words that
    /// show by themselves that they have arrived, and stay as they are until all readers have used them. A push never fails:
    /// the window rule of the protocol bounds what waits, and a lost reader is skipped.
    fn push(&mut self, mirror: MirrorId, range: Range<usize>);

    /// Pushes the current value of `word` to all readers, by value, after everything pushed before [M1].
    fn push_word(&mut self, mirror: MirrorId, word: usize);

    /// Pushes the current values of a few adjacent words to all readers, by value, after everything pushed
    /// before \[M1\]. There is no order among them: fabrics that copy carry up to
    /// [`WriteSource::VALUE_WORDS_MAX`] in one write \[F2\].
    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        words.for_each(|word| self.push_word(mirror, word));
    }

    /// Freezes an attachment: its words never change again for this reader [M3].
    fn freeze(&mut self, attachment: &Region);

    /// Retires a mirror: nothing more is pushed to its readers, which keep their attachments until they drop
    /// them [M6]. `mirror` is not valid after this call.
    fn retire(&mut self, mirror: MirrorId);

    /// Moves data and yields events; returns the number of steps made (0: idle).
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize;
}

/// The most bytes that one two-sided send carries.
pub const SEND_BYTES_MAX: usize = 1 << 16;
