//! `squall cp`: copies files to many hosts at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use squall_harness::EncryptionName;
use squall_harness::terminal::{CommandVerdict, PendingNote, bars, output, units};

use crate::copy::compare::compare;
use crate::copy::connection::silence;
use crate::copy::message::CopyToken;
use crate::copy::send::{self, CopyObserver, CopySource, WantedFile, blocks_lacked};
use crate::copy::source::{self, SourceEntry, SourceTree};
use crate::copy::target::{CopyTarget, take_places};
use crate::copy::{
    BLOCK_BYTES, CopyDigest, CopyEntry, CopyRequest, CopyTransport, CopyTrust, PORT, device, random_number,
};

/// Copy files and folders to many hosts at once, for little more than the time of one
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "squall cp [OPTIONS] --secret-file <FILE> <SOURCE>... <HOST:PATH>..."
)]
pub(crate) struct CopyArguments {
    /// Files and folders, then HOST:PATH for each host
    #[arg(required = true, num_args = 2.., value_name = "SOURCE|HOST:PATH")]
    paths: Vec<String>,
    /// The file that holds the secret, the same at all hosts
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// The port at which the hosts listen
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// How files travel; the hosts and their `serve` need devices for RDMA
    #[arg(long, value_enum, default_value = "tcp")]
    transport: CopyTransport,
    /// With `--transport verbs`: this host's RDMA device [default: one that fits]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// What is encrypted; the wish of the end that wants more counts. Digests are, always
    #[arg(long, value_enum, default_value = "on")]
    encryption: EncryptionName,
    /// A file of the same size and time counts as the same, and nothing reads it
    #[arg(long)]
    by_time: bool,
    /// How long a host may be silent before the others continue without it, at least 3s
    #[arg(long, value_name = "TIME", value_parser = silence, default_value = "10s")]
    timeout: Duration,
    /// Show no progress, and print nothing if all goes well
    #[arg(long, short)]
    quiet: bool,
    /// Print the result as JSON, with the error of each host that lacks something
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "PATH is below the folder that `squall serve` was given at the host. Hosts relay for each other; one that \
is lost, or silent for longer than --timeout, is left out and the others finish. A host receives one copy at a time; until its turn \
comes, the command waits and names the other copy. A copy that was interrupted continues from there when it is started again.

The content decides what is sent: this host and the others read files that have the same size at both, and compare digests. With \
--by-time a file of the same size and time counts as the same. Permissions and times are carried over to files that are the same, \
too. Holes of sparse files are sent as zeros, and take space at the hosts.

Symbolic links are followed: the hosts get the files and folders to which they lead; a link to nothing, or to a folder that it is \
in, is an error before anything is sent, as are two sources of one name. A file that cannot be read, or vanishes meanwhile, is \
named, and the others are copied. The exit status is 1 if any host lacks anything, or a file was not copied.

Examples:
  squall cp image.raw a:images/ b:images/ c:images/ --secret-file secret
  squall cp ./website 192.0.2.7:/ [2001:db8::7]:/ --secret-file secret
  squall cp image.raw a:images/ b:images/ --secret-file secret --transport verbs";

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    files: u64,
    bytes: u64,
    seconds: f64,
    hosts: Vec<HostOutcome>,
    /// The files and folders that could not be read.
    unread: Vec<UnreadOutcome>,
}

#[derive(Debug, Serialize)]
struct UnreadOutcome {
    path: String,
    error: String,
}

#[derive(Debug, Serialize)]
struct HostOutcome {
    host: String,
    /// Why the host lacks something.
    error: Option<String>,
}

pub(crate) fn run(arguments: &CopyArguments) -> Result<CommandVerdict> {
    let trust = CopyTrust::read(&arguments.secret_file, arguments.encryption.into())?;
    let verbs = device(arguments.device.as_deref());
    if arguments.transport == CopyTransport::Verbs {
        // Before any host takes space for it.
        squall_transports::verbs::check(&verbs, &[])?;
    }
    let (sources, hosts) = split(&arguments.paths)?;
    let SourceTree { entries: sources, failures } = source::find(&sources)?;
    let (copy, begun) = (CopyToken(random_number()?), Instant::now());
    let transport = arguments.transport;
    let means = CopySource { copy, trust: &trust, transport, verbs, silence: arguments.timeout };
    let mut display = Display::new(arguments.quiet || arguments.json);
    for (path, message) in &failures {
        display.on_unread(path, message);
    }
    let mut targets = connect(&hosts, arguments.port, &means);
    take_places(&mut targets, &mut complain);
    let entries: Vec<CopyEntry> = sources.iter().map(|source| source.entry.clone()).collect();
    let is_one = entries.iter().filter(|entry| entry.path.len() == 1).count() == 1;
    let request = |path: &str| CopyRequest {
        copy,
        path: path.into(),
        into: !is_one || path.is_empty() || path.ends_with('/'),
        entries: entries.clone(),
        digest: CopyDigest::Blake3,
    };
    std::thread::scope(|scope| {
        for (target, (_, _, path)) in targets.iter_mut().zip(&hosts) {
            let request = request(path);
            scope.spawn(move || target.ask(&request));
        }
    });
    let pending = PendingNote::new("comparing files, and waiting until the hosts have space...".into());
    let unread = compare((sources.as_slice(), &request("")), &mut targets, arguments.by_time, &mut display);
    drop(pending);
    for target in targets.iter().filter(|target| !target.is_left()) {
        complain(&target.name, target.failure.as_deref().unwrap_or("it has gone"));
    }
    let wanted = send::wanted(&sources, &targets, |file| unread.contains(&file));
    display.begin(&targets, &wanted);
    send::send(&wanted, &mut targets, &means, &mut display)?;
    display.finish();
    report(arguments, &sources, targets, display.unread, begun)
}

/// Connects to all hosts at once.
fn connect(hosts: &[(String, String, String)], port: u16, source: &CopySource<'_>) -> Vec<CopyTarget> {
    let _pending = PendingNote::new("connecting to the hosts...".into());
    let connect =
        |(name, host, _): &(String, String, String)| CopyTarget::connect(name, (host.as_str(), port), source);
    std::thread::scope(|scope| {
        let connecting: Vec<_> = hosts.iter().map(|host| scope.spawn(move || connect(host))).collect();
        connecting.into_iter().map(|thread| thread.join().expect("to connect does not panic")).collect()
    })
}

fn report(
    arguments: &CopyArguments,
    sources: &[SourceEntry],
    targets: Vec<CopyTarget>,
    unread: BTreeMap<PathBuf, String>,
    begun: Instant,
) -> Result<CommandVerdict> {
    let copied = sources.iter().filter_map(|source| source.file.as_ref());
    let copied = copied.filter(|file| !unread.contains_key(&file.path));
    let (files, bytes) = copied.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.bytes));
    let (all, lost) = (targets.len(), targets.iter().filter(|target| target.failure.is_some()).count());
    let (unread_count, seconds) = (unread.len() as u64, begun.elapsed().as_secs_f64());
    let is_good = lost == 0 && unread.is_empty();
    if arguments.json {
        let hosts =
            targets.into_iter().map(|target| HostOutcome { host: target.name, error: target.failure });
        let unread =
            unread.into_iter().map(|(path, error)| UnreadOutcome { path: path.display().to_string(), error });
        output::json(&Outcome { files, bytes, seconds, hosts: hosts.collect(), unread: unread.collect() })?;
    } else if !arguments.quiet {
        let (good, all) = (all - lost, units::things(all as u64, "host"));
        let (files, size) = (units::things(files, "file"), units::bytes(bytes as f64));
        let not = match unread_count {
            0 => String::new(),
            count => format!(", without {} that could not be read", units::things(count, "file")),
        };
        output::line(format_args!("{files}, {size}, at {good} of {all} in {seconds:.1} s{not}"));
    }
    Ok(if is_good { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// Sources, and for each target how it was named, its host and the path there.
type Parts = (Vec<PathBuf>, Vec<(String, String, String)>);

fn split(paths: &[String]) -> Result<Parts> {
    let is_target = |text: &String| host_and_path(text).is_some();
    let first = paths.iter().position(is_target).context("no target: name the hosts as HOST:PATH")?;
    let (sources, targets) = paths.split_at(first);
    ensure!(!sources.is_empty(), "nothing to copy: name files or folders before the hosts");
    let mut hosts: Vec<(String, String, String)> = Vec::new();
    for text in targets {
        let Some((host, path)) = host_and_path(text) else {
            bail!("`{text}` comes after the hosts: write HOST:PATH")
        };
        ensure!(
            !is_port(path),
            "{text}: give the port, which is the same at all hosts, with --port, and write HOST:PATH"
        );
        let (name, host, path) = (host.to_owned(), host.to_owned(), path.to_owned());
        ensure!(hosts.iter().all(|(other, ..)| *other != name), "{name} is named twice");
        hosts.push((name, host, path));
    }
    Ok((sources.iter().map(PathBuf::from).collect(), hosts))
}

/// Returns whether a path begins like `7401:`, as after `HOST:PORT:PATH`.
fn is_port(path: &str) -> bool {
    path.split_once(':').is_some_and(|(port, _)| port.parse::<u16>().is_ok())
}

/// Splits `HOST:PATH` as scp does: a text with a slash before its first colon is a local path.
fn host_and_path(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once("]:");
    }
    let (host, path) = text.split_once(':')?;
    (!host.is_empty() && !host.contains('/')).then_some((host, path))
}

fn complain(name: &str, message: &str) {
    output::note(format_args!("squall: {name}: {message}"));
}

/// A bar for each host and one for all on a terminal, and what could not be read.
struct Display {
    is_quiet: bool,
    bars: Vec<ProgressBar>,
    all: ProgressBar,
    done: Vec<u64>,
    unread: BTreeMap<PathBuf, String>,
}

impl Display {
    fn new(is_quiet: bool) -> Self {
        let (bars, all) = (Vec::new(), ProgressBar::hidden());
        Self { is_quiet, bars, all, done: Vec::new(), unread: BTreeMap::new() }
    }

    /// Shows the bars, each as long as what is to be sent.
    fn begin(&mut self, targets: &[CopyTarget], wanted: &[WantedFile<'_>]) {
        let bar = |name: &str, length: u64| {
            let bar = if self.is_quiet { ProgressBar::hidden() } else { bars::show(ProgressBar::new(0)) };
            bar.set_length(length * BLOCK_BYTES);
            bar.set_style(bars::rate_style("{prefix:24} {bar:32} {percent:>3} %  {bytes_rate} {msg}"));
            bar.set_prefix(name.to_owned());
            bar
        };
        let lengths: Vec<u64> = targets.iter().map(|target| blocks_lacked(wanted, target)).collect();
        let bars = targets.iter().zip(&lengths).map(|(target, length)| bar(&target.name, *length)).collect();
        let all = bar("all", lengths.iter().sum());
        (self.bars, self.all, self.done) = (bars, all, vec![0; targets.len()]);
    }

    /// Removes the bars: the result follows.
    fn finish(&self) {
        self.bars.iter().chain([&self.all]).for_each(ProgressBar::finish_and_clear);
        bars::clear();
    }
}

impl CopyObserver for Display {
    fn on_progress(&mut self, target: usize, blocks: u64) {
        self.done[target] = blocks;
        self.bars[target].set_position(blocks * BLOCK_BYTES);
        self.all.set_position(self.done.iter().sum::<u64>() * BLOCK_BYTES);
    }

    fn on_failure(&mut self, target: usize, name: &str, message: &str) {
        if let Some(bar) = self.bars.get(target) {
            bar.abandon_with_message("failed");
        }
        complain(name, message);
    }

    fn on_unread(&mut self, path: &Path, message: &str) {
        output::note(format_args!("squall: {message}"));
        self.unread.insert(path.to_owned(), message.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_paths_are_distinguished() {
        assert_eq!(host_and_path("a:b/c"), Some(("a", "b/c")));
        assert_eq!(host_and_path("[::1]:x"), Some(("::1", "x")));
        assert_eq!(host_and_path("a:"), Some(("a", "")));
        for path in ["file", "./a:b", "/a:b", ":x"] {
            assert_eq!(host_and_path(path), None, "{path}");
        }
        let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (sources, hosts) = split(&names(&["f", "g", "a:x", "b:"])).unwrap();
        assert_eq!((sources.len(), hosts.len()), (2, 2));
        for wrong in
            [&["f", "g"][..], &["a:x", "b:"], &["f", "a:", "g"], &["f", "a:", "a:x"], &["f", "a:7401:x"]]
        {
            assert!(split(&names(wrong)).is_err(), "{wrong:?}");
        }
    }
}
