//! Messages of the model: sent, received, flushed, acknowledged, delivered; states taken over; what is missing fetched.

use squall_protocols::ends::{EndValue, RequestStage, acknowledged, may_receive, may_reply};

use super::oracle::{EndsMessage, EndsSent};
use super::plan::EndsEvent;
use super::process::{EndsMode, EndsUnderway};
use super::world::EndsWorld;

/// New messages of a shard in a view.
const MESSAGES_MAX: usize = 5;

impl EndsWorld<'_> {
    /// A member of a view does something with messages of one of its shards.
    pub(super) fn multicast(&mut self, slot: usize) {
        let shard = self.prng.index(self.plan.shards.len());
        let process = &self.processes[slot];
        let (view, rank) = (process.view, self.rank(slot));
        let is_durable = self.plan.shards[shard].kind.is_durable;
        if process.is_restarted || !self.views[view].view.shards[shard].members.contains(rank) {
            return;
        }
        match self.prng.index(5) {
            0 => self.send_new(slot, shard),
            1 => self.receive(slot, shard),
            2 if is_durable && self.processes[slot].parts[shard].is_whole => self.flush(slot, shard),
            2 if self.prng.chance(500) && is_durable => self.flush(slot, shard),
            2 => self.take_state(slot, shard),
            _ => self.deliver_stable(slot, shard),
        }
    }

    fn send_new(&mut self, slot: usize, shard: usize) {
        let process = &self.processes[slot];
        let view = process.view;
        let is_stopped = process.row.answer.is_some() || process.mode != EndsMode::Live;
        let few = if self.is_chaos { 1 } else { 6 };
        let is_full = self.views[view].sent[shard].len() >= MESSAGES_MAX;
        if is_stopped || !process.parts[shard].is_whole || is_full || self.prng.index(few) > 0 {
            return;
        }
        let (node, starts) = (process.node, process.starts);
        let message = self.messages.len();
        self.messages.push(EndsMessage { slot, node, starts, shard, is_delivered: false });
        self.send(slot, shard, message);
    }

    /// A message takes its place in the order of its shard.
    pub(super) fn send(&mut self, slot: usize, shard: usize, message: usize) {
        let (view, rank) = (self.processes[slot].view, self.rank(slot));
        if !self.views[view].view.shards[shard].members.contains(rank) {
            return;
        }
        self.messages[message].node = self.processes[slot].node;
        let is_timed = self.plan.shards[shard].kind.is_timed;
        let gap = 1 + self.prng.below(3);
        let state = &mut self.views[view];
        let sent = &mut state.sent[shard];
        let (column, count) = if is_timed {
            // [K6] Clocks begin behind the floor.
            (0, sent.last().map_or(state.view.floor, |last| last.count) + gap)
        } else {
            (rank, sent.iter().filter(|other| other.column == rank).count() as u64 + 1)
        };
        sent.push(EndsSent { message, column, count });
        self.processes[slot].underway.push(EndsUnderway { message, shard, column, count });
    }

    /// A member receives the next message of a sender, or of a shard with one order.
    fn receive(&mut self, slot: usize, shard: usize) {
        let process = &self.processes[slot];
        let view = process.view;
        let is_timed = self.plan.shards[shard].kind.is_timed;
        let part = &process.parts[shard];
        let column = if is_timed { 0 } else { self.prng.index(part.got.len().max(1)) };
        let place = match is_timed {
            true => part.got.first().copied(),
            false => {
                let next = part.got.get(column).copied().unwrap_or(0) as u64 + 1;
                self.views[view].sent[shard]
                    .iter()
                    .position(|sent| sent.column == column && sent.count == next)
            }
        };
        let Some(place) = place.filter(|place| *place < self.views[view].sent[shard].len()) else { return };
        if !self.reaches(slot, shard, place) {
            return;
        }
        let message = self.views[view].sent[shard][place].message;
        let of = self.messages[message].slot;
        let is_lost = of != slot && self.is_lost(slot, of);
        let part = &mut self.processes[slot].parts[shard];
        if is_lost {
            part.missing |= 1 << (place % 64);
        }
        part.got[column] += 1;
        if may_reply(RequestStage::Received) {
            self.replied.push(message);
        }
        if !self.plan.shards[shard].kind.is_durable {
            self.acknowledge(slot, shard);
        }
    }

    /// Returns whether a message comes to a process: its sender lives, the link is good, and the pair is not lost in the view.
    fn reaches(&mut self, slot: usize, shard: usize, place: usize) -> bool {
        let process = &self.processes[slot];
        let view = process.view;
        let of = self.messages[self.views[view].sent[shard][place].message];
        let is_stopped = process.row.answer.is_some();
        let is_lost = of.slot != slot && self.is_lost(slot, of.slot);
        let rank = self.views[view].view.rank(of.node);
        let is_frozen = rank.is_some_and(|rank| process.row.accused.contains(rank));
        if !may_receive(is_stopped, is_lost) || rank.is_none() {
            return false;
        }
        let sender = &self.processes[of.slot];
        let is_there = sender.is_up && sender.node == of.node || self.prng.index(8) == 0;
        of.slot == slot || is_there && !self.bad[of.slot][slot] && (!is_frozen || is_stopped)
    }

    pub(super) fn is_lost(&self, slot: usize, other: usize) -> bool {
        let process = &self.processes[slot];
        let rank = self.views[process.view].view.rank(self.processes[other].node);
        rank.is_some_and(|rank| process.lost.contains(rank))
    }

    fn flush(&mut self, slot: usize, shard: usize) {
        let part = &mut self.processes[slot].parts[shard];
        if part.flushed != part.got && self.processes[slot].row.answer.is_none() {
            self.flush_now(slot, shard);
        }
    }

    pub(super) fn flush_now(&mut self, slot: usize, shard: usize) {
        let part = &mut self.processes[slot].parts[shard];
        part.flushed = part.got.clone();
        self.acknowledge(slot, shard);
    }

    fn acknowledge(&mut self, slot: usize, shard: usize) {
        let part = &self.processes[slot].parts[shard];
        let is_durable = self.plan.shards[shard].kind.is_durable;
        let got = if is_durable { &part.flushed } else { &part.got };
        let counts = self.counts(self.processes[slot].view, shard, got);
        let process = &mut self.processes[slot];
        process.row.acks[shard] = counts;
        process.post();
    }

    /// A member without the state of a shard takes it over: in memory from a member of its view, in a durable shard from any process whose
    /// disk has everything before the view.
    fn take_state(&mut self, slot: usize, shard: usize) {
        let other = self.prng.index(self.processes.len());
        let (process, provider) = (&self.processes[slot], &self.processes[other]);
        let view = process.view;
        let is_able = other != slot && provider.is_up && !self.bad[other][slot] && !self.bad[slot][other];
        if process.parts[shard].is_whole || process.row.answer.is_some() || !is_able {
            return;
        }
        if self.plan.shards[shard].kind.is_durable {
            return self.fetch_base(slot, other, shard);
        }
        let is_member = provider.is_in_view() && provider.view == view && !provider.is_restarted;
        let part = &provider.parts[shard];
        if is_member && part.is_whole && part.delivered != usize::MAX {
            let delivered = part.delivered;
            let part = &mut self.processes[slot].parts[shard];
            (part.is_whole, part.delivered) = (true, delivered);
            self.tally.states += 1;
        }
    }

    /// A member of a durable shard fetches a part of what is before its view: all that another has from the beginning, or the next view's
    /// part, which another may have without what is before it.
    fn fetch_base(&mut self, slot: usize, other: usize, shard: usize) {
        let (view, full) = (self.processes[slot].view, self.processes[slot].full[shard]);
        let provided = self.processes[other].full[shard].min(view);
        let reaches = |of: usize| {
            let ended = self.views[full].decided.as_ref();
            let got = self.processes[of].past.get(&(full, shard));
            ended.zip(got).is_some_and(|(value, got)| value.is_reached(shard, &self.counts(full, shard, got)))
        };
        let next =
            if provided > full { provided } else { full + usize::from(reaches(slot) || reaches(other)) };
        if provided <= full && next > full {
            self.replay(slot, full, shard);
        }
        let process = &mut self.processes[slot];
        process.full[shard] = next;
        if next >= view {
            process.parts[shard].is_whole = true;
            self.tally.states += 1;
        }
    }

    /// A member delivers what enough members of the shard have acknowledged.
    fn deliver_stable(&mut self, slot: usize, shard: usize) {
        let process = &self.processes[slot];
        let view = process.view;
        let part = &process.parts[shard];
        if !part.is_whole || part.delivered == usize::MAX {
            return;
        }
        let state = &self.views[view];
        let (members, kind) = (state.view.shards[shard].members, self.plan.shards[shard].kind);
        let own = self.own_counts(slot);
        let mut places = Vec::new();
        for (place, sent) in state.sent[shard].iter().enumerate().skip(part.delivered) {
            let ack = |rank: usize| self.acknowledgement(slot, rank, shard, sent.column);
            let has = members.iter().filter(|rank| ack(*rank) >= sent.count).count();
            let is_here = own[shard].get(sent.column).is_some_and(|own| *own >= sent.count);
            if has < kind.quorum_of(members.len()) || !is_here {
                break;
            }
            places.push(place);
        }
        for place in places {
            self.on_delivered(slot, shard, place, place);
            self.processes[slot].parts[shard].delivered = place + 1;
            self.reach(EndsEvent::Deliver, slot);
            let message = self.views[view].sent[shard][place].message;
            if may_reply(RequestStage::Delivered) {
                self.replied.push(message);
            }
        }
    }

    /// Returns how much of a column a member has acknowledged in the view, as a process sees it.
    fn acknowledgement(&self, slot: usize, rank: usize, shard: usize, column: usize) -> u64 {
        let process = &self.processes[slot];
        let word = |row: &super::process::EndsRow| {
            let word = row.acks.get(shard).and_then(|acks| acks.get(column)).copied().unwrap_or(0);
            acknowledged(process.view as u64, row.view, word)
        };
        match rank == self.rank(slot) {
            true => word(&process.row),
            false => word(&process.seen[self.views[process.view].slot(rank)]),
        }
    }

    /// Returns whether a process has what counts of a shard in a view; if `reached`, one that this process reaches.
    pub(super) fn is_held(
        &self,
        slot: usize,
        view: usize,
        value: &EndValue,
        shard: usize,
        reached: bool,
    ) -> bool {
        (0..self.processes.len()).any(|other| {
            let is_there = other != slot
                && self.processes[other].is_up
                && !(reached && (self.bad[other][slot] || self.bad[slot][other]));
            let is_durable = self.plan.shards[shard].kind.is_durable;
            let may_return = !reached && is_durable && !self.processes[other].is_gone;
            (is_there || may_return)
                && self.counts_of(other, view, shard).is_some_and(|counts| value.is_reached(shard, &counts))
        })
    }

    /// Returns how much a process has of a shard in a view, by column.
    pub(super) fn counts_of(&self, slot: usize, view: usize, shard: usize) -> Option<Vec<u64>> {
        let got = self.got_of(slot, view, shard)?;
        Some(self.counts(view, shard, &got))
    }

    fn got_of(&self, slot: usize, view: usize, shard: usize) -> Option<Vec<usize>> {
        let process = &self.processes[slot];
        if process.mode != EndsMode::Outside && process.view == view {
            let part = &process.parts[shard];
            let is_durable = self.plan.shards[shard].kind.is_durable;
            return Some(if is_durable { part.flushed.clone() } else { part.got.clone() });
        }
        process.past.get(&(view, shard)).cloned()
    }

    /// A process fetches what it lacks of a shard from some other process.
    pub(super) fn fetch(&mut self, slot: usize, view: usize, value: &EndValue, shard: usize) {
        let other = self.prng.index(self.processes.len());
        let is_good = other != slot && !self.bad[other][slot] && !self.bad[slot][other];
        if !is_good || !self.processes[other].is_up {
            return;
        }
        let Some(there) = self.got_of(other, view, shard) else { return };
        let most = self.views[view].counted(shard, value).map(|(place, _)| place + 1).max().unwrap_or(0);
        let part = &mut self.processes[slot].parts[shard];
        let got = there.first().copied().unwrap_or(0).min(most);
        if part.got.first().is_none_or(|here| *here < got) {
            part.got = vec![got];
            part.flushed = vec![got];
            self.tally.fetches += 1;
            self.note(slot, || format!("fetches shard {shard} of view {view} up to {got} from {other}"));
            self.reach(EndsEvent::Fetch, slot);
        } else if part.flushed != part.got {
            part.flushed = part.got.clone();
        }
    }
}
