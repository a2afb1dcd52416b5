//! Process 1 of a host: it holds the namespaces, and prepares what is mounted.

use std::io::{stdin, stdout};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{WaitOptions, wait};
use squall_fabric::mutex::lock;

use super::HostPlan;
use super::disk::{DiskConditions, HostDisk};
use super::wire::run_program;
use crate::lines::{read_line, write_line};
use crate::terminal::error_text;

/// Mounts what the first line of standard input asks for, answers with an empty line or what has failed, and then waits until standard input
/// closes.
///
/// # Errors
/// If the lab has gone before.
pub(crate) fn run() -> Result<()> {
    let mut pipe = stdin().lock();
    let Some((name, plan)) = read_line::<(String, HostPlan)>(&mut pipe)? else { return Ok(()) };
    let mut disk = match prepare(&name, &plan) {
        Ok(disk) => disk,
        Err(error) => return write_line(&mut stdout(), &Some(error_text(&error))),
    };
    write_line(&mut stdout(), &None::<String>)?;
    // Orphans are this process's to reap, except the programs that it itself waits for.
    let reaping = Arc::new(Mutex::new(()));
    let turn = Arc::clone(&reaping);
    std::thread::spawn(move || {
        loop {
            let turn = lock(&turn);
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            drop(turn);
            std::thread::sleep(REAP_PERIOD);
        }
    });
    while let Some(conditions) = read_line::<DiskConditions>(&mut pipe)? {
        let _turn = lock(&reaping);
        let done = disk.as_mut().map_or(Ok(()), |disk| disk.set(conditions));
        write_line(&mut stdout(), &done.err().as_ref().map(error_text))?;
    }
    Ok(())
}

fn prepare(name: &str, plan: &HostPlan) -> Result<Option<HostDisk>> {
    rustix::system::sethostname(name.as_bytes()).context("cannot set the host name")?;
    for folder in ["/run", "/dev/shm"] {
        mount(&["-t", "tmpfs", "tmpfs", folder])?;
    }
    if let Some(bytes) = plan.shared_memory {
        mount(&["-o", &format!("remount,size={bytes}"), "/dev/shm"])?;
    }
    let disk = plan.disk.map(|bytes| HostDisk::mount(name, bytes)).transpose()?;
    if plan.is_read_only {
        mount(&["-o", "remount,bind,ro", "/"])?;
    }
    Ok(disk)
}

fn mount(arguments: &[&str]) -> Result<()> {
    run_program(Command::new("mount").args(arguments))
}

/// How often processes that have ended are reaped.
const REAP_PERIOD: Duration = Duration::from_millis(200);
