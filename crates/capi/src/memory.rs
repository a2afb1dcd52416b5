//! Memory of the caller: addresses that it promises to be valid, transferred in place or copied.

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

    /// Returns the whole words within the span; `None` if no process can have such memory.
    pub(crate) fn region(&self) -> Option<Region> {
        let start = self.start.checked_next_multiple_of(8)?;
        let words = self.start.checked_add(self.length)?.saturating_sub(start) / 8;
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(start))?;
        // SAFETY: the caller of `exs_mregister` promises that the memory is valid until `exs_mderegister`,
        // which releases it from all sockets, and that it does not use it while an operation on it is
        // outstanding.
        Some(unsafe { Region::from_raw(RegionId(0), base, words, Access::ReadWrite, Arc::new(())) })
    }

    /// Returns the range of `inner` within the whole words, if it consists of whole words itself; `None` if
    /// it must be copied.
    pub(crate) fn in_place(&self, inner: &Self) -> Option<std::ops::Range<usize>> {
        let is_whole = (inner.start | inner.length).is_multiple_of(8);
        let first = inner.start - self.start.checked_next_multiple_of(8)?.min(inner.start);
        is_whole.then(|| Some(first..first.checked_add(inner.length)?))?
    }

    /// Returns whether `inner` is inside this span.
    pub(crate) fn contains(&self, inner: &Self) -> bool {
        let end = |span: &Self| span.start.checked_add(span.length);
        inner.start >= self.start && end(inner).is_some() && end(inner) <= end(self)
    }

    /// Copies the bytes of the span to `target`.
    pub(crate) fn load(&self, target: &mut [u8]) {
        let count = target.len().min(self.length);
        // SAFETY: the caller of the C function promises that its memory is valid and does not change now.
        unsafe { std::ptr::copy_nonoverlapping(self.start as *const u8, target.as_mut_ptr(), count) }
    }

    /// Stores `source` into the first bytes of the span.
    pub(crate) fn store(&self, source: &[u8]) {
        assert!(source.len() <= self.length, "more bytes than the span holds");
        // SAFETY: the caller of the C function promises that its memory is valid, and that no other code uses
        // it now.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start as *mut u8, source.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths and addresses that no memory can have.
    #[test]
    fn absurd_spans_are_refused_and_do_not_overflow() {
        for (start, length) in [(usize::MAX - 3, 2), (usize::MAX - 100, usize::MAX), (8, usize::MAX)] {
            let span = Span { start, length };
            assert!(span.region().is_none(), "{span:?}");
            let inner = Span { start, length: length & !7 };
            assert!(
                !span.contains(&inner) || span.in_place(&inner).is_none_or(|range| range.end >= range.start)
            );
        }
        assert!(Span { start: 0, length: 8 }.region().is_none());
        let words = [0_u64; 3];
        let span = Span { start: words.as_ptr().expose_provenance() + 1, length: 20 };
        assert_eq!(span.region().map(|region| region.words()), Some(1));
    }
}
