//! The client of the objects inside a member: one operation after the other, each of which is reported to the parent before it begins.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use squall::object::{Object, ObjectError, ShardedObject};
use squall_fabric::mutex::lock;

use super::say;
use super::store::StoredValues;
use crate::clock::now_ns;
use crate::control::MemberEvent;
use crate::operations::{
    OperationEvent, OperationOutcome, OperationSource, ReadPromise, StepReply, StoreOperation, StoreStep,
};

/// Ends a member's client.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientSwitch {
    /// Locked during an operation.
    is_over: Arc<Mutex<bool>>,
}

impl ClientSwitch {
    /// Ends the client as soon as its operation is over, and waits for that.
    pub(super) fn stop(&self) {
        *self.lock() = true;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        lock(&self.is_over)
    }
}

/// What a member's client uses.
pub(super) struct ClientObjects {
    pub(super) values: Object<StoredValues>,
    /// For transactions.
    pub(super) sharded: Option<ShardedObject<StoredValues>>,
    /// Whether this member has all shards of the values, so that each reply is of its own replica.
    pub(super) has_all: bool,
    /// The number of this process in the run.
    pub(super) process: u32,
}

impl ClientObjects {
    /// Waits until this member has the states of all shards that it is in.
    pub(super) fn wait_ready(&self, timeout: Duration) -> Result<(), ObjectError> {
        let deadline = Instant::now() + timeout;
        self.values.wait_ready(timeout)?;
        let has_part = |sharded: &ShardedObject<_>| sharded.inspect(|_, _| ()).is_some();
        while !self.sharded.as_ref().is_none_or(has_part) {
            if Instant::now() > deadline {
                return Err(ObjectError::Unreachable { shard: 0, cause: "the state does not arrive".into() });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Uses the objects until it is stopped or the group has ended here. The member has to have the states of its shards.
    pub(super) fn run(&self, switch: &ClientSwitch) {
        // A member's own replica never goes back, and has what was acknowledged here.
        let promise = if self.has_all { ReadPromise::Session } else { ReadPromise::Past };
        let mut source = OperationSource::new(self.process, 0, 1, promise);
        for number in 0_u64.. {
            let is_over = switch.lock();
            if *is_over {
                return;
            }
            let operation = if self.sharded.is_some() && number.is_multiple_of(2) {
                source.draw_transaction(now_ns())
            } else {
                source.draw(now_ns())
            };
            report(OperationEvent::Call { number, at_ns: now_ns(), operation: operation.clone() });
            let result = self.perform(&operation);
            let outcome = OperationOutcome::of(&result);
            report(OperationEvent::Return { number, at_ns: now_ns(), outcome });
            drop(is_over);
            match result {
                Ok(replies) => source.note(&operation, &replies),
                Err(ObjectError::Group(_) | ObjectError::Stopped | ObjectError::StateLost { .. }) => return,
                Err(_) => {}
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn perform(&self, operation: &StoreOperation) -> Result<Vec<StepReply>, ObjectError> {
        match (operation, &self.sharded) {
            (StoreOperation::Single(step, promise), _) => {
                let key = step.key().to_le_bytes();
                let pending = match promise {
                    ReadPromise::Latest if step.is_read() => self.values.query_latest(&key, step)?,
                    ReadPromise::Latest => self.values.update(&key, step)?,
                    _ => self.values.query(&key, step)?,
                };
                Ok(vec![pending.wait()?])
            }
            (StoreOperation::Transaction(steps), Some(sharded)) => {
                let keys: Vec<_> = steps.iter().map(|step| step.key().to_le_bytes()).collect();
                let parts = keys.iter().map(|key| &key[..]).zip(steps);
                let is_read = steps.iter().all(StoreStep::is_read);
                let pending = if is_read { sharded.query_many(parts) } else { sharded.update_many(parts) };
                Ok(pending?.wait()?.replies)
            }
            (StoreOperation::Transaction(_), None) => unreachable!("only drawn where there is an object"),
        }
    }
}

fn report(event: OperationEvent) {
    say(&MemberEvent::Operation(event));
}

/// Between two operations.
const PAUSE: Duration = Duration::from_millis(20);
