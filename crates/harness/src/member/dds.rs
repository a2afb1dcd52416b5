//! The work of `squall bench dds`: the first member writes samples of a topic, and the others take them.
//!
//! Each sample begins with its number, and the rest of its bytes are the last byte of that, so that readers can check order and content.
//! With `latency` the readers answer each sample in a second topic of the same profile, and the writer waits for all answers
//! before it writes the next sample.

mod in_place;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::Config;
use squall::config::{StorageConfig, SubgroupConfig};
use squall_dds::{
    Bytes, DataReader, DataWriter, DomainParticipant, DurabilityService, HistoryKind, Payload, Qos,
    ReadError, ResourceLimits,
};

use self::in_place::InPlaceReader;
use super::parent_watchdog::ParentWatchdog;
use super::{Ended, JOIN_TIMEOUT, PolledMember, ProgressTicker, config, finish, report_progress, say};
use crate::control::{DdsJob, GroupJob, MemberEvent, MemberReport, ProfileName};
use crate::latency::Latencies;

pub(super) fn perform(group: &GroupJob, job: &DdsJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let member = TopicMember::join(group, job)?;
    say(&MemberEvent::Ready);
    watchdog.await_go()?;
    let outcome = match (&member.role, job.latency) {
        (Role::Publisher { writer, .. }, false) => publish(writer, job),
        (Role::Publisher { writer, answers }, true) => {
            publish_singly(writer, answers, group.members - 1, job)
        }
        (Role::InPlace { reader, .. }, _) => subscribe_in_place(reader, job),
        (Role::Subscriber { reader, .. }, false) => subscribe(reader, job, |_| Ok(())),
        (Role::Subscriber { reader, answerer }, true) => subscribe(reader, job, |sample| {
            let answered = answerer.write_payload(sample.len(), |answer| answer.put(sample));
            Ok(answered?)
        }),
    };
    Ok(finish(member, outcome, watchdog))
}

/// A participant, which is polled by a thread of its own.
struct TopicMember {
    role: Role,
    /// Ends after its readers and writers.
    participant: DomainParticipant,
}

enum Role {
    Publisher { writer: DataWriter<Vec<u8>>, answers: Answers },
    Subscriber { reader: DataReader<Bytes>, answerer: DataWriter<Vec<u8>> },
    InPlace { reader: InPlaceReader },
}

/// How answers come.
enum Answers {
    Cached(DataReader<Bytes>),
    InPlace(InPlaceReader),
}

impl Answers {
    const fn reader(&self) -> &DataReader<Bytes> {
        match self {
            Self::Cached(reader) | Self::InPlace(InPlaceReader { reader, .. }) => reader,
        }
    }

    /// Waits for `readers` answers to sample `number`.
    fn wait(&self, number: u64, readers: usize, size: usize) -> Result<()> {
        let mut left = readers;
        while left > 0 {
            let answered = match self {
                Self::InPlace(answers) => vec![answers.wait(PATIENCE)?],
                Self::Cached(answers) => {
                    answers.wait_for_data(PATIENCE).context("a reader has not answered")?;
                    let answers = answers.take(left)?.into_iter();
                    let numbers =
                        answers.map(|answer| check(&answer.data.context("an answer has no data")?, size));
                    numbers.collect::<Result<_>>()?
                }
            };
            for answered in answered {
                ensure!(answered == number, "an answer to sample {answered} came, and not to {number}");
                left -= 1;
            }
        }
        Ok(())
    }
}

impl TopicMember {
    /// Joins, and waits until the readers and writers have found each other.
    fn join(group: &GroupJob, job: &DdsJob) -> Result<Self> {
        let qos = qos(job);
        let storage = job.storage.clone().map(StorageConfig::new);
        let mut config = Config { storage, ..config(group)? };
        for topic in [SAMPLES, ANSWERS] {
            config = config.subgroup(topic, subgroup(job));
        }
        let builder =
            DomainParticipant::builder(config).topic(SAMPLES, qos.clone()).topic(ANSWERS, qos.clone());
        let participant = builder.on_progress(report_progress).join()?;
        let (samples, answers) = (participant.topic(SAMPLES)?, participant.topic(ANSWERS)?);
        // Readers share the bytes with the history, if there is one.
        let (samples_read, answers_read) = (participant.topic(SAMPLES)?, participant.topic(ANSWERS)?);
        let others = group.members - 1;
        let role = if group.rank == 0 {
            // Without answers, a thread that polls for them would take its core from the others.
            let answers = if job.in_place && job.latency {
                Answers::InPlace(InPlaceReader::of_each(&participant, &answers_read, qos.clone(), job.size)?)
            } else {
                Answers::Cached(participant.reader(&answers_read, qos.clone())?)
            };
            let writer = participant.writer(&samples, qos)?;
            await_peers(|| {
                writer.matched_subscriptions().len() == others
                    && answers.reader().matched_publications().len() == others
            })?;
            Role::Publisher { writer, answers }
        } else if job.in_place {
            let answerer = participant.writer(&answers, qos.clone())?;
            await_peers(|| answerer.matched_subscriptions().len() == 1)?;
            // No sample comes before: the publisher waits for this reader.
            let reader = InPlaceReader::of_all(&participant, &samples_read, qos, job, answerer)?;
            await_peers(|| reader.reader.matched_publications().len() == 1)?;
            Role::InPlace { reader }
        } else {
            let (reader, answerer) =
                (participant.reader(&samples_read, qos.clone())?, participant.writer(&answers, qos)?);
            await_peers(|| {
                reader.matched_publications().len() == 1 && answerer.matched_subscriptions().len() == 1
            })?;
            Role::Subscriber { reader, answerer }
        };
        Ok(Self { role, participant })
    }
}

impl PolledMember for TopicMember {
    fn step(&mut self) -> Result<()> {
        self.poll()
    }

    fn poll(&mut self) -> Result<()> {
        self.participant.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

fn await_peers(is_matched: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    while !is_matched() {
        ensure!(
            Instant::now() < deadline,
            "not all readers and writers have matched within {JOIN_TIMEOUT:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The policies of all readers and writers.
fn qos(job: &DdsJob) -> Qos {
    let profile = match job.profile {
        ProfileName::Unordered => Qos::UNORDERED,
        ProfileName::Atomic => Qos::ATOMIC,
        ProfileName::Kept => Qos::KEPT,
        ProfileName::Logged => Qos::LOGGED,
    };
    let held_max = if job.profile == ProfileName::Unordered { UNORDERED_READER_BYTES } else { READER_BYTES };
    let samples_max = (held_max / job.size).clamp(16, ResourceLimits::DEFAULT.samples_max);
    let history = HistoryKind::KeepLast(HISTORY_SAMPLES);
    Qos {
        max_blocking_time: PATIENCE,
        resource_limits: ResourceLimits {
            samples_max,
            samples_per_instance_max: samples_max,
            ..ResourceLimits::DEFAULT
        },
        durability_service: job
            .profile
            .keeps()
            .then_some(DurabilityService { history, ..DurabilityService::EVERYTHING }),
        ..profile
    }
}

/// The subgroup of a topic; its mode follows from the profile.
fn subgroup(job: &DdsJob) -> SubgroupConfig {
    let usual = SubgroupConfig::default();
    let message_max = job.size + HEADER_BYTES_MAX;
    let window_bytes = usual.window_bytes.max(4 * message_max);
    SubgroupConfig {
        window: job.window,
        message_max: usual.message_max.max(message_max),
        window_bytes,
        ..usual
    }
}

/// Writes as fast as it can, until all members have everything.
fn publish(writer: &DataWriter<Vec<u8>>, job: &DdsJob) -> Result<MemberReport> {
    let mut ticker = ProgressTicker::new();
    let begun = Instant::now();
    let mut under_way = VecDeque::new();
    for number in 0..job.samples {
        if job.profile.keeps() {
            let write = writer.write_payload_async(job.size, |sample| fill(sample, number));
            under_way.push_back(write.context(UNWRITTEN)?);
            if under_way.len() >= job.window {
                under_way.pop_front().map_or(Ok(()), |write| write.wait(PATIENCE)).context(UNWRITTEN)?;
            }
        } else {
            writer.write_payload(job.size, |sample| fill(sample, number)).context(UNWRITTEN)?;
        }
        ticker.tick(number);
    }
    for write in under_way {
        write.wait(PATIENCE).context(UNWRITTEN)?;
    }
    writer.wait_for_acknowledgments(PATIENCE)?;
    Ok(report(job, job.samples, begun.elapsed(), Latencies::default()))
}

/// Writes a sample, waits for the answers of all readers, and so on.
fn publish_singly(
    writer: &DataWriter<Vec<u8>>,
    answers: &Answers,
    readers: usize,
    job: &DdsJob,
) -> Result<MemberReport> {
    let (mut ticker, mut latencies) = (ProgressTicker::new(), Latencies::default());
    let begun = Instant::now();
    for number in 0..job.samples {
        let written = Instant::now();
        writer.write_payload(job.size, |sample| fill(sample, number)).context(UNWRITTEN)?;
        answers.wait(number, readers, job.size)?;
        // The first ones find caches and pages cold.
        if number >= job.samples / 10 {
            latencies.record(written.elapsed());
        }
        ticker.tick(number);
    }
    Ok(report(job, job.samples, begun.elapsed(), latencies))
}

/// Takes samples, and hands them to `answer`, until everything has come or is known to be lost.
fn subscribe(
    reader: &DataReader<Bytes>,
    job: &DdsJob,
    answer: impl Fn(&Bytes) -> Result<()>,
) -> Result<MemberReport> {
    let mut ticker = ProgressTicker::new();
    let (mut next, mut taken) = (0, 0);
    // What was taken at once is to be in the cache of the processor when it is looked at.
    let at_once = (AT_ONCE_BYTES / job.size).clamp(1, AT_ONCE_MAX);
    let begun = Instant::now();
    // What is lost is known only when nothing has come for a while, which does not count.
    let mut ended = begun;
    let lost = || {
        let (rejected, lost) = (reader.sample_rejected().total_count, reader.sample_lost().total_count);
        rejected + lost
    };
    while taken < job.samples {
        match reader.wait_for_data(LOOK_PERIOD) {
            Ok(()) => {}
            Err(ReadError::Timeout(_)) if taken + lost() >= job.samples => break,
            Err(ReadError::Timeout(_)) if begun.elapsed() > RUN_MAX => {
                bail!("{taken} samples have come, and no more")
            }
            Err(ReadError::Timeout(_)) => continue,
            Err(error) => return Err(error.into()),
        }
        for sample in reader.take(at_once)? {
            let sample = sample.data.context("a sample has no data")?;
            let number = check(&sample, job.size)?;
            ensure!(number >= next, "sample {number} came after sample {next} was due");
            (next, taken) = (number + 1, taken + 1);
            answer(&sample)?;
            ticker.tick(taken);
        }
        ended = Instant::now();
    }
    // An unordered reader rejects samples when it is full, and a short history replaces some that a slow reader has not taken.
    let may_lose = job.profile != ProfileName::Atomic;
    ensure!(
        may_lose || taken == job.samples,
        "{} of {} samples were lost, and none may be",
        lost(),
        job.samples
    );
    Ok(report(job, taken, ended - begun, Latencies::default()))
}

/// Waits until the reader has seen all samples.
fn subscribe_in_place(reader: &InPlaceReader, job: &DdsJob) -> Result<MemberReport> {
    let begun = Instant::now();
    reader.wait(RUN_MAX)?;
    Ok(report(job, job.samples, begun.elapsed(), Latencies::default()))
}

fn report(job: &DdsJob, delivered: u64, time: Duration, latencies: Latencies) -> MemberReport {
    let (seconds, bytes) = (time.as_secs_f64(), delivered * job.size as u64);
    MemberReport { sent: job.samples, delivered, bytes, seconds, latencies, ..MemberReport::default() }
}

/// Writes the sample of this number.
fn fill(sample: &mut Payload<'_>, number: u64) {
    let number = number.to_le_bytes();
    sample.put(&number);
    sample.put_repeated(number[0], sample.remaining());
}

/// Returns the number of a sample whose every cache line is as its writer wrote it.
fn check(bytes: &[u8], size: usize) -> Result<u64> {
    ensure!(bytes.len() == size, "a sample of {} B came, and not of {size} B", bytes.len());
    let (number, rest) = bytes.split_at(DdsJob::SIZE_MIN);
    let number = u64::from_le_bytes(number.try_into().context("the number has 8 bytes")?);
    let written = number.to_le_bytes()[0];
    ensure!(
        rest.chunks(LINE_BYTES).all(|line| line[0] == written),
        "sample {number} is not as it was written"
    );
    Ok(number)
}

const UNWRITTEN: &str = "a sample was not written";
const SAMPLES: &str = "samples";
const ANSWERS: &str = "answers";
/// The longest header of a sample without a key.
const HEADER_BYTES_MAX: usize = 64;
const LINE_BYTES: usize = 64;
/// What a reader holds at most: writers wait for one that falls behind, and what it has is still in a cache of the processor.
const READER_BYTES: usize = 1 << 20;
/// No writer waits for an unordered reader, which rejects what it has no space for.
const UNORDERED_READER_BYTES: usize = 4 << 20;
/// What a topic keeps for readers that come later.
const HISTORY_SAMPLES: usize = 1000;
const AT_ONCE_MAX: usize = 256;
const AT_ONCE_BYTES: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// After this time a sample that has not come is taken for a fault.
const RUN_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_is_not_as_written_is_noticed() {
        let mut sample = vec![0; 200];
        fill(&mut Payload::over(&mut sample), 0x1234);
        assert_eq!(check(&sample, 200).unwrap(), 0x1234);
        assert!(check(&sample, 199).is_err());
        sample[8 + LINE_BYTES] ^= 1;
        assert!(check(&sample, 200).unwrap_err().to_string().contains("not as it was written"));
    }
}
