//! Random interleavings: both directions at once, all kinds, policies and flags, and any order of events (EXS fig.
//! 2–5).

use squall_fabric::Duration;
use squall_fabric::sim::Prng;

use super::pair::{EndPair, PairFault, PairSide, ensure};
use crate::stream::{CREDITS_MIN, SocketKind, StreamSettings, TransferPolicy};

/// The totals of all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamRunTally {
    pub(super) runs: u64,
    pub(super) moves: u64,
    pub(super) bytes: u64,
    pub(super) direct: u64,
    pub(super) indirect: u64,
    pub(super) switches: u64,
    pub(super) resumed: u64,
    pub(super) too_long: u64,
    /// Adverts that were not used.
    pub(super) dropped: u64,
}

/// The weight of each kind of move in one run. Some kinds are missing, which exposes bugs that need one kind without
/// another.
struct Habits {
    weights: [u64; MOVES],
    length_max: u64,
    copy_max: u64,
    wait_all_per_mille: u32,
    outstanding_max: usize,
}

const MOVES: usize = 8;

/// The moves of both sides in one run.
pub(super) const MOVES_PER_RUN: u64 = 150;

fn settings(prng: &mut Prng) -> [StreamSettings; 2] {
    let kind = if prng.chance(200) { SocketKind::Packets } else { SocketKind::Stream };
    let policy = match prng.below(6) {
        0 => TransferPolicy::Direct,
        1 => TransferPolicy::Indirect,
        2 => TransferPolicy::Reference,
        _ => TransferPolicy::Dynamic,
    };
    let ring_words_max = if prng.chance(500) { 4 } else { 40 };
    [(); 2].map(|()| StreamSettings {
        kind,
        policy,
        renewal: prng.chance(600),
        // In half of the runs copies are so slow that waiting for a few bytes is worth some moves.
        renewal_gap_bytes: 0,
        advert_bytes_min: if prng.chance(300) { prng.below(12) } else { 0 },
        copy_bytes_per_us: u64::from(prng.chance(500)),
        ring_words: 1 + prng.below(ring_words_max),
        credits: CREDITS_MIN + prng.below(8) as u32,
        sends_max: 1 + prng.index(6),
        receives_max: 1 + prng.index(6),
        ..StreamSettings::default()
    })
}

impl Habits {
    fn drawn(prng: &mut Prng) -> Self {
        let mut weights = [(); MOVES].map(|()| prng.below(9));
        // Cancellations are rare: an occasional one is enough to reach every state.
        weights[MOVES - 1] = u64::from(prng.chance(300));
        let length_max = if prng.chance(700) { 12 } else { 200 };
        let copy_max = if prng.chance(500) { 5 } else { u64::MAX };
        let wait_all_per_mille = [0, 500, 1000][prng.index(3)];
        Self { weights, length_max, copy_max, wait_all_per_mille, outstanding_max: 1 + prng.index(6) }
    }

    fn choose(&self, prng: &mut Prng) -> usize {
        let mut at = prng.below(self.weights.iter().sum());
        self.weights
            .iter()
            .position(|weight| {
                let hit = at < *weight;
                at = at.saturating_sub(*weight);
                hit
            })
            .unwrap_or(0)
    }
}

/// Performs one run; the same seed gives the same run.
pub(super) fn run(seed: u64, tally: &mut StreamRunTally) -> Result<(), PairFault> {
    let mut prng = Prng::new(seed);
    let settings = settings(&mut prng);
    let kind = settings[0].kind;
    let may_resume = kind == SocketKind::Stream
        && matches!(settings[0].policy, TransferPolicy::Dynamic | TransferPolicy::Reference);
    // When all receives are advertised again, the outstanding ones are irrelevant.
    let renewal = settings.each_ref().map(|settings| settings.renews() && settings.advert_bytes_min == 0);
    let mut pair = EndPair::new(settings);
    let alternates = prng.chance(500);
    let habits = [Habits::drawn(&mut prng), Habits::drawn(&mut prng)];
    for _ in 0..MOVES_PER_RUN {
        let i = prng.index(2);
        pair.now = pair.now + Duration::from_nanos(prng.below(300));
        step(&mut pair, i, &habits[i], kind, &mut prng)?;
        if alternates && prng.chance(60) {
            // Short sends may take either route at any time.
            pair.sides[i].end.prefer_ring(prng.chance(500));
        }
        if may_resume && prng.chance(15) {
            tally.resumed += u64::from(check_resume(&mut pair, i, renewal[1 - i])?);
        }
    }
    finish(&mut pair, kind)?;
    tally.count(&pair);
    Ok(())
}

fn step(
    pair: &mut EndPair,
    i: usize,
    habits: &Habits,
    kind: SocketKind,
    prng: &mut Prng,
) -> Result<(), PairFault> {
    let least = u64::from(kind == SocketKind::Stream);
    let length = least + prng.below(habits.length_max);
    let side = &pair.sides[i];
    match habits.choose(prng) {
        0 if side.sends_outstanding() < habits.outstanding_max => {
            pair.send(i, length);
        }
        1 if side.receives_outstanding() < habits.outstanding_max => {
            pair.receive(i, length, prng.chance(habits.wait_all_per_mille))?;
        }
        2 => {
            pair.post(i)?;
        }
        3 | 4 => {
            pair.deliver(i)?;
        }
        5 => {
            pair.copy(i, 1 + prng.below(habits.copy_max))?;
        }
        6 => {
            pair.place(i)?;
        }
        7 => take_back(pair, i, prng)?,
        _ => {}
    }
    Ok(())
}

fn take_back(pair: &mut EndPair, i: usize, prng: &mut Prng) -> Result<(), PairFault> {
    let receives = pair.sides[i].receive_ids();
    match prng.below(8) {
        0 => pair.end_stream(i),
        1 | 2 => pair.cancel_last_send(i)?,
        _ if !receives.is_empty() => pair.cancel_receive(i, receives[prng.index(receives.len())])?,
        _ => {}
    }
    Ok(())
}

/// [E2] Side `i` pauses until everything is delivered and the other side is ahead; then its next transfer must be
/// direct. Returns whether this could be tried.
pub(super) fn check_resume(pair: &mut EndPair, i: usize, renewal: bool) -> Result<bool, PairFault> {
    pair.sides[i].end.prefer_ring(false);
    pair.calm()?;
    let other = 1 - i;
    if pair.sides[i].is_ended || !renewal && pair.sides[other].receives_outstanding() > 0 {
        return Ok(false);
    }
    while pair.sides[other].receives_outstanding() == 0 {
        ensure!(pair.receive(other, 16, false)?, "a receive is refused though none is outstanding");
        pair.calm()?;
    }
    if pair.sides[i].sends_outstanding() > 0 {
        return Ok(false);
    }
    pair.sides[i].routes.clear();
    ensure!(pair.send(i, 1), "a send is refused though none is outstanding");
    while pair.post(i)? {}
    let routes = &pair.sides[i].routes;
    ensure!(routes == &[true], "[E2] zero-copy does not resume: {routes:?}");
    Ok(true)
}

/// Both sides end their streams; everything that was sent is received, and both know it [E7], [E8].
fn finish(pair: &mut EndPair, kind: SocketKind) -> Result<(), PairFault> {
    for _ in 0..ROUNDS_MAX {
        for i in 0..2 {
            pair.end_stream(i);
            if pair.sides[i].got < pair.sides[1 - i].sent || kind == SocketKind::Packets {
                pair.receive(i, 200, false)?;
            }
        }
        pair.calm()?;
        let is_over = |side: &PairSide| side.end.is_finished() && side.receives_outstanding() == 0;
        let [a, b] = &pair.sides;
        if is_over(a) && is_over(b) && a.got == b.sent && b.got == a.sent {
            break;
        }
    }
    for i in 0..2 {
        let (side, other) = (&pair.sides[i], &pair.sides[1 - i]);
        ensure!(side.got == other.sent, "[E8] {} bytes came out, {} went in", side.got, other.sent);
        ensure!(side.sends_outstanding() == 0, "{} sends hang", side.sends_outstanding());
        ensure!(side.receives_outstanding() == 0, "[E7] {} receives hang", side.receives_outstanding());
        ensure!(side.end.is_finished(), "[E7] an end does not know that all is over");
        let (own, peer) = (side.end.statistics(), other.end.statistics());
        ensure!(own.direct_bytes + own.indirect_bytes == side.sent, "bytes are counted wrong: {own:?}");
        ensure!(own.indirect_bytes == peer.copied_bytes, "copies are counted wrong: {own:?}, {peer:?}");
    }
    Ok(())
}

/// This exceeds the number of receives of 200 bytes that one run needs.
const ROUNDS_MAX: usize = 500;

impl StreamRunTally {
    fn count(&mut self, pair: &EndPair) {
        self.runs += 1;
        self.moves += MOVES_PER_RUN;
        for side in &pair.sides {
            let statistics = side.end.statistics();
            self.bytes += side.sent;
            self.direct += statistics.direct;
            self.indirect += statistics.indirect;
            self.switches += statistics.mode_switches;
            self.too_long += side.too_long;
            self.dropped += statistics.adverts_dropped;
        }
    }
}

/// Runs the seeds, and panics at the first fault.
fn run_seeds(seeds: std::ops::Range<u64>) -> StreamRunTally {
    let mut tally = StreamRunTally::default();
    for seed in seeds {
        if let Err(fault) = run(seed, &mut tally) {
            panic!("seed {seed}: {fault}");
        }
    }
    tally
}

/// [E8] The bytes received are the bytes sent, over many interleavings of all kinds, and every kind of event occurs
/// in them.
#[test]
fn bytes_out_are_bytes_in() {
    let tally = run_seeds(0..20_000);
    println!("{tally:?}");
    assert!(tally.bytes > 100_000 && tally.direct > 10_000 && tally.indirect > 10_000, "{tally:?}");
    assert!(tally.switches > 5_000 && tally.resumed > 1_000 && tally.too_long > 100, "{tally:?}");
}

/// The same test over a million interleavings: `cargo test --release -p squall-protocols -- --ignored stream`.
#[test]
#[ignore = "takes minutes"]
fn bytes_out_are_bytes_in_over_a_million_interleavings() {
    let tally = run_seeds(1_000_000..2_000_000);
    println!("{tally:?}");
}
