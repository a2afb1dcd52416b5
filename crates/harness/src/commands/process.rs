//! The hidden commands by which other commands start processes of their own program, which has to offer them under these
//! names.

use anyhow::Result;
use clap::Subcommand;

use crate::terminal::{CommandVerdict, output};
use crate::{blast, lab, member};

/// A process that another `squall` has started
#[derive(Debug, Subcommand)]
pub enum ProcessCommand {
    /// A member that another `squall` has started
    #[command(hide = true)]
    Member {
        /// The process that has started it
        #[arg(long)]
        parent: u32,
    },
    /// The network of a lab
    #[command(hide = true)]
    LabWire,
    /// Process 1 of a host of a lab
    #[command(hide = true)]
    LabHost,
    /// The receiving end of `bench stream`
    #[command(hide = true)]
    StreamReceiver {
        /// The job
        job: String,
    },
}

/// Does the work that the parent asks for; a member ends its process then.
///
/// # Errors
/// If the receiving end fails; a member reports its failure to its parent.
pub fn run(command: &ProcessCommand) -> Result<CommandVerdict> {
    match command {
        ProcessCommand::Member { parent } => output::exit(member::run(*parent)),
        ProcessCommand::LabWire => lab::run_wire().map(|()| CommandVerdict::Good),
        ProcessCommand::LabHost => lab::run_host().map(|()| CommandVerdict::Good),
        ProcessCommand::StreamReceiver { job } => blast::receive(job).map(|()| CommandVerdict::Good),
    }
}
