//! The tables of docs/results/ramcast-sim.md: RamCast's figure 5 under a cost model of its testbed, growth with the number of shards
//! beside one subgroup that all filter, and both clocks under a mixed load.

use squall_fabric::Duration;
use squall_fabric::sim::CostModel;
use squall_protocols::multicast::SubgroupSettings;
use squall_simulator::figures::{self, Experiment};
use squall_simulator::genuine::prediction::{
    ORDERED_WORK, RAMCAST, ShardExperiment, ShardLoad, ShardPrediction, predict,
};

/// The paper's values for messages to all of 1, 2, 4 and 8 groups: thousands of messages per second, and microseconds at the 95th
/// percentile of one client (§5.4).
const PAPER: [(usize, f64, f64); 4] = [(1, 233.0, 8.0), (2, 145.0, 46.0), (4, 80.0, 78.0), (8, 40.0, 150.0)];

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn micros(sorted: &[u64], part: f64) -> f64 {
    ShardPrediction::quantile(sorted, part) as f64 / 1000.0
}

/// Returns the greatest rate over numbers of clients in a closed loop, in thousands per second, with that number.
fn saturated(experiment: &ShardExperiment) -> (f64, usize) {
    let rates = [16, 64, 256].map(|clients| {
        // Eight processes have all clients.
        let (clients, under_way) = (8, clients / 8);
        let load = ShardLoad::Closed(under_way);
        let experiment =
            ShardExperiment { clients, load, messages: 40 * under_way as u64, ..experiment.clone() };
        (predict(&experiment).messages_per_second / 1000.0, 8 * under_way)
    });
    rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("three")
}

/// Returns the latency of one client at the 95th percentile, in microseconds: until it knows that all members have delivered; and
/// until a member of each group has.
fn latency(experiment: &ShardExperiment) -> (f64, f64) {
    let prediction = predict(experiment);
    let to_one = [&prediction.single_ns, &prediction.several_ns].into_iter().find(|all| !all.is_empty());
    (micros(&prediction.known_ns, 0.95), micros(to_one.expect("some were delivered"), 0.95))
}

#[test]
#[ignore = "prints a table"]
fn figure_5() {
    println!("## Figure 5, right: messages of 64 bytes to all groups of three\n");
    println!(
        "| groups of three | thousand messages/s | clients | the paper | times it | latency p95, µs | posts of 0.3 µs | a member of each group has delivered | the paper, p95 | part of it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (groups, rate, paper) in PAPER {
        let experiment = ShardExperiment::ramcast(groups);
        let (most, clients) = saturated(&experiment);
        let (all, first) = latency(&experiment);
        let cost = CostModel { post_ns: 300, ..RAMCAST };
        let (fast, _) = latency(&ShardExperiment { cost, ..experiment });
        println!(
            "| {groups} | {most:.0} | {clients} | {rate:.0} | {:.1} | {all:.1} | {fast:.1} | {first:.1} | {paper:.0} | {:.2} |",
            most / rate,
            all / paper
        );
    }
}

#[test]
#[ignore = "prints a table"]
fn figure_5_left() {
    println!("## Figure 5, left: messages of 64 bytes to one of several groups of three\n");
    println!(
        "| groups | thousand messages/s | clients | latency p95, µs | the paper, p50 |\n|---|---|---|---|---|"
    );
    for groups in [1, 2, 4, 8] {
        let experiment = ShardExperiment { destinations: 1, ..ShardExperiment::ramcast(groups) };
        let (most, clients) = saturated(&experiment);
        let (all, _) = latency(&experiment);
        println!("| {groups} | {most:.0} | {clients} | {all:.1} | 7 |");
    }
}

/// The same messages through one subgroup of all members, in thousands per second.
fn ordered(members: usize, messages: u64, window: usize) -> f64 {
    let settings = SubgroupSettings { window, ..SubgroupSettings::new(members, 64) };
    let experiment =
        Experiment { settings, messages, work: ORDERED_WORK, cost: RAMCAST, ..Experiment::spindle(members) };
    figures::predict(&experiment).messages_per_second / 1000.0
}

#[test]
#[ignore = "prints a table"]
fn growth() {
    println!("## Growth: all members send, thousand messages/s of all together\n");
    println!(
        "| shards | replicas | to one shard | to two shards | one subgroup that all filter | one shard, times it | two shards, times it |"
    );
    println!("|---|---|---|---|---|---|---|");
    const WINDOW: usize = 8;
    for (shards, replicas) in [(1, 2), (2, 2), (4, 2), (8, 2), (16, 2), (32, 2), (64, 2)] {
        let rate = |destinations: usize| {
            let experiment = ShardExperiment {
                replicas,
                clients: 0,
                destinations: destinations.min(shards),
                messages: 100,
                load: ShardLoad::Closed(WINDOW),
                ..ShardExperiment::ramcast(shards)
            };
            predict(&experiment).messages_per_second / 1000.0
        };
        let (one, two, all) = (rate(1), rate(2), ordered(shards * replicas, 100, WINDOW));
        println!(
            "| {shards} | {replicas} | {one:.0} | {two:.0} | {all:.0} | {:.1} | {:.1} |",
            one / all,
            two / all
        );
    }
}

#[test]
#[ignore = "prints a table"]
fn clocks() {
    println!(
        "## Clocks: 4 shards of three, open loop of 8 senders, latency in µs until each shard has delivered\n"
    );
    println!(
        "| to two shards | thousand messages/s | clocks wrong by up to | one shard p50 | p99 | two shards p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|");
    for several_per_mille in [100, 500] {
        for every in [80, 40, 20] {
            for skew in [0, 10, 1000] {
                let experiment = ShardExperiment {
                    clients: 8,
                    destinations: 2,
                    several_per_mille,
                    messages: 2000,
                    load: ShardLoad::Open(Duration::from_micros(every)),
                    skew_max: Duration::from_micros(skew),
                    ..ShardExperiment::ramcast(4)
                };
                let ShardPrediction { messages_per_second, single_ns, several_ns, .. } = predict(&experiment);
                let [a, b] = [0.5, 0.99].map(|part| micros(&single_ns, part));
                let [c, d] = [0.5, 0.99].map(|part| micros(&several_ns, part));
                let (share, rate) = (several_per_mille / 10, messages_per_second / 1000.0);
                println!("| {share} % | {rate:.0} | {skew} µs | {a:.1} | {b:.1} | {c:.1} | {d:.1} |");
            }
        }
    }
}

/// What the paper's groups are for: several times its rates with the same clients' messages to all groups, half of its latency if there are
/// several, and rates of messages to few shards that grow with the number of shards, which those of one subgroup do not.
#[test]
fn rates_exceed_the_papers_and_grow_with_the_shards() {
    for (groups, rate, paper) in PAPER {
        let (all, first) = latency(&ShardExperiment::ramcast(groups));
        let most = if groups == 1 { 2.0 } else { 0.5 };
        assert!(
            first <= most * paper && all <= 1.1 * most * paper,
            "{groups} groups: {first:.1} to {all:.1} µs"
        );
        let load = ShardLoad::Closed(8);
        let experiment =
            ShardExperiment { clients: 8, load, messages: 80, ..ShardExperiment::ramcast(groups) };
        let found = predict(&experiment).messages_per_second / 1000.0;
        assert!(found > 3.0 * rate, "{groups} groups: {found:.0} thousand messages/s, the paper {rate}");
    }
    let rate = |shards| {
        let load = ShardLoad::Closed(8);
        let experiment = ShardExperiment {
            replicas: 2,
            clients: 0,
            destinations: 2,
            messages: 30,
            load,
            ..ShardExperiment::ramcast(shards)
        };
        predict(&experiment).messages_per_second / 1000.0
    };
    let (few, many) = (rate(2), rate(8));
    assert!(many > 3.0 * few, "{few:.0} thousand messages/s to two of 2 shards, {many:.0} of 8");
    assert!(
        many > 1.5 * ordered(16, 30, 8),
        "{many:.0} thousand messages/s to shards, one subgroup has more"
    );
}
