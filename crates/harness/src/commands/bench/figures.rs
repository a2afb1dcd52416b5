//! `squall bench figures`: the figures of the papers as tables, from the cost models of the simulator.

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use rustix::time::{ClockId, clock_gettime};
use squall_simulator::tables::{ALL, FigureTable, TablePage, TableSet};

use crate::terminal::{CommandVerdict, output};

/// Print the papers' figures as tables, predicted for the machines of the papers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FiguresArguments {
    /// Whose figures; without it, all tables are listed
    #[arg(value_parser = PossibleValuesParser::new(ALL.map(|set| set.name)))]
    set: Option<String>,
    /// Which of them; all, if none is named
    #[arg(value_name = "TABLE", requires = "set")]
    tables: Vec<String>,
}

const EXAMPLES: &str = "The protocols run in virtual time, so the tables are the same on every machine, except those of `growth`, which are \
measured. Some take minutes, in a build with optimisation.

Examples:
  squall bench figures
  squall bench figures spindle figure-5 figure-6
  squall bench figures rdmc >rdmc.md";

pub(crate) fn run(arguments: &FiguresArguments) -> Result<CommandVerdict> {
    let Some(set) = ALL.iter().find(|set| Some(set.name) == arguments.set.as_deref()) else {
        for TableSet { name, about, tables } in ALL {
            output::line(format_args!("{name:8} {about}: {}", names(tables)));
        }
        return Ok(CommandVerdict::Good);
    };
    for asked in &arguments.tables {
        let is_there = set.tables.iter().any(|(name, _)| name == asked);
        ensure!(is_there, "{} has no table {asked}: choose from {}", set.name, names(set.tables));
    }
    let mut line = |text: &str| output::line(text);
    let mut page = TablePage::new(processor_time, &mut line);
    let is_asked = |name: &str| arguments.tables.is_empty() || arguments.tables.iter().any(|one| one == name);
    set.tables.iter().filter(|(name, _)| is_asked(name)).for_each(|(_, table)| table(&mut page));
    Ok(CommandVerdict::Good)
}

fn names(tables: &[(&str, FigureTable)]) -> String {
    tables.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Returns the processor time of this thread in nanoseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("it does not run backwards")
}
