//! Printing results: where nobody reads any more (`squall demo | head -1`), the command ends quietly.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// The exit status that shells show for a program that ended because nobody read its output.
const UNREAD_STATUS: i32 = 141;

/// Prints a line to standard output.
pub fn line(text: impl Display) {
    write(&format!("{text}\n"));
}

/// Prints to standard output as it is.
pub fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let outcome = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(UNREAD_STATUS),
        Err(error) => {
            note(format_args!("squall: cannot print the result: {error}"));
            std::process::exit(1);
        }
        Ok(()) => {}
    }
}

/// Prints a line to standard error, if anybody reads it.
pub fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
