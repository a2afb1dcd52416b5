//! State transfer: a joiner fetches the state of a shard from a member that holds it (Derecho §3.3, app. A).
//!
//! A thread of its own for each shard that waits: the shard's messages are kept meanwhile, so nobody else waits for it.

use std::io::{ErrorKind, Read as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_protocols::replica::{Hold, Position, Sessions};

use super::machine::{Replicated, Typed};
use super::remote::Directory;
use super::shard::Shard;
use super::wire::{Answer, Dechunk, What};

/// How far the transfer of a shard's state has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// Which shard.
    pub shard: usize,
    /// The state provider.
    pub from: NodeId,
    /// Bytes that have come.
    pub bytes: u64,
    /// Bytes in all, if the snapshot says so.
    pub total: Option<u64>,
    /// Whether this member has the state now.
    pub is_done: bool,
}

/// A view has begun: a joiner of the shard begins to look for the state.
pub(super) fn look<T: Replicated>(shard: &Arc<Shard<T>>, directory: &Arc<Directory>) {
    let waits = shard.core().is_waiting();
    if !waits || !shard.begin_errand() {
        return;
    }
    let (own, own_directory) = (Arc::clone(shard), Arc::clone(directory));
    let run = move || {
        fetch(&own, &own_directory);
        own.end_errand();
        // It may have begun to wait again between the last look and the end.
        look(&own, &own_directory);
    };
    let spawned = std::thread::Builder::new().name(format!("squall fetch {}", shard.subgroup)).spawn(run);
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for a state transfer: it is tried again with the next view");
        shard.end_errand();
    }
}

/// Asks one after the other until this member has the state, or knows that it is lost.
fn fetch<T: Replicated>(shard: &Shard<T>, directory: &Directory) {
    let mut pause = PAUSE_MIN;
    let (mut silence, silence_max) = directory.silences();
    while shard.link.status.failure().is_none() {
        let mut core = shard.core();
        if !core.is_waiting() {
            return;
        }
        let asked = core.ask();
        drop(core);
        if let Some((node, since)) = asked {
            match fetch_from(shard, directory, node, since, silence) {
                Ok(true) => return shard.link.status.messages.notify(),
                Ok(false) => {}
                Err(error) => {
                    if error.kind() == ErrorKind::TimedOut {
                        silence = (silence * 2).min(silence_max);
                    }
                    tracing::debug!(%node, %error, "no state from a member");
                }
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Asks one member, which may be silent for at most `silence`; whether this one has the state now.
fn fetch_from<T: Replicated>(
    shard: &Shard<T>,
    directory: &Directory,
    node: NodeId,
    since: Position,
    silence: Duration,
) -> std::io::Result<bool> {
    let what = What::State { since: since.view };
    let (answer, mut stream) = directory.ask_within(node, &directory.request(shard.number, what), silence)?;
    let Answer::State { view, sequence, sessions, bytes: total } = answer else {
        directory.put_back(node, stream);
        return Err(std::io::Error::other(format!("{answer:?}")));
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
    let mut source = Dechunk::new(&mut stream, &mut on_bytes);
    let object = T::restore(&mut source.by_ref())?;
    source.finish()?;
    directory.put_back(node, stream);
    let sessions = Sessions::decode(&sessions).map_err(std::io::Error::other)?;
    let mut machine = Some(Typed(object));
    let hold = loop {
        match shard.take_over(Position { view, sequence }, &sessions, &mut machine) {
            // A view change takes a moment.
            Hold::Later if shard.link.status.failure().is_none() => std::thread::sleep(PAUSE_MIN),
            hold => break hold,
        }
    };
    tracing::info!(shard = shard.number, %node, bytes = transfer.bytes, ?hold, "a state was received");
    transfer.is_done = hold == Hold::Counted;
    (shard.options.on_transfer)(transfer);
    Ok(transfer.is_done)
}

const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
const SHOW_EVERY: Duration = Duration::from_millis(100);
