//! The paper's table III and figures 9–13 in the simulator (EXS §IV.B).

use squall_simulator::blast::{BlastReport, BlastRun, MessageSizes, TransferPolicy};

fn show(report: &BlastReport) -> String {
    format!(
        "{:6.2} Gb/s {:4} sw {:.4} cpu {:.2} |",
        report.gigabits_per_second,
        report.sender.mode_switches,
        report.sender.direct_ratio(),
        report.receiver_busy
    )
}

/// Runs all policies, and the paper's dynamic one.
fn line(name: &str, make: impl Fn(TransferPolicy) -> BlastRun) {
    let mut line = format!("{name} |");
    for policy in [TransferPolicy::Direct, TransferPolicy::Indirect, TransferPolicy::Dynamic] {
        line += &show(&make(policy).run());
    }
    line += &show(&make(TransferPolicy::Reference).run());
    println!("{line}");
}

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

#[test]
#[ignore = "prints"]
fn table_iii() {
    for (receives, sends) in
        [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16)]
    {
        line(&format!("{receives:2} {sends:2}"), |policy| BlastRun::fdr(policy, sends, receives));
    }
}

#[test]
#[ignore = "prints"]
fn figure_12() {
    for shift in 9..23 {
        line(&format!("{:7}", 1 << shift), |policy| {
            let messages = (400 << 20 >> shift).min(4000);
            BlastRun { sizes: MessageSizes::Fixed(1 << shift), messages, ..BlastRun::fdr(policy, 2, 4) }
        });
    }
}

#[test]
#[ignore = "prints"]
fn figure_11() {
    for size in [1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21] {
        for sends in [1, 2, 4, 8, 16, 32] {
            line(&format!("{size:7} {sends:2}"), |policy| {
                let messages = (200 << 20) / size;
                BlastRun {
                    sizes: MessageSizes::Fixed(size),
                    messages: messages.min(3000),
                    ..BlastRun::fdr(policy, sends, 32)
                }
            });
        }
    }
}

#[test]
#[ignore = "prints"]
fn figure_13() {
    for n in [1, 2, 4, 8, 16, 32] {
        line(&format!("{n:2}"), |policy| BlastRun {
            messages: 20 * n as u64,
            ..BlastRun::distant(policy, n, n)
        });
    }
}

/// With few receives and a peer that sleeps from time to time, the better policy depends on the size.
#[test]
#[ignore = "prints"]
fn crossings() {
    for (receives, sends) in [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4)] {
        for shift in 14..21 {
            line(&format!("{:7} {receives} {sends}", 1 << shift), |policy| {
                let messages = (400 << 20 >> shift).min(20_000);
                BlastRun {
                    sizes: MessageSizes::Fixed(1 << shift),
                    messages,
                    ..BlastRun::fdr(policy, sends, receives)
                }
            });
        }
    }
}

#[test]
#[ignore = "prints"]
fn matrix() {
    for distant in [false, true] {
        for wake_us in [0, 20] {
            for size in [512, 8 << 10, 64 << 10, 1 << 20] {
                for sends in [1, 4, 32] {
                    for receives in [1, 4, 32] {
                        let make = |policy| {
                            let base = if distant {
                                BlastRun::distant(policy, sends, receives)
                            } else {
                                BlastRun::fdr(policy, sends, receives)
                            };
                            let messages =
                                ((200 << 20) / size).min(if distant { 10 * sends as u64 } else { 20_000 });
                            BlastRun {
                                sizes: MessageSizes::Fixed(size),
                                messages,
                                wake_up: squall_fabric::Duration::from_micros(wake_us),
                                ..base
                            }
                        };
                        let [direct, indirect, dynamic] =
                            [TransferPolicy::Direct, TransferPolicy::Indirect, TransferPolicy::Dynamic]
                                .map(|policy| make(policy).run());
                        let best = direct.gigabits_per_second.max(indirect.gigabits_per_second);
                        println!(
                            "{} {distant} {wake_us:2} {size:7} s{sends:2} r{receives:2} ratio {:.3} | {} {} {}",
                            if dynamic.gigabits_per_second < 0.95 * best { "WEAK" } else { "fine" },
                            dynamic.gigabits_per_second / best,
                            show(&direct),
                            show(&indirect),
                            show(&dynamic)
                        );
                    }
                }
            }
        }
    }
}
