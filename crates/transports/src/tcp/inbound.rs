//! What the frames of a peer do to this node.

use squall_fabric::{Channel, Event, MirrorKey};

use super::connection::{Post, conn_id};
use super::frame::{CloseReason, Frame, Violation, WriteFrame};
use super::input::{Payload, Target, land};
use super::mirror::Request;
use super::peer::{Local, Loss, Peer};

impl Peer {
    /// Does what the frames in `words` say. Returns how many words are used up: all but an incomplete header.
    pub(super) fn handle_words(&mut self, words: &[u64], local: &mut Local) -> Result<usize, Loss> {
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
            let Some((frame, header)) = Frame::parse(&words[used..])? else { return Ok(used) };
            used += header;
            self.on_frame(frame, local)?;
        }
    }

    fn on_frame(&mut self, frame: Frame, local: &mut Local) -> Result<(), Loss> {
        match frame {
            Frame::Mirror { view, first, words } => {
                let target = match self.views.target(view, first, words)? {
                    Some(_) => Target::View { view, next: first },
                    // It crossed the word that the view is dropped; its range may be anything.
                    None => Target::Discard,
                };
                self.input.expect(target, words as usize);
                return Ok(());
            }
            Frame::Write(frame) => {
                let target = self.on_post(Post::Write(frame), local)?;
                self.input.expect(target, frame.words as usize);
                return Ok(());
            }
            Frame::Send { connection, length, signal } => {
                let post = Post::Send { connection, length, signal };
                let target = self.on_post(post, local)?;
                self.input.expect(target, post.words());
                return Ok(());
            }
            Frame::Ack { connection, count } => {
                let conn = conn_id(self.index, connection);
                if let Some(connection) = self.connections.addressed(connection)? {
                    connection.on_ack(conn, count, &mut local.events)?;
                }
            }
            Frame::Open { number, channel } => {
                self.connections.on_open(number, Channel(channel), &mut self.output)?;
            }
            Frame::Accept { partner, number } => {
                self.connections.on_accept(partner, number, &mut local.events)?;
            }
            Frame::Close { number, reason } => {
                self.connections.on_close(number, reason, &mut self.output, &mut local.events);
            }
            Frame::Attach { view, key, words } => {
                self.on_attach(MirrorKey(key), Request { view, words }, local)?;
            }
            Frame::Detach { view, key } => {
                self.views.end_request(MirrorKey(key), view);
                local.mirrors.on_detach(MirrorKey(key), self.index, view);
                self.output.push_frame(Frame::Detached { view });
            }
            Frame::Detached { view } => self.views.on_detached(view)?,
            Frame::Goodbye => return Err(Loss::Goodbye),
        }
        local.counters.frames_received += 1;
        Ok(())
    }

    fn on_attach(&mut self, key: MirrorKey, request: Request, local: &mut Local) -> Result<(), Violation> {
        self.views.on_request(key, request)?;
        self.subscribe(key, local)
    }

    /// Grants the peer's request for a mirror, if there is one and the mirror is published for it.
    pub(super) fn subscribe(&mut self, key: MirrorKey, local: &mut Local) -> Result<(), Violation> {
        let Some(request) = self.views.request(key) else { return Ok(()) };
        if let Some(attached) = local.mirrors.subscribe(key, request, self.index, self.node)? {
            self.views.end_request(key, request.view);
            local.events.push_back(attached);
        }
        Ok(())
    }

    /// A post of the peer begins; returns where its payload goes.
    fn on_post(&mut self, post: Post, local: &mut Local) -> Result<Target, Violation> {
        let number = post.connection();
        let Some(connection) = self.connections.addressed(number)? else { return Ok(Target::Discard) };
        if !connection.must_stall(&post) {
            return Ok(self.begin(post, local));
        }
        if self.connections.stall(post, local.clock.now()) {
            return Ok(Target::Stall { connection: number });
        }
        self.break_off(number, CloseReason::ReceiverNotReady, local);
        Ok(Target::Discard)
    }

    /// Finds the memory that a post goes to; the receive that it needs is there.
    fn begin(&mut self, post: Post, local: &mut Local) -> Target {
        match post {
            Post::Write(frame) if local.grants.target(&frame, self.node).is_some() => Target::Grant { frame },
            Post::Write(frame) => {
                self.break_off(frame.connection, CloseReason::Refused, local);
                Target::Discard
            }
            Post::Send { connection, length, signal } => {
                let live = self.connections.live(connection).expect("posts arrive on live connections");
                let receive = live.take_receive().expect("checked by `must_stall`");
                if 8 * receive.range.len() < length as usize {
                    self.break_off(connection, CloseReason::Protocol, local);
                    return Target::Discard;
                }
                let next = receive.range.start;
                Target::Receive { connection, receive, next, length, signal }
            }
        }
    }

    /// Stores a part of the payload under way.
    fn place(&mut self, words: &[u64], local: &mut Local) {
        let payload = self.input.payload.as_ref().expect("a payload is under way");
        match &payload.target {
            Target::View { view, next } => {
                let count = u32::try_from(words.len()).expect("a part of a frame");
                let view = self.views.target(*view, *next, count).expect("checked at the header");
                if let Some(view) = view.filter(|view| !view.frozen) {
                    land(&view.region, *next as usize, words);
                }
            }
            // Looked up for each part: nothing lands after a revocation [F9].
            Target::Grant { frame } => match local.grants.target(frame, self.node) {
                Some((region, first)) => land(region, first, words),
                None => {
                    let connection = frame.connection;
                    self.break_off(connection, CloseReason::Refused, local);
                }
            },
            Target::Receive { receive, next, .. } => land(&receive.region, *next, words),
            Target::Stall { connection } => {
                let live = self.connections.live(*connection).expect("a dead connection is cancelled");
                live.extend_stalled(words);
            }
            Target::Discard => {}
        }
    }

    /// The next `count` words of the payload under way have been stored.
    pub(super) fn on_words_placed(&mut self, count: usize, local: &mut Local) {
        let payload = self.input.payload.as_mut().expect("a payload is under way");
        payload.words -= count;
        if payload.words == 0 {
            local.counters.frames_received += 1;
            let payload = self.input.payload.take().expect("looked at above");
            self.on_placed(payload.target, local);
            return;
        }
        match &mut payload.target {
            Target::View { next, .. } => *next += u32::try_from(count).expect("a part of a frame"),
            Target::Grant { frame } => {
                frame.first += count as u64;
                frame.words -= u32::try_from(count).expect("a part of a frame");
            }
            Target::Receive { next, .. } => *next += count,
            Target::Stall { .. } | Target::Discard => {}
        }
    }

    /// A post has been placed in whole.
    fn on_placed(&mut self, target: Target, local: &mut Local) {
        let (connection, signal) = match target {
            Target::Grant { frame: WriteFrame { connection, immediate, signal, .. } } => {
                if let Some(immediate) = immediate {
                    let live = self.connections.live(connection).expect("a dead connection is cancelled");
                    let token = live.take_receive().expect("checked by `must_stall`").token;
                    let conn = conn_id(self.index, connection);
                    local.events.push_back(Event::Arrived { conn, token, immediate });
                }
                (connection, signal)
            }
            Target::Receive { connection, receive, length, signal, .. } => {
                let conn = conn_id(self.index, connection);
                let (token, length) = (receive.token, length as usize);
                local.events.push_back(Event::Received { conn, token, length });
                (connection, signal)
            }
            Target::View { .. } | Target::Stall { .. } | Target::Discard => return,
        };
        if signal {
            self.connections.on_signalled_post_placed(connection);
        }
    }

    /// Places posts that have waited for a receive, and breaks connections that have waited too long. Returns
    /// the number of posts and breaks.
    pub(super) fn poll_stalled(&mut self, local: &mut Local) -> usize {
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
                self.input.payload = Some(Payload { target, words });
                self.place(&stalled.payload, local);
                self.on_words_placed(words, local);
            }
            let Some(deadline) = self.connections.stall_deadline(number) else { continue };
            self.connections.stalled.push(number);
            if deadline <= now {
                work += 1;
                self.break_off(number, CloseReason::ReceiverNotReady, local);
            }
        }
        self.input.payload = under_way;
        if let Some(number) = self.input.connection().filter(|number| !self.connections.is_live(*number)) {
            self.input.cancel(number);
        }
        self.connections.flush_acks(&mut self.output);
        work
    }

    /// Ends a connection: nothing of its posts lands any more.
    fn break_off(&mut self, number: u32, reason: CloseReason, local: &mut Local) {
        self.connections.break_off(number, reason, &mut self.output, &mut local.events);
        self.input.cancel(number);
    }
}
