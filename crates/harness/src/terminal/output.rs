//! Printing results. When the reader of the output has ended (`squall demo | head -1`), the command ends quietly.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::Result;
use console::{Term, measure_text_width};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::{bars, error_output};

/// The exit status that shells show for a program that ended because its output was no longer read.
pub const UNREAD_STATUS: u8 = 141;

/// Prints a line to standard output. On a terminal, a line that is too long continues between two words.
pub fn line(text: impl Display) {
    write(&format!("{}\n", fitted(&text.to_string(), &Term::stdout())));
}

/// Prints a value as one line of JSON.
///
/// # Errors
/// If it cannot be JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    write(&format!("{}\n", serde_json::to_string(value)?));
    Ok(())
}

/// Prints to standard output as it is.
pub fn write(text: &str) {
    let print = || {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    };
    match if console::user_attended() { bars::suspend(print) } else { print() } {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(UNREAD_STATUS.into()),
        Err(error) => {
            note(format_args!("squall: failed to print the result: {error}"));
            exit(1);
        }
        Ok(()) => {}
    }
}

/// Ends the process when the output is no longer read, from now on: for a command that waits for what it prints, and would notice that
/// with its next line only.
pub fn end_with_reader() {
    let wait = || {
        let out = std::io::stdout();
        loop {
            let mut waited = [PollFd::new(&out, PollFlags::empty())];
            match rustix::event::poll(&mut waited, None) {
                Ok(_) if waited[0].revents().contains(PollFlags::ERR) => exit(UNREAD_STATUS.into()),
                Err(Errno::INTR) => {}
                // It is no pipe.
                _ => return,
            }
        }
    };
    // Without the thread, the next line shows it.
    let _ = std::thread::Builder::new().name("output".into()).spawn(wait);
}

/// Prints a line to standard error. If that is not read, it is printed later, or never.
pub fn note(text: impl Display) {
    log_line(text);
    error_output::flush(NOTE_PATIENCE);
}

/// As [`note`], without waiting until the line is printed.
pub(super) fn log_line(text: impl Display) {
    error_output::put(fitted(&text.to_string(), &Term::stderr()));
}

/// Ends the process with this status, once the log is written; a log that is not read does not delay it for long.
pub fn exit(status: i32) -> ! {
    flush_log();
    std::process::exit(status)
}

/// Waits until the log is written, for a short time at most: for the end of a process.
pub fn flush_log() {
    squall_transports::log::flush(NOTE_PATIENCE);
    error_output::flush(NOTE_PATIENCE);
}

/// `text` with its long lines broken between words, if it is printed on a terminal.
fn fitted(text: &str, terminal: &Term) -> String {
    let width = terminal.features().is_attended().then(|| terminal.size_checked()).flatten();
    width.map_or_else(|| text.to_owned(), |(_, columns)| wrapped(text, columns.into()))
}

/// `text` with its lines broken between words so that none is wider than `columns`, as far as words allow. Continuations
/// are indented.
fn wrapped(text: &str, columns: usize) -> String {
    let wrap = |line: &str| {
        if measure_text_width(line) <= columns {
            return line.to_owned();
        }
        let (mut wrapped, mut used) = (String::new(), 0);
        for word in line.split_inclusive(' ') {
            let width = measure_text_width(word.trim_end());
            if used + width > columns && used > INDENT.len() {
                wrapped.truncate(wrapped.trim_end().len());
                wrapped.extend(["\n", INDENT]);
                used = INDENT.len();
            }
            wrapped.push_str(word);
            used += measure_text_width(word);
        }
        wrapped
    };
    text.split('\n').map(wrap).collect::<Vec<_>>().join("\n")
}

/// How long a line may take to be written, if standard error is read.
const NOTE_PATIENCE: Duration = Duration::from_secs(1);
/// In front of the rest of a broken line.
const INDENT: &str = "    ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three four\nfive", 10), "one two\n    three\n    four\nfive");
        assert_eq!(wrapped("one two", 7), "one two");
        assert_eq!(wrapped("a-word-that-is-too-long b", 10), "a-word-that-is-too-long\n    b");
        let green = console::style("one two three").green().force_styling(true).to_string();
        assert_eq!(console::strip_ansi_codes(&wrapped(&green, 8)), "one two\n    three");
    }
}
