//! Sockets, memory and queues by the numbers that C uses.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use squall::stream::{
    Address, Buffer, Completion, Endpoint, Listener, PostRefused, ReceiveId, ReceiveOutcome, Region, SendId,
    SendOutcome, StreamOptions,
};

use crate::memory::Span;
use crate::{CLOSED, ExsEvent, Outcome, RECV, SEND};

/// All state, behind one lock.
#[derive(Default)]
pub(crate) struct SocketTable {
    pub(crate) options: Option<StreamOptions>,
    sockets: BTreeMap<c_int, SocketEntry>,
    memory: BTreeMap<i64, Memory>,
    queues: BTreeMap<c_int, VecDeque<Noted>>,
    last: c_int,
}

/// The state of a socket.
pub(crate) enum SocketEntry {
    New { options: StreamOptions, address: Option<Address> },
    Listening(Arc<Listener>),
    Connected(Box<ExsConnection>),
}

/// A connection and the operations outstanding on it.
pub(crate) struct ExsConnection {
    pub(crate) endpoint: Endpoint,
    /// With the library's copy of the bytes to send, if there is one.
    sends: BTreeMap<SendId, (ExsOperation, Option<Buffer>)>,
    /// With the library's buffer and the caller's memory, if they are not the same.
    receives: BTreeMap<ReceiveId, (ExsOperation, Option<(Buffer, Span)>)>,
    /// The queue that gets the closing event: the last one used.
    queue: c_int,
}

/// What the event of an operation will report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExsOperation {
    pub(crate) queue: c_int,
    /// A pointer of the caller, which is never dereferenced here.
    pub(crate) context: usize,
    pub(crate) length: usize,
}

/// An event of one socket.
#[derive(Clone, Copy, Debug)]
struct Noted {
    socket: c_int,
    kind: c_int,
    error: c_int,
    end: bool,
    bytes: usize,
    context: usize,
}

/// Memory that the caller may use.
enum Memory {
    /// Memory of the library, for one socket.
    Shared { socket: c_int, buffer: Buffer, span: Span },
    /// Memory of the caller, with its region at each socket that has used it in place.
    Foreign { span: Span, adopted: BTreeMap<c_int, Region> },
}

static TABLE: Mutex<Option<SocketTable>> = Mutex::new(None);

/// Runs `work` on the table; one thread at a time.
pub(crate) fn with_table<R>(work: impl FnOnce(&mut SocketTable) -> R) -> R {
    work(TABLE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(SocketTable::default))
}

impl SocketEntry {
    pub(crate) fn connected(endpoint: Endpoint) -> Self {
        let (sends, receives) = (BTreeMap::new(), BTreeMap::new());
        Self::Connected(Box::new(ExsConnection { endpoint, sends, receives, queue: 0 }))
    }
}

impl SocketTable {
    fn next(&mut self) -> c_int {
        self.last += 1;
        self.last
    }

    pub(crate) fn insert(&mut self, entry: SocketEntry) -> c_int {
        let number = self.next();
        self.sockets.insert(number, entry);
        number
    }

    pub(crate) fn entry(&mut self, socket: c_int) -> Outcome<&mut SocketEntry> {
        self.sockets.get_mut(&socket).ok_or(libc::EBADF)
    }

    pub(crate) fn connection(&mut self, socket: c_int) -> Outcome<&mut ExsConnection> {
        match self.entry(socket)? {
            SocketEntry::Connected(connection) => Ok(connection),
            _ => Err(libc::ENOTCONN),
        }
    }

    /// Removes a socket, with the library's memory for it.
    pub(crate) fn remove(&mut self, socket: c_int) -> Outcome<SocketEntry> {
        self.memory.retain(|_, memory| !matches!(memory, Memory::Shared { socket: of, .. } if *of == socket));
        for memory in self.memory.values_mut() {
            if let Memory::Foreign { adopted, .. } = memory {
                adopted.remove(&socket);
            }
        }
        self.sockets.remove(&socket).ok_or(libc::EBADF)
    }

    pub(crate) fn allocate(&mut self, socket: c_int, length: usize) -> Outcome<(i64, *mut c_void)> {
        if length == 0 {
            return Err(libc::EINVAL);
        }
        let buffer = self.connection(socket)?.endpoint.try_buffer(length).map_err(|_| libc::ENOMEM)?;
        let start = posted(&buffer).pointer(0).as_ptr().cast::<c_void>();
        let span = Span::new(start, length);
        let number = i64::from(self.next());
        self.memory.insert(number, Memory::Shared { socket, buffer, span });
        Ok((number, start))
    }

    pub(crate) fn remember(&mut self, span: Span) -> i64 {
        let number = i64::from(self.next());
        self.memory.insert(number, Memory::Foreign { span, adopted: BTreeMap::new() });
        number
    }

    pub(crate) fn forget(&mut self, handle: i64) -> Outcome<c_int> {
        if let Memory::Foreign { adopted, .. } = self.memory.get_mut(&handle).ok_or(libc::EINVAL)? {
            while let Some((socket, region)) = adopted.pop_first() {
                if let Some(SocketEntry::Connected(connection)) = self.sockets.get_mut(&socket)
                    && !connection.endpoint.release(&region)
                {
                    adopted.insert(socket, region);
                    return Err(libc::EBUSY);
                }
            }
        }
        self.memory.remove(&handle);
        Ok(0)
    }

    pub(crate) fn create_queue(&mut self) -> c_int {
        let number = self.next();
        self.queues.insert(number, VecDeque::new());
        number
    }

    pub(crate) fn delete_queue(&mut self, queue: c_int) -> Outcome<c_int> {
        self.queues.remove(&queue).map(|_| 0).ok_or(libc::EBADF)
    }

    pub(crate) fn endpoints(&mut self) -> Vec<&mut Endpoint> {
        let connected = self.sockets.values_mut().filter_map(|entry| match entry {
            SocketEntry::Connected(connection) => Some(&mut connection.endpoint),
            _ => None,
        });
        connected.collect()
    }

    /// Returns the region and range of `span` in memory that the socket can transfer; `None` if it must be
    /// copied.
    fn place(
        &mut self,
        socket: c_int,
        handle: i64,
        span: &Span,
    ) -> Outcome<Option<(Region, std::ops::Range<usize>)>> {
        match self.memory.get_mut(&handle).ok_or(libc::EINVAL)? {
            Memory::Foreign { span: all, adopted } if all.contains(span) => {
                let Some(range) = all.in_place(span) else { return Ok(None) };
                let Some(whole) = all.region() else { return Ok(None) };
                let Some(SocketEntry::Connected(connection)) = self.sockets.get_mut(&socket) else {
                    return Ok(None);
                };
                let adopt = || connection.endpoint.adopt(&whole);
                Ok(Some((adopted.entry(socket).or_insert_with(adopt).clone(), range)))
            }
            Memory::Shared { socket: of, buffer, span: all } if all.contains(span) && *of == socket => {
                let first = span.start - all.start;
                Ok(Some((posted(buffer).clone(), first..first + span.length)))
            }
            _ => Err(libc::EFAULT),
        }
    }

    pub(crate) fn send(
        &mut self,
        socket: c_int,
        handle: i64,
        span: &Span,
        what: ExsOperation,
    ) -> Outcome<c_int> {
        self.queues.get(&what.queue).ok_or(libc::EINVAL)?;
        let placed = self.place(socket, handle, span)?;
        let connection = self.connection(socket)?;
        let endpoint = &mut connection.endpoint;
        let (taken, copy) = match placed {
            Some((region, range)) => (endpoint.post_send(&region, range), None),
            None => {
                let mut copy = endpoint.try_buffer(span.length).map_err(|_| libc::ENOMEM)?;
                span.load(&mut copy);
                (endpoint.post_send(posted(&copy), copy.range()), Some(copy))
            }
        };
        let id = taken.map_err(refusal)?;
        endpoint.flush();
        connection.sends.insert(id, (what, copy));
        connection.queue = what.queue;
        Ok(0)
    }

    pub(crate) fn receive(
        &mut self,
        socket: c_int,
        handle: i64,
        span: &Span,
        all: bool,
        what: ExsOperation,
    ) -> Outcome<c_int> {
        self.queues.get(&what.queue).ok_or(libc::EINVAL)?;
        let placed = self.place(socket, handle, span)?;
        let connection = self.connection(socket)?;
        let endpoint = &mut connection.endpoint;
        let (taken, copy) = match placed {
            Some((region, range)) => (endpoint.post_receive(&region, range, all), None),
            None => {
                let copy = endpoint.try_buffer(span.length).map_err(|_| libc::ENOMEM)?;
                (endpoint.post_receive(posted(&copy), copy.range(), all), Some((copy, *span)))
            }
        };
        let id = taken.map_err(refusal)?;
        endpoint.flush();
        connection.receives.insert(id, (what, copy));
        connection.queue = what.queue;
        Ok(0)
    }

    /// Returns up to `count` events of `queue`, after polling all sockets.
    pub(crate) fn take_events(&mut self, queue: c_int, count: usize) -> Outcome<Vec<ExsEvent>> {
        for (socket, entry) in &mut self.sockets {
            let SocketEntry::Connected(connection) = entry else { continue };
            while let Some(completion) = connection.endpoint.poll() {
                if let Some((of, noted)) = connection.note(*socket, completion)
                    && let Some(events) = self.queues.get_mut(&of)
                {
                    events.push_back(noted);
                }
            }
        }
        let events = self.queues.get_mut(&queue).ok_or(libc::EBADF)?;
        let count = count.min(events.len());
        Ok(events.drain(..count).map(Noted::event).collect())
    }
}

impl ExsConnection {
    /// Returns the event of a completion, and its queue.
    fn note(&mut self, socket: c_int, completion: Completion) -> Option<(c_int, Noted)> {
        match completion {
            Completion::Connected => None,
            Completion::Send { id, outcome } => {
                let (what, _copy) = self.sends.remove(&id)?;
                let (bytes, error) = match outcome {
                    SendOutcome::Placed => (what.length, 0),
                    SendOutcome::Cancelled => (0, libc::ECANCELED),
                    SendOutcome::Failed(_) => (0, libc::ECONNRESET),
                };
                Some((what.queue, Noted::of(socket, SEND, error, bytes, what)))
            }
            Completion::Receive { id, bytes, outcome } => {
                let (what, copy) = self.receives.remove(&id)?;
                let bytes = usize::try_from(bytes).expect("it fits memory");
                if let Some((copy, span)) = copy {
                    span.store(&copy[..bytes]);
                }
                let error = match outcome {
                    ReceiveOutcome::Filled | ReceiveOutcome::End => 0,
                    ReceiveOutcome::Cancelled => libc::ECANCELED,
                    ReceiveOutcome::TooLong { .. } => libc::EMSGSIZE,
                    ReceiveOutcome::Failed(_) => libc::ECONNRESET,
                };
                let noted = Noted::of(socket, RECV, error, bytes, what);
                Some((what.queue, Noted { end: outcome == ReceiveOutcome::End, ..noted }))
            }
            Completion::Closed { failure } => {
                let what = ExsOperation { queue: self.queue, context: 0, length: 0 };
                let error = if failure.is_some() { libc::ECONNRESET } else { 0 };
                Some((self.queue, Noted::of(socket, CLOSED, error, 0, what)))
            }
        }
    }
}

impl Noted {
    fn of(socket: c_int, kind: c_int, error: c_int, bytes: usize, what: ExsOperation) -> Self {
        Self { socket, kind, error, end: false, bytes, context: what.context }
    }

    fn event(self) -> ExsEvent {
        let Self { socket, kind, error, end, bytes, context } = self;
        ExsEvent { socket, kind, error, end: c_int::from(end), bytes, context: context as *mut c_void }
    }
}

/// Returns the memory of a buffer, to be posted.
fn posted(buffer: &Buffer) -> &Region {
    // SAFETY: this module uses the bytes of a buffer only before it is posted and after its completion; the
    // header binds the caller of `exs_malloc` in what it does with its memory meanwhile.
    unsafe { buffer.region() }
}

fn refusal(refused: PostRefused) -> c_int {
    match refused {
        PostRefused::Full => libc::EAGAIN,
        PostRefused::TooLong(_) => libc::EMSGSIZE,
        PostRefused::Ended | PostRefused::Closed => libc::EPIPE,
        PostRefused::Empty | PostRefused::Memory => libc::EINVAL,
    }
}
