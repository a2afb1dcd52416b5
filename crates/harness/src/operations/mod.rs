//! What clients ask of the replicated object of `squall chaos`, inside and outside the group, and the history of it.

pub(crate) mod history;
pub(crate) mod recorder;

use serde::{Deserialize, Serialize};
use squall::object::ObjectError;
use squall_fabric::sim::Prng;

/// A step of an operation on one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreStep {
    /// Appends a value that is new in the list.
    Append {
        list: u64,
        value: u64,
    },
    /// Reads the whole list.
    List {
        list: u64,
    },
    Write {
        register: u64,
        value: u64,
    },
    Read {
        register: u64,
    },
    /// Writes the value if the register has the expected one; `None` stands for a register that was never written.
    Swap {
        register: u64,
        expected: Option<u64>,
        value: u64,
    },
}

impl StoreStep {
    /// The list or register. No list has the number of a register.
    pub(crate) const fn key(&self) -> u64 {
        match self {
            Self::Append { list: key, .. } | Self::List { list: key } => *key,
            Self::Write { register: key, .. }
            | Self::Read { register: key }
            | Self::Swap { register: key, .. } => *key,
        }
    }

    /// Whether it changes nothing.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Read { .. })
    }
}

/// The reply to a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepReply {
    /// The place of an appended value.
    Place(u64),
    List(Vec<u64>),
    /// A value was written.
    Done,
    Value(Option<u64>),
    /// Whether the value was the expected one.
    Swapped(bool),
}

/// What a read promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadPromise {
    /// It is linearizable.
    Latest,
    /// Some state, and not one before what the client has seen.
    Session,
    /// Some state.
    Past,
}

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreOperation {
    /// A step on the object whose shards are independent.
    Single(StoreStep, ReadPromise),
    /// Steps at one moment, on the object whose updates concern several shards.
    Transaction(Vec<StoreStep>),
}

impl StoreOperation {
    /// Whether it changes nothing.
    fn is_read(&self) -> bool {
        match self {
            Self::Single(step, _) => step.is_read(),
            Self::Transaction(steps) => steps.iter().all(StoreStep::is_read),
        }
    }
}

/// What has become of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OperationOutcome {
    /// It was applied, with a reply to each step.
    Ok(Vec<StepReply>),
    /// It is in no state, and never will be.
    Fail,
    /// It may have been applied, or may be applied later.
    Unknown,
}

impl OperationOutcome {
    /// The outcome that the object's replies or error stand for.
    pub(crate) fn of(result: &Result<Vec<StepReply>, ObjectError>) -> Self {
        match result {
            Ok(replies) => Self::Ok(replies.clone()),
            Err(
                ObjectError::NotDelivered | ObjectError::Unreachable { .. } | ObjectError::TooLong { .. },
            ) => Self::Fail,
            Err(_) => Self::Unknown,
        }
    }
}

/// A call or a return of a member's operation, as it reports it to its parent; times are in nanoseconds of the clock that the processes
/// of a host share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OperationEvent {
    /// Said before anything is sent, so that what a member has done that is killed is known.
    Call {
        number: u64,
        at_ns: u64,
        operation: StoreOperation,
    },
    Return {
        number: u64,
        at_ns: u64,
        outcome: OperationOutcome,
    },
}

/// Draws the operations of one client. All clients of a host use the same few keys at a time, and others later, so that each has a short
/// history, which is searched quickly.
#[derive(Debug)]
pub(crate) struct OperationSource {
    dice: Prng,
    /// In the upper half of all values of this process.
    process: u64,
    number: u64,
    step: u64,
    /// What reads that are not linearizable promise to this client.
    promise: ReadPromise,
    /// A register and the value that it had.
    last: Option<(u64, Option<u64>)>,
}

impl OperationSource {
    /// The operations of client `number` of `count` in a process that has this number in the run.
    pub(crate) fn new(process: u32, number: u64, count: u64, promise: ReadPromise) -> Self {
        let process = u64::from(process) << 32;
        Self { dice: Prng::new(process | number), process, number, step: count, promise, last: None }
    }

    /// A step on one key.
    pub(crate) fn draw(&mut self, now_ns: u64) -> StoreOperation {
        let (list, register) = self.keys(now_ns);
        let value = self.value();
        let latest = |step| StoreOperation::Single(step, ReadPromise::Latest);
        match self.dice.below(12) {
            0..=4 => latest(StoreStep::Append { list, value }),
            5 => latest(StoreStep::List { list }),
            6 => StoreOperation::Single(StoreStep::List { list }, self.promise),
            7 => latest(StoreStep::Write { register, value }),
            8 => latest(StoreStep::Read { register }),
            9 => StoreOperation::Single(StoreStep::Read { register }, self.promise),
            _ => {
                let is_in_use = |last: &u64| last / (2 * KEYS) == register / (2 * KEYS);
                let last = self.last.filter(|(last, _)| is_in_use(last));
                let (register, expected) = last.unwrap_or((register, None));
                latest(StoreStep::Swap { register, expected, value })
            }
        }
    }

    /// Two or three steps on keys that may be in several shards.
    pub(crate) fn draw_transaction(&mut self, now_ns: u64) -> StoreOperation {
        let count = 2 + self.dice.below(2);
        let step = |_| {
            let (list, register) = self.keys(now_ns);
            let value = self.value();
            match self.dice.below(6) {
                0 | 1 => StoreStep::Append { list, value },
                2 | 3 => StoreStep::List { list },
                4 => StoreStep::Write { register, value },
                _ => StoreStep::Read { register },
            }
        };
        StoreOperation::Transaction((0..count).map(step).collect())
    }

    /// A list and a register that are in use now.
    fn keys(&mut self, now_ns: u64) -> (u64, u64) {
        let first = now_ns / EPOCH_NS * 2 * KEYS;
        (first + self.dice.below(KEYS), first + KEYS + self.dice.below(KEYS))
    }

    /// A value that no other client writes, nor this one again.
    const fn value(&mut self) -> u64 {
        self.number += self.step;
        self.process | self.number
    }

    /// Notes what a register was seen to have.
    pub(crate) fn note(&mut self, operation: &StoreOperation, replies: &[StepReply]) {
        let (StoreOperation::Single(step, _), [reply]) = (operation, replies) else { return };
        match (step, reply) {
            (StoreStep::Write { register, value }, _)
            | (StoreStep::Swap { register, value, .. }, StepReply::Swapped(true)) => {
                self.last = Some((*register, Some(*value)));
            }
            (StoreStep::Read { register }, StepReply::Value(value)) => self.last = Some((*register, *value)),
            _ => {}
        }
    }
}

/// Lists, and as many registers, that are in use at a time.
const KEYS: u64 = 4;
/// How long they are: about as long as a list gets fifty values.
const EPOCH_NS: u64 = 2_000_000_000;
