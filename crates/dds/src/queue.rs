//! Samples in their order, as readers and histories hold them.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Samples by growing numbers. Mostly they come at the end and leave at the beginning, which allocates nothing.
///
/// Invariants: numbers grow; the first place has a sample; at least half of the places have one, but for a few.
#[derive(Clone, Debug)]
pub(crate) struct SampleQueue<T> {
    /// `None` where a sample has left.
    places: VecDeque<(u64, Option<T>)>,
    left: usize,
}

impl<T> Default for SampleQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SampleQueue<T> {
    pub(crate) const fn new() -> Self {
        Self { places: VecDeque::new(), left: 0 }
    }

    /// Returns how many samples there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.left
    }

    /// Adds a sample whose number is above all others.
    #[inline]
    pub(crate) fn push(&mut self, number: u64, sample: T) {
        debug_assert!(self.places.back().is_none_or(|(last, _)| *last < number), "numbers grow");
        self.places.push_back((number, Some(sample)));
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.places[self.place(number)?].1.as_ref()
    }

    pub(crate) fn sample_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places[place].1.as_mut()
    }

    /// Removes the first sample; returns it with its number.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<(u64, T)> {
        let (number, sample) = self.places.pop_front()?;
        self.tidy();
        Some((number, sample?))
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let sample = self.places[place].1.take()?;
        self.left += 1;
        self.tidy();
        Some(sample)
    }

    /// Gives up places from which samples have left: those at the front, and all if they are too many.
    #[inline]
    fn tidy(&mut self) {
        while self.places.pop_front_if(|(_, sample)| sample.is_none()).is_some() {
            self.left -= 1;
        }
        if self.left > FEW && self.left * 2 > self.places.len() {
            self.places.retain(|(_, sample)| sample.is_some());
            self.left = 0;
        }
    }

    /// Returns the samples with their numbers, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        present(self.places.iter())
    }

    /// Returns the samples from number `first` on, as [`SampleQueue::iter`] does.
    #[inline]
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &T)> {
        let before = match self.places.back() {
            // What is asked for mostly is at the end.
            Some((last, _)) if *last < first => self.places.len(),
            _ => self
                .place(first)
                .unwrap_or_else(|| self.places.partition_point(|(number, _)| *number < first)),
        };
        present(self.places.range(before..))
    }

    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
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

fn present<'a, T: 'a>(
    places: impl Iterator<Item = &'a (u64, Option<T>)>,
) -> impl Iterator<Item = (u64, &'a T)> {
    places.filter_map(|(number, sample)| Some((*number, sample.as_ref()?)))
}

/// A map from numbers to samples.
impl<T: Serialize> Serialize for SampleQueue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (number, sample) in self.iter() {
            map.serialize_entry(&number, sample)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SampleQueue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Samples<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Samples<T> {
            type Value = SampleQueue<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("samples with numbers that grow")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut samples = SampleQueue::new();
                let mut next = 0;
                while let Some((number, sample)) = map.next_entry::<u64, T>()? {
                    if number < next {
                        return Err(serde::de::Error::custom("the numbers of samples do not grow"));
                    }
                    next = number
                        .checked_add(1)
                        .ok_or_else(|| serde::de::Error::custom("the numbers of samples end"))?;
                    samples.push(number, sample);
                }
                Ok(samples)
            }
        }

        deserializer.deserialize_map(Samples(PhantomData))
    }
}

/// As many places may be empty in any case.
const FEW: usize = 32;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_do_not_grow_are_refused() {
        let samples = |numbers: [u64; 2]| postcard::to_stdvec(&vec![(numbers[0], 0u8), (numbers[1], 0)]);
        let read = |bytes: Vec<u8>| postcard::from_bytes::<SampleQueue<u8>>(&bytes);
        for (numbers, is_accepted) in [([3, 4], true), ([3, 9], true), ([3, 3], false), ([3, 2], false)] {
            let bytes = samples(numbers).expect("numbers can be serialised");
            assert_eq!(read(bytes).is_ok(), is_accepted, "{numbers:?}");
        }
        let last = samples([0, u64::MAX]).expect("numbers can be serialised");
        assert!(read(last).is_err(), "no number follows that one");
    }

    proptest! {
        /// It holds what an ordered map holds, and is read as one; and its places are bounded by what it holds.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..4, any::<prop::sample::Index>()), 0..400)) {
            let (mut queue, mut map, mut next) = (SampleQueue::new(), BTreeMap::new(), 0);
            for (gap, index) in steps {
                if gap == 0 && index.index(2) == 0 {
                    prop_assert_eq!(queue.pop_first(), map.pop_first());
                } else if gap > 1 && !map.is_empty() {
                    // Of those that are there, or one that is not.
                    let number = *map.keys().nth(index.index(map.len())).expect("it is one of them") + (gap - 2);
                    prop_assert_eq!(queue.remove(number), map.remove(&number));
                } else {
                    next += gap + 1;
                    queue.push(next, next);
                    map.insert(next, next);
                }
                let first = u64::try_from(index.index(usize::try_from(next).expect("few") + 2)).expect("few");
                prop_assert!(queue.from(first).eq(map.range(first..).map(|(number, sample)| (*number, sample))));
                prop_assert_eq!(queue.get(first), map.get(&first));
                prop_assert_eq!(queue.len(), map.len());
                prop_assert!(queue.places() <= 2 * map.len() + FEW + 1);
            }
            let bytes = postcard::to_stdvec(&queue).expect("it can be serialised");
            prop_assert_eq!(&bytes, &postcard::to_stdvec(&map).expect("it can be serialised"));
            let read: SampleQueue<u64> = postcard::from_bytes(&bytes).expect("it is one");
            prop_assert!(read.iter().eq(queue.iter()));
        }
    }
}
