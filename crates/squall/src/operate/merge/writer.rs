//! Carrying out a merge.
//!
//! **Order.** The register says that the log is damaged before the log continues, since its damage is not seen behind that. What is taken comes
//! behind everything that is in the folder, in a segment of its own. The register says what is whole when all of it is on the disk. So a merge
//! that is interrupted can be done again.

use std::io::Write;
use std::ops::Range;

use squall_log::{
    AppendError, CheckpointError, Disk, DiskError, DurableLog, LogIdentity, LogPosition, LogRecord,
    LogSettings, RecordKind, Storage, StorageOwner, keep_aside,
};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogStart, MergePlan, MergeStep};

use super::reader::{MergeFolder, shards};
use super::{MergeError, failed};
use crate::config::Config;
use crate::durable::last_before;

/// Has the first of these folders, which is on `disk`, take what `plan` says.
pub(super) fn carry_out<D: Disk, W: Disk + Send + Sync + 'static>(
    disk: W,
    config: &Config,
    folders: &[MergeFolder<D>],
    plan: &MergePlan,
) -> Result<(), MergeError> {
    let own = &folders[0];
    let has_records = plan.steps.iter().any(|step| matches!(step, MergeStep::Records { .. }));
    let continues = has_records || !own.survey.recovered.is_usable();
    if plan.steps.is_empty() && !continues && plan.register == own.register {
        return Ok(());
    }
    let storage_failed = |error: squall_log::StorageError| failed(&own.folder, error);
    let disk_failed = |error: DiskError| failed(&own.folder, error);
    keep_aside(&disk, "register", own.storage.settings().block).map_err(disk_failed)?;
    let owner = StorageOwner { cluster: config.cluster.clone(), member: config.log_name() };
    let log = LogIdentity::random_log().map_err(disk_failed)?;
    let storage = Storage::open(disk, &owner, LogSettings::DEFAULT, log).map_err(storage_failed)?;
    own.plan.write(&storage).map_err(storage_failed)?;
    if own.is_damaged() {
        let mut register = own.register.clone();
        register.damaged_in = Some(register.view().number);
        storage.change_register(|value| value.set_protocol(register.encode())).map_err(storage_failed)?;
    }
    let ids: Vec<SubgroupId> = shards(config).into_values().collect();
    for step in &plan.steps {
        if let MergeStep::Checkpoint { source, shard, start } = *step {
            take_checkpoint(&storage, own.number(ids[shard]), (&folders[source], ids[shard]), start)
                .map_err(|error| disk_failed(error.into()))?;
        }
    }
    if !continues {
        storage
            .change_register(|value| value.set_protocol(plan.register.encode()))
            .map_err(storage_failed)?;
        return Ok(());
    }
    // Nothing that is there is written over, also if a crash could have left it behind.
    let recovered = storage.recover_notes(&mut |_| ()).map_err(storage_failed)?;
    let recovered = recovered.into_repaired(storage.settings());
    let log = DurableLog::start(storage, recovered).map_err(storage_failed)?;
    let mut appending = Appending { log: &log, records: 0, failure: None };
    for step in &plan.steps {
        if let MergeStep::Records { source, shard, view, from, to } = *step {
            appending.take(own.number(ids[shard]), (&folders[source], ids[shard]), view, from..to)?;
        }
    }
    let Appending { records, failure, .. } = appending;
    let append_failed = |cause| MergeError::Write { folder: own.folder.clone(), cause };
    if let Some(cause) = failure {
        return Err(append_failed(cause));
    }
    log.wait(records).map_err(|error| append_failed(error.into()))?;
    log.write_register(plan.register.encode()).map_err(disk_failed)
}

/// Takes a checkpoint of a folder, or, of a folder that is the own one, continues behind it. What is bad goes to `aside`.
fn take_checkpoint<D: Disk, W: Disk>(
    storage: &Storage<W>,
    own: u32,
    (from, id): (&MergeFolder<D>, SubgroupId),
    start: LogStart,
) -> Result<(), CheckpointError> {
    let position = last_before(start).unwrap_or_default();
    let block = storage.settings().block;
    let good = storage.checkpoints().remove(&own).unwrap_or_default();
    for name in storage.disk().list("checkpoints")? {
        let is_of = name.strip_prefix(&format!("{own}-")).is_some();
        let is_good = good.iter().any(|at| name == format!("{own}-{}-{}", at.view, at.sequence));
        if is_of && !is_good {
            // What cannot be read at all cannot be kept.
            let _ = keep_aside(storage.disk(), &format!("checkpoints/{name}"), block);
        }
    }
    let number = from.number(id);
    if from.storage.is_mark(number, position)? {
        return storage.replace_by_mark(own, position);
    }
    let mut write = |sink: &mut dyn Write| {
        let mut written = Ok(());
        let read = from.storage.read_checkpoint(number, position, &mut |bytes| {
            if written.is_ok() {
                written = sink.write_all(bytes);
            }
        });
        written.and_then(|()| read.map_err(std::io::Error::other))
    };
    storage.replace_checkpoints(own, position, &mut write)
}

/// Records that are being appended to a log.
struct Appending<'a, W> {
    log: &'a DurableLog<W>,
    /// How many records are on the disk when all that were appended are.
    records: u64,
    failure: Option<AppendError>,
}

impl<W: Disk + Send + Sync + 'static> Appending<'_, W> {
    /// Appends what a folder has of a view. The last record shows that all before it are nulls that are no messages.
    fn take<D: Disk>(
        &mut self,
        own: u32,
        (from, id): (&MergeFolder<D>, SubgroupId),
        view: u64,
        range: Range<u64>,
    ) -> Result<(), MergeError> {
        let end = range.end;
        let (mut next, mut time) = (range.start, 0);
        from.messages(id, view, range, &mut |record| {
            (next, time) = (record.position.sequence + 1, record.time);
            self.append(&LogRecord { subgroup: own, ..*record });
        })?;
        if next < end {
            let (kind, position) = (RecordKind::Frontier, LogPosition { view, sequence: end - 1 });
            self.append(&LogRecord { subgroup: own, kind, position, sender: 0, time, bytes: &[] });
        }
        Ok(())
    }

    /// Appends a record, if need be when those before it are on the disk.
    fn append(&mut self, record: &LogRecord<'_>) {
        if self.failure.is_some() {
            return;
        }
        let appended = match self.log.append(record) {
            Err(AppendError::Full) => match self.log.wait(self.records) {
                Ok(()) => self.log.append(record),
                Err(error) => Err(error.into()),
            },
            outcome => outcome,
        };
        match appended {
            Ok(records) => self.records = records,
            Err(error) => self.failure = Some(error),
        }
    }
}
