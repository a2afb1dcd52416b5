//! The demo, the benchmarks and chaos: groups of real processes on one machine, started, disturbed and measured.
//!
//! They are commands of the program `squall`, which parses their arguments and calls `run`: [`commands`]. Members are
//! processes of that program, too, so it also offers the hidden commands by which they are started
//! ([`commands::process`]). What all commands of the program share, these and others, is [`terminal`] and [`lines`].

#![forbid(unsafe_code)]

mod accounts;
mod blast;
mod chaos;
mod clock;
mod cluster;
pub mod commands;
mod control;
mod cores;
mod digest;
pub mod lab;
mod latency;
pub mod lines;
mod member;
mod operations;
mod progress;
pub mod terminal;
mod text;

pub use control::EncryptionName;
