//! `squall completions`: what a shell needs to complete this command line.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;
use squall_harness::terminal::{CommandVerdict, output};

/// Print completions of this command line for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "Examples:
  squall completions bash > ~/.local/share/bash-completion/completions/squall
  squall completions zsh > ~/.zfunc/_squall     (a folder in $fpath)
  squall completions fish > ~/.config/fish/completions/squall.fish";

pub(crate) fn run(arguments: &CompletionsArguments) -> Result<CommandVerdict> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::visible_command_line(), "squall", &mut script);
    output::write(&String::from_utf8(script)?);
    Ok(CommandVerdict::Good)
}
