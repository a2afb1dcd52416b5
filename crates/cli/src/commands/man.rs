//! `squall man`: manual pages and the page docs/command-line.md, made from the same texts as `--help`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use squall_harness::terminal::{CommandVerdict, output};

/// Print the manual page of a command, write those of all commands into a folder, or print all in Markdown
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArguments {
    /// The command whose page is printed, like `config check`; none: `squall` itself
    command: Vec<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
    /// Print one page with the help of all commands, in Markdown
    #[arg(long, conflicts_with_all = ["command", "out"])]
    markdown: bool,
}

const EXAMPLES: &str = "Examples:
  squall man node | man -l -
  squall man --markdown | less
  squall man --out ~/.local/share/man/man1     (then: man squall-node)";

pub(crate) fn run(arguments: &ManArguments) -> Result<CommandVerdict> {
    let mut line = crate::visible_command_line().disable_help_subcommand(true);
    // Gives each command its full name.
    line.build();
    if arguments.markdown {
        output::write(&reference(&line));
        return Ok(CommandVerdict::Good);
    }
    match &arguments.out {
        Some(folder) => {
            let written = std::fs::create_dir_all(folder)
                .map_err(Into::into)
                .and_then(|()| pages(&line).into_iter().try_for_each(|command| write(command, folder)));
            written.with_context(|| format!("failed to write manual pages into {}", folder.display()))?;
        }
        None => output::write(&page(find(&line, &arguments.command)?)?),
    }
    Ok(CommandVerdict::Good)
}

/// The command at the end of a path.
fn find<'c>(line: &'c Command, path: &[String]) -> Result<&'c Command> {
    path.iter().try_fold(line, |command, name| {
        command.find_subcommand(name).with_context(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let known = if names.is_empty() { "no commands".into() } else { names.join(", ") };
            format!("`{}` has no command `{name}`; it has {known}", full_name(command))
        })
    })
}

/// A command and all that are in it.
fn pages(command: &Command) -> Vec<&Command> {
    let inner = command.get_subcommands().flat_map(pages);
    [command].into_iter().chain(inner).collect()
}

fn write(command: &Command, folder: &Path) -> Result<()> {
    let file = folder.join(format!("{}.1", full_name(command)));
    std::fs::write(&file, page(command)?)?;
    Ok(())
}

/// The name of a command's page, like `squall-config-check`.
fn full_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The page of a command. What follows the options in `--help` is divided: its prose belongs to the description, and what
/// has a title is a section.
fn page(command: &Command) -> Result<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (titled, prose): (Vec<&str>, Vec<&str>) =
        help.split("\n\n").filter(|part| !part.is_empty()).partition(|part| title(part).is_some());
    let man =
        Man::new(command.clone()).source(concat!("squall ", env!("CARGO_PKG_VERSION"))).manual("Squall");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    for paragraph in prose {
        Roff::new().control("PP", []).text([roman(paragraph)]).to_writer(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    for (title, text) in titled.into_iter().filter_map(title) {
        let mut section = Roff::new();
        section.control("SH", [title.to_uppercase().as_str()]).control("nf", []);
        section.text([roman(text)]).control("fi", []).to_writer(&mut page)?;
    }
    if full_name(command) != "squall" {
        Roff::new().control("SH", ["SEE ALSO"]).text([roman("squall(1)")]).to_writer(&mut page)?;
    }
    Ok(String::from_utf8(page)?)
}

/// The title of a part of a help text, and the lines under it, which are printed as they are.
fn title(part: &str) -> Option<(&str, &str)> {
    let (first, rest) = part.split_once('\n')?;
    Some((first.strip_suffix(':')?, rest))
}

/// The page docs/command-line.md: the help of each command, as it is printed on a terminal of [`PAGE_COLUMNS`].
fn reference(line: &Command) -> String {
    let mut text = String::from(HEAD);
    for command in pages(line) {
        let name = full_name(command).replace('-', " ");
        let help = command
            .clone()
            .term_width(PAGE_COLUMNS)
            .color(clap::ColorChoice::Never)
            .render_long_help()
            .to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(text, "\n## {name}\n```text\n{}\n```\n", lines.join("\n").trim_end())
            .expect("a String takes all");
    }
    text
}

const HEAD: &str = "# Command line

What `--help` prints for each command. This page is the output of `squall man --markdown`; a test compares them.
";

/// Fits a page without a scroll bar.
const PAGE_COLUMNS: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_code_says() {
        let mut line = crate::visible_command_line().disable_help_subcommand(true);
        line.build();
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");
        let found = std::fs::read_to_string(page).unwrap_or_default();
        assert!(found == reference(&line), "write it again: squall man --markdown > docs/command-line.md");
    }

    #[test]
    fn each_command_has_a_page_with_its_examples() {
        let mut line = crate::visible_command_line().disable_help_subcommand(true);
        line.build();
        let commands = pages(&line);
        assert!(commands.len() > 25, "{} commands", commands.len());
        for command in commands {
            let (name, page) = (full_name(command), page(command).unwrap());
            assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
            // A command that only holds others needs none.
            let is_alone = command.has_subcommands() && name != "squall";
            assert!(page.contains(".SH EXAMPLES\n.nf\n") || is_alone, "{name}: {page}");
            assert!(!page.contains("EXTRA"), "{name}: {page}");
        }
    }

    #[test]
    fn a_command_is_found_by_its_path() {
        let mut line = crate::visible_command_line();
        line.build();
        let path = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(full_name(find(&line, &path(&["config", "check"])).unwrap()), "squall-config-check");
        assert_eq!(full_name(find(&line, &[]).unwrap()), "squall");
        let error = find(&line, &path(&["config", "chek"])).unwrap_err().to_string();
        assert!(error.contains("`squall-config` has no command `chek`; it has check, example"), "{error}");
    }
}
