//! What a reader holds: samples by instance, with the states of both (OMG DDS 1.4 §2.2.2.5.1). No I/O, no clock.
//!
//! [`HistoryCache::insert`] takes changes in the order of the topic; [`HistoryCache::select`] returns samples in the same order.

mod instances;
mod sample_bytes;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::buffer::SampleBuffer;
use crate::qos::{HistoryKind, ResourceLimits};
use crate::queue::SampleQueue;
use crate::sample::{EndpointId, InstanceHandle, InstanceState, Position, ViewState};

use instances::{EndpointSet, InstanceTable};

pub(crate) use sample_bytes::SampleBytes;
pub(crate) use selection::Selection;

/// What a writer does to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Data,
    Dispose,
    Unregister,
}

/// A change of an instance, which has a key in what comes from the topic, and a place in a reader.
#[derive(Clone, Debug)]
pub(crate) struct Change<I, D = SampleBytes> {
    pub(crate) kind: ChangeKind,
    pub(crate) writer: EndpointId,
    pub(crate) instance: I,
    /// What it says; or how to make that, which is done only if there is space for it.
    pub(crate) data: D,
    pub(crate) position: Position,
    /// Its place in the coherent set that has this position; 0 if it is by itself.
    pub(crate) place: u32,
    /// In nanoseconds since 1970, as all times here.
    pub(crate) source_time: u64,
    pub(crate) reception_time: u64,
    /// The time from which it is not returned any more.
    pub(crate) expires: Option<u64>,
}

/// Which of the [`ResourceLimits`] a sample would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// [`ResourceLimits::samples_max`].
    Samples,
    /// [`ResourceLimits::instances_max`].
    Instances,
    /// [`ResourceLimits::samples_per_instance_max`].
    SamplesPerInstance,
}

/// What has become of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    /// It is stored.
    Stored,
    /// It has replaced the oldest sample of its instance.
    Replaced,
    /// It has no effect: it came too soon after another one, too late, or changes nothing.
    Dropped,
    /// It is not stored; nothing has changed.
    Exceeds(LimitKind),
}

impl<D: FnOnce() -> SampleBytes> Change<&[u8], D> {
    /// Returns the same change of the instance at a place.
    fn at(self, place: usize) -> Change<usize> {
        Change {
            kind: self.kind,
            writer: self.writer,
            instance: place,
            data: (self.data)(),
            position: self.position,
            place: self.place,
            source_time: self.source_time,
            reception_time: self.reception_time,
            expires: self.expires,
        }
    }
}

#[derive(Debug)]
struct CachedInstance {
    handle: InstanceHandle,
    state: InstanceState,
    view: ViewState,
    /// The writers that have written it and not unregistered it.
    writers: EndpointSet,
    /// The numbers of its samples with data, oldest first.
    samples: VecDeque<u64>,
    /// The number of the sample that reports its state; the latest one replaces the others.
    report: Option<u64>,
    disposals: u32,
    losses: u32,
    /// The source time of the latest sample.
    latest: u64,
    /// While samples are selected: how many of it are still to come, and the generation of the last of them.
    selected: (usize, u32),
}

#[derive(Debug)]
struct CachedSample {
    change: Change<usize>,
    disposals: u32,
    losses: u32,
    is_read: bool,
}

/// What a reader holds.
///
/// Invariants: the samples of all instances are those of `samples`; `data_count` of them have data, and
/// `data_count <= limits.samples_max`; `instances.len() <= limits.instances_max`.
#[derive(Debug)]
pub(crate) struct HistoryCache {
    history: HistoryKind,
    limits: ResourceLimits,
    /// The least time between two samples of an instance, in nanoseconds.
    separation: u64,
    instances: InstanceTable,
    samples: SampleQueue<CachedSample>,
    data_count: usize,
    unread: usize,
    next: u64,
    /// Whether there has been a sample that expires.
    expires: bool,
}

impl HistoryCache {
    pub(crate) const fn new(history: HistoryKind, limits: ResourceLimits, separation: u64) -> Self {
        Self {
            history,
            limits,
            separation,
            instances: InstanceTable::new(),
            samples: SampleQueue::new(),
            data_count: 0,
            unread: 0,
            next: 0,
            expires: false,
        }
    }

    /// Takes the next change in the order of the topic.
    pub(crate) fn insert(&mut self, change: Change<&[u8], impl FnOnce() -> SampleBytes>) -> Insertion {
        let place = self.instances.locate(change.instance);
        match (change.kind, place) {
            (ChangeKind::Data, place) => self.insert_data(change, place),
            (_, None) => Insertion::Dropped,
            (ChangeKind::Dispose, Some(place)) => {
                if self.instances.at(place).state == InstanceState::NotAliveDisposed {
                    return Insertion::Dropped;
                }
                self.end_life(change, place, InstanceState::NotAliveDisposed)
            }
            (ChangeKind::Unregister, Some(place)) => {
                let instance = self.instances.at_mut(place);
                let was_there = instance.writers.remove(change.writer);
                let ends = was_there && instance.writers.is_empty() && instance.state == InstanceState::Alive;
                if ends {
                    self.end_life(change, place, InstanceState::NotAliveNoWriters)
                } else {
                    Insertion::Dropped
                }
            }
        }
    }

    /// Unregisters all instances of a writer that has gone, and disposes of them before if it `disposes`.
    pub(crate) fn remove_writer(&mut self, writer: EndpointId, disposes: bool, position: Position, now: u64) {
        let of_writer = self.instances.iter().filter(|(_, _, instance)| instance.writers.contains(writer));
        let left: Vec<InstanceHandle> = of_writer.map(|(handle, ..)| handle.clone()).collect();
        let kinds: &[ChangeKind] =
            if disposes { &[ChangeKind::Dispose, ChangeKind::Unregister] } else { &[ChangeKind::Unregister] };
        for (instance, kind) in
            left.iter().flat_map(|instance| kinds.iter().map(move |kind| (instance, *kind)))
        {
            self.insert(Change {
                kind,
                writer,
                instance: instance.key(),
                data: || SampleBytes::Own(SampleBuffer::default()),
                position,
                place: 0,
                source_time: now,
                reception_time: now,
                expires: None,
            });
        }
    }

    /// Returns which limit these changes, by kind and key, would exceed together; `None` if there is space for all of them.
    pub(crate) fn exceeds<'a>(
        &self,
        changes: impl Iterator<Item = (ChangeKind, &'a [u8])>,
    ) -> Option<LimitKind> {
        let mut held = BTreeMap::<InstanceHandle, usize>::new();
        let (mut data_count, mut instances) = (self.data_count, self.instances.len());
        for (_, key) in changes.filter(|(kind, _)| *kind == ChangeKind::Data) {
            let handle = InstanceHandle::from_key(key);
            let present = self.instances.find(key).map(|place| self.instances.at(place).samples.len());
            let of_instance = held.entry(handle).or_insert_with(|| {
                instances += usize::from(present.is_none());
                present.unwrap_or(0)
            });
            match self.history {
                HistoryKind::KeepLast(depth) if *of_instance >= depth => continue,
                _ if *of_instance >= self.limits.samples_per_instance_max => {
                    return Some(LimitKind::SamplesPerInstance);
                }
                _ => (*of_instance, data_count) = (*of_instance + 1, data_count + 1),
            }
            if instances > self.limits.instances_max {
                return Some(LimitKind::Instances);
            }
            if data_count > self.limits.samples_max {
                return Some(LimitKind::Samples);
            }
        }
        None
    }

    /// Returns an empty cache with the same limits.
    pub(crate) const fn emptied(&self) -> Self {
        Self::new(self.history, self.limits, self.separation)
    }

    /// Returns how many samples with data it holds.
    pub(crate) const fn data_count(&self) -> usize {
        self.data_count
    }

    /// Returns whether samples with data leave in the order in which they came: there is one instance at most.
    #[inline]
    pub(crate) fn is_in_order(&self) -> bool {
        self.instances.len() <= 1
    }

    /// Returns whether there are samples that were not read.
    pub(crate) const fn has_unread(&self) -> bool {
        self.unread > 0
    }

    fn insert_data(
        &mut self,
        change: Change<&[u8], impl FnOnce() -> SampleBytes>,
        place: Option<usize>,
    ) -> Insertion {
        if change.expires.is_some_and(|at| at <= change.reception_time) {
            return Insertion::Dropped;
        }
        let mut replaced = None;
        match place {
            None if self.instances.len() >= self.limits.instances_max => {
                return Insertion::Exceeds(LimitKind::Instances);
            }
            None => {}
            Some(place) => {
                let instance = self.instances.at_mut(place);
                let is_soon = change.source_time < instance.latest.saturating_add(self.separation);
                if self.separation > 0 && is_soon && instance.state == InstanceState::Alive {
                    instance.writers.insert(change.writer);
                    return Insertion::Dropped;
                }
                match self.history {
                    HistoryKind::KeepLast(depth) if instance.samples.len() >= depth => {
                        replaced = instance.samples.front().copied();
                    }
                    _ if instance.samples.len() >= self.limits.samples_per_instance_max => {
                        return Insertion::Exceeds(LimitKind::SamplesPerInstance);
                    }
                    _ => {}
                }
            }
        }
        if replaced.is_none() && self.data_count >= self.limits.samples_max {
            return Insertion::Exceeds(LimitKind::Samples);
        }
        if let Some(number) = replaced {
            self.remove(number);
        }
        let place = self.begin_life(&change, place);
        self.store(change.at(place));
        if replaced.is_some() { Insertion::Replaced } else { Insertion::Stored }
    }

    /// Makes the instance of `change`, which is at `place` if it is known, alive; returns its place.
    fn begin_life<D>(&mut self, change: &Change<&[u8], D>, place: Option<usize>) -> usize {
        let place = place.unwrap_or_else(|| {
            self.instances.add(CachedInstance {
                handle: InstanceHandle::from_key(change.instance),
                state: InstanceState::Alive,
                view: ViewState::New,
                writers: EndpointSet::default(),
                samples: VecDeque::new(),
                report: None,
                disposals: 0,
                losses: 0,
                latest: 0,
                selected: (0, 0),
            })
        });
        let instance = self.instances.at_mut(place);
        match instance.state {
            InstanceState::Alive => {}
            InstanceState::NotAliveDisposed => instance.disposals += 1,
            InstanceState::NotAliveNoWriters => instance.losses += 1,
        }
        if instance.state != InstanceState::Alive {
            (instance.state, instance.view) = (InstanceState::Alive, ViewState::New);
        }
        instance.writers.insert(change.writer);
        instance.latest = change.source_time;
        place
    }

    /// Ends the life of an instance, and reports that by a sample without data.
    fn end_life(
        &mut self,
        change: Change<&[u8], impl FnOnce() -> SampleBytes>,
        place: usize,
        state: InstanceState,
    ) -> Insertion {
        let instance = self.instances.at_mut(place);
        instance.state = state;
        if let Some(number) = instance.report {
            self.remove(number);
        }
        self.store(change.at(place));
        Insertion::Stored
    }

    fn store(&mut self, change: Change<usize>) {
        let number = self.next;
        self.next += 1;
        self.unread += 1;
        self.expires |= change.expires.is_some();
        let instance = self.instances.at_mut(change.instance);
        if change.kind == ChangeKind::Data {
            instance.samples.push_back(number);
            self.data_count += 1;
        } else {
            instance.report = Some(number);
        }
        let (disposals, losses) = (instance.disposals, instance.losses);
        self.samples.push(number, CachedSample { change, disposals, losses, is_read: false });
    }

    /// Removes a sample, and leaves its instance.
    fn remove(&mut self, number: u64) -> Option<CachedSample> {
        let sample = self.samples.remove(number)?;
        self.note_removal(number, &sample);
        Some(sample)
    }

    /// Notes that this sample is not there any more.
    #[inline]
    fn note_removal(&mut self, number: u64, sample: &CachedSample) {
        self.unread -= usize::from(!sample.is_read);
        let instance = self.instances.at_mut(sample.change.instance);
        if sample.change.kind == ChangeKind::Data {
            self.data_count -= 1;
            // Mostly the oldest one, since samples are taken in their order.
            if instance.samples.front() == Some(&number) {
                instance.samples.pop_front();
            } else {
                instance.samples.retain(|held| *held != number);
            }
        } else {
            instance.report.take_if(|report| *report == number);
        }
    }

    /// Forgets the instance at this place if it is not alive and has no samples.
    fn forget_if_over(&mut self, place: usize) {
        let instance = self.instances.at(place);
        if instance.state != InstanceState::Alive && instance.samples.is_empty() && instance.report.is_none()
        {
            self.instances.remove(place);
        }
    }

    /// Removes samples whose time is over.
    fn expire(&mut self, now: u64) {
        if !self.expires {
            return;
        }
        let is_over = |(_, sample): &(u64, &CachedSample)| sample.change.expires.is_some_and(|at| at <= now);
        let over: Vec<u64> = self.samples.iter().filter(is_over).map(|(number, _)| number).collect();
        let mut forgettable = BTreeSet::new();
        for number in over {
            if let Some(sample) = self.remove(number) {
                forgettable.insert(sample.change.instance);
            }
        }
        forgettable.into_iter().for_each(|place| self.forget_if_over(place));
    }
}
