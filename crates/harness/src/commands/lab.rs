//! `squall lab`: hosts on this machine with a network between them that has faults, for a command that runs there.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{
    self, BitRate, DiskConditions, Flapping, HOSTS_MAX, HostClock, HostPlan, Lab, LabPlan, LinkConditions,
    Share, WireRequest, duration,
};
use crate::terminal::{CommandVerdict, INTERRUPTED_STATUS, Interrupts, output};

/// Run a command among hosts on this machine, with a network between them that has faults
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct LabArguments {
    #[command(subcommand)]
    change: Option<LabChange>,
    /// Hosts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=HOSTS_MAX as u64))]
    hosts: u64,
    #[command(flatten)]
    links: LinkArguments,
    /// Another condition for one direction, FROM-TO:CONDITIONS, as in 0-1:delay=20ms,loss=1%
    #[arg(long = "link", value_name = "LINK")]
    pairs: Vec<PairConditions>,
    /// The switch in user space even without faults, so that they can come later (`squall lab link`)
    #[arg(long)]
    switch: bool,
    /// The longest packet of the interfaces
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65_521))]
    mtu: u32,
    /// Which frames meet faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A disk of its own for each host at /mnt, of this many MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(8..=1 << 20))]
    disk: Option<u64>,
    /// The size of /dev/shm in KiB
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(4..=1 << 30))]
    shared_memory: Option<u64>,
    /// The root file system of each host cannot be written to
    #[arg(long)]
    read_only: bool,
    /// Run what runs on hosts as this user
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// How much of the processors each host has, as in 0.5
    #[arg(long, value_name = "NUMBER", value_parser = thousandths)]
    cpus: Option<u32>,
    /// How much memory programs on each host have together, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    memory: Option<u64>,
    /// Another wall clock for a host or all, HOST:OFFSET or HOST:OFFSET,rate=RATE, as in 1:+2h or all:-1s,rate=1.001 (needs libfaketime)
    #[arg(long = "clock", value_name = "CLOCK", value_parser = which_clock)]
    clocks: Vec<(HostChoice, HostClock)>,
    /// Run the command on each host, instead of once beside them
    #[arg(long)]
    each: bool,
    /// The command; with --each, {host} is the host's number, {address} its address, and {addresses} those of all, with commas between
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<OsString>,
}

/// What a command inside the lab does to it
#[derive(Debug, Subcommand)]
enum LabChange {
    /// Give links other conditions from now on, from inside the lab; what is not named is without faults
    #[command(
        after_help = "Examples:\n  squall lab link 0 1 --cut\n  squall lab link all all --delay 1ms\n  squall lab link all all"
    )]
    Link {
        /// The host that sends, or all
        #[arg(value_parser = which_host)]
        from: HostChoice,
        /// The host that receives, or all
        #[arg(value_parser = which_host)]
        to: HostChoice,
        #[command(flatten)]
        links: LinkArguments,
    },
    /// Give the own disks of hosts (--disk) other conditions from now on, from inside the lab; what is not named is without faults
    #[command(
        after_help = "Examples:\n  squall lab disk 0 --delay 20ms\n  squall lab disk 1 --failing\n  squall lab disk all"
    )]
    Disk {
        /// The host, or all
        #[arg(value_parser = which_host)]
        host: HostChoice,
        #[command(flatten)]
        disk: DiskArguments,
    },
}

/// What a disk does.
#[derive(Debug, Args)]
struct DiskArguments {
    /// How much longer each read, write and flush takes, one after the other
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    delay: Duration,
    /// Writes and flushes fail with an I/O error
    #[arg(long)]
    failing: bool,
    /// Reads fail, too, except of what is in the page cache
    #[arg(long)]
    gone: bool,
    /// No space is free
    #[arg(long)]
    full: bool,
    /// All that writes waits
    #[arg(long)]
    frozen: bool,
}

impl DiskArguments {
    fn conditions(&self) -> DiskConditions {
        DiskConditions {
            delay: self.delay,
            fails: self.failing,
            is_gone: self.gone,
            is_full: self.full,
            is_frozen: self.frozen,
        }
    }
}

impl LabChange {
    fn request(&self) -> WireRequest {
        match self {
            Self::Link { from, to, links } => {
                WireRequest::Set { from: *from, to: *to, conditions: links.conditions() }
            }
            Self::Disk { host, disk } => WireRequest::SetDisk { host: *host, conditions: disk.conditions() },
        }
    }
}

const EXAMPLES: &str = "Each host has its own network, processes, host name, /run and /dev/shm; the processors and the rest of the files are shared. \
The command runs beside the hosts, where it reaches all of them; `squall demo`, `chaos` and `bench` start their members on the hosts then. \
What `--delay`, `--loss` and others say holds for each direction of each link between hosts. All ends with the command, and nothing is left.

It needs root, or user namespaces, and the programs of util-linux and iproute2.

Examples:
  squall lab -- squall demo
  squall lab --hosts 3 --delay 1ms --loss 0.1% -- squall demo
  squall lab --link 0-1:cut -- squall chaos --seconds 20
  squall lab --cpus 0.5 --memory 512 -- squall demo
  squall lab --each -- ./server --listen {address}:7400
  squall lab --switch -- sh -c 'squall lab link 0 1 --cut; ...'";

/// The conditions of links.
#[derive(Debug, Args)]
struct LinkArguments {
    /// How long a frame takes
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    delay: Duration,
    /// At most so much longer, at random
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    jitter: Duration,
    /// Frames that vanish
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    loss: Share,
    /// Frames that arrive twice
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    duplicate: Share,
    /// Frames that arrive with one bit changed
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    corrupt: Share,
    /// Frames with two words of a TCP segment in each other's place, which its checksum does not notice
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    damage: Share,
    /// Frames that others overtake
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    reorder: Share,
    /// Bits per second, as in 10Mbit
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
    /// Longer packets vanish without an answer
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    longest: u32,
    /// Links work and do not, in turn: UP/DOWN, as in 1s/500ms
    #[arg(long, value_name = "TIMES")]
    flap: Option<Flapping>,
    /// Nothing arrives
    #[arg(long)]
    cut: bool,
}

impl LinkArguments {
    fn conditions(&self) -> LinkConditions {
        LinkConditions {
            is_cut: self.cut,
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            duplicates: self.duplicate,
            corruption: self.corrupt,
            damage: self.damage,
            reordering: self.reorder,
            rate: self.rate.unwrap_or_default(),
            longest: self.longest,
            flapping: self.flap.unwrap_or_default(),
        }
    }
}

/// The host of this number; `None`: all.
type HostChoice = Option<usize>;

fn which_host(text: &str) -> Result<HostChoice, String> {
    if text == "all" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("`{text}` is neither a host's number nor `all`"))
}

fn which_clock(text: &str) -> Result<(HostChoice, HostClock), String> {
    let (host, clock) =
        text.split_once(':').ok_or_else(|| format!("`{text}`: write HOST:OFFSET, as in 1:+2h"))?;
    Ok((which_host(host)?, clock.parse()?))
}

/// Reads a number of processors.
fn thousandths(text: &str) -> Result<u32, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.01..=1024.0).contains(number));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 1,024,000")]
    number
        .map(|number| (number * 1000.0).round() as u32)
        .ok_or_else(|| format!("`{text}` is not a number of processors: write 0.5 or 2"))
}

/// The conditions of one direction.
#[derive(Clone, Debug)]
struct PairConditions {
    from: HostChoice,
    to: HostChoice,
    conditions: LinkConditions,
}

impl FromStr for PairConditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}`: write FROM-TO:CONDITIONS, as in 0-1:delay=20ms,loss=1%");
        let (pair, conditions) = text.split_once(':').ok_or_else(expected)?;
        let (from, to) = pair.split_once('-').ok_or_else(expected)?;
        Ok(Self { from: which_host(from)?, to: which_host(to)?, conditions: conditions.parse()? })
    }
}

/// Builds the lab, runs the command in it, and ends with its exit status; or changes the lab of this process.
///
/// # Errors
/// If the lab cannot be built, or the command not be started.
pub fn run(arguments: &LabArguments) -> Result<CommandVerdict> {
    if let Some(change) = &arguments.change {
        lab::ask_from_inside(&change.request())?;
        return Ok(CommandVerdict::Good);
    }
    let conditions = arguments.links.conditions();
    let mut plan = LabPlan::new(usize::try_from(arguments.hosts).expect("at most 64"));
    plan.has_switch = arguments.switch
        || !conditions.are_plain()
        || arguments.pairs.iter().any(|pair| !pair.conditions.are_plain());
    (plan.mtu, plan.seed) = (arguments.mtu, arguments.seed);
    plan.host = HostPlan {
        disk: arguments.disk.map(|mebibytes| mebibytes << 20),
        shared_memory: arguments.shared_memory.map(|kibibytes| kibibytes << 10),
        is_read_only: arguments.read_only,
        user: arguments.user,
        processor_thousandths: arguments.cpus,
        memory: arguments.memory.map(|mebibytes| mebibytes << 20),
    };
    plan.clocks.clone_from(&arguments.clocks);
    let interrupts = Interrupts::take()?;
    let lab = Lab::build(&std::env::current_exe()?, &plan)?;
    lab.set(None, None, conditions)?;
    for PairConditions { from, to, conditions } in &arguments.pairs {
        lab.set(*from, *to, *conditions)?;
    }
    let command = &arguments.command;
    let status =
        if arguments.each { run_on_each(&lab, command)? } else { run_outside(&lab, command, &interrupts)? };
    end_with(lab, status)
}

/// Builds a lab and runs this very command line there, without `--lab`, in place of this process.
///
/// # Errors
/// If the lab cannot be built.
pub(crate) fn run_again_in_lab(
    plan: LabPlan,
    conditions: LinkConditions,
    interrupts: &Interrupts,
) -> Result<Infallible> {
    let program = std::env::current_exe()?;
    let plan = LabPlan { has_switch: plan.has_switch || !conditions.are_plain(), ..plan };
    let lab = Lab::build(&program, &plan)?;
    lab.set(None, None, conditions)?;
    let is_other = |argument: &OsString| !argument.to_string_lossy().starts_with("--lab");
    let mut command = vec![program.into_os_string()];
    command.extend(std::env::args_os().skip(1).filter(is_other));
    let status = run_outside(&lab, &command, interrupts)?;
    end_with(lab, status)
}

/// Ends the lab, then this process with the status of the command.
fn end_with(lab: Lab, status: ExitStatus) -> ! {
    drop(lab);
    // As shells do.
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Runs a command beside the hosts. It is to end well when this process is asked to terminate; the second time, all ends.
fn run_outside(lab: &Lab, command: &[OsString], interrupts: &Interrupts) -> Result<ExitStatus> {
    let mut child =
        lab.command_outside(&command[0]).args(&command[1..]).spawn().context("cannot start `nsenter`")?;
    let mut running = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    interrupts.set(move || match running.take() {
        // Ctrl-C has reached it, too, which does no harm. If it has ended meanwhile, it has not been reaped.
        Some(pid) => drop(kill_process(pid, Signal::TERM)),
        None => std::process::exit(INTERRUPTED_STATUS.into()),
    });
    let status = child.wait()?;
    interrupts.set(|| std::process::exit(INTERRUPTED_STATUS.into()));
    Ok(status)
}

/// Runs a command on all hosts, and returns the first status that is not good, or the last.
fn run_on_each(lab: &Lab, command: &[OsString]) -> Result<ExitStatus> {
    let address = |host: usize| lab.hosts()[host].addresses[0].to_string();
    let all: Vec<String> = (0..lab.hosts().len()).map(address).collect();
    let mut children = Vec::new();
    for host in 0..lab.hosts().len() {
        let fill = |argument: &OsString| {
            let Some(text) = argument.to_str() else { return argument.clone() };
            let text = text.replace("{host}", &host.to_string()).replace("{address}", &address(host));
            text.replace("{addresses}", &all.join(",")).into()
        };
        let mut filled = command.iter().map(fill);
        let program: OsString = filled.next().context("no command")?;
        let mut started = lab.command_on(host, program);
        started.args(filled).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = started.spawn().context("cannot start `nsenter`")?;
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it was asked for")),
            Box::new(child.stderr.take().expect("it was asked for")),
        ];
        let copies = pipes.map(|pipe| std::thread::spawn(move || copy_lines(host, pipe)));
        children.push((child, copies));
    }
    let mut worst = ExitStatus::default();
    for (mut child, copies) in children {
        let status = child.wait()?;
        copies.into_iter().for_each(|copy| drop(copy.join()));
        if worst.success() {
            worst = status;
        }
    }
    Ok(worst)
}

/// Prints what a host says, line by line, with its number.
fn copy_lines(host: usize, pipe: impl Read) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        output::line(format_args!("host {host} | {}", String::from_utf8_lossy(&line)));
    }
}
