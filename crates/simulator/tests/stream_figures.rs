//! Effects that the paper's figures show hold in the simulator (EXS §IV.B).

use squall_simulator::blast::{BlastRun, MessageSizes, TransferPolicy};

/// The dynamic policy keeps up with the better one, both with equal ends and with the receiver ahead, over short and
/// long distances.
#[test]
fn dynamic_is_as_good_as_the_better_policy() {
    let speed = |blast: BlastRun| BlastRun { messages: 100, ..blast }.run().gigabits_per_second;
    for (receives, sends) in [(1, 1), (4, 4), (2, 1), (8, 4)] {
        let near = |policy| speed(BlastRun::fdr(policy, sends, receives));
        let far = |policy| speed(BlastRun::distant(policy, sends, receives));
        for run in [&near as &dyn Fn(TransferPolicy) -> f64, &far] {
            let best = run(TransferPolicy::Direct).max(run(TransferPolicy::Indirect));
            let dynamic = run(TransferPolicy::Dynamic);
            assert!(dynamic >= 0.95 * best, "{receives}, {sends}: {dynamic} Gb/s instead of {best}");
        }
    }
}

/// Where direct transfer has to wait for adverts and the ring is faster, the attempts cost little.
#[test]
fn tries_of_direct_transfer_cost_little() {
    for (size, receives, sends) in [(32 << 10, 2, 4), (8 << 10, 1, 4), (64 << 10, 1, 1), (128 << 10, 1, 2)] {
        let messages = (200 << 20) / size;
        let speed = |policy| BlastRun {
            sizes: MessageSizes::Fixed(size),
            messages,
            ..BlastRun::fdr(policy, sends, receives)
        };
        let [direct, indirect, dynamic] =
            [TransferPolicy::Direct, TransferPolicy::Indirect, TransferPolicy::Dynamic]
                .map(|policy| speed(policy).run().gigabits_per_second);
        assert!(direct < indirect, "{size}: {direct} and {indirect} Gb/s");
        assert!(dynamic >= 0.97 * indirect, "{size}: {dynamic} Gb/s instead of {indirect}");
    }
}

/// Before a trial of the adverts the ring drains, here for two spans: what drained was measured as what the adverts carry, as sends
/// that are short, and the sender stayed in the ring.
#[test]
fn a_ring_that_takes_long_to_drain_is_left() {
    let speed = |policy| {
        let mut blast =
            BlastRun { sizes: MessageSizes::Fixed(8192), messages: 16_000, ..BlastRun::fdr(policy, 32, 32) };
        blast.settings.ring_words = 128 << 10;
        blast.run().gigabits_per_second
    };
    let [direct, dynamic] = [TransferPolicy::Direct, TransferPolicy::Dynamic].map(speed);
    assert!(dynamic > 0.95 * direct, "{dynamic} of {direct} Gb/s");
}

/// [E10] A ring of the size of the bandwidth-delay product keeps 10 Gb/s with 24 ms each way full; a ring of an
/// eighth of that size does not.
#[test]
fn a_ring_of_bandwidth_times_delay_keeps_a_long_pipe_full() {
    let speed = |share: u64| {
        // More is in flight than the pipe holds, so the ring is the only limit.
        let mut blast = BlastRun { messages: 1280, ..BlastRun::distant(TransferPolicy::Indirect, 128, 128) };
        blast.settings.ring_words /= share;
        blast.run().gigabits_per_second
    };
    let (full, eighth) = (speed(1), speed(8));
    assert!(full > 8.0, "{full} Gb/s");
    assert!(eighth < 2.0, "{eighth} Gb/s");
}
