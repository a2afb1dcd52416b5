//! The subcommands, one file each.

pub(crate) mod bench_multicast;
pub(crate) mod bench_object;
pub(crate) mod bench_rdmc;
pub(crate) mod bench_sst;
pub(crate) mod bench_stream;
pub(crate) mod bench_view;
pub(crate) mod chaos;
pub(crate) mod cp;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod messages;
pub(crate) mod node;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
