//! Memory as words and as bytes at once: what only the crates of this workspace may do.
//!
//! The words of a [`Region`] are atomics: whoever loads and stores them is sound, whatever others do. Bytes in place
//! (`&[u8]`, `&mut [u8]`) are sound only as long as nobody stores into the words that hold them. The types that show bytes
//! in place therefore give out the words, and are made over words, by unsafe functions only.
//!
//! Protocols and the library forbid unsafe code, and they are the ones that keep the rules: the window rule [O5], and that
//! a posted buffer is away from its user until the post is done. These functions are their way to the unsafe ones. They are
//! safe for the compiler alone; each states the rule that its callers keep. No crate that applications use exports them, or
//! any value that makes them reachable, and `tests/tidy` lists the files that may call them.

use crate::bulk::{self, ObjectLease};
use crate::window::{WindowGeometry, WindowPublisher, WindowReader, WindowRecord, WindowWriter};
use crate::{Buffer, Region};

/// The memory of a buffer. **Rule:** it is posted, and the buffer is kept from its user until no post is outstanding.
#[must_use]
pub const fn memory(buffer: &Buffer) -> &Region {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { buffer.region() }
}

/// The memory of an object. **Rule:** as for [`memory`].
#[must_use]
pub const fn object_memory(object: &bulk::BulkBuffer) -> &Region {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule of `memory`.
    unsafe { object.region() }
}

/// The first `bytes` bytes of `attachment`. **Rule:** its owner leaves them alone until it hears that the lease was given back,
/// and the transport writes nothing else there.
///
/// # Panics
/// If the attachment is shorter.
#[must_use]
pub fn lease(attachment: Region, bytes: usize) -> ObjectLease {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { ObjectLease::new(attachment, bytes) }
}

/// The two local handles of a window in `region`, and of its bodies. **Rule:** nothing else in this process stores into the
/// words of the rings.
///
/// # Panics
/// If a ring ends beyond its region, or the region is read-only.
#[must_use]
pub fn window(
    region: &Region,
    geometry: WindowGeometry,
    bodies: Option<(&Region, WindowGeometry)>,
) -> (WindowWriter, WindowPublisher) {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { crate::window::window_with_bodies(region, geometry, bodies) }
}

/// The bytes of a record that `reader` has taken. **Rule** [O5]: its index is reported as delivered only when the bytes are
/// used no more.
#[inline(always)]
#[must_use]
pub fn payload(reader: &WindowReader, record: WindowRecord) -> &[u8] {
    // SAFETY: the callers, which `tests/tidy` lists, keep the rule above.
    unsafe { reader.bytes(record) }
}
