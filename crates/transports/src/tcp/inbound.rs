//! The effects of a peer's frames on this node.

use squall_fabric::{Channel, FabricEvent, MirrorKey};

use super::connection::{TcpPost, conn_id};
use super::file_pages;
use super::frame::{TcpCloseReason, TcpFrame, TcpViolation, WriteFrame};
use super::input::{FramePayload, PayloadTarget, land};
use super::mirror::TcpAttachRequest;
use super::peer::{LocalNode, TcpLoss, TcpPeer};

impl TcpPeer {
    /// Handles the frames in `words`. Returns how many words are used: all but an incomplete header.
    pub(super) fn handle_words(&mut self, words: &[u64], local: &mut LocalNode) -> Result<usize, TcpLoss> {
        let used = self.use_words(words, local)?;
        self.input.handled += used as u64;
        Ok(used)
    }

    fn use_words(&mut self, words: &[u64], local: &mut LocalNode) -> Result<usize, TcpLoss> {
        let mut used = 0;
        loop {
            if let Some(payload) = &self.input.payload {
                let part = payload.words.min(words.len() - used);
                self.place(&words[used..used + part], local);
                self.on_words_placed(part, local);
                used += part;
                if self.input.payload.is_some() {
                    return Ok(used);
                }
            }
            let Some((frame, header)) = TcpFrame::parse(&words[used..])? else { return Ok(used) };
            used += header;
            self.on_frame(frame, local)?;
        }
    }

    fn on_frame(&mut self, frame: TcpFrame, local: &mut LocalNode) -> Result<(), TcpLoss> {
        match frame {
            TcpFrame::Mirror { attachment, first, words } => {
                let target = match self.attachments.target(attachment, first, words)? {
                    Some(_) => PayloadTarget::Attachment { attachment, next: first },
                    // It crossed the notice that the attachment is dropped; its range may be anything.
                    None => PayloadTarget::Discard,
                };
                self.input.expect(target, words as usize);
                return Ok(());
            }
            TcpFrame::Write(frame) => {
                let target = self.on_post(TcpPost::Write(frame), local)?;
                self.input.expect(target, frame.words as usize);
                return Ok(());
            }
            TcpFrame::Send { connection, length, signal } => {
                let post = TcpPost::Send { connection, length, signal };
                let target = self.on_post(post, local)?;
                self.input.expect(target, post.words());
                return Ok(());
            }
            TcpFrame::Ack { connection, count } => {
                let conn = conn_id(self.index, connection);
                if let Some(connection) = self.connections.addressed(connection)? {
                    connection.on_ack(conn, count, &mut self.output, &mut local.events)?;
                }
            }
            TcpFrame::Open { number, channel } => {
                self.connections.on_open(number, Channel(channel), &mut self.output)?;
            }
            TcpFrame::Accept { partner, number } => {
                self.connections.on_accept(partner, number, &mut local.events)?;
            }
            TcpFrame::Close { number, reason } => {
                self.connections.on_close(number, reason, &mut self.output, &mut local.events);
            }
            TcpFrame::Attach { attachment, key, words } => {
                self.on_attach(MirrorKey(key), TcpAttachRequest { attachment, words }, local)?;
            }
            TcpFrame::Detach { attachment, key } => {
                self.attachments.end_request(MirrorKey(key), attachment);
                local.mirrors.on_detach(MirrorKey(key), self.index, attachment);
                self.output.push_frame(TcpFrame::Detached { attachment });
            }
            TcpFrame::Detached { attachment } => self.attachments.on_detached(attachment)?,
            TcpFrame::Handled { position } if position > self.output.next() => {
                return Err(TcpViolation("an acknowledgement of words that were not sent").into());
            }
            // What is sent again has older ones [C4].
            TcpFrame::Handled { position } => self.output.trim(position),
            TcpFrame::Goodbye => return Err(TcpLoss::Goodbye),
            TcpFrame::Farewell => return Err(TcpLoss::Farewell),
        }
        local.counters.frames_received += 1;
        Ok(())
    }

    fn on_attach(
        &mut self,
        key: MirrorKey,
        request: TcpAttachRequest,
        local: &mut LocalNode,
    ) -> Result<(), TcpViolation> {
        self.attachments.on_request(key, request)?;
        self.subscribe(key, local)
    }

    /// Grants the peer's request for a mirror, if there is one and the mirror is published for it.
    pub(super) fn subscribe(&mut self, key: MirrorKey, local: &mut LocalNode) -> Result<(), TcpViolation> {
        let Some(request) = self.attachments.request(key) else { return Ok(()) };
        if let Some(attached) = local.mirrors.subscribe(key, request, self.index, self.node)? {
            self.attachments.end_request(key, request.attachment);
            local.events.push_back(attached);
        }
        Ok(())
    }

    /// Begins a post of the peer; returns where its payload goes.
    fn on_post(&mut self, post: TcpPost, local: &mut LocalNode) -> Result<PayloadTarget, TcpViolation> {
        let number = post.connection();
        let Some(connection) = self.connections.addressed(number)? else { return Ok(PayloadTarget::Discard) };
        if !connection.must_stall(&post) {
            return Ok(self.begin(post, local));
        }
        if self.connections.stall(post, local.clock.now()) {
            return Ok(PayloadTarget::Stall { connection: number });
        }
        self.break_off(number, TcpCloseReason::ReceiverNotReady, local);
        Ok(PayloadTarget::Discard)
    }

    /// Determines the memory for a post whose receive, if it needs one, is available.
    fn begin(&mut self, post: TcpPost, local: &mut LocalNode) -> PayloadTarget {
        match post {
            TcpPost::Write(frame) if local.grants.target(&frame, self.node).is_some() => {
                PayloadTarget::Grant { frame }
            }
            TcpPost::Write(frame) => {
                self.break_off(frame.connection, TcpCloseReason::Refused, local);
                PayloadTarget::Discard
            }
            TcpPost::Send { connection, length, signal } => {
                let live = self.connections.live(connection).expect("posts arrive on live connections");
                let receive = live.take_receive().expect("checked by `must_stall`");
                if 8 * receive.range.len() < length as usize {
                    self.break_off(connection, TcpCloseReason::Protocol, local);
                    return PayloadTarget::Discard;
                }
                let next = receive.range.start;
                PayloadTarget::Receive { connection, receive, next, length, signal }
            }
        }
    }

    /// Stores a part of the arriving payload.
    fn place(&mut self, words: &[u64], local: &mut LocalNode) {
        let payload = self.input.payload.as_ref().expect("a payload is arriving");
        match &payload.target {
            PayloadTarget::Attachment { attachment, next } => {
                let count = u32::try_from(words.len()).expect("a part of a frame");
                let attachment =
                    self.attachments.target(*attachment, *next, count).expect("checked at the header");
                if let Some(attachment) = attachment.filter(|attachment| !attachment.frozen) {
                    land(&attachment.region, *next as usize, words);
                }
            }
            // Looked up for each part: nothing lands after a revocation [F9].
            PayloadTarget::Grant { frame } => match local.grants.target(frame, self.node) {
                Some((region, first)) => file_pages::land(region, first, words),
                None => {
                    let connection = frame.connection;
                    self.break_off(connection, TcpCloseReason::Refused, local);
                }
            },
            PayloadTarget::Receive { receive, next, .. } => land(&receive.region, *next, words),
            PayloadTarget::Stall { connection } => {
                let live = self.connections.live(*connection).expect("a dead connection is cancelled");
                live.extend_stalled(words);
            }
            PayloadTarget::Discard => {}
        }
    }

    /// Notes that the next `count` words of the arriving payload have been stored.
    pub(super) fn on_words_placed(&mut self, count: usize, local: &mut LocalNode) {
        let payload = self.input.payload.as_mut().expect("a payload is arriving");
        payload.words -= count;
        if payload.words == 0 {
            local.counters.frames_received += 1;
            let payload = self.input.end_payload().expect("used above");
            self.on_placed(payload.target, local);
            return;
        }
        match &mut payload.target {
            PayloadTarget::Attachment { next, .. } => {
                *next += u32::try_from(count).expect("a part of a frame")
            }
            PayloadTarget::Grant { frame } => {
                frame.first += count as u64;
                frame.words -= u32::try_from(count).expect("a part of a frame");
            }
            PayloadTarget::Receive { next, .. } => *next += count,
            PayloadTarget::Stall { .. } | PayloadTarget::Discard => {}
        }
    }

    /// Completes a post that has landed entirely.
    fn on_placed(&mut self, target: PayloadTarget, local: &mut LocalNode) {
        let (connection, signal) = match target {
            PayloadTarget::Grant { frame: WriteFrame { connection, immediate, signal, .. } } => {
                if let Some(immediate) = immediate {
                    let live = self.connections.live(connection).expect("a dead connection is cancelled");
                    let token = live.take_receive().expect("checked by `must_stall`").token;
                    let conn = conn_id(self.index, connection);
                    local.events.push_back(FabricEvent::Arrived { conn, token, immediate });
                }
                (connection, signal)
            }
            PayloadTarget::Receive { connection, receive, length, signal, .. } => {
                let conn = conn_id(self.index, connection);
                let (token, length) = (receive.token, length as usize);
                local.events.push_back(FabricEvent::Received { conn, token, length });
                (connection, signal)
            }
            PayloadTarget::Attachment { .. } | PayloadTarget::Stall { .. } | PayloadTarget::Discard => return,
        };
        if signal {
            self.connections.on_signalled_post_placed(connection);
        }
    }

    /// Resumes posts that have waited for a receive, and breaks connections that have waited too long.
    /// Returns the number of posts and breaks.
    pub(super) fn poll_stalled(&mut self, local: &mut LocalNode) -> usize {
        if self.connections.stalled.is_empty() {
            return 0;
        }
        let now = local.clock.now();
        let under_way = self.input.payload.take();
        let mut work = 0;
        for number in std::mem::take(&mut self.connections.stalled) {
            while let Some(stalled) = self.connections.resume(number, now) {
                work += 1;
                let (target, words) = (self.begin(stalled.post, local), stalled.payload.len());
                self.input.payload = Some(FramePayload { target, words });
                self.place(&stalled.payload, local);
                self.on_words_placed(words, local);
            }
            let Some(deadline) = self.connections.stall_deadline(number) else { continue };
            self.connections.stalled.push(number);
            if deadline <= now {
                work += 1;
                self.break_off(number, TcpCloseReason::ReceiverNotReady, local);
            }
        }
        self.input.payload = under_way;
        if let Some(number) = self.input.connection().filter(|number| !self.connections.is_live(*number)) {
            self.input.cancel(number);
        }
        self.connections.flush_acks(&mut self.output);
        work
    }

    /// Ends a connection: nothing more of its posts lands.
    fn break_off(&mut self, number: u32, reason: TcpCloseReason, local: &mut LocalNode) {
        self.connections.break_off(number, reason, &mut self.output, &mut local.events);
        self.input.cancel(number);
    }
}
