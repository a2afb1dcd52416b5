//! A client of the members' object in a process that is no member. It asks for one thing after the other, several of which are under way
//! while members do not answer, and reports each to its parent, before it asks and when it has the answer.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result};
use squall::object::{Client, ObjectError, Pending};

use super::parent_watchdog::ParentWatchdog;
use super::store::{self, StoredValues};
use super::{Ended, config, say};
use crate::clock::now_ns;
use crate::control::{ClientJob, GroupJob, MemberEvent};
use crate::operations::{
    OperationEvent, OperationOutcome, OperationSource, ReadPromise, StepReply, StoreOperation,
};

/// How the last report of a client begins that knows no member that answers: another one may.
pub(crate) const UNCONNECTED: &str = "a client does not connect";

/// How long a client looks for a member.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Uses the object until the parent has heard enough.
pub(super) fn perform(group: &GroupJob, job: &ClientJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let config = config(group)?.subgroup(store::NAME, store::subgroup(&job.store));
    let client = Client::connect_with(&config, store::NAME, PATIENCE).context(UNCONNECTED)?;
    say(&MemberEvent::Ready);
    // Clients outside ask any member.
    let source = OperationSource::new(job.process, 0, 1, ReadPromise::Past);
    let mut asker = Asker { client, source, last: 0, under_way: VecDeque::new() };
    while !watchdog.is_draining() {
        asker.begin();
        if asker.under_way.len() >= UNDER_WAY {
            asker.end_oldest()?;
        }
        std::thread::sleep(PAUSE);
    }
    while asker.end_oldest()? {}
    say(&MemberEvent::Left);
    Ok(Ended::Well)
}

struct Asker {
    client: Client<StoredValues>,
    source: OperationSource,
    /// The number of the last operation.
    last: u64,
    under_way: VecDeque<Begun>,
}

/// An operation that was begun.
struct Begun {
    number: u64,
    operation: StoreOperation,
    pending: Pending<StepReply>,
}

impl Asker {
    /// Begins an operation.
    fn begin(&mut self) {
        let operation = self.source.draw(now_ns());
        let StoreOperation::Single(step, promise) = &operation else { return };
        self.last += 1;
        let number = self.last;
        say(&MemberEvent::Operation(OperationEvent::Call {
            number,
            at_ns: now_ns(),
            operation: operation.clone(),
        }));
        let key = step.key().to_le_bytes();
        let asked = match promise {
            ReadPromise::Latest if step.is_read() => self.client.query_latest(&key, step),
            ReadPromise::Latest => self.client.update(&key, step),
            _ => self.client.query(&key, step),
        };
        match asked {
            Ok(pending) => self.under_way.push_back(Begun { number, operation, pending }),
            Err(error) => report(number, &Err(error)),
        }
    }

    /// Waits for the oldest operation that was begun; returns whether there was one.
    fn end_oldest(&mut self) -> Result<bool> {
        let Some(Begun { number, operation, pending }) = self.under_way.pop_front() else { return Ok(false) };
        let result = pending.wait().map(|reply| vec![reply]);
        report(number, &result);
        match result {
            Ok(replies) => self.source.note(&operation, &replies),
            Err(ObjectError::Unknown | ObjectError::Unreachable { .. }) => {}
            Err(error) => return Err(error).with_context(|| format!("{operation:?}")),
        }
        Ok(true)
    }
}

/// Reports what has become of an operation.
fn report(number: u64, result: &Result<Vec<StepReply>, ObjectError>) {
    let outcome = OperationOutcome::of(result);
    say(&MemberEvent::Operation(OperationEvent::Return { number, at_ns: now_ns(), outcome }));
    if let Err(error) = result {
        say(&MemberEvent::Waiting { reason: error.to_string() });
    }
}

/// Operations under way at most.
const UNDER_WAY: usize = 16;
/// Between two operations.
const PAUSE: Duration = Duration::from_millis(10);
