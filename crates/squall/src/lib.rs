//! Squall: group communication at memory speed.
//!
//! Processes join a *group*; its *subgroups* replicate messages to all their members in one total order (Derecho
//! §2–3), at the speed of the memory that they share or of the network between them (Spindle).
//!
//! ```
//! use squall::config::SubgroupConfig;
//! use squall::{Config, Group};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two members on this host, over shared memory; threads here, processes elsewhere.
//! let config = Config::local(&format!("doc-{}", std::process::id()), 2).subgroup("log", SubgroupConfig::default());
//! let other = config.clone().for_rank(1);
//! let other = std::thread::spawn(move || -> Vec<u8> {
//!     let mut group = Group::join(other).unwrap();
//!     let mut deliveries = group.subgroup("log").unwrap().deliveries().unwrap();
//!     let bytes = deliveries.next().unwrap().bytes.to_vec();
//!     group.leave(std::time::Duration::from_secs(10)); // in order: the other one continues
//!     bytes
//! });
//! let mut group = Group::join(config)?;
//! let log = group.subgroup("log")?;
//! log.sender()?.send(5, |message| message.copy_from_slice(b"hello"))?;
//! assert_eq!(log.deliveries()?.next()?.bytes, b"hello");
//! assert_eq!(other.join().unwrap(), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! - [`Group`] joins a group and hands out its subgroups; [`Builder`] sets upcalls, or leaves polling to the
//!   application ([`Node`]).
//! - [`Sender`] builds messages in place; the application chooses calls that never block, that block, or that are
//!   awaited.
//! - [`Deliveries`] reads messages in place and releases them in batches, with the views between them if the application
//!   asks for those ([`DeliveryEvent`]). [`OwnedDeliveries`] copies them, for iterators and streams of futures.
//! - [`Sender::send_value`] and [`read_value`] send and read values of serde's types.
//! - [`object`] replicates an application's type at all members, sharded by keys.
//! - [`genuine`] sends messages to several shards of a group, in one order.
//! - [`external`] reads and sends messages from outside the group.
//! - [`bulk`] sends large objects to many members.
//! - [`stream`] connects two processes that need no group.
//! - [`config`] reads the description of a group from a file; with [`config::StorageConfig`] it has durable subgroups.
//! - [`recovery`] continues a durable group from one log, when the others are lost.
//! - [`metrics`] shows what a member does to Prometheus and to whatever restarts processes.
//! - [`ask_status`] asks a member for its state, as `squall status` does, and [`ask_flight_record`] for what it has noticed
//!   lately; [`trace`] writes that for a browser.
//!
//! The book (docs/book in the tree) has guides with samples.
//!
//! # Errors
//! Each error says what happened and what to do next. Its Debug form is that text, too, with what its causes add, because the
//! standard library prints an error that `main` returns by Debug: `fn main() -> Result<(), Box<dyn Error>>`, as in the README,
//! and `fn main() -> Result<(), JoinError>` print what a person can read. Programs tell errors apart by their variants.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Squall runs on Linux only: it needs memfd, eventfd and abstract Unix sockets. Build it in a container or a virtual \
     machine with Linux"
);

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;

mod application;
pub mod bulk;
pub mod config;
mod durable;
mod entry;
mod error;
pub mod external;
mod flight_record;
mod group;
mod handle;
mod node;
pub mod object;
mod operate;
mod shared_poller;
mod slot;
mod status;
pub mod stream;
mod transport;
mod wait;

pub use config::Config;
#[doc(hidden)]
pub use entry::assembly::{ConnectedGroup, assemble};
pub use error::{
    GroupError, HandleError, HistoryError, JoinError, LogFolderError, ReceiveError, ReplayError, SendError,
    ValueError,
};
pub use flight_record::{FlightLine, FlightRecord, MessageLine};
pub use group::SubgroupHandle;
pub use group::{Builder, Departure, Group};
pub use handle::deliveries::{Deliveries, DeliveryEvent};
pub use handle::deliveries_from::{DeliveriesFrom, LoggedMessage};
pub use handle::genuine;
pub use handle::history::{History, StoredMessage};
pub use handle::owned::{OwnedDeliveries, OwnedMessage, read_value};
pub use handle::sender::{MessageSlot, SendBurst, Sender};
pub use node::Node;
pub use operate::flight::ask_flight_record;
#[doc(hidden)]
pub use operate::inquiry::read_foreign as read_foreign_inquiry;
pub use operate::inquiry::{
    HeldUpLine, LAGS_MAX, LagLine, LatencyLine, LogLine, MemberLine, MemberStatus, ShardLine, ShardsLine,
    SlowestLine, SubgroupLine, TrafficLine, ViewChangeLine, WindowLine, ask_status,
};
pub use operate::missing::MissingData;
pub use operate::{metrics, recovery, trace};
pub use shared_poller::{PolledBy, SharedPoller};
pub use slot::{MessageOutcome, Position, SubgroupView};
pub use squall_fabric::window::Payload;
pub use squall_fabric::{Instant, NodeId};
pub use squall_log::{AppendError, DiskCause, DiskError, FolderError, StorageError};
pub use squall_protocols::group::ViewChange;
pub use squall_protocols::membership::{Member, StopReason, View, ViewChangeStep, ViewChangeSteps};
pub use squall_protocols::multicast::{
    Batching, Carrier, Deliver, DeliveryMode, Message, MessageBatch, MulticastCounters, SubgroupFailure,
    SubgroupSettings, SubgroupSettingsError,
};
pub use squall_transports::bootstrap::{BootstrapError, BootstrapProgress};
pub use squall_transports::composite::{CompositeError, TransportChoice};
pub use squall_transports::runner::IdleLimits;
pub use squall_transports::tcp::TcpCounters;
pub use squall_transports::verbs::{VerbsCounters, VerbsError};
