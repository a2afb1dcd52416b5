//! A user of one socket, which sends its stream in pieces, receives the other's, and checks every byte (EXS fig.
//! 2–5).

use squall_fabric::sim::{Prng, SimFabric};
use squall_fabric::{Fabric, Region};
use squall_protocols::stream::{
    Completion, PostRefused, ReceiveId, ReceiveOutcome, SendId, SendOutcome, SocketCore, SocketFailure,
    SocketKind,
};

/// The plan of a user.
#[derive(Clone, Debug)]
pub(crate) struct UserPlan {
    pub(crate) kind: SocketKind,
    /// The total number of bytes, or packets, to send.
    pub(crate) to_send: u64,
    pub(crate) send_max: usize,
    pub(crate) receive_max: usize,
    pub(crate) sends: usize,
    pub(crate) receives: usize,
    pub(crate) wait_all_per_mille: u32,
    /// How often it acts when it can.
    pub(crate) eager_per_mille: u32,
    /// How often it cancels an operation.
    pub(crate) cancel_per_mille: u32,
}

/// A slot of memory for one send or one receive.
#[derive(Debug)]
struct Slot {
    first_word: usize,
    state: SlotState,
}

#[derive(Debug, PartialEq)]
enum SlotState {
    /// Memory of the user's own, filled with a pattern that must not change.
    Own,
    Sending {
        id: SendId,
        end: u64,
    },
    Receiving {
        id: ReceiveId,
        length: usize,
        wait_all: bool,
    },
}

/// The user of one end.
#[derive(Debug)]
pub(crate) struct SocketUser {
    side: u64,
    plan: UserPlan,
    prng: Prng,
    memory: Region,
    send_slots: Vec<Slot>,
    receive_slots: Vec<Slot>,
    /// The numbers of bytes of its own stream that are posted, and that are known to be placed.
    pub(crate) sent: u64,
    pub(crate) placed: u64,
    /// The number of bytes received of the other's stream.
    pub(crate) got: u64,
    /// The lengths of the posted packets.
    pub(crate) packets: Vec<u64>,
    pub(crate) packets_got: usize,
    packets_placed: usize,
    /// The number of bytes or packets that remain to be posted.
    left: u64,
    too_long: usize,
    pub(crate) is_connected: bool,
    pub(crate) closed: Option<Option<SocketFailure>>,
    pub(crate) is_at_end: bool,
}

/// Returns the byte at `position` of the stream of `side`.
fn byte(side: u64, position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (side as u8).wrapping_mul(0x5a)
}

/// The pattern that fills memory of the user's own.
const OWN: u64 = 0x0ddb_a110_ddba_1101;

impl SocketUser {
    pub(crate) fn new(side: u64, plan: UserPlan, fabric: &mut SimFabric, seed: u64) -> Self {
        let (send_words, receive_words) = (plan.send_max.div_ceil(8), plan.receive_max.div_ceil(8));
        let words = plan.sends * send_words + plan.receives * receive_words;
        let memory = fabric.register(words);
        (0..words).for_each(|word| memory.store_relaxed(word, OWN));
        let slot = |first_word: usize| Slot { first_word, state: SlotState::Own };
        let behind = plan.sends * send_words;
        Self {
            side,
            prng: Prng::new(seed ^ side << 32),
            memory,
            send_slots: (0..plan.sends).map(|i| slot(i * send_words)).collect(),
            receive_slots: (0..plan.receives).map(|i| slot(behind + i * receive_words)).collect(),
            sent: 0,
            placed: 0,
            got: 0,
            packets: Vec::new(),
            packets_got: 0,
            packets_placed: 0,
            left: plan.to_send,
            too_long: 0,
            is_connected: false,
            closed: None,
            is_at_end: false,
            plan,
        }
    }

    /// Returns whether nothing more will happen at this user.
    pub(crate) fn is_done(&self) -> bool {
        let is_idle = |slots: &[Slot]| slots.iter().all(|slot| slot.state == SlotState::Own);
        self.closed.is_some() && is_idle(&self.send_slots) && is_idle(&self.receive_slots)
    }

    /// Returns the number of packets or bytes that this side knows to be in the other's memory.
    pub(crate) fn acknowledged(&self) -> u64 {
        if self.plan.kind == SocketKind::Packets { self.packets_placed as u64 } else { self.placed }
    }

    /// Returns the number of packets or bytes received.
    pub(crate) fn received(&self) -> u64 {
        if self.plan.kind == SocketKind::Packets { self.packets_got as u64 } else { self.got }
    }

    /// Acts, or not, at random; returns the amount of work done.
    pub(crate) fn act(
        &mut self,
        socket: &mut SocketCore,
        fabric: &mut SimFabric,
        others_packets: &[u64],
    ) -> usize {
        let mut work = self.take_completions(socket, others_packets);
        if self.prng.chance(self.plan.eager_per_mille) {
            work += usize::from(self.send(socket));
        }
        if self.prng.chance(self.plan.eager_per_mille) || self.closed.is_some() {
            work += usize::from(self.receive(socket, fabric));
        }
        if self.prng.chance(self.plan.cancel_per_mille) {
            self.cancel(socket);
        }
        if self.left == 0 {
            socket.shut_down();
        }
        work
    }

    fn send(&mut self, socket: &mut SocketCore) -> bool {
        let Some(slot) = self.send_slots.iter_mut().find(|slot| slot.state == SlotState::Own) else {
            return false;
        };
        let is_packet = self.plan.kind == SocketKind::Packets;
        if self.left == 0 {
            return false;
        }
        let most =
            if is_packet { self.plan.send_max as u64 } else { self.left.min(self.plan.send_max as u64) };
        let length = if is_packet { self.prng.below(most + 1) } else { 1 + self.prng.below(most) };
        let bytes: Vec<u8> = (0..length).map(|i| byte(self.side, self.sent + i)).collect();
        self.memory.copy_bytes_in(slot.first_word, &bytes);
        let first = slot.first_word * 8;
        match socket.post_send(&self.memory, first..first + length as usize) {
            Ok(id) => {
                self.sent += length;
                self.packets.push(length);
                self.left -= if is_packet { 1 } else { length };
                slot.state = SlotState::Sending { id, end: self.sent };
                true
            }
            Err(PostRefused::Closed) => {
                self.left = 0;
                false
            }
            Err(refused) => panic!("side {}: {refused}", self.side),
        }
    }

    fn receive(&mut self, socket: &mut SocketCore, fabric: &mut SimFabric) -> bool {
        let Some(slot) = self.receive_slots.iter_mut().find(|slot| slot.state == SlotState::Own) else {
            return false;
        };
        if self.is_at_end {
            return false;
        }
        let words = self.plan.receive_max.div_ceil(8);
        (slot.first_word..slot.first_word + words)
            .for_each(|word| assert_eq!(self.memory.load(word), OWN, "memory of the user was written"));
        // After a packet that did not fit, the next receive has space for any packet.
        let is_large = self.plan.kind == SocketKind::Packets && self.too_long > 0;
        let most = self.plan.receive_max as u64;
        let length = if is_large { most as usize } else { 1 + self.prng.below(most) as usize };
        let wait_all = self.prng.chance(self.plan.wait_all_per_mille);
        let first = slot.first_word * 8;
        match socket.post_receive(fabric, &self.memory, first..first + length, wait_all) {
            Ok(id) => {
                slot.state = SlotState::Receiving { id, length, wait_all };
                true
            }
            Err(PostRefused::Closed) => {
                self.is_at_end = true;
                false
            }
            Err(refused) => panic!("side {}: {refused}", self.side),
        }
    }

    fn cancel(&mut self, socket: &mut SocketCore) {
        let receiving = self.receive_slots.iter().filter_map(|slot| match slot.state {
            SlotState::Receiving { id, .. } => Some(id),
            _ => None,
        });
        let ids: Vec<ReceiveId> = receiving.collect();
        if !ids.is_empty() {
            // It returns false if the operation is done and its completion is pending.
            socket.cancel_receive(ids[self.prng.index(ids.len())]);
        }
    }

    fn take_completions(&mut self, socket: &mut SocketCore, others_packets: &[u64]) -> usize {
        let mut count = 0;
        while let Some(completion) = socket.poll_completion() {
            count += 1;
            match completion {
                Completion::Connected => self.is_connected = true,
                Completion::Closed { failure } => {
                    assert_eq!(self.closed.replace(failure), None, "closed twice");
                }
                Completion::Send { id, outcome } => self.on_sent(id, outcome),
                Completion::Receive { id, bytes, outcome } => {
                    self.on_received(id, bytes, outcome, others_packets)
                }
            }
        }
        count
    }

    fn on_sent(&mut self, id: SendId, outcome: SendOutcome) {
        let is_it =
            |slot: &&mut Slot| matches!(slot.state, SlotState::Sending { id: other, .. } if other == id);
        let slot = self.send_slots.iter_mut().find(is_it).expect("a send completes once");
        let SlotState::Sending { end, .. } = slot.state else { unreachable!() };
        slot.state = SlotState::Own;
        let words = self.plan.send_max.div_ceil(8);
        (slot.first_word..slot.first_word + words).for_each(|word| self.memory.store_relaxed(word, OWN));
        if outcome == SendOutcome::Placed {
            assert!(end >= self.placed, "sends complete in order");
            self.placed = end;
            self.packets_placed += 1;
        }
    }

    fn on_received(&mut self, id: ReceiveId, bytes: u64, outcome: ReceiveOutcome, others_packets: &[u64]) {
        let is_it =
            |slot: &&mut Slot| matches!(slot.state, SlotState::Receiving { id: other, .. } if other == id);
        let slot = self.receive_slots.iter_mut().find(is_it).expect("a receive completes once");
        let SlotState::Receiving { length, wait_all, .. } = slot.state else { unreachable!() };
        slot.state = SlotState::Own;
        let first_word = slot.first_word;
        let mut found = vec![0; bytes as usize];
        self.memory.copy_bytes_out(first_word, &mut found);
        for (at, found) in found.iter().enumerate() {
            let position = self.got + at as u64;
            let expected = byte(1 - self.side, position);
            assert_eq!(*found, expected, "[E8] side {}: byte {position} ({id:?}, {outcome:?})", self.side);
        }
        let words = self.plan.receive_max.div_ceil(8);
        (first_word..first_word + words).for_each(|word| self.memory.store_relaxed(word, OWN));
        self.got += bytes;
        let is_packet = self.plan.kind == SocketKind::Packets;
        match outcome {
            ReceiveOutcome::Filled if is_packet => {
                assert_eq!(bytes, others_packets[self.packets_got], "[E9] a packet keeps its boundaries");
                self.packets_got += 1;
                self.too_long = 0;
            }
            ReceiveOutcome::Filled => assert!(bytes as usize == length || !wait_all && bytes > 0, "[E7]"),
            ReceiveOutcome::TooLong { length: needed } => {
                assert_eq!(needed, others_packets[self.packets_got], "[E9] the packet that waits");
                self.too_long += 1;
            }
            ReceiveOutcome::End => self.is_at_end = true,
            ReceiveOutcome::Cancelled | ReceiveOutcome::Failed(_) => {}
        }
    }
}
