//! State transfer: a joiner fetches the state of a shard from a member that holds it (Derecho §3.3, app. A).
//!
//! [`StateTransfer`](squall_protocols::replica::StateTransfer) decides which member it asks, and when it takes the
//! state over. A thread of its own does the asking, and the shard's messages are kept meanwhile, so no other member
//! waits for it.

use std::io::{self, BufReader, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_protocols::replica::{
    ArrivedState, AskForState, Sessions, ShardAnswer, ShardRequest, SnapshotOutcome, StateTransferSettings,
};
use squall_transports::log;

use super::frame_stream::FrameStream;
use super::machine::{Replicated, TypedMachine};
use super::remote::Directory;
use super::shard::Shard;
use super::wire::{ChunkReader, ObjectReply};

/// How far the transfer of a shard's state has come.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// use squall::object::{ObjectOptions, Transfer};
/// # #[derive(Default)]
/// # struct Count(u64);
/// # impl Replicated for Count {
/// #     type Update = u64;
/// #     type Query = ();
/// #     type Reply = u64;
/// #     fn apply(&mut self, more: u64) -> u64 { self.0 += more; self.0 }
/// #     fn query(&self, (): ()) -> u64 { self.0 }
/// #     fn snapshot(&self) -> Snapshot { Snapshot::of(self.0) }
/// #     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> { restored(source).map(Self) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-transfer-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let on_transfer = Box::new(|Transfer { shard, bytes, total, .. }: Transfer| println!("{shard}: {bytes} of {total:?}"));
/// let count = group.object_with("count", Count::default, ObjectOptions { on_transfer, ..Default::default() })?;
/// # drop(count);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// The shard's number.
    pub shard: usize,
    /// The state provider.
    pub from: NodeId,
    /// The bytes that have arrived.
    pub bytes: u64,
    /// The bytes in total, if the snapshot states them.
    pub total: Option<u64>,
    /// Whether all of it has arrived.
    pub is_done: bool,
}

/// Returns the timeouts and pauses of joiners.
pub(super) fn settings(directory: &Directory) -> StateTransferSettings {
    let (silence, silence_max) = directory.silences();
    StateTransferSettings { silence, silence_max, pause: PAUSE_MIN, pause_max: PAUSE_MAX }
}

/// Does what is due for a joiner of the shard; returns whether a state was judged. It is called by the thread that
/// applies updates.
pub(super) fn tend<T: Replicated>(shard: &Arc<Shard<T>>, directory: &Arc<Directory>) -> bool {
    let now = shard.now();
    let mut core = shard.core();
    let (asked, taken) = {
        let super::shard::ShardCore { replica, transfer, .. } = &mut *core;
        let taken = transfer.poll_take_over(now, replica, |since| shard.slot.hold(since));
        (transfer.poll_ask(now, replica), taken)
    };
    if taken == Some(SnapshotOutcome::Taken) {
        shard.permit(&core.replica);
    }
    drop(core);
    if taken == Some(SnapshotOutcome::Taken) {
        shard.link.status.set_state_news();
        shard.link.waker.wake();
        shard.notify();
        log::info!(shard = shard.number, "took over a state");
    }
    if let Some(asked) = asked {
        fetch(shard, directory, asked);
    }
    taken.is_some()
}

/// Asks one member, on a thread of its own.
fn fetch<T: Replicated>(shard: &Arc<Shard<T>>, directory: &Arc<Directory>, asked: AskForState) {
    let (own, directory) = (Arc::clone(shard), Arc::clone(directory));
    let run = move || {
        let fetched = fetch_from(&own, &directory, asked);
        let now = own.now();
        let transfer = &mut own.core().transfer;
        match fetched {
            Ok(state) => transfer.handle_state(state),
            Err(error) => {
                log::debug!(node = %asked.node, %error, "a member sent no state");
                match error.kind() {
                    ErrorKind::TimedOut => transfer.handle_silence(now),
                    _ => transfer.handle_refusal(now),
                }
            }
        }
    };
    let notify = Arc::clone(&shard.link.status);
    let run = move || {
        run();
        notify.messages.notify();
    };
    let spawned = std::thread::Builder::new().name(format!("squall fetch {}", shard.subgroup)).spawn(run);
    if let Err(error) = spawned {
        log::error!(%error, "failed to start the thread of a state transfer: it will be tried again");
        shard.core().transfer.handle_refusal(shard.now());
    }
}

/// Fetches the state from a member, which may be silent for at most `silence`.
fn fetch_from<T: Replicated>(
    shard: &Shard<T>,
    directory: &Directory,
    AskForState { node, since, silence }: AskForState,
) -> io::Result<ArrivedState<TypedMachine<T>>> {
    let mut line = FrameStream::new(directory.connect(node)?);
    let asked = directory.asked(shard.number, 0, ShardRequest::State { since: since.view });
    line.put(|frame| asked.write(frame))?;
    let answer = ObjectReply::read(&line.receive(silence)?)?.answer;
    let ShardAnswer::State { position, sessions, bytes: total } = answer else {
        return Err(io::Error::other(format!("{answer:?}")));
    };
    let mut shown = Instant::now();
    let mut transfer = Transfer { shard: shard.number, from: node, bytes: 0, total, is_done: false };
    (shard.options.on_transfer)(transfer);
    let mut on_bytes = |bytes| {
        transfer.bytes = bytes;
        if shown.elapsed() >= SHOW_EVERY {
            shown = Instant::now();
            (shard.options.on_transfer)(transfer);
        }
    };
    // It may read in small pieces, and each read of the stream may wake the provider.
    let mut source = BufReader::with_capacity(READ_BYTES, ChunkReader::new(&mut line, &mut on_bytes));
    let machine = TypedMachine(T::restore(&mut source)?);
    source.into_inner().finish()?;
    let sessions = Sessions::decode(&sessions).map_err(io::Error::other)?;
    log::info!(shard = shard.number, %node, bytes = transfer.bytes, "received a state");
    transfer.is_done = true;
    (shard.options.on_transfer)(transfer);
    Ok(ArrivedState { position, sessions, machine })
}

const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How much of a state is read at once, if it is read in small pieces.
const READ_BYTES: usize = 64 << 10;
const SHOW_EVERY: Duration = Duration::from_millis(100);
