//! The lab: hosts on this machine, and a network between them that loses, delays, cuts and garbles as its plan says.
//!
//! # What a host is
//! Namespaces of its own: network (so its own addresses, loopback and abstract sockets), process numbers, mounts (`/proc`, `/run`, `/dev/shm`,
//! and, if the plan asks for one, a disk at `/mnt`), interprocess communication and host name; by the plan also a share of the processors and of
//! memory, and a wall clock. What is shared is the kernel, the monotonic clock and the rest of the file system.
//!
//! # What the network is
//! Without faults, a bridge of the kernel, at the kernel's speed; with faults, a switch in user space over TAP devices, which does to each
//! ordered pair of hosts what its [`LinkConditions`] say, by a seed. The place from which the lab is used, [`outside`] the hosts, is
//! one more port.
//!
//! # Processes, and how all of it ends
//! ```text
//! squall lab (or chaos, bench, a test)      holds the pipe of
//!   `- lab-wire                             owns bridge or switch, in a network of its own; holds the pipes of
//!        `- unshare - lab-host, for each    process 1 of its host: when it ends, the kernel ends all that runs there
//! ```
//! Nothing but control groups, which are for limits, has a name outside these namespaces. A pipe closes with the process that holds it, also after `kill -9`; then the next one ends,
//! and the kernel removes namespaces, devices and mounts with their last process. Without root, all of it is in a user namespace.
//!
//! Programs on hosts are started by `nsenter`: [`Lab::command_on`].

mod clock;
mod conditions;
mod disk;
mod host;
mod limits;
mod ports;
mod switch;
mod wire;

use std::ffi::{OsStr, OsString};
use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use squall_fabric::mutex::{lock, unpoisoned};

pub use clock::HostClock;
pub use conditions::{BitRate, Flapping, HELD_BACK, LinkConditions, QUEUE, Share, duration};
pub use disk::DiskConditions;
pub(crate) use disk::{DISK, repair_disk};
pub(crate) use host::run as run_host;
pub(crate) use wire::{ask_from_inside, run as run_wire};

use crate::lines::{read_line, write_line};

/// What to build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabPlan {
    /// Hosts, at most [`HOSTS_MAX`].
    pub hosts: usize,
    /// The network is the switch, which can do all that conditions say, from the beginning or later; else the kernel's bridge, whose links
    /// can only be cut.
    pub has_switch: bool,
    /// Decides which frames meet faults.
    pub seed: u64,
    /// The longest packet of the interfaces, in bytes.
    pub mtu: u32,
    /// What each host has.
    pub host: HostPlan,
    /// Wall clocks of a host, or all; the last one counts.
    #[serde(default)]
    pub clocks: Vec<(Option<usize>, HostClock)>,
}

impl LabPlan {
    /// Hosts on the kernel's bridge.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self { hosts, has_switch: false, seed: 0, mtu: 1500, host: HostPlan::default(), clocks: Vec::new() }
    }
}

/// What a host has, beside its namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostPlan {
    /// A disk of its own at `/mnt`, of this size in bytes (ext4 in memory; needs root).
    pub disk: Option<u64>,
    /// The size of `/dev/shm` in bytes.
    pub shared_memory: Option<u64>,
    /// The root file system cannot be written to.
    pub is_read_only: bool,
    /// Programs there run as this user (needs root).
    pub user: Option<u32>,
    /// How much of the processors programs there may use together, in thousandths of one (needs root).
    pub processor_thousandths: Option<u32>,
    /// How many bytes of memory they may use together (needs root).
    pub memory: Option<u64>,
}

/// A host, as other programs find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabHost {
    /// The process that holds its namespaces.
    pub pid: u32,
    /// Its addresses in the lab's network.
    pub addresses: [IpAddr; 2],
    /// Programs there run as this user.
    pub user: Option<u32>,
    /// The files by which programs there enter its control groups.
    pub groups: Vec<PathBuf>,
    /// What programs there find in their environment, as `NAME=VALUE`.
    pub environment: Vec<String>,
}

/// The lab as programs inside find it in [`LAB_VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabMap {
    /// The hosts.
    pub hosts: Vec<LabHost>,
    /// Whether links can have all conditions; else they can only be cut.
    pub has_switch: bool,
    /// Whether each host has a disk of its own.
    pub has_disks: bool,
}

impl LabMap {
    /// The lab in which this process runs.
    ///
    /// # Errors
    /// If the variable is set, but not by a lab.
    pub fn of_this_process() -> Result<Option<Self>> {
        let Ok(text) = std::env::var(LAB_VARIABLE) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).with_context(|| format!("{LAB_VARIABLE} is not that of a lab"))
    }
}

/// The variable of the environment by which programs that [`Lab::command_outside`] starts find the lab.
pub const LAB_VARIABLE: &str = "SQUALL_LAB";
/// The hosts of a lab at most.
pub const HOSTS_MAX: usize = 64;

/// A lab that runs. Dropping it ends all processes on its hosts.
pub struct Lab {
    wire: Child,
    pipes: Mutex<Pipes>,
    map: LabMap,
}

struct Pipes {
    // `None` when it is to end.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Lab {
    /// Builds a lab. `program` is one that has the hidden commands of `squall` ([`crate::commands::process`]).
    ///
    /// # Errors
    /// If this system does not let it, with what is missing.
    pub fn build(program: &Path, plan: &LabPlan) -> Result<Self> {
        let mut clocks = plan.clocks.iter().filter_map(|(host, _)| *host);
        ensure!(clocks.all(|host| host < plan.hosts), "a clock is for a host that there is not");
        ensure!((1..=HOSTS_MAX).contains(&plan.hosts), "a lab has 1 to {HOSTS_MAX} hosts");
        let mut unshare = Command::new("unshare");
        if !is_root() {
            ensure!(plan.host.disk.is_none(), "a host's own disk needs root");
            ensure!(plan.host.user.is_none(), "another user on a host needs root");
            let is_limited = plan.host.processor_thousandths.is_some() || plan.host.memory.is_some();
            ensure!(!is_limited, "limits of the processors and of memory need root");
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--net", "--mount"]).arg(program).arg("lab-wire");
        let mut wire = unshare
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the command, which ends its members in order; the network outlives it.
            .process_group(0)
            .spawn()
            .context("cannot start `unshare` (package util-linux)")?;
        let requests = wire.stdin.take();
        let replies = BufReader::new(wire.stdout.take().expect("it was asked for"));
        let map =
            LabMap { hosts: Vec::new(), has_switch: plan.has_switch, has_disks: plan.host.disk.is_some() };
        let mut lab = Self { wire, pipes: Mutex::new(Pipes { requests, replies }), map };
        let reply = lab.ask(&WireRequest::Build(plan.clone())).context(
            "the lab could not be built (it needs root, or user namespaces, and the programs of util-linux and iproute2)",
        )?;
        let WireReply::Built { hosts } = reply else { bail!("unexpected: {reply:?}") };
        lab.map.hosts = hosts;
        Ok(lab)
    }

    /// The hosts.
    #[must_use]
    pub fn hosts(&self) -> &[LabHost] {
        &self.map.hosts
    }

    /// Sets the conditions of the links from a host, or all, to a host, or all, from now on. The port [`outside`] has links, too, which
    /// `None` leaves as they are.
    ///
    /// # Errors
    /// If there is no such host, or the lab's network cannot have these conditions.
    pub fn set(&self, from: Option<usize>, to: Option<usize>, conditions: LinkConditions) -> Result<()> {
        self.ask(&WireRequest::Set { from, to, conditions }).map(drop)
    }

    /// Sets what the own disk of a host does, or those of all, from now on.
    ///
    /// # Errors
    /// If the hosts have no disks of their own, or these cannot do that here.
    pub fn set_disk(&self, host: Option<usize>, conditions: DiskConditions) -> Result<()> {
        self.ask(&WireRequest::SetDisk { host, conditions }).map(drop)
    }

    /// Checks the file system of a host's own disk and mounts it again, as one does after a disk has failed; nothing on the host may use it.
    ///
    /// # Errors
    /// If it is in use, or cannot be repaired.
    pub fn repair_disk(&self, host: usize) -> Result<()> {
        disk::repair_disk(&self.map.hosts[host])
    }

    fn ask(&self, request: &WireRequest) -> Result<WireReply> {
        let mut pipes = lock(&self.pipes);
        let Pipes { requests, replies } = &mut *pipes;
        let requests = requests.as_mut().expect("it is taken at the end");
        // If it has ended, the other pipe shows why.
        let _ = write_line(requests, request);
        reply_of(read_line(replies)?)
    }

    /// A command that runs `program` on a host: its process, which is `nsenter`, and that of the program are in one process group with it if
    /// the caller makes one, which is what signals have to be sent to.
    #[must_use]
    pub fn command_on(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        command_in(&self.map.hosts[host], program)
    }

    /// A command that runs `program` beside the hosts: in their network at the port [`outside`], else here, with [`LAB_VARIABLE`]. It is
    /// killed when the thread ends that starts it.
    #[must_use]
    pub fn command_outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = enter(self.wire.id(), &["--net"]);
        command.args(["setpriv", "--pdeathsig", "KILL"]);
        command.arg(program).env(LAB_VARIABLE, serde_json::to_string(&self.map).expect("names and numbers"));
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It ends with its pipe, and all with it.
        unpoisoned(self.pipes.get_mut()).requests = None;
        let _ = self.wire.wait();
    }
}

/// A command that runs `program` on a host of a lab.
pub(crate) fn command_in(host: &LabHost, program: impl AsRef<OsStr>) -> Command {
    let mut command =
        limited(&host.groups, enter(host.pid, &["--net", "--mount", "--pid", "--ipc", "--uts"]));
    if let Some(user) = host.user {
        command.args([
            "setpriv",
            "--reuid",
            &user.to_string(),
            "--regid",
            &user.to_string(),
            "--clear-groups",
        ]);
    }
    if !host.environment.is_empty() {
        command.arg("env").args(&host.environment);
    }
    command.arg(program);
    command
}

/// A command that enters control groups and then becomes the other one.
fn limited(groups: &[PathBuf], command: Command) -> Command {
    if groups.is_empty() {
        return command;
    }
    let mut entering = Command::new("sh");
    entering.args([
        "-c",
        "until [ -z \"$1\" ]; do echo 0 >\"$1\" || exit; shift; done; shift; exec \"$@\"",
        "sh",
    ]);
    entering.args(groups).arg("").arg(command.get_program()).args(command.get_args());
    entering
}

/// `nsenter` for the namespaces of a process, in this process's folder.
fn enter(pid: u32, namespaces: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string()]).args(namespaces);
    if !is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    if let Ok(folder) = std::env::current_dir() {
        let mut option = OsString::from("--wdns=");
        option.push(folder);
        command.arg(option);
    }
    command.arg("--");
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What the process of the network is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WireRequest {
    Build(LabPlan),
    Set { from: Option<usize>, to: Option<usize>, conditions: LinkConditions },
    SetDisk { host: Option<usize>, conditions: DiskConditions },
}

#[derive(Debug, Serialize, Deserialize)]
enum WireReply {
    Built { hosts: Vec<LabHost> },
    Done,
    Failed { message: String },
}

fn reply_of(line: Option<WireReply>) -> Result<WireReply> {
    match line {
        Some(WireReply::Failed { message }) => bail!("{message}"),
        Some(reply) => Ok(reply),
        None => bail!("the process of the lab's network has ended"),
    }
}

/// The addresses of a port: of the network that is set aside for tests of devices (RFC 2544), and of a local one (RFC 4193).
pub(crate) fn addresses(port: usize) -> [IpAddr; 2] {
    let number = u8::try_from(port + 1).expect("at most 65 ports");
    let local = Ipv6Addr::new(0xfd53, 0x7175, 0x616c, 0, 0, 0, 0, number.into());
    [Ipv4Addr::new(198, 18, 0, number).into(), local.into()]
}

/// The port of the place from which the lab is used, after those of the hosts.
#[must_use]
pub const fn outside(hosts: usize) -> usize {
    hosts
}
