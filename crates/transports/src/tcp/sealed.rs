//! Encrypted streams: output is sent in records, and input is verified before it is handled.

use std::io;

use super::TcpCounters;
use super::frame::TcpViolation;
use super::input::ReceiveBuffer;
use super::output::{OutputQueue, as_bytes};
use super::pair::RecordRest;
use super::peer::{LocalNode, TcpLoss, TcpPeer};
use super::socket::TcpSocket;
use crate::session::{INBOUND_BYTES, OPENING_BYTES, RECORD_BYTES_MAX, Records};

impl TcpPeer {
    /// Encrypts queued output and sends it, as far as the socket takes it. Returns the number of bytes.
    pub(super) fn transmit_sealed(
        &mut self,
        counters: &mut TcpCounters,
        send: impl Fn(&TcpSocket, &[u8]) -> io::Result<usize>,
    ) -> usize {
        let mut sent = 0;
        while self.writable && sent < SENT_BYTES_MAX {
            let records = self.records.as_mut().expect("only called for sealed streams");
            if records.is_flushed() {
                seal(&mut self.output, records);
            }
            let pending = records.pending();
            if pending.is_empty() {
                break;
            }
            counters.send_calls += 1;
            match send(self.socket.as_ref().expect("nothing is sent to a lost peer"), pending) {
                Ok(taken) => {
                    self.writable = taken == pending.len();
                    counters.bytes_sent += taken as u64;
                    self.bytes_sent += taken as u64;
                    records.on_sent(taken);
                    sent += taken;
                }
                Err(error) => self.on_send_error(error),
            }
        }
        sent
    }

    /// Receives with one read, and handles the frames in the records that it completes. Returns the number of
    /// bytes.
    pub(super) fn poll_sealed_input(
        &mut self,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<usize, TcpLoss> {
        let mut records = self.records.take().expect("only called for sealed streams");
        let outcome = self.receive_records(&mut records, buffer, local);
        self.records = Some(records);
        outcome
    }

    fn receive_records(
        &mut self,
        records: &mut Records,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<usize, TcpLoss> {
        let space = records.free_space(INBOUND_BYTES);
        let received = self.receive_into(space.len(), &mut local.counters, |socket| socket.receive(space))?;
        records.on_received(received);
        let mut has_opened = false;
        loop {
            let restored = self.input.restore(buffer);
            let target = &mut buffer.bytes_mut()[restored..restored + OPENING_BYTES];
            let opened = records.open(target).map_err(|_| TcpLoss::BadRecord)?;
            let Some(opened) = opened else { break };
            has_opened = true;
            if !opened.is_multiple_of(8) {
                return Err(TcpViolation("a record whose length is not a multiple of 8 bytes").into());
            }
            self.take_buffered(buffer, restored + opened, local)?;
        }
        if let Some((reopening, silence)) = self.reopening.as_mut().zip(local.silence) {
            if has_opened || !records.holds_input() {
                reopening.rest = RecordRest::default();
            }
            if records.holds_input() {
                let missing = records.missing().map_err(|_| TcpLoss::BadRecord)?;
                if reopening.rest.is_overdue(missing, silence, local.clock.now()) {
                    return Err(TcpLoss::BadRecord);
                }
            }
        }
        Ok(received)
    }
}

/// Encrypts the next words of the queue, in a few records at most, so that one call sends them.
fn seal(output: &mut OutputQueue, records: &mut Records) {
    let mut words = std::mem::take(&mut records.words);
    words.resize(RECORD_BYTES_MAX / 8, 0);
    for _ in 0..RECORDS_MAX {
        let taken = output.take_words(&mut words);
        if taken == 0 {
            break;
        }
        records.seal(as_bytes(&words[..taken]));
    }
    records.words = words;
}

/// The records of one call: enough to amortise it, and few enough to stay in the cache.
const RECORDS_MAX: usize = 8;

/// One poll sends no more than this to a peer, so that it stays short.
const SENT_BYTES_MAX: usize = 1 << 20;
