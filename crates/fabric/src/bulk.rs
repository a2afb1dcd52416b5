//! Large objects in memory: filled in place by their owner, read in place or copied by other members (RDMC
//! §2, fig. 1).
//!
//! A [`BulkBuffer`] is registered memory that only its holder reads and writes. A session that transfers it
//! takes it, keeps it while the fabric or peers may access its words, and returns it afterwards. An
//! [`ObjectLease`] is a reader's attachment of an object in another member's buffer, whose owner does not
//! touch the buffer before the lease has been returned. As everywhere, the other members are trusted to keep
//! this rule: they have proved that they know the cluster's secret.

use std::ops::{Deref, DerefMut};

use crate::{Fabric, Region, Shortage};

/// Registered memory that belongs to one holder.
#[derive(Debug)]
pub struct BulkBuffer {
    region: Region,
    bytes: usize,
}

impl BulkBuffer {
    /// Allocates `bytes` zero bytes. If memory is short, it unwinds as [`Fabric::register`] does.
    pub fn register(fabric: &mut impl Fabric, bytes: usize) -> Self {
        Self::try_register(fabric, bytes).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// Returns [`Shortage`] if allocation fails.
    pub fn try_register(fabric: &mut impl Fabric, bytes: usize) -> Result<Self, Shortage> {
        let region = fabric.try_register(bytes.div_ceil(8).max(1))?;
        Ok(Self { region, bytes })
    }

    /// Returns the memory, for posts.
    ///
    /// # Safety
    /// A caller that posts the memory must keep the buffer until no peer and no post accesses it; and no code
    /// may load or store it while the buffer's holder can use the bytes.
    #[must_use]
    pub const unsafe fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the most bytes that the buffer can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        8 * self.region.words()
    }

    /// Sets the number of bytes that the buffer shows.
    ///
    /// # Panics
    /// Panics if `bytes` is above [`BulkBuffer::capacity`].
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "{bytes} bytes do not fit a buffer of {} bytes", self.capacity());
        self.bytes = bytes;
    }
}

impl Deref for BulkBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the region was registered for this buffer alone, and a caller that has posted it keeps the
        // buffer from every other user until no more words change.
        unsafe { self.region.bytes(0, self.bytes) }
    }
}

impl DerefMut for BulkBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` excludes other slices of it.
        unsafe { self.region.bytes_mut(0, self.bytes) }
    }
}

/// An object in the memory of its source, for reading in place.
#[derive(Debug)]
pub struct ObjectLease {
    attachment: Region,
    bytes: usize,
}

impl ObjectLease {
    /// Creates a lease of the first `bytes` bytes of `attachment`, an attachment of a mirror.
    ///
    /// # Safety
    /// The mirror's owner must not change them until it learns that the lease has been returned, and nothing
    /// in this process may store into them.
    ///
    /// # Panics
    /// Panics if the attachment is shorter.
    #[must_use]
    pub unsafe fn new(attachment: Region, bytes: usize) -> Self {
        assert!(bytes <= 8 * attachment.words(), "{bytes} bytes of {attachment:?}");
        Self { attachment, bytes }
    }
}

impl Deref for ObjectLease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner has filled the bytes before it announced them and does not change them until the
        // lease is returned; the owner is a member and trusted to do so.
        unsafe { self.attachment.bytes(0, self.bytes) }
    }
}
