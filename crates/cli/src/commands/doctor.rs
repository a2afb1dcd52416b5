//! `squall doctor`: whether processes can share memory, which RDMA devices there are, whether they keep the axioms, how long the disk for a log takes, and how members
//! would reach each other.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use squall::Config;
use squall::config::{Address, Transport, VerbsSettings};
use squall_harness::terminal::{CommandVerdict, output, units};
use squall_transports::{pacing, shm, verbs};

use crate::doctor::devices::{self, DeviceReport};
use crate::doctor::disk::{self, DiskReport};
use crate::doctor::litmus::{self, AxiomReport};
use crate::doctor::peers::{self, PeerReport};

/// Report what this host offers: RDMA devices, the disk for a log and, with the others, the transport to each
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArguments {
    /// Meet the members of this configuration; start the doctor at each of them
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where this member will be reached, instead of `listen` in the file
    #[arg(long, value_name = "ADDRESS", requires = "config")]
    listen: Option<Address>,
    /// Examine this device instead of the one that would be used; it must be usable
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Examine the disk of this folder for logs, instead of that of `[storage] path` in the file
    #[arg(long, value_name = "FOLDER")]
    storage: Option<PathBuf>,
    /// Do not run the tests of the axioms on the device
    #[arg(long)]
    no_axioms: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "The tests of the axioms F1 to F4 let the device write to itself, and check the order and visibility on which the \
protocols rely. Of the disk, 4 KiB are written again and again for half a second, as a log does, in a folder that is removed \
again. The exit status is 1 if a test fails, if the disk cannot be used, if the members do not meet, or if RDMA was asked for, by --device or \
by `transport = \"verbs\"` in the configuration, and cannot be used. Otherwise it is no fault that there is no RDMA device: members \
use shared memory and TCP then.

Examples:
  squall doctor
  squall doctor --device mlx5_1 --json
  squall doctor --storage /var/lib/squall
  squall doctor -c squall.toml      (at all members at once)
  squall doctor -c squall.toml --listen 192.0.2.1:7400";

#[derive(Debug, Serialize)]
struct Report {
    /// Why RDMA cannot be used, if it cannot.
    no_rdma: Option<String>,
    devices: Vec<DeviceReport>,
    /// The device that would be used.
    chosen: Option<String>,
    /// Bytes that this process may lock; none if there is no limit.
    memory_lock_bytes_max: Option<u64>,
    /// Why this process cannot share memory, if it cannot.
    no_shared_memory: Option<String>,
    /// Why this process cannot read the memory of others, if it cannot.
    no_reading: Option<String>,
    /// The congestion control of this system, if it paces: what connections have on paths that are long or lose packets.
    pacing: Option<&'static str>,
    /// What the tests on the chosen device found.
    axioms: Vec<AxiomReport>,
    /// Of the folder for logs, if there is one.
    disk: Option<DiskReport>,
    /// Of the configuration, if there is one.
    peers: Vec<PeerReport>,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<CommandVerdict> {
    let config = arguments.config.as_ref();
    let config = config.map(|file| Config::load_for(file, arguments.listen.clone(), None)).transpose()?;
    let mut settings = config.as_ref().map_or_else(VerbsSettings::default, |config| config.verbs.clone());
    if arguments.device.is_some() {
        settings = VerbsSettings { device: arguments.device.clone(), ..VerbsSettings::default() };
    }
    let addresses = config.as_ref().map(peers::listen_addresses).unwrap_or_default();
    let checked = verbs::check(&settings, &addresses);
    let chosen = checked.as_ref().ok().map(|device| device.name.clone());
    let axioms = match &chosen {
        Some(device) if !arguments.no_axioms => {
            if !arguments.json {
                output::note(format_args!("testing the axioms on {device}..."));
            }
            litmus::run(&VerbsSettings { device: Some(device.clone()), ..settings })
        }
        _ => Vec::new(),
    };
    let storage = disk::folder(arguments.storage.as_ref(), config.as_ref());
    let mut report = Report {
        no_rdma: checked.err().map(|error| error.to_string()),
        devices: devices::devices(chosen.as_deref()),
        chosen,
        memory_lock_bytes_max: devices::memory_lock_bytes_max(),
        no_shared_memory: shm::check().err().map(|why| why.to_string()),
        no_reading: shm::can_read_processes().err().map(|why| why.to_string()),
        pacing: pacing::pacing_default(),
        axioms,
        disk: storage.map(|folder| disk::examine(&folder)),
        peers: Vec::new(),
    };
    if !arguments.json {
        print(&report);
    }
    if let Some(config) = &config {
        report.peers = peers::meet(config).context("the members did not meet")?;
    }
    if arguments.json {
        output::json(&report)?;
    } else {
        print_peers(&report, config.is_some());
    }
    let kept = report.axioms.iter().all(|axiom| axiom.failure.is_none());
    let is_wanted = |config: &Config| config.transport == Transport::Verbs;
    let is_missing =
        report.no_rdma.is_some() && (arguments.device.is_some() || config.as_ref().is_some_and(is_wanted));
    let must_share = config.as_ref().is_some_and(|config| config.transport == Transport::Shm);
    let is_missing = is_missing || (must_share && report.no_shared_memory.is_some());
    let is_unusable = report.disk.as_ref().is_some_and(|disk| disk.failure.is_some());
    Ok(if kept && !is_missing && !is_unusable { CommandVerdict::Good } else { CommandVerdict::Bad })
}

fn print(report: &Report) {
    match &report.no_shared_memory {
        Some(why) => output::line(format_args!("shared memory    cannot be used here: {why}")),
        None => output::line("shared memory    can be used"),
    }
    match &report.no_reading {
        Some(why) => output::line(format_args!(
            "reading others   is refused ({why}): received messages in memory of the application's own are copied twice"
        )),
        None => output::line("reading others   is allowed"),
    }
    match &report.no_rdma {
        Some(why) => output::line(format_args!("RDMA             cannot be used here: {why}")),
        None => output::line("RDMA             can be used"),
    }
    for device in &report.devices {
        output::line(format_args!("device           {device}"));
    }
    if let Some(control) = report.pacing {
        output::line(format_args!(
            "TCP              is not paced, but by {control} on paths of over 1 ms and where packets are lost"
        ));
    }
    let limit = match report.memory_lock_bytes_max {
        None => "no limit".to_owned(),
        Some(bytes) => format!("{}{}", units::bytes(bytes as f64), devices::advice(bytes)),
    };
    output::line(format_args!("locked memory    {limit}"));
    for AxiomReport { name, seconds, failure } in &report.axioms {
        match failure {
            None => output::line(format_args!("axiom            {name}: kept ({seconds:.2} s)")),
            Some(failure) => output::line(format_args!("axiom            {name}: BROKEN: {failure}")),
        }
    }
    if let Some(disk) = &report.disk {
        output::line(format_args!("disk for logs    {disk}"));
    }
    if report.axioms.iter().any(|axiom| axiom.failure.is_some()) {
        output::line(
            "Do not use this device: its writes are not ordered as the protocols require. See docs/verbs.md.",
        );
    }
}

fn print_peers(report: &Report, has_config: bool) {
    for PeerReport { member, address, transport, reason } in &report.peers {
        output::line(format_args!("member {member:<9} {address} by {transport}: {reason}"));
    }
    if !has_config {
        output::line(
            "members          start `squall doctor -c squall.toml` at all of them to see how they reach each other",
        );
    }
}
