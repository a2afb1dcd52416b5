//! Readers in place of `squall bench dds`: the topic's thread checks samples where they are, and answers them itself.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use squall_dds::{Bytes, DataReader, DataWriter, DomainParticipant, InPlaceSample, Qos, Topic};

use super::check;
use crate::control::DdsJob;

/// A reader in place, and what its upcall reports: the number of a sample.
pub(super) struct InPlaceReader {
    pub(super) reader: DataReader<Bytes>,
    reports: Receiver<Result<u64>>,
}

impl InPlaceReader {
    /// Reports each sample.
    pub(super) fn of_each(
        participant: &DomainParticipant,
        topic: &Topic<Bytes>,
        qos: Qos,
        size: usize,
    ) -> Result<Self> {
        Self::new(participant, topic, qos, move |bytes, reports| {
            // The other end is gone when the run is over.
            let _ = reports.send(check(bytes, size));
        })
    }

    /// Answers samples by `answerer`, if the job says so; reports the last of them, or what is wrong with one.
    pub(super) fn of_all(
        participant: &DomainParticipant,
        topic: &Topic<Bytes>,
        qos: Qos,
        job: &DdsJob,
        answerer: DataWriter<Vec<u8>>,
    ) -> Result<Self> {
        let (size, answers, last, mut next) = (job.size, job.latency, job.samples - 1, 0);
        Self::new(participant, topic, qos, move |bytes, reports| {
            let number = match take(bytes, size, next, answers.then_some(&answerer)) {
                Ok(number) if number < last => {
                    next = number + 1;
                    return;
                }
                outcome => outcome,
            };
            // The other end is gone when the run is over.
            let _ = reports.send(number);
        })
    }

    fn new(
        participant: &DomainParticipant,
        topic: &Topic<Bytes>,
        qos: Qos,
        mut look: impl FnMut(&[u8], &Sender<Result<u64>>) + Send + 'static,
    ) -> Result<Self> {
        let (sender, reports) = channel();
        let upcall = move |sample: InPlaceSample<'_, Bytes>| {
            look(sample.bytes.unwrap_or_default(), &sender);
        };
        Ok(Self { reader: participant.reader_in_place(topic, qos, upcall)?, reports })
    }

    /// Waits for the next report.
    pub(super) fn wait(&self, patience: Duration) -> Result<u64> {
        // As a reader with a cache does: what comes within microseconds costs no sleep.
        for _ in 0..YIELDS {
            if let Ok(report) = self.reports.try_recv() {
                return report;
            }
            thread::yield_now();
        }
        match self.reports.recv_timeout(patience) {
            Ok(report) => report,
            Err(RecvTimeoutError::Timeout) => bail!("no more samples have come within {patience:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("the reader has ended"),
        }
    }
}

/// Checks a sample and answers it; returns its number.
fn take(bytes: &[u8], size: usize, next: u64, answerer: Option<&DataWriter<Vec<u8>>>) -> Result<u64> {
    let number = check(bytes, size)?;
    ensure!(number == next, "sample {number} came when sample {next} was due");
    if let Some(answerer) = answerer {
        let answer = answerer.write_payload(size, |answer| answer.put(bytes));
        answer.context("an answer was not written")?;
    }
    Ok(number)
}

const YIELDS: usize = 32;
