//! The log of a member's durable subgroups: from the polling thread to the disk and back (Derecho §2 and §3.4, "durable" mode).
//!
//! **State.** A process has one log for all its durable subgroups ([`ProcessLog`]), in a folder of its own ([`open`]), whose threads
//! write it. For each durable subgroup and view the core has a [`SubgroupLog`], by which it appends what it receives and learns how
//! much of that is on the disk. Signals join the two sides: the number of records on the disk, the failure, and the waker of the
//! polling thread. Other threads of the member borrow the log ([`LogLender`]).
//!
//! **Order.** The log is opened before the member enters its group: making the first segment takes time, and errors come before
//! any member waits. The polling thread appends: it copies records into the frame that collects, under a lock under which nothing
//! waits for the disk. The log's threads write frames, raise the number of records on the disk and wake the polling thread, which
//! then acknowledges the sequences up to there. When the member has left its group, the log writes what it has taken, and is closed.
//!
//! **Invariants.**
//! - \[T1\] What [`SubgroupLog::persisted`](squall_protocols::multicast::MessageLog::persisted) counts is on the disk: the last
//!   message below has a record there, and so has every one before it.
//! - Nothing that was appended is dropped: what is not on the disk yet is in the windows of the senders, since they are freed when
//!   all members have delivered, and the log has buffers for as many bytes as the windows ([`queue_frames`]).
//! - A log that has failed takes and acknowledges nothing more [W6]; the member leaves its group at the next check, and says why.
//!
//! **Records.** A message has a record of kind `Message`: the number that the folder has given to its subgroup
//! ([`subgroups`]), the view, the sequence, the sender's rank in the subgroup, the time at which this member received it (by
//! its clock, in nanoseconds since 1970, growing by at least one from record to record of a subgroup and view, and later than any time up
//! to which a version was read, [`ProcessLog::pass`]), and the bytes. A
//! sequence without a record, below one that has a record, is a null. Nulls behind the last message have no record, and no member counts
//! them ([`squall_protocols::multicast::MessageLog`]): a message costs one record, and one write if it comes alone. Where what was fetched
//! from another log ends with nulls, a record of kind `Frontier` says so; there may also be others in logs of earlier releases.
//!
//! **Register.** What the group keeps of views and votes \[T6\] \[T8\] is in the register of the same folder, written by a thread of
//! its own ([`RegisterThread`]). A process that joins its group again, or restarts it ([`crate::entry::restart`]), continues its log and
//! register; one of another group is refused ([`ProcessLog::check_group`]).
//!
//! **Compaction.** A checkpoint of a subgroup ([`ProcessLog::write_checkpoint`]) takes the place of the records before its position, which
//! were delivered. They are removed, a segment at a time, when all subgroups that have records in it have two newer checkpoints, unless
//! they are to be kept for earlier versions ([`crate::config::Retention`]) [W11] [W14]. Others that lack records which are not there any more
//! get the oldest checkpoint instead ([`squall_protocols::restart::LogState::answer`]).
//!
//! **Reading.** When a log is opened, it is read once, and an index says which frames have the records of which subgroup and view.
//! Other processes that restart, and consumers that want what was delivered earlier, read single frames by it.

pub(crate) mod beside;
pub(crate) mod discarder;
mod folder;
mod found;
mod index;
mod lender;
mod log_signals;
mod process_log;
mod register_file;
mod register_thread;
mod subgroup_log;
mod subgroups;
#[cfg(test)]
mod tests;

#[cfg(test)]
use folder::queue_frames;
pub(crate) use folder::{open, open_backup};
pub(crate) use found::{LogRange, StoredRecord, behind, last_before};
pub(crate) use index::LogIndex;
pub(crate) use lender::{BorrowedLog, LogBorrower, LogLender};
pub(crate) use process_log::{LogMember, ProcessLog};
pub(crate) use subgroup_log::time_ns;
pub(crate) use subgroups::{FolderPlan, durable_layout, shards};
