//! The events that the next poll yields, in order.
//!
//! Of a completed post only the token is kept, one word. A whole [`FabricEvent`] is written in words and read
//! back in larger pieces, for which the processor waits until all its earlier stores have left the store
//! buffer, including the words of the post, on their way to another processor's cache.

use std::collections::VecDeque;

use squall_fabric::{ConnId, FabricEvent, Token};

/// **Invariant.** Everything in `done` happened before everything in `others`.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// Completed signalled posts on `conn`.
    done: VecDeque<Token>,
    conn: ConnId,
    others: VecDeque<FabricEvent>,
}

impl EventQueue {
    pub(super) fn new() -> Self {
        Self { done: VecDeque::with_capacity(EVENTS_MAX), conn: ConnId(0), others: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.others.is_empty()
    }

    /// Returns whether signalled posts find no space.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.done.len() + self.others.len() >= EVENTS_MAX
    }

    /// Adds the completion of a signalled post.
    #[inline]
    pub(super) fn push_done(&mut self, conn: ConnId, token: Token) {
        if self.others.is_empty() && (self.conn == conn || self.done.is_empty()) {
            self.conn = conn;
            self.done.push_back(token);
        } else {
            self.push(FabricEvent::Done { conn, token });
        }
    }

    #[cold]
    pub(super) fn push(&mut self, event: FabricEvent) {
        self.others.push_back(event);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<FabricEvent> {
        match self.done.pop_front() {
            Some(token) => Some(FabricEvent::Done { conn: self.conn, token }),
            None => self.others.pop_front(),
        }
    }

    /// Drops the events, other than completions, for which `is_kept` returns false.
    pub(super) fn retain(&mut self, is_kept: impl FnMut(&FabricEvent) -> bool) {
        self.others.retain(is_kept);
    }
}

/// The most events that wait for the next poll; beyond it, signalled posts find the queue full.
const EVENTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_order() {
        let done = |conn, token| FabricEvent::Done { conn, token: Token(token) };
        let other = |token| FabricEvent::Received { conn: ConnId(1), token: Token(token), length: 8 };
        let (mut news, mut prng) = (EventQueue::new(), squall_fabric::sim::Prng::new(3));
        let (mut pushed, mut popped) = (0, 0);
        let mut expected = VecDeque::new();
        for _ in 0..10_000 {
            match prng.draw() % 4 {
                0 => {
                    news.push(other(pushed));
                    expected.push_back(other(pushed));
                    pushed += 1;
                }
                1 => {
                    let conn = ConnId(prng.draw() % 2);
                    news.push_done(conn, Token(pushed));
                    expected.push_back(done(conn, pushed));
                    pushed += 1;
                }
                _ => {
                    popped += usize::from(!expected.is_empty());
                    assert_eq!(news.pop(), expected.pop_front());
                }
            }
            assert_eq!(news.is_empty(), expected.is_empty());
        }
        assert!(popped > 1000);
        while !news.is_full() {
            news.push_done(ConnId(1), Token(0));
        }
        assert_eq!(std::iter::from_fn(|| news.pop()).count(), EVENTS_MAX);
    }
}
