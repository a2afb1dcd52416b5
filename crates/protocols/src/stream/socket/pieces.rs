//! The memory of outstanding sends or receives, in order (EXS §II.B).

use std::collections::VecDeque;

use squall_fabric::Region;

/// Which memory belongs to which operation. Operations are added with ascending names and mostly done in order.
#[derive(Debug)]
pub(super) struct Pieces<I> {
    pieces: VecDeque<(I, Piece)>,
    /// The region of the last operation that was done: mostly the next one names it again, and to count references to a
    /// region takes as long as the rest of a small post.
    spare: Option<Region>,
}

/// Memory of one operation.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) region: Region,
    pub(super) first_byte: usize,
}

impl<I> Default for Pieces<I> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), spare: None }
    }
}

impl<I: Ord + Copy> Pieces<I> {
    #[inline]
    pub(super) fn add(&mut self, id: I, region: &Region, first_byte: usize) {
        let spare = self.spare.take_if(|spare| spare.is_same(region));
        let region = spare.unwrap_or_else(|| region.clone());
        self.pieces.push_back((id, Piece { region, first_byte }));
    }

    /// The memory of an outstanding operation.
    #[inline]
    pub(super) fn find(&self, id: I) -> &Piece {
        match self.pieces.front() {
            Some((first, piece)) if *first == id => piece,
            _ => self.find_later(id),
        }
    }

    #[cold]
    fn find_later(&self, id: I) -> &Piece {
        let at = self.pieces.binary_search_by_key(&id, |(id, _)| *id).expect("it is outstanding");
        &self.pieces[at].1
    }

    /// The operation is done.
    #[inline]
    pub(super) fn remove(&mut self, id: I) {
        let first = self.pieces.pop_front_if(|(first, _)| *first == id);
        let Some((_, piece)) = first.or_else(|| self.remove_later(id)) else { return };
        self.spare = Some(piece.region);
    }

    #[cold]
    fn remove_later(&mut self, id: I) -> Option<(I, Piece)> {
        let at = self.pieces.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.pieces.remove(at)
    }
}
