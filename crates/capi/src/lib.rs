//! Streams for C, in the manner of the Open Group's Extended Sockets API (EXS §I, §II); see `include/squall_exs.h`.
//!
//! One lock guards all state. A socket's operations name a queue and a context; completions become events of
//! that queue when the program dequeues.

mod memory;
mod table;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use squall::stream::{Listener, Secret, Socket, SocketKind, StreamOptions, StreamSettings, wait_any};

use memory::Span;
use table::{ExsOperation, SocketEntry, SocketTable, with_table};

/// An event as C receives it; see the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExsEvent {
    socket: c_int,
    kind: c_int,
    error: c_int,
    end: c_int,
    bytes: usize,
    context: *mut c_void,
}

const SEND: c_int = 1;
const RECV: c_int = 2;
const CLOSED: c_int = 3;
const STREAM: c_int = 1;
const SEQPACKET: c_int = 2;
const WAITALL: c_int = 1;

type Outcome<T> = Result<T, c_int>;

/// Runs the work of a C function; on failure sets errno and returns -1. No panic leaves it, since that would
/// abort the process: a bug here is EIO for the caller, and its message is on standard error.
fn call(work: impl FnOnce() -> Outcome<c_int>) -> c_int {
    answer(guarded(work).and_then(|outcome| outcome))
}

/// Same as [`call`], for functions that return something else.
fn guarded<R>(work: impl FnOnce() -> R) -> Outcome<R> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| libc::EIO)
}

/// On failure sets errno and returns -1.
fn answer(outcome: Outcome<c_int>) -> c_int {
    outcome.unwrap_or_else(|error| {
        // SAFETY: it takes no arguments and returns the address of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: valid for as long as the thread lives, and this thread's own.
        unsafe { *errno = error };
        -1
    })
}

fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller passes a text that ends with a zero and remains valid during the call.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| libc::EINVAL)
}

/// Returns the errno value that describes the error best.
fn number(error: squall::stream::StreamError) -> c_int {
    match std::io::Error::from(error).kind() {
        std::io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        std::io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        std::io::ErrorKind::PermissionDenied => libc::EACCES,
        std::io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        std::io::ErrorKind::BrokenPipe => libc::EPIPE,
        std::io::ErrorKind::InvalidInput => libc::EINVAL,
        std::io::ErrorKind::OutOfMemory => libc::ENOMEM,
        _ => libc::ECONNRESET,
    }
}

fn span(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_init(name: *const c_char, secret: *const c_char) -> c_int {
    call(|| {
        let secret = Secret::new(text(secret)?).map_err(|_| libc::EINVAL)?;
        let options = StreamOptions::new(text(name)?, &secret);
        with_table(|table| table.options = Some(options));
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_socket(kind: c_int) -> c_int {
    call(|| {
        with_table(|table| {
            let mut options = table.options.clone().ok_or(libc::ENOTCONN)?;
            let kind = match kind {
                STREAM => SocketKind::Stream,
                SEQPACKET => SocketKind::Packets,
                _ => return Err(libc::EINVAL),
            };
            options.settings = StreamSettings { kind, ..options.settings };
            Ok(table.insert(SocketEntry::New { options, address: None }))
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_bind(socket: c_int, address: *const c_char) -> c_int {
    call(|| {
        let parsed = text(address)?.parse().map_err(|_| libc::EINVAL)?;
        with_table(|table| match table.entry(socket)? {
            SocketEntry::New { address, .. } => {
                *address = Some(parsed);
                Ok(0)
            }
            _ => Err(libc::EINVAL),
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_listen(socket: c_int) -> c_int {
    call(|| {
        with_table(|table| {
            let entry = table.entry(socket)?;
            let SocketEntry::New { options, address: Some(address) } = entry else {
                return Err(libc::EINVAL);
            };
            *entry = SocketEntry::Listening(Listener::bind(address, options).map_err(number)?.into());
            Ok(0)
        })
    })
}

/// See the header.
///
/// # Safety
/// `address` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getsockname(socket: c_int, address: *mut c_char, length: usize) -> c_int {
    call(|| {
        with_table(|table| {
            let SocketEntry::Listening(listener) = table.entry(socket)? else { return Err(libc::EINVAL) };
            let text = listener.address().to_string();
            if address.is_null() || text.len() >= length {
                return Err(libc::ENAMETOOLONG);
            }
            // SAFETY: the caller promises space for `length` bytes, which is more than the text and its
            // terminating zero need.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), address.cast(), text.len()) };
            // SAFETY: as above.
            let end = unsafe { address.add(text.len()) };
            // SAFETY: as above.
            unsafe { *end = 0 };
            Ok(0)
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_accept(socket: c_int, timeout_ms: c_int) -> c_int {
    call(|| {
        let listener = with_table(|table| match table.entry(socket)? {
            SocketEntry::Listening(listener) => Ok(listener.clone()),
            _ => Err(libc::EINVAL),
        })?;
        // Without the lock, so that other calls can proceed meanwhile.
        let accepted = listener.accept_within(span(timeout_ms)).map_err(number)?.ok_or(libc::ETIMEDOUT)?;
        Ok(with_table(|table| table.insert(SocketEntry::connected(accepted.into_endpoint()))))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_connect(socket: c_int, address: *const c_char, timeout_ms: c_int) -> c_int {
    call(|| {
        let address = text(address)?.parse().map_err(|_| libc::EINVAL)?;
        let mut options = with_table(|table| match table.entry(socket)? {
            SocketEntry::New { options, .. } => Ok(options.clone()),
            _ => Err(libc::EISCONN),
        })?;
        options.timeout = span(timeout_ms).unwrap_or(Duration::MAX / 4);
        let connected = Socket::connect(&address, &options).map_err(number)?.into_endpoint();
        with_table(|table| {
            *table.entry(socket)? = SocketEntry::connected(connected);
            Ok(0)
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_shutdown(socket: c_int) -> c_int {
    call(|| {
        with_table(|table| {
            let connection = table.connection(socket)?;
            connection.endpoint.shut_down();
            connection.endpoint.flush();
            Ok(0)
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_close(socket: c_int) -> c_int {
    call(|| {
        // Dropped without the lock, since it may wait for the peer.
        let closed = with_table(|table| table.remove(socket));
        closed.map(drop).map(|()| 0)
    })
}

/// See the header.
///
/// # Safety
/// `handle` must be null or valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_malloc(socket: c_int, length: usize, handle: *mut i64) -> *mut c_void {
    if handle.is_null() {
        answer(Err(libc::EFAULT));
        return std::ptr::null_mut();
    }
    let made = guarded(|| with_table(|table| table.allocate(socket, length)));
    match made.and_then(|made| made) {
        Ok((number, start)) => {
            // SAFETY: the caller promises that `handle` is valid for a store.
            unsafe { *handle = number };
            start
        }
        Err(error) => {
            answer(Err(error));
            std::ptr::null_mut()
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_mregister(address: *mut c_void, length: usize) -> i64 {
    let span = Span::new(address, length);
    if address.is_null() || span.start.checked_add(length).is_none() {
        return answer(Err(libc::EFAULT)).into();
    }
    guarded(|| with_table(|table| table.remember(span))).unwrap_or_else(|error| answer(Err(error)).into())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_mderegister(handle: i64) -> c_int {
    call(|| with_table(|table| table.forget(handle)))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_qcreate() -> c_int {
    call(|| Ok(with_table(SocketTable::create_queue)))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn exs_qdelete(queue: c_int) -> c_int {
    call(|| with_table(|table| table.delete_queue(queue)))
}

/// See the header.
///
/// # Safety
/// `events` must be valid for `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qdequeue(
    queue: c_int,
    events: *mut ExsEvent,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    if events.is_null() && count > 0 {
        return answer(Err(libc::EFAULT));
    }
    call(|| {
        let taken = dequeue(queue, count, span(timeout_ms))?;
        // SAFETY: the caller promises space for `count` events, and no more were taken.
        unsafe { std::ptr::copy_nonoverlapping(taken.as_ptr(), events, taken.len()) };
        Ok(c_int::try_from(taken.len()).expect("at most `count`"))
    })
}

/// Waits for up to `patience` for the first event, and takes up to `count`.
fn dequeue(queue: c_int, count: usize, patience: Option<Duration>) -> Outcome<Vec<ExsEvent>> {
    let until = patience.map(|patience| Instant::now() + patience);
    loop {
        let taken = with_table(|table| -> Outcome<_> {
            let taken = table.take_events(queue, count)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = left == Some(Duration::ZERO) || count == 0;
            if taken.is_empty() && !is_over {
                // Releases the lock regularly, so that other calls can proceed.
                let slice = left.map_or(WAIT_SLICE, |left| left.min(WAIT_SLICE));
                let mut endpoints = table.endpoints();
                wait_any(&mut endpoints, Some(slice)).map_err(|_| libc::EIO)?;
                return Ok(None);
            }
            Ok(Some(taken))
        })?;
        if let Some(taken) = taken {
            return Ok(taken);
        }
    }
}

/// See the header.
///
/// # Safety
/// `address` must be valid for loads of `length` bytes, which must not change before the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_send(
    socket: c_int,
    handle: i64,
    address: *const c_void,
    length: usize,
    queue: c_int,
    context: *mut c_void,
) -> c_int {
    let operation = ExsOperation { queue, context: context as usize, length };
    let span = Span::new(address.cast_mut(), length);
    call(|| with_table(|table| table.send(socket, handle, &span, operation)))
}

/// See the header.
///
/// # Safety
/// `address` must be valid for stores of `length` bytes, which no other code may use before the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_recv(
    socket: c_int,
    handle: i64,
    address: *mut c_void,
    length: usize,
    flags: c_int,
    queue: c_int,
    context: *mut c_void,
) -> c_int {
    let operation = ExsOperation { queue, context: context as usize, length };
    let span = Span::new(address, length);
    call(|| with_table(|table| table.receive(socket, handle, &span, flags & WAITALL != 0, operation)))
}

/// The longest time for which one wait holds the lock.
const WAIT_SLICE: Duration = Duration::from_millis(5);
