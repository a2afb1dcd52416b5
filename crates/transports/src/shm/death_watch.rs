//! The death watch: wakes this process's sleeping nodes when the kernel sets the life mark of a peer.
//!
//! A node that sleeps looks at no word, and the end of a peer's socket comes only after its memory is unmapped. The kernel wakes a thread
//! that waits for a robust futex when it marks the death of the holder, if the futex says that there are waiters; the marks say so from
//! the beginning. The thread that has announced the list of this process waits for the marks of all peers at once, and rings the doorbell
//! of the node whose peer dies. A node that is awake sees the mark by itself, and is not rung.
//!
//! Where the kernel has no such wait (before Linux 5.16), and for peers beyond [`WATCHED_MAX`], the end of the socket remains.

use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;
use rustix::thread::futex::{ClockId, Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
use squall_fabric::Region;
use squall_fabric::atomics::{AtomicU32, Ordering};
use squall_fabric::mutex::lock;

use super::life::{futex_of, is_dying};
use crate::Waker;

/// A mark that is watched, for as long as this value lives or until the mark is set.
#[derive(Debug)]
pub(super) struct WatchedMark {
    number: u64,
}

/// What one thread of the process watches.
struct DeathWatch {
    /// Counts changes of the list; a futex for which the thread waits, too.
    changes: AtomicU32,
    list: Mutex<WatchList>,
}

struct WatchList {
    marks: Vec<Watched>,
    next: u64,
}

#[derive(Clone)]
struct Watched {
    number: u64,
    /// The page that holds the mark, and its place there.
    page: Region,
    place: usize,
    waker: Waker,
}

static WATCH: DeathWatch =
    DeathWatch { changes: AtomicU32::new(0), list: Mutex::new(WatchList { marks: Vec::new(), next: 0 }) };

impl WatchedMark {
    /// Watches the mark at word `place` of a peer's page.
    pub(super) fn new(page: &Region, place: usize, waker: &Waker) -> Self {
        let mut list = WATCH.list();
        list.next += 1;
        let number = list.next;
        list.marks.push(Watched { number, page: page.clone(), place, waker: waker.clone() });
        drop(list);
        WATCH.announce_change();
        Self { number }
    }
}

impl Drop for WatchedMark {
    fn drop(&mut self) {
        let mut list = WATCH.list();
        let before = list.marks.len();
        list.marks.retain(|mark| mark.number != self.number);
        let is_changed = list.marks.len() < before;
        drop(list);
        if is_changed {
            // The thread lets go of the page.
            WATCH.announce_change();
        }
    }
}

impl Watched {
    fn is_set(&self) -> bool {
        is_dying(self.page.load(self.place))
    }
}

/// Watches until the process ends, or returns if this kernel does not allow it.
pub(super) fn watch() {
    loop {
        // SYNC: pairs with `announce_change`: the list is at least as new as the count.
        let changes = WATCH.changes.load(Ordering::Acquire);
        let marks = WATCH.take_unset();
        let mut waits = vec![wait_for((&raw const WATCH.changes).cast(), changes, WaitFlags::PRIVATE)];
        waits.extend(marks.iter().map(|(mark, value)| {
            let address = mark.page.pointer(mark.place).as_ptr().cast_const().cast();
            wait_for(address, *value, WaitFlags::empty())
        }));
        match waitv(&waits, WaitvFlags::empty(), None, ClockId::Monotonic) {
            // A mark has been set, or was set before the wait; or the list has changed.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                crate::log::debug!(%error, "a sleeping node learns of deaths from its sockets only");
                return;
            }
        }
    }
}

fn wait_for(address: *const u32, value: u32, flags: WaitFlags) -> Wait {
    let mut wait = Wait::new();
    wait.val = value.into();
    wait.uaddr = WaitPtr::new(address.cast_mut().cast());
    wait.flags = flags | WaitFlags::SIZE_U32;
    wait
}

impl DeathWatch {
    fn list(&self) -> MutexGuard<'_, WatchList> {
        lock(&self.list)
    }

    /// Rings the nodes whose peers' marks are set, which are not watched any more; returns the other marks, with their values.
    fn take_unset(&self) -> Vec<(Watched, u32)> {
        let mut list = self.list();
        for mark in list.marks.extract_if(.., |mark| mark.is_set()) {
            mark.waker.wake();
        }
        let with_value = |mark: &Watched| (mark.clone(), futex_of(mark.page.load(mark.place)));
        list.marks.iter().take(WATCHED_MAX).map(with_value).collect()
    }

    fn announce_change(&self) {
        // SYNC: pairs with the load in `watch`.
        self.changes.fetch_add(1, Ordering::Release);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a word that lives as long as the process.
        unsafe { libc::syscall(libc::SYS_futex, &raw const self.changes, wake, 1) };
    }
}

/// The kernel waits for 128 words at once, of which one counts changes.
const WATCHED_MAX: usize = 127;
