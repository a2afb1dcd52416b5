//! The samples of a reader in their order.

use std::collections::VecDeque;

use super::CachedSample;

/// Samples by growing numbers. Mostly they come at the end and leave at the beginning, which allocates nothing.
///
/// Invariants: numbers grow; the first place has a sample; at least half of the places have one, but for a few.
#[derive(Debug, Default)]
pub(super) struct SampleQueue {
    /// `None` where a sample has left.
    places: VecDeque<(u64, Option<CachedSample>)>,
    left: usize,
}

impl SampleQueue {
    pub(super) const fn new() -> Self {
        Self { places: VecDeque::new(), left: 0 }
    }

    /// Returns how many samples there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.left
    }

    /// Adds a sample whose number is above all others.
    #[inline]
    pub(super) fn push(&mut self, number: u64, sample: CachedSample) {
        self.places.push_back((number, Some(sample)));
    }

    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&CachedSample> {
        self.places[self.place(number)?].1.as_ref()
    }

    pub(super) fn sample_mut(&mut self, number: u64) -> Option<&mut CachedSample> {
        let place = self.place(number)?;
        self.places[place].1.as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<CachedSample> {
        let place = self.place(number)?;
        let sample = self.places[place].1.take()?;
        self.left += 1;
        while self.places.pop_front_if(|(_, sample)| sample.is_none()).is_some() {
            self.left -= 1;
        }
        if self.left > FEW && self.left * 2 > self.places.len() {
            self.places.retain(|(_, sample)| sample.is_some());
            self.left = 0;
        }
        Some(sample)
    }

    /// Returns the samples with their numbers, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &CachedSample)> {
        self.places.iter().filter_map(|(number, sample)| Some((*number, sample.as_ref()?)))
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        // As long as none in between has been removed with its place.
        let first = self.places.front()?.0;
        let near = usize::try_from(number.checked_sub(first)?).ok()?;
        if self.places.get(near).is_some_and(|(present, _)| *present == number) {
            return Some(near);
        }
        self.places.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

/// As many places may be empty in any case.
const FEW: usize = 32;
