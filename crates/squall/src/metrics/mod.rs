//! Metrics: what a member does, for those who watch over it, over HTTP ([`crate::config::MetricsConfig`]).
//!
//! - The polling thread writes its figures on a board (`board.rs`), a hundred times a second at most, and never waits
//!   for a reader: if one holds the board, the figures are written later.
//! - A thread accepts connections (`server.rs`), and each of the few that there may be has a thread and a deadline.
//! - What is shown is one table ([`METRICS`], `catalogue.rs`), from which docs/metrics.md is written.

mod board;
mod catalogue;
mod exposition;
mod request;
mod server;
mod shards;

pub(crate) use board::{FiguresBoard, ShardFigures};
pub use catalogue::{METRICS, MetricDescription, MetricKind, reference};
#[doc(hidden)]
pub use request::read_foreign;
pub(crate) use server::MetricsServer;
