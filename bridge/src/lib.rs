//! Copies samples between the topics of a Squall domain ([`squall_dds`]) and those of an OMG DDS domain, whose participants speak RTPS over
//! UDP; tested with CycloneDDS. The program `squall-dds-bridge` runs one; a file names the topics ([`BridgeSettings`]).
//!
//! - Samples are passed as they are, in CDR, or as text ([`TopicForm`]); the bridge does not know their types.
//! - No sample goes back to the domain from which it came. Several bridges may run between the same domains: one of them forwards, and
//!   another one takes over when its member has left the group.
//! - The order of the Squall domain holds on its side only; in the RTPS domain, the order of one writer.
//! - The ends of instances (dispose, unregister) are not forwarded, nor what was written before the bridge came.
//! - A reader of the RTPS domain that is slow or has gone holds up no member of the Squall domain: samples are dropped, for all RTPS readers
//!   of the topic, with a typed error ([`ForwardError`]). RTPS peers match by the topic's name and policies alone, not by type or partition.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod bridge;
mod error;
mod event;
mod form;
mod inbox;
mod missed;
mod origin;
mod rtps;
mod settings;
mod threads;
mod withheld;

pub use bridge::DdsBridge;
pub use error::{BridgeError, FormError, ForwardError};
pub use event::{BridgeEvent, ForwardCounts};
pub use form::TopicForm;
pub use settings::{BridgeSettings, Direction, TopicProfile, TopicSettings};
