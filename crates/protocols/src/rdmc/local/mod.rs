//! One host: receivers take an object from its source's pages, without relays (RDMC §3, "the schedule is chosen").
//!
//! Where readers of a mirror map its owner's pages, every block is at every member as soon as it is at the root, and a
//! schedule of relays would only copy it more often than needed. What is left is to share the memory's bandwidth: each
//! receiver copies each block once, into memory of its own that nobody else needs to know, or reads the object in place.
//!
//! **State.** Each member publishes a *row*. The root's row says how many objects are *offered*, where each lies (a
//! ring of descriptors), and how many are *ready*. A receiver's row says how far it is: how many objects it has given
//! back, and how many blocks of the next it has copied.
//!
//! **An object's way.** The root offers it; receivers attach the buffer in which it lies, if it is new to them; when
//! all have, the root pushes the object, which moves nothing on one host, and says that it is ready. Receivers copy it
//! block by block ([`LocalMulticast::copy`]) or lease it ([`LocalMulticast::lease`]), and give it back. What all have given
//! back is *finished*: its memory belongs to the root's application again.
//!
//! **Pace.** A block that one receiver has brought into the cache is cheap for the others if they copy it soon. So a
//! receiver goes no further than a block ahead of the slowest that is under way. That is for speed only: who does not
//! move for [`PATIENCE`] is not waited for.
//!
//! **Step order** of one evaluation: root: offer, then ready, then finish. Receiver: attach.
//!
//! **Invariants.**
//! - `finished <= ready <= offered <= finished + OBJECTS_MAX`, all monotone; a descriptor is written again only when
//!   its object is finished.
//! - \[B8\] An object is ready only when every member that is not lost has attached its buffer \[M5\], payload before
//!   guard \[F5\]; its memory is not written between ready and finished.
//! - \[B7\] A lost receiver concerns nobody else. When the root is lost, receivers still get all that is ready, since
//!   attachments outlive their owner \[M4\].
//!
//! `Deviation:` (RDMC §3) no relays and no schedule where receivers see the source's pages: each byte is copied once for
//! each receiver, the least that is possible, or not at all.

mod receiver;
mod root;
#[cfg(test)]
mod tests;

use std::fmt;

use squall_fabric::layout::LINE_WORDS;
use squall_fabric::{Core, Duration, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};

use receiver::LocalReceiver;
pub use receiver::{CopyProgress, ObjectOffer};
use root::LocalRoot;

/// The objects of one root at one member of the same host.
///
/// **Law.** As [`Core`]; [`LocalMulticast::share`] and [`LocalMulticast::send`] at the root, [`LocalMulticast::next`],
/// [`LocalMulticast::copy`], [`LocalMulticast::lease`] and [`LocalMulticast::give_back`] at receivers are called between
/// evaluations.
#[derive(Debug)]
pub struct LocalMulticast {
    rows: Rows,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Root(LocalRoot),
    Receiver(LocalReceiver),
}

/// Why there will be no further object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFailure {
    /// The root is gone.
    RootLost,
    /// The root has announced what cannot be.
    Breached,
}

impl fmt::Display for LocalFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RootLost => "the source of the objects is gone: start the session again",
            Self::Breached => "the source has broken the protocol: do all run the same version?",
        })
    }
}

impl std::error::Error for LocalFailure {}

impl LocalMulticast {
    /// The first of `members` is the root. Uses mirrors from `key` on: the rows, then one for each buffer of the root.
    ///
    /// # Panics
    /// If this node is not among the members, or blocks are empty.
    pub fn new<F: Fabric>(fabric: &mut F, key: MirrorKey, members: &[NodeId], block_bytes: usize) -> Self {
        assert!(block_bytes > 0, "blocks have bytes");
        let rows = Rows::new(fabric, key, members);
        let role = if rows.rank == 0 {
            Role::Root(LocalRoot::new())
        } else {
            Role::Receiver(LocalReceiver::new(block_bytes))
        };
        Self { rows, role }
    }

    /// Whether all members that are not lost read this one's row: only then anything can flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.rows.is_ready()
    }

    /// Members that are gone, by rank.
    pub fn lost(&self) -> impl Iterator<Item = usize> {
        (0..self.rows.members.len()).filter(|rank| self.rows.lost[*rank])
    }

    /// Makes a buffer of the root known to the receivers; once for each.
    ///
    /// # Panics
    /// At a receiver.
    pub fn share<F: Fabric>(&mut self, fabric: &mut F, region: &Region) -> BufferId {
        self.root_mut().0.share(fabric, region)
    }

    /// The root sends the first `bytes` bytes of a buffer, which must not change before the object is finished. Its
    /// number, or `None` while [`OBJECTS_MAX`] objects are unfinished.
    ///
    /// # Panics
    /// At a receiver, or if the buffer is shorter.
    pub fn send(&mut self, buffer: BufferId, bytes: u64) -> Option<u64> {
        self.root_mut().0.send(buffer, bytes)
    }

    /// Objects with lower numbers are finished: all members that are not lost have given them back.
    #[must_use]
    pub const fn finished(&self) -> u64 {
        match &self.role {
            Role::Root(root) => root.finished,
            Role::Receiver(receiver) => receiver.given_back,
        }
    }

    /// How many receivers have given object `number` back, those among them that are lost by now.
    #[must_use]
    pub fn receivers_of(&self, number: u64) -> usize {
        (1..self.rows.members.len()).filter(|rank| self.rows.progress(*rank).given_back() > number).count()
    }

    /// The next object to be copied or leased, if it is ready.
    #[must_use]
    pub fn next(&self) -> Option<ObjectOffer> {
        self.receiver().next(&self.rows)
    }

    /// Copies the next block of the next object into `target`, which has the object's size, unless another receiver is
    /// too far behind.
    ///
    /// # Panics
    /// If there is no next object or `target` has another size.
    pub fn copy<F: Fabric>(&mut self, fabric: &mut F, target: &mut [u8]) -> CopyProgress {
        let (receiver, rows) = self.receiver_mut();
        receiver.copy(fabric, rows, target)
    }

    /// The memory of the next object, to be read in place until it is given back. The others do not wait for this
    /// member.
    ///
    /// # Panics
    /// If there is no next object.
    pub fn lease<F: Fabric>(&mut self, fabric: &mut F) -> Region {
        let (receiver, rows) = self.receiver_mut();
        receiver.lease(fabric, rows)
    }

    /// Gives the next object back, whether it was copied or not; the one after it is next.
    ///
    /// # Panics
    /// If there is no next object.
    pub fn give_back<F: Fabric>(&mut self, fabric: &mut F) {
        let (receiver, rows) = self.receiver_mut();
        receiver.give_back(fabric, rows);
    }

    /// Why there will be no object beyond those that are ready.
    #[must_use]
    pub fn failure(&self) -> Option<LocalFailure> {
        match &self.role {
            Role::Receiver(receiver) if receiver.breached => Some(LocalFailure::Breached),
            Role::Receiver(_) if self.rows.lost[0] => Some(LocalFailure::RootLost),
            _ => None,
        }
    }

    fn root_mut(&mut self) -> (&mut LocalRoot, &mut Rows) {
        match &mut self.role {
            Role::Root(root) => (root, &mut self.rows),
            Role::Receiver(_) => panic!("only the root sends"),
        }
    }

    fn receiver(&self) -> &LocalReceiver {
        match &self.role {
            Role::Receiver(receiver) => receiver,
            Role::Root(_) => panic!("the root does not receive"),
        }
    }

    fn receiver_mut(&mut self) -> (&mut LocalReceiver, &mut Rows) {
        match &mut self.role {
            Role::Receiver(receiver) => (receiver, &mut self.rows),
            Role::Root(_) => panic!("the root does not receive"),
        }
    }
}

impl<F: Fabric> Core<F> for LocalMulticast {
    fn handle_event(&mut self, _: &mut F, event: &FabricEvent) {
        self.rows.handle_event(event);
        if let (Role::Root(root), FabricEvent::Attached { key, reader }) = (&mut self.role, event) {
            root.on_attached(&self.rows, *key, *reader);
        }
    }

    fn poll(&mut self, fabric: &mut F) -> usize {
        match &mut self.role {
            Role::Root(root) => root.poll(fabric, &self.rows),
            Role::Receiver(receiver) => receiver.poll(fabric, &self.rows),
        }
    }
}

/// A buffer of the root that receivers know, or will soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(usize);

/// The rows of all members.
#[derive(Debug)]
struct Rows {
    key: MirrorKey,
    members: Vec<NodeId>,
    rank: usize,
    /// By rank; the own one is writable.
    rows: Vec<Region>,
    mirror: MirrorId,
    /// Who reads the own row.
    attached: Vec<bool>,
    lost: Vec<bool>,
}

impl Rows {
    fn new<F: Fabric>(fabric: &mut F, key: MirrorKey, members: &[NodeId]) -> Self {
        let own = fabric.node();
        let rank = members.iter().position(|member| *member == own).expect("this node is a member");
        let row = fabric.register(ROW_WORDS);
        let readers: Vec<NodeId> = members.iter().copied().filter(|member| *member != own).collect();
        let mirror = fabric.publish(key, &row, &readers);
        let attachment = |member: &NodeId| match *member == own {
            true => row.clone(),
            false => fabric.attach(*member, key, ROW_WORDS),
        };
        let rows = members.iter().map(attachment).collect();
        let attached = members.iter().map(|member| *member == own).collect();
        Self {
            key,
            members: members.to_vec(),
            rank,
            rows,
            mirror,
            attached,
            lost: vec![false; members.len()],
        }
    }

    fn handle_event(&mut self, event: &FabricEvent) {
        let place = |node: &NodeId| self.members.iter().position(|member| member == node);
        match event {
            FabricEvent::Attached { key, reader } if *key == self.key => {
                place(reader).into_iter().for_each(|rank| self.attached[rank] = true);
            }
            FabricEvent::PeerLost { peer, .. } => {
                place(peer).into_iter().for_each(|rank| self.lost[rank] = true);
            }
            _ => {}
        }
    }

    fn is_ready(&self) -> bool {
        self.attached.iter().zip(&self.lost).all(|(attached, lost)| *attached || *lost)
    }

    fn own(&self) -> &Region {
        &self.rows[self.rank]
    }

    /// The other members that are not lost, by rank; all but the root.
    fn other_receivers(&self) -> impl Iterator<Item = usize> {
        (1..self.members.len()).filter(|rank| *rank != self.rank && !self.lost[*rank])
    }

    /// How far the receiver `rank` is.
    fn progress(&self, rank: usize) -> Progress {
        Progress(self.rows[rank].load(PROGRESS))
    }

    /// Stores a word of the own row and brings it to the others, by value, after all that was pushed before.
    fn raise<F: Fabric>(&self, fabric: &mut F, word: usize, value: u64) {
        debug_assert!(self.own().load(word) <= value, "words of rows only grow");
        self.own().store(word, value);
        fabric.push_word(self.mirror, word);
    }

    /// As [`Rows::raise`], for what is of interest only to who looks by itself: where all share the memory, nobody is
    /// woken for it.
    fn show<F: Fabric>(&self, fabric: &mut F, word: usize, value: u64) {
        if fabric.capabilities().early_sight {
            self.own().store(word, value);
        } else {
            self.raise(fabric, word, value);
        }
    }
}

/// How far a receiver is: objects given back, and blocks of the next one copied. Ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Progress(u64);

impl Progress {
    const fn new(given_back: u64, blocks: u64) -> Self {
        Self(given_back << BLOCK_BITS | blocks)
    }

    const fn given_back(self) -> u64 {
        self.0 >> BLOCK_BITS
    }
}

/// Where the descriptor of an object lies: buffer, its words, the object's bytes.
const fn descriptor(number: u64) -> usize {
    DESCRIPTORS + (number % OBJECTS_MAX) as usize * DESCRIPTOR_WORDS
}

/// The key of the root's buffer `index`.
const fn buffer_key(rows: MirrorKey, index: usize) -> MirrorKey {
    MirrorKey(rows.0 + 1 + index as u64)
}

/// Objects that are offered and not yet finished.
pub const OBJECTS_MAX: u64 = 16;
/// The most buffers of a root; each is mapped by every receiver for as long as the session lasts.
pub const BUFFERS_MAX: usize = 256;
/// Longer than the other members of a busy host keep a receiver from the processor, as a rule.
pub const PATIENCE: Duration = Duration::from_millis(10);
/// An object of 2^32 blocks is larger than any memory.
const BLOCK_BITS: u32 = 32;
/// The root's guards, in a line of their own.
const OFFERED: usize = 0;
const READY: usize = 1;
/// A receiver's only word.
const PROGRESS: usize = LINE_WORDS;
const DESCRIPTORS: usize = 2 * LINE_WORDS;
const DESCRIPTOR_WORDS: usize = 3;
const ROW_WORDS: usize = (DESCRIPTORS + OBJECTS_MAX as usize * DESCRIPTOR_WORDS).next_multiple_of(LINE_WORDS);
