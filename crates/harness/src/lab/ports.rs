//! The ports of the switch: TAP devices, one in each host and one outside, and the thread that carries frames between them.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use squall_fabric::mutex::lock;
use tappers::{Interface, Tap};

use super::conditions::LinkConditions;
use super::switch::Switch;

/// A switch that runs on a thread of its own, as long as this process.
pub(super) struct RunningSwitch {
    switch: Arc<Mutex<Switch>>,
    begun: Instant,
}

impl RunningSwitch {
    /// Connects the devices.
    pub(super) fn start(taps: Vec<Tap>, seed: u64) -> Self {
        let switch = Arc::new(Mutex::new(Switch::new(taps.len(), seed)));
        let (carried, begun) = (Arc::clone(&switch), Instant::now());
        std::thread::spawn(move || {
            // Frames are late by this otherwise (50 us). Where the system refuses, they are.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            carry(&taps, &carried, begun);
        });
        Self { switch, begun }
    }

    pub(super) fn set(&self, from: usize, to: usize, conditions: LinkConditions) {
        lock(&self.switch).set(elapsed_ns(self.begun), from, to, conditions);
    }
}

/// A device that is not in any host yet.
pub(super) fn open(name: &str) -> Result<Tap> {
    let make = || -> io::Result<Tap> {
        let mut tap = Tap::new_named(Interface::new(name)?)?;
        tap.set_nonblocking(true)?;
        Ok(tap)
    };
    make().context("cannot make a TAP device (/dev/net/tun)")
}

/// Carries frames between the devices for good.
fn carry(taps: &[Tap], switch: &Mutex<Switch>, begun: Instant) {
    let mut frame = vec![0; FRAME_MAX];
    loop {
        let mut switch = lock(switch);
        for (port, tap) in taps.iter().enumerate() {
            // A port that sends all the time leaves time for the others.
            for _ in 0..BATCH {
                let Ok(length) = tap.recv(&mut frame) else { break };
                switch.handle_frame(elapsed_ns(begun), port, &frame[..length]);
            }
        }
        while let Some((to, bytes)) = switch.poll_frame(elapsed_ns(begun)) {
            // A device that is full or down loses it, as a network does.
            let _ = taps[to].send(&bytes);
        }
        let due_ns = switch.next_due_ns();
        drop(switch);
        let left = due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(elapsed_ns(begun))));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled: Vec<PollFd<'_>> =
            taps.iter().map(|tap| PollFd::from_borrowed_fd(tap.as_fd(), PollFlags::IN)).collect();
        // It fails only if a signal comes.
        let _ = poll(&mut polled, left.as_ref());
    }
}

fn elapsed_ns(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).expect("centuries")
}

/// The longest frame: packets of 65,535 bytes.
const FRAME_MAX: usize = 65_535 + 18;
/// Frames that are taken from a port at a time.
const BATCH: usize = 64;
