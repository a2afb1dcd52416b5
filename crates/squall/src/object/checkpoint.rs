//! Checkpoints of a durable shard: its state and its clients' sessions, in the folder of the member's log (Derecho §3.4, persistent
//! mode).
//!
//! [`CheckpointSchedule`](squall_protocols::replica::CheckpointSchedule) decides when. The thread that applies updates takes the
//! snapshot, and a thread of its own writes it while updates continue. Behind the checkpoint the log is not needed for a restart
//! any more, and is removed as far as the configuration does not keep it.
//!
//! **Format.** The header [`Header`] as postcard writes it, behind its length (4 bytes); the sessions; the state, to the end. Each
//! block has a checksum of its own (`squall_log::CheckpointBlock`).

use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_protocols::group::SubgroupId;
use squall_protocols::replica::{Sessions, ShardPosition, ShardSnapshot, StateRecovery, TimedPosition};
use squall_protocols::restart::LogStart;
use squall_transports::log;

use super::machine::{Replicated, TypedMachine};
use super::recovery::has_ended;
use super::shard::{SETTINGS, Shard};
use crate::durable::ProcessLog;
use crate::slot::Snapshot;

/// What precedes the state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// The greatest time of the messages in the state, in nanoseconds since 1970.
    time: u64,
    /// How many bytes of sessions follow.
    sessions: u64,
}

/// A checkpoint that was read.
pub(super) struct ReadCheckpoint<T: Replicated> {
    pub(super) recovery: StateRecovery<TypedMachine<T>>,
    pub(super) at: TimedPosition,
    pub(super) bytes: u64,
}

/// Begins a checkpoint of the state as it is now, if one is due. It is called by the thread that applies updates.
pub(super) fn tend<T: Replicated>(shard: &Arc<Shard<T>>) {
    if shard.durable.is_none() {
        return;
    }
    let mut core = shard.core();
    let holds = core.replica.position().is_some();
    let Some(snapshot) = core.checkpoints.poll(holds).then(|| core.replica.snapshot()).flatten() else {
        return;
    };
    drop(core);
    let own = Arc::clone(shard);
    let run = move || {
        let written = panic::catch_unwind(AssertUnwindSafe(|| write(&own, snapshot)));
        let written = written.unwrap_or_else(|_| Err(io::Error::other("writing the state has panicked")));
        let schedule = &mut own.core().checkpoints;
        match written {
            Ok(bytes) => schedule.handle_written(bytes),
            Err(error) => {
                schedule.handle_failed();
                if !has_ended(&own) {
                    log::warn!(shard = own.number, %error, "wrote no checkpoint: the log keeps what is behind the last one");
                }
            }
        }
    };
    let name = format!("squall checkpoint {}", shard.subgroup);
    if let Err(error) = std::thread::Builder::new().name(name).spawn(run) {
        log::warn!(shard = shard.number, %error, "failed to start the thread that writes a checkpoint");
        shard.core().checkpoints.handle_failed();
    }
}

/// Writes a checkpoint, and returns how many bytes of state it has.
fn write<T: Replicated>(
    shard: &Shard<T>,
    ShardSnapshot { position, sessions, snapshot }: ShardSnapshot<Snapshot>,
) -> io::Result<u64> {
    let ended = || io::Error::other("the member has ended");
    let log = shard.link.log.as_ref().and_then(|log| log.borrow()).ok_or_else(ended)?;
    let begun = Instant::now();
    let start = start_of(position);
    let time = log.time_before(shard.id, start).max(shard.versions.checkpoint_time());
    let (written, mut snapshot) = (AtomicU64::new(0), Some(snapshot));
    let retention = shard.retention;
    log.write_checkpoint(shard.id, start, &retention, &mut |sink| {
        let header = postcard::to_stdvec(&Header { time, sessions: sessions.len() as u64 });
        let header = header.map_err(io::Error::other)?;
        let length = u32::try_from(header.len()).expect("a header is short");
        [&length.to_le_bytes()[..], &header, &sessions]
            .into_iter()
            .try_for_each(|part| sink.write_all(part))?;
        let snapshot = snapshot.take().expect("a checkpoint is written once");
        snapshot.write(&mut StateSink { sink, written: &written, has_ended: &|| has_ended(shard) })
    })
    .map_err(io::Error::other)?;
    shard.versions.note_checkpoint(time);
    let (bytes, took) = (written.into_inner(), begun.elapsed());
    log::info!(
        shard = shard.number,
        view = position.view,
        sequence = position.sequence,
        bytes,
        ?took,
        "wrote a checkpoint"
    );
    Ok(bytes)
}

/// Counts what is written, and gives up when the member ends.
struct StateSink<'a> {
    sink: &'a mut dyn Write,
    written: &'a AtomicU64,
    has_ended: &'a dyn Fn() -> bool,
}

impl Write for StateSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.has_ended)() {
            return Err(io::Error::other("the member has ended"));
        }
        let taken = self.sink.write(bytes)?;
        self.written.fetch_add(taken as u64, Ordering::Relaxed);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Reads the checkpoint at a position. What is in it was verified when the log was opened.
pub(super) fn read<T: Replicated>(
    log: &ProcessLog,
    subgroup: SubgroupId,
    start: LogStart,
) -> io::Result<ReadCheckpoint<T>> {
    let mut source = CheckpointSource::new(log, subgroup, start);
    let Header { time, sessions: length } = read_header(&mut source)?;
    let mut sessions = Vec::new();
    (&mut source).take(length).read_to_end(&mut sessions)?;
    let sessions = Sessions::decode(&sessions).map_err(io::Error::other)?;
    let before = source.read;
    let machine = TypedMachine(T::restore(&mut source)?);
    // The rest is read for the number of bytes.
    io::copy(&mut source, &mut io::sink())?;
    let position = position_of(start);
    Ok(ReadCheckpoint {
        recovery: StateRecovery::resume(position, sessions, machine, SETTINGS),
        at: TimedPosition { position, time },
        bytes: source.read - before,
    })
}

/// Reads when the last message of a checkpoint was received.
pub(super) fn read_time(log: &ProcessLog, subgroup: SubgroupId, start: LogStart) -> io::Result<u64> {
    Ok(read_header(&mut CheckpointSource::new(log, subgroup, start))?.time)
}

/// Not fuzzed: the bytes are this member's own, or another member's, behind a checksum.
fn read_header(source: &mut CheckpointSource<'_>) -> io::Result<Header> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let mut header = Vec::new();
    source.take(u32::from_le_bytes(length).into()).read_to_end(&mut header)?;
    postcard::from_bytes(&header).map_err(io::Error::other)
}

/// Reads a checkpoint, block by block.
struct CheckpointSource<'a> {
    log: &'a ProcessLog,
    subgroup: SubgroupId,
    start: LogStart,
    block: u32,
    is_last: bool,
    bytes: Vec<u8>,
    /// How many of `bytes` were read, and how many of all blocks.
    taken: usize,
    read: u64,
}

impl<'a> CheckpointSource<'a> {
    const fn new(log: &'a ProcessLog, subgroup: SubgroupId, start: LogStart) -> Self {
        Self { log, subgroup, start, block: 0, is_last: false, bytes: Vec::new(), taken: 0, read: 0 }
    }
}

impl Read for CheckpointSource<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.bytes.len() && !self.is_last {
            let read = self.log.read_checkpoint(self.subgroup, self.start, self.block);
            (self.bytes, self.is_last) = read.map_err(io::Error::other)?;
            self.taken = 0;
            self.block += 1;
        }
        let length = into.len().min(self.bytes.len() - self.taken);
        into[..length].copy_from_slice(&self.bytes[self.taken..self.taken + length]);
        self.taken += length;
        self.read += length as u64;
        Ok(length)
    }
}

/// The beginning of the log behind a state.
pub(super) const fn start_of(position: ShardPosition) -> LogStart {
    LogStart { view: position.view, sequence: position.sequence }
}

/// The position of a state behind which the log begins.
pub(super) const fn position_of(start: LogStart) -> ShardPosition {
    ShardPosition { view: start.view, sequence: start.sequence }
}
