//! Reading and taking samples (OMG DDS 1.4 §2.2.2.5.3.8 and §2.2.2.5.1.1 to §2.2.2.5.1.8).

use crate::sample::{
    InstanceHandle, Position, Sample, SampleInfo, SampleState, StateMask, ViewState, system_time,
};

use super::{CachedInstance, CachedSample, ChangeKind, HistoryCache, SampleBytes};

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
        self.samples.iter().any(|(_, sample)| self.is_wanted(sample, states))
    }

    /// Returns samples in their order, and marks them as read or removes them.
    pub(crate) fn select(&mut self, selection: Selection<'_>, now: u64) -> Vec<Sample<SampleBytes>> {
        self.expire(now);
        let place = selection.instance.map(|instance| self.instances.find(instance.key()));
        let is_wanted = |(_, sample): &(u64, &CachedSample)| {
            self.is_wanted(sample, selection.states)
                && selection.before.is_none_or(|before| sample.change.position < before)
                && place.is_none_or(|place| place == Some(sample.change.instance))
        };
        let wanted = self.samples.iter().filter(is_wanted).map(|(number, _)| number);
        let mut chosen = Vec::with_capacity(self.samples.len().min(selection.samples_max));
        chosen.extend(wanted.take(selection.samples_max));
        let touched = self.count(&chosen);
        let mut found = Vec::with_capacity(chosen.len());
        for number in chosen {
            if selection.takes {
                let sample = self.remove(number).expect("it was found");
                let rank = self.instances.at_mut(sample.change.instance).rank();
                let info = self.describe(&sample, rank);
                found.push(Sample { data: info.is_valid.then_some(sample.change.data), info });
            } else if let Some(sample) = self.samples.get(number) {
                let rank = self.instances.at_mut(sample.change.instance).rank();
                let info = self.describe(sample, rank);
                let sample = self.samples.sample_mut(number).expect("it was there");
                found.push(Sample { data: info.is_valid.then(|| sample.change.data.share()), info });
                self.unread -= usize::from(!std::mem::replace(&mut sample.is_read, true));
            }
        }
        for place in touched {
            let instance = self.instances.at_mut(place);
            instance.view = ViewState::NotNew;
            self.forget_if_over(place);
        }
        found
    }

    /// Returns the places of the samples that were not read, before a position, in their order.
    pub(crate) fn unread_places(&self, before: Option<Position>) -> impl Iterator<Item = (Position, u32)> {
        let is_wanted = move |(_, sample): &(u64, &CachedSample)| {
            !sample.is_read && before.is_none_or(|before| sample.change.position < before)
        };
        let unread = self.samples.iter().filter(is_wanted);
        unread.map(|(_, sample)| (sample.change.position, sample.change.place))
    }

    fn is_wanted(&self, sample: &CachedSample, states: StateMask) -> bool {
        if states == StateMask::ANY {
            return true;
        }
        let instance = self.instances.at(sample.change.instance);
        states.accepts(sample.state(), instance.view, instance.state)
    }

    /// Counts how many of these samples each instance has; returns the places of these instances.
    fn count(&mut self, chosen: &[u64]) -> Vec<usize> {
        let mut touched = Vec::new();
        for number in chosen {
            let sample = self.samples.get(*number).expect("it was found");
            let (place, generation) = (sample.change.instance, sample.generation());
            let selected = &mut self.instances.at_mut(place).selected;
            if selected.0 == 0 {
                touched.push(place);
            }
            *selected = (selected.0 + 1, generation);
        }
        touched
    }

    /// Describes a sample as it is now.
    fn describe(&self, sample: &CachedSample, (following, last): (usize, u32)) -> SampleInfo {
        let CachedSample { change, disposals, losses, .. } = sample;
        let instance = self.instances.at(change.instance);
        let generation = sample.generation();
        SampleInfo {
            sample_state: sample.state(),
            view_state: instance.view,
            instance_state: instance.state,
            disposed_generation_count: *disposals,
            no_writers_generation_count: *losses,
            sample_rank: following,
            generation_rank: last - generation,
            absolute_generation_rank: instance.disposals + instance.losses - generation,
            source_timestamp: system_time(change.source_time),
            reception_timestamp: system_time(change.reception_time),
            instance: instance.handle.clone(),
            publication: change.writer,
            position: change.position,
            is_valid: change.kind == ChangeKind::Data,
        }
    }
}

impl CachedInstance {
    /// Passes over one of its samples that were counted; returns how many of them follow, and the generation of the last one.
    const fn rank(&mut self) -> (usize, u32) {
        self.selected.0 -= 1;
        self.selected
    }
}

impl CachedSample {
    /// Returns how many lives its instance had before.
    const fn generation(&self) -> u32 {
        self.disposals + self.losses
    }

    const fn state(&self) -> SampleState {
        if self.is_read { SampleState::Read } else { SampleState::NotRead }
    }
}
