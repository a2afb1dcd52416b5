//! The instances of a reader: by their keys, and by places that do not change.

use std::collections::BTreeMap;

use super::CachedInstance;
use crate::sample::{EndpointId, InstanceHandle};

/// The instances that a reader knows. A sample remembers the place of its instance, so that its key is not looked up each time.
///
/// Invariant: `by_key` has the places that are not empty, under the keys of the instances there, and `empty` the others.
#[derive(Debug, Default)]
pub(super) struct InstanceTable {
    by_key: BTreeMap<InstanceHandle, usize>,
    places: Vec<Option<CachedInstance>>,
    empty: Vec<usize>,
    /// Where the latest change was, which is often where the next one is.
    latest: usize,
}

impl InstanceTable {
    pub(super) const fn new() -> Self {
        Self { by_key: BTreeMap::new(), places: Vec::new(), empty: Vec::new(), latest: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the place of the instance with this key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        if let Some(Some(instance)) = self.places.get(self.latest)
            && instance.handle.key() == key
        {
            return Some(self.latest);
        }
        self.by_key.get(key).copied()
    }

    /// Returns the place of the instance with this key, which is changed now.
    #[inline]
    pub(super) fn locate(&mut self, key: &[u8]) -> Option<usize> {
        let place = self.find(key)?;
        self.latest = place;
        Some(place)
    }

    pub(super) fn add(&mut self, instance: CachedInstance) -> usize {
        let handle = instance.handle.clone();
        let place = self.empty.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(instance);
        self.by_key.insert(handle, place);
        place
    }

    pub(super) fn remove(&mut self, place: usize) {
        if let Some(instance) = self.places[place].take() {
            self.by_key.remove(&instance.handle);
            self.empty.push(place);
        }
    }

    /// Returns the instance at a place.
    ///
    /// # Panics
    /// If it is empty: only samples and keys name places, and an instance stays as long as it has samples.
    #[inline]
    pub(super) fn at(&self, place: usize) -> &CachedInstance {
        self.places[place].as_ref().expect("an instance is there as long as its place is named")
    }

    /// Returns the instance at a place.
    ///
    /// # Panics
    /// As [`InstanceTable::at`].
    #[inline]
    pub(super) fn at_mut(&mut self, place: usize) -> &mut CachedInstance {
        self.places[place].as_mut().expect("an instance is there as long as its place is named")
    }

    /// Returns the instances with their keys and places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&InstanceHandle, usize, &CachedInstance)> {
        self.by_key.iter().map(|(handle, place)| (handle, *place, self.at(*place)))
    }
}

/// Endpoints. Mostly there are few, and the same ones are added again and again.
#[derive(Debug, Default)]
pub(super) struct EndpointSet(
    /// In their order.
    Vec<EndpointId>,
);

impl EndpointSet {
    #[inline]
    pub(super) fn insert(&mut self, id: EndpointId) {
        if self.0.first() != Some(&id)
            && let Err(place) = self.0.binary_search(&id)
        {
            self.0.insert(place, id);
        }
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, id: EndpointId) -> bool {
        let place = self.0.binary_search(&id);
        place.is_ok_and(|place| self.0.remove(place) == id)
    }

    pub(super) fn contains(&self, id: EndpointId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
