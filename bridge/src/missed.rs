//! Which samples of the RTPS domain did not come: a writer numbers its own, one after the other (RTPS 2.5 §8.3.5.4).

use std::collections::BTreeMap;

use crate::rtps::RtpsEndpointBytes;

/// The numbers of the samples that came.
///
/// A writer that is seen for the first time has missed nothing, whatever its number. Ends of instances have numbers as well; of some, RustDDS
/// does not say the writer, so each one of those explains one number that is missing, of any writer.
#[derive(Debug, Default)]
pub(crate) struct SampleNumbers {
    last: BTreeMap<RtpsEndpointBytes, i64>,
    unknown: u64,
}

impl SampleNumbers {
    /// Notes the sample of this number; returns how many of its writer between this and the one before did not come.
    pub(crate) fn note(&mut self, writer: RtpsEndpointBytes, number: i64) -> u64 {
        let last = self.last.entry(writer).or_insert(number);
        let gap = u64::try_from(number.saturating_sub(*last).saturating_sub(1)).unwrap_or(0);
        *last = number.max(*last);
        let explained = gap.min(self.unknown);
        self.unknown -= explained;
        gap - explained
    }

    /// Notes the end of an instance of some writer.
    pub(crate) const fn note_unknown(&mut self) {
        self.unknown += 1;
    }

    /// Forgets a writer that has gone.
    pub(crate) fn forget(&mut self, writer: RtpsEndpointBytes) {
        self.last.remove(&writer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RtpsEndpointBytes = [1; 16];
    const OTHER: RtpsEndpointBytes = [2; 16];

    #[test]
    fn gaps_are_counted_per_writer() {
        let mut numbers = SampleNumbers::default();
        let missed = [(ONE, 7), (ONE, 8), (OTHER, 3), (ONE, 11), (ONE, 10), (ONE, 12), (OTHER, 4)]
            .map(|(writer, number)| numbers.note(writer, number));
        assert_eq!(missed, [0, 0, 0, 2, 0, 0, 0], "a late one is no gap, and none is counted twice");
        numbers.forget(ONE);
        assert_eq!(numbers.note(ONE, 90), 0);
        assert_eq!(numbers.note(ONE, i64::MIN), 0, "a foreign number");
        assert_eq!(numbers.note(ONE, i64::MAX), u64::try_from(i64::MAX).unwrap() - 91);
    }

    #[test]
    fn an_end_of_an_instance_explains_a_gap() {
        let mut numbers = SampleNumbers::default();
        numbers.note(ONE, 1);
        numbers.note_unknown();
        assert_eq!((numbers.note(ONE, 3), numbers.note(ONE, 6)), (0, 2));
    }
}
