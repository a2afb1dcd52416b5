//! A member's answers to requests about a shard: to queries, and to updates that it does not take (Derecho app. A).
//!
//! A query is asked in a view, and is answered from a state of that view or a later one \[A5\]. A member that has not
//! reached that view lets the query wait for a moment, in [`Queries`].

use std::collections::VecDeque;
use std::sync::Arc;

use squall_fabric::{Duration, Instant};

use super::core::{Machine, Readiness, Replica};
use super::message::ShardAnswer;
use crate::coverage::{Point, reach};

impl<M: Machine> Replica<M> {
    /// Returns the answer of a member that takes no update, because it does not hold the state.
    #[must_use]
    pub fn refusal(&self) -> ShardAnswer {
        self.answer_otherwise(self.readiness(0))
    }

    fn answer_otherwise(&self, readiness: Readiness) -> ShardAnswer {
        match readiness {
            Readiness::Elsewhere => ShardAnswer::Elsewhere,
            Readiness::Lost => ShardAnswer::Lost(self.last_holders().to_vec()),
            Readiness::Ready | Readiness::NotYet => ShardAnswer::NotYet,
        }
    }

    /// Returns the answer to a query that was asked in `view`; `None` if this member has not reached that view yet.
    fn answer_query(&self, view: u64, query: &[u8]) -> Option<ShardAnswer> {
        match (self.readiness(view), self.machine()) {
            (Readiness::Ready, Some(machine)) => Some(ShardAnswer::Reply(machine.query(query))),
            (Readiness::NotYet | Readiness::Ready, _) => None,
            (readiness, _) => Some(self.answer_otherwise(readiness)),
        }
    }
}

/// A query that waits.
#[derive(Debug)]
struct Waiting<A> {
    asker: A,
    view: u64,
    query: Arc<[u8]>,
    until: Instant,
}

/// Queries that wait for this member to reach the views in which they were asked. `A` stands for the caller.
#[derive(Debug)]
pub struct Queries<A> {
    waiting: VecDeque<Waiting<A>>,
    patience: Duration,
}

impl<A> Queries<A> {
    /// Returns an empty queue, in which a query waits for at most `patience`.
    #[must_use]
    pub const fn new(patience: Duration) -> Self {
        Self { waiting: VecDeque::new(), patience }
    }

    /// Takes a query; returns the answer, if it need not wait.
    pub fn ask<M: Machine>(
        &mut self,
        now: Instant,
        replica: &Replica<M>,
        asker: A,
        view: u64,
        query: Arc<[u8]>,
    ) -> Option<(A, ShardAnswer)> {
        if let Some(answer) = replica.answer_query(view, &query) {
            return Some((asker, answer));
        }
        reach(Point::QueryWaited);
        self.waiting.push_back(Waiting { asker, view, query, until: now + self.patience });
        None
    }

    /// Returns the answers that are available by now; called when this member has reached a view or got the state,
    /// and when [`Queries::next_deadline`] has come.
    pub fn poll<M: Machine>(&mut self, now: Instant, replica: &Replica<M>) -> Vec<(A, ShardAnswer)> {
        let mut answers = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let answer = replica.answer_query(waiting.view, &waiting.query);
            match answer.or_else(|| (now >= waiting.until).then_some(ShardAnswer::NotYet)) {
                Some(answer) => answers.push((waiting.asker, answer)),
                None => self.waiting.push_back(waiting),
            }
        }
        answers
    }

    /// Returns whether no query waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns when the first query is to be answered at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// Removes and returns the callers that wait, when this member ends.
    pub fn end(&mut self) -> Vec<A> {
        self.waiting.drain(..).map(|waiting| waiting.asker).collect()
    }
}
