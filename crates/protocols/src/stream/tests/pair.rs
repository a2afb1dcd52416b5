//! Two ends and the lanes between them, with real bytes in rings and receives, and all checks of the invariants (EXS
//! fig. 2–5).

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Grant, Instant, NodeId, RegionId};

use crate::stream::{
    Completion, MESSAGE_BYTES_MAX, PeerParameters, ReceiveId, ReceiveMemory, ReceiveOutcome, SendId,
    SendOutcome, SocketKind, StreamEnd, StreamMessage, StreamOutput, StreamSettings, StreamTransfer,
    TransferRoute,
};

/// A failed check.
pub(super) type PairFault = String;

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition { return Err(format!($($text)*)); }
    };
}
pub(super) use ensure;

/// Two connected ends. The posts of each end travel in order.
#[derive(Clone, Hash)]
pub(super) struct EndPair {
    pub(super) sides: [PairSide; 2],
    /// A buffer for outputs, which holds nothing between moves.
    message: StreamMessage,
    pub(super) now: Instant,
}

/// One end with its memory, its user, and what it has posted.
#[derive(Clone, Hash)]
pub(super) struct PairSide {
    pub(super) end: StreamEnd,
    kind: SocketKind,
    ring: Vec<u8>,
    /// The posts of this side that have not arrived at the other.
    pub(super) lane: VecDeque<InFlight>,
    /// Completions of transfers in flight to this side.
    pub(super) placed: VecDeque<SendId>,
    receives: BTreeMap<ReceiveId, Buffer>,
    /// The position of each outstanding send in this side's stream, and its length.
    sends: BTreeMap<SendId, (u64, u64)>,
    /// The number of bytes in posted sends.
    pub(super) sent: u64,
    /// The number of bytes placed in the other side's memory.
    pub(super) placed_bytes: u64,
    /// The number of bytes of the other's stream that this user received.
    pub(super) got: u64,
    /// The posted packets by number, without the cancelled ones.
    packets: VecDeque<(u64, u64)>,
    /// The routes of transfers since the last call; true is direct.
    pub(super) routes: Vec<bool>,
    pub(super) is_ended: bool,
    /// Whether a packet was cancelled, perhaps after it was reported as too long.
    has_cancelled: bool,
    /// The numbers of receives completed as `End`, and as `TooLong`.
    pub(super) ends: u64,
    pub(super) too_long: u64,
}

/// The memory of a receive.
#[derive(Clone, Hash)]
struct Buffer {
    bytes: Vec<u8>,
    filled: u64,
    wait_all: bool,
}

/// A post in flight.
#[derive(Clone, Hash, Debug)]
pub(super) enum InFlight {
    Write { immediate: u32, route: WriteLanding, bytes: Vec<u8>, done: Option<SendId> },
    Message(Vec<u8>),
}

/// The destination of a write.
#[derive(Clone, Copy, Hash, Debug)]
pub(super) enum WriteLanding {
    Receive { id: ReceiveId, start: u64 },
    Ring { byte: u64 },
}

/// Returns the byte at `position` of the stream of `side`.
pub(super) fn byte(side: usize, position: u64) -> u8 {
    (position.wrapping_mul(167) ^ (position >> 8) ^ (side as u64 * 0x5a)) as u8
}

impl PairSide {
    fn new(settings: &StreamSettings) -> Self {
        Self {
            end: StreamEnd::new(settings.clone()),
            kind: settings.kind,
            ring: vec![0; settings.ring_words as usize * 8],
            lane: VecDeque::new(),
            placed: VecDeque::new(),
            receives: BTreeMap::new(),
            sends: BTreeMap::new(),
            sent: 0,
            placed_bytes: 0,
            got: 0,
            packets: VecDeque::new(),
            routes: Vec::new(),
            is_ended: false,
            has_cancelled: false,
            ends: 0,
            too_long: 0,
        }
    }

    pub(super) fn receives_outstanding(&self) -> usize {
        self.receives.len()
    }

    pub(super) fn sends_outstanding(&self) -> usize {
        self.sends.len()
    }

    pub(super) fn receive_ids(&self) -> Vec<ReceiveId> {
        self.receives.keys().copied().collect()
    }

    pub(super) fn last_send(&self) -> Option<SendId> {
        self.sends.last_key_value().map(|(id, _)| *id)
    }
}

impl EndPair {
    /// Returns two ends that know each other.
    pub(super) fn new(settings: [StreamSettings; 2]) -> Self {
        let mut sides = [0, 1].map(|i| PairSide::new(&settings[i]));
        for i in 0..2 {
            let peer = &settings[1 - i];
            let peer = PeerParameters {
                ring_words: peer.ring_words,
                receives_max: peer.receives_max,
                credits: peer.credits,
                credits_used: 0,
                renews: peer.renews(),
            };
            sides[i].end.handle_peer(&peer).expect("no credit is used");
            assert_eq!(sides[i].end.poll_completion(), Some(Completion::Connected));
        }
        Self { sides, message: StreamMessage::default(), now: Instant::default() }
    }

    /// Returns two ends with the same settings.
    pub(super) fn alike(settings: StreamSettings) -> Self {
        Self::new([settings.clone(), settings])
    }

    /// The user of side `i` posts a send; returns false if it is refused.
    pub(super) fn send(&mut self, i: usize, length: u64) -> bool {
        let side = &mut self.sides[i];
        let Ok(id) = side.end.post_send(length) else { return false };
        side.sends.insert(id, (side.sent, length));
        side.packets.push_back((side.sent, length));
        side.sent += length;
        true
    }

    /// The user of side `i` posts a receive; returns false if it is refused.
    pub(super) fn receive(&mut self, i: usize, length: u64, wait_all: bool) -> Result<bool, PairFault> {
        let side = &mut self.sides[i];
        let next = ReceiveId(side.end.next_receive());
        let [owner, peer] = [i, 1 - i].map(|i| NodeId(i as u32));
        let words = length.div_ceil(8);
        let grant = Grant { owner, peer, region: RegionId(1), first: 0, words, key: next.0 };
        let buffer = Buffer { bytes: vec![0; length as usize], filled: 0, wait_all };
        match side.end.post_receive(ReceiveMemory { grant, start: 0, length }, wait_all) {
            Ok(id) => side.receives.insert(id, buffer),
            Err(_) => return Ok(false),
        };
        self.collect(i)?;
        Ok(true)
    }

    pub(super) fn cancel_receive(&mut self, i: usize, id: ReceiveId) -> Result<(), PairFault> {
        self.sides[i].end.cancel_receive(id);
        self.collect(i)
    }

    /// Cancels the last send, so that the earlier ones keep their positions in the stream.
    pub(super) fn cancel_last_send(&mut self, i: usize) -> Result<(), PairFault> {
        let side = &mut self.sides[i];
        let Some(id) = side.last_send() else { return Ok(()) };
        let (start, length) = side.sends[&id];
        let is_newest = start + length == side.sent && side.packets.back() == Some(&(start, length));
        if is_newest && side.end.cancel_send(id) {
            side.sent = start;
            side.packets.pop_back();
            side.has_cancelled = true;
        }
        self.collect(i)
    }

    pub(super) fn end_stream(&mut self, i: usize) {
        self.sides[i].end.end_stream();
        self.sides[i].is_ended = true;
    }

    /// Side `i` posts its next output; returns false if it has none.
    pub(super) fn post(&mut self, i: usize) -> Result<bool, PairFault> {
        let side = &mut self.sides[i];
        let item = match side.end.poll_output(self.now, &mut self.message) {
            None => return Ok(false),
            Some(StreamOutput::Message) => {
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                let length = self.message.encode(&mut bytes);
                self.message.clear();
                InFlight::Message(bytes[..length].to_vec())
            }
            Some(StreamOutput::Transfer(transfer)) => side.write(i, &transfer)?,
        };
        side.lane.push_back(item);
        Ok(true)
    }

    /// The oldest post of side `i` arrives; returns false if nothing is in flight.
    pub(super) fn deliver(&mut self, i: usize) -> Result<bool, PairFault> {
        let Some(item) = self.sides[i].lane.pop_front() else { return Ok(false) };
        let other = &mut self.sides[1 - i];
        let broken = |violation| format!("side {i} is accused: {violation}");
        match item {
            InFlight::Write { immediate, route, bytes, done } => {
                other.land(route, &bytes)?;
                self.sides[i].placed_bytes += bytes.len() as u64;
                self.sides[i].placed.extend(done);
                let arrival = crate::stream::TransferArrival::from_immediate(immediate);
                self.sides[1 - i].end.handle_arrival(arrival).map_err(broken)?;
            }
            InFlight::Message(bytes) => {
                self.message.decode(&bytes).map_err(broken)?;
                let handled = other.end.handle_message(&self.message).map_err(broken);
                self.message.clear();
                handled?;
            }
        }
        self.collect(0)?;
        self.collect(1).map(|()| true)
    }

    /// Side `i` learns of its first placed send; returns false if there is none.
    pub(super) fn place(&mut self, i: usize) -> Result<bool, PairFault> {
        let Some(id) = self.sides[i].placed.pop_front() else { return Ok(false) };
        self.sides[i].end.handle_placed(id);
        self.collect(i)?;
        Ok(true)
    }

    /// Side `i` copies at most `length_max` bytes out of its ring; returns false if it cannot.
    pub(super) fn copy(&mut self, i: usize, length_max: u64) -> Result<bool, PairFault> {
        let side = &mut self.sides[i];
        let Some(copy) = side.end.poll_copy(length_max) else { return Ok(false) };
        let from = copy.from as usize..(copy.from + copy.length) as usize;
        let buffer = side.receives.get_mut(&copy.receive).ok_or("[E8] a copy to a receive that is done")?;
        ensure!(buffer.filled == copy.offset, "[E8] a copy to byte {} after {}", copy.offset, buffer.filled);
        buffer.bytes[copy.offset as usize..(copy.offset + copy.length) as usize]
            .copy_from_slice(&side.ring[from]);
        buffer.filled += copy.length;
        side.end.on_copied(copy);
        self.collect(i)?;
        Ok(true)
    }

    /// Does everything that the network and both ends can do without their users.
    pub(super) fn calm(&mut self) -> Result<(), PairFault> {
        let mut moved = true;
        while moved {
            moved = false;
            for i in 0..2 {
                moved |= self.copy(i, u64::MAX)? | self.post(i)? | self.deliver(i)? | self.place(i)?;
            }
            if let Some(deadline) = self.next_deadline().filter(|_| !moved) {
                ensure!(deadline > self.now, "a deadline that has passed and nothing to do");
                (self.now, moved) = (deadline, true);
            }
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.sides.iter().filter_map(|side| side.end.next_deadline()).min()
    }

    /// Takes and checks the completions of side `i`.
    fn collect(&mut self, i: usize) -> Result<(), PairFault> {
        while let Some(completion) = self.sides[i].end.poll_completion() {
            match completion {
                Completion::Connected | Completion::Closed { .. } => {}
                Completion::Send { id, outcome } => self.sides[i].on_sent(id, outcome)?,
                Completion::Receive { id, bytes, outcome } => self.on_received(i, id, bytes, outcome)?,
            }
        }
        Ok(())
    }

    fn on_received(
        &mut self,
        i: usize,
        id: ReceiveId,
        bytes: u64,
        outcome: ReceiveOutcome,
    ) -> Result<(), PairFault> {
        let [first, second] = &mut self.sides;
        let (side, other) = if i == 0 { (first, second) } else { (second, first) };
        let buffer = side.receives.remove(&id).ok_or("a receive completes twice")?;
        ensure!(bytes == buffer.filled, "[E8] {id:?} says {bytes} bytes, {} landed", buffer.filled);
        if outcome != ReceiveOutcome::Cancelled {
            let earlier = side.receives.first_key_value().is_some_and(|(other, _)| *other < id);
            ensure!(!earlier, "[E1] {id:?} completes before an earlier one");
        }
        match outcome {
            ReceiveOutcome::Filled => {
                let full = bytes == buffer.bytes.len() as u64;
                ensure!(
                    full || !buffer.wait_all || side.kind == SocketKind::Packets,
                    "[E7] {id:?} wanted all and got {bytes}"
                );
                ensure!(bytes > 0 || side.kind == SocketKind::Packets, "{id:?} completes without bytes");
            }
            ReceiveOutcome::End => side.ends += 1,
            ReceiveOutcome::TooLong { length } => {
                side.too_long += 1;
                ensure!(bytes == 0, "[E9] {bytes} bytes of a packet that was too long");
                let next = other.packets.front().map(|(_, length)| *length);
                ensure!(
                    next == Some(length) || other.has_cancelled,
                    "[E9] the packet of {length} bytes is too long, next is {next:?}"
                );
            }
            ReceiveOutcome::Cancelled => {}
            ReceiveOutcome::Failed(failure) => return Err(format!("{id:?} failed: {failure}")),
        }
        if side.kind == SocketKind::Packets && outcome == ReceiveOutcome::Filled {
            let (start, length) = other.packets.pop_front().ok_or("[E9] a packet that was not sent")?;
            ensure!(length == bytes && start == side.got, "[E9] {bytes} of a packet of {length} bytes");
        }
        for (at, found) in buffer.bytes[..bytes as usize].iter().enumerate() {
            let position = side.got + at as u64;
            ensure!(*found == byte(1 - i, position), "[E8] {id:?}: byte {position} of the stream is wrong");
        }
        side.got += bytes;
        ensure!(side.got <= other.sent, "[E8] more bytes came out than went in");
        Ok(())
    }
}

impl PairSide {
    /// Returns the write of a transfer.
    fn write(&mut self, i: usize, transfer: &StreamTransfer) -> Result<InFlight, PairFault> {
        let (start, length) = *self.sends.get(&transfer.send).ok_or("a transfer of a send that is done")?;
        ensure!(transfer.offset + transfer.length <= length, "a transfer beyond its send");
        let position = start + transfer.offset;
        let bytes = (position..position + transfer.length).map(|position| byte(i, position)).collect();
        let route = match transfer.route {
            TransferRoute::Direct { grant, start } => {
                WriteLanding::Receive { id: ReceiveId(grant.key), start }
            }
            TransferRoute::Indirect { word, skip } => {
                ensure!(skip == transfer.offset % 8, "an indirect transfer changes its alignment");
                WriteLanding::Ring { byte: word * 8 + skip }
            }
        };
        self.routes.push(matches!(route, WriteLanding::Receive { .. }));
        let done = transfer.is_last.then_some(transfer.send);
        Ok(InFlight::Write { immediate: transfer.arrival().to_immediate(), route, bytes, done })
    }

    /// A write lands in this side's memory.
    fn land(&mut self, route: WriteLanding, bytes: &[u8]) -> Result<(), PairFault> {
        match route {
            WriteLanding::Receive { id, start } => {
                let head = self.receives.first_key_value().map(|(id, _)| *id);
                ensure!(head == Some(id), "[E1] a direct transfer to {id:?}, the head is {head:?}");
                let buffer = self.receives.get_mut(&id).expect("the head");
                ensure!(
                    start == buffer.filled,
                    "[E1] a direct transfer to byte {start} after {}",
                    buffer.filled
                );
                let end = start as usize + bytes.len();
                ensure!(end <= buffer.bytes.len(), "[E1] a direct transfer beyond its receive");
                buffer.bytes[start as usize..end].copy_from_slice(bytes);
                buffer.filled += bytes.len() as u64;
            }
            WriteLanding::Ring { byte } => {
                let end = byte as usize + bytes.len();
                ensure!(end <= self.ring.len(), "[E5] an indirect transfer beyond the ring");
                self.ring[byte as usize..end].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn on_sent(&mut self, id: SendId, outcome: SendOutcome) -> Result<(), PairFault> {
        let (start, length) = self.sends.remove(&id).ok_or("a send completes twice")?;
        match outcome {
            SendOutcome::Placed => {
                ensure!(start + length <= self.placed_bytes, "{id:?} is not placed, though it says so");
            }
            SendOutcome::Cancelled => {}
            SendOutcome::Failed(failure) => return Err(format!("{id:?} failed: {failure}")),
        }
        Ok(())
    }
}
