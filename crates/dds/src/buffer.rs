//! Memory of samples, which is used again.
//!
//! A reader's samples leave in the order in which they came, so the memory behind them is at the end of the heap time and again: the
//! allocator gives it back to the system, and each page of it costs a page fault when the next samples come. The buffers of long samples
//! are kept here instead, never more than samples have had at a time, and the one that was given back last is used first, since it is still in a
//! cache of the processor.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Mutex;

use bytes::Bytes;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::short::copy_to_share;

/// The bytes of a sample, which leave a reader with it. Their memory is used again when this is dropped.
///
/// ```
/// use squall_dds::{SampleBuffer, TopicData};
///
/// let bytes = SampleBuffer::from(vec![1, 2, 3]);
/// assert_eq!(bytes[..], [1, 2, 3]);
/// assert_eq!(Vec::<u8>::from_owned(bytes)?, [1, 2, 3]); // the same memory
/// # Ok::<(), squall_dds::DataError>(())
/// ```
#[derive(Default)]
pub struct SampleBuffer(Vec<u8>);

impl SampleBuffer {
    /// Returns a copy of `bytes`.
    #[inline]
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let reused = if is_pooled(bytes.len()) { POOL.take(bytes.len()) } else { None };
        let Some(mut buffer) = reused else { return Self(bytes.to_vec()) };
        buffer.extend_from_slice(bytes);
        Self(buffer)
    }

    /// Returns a copy of `bytes` that several may hold.
    #[inline]
    pub(crate) fn copy_to_share(bytes: &[u8]) -> Bytes {
        copy_to_share(bytes).unwrap_or_else(|| Self::copy_of(bytes).into())
    }

    /// Returns the bytes in the same memory, which is not used again by other samples then.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        mem::take(&mut self.0)
    }
}

impl Drop for SampleBuffer {
    #[inline]
    fn drop(&mut self) {
        if is_pooled(self.0.capacity()) {
            POOL.give(mem::take(&mut self.0));
        }
    }
}

impl Deref for SampleBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for SampleBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for SampleBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// The same memory, which is used again when all that share it are dropped.
impl From<SampleBuffer> for Bytes {
    #[inline]
    fn from(bytes: SampleBuffer) -> Self {
        if is_pooled(bytes.0.capacity()) { Self::from_owner(bytes) } else { bytes.into_vec().into() }
    }
}

/// A message for a history, which is read into memory that is used again.
#[derive(Clone, Debug)]
pub(crate) struct HistoryMessage(pub(crate) Bytes);

impl From<Vec<u8>> for HistoryMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

/// As bytes.
impl Serialize for HistoryMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for HistoryMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageBytes;

        impl Visitor<'_> for MessageBytes {
            type Value = HistoryMessage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<HistoryMessage, E> {
                Ok(HistoryMessage(SampleBuffer::copy_to_share(bytes)))
            }
        }

        deserializer.deserialize_bytes(MessageBytes)
    }
}

impl fmt::Debug for SampleBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SampleBuffer").field(&self.0).finish()
    }
}

/// Whether buffers of this capacity are worth keeping: allocators have shorter ones at hand.
#[inline]
const fn is_pooled(capacity: usize) -> bool {
    capacity >= 1 << CLASS_FIRST && capacity < 1 << (CLASS_FIRST + CLASSES)
}

/// Buffers that no sample has, in classes: those of a class have a capacity of less than twice the least one.
struct BufferPool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASSES as usize],
}

impl BufferPool {
    const fn new() -> Self {
        Self { classes: [const { Mutex::new(Vec::new()) }; CLASSES as usize] }
    }

    /// Returns an empty buffer of at least this capacity, if there is one in its class. It waits for no other thread.
    fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        let mut class = self.classes[class_of(capacity)].try_lock().ok()?;
        let last = class.pop()?;
        if last.capacity() >= capacity {
            return Some(last);
        }
        // The class has both longer and shorter ones: a buffer of this sample's length takes the place of the shorter one.
        None
    }

    /// Keeps a buffer, unless there are enough of its class. It waits for no other thread.
    fn give(&self, mut buffer: Vec<u8>) {
        let number = class_of(buffer.capacity());
        let Ok(mut class) = self.classes[number].try_lock() else { return };
        if class.len() < CLASS_BYTES >> (CLASS_FIRST as usize + number) {
            buffer.clear();
            class.push(buffer);
        }
    }

    #[cfg(test)]
    fn held(&self, capacity: usize) -> usize {
        self.classes[class_of(capacity)].lock().expect("no thread has panicked").len()
    }
}

/// Returns the class of a capacity that is pooled.
const fn class_of(capacity: usize) -> usize {
    (capacity.ilog2() - CLASS_FIRST) as usize
}

/// Of all readers of the process.
static POOL: BufferPool = BufferPool::new();
/// The shortest buffers that are kept have two to the power of this bytes.
const CLASS_FIRST: u32 = 9;
/// The longest ones have less than 1 MiB.
const CLASSES: u32 = 11;
/// What a class holds at most, counted by the least capacity there.
const CLASS_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again() {
        let pool = BufferPool::new();
        assert!(pool.take(1000).is_none());
        let buffer = vec![7; 1000];
        let place = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(900).expect("it was given back");
        assert!(again.is_empty() && again.capacity() >= 900);
        assert_eq!(again.as_ptr(), place);
        assert!(pool.take(900).is_none(), "another sample has it");
    }

    #[test]
    fn a_buffer_that_is_too_short_makes_way() {
        let pool = BufferPool::new();
        pool.give(vec![7; 600]);
        assert!(pool.take(1000).is_none());
        assert_eq!(pool.held(600), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BufferPool::new();
        for class in CLASS_FIRST..CLASS_FIRST + CLASSES {
            let capacity = 1usize << class;
            (0..CLASS_BYTES / capacity + 10).for_each(|_| pool.give(Vec::with_capacity(capacity)));
            assert_eq!(pool.held(capacity), CLASS_BYTES / capacity, "{capacity}");
        }
    }

    #[test]
    fn the_ends_of_the_classes_are_pooled() {
        let (least, most) = (1usize << CLASS_FIRST, (1usize << (CLASS_FIRST + CLASSES)) - 1);
        assert!(is_pooled(least) && is_pooled(most) && !is_pooled(least - 1) && !is_pooled(most + 1));
        assert_eq!((class_of(least), class_of(most)), (0, CLASSES as usize - 1));
    }

    /// What is written by one release can be read by another.
    #[test]
    fn a_message_for_a_history_is_bytes() {
        for length in [0, 3, 5000] {
            let bytes = Bytes::from(vec![7; length]);
            let written = postcard::to_stdvec(&HistoryMessage(bytes.clone())).expect("it can be serialised");
            assert_eq!(written, postcard::to_stdvec(&bytes).expect("bytes can be serialised"));
            let read: HistoryMessage = postcard::from_bytes(&written).expect("it is one");
            assert_eq!(read.0, bytes);
        }
    }

    #[test]
    fn bytes_are_those_of_the_sample() {
        for length in [0, 3, 511, 512, 5000, 2_000_000] {
            let sample: Vec<u8> = (0..length).map(|place: u32| place.to_le_bytes()[0]).collect();
            for _ in 0..3 {
                let (one, other) = (SampleBuffer::copy_of(&sample), SampleBuffer::copy_of(&sample));
                assert_eq!(one.into_vec(), sample);
                assert_eq!(Bytes::from(other), sample);
            }
        }
    }
}
