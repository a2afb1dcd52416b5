//! The tables of docs/results/stream-sim.md: table III and figures 9 and 11 to 13 of the paper (EXS §IV.B), and where the better
//! policy depends on sizes and numbers.

use squall_fabric::Duration;

use super::{TablePage, TableSet};
use crate::blast::{BlastReport, BlastRun, MessageSizes, TransferPolicy};

pub(super) const SET: TableSet = TableSet {
    name: "stream",
    about: "table III of EXS, its figures 11 to 13, and sizes at which the better policy changes",
    tables: &[
        ("table-iii", table_iii),
        ("figure-11", figure_11),
        ("figure-12", figure_12),
        ("figure-13", figure_13),
        ("crossings", crossings),
        ("matrix", matrix),
    ],
};

fn show(report: &BlastReport) -> String {
    format!(
        "{:.2} Gb/s {} sw {:.4} cpu {:.2}",
        report.gigabits_per_second,
        report.sender.mode_switches,
        report.sender.direct_ratio(),
        report.receiver_busy
    )
}

const POLICIES: [TransferPolicy; 4] =
    [TransferPolicy::Direct, TransferPolicy::Indirect, TransferPolicy::Dynamic, TransferPolicy::Reference];

/// Begins a table whose cells have the throughput, the switches of the mode, the share of direct transfer, and the part of the time
/// that the receiver is busy.
fn begin(page: &mut TablePage<'_>, title: &str, columns: &str) {
    page.table(title, &format!("{columns} | direct | indirect | dynamic | paper"));
}

fn line(page: &mut TablePage<'_>, name: &str, make: impl Fn(TransferPolicy) -> BlastRun) {
    let cells = POLICIES.map(|policy| show(&make(policy).run()));
    page.row(format_args!("{name} | {}", cells.join(" | ")));
}

/// Returns messages of one size, as many as have `bytes` together, and `most` at most.
fn sized(size: u64, bytes: u64, most: u64, base: BlastRun) -> BlastRun {
    BlastRun { sizes: MessageSizes::Fixed(size), messages: (bytes / size).min(most), ..base }
}

fn table_iii(page: &mut TablePage<'_>) {
    begin(page, "Table III and figure 9: exponential sizes, mean 1 MiB", "receives | sends");
    for (receives, sends) in
        [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16)]
    {
        line(page, &format!("{receives} | {sends}"), |policy| BlastRun::fdr(policy, sends, receives));
    }
}

fn figure_11(page: &mut TablePage<'_>) {
    begin(page, "Figure 11: 32 receives", "bytes | sends");
    for size in [1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21] {
        for sends in [1, 2, 4, 8, 16, 32] {
            line(page, &format!("{size} | {sends}"), |policy| {
                sized(size, 200 << 20, 3000, BlastRun::fdr(policy, sends, 32))
            });
        }
    }
}

fn figure_12(page: &mut TablePage<'_>) {
    begin(page, "Figure 12: 2 sends, 4 receives", "bytes");
    for size in (9..23).map(|shift| 1 << shift) {
        line(page, &size.to_string(), |policy| sized(size, 400 << 20, 4000, BlastRun::fdr(policy, 2, 4)));
    }
}

fn figure_13(page: &mut TablePage<'_>) {
    begin(page, "Figure 13: 10 Gb/s, 24 ms each way", "sends and receives");
    for n in [1, 2, 4, 8, 16, 32] {
        line(page, &n.to_string(), |policy| BlastRun {
            messages: 20 * n as u64,
            ..BlastRun::distant(policy, n, n)
        });
    }
}

/// With few receives and a peer that sleeps from time to time, the better policy depends on the size.
fn crossings(page: &mut TablePage<'_>) {
    begin(page, "Sizes with few receives", "bytes | receives | sends");
    for (receives, sends) in [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4)] {
        for size in (14..21).map(|shift| 1 << shift) {
            line(page, &format!("{size} | {receives} | {sends}"), |policy| {
                sized(size, 400 << 20, 20_000, BlastRun::fdr(policy, sends, receives))
            });
        }
    }
}

fn matrix(page: &mut TablePage<'_>) {
    page.table(
        "The dynamic policy beside the better one",
        "dynamic is | distance | wake-up, µs | bytes | sends | receives | part of the better one | direct | indirect | dynamic",
    );
    let numbers = [1, 4, 32].into_iter().flat_map(|sends| [1, 4, 32].map(|receives| (sends, receives)));
    let sizes = [512, 8 << 10, 64 << 10, 1 << 20].into_iter();
    let cases: Vec<_> = sizes.flat_map(|size| numbers.clone().map(move |number| (size, number))).collect();
    for (distant, wake_us) in [(false, 0), (false, 20), (true, 0), (true, 20)] {
        for (size, (sends, receives)) in &cases {
            let [direct, indirect, dynamic] = [0, 1, 2].map(|i| {
                let (base, most) = if distant {
                    (BlastRun::distant(POLICIES[i], *sends, *receives), 10 * *sends as u64)
                } else {
                    (BlastRun::fdr(POLICIES[i], *sends, *receives), 20_000)
                };
                let blast = BlastRun { wake_up: Duration::from_micros(wake_us), ..base };
                sized(*size, 200 << 20, most, blast).run()
            });
            let best = direct.gigabits_per_second.max(indirect.gigabits_per_second);
            let part = dynamic.gigabits_per_second / best;
            let judged = if part < 0.95 { "WEAK" } else { "fine" };
            let distance = if distant { "far" } else { "near" };
            let shown = [direct, indirect, dynamic].map(|report| show(&report)).join(" | ");
            page.row(format_args!(
                "{judged} | {distance} | {wake_us} | {size} | {sends} | {receives} | {part:.3} | {shown}"
            ));
        }
    }
}
