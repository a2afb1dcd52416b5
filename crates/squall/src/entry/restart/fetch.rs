//! Records from log to log: what a process answers, and what it asks (Derecho §3.4, "Total failures").

use squall_log::RecordKind;
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{FetchAnswer, FetchRequest, LogStart, LogState, Register};
use squall_transports::bootstrap::{Address, BootstrapPlan};

use crate::durable::{LogRange, ProcessLog, StoredRecord};
use crate::operate::calls::{
    CHECKPOINT_BLOCK_MAX, CheckpointPart, FETCH_BYTES_MAX, FetchCall, FetchReply, RECORD_OVERHEAD,
};
use crate::operate::inquiry::{self, StatusQuestion};

/// Answers a request, as a process with this register and this state of its log.
pub(super) fn answer(
    log: &ProcessLog,
    shards: &[SubgroupId],
    register: &Register,
    state: &LogState,
    call: FetchCall,
) -> FetchReply {
    let FetchCall { group, shard, view, from, to, skip, checkpoint } = call;
    let Some(subgroup) = shards.get(shard as usize).copied().filter(|_| group == register.group) else {
        return FetchReply::Nothing;
    };
    if let Some(part) = checkpoint {
        return read_checkpoint(log, subgroup, part);
    }
    let request = request_of(call);
    match state.answer(&register.record, request) {
        FetchAnswer::Records(held) if from < to => {
            read(log, LogRange { subgroup, view, from, to: held.min(to) }, skip)
        }
        FetchAnswer::Checkpoint(LogStart { view, sequence }) => {
            read_checkpoint(log, subgroup, CheckpointPart { view, sequence, block: 0 })
        }
        FetchAnswer::Nothing | FetchAnswer::Records(_) => {
            let views = register.missing_trims(request);
            views.map_or(FetchReply::Nothing, |views| FetchReply::Views(views.encode(shards.len())))
        }
    }
}

/// Reads as many blocks of a checkpoint as go into one answer.
fn read_checkpoint(log: &ProcessLog, subgroup: SubgroupId, part: CheckpointPart) -> FetchReply {
    let CheckpointPart { view, sequence, block } = part;
    let (mut blocks, mut space, mut is_last) = (Vec::new(), FETCH_BYTES_MAX, false);
    for block in block..=u32::MAX {
        // The asker begins again with what has taken the place of one that was removed meanwhile.
        let read = log.read_checkpoint(subgroup, LogStart { view, sequence }, block);
        let Ok((bytes, ends)) = read else { return FetchReply::Nothing };
        is_last = ends;
        if block == 0 && ends && log.is_mark(subgroup, LogStart { view, sequence }) {
            break;
        }
        space = space.saturating_sub(bytes.len());
        blocks.push(bytes);
        if ends || space < CHECKPOINT_BLOCK_MAX {
            break;
        }
    }
    FetchReply::Checkpoint { part, blocks, is_last }
}

/// Reads as many records of a range as go into one answer, without the first `skip` bytes of the first one.
fn read(log: &ProcessLog, range: LogRange, skip: u64) -> FetchReply {
    let (mut records, mut space, mut rest, mut is_left) = (Vec::new(), FETCH_BYTES_MAX, 0, false);
    let next = log.read(range, &mut |record| {
        let skip = if records.is_empty() { usize::try_from(skip).unwrap_or(usize::MAX) } else { 0 };
        let bytes = record.bytes.get(skip..).unwrap_or_default();
        if bytes.len() + RECORD_OVERHEAD > space && !records.is_empty() {
            is_left = true;
            return false;
        }
        let part = &bytes[..bytes.len().min(space - RECORD_OVERHEAD)];
        rest = (bytes.len() - part.len()) as u64;
        space -= part.len() + RECORD_OVERHEAD;
        records.push(StoredRecord {
            sequence: record.position.sequence,
            sender: record.sender,
            time: record.time,
            is_message: record.kind == RecordKind::Message,
            bytes: part.to_vec(),
        });
        rest == 0 && space > RECORD_OVERHEAD
    });
    let count = match (next, records.last()) {
        (None, _) => return FetchReply::Nothing,
        (Some(_), Some(last)) if rest > 0 => last.sequence,
        (Some(_), Some(last)) if is_left => last.sequence + 1,
        (Some(next), _) => next,
    };
    FetchReply::Records { count, records, rest }
}

/// The outcome of a request to another process.
#[derive(Debug)]
pub(super) enum Fetched {
    /// Records up to a count.
    Records(u64, Vec<StoredRecord>),
    /// A message of the core.
    Views(Vec<u8>),
    /// A checkpoint of everything before a position, by blocks; a mark has none.
    Checkpoint(LogStart, Vec<Vec<u8>>),
    Nothing,
}

/// Asks the process at `address` for records until one answer is whole, and returns it. A checkpoint is in memory meanwhile. `on_part` is
/// called when a part has come that is not the last one; if it returns false, the answer is not wanted any more.
pub(super) fn fetch(
    plan: &BootstrapPlan,
    address: &Address,
    mut call: FetchCall,
    on_part: &mut dyn FnMut() -> bool,
) -> Fetched {
    let mut begun: Option<StoredRecord> = None;
    let mut checkpoint = Vec::new();
    loop {
        let Ok(reply) = inquiry::ask::<FetchReply>(plan, address, &StatusQuestion::Fetch(call)) else {
            return Fetched::Nothing;
        };
        let (count, mut records, rest) = match reply {
            FetchReply::Nothing => return Fetched::Nothing,
            FetchReply::Views(message) => return Fetched::Views(message),
            FetchReply::Records { count, records, rest } => (count, records, rest),
            FetchReply::Checkpoint { part, blocks, is_last } => {
                let is_next = call.checkpoint.map_or(part.block == 0, |asked| asked == part);
                let is_mark = part.block == 0 && is_last;
                if !is_next || blocks.is_empty() && !is_mark {
                    return Fetched::Nothing;
                }
                let CheckpointPart { view, sequence, .. } = part;
                checkpoint.extend(blocks);
                if is_last {
                    return Fetched::Checkpoint(LogStart { view, sequence }, checkpoint);
                }
                let Ok(block) = u32::try_from(checkpoint.len()) else { return Fetched::Nothing };
                call.checkpoint = Some(CheckpointPart { view, sequence, block });
                if !on_part() {
                    return Fetched::Nothing;
                }
                continue;
            }
        };
        if call.checkpoint.is_some() {
            return Fetched::Nothing;
        }
        let is_next = |record: &StoredRecord| (call.from..call.to).contains(&record.sequence);
        let ascend = records.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
        if !ascend || !records.iter().all(is_next) || count > call.to {
            return Fetched::Nothing;
        }
        if let (Some(mut first), Some(more)) = (begun.take(), records.first_mut()) {
            if first.sequence != more.sequence {
                return Fetched::Nothing;
            }
            first.bytes.append(&mut more.bytes);
            *more = first;
        }
        if rest == 0 {
            return if count > call.from { Fetched::Records(count, records) } else { Fetched::Nothing };
        }
        // A long record comes in pieces, and alone.
        match records.pop() {
            Some(record) if records.is_empty() => {
                (call.from, call.skip) = (record.sequence, record.bytes.len() as u64);
                begun = Some(record);
                if !on_part() {
                    return Fetched::Nothing;
                }
            }
            _ => return Fetched::Nothing,
        }
    }
}

/// The core's request behind a call.
pub(super) const fn request_of(call: FetchCall) -> FetchRequest {
    let FetchCall { shard, view, from, to, .. } = call;
    if to == 0 {
        FetchRequest::Checkpoint { shard: shard as usize, from: view, to: from }
    } else {
        FetchRequest::Records { shard: shard as usize, view, from, to }
    }
}

/// The call for a request of the core. One for a checkpoint has `to == 0`, and the two views.
pub(super) fn call_of(group: u64, request: FetchRequest) -> FetchCall {
    let shard = |shard: usize| u32::try_from(shard).expect("few shards");
    match request {
        FetchRequest::Records { shard: of, view, from, to } => {
            FetchCall { group, shard: shard(of), view, from, to, skip: 0, checkpoint: None }
        }
        FetchRequest::Checkpoint { shard: of, from, to } => {
            FetchCall { group, shard: shard(of), view: from, from: to, to: 0, skip: 0, checkpoint: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use squall_fabric::NodeId;
    use squall_protocols::multicast::DeliveryMode;
    use squall_protocols::restart::DurableView;

    use super::*;
    use crate::config::{Config, Retention, StorageConfig, SubgroupConfig};
    use crate::durable;

    /// [W11] A mark that was fetched is a mark: if its file rots, it is made again from the register when the log is opened.
    #[test]
    fn a_mark_that_was_fetched_may_rot() {
        let path = std::env::temp_dir().join(format!("squall-fetched-mark-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let retain = Some(Retention { automatic: true, ..Retention::default() });
        let subgroup = SubgroupConfig { mode: DeliveryMode::Durable, retain, ..SubgroupConfig::default() };
        let config = Config::local("fetched-mark", 2).subgroup("log", subgroup);
        let storage = Some(StorageConfig::new(&path));
        let [here, there] =
            [0, 1].map(|rank| Config { storage: storage.clone(), ..config.clone().for_rank(rank) });
        let open = |config: &Config| durable::open(config).map(|log| log.expect("a subgroup is durable"));
        let (id, start) = (SubgroupId(0), LogStart { view: 3, sequence: 8 });
        let register = Register::new(9, NodeId(0), DurableView::default());
        let begin = |log: &Arc<ProcessLog>| log.begin_of(id);

        let provider = open(&there).expect("it is empty");
        provider.take_checkpoint(id, start, &[]).expect("the disk works");
        let mut state = provider.state(&[id]);
        state.cover(0, begin(&provider));
        let call = FetchCall { group: 9, shard: 0, view: 1, from: 4, to: 0, skip: 0, checkpoint: None };
        let reply = answer(&provider, &[id], &register, &state, call);
        let FetchReply::Checkpoint { blocks, is_last: true, .. } = reply else { panic!("{reply:?}") };
        let log = open(&here).expect("it is empty");
        log.take_checkpoint(id, start, &blocks).expect("the disk works");
        drop((provider, log));
        for file in
            fs::read_dir(here.log_folder().expect("it has one").join("checkpoints")).expect("it exists")
        {
            let file = file.expect("it can be listed").path();
            let mut bytes = fs::read(&file).expect("it can be read");
            bytes[35] ^= 1;
            fs::write(&file, bytes).expect("it can be written");
        }
        let log = open(&here).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(begin(&log), start);
        drop(log);
        fs::remove_dir_all(&path).expect("it can be removed");
    }
}
