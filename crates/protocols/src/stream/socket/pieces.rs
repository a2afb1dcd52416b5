//! The memory of outstanding sends or receives, in order (EXS §II.B).

use std::collections::VecDeque;

use squall_fabric::{Region, RegionSlab};

/// The memory of each outstanding operation. Operations are added in ascending order of their ids and mostly complete
/// in order.
#[derive(Debug)]
pub(super) struct Pieces<I> {
    pieces: VecDeque<Piece<I>>,
    regions: RegionSlab,
}

/// The memory of one operation.
#[derive(Clone, Copy, Debug)]
struct Piece<I> {
    id: I,
    /// The index of its region.
    region: u32,
    first_byte: usize,
}

impl<I> Default for Pieces<I> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), regions: RegionSlab::default() }
    }
}

impl<I: Ord + Copy> Pieces<I> {
    #[inline]
    pub(super) fn add(&mut self, id: I, region: &Region, first_byte: usize) {
        let region = self.regions.put(region);
        self.pieces.push_back(Piece { id, region, first_byte });
    }

    /// Returns the memory of an outstanding operation: the region, and the first byte within it.
    #[inline]
    pub(super) fn find(&self, id: I) -> (&Region, usize) {
        let piece = match self.pieces.front() {
            Some(first) if first.id == id => first,
            _ => self.find_later(id),
        };
        (self.regions.at(piece.region), piece.first_byte)
    }

    #[cold]
    fn find_later(&self, id: I) -> &Piece<I> {
        let at = self.pieces.binary_search_by_key(&id, |piece| piece.id).expect("it is outstanding");
        &self.pieces[at]
    }

    /// Returns whether an outstanding operation uses the region.
    pub(super) fn name(&self, region: &Region) -> bool {
        self.regions.has_in_use(region)
    }

    /// Drops the reference to a region that no outstanding operation uses.
    pub(super) fn forget(&mut self, region: &Region) {
        self.regions.forget(region);
    }

    /// Removes a completed operation.
    #[inline]
    pub(super) fn remove(&mut self, id: I) {
        let region = match self.pieces.front() {
            Some(first) if first.id == id => {
                let region = first.region;
                self.pieces.pop_front();
                region
            }
            _ => match self.remove_later(id) {
                Some(piece) => piece.region,
                None => return,
            },
        };
        self.regions.take(region);
    }

    #[cold]
    fn remove_later(&mut self, id: I) -> Option<Piece<I>> {
        let at = self.pieces.binary_search_by_key(&id, |piece| piece.id).ok()?;
        self.pieces.remove(at)
    }
}
