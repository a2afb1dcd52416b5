//! Large objects in memory: filled in place by their owner, read in place or copied by others (RDMC §2, fig. 1).
//!
//! A [`BulkBuffer`] is registered memory that its holder alone reads and writes. Who transfers it (a session) takes it,
//! keeps it while the fabric or peers may touch its words, and gives it back afterwards. A [`ObjectLease`] is a reader's
//! attachment of an object that lies in another member's buffer, which its owner does not touch before the lease is given back.
//! As everywhere, the other members are trusted to keep this rule: they have proved the cluster's secret.

use std::ops::{Deref, DerefMut};

use crate::{Fabric, Region, Shortage};

/// Registered memory that belongs to one holder.
#[derive(Debug)]
pub struct BulkBuffer {
    region: Region,
    bytes: usize,
}

impl BulkBuffer {
    /// `bytes` zeroed bytes. If memory is short, it unwinds as [`Fabric::register`] does.
    pub fn register(fabric: &mut impl Fabric, bytes: usize) -> Self {
        Self::try_register(fabric, bytes).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// `bytes` zeroed bytes.
    ///
    /// # Errors
    /// [`Shortage`].
    pub fn try_register(fabric: &mut impl Fabric, bytes: usize) -> Result<Self, Shortage> {
        let region = fabric.try_register(bytes.div_ceil(8).max(1))?;
        Ok(Self { region, bytes })
    }

    /// The memory, for posts.
    ///
    /// # Safety
    /// Whoever posts it keeps the buffer until no peer and no post touches it, and nobody loads or stores it while the
    /// buffer's holder can use the bytes.
    #[must_use]
    pub const unsafe fn region(&self) -> &Region {
        &self.region
    }

    /// The most bytes that it can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        8 * self.region.words()
    }

    /// From now on it shows so many of its bytes.
    ///
    /// # Panics
    /// If they are more than [`BulkBuffer::capacity`].
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "{bytes} bytes in a buffer of {}", self.capacity());
        self.bytes = bytes;
    }
}

impl Deref for BulkBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the region was registered for this buffer alone, and who has posted it keeps the buffer away from
        // everybody until the words are at rest.
        unsafe { self.region.bytes(0, self.bytes) }
    }
}

impl DerefMut for BulkBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` excludes other slices of it.
        unsafe { self.region.bytes_mut(0, self.bytes) }
    }
}

/// An object in the memory of its source, to be read in place.
#[derive(Debug)]
pub struct ObjectLease {
    attachment: Region,
    bytes: usize,
}

impl ObjectLease {
    /// The first `bytes` bytes of `attachment`, an attachment of a mirror.
    ///
    /// # Safety
    /// The mirror's owner leaves them alone until it hears that the lease was given back, and nothing in this process
    /// stores into them.
    ///
    /// # Panics
    /// If the attachment is shorter.
    #[must_use]
    pub unsafe fn new(attachment: Region, bytes: usize) -> Self {
        assert!(bytes <= 8 * attachment.words(), "{bytes} bytes of {attachment:?}");
        Self { attachment, bytes }
    }
}

impl Deref for ObjectLease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner has filled the bytes before it announced them and leaves them alone until the lease is
        // back; it is a member that is trusted to do so.
        unsafe { self.attachment.bytes(0, self.bytes) }
    }
}
