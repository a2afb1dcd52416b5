//! Memory of the caller: addresses that it promises to be valid, and copies from and to them.

use std::ffi::c_void;

/// A range of addresses of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl Span {
    pub(crate) fn new(start: *mut c_void, length: usize) -> Self {
        Self { start: start as usize, length }
    }

    /// Whether `inner` lies inside.
    pub(crate) fn contains(&self, inner: &Self) -> bool {
        let end = |span: &Self| span.start.checked_add(span.length);
        inner.start >= self.start && end(inner).is_some() && end(inner) <= end(self)
    }

    /// The bytes, copied.
    pub(crate) fn load(&self, target: &mut [u8]) {
        let count = target.len().min(self.length);
        // SAFETY: the caller of the C function promises that its memory is valid and does not change now.
        unsafe { std::ptr::copy_nonoverlapping(self.start as *const u8, target.as_mut_ptr(), count) }
    }

    /// Fills the first bytes.
    pub(crate) fn store(&self, source: &[u8]) {
        assert!(source.len() <= self.length, "more bytes than were asked for");
        // SAFETY: the caller of the C function promises that its memory is valid, and nobody uses it now.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start as *mut u8, source.len()) }
    }
}
