//! Regions in use, by number: for queues of posts, which refer to the same few regions again and again.
//!
//! Counting a reference to a region takes a locked instruction, and moving one takes six words through
//! memory. So a queue keeps a number, and the region stays where it is, with a count of the numbers in use.

use crate::Region;

/// Regions by number, each kept while it is used. The region whose use ended last is kept until another's use
/// ends: usually it is posted next.
#[derive(Debug, Default)]
pub struct RegionSlab {
    places: Vec<Place>,
    /// Places without a region.
    free: Vec<u32>,
    /// The number of the last region that was put.
    last: u32,
    /// The place of the one kept region that is not in use.
    idle: Option<u32>,
}

#[derive(Debug)]
struct Place {
    region: Option<Region>,
    uses: u32,
}

impl RegionSlab {
    /// Adds `region` to the slab, or adds a use of it; returns its number.
    #[inline]
    pub fn put(&mut self, region: &Region) -> u32 {
        for number in [Some(self.last), self.idle].into_iter().flatten() {
            if let Some(place) = self.places.get_mut(number as usize)
                && place.region.as_ref().is_some_and(|held| held.is_same(region))
            {
                place.uses += 1;
                self.last = number;
                self.idle = self.idle.filter(|idle| *idle != number);
                return number;
            }
        }
        self.put_new(region)
    }

    #[cold]
    fn put_new(&mut self, region: &Region) -> u32 {
        let place = Place { region: Some(region.clone()), uses: 1 };
        let number =
            self.free.pop().unwrap_or_else(|| u32::try_from(self.places.len()).expect("few regions"));
        match self.places.get_mut(number as usize) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        self.last = number;
        number
    }

    /// Returns the region with that number.
    ///
    /// # Panics
    /// Panics if it is not in use.
    #[inline]
    #[must_use]
    pub fn at(&self, number: u32) -> &Region {
        self.places[number as usize].region.as_ref().expect("it is in use")
    }

    /// Ends one use.
    #[inline]
    pub fn take(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.uses -= 1;
        if place.uses == 0
            && let Some(idle) = self.idle.replace(number)
        {
            self.drop_idle(idle);
        }
    }

    /// Returns whether `region` is in use.
    #[must_use]
    pub fn has_in_use(&self, region: &Region) -> bool {
        let is_it = |place: &Place| place.region.as_ref().is_some_and(|held| held.is_same(region));
        self.places.iter().any(|place| place.uses > 0 && is_it(place))
    }

    /// Drops `region` if it is not in use.
    pub fn forget(&mut self, region: &Region) {
        let idle = self.idle.take_if(|idle| {
            self.places[*idle as usize].region.as_ref().is_some_and(|held| held.is_same(region))
        });
        if let Some(idle) = idle {
            self.drop_idle(idle);
        }
    }

    #[cold]
    fn drop_idle(&mut self, number: u32) {
        self.places[number as usize].region = None;
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;
    use std::collections::VecDeque;
    use std::sync::Arc;

    fn holders(region: &Region) -> usize {
        Arc::strong_count(region.memory())
    }

    /// Compares the slab with a queue of clones, with one and with many regions, in any order.
    #[test]
    fn numbers_name_their_regions() {
        let regions: Vec<_> = (0..5).map(|id| Region::heap(RegionId(id), 1)).collect();
        let mut prng = crate::sim::Prng::new(7);
        for choice in 1..=5 {
            let (mut slab, mut posted) = (RegionSlab::default(), VecDeque::new());
            for _ in 0..1000 {
                if posted.len() < 8 && prng.draw().is_multiple_of(2) {
                    let region = &regions[(prng.draw() % choice) as usize];
                    posted.push_back((slab.put(region), region.id()));
                } else if let Some((number, id)) = posted.pop_front() {
                    assert_eq!(slab.at(number).id(), id);
                    slab.take(number);
                }
            }
        }
        assert!(regions.iter().all(|region| holders(region) == 1));
    }

    /// Memory that is no longer used is held until the use of another region ends, and no longer.
    #[test]
    fn one_region_without_use_is_held() {
        let [one, two] = [1, 2].map(|id| Region::heap(RegionId(id), 1));
        let mut slab = RegionSlab::default();
        let (first, again) = (slab.put(&one), slab.put(&one));
        assert_eq!((first, holders(&one)), (again, 2), "a second use is no second reference");
        slab.take(first);
        slab.take(again);
        assert_eq!(holders(&one), 2);
        let other = slab.put(&two);
        assert_eq!(holders(&one), 2, "the other is in use");
        slab.take(other);
        assert_eq!((holders(&one), holders(&two)), (1, 2));
        slab.forget(&one);
        assert_eq!(holders(&two), 2);
        let used = slab.put(&two);
        slab.forget(&two);
        assert!(slab.has_in_use(&two) && slab.at(used).is_same(&two), "it is in use");
        slab.take(used);
        assert!(!slab.has_in_use(&two));
        slab.forget(&two);
        assert_eq!(holders(&two), 1);
    }
}
