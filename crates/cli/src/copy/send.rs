//! The sending side: asks the hosts, sends what they lack, and collects their verdicts.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use squall::bulk::{BulkBuffer, BulkOptions, Session};
use squall::config::{Address, Secret, VerbsSettings};

use super::connection::reach;
use super::digest::{digest, digest_of};
use super::links::{self, session_config};
use super::message::{CopyCall, CopyLinks, CopyToken};
use super::parcel::{ParcelKind, kind, parcels};
use super::source::SourceEntry;
use super::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyConnection, CopyRequest, CopyTransport, DigestVerdict, FileEntry,
    HostId, QueuePosition, blocks,
};

/// A host that receives the copy.
#[derive(Debug)]
pub(crate) struct CopyTarget {
    /// As the user named it.
    pub(crate) name: String,
    line: Option<CopyConnection>,
    id: Option<HostId>,
    /// Why nothing more is sent there, or why it lacks something.
    pub(crate) failure: Option<String>,
    /// The number of blocks of each file that are there.
    held: Vec<u64>,
}

/// Is informed of the progress.
pub(crate) trait CopyObserver {
    /// The target has this number of the blocks that it lacked.
    fn on_progress(&mut self, target: usize, blocks: u64);
    /// The target lacks something.
    fn on_failure(&mut self, target: usize, name: &str, message: &str);
}

impl CopyTarget {
    /// Connects to `host` and proves the secret there. A failure is recorded.
    pub(crate) fn connect(name: &str, host: &str, port: u16, secret: &Secret) -> Self {
        let mut target = Self { name: name.into(), line: None, id: None, failure: None, held: Vec::new() };
        match prove(host, port, secret) {
            Ok((line, id)) => (target.line, target.id) = (Some(line), Some(id)),
            Err(error) => target.failure = Some(format!("{error:#}")),
        }
        target
    }

    /// Waits for the turn of this copy at the host; `on_waiting` is called with the copy before it.
    fn take_place(&mut self, on_waiting: &mut dyn FnMut(&str, &str)) -> Result<()> {
        let Some(line) = &mut self.line else { return Ok(()) };
        line.write(&())?;
        let mut before = None;
        loop {
            match line.read(Some(POSITION_PATIENCE))? {
                QueuePosition::First => return Ok(()),
                QueuePosition::Refused { message } => bail!(message),
                QueuePosition::Waiting { copies, source } => {
                    if before.as_ref() != Some(&source) {
                        let more =
                            if copies == 1 { String::new() } else { format!(" and {} more", copies - 1) };
                        on_waiting(&self.name, &format!("waits for the copy from {source}{more} to end"));
                    }
                    before = Some(source);
                }
            }
        }
    }

    /// Asks which blocks are there.
    pub(crate) fn ask(&mut self, request: &CopyRequest) {
        let Some(line) = &mut self.line else { return };
        let answer = line.write(request).and_then(|()| line.read(Some(ANSWER_PATIENCE)));
        match answer {
            Ok(CopyAnswer::Ready { held, .. }) if request.fits(&held) => self.held = held,
            Ok(CopyAnswer::Ready { .. }) => {
                self.fail("its answer does not fit the request: run the same release there".into());
            }
            Ok(CopyAnswer::Refused { message }) => self.fail(message),
            Err(error) => self.fail(format!("{error:#}")),
        }
    }

    /// Whether it still takes part.
    pub(crate) const fn is_left(&self) -> bool {
        self.line.is_some()
    }

    /// The number of blocks that are there of file number `file`.
    fn held(&self, file: usize) -> u64 {
        self.held.get(file).copied().unwrap_or(0)
    }

    fn fail(&mut self, message: String) {
        self.failure.get_or_insert(message);
        self.line = None;
    }
}

/// Waits for the turn of this copy at each host, one after the other in the order of their numbers, so that copies to the
/// same hosts never wait for each other. A failure is recorded.
pub(crate) fn take_places(targets: &mut [CopyTarget], on_waiting: &mut dyn FnMut(&str, &str)) {
    let mut order: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].id.is_some()).collect();
    order.sort_by_key(|i| targets[*i].id);
    for (place, i) in order.iter().copied().enumerate() {
        let same = place.checked_sub(1).map(|before| order[before]);
        if let Some(same) = same.filter(|same| targets[*same].id == targets[i].id) {
            let message = format!("it is the same host as {}: name it once", targets[same].name);
            targets[i].fail(message);
        } else if let Err(error) = targets[i].take_place(on_waiting) {
            targets[i].fail(format!("{error:#}"));
        }
    }
}

/// How the files travel.
pub(crate) struct SendSettings<'m> {
    /// The name of this copy.
    pub(crate) copy: CopyToken,
    pub(crate) secret: &'m Secret,
    pub(crate) transport: CopyTransport,
    pub(crate) verbs: VerbsSettings,
}

/// A file that some target lacks.
struct Wanted<'s> {
    /// Its index among the entries, and among the files.
    index: usize,
    number: usize,
    source: &'s SourceEntry,
    entry: FileEntry,
}

/// Sends what the targets lack; failures are recorded at the targets.
///
/// # Errors
/// If nothing can be sent at all.
pub(crate) fn send(
    sources: &[SourceEntry],
    targets: &mut [CopyTarget],
    means: &SendSettings<'_>,
    observer: &mut dyn CopyObserver,
) -> Result<()> {
    let wanted = wanted(sources, targets);
    let ranks: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].is_left()).collect();
    if wanted.is_empty() || ranks.is_empty() {
        for target in targets.iter_mut() {
            // A host that has gone meanwhile lacks nothing either.
            let _ = target.line.as_mut().map(|line| line.write(&None::<CopyBegin>));
        }
        return Ok(());
    }
    let sizes: Vec<u64> = wanted.iter().map(|file| file.entry.bytes).collect();
    let parcels: Vec<Vec<&Wanted<'_>>> =
        parcels(&sizes).iter().map(|parcel| parcel.iter().map(|file| &wanted[*file]).collect()).collect();
    let send = parcels.iter().map(|parcel| parcel.iter().map(|file| file.index).collect()).collect();
    let mut session = begin(targets, &ranks, send, means)?;
    let (mut done, mut memory) = (vec![0; targets.len()], session.buffer(0));
    for parcel in &parcels {
        let held: Vec<u64> =
            targets.iter().map(|target| parcel.iter().map(|file| target.held(file.number)).sum()).collect();
        let outcome = send_parcel(&mut session, &mut memory, parcel, &mut |rank, blocks| {
            let target = ranks[rank - 1];
            observer.on_progress(target, done[target] + blocks.saturating_sub(held[target]));
        });
        for rank in session.lost() {
            fail(
                targets,
                ranks[rank - 1],
                "the host is lost: start `squall serve` there and copy again",
                observer,
            );
        }
        let right = match outcome {
            Ok(right) => right,
            Err(error) if targets.iter().any(CopyTarget::is_left) => return Err(error),
            Err(_) => return Ok(()),
        };
        let sent: u64 = parcel.iter().map(|file| blocks(file.entry.bytes)).sum();
        for i in ranks.iter().copied() {
            judge(&mut targets[i], &right, &mut |target, message| {
                observer.on_failure(i, &target.name, message)
            });
            if targets[i].is_left() {
                done[i] += sent - held[i];
                observer.on_progress(i, done[i]);
            }
        }
    }
    Ok(())
}

/// The files that any target lacks.
fn wanted<'s>(sources: &'s [SourceEntry], targets: &[CopyTarget]) -> Vec<Wanted<'s>> {
    let lacks = |target: &CopyTarget, file: &Wanted<'_>| {
        // An empty file has no block that could be missing.
        target.is_left() && (target.held(file.number) < blocks(file.entry.bytes) || file.entry.bytes == 0)
    };
    let files =
        sources.iter().enumerate().filter_map(|(index, source)| Some((index, source, source.entry.file?)));
    files
        .enumerate()
        .map(|(number, (index, source, entry))| Wanted { index, number, source, entry })
        .filter(|file| targets.iter().any(|target| lacks(target, file)))
        .collect()
}

/// Sends a target the digests of the files that it has, and reads its verdicts.
fn judge(target: &mut CopyTarget, right: &[String], on_failure: &mut dyn FnMut(&CopyTarget, &str)) {
    let Some(line) = &mut target.line else { return };
    let judgements: Result<Vec<DigestVerdict>> =
        line.write(&right).and_then(|()| line.read(Some(DIGEST_PATIENCE)));
    let messages = match judgements {
        Ok(judgements) if judgements.len() == right.len() => judgements
            .into_iter()
            .filter_map(|judgement| match judgement {
                DigestVerdict::Good => None,
                DigestVerdict::Bad { message } => Some(message),
            })
            .collect(),
        failed => {
            target.line = None;
            vec![failed.map_or_else(
                |error| format!("{error:#}"),
                |_| "it answered for other files than it received: run the same release there".into(),
            )]
        }
    };
    for message in messages {
        on_failure(target, &message);
        target.failure.get_or_insert(message);
    }
}

/// Sends one parcel; returns the digests of its files.
fn send_parcel(
    session: &mut Session,
    memory: &mut BulkBuffer,
    parcel: &[&Wanted<'_>],
    on_progress: &mut dyn FnMut(usize, u64),
) -> Result<Vec<String>> {
    let sizes: Vec<u64> = parcel.iter().map(|file| file.entry.bytes).collect();
    match kind(&sizes).expect("parcels are made to be sent") {
        ParcelKind::Alone => Ok(vec![send_file(session, parcel[0].source, &parcel[0].entry, on_progress)?]),
        ParcelKind::Together(bytes) => {
            if memory.capacity() < bytes {
                *memory = session.buffer(bytes);
            }
            memory.set_len(bytes);
            let mut rest = &mut memory[..];
            let mut right = Vec::with_capacity(parcel.len());
            for file in parcel {
                let (content, behind) =
                    rest.split_at_mut(usize::try_from(file.entry.bytes).expect("a small file"));
                let failed = || format!("cannot read {}", file.source.path.display());
                let opened = File::open(&file.source.path).with_context(failed)?;
                opened.read_exact_at(content, 0).with_context(failed)?;
                right.push(digest_of(content));
                rest = behind;
            }
            session.send(memory)?;
            Ok(right)
        }
    }
}

/// Sends one file, and computes its digest meanwhile.
fn send_file(
    session: &mut Session,
    source: &SourceEntry,
    entry: &FileEntry,
    on_progress: &mut dyn FnMut(usize, u64),
) -> Result<String> {
    let failed = || format!("cannot read {}", source.path.display());
    let file = File::open(&source.path).with_context(failed)?;
    let to_digest = file.try_clone().with_context(failed)?;
    let bytes = entry.bytes;
    std::thread::scope(|scope| {
        let right = scope.spawn(move || digest(&to_digest, bytes));
        session.send_file(&file, bytes, on_progress)?;
        right.join().expect("a digest does not panic").with_context(failed)
    })
}

/// Names the hosts to each other, makes the links and opens the session.
///
/// # Errors
/// If two of them have no link; the error names them.
fn begin(
    targets: &mut [CopyTarget],
    ranks: &[usize],
    send: Vec<Vec<usize>>,
    means: &SendSettings<'_>,
) -> Result<Session> {
    let lost = |name: &str| format!("{name} is lost: start `squall serve` there and copy again");
    let mut hosts = Vec::with_capacity(ranks.len());
    for i in ranks {
        let line = targets[*i].line.as_ref().expect("hosts with a rank have a line");
        hosts.push(Address::of_socket(&line.peer().with_context(|| lost(&targets[*i].name))?));
    }
    let names: Vec<String> = ranks.iter().map(|i| targets[*i].name.clone()).collect();
    let mut lines: Vec<&mut CopyConnection> =
        targets.iter_mut().filter_map(|target| target.line.as_mut()).collect();
    let (transport, texts) = (means.transport, hosts.iter().map(ToString::to_string));
    let mut begin = CopyBegin { hosts: texts.collect(), rank: 0, send, transport };
    for (line, name) in lines.iter_mut().zip(&names) {
        begin.rank += 1;
        line.write(&Some(&begin)).with_context(|| lost(name))?;
    }
    let (mut links, mut failures) = (Vec::with_capacity(ranks.len()), Vec::new());
    for (rank, host) in (1..).zip(&hosts) {
        links.push((rank, links::call(host, (means.copy, 0), means.secret)));
    }
    // All reports are read: a host that has given up, since it does not reach another one, also refuses this one.
    for ((line, name), (_, link)) in lines.iter_mut().zip(&names).zip(&links) {
        match (line.read(Some(links::PATIENCE)), link) {
            (Ok(CopyLinks::Made), Ok(_)) => {}
            (Ok(CopyLinks::Failed { rank, message }), _) => {
                let other = rank.checked_sub(1).and_then(|place| names.get(place));
                let other = other.map_or("a host that is none of this copy", String::as_str);
                failures.push(format!("{name} has no link with {other}: {message}"));
            }
            (_, Err(error)) => failures.push(format!("this host has no link with {name}: {error:#}")),
            (Err(error), Ok(_)) => failures.push(format!("{}: {error:#}", lost(name))),
        }
    }
    ensure!(
        failures.is_empty(),
        "{}. Each host must reach the others at the port of `squall serve`, or be copied to by itself",
        failures.join("; ")
    );
    for (line, name) in lines.iter_mut().zip(&names) {
        line.write(&()).with_context(|| lost(name))?;
    }
    let config = session_config(ranks.len() + 1, means.transport, &means.verbs, means.secret);
    let options = BulkOptions { block_bytes: Some(BLOCK_BYTES), ..BulkOptions::default() };
    let links: Result<Vec<_>> = links.into_iter().map(|(rank, link)| Ok((rank, link?))).collect();
    Ok(Session::over(&config, &options, 0, links?)?)
}

fn fail(targets: &mut [CopyTarget], i: usize, message: &str, observer: &mut dyn CopyObserver) {
    if targets[i].is_left() {
        observer.on_failure(i, &targets[i].name, message);
        targets[i].fail(message.into());
    }
}

/// Connects, proves the secret and reads the number of the host.
fn prove(host: &str, port: u16, secret: &Secret) -> Result<(CopyConnection, HostId)> {
    let mut line = reach(host, port, secret, &CopyCall::Control)?.into_line()?;
    let id = line.read(Some(ID_PATIENCE))?;
    Ok((line, id))
}

/// For the number of the host, which it sends at once.
const ID_PATIENCE: Duration = Duration::from_secs(30);
/// A host reports every two seconds that this copy still waits.
const POSITION_PATIENCE: Duration = Duration::from_secs(60);
/// Reserving the space of large files can take a while.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// For the digest of a very large file.
const DIGEST_PATIENCE: Duration = Duration::from_secs(600);
