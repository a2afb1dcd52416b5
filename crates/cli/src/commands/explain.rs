//! `squall explain`: what happened in the run of one seed, as text, as a trace for viewers, and as a drawing.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use squall_harness::terminal::{CommandVerdict, output};

use crate::commands::simulate::scenario;
use crate::lanes::{RunCaption, RunLanes, chrome, svg};

/// Show what happened in one simulated run
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArguments {
    /// The seed
    seed: u64,
    /// What was simulated
    #[arg(long, value_name = "NAME", default_value = "multicast")]
    scenario: String,
    /// Write the run as a trace into this file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the run as a drawing into this file, for a browser
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the verdict and the lines of the text as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Prints the run's plan, reduced as far as it still breaks the same invariant, and a timeline: the faults, \
and what the members do (views, suspicions, ends), with a lane for each node; then the last events of the fabric. \
The exit status is 0 whether or not the run breaks an invariant; --json reports that as `violates`. --trace and --svg show the \
same run: a lane for each node with its views and their steps, and marks for faults, suspicions and ends.

Examples:
  squall explain 42
  squall explain 42 --scenario group --json
  squall explain 42 --scenario group --trace run.json --svg run.svg";

pub(crate) fn run(arguments: &ExplainArguments) -> Result<CommandVerdict> {
    let ExplainArguments { seed, scenario: name, trace, svg, json } = arguments;
    let explanation = scenario(name)?.explanation(*seed);
    let violation = explanation.run.violation;
    if trace.is_some() || svg.is_some() {
        let violation = violation.as_ref().map(ToString::to_string);
        let caption = RunCaption { scenario: name.clone(), seed: *seed, violation };
        let lanes = RunLanes::new(&explanation.run.trace, caption);
        if let Some(file) = trace {
            write(file, &chrome::trace(&lanes))?;
        }
        if let Some(file) = svg {
            write(file, &svg::drawing(&lanes))?;
        }
    }
    if *json {
        let violates = violation.map(|violation| violation.checker);
        let lines: Vec<&str> = explanation.text.lines().collect();
        output::json(&json!({ "scenario": name, "seed": seed, "violates": violates, "lines": lines }))?;
    } else {
        output::write(&explanation.text);
    }
    Ok(CommandVerdict::Good)
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
