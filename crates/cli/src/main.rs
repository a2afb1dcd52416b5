//! The `squall` command: demonstrations, benchmarks, the doctor and the simulator.
//!
//! The exit status means the same for all commands; [`AFTER_HELP`] lists it.

#![forbid(unsafe_code)]

mod census;
mod commands;
mod copy;
mod doctor;
mod input_lines;
mod lanes;
mod service_manager;
mod top;
mod trace_signal;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use clap::{Parser, Subcommand};
use signal_hook::consts::SIGXFSZ;

use commands::{
    completions, config, cp, dds, doctor as doctor_command, explain, log, man, messages, node, recover,
    serve, simulate, status, top as top_command, trace,
};
use squall_harness::commands::{bench, chaos, demo, lab, process};
use squall_harness::terminal::log::{LogArguments, UsualLevel, journal_priority};
use squall_harness::terminal::{
    CommandVerdict, INTERRUPTED_STATUS, Interrupted, Interrupts, error_text, output,
};
use squall_transports::session::PROTOCOL_VERSION;

/// Group communication at memory speed
#[derive(Debug, Parser)]
#[command(name = "squall", version, long_version = VERSIONS.as_str(), after_help = AFTER_HELP, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    log: LogArguments,
    #[command(subcommand)]
    command: Command,
}

/// The release, and the protocol version, which decides whether two releases understand each other.
static VERSIONS: LazyLock<String> =
    LazyLock::new(|| format!("{}\nprotocol version {PROTOCOL_VERSION}", env!("CARGO_PKG_VERSION")));

const AFTER_HELP: &str = "Examples:
  squall demo                                three processes, one order
  squall config example > squall.toml        a configuration to start from
  squall node --config squall.toml           a member of a group over hosts
  squall bench multicast --members 2         how fast is it here?
  squall doctor                              which RDMA devices are here?
  squall cp image.raw a:/ b:/ \\
      --secret-file secret                   a copy to each of many hosts
  squall chaos --seconds 60                  members die, stop and come
  squall simulate --seeds 0..1000            on a hostile network
  squall help bench multicast                all about one command

Exit status:
    0   all is well
    1   the command failed, or found what it looks for: members that died
        or disagree, a group that is not well, a wrong configuration, a
        run that broke an invariant, a host that lacks a file
    2   the command line is wrong
  130   interrupted by Ctrl-C, or asked to terminate
  141   the reader of the output has ended";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArguments),
    Bench(bench::BenchArguments),
    Chaos(chaos::ChaosArguments),
    Lab(lab::LabArguments),
    Doctor(doctor_command::DoctorArguments),
    Config(config::ConfigArguments),
    Node(node::NodeArguments),
    Status(status::StatusArguments),
    Top(top_command::TopArguments),
    Trace(trace::TraceArguments),
    Send(messages::SendArguments),
    Recv(messages::RecvArguments),
    Dds(dds::DdsArguments),
    Cp(cp::CopyArguments),
    Serve(serve::ServeArguments),
    Log(log::StoredLogArguments),
    Recover(recover::RecoverArguments),
    Simulate(simulate::SimulateArguments),
    Explain(explain::ExplainArguments),
    Completions(completions::CompletionsArguments),
    Man(man::ManArguments),
    #[command(flatten)]
    Process(process::ProcessCommand),
}

impl Command {
    /// Lets Ctrl-C and requests to terminate end the process until the command takes them over. A process of this program that
    /// another one has started is ended by that.
    fn obey_signals(&self) -> Result<()> {
        if matches!(self, Self::Process(_)) { Ok(()) } else { Interrupts::take().map(drop) }
    }

    /// What it logs unless the user asks for more or less.
    const fn usual_level(&self) -> UsualLevel {
        match self {
            // Its log is what an operator reads.
            Self::Node(_) | Self::Serve(_) => UsualLevel::Info,
            // A peer that dies is part of a demonstration.
            Self::Process(_) => UsualLevel::Error,
            // Hosts end their connections when they have a copy; those that fail are named with the reason.
            Self::Cp(_) => UsualLevel::Error,
            _ => UsualLevel::Warn,
        }
    }
}

fn main() -> ExitCode {
    let CommandLine { log, command } = CommandLine::parse();
    let outcome = log
        .start(command.usual_level())
        .and_then(|()| command.obey_signals())
        .and_then(|()| outlive_file_sizes())
        .and_then(|()| perform(command));
    output::flush_log();
    match outcome {
        Ok(CommandVerdict::Good) => ExitCode::SUCCESS,
        Ok(CommandVerdict::Bad) => ExitCode::FAILURE,
        Err(error) => {
            let priority = journal_priority(tracing::Level::ERROR);
            let name = console::style("squall:").for_stderr().red().bold();
            output::note(format_args!("{priority}{name} {}", error_text(&error)));
            let interrupted = error.is::<Interrupted>();
            if interrupted { ExitCode::from(INTERRUPTED_STATUS) } else { ExitCode::FAILURE }
        }
    }
}

/// Has a file that would become larger than the user's limit be an error of the write, not the end of the process: a source of copies and a
/// sender of messages decide how large files of others become.
fn outlive_file_sizes() -> Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

fn perform(command: Command) -> Result<CommandVerdict> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Doctor(arguments) => doctor_command::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Node(arguments) => node::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Top(arguments) => top_command::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Send(arguments) => messages::send(&arguments),
        Command::Recv(arguments) => messages::recv(&arguments),
        Command::Dds(arguments) => dds::run(arguments),
        Command::Cp(arguments) => cp::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Log(arguments) => log::run(&arguments),
        Command::Recover(arguments) => recover::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
        Command::Process(command) => process::run(&command),
    }
}

/// The command line as people see it: without the commands by which processes of this program start others.
fn visible_command_line() -> clap::Command {
    use clap::CommandFactory as _;
    let whole = CommandLine::command();
    let visible: Vec<clap::Command> =
        whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    // `Command` cannot lose a subcommand, so the outermost level is made again.
    let mut line = clap::Command::new("squall").version(env!("CARGO_PKG_VERSION")).after_help(AFTER_HELP);
    line = line.args(whole.get_arguments().cloned()).subcommands(visible);
    match whole.get_about() {
        Some(about) => line.about(about.clone()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Texts after the options are wrapped by the terminal's width, not by hand, and examples fit 80 columns.
    #[test]
    fn help_fits_a_terminal() {
        fn check(command: &clap::Command) {
            command.get_subcommands().for_each(check);
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for (line, next) in help.lines().zip(help.lines().skip(1).chain([""])) {
                let is_prose =
                    |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
                assert!(!(is_prose(line) && is_prose(next)), "wrapped by hand: {line}");
                assert!(!line.starts_with(' ') || line.len() <= 80, "wider than 80: {line}");
            }
        }
        check(&CommandLine::command());
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
        visible_command_line().debug_assert();
    }

    /// Every visible command has an example in its help.
    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                check(inner, &path);
            }
            if !command.has_subcommands() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(path.trim()), "{path} has no example of itself");
            }
        }
        check(&CommandLine::command(), "");
    }
}
