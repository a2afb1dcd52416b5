//! `squall cp`: copies files to many hosts at once.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use squall_harness::terminal::{CommandVerdict, bars, output, units};

use crate::copy::send::{self, CopyObserver, CopyTarget, SendSettings};
use crate::copy::{BLOCK_BYTES, CopyRequest, CopyTransport, PORT, blocks, device, read_secret, source};

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
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

const EXAMPLES: &str = "PATH lies below the folder that `squall serve` was given at the host. Hosts relay for each other; one that is lost \
is left out and the others finish. A host receives one copy at a time; until then the command waits, and says for which. What was interrupted goes on from there when it is copied again. The exit status is \
1 if any host lacks anything.

Examples:
  squall cp image.raw a:images/ b:images/ c:images/ --secret-file secret
  squall cp ./website 192.0.2.7:/ [2001:db8::7]:/ --secret-file secret
  squall cp image.raw a:images/ b:images/ --secret-file secret --transport verbs";

pub(crate) fn run(arguments: &CopyArguments) -> Result<CommandVerdict> {
    let secret = read_secret(&arguments.secret_file)?;
    let verbs = device(arguments.device.as_deref());
    if arguments.transport == CopyTransport::Verbs {
        // Before any host takes space for it.
        squall_transports::verbs::check(&verbs, &[])?;
    }
    let (sources, hosts) = split(&arguments.paths)?;
    let sources = source::find(&sources)?;
    let means = SendSettings { secret: &secret, transport: arguments.transport, verbs };
    let begun = Instant::now();
    let (secret_of_all, port) = (&secret, arguments.port);
    let connect =
        |(name, host, _): &(String, String, String)| CopyTarget::connect(name, host, port, secret_of_all);
    let mut targets: Vec<CopyTarget> = std::thread::scope(|scope| {
        let connecting: Vec<_> = hosts.iter().map(|host| scope.spawn(move || connect(host))).collect();
        connecting.into_iter().map(|thread| thread.join().expect("to connect does not panic")).collect()
    });
    send::take_places(&mut targets, &mut complain);
    let is_one = sources.iter().filter(|source| source.entry.path.len() == 1).count() == 1;
    let entries: Vec<_> = sources.iter().map(|source| source.entry.clone()).collect();
    // Each takes the space of all files, which may take its time.
    std::thread::scope(|scope| {
        for (target, (_, _, path)) in targets.iter_mut().zip(&hosts) {
            let into = !is_one || path.is_empty() || path.ends_with('/');
            let request = CopyRequest { path: path.clone(), into, entries: entries.clone() };
            scope.spawn(move || target.ask(&request));
        }
    });
    for target in targets.iter().filter(|target| !target.is_left()) {
        complain(&target.name, target.failure.as_deref().unwrap_or("it has gone"));
    }
    let files = sources.iter().filter_map(|source| source.entry.file);
    let (count, bytes) = files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes));
    let total = sources.iter().filter_map(|source| source.entry.file).map(|file| blocks(file.bytes)).sum();
    let mut display = Display::new(&targets, total, arguments.quiet);
    send::send(&sources, &mut targets, &means, &mut display)?;
    display.finish();
    let failed = targets.iter().filter(|target| target.failure.is_some()).count();
    if !arguments.quiet {
        let seconds = begun.elapsed().as_secs_f64();
        let good = targets.len() - failed;
        let size = units::bytes(bytes as f64);
        let (files, all) = (if count == 1 { "file" } else { "files" }, targets.len());
        output::line(format_args!("{count} {files}, {size}, at {good} of {all} hosts in {seconds:.1} s"));
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
            bail!("`{text}` stands behind the hosts: write HOST:PATH")
        };
        let (name, host, path) = (host.to_owned(), host.to_owned(), path.to_owned());
        ensure!(hosts.iter().all(|(other, ..)| *other != name), "{name} is named twice");
        hosts.push((name, host, path));
    }
    Ok((sources.iter().map(PathBuf::from).collect(), hosts))
}

/// `HOST:PATH`, as scp takes it: what has a slash before its first colon is a path here.
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
    screen: MultiProgress,
    done: Vec<u64>,
}

impl Display {
    fn new(targets: &[CopyTarget], total: u64, quiet: bool) -> Self {
        let shown = console::user_attended_stderr() && !quiet;
        let to = if shown { bars::target() } else { ProgressDrawTarget::hidden() };
        let screen = MultiProgress::with_draw_target(to);
        let bar = |name: &str, length: u64| {
            let bar = screen.add(ProgressBar::new(length * BLOCK_BYTES));
            bar.set_style(bars::style("{prefix:24} {bar:32} {percent:>3} %  {binary_bytes_per_sec} {msg}"));
            bar.set_prefix(name.to_owned());
            bar
        };
        let bars = targets.iter().map(|target| bar(&target.name, total)).collect();
        let all = bar("all", total * targets.len() as u64);
        Self { bars, all, screen, done: vec![0; targets.len()] }
    }

    fn finish(&self) {
        self.bars.iter().chain([&self.all]).for_each(ProgressBar::finish);
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
        self.screen.suspend(|| complain(name, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_paths_are_told_apart() {
        assert_eq!(host_and_path("a:b/c"), Some(("a", "b/c")));
        assert_eq!(host_and_path("[::1]:x"), Some(("::1", "x")));
        assert_eq!(host_and_path("a:"), Some(("a", "")));
        for path in ["file", "./a:b", "/a:b", ":x"] {
            assert_eq!(host_and_path(path), None, "{path}");
        }
        let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (sources, hosts) = split(&names(&["f", "g", "a:x", "b:"])).unwrap();
        assert_eq!((sources.len(), hosts.len()), (2, 2));
        for wrong in [&["f", "g"][..], &["a:x", "b:"], &["f", "a:", "g"], &["f", "a:", "a:x"]] {
            assert!(split(&names(wrong)).is_err(), "{wrong:?}");
        }
    }
}
