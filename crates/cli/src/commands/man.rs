//! `squall man`: manual pages, made from the same texts as `--help`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use squall_harness::terminal::CommandVerdict;

/// Write manual pages of this program, one for each command, into a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArguments {
    /// The folder
    folder: PathBuf,
}

const EXAMPLES: &str = "Examples:
  squall man ~/.local/share/man/man1     (then: man squall, man squall-node)";

pub(crate) fn run(arguments: &ManArguments) -> Result<CommandVerdict> {
    let folder = &arguments.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(crate::visible_command_line(), folder));
    written.with_context(|| format!("failed to write manual pages into {}", folder.display()))?;
    Ok(CommandVerdict::Good)
}
