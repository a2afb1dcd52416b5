//! The durable log of one process: what it has received is on disk before it says so (Derecho §3.4, persistent mode).
//!
//! One stream of segments for all subgroups of a process, since a disk writes one stream faster than many; a small register for what
//! must not be in the part that a crash can cut off; checkpoints, so that the log need not grow. A pure core decides
//! ([`LogCore`]); [`recover`] is a function of what is on the disk; [`Disk`] is real ([`FileDisk`]) or simulated ([`SimDisk`]);
//! [`DurableLog`] has the threads.
//!
//! # The folder
//!
//! | path | what it is |
//! |---|---|
//! | `LOCK` | locked by the running process, which it names |
//! | `identity` | cluster, member, the log's random id, the sizes ([`LogIdentity`]), behind the version of the format |
//! | `register` | where the log begins, its life, what the protocol keeps of views and votes, and the durable subgroups ([`RegisterValue`], [`LogSubgroups`]) |
//! | `log/NNNNNNNNNN.segment` | frames, in ascending order |
//! | `BACKUP` | only in a copy that [`back_up`] has made, which is no process's folder |
//! | `aside/` | what [`repair`] has moved away |
//! | `checkpoints/SUBGROUP-VIEW-SEQUENCE` | states of subgroups, in blocks with checks ([`CheckpointBlock`]) |
//!
//! Files that are being made end in `.new`. `identity` and `register` have two checked copies each. Numbers are little-endian.
//!
//! A segment has its full length in written zeros before it is used, so that no append allocates, and a full disk shows when the
//! next segment is made, while the present one still has space. A *frame* is one group commit and one write: a header of 64 bytes
//! ([`FrameHeader`]), records ([`LogRecord`]: a header of 40 bytes, the bytes, padding to 8), padding to the block. Frames are
//! in one segment each, one behind the other. The header shows what a recycled file held before: it is of another segment,
//! another log, or an older frame.
//!
//! # State and order
//!
//! - A *life* begins each time the log is opened for writing: the register counts it, flushed, before the first frame. A frame's
//!   number is the life and a count, so no number is ever used twice, whatever was lost.
//! - The first frame of a life is its *opening*. It follows the last good frame and is written alone: a later recovery that finds it
//!   knows what was settled before.
//! - One frame is written at a time while frames are small, up to four when they are full. While one is written the next one
//!   collects; there are no timers. A record is persisted when its frame and all before it are written.
//! - A segment is made ready (all its blocks written, its name flushed) before the one in use is full.
//! - A checkpoint is written, read back, renamed, its folder flushed; then older ones than the newest two are removed, the folder is
//!   flushed again, and the checkpoint counts.
//!   A segment is recycled when both kept checkpoints of all its subgroups are newer: the register's base moves, flushed, and then
//!   the file gets its new name. A checkpoint without a state is a mark, of which one is enough: it can be made again.
//! - Recovery follows the chain of frames from the base, and gives a [verdict](TailVerdict) on what is behind its end. *Clean* and
//!   *torn* logs continue there. A *damaged* one is good up to there and unknown above: it is never cut. When what is missing has
//!   been fetched, or its loss is accepted, it continues in a new segment ([`Recovered::into_repaired`]).
//!
//! # Invariants
//!
//! They are in docs/invariants.md, [W1]–[W17], with the mutations that break them. The simulator's scenario `log` runs what ships on
//! [`SimDisk`]. Beyond the invariants: a full *last* frame that rots, or is lost by a disk that reports success, leaves no trace, and
//! the log is found torn or clean without it. No log can know; the group does.

#![forbid(unsafe_code)]

#[macro_use(mutant, mutations, points)]
extern crate squall_fabric;

mod backup;
mod buffer;
mod check;
mod checkpoint;
mod copies;
mod core;
pub mod coverage;
mod disk;
mod durable_log;
mod file_disk;
mod frame;
mod identity;
pub mod mutation;
mod names;
mod new_folder;
mod note;
mod record;
mod recovery;
mod repair;
mod segment;
mod settings;
mod sim_disk;
mod storage;
mod subgroups;
mod verdict;
mod watched_disk;

pub use crate::backup::{BACKUP_FILE, BackupError, BackupSummary, back_up};
pub use crate::buffer::{AlignedBuffer, MEMORY_ALIGNMENT};
pub use crate::checkpoint::{CHECKPOINT_HEADER_BYTES, CheckpointBlock, CheckpointError, StateWriting};
pub use crate::copies::{COPY_BYTES_MIN, COPY_VALUE_BYTES_MAX, copy_from_bytes, copy_to_bytes};
pub use crate::core::{AppendError, FrameWrite, LogAction, LogAnswer, LogCore};
pub use crate::disk::{Disk, DiskCause, DiskError};
pub use crate::durable_log::{DurableLog, WriteTally};
pub use crate::file_disk::{FileDisk, FolderError};
pub use crate::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader, opening_number};
pub use crate::identity::{FORMAT, IdentityError, LogIdentity, RegisterValue};
pub use crate::note::{FrameNote, RecordSpan, RecordSpans, SpanKey};
pub use crate::record::{LogPosition, LogRecord, RECORD_HEADER_BYTES, RecordError, RecordKind, read_records};
pub use crate::recovery::{FramePlace, LogSurvey, Recovered, RecoveredPart, recover};
pub use crate::repair::{AsideReason, RepairPlan, RepairStep, keep_aside, plan_repair, repair};
pub use crate::segment::{LogBase, Recycling, SegmentContents};
pub use crate::settings::LogSettings;
pub use crate::sim_disk::{DiskFault, FaultStruck, SimDisk};
pub use crate::storage::{LogBegin, Storage, StorageError, StorageOwner};
pub use crate::subgroups::{LogSubgroups, SubgroupChange};
pub use crate::verdict::{TailEvidence, TailVerdict};
pub use crate::watched_disk::WatchedDisk;
