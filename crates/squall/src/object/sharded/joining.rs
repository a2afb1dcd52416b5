//! A joiner of a shard gets the state from a member that has it (RamCast §2.2, Derecho §3.3) \[G14\].

use std::io::{self, BufReader, Read as _};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::replica::{ShardAnswer, ShardRequest};
use squall_transports::log;

use super::ShardedShared;
use super::part::{ArrivedPart, PANICKED, read_header};
use crate::object::frame_stream::{FrameStream, invalid};
use crate::object::machine::Replicated;
use crate::object::wire::{ChunkReader, ObjectReply};

/// Fetches the state of this member's shard, and offers it to the polling thread, until the state holds or is lost. If no state
/// can be read, the object fails here: this member leaves its group.
pub(super) fn fetch<T: Replicated>(shared: &Arc<ShardedShared<T>>) {
    let Some(own) = shared.own else { return };
    let (mut turn, mut pause, mut unreadable) = (0, PAUSE, 0);
    loop {
        // Before the standing: when a state is taken from here, the standing says already that it holds.
        let has_arrived = shared.part().arrived.is_some();
        let standing = shared.feed.standing();
        let members = standing.members.get(own).cloned().unwrap_or_default();
        let is_known = !standing.members.is_empty();
        if standing.has_state || shared.has_ended() || (is_known && !members.contains(&shared.link.node)) {
            // In the last case the state is lost; one that holds is not there any more, or is about to be taken.
            if !standing.has_state {
                shared.part().arrived = None;
            }
            return;
        }
        let others: Vec<NodeId> = members.into_iter().filter(|node| *node != shared.link.node).collect();
        let Some(node) = others.get(turn % others.len().max(1)).filter(|_| !has_arrived) else {
            thread::sleep(PAUSE);
            continue;
        };
        let fetched = panic::catch_unwind(AssertUnwindSafe(|| fetch_from(shared, own, *node, standing.view)));
        match fetched {
            Ok(Ok(())) => pause = PAUSE,
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                log::warn!(%node, %error, "the state of the shard cannot be read here");
                unreadable += 1;
                if unreadable == UNREADABLE_MAX {
                    return shared.fail(&format!("it cannot read the state of its shard: {error}"));
                }
                turn += 1;
            }
            Ok(Err(error)) if pause == PAUSE_MAX => {
                log::warn!(%node, %error, "a member sent no state of the shard: asking again");
                turn += 1;
            }
            Ok(Err(error)) => {
                log::debug!(%node, %error, "a member sent no state");
                turn += 1;
            }
            Err(_) => return shared.fail(PANICKED),
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Fetches the state from a member. Not fuzzed: what precedes the state is read by [`read_header`], and the state's type is the
/// application's.
fn fetch_from<T: Replicated>(
    shared: &Arc<ShardedShared<T>>,
    own: usize,
    node: NodeId,
    since: u64,
) -> io::Result<()> {
    let mut line = FrameStream::new(shared.directory.connect(node)?);
    let asked = shared.directory.asked(own, 0, ShardRequest::State { since });
    line.put(|frame| asked.write(frame))?;
    let answer = ObjectReply::read(&line.receive(SILENCE_MAX)?)?.answer;
    if !matches!(answer, ShardAnswer::State { .. }) {
        return Err(io::Error::other(format!("{answer:?}")));
    }
    let mut on_bytes = |_| ();
    let mut source = BufReader::with_capacity(READ_BYTES, ChunkReader::new(&mut line, &mut on_bytes));
    let mut length = [0; 8];
    source.read_exact(&mut length)?;
    let mut header = Vec::new();
    let length = u64::from_le_bytes(length);
    // Memory grows only with the bytes that arrive.
    (&mut source).take(length).read_to_end(&mut header)?;
    let (marks, replies) = read_header(&header).ok_or_else(|| invalid("a state that cannot be read"))?;
    let machine = T::restore(&mut source)?;
    source.into_inner().finish()?;
    log::info!(%node, "received the state of the shard");
    shared.part().arrived = Some(ArrivedPart { machine, replies, position: marks.last() });
    shared.feed.offer(marks);
    shared.link.waker.wake();
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(2);
/// The pause between attempts doubles up to this.
const PAUSE_MAX: Duration = Duration::from_millis(512);
/// From this number of states on that cannot be read, another attempt is of no use.
const UNREADABLE_MAX: u32 = 8;
/// How long a provider may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;
