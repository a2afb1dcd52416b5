//! The verdict on the tail of a log, as a table.
//!
//! The log ends behind its last good frame `last`: no frame that follows it can be read. What is behind is evidence, from
//! headers whose checks hold. A crash leaves at most [`in_flight_max`](crate::LogSettings::in_flight_max) frames behind, in
//! part or not at all, since no more are written at a time; and each frame says which frame was durable when it was written.
//!
//! | `is_unsure` | `known_durable` | `greatest` behind | `is_begun` | verdict |
//! |---|---|---|---|---|
//! | yes | any | any | any | damaged |
//! | no | > `last` | any | any | damaged |
//! | no | ≤ `last` | > `last` + `in_flight_max` | any | damaged |
//! | no | ≤ `last` | ≤ `last` + `in_flight_max` | yes, or a frame behind | torn |
//! | no | ≤ `last` | none | no | clean |
//!
//! A good frame behind a bad one is not damage by itself: with several frames in flight the later one may be whole.

use std::fmt;

use crate::mutation;

/// What a scan finds behind the last good frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailEvidence {
    /// The number of the last good frame; 0 if there is none.
    pub last: u64,
    /// The greatest `known_durable` of any frame.
    pub known_durable: u64,
    /// The greatest number of a frame behind, good or with a bad body; 0 if there is none.
    pub greatest: u64,
    /// Whether a frame of this log was begun where the next one belongs.
    pub is_begun: bool,
    /// Whether blocks cannot be read, are missing, or hold frames that belong elsewhere: no crash does that.
    pub is_unsure: bool,
}

/// What the tail of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailVerdict {
    /// It ends with its last frame.
    Clean,
    /// A crash has cut off frames that were being written, none of which was reported as persisted.
    Torn,
    /// Frames are missing that may have been reported as persisted: the log is good up to here, and unknown above.
    Damaged,
}

impl TailEvidence {
    /// Returns the verdict, where at most `in_flight_max` frames are written at a time [W7].
    #[must_use]
    pub fn verdict(&self, in_flight_max: u64) -> TailVerdict {
        let is_known = self.known_durable > self.last && !mutant!(CutKnownDurable);
        if self.is_unsure || is_known || self.greatest > self.last + in_flight_max {
            TailVerdict::Damaged
        } else if self.is_begun || self.greatest > self.last {
            TailVerdict::Torn
        } else {
            TailVerdict::Clean
        }
    }
}

impl fmt::Display for TailVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "clean",
            Self::Torn => "torn",
            Self::Damaged => "damaged",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [W7] Every set of bad frames of a small log, with every limit of frames in flight and every `known_durable` that such a
    /// log can have, against what a crash can and cannot do.
    ///
    /// Frames 1..=n were written in order. Frame f was written when `durable[f]` was durable, with f - 1 - `durable[f]` others in
    /// flight. The disk has the good ones.
    #[test]
    fn every_small_log_has_its_verdict() {
        let mut counts = [0; 3];
        for frames in 1..=6_u64 {
            for limit in 1..=4_u64 {
                each_history(frames, limit, &mut |durable| {
                    for bad in 0..1_u64 << frames {
                        counts[check(frames, limit, durable, bad) as usize] += 1;
                    }
                });
            }
        }
        assert!(counts.iter().all(|count| *count > 300), "all verdicts occur: {counts:?}");
    }

    /// All ways to write `frames` frames, `limit` at a time: what each knew to be durable. It never decreases.
    fn each_history(frames: u64, limit: u64, run: &mut dyn FnMut(&[u64])) {
        fn extend(durable: &mut Vec<u64>, frames: u64, limit: u64, run: &mut dyn FnMut(&[u64])) {
            let next = durable.len() as u64;
            if next > frames {
                return run(durable);
            }
            let least = durable.last().copied().unwrap_or(0).max(next.saturating_sub(limit));
            for known in least..next {
                durable.push(known);
                extend(durable, frames, limit, run);
                durable.pop();
            }
        }
        // Index 0 is no frame.
        extend(&mut vec![0], frames, limit, run);
    }

    fn check(frames: u64, limit: u64, durable: &[u64], bad: u64) -> TailVerdict {
        let is_bad = |frame: u64| bad >> (frame - 1) & 1 == 1;
        let last = (1..=frames).find(|frame| is_bad(*frame)).map_or(frames, |frame| frame - 1);
        let good: Vec<u64> = (1..=frames).filter(|frame| !is_bad(*frame)).collect();
        let known_durable = good.iter().map(|frame| durable[*frame as usize]).max().unwrap_or(0);
        let greatest = good.iter().copied().filter(|frame| *frame > last).max().unwrap_or(0);
        let is_begun = last < frames;
        let evidence = TailEvidence { last, known_durable, greatest, is_begun, is_unsure: false };
        let verdict = evidence.verdict(limit);
        // By a crash alone: when the last good frame was written, no bad one was durable.
        let by_crash =
            good.iter().all(|frame| (durable[*frame as usize] + 1..*frame).count() as u64 <= limit)
                && good.iter().all(|frame| durable[*frame as usize] <= last);
        let expected = match (by_crash, is_begun) {
            (true, false) => TailVerdict::Clean,
            (true, true) => TailVerdict::Torn,
            (false, _) => TailVerdict::Damaged,
        };
        assert_eq!(verdict, expected, "{frames} {limit} {durable:?} {bad:b}");
        // However much else is known, doubt is never cut.
        assert_eq!(TailEvidence { is_unsure: true, ..evidence }.verdict(limit), TailVerdict::Damaged);
        // A frame further away than frames can be in flight is proof by itself.
        if greatest > 0 {
            let far = TailEvidence { known_durable: 0, greatest: last + limit + 1, ..evidence };
            assert_eq!(far.verdict(limit), TailVerdict::Damaged);
            assert_eq!(TailEvidence { greatest: last + limit, ..far }.verdict(limit), TailVerdict::Torn);
        }
        verdict
    }

    #[test]
    fn without_evidence_a_log_is_clean() {
        assert_eq!(TailEvidence::default().verdict(1), TailVerdict::Clean);
        assert_eq!(TailEvidence { is_begun: true, ..Default::default() }.verdict(1), TailVerdict::Torn);
    }
}
