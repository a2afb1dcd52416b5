//! What a member owes others: answers to queries that came from a later view, and states on their way out (Derecho §3.3,
//! app. A).

use std::collections::VecDeque;

use squall_fabric::Instant;
use squall_protocols::replica::{Gift, Readiness};

use super::list::List;
use super::office::Answer;
use super::part::Part;

/// A query that waits for this member to come to the asker's view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) shard: u32,
    pub(super) view: u64,
    pub(super) asker: u32,
    pub(super) call: u64,
    pub(super) until: Instant,
}

/// A state on its way out: it was taken when it was asked for, and its last part is written at `done_at`.
pub(super) struct Giving {
    pub(super) to: u32,
    pub(super) call: u64,
    pub(super) gift: Gift<List>,
    pub(super) done_at: Instant,
}

/// An answer: to whom, to which question.
type Sent = (u32, u64, Answer);

#[derive(Default)]
pub(super) struct Desk {
    pub(super) queries: VecDeque<Query>,
    pub(super) giving: Vec<Giving>,
}

impl Desk {
    /// Answers that can be given now.
    pub(super) fn answers(&mut self, now: Instant, parts: &[Part]) -> Vec<Sent> {
        let mut answers = Vec::new();
        self.queries.retain(|query| {
            let answer = answer(query, now, &parts[query.shard as usize]);
            let is_open = answer.is_none();
            answers.extend(answer.map(|answer| (query.asker, query.call, answer)));
            is_open
        });
        let due = self.giving.extract_if(.., |giving| giving.done_at <= now);
        answers.extend(due.map(|giving| (giving.to, giving.call, Answer::State(giving.gift))));
        answers
    }

    /// When to look again, at the latest.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let queries = self.queries.iter().map(|query| query.until);
        queries.chain(self.giving.iter().map(|giving| giving.done_at)).min()
    }
}

/// The answer to a query, if this member is ready or has waited for long enough.
fn answer(query: &Query, now: Instant, part: &Part) -> Option<Answer> {
    let replica = &part.replica;
    match replica.readiness(query.view) {
        Readiness::Ready => Some(Answer::List(replica.machine()?.clone(), replica.position()?)),
        Readiness::Elsewhere => Some(Answer::Elsewhere),
        Readiness::Lost => Some(Answer::Lost),
        Readiness::NotYet => (now >= query.until).then_some(Answer::NotYet),
    }
}
