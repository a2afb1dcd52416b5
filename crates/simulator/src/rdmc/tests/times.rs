//! Checks of the predictions, and the figures of the paper as tables (RDMC §4, fig. 4 and 6–12).

use std::fmt::Write as _;

use squall_protocols::rdmc::schedule::Algorithm;

use super::super::prediction::{MB, PaperMachines};

const SIERRA: PaperMachines = PaperMachines::SIERRA;
const STAMPEDE: PaperMachines = PaperMachines::STAMPEDE;
const FRACTUS: PaperMachines = PaperMachines::FRACTUS;

/// At 100 Gb/s, with 256 MB in 1 MB blocks, the pipeline reaches at least 90 % of line rate for up to 16 members, and
/// all receive the object at nearly the same time.
#[test]
fn the_pipeline_runs_at_line_rate() {
    for members in [2, 3, 4, 5, 6, 7, 8, 12, 15, 16] {
        let timing = FRACTUS.multicast(Algorithm::Pipeline, members, 256 * MB, MB);
        let efficiency = FRACTUS.rate(256 * MB, &timing) / 100.0;
        assert!(efficiency >= 0.90, "{members} members: {efficiency:.3} of line rate");
        let skew = timing.last - timing.first;
        assert!(skew < 2 * FRACTUS.link(MB), "{members} members: a skew of {skew:?} [B4]");
    }
}

/// Many copies cost little more than one: 511 copies take less than 1.5 times as long, while the paper's took 4 times
/// as long. (The larger the object, the smaller the difference; docs/results/rdmc-sim.md has 256 MB.)
#[test]
fn many_members_cost_little_more_than_one() {
    let one = SIERRA.multicast(Algorithm::Pipeline, 2, 64 * MB, MB);
    let many = SIERRA.multicast(Algorithm::Pipeline, 512, 64 * MB, MB);
    assert!(many.last < one.last * 3 / 2, "{:?} for 511 copies, {:?} for one", many.last, one.last);
    let sequential = SIERRA.multicast(Algorithm::Sequential, 8, 64 * MB, MB);
    assert!(sequential.last > one.last * 6, "the model does not distinguish schedules");
}

/// The figures of the paper as tables in Markdown: `cargo test --release -p squall-simulator --lib
/// rdmc::tests::times::figures -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement of some minutes, to be read"]
fn figures() {
    let mut page = String::new();
    let sizes = [256, 64, 8];
    for (figure, machines, groups) in [
        (7, SIERRA, &[2, 3, 4, 8, 16, 32, 64, 128, 256, 512][..]),
        (8, STAMPEDE, &[2, 3, 4, 8, 16, 32, 64, 128][..]),
        (9, FRACTUS, &[2, 3, 4, 5, 6, 7, 8, 12, 16][..]),
    ] {
        let PaperMachines { name, gigabits } = machines;
        _ = writeln!(page, "\n## Figure {figure}: {name}, {gigabits} Gb/s, binomial pipeline, 1 MB blocks\n");
        _ = writeln!(page, "| members | 256 MB | 64 MB | 8 MB | skew of 256 MB |\n|---|---|---|---|---|");
        for members in groups {
            let timings = sizes.map(|size| machines.multicast(Algorithm::Pipeline, *members, size * MB, MB));
            let rates = [0, 1, 2].map(|i| format!("{:.1}", machines.rate(sizes[i] * MB, &timings[i])));
            let skew = (timings[0].last - timings[0].first).as_secs_f64() / machines.link(MB).as_secs_f64();
            _ = writeln!(page, "| {members} | {} Gb/s | {skew:.2} blocks |", rates.join(" | "));
        }
    }
    block_sizes(&mut page);
    algorithms(&mut page);
    latency(&mut page);
    println!("{page}");
}

fn block_sizes(page: &mut String) {
    _ = writeln!(page, "\n## Figure 6: block sizes, 4 members, Gb/s (Fractus / Stampede)\n");
    _ = writeln!(page, "| block | 256 MB | 64 MB | 8 MB | 4 MB |\n|---|---|---|---|---|");
    // Sizes are in words of the scaled megabyte.
    for (name, words) in
        [("16 KB", 8), ("64 KB", 33), ("256 KB", 131), ("1 MB", 524), ("2 MB", 1048), ("4 MB", 2096)]
    {
        let rates = [256, 64, 8, 4].map(|size| {
            let rate = |machines: PaperMachines| {
                machines.rate(size * MB, &machines.multicast(Algorithm::Pipeline, 4, size * MB, words * 8))
            };
            format!("{:.1} / {:.1}", rate(FRACTUS), rate(STAMPEDE))
        });
        _ = writeln!(page, "| {name} | {} |", rates.join(" | "));
    }
}

fn algorithms(page: &mut String) {
    let all = [Algorithm::Sequential, Algorithm::Tree, Algorithm::Chain, Algorithm::Pipeline];
    for (figure, machines, size, groups) in [
        ("10", SIERRA, 256, &[2, 4, 8, 16, 32, 64, 128, 256, 512][..]),
        ("11a", FRACTUS, 256, &[2, 4, 8, 12, 16][..]),
        ("11b", FRACTUS, 8, &[2, 4, 8, 12, 16][..]),
    ] {
        let name = machines.name;
        _ = writeln!(page, "\n## Figure {figure}: algorithms on {name}, {size} MB, Gb/s (skew in blocks)\n");
        _ = writeln!(page, "| members | sequential | tree | chain | pipeline |\n|---|---|---|---|---|");
        for members in groups {
            let cells = all.map(|algorithm| {
                // For algorithms whose cost grows with the square of the members, small groups suffice.
                if *members > 64 && matches!(algorithm, Algorithm::Sequential | Algorithm::Tree) {
                    return "–".into();
                }
                let timing = machines.multicast(algorithm, *members, size * MB, MB);
                let skew = (timing.last - timing.first).as_secs_f64() / machines.link(MB).as_secs_f64();
                format!("{:.1} ({skew:.1})", machines.rate(size * MB, &timing))
            });
            _ = writeln!(page, "| {members} | {} |", cells.join(" | "));
        }
    }
}

fn latency(page: &mut String) {
    _ = writeln!(page, "\n## Figure 12: Sierra, 256 MB, milliseconds until the last has it\n");
    _ = writeln!(page, "| members | pipeline | sequential |\n|---|---|---|");
    for members in [2, 4, 8, 16, 32] {
        let millis = [Algorithm::Pipeline, Algorithm::Sequential].map(|algorithm| {
            let timing = SIERRA.multicast(algorithm, members, 256 * MB, MB);
            format!("{:.1}", timing.last.as_secs_f64() * 1e3)
        });
        _ = writeln!(page, "| {members} | {} |", millis.join(" | "));
    }
    let timing = STAMPEDE.multicast(Algorithm::Pipeline, 4, 256 * MB, MB);
    _ = writeln!(page, "\nFigure 4 (Stampede, 4 members, 256 MB): {} µs.", timing.last.as_micros());
}
