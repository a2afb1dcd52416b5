//! The file that `squall chaos --history` writes; docs/history-format.md states its format.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{OperationOutcome, ReadPromise, StepReply, StoreOperation, StoreStep};

/// A file of calls and returns. Without [`HistoryFile::end`], readers take it for truncated.
pub(crate) struct HistoryFile {
    file: BufWriter<File>,
    lines: u64,
    calls: u64,
}

impl HistoryFile {
    /// Begins a file; `about` says of what it is the history.
    pub(crate) fn create(path: &Path, about: &str) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("failed to create {}: choose another --history", path.display()))?;
        let mut history = Self { file: BufWriter::new(file), lines: 0, calls: 0 };
        let head =
            json!({"format": "squall-history", "version": 1, "clock": "CLOCK_MONOTONIC", "about": about});
        history.write(&head)?;
        Ok(history)
    }

    /// An operation is about to begin.
    pub(crate) fn call(
        &mut self,
        number: u64,
        client: &str,
        at_ns: u64,
        operation: &StoreOperation,
    ) -> Result<()> {
        let mut line = match operation {
            StoreOperation::Single(step, promise) => fields(step, *promise),
            StoreOperation::Transaction(steps) => {
                let steps: Vec<Value> = steps.iter().map(|step| fields(step, ReadPromise::Latest)).collect();
                json!({"kind": "txn", "object": "transactions", "steps": steps})
            }
        };
        line["line"] = (self.lines + 1).into();
        line["op"] = number.into();
        line["client"] = client.into();
        line["call"] = at_ns.into();
        self.calls += 1;
        self.write(&line)
    }

    /// An operation has returned, which is a transaction or a single step.
    pub(crate) fn done(
        &mut self,
        number: u64,
        is_transaction: bool,
        at_ns: u64,
        outcome: &OperationOutcome,
    ) -> Result<()> {
        let mut line = json!({"line": self.lines + 1, "op": number, "return": at_ns});
        match outcome {
            OperationOutcome::Ok(replies) => {
                let results: Value = replies.iter().map(result).collect();
                line["outcome"] = "ok".into();
                line["result"] = if is_transaction { results } else { results[0].clone() };
            }
            OperationOutcome::Fail => line["outcome"] = "fail".into(),
            OperationOutcome::Unknown => line["outcome"] = "unknown".into(),
        }
        self.write(&line)
    }

    /// Ends the file.
    pub(crate) fn end(mut self) -> Result<()> {
        self.write(&json!({"line": self.lines + 1, "end": true, "calls": self.calls}))?;
        self.file.flush().context(FULL)
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        self.lines += 1;
        writeln!(self.file, "{line}").context(FULL)
    }
}

/// What a call says of its step.
fn fields(step: &StoreStep, promise: ReadPromise) -> Value {
    let promise = match promise {
        ReadPromise::Latest => "latest",
        ReadPromise::Session => "session",
        ReadPromise::Past => "past",
    };
    match step {
        StoreStep::Append { list, value } => {
            json!({"kind": "append", "key": list.to_string(), "value": value})
        }
        StoreStep::List { list } => json!({"kind": "list", "key": list.to_string(), "promise": promise}),
        StoreStep::Write { register, value } => {
            json!({"kind": "write", "key": register.to_string(), "value": value})
        }
        StoreStep::Read { register } => {
            json!({"kind": "read", "key": register.to_string(), "promise": promise})
        }
        StoreStep::Swap { register, expected, value } => {
            json!({"kind": "cas", "key": register.to_string(), "expected": expected, "value": value})
        }
    }
}

fn result(reply: &StepReply) -> Value {
    match reply {
        StepReply::Place(place) => json!(place),
        StepReply::List(values) => json!(values),
        StepReply::Done => Value::Null,
        StepReply::Value(value) => json!(value),
        StepReply::Swapped(is_expected) => json!(is_expected),
    }
}

/// What a failed write means.
const FULL: &str = "failed to write the history: its disk may be full";
