//! Process 1 of a host: it holds the namespaces, and prepares what is mounted.

use std::io::{stdin, stdout};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{WaitOptions, wait};

use super::HostPlan;
use super::wire::run_program;
use crate::lines::{read_line, write_line};

/// Mounts what the first line of standard input asks for, answers with an empty line or what has failed, and then waits until standard input
/// closes.
///
/// # Errors
/// If the lab has gone before.
pub(crate) fn run() -> Result<()> {
    let mut pipe = stdin().lock();
    let Some((name, plan)) = read_line::<(String, HostPlan)>(&mut pipe)? else { return Ok(()) };
    let outcome = prepare(&name, &plan);
    write_line(&mut stdout(), &outcome.as_ref().err().map(|error| format!("{error:#}")))?;
    outcome?;
    // Orphans are this process's to reap.
    std::thread::spawn(|| {
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            std::thread::sleep(REAP_PERIOD);
        }
    });
    while let Some(is_frozen) = read_line(&mut pipe)? {
        let done = freeze(is_frozen);
        write_line(&mut stdout(), &done.err().map(|error| format!("{error:#}")))?;
    }
    if plan.disk.is_some() {
        // What waits for a frozen disk cannot be killed. One that is not frozen cannot be thawed.
        let _ = freeze(false);
    }
    Ok(())
}

/// Freezes the disk, or thaws it.
fn freeze(is_frozen: bool) -> Result<()> {
    run_program(Command::new("fsfreeze").args([if is_frozen { "--freeze" } else { "--unfreeze" }, DISK]))
}

fn prepare(name: &str, plan: &HostPlan) -> Result<()> {
    rustix::system::sethostname(name.as_bytes()).context("cannot set the host name")?;
    for folder in ["/run", "/dev/shm"] {
        mount(&["-t", "tmpfs", "tmpfs", folder])?;
    }
    if let Some(bytes) = plan.shared_memory {
        mount(&["-o", &format!("remount,size={bytes}"), "/dev/shm"])?;
    }
    if let Some(bytes) = plan.disk {
        let image = format!("{DISK}/{name}");
        std::fs::File::create(&image)?.set_len(bytes)?;
        run_program(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", &image]))?;
        mount(&["-o", "loop", &image, DISK])?;
    }
    if plan.is_read_only {
        mount(&["-o", "remount,bind,ro", "/"])?;
    }
    Ok(())
}

fn mount(arguments: &[&str]) -> Result<()> {
    run_program(Command::new("mount").args(arguments))
}

/// Where a host's own disk is mounted.
pub(super) const DISK: &str = "/mnt";
/// How often processes that have ended are reaped.
const REAP_PERIOD: Duration = Duration::from_millis(200);
