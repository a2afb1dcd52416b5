//! Copies samples between the topics of a Squall domain ([`squall_dds`]) and those of an OMG DDS domain, whose participants speak RTPS over
//! UDP: CycloneDDS, Fast DDS, RTI Connext, ROS 2. The program `squall-dds-bridge` runs one; a file names the topics ([`BridgeSettings`]).
//!
//! - Samples are passed as they are, in CDR, or as text ([`TopicForm`]); the bridge does not know their types.
//! - No sample goes back to the domain from which it came. Several bridges may run between the same domains: one of them forwards, and
//!   another one takes over when its member has left the group.
//! - The order of the Squall domain holds on its side only; in the RTPS domain, the order of one writer.
//! - The ends of instances (dispose, unregister) are not forwarded, nor what was written before the bridge came.
//! - A peer of the RTPS domain that is slow or has gone holds up no member of the Squall domain: samples for it are dropped, with a typed
//!   error ([`ForwardError`]).
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod bridge;
mod error;
mod form;
mod origin;
mod rtps;
mod settings;

pub use bridge::{BridgeEvent, DdsBridge, ForwardCounts};
pub use error::{BridgeError, FormError, ForwardError};
pub use form::TopicForm;
pub use settings::{BridgeSettings, Direction, TopicProfile, TopicSettings};
