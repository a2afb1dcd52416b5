//! The subcommands, one file each.

pub mod bench;
mod bench_multicast;
mod bench_object;
mod bench_rdmc;
mod bench_sst;
mod bench_stream;
mod bench_view;
pub mod chaos;
pub mod demo;
pub mod process;
