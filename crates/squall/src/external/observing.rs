//! The member's side of an observer's connection.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

use super::connection::{ALIVE_EVERY, FrameConnection};
use super::served::{QueueBudget, ServedSubgroup};
use super::wire::{self, ExternalNotice};
use crate::slot::TapItem;

/// Sends what this member delivers, until the member or the observer ends.
pub(super) fn observe(
    queues: &Arc<QueueBudget>,
    source: &ServedSubgroup,
    queue_bytes: u64,
    client: &mut FrameConnection,
    is_closed: &AtomicBool,
) -> io::Result<()> {
    if let Some(why) = source.observing_fault() {
        return client.send(&source.elsewhere(why));
    }
    let bytes_max = usize::try_from(queue_bytes).unwrap_or(usize::MAX).min(QUEUE_BYTES_MAX);
    let Some(_reservation) = queues.reserve(bytes_max) else {
        return client.send(&source.elsewhere("it has no memory left for another observer's queue"));
    };
    client.stream.set_write_timeout(Some(STALL_MAX));
    let tapping = source.slot.tap().attach(bytes_max);
    let mut output = Output::default();
    output.put(&ExternalNotice::Observing { group: source.link.status.session() }, &[]);
    let mut written = Instant::now();
    loop {
        if !output.bytes.is_empty() {
            client.stream.write_all(&output.bytes)?;
            output.bytes.clear();
            tapping.free(std::mem::take(&mut output.cost));
            written = Instant::now();
        }
        match tapping.items.recv_timeout(TICK) {
            Ok(item) => {
                output.add(item);
                while output.bytes.len() < WRITE_BYTES
                    && let Ok(item) = tapping.items.try_recv()
                {
                    output.add(item);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                output.report_lost();
                if is_closed.load(Ordering::Relaxed) {
                    return output.end(client, &ExternalNotice::Ended(ENDED.into()));
                }
                if let Some(why) = source.observing_fault() {
                    return output.end(client, &source.elsewhere(why));
                }
                if client.is_over() {
                    return Ok(());
                }
                if written.elapsed() >= ALIVE_EVERY {
                    output.put(&ExternalNotice::Alive, &[]);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return output.end(client, &ExternalNotice::Ended(ENDED.into()));
            }
        }
    }
}

/// The bytes to be written next.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// The bytes for which they count in the queue.
    cost: usize,
    /// A gap that may still grow.
    lost: Option<Arc<AtomicU64>>,
}

impl Output {
    fn put(&mut self, notice: &ExternalNotice, payload: &[&[u8]]) {
        wire::write(notice, payload, &mut self.bytes);
    }

    fn add(&mut self, item: TapItem) {
        // The gap before it has its final length by now.
        self.report_lost();
        self.lost = None;
        self.cost += item.cost();
        match item {
            TapItem::View(view) => {
                let members = view.members.iter().map(|member| (member.node.0, member.tag)).collect();
                self.put(&ExternalNotice::View { id: view.id, members }, &[]);
            }
            TapItem::Message { view, node, sequence, bytes } => {
                self.put(&ExternalNotice::Message { view, node: node.0, sequence }, &[&bytes]);
            }
            TapItem::Lost(lost) => {
                self.lost = Some(lost);
                self.report_lost();
            }
        }
    }

    /// Reports what was lost since it was reported last.
    fn report_lost(&mut self) {
        let messages = self.lost.as_ref().map_or(0, |lost| lost.swap(0, Ordering::Relaxed));
        if messages > 0 {
            self.put(&ExternalNotice::Lost { messages }, &[]);
        }
    }

    fn end(mut self, client: &mut FrameConnection, notice: &ExternalNotice) -> io::Result<()> {
        self.report_lost();
        self.put(notice, &[]);
        client.stream.write_all(&self.bytes)
    }
}

const ENDED: &str = "the member has left the group, or takes no messages there any more";
/// The largest queue of one observer.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// The largest write.
const WRITE_BYTES: usize = 64 << 10;
/// The interval of checks whether the connection or the member has ended.
const TICK: Duration = Duration::from_millis(50);
/// An observer that takes nothing for this long is disconnected.
const STALL_MAX: Duration = Duration::from_secs(60);
