//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod dds;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod messages;
pub(crate) mod node;
pub(crate) mod recover;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod trace;
