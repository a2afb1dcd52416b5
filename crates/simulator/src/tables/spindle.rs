//! The tables of docs/results/spindle-sim.md: Spindle's figures 4 to 9, 11, 13 and 16 to 18, and §4.2.1, under the cost model of
//! its testbed.

use squall_fabric::Duration;
use squall_fabric::sim::CostModel;
use squall_protocols::multicast::{Batching, DeliveryMode};

use super::{TablePage, TableSet, cells};
use crate::figures::{DiskModel, Experiment, FigurePrediction, predict};

pub(super) const SET: TableSet = TableSet {
    name: "spindle",
    about: "Spindle's figures 4 to 9, 11, 13 and 16 to 18, and §4.2.1",
    tables: &[
        ("figure-4", figure_4),
        ("figure-5", figure_5),
        ("figure-6", figure_6),
        ("figure-7", figure_7),
        ("figure-8", inactive_subgroups),
        ("figure-11", figure_11),
        ("figure-13", figure_13),
        ("figure-16", figure_16),
        ("figure-17", figure_17),
        ("figure-18", figure_18),
        ("delayed-senders", delayed_senders),
    ],
};

fn gigabytes(experiment: &Experiment) -> f64 {
    predict(experiment).bytes_per_second / 1e9
}

fn mean(total: u64, count: u64) -> f64 {
    total as f64 / count as f64
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

/// Returns the experiments in which all, half, and one of the members send, with all optimisations; and all, without any.
fn by_senders(members: usize) -> [Experiment; 4] {
    let some = |senders| {
        let mut experiment = Experiment::spindle(members);
        experiment.settings.senders.truncate(senders);
        experiment
    };
    [some(members), some(members.div_ceil(2)), some(1), baseline(members)]
}

fn figure_4(page: &mut TablePage<'_>) {
    page.table(
        "Sizes: all send, window 100, thousand messages/s per member (Spindle fig. 4)",
        "members | 1 B | 128 B | 1 KB | 10 KB",
    );
    for members in [2, 4, 6, 8, 10, 12, 14, 16] {
        let rates = [1, 128, 1024, 10 * 1024].map(|size| {
            let mut experiment = Experiment { messages: 600, ..Experiment::spindle(members) };
            experiment.settings.message_max = size;
            predict(&experiment).messages_per_second / 1e3
        });
        page.row(format_args!("{members} | {}", cells(rates, 0)));
    }
}

fn figure_5(page: &mut TablePage<'_>) {
    page.table(
        "Batching, stage by stage: 16 members, all send 10 KB, window 100 (Spindle fig. 5)",
        "batching at | GB/s per member | times the baseline | mean latency, µs | writes per message",
    );
    let mut first = None;
    for (name, batching, null_sends) in [
        ("none (baseline)", Batching::NONE, false),
        ("delivery", Batching { delivery: true, ..Batching::NONE }, false),
        ("delivery, receive", Batching { send: false, ..Batching::ALL }, false),
        ("delivery, receive, send", Batching::ALL, false),
        ("all three, and null-sends", Batching::ALL, true),
    ] {
        let mut experiment = Experiment::spindle(16);
        (experiment.settings.batching, experiment.settings.null_sends) = (batching, null_sends);
        let prediction = predict(&experiment);
        let rate = prediction.bytes_per_second / 1e9;
        let (times, latency) = (rate / *first.get_or_insert(rate), microseconds(&prediction));
        let writes = mean(prediction.posts, experiment.messages);
        page.row(format_args!("{name} | {rate:.2} | {times:.1} | {latency} | {writes:.1}"));
    }
}

fn figure_6(page: &mut TablePage<'_>) {
    page.table(
        "Windows: all send 10 KB, GB/s per member (mean latency in µs) (Spindle fig. 6)",
        "members | window 16 | window 100 | window 1000",
    );
    for members in 2..=16 {
        let windows = [16, 100, 1000].map(|window| {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.window = window;
            experiment.messages = 600.max(6 * window as u64);
            let prediction = predict(&experiment);
            format!("{:.2} ({})", prediction.bytes_per_second / 1e9, microseconds(&prediction))
        });
        page.row(format_args!("{members} | {}", windows.join(" | ")));
    }
}

/// Means, where the paper has histograms: the cores count batches and what they hold.
fn figure_7(page: &mut TablePage<'_>) {
    page.table(
        "Batches: 16 members, all send 10 KB, window 100, mean sizes at one member (Spindle fig. 7)",
        "inactive subgroups | send | receive | delivery",
    );
    for inactive in [0, 1, 9, 49] {
        let counters = predict(&Experiment { inactive, messages: 600, ..Experiment::spindle(16) }).counters;
        let means = [
            mean(counters.messages_sent, counters.send_batches),
            mean(counters.sequences_received, counters.receive_batches),
            mean(counters.messages_delivered, counters.delivery_batches),
        ];
        page.row(format_args!("{inactive} | {}", cells(means, 2)));
    }
}

fn inactive_subgroups(page: &mut TablePage<'_>) {
    page.table(
        "Inactive subgroups: 16 members, GB/s per member in the active one (Spindle fig. 8, 9)",
        "inactive subgroups | all optimisations on | baseline",
    );
    for inactive in [0, 1, 5, 20, 50] {
        let rates = [Experiment::spindle(16), baseline(16)]
            .map(|experiment| gigabytes(&Experiment { inactive, ..experiment }));
        page.row(format_args!("{inactive} | {}", cells(rates, 2)));
    }
}

fn figure_11(page: &mut TablePage<'_>) {
    page.table(
        "Null-sends while all send: 10 KB, window 100, GB/s per member (Spindle fig. 11)",
        "members | with null-sends | without",
    );
    for members in [2, 4, 6, 8, 10, 12, 14, 16] {
        let rates = [true, false].map(|null_sends| {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.null_sends = null_sends;
            gigabytes(&experiment)
        });
        page.row(format_args!("{members} | {}", cells(rates, 2)));
    }
}

/// It takes a few GB of memory.
fn figure_13(page: &mut TablePage<'_>) {
    page.table(
        "Active subgroups: all send 10 KB in each, window 100, GB/s per member (Spindle fig. 13)",
        "members | 1 subgroup | 2 subgroups | 5 subgroups | 10 subgroups | 1, baseline | 10, baseline",
    );
    for members in [2, 4, 8, 12, 16] {
        let all = [1, 2, 5, 10].map(|active| Experiment { active, ..Experiment::spindle(members) });
        let none = [1, 10].map(|active| Experiment { active, messages: 120, ..baseline(members) });
        page.row(format_args!("{members} | {}", cells(all.iter().chain(&none).map(gigabytes), 2)));
    }
}

fn figure_16(page: &mut TablePage<'_>) {
    page.table(
        "Members and senders: all optimisations on, 10 KB, window 100, GB/s per member (Spindle fig. 16)",
        "members | all send | half send | one sends | all send, baseline",
    );
    for members in [2, 4, 8, 11, 12, 16] {
        let rates = by_senders(members).map(|experiment| gigabytes(&experiment));
        page.row(format_args!("{members} | {}", cells(rates, 2)));
    }
}

fn figure_17(page: &mut TablePage<'_>) {
    page.table(
        "Latency: 10 KB, window 100, mean in µs (Spindle fig. 17)",
        "members | all send | half send | one sends | all send, baseline",
    );
    for members in [2, 4, 8, 12, 16] {
        let latencies = by_senders(members).map(|experiment| microseconds(&predict(&experiment)).to_string());
        page.row(format_args!("{members} | {}", latencies.join(" | ")));
    }
}

/// What distinguishes the profiles of topics: the mode of the subgroup, whether a reader keeps a copy of each sample, and a disk. The
/// paper does not name its disks.
fn figure_18(page: &mut TablePage<'_>) {
    let disk = DiskModel { bytes_per_us: 2_000, confirms_after: Duration::from_micros(20) };
    let copy = Duration::from_nanos(10 * CostModel::SPINDLE.copy_kib_ns);
    let profiles = [
        (DeliveryMode::Unordered, Duration::ZERO, None),
        (DeliveryMode::Atomic, Duration::ZERO, None),
        (DeliveryMode::Atomic, copy, None),
        (DeliveryMode::Durable, copy, Some(disk)),
    ];
    page.table(
        "Topics: one publisher, samples of 10 KB, window 100, GB/s per subscriber (Spindle fig. 18)",
        "subscribers | unordered | atomic | kept | logged | unordered, baseline | atomic, baseline | kept, baseline | logged, baseline",
    );
    for subscribers in [1, 2, 3, 5, 7, 9, 11, 13, 15] {
        let starts = [Experiment::spindle(subscribers + 1), baseline(subscribers + 1)];
        let all = starts.iter().flat_map(|start| profiles.map(|profile| (start, profile)));
        let rates = all.map(|(start, (mode, work, disk))| {
            let mut experiment = Experiment { work, disk, messages: 1000, ..start.clone() };
            experiment.settings.mode = mode;
            experiment.settings.senders.truncate(1);
            gigabytes(&experiment)
        });
        page.row(format_args!("{subscribers} | {}", cells(rates, 2)));
    }
}

fn delayed_senders(page: &mut TablePage<'_>) {
    page.table(
        "Delayed senders: 16 members, messages/s of each prompt sender (Spindle §4.2.1)",
        "delayed senders | delay | null-sends | without null-sends",
    );
    for (delayed, micros) in [(0, 0), (1, 1), (1, 100), (1, 1000), (8, 1), (8, 100)] {
        let rates = [true, false].map(|null_sends| {
            let mut experiment = Experiment::spindle(16);
            experiment.settings.null_sends = null_sends;
            experiment.delays = vec![Duration::from_micros(micros); delayed];
            let prompt = f64::from(16 - u32::try_from(delayed).expect("few"));
            predict(&experiment).prompt_messages_per_second / prompt
        });
        page.row(format_args!("{delayed} | {micros} µs | {}", cells(rates, 0)));
    }
}
