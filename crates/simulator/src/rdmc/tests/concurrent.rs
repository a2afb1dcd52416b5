//! Predictions for several senders at once, and for the smallest objects (RDMC §4.2, fig. 13–15; Derecho §4, fig. 3).

use std::fmt::Write as _;

use super::super::prediction::{MB, PaperMachines, RdmcLoad};

const FRACTUS: PaperMachines = PaperMachines::FRACTUS;
/// The same cluster before its network was replaced.
const FRACTUS_40: PaperMachines = PaperMachines { name: "Fractus", gigabits: 40 };

/// What each sender sends, and as which bytes.
#[derive(Clone, Copy)]
enum Objects {
    /// Two of 100 MB in blocks of 1 MB, scaled.
    Large,
    /// Eight of 1 MB in blocks of 128 KB.
    Medium,
    /// Sixty of 10 KB, a block each.
    Small,
}

impl Objects {
    /// Returns the rate at which a member gets bytes, its own included, in Gb/s.
    fn rate(self, machines: PaperMachines, members: u32, senders: u32) -> f64 {
        let (count, bytes, simulated, block_bytes, in_flight_bytes) = match self {
            Self::Large => (2, 100 << 20, 100 * MB, MB, 2 * MB),
            Self::Medium => (8, 1 << 20, 1 << 20, 128 << 10, 2 << 20),
            Self::Small => (60, 10 << 10, 10 << 10, 10 << 10, 2 << 20),
        };
        let load = RdmcLoad { members, senders, sizes: vec![simulated; count], block_bytes, in_flight_bytes };
        let passed = machines.all_received(&load, matches!(self, Self::Large));
        (count * bytes * senders as usize * 8) as f64 / passed.as_secs_f64() / 1e9
    }
}

/// Senders share the links: with all members sending, each link carries nearly what it can, in both directions, so a member gets
/// `n / (n − 1)` times what its link brings.
#[test]
fn senders_together_use_the_links() {
    for members in [2, 4, 8] {
        let most = 100.0 * f64::from(members) / f64::from(members - 1);
        let rate = Objects::Large.rate(FRACTUS, members, members);
        assert!((0.9..1.0).contains(&(rate / most)), "{members} members: {rate:.1} of {most:.1} Gb/s");
    }
}

/// The figures as tables in Markdown: `cargo test --release -p squall-simulator --lib rdmc::tests::concurrent::figures -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement of some minutes, to be read"]
fn figures() {
    let mut page = String::new();
    let groups = [2, 4, 6, 8, 10, 12, 14, 16];
    _ = writeln!(page, "\n## Figure 3: raw RDMC, GB/s per member\n");
    _ = writeln!(
        page,
        "| members | 100 MB, all send | 100 MB, half send | 100 MB, one sends | 1 MB, all send | 1 MB, one sends | 10 KB, all send | 10 KB, one sends |"
    );
    _ = writeln!(page, "|---|---|---|---|---|---|---|---|");
    for members in groups {
        let large = [members, members / 2, 1].map(|senders| (Objects::Large, senders));
        let rest = [Objects::Medium, Objects::Small].map(|what| [members, 1].map(|senders| (what, senders)));
        let cells = large.into_iter().chain(rest.into_iter().flatten());
        let cells = cells.map(|(what, senders)| format!("{:.2}", what.rate(FRACTUS, members, senders) / 8.0));
        _ = writeln!(page, "| {members} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    for (figure, machines) in [(13, FRACTUS_40), (14, FRACTUS)] {
        let PaperMachines { name, gigabits } = machines;
        _ = writeln!(
            page,
            "\n## Figure {figure}: several senders on {name}, {gigabits} Gb/s, 100 MB, Gb/s\n"
        );
        _ = writeln!(page, "| members | all send | half send | one sends |\n|---|---|---|---|");
        for members in groups {
            let rates = [members, members / 2, 1]
                .map(|senders| format!("{:.1}", Objects::Large.rate(machines, members, senders)));
            _ = writeln!(page, "| {members} | {} |", rates.join(" | "));
        }
    }
    _ = writeln!(page, "\n## Figure 15: objects of 1 byte of one sender on Fractus, thousand/s\n");
    _ = writeln!(page, "| members | thousand objects/s |\n|---|---|");
    for members in groups {
        let sizes = vec![1; 500];
        let load = RdmcLoad { members, senders: 1, sizes, block_bytes: 1 << 10, in_flight_bytes: 2 << 20 };
        let passed = FRACTUS.all_received(&load, false);
        _ = writeln!(page, "| {members} | {:.1} |", 500.0 / passed.as_secs_f64() / 1e3);
    }
    println!("{page}");
}
