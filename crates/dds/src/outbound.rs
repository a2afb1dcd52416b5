//! The sending end of a subgroup that carries topics.

use std::collections::{BTreeMap, VecDeque};

use squall::{MessageOutcome, Payload, SendError, Sender};

use crate::wire::ChangeHeader;

/// The sending end of a subgroup, with what is to be announced before anything else is sent.
#[derive(Debug)]
pub(crate) struct Outbound {
    sender: Sender,
    /// The announcements of this participant's endpoints, by topic and number.
    own: BTreeMap<(u32, u16), Vec<u8>>,
    pending: VecDeque<Vec<u8>>,
    stream: OutboundStream,
}

/// Decides which thread passes on what is sent. No I/O, no clock.
#[derive(Debug, Default)]
struct OutboundStream {
    /// How many messages more are sent as a stream.
    left: u32,
    pace: PassingPace,
}

/// Decides which messages of a stream are passed on. No I/O, no clock.
#[derive(Debug, Default)]
pub(crate) struct PassingPace {
    /// How many have been sent since the last one that was passed on, and when that was.
    deferred: u32,
    passed_on: u64,
}

/// Whether a message of a stream is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// None was for a while.
    AfterPause,
    /// Together with those before it.
    Together,
    Later,
}

/// Which thread passes on a message that has just been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutboundPace {
    /// Messages come one by one: the thread that has sent it does, or wakes another one for that.
    Single,
    /// Messages come as fast as there is space for them: the thread that sends them passes on several together. Those that
    /// follow the last of these are passed on when the standby thread looks.
    Stream { passes_on: bool },
}

impl Outbound {
    pub(crate) fn new(sender: Sender) -> Self {
        let (own, pending) = (BTreeMap::new(), VecDeque::new());
        Self { sender, own, pending, stream: OutboundStream::default() }
    }

    /// Notes that a message has found no space: from now on messages are sent as a stream.
    pub(crate) const fn begin_stream(&mut self) {
        self.stream.begin();
    }

    /// Returns which thread passes on the message that has just been sent, at this time in nanoseconds since 1970.
    pub(crate) const fn pace(&mut self, now: u64) -> OutboundPace {
        self.stream.pace(now)
    }

    /// Checks that a message of this length could be sent.
    pub(crate) fn check_space(&mut self, length: usize) -> Result<(), SendError> {
        self.flush()?;
        self.sender.check_space(length)
    }

    /// Announces an endpoint, as soon as there is space.
    pub(crate) fn announce(&mut self, topic: u32, number: u16, bytes: Vec<u8>) {
        self.own.insert((topic, number), bytes.clone());
        self.pending.push_back(bytes);
    }

    /// Announces that an endpoint has gone, if it was announced.
    pub(crate) fn announce_end(&mut self, topic: u32, number: u16, bytes: Vec<u8>) {
        if self.own.remove(&(topic, number)).is_none() {
            return;
        }
        self.pending.push_back(bytes);
        // What has no space now is sent before the next sample or view; if the group has ended, it is not needed.
        let _ = self.flush();
    }

    /// Announces all endpoints again, as soon as there is space: a member has come that knows none of them.
    pub(crate) fn announce_again(&mut self) {
        for bytes in self.own.values() {
            if !self.pending.contains(bytes) {
                self.pending.push_back(bytes.clone());
            }
        }
    }

    /// Returns whether announcements wait for space.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sends what is to be announced.
    pub(crate) fn flush(&mut self) -> Result<(), SendError> {
        while let Some(bytes) = self.pending.front() {
            self.sender.send_bytes(bytes)?;
            self.pending.pop_front();
        }
        Ok(())
    }

    /// Writes a change whose data, of `length` bytes, `fill` writes in place, if there is space.
    pub(crate) fn try_write<F: FnOnce(&mut Payload<'_>)>(
        &mut self,
        header: &ChangeHeader<'_>,
        length: usize,
        fill: &mut Option<F>,
    ) -> Result<(), SendError> {
        self.flush()?;
        let fill = |data: &mut Payload<'_>| fill.take().into_iter().for_each(|fill| fill(data));
        self.sender.send_written(header.length_with(length), |message| header.put(message, fill))
    }

    /// Sends a message, if there is space.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.flush()?;
        self.sender.send_bytes(bytes)
    }

    /// Returns the length of the longest message.
    pub(crate) fn message_max(&self) -> usize {
        self.sender.message_max()
    }

    /// Returns how many messages were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sender.sent()
    }

    /// Returns what has become of a message.
    pub(crate) fn outcome(&mut self, number: u64) -> MessageOutcome {
        self.sender.outcome(number)
    }

    /// Returns whether everything that was sent has been delivered by all members.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.sender.is_drained()
    }
}

impl OutboundStream {
    const fn begin(&mut self) {
        self.left = STREAM;
    }

    const fn pace(&mut self, now: u64) -> OutboundPace {
        if self.left == 0 {
            return OutboundPace::Single;
        }
        self.left -= 1;
        OutboundPace::Stream { passes_on: !matches!(self.pace.note(now), Passing::Later) }
    }
}

impl PassingPace {
    /// Notes that a message is sent now.
    pub(crate) const fn note(&mut self, now: u64) -> Passing {
        self.deferred += 1;
        let passing = match () {
            () if now.saturating_sub(self.passed_on) >= DEFERRAL_NS => Passing::AfterPause,
            () if self.deferred >= TOGETHER_MAX => Passing::Together,
            () => return Passing::Later,
        };
        (self.deferred, self.passed_on) = (0, now);
        passing
    }
}

/// As many messages after one that found no space are sent as a stream.
const STREAM: u32 = 4096;
/// How many messages of a stream are passed on together.
const TOGETHER_MAX: u32 = 32;
/// A message of a stream that comes as long after the last one that was passed on is passed on.
const DEFERRAL_NS: u64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED_ON: OutboundPace = OutboundPace::Stream { passes_on: true };
    const DEFERRED: OutboundPace = OutboundPace::Stream { passes_on: false };

    #[test]
    fn messages_come_one_by_one_until_there_is_no_space() {
        let mut stream = OutboundStream::default();
        assert!((0..100).all(|now| stream.pace(now) == OutboundPace::Single));
        stream.begin();
        assert!((0..STREAM).all(|_| stream.pace(0) != OutboundPace::Single));
        assert_eq!(stream.pace(0), OutboundPace::Single, "there has been space for long");
    }

    #[test]
    fn a_stream_is_passed_on_in_pieces() {
        let (mut stream, now) = (OutboundStream::default(), 7 * DEFERRAL_NS);
        stream.begin();
        assert_eq!(stream.pace(now), PASSED_ON, "it is not known that others follow soon");
        for _ in 0..3 {
            assert!((1..TOGETHER_MAX).all(|_| stream.pace(now) == DEFERRED));
            assert_eq!(stream.pace(now), PASSED_ON);
        }
    }

    /// One that comes late waits for no others; nor does a clock that is set back stop the stream.
    #[test]
    fn a_message_after_a_pause_is_passed_on() {
        let (mut stream, now) = (OutboundStream::default(), 7 * DEFERRAL_NS);
        stream.begin();
        assert_eq!(stream.pace(now), PASSED_ON);
        assert_eq!(stream.pace(now + DEFERRAL_NS - 1), DEFERRED);
        assert_eq!(stream.pace(now + DEFERRAL_NS), PASSED_ON);
        assert!((1..TOGETHER_MAX).all(|_| stream.pace(0) == DEFERRED));
        assert_eq!(stream.pace(0), PASSED_ON);
    }
}
