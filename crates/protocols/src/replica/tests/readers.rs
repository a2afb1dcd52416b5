//! Random readers that begin at an earlier position \[A15\] (Derecho §3.4, persistent mode): messages come while they read the log in pieces, and views end.

use squall_fabric::sim::Prng;

use super::world::{WorldFault, ensure};
use crate::replica::{CountedLog, PositionReader, ShardPosition};

/// A member: what it has delivered, all of which is in its log, and how much of that its reader has taken.
struct MemberModel {
    delivered: Vec<ShardPosition>,
    taken: usize,
    ended: Vec<(u64, u64)>,
    view: u64,
    sequence: u64,
}

impl MemberModel {
    fn deliver(&mut self, prng: &mut Prng) {
        if prng.chance(60) {
            // The view ends, perhaps with nulls.
            let count = self.sequence + prng.below(2);
            self.ended.extend((count > 0).then_some((self.view, count)));
            self.view += 1 + prng.below(2);
            self.sequence = 0;
        }
        // Some sequences are nulls.
        self.sequence += prng.below(3);
        self.delivered.push(ShardPosition { view: self.view, sequence: self.sequence });
        self.sequence += 1;
    }

    /// The log, up to what the reader has taken, as its driver knows it.
    fn counted(&self, entered: ShardPosition) -> CountedLog {
        let last = self.delivered[..self.taken].last();
        let newest = last.map_or(entered, |last| ShardPosition { sequence: last.sequence + 1, ..*last });
        CountedLog::new(self.ended.iter().copied(), newest.max(entered), 0)
    }
}

/// One reader.
pub(super) fn run(seed: u64) -> Result<(), WorldFault> {
    let mut prng = Prng::new(seed);
    let view = prng.below(2);
    let mut member = MemberModel { delivered: Vec::new(), taken: 0, ended: Vec::new(), view, sequence: 0 };
    (0..prng.below(30)).for_each(|_| member.deliver(&mut prng));
    // The member has taken some of these, or they were delivered before it has entered the group.
    member.taken = prng.index(member.delivered.len() + 1);
    let live = member.counted(ShardPosition::default()).newest();
    let from = ShardPosition { view: prng.below(member.view + 2), sequence: prng.below(8) };
    let mut reader = PositionReader::new(from, live);
    let (mut returned, pace) = (Vec::new(), prng.below(3));
    for step in 0..200 {
        if step < 100 {
            (0..prng.below(pace + 1)).for_each(|_| member.deliver(&mut prng));
        }
        while reader.takes_live() && member.taken < member.delivered.len() {
            let message = member.delivered[member.taken];
            member.taken += 1;
            if reader.handle_live(message.view, message.sequence) {
                returned.push(message);
            }
        }
        let log = member.counted(live);
        let Some(part) = reader.poll_part(&log) else { continue };
        if step < 150 && prng.chance(200) {
            reader.handle_missing();
            continue;
        }
        let is_in = |message: &&ShardPosition| {
            message.view == part.view && (part.from..part.to).contains(&message.sequence)
        };
        let all: Vec<_> = member.delivered.iter().filter(is_in).copied().collect();
        let piece = &all[..all.len().min(1 + prng.index(5))];
        let end = match piece.last() {
            Some(last) if piece.len() < all.len() => ShardPosition { sequence: last.sequence + 1, ..*last },
            _ => ShardPosition { view: part.view, sequence: part.to },
        };
        reader.handle_read(end, &log);
        for message in piece {
            // More comes while the reader returns what it has read.
            while reader.takes_live() && member.taken < member.delivered.len() && prng.chance(500) {
                let live = member.delivered[member.taken];
                member.taken += 1;
                let is_returned = reader.handle_live(live.view, live.sequence);
                ensure!(!is_returned, "[A15] seed {seed}: {live:?} before what was read");
            }
            reader.handle_returned(message.view, message.sequence);
            returned.push(*message);
        }
        reader.handle_all_returned();
    }
    let expected: Vec<_> = member.delivered.iter().filter(|message| **message >= from).copied().collect();
    ensure!(returned == expected, "[A15] seed {seed}: from {from:?}, {returned:?} instead of {expected:?}");
    ensure!(reader.is_live(), "[A15] seed {seed}: it still reads the log");
    Ok(())
}

#[test]
fn a_reader_gets_each_message_once() {
    for seed in 0..20_000 {
        run(seed).unwrap_or_else(|fault| panic!("{fault}"));
    }
}
