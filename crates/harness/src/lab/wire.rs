//! The process of the lab's network: it starts the hosts, connects them, and changes the links as it is asked to.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use squall_fabric::mutex::lock;

use super::disk::{DISK, DiskConditions};
use super::limits::{self, CONTROL_GROUPS, HostLimits};
use super::ports::{self, RunningSwitch};
use super::switch::hardware_address;
use super::{
    HostClock, LabHost, LabPlan, LinkConditions, WireReply, WireRequest, addresses, outside, reply_of,
};
use crate::lines::{read_line, write_line};
use crate::terminal::error_text;

/// Builds what the first line of standard input asks for, then does what further lines ask, and those of programs outside the hosts, until
/// standard input closes.
///
/// # Errors
/// If a line makes no sense.
pub(crate) fn run() -> Result<()> {
    let mut pipe = BufReader::new(stdin());
    let Some(request) = read_line(&mut pipe)? else { return Ok(()) };
    let WireRequest::Build(plan) = request else { bail!("not a plan: {request:?}") };
    let network = match BuiltNetwork::build(plan) {
        Ok(network) => Arc::new(Mutex::new(network)),
        Err(error) => return write_line(&mut stdout(), &WireReply::Failed { message: error_text(&error) }),
    };
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(CONTROL)?)?;
    let shared = Arc::clone(&network);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let network = Arc::clone(&shared);
            // An asker that writes nonsense ends its own connection.
            std::thread::spawn(move || drop(serve(&mut BufReader::new(&stream), &mut &stream, &network)));
        }
    });
    let hosts = lock(&network).described();
    write_line(&mut stdout(), &WireReply::Built { hosts })?;
    let served = serve(&mut pipe, &mut stdout(), &network);
    let hosts = std::mem::take(&mut lock(&network).hosts);
    hosts.into_iter().for_each(HeldHost::end);
    served
}

/// Asks the lab of this process for something.
///
/// # Errors
/// If there is none, or it cannot do that.
pub(crate) fn ask_from_inside(request: &WireRequest) -> Result<()> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(CONTROL)?)
        .context("this process is not in a lab's network")?;
    write_line(&mut &stream, request)?;
    reply_of(read_line(&mut BufReader::new(&stream))?).map(drop)
}

fn serve(requests: &mut impl BufRead, replies: &mut impl Write, network: &Mutex<BuiltNetwork>) -> Result<()> {
    while let Some(request) = read_line(requests)? {
        let mut network = lock(network);
        let done = match request {
            WireRequest::Build(_) => Err(anyhow!("it is built")),
            WireRequest::Set { from, to, conditions } => network.set(from, to, conditions),
            WireRequest::SetDisk { host, conditions } => network.set_disk(host, conditions),
        };
        drop(network);
        let failed = |error| WireReply::Failed { message: error_text(&error) };
        write_line(replies, &done.map_or_else(failed, |()| WireReply::Done))?;
    }
    Ok(())
}

/// Hosts and their links.
struct BuiltNetwork {
    plan: LabPlan,
    hosts: Vec<HeldHost>,
    /// `None`: the kernel's bridge.
    switch: Option<RunningSwitch>,
    /// The pairs whose link is cut, in a network without the switch.
    cut: Vec<(usize, usize)>,
}

impl BuiltNetwork {
    fn build(plan: LabPlan) -> Result<Self> {
        // Where the disks of hosts are kept; it goes with this process's mounts.
        if plan.host.disk.is_some() {
            run_program(Command::new("mount").args(["-t", "tmpfs", "tmpfs", DISK]))?;
        }
        limits::remove_leftovers(Path::new(CONTROL_GROUPS));
        let starting: Vec<Child> = (0..plan.hosts).map(|_| HeldHost::start()).collect::<Result<_>>()?;
        let hosts = starting.into_iter().enumerate();
        let hosts: Vec<HeldHost> =
            hosts.map(|(number, child)| HeldHost::hold(child, number, &plan)).collect::<Result<_>>()?;
        let mut network = Self { plan, hosts, switch: None, cut: Vec::new() };
        if network.plan.has_switch {
            network.connect_switch()?
        } else {
            network.connect_bridge()?
        }
        Ok(network)
    }

    fn described(&self) -> Vec<LabHost> {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .map(|(number, host)| LabHost {
                pid: host.pid,
                addresses: addresses(number),
                user: self.plan.host.user,
                groups: host.limits.entrances(),
                environment: host.environment.clone(),
            })
            .collect()
    }

    /// The process in whose network a port is; `None`: this one's.
    fn holder(&self, port: usize) -> Option<u32> {
        self.hosts.get(port).map(|host| host.pid)
    }

    fn connect_bridge(&mut self) -> Result<()> {
        let mut script = format!("link add {DEVICE} mtu {} type bridge\n", self.plan.mtu);
        for (number, host) in self.hosts.iter().enumerate() {
            let mtu = self.plan.mtu;
            writeln!(
                script,
                "link add h{number} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {}",
                host.pid
            )?;
            writeln!(script, "link set h{number} master {DEVICE} up")?;
        }
        ip(None, &script)?;
        (0..=self.hosts.len()).try_for_each(|port| ip(self.holder(port), &interface(port)?))
    }

    fn connect_switch(&mut self) -> Result<()> {
        let ports = self.hosts.len() + 1;
        let taps: Vec<_> = (0..ports).map(|port| ports::open(&format!("h{port}"))).collect::<Result<_>>()?;
        for port in 0..ports {
            let [a, b, c, d, e, f] = hardware_address(port);
            let mtu = self.plan.mtu;
            let mut script = format!(
                "link set h{port} address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} mtu {mtu} txqueuelen 10000\n"
            );
            match self.holder(port) {
                Some(pid) => writeln!(script, "link set h{port} netns {pid} name {DEVICE}")?,
                None => writeln!(script, "link set h{port} name {DEVICE}")?,
            }
            ip(None, &script)?;
            let mut script = interface(port)?;
            // The network's faults are those of its links, not a search for hardware addresses that is lost.
            for other in (0..ports).filter(|other| *other != port) {
                let [a, b, c, d, e, f] = hardware_address(other);
                for address in addresses(other) {
                    writeln!(
                        script,
                        "neigh add {address} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} nud permanent dev {DEVICE}"
                    )?;
                }
            }
            ip(self.holder(port), &script)?;
        }
        self.switch = Some(RunningSwitch::start(taps, self.plan.seed));
        Ok(())
    }

    fn set(&mut self, from: Option<usize>, to: Option<usize>, conditions: LinkConditions) -> Result<()> {
        let hosts = self.hosts.len();
        let ports = |which: Option<usize>| which.map_or(0..hosts, |port| port..port + 1);
        for port in [from, to].into_iter().flatten() {
            ensure!(port <= outside(hosts), "there is no host {port}: they are 0 to {}", hosts - 1);
        }
        for (from, to) in ports(from).flat_map(|from| ports(to).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            match &self.switch {
                Some(switch) => switch.set(from, to, conditions),
                None => self.cut(from, to, conditions)?,
            }
        }
        Ok(())
    }

    fn set_disk(&mut self, host: Option<usize>, conditions: DiskConditions) -> Result<()> {
        ensure!(
            self.plan.host.disk.is_some(),
            "the hosts have no disks of their own: build the lab with them (--disk MIB)"
        );
        let last = self.hosts.len() - 1;
        let chosen = host.map_or(0..=last, |host| host..=host);
        let hosts =
            self.hosts.get_mut(chosen).context(format!("there is no such host: they are 0 to {last}"))?;
        // All are asked before any is waited for.
        hosts.iter_mut().try_for_each(|host| write_line(&mut host.requests, &conditions))?;
        let replies: Vec<_> =
            hosts.iter_mut().map(|host| read_line::<Option<String>>(&mut host.replies)).collect();
        for reply in replies {
            match reply? {
                Some(None) => {}
                Some(Some(failed)) => bail!("{failed}"),
                None => bail!("the host has ended"),
            }
        }
        Ok(())
    }

    /// Cuts a link of the bridge by a route to nowhere at its beginning, or mends it.
    fn cut(&mut self, from: usize, to: usize, conditions: LinkConditions) -> Result<()> {
        ensure!(
            conditions.are_plain(),
            "a lab without the switch can only cut links: build it with the switch"
        );
        if self.cut.contains(&(from, to)) == conditions.is_cut {
            return Ok(());
        }
        let change = if conditions.is_cut { "add" } else { "delete" };
        let mut script = String::new();
        for address in addresses(to) {
            writeln!(script, "route {change} blackhole {address}")?;
        }
        ip(self.holder(from), &script)?;
        self.cut.retain(|link| *link != (from, to));
        self.cut.extend(conditions.is_cut.then_some((from, to)));
        Ok(())
    }
}

/// The commands that give the interface of a port its addresses.
fn interface(port: usize) -> Result<String> {
    let mut script = format!("link set lo up\nlink set {DEVICE} up\n");
    for address in addresses(port) {
        match address {
            IpAddr::V4(address) => writeln!(script, "address add {address}/24 dev {DEVICE}")?,
            // It is used at once: there is no search for another one that has it.
            IpAddr::V6(address) => writeln!(script, "address add {address}/64 dev {DEVICE} nodad")?,
        }
    }
    Ok(script)
}

/// A host, which ends with its pipe.
struct HeldHost {
    /// Process 1 of the host, by its number here.
    pid: u32,
    launcher: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    limits: HostLimits,
    environment: Vec<String>,
}

impl HeldHost {
    fn start() -> Result<Child> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"])
            .arg(program)
            .arg("lab-host")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `unshare` (package util-linux)")
    }

    /// Waits until the host is prepared.
    fn hold(mut child: Child, number: usize, plan: &LabPlan) -> Result<Self> {
        let mut requests = child.stdin.take().expect("it was asked for");
        let mut replies = BufReader::new(child.stdout.take().expect("it was asked for"));
        // If it has ended, the other pipe shows that.
        let _ = write_line(&mut requests, &(format!("host{number}"), &plan.host));
        match read_line::<Option<String>>(&mut replies)? {
            Some(None) => {}
            Some(Some(failed)) => bail!("host {number}: {failed}"),
            None => bail!("host {number} has ended at once"),
        }
        let pid = child_of(child.id()).with_context(|| format!("host {number} has no process"))?;
        let limits = HostLimits::make(Path::new(CONTROL_GROUPS), &limits::name(number), &plan.host)?;
        let is_here = |clock: &&(Option<usize>, HostClock)| clock.0.is_none_or(|host| host == number);
        let clock = plan.clocks.iter().rfind(is_here);
        let environment = clock.map_or(Ok(Vec::new()), |(_, clock)| clock.environment())?;
        Ok(Self { pid, launcher: child, requests, replies, limits, environment })
    }

    /// Lets all that runs there end.
    fn end(mut self) {
        drop(self.requests);
        let _ = self.launcher.wait();
    }
}

/// The process that this one has started.
fn child_of(parent: u32) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.into_iter().find(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").is_some_and(|ppid| ppid.trim() == parent.to_string()))
    })
}

/// Lets `ip` do these commands in the network of a process, or of this one.
fn ip(pid: Option<u32>, script: &str) -> Result<()> {
    let mut command = Command::new("nsenter");
    match pid {
        Some(pid) => command.args(["--target", &pid.to_string(), "--net", "ip", "-batch", "-"]),
        None => {
            command = Command::new("ip");
            command.args(["-batch", "-"])
        }
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start `ip` (package iproute2) or `nsenter` (package util-linux)")?;
    // If it has ended, its status shows that.
    let _ = child.stdin.take().expect("it was asked for").write_all(script.as_bytes());
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip` failed: {} in {script}", stderr.trim_end());
    Ok(())
}

/// Runs a program to its end, which must be good.
pub(super) fn run_program(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{name}`"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", stderr.trim_end());
    Ok(())
}

/// The device of each port, in its host or outside.
const DEVICE: &str = "eth0";
/// The abstract socket for requests, in the network outside the hosts.
const CONTROL: &str = "squall-lab";
