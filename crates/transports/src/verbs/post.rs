//! Posts, and the chains in which they are passed to the device (Spindle §3.4: many posts, one doorbell).

use squall_fabric::{Token, WriteSource};

use super::ffi;

/// A write or send. It is kept until the device reports its completion or failure.
#[derive(Clone, Debug)]
pub(super) struct VerbsPost {
    pub(super) target: VerbsTarget,
    pub(super) payload: PostData,
    /// Asks for a `Done` event.
    pub(super) signal: Option<Token>,
    /// What to release when the post completes.
    pub(super) release: PostRelease,
}

/// The destination of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsTarget {
    /// Memory that the peer has granted.
    Memory { remote: RemoteMemory, immediate: Option<u32> },
    /// An attachment of the peer, by its number there.
    Attachment { remote: RemoteMemory, attachment: u32 },
    /// The next receive of the peer.
    Receive,
}

/// Memory of a peer, as the device names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteMemory {
    pub(super) address: u64,
    pub(super) key: u32,
}

/// The location of a post's data.
#[derive(Clone, Debug)]
pub(super) enum PostData {
    /// Within the post itself, captured when it was made [F5]. `bytes <= 8 × VALUE_WORDS_MAX`
    Inline { words: [u64; WriteSource::VALUE_WORDS_MAX], bytes: usize },
    /// In registered memory, read at any time until the post completes.
    Memory { address: u64, bytes: usize, key: u32 },
}

/// What a post holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostRelease {
    Nothing,
    /// A region, by its place in the table.
    Region(usize),
    /// This many of the oldest bytes of the staging ring.
    Staged(usize),
}

impl VerbsPost {
    /// Returns the number of bytes that it transfers.
    pub(super) const fn bytes(&self) -> u64 {
        let (PostData::Inline { bytes, .. } | PostData::Memory { bytes, .. }) = self.payload;
        bytes as u64
    }
}

impl PostData {
    /// Creates a payload of words by value.
    ///
    /// # Panics
    /// Panics if there are too many.
    pub(super) fn words(words: &[u64]) -> Self {
        let mut kept = [0; WriteSource::VALUE_WORDS_MAX];
        kept[..words.len()].copy_from_slice(words);
        Self::Inline { words: kept, bytes: 8 * words.len() }
    }

    /// Creates a payload of bytes by value.
    ///
    /// # Panics
    /// Panics if there are too many.
    pub(super) fn bytes(bytes: &[u8]) -> Self {
        let mut words = [0; WriteSource::VALUE_WORDS_MAX];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut filled = [0; 8];
            filled[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(filled);
        }
        assert!(bytes.len() <= 8 * words.len(), "{} bytes by value", bytes.len());
        Self::Inline { words, bytes: bytes.len() }
    }

    fn piece(&self) -> ffi::ibv_sge {
        let length = |bytes: usize| u32::try_from(bytes).expect("split to fit one message");
        match self {
            Self::Inline { words, bytes } => {
                ffi::ibv_sge { addr: words.as_ptr().addr() as u64, length: length(*bytes), lkey: 0 }
            }
            Self::Memory { address, bytes, key } => {
                ffi::ibv_sge { addr: *address, length: length(*bytes), lkey: *key }
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Inline { bytes: 0, .. } | Self::Memory { bytes: 0, .. })
    }
}

/// Reusable space for one chain.
pub(super) struct PostChain {
    requests: Box<[ffi::ibv_send_wr; CHAIN_MAX]>,
    pieces: Box<[ffi::ibv_sge; CHAIN_MAX]>,
}

// SAFETY: the pointers inside lead to the chain itself and to posts, and are used only by the call that
// follows `link`.
unsafe impl Send for PostChain {}

impl PostChain {
    pub(super) fn new() -> Self {
        // SAFETY: integers and pointers, for which zeros are valid.
        let request: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
        let piece = ffi::ibv_sge { addr: 0, length: 0, lkey: 0 };
        Self { requests: Box::new([request; CHAIN_MAX]), pieces: Box::new([piece; CHAIN_MAX]) }
    }

    /// Links `count` posts, each with the number of its request. The last one asks for a completion, which
    /// covers all before it [F6], so the device reports once for each chain, and every post is eventually
    /// reported.
    ///
    /// # Panics
    /// Panics if there are no posts, or more than [`CHAIN_MAX`].
    pub(super) fn link<'a>(
        &mut self,
        count: usize,
        posts: impl Iterator<Item = (u64, &'a VerbsPost)>,
    ) -> &mut ffi::ibv_send_wr {
        assert!((1..=CHAIN_MAX).contains(&count), "a chain of {count} posts");
        let (requests, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        let (requests, pieces) = (requests.cast::<ffi::ibv_send_wr>(), pieces.cast::<ffi::ibv_sge>());
        let mut linked = 0;
        for (i, (number, post)) in posts.take(count).enumerate() {
            let piece = pieces.wrapping_add(i);
            // SAFETY: inside the array, since `count` is checked above.
            unsafe { piece.write(post.payload.piece()) };
            let last = i + 1 == count;
            let next = if last { std::ptr::null_mut() } else { requests.wrapping_add(i + 1) };
            let request = request(number, post, piece, next, last);
            // SAFETY: as above.
            unsafe { requests.wrapping_add(i).write(request) };
            linked += 1;
        }
        assert!(linked == count, "{linked} of {count} posts");
        // SAFETY: the first request has just been written.
        unsafe { &mut *requests }
    }
}

fn request(
    number: u64,
    post: &VerbsPost,
    piece: *mut ffi::ibv_sge,
    next: *mut ffi::ibv_send_wr,
    signalled: bool,
) -> ffi::ibv_send_wr {
    // SAFETY: integers and pointers, for which zeros are valid.
    let mut request: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = number;
    request.next = next;
    if !post.payload.is_empty() {
        (request.sg_list, request.num_sge) = (piece, 1);
        if matches!(post.payload, PostData::Inline { .. }) {
            request.send_flags |= ffi::IBV_SEND_INLINE;
        }
    }
    if signalled {
        request.send_flags |= ffi::IBV_SEND_SIGNALED;
    }
    request.opcode = match post.target {
        VerbsTarget::Memory { immediate: None, .. } | VerbsTarget::Attachment { .. } => {
            ffi::IBV_WR_RDMA_WRITE
        }
        VerbsTarget::Memory { immediate: Some(immediate), .. } => {
            request.__bindgen_anon_1.imm_data = immediate.to_be();
            ffi::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        VerbsTarget::Receive => ffi::IBV_WR_SEND,
    };
    if let VerbsTarget::Memory { remote, .. } | VerbsTarget::Attachment { remote, .. } = post.target {
        request.wr.rdma.remote_addr = remote.address;
        request.wr.rdma.rkey = remote.key;
    }
    request
}

/// The most posts of one chain, which needs one completion and one doorbell.
pub(super) const CHAIN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: u64) -> VerbsPost {
        let remote = RemoteMemory { address: 4096 + 8 * value, key: 7 };
        let target = VerbsTarget::Memory { remote, immediate: None };
        VerbsPost { target, payload: PostData::words(&[value]), signal: None, release: PostRelease::Nothing }
    }

    #[test]
    fn a_chain_is_linked_and_its_last_post_is_signalled() {
        let posts: Vec<_> = (0..3).map(write).collect();
        let mut chain = PostChain::new();
        let mut request: *const ffi::ibv_send_wr = chain.link(3, (10..).zip(&posts));
        for (i, post) in (0..).zip(&posts) {
            assert!(!request.is_null(), "the chain ends before request {i}");
            // SAFETY: a request of the chain, which lives.
            let found = unsafe { &*request };
            assert_eq!(found.wr_id, 10 + i);
            assert_eq!(found.send_flags & ffi::IBV_SEND_SIGNALED != 0, i == 2);
            // SAFETY: a write has this member.
            assert_eq!(unsafe { found.wr.rdma }.remote_addr, 4096 + 8 * i);
            // SAFETY: each request has a piece of its own.
            let piece = unsafe { &*found.sg_list };
            let PostData::Inline { words, .. } = &post.payload else { panic!("by value") };
            assert_eq!((piece.addr, piece.length), (words.as_ptr().addr() as u64, 8));
            request = found.next;
        }
        assert!(request.is_null(), "the chain continues");
    }

    #[test]
    fn an_empty_write_has_no_memory() {
        let mut chain = PostChain::new();
        let post = VerbsPost { payload: PostData::words(&[]), ..write(1) };
        assert_eq!(chain.link(1, std::iter::once((1, &post))).num_sge, 0);
    }

    #[test]
    fn bytes_keep_their_order() {
        let PostData::Inline { words, bytes } = PostData::bytes(b"memory speed") else { panic!("by value") };
        assert_eq!((words[0], bytes), (u64::from_ne_bytes(*b"memory s"), 12));
    }
}
