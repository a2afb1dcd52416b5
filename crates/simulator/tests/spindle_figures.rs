//! The tables of docs/results/spindle-sim.md: Spindle's figures 4 to 9, 11, 13 and 16 to 18, and §4.2.1, under the cost model of
//! its testbed.

use squall_fabric::Duration;
use squall_fabric::sim::CostModel;
use squall_protocols::multicast::{Batching, DeliveryMode};
use squall_simulator::figures::{DiskModel, Experiment, FigurePrediction, predict};

fn gigabytes(experiment: &Experiment) -> f64 {
    predict(experiment).bytes_per_second / 1e9
}

fn microseconds(prediction: &FigurePrediction) -> u64 {
    let count = prediction.latency_ns.len() as u64;
    prediction.latency_ns.iter().sum::<u64>() / count / 1000
}

/// Returns the experiment without any optimisation.
fn baseline(members: usize) -> Experiment {
    let mut experiment = Experiment::spindle(members);
    experiment.settings.batching = Batching::NONE;
    experiment.settings.null_sends = false;
    experiment
}

#[test]
#[ignore = "prints a table"]
fn figure_5() {
    println!("## Batching, stage by stage: 16 members, all send 10 KB, window 100 (Spindle fig. 5)\n");
    println!(
        "| batching at | GB/s per member | times the baseline | mean latency, µs | writes per message |"
    );
    println!("|---|---|---|---|---|");
    let stages = [
        ("none (baseline)", Batching::NONE, false),
        ("delivery", Batching { delivery: true, ..Batching::NONE }, false),
        ("delivery, receive", Batching { send: false, ..Batching::ALL }, false),
        ("delivery, receive, send", Batching::ALL, false),
        ("all three, and null-sends", Batching::ALL, true),
    ];
    let mut first = None;
    for (name, batching, null_sends) in stages {
        let mut experiment = Experiment::spindle(16);
        (experiment.settings.batching, experiment.settings.null_sends) = (batching, null_sends);
        let prediction = predict(&experiment);
        let rate = prediction.bytes_per_second / 1e9;
        let times = rate / *first.get_or_insert(rate);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let writes = prediction.posts as f64 / experiment.messages as f64;
        println!("| {name} | {rate:.2} | {times:.1} | {} | {writes:.1} |", microseconds(&prediction));
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_6() {
    println!("## Windows: all send 10 KB, GB/s per member (mean latency in µs) (Spindle fig. 6)\n");
    println!("| members | window 16 | window 100 | window 1000 |\n|---|---|---|---|");
    for members in 2..=16 {
        let mut line = format!("| {members} |");
        for window in [16, 100, 1000] {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.window = window;
            experiment.messages = 600.max(6 * window as u64);
            let prediction = predict(&experiment);
            let rate = prediction.bytes_per_second / 1e9;
            line += &format!(" {rate:.2} ({}) |", microseconds(&prediction));
        }
        println!("{line}");
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_16() {
    println!(
        "## Members and senders: all optimisations on, 10 KB, window 100, GB/s per member (Spindle fig. 16)\n"
    );
    println!("| members | all send | half send | one sends | all send, baseline |\n|---|---|---|---|---|");
    for members in [2_usize, 4, 8, 11, 12, 16] {
        let mut line = format!("| {members} |");
        for senders in [members, members.div_ceil(2), 1] {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.senders.truncate(senders);
            line += &format!(" {:.2} |", gigabytes(&experiment));
        }
        println!("{line} {:.2} |", gigabytes(&baseline(members)));
    }
}

#[test]
#[ignore = "prints a table"]
fn delayed_senders() {
    println!("## Delayed senders: 16 members, messages/s of each prompt sender (Spindle §4.2.1)\n");
    println!("| delayed senders | delay | null-sends | without null-sends |\n|---|---|---|---|");
    for (delayed, micros) in [(0, 0), (1, 1), (1, 100), (1, 1000), (8, 1), (8, 100)] {
        let mut line = format!("| {delayed} | {micros} µs |");
        for null_sends in [true, false] {
            let mut experiment = Experiment::spindle(16);
            experiment.settings.null_sends = null_sends;
            experiment.delays = vec![Duration::from_micros(micros); delayed];
            let prompt = f64::from(16 - u32::try_from(delayed).expect("few"));
            line += &format!(" {:.0} |", predict(&experiment).prompt_messages_per_second / prompt);
        }
        println!("{line}");
    }
}

#[test]
#[ignore = "prints a table"]
fn inactive_subgroups() {
    println!("## Inactive subgroups: 16 members, GB/s per member in the active one (Spindle fig. 8, 9)\n");
    println!("| inactive subgroups | all optimisations on | baseline |\n|---|---|---|");
    for inactive in [0, 1, 5, 20, 50] {
        let all = Experiment { inactive, ..Experiment::spindle(16) };
        let none = Experiment { inactive, ..baseline(16) };
        println!("| {inactive} | {:.2} | {:.2} |", gigabytes(&all), gigabytes(&none));
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_4() {
    println!("## Sizes: all send, window 100, thousand messages/s per member (Spindle fig. 4)\n");
    println!("| members | 1 B | 128 B | 1 KB | 10 KB |\n|---|---|---|---|---|");
    for members in [2_usize, 4, 6, 8, 10, 12, 14, 16] {
        let mut line = format!("| {members} |");
        for size in [1, 128, 1024, 10 * 1024] {
            let mut experiment = Experiment { messages: 600, ..Experiment::spindle(members) };
            experiment.settings.message_max = size;
            line += &format!(" {:.0} |", predict(&experiment).messages_per_second / 1e3);
        }
        println!("{line}");
    }
}

/// Means, where the paper has histograms: the cores count batches and what they hold.
#[test]
#[ignore = "prints a table"]
fn figure_7() {
    println!(
        "## Batches: 16 members, all send 10 KB, window 100, mean sizes at one member (Spindle fig. 7)\n"
    );
    println!("| inactive subgroups | send | receive | delivery |\n|---|---|---|---|");
    for inactive in [0, 1, 9, 49] {
        let counters = predict(&Experiment { inactive, messages: 600, ..Experiment::spindle(16) }).counters;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let mean = |messages: u64, batches: u64| messages as f64 / batches as f64;
        println!(
            "| {inactive} | {:.2} | {:.2} | {:.2} |",
            mean(counters.messages_sent, counters.send_batches),
            mean(counters.sequences_received, counters.receive_batches),
            mean(counters.messages_delivered, counters.delivery_batches),
        );
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_11() {
    println!("## Null-sends while all send: 10 KB, window 100, GB/s per member (Spindle fig. 11)\n");
    println!("| members | with null-sends | without |\n|---|---|---|");
    for members in [2, 4, 6, 8, 10, 12, 14, 16] {
        let mut without = Experiment::spindle(members);
        without.settings.null_sends = false;
        println!(
            "| {members} | {:.2} | {:.2} |",
            gigabytes(&Experiment::spindle(members)),
            gigabytes(&without)
        );
    }
}

#[test]
#[ignore = "prints a table, and takes a few GB of memory"]
fn figure_13() {
    println!("## Active subgroups: all send 10 KB in each, window 100, GB/s per member (Spindle fig. 13)\n");
    println!(
        "| members | 1 subgroup | 2 subgroups | 5 subgroups | 10 subgroups | 1, baseline | 10, baseline |"
    );
    println!("|---|---|---|---|---|---|---|");
    for members in [2, 4, 8, 12, 16] {
        let mut line = format!("| {members} |");
        for active in [1, 2, 5, 10] {
            line += &format!(" {:.2} |", gigabytes(&Experiment { active, ..Experiment::spindle(members) }));
        }
        for active in [1, 10] {
            line +=
                &format!(" {:.2} |", gigabytes(&Experiment { active, messages: 120, ..baseline(members) }));
        }
        println!("{line}");
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_17() {
    println!("## Latency: 10 KB, window 100, mean in µs (Spindle fig. 17)\n");
    println!("| members | all send | half send | one sends | all send, baseline |\n|---|---|---|---|---|");
    for members in [2_usize, 4, 8, 12, 16] {
        let mut line = format!("| {members} |");
        for senders in [members, members.div_ceil(2), 1] {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.senders.truncate(senders);
            line += &format!(" {} |", microseconds(&predict(&experiment)));
        }
        println!("{line} {} |", microseconds(&predict(&baseline(members))));
    }
}

/// What distinguishes the profiles of topics: the mode of the subgroup, whether a reader keeps a copy of each sample, and a disk. The
/// paper does not name its disks.
#[test]
#[ignore = "prints a table"]
fn figure_18() {
    let disk = DiskModel { bytes_per_us: 2_000, confirms_after: Duration::from_micros(20) };
    let copy = Duration::from_nanos(10 * CostModel::SPINDLE.copy_kib_ns);
    let profiles = [
        (DeliveryMode::Unordered, Duration::ZERO, None),
        (DeliveryMode::Atomic, Duration::ZERO, None),
        (DeliveryMode::Atomic, copy, None),
        (DeliveryMode::Durable, copy, Some(disk)),
    ];
    println!(
        "## Topics: one publisher, samples of 10 KB, window 100, GB/s per subscriber (Spindle fig. 18)\n"
    );
    println!(
        "| subscribers | unordered | atomic | kept | logged | unordered, baseline | atomic, baseline | kept, baseline | logged, baseline |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for subscribers in [1, 2, 3, 5, 7, 9, 11, 13, 15] {
        let mut line = format!("| {subscribers} |");
        for start in [Experiment::spindle(subscribers + 1), baseline(subscribers + 1)] {
            for (mode, work, disk) in profiles {
                let mut experiment = Experiment { work, disk, messages: 1000, ..start.clone() };
                experiment.settings.mode = mode;
                experiment.settings.senders.truncate(1);
                line += &format!(" {:.2} |", gigabytes(&experiment));
            }
        }
        println!("{line}");
    }
}
