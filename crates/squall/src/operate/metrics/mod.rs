//! Metrics: what a member does, for those who watch over it, over HTTP ([`crate::config::MetricsConfig`]).
//!
//! - The polling thread writes its figures on a board (`board.rs`), a hundred times a second at most, and never waits
//!   for a reader: if one holds the board, the figures are written later.
//! - A small server of HTTP ([`squall_transports::http`]) answers from it (`server.rs`).
//! - What is shown is one table ([`METRICS`], `catalogue.rs`), from which docs/metrics.md is written.

mod board;
mod catalogue;
mod exposition;
mod server;
mod shards;
mod slow;

pub(crate) use board::{FiguresBoard, ShardFigures};
pub use catalogue::{METRICS, MetricDescription, MetricKind, reference};
#[doc(hidden)]
pub use server::read_foreign;
pub(crate) use server::serve_metrics;
