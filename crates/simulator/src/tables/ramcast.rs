//! The tables of docs/results/ramcast-sim.md: RamCast's figure 5 under a cost model of its testbed, growth with the number of shards
//! beside one subgroup that all filter, and both clocks under a mixed load.

use squall_fabric::Duration;
use squall_fabric::sim::CostModel;
use squall_protocols::multicast::SubgroupSettings;

use super::{TablePage, TableSet, cells};
use crate::figures::{self, Experiment};
use crate::genuine::prediction::{
    ORDERED_WORK, RAMCAST, ShardExperiment, ShardLoad, ShardPrediction, predict,
};

pub(super) const SET: TableSet = TableSet {
    name: "ramcast",
    about: "RamCast's figure 5, growth with the number of shards, and both clocks",
    tables: &[
        ("figure-5", figure_5),
        ("figure-5-left", figure_5_left),
        ("growth", growth),
        ("clocks", clocks),
    ],
};

/// The paper's values for messages to all of 1, 2, 4 and 8 groups: thousands of messages per second, and microseconds at the 95th
/// percentile of one client (§5.4).
const PAPER: [(usize, f64, f64); 4] = [(1, 233.0, 8.0), (2, 145.0, 46.0), (4, 80.0, 78.0), (8, 40.0, 150.0)];

fn micros(sorted: &[u64], part: f64) -> f64 {
    ShardPrediction::quantile(sorted, part) as f64 / 1000.0
}

/// In thousands of messages per second.
fn rate(experiment: &ShardExperiment) -> f64 {
    predict(experiment).messages_per_second / 1000.0
}

/// Returns the greatest rate over numbers of clients in a closed loop, with that number.
fn saturated(experiment: &ShardExperiment) -> (f64, usize) {
    let rates = [16, 64, 256].map(|clients| {
        // Eight processes have all clients.
        let (clients, under_way) = (8, clients / 8);
        let load = ShardLoad::Closed(under_way);
        let experiment =
            ShardExperiment { clients, load, messages: 40 * under_way as u64, ..experiment.clone() };
        (rate(&experiment), 8 * under_way)
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

fn figure_5(page: &mut TablePage<'_>) {
    page.table(
        "Figure 5, right: messages of 64 bytes to all groups of three",
        "groups of three | thousand messages/s | clients | the paper | times it | latency p95, µs | posts of 0.3 µs | a member of each group has delivered | the paper, p95 | part of it",
    );
    for (groups, paper_rate, paper) in PAPER {
        let experiment = ShardExperiment::ramcast(groups);
        let (most, clients) = saturated(&experiment);
        let (all, first) = latency(&experiment);
        let cost = CostModel { post_ns: 300, ..RAMCAST };
        let (fast, _) = latency(&ShardExperiment { cost, ..experiment });
        let (times, part) = (most / paper_rate, all / paper);
        page.row(format_args!(
            "{groups} | {most:.0} | {clients} | {paper_rate:.0} | {times:.1} | {all:.1} | {fast:.1} | {first:.1} | {paper:.0} | {part:.2}"
        ));
    }
}

fn figure_5_left(page: &mut TablePage<'_>) {
    page.table(
        "Figure 5, left: messages of 64 bytes to one of several groups of three",
        "groups | thousand messages/s | clients | latency p95, µs | the paper, p50",
    );
    for groups in [1, 2, 4, 8] {
        let experiment = ShardExperiment { destinations: 1, ..ShardExperiment::ramcast(groups) };
        let (most, clients) = saturated(&experiment);
        let (all, _) = latency(&experiment);
        page.row(format_args!("{groups} | {most:.0} | {clients} | {all:.1} | 7"));
    }
}

/// Members in shards of two that all send.
fn all_send(shards: usize, destinations: usize, messages: u64) -> ShardExperiment {
    ShardExperiment {
        replicas: 2,
        clients: 0,
        destinations: destinations.min(shards),
        messages,
        load: ShardLoad::Closed(WINDOW),
        ..ShardExperiment::ramcast(shards)
    }
}

const WINDOW: usize = 8;

/// The same messages through one subgroup of all members, in thousands per second.
fn ordered(members: usize, messages: u64) -> f64 {
    let settings = SubgroupSettings { window: WINDOW, ..SubgroupSettings::new(members, 64) };
    let experiment =
        Experiment { settings, messages, work: ORDERED_WORK, cost: RAMCAST, ..Experiment::spindle(members) };
    figures::predict(&experiment).messages_per_second / 1000.0
}

fn growth(page: &mut TablePage<'_>) {
    page.table(
        "Growth: all members send, thousand messages/s of all together",
        "shards | replicas | to one shard | to two shards | one subgroup that all filter | one shard, times it | two shards, times it",
    );
    for shards in [1, 2, 4, 8, 16, 32, 64] {
        let [one, two] = [1, 2].map(|destinations| rate(&all_send(shards, destinations, 100)));
        let all = ordered(2 * shards, 100);
        let times = cells([one / all, two / all], 1);
        page.row(format_args!("{shards} | 2 | {} | {times}", cells([one, two, all], 0)));
    }
}

fn clocks(page: &mut TablePage<'_>) {
    page.table(
        "Clocks: 4 shards of three, open loop of 8 senders, latency in µs until each shard has delivered",
        "to two shards | thousand messages/s | clocks wrong by up to | one shard p50 | p99 | two shards p50 | p99",
    );
    let loads = [100, 500].into_iter().flat_map(|several| [80, 40, 20].map(|every| (several, every)));
    for (several_per_mille, every) in loads {
        for skew in [0, 10, 1000] {
            let prediction = predict(&ShardExperiment {
                clients: 8,
                destinations: 2,
                several_per_mille,
                messages: 2000,
                load: ShardLoad::Open(Duration::from_micros(every)),
                skew_max: Duration::from_micros(skew),
                ..ShardExperiment::ramcast(4)
            });
            let of = |sorted: &[u64]| cells([0.5, 0.99].map(|part| micros(sorted, part)), 1);
            let (single, several) = (of(&prediction.single_ns), of(&prediction.several_ns));
            let (share, rate) = (several_per_mille / 10, prediction.messages_per_second / 1000.0);
            page.row(format_args!("{share} % | {rate:.0} | {skew} µs | {single} | {several}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the paper's groups are for: several times its rates with the same clients' messages to all groups, half of its latency if
    /// there are several, and rates of messages to few shards that grow with the number of shards, which those of one subgroup do not.
    #[test]
    fn rates_exceed_the_papers_and_grow_with_the_shards() {
        for (groups, paper_rate, paper) in PAPER {
            let (all, first) = latency(&ShardExperiment::ramcast(groups));
            let most = if groups == 1 { 2.0 } else { 0.5 };
            assert!(
                first <= most * paper && all <= 1.1 * most * paper,
                "{groups} groups: {first:.1} to {all:.1} µs"
            );
            let load = ShardLoad::Closed(8);
            let found =
                rate(&ShardExperiment { clients: 8, load, messages: 80, ..ShardExperiment::ramcast(groups) });
            assert!(
                found > 3.0 * paper_rate,
                "{groups} groups: {found:.0} thousand messages/s, the paper {paper_rate}"
            );
        }
        let [few, many] = [2, 8].map(|shards| rate(&all_send(shards, 2, 30)));
        assert!(many > 3.0 * few, "{few:.0} thousand messages/s to two of 2 shards, {many:.0} of 8");
        let one = ordered(16, 30);
        assert!(many > 1.5 * one, "{many:.0} thousand messages/s to shards, {one:.0} of one subgroup");
    }
}
