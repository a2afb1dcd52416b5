//! Long payloads: the rest of one is read directly into its region, or its file.

use std::ptr::NonNull;

use squall_fabric::Region;

use super::file_pages::{self, FilePiece, FilePipe};
use super::grants::TcpGrants;
use super::input::{AHEAD_BYTES, LONG_BYTES_MIN, PayloadTarget, ReceiveBuffer, order_after_earlier_frames};
use super::peer::{LocalNode, TcpLoss, TcpPeer};
use super::socket::{IoPiece, TcpSocket};

impl TcpPeer {
    /// Reads the rest of a long payload directly into its region. Only bytes that have arrived are requested,
    /// and only whole words of them, so that no word is left half written [F3]. Bytes after the payload are
    /// read into the buffer, by the same call, as far as they may be a header. Returns the number of bytes;
    /// `None` if there is no such payload.
    pub(super) fn receive_direct(
        &mut self,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<Option<usize>, TcpLoss> {
        let Some((region, first, words)) = self.direct_target(&local.grants) else { return Ok(None) };
        let available = self.socket().available().map_err(TcpLoss::Io)?;
        let missing = self.input.missing();
        let begun = usize::from(missing > 0);
        let file = file_pages::piece(&region, 8 * (first + begun)..8 * (first + words));
        if let Some(file) = file.filter(|_| missing == 0) {
            if available >= file.length.min(8) {
                return self.receive_into_file(file, available, buffer, local).map(Some);
            }
            if !self.ended {
                // What arrives meanwhile shall not come by way of the buffer.
                self.readable = false;
                return Ok(Some(0));
            }
        }
        let least = LONG_BYTES_MIN.min(8 * (words - begun));
        let Some(available) = available.checked_sub(missing).filter(|bytes| *bytes >= least) else {
            return Ok(None);
        };
        // What follows the missing part of a word goes to the file itself.
        let most = if file.is_some() { 0 } else { DIRECT_BYTES_MAX };
        let whole = (words - begun).min(available.min(most) / 8);
        let mut lead = [0; 8];
        let ahead = if whole == words - begun { AHEAD_BYTES } else { 0 };
        let pieces = [
            IoPiece::new(NonNull::from(&mut lead).cast(), missing),
            IoPiece::new(region.pointer(first + begun).cast(), 8 * whole),
            IoPiece::new(NonNull::from(&mut buffer.bytes_mut()[..ahead]).cast(), ahead),
        ];
        let wanted = missing + 8 * whole + ahead;
        order_after_earlier_frames();
        // SAFETY: the first and the last piece are at most `lead` and the buffer, neither of which is
        // borrowed now. The second is inside its region, as `direct_target` checked; its words are atomics,
        // to which no exclusive references exist, and the kernel stores into them as another process does
        // into shared memory.
        let read = |socket: &TcpSocket| unsafe { socket.receive_pieces(&pieces) };
        let received = self.receive_into(wanted, &mut local.counters, read)?;
        if whole < words - begun && available - 8 * whole < 8 {
            // Only a part of a word is left, which the next read takes: the poller reports when the rest has
            // arrived.
            self.readable = self.ended;
        }
        let lead = &lead[..received.min(missing)];
        if let Some(word) = self.input.on_missing(lead) {
            file_pages::land(&region, first, &[word]);
        }
        let placed = (received - lead.len()).min(8 * whole);
        let next = first + begun + placed / 8;
        let split = placed % 8;
        if split > 0 {
            // Fewer bytes than were available: urgent data are in between, which no fabric sends.
            self.input.keep_begun(&region.load_relaxed(next).to_le_bytes()[..split]);
        }
        if received >= missing {
            self.input.handled += (next - first) as u64;
            self.on_words_placed(next - first, local);
        }
        if self.input.payload.is_none() {
            self.take_buffered(buffer, received - lead.len() - placed, local)?;
        }
        Ok(Some(received))
    }

    /// Has the kernel copy the beginning of a payload, whole words of it if possible, from the socket into its file. Returns the number of
    /// bytes.
    fn receive_into_file(
        &mut self,
        file: FilePiece<'_>,
        available: usize,
        buffer: &mut ReceiveBuffer,
        local: &mut LocalNode,
    ) -> Result<usize, TcpLoss> {
        let file = file.first(available.min(DIRECT_BYTES_MAX) / 8 * 8);
        let pipe = buffer.pipe.take().map_or_else(FilePipe::new, Ok).map_err(TcpLoss::Io)?;
        order_after_earlier_frames();
        let read = |socket: &TcpSocket| file.receive(socket.fd(), &pipe);
        let received = self.receive_into(file.length, &mut local.counters, read)?;
        buffer.pipe = Some(pipe);
        // The pipe takes a number of pieces, which may be fewer bytes than there are.
        self.readable |= received > 0;
        if received % 8 > 0 {
            let mut begun = [0; 8];
            file.read(received / 8 * 8, &mut begun);
            self.input.keep_begun(&begun[..received % 8]);
        }
        self.input.handled += (received / 8) as u64;
        self.on_words_placed(received / 8, local);
        if self.input.payload.is_none() {
            self.take_buffered(buffer, 0, local)?;
        }
        Ok(received)
    }

    /// Returns the memory of the arriving payload, if reading directly into it is worthwhile: its region, its
    /// next word and the number of words.
    fn direct_target(&self, grants: &TcpGrants) -> Option<(Region, usize, usize)> {
        let payload = self.input.payload.as_ref()?;
        if !self.input.expects_long || 8 * payload.words < ENDING_BYTES_MIN {
            return None;
        }
        match &payload.target {
            PayloadTarget::Attachment { attachment, next } => {
                let words = u32::try_from(payload.words).expect("a frame's words");
                let attachment =
                    self.attachments.target(*attachment, *next, words).expect("checked at the header");
                let attachment = attachment.filter(|attachment| !attachment.frozen)?;
                Some((attachment.region.clone(), *next as usize, payload.words))
            }
            PayloadTarget::Grant { frame } => {
                let (region, first) = grants.target(frame, self.node)?;
                Some((region.clone(), first, payload.words))
            }
            _ => None,
        }
    }
}

/// The end of a long payload is also read directly, if it has at least this many bytes.
const ENDING_BYTES_MIN: usize = 1 << 10;

/// One read takes no more than this, so that a poll stays short.
const DIRECT_BYTES_MAX: usize = 1 << 20;
