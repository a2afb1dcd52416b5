//! What waits are worth, without a network (EXS §IV.B, table III: equal numbers of sends and receives).

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// A MiB is copied in about 350 µs.
fn patience(round_trip_us: u64) -> Patience {
    let mut patience = Patience::new(3000);
    patience.on_round_trip(Duration::from_micros(round_trip_us));
    patience
}

/// Cycles of `adverts` direct transfers of `bytes`, each with an advert `wait_us` too late and `cycle_us` in all.
fn cycles(patience: &mut Patience, adverts: u64, bytes: u64, wait_us: u64, cycle_us: u64) -> bool {
    let mut stays = true;
    for i in 0..20 {
        (0..adverts).for_each(|_| patience.on_direct(at(cycle_us * i), bytes));
        stays = patience.stays(at(cycle_us * (i + 1) - wait_us), bytes);
    }
    stays
}

#[test]
fn a_wait_has_an_end() {
    let mut patience = patience(4);
    assert!(patience.stays(at(0), MIB) && patience.stays(at(1397), MIB));
    assert!(patience.next_deadline().is_some_and(|until| until > at(1397) && until < at(1399)));
    assert!(!patience.stays(at(1399), MIB), "it took too long");
    assert!(!patience.stays(at(1400), MIB), "the next one is not waited for");
    assert!(!Patience::new(0).stays(at(0), MIB), "switched off");
}

/// What counts is the time of a cycle, not of a wait: one advert at a time for few bytes is not worth it, many at
/// a time or long ones are.
#[test]
fn direct_transfer_is_worth_waits_if_it_is_faster_than_copies() {
    assert!(cycles(&mut patience(4), 1, MIB, 60, 240));
    assert!(!cycles(&mut patience(4), 1, 8 * KIB, 2, 8), "8 KiB are copied in 3 µs");
    assert!(cycles(&mut patience(4), 32, 8 * KIB, 20, 60));
    assert!(!cycles(&mut patience(48_000), 32, MIB, 40, 48_000), "as far away as another continent");
}

/// The user's own pauses do not count.
#[test]
fn pauses_are_not_counted() {
    let mut patience = patience(4);
    for i in 0..20 {
        patience.on_direct(at(10_000 * i), MIB);
        patience.on_idle(at(10_000 * i + 200));
        patience.on_busy(at(10_000 * i + 9_960));
        assert!(patience.stays(at(10_000 * i + 9_960), MIB));
    }
    assert!(patience.cycle.abs_diff(Duration::from_micros(240)) < Duration::from_micros(1));
}

#[test]
fn what_was_learned_is_forgotten() {
    let mut patience = patience(4);
    assert!(!cycles(&mut patience, 1, 8 * KIB, 2, 8));
    patience.on_phase_end();
    let mut tries = 0;
    while !patience.stays(at(1000), 8 * KIB) {
        patience.on_indirect(at(1000), 8 * KIB);
        tries += 1;
    }
    assert!((100..1000).contains(&tries), "tried again after {tries}");
}

/// Each direct phase that brought little halves how often one is tried, within bounds; one that brought much ends that.
#[test]
fn direct_phases_in_vain_become_rare() {
    let mut patience = patience(4);
    let tries = |patience: &mut Patience, adverts| {
        cycles(patience, adverts, 8 * KIB, 2, 8);
        patience.on_phase_end();
        let tries = (0..).take_while(|_| {
            let goes_on = !patience.stays(at(1000), 8 * KIB);
            patience.on_indirect(at(1000), 8 * KIB);
            goes_on
        });
        tries.count()
    };
    let in_vain: Vec<usize> = (0..20).map(|_| tries(&mut patience, 1)).collect();
    assert!(in_vain[5] > 8 * in_vain[1], "{in_vain:?}");
    assert!(in_vain.iter().all(|tries| *tries < 64 * in_vain[1]), "{in_vain:?}");
    assert_eq!(patience.doubt, DOUBT_MAX);
    tries(&mut patience, 32);
    tries(&mut patience, 32);
    assert_eq!(patience.doubt, 0);
}

#[test]
fn a_sender_far_ahead_lets_the_ring_drain() {
    let mut near = patience(40);
    near.on_indirect(at(0), MIB);
    assert!(!near.has_begun_round(at(0), 0, 64 * KIB), "not far ahead");
    assert!(near.has_begun_round(at(0), 0, MIB) && near.has_begun_round(at(500), 0, MIB / 2));
    near.on_direct(at(600), MIB);
    assert!(!near.has_begun_round(at(601), 0, 64 * KIB));
    let mut far = patience(48_000);
    far.on_indirect(at(0), 64 * MIB);
    assert!(!far.has_begun_round(at(0), 0, 64 * MIB), "too far away");
    assert!(!Patience::new(0).has_begun_round(at(0), 0, 64 * MIB), "switched off");
}

/// One send after the other, each copied before the next: the ring is never full, but after some are tried another way.
#[test]
fn a_sender_that_is_not_ahead_tries_direct_transfer() {
    let (mut patience, mut rounds) = (patience(4), Vec::new());
    for i in 0..10_000 {
        let now = at(1_000 * i);
        if patience.has_begun_round(now, MIB, 0) {
            rounds.push(i);
            assert!(!patience.has_begun_round(at(1_000 * i + 100), MIB, 0), "no advert comes");
        }
        patience.on_indirect(now, MIB);
    }
    assert!(rounds.first().is_some_and(|first| *first < 10), "{rounds:?}");
    assert!(rounds.len() < 10_000 / 20, "{} turns in vain", rounds.len());
    for i in 0..10_000 {
        patience.on_indirect(at(10_000_000 + i), 512);
        assert!(
            !patience.has_begun_round(at(10_000_000 + i), 512, 0),
            "512 bytes are copied sooner than an advert comes"
        );
    }
}

/// What was sent long ago is copied, although the peer has not said so.
#[test]
fn a_sender_that_is_not_ahead_does_not_stop() {
    let mut patience = patience(4);
    for i in 0..1000 {
        patience.on_indirect(at(i), 64);
        assert!(
            !patience.has_begun_round(at(i), 0, 64 * i),
            "{i} messages of 64 bytes, one in a microsecond"
        );
    }
}

/// Whoever was put to sleep by the system once or twice is not judged by that.
#[test]
fn outliers_count_little() {
    let mut patience = patience(4);
    for i in 0..40 {
        patience.on_direct(at(250 * i), MIB);
        let slept_us = if i > 20 && i % 7 == 0 { 8_000 } else { 60 };
        patience.stays(at(250 * i + 180), MIB);
        patience.on_direct(at(250 * i + 180 + slept_us), 1);
    }
    assert!(patience.is_direct_faster());
}

#[test]
fn rounds_in_vain_are_forgotten() {
    let mut patience = patience(40);
    patience.on_indirect(at(0), MIB);
    while patience.round_factor < ROUND_FACTOR_MAX {
        patience.on_indirect(at(0), MIB);
        patience.has_begun_round(at(0), 0, 64 * MIB);
        patience.has_begun_round(at(1_000_000), 0, 64 * MIB);
    }
    let tries = (0..100_000).take_while(|i| {
        patience.on_indirect(at(1_000_000 + 350 * i), MIB);
        patience.round_factor > ROUND_FACTOR_MIN
    });
    assert!((1_000..100_000).contains(&tries.count()));
}

#[test]
fn rounds_in_vain_become_rare() {
    let mut patience = patience(40);
    patience.on_indirect(at(0), 64 * MIB);
    assert!(patience.has_begun_round(at(0), 0, MIB));
    for i in 1..4 {
        patience.on_direct(at(i), MIB / 2);
        patience.on_phase_end();
        patience.has_begun_round(at(i), 0, MIB);
    }
    assert!(!patience.has_begun_round(at(10), 0, MIB), "draining is not worth 16 adverts");
    assert!(patience.has_begun_round(at(10), 0, 8 * MIB));
}
