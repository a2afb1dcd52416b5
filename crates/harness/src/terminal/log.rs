//! The log: what a command and the library report on standard error while they run. In systemd's journal, each line
//! begins with its priority, as in `sd-daemon(3)`, and has no time of its own.

use std::fs::{File, Metadata as FileMetadata};
use std::io::{Result as IoResult, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{LazyLock, OnceLock};

use anyhow::{Context as _, Result};
use clap::{ArgAction, Args, ValueEnum};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::escape::escaped_line;
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
            .with_writer(LogLines)
            .with_ansi(console::colors_enabled_stderr())
            .log_internal_errors(false);
        match self.log_format {
            LogFormat::Text if *IS_JOURNAL => log.without_time().init(),
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

/// Returns what a line of this level begins with in systemd's journal; nothing elsewhere.
#[must_use]
pub fn journal_priority(level: Level) -> &'static str {
    if *IS_JOURNAL { priority(level) } else { "" }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Whether `stream`, the value of `JOURNAL_STREAM`, names this file by device and inode.
fn is_named(stream: &str, file: &FileMetadata) -> bool {
    stream == format!("{}:{}", file.dev(), file.ino())
}

/// Makes a writer for each line of the log.
struct LogLines;

impl<'w> MakeWriter<'w> for LogLines {
    type Writer = LogWriter;

    fn make_writer(&'w self) -> LogWriter {
        LogWriter { priority: journal_priority(Level::INFO) }
    }

    fn make_writer_for(&'w self, event: &Metadata<'_>) -> LogWriter {
        LogWriter { priority: journal_priority(*event.level()) }
    }
}

/// Writes whole lines to standard error, beside the progress bars. It does not wait until they are read.
struct LogWriter {
    /// In front of each line.
    priority: &'static str,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        // Names and reasons of others are among it. Colours are of this program: then what a message has of them is escaped already.
        let text = String::from_utf8_lossy(bytes);
        let text = escaped_line(&text, console::colors_enabled_stderr());
        let lines: Vec<String> =
            text.trim_end_matches('\n').split('\n').map(|line| format!("{}{line}", self.priority)).collect();
        output::log_line(lines.join("\n"));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

/// Whether standard error is a stream of systemd's journal, which has a time for each line.
static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    // A descriptor of its own, which closes with the file.
    let file = std::io::stderr().as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|file| is_named(&stream, &file))
});

/// The options of this process.
static ARGUMENTS: OnceLock<LogArguments> = OnceLock::new();
const VARIABLE: &str = "RUST_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        let folder = std::fs::metadata("/").unwrap();
        assert!(is_named(&format!("{}:{}", folder.dev(), folder.ino()), &folder));
        for other in ["", "8:1", &format!("{}:{}", folder.dev(), folder.ino() + 1)] {
            assert!(!is_named(other, &folder), "{other}");
        }
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), ["<3>", "<4>", "<6>", "<7>", "<7>"]);
    }

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
