//! The work of `squall demo --total-failure`: a member of a durable subgroup that is killed, and checks what its log has when it is back.
//!
//! Each member notes what it has delivered in a file of its own: how many messages, and their digest. What a process has written stays
//! when it is killed. When the group has restarted, each member reads its history, and looks for each note of every member: the first
//! messages have to be as many, with the same digest. So nothing that was delivered anywhere may be missing, or be elsewhere.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use squall::Message;
use squall::config::{Config, StorageConfig, SubgroupConfig};
use squall_fabric::mutex::lock;

use super::parent_watchdog::ParentWatchdog;
use super::{Ended, MemberInbox, ProgressTicker, SUBGROUP, builder, config, say};
use crate::control::{GroupJob, LogReport, MemberEvent, MemberReport, RestartJob};
use crate::digest::SequenceDigest;
use crate::text::DemoText;

pub(super) fn perform(group: &GroupJob, job: &RestartJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let text = DemoText::read(job.input.as_deref())?;
    let notes = read_notes(&job.storage, group.members)?;
    let file = note_file(&job.storage, group.rank);
    let file =
        OpenOptions::new().create(true).append(true).open(&file).context(file.display().to_string())?;
    let delivered = Arc::new(Mutex::new(DeliveredLog { digest: SequenceDigest::new(), count: 0, file }));
    let subgroup = SubgroupConfig {
        mode: squall::DeliveryMode::Durable,
        window: job.window,
        message_max: text.longest().max(1),
        ..SubgroupConfig::default()
    };
    let storage = Some(StorageConfig::new(&job.storage));
    let config = Config { storage, ..config(group)? }.subgroup(SUBGROUP, subgroup);
    let inbox = Inbox { log: Arc::clone(&delivered), unnoted: 0, ticker: ProgressTicker::new() };
    let mut group = builder(config, vec![inbox]).join()?;
    // Members send when all have read their histories.
    let checked = read_history(group.subgroup(SUBGROUP)?.history()?, &notes, &delivered)?;
    let count = lock(&delivered).count;
    say(&MemberEvent::Progress { done: count });
    say(&MemberEvent::Ready);
    watchdog.await_go()?;
    if !job.sends {
        let digest = lock(&delivered).digest.clone().finish();
        let log = LogReport { digest, by_sender: Vec::new(), sent: String::new(), since: None };
        let counters = BTreeMap::from([("checked".to_owned(), checked)]);
        let report = MemberReport { delivered: count, log: Some(log), counters, ..MemberReport::default() };
        say(&MemberEvent::Done(Box::new(report)));
        while !watchdog.is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
        return Ok(Ended::Well);
    }
    let mut sender = group.subgroup(SUBGROUP)?.sender()?;
    let mut lines = text.share(0, 1, u64::MAX);
    while !watchdog.is_stopped() {
        let line = lines.next().context("the text has ended")?;
        sender.send_blocking(line.len(), |space| space.copy_from_slice(line))?;
    }
    Ok(Ended::Well)
}

/// What this member has delivered, in all runs.
struct DeliveredLog {
    digest: SequenceDigest,
    count: u64,
    file: File,
}

struct Inbox {
    log: Arc<Mutex<DeliveredLog>>,
    /// Messages since the last note.
    unnoted: u64,
    ticker: ProgressTicker,
}

impl MemberInbox for Inbox {
    fn on_message(&mut self, message: Message<'_>) {
        let mut log = lock(&self.log);
        log.digest.append(message.sender, message.bytes);
        log.count += 1;
        self.unnoted += 1;
    }

    fn on_batch_end(&mut self) {
        let mut log = lock(&self.log);
        let count = log.count;
        if self.unnoted >= NOTE_EVERY {
            self.unnoted = 0;
            let line = format!("{count} {}\n", log.digest.clone().finish());
            // A note that cannot be written is one check less.
            let _ = log.file.write_all(line.as_bytes());
        }
        drop(log);
        self.ticker.tick(count);
    }
}

fn note_file(storage: &Path, rank: usize) -> std::path::PathBuf {
    storage.join(format!("delivered-{rank}"))
}

/// The notes of all members: digests by the number of messages.
fn read_notes(storage: &Path, members: usize) -> Result<BTreeMap<u64, Vec<String>>> {
    let mut notes: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for rank in 0..members {
        let file = note_file(storage, rank);
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            text => text.with_context(|| file.display().to_string())?,
        };
        // The last line may have been cut off.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let (count, digest) = line.split_once(' ').with_context(|| format!("a note `{line}`"))?;
            notes.entry(count.parse()?).or_default().push(digest.into());
        }
    }
    Ok(notes)
}

/// Reads the history, and compares it with the notes; returns how many these were.
fn read_history(
    history: squall::History,
    notes: &BTreeMap<u64, Vec<String>>,
    delivered: &Mutex<DeliveredLog>,
) -> Result<u64> {
    let mut digest = SequenceDigest::new();
    let (mut count, mut checked) = (0, 0);
    for message in history {
        let message = message?;
        digest.append(message.sender, &message.bytes);
        count += 1;
        if let Some(noted) = notes.get(&count) {
            let found = digest.clone().finish();
            ensure!(
                noted.iter().all(|noted| *noted == found),
                "the first {count} messages of the log are not those that were delivered"
            );
            checked += noted.len() as u64;
        }
    }
    let most = notes.last_key_value().map_or(0, |(most, _)| *most);
    ensure!(most <= count, "the log has {count} messages, and {most} were delivered");
    let mut log = lock(delivered);
    (log.digest, log.count) = (digest, count);
    Ok(checked)
}

/// A note costs as much as some hundred messages.
const NOTE_EVERY: u64 = 256;
