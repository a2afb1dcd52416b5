//! Prints the effects of Spindle's optimisations as the simulator predicts them for its testbed (Spindle §4), as
//! tables in Markdown.
//!
//! Use: `cargo run --release -p squall-simulator --example spindle`

use squall_fabric::Duration;
use squall_protocols::multicast::Batching;
use squall_simulator::figures::{Experiment, predict};

fn main() {
    stages();
    senders();
    delays();
    inactive();
}

fn gigabytes(experiment: &Experiment) -> f64 {
    predict(experiment).bytes_per_second / 1e9
}

/// A baseline is slow, so fewer messages tell as much.
fn shortened(experiment: &Experiment) -> Experiment {
    Experiment { messages: experiment.messages / 4, ..experiment.clone() }
}

fn stages() {
    println!("## Batching, stage by stage: 16 members, all send 10 KB, window 100 (Spindle fig. 5)\n");
    println!(
        "| batching at | GB/s per member | times the baseline | mean latency, µs | writes per message |"
    );
    println!("|---|---|---|---|---|");
    let stages = [
        ("none (baseline)", Batching::NONE),
        ("delivery", Batching { delivery: true, ..Batching::NONE }),
        ("delivery, receive", Batching { send: false, ..Batching::ALL }),
        ("delivery, receive, send", Batching::ALL),
    ];
    let mut baseline = None;
    for (name, batching) in stages {
        let mut experiment = Experiment::spindle(16);
        experiment.settings.batching = batching;
        experiment.settings.null_sends = false;
        if batching != Batching::ALL {
            experiment = shortened(&experiment);
        }
        print_stage(name, &experiment, &mut baseline);
    }
    print_stage("all three, and null-sends", &Experiment::spindle(16), &mut baseline);
    println!();
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn print_stage(name: &str, experiment: &Experiment, baseline: &mut Option<f64>) {
    let prediction = predict(experiment);
    let rate = prediction.bytes_per_second / 1e9;
    let times = rate / *baseline.get_or_insert(rate);
    let mean = prediction.latency_ns.iter().sum::<u64>() / prediction.latency_ns.len() as u64 / 1000;
    let writes = prediction.posts as f64 / experiment.messages as f64;
    println!("| {name} | {rate:.2} | {times:.1} | {mean} | {writes:.1} |");
}

fn senders() {
    println!("## Members and senders: everything on, 10 KB, window 100, GB/s per member (Spindle fig. 16)\n");
    println!("| members | all send | half send | one sends | all send, baseline |");
    println!("|---|---|---|---|---|");
    for members in [2, 4, 8, 12, 16] {
        let with_senders = |count: usize| {
            let mut experiment = Experiment::spindle(members);
            experiment.settings.senders = (0..count).collect();
            gigabytes(&experiment)
        };
        let mut baseline = shortened(&Experiment::spindle(members));
        baseline.settings.batching = Batching::NONE;
        baseline.settings.null_sends = false;
        let [all, half, one] = [members, members / 2, 1].map(with_senders);
        println!("| {members} | {all:.2} | {half:.2} | {one:.2} | {:.2} |", gigabytes(&baseline));
    }
    println!();
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn delays() {
    println!("## Delayed senders: 16 members, messages/s of each prompt sender (Spindle §4.2.1)\n");
    println!("| delayed senders | delay | null-sends | without null-sends |");
    println!("|---|---|---|---|");
    for (count, micros) in [(0, 0), (1, 1), (1, 100), (1, 1000), (8, 1), (8, 100)] {
        let rate = |null_sends: bool| {
            let mut experiment = Experiment { messages: 150, ..Experiment::spindle(16) };
            let delay = |i: usize| if i < count { Duration::from_micros(micros) } else { Duration::ZERO };
            experiment.delays = (0..16).map(delay).collect();
            experiment.settings.null_sends = null_sends;
            predict(&experiment).prompt_messages_per_second / (16 - count) as f64
        };
        println!("| {count} | {micros} µs | {:.0} | {:.0} |", rate(true), rate(false));
    }
    println!();
}

fn inactive() {
    println!("## Inactive subgroups: 16 members, GB/s per member in the active one (Spindle fig. 8, 9)\n");
    println!("| inactive subgroups | everything on | baseline |");
    println!("|---|---|---|");
    for inactive in [0, 1, 5, 20, 50] {
        let experiment = Experiment { inactive, messages: 150, ..Experiment::spindle(16) };
        let mut baseline = shortened(&experiment);
        baseline.settings.batching = Batching::NONE;
        baseline.settings.null_sends = false;
        println!("| {inactive} | {:.2} | {:.2} |", gigabytes(&experiment), gigabytes(&baseline));
    }
}
