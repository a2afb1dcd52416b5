//! What all clients have asked and were answered: in memory for the appends, and in a file for all, if there is one.
//!
//! At the end each acknowledged append has to be at the place in its reply, once; a value that is there must have been appended; the values
//! of a client are in the order in which it has begun them \[A3\] \[A7\] \[A11\] \[A17\]; and the history of each list is linearizable \[A12\].

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use squall_simulator::checker::linearizable::{
    AppendOnly, CompletedOperation, ListAnswer, ListOperation, is_linearizable,
};

use super::history::HistoryFile;
use super::{OperationEvent, OperationOutcome, ReadPromise, StepReply, StoreOperation, StoreStep};

/// All operations of a run.
#[derive(Default)]
pub(crate) struct OperationRecorder {
    file: Option<HistoryFile>,
    /// The number of the last operation.
    last: u64,
    /// The operations that have not returned.
    open: BTreeMap<u64, OpenOperation>,
    /// By process and the number of its own.
    reported: BTreeMap<(usize, u64), u64>,
    lists: BTreeMap<u64, Vec<ListedAppend>>,
    acknowledged: u64,
    /// Why the file cannot be written.
    failure: Option<anyhow::Error>,
}

/// An operation that has not returned.
#[derive(Clone, Copy)]
struct OpenOperation {
    is_read: bool,
    is_transaction: bool,
    /// Where it is in `lists`, if it is an append.
    place: Option<(u64, usize)>,
}

/// How the names of clients outside the group begin: all that one of them asks is applied in the order in which it was begun.
pub(crate) const OUTSIDE: &str = "outside";

/// A value that may be in a list.
#[derive(Clone, Debug)]
struct ListedAppend {
    client: String,
    done: CompletedOperation<ListOperation, ListAnswer>,
}

impl OperationRecorder {
    pub(crate) fn new(file: Option<HistoryFile>) -> Self {
        Self { file, ..Self::default() }
    }

    /// An operation is about to begin; returns its number.
    pub(crate) fn call(&mut self, client: &str, at_ns: u64, operation: &StoreOperation) -> u64 {
        self.last += 1;
        let number = self.last;
        let mut place = None;
        if let StoreOperation::Single(StoreStep::Append { list, value }, ReadPromise::Latest) = *operation {
            let appends = self.lists.entry(list).or_default();
            place = Some((list, appends.len()));
            let operation = ListOperation::Append(value);
            let done = CompletedOperation { operation, called: at_ns, returned: None, answer: None };
            appends.push(ListedAppend { client: client.into(), done });
        }
        let is_transaction = matches!(operation, StoreOperation::Transaction(_));
        let open = OpenOperation { is_read: operation.is_read(), is_transaction, place };
        self.open.insert(number, open);
        self.write(|file| file.call(number, client, at_ns, operation));
        number
    }

    /// An operation has returned; returns whether it is an update that was acknowledged.
    pub(crate) fn done(&mut self, number: u64, at_ns: u64, outcome: &OperationOutcome) -> bool {
        let Some(open) = self.open.remove(&number) else { return false };
        if let Some((list, place)) = open.place {
            let appends = self.lists.entry(list).or_default();
            let done = &mut appends[place].done;
            match outcome {
                OperationOutcome::Ok(replies) => {
                    done.returned = Some(at_ns);
                    // Another reply makes no sense, and no place is this one.
                    let place = if let [StepReply::Place(place)] = replies[..] { place } else { u64::MAX };
                    done.answer = Some(ListAnswer::Place(place));
                }
                // It is nowhere; what is read without an answer says nothing.
                OperationOutcome::Fail => done.operation = ListOperation::Read,
                OperationOutcome::Unknown => {}
            }
        }
        self.write(|file| file.done(number, open.is_transaction, at_ns, outcome));
        let is_acknowledged = !open.is_read && matches!(outcome, OperationOutcome::Ok(_));
        self.acknowledged += u64::from(is_acknowledged);
        is_acknowledged
    }

    /// Takes what the client `name`, in a process of this number, reports; returns whether it says that an update was acknowledged.
    pub(crate) fn take(&mut self, name: &str, process: usize, event: &OperationEvent) -> bool {
        match event {
            OperationEvent::Call { number, at_ns, operation } => {
                let own = self.call(name, *at_ns, operation);
                self.reported.insert((process, *number), own);
                false
            }
            OperationEvent::Return { number, at_ns, outcome } => {
                let own = self.reported.remove(&(process, *number));
                own.is_some_and(|own| self.done(own, *at_ns, outcome))
            }
        }
    }

    /// The lists to which something may have been appended.
    pub(crate) fn lists(&self) -> Vec<u64> {
        self.lists.keys().copied().collect()
    }

    /// The number of updates that were acknowledged.
    pub(crate) const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Ends the file. Operations that have not returned never will.
    pub(crate) fn end_file(&mut self) -> Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.file.take().map_or(Ok(()), HistoryFile::end)
    }

    /// Compares the values of all lists, as they are at the end, with what was appended.
    pub(crate) fn compare(&self, found: &BTreeMap<u64, Vec<u64>>) -> Result<()> {
        for (list, appends) in &self.lists {
            let values = found.get(list).with_context(|| format!("list {list} was not read"))?;
            compare(values, appends).with_context(|| format!("list {list}"))?;
        }
        Ok(())
    }

    fn write(&mut self, write: impl FnOnce(&mut HistoryFile) -> Result<()>) {
        if let Some(file) = &mut self.file
            && let Err(error) = write(file)
        {
            // The end of the run reports it.
            (self.file, self.failure) = (None, Some(error));
        }
    }
}

/// Compares the values of a list with what was appended.
fn compare(list: &[u64], appends: &[ListedAppend]) -> Result<()> {
    let mut places = BTreeMap::new();
    for (value, place) in list.iter().zip(0_u64..) {
        ensure!(places.insert(*value, place).is_none(), "value {value} is there twice");
    }
    // With what is known of each, and where it is.
    let mut history = Vec::new();
    let mut latest = BTreeMap::new();
    for ListedAppend { client, done } in appends {
        let ListOperation::Append(value) = done.operation else { continue };
        let place = places.remove(&value);
        ensure!(
            done.answer.is_none() || done.answer == place.map(ListAnswer::Place),
            "value {value} was acknowledged ({:?}), and is at place {place:?}",
            done.answer
        );
        let Some(place) = place else { continue };
        // What has no answer may have been applied later than what a member has begun after that.
        if done.answer.is_some() || client.starts_with(OUTSIDE) {
            let before = latest.insert(client, place);
            ensure!(
                before < Some(place),
                "value {value} is at place {place}, before one that its client began earlier"
            );
        }
        history.push(CompletedOperation { answer: Some(ListAnswer::Place(place)), ..done.clone() });
    }
    ensure!(places.is_empty(), "values are there that were never appended, or nowhere: {places:?}");
    ensure!(is_linearizable(&AppendOnly, &history), "what was appended is not linearizable");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An append: when it was begun and answered, and with which place.
    fn append(client: &str, value: u64, called: u64, answered: Option<(u64, u64)>) -> ListedAppend {
        let (returned, answer) = answered.map(|(at, place)| (at, ListAnswer::Place(place))).unzip();
        let operation = ListOperation::Append(value);
        let done = CompletedOperation { operation, called, returned, answer };
        ListedAppend { client: client.into(), done }
    }

    #[test]
    fn what_is_lost_twice_unknown_or_out_of_order_is_found() {
        let appends =
            [append("a", 4, 0, Some((5, 0))), append("b", 9, 1, None), append("a", 8, 6, Some((9, 2)))];
        assert!(compare(&[4, 9, 8], &appends).is_ok());
        assert!(compare(&[4, 9], &appends).is_err(), "lost");
        assert!(compare(&[4, 8, 9], &appends).is_err(), "elsewhere");
        assert!(compare(&[4, 9, 8, 9], &appends).is_err(), "twice");
        assert!(compare(&[4, 5, 8], &appends).is_err(), "never appended");
        let [first, _, last] = appends;
        assert!(compare(&[4, 8], &[first.clone(), append("a", 8, 6, Some((9, 1)))]).is_ok());
        let swapped = [append("a", 4, 0, Some((50, 1))), append("a", 8, 6, Some((9, 0)))];
        assert!(compare(&[8, 4], &swapped).is_err(), "out of order");
        let other = append("b", 5, 10, Some((11, 1)));
        assert!(compare(&[4, 5, 8], &[first, last, other]).is_err(), "begun when what follows was answered");
    }

    /// What a member had begun when it was killed may have been applied; what has failed was not.
    #[test]
    fn open_and_failed_appends_are_not_the_same() {
        let mut recorder = OperationRecorder::new(None);
        let append =
            |value| StoreOperation::Single(StoreStep::Append { list: 1, value }, ReadPromise::Latest);
        recorder.take("member 3", 3, &OperationEvent::Call { number: 0, at_ns: 5, operation: append(7) });
        let number = recorder.call("outside 0", 6, &append(8));
        assert!(!recorder.done(number, 9, &OperationOutcome::Fail));
        let found = |values: &[u64]| BTreeMap::from([(1, values.to_vec())]);
        assert!(recorder.compare(&found(&[])).is_ok());
        assert!(recorder.compare(&found(&[7])).is_ok());
        assert!(recorder.compare(&found(&[8])).is_err());
        recorder.take(
            "member 3",
            3,
            &OperationEvent::Return {
                number: 0,
                at_ns: 9,
                outcome: OperationOutcome::Ok(vec![StepReply::Place(0)]),
            },
        );
        assert!(recorder.compare(&found(&[])).is_err());
        assert_eq!(recorder.acknowledged(), 1);
    }
}
