//! Memory of the caller: addresses that it promises to be valid, moved where they are or copied from and to.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use squall::stream::{Access, Region, RegionId};

/// A range of addresses of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl Span {
    pub(crate) fn new(start: *mut c_void, length: usize) -> Self {
        Self { start: start.expose_provenance(), length }
    }

    /// The whole words of it.
    pub(crate) fn region(&self) -> Region {
        let start = self.start.next_multiple_of(8);
        let words = (self.start + self.length).saturating_sub(start) / 8;
        let base =
            NonNull::new(std::ptr::with_exposed_provenance_mut(start)).expect("the caller's is not at 0");
        // SAFETY: the caller of `exs_mregister` promises that the memory is valid until `exs_mderegister`, which takes it
        // back from all sockets, and that it leaves it alone while an operation on it is outstanding.
        unsafe { Region::from_raw(RegionId(0), base, words, Access::ReadWrite, Arc::new(())) }
    }

    /// Where `inner` lies in the whole words, if it is whole words itself; else it is copied.
    pub(crate) fn in_place(&self, inner: &Self) -> Option<std::ops::Range<usize>> {
        let is_whole = (inner.start | inner.length).is_multiple_of(8);
        let first = inner.start - self.start.next_multiple_of(8).min(inner.start);
        is_whole.then(|| first..first + inner.length)
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
