//! `squall explain`: what happened in the run of one seed.

use anyhow::Result;
use clap::Args;
use serde_json::json;
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
    /// Print the verdict and the lines of the text as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Prints the run's plan, reduced as far as it still breaks the same invariant, and a timeline of its end. \
The exit status is 0 whether or not the run breaks an invariant; --json reports that as `violates`.

Examples:
  squall explain 42
  squall explain 42 --scenario group --json";

pub(crate) fn run(arguments: &ExplainArguments) -> Result<CommandVerdict> {
    let ExplainArguments { seed, scenario: name, json } = arguments;
    let scenario = scenario(name)?;
    let text = scenario.explain(*seed);
    if *json {
        let violates = scenario.run(*seed).violation.map(|violation| violation.checker);
        let lines: Vec<&str> = text.lines().collect();
        output::json(&json!({ "scenario": name, "seed": seed, "violates": violates, "lines": lines }))?;
    } else {
        output::write(&text);
    }
    Ok(CommandVerdict::Good)
}
