//! Memory as words and as bytes at once: functions for the crates of this workspace only.
//!
//! The words of a [`Region`] are atomics: loading and storing them is sound, whatever other code does. Bytes
//! in place (`&[u8]`, `&mut [u8]`) are sound only while no code stores into the words that hold them. The
//! types that show bytes in place therefore return the words, and are created over words, by unsafe functions
//! only.
//!
//! Protocols and the library forbid unsafe code, and they are the code that keeps the rules: the window rule
//! [O5], and the rule that a posted buffer is kept from its user until the post is done. These functions are
//! their access to the unsafe ones. They are safe for the compiler only; each states the rule that its
//! callers must keep. No crate that applications use exports them, or any value that makes them reachable,
//! and `tests/tidy` lists the files that may call them.

use crate::bulk::{self, ObjectLease};
use crate::window::{WindowGeometry, WindowPublisher, WindowReader, WindowRecord, WindowWriter};
use crate::{Buffer, Region};

/// Returns the memory of a buffer. **Rule:** it is posted, and the buffer is kept from its user until no post
/// is outstanding.
#[must_use]
pub const fn memory(buffer: &Buffer) -> &Region {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { buffer.region() }
}

/// Returns the memory of an object. **Rule:** as for [`memory`].
#[must_use]
pub const fn object_memory(object: &bulk::BulkBuffer) -> &Region {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule of `memory`.
    unsafe { object.region() }
}

/// Leases the first `bytes` bytes of `attachment`. **Rule:** its owner does not change them until it learns
/// that the lease has been returned, and the transport writes nothing else there.
///
/// # Panics
/// Panics if the attachment is shorter.
#[must_use]
pub fn lease(attachment: Region, bytes: usize) -> ObjectLease {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { ObjectLease::new(attachment, bytes) }
}

/// Creates the two local handles of a window in `region`, and of its bodies. **Rule:** nothing else in this
/// process stores into the words of the rings.
///
/// # Panics
/// Panics if a ring ends beyond its region, or the region is read-only.
#[must_use]
pub fn window(
    region: &Region,
    geometry: WindowGeometry,
    bodies: Option<(&Region, WindowGeometry)>,
) -> (WindowWriter, WindowPublisher) {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { crate::window::window_with_bodies(region, geometry, bodies) }
}

/// Returns the bytes of a record that `reader` has taken. **Rule** [O5]: its index is reported as delivered
/// only when the bytes are no longer used.
#[inline(always)]
#[must_use]
pub fn payload(reader: &WindowReader, record: WindowRecord) -> &[u8] {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { reader.bytes(record) }
}
