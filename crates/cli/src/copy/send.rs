//! The sending side: asks the hosts, sends what they lack, and judges what has come.

use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use squall::Progress;
use squall::bulk::{Options, Session};
use squall::config::{Address, Config, Secret, VerbsSettings};

use super::source::Source;
use super::{Answer, BLOCK_BYTES, Begin, FileEntry, Judgement, Line, Request, Transport, blocks, digest};
use crate::control::write_line;

/// A host to which is copied.
#[derive(Debug)]
pub(crate) struct Target {
    /// As it was named.
    pub(crate) name: String,
    line: Option<Line>,
    /// Why nothing more goes there.
    pub(crate) failure: Option<String>,
    /// Blocks that are there of each entry.
    held: Vec<u64>,
}

/// Hears how it goes.
pub(crate) trait Observer {
    /// So many blocks, of all, are at the target.
    fn on_progress(&mut self, target: usize, blocks: u64);
    /// Nothing more goes to the target.
    fn on_failure(&mut self, target: usize, name: &str, message: &str);
}

impl Target {
    /// Connects to `host` and proves the secret there. A failure is noted.
    pub(crate) fn connect(name: &str, host: &str, port: u16, secret: &Secret) -> Self {
        let mut target = Self { name: name.into(), line: None, failure: None, held: Vec::new() };
        match connect(host, port).and_then(|stream| Line::prove(stream, secret)) {
            Ok(line) => target.line = Some(line),
            Err(error) => target.failure = Some(format!("{error:#}")),
        }
        target
    }

    /// Asks what is there.
    pub(crate) fn ask(&mut self, request: &Request) {
        let Some(line) = &mut self.line else { return };
        let answer = line.say(request).and_then(|()| line.hear(Some(ANSWER_PATIENCE)));
        match answer {
            Ok(Answer::Ready { held }) if request.fits(&held) => self.held = held,
            Ok(Answer::Ready { .. }) => {
                self.fail("it has more than was asked for: run the same release there".into());
            }
            Ok(Answer::Refused { message }) => self.fail(message),
            Err(error) => self.fail(format!("{error:#}")),
        }
    }

    /// Whether it takes part.
    pub(crate) const fn is_left(&self) -> bool {
        self.line.is_some()
    }

    /// Blocks that are there of file number `file`.
    fn held(&self, file: usize) -> u64 {
        self.held.get(file).copied().unwrap_or(0)
    }

    fn fail(&mut self, message: String) {
        self.failure.get_or_insert(message);
        self.line = None;
    }
}

/// By what the files travel.
pub(crate) struct Means<'m> {
    pub(crate) secret: &'m Secret,
    pub(crate) transport: Transport,
    pub(crate) verbs: VerbsSettings,
}

/// Sends what the targets lack; failures are noted at the targets.
///
/// # Errors
/// If nothing can be sent at all.
pub(crate) fn send(
    sources: &[Source],
    targets: &mut [Target],
    means: &Means<'_>,
    observer: &mut dyn Observer,
) -> Result<()> {
    let files: Vec<(usize, &Source, FileEntry)> =
        sources.iter().enumerate().filter_map(|(i, source)| Some((i, source, source.entry.file?))).collect();
    let lacks = |target: &Target, number: usize, entry: &FileEntry| {
        // An empty file has no block by which to tell.
        target.is_left() && (target.held(number) < blocks(entry.bytes) || entry.bytes == 0)
    };
    let wanted: Vec<(usize, (usize, &Source, FileEntry))> = files
        .into_iter()
        .enumerate()
        .filter(|(number, (_, _, entry))| targets.iter().any(|target| lacks(target, *number, entry)))
        .collect();
    let ranks: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].is_left()).collect();
    if wanted.is_empty() || ranks.is_empty() {
        for target in targets.iter_mut() {
            // Who has gone meanwhile has all all the same.
            let _ = target.line.as_mut().map(|line| line.say(&None::<Begin>));
        }
        return Ok(());
    }
    let send: Vec<usize> = wanted.iter().map(|(_, (index, ..))| *index).collect();
    let mut session = begin(targets, &ranks, &send, means)?;
    let mut done = vec![0; targets.len()];
    for (number, (_, source, entry)) in wanted {
        let held: Vec<u64> = targets.iter().map(|target| target.held(number)).collect();
        let outcome = send_file(&mut session, source, &entry, &mut |rank, blocks| {
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
            Err(error) if targets.iter().any(Target::is_left) => return Err(error),
            Err(_) => return Ok(()),
        };
        for i in ranks.iter().copied() {
            judge(&mut targets[i], &right, &mut |target, message| {
                observer.on_failure(i, &target.name, message)
            });
            if targets[i].is_left() {
                done[i] += blocks(entry.bytes) - held[i];
                observer.on_progress(i, done[i]);
            }
        }
    }
    Ok(())
}

/// Tells a target the digest of the file that it has, and hears whether it is right.
fn judge(target: &mut Target, right: &str, on_failure: &mut dyn FnMut(&Target, &str)) {
    let Some(line) = &mut target.line else { return };
    let judgement = line.say(&right).and_then(|()| line.hear(Some(DIGEST_PATIENCE)));
    let message = match judgement {
        Ok(Judgement::Good) => return,
        Ok(Judgement::Bad { message }) => message,
        Err(error) => {
            target.line = None;
            format!("{error:#}")
        }
    };
    on_failure(target, &message);
    target.failure.get_or_insert(message);
}

/// Sends one file, and computes its digest meanwhile.
fn send_file(
    session: &mut Session,
    source: &Source,
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

/// Opens the session and tells the targets where it is.
fn begin(targets: &[Target], ranks: &[usize], send: &[usize], means: &Means<'_>) -> Result<Session> {
    let name = format!("copy-{}-{:x}", std::process::id(), now_ns());
    let members = ranks.len() + 1;
    let mut config = Config::local("copy", members);
    config.cluster.clone_from(&name);
    config.secret = means.secret.clone();
    config.transport = means.transport.named();
    config.verbs = means.verbs.clone();
    let is_ipv6 =
        targets.iter().filter_map(|target| target.line.as_ref()?.peer().ok()).any(|peer| peer.is_ipv6());
    let anywhere = if is_ipv6 { "::" } else { "0.0.0.0" };
    config.listen = Address::Tcp { host: anywhere.into(), port: 0 };
    config.contacts.clear();
    config.timeout = super::receive::JOIN_TIMEOUT;
    let mouths: Result<Vec<TcpStream>> =
        ranks.iter().filter_map(|i| targets[*i].line.as_ref()).map(Line::mouth).collect();
    let mut mouths = mouths?;
    let (send, begin_name, transport) = (send.to_vec(), name, means.transport);
    let mut tell = move |progress: Progress| {
        let Progress::Listening { address: Address::Tcp { port, .. } } = progress else { return };
        for (i, mouth) in mouths.iter_mut().enumerate() {
            let (name, rank, send) = (begin_name.clone(), i + 1, send.clone());
            // Who has gone does not join, and that is found out there.
            let _ = write_line(mouth, &Some(Begin { name, port, members, rank, send, transport }));
        }
    };
    let options = Options { block_bytes: Some(BLOCK_BYTES), schedule: None };
    Ok(Session::join_observed(&config, &options, &mut tell)?)
}

fn fail(targets: &mut [Target], i: usize, message: &str, observer: &mut dyn Observer) {
    if targets[i].is_left() {
        observer.on_failure(i, &targets[i].name, message);
        targets[i].fail(message.into());
    }
}

fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let mut last = None;
    let addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot find the host {host}"))?;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => {
            bail!("cannot reach {host} at port {port} ({error}): is `squall serve` running there?")
        }
        None => bail!("{host} has no address"),
    }
}

fn now_ns() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Taking the space of large files can take a while.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// For the digest of a very large file.
const DIGEST_PATIENCE: Duration = Duration::from_secs(600);
