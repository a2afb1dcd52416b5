//! Reading and taking samples (OMG DDS 1.4 §2.2.2.5.3.8 and §2.2.2.5.1.1 to §2.2.2.5.1.8).

use crate::sample::{
    InstanceHandle, Position, Sample, SampleInfo, SampleState, StateMask, ViewState, system_time,
};

use super::instances::InstanceTable;
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
        if selection.takes_the_first() {
            return self.take_first(selection.samples_max);
        }
        let place = selection.instance.map(|instance| self.instances.find(instance.key()));
        let is_wanted = |(_, sample): &(u64, &CachedSample)| {
            self.is_wanted(sample, selection.states)
                && selection.before.is_none_or(|before| sample.change.position < before)
                && place.is_none_or(|place| place == Some(sample.change.instance))
        };
        let wanted = self.samples.iter().filter(is_wanted).map(|(number, _)| number);
        let chosen: Vec<u64> = wanted.take(selection.samples_max).collect();
        let samples = chosen.iter().map(|number| self.samples.get(*number).expect("it was found"));
        let touched = self.instances.count(samples);
        let mut found = Vec::with_capacity(chosen.len());
        for number in chosen {
            if selection.takes {
                let sample = self.samples.remove(number).expect("it was found");
                found.push(self.hand_out(number, sample));
            } else if let Some(sample) = self.samples.sample_mut(number) {
                let info = self.instances.at_mut(sample.change.instance).describe(sample);
                found.push(Sample { data: info.is_valid.then(|| sample.change.data.share()), info });
                self.unread -= usize::from(!std::mem::replace(&mut sample.is_read, true));
            }
        }
        self.end_selection(touched);
        found
    }

    /// Takes the first samples, in one pass: what applications mostly do.
    fn take_first(&mut self, samples_max: usize) -> Vec<Sample<SampleBytes>> {
        let count = self.samples.len().min(samples_max);
        let touched = self.instances.count(self.samples.iter().take(count).map(|(_, sample)| sample));
        let mut found = Vec::with_capacity(count);
        for _ in 0..count {
            let (number, sample) = self.samples.pop_first().expect("it was counted");
            found.push(self.hand_out(number, sample));
        }
        self.end_selection(touched);
        found
    }

    /// Returns a sample that has been removed, as it was.
    #[inline]
    fn hand_out(&mut self, number: u64, sample: CachedSample) -> Sample<SampleBytes> {
        self.note_removal(number, &sample);
        let info = self.instances.at_mut(sample.change.instance).describe(&sample);
        Sample { data: info.is_valid.then_some(sample.change.data), info }
    }

    /// Notes that the application has seen samples of the instances at these places.
    fn end_selection(&mut self, touched: Vec<usize>) {
        for place in touched {
            self.instances.at_mut(place).view = ViewState::NotNew;
            self.forget_if_over(place);
        }
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
}

impl Selection<'_> {
    /// Whether it takes the first samples, whatever they are.
    fn takes_the_first(&self) -> bool {
        self.takes && self.states == StateMask::ANY && self.instance.is_none() && self.before.is_none()
    }
}

impl InstanceTable {
    /// Counts how many of these samples each instance has; returns the places of these instances.
    fn count<'a>(&mut self, samples: impl Iterator<Item = &'a CachedSample>) -> Vec<usize> {
        let mut touched = Vec::new();
        for sample in samples {
            let (place, generation) = (sample.change.instance, sample.generation());
            let selected = &mut self.at_mut(place).selected;
            if selected.0 == 0 {
                touched.push(place);
            }
            *selected = (selected.0 + 1, generation);
        }
        touched
    }
}

impl CachedInstance {
    /// Describes the next one of its samples that were counted, as it is now.
    #[inline]
    fn describe(&mut self, sample: &CachedSample) -> SampleInfo {
        self.selected.0 -= 1;
        let CachedSample { change, disposals, losses, .. } = sample;
        let ((following, last), generation) = (self.selected, sample.generation());
        SampleInfo {
            sample_state: sample.state(),
            view_state: self.view,
            instance_state: self.state,
            disposed_generation_count: *disposals,
            no_writers_generation_count: *losses,
            sample_rank: following,
            generation_rank: last - generation,
            absolute_generation_rank: self.disposals + self.losses - generation,
            source_timestamp: system_time(change.source_time),
            reception_timestamp: system_time(change.reception_time),
            instance: self.handle.clone(),
            publication: change.writer,
            position: change.position,
            is_valid: change.kind == ChangeKind::Data,
        }
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
