//! The subcommands, one file each.

pub(crate) mod bench_multicast;
pub(crate) mod bench_sst;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod simulate;
