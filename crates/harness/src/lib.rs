//! The demo, the benchmarks and chaos: groups of real processes on one machine, started, disturbed and measured.

#![forbid(unsafe_code)]

mod accounts;
mod blast;
mod chaos;
mod clock;
pub mod cluster;
pub mod commands;
pub mod control;
mod cores;
mod digest;
mod latency;
mod member;
pub mod output;
mod progress;
pub mod table;
mod text;
pub mod units;

/// How a command ended that did what it was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandVerdict {
    /// All is well.
    Good,
    /// It found what should not be; it has been printed.
    Bad,
}
