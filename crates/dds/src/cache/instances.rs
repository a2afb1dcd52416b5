//! The instances of a reader: by their keys, and by places that do not change.

use std::collections::BTreeMap;

use super::CachedInstance;
use crate::sample::InstanceHandle;

/// The instances that a reader knows. A sample remembers the place of its instance, so that its key is not looked up each time.
///
/// Invariant: `by_key` has the places that are not empty, and `empty` the others.
#[derive(Debug, Default)]
pub(super) struct InstanceTable {
    by_key: BTreeMap<InstanceHandle, usize>,
    places: Vec<Option<CachedInstance>>,
    empty: Vec<usize>,
}

impl InstanceTable {
    pub(super) const fn new() -> Self {
        Self { by_key: BTreeMap::new(), places: Vec::new(), empty: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the place of the instance with this key, and the handle that it has here.
    pub(super) fn find(&self, key: &[u8]) -> Option<(usize, &InstanceHandle)> {
        self.by_key.get_key_value(key).map(|(handle, place)| (*place, handle))
    }

    pub(super) fn add(&mut self, handle: InstanceHandle, instance: CachedInstance) -> usize {
        let place = self.empty.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(instance);
        self.by_key.insert(handle, place);
        place
    }

    pub(super) fn remove(&mut self, handle: &InstanceHandle) {
        if let Some(place) = self.by_key.remove(handle) {
            self.places[place] = None;
            self.empty.push(place);
        }
    }

    /// Returns the instance at a place.
    ///
    /// # Panics
    /// If it is empty: only samples and keys name places, and an instance stays as long as it has samples.
    pub(super) fn at(&self, place: usize) -> &CachedInstance {
        self.places[place].as_ref().expect("an instance is there as long as its place is named")
    }

    /// Returns the instance at a place.
    ///
    /// # Panics
    /// As [`InstanceTable::at`].
    pub(super) fn at_mut(&mut self, place: usize) -> &mut CachedInstance {
        self.places[place].as_mut().expect("an instance is there as long as its place is named")
    }

    /// Returns the instances with their keys and places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&InstanceHandle, usize, &CachedInstance)> {
        self.by_key.iter().map(|(handle, place)| (handle, *place, self.at(*place)))
    }
}
