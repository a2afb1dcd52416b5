//! State transfer: a newcomer fetches the state of a shard from whoever has it (Derecho §3.3, app. A).
//!
//! A thread of its own for each shard that waits: the shard's messages are kept meanwhile, so nobody else waits for it.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_protocols::replica::Position;

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
    /// Who gives it.
    pub from: NodeId,
    /// Bytes that have come.
    pub bytes: u64,
    /// Bytes in all, if the snapshot says so.
    pub total: Option<u64>,
    /// Whether this member has the state now.
    pub is_done: bool,
}

/// A view has begun: a newcomer begins to look for the state, and who has left finds out when it is not needed any more.
pub(super) fn look<T: Replicated>(shard: &Arc<Shard<T>>, directory: &Arc<Directory>) {
    let (waits, keeps) = {
        let core = shard.core();
        (core.is_waiting(), core.unsettled().is_some())
    };
    if waits && shard.begin_errand() {
        spawn("fetch", shard, directory, fetch);
    } else if keeps && shard.begin_errand() {
        spawn("keep", shard, directory, keep);
    }
}

fn spawn<T: Replicated>(
    what: &str,
    shard: &Arc<Shard<T>>,
    directory: &Arc<Directory>,
    errand: fn(&Shard<T>, &Directory),
) {
    let (own, own_directory) = (Arc::clone(shard), Arc::clone(directory));
    let run = move || {
        errand(&own, &own_directory);
        own.end_errand();
        // Standings may have changed between the errand's last look and its end.
        look(&own, &own_directory);
    };
    let spawned = std::thread::Builder::new().name(format!("squall {what} {}", shard.subgroup)).spawn(run);
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for a state transfer: it is tried again with the next view");
        shard.end_errand();
    }
}

/// Asks one after the other until this member has the state, or knows that it is lost.
fn fetch<T: Replicated>(shard: &Shard<T>, directory: &Directory) {
    let mut pause = PAUSE_MIN;
    while shard.link.status.failure().is_none() {
        let mut core = shard.core();
        if !core.is_waiting() {
            return;
        }
        let Some((node, view, since)) = core.ask() else { return };
        drop(core);
        match fetch_from(shard, directory, node, view, since) {
            Ok(true) => {
                shard.link.status.messages.notify();
                return;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%node, %error, "no state from a member");
                shard.core().handle_no_answer();
            }
        }
        // Two that wait and ask each other must not go on in step.
        std::thread::sleep(pause + Duration::from_millis(u64::from(shard.link.node.0 % 7)));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Asks one member; whether this one has the state now.
fn fetch_from<T: Replicated>(
    shard: &Shard<T>,
    directory: &Directory,
    node: NodeId,
    view: u64,
    since: Position,
) -> std::io::Result<bool> {
    let what = What::State { asker: shard.link.node.0, view, since: since.view };
    let (answer, mut stream) = directory.ask(node, &directory.request(shard.number, what))?;
    let (position, sessions, total) = match answer {
        Answer::State { view, sequence, sessions, bytes } => (Position { view, sequence }, sessions, bytes),
        Answer::Nothing => {
            shard.core().handle_refusal(node, view);
            directory.put_back(node, stream);
            return Ok(false);
        }
        answer => {
            directory.put_back(node, stream);
            return Err(std::io::Error::other(format!("{answer:?}")));
        }
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
    let mut core = shard.core();
    let taken = core.take_over(position, &sessions, Typed(object)).map_err(std::io::Error::other)?;
    shard.permit(&core);
    let holds = core.position().is_some();
    drop(core);
    tracing::info!(shard = shard.number, %node, bytes = transfer.bytes, ?taken, "a state was received");
    transfer.is_done = holds;
    (shard.options.on_transfer)(transfer);
    Ok(holds)
}

/// Asks the members of a shard that this member has left whether they have the state, until all have.
fn keep<T: Replicated>(shard: &Shard<T>, directory: &Directory) {
    while shard.link.status.failure().is_none() {
        let unsettled = shard.core().unsettled();
        let Some((_, members)) = unsettled else { return };
        for node in members {
            let request = directory.request(shard.number, What::Standing);
            if let Ok(Answer::Standing { view, holds: true }) = directory.call(node, &request) {
                shard.core().handle_settled(node, view);
            }
        }
        if shard.core().is_waiting() {
            // It has come into the shard again.
            return;
        }
        std::thread::sleep(KEEP_PAUSE);
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
const KEEP_PAUSE: Duration = Duration::from_millis(100);
const SHOW_EVERY: Duration = Duration::from_millis(100);
