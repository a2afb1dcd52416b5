//! One member's process and its pipes.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command as Program, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::Notice;
use crate::control::{MemberJob, MemberLocation, ParentCommand};
use crate::lab;
use crate::lines::{read_line, write_line};
use crate::terminal::{error_text, log, output};

/// A member as the parent sees it. Dropping it kills and reaps it.
pub(super) struct MemberProcess {
    child: Child,
    commands: ChildStdin,
    /// Copies its log to this process's.
    log: Option<JoinHandle<()>>,
    status: Option<ExitStatus>,
    /// It will report nothing more.
    closed: bool,
    /// It has reported all its work.
    pub(super) done: bool,
    /// Why it cannot continue, as it reported.
    pub(super) last_words: Option<String>,
}

impl MemberProcess {
    /// Starts a member and sends it its job. Its reports go to `notices`, as member `number`.
    pub(super) fn start(job: &MemberJob, number: usize, notices: &Sender<Notice>) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let location = &job.group.location;
        let parent = if location.host.is_some() { 0 } else { std::process::id() };
        let mut child = launcher(program, location)
            .args(["member", "--parent", &parent.to_string()])
            .args(log::inherited())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a member")?;
        let commands = child.stdin.take().expect("it was asked for");
        let events = child.stdout.take().expect("it was asked for");
        let errors = child.stderr.take().expect("it was asked for");
        let log = Some(std::thread::spawn(move || copy_log(errors)));
        let mut process =
            Self { child, commands, log, status: None, closed: false, done: false, last_words: None };
        let notices = notices.clone();
        std::thread::spawn(move || forward(number, events, &notices));
        write_line(&mut process.commands, job).context("a member ended before it had its job")?;
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command. If the member has gone, its other pipe shows that.
    pub(super) fn send(&mut self, command: &ParentCommand) {
        let _ = write_line(&mut self.commands, command);
    }

    /// Records that its pipe has closed, perhaps after a line that made no sense.
    pub(super) fn close(&mut self, nonsense: Option<String>) {
        self.closed = true;
        if self.last_words.is_none() {
            self.last_words = nonsense;
        }
    }

    /// Whether its pipe has closed: it has ended, or is about to.
    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Kills it, as `kill -9` does.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Stops it, as `kill -STOP` does, or lets it continue.
    pub(super) fn halt(&mut self, halted: bool) {
        self.signal(if halted { Signal::STOP } else { Signal::CONT });
    }

    /// Sends a signal to its process group: on a host of the lab, its launcher is part of it.
    fn signal(&mut self, signal: Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group.filter(|_| self.is_running()) {
            // It has not been reaped, so the number is its own. It fails only if the member has ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether it may still report why it cannot continue. Members that are done only wait for the command to stop.
    pub(super) fn may_speak(&mut self) -> bool {
        let is_over = self.closed && !self.is_running();
        !self.done && self.last_words.is_none() && !is_over
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// How it ended, if it has.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
            let _ = self.child.wait();
        }
        // It ends with the member's pipe; a panic of that thread has been reported.
        let _ = self.log.take().map(JoinHandle::join);
    }
}

/// A command that runs `program` at a location. In a network namespace, `ip` replaces itself by the program, so the process is the member.
pub(crate) fn launcher(program: PathBuf, location: &MemberLocation) -> Program {
    if let Some(host) = &location.host {
        return lab::command_in(host, program);
    }
    let Some(netns) = &location.netns else { return Program::new(program) };
    let mut launcher = Program::new("ip");
    launcher.args(["netns", "exec", netns]).arg(program);
    launcher
}

/// Prints a member's log, line by line, so that no line disturbs the progress bars of this process.
fn copy_log(errors: ChildStderr) {
    for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
        output::note(String::from_utf8_lossy(&line));
    }
}

/// Forwards the reports of a member until its pipe closes.
fn forward(number: usize, events: ChildStdout, notices: &Sender<Notice>) {
    let mut events = BufReader::new(events);
    loop {
        let notice = match read_line(&mut events) {
            Ok(Some(event)) => Notice::Event(number, event),
            Ok(None) => Notice::Closed(number, None),
            Err(error) => Notice::Closed(number, Some(error_text(&error))),
        };
        let closed = matches!(notice, Notice::Closed(..));
        // The receiver has gone when the cluster has ended.
        if notices.send(notice).is_err() || closed {
            return;
        }
    }
}
