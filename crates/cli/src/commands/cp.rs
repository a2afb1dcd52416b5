//! `squall cp`: copies files to many hosts at once.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use squall_harness::terminal::{CommandVerdict, PendingNote, bars, output, units};

use crate::copy::message::CopyToken;
use crate::copy::send::{self, CopyObserver, CopyTarget, SendSettings};
use crate::copy::{
    BLOCK_BYTES, CopyDigest, CopyRequest, CopyTransport, PORT, blocks, device, random_number, read_secret,
    source,
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
    /// Show no progress, and print nothing if all goes well
    #[arg(long, short)]
    quiet: bool,
    /// Print the result as JSON, with the error of each host that lacks something
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "PATH is below the folder that `squall serve` was given at the host. Hosts relay for each other; one that \
is lost is left out and the others finish. A host receives one copy at a time; until its turn comes, the command waits and names \
the other copy. A copy that was interrupted continues from there when it is started again. Symbolic links are followed: the hosts \
get the files and folders to which they lead; a link to nothing, or to a folder that it is in, is an error before anything is \
sent. The exit status is 1 if any host lacks anything.

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
}

#[derive(Debug, Serialize)]
struct HostOutcome {
    host: String,
    /// Why the host lacks something.
    error: Option<String>,
}

pub(crate) fn run(arguments: &CopyArguments) -> Result<CommandVerdict> {
    let secret = read_secret(&arguments.secret_file)?;
    let verbs = device(arguments.device.as_deref());
    if arguments.transport == CopyTransport::Verbs {
        // Before any host takes space for it.
        squall_transports::verbs::check(&verbs, &[])?;
    }
    let (sources, hosts) = split(&arguments.paths)?;
    let sources = source::find(&sources)?;
    let copy = CopyToken(random_number()?);
    let means = SendSettings { copy, secret: &secret, transport: arguments.transport, verbs };
    let begun = Instant::now();
    let (secret_of_all, port) = (&secret, arguments.port);
    let connect =
        |(name, host, _): &(String, String, String)| CopyTarget::connect(name, host, port, secret_of_all);
    let pending = PendingNote::new("connecting to the hosts...".into());
    let mut targets: Vec<CopyTarget> = std::thread::scope(|scope| {
        let connecting: Vec<_> = hosts.iter().map(|host| scope.spawn(move || connect(host))).collect();
        connecting.into_iter().map(|thread| thread.join().expect("to connect does not panic")).collect()
    });
    drop(pending);
    send::take_places(&mut targets, &mut complain);
    let is_one = sources.iter().filter(|source| source.entry.path.len() == 1).count() == 1;
    let entries: Vec<_> = sources.iter().map(|source| source.entry.clone()).collect();
    // Each host reserves space for all files, which may take a while.
    let pending = PendingNote::new("waiting until the hosts have space for the files...".into());
    std::thread::scope(|scope| {
        for (target, (_, _, path)) in targets.iter_mut().zip(&hosts) {
            let into = !is_one || path.is_empty() || path.ends_with('/');
            let request = CopyRequest {
                copy,
                path: path.clone(),
                into,
                entries: entries.clone(),
                digest: CopyDigest::Blake3,
            };
            scope.spawn(move || target.ask(&request));
        }
    });
    drop(pending);
    for target in targets.iter().filter(|target| !target.is_left()) {
        complain(&target.name, target.failure.as_deref().unwrap_or("it has gone"));
    }
    let files = sources.iter().filter_map(|source| source.entry.file);
    let (count, bytes) = files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes));
    let total = sources.iter().filter_map(|source| source.entry.file).map(|file| blocks(file.bytes)).sum();
    let mut display = Display::new(&targets, total, arguments.quiet || arguments.json);
    send::send(&sources, &mut targets, &means, &mut display)?;
    display.finish();
    let failed = targets.iter().filter(|target| target.failure.is_some()).count();
    let seconds = begun.elapsed().as_secs_f64();
    if arguments.json {
        let hosts =
            targets.into_iter().map(|target| HostOutcome { host: target.name, error: target.failure });
        output::json(&Outcome { files: count, bytes, seconds, hosts: hosts.collect() })?;
    } else if !arguments.quiet {
        let (good, all) = (targets.len() - failed, units::things(targets.len() as u64, "host"));
        let (files, size) = (units::things(count, "file"), units::bytes(bytes as f64));
        output::line(format_args!("{files}, {size}, at {good} of {all} in {seconds:.1} s"));
    }
    Ok(if failed == 0 { CommandVerdict::Good } else { CommandVerdict::Bad })
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

/// A bar for each host and one for all on a terminal.
struct Display {
    bars: Vec<ProgressBar>,
    all: ProgressBar,
    done: Vec<u64>,
}

impl Display {
    fn new(targets: &[CopyTarget], total: u64, quiet: bool) -> Self {
        let bar = |name: &str, length: u64| {
            let bar = if quiet { ProgressBar::hidden() } else { bars::show(ProgressBar::new(0)) };
            bar.set_length(length * BLOCK_BYTES);
            bar.set_style(bars::rate_style("{prefix:24} {bar:32} {percent:>3} %  {bytes_rate} {msg}"));
            bar.set_prefix(name.to_owned());
            bar
        };
        let bars = targets.iter().map(|target| bar(&target.name, total)).collect();
        let all = bar("all", total * targets.len() as u64);
        Self { bars, all, done: vec![0; targets.len()] }
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
        self.bars[target].abandon_with_message("failed");
        complain(name, message);
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
