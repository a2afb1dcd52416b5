//! `squall chaos`: what goes wrong with processes, machines and networks is done to a group under load, at random or by a
//! script, and the group has to continue and to agree.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};

use super::lab::run_again_in_lab;
use crate::chaos::fault::{Fault, FaultKind};
use crate::chaos::witness::CLIENTS;
use crate::chaos::{ChaosOutcome, ChaosPlan, ChaosRun};
use crate::cluster::check_locations;
use crate::cluster::churn::{ChurnPlan, ProcessPool};
use crate::control::{ChurnJob, IdleName, MemberLocation, StoreJob, TransportName};
use crate::lab::{DISK, HostPlan, LabMap, LabPlan, LinkConditions, is_root};
use crate::operations::history::HistoryFile;
use crate::operations::recorder::OperationRecorder;
use crate::terminal::{CommandVerdict, Interrupts, error_text, output, units};

/// Kill, halt, cut off, restart and disturb members under load, and check that the others continue and agree
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ChaosArguments {
    /// How long faults happen
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Processes; a kill with a halt needs five
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(3..=16))]
    members: u64,
    /// How they reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// Which faults may happen [default: all that are possible here]
    #[arg(long, value_enum, value_name = "FAULT", value_delimiter = ',')]
    faults: Vec<FaultKind>,
    /// These faults one after the other, each to a group that is whole, instead of faults at random: FAULT, FAULT@AFTER_MS
    /// (from its first part to its second), FAULT~LASTS_MS (else halted processes never continue)
    #[arg(long, value_name = "FAULT", value_delimiter = ',', conflicts_with_all = ["faults", "seconds"])]
    script: Vec<Fault>,
    /// How many times to run the script
    #[arg(long, value_name = "N", default_value_t = 1, requires = "script")]
    repeat: usize,
    /// Where processes run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<MemberLocation>,
    /// Messages per second of each member
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pace: u32,
    /// Silence in milliseconds after which a halted member is taken for dead
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..))]
    suspicion_ms: u64,
    /// How long the state of a shard of the replicated object travels
    #[arg(long, value_name = "MS", default_value_t = 200)]
    transfer_ms: u64,
    /// At how many members each shard is; fewer than all suit a script without deaths [default: at all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=16))]
    replicas: Option<u64>,
    /// What happens in which order; the times are the machine's
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep the accounts in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Members carry out transactions, too, on a second object with two shards of members; needs four. Faults that do not spare a
    /// member of each shard are left out
    #[arg(long, conflicts_with = "locations")]
    transactions: bool,
    /// Write what clients of the replicated object ask and are answered into this file, for tools/check-history
    #[arg(long, value_name = "FILE", conflicts_with = "locations")]
    history: Option<PathBuf>,
    /// Run members on hosts of a lab (`squall lab`), whose links have these conditions, as in --lab=delay=1ms,loss=0.1%
    #[arg(long, value_name = "CONDITIONS", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "locations")]
    lab: Option<LinkConditions>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "All members send all the time, and clients, of which each member has one and two are processes of their own, use lists and registers in a replicated object. A majority of each view is \
left alone, and the last two members that have all states. The healthy members must keep delivering, \
within four suspicion times and ten seconds, and none of them may be excluded. At the end all must be \
in one view and have delivered the same messages in the same order in each view, without a gap; every \
message that any member has delivered, also one that died, must have been delivered by all that \
continued; each acknowledged append must be there once, in a linearizable order; and nothing may be left behind.

With a suspicion time below two seconds, members that only wait for a processor are taken for dead \
where processors are few: then healthy members are excluded, and the run fails.

Examples:
  squall chaos
  squall chaos --transport tcp --seconds 600 --seed 7 --json
  squall chaos --faults kill,halt,join-halt --members 5
  squall chaos --script join-halt@2,kill-halt@8,restart --repeat 50
  squall chaos --transport tcp --members 4 --script cut,cut-one-way
  squall chaos --seconds 30 --history history.jsonl
  squall chaos --lab --seconds 60
  squall chaos --transactions --history history.jsonl";

/// Injects faults into a group, compares its members' accounts, and prints what has happened.
///
/// # Errors
/// If the group cannot be started or judged, or does not continue.
pub fn run(arguments: &ChaosArguments) -> Result<CommandVerdict> {
    check_locations(arguments.transport, &arguments.locations)?;
    let interrupts = Interrupts::take()?;
    if let Some(conditions) = arguments.lab {
        match run_again_in_lab(plan_of(arguments), conditions, &interrupts)? {}
    }
    let (kinds, left_out) = choose(arguments, &interrupts)?;
    let folder = Folder::open(arguments.keep.as_deref())?;
    // A client here may not reach members that the user has placed elsewhere.
    let store = arguments.locations.is_empty().then(|| StoreJob {
        replicas: arguments.replicas.map_or(0, |replicas| usize::try_from(replicas).expect("at most 16")),
        transfer_ms: arguments.transfer_ms,
        has_clients: true,
        has_transactions: arguments.transactions,
    });
    let job = ChurnJob {
        process: 0,
        log_of: 0,
        size: 64,
        pace: Some(arguments.pace),
        suspicion_ms: arguments.suspicion_ms,
        majority: true,
        account: None,
        storage: kinds.iter().any(|kind| kind.needs_disk()).then(|| DISK.into()),
        store: store.clone(),
    };
    let members = usize::try_from(arguments.members).expect("at most 16");
    let locations = arguments.locations.clone();
    let transport = arguments.transport;
    let about = format!("squall chaos --transport {} --seed {}", transport.title(), arguments.seed);
    let history = arguments.history.as_deref().map(|path| HistoryFile::create(path, &about)).transpose()?;
    let plan = ChurnPlan {
        transport,
        members,
        idle: IdleName::Auto,
        locations,
        clients: CLIENTS,
        job,
        folder: Some(folder.path.clone()),
    };
    let recorder = OperationRecorder::new(history);
    let pool = ProcessPool::start(plan, recorder, &interrupts)?;
    let outcome = ChaosOutcome {
        transport: Some(transport),
        seed: arguments.seed,
        left_out,
        ..ChaosOutcome::default()
    };
    let suspicion = Duration::from_millis(arguments.suspicion_ms);
    let chaos_plan = ChaosPlan { kinds, members, suspicion, store, is_quiet: arguments.json };
    let mut run = ChaosRun::new(pool, chaos_plan, outcome)?;
    if arguments.script.is_empty() {
        run.rage(Duration::from_secs(arguments.seconds))?;
    } else {
        run.follow(&arguments.script.repeat(arguments.repeat))?;
    }
    run.settle()?;
    let outcome = run.judge()?;
    print(&outcome, arguments.json)?;
    Ok(if outcome.agree { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// The faults that are possible here, and what is left out and why. Faults of links need a lab: if this is none, the command is run again in
/// one.
fn choose(arguments: &ChaosArguments, interrupts: &Interrupts) -> Result<(Vec<FaultKind>, Vec<String>)> {
    let scripted = arguments.script.iter().map(|fault| fault.kind);
    let mut kinds: Vec<FaultKind> = scripted.chain(arguments.faults.iter().copied()).collect();
    if kinds.is_empty() {
        kinds = FaultKind::value_variants().to_vec();
    }
    let mut left_out = Vec::new();
    if arguments.transactions {
        ensure!(arguments.members >= 4, "--transactions needs at least --members 4: two in each shard");
        let is_apart = |kind: &mut FaultKind| {
            kind.needs_lab() && *kind != FaultKind::Outage || *kind == FaultKind::Restart
        };
        let kinds = kinds.extract_if(.., is_apart);
        left_out.extend(kinds.map(|kind| format!("{} is left out: of --transactions", kind.name())));
    }
    if kinds.iter().any(|kind| kind.needs_lab()) {
        let (is_impossible, why): (fn(FaultKind) -> bool, _) = match find_lab(arguments, interrupts) {
            Ok(map) if map.has_disks => (|_| false, String::new()),
            Ok(_) => (FaultKind::needs_disk, NO_DISKS.into()),
            Err(error) => (FaultKind::needs_lab, error_text(&error)),
        };
        let kinds = kinds.extract_if(.., |kind| is_impossible(*kind));
        left_out.extend(kinds.map(|kind| format!("{} is left out: {why}", kind.name())));
    }
    if !arguments.locations.is_empty() {
        let needs_own = |kind: &mut FaultKind| {
            matches!(kind, FaultKind::Strangers | FaultKind::KillClient | FaultKind::Restart)
        };
        let kinds = kinds.extract_if(.., needs_own);
        left_out
            .extend(kinds.map(|kind| format!("{} is left out: `--at` has placed the members", kind.name())));
    }
    left_out.iter().for_each(output::note);
    let is_whole = arguments.script.is_empty() || left_out.is_empty();
    ensure!(is_whole && !kinds.is_empty(), "these faults are not possible here: {}", left_out.join("; "));
    Ok((kinds, left_out))
}

/// Finds that this process runs in a lab, or runs the command again in one, which ends this process.
fn find_lab(arguments: &ChaosArguments, interrupts: &Interrupts) -> Result<LabMap> {
    ensure!(arguments.transport == TransportName::Tcp, "links can be cut with --transport tcp");
    ensure!(arguments.locations.is_empty(), "`--at` has placed the members");
    let Some(map) = LabMap::of_this_process()? else {
        match run_again_in_lab(plan_of(arguments), LinkConditions::default(), interrupts)? {}
    };
    let plan = plan_of(arguments);
    ensure!(map.hosts.len() >= plan.hosts, "the lab has too few hosts: `squall lab --hosts {}`", plan.hosts);
    let needs_switch = arguments.faults.is_empty() || arguments.faults.contains(&FaultKind::Network);
    ensure!(map.has_switch || !needs_switch, "the links of this lab can only be cut: `squall lab --switch`");
    Ok(map)
}

/// A lab with hosts for as many processes as there are at a time.
fn plan_of(arguments: &ChaosArguments) -> LabPlan {
    let hosts = usize::try_from(arguments.members).expect("at most 16") + SPARE_PLACES + CLIENTS;
    let scripted = arguments.script.iter().map(|fault| fault.kind);
    let named: Vec<FaultKind> = scripted.chain(arguments.faults.iter().copied()).collect();
    let needs_disks = is_root() && (named.is_empty() || named.iter().any(|kind| kind.needs_disk()));
    let host = HostPlan { disk: needs_disks.then_some(DISK_BYTES), ..HostPlan::default() };
    LabPlan { has_switch: true, seed: arguments.seed, host, ..LabPlan::new(hosts) }
}

fn print(outcome: &ChaosOutcome, json: bool) -> Result<()> {
    if json {
        output::json(outcome)?;
        return Ok(());
    }
    let ChaosOutcome { seconds, killed, halted, excluded, joined, views, messages, .. } = outcome;
    output::line(format_args!(
        "{seconds:.0} s: {killed} killed, {halted} halted, {excluded} excluded, {joined} joined; {views} views."
    ));
    for (kind, tally) in &outcome.happened {
        output::line(format_args!(
            "{:6} x {:12} longest outage of a healthy member {:6} ms",
            tally.times,
            kind.name(),
            tally.outage_ms
        ));
    }
    outcome.left_out.iter().for_each(output::line);
    if outcome.strangers > 0 {
        output::line(format_args!("{} connections of strangers", units::grouped(outcome.strangers)));
    }
    if outcome.acknowledged > 0 {
        output::line(format_args!(
            "{} updates acknowledged, appends each there once and linearizable; at most {} ms between two",
            units::grouped(outcome.acknowledged),
            outcome.update_outage_ms
        ));
    }
    if outcome.ended_by_disk > 0 {
        output::line(format_args!("{} ended by their disks, said so, and came back", outcome.ended_by_disk));
    }
    outcome.faults.iter().for_each(output::line);
    if outcome.agree {
        let messages = units::grouped(*messages);
        let verdict =
            format!("All accounts agree: {messages} messages, none lost, none twice, in one order.");
        output::line(console::style(verdict).green().bold());
    } else {
        output::line(console::style("THE RUN HAS VIOLATED A PROMISE.").red().bold());
    }
    Ok(())
}

/// Where the accounts are: a folder of the user's, or one that is removed at the end.
struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Folder {
    fn open(keep: Option<&Path>) -> Result<Self> {
        let ours = || std::env::temp_dir().join(format!("squall-chaos-{}", std::process::id()));
        let path = keep.map_or_else(|| Ok(ours()), std::path::absolute)?;
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self { path, is_ours: keep.is_none() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_ours {
            // What cannot be removed is found in the folder for temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Why a lab has no disks.
const NO_DISKS: &str = "the hosts of this lab have no disks of their own (`squall lab --disk 512`, as root)";
/// The size of the disk of each host, which is in memory as far as it is used: some segments of a log.
const DISK_BYTES: u64 = 512 << 20;
/// Processes beside the members at a time: one that joins, and those that have been replaced or excluded.
const SPARE_PLACES: usize = 4;
