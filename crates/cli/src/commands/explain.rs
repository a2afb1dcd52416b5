//! `squall explain`: what happened in the run of one seed.

use anyhow::Result;
use clap::Args;
use squall_harness::terminal::{CommandVerdict, output};

use crate::commands::simulate::scenario;

/// Show what happened in one simulated run
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArguments {
    /// The seed
    seed: u64,
    /// What was simulated
    #[arg(long, value_name = "NAME", default_value = "multicast")]
    scenario: String,
}

const EXAMPLES: &str =
    "Prints the run's plan, shrunk as far as it still breaks the same invariant, and a timeline of its end.

Examples:
  squall explain 42
  squall explain 42 --scenario multicast";

pub(crate) fn run(arguments: &ExplainArguments) -> Result<CommandVerdict> {
    output::write(&scenario(&arguments.scenario)?.explain(arguments.seed));
    Ok(CommandVerdict::Good)
}
