//! `squall bench`: each of its commands measures a part of the system.

use anyhow::Result;
use clap::{Args, Subcommand};

use super::{bench_multicast, bench_object, bench_rdmc, bench_sst, bench_stream, bench_view};
use crate::Verdict;

/// Measure a part of the system on this machine
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Multicast(bench_multicast::Arguments),
    Object(bench_object::Arguments),
    Rdmc(bench_rdmc::Arguments),
    Sst(bench_sst::Arguments),
    Stream(bench_stream::Arguments),
    View(bench_view::Arguments),
}

/// Measures what the arguments say, and prints the figures.
///
/// # Errors
/// If it cannot be measured.
pub fn run(arguments: &BenchArguments) -> Result<Verdict> {
    match &arguments.what {
        Bench::Multicast(arguments) => bench_multicast::run(arguments),
        Bench::Object(arguments) => bench_object::run(arguments),
        Bench::Rdmc(arguments) => bench_rdmc::run(arguments),
        Bench::Sst(arguments) => bench_sst::run(arguments),
        Bench::Stream(arguments) => bench_stream::run(arguments),
        Bench::View(arguments) => bench_view::run(arguments),
    }
}
