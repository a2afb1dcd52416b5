//! The log: what a command and the library report on standard error while they run.

use std::io::{Result as IoResult, Write};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use clap::{ArgAction, Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::output;

/// How much is logged, and in which form: options of every command.
#[derive(Clone, Copy, Debug, Args)]
pub struct LogArguments {
    /// Log more; -vv more still. Without it, RUST_LOG decides if it is set
    #[arg(short, long, action = ArgAction::Count, global = true, help_heading = HEADING)]
    verbose: u8,
    /// The form of the log on standard error
    #[arg(long, value_enum, default_value = "text", global = true, value_name = "FORMAT", help_heading = HEADING)]
    log_format: LogFormat,
}

const HEADING: &str = "Log";

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, module and message
    Text,
    /// One JSON object for each line
    Json,
}

/// What a command logs without `-v` and `RUST_LOG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsualLevel {
    /// What fails.
    Error,
    /// Also what may be wrong.
    Warn,
    /// Also what happens.
    Info,
}

impl LogArguments {
    /// Starts the log of this process, once. `usual` holds without `-v` and `RUST_LOG`.
    ///
    /// # Errors
    /// If `RUST_LOG` has no meaning.
    pub fn start(self, usual: UsualLevel) -> Result<()> {
        ARGUMENTS.get_or_init(|| self);
        let from_environment =
            std::env::var(VARIABLE).ok().filter(|text| self.verbose == 0 && !text.is_empty());
        let filter = match from_environment {
            Some(text) => EnvFilter::builder().parse(&text).with_context(|| {
                format!("{VARIABLE}=\"{text}\": write a level, or module=level, with commas between")
            })?,
            None => EnvFilter::default().add_directive(level(usual, self.verbose).into()),
        };
        // A line that cannot be written is lost; to report that on the same stream would end the process.
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| LogWriter)
            .with_ansi(console::colors_enabled_stderr())
            .log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
        Ok(())
    }
}

/// Returns the options that give another process of this program the log of this one.
pub(crate) fn inherited() -> Vec<String> {
    let Some(LogArguments { verbose, log_format }) = ARGUMENTS.get() else { return Vec::new() };
    let form = log_format.to_possible_value().expect("no form is hidden");
    let verbose = (0..*verbose).map(|_| "--verbose".to_owned());
    verbose.chain(["--log-format".to_owned(), form.get_name().to_owned()]).collect()
}

/// The first `-v` shows what members do, if the usual level does not.
fn level(usual: UsualLevel, verbose: u8) -> LevelFilter {
    let above = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let step = |step: usize| above[step.min(above.len() - 1)];
    match (usual, usize::from(verbose)) {
        (UsualLevel::Error, 0) => LevelFilter::ERROR,
        (UsualLevel::Warn, 0) => LevelFilter::WARN,
        (UsualLevel::Info, verbose) => step(verbose),
        (_, verbose) => step(verbose - 1),
    }
}

/// Writes whole lines to standard error, beside the progress bars.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        output::note(String::from_utf8_lossy(bytes).trim_end_matches('\n'));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

/// The options of this process.
static ARGUMENTS: OnceLock<LogArguments> = OnceLock::new();
const VARIABLE: &str = "RUST_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_v_shows_more() {
        let levels = |usual| [0, 1, 2, 3, 200].map(|verbose| level(usual, verbose));
        let [error, warn, info, debug, trace] = [
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
        ];
        assert_eq!(levels(UsualLevel::Error), [error, info, debug, trace, trace]);
        assert_eq!(levels(UsualLevel::Warn), [warn, info, debug, trace, trace]);
        assert_eq!(levels(UsualLevel::Info), [info, debug, trace, trace, trace]);
    }
}
