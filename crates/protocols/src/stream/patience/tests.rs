//! What waits are worth, without a network (EXS §IV.B, table III: equal numbers of sends and receives).

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A message that is short.
const MESSAGE: u64 = KIB;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// A MiB is copied in about 350 µs.
fn patience(round_trip_us: u64) -> Patience {
    let mut patience = Patience::new(3000);
    patience.on_round_trip(Duration::from_micros(round_trip_us));
    patience
}

/// Until when a sender waits that looks at `now` again and again.
fn wait(patience: &mut Patience, now: Instant, left: u64, is_direct: bool, in_use: u64) -> Option<Instant> {
    let waits = (0..=POLLS_UNCLOCKED).all(|_| patience.waits(now, left, is_direct, in_use));
    waits.then(|| patience.next_deadline().expect("it waits"))
}

#[test]
fn a_wait_has_an_end() {
    let mut patience = patience(4);
    let until = wait(&mut patience, at(0), MIB, true, 0).expect("it is worth that");
    assert!(until > at(1397) && until < at(1399), "four times the copy, {until:?}");
    assert!(patience.needs_clock_to_wait() && patience.waits(at(1397), MIB, true, 0));
    assert!(!patience.waits(at(1399), MIB, true, 0), "it took too long");
    patience.on_phase_end();
    assert!(!patience.waits(at(1400), MIB, true, 0), "the next one does not wait");
    assert!(!Patience::new(0).waits(at(0), MIB, true, 0), "switched off");
}

/// Answers that no receive was posted for, and whatever is far away, are not delayed.
#[test]
fn what_an_advert_cannot_reach_in_time_does_not_wait() {
    assert!(!patience(4).waits(at(0), 64, true, 0), "64 bytes are copied in 20 ns");
    assert!(!patience(48_000).waits(at(0), 64 * MIB, true, 0), "as far away as another continent");
    assert!(!patience(48_000).waits(at(0), 64 * MIB, false, MIB));
}

/// A send that waits is taken back, and the next one comes a second later: that was not the wait's length.
#[test]
fn a_wait_that_was_left_costs_no_more_than_it_was_meant_to() {
    let mut patience = patience(4);
    assert!(wait(&mut patience, at(0), MIB, true, 0).is_some());
    assert!(!patience.waits(at(1_000_000), MIB, true, 0));
    assert!(patience.next_trial < at(1_010_000), "{:?}", patience.next_trial);
}

/// A poll that did not read the clock may know an old time only; the wait is no shorter for that.
#[test]
fn a_wait_is_measured_from_a_time_that_was_read() {
    let mut patience = patience(4);
    assert!(patience.waits(at(0), MIB, true, 0) && !patience.needs_clock_to_wait());
    assert!(patience.waits(at(5_000), MIB, true, 0), "this one knows the time");
    assert!(patience.waits(at(6_390), MIB, true, 0));
    assert!(!patience.waits(at(6_400), MIB, true, 0));
}

/// A sender with a clock of its own. The peer reports what it has copied every 32 KiB.
struct Run {
    patience: Patience,
    nanos: u64,
    unreported: u64,
    direct: u64,
    ring: u64,
    is_direct: bool,
    /// How long the user pauses after each message, before the sender knows that it does.
    pause: u64,
    /// Whether adverts come when they are waited for.
    advertises: bool,
}

impl Run {
    fn new() -> Self {
        Self {
            patience: patience(1),
            nanos: 0,
            unreported: 0,
            direct: 0,
            ring: 0,
            is_direct: true,
            pause: 0,
            advertises: true,
        }
    }

    /// `mib` MiB in messages of `message` bytes, each of which takes `adverts` or `ring` nanoseconds. An advert is late by
    /// half of its message's time.
    fn send(&mut self, mib: u64, message: u64, adverts: u64, ring: u64) {
        for _ in 0..mib * MIB / message {
            let now = Instant::from_nanos(self.nanos);
            self.patience.on_time(now);
            let waits = !self.patience.prefers_ring(message) && self.wait(message, adverts / 2);
            if waits {
                self.nanos += adverts - adverts / 2;
                self.direct += message;
                self.is_direct = true;
                self.patience.on_direct(message);
            } else {
                self.nanos += ring;
                if self.is_direct {
                    self.patience.on_phase_end();
                }
                (self.is_direct, self.ring, self.unreported) =
                    (false, self.ring + message, self.unreported + message);
                self.patience.on_indirect(message);
                if self.unreported >= 32 * KIB {
                    self.patience.on_freed(std::mem::take(&mut self.unreported));
                }
            }
            if self.pause > 0 {
                self.patience.on_idle(Instant::from_nanos(self.nanos));
                self.nanos += self.pause;
            }
        }
    }

    /// Waits until an advert is there; whether one came in time.
    fn wait(&mut self, message: u64, late: u64) -> bool {
        let until = self.nanos + late;
        loop {
            if !self.patience.waits(Instant::from_nanos(self.nanos), message, self.is_direct, 0) {
                return false;
            }
            if self.advertises && self.nanos >= until {
                return true;
            }
            self.nanos += 5;
        }
    }

    /// The share of what went directly since the last look, in percent.
    fn direct_share(&mut self) -> u64 {
        let (direct, ring) = (std::mem::take(&mut self.direct), std::mem::take(&mut self.ring));
        100 * direct / (direct + ring)
    }
}

#[test]
fn the_faster_route_is_taken() {
    for (message, unit) in [(MESSAGE, 1), (64 * KIB, 64)] {
        let mut run = Run::new();
        run.send(1000, message, 500 * unit, 400 * unit);
        assert!(run.direct_share() <= 3, "the ring is faster by a fourth");
        assert!(run.nanos < 1000 * 1024 * 400 / 100 * 103, "trials cost {} ns", run.nanos);
        run.send(3000, message, 300 * unit, 400 * unit);
        run.direct_share();
        run.send(1000, message, 300 * unit, 400 * unit);
        assert!(run.direct_share() >= 97, "times have changed");
    }
}

/// Where the ring is much slower it is tried rarely, and where direct transfer is, it costs little.
#[test]
fn trials_cost_little() {
    for message in [MESSAGE, 64 * KIB] {
        for (adverts, ring) in [(100, 2000), (2000, 300)] {
            let mut run = Run::new();
            let unit = message / KIB;
            run.send(400, message, adverts * unit, ring * unit);
            let best = 400 * 1024 * adverts.min(ring);
            assert!(run.nanos < best / 100 * 105, "{message}: {} instead of {best}", run.nanos);
        }
    }
}

#[test]
fn alike_is_direct() {
    let mut run = Run::new();
    run.send(1000, MESSAGE, 405, 400);
    assert!(run.direct_share() >= 95, "the peer's processor has less to do");
}

/// A ring that is believed to be slower is tried by short sends, but not at once.
#[test]
fn what_is_most_likely_in_vain_is_tried_late() {
    let mut run = Run::new();
    run.send(16, MESSAGE, 200, 800);
    assert_eq!(run.direct_share(), 100);
    run.send(2000, MESSAGE, 200, 100);
    assert!(run.direct_share() <= 10, "the belief was wrong");
}

/// A ring that was never touched is slow at first: the trial that met that is soon repeated.
#[test]
fn a_wrong_trial_does_not_last() {
    let mut run = Run::new();
    for _ in 0..300 {
        let ring = if run.ring < 2 << 20 { 520 } else { 400 };
        run.send(1, MESSAGE, 450, ring);
    }
    run.direct_share();
    run.send(300, MESSAGE, 450, 400);
    let share = run.direct_share();
    assert!(share <= 15, "{share} %");
}

/// One process or the other loses the processor occasionally, for some milliseconds.
#[test]
fn outliers_do_not_decide() {
    for (adverts, ring, direct) in [(500, 400, false), (400, 500, true)] {
        let mut run = Run::new();
        for _ in 0..200 {
            run.send(10, MESSAGE, adverts, ring);
            run.nanos += 4_000_000;
        }
        let share = run.direct_share();
        assert!(if direct { share >= 85 } else { share <= 15 }, "{share} %");
    }
}

/// Adverts that never come are waited for less and less; when they resume, that is noticed.
#[test]
fn waits_in_vain_become_rare() {
    let mut run = Run::new();
    run.advertises = false;
    run.send(2000, 64 * KIB, 10_000, 20_000);
    let ring = 2000 * 16 * 20_000;
    assert!(run.nanos < ring / 100 * 104, "{} ns instead of {ring}", run.nanos);
    assert_eq!(run.direct_share(), 0);
    run.advertises = true;
    run.send(2000, 64 * KIB, 10_000, 20_000);
    run.direct_share();
    run.send(100, 64 * KIB, 10_000, 20_000);
    assert!(run.direct_share() >= 99);
}

/// A user that sends long messages one at a time, and does something else meanwhile, takes the faster route too.
#[test]
fn pauses_of_the_user_are_not_counted() {
    for (adverts, ring, direct) in [(40_000, 20_000, false), (20_000, 40_000, true)] {
        let mut run = Run::new();
        run.pause = 300_000;
        run.send(500, 64 * KIB, adverts, ring);
        let share = run.direct_share();
        assert!(if direct { share >= 95 } else { share <= 5 }, "{share} %");
    }
}

#[test]
fn a_sender_that_pauses_takes_adverts() {
    let mut run = Run::new();
    run.send(200, MESSAGE, 500, 400);
    assert!(run.patience.prefers_ring(MESSAGE));
    assert!(!run.patience.prefers_ring(SHORT_MAX + 1), "long ones take adverts in any case");
    for _ in 0..PAUSES_MAX {
        run.patience.on_freed(MESSAGE);
        run.patience.on_pause();
        assert!(run.patience.knows_pause());
    }
    assert!(!run.patience.prefers_ring(MESSAGE));
    run.send(200, MESSAGE, 500, 400);
    assert!(run.patience.prefers_ring(MESSAGE), "it is at a limit again");
    run.patience.on_direct(SHORT_MAX + 1);
    assert!(!run.patience.prefers_ring(MESSAGE), "and now among long ones");
}

/// The paper's sender reads no clock and learns nothing.
#[test]
fn the_reference_does_nothing() {
    let mut patience = Patience::new(0);
    for i in 0..1000 {
        patience.on_time(at(i));
        patience.on_direct(MIB);
        patience.on_freed(MIB);
        patience.on_indirect(MESSAGE);
        patience.on_phase_end();
        assert!(!patience.needs_clock() && !patience.needs_clock_to_wait() && patience.knows_idle());
        assert!(!patience.waits(at(i), MIB, i % 2 == 0, MIB) && !patience.prefers_ring(1));
    }
}
