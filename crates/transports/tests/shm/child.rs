//! Child processes for the tests of shared memory: this test binary again, in a role, connected through its
//! standard input.

#![allow(dead_code, reason = "each test binary uses a part")]

#[path = "../patience/mod.rs"]
mod patience;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use squall_fabric::{Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};
use squall_transports::shm::ShmFabric;

pub(crate) use patience::patient;

/// A child process; killed when dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    /// Starts the test `child` of this binary in `role`; returns it and our end of its socket.
    pub(crate) fn start(role: &str) -> (Self, UnixStream) {
        let (child, ours, _) = Self::start_with_copy(role);
        (child, ours)
    }

    /// Same as [`ChildProcess::start`]; returns also a copy of the child's end: as long as there is one, the child's death does not
    /// close the connection.
    pub(crate) fn start_with_copy(role: &str) -> (Self, UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let copy = theirs.try_clone().expect("a descriptor");
        let program = std::env::current_exe().expect("this binary");
        let child = Command::new(program)
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        (Self(child), ours, copy)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("the child is not yet reaped");
    }

    /// Kills it; it has ended when this returns, which may be some time after the signal was sent. Until then it continues to write.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        // It is not reaped, so that its number stays its own.
        let status = waitid(WaitId::Pid(self.pid()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        assert!(status.expect("our child").is_some_and(|status| status.killed()), "it is killed");
    }

    /// Stops it; all its threads are stopped when this returns, which may be some time after the signal was sent.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let status = waitid(WaitId::Pid(self.pid()), WaitIdOptions::STOPPED).expect("our child");
        assert!(status.is_some_and(|status| status.stopped()), "it is stopped");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("our child").is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.0.wait().expect("our child")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the role of this process, if it is a child.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Creates the fabric of a child, connected to node 0.
pub(crate) fn fabric_of_child(node: u32) -> ShmFabric {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket as standard input");
    ShmFabric::new(NodeId(node), vec![(NodeId(0), UnixStream::from(socket))]).expect("a fabric")
}

/// Polls until `done`, which sees the events of each poll, returns true. The poll may have served the peer's next post already, which came
/// after those events: memory that posts land in is checked by [`poll_until_event`].
pub(crate) fn poll_until(
    fabric: &mut ShmFabric,
    what: &str,
    mut done: impl FnMut(&mut ShmFabric, &[FabricEvent]) -> bool,
) {
    let begin = Instant::now();
    loop {
        let mut events = Vec::new();
        fabric.poll(&mut |event| events.push(event));
        if done(fabric, &events) {
            return;
        }
        assert!(begin.elapsed() < patience(), "waited {:?} for: {what}", patience());
        std::thread::yield_now();
    }
}

/// Polls until `is_awaited`, which sees each event before the poll continues, has returned true.
pub(crate) fn poll_until_event(
    fabric: &mut ShmFabric,
    what: &str,
    mut is_awaited: impl FnMut(&FabricEvent) -> bool,
) {
    let (begin, mut is_found) = (Instant::now(), false);
    while !is_found {
        fabric.poll(&mut |event| is_found |= is_awaited(&event));
        assert!(begin.elapsed() < patience(), "waited {:?} for: {what}", patience());
        std::thread::yield_now();
    }
}

/// Polls in a child until its parent has ended its stream or died.
pub(crate) fn poll_until_alone(fabric: &mut ShmFabric, mut each: impl FnMut(&mut ShmFabric)) {
    poll_until(fabric, "the parent's end", |fabric, events| {
        each(fabric);
        events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. }))
    });
}

/// A mirrored word of this process and an attachment of the other process's word.
pub(crate) struct WordPair {
    own: Region,
    mirror: MirrorId,
    attachment: Region,
    written: u64,
}

impl WordPair {
    pub(crate) fn new(fabric: &mut ShmFabric, peer: NodeId) -> Self {
        let key = MirrorKey(1);
        let own = fabric.register(16);
        let mirror = fabric.publish(key, &own, &[peer]);
        let attachment = fabric.attach(peer, key, 16);
        let attached = FabricEvent::Attached { key, reader: peer };
        poll_until(fabric, "Attached", |_, events| events.contains(&attached));
        Self { own, mirror, attachment, written: 0 }
    }

    pub(crate) fn say(&mut self, fabric: &mut ShmFabric, value: u64) {
        self.written = value;
        self.own.store(0, value);
        fabric.push_word(self.mirror, 0);
    }

    pub(crate) fn heard(&self) -> u64 {
        self.attachment.load(0)
    }

    /// Echoes the word of the other process; returns whether it was new.
    pub(crate) fn answer(&mut self, fabric: &mut ShmFabric) -> bool {
        let heard = self.heard();
        let new = heard != self.written;
        if new {
            self.say(fabric, heard);
        }
        new
    }
}

/// How long a process waits for something; a child that waits for its parent's end, for its whole life.
pub(crate) fn patience() -> Duration {
    patient(Duration::from_secs(30))
}

const ROLE: &str = "SQUALL_SHM_ROLE";
