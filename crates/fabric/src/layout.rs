//! Typed columns of a row: the place of each word, known at compile time or computed once (Derecho §3.2).
//!
//! A row is a sequence of words that one member writes and others read. Columns that different readers poll
//! for different purposes are in separate cache lines, so that one store invalidates the line of one purpose
//! only.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Region;

/// Words per unit of separation: 128 bytes, two cache lines, because x86 and Apple cores prefetch in pairs.
pub const LINE_WORDS: usize = 16;

/// A value that fits one word, so that it is never torn [F3].
pub trait Word: Copy {
    /// Encodes the value as a word.
    fn to_word(self) -> u64;
    /// Decodes the value from `word`.
    fn from_word(word: u64) -> Self;
}

impl Word for u64 {
    fn to_word(self) -> u64 {
        self
    }
    fn from_word(word: u64) -> Self {
        word
    }
}

impl Word for bool {
    fn to_word(self) -> u64 {
        u64::from(self)
    }
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

/// A column of one word of type `T`.
#[derive(Debug)]
pub struct Column<T> {
    word: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Column<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Column<T> {}
impl<T> PartialEq for Column<T> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}
impl<T> Eq for Column<T> {}

impl<T: Word> Column<T> {
    /// Creates the column at `word` of the row.
    #[must_use]
    pub const fn at(word: usize) -> Self {
        Self { word, kind: PhantomData }
    }

    /// Returns the word's index within the row.
    #[must_use]
    pub const fn word(self) -> usize {
        self.word
    }

    /// Loads the value from `row` with acquire ordering [F4].
    #[inline]
    #[must_use]
    pub fn load(self, row: &Region) -> T {
        T::from_word(row.load(self.word))
    }

    /// Stores the value into `row` with release ordering.
    #[inline]
    pub fn store(self, row: &Region, value: T) {
        row.store(self.word, value.to_word());
    }
}

/// A column of several words: a list that a guard column announces, or one word for each of several peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns<T> {
    first: usize,
    count: usize,
    stride: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T: Word> Columns<T> {
    /// Returns the number of columns.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns column `i`.
    ///
    /// # Panics
    /// Panics if `i` is not below the count.
    #[inline]
    #[must_use]
    pub fn column(&self, i: usize) -> Column<T> {
        assert!(i < self.count, "column {i} is out of range for {} columns", self.count);
        Column::at(self.first + i * self.stride)
    }

    /// Returns columns `range` of these.
    ///
    /// # Panics
    /// Panics if the range ends beyond the count.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.count, "columns {range:?} are out of range for {} columns", self.count);
        Self { first: self.first + range.start * self.stride, count: range.len(), ..*self }
    }

    /// Returns the words of columns `range`, which are contiguous.
    ///
    /// # Panics
    /// Panics if the columns are separated, or the range ends beyond the count.
    #[must_use]
    pub fn words(&self, range: Range<usize>) -> Range<usize> {
        assert!(self.stride == 1 && range.end <= self.count, "a contiguous list of {}", self.count);
        self.first + range.start..self.first + range.end
    }
}

/// Lays out a row, column by column.
#[derive(Clone, Debug, Default)]
pub struct RowLayout {
    words: usize,
}

impl RowLayout {
    /// Creates an empty row.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: 0 }
    }

    /// Adds a column in cache lines of its own.
    pub fn column<T: Word>(&mut self) -> Column<T> {
        self.align();
        let column = Column::at(self.words);
        self.words += LINE_WORDS;
        column
    }

    /// Adds `count` columns, each in cache lines of its own.
    pub fn columns<T: Word>(&mut self, count: usize) -> Columns<T> {
        self.align();
        let columns = Columns { first: self.words, count, stride: LINE_WORDS, kind: PhantomData };
        self.words += count * LINE_WORDS;
        columns
    }

    /// Adds `count` contiguous words, to be pushed as a range and announced by a guard.
    pub fn list<T: Word>(&mut self, count: usize) -> Columns<T> {
        self.align();
        let list = Columns { first: self.words, count, stride: 1, kind: PhantomData };
        self.words += count;
        list
    }

    /// Adds `count` untyped words that begin on a cache line; returns the index of the first.
    pub fn block(&mut self, count: usize) -> usize {
        self.align();
        let first = self.words;
        self.words += count;
        first
    }

    /// Returns the number of words of the whole row, padded to full cache lines.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words.next_multiple_of(LINE_WORDS)
    }

    fn align(&mut self) {
        self.words = self.words.next_multiple_of(LINE_WORDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_do_not_share_lines() {
        let mut layout = RowLayout::new();
        let a: Column<u64> = layout.column();
        let list: Columns<u64> = layout.list(3);
        let b: Column<bool> = layout.column();
        assert_eq!((a.word(), list.words(0..3), b.word()), (0, 16..19, 32));
        assert_eq!(layout.words(), 48);
    }
}
