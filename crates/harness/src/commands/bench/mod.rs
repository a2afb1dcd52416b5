//! `squall bench`: each of its commands measures a part of the system.

mod dds;
mod fabric;
mod figures;
mod genuine;
mod log;
mod multicast;
mod object;
mod rdmc;
mod restart;
mod run_folder;
mod sst;
mod stream;
mod view;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::lab::run_again_in_lab;
use crate::lab::{LabPlan, LinkConditions};
use crate::terminal::{CommandVerdict, Interrupts};

use dds::DdsBenchArguments;
use figures::FiguresArguments;
use genuine::GenuineArguments;
use log::LogBenchArguments;
use multicast::MulticastArguments;
use object::ObjectArguments;
use rdmc::RdmcArguments;
use restart::RestartArguments;
use sst::SstArguments;
use stream::StreamArguments;
use view::ViewArguments;

/// Measure a part of the system on this machine
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    what: Bench,
    /// Run members on hosts of a lab (`squall lab`), whose links have these conditions, as in --lab=delay=1ms,loss=0.1%
    #[arg(long, global = true, value_name = "CONDITIONS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    lab: Option<LinkConditions>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Dds(DdsBenchArguments),
    Figures(FiguresArguments),
    Genuine(GenuineArguments),
    Log(LogBenchArguments),
    Multicast(MulticastArguments),
    Object(ObjectArguments),
    Rdmc(RdmcArguments),
    Restart(RestartArguments),
    Sst(SstArguments),
    Stream(StreamArguments),
    View(ViewArguments),
}

/// Measures what the arguments say, and prints the figures.
///
/// # Errors
/// If it cannot be measured.
pub fn run(arguments: &BenchArguments) -> Result<CommandVerdict> {
    if let Some(conditions) = arguments.lab {
        match run_again_in_lab(LabPlan::new(LAB_HOSTS), conditions, &Interrupts::take()?)? {}
    }
    match &arguments.what {
        Bench::Dds(arguments) => dds::run(arguments),
        Bench::Figures(arguments) => figures::run(arguments),
        Bench::Genuine(arguments) => genuine::run(arguments),
        Bench::Log(arguments) => log::run(arguments),
        Bench::Multicast(arguments) => multicast::run(arguments),
        Bench::Object(arguments) => object::run(arguments),
        Bench::Rdmc(arguments) => rdmc::run(arguments),
        Bench::Restart(arguments) => restart::run(arguments),
        Bench::Sst(arguments) => sst::run(arguments),
        Bench::Stream(arguments) => stream::run(arguments),
        Bench::View(arguments) => view::run(arguments),
    }
}

/// The hosts of `--lab`, which members take in turn.
const LAB_HOSTS: usize = 8;
