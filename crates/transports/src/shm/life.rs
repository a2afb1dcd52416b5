//! The life mark: a word of each link page that the kernel changes when the process begins to die.
//!
//! A process that is killed closes its sockets last: the kernel unmaps its memory first, which takes 1 ms for 10 MB and 6 ms for 100
//! MB, and only then do its peers read the end of the file. Robust futexes are handled earlier, within some ten microseconds of the
//! kill: the kernel walks a list that a thread has announced, and sets a bit in each word of it that holds the thread's number. They
//! are made for locks whose holder dies. Here the word is no lock; it is only *read* by the peers, which map its page read-only.
//!
//! **State.** One thread per process announces the list, and then waits for the marks of others until the process ends. The list is
//! circular: its head, and one entry in each link page, one word after the mark that it is for. A lock orders changes.
//!
//! **Invariants.**
//! - At each instant the list is whole: the kernel may read it then. An entry is complete before it is linked, and unlinked before its
//!   page can be unmapped.
//! - The bit is set only by the kernel, and only when the thread ends, which is with its process.
//!
//! **What a peer may conclude.** The process is being ended. Its other threads were sent the same signal, and stop when their processors
//! are interrupted, which takes microseconds; they may run for a moment after the mark. If a member that is accused could still act, it
//! might have its accuser removed. So the mark is reported after [`GRACE`], when none runs any more
//! ([`FabricEvent::PeerDying`](squall_fabric::FabricEvent)); but only the end of the file proves that nothing is stored. Without the
//! mark nothing is known: where the kernel refuses the list, or it has more entries than the kernel reads (2,048), the end of the file
//! remains. A node that sleeps is woken by [`death_watch`](super::death_watch).

use std::io;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;

use super::death_watch;
use super::memory::ShmSegment;

/// Sets the life mark of this process in a page, for as long as this value lives.
#[derive(Debug)]
pub(super) struct LifeMark {
    entry: LifeEntry,
    /// Maps the entry.
    _segment: Arc<ShmSegment>,
}

/// The place of an entry: a word that holds the address of the next one, one word after its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LifeEntry(NonNull<AtomicU64>);

// SAFETY: an atomic word of a mapping that its mark holds.
unsafe impl Send for LifeEntry {}
// SAFETY: as above.
unsafe impl Sync for LifeEntry {}

impl LifeEntry {
    fn address(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// # Safety
    /// Its mark has not been dropped.
    const unsafe fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped until then.
        unsafe { self.0.as_ref() }
    }
}

/// What the thread announces to the kernel (`struct robust_list_head`).
#[repr(C)]
struct LifeListHead {
    /// The address of the first entry, or of this head.
    first: AtomicU64,
    /// From an entry to its mark, in bytes.
    mark_offset: libc::c_long,
    /// For locks that are just being taken: there are none.
    pending: u64,
}

/// The list of this process.
struct LifeList {
    head: &'static LifeListHead,
    /// The process that has announced it.
    process: u32,
    /// The number of the thread, which is in all marks.
    thread: u32,
    /// In the order of the list.
    entries: Mutex<Vec<LifeEntry>>,
}

/// Returns the list, announced when it is first used; `None` if this kernel does not allow that.
fn list() -> Option<&'static LifeList> {
    static LIST: OnceLock<Option<LifeList>> = OnceLock::new();
    let announce = || {
        let list = LifeList::announce();
        list.inspect_err(
            |error| crate::log::debug!(%error, "peers learn of this process's death from its sockets only"),
        )
        .ok()
    };
    // A forked child has the list of its parent, and no thread that announces it.
    LIST.get_or_init(announce).as_ref().filter(|list| list.process == std::process::id())
}

impl LifeList {
    fn announce() -> io::Result<Self> {
        let first = AtomicU64::new(0);
        let mark_offset = -libc::c_long::try_from(size_of::<u64>()).expect("small");
        let head: &'static LifeListHead =
            Box::leak(Box::new(LifeListHead { first, mark_offset, pending: 0 }));
        head.first.store(head.address(), Ordering::Relaxed);
        let (sender, receiver) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("squall-life".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            let announced = announce_here(head);
            let is_needed = announced.is_ok();
            let _ = sender.send(announced);
            if is_needed {
                death_watch::watch();
                loop {
                    std::thread::park();
                }
            }
        })?;
        let thread = receiver.recv().map_err(io::Error::other)??;
        Ok(Self { process: std::process::id(), head, thread, entries: Mutex::default() })
    }
}

impl LifeListHead {
    fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }
}

/// Announces the list as that of this thread, which must never end; returns its number.
fn announce_here(head: &'static LifeListHead) -> io::Result<u32> {
    // SAFETY: the head lives as long as the process. The thread takes no lock of the C library that would use its own list.
    let result = unsafe {
        libc::syscall(libc::SYS_set_robust_list, std::ptr::from_ref(head), size_of::<LifeListHead>())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).map_err(io::Error::other)
}

impl LifeMark {
    /// Uses the words `place` (the mark) and `place + 1` (the entry) of the segment; returns `None` if this kernel does not allow it.
    pub(super) fn set(segment: &Arc<ShmSegment>, place: usize) -> Option<Self> {
        let list = list()?;
        let words = segment.words();
        words[place].store(mark_of(list.thread), Ordering::Relaxed);
        let entry = LifeEntry(NonNull::from(&words[place + 1]));
        let mut entries = lock(&list.entries);
        words[place + 1].store(list.head.first.load(Ordering::Relaxed), Ordering::Relaxed);
        // SYNC: the kernel may read the list at any instant, and then the entry is complete.
        list.head.first.store(entry.address(), Ordering::Release);
        entries.insert(0, entry);
        Some(Self { entry, _segment: segment.clone() })
    }
}

impl Drop for LifeMark {
    fn drop(&mut self) {
        let Some(list) = list() else { return };
        let mut entries = lock(&list.entries);
        let Some(place) = entries.iter().position(|entry| *entry == self.entry) else { return };
        // SAFETY: this mark is being dropped.
        let next = unsafe { self.entry.word() }.load(Ordering::Relaxed);
        let before = place.checked_sub(1).map_or(&list.head.first, |before| {
            // SAFETY: its mark must take the lock first.
            unsafe { entries[before].word() }
        });
        // SYNC: as in `set`; the next entry is complete.
        before.store(next, Ordering::Release);
        entries.remove(place);
    }
}

/// Returns whether the kernel has begun to end the process whose mark has this value.
#[inline]
pub(super) fn is_dying(mark: u64) -> bool {
    futex_of(mark) & OWNER_DIED != 0
}

/// Returns the value of a mark: a futex of 32 bits at the word's address, for which others wait.
fn mark_of(thread: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(thread | WAITERS).to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Returns the futex of a mark.
#[inline]
pub(super) fn futex_of(mark: u64) -> u32 {
    let [a, b, c, d, ..] = mark.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Many times what a processor needs to notice an interrupt.
pub(super) const GRACE: Duration = Duration::from_micros(50);

/// The kernel's `FUTEX_OWNER_DIED`.
const OWNER_DIED: u32 = 0x4000_0000;

/// The kernel's `FUTEX_WAITERS`.
const WAITERS: u32 = 0x8000_0000;

/// The thread needs little.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn order(segments: &[Arc<ShmSegment>]) -> Vec<usize> {
        let list = list().expect("this kernel has robust futexes");
        let mut found = Vec::new();
        let mut next = list.head.first.load(Ordering::Relaxed);
        while next != list.head.address() {
            let of = segments
                .iter()
                .position(|segment| std::ptr::from_ref(&segment.words()[1]).addr() as u64 == next);
            found.extend(of);
            let entries = list.entries.lock().unwrap();
            let entry = entries.iter().find(|entry| entry.address() == next).expect("an entry");
            // SAFETY: no mark of this test is dropped meanwhile, and others take the lock.
            next = unsafe { entry.word() }.load(Ordering::Relaxed);
        }
        found
    }

    /// Other tests of this process have marks in the same list.
    #[test]
    fn the_list_is_whole_whatever_is_removed() {
        let segments: Vec<_> = (0..4).map(|_| ShmSegment::new(8).unwrap()).collect();
        let mut marks: Vec<_> = segments.iter().map(|segment| LifeMark::set(segment, 0)).collect();
        assert!(marks.iter().all(Option::is_some));
        assert_eq!(order(&segments), [3, 2, 1, 0]);
        marks[1] = None;
        assert_eq!(order(&segments), [3, 2, 0]);
        marks[3] = None;
        marks[0] = None;
        assert_eq!(order(&segments), [2]);
        assert!(segments.iter().all(|segment| !is_dying(segment.words()[0].load(Ordering::Relaxed))));
        marks[2] = None;
        assert_eq!(order(&segments), []);
    }

    #[test]
    fn a_mark_holds_the_number_of_the_thread_where_the_kernel_looks() {
        let bytes = mark_of(0x12345).to_ne_bytes();
        assert_eq!(bytes[..4], 0x8001_2345_u32.to_ne_bytes());
        assert!(!is_dying(mark_of(0x12345)));
        assert!(is_dying(mark_of(OWNER_DIED)));
    }
}
