//! Checks that a history of concurrent operations is linearizable, so that each operation takes effect at one moment
//! between its call and its return (Herlihy and Wing; the search is that of Wing and Gong with Lowe's cache of
//! visited configurations, as in Porcupine).

use std::collections::BTreeSet;

/// A sequential specification: how each operation changes the state, and its answer.
pub trait SequentialSpec {
    /// The state.
    type State: Clone + Ord;
    /// An operation.
    type Operation;
    /// Its answer.
    type Answer: PartialEq;

    /// Returns the initial state.
    fn initial(&self) -> Self::State;

    /// Returns the state after the operation, and its answer.
    fn step(&self, state: &Self::State, operation: &Self::Operation) -> (Self::State, Self::Answer);
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct CompletedOperation<O, A> {
    /// The operation.
    pub operation: O,
    /// When it was called.
    pub called: u64,
    /// When it was answered. If it never was, it may have taken effect at any time since its call, or not at all.
    pub returned: Option<u64>,
    /// Its answer. For an operation that was not answered, this is the answer known by other means, if any; the more
    /// is known, the smaller the search.
    pub answer: Option<A>,
}

/// An event of a history.
#[derive(Clone, Copy)]
struct Entry {
    operation: usize,
    is_call: bool,
}

/// The entries that are not linearized yet, in order; the last place stands for the beginning and the end.
struct Left {
    next: Vec<usize>,
    before: Vec<usize>,
}

impl Left {
    fn new(entries: usize) -> Self {
        let places = entries + 1;
        let next = (0..places).map(|place| (place + 1) % places).collect();
        let before = (0..places).map(|place| (place + entries) % places).collect();
        Self { next, before }
    }

    fn remove(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        (self.next[before], self.before[next]) = (next, before);
    }

    /// Undoes the latest [`Left::remove`] that has not been undone.
    fn restore(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        (self.next[before], self.before[next]) = (place, place);
    }
}

/// A step of the search: the call that took effect, the state before it, and whether there was a choice.
struct Step<T> {
    call: usize,
    before: T,
    is_chosen: bool,
}

struct Search<'a, S: SequentialSpec> {
    object: &'a S,
    history: &'a [CompletedOperation<S::Operation, S::Answer>],
    entries: Vec<Entry>,
    /// The place of each operation's return, if it returned.
    return_of: Vec<Option<usize>>,
    left: Left,
    state: S::State,
    steps: Vec<Step<S::State>>,
    /// The operations that have taken effect, as one bit each.
    linearized: Vec<u64>,
}

impl<'a, S: SequentialSpec> Search<'a, S> {
    fn new(object: &'a S, history: &'a [CompletedOperation<S::Operation, S::Answer>]) -> Self {
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (operation, done) in history.iter().enumerate() {
            times.push((done.called, false, operation));
            times.extend(done.returned.map(|at| (at, true, operation)));
        }
        // A call at the time of another operation's return is concurrent with that operation.
        times.sort_unstable();
        let entry = |(_, is_return, operation): &(u64, bool, usize)| Entry {
            operation: *operation,
            is_call: !is_return,
        };
        let entries: Vec<Entry> = times.iter().map(entry).collect();
        let mut return_of = vec![None; history.len()];
        for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_call) {
            return_of[entry.operation] = Some(place);
        }
        let (left, state) = (Left::new(entries.len()), object.initial());
        let linearized = vec![0; history.len().div_ceil(64)];
        Self { object, history, entries, return_of, left, state, steps: Vec::new(), linearized }
    }

    /// Returns the first remaining entry, or the end.
    fn first(&self) -> usize {
        self.left.next[self.entries.len()]
    }

    /// Returns the state after the call, if it can take effect now.
    fn after(&self, call: usize) -> Option<S::State> {
        let done = &self.history[self.entries[call].operation];
        let (after, answer) = self.object.step(&self.state, &done.operation);
        done.answer.as_ref().is_none_or(|expected| *expected == answer).then_some(after)
    }

    /// Returns a call that can take effect now without changing the state. If the history is linearizable, it is so
    /// with this call first.
    fn harmless(&self) -> Option<usize> {
        let calls = std::iter::successors(Some(self.first()), |place| Some(self.left.next[*place]));
        let mut calls = calls.take_while(|place| self.entries.get(*place).is_some_and(|entry| entry.is_call));
        calls.find(|call| self.after(*call).is_some_and(|after| after == self.state))
    }

    fn flip(&mut self, operation: usize) {
        self.linearized[operation / 64] ^= 1 << (operation % 64);
    }

    fn take(&mut self, call: usize, after: S::State, is_chosen: bool) {
        let operation = self.entries[call].operation;
        self.flip(operation);
        self.steps.push(Step { call, before: std::mem::replace(&mut self.state, after), is_chosen });
        self.left.remove(call);
        self.return_of[operation].into_iter().for_each(|place| self.left.remove(place));
    }

    /// Undoes all steps up to the latest choice, and returns the call of that choice.
    fn take_back(&mut self) -> Option<usize> {
        loop {
            let Step { call, before, is_chosen } = self.steps.pop()?;
            let operation = self.entries[call].operation;
            self.flip(operation);
            self.state = before;
            self.return_of[operation].into_iter().for_each(|place| self.left.restore(place));
            self.left.restore(call);
            if is_chosen {
                return Some(call);
            }
        }
    }
}

/// Returns whether the history is linearizable.
pub fn is_linearizable<S: SequentialSpec>(
    object: &S,
    history: &[CompletedOperation<S::Operation, S::Answer>],
) -> bool {
    let mut search = Search::new(object, history);
    // The visited sets of effects with the states after them. They are recorded once the first path has failed;
    // before that, none can recur.
    let (mut tried, mut has_failed) = (BTreeSet::new(), false);
    let mut place = search.first();
    loop {
        if place == search.first()
            && let Some(call) = search.harmless()
        {
            let same = search.state.clone();
            search.take(call, same, false);
            place = search.first();
            continue;
        }
        let Some(Entry { operation, is_call }) = search.entries.get(place).copied() else {
            // The remaining operations have no answer, and need not have taken effect.
            return true;
        };
        if !is_call {
            // An operation returned before it took effect, so the latest choice was wrong.
            has_failed = true;
            let Some(wrong) = search.take_back() else { return false };
            place = search.left.next[wrong];
            continue;
        }
        let next = search.left.next[place];
        place = match search.after(place) {
            Some(after) => {
                search.flip(operation);
                let is_new = !has_failed || tried.insert((search.linearized.clone(), after.clone()));
                search.flip(operation);
                if is_new {
                    search.take(place, after, true);
                    search.first()
                } else {
                    next
                }
            }
            None => next,
        };
    }
}

/// An append-only list. An append is answered with its position, and a query with the whole list. The state consists
/// of the list's length and a digest of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendOnly;

/// An operation on a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOperation {
    /// Appends this number.
    Append(u64),
    /// Reads the whole list.
    Read,
}

/// An answer of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListAnswer {
    /// The position of the appended number.
    Place(u64),
    /// The whole list.
    All(ListDigest),
}

/// A list's length and a digest of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListDigest {
    length: u64,
    digest: u64,
}

impl ListDigest {
    /// Returns the digest of a list.
    #[must_use]
    pub fn of(list: &[u64]) -> Self {
        list.iter().fold(Self::default(), |digest, number| digest.with(*number))
    }

    fn with(self, number: u64) -> Self {
        let mixed = (self.digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Self { length: self.length + 1, digest: mixed }
    }
}

impl SequentialSpec for AppendOnly {
    type State = ListDigest;
    type Operation = ListOperation;
    type Answer = ListAnswer;

    fn initial(&self) -> ListDigest {
        ListDigest::default()
    }

    fn step(&self, list: &ListDigest, operation: &ListOperation) -> (ListDigest, ListAnswer) {
        match operation {
            ListOperation::Append(number) => (list.with(*number), ListAnswer::Place(list.length)),
            ListOperation::Read => (*list, ListAnswer::All(*list)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(
        number: u64,
        called: u64,
        returned: u64,
        place: u64,
    ) -> CompletedOperation<ListOperation, ListAnswer> {
        let (operation, answer) = (ListOperation::Append(number), Some(ListAnswer::Place(place)));
        CompletedOperation { operation, called, returned: Some(returned), answer }
    }

    fn read(called: u64, returned: u64, list: &[u64]) -> CompletedOperation<ListOperation, ListAnswer> {
        let answer = Some(ListAnswer::All(ListDigest::of(list)));
        CompletedOperation { operation: ListOperation::Read, called, returned: Some(returned), answer }
    }

    fn lost(number: u64, called: u64) -> CompletedOperation<ListOperation, ListAnswer> {
        CompletedOperation { operation: ListOperation::Append(number), called, returned: None, answer: None }
    }

    #[track_caller]
    fn check(history: &[CompletedOperation<ListOperation, ListAnswer>], expected: bool) {
        assert_eq!(is_linearizable(&AppendOnly, history), expected, "{history:?}");
    }

    #[test]
    fn concurrent_operations_take_effect_in_any_order() {
        check(&[], true);
        check(&[append(1, 0, 9, 1), append(2, 1, 8, 0), read(10, 11, &[2, 1])], true);
        check(&[append(1, 0, 2, 1), append(2, 3, 8, 0)], false);
        check(&[append(1, 0, 9, 0), append(2, 1, 8, 0)], false);
        check(&[append(1, 0, 2, 0), append(2, 2, 3, 1)], true);
    }

    /// A read must contain all appends that were answered before its call, and may contain concurrent ones.
    #[test]
    fn a_read_contains_all_earlier_appends() {
        let both = [append(1, 0, 1, 0), append(2, 2, 9, 1)];
        let with = |last: CompletedOperation<_, _>| [both[0].clone(), both[1].clone(), last];
        check(&with(read(3, 4, &[1])), true);
        check(&with(read(3, 4, &[1, 2])), true);
        check(&with(read(3, 4, &[])), false);
        check(&with(read(10, 11, &[1])), false);
        check(&with(read(10, 11, &[1, 2])), true);
        check(&[both[0].clone(), both[1].clone(), read(3, 4, &[1, 2]), read(5, 6, &[1])], false);
    }

    /// An operation without an answer took effect at some time after its call, or never.
    #[test]
    fn an_unanswered_operation_may_take_effect_at_any_later_time() {
        check(&[lost(9, 0), append(1, 5, 6, 0)], true);
        check(&[lost(9, 0), append(1, 5, 6, 1), read(7, 8, &[9, 1])], true);
        check(&[lost(9, 0), read(1, 2, &[]), read(3, 4, &[9])], true);
        check(&[lost(9, 5), read(1, 2, &[9])], false);
        check(&[lost(9, 0), append(1, 5, 6, 2)], false);
    }

    /// Many concurrent reads return the states after concurrent appends; only these states determine the order.
    #[test]
    fn reads_among_concurrent_appends_are_placed() {
        let numbers: Vec<u64> = (0..30).collect();
        let appends = numbers.iter().map(|number| append(*number, 0, 1000, *number));
        let reads =
            (0..60).map(|read_number| read(0, 1000 - read_number, &numbers[..(read_number % 31) as usize]));
        let mut history: Vec<_> = appends.chain(reads).collect();
        check(&history, true);
        history.push(read(0, 1000, &[1]));
        check(&history, false);
    }

    /// Long histories with few concurrent operations are checked quickly, whether they are correct or not.
    #[test]
    fn long_histories_are_checked() {
        let mut history: Vec<_> =
            (0..4000).map(|number| append(number, number * 10, number * 10 + 85, number)).collect();
        check(&history, true);
        history[3999].answer = Some(ListAnswer::Place(17));
        check(&history, false);
    }
}
