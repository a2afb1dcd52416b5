//! What all commands do alike where they meet their user: results, numbers, tables and progress bars, Ctrl-C, and how a
//! command ends.

pub mod bars;
mod interrupts;
pub mod output;
pub mod table;
pub mod units;

pub use interrupts::{INTERRUPTED_STATUS, Interrupted, Interrupts};

/// How a command ended that did what it was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandVerdict {
    /// All is well.
    Good,
    /// It found what should not be; it has been printed.
    Bad,
}
