//! Endpoints: a queue pair with its waiting posts, the posts in flight, and the receives.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use squall_fabric::atomics::AtomicU64;
use squall_fabric::{PostError, Region, SEND_BYTES_MAX, Token, WriteSource};

use super::VerbsError;
use super::domain::ProtectionDomain;
use super::ffi;
use super::post::{CHAIN_MAX, PostChain, PostData, PostRelease, VerbsPost, VerbsTarget};
use super::queue_pair::{QueueDepth, QueuePair};
use super::staging::StagingRing;

/// A queue pair and its work.
pub(super) struct VerbsEndpoint {
    pub(super) role: EndpointRole,
    /// The peer's place.
    pub(super) peer: usize,
    pub(super) pair: QueuePair,
    pub(super) state: EndpointState,
    depth: QueueDepth,
    /// Oldest first; the first `sent` are with the device. `sent <= depth.posts`
    posts: VecDeque<VerbsPost>,
    sent: usize,
    /// The sequence number of the oldest post, modulo 2^31.
    first: u32,
    /// With the device, oldest first. `receives.len() <= depth.receives`
    receives: VecDeque<VerbsReceive>,
    domain: Arc<ProtectionDomain>,
    /// Created by the first send that does not fit into a post.
    staging: Option<StagingRing>,
}

/// The purpose of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointRole {
    /// A connection, by its number.
    Channel(u32),
    /// Carries this node's pushes to the peer.
    MirrorOut,
    /// Receives the peer's pushes.
    MirrorIn,
}

/// Whether posts can be passed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointState {
    /// Not yet: they wait.
    Made,
    /// Both ends are ready.
    Connected,
    /// It has failed and never will again.
    Failed,
}

/// Memory for one incoming send, or for one write with immediate.
#[derive(Clone, Debug)]
pub(super) struct VerbsReceive {
    pub(super) region: Region,
    pub(super) range: Range<usize>,
    pub(super) token: Token,
    /// The key of its memory.
    pub(super) key: u32,
}

impl VerbsEndpoint {
    pub(super) fn new(
        role: EndpointRole,
        peer: usize,
        pair: QueuePair,
        depth: QueueDepth,
        domain: Arc<ProtectionDomain>,
    ) -> Self {
        Self {
            role,
            peer,
            pair,
            state: EndpointState::Made,
            depth,
            posts: VecDeque::new(),
            sent: 0,
            first: 0,
            receives: VecDeque::new(),
            domain,
            staging: None,
        }
    }

    pub(super) fn depth(&self) -> QueueDepth {
        self.depth
    }

    /// Returns whether it takes `count` more posts that must fit the device's queue.
    pub(super) fn has_space(&self, count: usize) -> bool {
        self.posts.len() + count <= self.depth.posts
    }

    /// Returns the number of posts that are not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.posts.len()
    }

    /// Returns the number of posts that are not yet with the device.
    pub(super) fn waiting(&self) -> usize {
        self.posts.len() - self.sent
    }

    /// Returns whether the device would take a post now.
    pub(super) fn can_flush(&self) -> bool {
        self.state == EndpointState::Connected && self.waiting() > 0 && self.sent < self.depth.posts
    }

    pub(super) fn push(&mut self, post: VerbsPost) {
        self.posts.push_back(post);
    }

    /// Replaces the newest post, if it still waits and carries the same number of bytes by value to the same
    /// place of an attachment: the older values would not be seen.
    pub(super) fn replace_newest(&mut self, target: VerbsTarget, payload: &PostData) -> bool {
        if self.waiting() == 0 {
            return false;
        }
        let (Some(newest), PostData::Inline { bytes, .. }) = (self.posts.back_mut(), payload) else {
            return false;
        };
        let same = matches!(&newest.payload, PostData::Inline { bytes: of, .. } if of == bytes);
        if newest.target != target || !same {
            return false;
        }
        newest.payload = payload.clone();
        true
    }

    /// Ensures that there is memory for this many captured bytes.
    ///
    /// # Errors
    /// Returns an error if it cannot be locked.
    pub(super) fn prepare_capture(&mut self, bytes: usize) -> Result<(), VerbsError> {
        if bytes > 8 * WriteSource::VALUE_WORDS_MAX && self.staging.is_none() {
            self.staging = Some(StagingRing::new(&self.domain)?);
        }
        Ok(())
    }

    /// Captures bytes, after [`VerbsEndpoint::prepare_capture`]; returns a payload, and what to release when
    /// the post completes.
    ///
    /// # Errors
    /// Returns [`PostError::Full`], if there is no space for them until earlier posts are done.
    pub(super) fn capture(&mut self, bytes: &[u8]) -> Result<(PostData, PostRelease), PostError> {
        assert!(bytes.len() <= SEND_BYTES_MAX, "a post of {} captured bytes", bytes.len());
        if bytes.len() <= 8 * WriteSource::VALUE_WORDS_MAX {
            return Ok((PostData::bytes(bytes), PostRelease::Nothing));
        }
        let staging = self.staging.as_mut().expect("prepared");
        let staged = staging.take(bytes).ok_or(PostError::Full)?;
        let payload = PostData::Memory { address: staged.address, bytes: bytes.len(), key: staged.key };
        Ok((payload, PostRelease::Staged(staged.charge)))
    }

    /// Passes waiting posts to the device, as far as its queue takes them. `number` is this endpoint's.
    pub(super) fn flush(&mut self, number: u32, chain: &mut PostChain) -> io::Result<Flushed> {
        let mut flushed = Flushed::default();
        while self.state == EndpointState::Connected {
            let count = self.waiting().min(self.depth.posts - self.sent).min(CHAIN_MAX);
            if count == 0 {
                break;
            }
            let first = self.first;
            let requests = (self.sent..).map(|place| send_request(number, first, place));
            let first = chain.link(count, requests.zip(self.posts.range(self.sent..)));
            // SAFETY: the requests name memory that is registered in this domain and held by the posts, which
            // remain in `posts` until they complete; data within a post are copied by the call.
            unsafe { self.pair.post(first) }?;
            flushed.bytes +=
                self.posts.range(self.sent..self.sent + count).map(VerbsPost::bytes).sum::<u64>();
            self.sent += count;
            flushed.posts += count;
            flushed.doorbells += 1;
        }
        Ok(flushed)
    }

    /// Removes the completed post of the request `request` and all before it, and yields them.
    pub(super) fn retire(&mut self, request: u64, mut over: impl FnMut(VerbsPost)) {
        let count = self.place(request) + 1;
        for _ in 0..count {
            let post = self.take_oldest();
            over(post);
        }
    }

    /// Returns the request before `request`, if its post is with the device.
    pub(super) fn request_before(&self, request: u64) -> Option<u64> {
        let place = self.place(request).checked_sub(1)?;
        let sequence = u64::from(self.first.wrapping_add(u32::try_from(place).ok()?) & SEQUENCE_MASK);
        Some(request & !u64::from(SEQUENCE_MASK) | sequence)
    }

    /// Returns the oldest post that is not completed.
    pub(super) fn oldest(&self) -> Option<&VerbsPost> {
        self.posts.front()
    }

    /// Drops waiting posts to an attachment; those that the device has cannot be recalled.
    pub(super) fn drop_waiting(&mut self, attachment: u32, mut over: impl FnMut(VerbsPost)) {
        let waiting = self.posts.split_off(self.sent);
        for post in waiting {
            match post.target {
                VerbsTarget::Attachment { attachment: of, .. } if of == attachment => over(post),
                _ => self.posts.push_back(post),
            }
        }
    }

    /// Takes everything that is not completed, because the endpoint ends.
    pub(super) fn take_work(&mut self) -> EndpointWork {
        self.state = EndpointState::Failed;
        EndpointWork {
            sent: std::mem::take(&mut self.sent),
            posts: std::mem::take(&mut self.posts),
            receives: std::mem::take(&mut self.receives),
        }
    }

    /// Passes a receive to the device. `number` is this endpoint's.
    ///
    /// # Errors
    /// Returns [`PostError::Full`] if the queue is full.
    pub(super) fn post_receive(&mut self, number: u32, receive: VerbsReceive) -> Result<(), PostError> {
        if self.receives.len() >= self.depth.receives {
            return Err(PostError::Full);
        }
        let bytes = 8 * receive.range.len().min(SEND_BYTES_MAX / 8);
        let memory = (bytes > 0).then(|| ffi::ibv_sge {
            addr: receive.region.pointer(receive.range.start).as_ptr().addr() as u64,
            length: u32::try_from(bytes).expect("cut above"),
            lkey: receive.key,
        });
        // SAFETY: the region is registered under the key, and `receives` holds it until the receive
        // completes.
        let posted = unsafe { self.pair.post_receive(u64::from(number) << 32 | RECEIVE, memory) };
        posted.map_err(|_| PostError::Full)?;
        self.receives.push_back(receive);
        Ok(())
    }

    /// Returns whether a receive uses memory of the region that begins at `base`.
    pub(super) fn receives_into(&self, base: NonNull<AtomicU64>) -> bool {
        self.receives.iter().any(|receive| receive.region.pointer(0) == base)
    }

    /// Takes the oldest receive, which has completed.
    pub(super) fn take_receive(&mut self) -> VerbsReceive {
        self.receives.pop_front().expect("a receive completes once")
    }

    fn take_oldest(&mut self) -> VerbsPost {
        let post = self.posts.pop_front().expect("checked by `place`");
        self.sent -= 1;
        self.first = (self.first + 1) & SEQUENCE_MASK;
        if let PostRelease::Staged(charge) = post.release {
            self.staging.as_mut().expect("a post was staged").release(charge);
        }
        post
    }

    /// Returns the place of a post that is with the device.
    fn place(&self, request: u64) -> usize {
        let sequence = u32::try_from(request & u64::from(SEQUENCE_MASK)).expect("31 bits");
        let place = (sequence.wrapping_sub(self.first) & SEQUENCE_MASK) as usize;
        assert!(
            place < self.sent,
            "a completion of post {place}, but only {} are with the device",
            self.sent
        );
        place
    }
}

/// What was passed to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flushed {
    pub(super) posts: usize,
    /// Calls, each with a chain of posts.
    pub(super) doorbells: usize,
    /// The bytes of the posts.
    pub(super) bytes: u64,
}

/// The unfinished work of an ended endpoint.
pub(super) struct EndpointWork {
    /// The number of posts that the device had: the first ones of `posts`.
    pub(super) sent: usize,
    pub(super) posts: VecDeque<VerbsPost>,
    pub(super) receives: VecDeque<VerbsReceive>,
}

/// Returns the endpoint of a completion, and whether it is for a receive or for a post.
pub(super) fn split_request(request: u64) -> (u32, bool) {
    let number = u32::try_from(request >> 32).expect("32 bits");
    (number, request & RECEIVE != 0)
}

fn send_request(number: u32, first: u32, place: usize) -> u64 {
    let place = u32::try_from(place).expect("a short queue");
    u64::from(number) << 32 | u64::from(first.wrapping_add(place) & SEQUENCE_MASK)
}

/// Marks the requests of receives; the bits below count posts.
const RECEIVE: u64 = 1 << 31;
const SEQUENCE_MASK: u32 = (1 << 31) - 1;
