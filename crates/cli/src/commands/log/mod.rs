//! `squall log`: the durable log of a member, as it is on the disk.

mod backup;
mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use squall_harness::terminal::{CommandVerdict, output, units};
use squall_log::{
    Disk as _, FileDisk, FramePlace, LogBegin, LogPosition, LogRecord, LogSettings, Recovered, Storage,
    TailVerdict,
};
use squall_protocols::restart::Register;

/// Look into the durable log of a member, copy and repair it
#[derive(Debug, Args)]
pub(crate) struct StoredLogArguments {
    #[command(subcommand)]
    what: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// List identity, register, segments and checkpoints
    #[command(after_help = LS_EXAMPLES)]
    Ls(FolderArguments),
    /// Check every frame and every checkpoint
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(FolderArguments),
    /// Print the records
    #[command(after_help = DUMP_EXAMPLES)]
    Dump(FolderArguments),
    Repair(repair::RepairArguments),
    Backup(backup::BackupArguments),
}

#[derive(Debug, Args)]
struct FolderArguments {
    /// The folder of the member
    #[arg(long, value_name = "FOLDER")]
    storage: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const LS_EXAMPLES: &str =
    "Nothing is changed. The member may run meanwhile; its log may look torn or damaged then.

Examples:
  squall log ls --storage /var/lib/squall/rank-0";
const VERIFY_EXAMPLES: &str =
    "The exit status is 1 if the log is damaged (frames are missing that may have been reported as persisted), a checkpoint is not \
as it was written (other than a mark of what was discarded, which is made again when the member starts), or both copies of the \
register are bad. A member that runs writes meanwhile, so that its log may look torn or \
damaged: end it first, or verify again.

Examples:
  squall log verify --storage /var/lib/squall/rank-0";
const DUMP_EXAMPLES: &str = "One line for each record, oldest first.

Examples:
  squall log dump --storage /var/lib/squall/rank-0
  squall log dump --storage /var/lib/squall/rank-0 --json";

/// What `ls` and `verify` say.
#[derive(Debug, Serialize)]
struct LogSummary {
    cluster: String,
    member: String,
    log: String,
    /// `None` if both copies of the register are bad.
    life: Option<u64>,
    view: Option<u64>,
    /// The nodes of the members of that view.
    members: Vec<u32>,
    /// This member's node in its group.
    node: Option<u32>,
    verdict: String,
    /// The number of the last good frame, and where the next one belongs.
    last_frame: u64,
    end_segment: u32,
    end_offset: u64,
    frames: u64,
    records: u64,
    /// The segments that hold frames.
    segments: Vec<u32>,
    /// The names of the durable subgroups, by number; a number without a name is that of one that the log has no more.
    names: BTreeMap<u32, String>,
    /// The greatest position of each subgroup.
    subgroups: BTreeMap<u32, PositionSummary>,
    /// The good checkpoints of each subgroup.
    checkpoints: BTreeMap<u32, Vec<PositionSummary>>,
    /// Whether it is a copy that `squall log backup` has made.
    copy: bool,
    /// The names of those that are not as they were written.
    bad_checkpoints: Vec<String>,
    /// Subgroups whose first records were removed, and are in no checkpoint that can be read.
    lost: Vec<u32>,
    /// Subgroups whose first records were discarded, and the mark that says so is lost: it is made again when the member starts.
    lost_marks: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PositionSummary {
    view: u64,
    sequence: u64,
}

/// A line of `dump --json`.
#[derive(Debug, Serialize)]
struct RecordSummary {
    frame: u64,
    subgroup: u32,
    kind: String,
    view: u64,
    sequence: u64,
    sender: u32,
    time: u64,
    bytes: usize,
}

pub(crate) fn run(arguments: &StoredLogArguments) -> Result<CommandVerdict> {
    match &arguments.what {
        LogCommand::Ls(arguments) => {
            print(arguments, &summary(arguments)?)?;
            Ok(CommandVerdict::Good)
        }
        LogCommand::Verify(arguments) => verify(arguments),
        LogCommand::Dump(arguments) => {
            let recovered = read(arguments, &mut |place, record| dump(arguments, place.number, &record))?.1;
            if recovered.verdict == TailVerdict::Damaged {
                output::note("squall: the log is damaged behind the last of these records");
            }
            Ok(CommandVerdict::Good)
        }
        LogCommand::Repair(arguments) => repair::run(arguments),
        LogCommand::Backup(arguments) => backup::run(arguments),
    }
}

/// Returns an error if a folder is not that of a member.
fn check_folder(folder: &Path) -> Result<()> {
    let is_of_member = |folder: &Path| folder.join("identity").is_file();
    if is_of_member(folder) {
        return Ok(());
    }
    let inside = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut members: Vec<_> = inside.filter(|path| is_of_member(path)).collect();
    members.sort();
    let advice = match members.first() {
        Some(member) => format!("each member has one in it: give --storage {}", member.display()),
        None => "it has no file `identity`; choose another --storage".into(),
    };
    bail!("{} is not the folder of a member: {advice}", folder.display())
}

fn read(
    arguments: &FolderArguments,
    each: &mut dyn FnMut(FramePlace, LogRecord<'_>),
) -> Result<(Storage<FileDisk>, Recovered)> {
    let folder = || format!("failed to read the log in {}", arguments.storage.display());
    check_folder(&arguments.storage)?;
    let disk = FileDisk::inspect(&arguments.storage);
    let storage = Storage::inspect(disk, LogSettings::DEFAULT).with_context(folder)?;
    let recovered = storage.recover(each).with_context(folder)?;
    Ok((storage, recovered))
}

fn verify(arguments: &FolderArguments) -> Result<CommandVerdict> {
    let summary = summary(arguments)?;
    print(arguments, &summary)?;
    let is_good = summary.verdict != TailVerdict::Damaged.to_string()
        && summary.life.is_some()
        && summary.lost.is_empty()
        && summary.bad_checkpoints.is_empty();
    Ok(if is_good { CommandVerdict::Good } else { CommandVerdict::Bad })
}

fn summary(arguments: &FolderArguments) -> Result<LogSummary> {
    let (storage, recovered) = read(arguments, &mut |_, _| ())?;
    let (identity, register) = (storage.identity(), storage.register());
    let present = register.as_ref().and_then(|register| Register::decode(register.present_protocol()).ok());
    let known = register.as_ref().map(|register| register.subgroups.clone()).unwrap_or_default();
    let names = (0..known.next).filter_map(|number| Some((number, known.name(number)?.to_owned()))).collect();
    let present = present.filter(|present| !present.view().members.is_empty());
    let subgroups = recovered.frontiers.iter().map(|(subgroup, at)| (*subgroup, position(*at)));
    let checkpoints = storage.checkpoints();
    let good: BTreeSet<String> = checkpoints
        .iter()
        .flat_map(|(subgroup, all)| {
            all.iter().map(move |at| format!("{subgroup}-{}-{}", at.view, at.sequence))
        })
        .collect();
    let mut bad_checkpoints = storage.disk().list("checkpoints")?;
    bad_checkpoints.retain(|name| !name.ends_with(".new") && !good.contains(name));
    let recycled = register.as_ref().map(|register| register.recycled.clone()).unwrap_or_default();
    // Older ones have no log behind them, and their removal was cut off.
    let is_older = |name: &str| {
        let mut parts = name.split('-').map(str::parse::<u64>);
        let (Some(Ok(subgroup)), Some(Ok(view)), Some(Ok(sequence))) =
            (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        let recycled = u32::try_from(subgroup).ok().and_then(|subgroup| recycled.get(&subgroup));
        recycled.is_some_and(|recycled| LogPosition { view, sequence } < *recycled)
    };
    let is_retired = |name: &str| {
        let number = name.split('-').next().and_then(|number| number.parse().ok());
        number.is_some_and(|number| known.is_retired(number))
    };
    bad_checkpoints.retain(|name| !is_older(name) && !is_retired(name));
    let (mut lost, mut lost_marks) = (Vec::new(), Vec::new());
    for subgroup in recycled.keys().copied().filter(|subgroup| !known.is_retired(*subgroup)) {
        match storage.begin_of(subgroup) {
            LogBegin::Lost(_) if storage.has_marks_only(subgroup)? => lost_marks.push(subgroup),
            LogBegin::Lost(_) => lost.push(subgroup),
            LogBegin::First | LogBegin::Behind(_) => {}
        }
    }
    let is_mark = |name: &str| lost_marks.iter().any(|subgroup| name.starts_with(&format!("{subgroup}-")));
    bad_checkpoints.retain(|name| !is_mark(name));
    let checkpoints =
        checkpoints.into_iter().map(|(subgroup, all)| (subgroup, all.into_iter().map(position).collect()));
    Ok(LogSummary {
        cluster: identity.cluster.clone(),
        member: identity.member.clone(),
        log: format!("{:016x}", identity.log),
        life: register.as_ref().map(|register| register.life),
        view: present.as_ref().map(|present| present.view().number),
        members: present.iter().flat_map(|present| &present.view().members).map(|node| node.0).collect(),
        node: present.as_ref().map(|present| present.node.0),
        verdict: recovered.verdict.to_string(),
        last_frame: recovered.last,
        end_segment: recovered.segment,
        end_offset: recovered.offset,
        frames: recovered.frames,
        records: recovered.records,
        segments: recovered.segments.keys().copied().collect(),
        names,
        subgroups: subgroups.collect(),
        checkpoints: checkpoints.collect(),
        copy: storage.is_backup()?,
        bad_checkpoints,
        lost,
        lost_marks,
    })
}

const fn position(at: LogPosition) -> PositionSummary {
    PositionSummary { view: at.view, sequence: at.sequence }
}

fn print(arguments: &FolderArguments, summary: &LogSummary) -> Result<()> {
    if arguments.json {
        return output::json(summary);
    }
    let LogSummary { cluster, member, log, verdict, frames, records, segments, .. } = summary;
    output::line(format_args!("log {log} of member {member} in cluster {cluster}: {verdict}"));
    if summary.copy {
        output::line("a copy that `squall log backup` has made");
    }
    match (summary.life, summary.view) {
        (Some(life), Some(view)) => {
            let members: Vec<String> = summary.members.iter().map(u32::to_string).collect();
            let node = summary.node.map_or_else(String::new, |node| format!(", as node {node}"));
            let members = members.join(", ");
            output::line(format_args!("register: life {life}, view {view} of nodes {members}{node}"));
        }
        (Some(life), None) => output::line(format_args!("register: life {life}, in no view yet")),
        _ => output::line("register: both copies are bad, so the member has no vote"),
    }
    let contents = format!("{} in {}", units::things(*records, "record"), units::things(*frames, "frame"));
    match (segments.first(), segments.last()) {
        (Some(first), Some(last)) => output::line(format_args!("{contents}, segments {first} to {last}")),
        _ => output::line(contents),
    }
    if *verdict == TailVerdict::Damaged.to_string() {
        output::line(format_args!(
            "good up to frame {:#x}, which ends in segment {} at {}, and unknown above: the member fetches from others what its \
             log lacks",
            summary.last_frame, summary.end_segment, summary.end_offset
        ));
    }
    print_subgroups(summary);
    for name in &summary.bad_checkpoints {
        output::line(format_args!("the checkpoint {name} is not as it was written"));
    }
    Ok(())
}

/// Prints what there is of each subgroup, which has its number, and its name if it is noted.
fn print_subgroups(summary: &LogSummary) {
    let text = |at: &PositionSummary| format!("{}/{}", at.view, at.sequence);
    let called = |subgroup: u32| match summary.names.get(&subgroup) {
        Some(name) => format!("subgroup {subgroup} ({name})"),
        None if summary.names.is_empty() => format!("subgroup {subgroup}"),
        None => format!("subgroup {subgroup} (removed)"),
    };
    for (subgroup, at) in &summary.subgroups {
        output::line(format_args!("{}: up to view/sequence {}", called(*subgroup), text(at)));
    }
    for (subgroup, all) in &summary.checkpoints {
        let all: Vec<String> = all.iter().map(text).collect();
        output::line(format_args!("{}: checkpoints at {}", called(*subgroup), all.join(", ")));
    }
    for subgroup in &summary.lost {
        output::line(format_args!(
            "{}: its first records were removed, and none of its checkpoints can be read; the member does not start with this folder",
            called(*subgroup)
        ));
    }
    for subgroup in &summary.lost_marks {
        output::line(format_args!(
            "{}: its first records were discarded, and the mark that says so is lost; a member whose configuration has `automatic` in the \
             `retain` of the subgroup makes it again when it starts",
            called(*subgroup)
        ));
    }
}

fn dump(arguments: &FolderArguments, frame: u64, record: &LogRecord<'_>) {
    let LogRecord { subgroup, position, sender, time, .. } = *record;
    let (kind, bytes) = (format!("{:?}", record.kind).to_lowercase(), record.bytes.len());
    let (view, sequence) = (position.view, position.sequence);
    if arguments.json {
        let line = RecordSummary { frame, subgroup, kind, view, sequence, sender, time, bytes };
        output::line(serde_json::to_string(&line).expect("numbers and names are JSON"));
        return;
    }
    output::line(format_args!(
        "frame {frame:#x}  subgroup {subgroup}  {kind}  {view}/{sequence}  sender {sender}  time {time}  {bytes} bytes"
    ));
}
