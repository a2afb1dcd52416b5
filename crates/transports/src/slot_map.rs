//! Slots that are reused under new names, so that removed values leave nothing behind.

use std::fmt;

/// Values by name. A name has the slot's number in the low half and the number of its earlier uses in the
/// high half, so an expired name is detected (until its slot has been reused 65,536 times; only misuse
/// retains such names).
pub(crate) struct SlotMap<T> {
    places: Vec<Place<T>>,
    /// Slots without a value.
    free: Vec<u16>,
}

struct Place<T> {
    uses: u16,
    value: Option<T>,
}

impl<T> SlotMap<T> {
    /// Stores a value and returns its name.
    ///
    /// # Panics
    /// Panics if there are [`VALUES_MAX`] values.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            assert!(self.places.len() < VALUES_MAX, "more than {VALUES_MAX} values at a time (retire some)");
            self.places.push(Place { uses: 0, value: None });
            u16::try_from(self.places.len() - 1).expect("checked above")
        });
        let entry = &mut self.places[usize::from(place)];
        entry.value = Some(value);
        u32::from(entry.uses) << 16 | u32::from(place)
    }

    /// Returns the value with this name.
    #[inline]
    pub(crate) fn at(&self, name: u32) -> Option<&T> {
        let place = self.places.get(place_of(name))?;
        if u32::from(place.uses) == name >> 16 { place.value.as_ref() } else { None }
    }

    /// Same as [`SlotMap::at`], mutably.
    #[inline]
    pub(crate) fn at_mut(&mut self, name: u32) -> Option<&mut T> {
        let place = self.places.get_mut(place_of(name))?;
        if u32::from(place.uses) == name >> 16 { place.value.as_mut() } else { None }
    }

    /// Removes the value with this name, which expires.
    pub(crate) fn remove(&mut self, name: u32) -> Option<T> {
        self.at(name)?;
        let place = &mut self.places[place_of(name)];
        place.uses = place.uses.wrapping_add(1);
        self.free.push(u16::try_from(place_of(name)).expect("masked"));
        place.value.take()
    }

    /// Returns whether a value has, or had, this name.
    pub(crate) fn was_used(&self, name: u32) -> bool {
        self.places
            .get(place_of(name))
            .is_some_and(|place| name >> 16 < u32::from(place.uses) + u32::from(place.value.is_some()))
    }

    /// Returns the names of all values.
    pub(crate) fn names(&self) -> impl Iterator<Item = u32> {
        let name = |(place, entry): (u32, &Place<T>)| {
            entry.value.as_ref().map(|_| u32::from(entry.uses) << 16 | place)
        };
        (0..).zip(&self.places).filter_map(name)
    }

    /// Returns all values, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    /// Same as [`SlotMap::iter`], mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }
}

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T: fmt::Debug> fmt::Debug for SlotMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn place_of(name: u32) -> usize {
    (name & 0xffff) as usize
}

/// The number of values that 16 bits can name.
const VALUES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_under_another_name() {
        let mut slots = SlotMap::default();
        let [a, b] = ["a", "b"].map(|value| slots.insert(value));
        assert_eq!((slots.remove(a), slots.remove(a), slots.at(a)), (Some("a"), None, None));
        let c = slots.insert("c");
        assert!(c != a && c != b, "{c} was used as a name before");
        assert_eq!((slots.at(a), slots.at(b), slots.at(c)), (None, Some(&"b"), Some(&"c")));
        for _ in 0..200_000 {
            let name = slots.insert("d");
            assert_eq!(slots.remove(name), Some("d"));
        }
        assert_eq!(slots.places.len(), 3);
        assert_eq!(slots.iter().copied().collect::<Vec<_>>(), ["c", "b"]);
    }
}
