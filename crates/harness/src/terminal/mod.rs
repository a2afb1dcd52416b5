//! What all commands share where they meet their user: results, numbers, tables, progress bars, the log, Ctrl-C, and how a
//! command ends.

pub mod bars;
mod error_output;
mod error_text;
mod escape;
mod interrupts;
pub mod log;
pub mod output;
mod pending;
pub mod table;
pub mod units;

pub use error_text::error_text;
pub use escape::{escaped, escaped_text};
pub use interrupts::{INTERRUPTED_STATUS, Interrupted, Interrupts};
pub use pending::PendingNote;

/// How a command ended that did what it was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandVerdict {
    /// All is well.
    Good,
    /// It found a fault, and has printed it.
    Bad,
}
