//! Reading and taking samples (OMG DDS 1.4 §2.2.2.5.3.8 and §2.2.2.5.1.1 to §2.2.2.5.1.8).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::sample::{
    InstanceHandle, Position, Sample, SampleInfo, SampleState, StateMask, ViewState, system_time,
};

use super::{CachedSample, ChangeKind, HistoryCache};

/// Which samples are wanted, and whether they leave the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection<'a> {
    pub(crate) samples_max: usize,
    pub(crate) states: StateMask,
    pub(crate) instance: Option<&'a InstanceHandle>,
    pub(crate) takes: bool,
    /// Samples at this position and after it are left out.
    pub(crate) before: Option<Position>,
}

impl HistoryCache {
    /// Returns whether there is a sample with one of these states.
    pub(crate) fn has(&self, states: StateMask) -> bool {
        self.samples.values().any(|sample| self.is_wanted(sample, states))
    }

    /// Returns samples in their order, and marks them as read or removes them.
    pub(crate) fn select(&mut self, selection: Selection<'_>, now: u64) -> Vec<Sample<Arc<[u8]>>> {
        self.expire(now);
        let is_wanted = |(_, sample): &(&u64, &CachedSample)| {
            self.is_wanted(sample, selection.states)
                && selection.before.is_none_or(|before| sample.change.position < before)
                && selection.instance.is_none_or(|instance| *instance == sample.change.instance)
        };
        let chosen: Vec<u64> = self
            .samples
            .iter()
            .filter(is_wanted)
            .map(|(number, _)| *number)
            .take(selection.samples_max)
            .collect();
        let found = self.describe(&chosen);
        let mut touched = BTreeSet::new();
        for number in chosen {
            if selection.takes {
                if let Some(sample) = self.remove(number) {
                    touched.insert(sample.change.instance);
                }
            } else if let Some(sample) = self.samples.get_mut(&number) {
                self.unread -= usize::from(!std::mem::replace(&mut sample.is_read, true));
                touched.insert(sample.change.instance.clone());
            }
        }
        for handle in touched {
            if let Some(instance) = self.instances.get_mut(&handle) {
                instance.view = ViewState::NotNew;
            }
            self.forget_if_over(&handle);
        }
        found
    }

    /// Returns the places of the samples that were not read, before a position, in their order.
    pub(crate) fn unread_places(&self, before: Option<Position>) -> impl Iterator<Item = (Position, u32)> {
        let is_wanted = move |sample: &&CachedSample| {
            !sample.is_read && before.is_none_or(|before| sample.change.position < before)
        };
        let unread = self.samples.values().filter(is_wanted);
        unread.map(|sample| (sample.change.position, sample.change.place))
    }

    fn is_wanted(&self, sample: &CachedSample, states: StateMask) -> bool {
        let instance = &self.instances[&sample.change.instance];
        states.accepts(sample.state(), instance.view, instance.state)
    }

    /// Describes these samples as they are now.
    fn describe(&self, chosen: &[u64]) -> Vec<Sample<Arc<[u8]>>> {
        // From the last one: how many samples of the same instance follow, and the generation of the last of them.
        let mut following = BTreeMap::<&InstanceHandle, (usize, u32)>::new();
        let mut found: Vec<_> = chosen
            .iter()
            .rev()
            .map(|number| {
                let sample = &self.samples[number];
                let CachedSample { change, disposals, losses, .. } = sample;
                let instance = &self.instances[&change.instance];
                let generation = disposals + losses;
                let (rank, last) = following.entry(&change.instance).or_insert((0, generation));
                let info = SampleInfo {
                    sample_state: sample.state(),
                    view_state: instance.view,
                    instance_state: instance.state,
                    disposed_generation_count: *disposals,
                    no_writers_generation_count: *losses,
                    sample_rank: *rank,
                    generation_rank: *last - generation,
                    absolute_generation_rank: instance.disposals + instance.losses - generation,
                    source_timestamp: system_time(change.source_time),
                    reception_timestamp: system_time(change.reception_time),
                    instance: change.instance.clone(),
                    publication: change.writer,
                    position: change.position,
                    is_valid: change.kind == ChangeKind::Data,
                };
                *rank += 1;
                let data = info.is_valid.then(|| Arc::clone(&change.data));
                Sample { data, info }
            })
            .collect();
        found.reverse();
        found
    }
}

impl CachedSample {
    const fn state(&self) -> SampleState {
        if self.is_read { SampleState::Read } else { SampleState::NotRead }
    }
}
