//! Signs of life: members that are silent for too long are suspected (Derecho §2).
//!
//! A member that was itself stopped, and resumes, has heard nothing from any other: it gives all others the whole
//! time again before it suspects them. For the same time it also considers an accusation against itself deserved
//! (`concession.rs`).

use squall_fabric::{Duration, Instant};

use super::MembershipSettings;
use crate::coverage::{Point, reach};

/// What one member knows about the others' signs of life.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    after: Duration,
    /// When the view began here.
    begun: Instant,
    /// The latest sign of each member, by rank, and when it was first seen here.
    heard: Vec<(u64, Instant)>,
    /// When this member last checked the signs, and when it checks again.
    looked: Instant,
    next: Instant,
    /// When this member resumed after its latest pause.
    back: Option<Instant>,
}

impl Silence {
    pub(super) fn new(settings: &MembershipSettings, members: usize, now: Instant) -> Option<Self> {
        let after = settings.suspicion_after?;
        Some(Self { after, begun: now, heard: vec![(0, now); members], looked: now, next: now, back: None })
    }

    /// Returns whether it is time to give a sign and to check those of the others, which is several times within
    /// `after`.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval();
        }
        is_due
    }

    /// Takes the signs of all members, by rank, and calls `silent` for those that were silent for too long.
    pub(super) fn look(
        &mut self,
        now: Instant,
        signs: impl Iterator<Item = u64>,
        mut silent: impl FnMut(usize),
    ) {
        let was_away = self.is_away(now);
        self.looked = now;
        if was_away {
            reach(Point::BackFromPause);
            self.back = Some(now);
        }
        for (rank, (sign, heard)) in signs.zip(&mut self.heard).enumerate() {
            if was_away || sign != heard.0 {
                *heard = (sign, now);
            } else if now.since(heard.1) > self.after {
                reach(Point::AccusedSilent);
                silent(rank);
            }
        }
    }

    /// Returns whether an accusation of which this member learns now may be caused by a pause of its own: it is just
    /// resuming, or has resumed within the time that the others wait.
    pub(super) fn has_paused(&self, now: Instant) -> bool {
        self.is_away(now) || self.back.is_some_and(|back| now.since(back) <= self.after)
    }

    /// Returns whether the view began here less than the time ago that a member may be silent.
    pub(super) fn has_just_begun(&self, now: Instant) -> bool {
        now.since(self.begun) < self.after
    }

    /// Continues from the previous view, in which a pause may have begun.
    pub(super) const fn follow(&mut self, earlier: &Self) {
        self.looked = earlier.looked;
        self.back = earlier.back;
    }

    /// Returns whether enough time has passed since this member's last check for others to consider it silent. They
    /// do so after no less than three intervals without a check here, minus the delay of its signs.
    fn is_away(&self, now: Instant) -> bool {
        now.since(self.looked) > 2 * self.interval()
    }

    /// Returns when it is due again.
    pub(super) const fn deadline(&self) -> Instant {
        self.next
    }

    fn interval(&self) -> Duration {
        self.after / MembershipSettings::BEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn silence() -> Silence {
        let after = Some(Duration::from_millis(400));
        Silence::new(
            &MembershipSettings { suspicion_after: after, ..MembershipSettings::default() },
            2,
            at(0),
        )
        .expect("is on")
    }

    #[test]
    fn a_member_that_is_silent_for_too_long_is_detected() {
        let mut silence = silence();
        let mut found = Vec::new();
        for millis in (0..=1000).step_by(100) {
            silence.look(at(millis), [millis.min(300), 1 + millis].into_iter(), |rank| {
                found.push((millis, rank))
            });
        }
        assert_eq!(found, [(800, 0), (900, 0), (1000, 0)]);
    }

    #[test]
    fn a_member_that_was_away_itself_suspects_no_other() {
        let mut silence = silence();
        silence.look(at(0), [1, 1].into_iter(), |_| panic!("too soon"));
        silence.look(at(5000), [1, 1].into_iter(), |_| panic!("it was away"));
        silence.look(at(5100), [1, 2].into_iter(), |_| panic!("too soon"));
    }

    /// A pause justifies accusations only for a while.
    #[test]
    fn a_pause_is_a_reason_to_be_accused_for_a_while() {
        let mut silence = silence();
        silence.look(at(0), [1, 1].into_iter(), |_| panic!("too soon"));
        assert!(!silence.has_paused(at(200)), "its signs were in time");
        assert!(silence.has_paused(at(201)), "it has not checked yet");
        silence.look(at(201), [1, 1].into_iter(), |_| panic!("it was away"));
        let mut next = self::silence();
        next.follow(&silence);
        for silence in [&mut silence, &mut next] {
            for millis in (250..=600).step_by(50) {
                assert!(silence.has_paused(at(millis)), "{millis}");
                silence.look(at(millis), [1, millis].into_iter(), |rank| {
                    assert_eq!((rank, millis > 600), (0, true))
                });
            }
            assert!(silence.has_paused(at(601)));
            assert!(!silence.has_paused(at(602)), "a later accusation has another reason");
        }
    }

    #[test]
    fn it_is_due_several_times() {
        let mut silence = silence();
        assert!(silence.is_due(at(0)));
        assert!(!silence.is_due(at(99)));
        assert_eq!((silence.deadline(), silence.is_due(at(100))), (at(100), true));
        assert!(!silence.is_due(at(199)));
    }
}
