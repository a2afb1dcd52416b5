//! One host: receivers copy an object from the root's pages, without relays (RDMC §3, "the schedule is chosen").
//!
//! Where readers of a mirror map its owner's pages, every block is available at every member as soon as it is at the
//! root, and a schedule of relays would only copy it more often than needed. The only task is to share the memory's
//! bandwidth: each receiver copies each block once, into memory of its own that no other member needs to know, or
//! reads the object in place.
//!
//! **State.** Each member publishes a *row*. The root's row says how many objects are *offered*, where each is stored
//! (a ring of descriptors), and how many are *ready*. A receiver's row has its progress: how many objects it has
//! released, and how many blocks of the next one it has copied.
//!
//! **The life of an object.** The root offers it; receivers attach its buffer, if that is new to them; when all have,
//! the root pushes the object, which copies nothing on one host, and publishes that it is ready. Receivers copy it
//! block by block ([`LocalMulticast::copy`]) or lease it ([`LocalMulticast::lease`]), and release it. An object that
//! all have released is *finished*: its memory belongs to the root's application again.
//!
//! **Pace.** A block that one receiver has brought into the cache is cheap for the others if they copy it soon. So a
//! receiver is at most one block ahead of the slowest that is copying. That is for speed only: it does not wait for a
//! receiver that makes no progress for [`PATIENCE`].
//!
//! **Step order** of one evaluation: root: offer, then ready, then finish. Receiver: attach.
//!
//! **Invariants.**
//! - `finished <= ready <= offered <= finished + OBJECTS_MAX`, all monotone; a descriptor is written again only when
//!   its object is finished.
//! - \[B8\] An object is ready only when every member that is not lost has attached its buffer \[M5\], payload before
//!   guard \[F5\]; its memory is not written between ready and finished.
//! - \[B7\] A lost receiver does not affect any other member. When the root is lost, receivers still get all objects
//!   that are ready, since attachments outlive their owner \[M4\].
//!
//! `Deviation:` (RDMC §3) there are no relays and no schedule where receivers see the root's pages: each byte is
//! copied once for each receiver, which is the minimum, or not at all.

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
/// **Law.** As for [`Core`]; [`LocalMulticast::share`] and [`LocalMulticast::send`] at the root,
/// [`LocalMulticast::next`], [`LocalMulticast::copy`], [`LocalMulticast::lease`] and [`LocalMulticast::give_back`] at
/// receivers are called between evaluations.
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
    /// The root's announcement is not valid.
    Breached,
}

impl fmt::Display for LocalFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RootLost => "the root is gone: start the session again",
            Self::Breached => "the root has violated the protocol: run the same release at all members",
        })
    }
}

impl std::error::Error for LocalFailure {}

impl LocalMulticast {
    /// Returns the session of `members`, of which the first is the root. It uses mirrors from `key` on: the rows,
    /// then one for each buffer of the root.
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

    /// Returns whether all members that are not lost have attached this one's row: only then can objects be sent.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.rows.is_ready()
    }

    /// Returns the ranks of the members that are gone.
    pub fn lost(&self) -> impl Iterator<Item = usize> {
        (0..self.rows.members.len()).filter(|rank| self.rows.lost[*rank])
    }

    /// Shares a buffer of the root with the receivers; once for each buffer.
    ///
    /// # Panics
    /// At a receiver.
    pub fn share<F: Fabric>(&mut self, fabric: &mut F, region: &Region) -> BufferId {
        self.root_mut().0.share(fabric, region)
    }

    /// Sends, at the root, the first `bytes` bytes of a buffer, which must not change before the object is finished.
    /// Returns the object's number, or `None` while [`OBJECTS_MAX`] objects are unfinished.
    ///
    /// # Panics
    /// At a receiver, or if the buffer is shorter.
    pub fn send(&mut self, buffer: BufferId, bytes: u64) -> Option<u64> {
        self.root_mut().0.send(buffer, bytes)
    }

    /// Returns the number below which objects are finished: all members that are not lost have released them.
    #[must_use]
    pub const fn finished(&self) -> u64 {
        match &self.role {
            Role::Root(root) => root.finished,
            Role::Receiver(receiver) => receiver.given_back,
        }
    }

    /// Returns how many receivers have released object `number`, including those that are lost by now.
    #[must_use]
    pub fn receivers_of(&self, number: u64) -> usize {
        (1..self.rows.members.len()).filter(|rank| self.rows.progress(*rank).given_back() > number).count()
    }

    /// Returns the next object to be copied or leased, if it is ready.
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

    /// Returns the memory of the next object, to be read in place until it is released. The others do not wait for
    /// this member.
    ///
    /// # Panics
    /// If there is no next object.
    pub fn lease<F: Fabric>(&mut self, fabric: &mut F) -> Region {
        let (receiver, rows) = self.receiver_mut();
        receiver.lease(fabric, rows)
    }

    /// Releases the next object, whether it was copied or not; the one after it becomes the next.
    ///
    /// # Panics
    /// If there is no next object.
    pub fn give_back<F: Fabric>(&mut self, fabric: &mut F) {
        let (receiver, rows) = self.receiver_mut();
        receiver.give_back(fabric, rows);
    }

    /// Returns why there will be no object beyond those that are ready, if that is so.
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

/// A buffer of the root that is shared with the receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(usize);

/// The rows of all members.
#[derive(Debug)]
struct Rows {
    key: MirrorKey,
    members: Vec<NodeId>,
    rank: usize,
    /// The rows by rank; this member's own is writable.
    rows: Vec<Region>,
    mirror: MirrorId,
    /// The readers that have attached this member's row, by rank.
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

    /// Returns the ranks of the other receivers that are not lost.
    fn other_receivers(&self) -> impl Iterator<Item = usize> {
        (1..self.members.len()).filter(|rank| *rank != self.rank && !self.lost[*rank])
    }

    /// Returns the progress of the receiver `rank`.
    fn progress(&self, rank: usize) -> Progress {
        Progress(self.rows[rank].load(PROGRESS))
    }

    /// Stores a word of this member's row and pushes it to the others, by value, after all that was pushed before.
    fn raise<F: Fabric>(&self, fabric: &mut F, word: usize, value: u64) {
        debug_assert!(self.own().load(word) <= value, "words of rows only grow");
        self.own().store(word, value);
        fabric.push_word(self.mirror, word);
    }

    /// Stores a word as [`Rows::raise`] does, if it matters only to members that poll it: where all share the memory,
    /// no member is woken for it.
    fn show<F: Fabric>(&self, fabric: &mut F, word: usize, value: u64) {
        if fabric.capabilities().early_sight {
            self.own().store(word, value);
        } else {
            self.raise(fabric, word, value);
        }
    }
}

/// The progress of a receiver: objects released, and blocks of the next one copied. It is ordered.
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

/// Returns where the descriptor of an object is stored: its buffer, the buffer's words, and the object's bytes.
const fn descriptor(number: u64) -> usize {
    DESCRIPTORS + (number % OBJECTS_MAX) as usize * DESCRIPTOR_WORDS
}

/// Returns the key of the root's buffer `index`.
const fn buffer_key(rows: MirrorKey, index: usize) -> MirrorKey {
    MirrorKey(rows.0 + 1 + index as u64)
}

/// The largest number of objects that are offered and not finished yet.
pub const OBJECTS_MAX: u64 = 16;
/// The largest number of buffers of a root; each is mapped by every receiver for as long as the session lasts.
pub const BUFFERS_MAX: usize = 256;
/// Longer than the other members of a busy host usually keep a receiver from the processor.
pub const PATIENCE: Duration = Duration::from_millis(10);
/// An object of 2^32 blocks is larger than any memory.
const BLOCK_BITS: u32 = 32;
/// The root's guards, in a cache line of their own.
const OFFERED: usize = 0;
const READY: usize = 1;
/// A receiver's only word.
const PROGRESS: usize = LINE_WORDS;
const DESCRIPTORS: usize = 2 * LINE_WORDS;
const DESCRIPTOR_WORDS: usize = 3;
const ROW_WORDS: usize = (DESCRIPTORS + OBJECTS_MAX as usize * DESCRIPTOR_WORDS).next_multiple_of(LINE_WORDS);
