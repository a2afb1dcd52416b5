//! The member's side of a connection that reads a durable subgroup from a position on (Derecho §3.4, "durable" mode).
//!
//! \[A15\] The reader gets each message from its position on once, in order, with any member and over restarts.
//!
//! Everything is read from this member's log, also what is delivered now: so a reader has no queue that could be full, and delays no
//! member. It gets what all members have on their disks, which is what is delivered ([T2]), and of views that have ended what counts
//! ([`history::counted`]).

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::time::{Duration, Instant, UNIX_EPOCH};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_protocols::replica::LogPart;

use super::connection::{ALIVE_EVERY, FrameConnection};
use super::served::ServedSubgroup;
use super::wire::{self, ExternalNotice};
use crate::durable::LogRange;
use crate::error::HistoryError;
use crate::handle::deliveries::DurablePlace;
use crate::handle::history::{self, StoredMessage};
use crate::slot::Position;

/// Sends the messages from `next` on, until the member or the reader ends.
pub(super) fn replay(
    source: &ServedSubgroup,
    mut next: Position,
    client: &mut FrameConnection,
    is_closed: &AtomicBool,
) -> io::Result<()> {
    let Some(place) = &source.durable else { return client.send(&ExternalNotice::NoLog) };
    let register = place.log.borrow().and_then(|log| log.present());
    let Some(register) = register.filter(|_| source.is_in()) else {
        return client.send(&source.elsewhere("it is not in the subgroup"));
    };
    if !source.slot.is_for_messages() {
        return client
            .send(&source.elsewhere("its application takes no messages there, or has an object there"));
    }
    client.stream.set_write_timeout(Some(STALL_MAX));
    let mut bytes = Vec::new();
    // The first notice decides whether the reader stays. Reading may take a while, so that it comes before.
    match look(place, next) {
        Look::End(notice) => return client.send(&notice),
        Look::Lacks(error) => return client.send(&source.elsewhere(&error.to_string())),
        Look::Nothing | Look::Part(_) => client.send(&ExternalNotice::Replaying { group: register.group })?,
    }
    let mut written = Instant::now();
    loop {
        if is_closed.load(Ordering::Relaxed) {
            return client.send(&ExternalNotice::Ended(ENDED.into()));
        }
        if !source.is_in() {
            return client.send(&source.elsewhere("it is not in the subgroup any more"));
        }
        if client.is_over() {
            return Ok(());
        }
        match read(place, &mut next) {
            Piece::Messages(messages) => messages.iter().for_each(|message| put(message, &mut bytes)),
            Piece::Nothing => std::thread::sleep(TICK),
            Piece::End(notice) => return client.send(&notice),
            Piece::Lacks(error) => return client.send(&source.elsewhere(&error.to_string())),
        }
        if bytes.is_empty() && written.elapsed() >= ALIVE_EVERY {
            wire::write(&ExternalNotice::Alive, &[], &mut bytes);
        }
        if !bytes.is_empty() {
            client.stream.write_all(&bytes)?;
            bytes.clear();
            written = Instant::now();
        }
    }
}

fn put(message: &StoredMessage, bytes: &mut Vec<u8>) {
    let received = message.received.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let notice = ExternalNotice::Stored {
        view: message.view,
        sequence: message.sequence,
        sender: u32::try_from(message.sender).expect("a subgroup has few members"),
        received: u64::try_from(received).unwrap_or(u64::MAX),
    };
    wire::write(&notice, &[&message.bytes], bytes);
}

/// What a look into the log has found.
enum Piece {
    /// The next messages.
    Messages(VecDeque<StoredMessage>),
    /// None now.
    Nothing,
    /// Nothing more at any member, or at this one.
    End(ExternalNotice),
    /// This member lacks the next messages, which others have.
    Lacks(HistoryError),
}

/// What is in the log from a position on, before it is read.
enum Look {
    Part(LogPart),
    Nothing,
    End(ExternalNotice),
    Lacks(HistoryError),
}

fn look(place: &DurablePlace, next: Position) -> Look {
    let DurablePlace { log, id, shard, .. } = place;
    let Some(log) = log.borrow() else { return Look::End(ExternalNotice::Ended(ENDED.into())) };
    // Until the view is on the disk, it is not known how the one before has ended.
    let Some(stable) = log.stable(*id) else { return Look::Nothing };
    let Some(known) = history::counted(&log, (*id, *shard), stable, 0) else { return Look::Nothing };
    if next < known.begin && known.begin > Position::default() {
        let Position { view, sequence } = known.begin;
        return Look::End(ExternalNotice::Compacted { view, sequence });
    }
    if next < known.oldest {
        return Look::Lacks(known.is_earlier(&log));
    }
    known.counted.part(next, stable).map_or(Look::Nothing, Look::Part)
}

/// Reads the next messages from the log, and moves `next` behind them, and behind the nulls that follow.
fn read(place: &DurablePlace, next: &mut Position) -> Piece {
    let part = match look(place, *next) {
        Look::Part(part) => part,
        Look::Nothing => return Piece::Nothing,
        Look::End(notice) => return Piece::End(notice),
        Look::Lacks(error) => return Piece::Lacks(error),
    };
    let Some(log) = place.log.borrow() else { return Piece::End(ExternalNotice::Ended(ENDED.into())) };
    let range = LogRange { subgroup: place.id, view: part.view, from: part.from, to: part.to };
    let mut messages = VecDeque::new();
    match history::read_piece(&log, range, &mut messages) {
        Ok(sequence) => {
            *next = Position { view: part.view, sequence };
            Piece::Messages(messages)
        }
        Err(HistoryError::Compacted { oldest: Position { view, sequence }, .. }) => {
            Piece::End(ExternalNotice::Compacted { view, sequence })
        }
        Err(error) => Piece::Lacks(error),
    }
}

const ENDED: &str = "the member has left the group";
/// The time between looks whether there is more.
const TICK: Duration = Duration::from_millis(2);
/// A reader that takes nothing for this long is disconnected.
const STALL_MAX: Duration = Duration::from_secs(60);
