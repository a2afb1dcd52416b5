//! `squall node`: a member by a configuration file, until it is asked to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use squall::config::{MetricsConfig, quantity};
use squall::{BootstrapProgress, Config, FlightRecord, Group, View};
use squall_fabric::Reminders;
use squall_harness::terminal::{CommandVerdict, Interrupts, error_text, output};

use crate::service_manager::ServiceManager;
use crate::trace_signal::{self, TraceSignal};

/// Run a member: bring the group together with the others, or join it if it runs already
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NodeArguments {
    /// The configuration, the same at all members but for `listen` and `rank`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Where this member can be reached, instead of `listen` in the file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<squall::config::Address>,
    /// The rank that this member wants, instead of `rank` in the file
    #[arg(long)]
    rank: Option<usize>,
    /// How long to wait for the first members, or to join the running group, instead of `timeouts.join` in the file
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    timeout: Option<Duration>,
    /// Show metrics over HTTP at this address (host:port), instead of `metrics.listen` in the file
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<squall::config::Address>,
    /// When this member ends, or gets SIGUSR1, write what it has noticed lately into this file, instead of `flight_record` in the
    /// file of the configuration: a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print each view as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "A node takes part in all its subgroups, so that what others send is safe with it, and prints each \
view of the group; its log says what happens until then, and why others are refused. Ctrl-C leaves in order. A process that \
has died is started again with the same command. Started by systemd with Type=notify, it reports when it has joined. SIGUSR1 asks for a trace while it runs: \
without --trace or `flight_record`, it is written beside this member's folder in the `path` of [storage]. To use the messages, see `squall recv`, or write a program with the library.

Examples:
  squall node --config squall.toml
  squall node -c squall.toml --listen 192.0.2.2:7400 --rank 1
  squall node -c squall.toml --metrics 127.0.0.1:9464
  squall node -c squall.toml --timeout 10s --log-format json
  squall node -c squall.toml --trace member0.json";

/// What a node reports: that takes as long as the reader takes.
enum NodeReport {
    View(View),
    Trace(FlightRecord),
    /// Everything before it has been reported.
    End(SyncSender<()>),
}

/// The thread that prints views and writes traces, so that a node ends when it is asked to although they are not read.
struct NodeReporter(SyncSender<NodeReport>);

impl NodeReporter {
    fn start(own: usize, json: bool, trace: Option<PathBuf>) -> Result<Self> {
        let (sender, reports) = sync_channel(REPORTS_MAX);
        let report = move |report| match report {
            NodeReport::View(view) => print(&view, own, json),
            NodeReport::Trace(record) => write_trace(trace.as_deref(), &record),
            NodeReport::End(done) => _ = done.send(()),
        };
        let run = move || reports.into_iter().for_each(report);
        std::thread::Builder::new().name("squall reports".into()).spawn(run)?;
        Ok(Self(sender))
    }

    fn put(&self, report: NodeReport) {
        if self.0.try_send(report).is_err() {
            tracing::warn!("a view or a trace is not reported, as those before it are not read");
        }
    }

    /// Waits until everything is reported, for a short time at most.
    fn finish(&self) {
        let (done, is_done) = sync_channel(1);
        if self.0.try_send(NodeReport::End(done)).is_ok() {
            let _ = is_done.recv_timeout(REPORT_PATIENCE);
        }
    }
}

/// What a node learns of.
enum NodeNews {
    Interrupted,
    TraceWanted,
    View(View),
}

pub(crate) fn run(arguments: &NodeArguments) -> Result<CommandVerdict> {
    let mut config = Config::load_for(&arguments.config, arguments.listen.clone(), arguments.rank)?;
    config.timeout = arguments.timeout.unwrap_or(config.timeout);
    let listen = arguments.metrics.clone().map(|listen| MetricsConfig { listen });
    config.metrics = listen.or(config.metrics);
    config.flight_record = arguments.trace.clone().or(config.flight_record);
    let (patience, trace) = (leave_patience(&config), trace_signal::file(&config));
    let (sender, news) = channel();
    let interrupts = Interrupts::take()?;
    let traces = sender.clone();
    // The receiver may be gone when the node ends.
    let _signal = TraceSignal::take(move || drop(traces.send(NodeNews::TraceWanted)))?;
    let names = subgroups_of_messages(&config)?;
    let on_view = sender.clone();
    let manager = Arc::new(ServiceManager::of_environment());
    let manager_of_join = Arc::clone(&manager);
    let (begun, mut refusals) = (Instant::now(), Reminders::default());
    let builder = Group::builder(config)
        .on_progress(move |progress| {
            if let BootstrapProgress::Joined { joined, members } = &progress {
                manager_of_join.status(&format!("{joined} of {members} members are here"));
            }
            report(progress, &mut refusals, begun.elapsed());
        })
        .on_view(move |view| drop(on_view.send(NodeNews::View(view.clone()))));
    let builder = names.iter().fold(builder, |builder, name| builder.on_message(name, |_| ()));
    let group = builder.join()?;
    manager.ready(&described(&group.view(), group.rank()));
    let reporter = NodeReporter::start(group.rank(), arguments.json, trace)?;
    interrupts.set(move || drop(sender.send(NodeNews::Interrupted)));
    loop {
        match news.recv_timeout(LOOK_PERIOD) {
            Ok(NodeNews::Interrupted) => {
                manager.stopping();
                group.leave(patience);
                reporter.finish();
                return Ok(CommandVerdict::Good);
            }
            Ok(NodeNews::TraceWanted) => reporter.put(NodeReport::Trace(group.flight_record())),
            Ok(NodeNews::View(view)) => {
                manager.status(&described(&view, group.rank()));
                reporter.put(NodeReport::View(view));
            }
            Err(_) => {
                if let Some(failure) = group.failure() {
                    reporter.finish();
                    return Err(failure.into());
                }
            }
        }
    }
}

/// Returns the subgroups that this member takes messages from. One that is divided into shards belongs to an object, which a node does not
/// have: as a member of a shard it would hold no state, where others rely on as many states as `replicas`.
fn subgroups_of_messages(config: &Config) -> Result<Vec<String>> {
    let (divided, whole): (Vec<_>, Vec<_>) =
        config.subgroups.iter().partition(|(_, subgroup)| subgroup.shards > 1);
    for (name, subgroup) in divided {
        let is_out = config.rank.is_some_and(|rank| !subgroup.members.has(rank));
        ensure!(
            is_out,
            "subgroup `{name}` holds an object in {} shards, and `squall node` has no object: run the application here, or give this member a \
             `rank` that the `members` of `{name}` do not have",
            subgroup.shards
        );
    }
    Ok(whole.into_iter().map(|(name, _)| name.clone()).collect())
}

/// Writes what the member has noticed lately; the member continues if that fails.
fn write_trace(file: Option<&Path>, record: &FlightRecord) {
    let Some(file) = file else {
        tracing::warn!(
            "there is no file for the trace that SIGUSR1 asks for: start the node with --trace FILE, or use `squall trace`"
        );
        return;
    };
    match trace_signal::write(file, record) {
        Ok(()) => tracing::info!("what this member has noticed lately is in {}", file.display()),
        Err(error) => tracing::error!("{}", error_text(&error)),
    }
}

fn print(view: &View, own: usize, json: bool) {
    if json {
        let ranks: Vec<u64> = view.members.iter().map(|member| member.tag).collect();
        output::write(&format!("{}\n", json!({ "view": view.id, "ranks": ranks, "rank": own })));
    } else {
        output::line(described(view, own));
    }
}

/// The view in a line.
fn described(view: &View, own: usize) -> String {
    let ranks: Vec<String> = view.members.iter().map(|member| member.tag.to_string()).collect();
    format!("view {}: members {}; this is member {own}", view.id, ranks.join(", "))
}

/// Logs what happens while the members find each other; `now` is the time since the start.
fn report(progress: BootstrapProgress, refusals: &mut Reminders<String>, now: Duration) {
    match progress {
        BootstrapProgress::Listening { address } => tracing::info!("listening at {address}"),
        // A process that refuses this one is named in the cause.
        BootstrapProgress::Calling { contact, cause } if cause.starts_with(&contact.to_string()) => {
            tracing::warn!("{cause}");
        }
        BootstrapProgress::Calling { contact, cause } => {
            tracing::info!("no answer from {contact} yet: {cause}");
        }
        BootstrapProgress::Joined { joined, members } => {
            tracing::info!("{joined} of {members} members are here");
        }
        BootstrapProgress::NoQuorum { present, needed, first: None } => tracing::warn!(
            "enough processes are here, but {present} of the contacts, and {needed} are needed: start another contact"
        ),
        BootstrapProgress::NoQuorum { first: Some(first), .. } => tracing::warn!(
            "enough processes are here, but so few begin only with the first contact: start the process at {first}"
        ),
        BootstrapProgress::Restarting { view, present, members, needed } => tracing::info!(
            "the group restarts from its logs: {present} of the {members} members of view {view} are here, {needed} are needed"
        ),
        BootstrapProgress::Left { peer } => tracing::info!("{peer} has gone again"),
        BootstrapProgress::Redirected { leader } => tracing::info!("the leader is at {leader}"),
        BootstrapProgress::Waiting { contact, reason } => {
            tracing::info!("{contact} admits no process now: {reason}");
        }
        BootstrapProgress::Admitted { node, members } => {
            tracing::info!("admitted as {node} by a group of {members}");
        }
        BootstrapProgress::Rejected { peer, cause } => match refusals.note(cause.clone(), now) {
            None => {}
            Some(0) => tracing::warn!("refused {peer}: {cause}"),
            Some(silent) => tracing::warn!("refused {peer}, after {silent} like it: {cause}"),
        },
        _ => {}
    }
}

/// How long a member waits for the view that it leaves with.
fn leave_patience(config: &Config) -> Duration {
    2 * config.suspicion_after.unwrap_or(Duration::from_secs(5))
}

/// Between looks whether the group has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// How many views and traces may wait for their reader.
const REPORTS_MAX: usize = 256;
/// How long a node that ends waits for the reader of its views.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);
