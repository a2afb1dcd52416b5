//! The control messages between root and receivers: that an object has arrived, that all members have it, and which
//! members continue after a death (RDMC §2, property 5; \[B7\]).
//!
//! There is one connection between the root and each receiver, with messages of whole little-endian words. Both ends
//! post [`RECEIVES`] receives, and each again as soon as it is consumed \[F7\]; only a few messages are ever in
//! flight.

use std::collections::VecDeque;

use squall_fabric::{Channel, ConnId, Fabric, FabricEvent, NodeId, Region, Token};

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// A receiver has this number of blocks of the object.
    Progress { number: u64, blocks: u64 },
    /// A receiver has the object.
    Received { number: u64 },
    /// The root knows that all remaining members have the object.
    Complete { number: u64 },
    /// The group has failed at a receiver, whose memory is no longer accessed.
    Stopped { group: u64 },
    /// A new group continues from object `first`.
    Regroup { group: u64, first: u64, members: Vec<NodeId> },
}

impl ControlMessage {
    fn encode(&self) -> Vec<u8> {
        let words = match self {
            Self::Progress { number, blocks } => vec![1, *number, *blocks],
            Self::Received { number } => vec![2, *number],
            Self::Complete { number } => vec![3, *number],
            Self::Stopped { group } => vec![4, *group],
            Self::Regroup { group, first, members } => {
                [5, *group, *first].into_iter().chain(members.iter().map(|node| u64::from(node.0))).collect()
            }
        };
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads a message; returns `None` if the words are not a message. Fuzzed as `bulk`.
    fn decode(words: &[u64]) -> Option<Self> {
        Some(match *words {
            [1, number, blocks] => Self::Progress { number, blocks },
            [2, number] => Self::Received { number },
            [3, number] => Self::Complete { number },
            [4, group] => Self::Stopped { group },
            [5, group, first, ref members @ ..] => {
                let node = |word: &u64| u32::try_from(*word).ok().map(NodeId);
                Self::Regroup { group, first, members: members.iter().map(node).collect::<Option<_>>()? }
            }
            _ => return None,
        })
    }
}

/// All control connections of a member.
#[derive(Debug)]
pub(super) struct ControlConnections {
    links: Vec<ControlLink>,
    /// The messages that were received and not yet taken.
    pub(super) received: VecDeque<(NodeId, ControlMessage)>,
    /// The peer that has sent an invalid message.
    pub(super) breached: Option<NodeId>,
}

#[derive(Debug)]
struct ControlLink {
    peer: NodeId,
    conn: ConnId,
    memory: Region,
    is_up: bool,
    waiting: VecDeque<ControlMessage>,
    /// The number of messages sent that have not reached the peer yet.
    in_flight: usize,
}

impl ControlConnections {
    /// Connects to `peers` on `channel`; they do the same.
    pub(super) fn new<F: Fabric>(fabric: &mut F, channel: Channel, peers: &[NodeId]) -> Self {
        let link = |peer: &NodeId| {
            let conn = fabric.open(*peer, channel);
            let memory = fabric.register(RECEIVES * MESSAGE_WORDS);
            let mut link = ControlLink {
                peer: *peer,
                conn,
                memory,
                is_up: false,
                waiting: VecDeque::new(),
                in_flight: 0,
            };
            (0..RECEIVES).for_each(|receive| link.post_receive(fabric, receive));
            link
        };
        Self { links: peers.iter().map(link).collect(), received: VecDeque::new(), breached: None }
    }

    /// Sends a message as soon as possible; to a lost peer it is never sent.
    pub(super) fn send(&mut self, peer: NodeId, message: ControlMessage) {
        if let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) {
            link.waiting.push_back(message);
        }
    }

    pub(super) fn handle_event<F: Fabric>(&mut self, fabric: &mut F, event: &FabricEvent) {
        match event {
            FabricEvent::Connected { conn, .. } => {
                self.link(*conn).into_iter().for_each(|link| link.is_up = true)
            }
            FabricEvent::Broken { conn, .. } => {
                self.link(*conn).into_iter().for_each(|link| link.is_up = false)
            }
            FabricEvent::Done { conn, .. } => {
                self.link(*conn).into_iter().for_each(|link| link.in_flight -= 1)
            }
            FabricEvent::Received { conn, token, length } => {
                let Some(link) = self.link(*conn) else { return };
                let message = link.take(fabric, *token, *length);
                let peer = link.peer;
                match message {
                    Some(message) => self.received.push_back((peer, message)),
                    None => self.breached = Some(peer),
                }
            }
            _ => {}
        }
    }

    /// Sends the waiting messages; returns how many.
    pub(super) fn poll<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let mut work = 0;
        for link in self.links.iter_mut().filter(|link| link.is_up) {
            while let Some(message) = link.waiting.front() {
                if fabric.send(link.conn, &message.encode(), Some(Token(0))).is_err() {
                    break;
                }
                link.waiting.pop_front();
                link.in_flight += 1;
                work += 1;
            }
        }
        work
    }

    /// Returns whether all messages have been posted.
    pub(super) fn has_sent_all(&self) -> bool {
        self.links.iter().all(|link| !link.is_up || link.waiting.is_empty())
    }

    /// Returns whether a message has not reached its peer yet.
    pub(super) fn is_sending(&self) -> bool {
        self.links.iter().any(|link| link.is_up && (link.in_flight > 0 || !link.waiting.is_empty()))
    }

    fn link(&mut self, conn: ConnId) -> Option<&mut ControlLink> {
        self.links.iter_mut().find(|link| link.conn == conn)
    }
}

impl ControlLink {
    fn post_receive<F: Fabric>(&mut self, fabric: &mut F, receive: usize) {
        let first = receive * MESSAGE_WORDS;
        // A broken connection needs no receives.
        let _ =
            fabric.post_receive(self.conn, &self.memory, first..first + MESSAGE_WORDS, Token(receive as u64));
    }

    fn take<F: Fabric>(&mut self, fabric: &mut F, token: Token, length: usize) -> Option<ControlMessage> {
        let receive = usize::try_from(token.0).expect("a token of this link");
        let mut words = vec![0; length / 8];
        self.memory.copy_out(receive * MESSAGE_WORDS, &mut words);
        self.post_receive(fabric, receive);
        if length.is_multiple_of(8) { ControlMessage::decode(&words) } else { None }
    }
}

/// More than is ever in flight in one direction: progress of some seconds, and a few other messages.
const RECEIVES: usize = 64;
/// The longest message, which has a list of all members of the largest group.
const MESSAGE_WORDS: usize = 3 + squall_transports::bootstrap::MEMBERS_MAX;

/// Reads bytes as a control message, for fuzzing; returns whether they are one. Fuzzed as `bulk`.
///
/// # Panics
/// If writing the message does not give back what was read.
pub fn read_foreign(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let message = if rest.is_empty() { ControlMessage::decode(&words) } else { None };
    message.inspect(|message| assert_eq!(message.encode(), bytes)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in [
            ControlMessage::Progress { number: 1, blocks: 2 },
            ControlMessage::Received { number: 3 },
            ControlMessage::Complete { number: 4 },
            ControlMessage::Stopped { group: 5 },
            ControlMessage::Regroup { group: 6, first: 7, members: vec![NodeId(0), NodeId(9)] },
            ControlMessage::Regroup { group: 6, first: 7, members: vec![] },
        ] {
            let bytes = message.encode();
            let words: Vec<u64> =
                bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
            assert_eq!(ControlMessage::decode(&words), Some(message));
        }
        for nonsense in [&[][..], &[0], &[1, 2], &[2], &[6, 1], &[5, 1], &[5, 1, 2, 1 << 40]] {
            assert_eq!(ControlMessage::decode(nonsense), None, "{nonsense:?}");
        }
    }
}
