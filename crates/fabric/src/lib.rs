//! The network as Squall's protocols see it: RDMA's one-sided writes, two-sided sends, grants and mirrors
//! (Derecho §3.1–3.2, Spindle §2.2), with every promise written down as an axiom in [`model`].
//!
//! Protocols know only this crate. It holds the memory types ([`Region`], [`Column`], [`window`]), the
//! [`Fabric`] trait that every backend implements, the [`Core`] trait that every protocol implements, the
//! simulated fabric and the conformance suite that all backends pass.

pub mod atomics;
mod backoff;
mod buffer;
pub mod bulk;
pub mod conformance;
pub mod copy;
mod core;
mod either;
mod error_text;
mod event;
#[cfg(shuttle)]
pub mod explore;
mod fabric;
mod grant;
mod histogram;
pub mod layout;
mod mutations;
pub mod mutex;
mod points;
pub mod region;
mod region_slab;
mod reminders;
mod shortage;
pub mod sim;
mod time;
pub mod trusted;
pub mod window;

#[doc = include_str!("model.md")]
pub mod model {}

pub use crate::backoff::{Backoff, Trial};
pub use crate::buffer::Buffer;
pub use crate::core::Core;
pub use crate::error_text::write_error;
pub use crate::event::{BreakReason, FabricEvent, Token};
pub use crate::fabric::{
    Capabilities, Channel, ConnId, Fabric, MirrorId, MirrorKey, NodeId, PostError, SEND_BYTES_MAX, Write,
    WriteSource,
};
pub use crate::grant::{GRANT_BYTES, Grant, GrantError};
pub use crate::histogram::DurationHistogram;
pub use crate::layout::{Column, RowLayout};
pub use crate::region::{Region, RegionId};
pub use crate::region_slab::RegionSlab;
pub use crate::reminders::{REMINDERS_MAX, Reminders};
pub use crate::shortage::Shortage;
pub use crate::time::{Duration, Instant};
