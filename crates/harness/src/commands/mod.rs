//! The subcommands, one file each.

pub mod bench;
pub mod chaos;
pub mod demo;
pub mod lab;
pub mod process;
mod total_failure;
