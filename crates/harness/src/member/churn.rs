//! The work of `squall chaos` and `squall bench view`: every member sends without end while others die and join, and
//! keeps account of what it delivers.
//!
//! **The account** is a file of records of 16 bytes, in the order of delivery. A view begins with its number, marked by
//! the highest bit, and a digest of its members; each message adds the number of the view, and a digest of all messages
//! of the view up to it. A batch of messages is one write to the file before anything rests on it, so the account of a
//! member that was killed holds what it had delivered, except for the last batch.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::DeliveryMode;
use squall::config::{Config, PartitionSafety, Retention, StorageConfig, SubgroupConfig};
use squall::{GroupError, JoinError, Message, Payload, SendError};
use squall_fabric::mutex::lock;

use super::parent_watchdog::ParentWatchdog;
use super::resident::ResidentMember;
use super::{
    Ended, GroupMember, MemberInbox, MulticastMember, ProgressTicker, await_all, config, finish, say,
};
use crate::clock::now_ns;
use crate::control::{ChurnJob, GroupJob, MemberEvent, MemberReport, ViewNews};

/// Marks the beginning of a view in an account.
pub(crate) const VIEW_MARK: u64 = 1 << 63;

/// How the last report of a member begins without which the others continue.
pub(crate) const EXCLUDED: &str = "excluded";

/// How long nothing must arrive before a drained member reports that it is done.
const QUIET: Duration = Duration::from_millis(300);

/// How the folder of a process on the disk of its host begins.
pub(crate) const FOLDER: &str = "process-";

/// How long its disk may hang.
const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages sent between two polls.
const BURST: u32 = 16;

pub(super) fn perform(group: &GroupJob, job: &ChurnJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    ensure!(job.size >= ChurnJob::SIZE_MIN, "messages need at least {} bytes", ChurnJob::SIZE_MIN);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let file = job.account.as_deref().map(File::create).transpose().context("cannot write the account")?;
    let account = Account {
        ledger: Arc::clone(&ledger),
        // Of all incarnations of all ranks, each has its own.
        own: u64::from(job.process),
        view: 0,
        digest: 0,
        members: Vec::new(),
        next: BTreeMap::new(),
        last_ns: 0,
        begun: None,
        records: Vec::new(),
        file,
    };
    let messages = SubgroupConfig { message_max: job.size, window: 64, ..SubgroupConfig::default() };
    let mut config = match &job.storage {
        Some(folder) => durable(config(group)?, messages, &own_folder(folder, job.log_of)?),
        None => config(group)?.subgroup(super::SUBGROUP, messages),
    };
    if let Some(store) = &job.store {
        config = config.subgroup(super::store::NAME, super::store::subgroup(store));
        config.genuine = store.has_transactions.then(super::store::transaction_shards);
    }
    config.suspicion_after = Some(Duration::from_millis(job.suspicion_ms));
    config.partition_safety = if job.majority { PartitionSafety::Majority } else { PartitionSafety::Off };
    let Some(store) = &job.store else {
        let mut member = GroupMember::join_with(config, account)?;
        await_all(&mut member, group, watchdog)?;
        let outcome = named(send(&mut member, job, &ledger, watchdog));
        return Ok(finish(member, outcome, watchdog));
    };
    let mut member = named(ResidentMember::join(config, account, store, job.process))?;
    await_all(&mut member, group, watchdog)?;
    let outcome = named(send(&mut member, job, &ledger, watchdog));
    if outcome.is_ok() {
        member.stop_client();
    }
    match outcome {
        Ok(_) if watchdog.is_leaving() => {
            member.leave()?;
            say(&MemberEvent::Left);
            Ok(Ended::Well)
        }
        outcome => Ok(finish(member, outcome, watchdog)),
    }
}

/// Logs messages in a folder as long as some member needs them.
fn durable(config: Config, messages: SubgroupConfig, folder: &Path) -> Config {
    let retain = Some(Retention { automatic: true, ..Retention::default() });
    let messages = SubgroupConfig { mode: DeliveryMode::Durable, retain, ..messages };
    let storage = StorageConfig { timeout: DISK_TIMEOUT, ..StorageConfig::new(folder) };
    Config { storage: Some(storage), ..config }.subgroup(super::SUBGROUP, messages)
}

/// Returns the folder of a process on its host's disk, without those of others that were there before.
fn own_folder(disk: &Path, process: u32) -> Result<PathBuf> {
    let own = format!("{FOLDER}{process}");
    for entry in std::fs::read_dir(disk).with_context(|| disk.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(FOLDER) && name != own {
            std::fs::remove_dir_all(entry.path()).with_context(|| entry.path().display().to_string())?;
        }
    }
    Ok(disk.join(own))
}

/// The outcome, whose error begins with [`EXCLUDED`] if the others continue without this member.
fn named<T>(outcome: Result<T>) -> Result<T> {
    let is_stopped = |error: &anyhow::Error| {
        let stop = error.chain().find_map(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
            (Some(SendError::Group(stop)), _) | (_, Some(JoinError::Group(stop))) => Some(stop),
            _ => cause.downcast_ref::<GroupError>(),
        });
        matches!(stop, Some(GroupError::Stopped(_)))
    };
    outcome.map_err(|error| if is_stopped(&error) { error.context(EXCLUDED) } else { error })
}

/// What the account shares with the sending side; both are on one thread.
#[derive(Debug, Default)]
struct Ledger {
    delivered: u64,
    own_delivered: u64,
    failure: Option<anyhow::Error>,
}

struct Account {
    ledger: Arc<Mutex<Ledger>>,
    own: u64,
    view: u64,
    digest: u64,
    members: Vec<usize>,
    /// The next message's number, by sender.
    next: BTreeMap<u64, u64>,
    last_ns: u64,
    /// A view has begun in which nothing has been delivered; and what came before it.
    begun: Option<ViewNews>,
    records: Vec<u8>,
    file: Option<File>,
}

impl Account {
    fn record(&mut self, view: u64) {
        if self.file.is_some() {
            self.records.extend_from_slice(&view.to_le_bytes());
            self.records.extend_from_slice(&self.digest.to_le_bytes());
        }
    }

    fn note(&mut self, message: &Message<'_>) -> Result<u64> {
        let word = |at: usize| -> Result<u64> {
            let bytes = message.bytes.get(at..at + 8).context("a message is too short")?;
            Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
        };
        let (sender, number) = (word(0)?, word(8)?);
        // A joiner receives a sender's messages from the middle on; from there nothing may be missing, double or out of order.
        match self.next.insert(sender, number + 1) {
            Some(next) if next != number => {
                bail!("view {}: message {number} of {sender} came where {next} was due", self.view)
            }
            _ => {}
        }
        self.digest = mixed(self.digest, sender ^ number.rotate_left(32));
        Ok(sender)
    }
}

/// One step of a digest (splitmix64's mixing).
fn mixed(digest: u64, word: u64) -> u64 {
    let mut x = (digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl MemberInbox for Account {
    fn on_message(&mut self, message: Message<'_>) {
        let noted = self.note(&message);
        let mut ledger = lock(&self.ledger);
        ledger.delivered += 1;
        match noted {
            Ok(sender) => ledger.own_delivered += u64::from(sender == self.own),
            Err(error) => ledger.failure = Some(error),
        }
        drop(ledger);
        self.record(self.view);
    }

    fn on_view(&mut self, view: u64, members: &[usize]) {
        self.begun = Some(ViewNews { view, ranks: members.to_vec(), last_ns: self.last_ns, first_ns: 0 });
        self.view = view;
        self.digest = members.iter().fold(view, |digest, rank| mixed(digest, *rank as u64));
        self.members = members.to_vec();
        self.record(view | VIEW_MARK);
    }

    fn on_batch_end(&mut self) {
        self.last_ns = now_ns();
        if let Some(news) = self.begun.take() {
            say(&MemberEvent::View(ViewNews { first_ns: self.last_ns, ..news }));
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(&self.records)
        {
            let error = anyhow::Error::new(error).context("cannot write the account");
            lock(&self.ledger).failure = Some(error);
        }
        self.records.clear();
    }
}

/// Sends until asked to drain or to leave, and then waits until there is nothing more to deliver, or nothing of its own.
fn send(
    member: &mut impl MulticastMember,
    job: &ChurnJob,
    ledger: &Mutex<Ledger>,
    watchdog: &ParentWatchdog,
) -> Result<MemberReport> {
    let own = u64::from(job.process).to_le_bytes();
    let begun = Instant::now();
    let (mut sent, mut heard, mut quiet_since) = (0, 0, Instant::now());
    let mut ticker = ProgressTicker::new();
    loop {
        let leaving = watchdog.is_leaving();
        let draining = leaving || watchdog.is_draining() || watchdog.is_stopped();
        let due = job.pace.map_or(u64::MAX, |pace| (begun.elapsed().as_secs_f64() * f64::from(pace)) as u64);
        for _ in 0..BURST {
            let write = |payload: &mut Payload<'_>| {
                payload.put(&own);
                payload.put(&u64::to_le_bytes(sent));
            };
            if draining || sent >= due || !member.try_send(job.size, write)? {
                break;
            }
            sent += 1;
        }
        match job.pace {
            None => member.step()?,
            // A thread that sleeps until the doorbell rings would miss the next message's time.
            Some(_) => {
                member.poll()?;
                std::thread::sleep(member.pause());
            }
        }
        let mut ledger = lock(ledger);
        if let Some(failure) = ledger.failure.take() {
            return Err(failure);
        }
        if ledger.delivered != heard {
            (heard, quiet_since) = (ledger.delivered, Instant::now());
        }
        if draining && ledger.own_delivered == sent && (leaving || quiet_since.elapsed() >= QUIET) {
            let seconds = begun.elapsed().as_secs_f64();
            return Ok(MemberReport {
                sent,
                delivered: ledger.delivered,
                seconds,
                ..MemberReport::default()
            });
        }
        drop(ledger);
        ticker.tick(heard);
    }
}
