//! Data distribution in the terms of OMG DDS on Squall's groups (Spindle §4.6): participants, topics, writers and readers, with the
//! policies of the specification, whose "reliable" is a total order with stability.
//!
//! ```
//! use std::time::Duration;
//! use serde::{Deserialize, Serialize};
//! use squall::Config;
//! use squall_dds::{DomainParticipant, Keyed, Qos};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Reading {
//!     sensor: u32,
//!     celsius: f32,
//! }
//!
//! impl Keyed for Reading {
//!     const TYPE_NAME: &'static str = "Reading";
//!     type Key = u32;
//!     fn key(&self) -> u32 {
//!         self.sensor
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A domain of one; others are in other processes, with the same configuration and topics.
//! let config = Config::local(&format!("doc-dds-{}", std::process::id()), 1);
//! let participant = DomainParticipant::builder(config).topic("readings", Qos::ATOMIC).join()?;
//! let topic = participant.topic::<Reading>("readings")?;
//! let reader = participant.reader(&topic, Qos::ATOMIC)?;
//! let writer = participant.writer(&topic, Qos::ATOMIC)?;
//!
//! writer.write(&Reading { sensor: 7, celsius: 21.5 })?;
//! reader.wait_for_data(Duration::from_secs(10))?;
//! for sample in reader.take(10)? {
//!     let reading = sample.data.expect("it was written, and not disposed of");
//!     assert_eq!((reading.sensor, reading.celsius), (7, 21.5));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Profiles
//! The policies RELIABILITY and DURABILITY of a topic choose its [`Profile`], which is a way of running a subgroup:
//!
//! | profile | Spindle's name | what a reader gets | writing |
//! |---|---|---|---|
//! | [`Qos::UNORDERED`] | unordered | each writer's samples in order; a full reader rejects samples | into this member's window |
//! | [`Qos::ATOMIC`] | atomic multicast | all samples in one order, when all members have them; a full reader holds up the writers | into this member's window |
//! | [`Qos::KEPT`] | volatile storage | the same, and what was written before it came | returns when the sample is in the history of this member |
//! | [`Qos::LOGGED`] | logged storage | the same; the history outlives all members | returns when it is also on the disks of all members |
//!
//! OMG's *volatile* means that nothing is kept for readers that come later. The paper's *volatile storage* means that samples are kept,
//! in volatile memory. Here `volatile` has OMG's meaning.
//!
//! A history is in the memory of every member, at most [`DurabilityService::samples_max`] samples of it, and a reader of such a topic
//! reads from it: a slow one holds up no other member. If the history is short ([`HistoryKind::KeepLast`]), a sample that is replaced
//! before a reader has taken it counts in [`DataReader::sample_lost`]. It has announcements of 65,536 readers and writers at most
//! ([`WriteError::TooManyEndpoints`]), besides those of writers that have gone and of which samples are kept. Those of a member that has died
//! end with the next view, and those of a client outside the group a minute after it was heard last.
//!
//! # Topics
//! A topic that is named when participants join ([`ParticipantBuilder::topic`]) has a subgroup of its own; all name it with the same policies. A
//! topic that is created later ([`DomainParticipant::create_topic`]) is known to all participants at once, those that join afterwards
//! included, and shares a subgroup with others; creating it changes no view.
//!
//! A [`DataReader`] holds copies of samples until they are taken. [`DomainParticipant::reader_in_place`] makes an upcall for each sample
//! instead, and copies nothing.
//!
//! # Policies
//! [`Qos`] has all 22 policies of the specification. A value that is not kept is refused when a participant, a reader or a writer is
//! created ([`QosError`]); writers that offer less than a reader requests do not match it ([`DataReader::requested_incompatible_qos`],
//! [`DataWriter::offered_incompatible_qos`]).
//!
//! # What is not there
//! - DEADLINE, EXCLUSIVE ownership, the manual kinds of LIVELINESS, and purging by time
//!   are refused. So there are no statuses of deadlines and liveliness: a writer whose member has gone no longer matches.
//! - A participant joins a group of its own, all of whose subgroups are topics: it does not share one that the application has.
//! - [`TopicPublisher`] and [`TopicSubscriber`] are there for coherent sets and for topics in one order; other readers and writers belong to the
//!   participant, and all policies are those of topics, readers and writers.
//! - Samples are in the postcard format. The program `squall-dds-bridge` (folder bridge) passes samples of bytes to and from other DDS
//!   implementations.
//! - Clients outside the group ([`DomainClient`]) have no coherent sets, and no topics in one order. Members notice after a minute that a client
//!   of a topic that keeps samples has died: until then its writers and readers stay matched.
//! - Topics with [`Qos::KEPT`] and with [`Qos::LOGGED`] in one group: a group that restarts from its logs has lost the states that were in
//!   memory only, so [`ParticipantError::LosesHistory`] and [`EntityError::NoStore`] refuse that. Participants may be in several groups.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attended;
mod buffer;
mod builder;
mod cache;
mod client;
mod client_link;
#[cfg(test)]
mod come_and_go;
mod data;
#[cfg(test)]
mod deaths;
mod error;
mod gate;
mod host;
mod hosted;
mod in_place;
mod keeper;
mod kept;
mod lane;
#[cfg(test)]
mod late_joiner;
#[cfg(test)]
mod leases;
mod listener;
mod outbound;
mod outlet;
mod participant;
mod peers;
mod pending_write;
mod port;
mod presence;
mod publisher;
mod qos;
mod queue;
mod reader;
mod reader_core;
mod registry;
mod run_time;
mod sample;
mod set;
mod short;
mod signal;
mod status;
mod store;
mod subscriber;
mod taking;
mod wait_set;
mod wire;
mod writer;

pub use buffer::SampleBuffer;
pub use builder::ParticipantBuilder;
#[doc(no_inline)]
pub use bytes::Bytes;
pub use cache::LimitKind;
pub use client::{ClientReader, ClientWriter, DomainClient};
pub use data::{Keyed, TopicData};
pub use error::{DataError, EntityError, ParticipantError, ReadError, TopicNameError, WriteError};
pub use in_place::InPlaceSample;
pub use listener::{ListenerThread, ReaderListener};
pub use participant::{DomainParticipant, Topic};
pub use pending_write::PendingWrite;
pub use publisher::{CoherentSet, TopicPublisher};
pub use qos::{
    DestinationOrderKind, DurabilityKind, DurabilityService, HistoryKind, LivelinessKind, OwnershipKind,
    PolicyId, Presentation, PresentationScope, Profile, Qos, QosError, ReliabilityKind, ResourceLimits,
};
pub use reader::DataReader;
pub use run_time::{TopicDescription, TopicStore};
pub use sample::{
    EndpointId, InstanceHandle, InstanceState, Position, Sample, SampleInfo, SampleState, StateMask,
    ViewState,
};
#[doc(no_inline)]
pub use squall::Payload;
pub use status::{
    CountStatus, IncompatibleQosStatus, MatchedPeer, MatchedStatus, SampleRejectedStatus, StatusKind,
};
pub use subscriber::{GroupAccess, TopicSubscriber};
pub use wait_set::{Condition, WaitSet};
pub use writer::DataWriter;
