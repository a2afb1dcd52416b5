//! The sending side: sends what the hosts lack, and collects their verdicts.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use squall::bulk::{BulkBuffer, BulkOptions, Session};
use squall::config::{Address, VerbsSettings};
use squall_harness::terminal::error_text;

use super::CopyTrust;
use super::digest::{digest, digest_of};
use super::links::{self, session_config};
use super::message::{CopyLinks, CopyToken};
use super::parcel::{ParcelKind, kind, parcels};
use super::source::{LocalFile, SourceEntry};
use super::target::CopyTarget;
use super::{BLOCK_BYTES, CopyBegin, CopyConnection, CopyTransport, DigestVerdict, ParcelAnswer, blocks};

/// Is informed of the progress.
pub(crate) trait CopyObserver {
    /// The target has this number of the blocks that it lacked.
    fn on_progress(&mut self, target: usize, blocks: u64);
    /// The target lacks something.
    fn on_failure(&mut self, target: usize, name: &str, message: &str);
    /// A file of the source could not be read; the message names it.
    fn on_unread(&mut self, path: &Path, message: &str);
}

/// Where the files come from, and how they travel.
pub(crate) struct CopySource<'m> {
    /// The name of this copy.
    pub(crate) copy: CopyToken,
    pub(crate) trust: &'m CopyTrust,
    pub(crate) transport: CopyTransport,
    pub(crate) verbs: VerbsSettings,
    /// After which a host is given up.
    pub(crate) silence: Duration,
}

/// A file that some target lacks.
pub(crate) struct WantedFile<'s> {
    /// Its index among the entries, and among the files.
    index: usize,
    number: usize,
    source: &'s LocalFile,
}

/// What is sent of a parcel.
enum Loaded {
    /// A file that travels alone.
    File(File),
    /// The contents of small files, in the order of the parcel.
    Contents(Vec<Vec<u8>>),
}

/// The files that any target lacks, with the numbers of those that could not be read before.
pub(crate) fn wanted<'s>(
    sources: &'s [SourceEntry],
    targets: &[CopyTarget],
    is_unread: impl Fn(usize) -> bool,
) -> Vec<WantedFile<'s>> {
    let files = sources.iter().enumerate().filter_map(|(index, source)| Some((index, source.file.as_ref()?)));
    files
        .enumerate()
        .map(|(number, (index, source))| WantedFile { index, number, source })
        .filter(|file| !is_unread(file.number) && targets.iter().any(|target| target.lacks(file.number)))
        .collect()
}

/// The number of blocks that a target lacks.
pub(crate) fn blocks_lacked(wanted: &[WantedFile<'_>], target: &CopyTarget) -> u64 {
    wanted.iter().map(|file| blocks(file.source.bytes).saturating_sub(target.blocks(file.number))).sum()
}

/// Sends what the targets lack; failures are recorded at the targets.
///
/// # Errors
/// If nothing can be sent at all.
pub(crate) fn send(
    wanted: &[WantedFile<'_>],
    targets: &mut [CopyTarget],
    means: &CopySource<'_>,
    observer: &mut dyn CopyObserver,
) -> Result<()> {
    let ranks: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].is_left()).collect();
    if wanted.is_empty() || ranks.is_empty() {
        for target in targets.iter_mut() {
            // A host that has gone meanwhile lacks nothing either.
            let _ = target.line.as_ref().map(|line| line.write(&None::<CopyBegin>));
        }
        return Ok(());
    }
    let sizes: Vec<u64> = wanted.iter().map(|file| file.source.bytes).collect();
    let mut session = begin(targets, &ranks, means)?;
    let (mut done, mut memory) = (vec![0; targets.len()], session.buffer(0));
    for parcel in parcels(&sizes) {
        let (parcel, loaded) = load(parcel.iter().map(|file| &wanted[*file]), observer);
        if parcel.is_empty() {
            continue;
        }
        announce(targets, Some(parcel.iter().map(|file| file.index).collect()), observer);
        let held: Vec<u64> =
            targets.iter().map(|target| parcel.iter().map(|file| target.blocks(file.number)).sum()).collect();
        let outcome = send_parcel(&mut session, &mut memory, (&parcel, loaded), &mut |rank, blocks| {
            let target = ranks[rank - 1];
            observer.on_progress(target, done[target] + blocks.saturating_sub(held[target]));
        });
        session.lost().into_iter().for_each(|rank| lose(targets, ranks[rank - 1], observer));
        let right = match outcome {
            Ok(right) => right,
            Err(error) if targets.iter().any(CopyTarget::is_left) => return Err(error),
            Err(_) => return Ok(()),
        };
        for (file, digest) in parcel.iter().zip(&right) {
            if let Err(error) = digest {
                observer.on_unread(&file.source.path, &error_text(error));
            }
        }
        let right: Vec<Option<String>> = right.into_iter().map(Result::ok).collect();
        let sent: u64 = parcel.iter().map(|file| blocks(file.source.bytes)).sum();
        for i in ranks.iter().copied() {
            judge(&mut targets[i], &right, &mut |target, message| {
                observer.on_failure(i, &target.name, message)
            });
            if targets[i].is_left() {
                done[i] += sent.saturating_sub(held[i]);
                observer.on_progress(i, done[i]);
            }
        }
    }
    announce(targets, None, observer);
    Ok(())
}

/// Opens or reads the files of a parcel; those that cannot be read are left out, and named.
fn load<'w, 's>(
    parcel: impl Iterator<Item = &'w WantedFile<'s>>,
    observer: &mut dyn CopyObserver,
) -> (Vec<&'w WantedFile<'s>>, Loaded) {
    let (mut files, mut contents) = (Vec::new(), Vec::new());
    for file in parcel {
        let loaded = match kind(&[file.source.bytes]) {
            Some(ParcelKind::Alone) => file.source.open().map(Loaded::File),
            _ => file.source.read().map(|content| Loaded::Contents(vec![content])),
        };
        match loaded {
            Ok(alone @ Loaded::File(_)) => return (vec![file], alone),
            Ok(Loaded::Contents(content)) => {
                files.push(file);
                contents.extend(content);
            }
            Err(error) => observer.on_unread(&file.source.path, &error_text(&error)),
        }
    }
    (files, Loaded::Contents(contents))
}

/// Informs the targets of what comes next.
fn announce(targets: &mut [CopyTarget], parcel: Option<Vec<usize>>, observer: &mut dyn CopyObserver) {
    for (i, target) in targets.iter_mut().enumerate() {
        if let Some(Err(error)) = target.line.as_ref().map(|line| line.write(&parcel)) {
            fail(target, i, error_text(&error), observer);
        }
    }
}

/// Records that a host has left the session, and why.
fn lose(targets: &mut [CopyTarget], i: usize, observer: &mut dyn CopyObserver) {
    let Some(line) = &targets[i].line else { return };
    let message = match line.read_within(REASON_PATIENCE) {
        Ok(ParcelAnswer::Failed { message }) => message,
        Ok(ParcelAnswer::Judged(_)) => LOST.into(),
        // It has not said anything, and may live.
        Err(_) if !line.is_lost() => LOST.into(),
        Err(error) => format!("{LOST} ({})", error_text(&error)),
    };
    fail(&mut targets[i], i, message, observer);
}

/// Sends a target the digests of the files that it has, and reads its verdicts.
fn judge(target: &mut CopyTarget, right: &[Option<String>], on_failure: &mut dyn FnMut(&CopyTarget, &str)) {
    let Some(line) = &target.line else { return };
    let answer: Result<ParcelAnswer> = line.write(&right).and_then(|()| line.read());
    let messages = match answer {
        Ok(ParcelAnswer::Judged(judgements)) if judgements.len() == right.len() => {
            // A file without a digest is reported already.
            let judged = judgements.into_iter().zip(right).filter(|(_, right)| right.is_some());
            judged
                .filter_map(|(judgement, _)| match judgement {
                    DigestVerdict::Good => None,
                    DigestVerdict::Bad { message } => Some(message),
                })
                .collect()
        }
        failed => {
            target.line = None;
            vec![match failed {
                Ok(ParcelAnswer::Failed { message }) => message,
                Ok(ParcelAnswer::Judged(_)) => {
                    "it answered for other files than it received: run the same release there".into()
                }
                Err(error) => error_text(&error),
            }]
        }
    };
    for message in messages {
        on_failure(target, &message);
        target.failure.get_or_insert(message);
    }
}

/// Sends one parcel; returns the digests of its files, or why there is none.
fn send_parcel(
    session: &mut Session,
    memory: &mut BulkBuffer,
    (parcel, loaded): (&[&WantedFile<'_>], Loaded),
    on_progress: &mut dyn FnMut(usize, u64),
) -> Result<Vec<Result<String>>> {
    match loaded {
        Loaded::File(file) => Ok(vec![send_file(session, &file, parcel[0].source, on_progress)?]),
        Loaded::Contents(contents) => {
            let bytes = contents.iter().map(Vec::len).sum();
            if memory.capacity() < bytes {
                *memory = session.buffer(bytes);
            }
            memory.set_len(bytes);
            memory.copy_from_slice(&contents.concat());
            session.send(memory)?;
            Ok(contents.iter().map(|content| Ok(digest_of(content))).collect())
        }
    }
}

/// Sends one file, and computes its digest meanwhile.
fn send_file(
    session: &mut Session,
    file: &File,
    source: &LocalFile,
    on_progress: &mut dyn FnMut(usize, u64),
) -> Result<Result<String>> {
    let failed = || format!("cannot read {}", source.path.display());
    let to_digest = file.try_clone().with_context(failed)?;
    let bytes = source.bytes;
    std::thread::scope(|scope| {
        let right = scope.spawn(move || digest(&to_digest, bytes));
        session.send_file(file, bytes, on_progress)?;
        Ok(right.join().expect("a digest does not panic").with_context(failed))
    })
}

/// Names the hosts to each other, makes the links and opens the session.
///
/// # Errors
/// If two of them have no link; the error names them.
fn begin(targets: &[CopyTarget], ranks: &[usize], means: &CopySource<'_>) -> Result<Session> {
    let lost = |name: &str| format!("{name} is lost: start `squall serve` there and copy again");
    let mut hosts = Vec::with_capacity(ranks.len());
    for i in ranks {
        let line = targets[*i].line.as_ref().expect("hosts with a rank have a line");
        hosts.push(Address::of_socket(&line.peer().with_context(|| lost(&targets[*i].name))?));
    }
    let names: Vec<String> = ranks.iter().map(|i| targets[*i].name.clone()).collect();
    let lines: Vec<&CopyConnection> = targets.iter().filter_map(|target| target.line.as_ref()).collect();
    let (transport, texts) = (means.transport, hosts.iter().map(ToString::to_string));
    let mut begin = CopyBegin { hosts: texts.collect(), rank: 0, transport };
    for (line, name) in lines.iter().zip(&names) {
        begin.rank += 1;
        line.write(&Some(&begin)).with_context(|| lost(name))?;
    }
    let (mut links, mut failures) = (Vec::with_capacity(ranks.len()), Vec::new());
    for (rank, host) in (1..).zip(&hosts) {
        links.push((rank, links::call(host, (means.copy, 0), (means.trust, means.silence))));
    }
    // All reports are read: a host that has given up, since it does not reach another one, also refuses this one.
    for ((line, name), (_, link)) in lines.iter().zip(&names).zip(&links) {
        match (line.read(), link) {
            (Ok(CopyLinks::Made), Ok(_)) => {}
            (Ok(CopyLinks::Failed { rank, message }), _) => {
                let other = rank.checked_sub(1).and_then(|place| names.get(place));
                let other = other.map_or("a host that is none of this copy", String::as_str);
                failures.push(format!("{name} has no link with {other}: {message}"));
            }
            (_, Err(error)) => {
                failures.push(format!("this host has no link with {name}: {}", error_text(error)))
            }
            (Err(error), Ok(_)) => failures.push(format!("{}: {}", lost(name), error_text(&error))),
        }
    }
    ensure!(
        failures.is_empty(),
        "{}. Each host must reach the others at the port of `squall serve`, or be copied to by itself",
        failures.join("; ")
    );
    for (line, name) in lines.iter().zip(&names) {
        line.write(&()).with_context(|| lost(name))?;
    }
    let config = session_config(ranks.len() + 1, means.transport, &means.verbs, &means.trust.secret);
    let options = BulkOptions { block_bytes: Some(BLOCK_BYTES), ..BulkOptions::default() };
    let mut streams = Vec::with_capacity(links.len());
    for ((rank, link), line) in links.into_iter().zip(&lines) {
        let (stream, cut) = link?;
        line.cut_with_line(cut);
        streams.push((rank, stream));
    }
    Ok(Session::over(&config, &options, 0, streams)?)
}

fn fail(target: &mut CopyTarget, i: usize, message: String, observer: &mut dyn CopyObserver) {
    if target.is_left() {
        observer.on_failure(i, &target.name, &message);
        target.fail(message);
    }
}

const LOST: &str = "the host is lost: start `squall serve` there and copy again";
/// For the reason for which a host has left.
const REASON_PATIENCE: Duration = Duration::from_secs(1);
