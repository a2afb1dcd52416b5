//! One member's part of one shard: the core, and the way of its updates into the group (Derecho app. A, §3.4).
//!
//! **Locks.** The core's is taken by the thread that applies updates, for a batch, and by who answers queries or gives the
//! state; the outbox's by who sends. Who needs both takes the core's first. Nobody waits while holding one of them.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::window::{ReserveError, Writer};
use squall_protocols::group::SubgroupId;
use squall_protocols::replica::{
    Answer, Delivery, HEADER_BYTES, Hold, Machine as _, Origin, Outcome, Position, Readiness, Replica,
    SessionAnswer, Sessions, Settings, ShardView, UnderWay,
};

use super::driver::Place;
use super::machine::{Replicated, Typed};
use super::pending::Completion;
use super::{ObjectError, ObjectOptions};
use crate::application::Seat;
use crate::node::Link;
use crate::wait::block_on;

pub(super) struct Shard<T: Replicated> {
    /// Its number in the object.
    pub(super) number: usize,
    /// The subgroup that it lives in.
    pub(super) subgroup: String,
    pub(super) id: SubgroupId,
    pub(super) seat: Arc<Seat>,
    pub(super) link: Link,
    pub(super) options: Arc<ObjectOptions>,
    message_max: usize,
    core: Mutex<Replica<Typed<T>>>,
    outbox: Mutex<Outbox<T::Reply>>,
    /// Whether a thread is under way for this shard's state.
    on_errand: AtomicBool,
}

/// Own updates, and the window that they go into.
struct Outbox<R> {
    under_way: UnderWay<Waiter<R>>,
    /// The window, and since which view this member was in the shard when it came.
    writer: Option<(Writer, u64)>,
    /// Why nothing can be sent any more.
    ended: Option<ObjectError>,
}

/// Who waits for an update.
pub(super) enum Waiter<R> {
    Own(Completion<R>),
    Client(Completion<SessionAnswer>),
}

impl<R> Waiter<R> {
    fn fail(self, error: ObjectError) {
        match self {
            Self::Own(completion) => completion.complete(Err(error)),
            Self::Client(completion) => completion.complete(Err(error)),
        }
    }

    fn answer(self, answer: Answer<Option<R>>) {
        match (self, answer) {
            (Self::Own(completion), Answer::Reply(reply)) => {
                let unread = || ObjectError::Form("the members cannot read the update".into());
                completion.complete(reply.ok_or_else(unread));
            }
            (Self::Client(completion), Answer::Session(answer)) => completion.complete(Ok(answer)),
            _ => unreachable!("the answer is of the kind of its origin"),
        }
    }
}

/// Whose an update is that is to be sent.
#[derive(Clone, Copy)]
pub(super) enum From {
    Own,
    Opening,
    Session { id: u64, number: u64 },
}

/// Why an update was not sent.
pub(super) enum Refused {
    /// This member is not in the shard, or has no state yet: ask one that has.
    NotHere,
    Error(ObjectError),
}

/// Why an update cannot be sent.
enum Hindrance {
    /// There is no room at this moment.
    Full,
    /// For good: see [`Shard::refusal`].
    Refused,
}

impl<T: Replicated> Shard<T> {
    pub(super) fn new(
        number: usize,
        Place { subgroup, id, seat, message_max }: Place,
        link: Link,
        options: Arc<ObjectOptions>,
    ) -> Self {
        // The same at all members, or their states would part.
        let core = Mutex::new(Replica::new(link.node, Settings::default()));
        let outbox = Outbox { under_way: UnderWay::default(), writer: None, ended: None };
        let (outbox, on_errand) = (Mutex::new(outbox), AtomicBool::new(false));
        Self { number, subgroup, id, seat, link, options, message_max, core, outbox, on_errand }
    }

    /// Whether there was no thread under way for this shard's state; there is one from now on.
    pub(super) fn begin_errand(&self) -> bool {
        !self.on_errand.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_errand(&self) {
        self.on_errand.store(false, Ordering::Relaxed);
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Replica<Typed<T>>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox<T::Reply>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an own update; waits while the window is full.
    pub(super) fn submit_own(
        &self,
        update: &[u8],
        completion: Completion<T::Reply>,
    ) -> Result<(), (Refused, Completion<T::Reply>)> {
        self.submit(From::Own, update, Waiter::Own(completion)).map_err(|(refused, waiter)| match waiter {
            Waiter::Own(completion) => (refused, completion),
            Waiter::Client(_) => unreachable!("it was an own one"),
        })
    }

    /// Sends an update; waits while the window is full.
    pub(super) fn submit(
        &self,
        from: From,
        update: &[u8],
        waiter: Waiter<T::Reply>,
    ) -> Result<(), (Refused, Waiter<T::Reply>)> {
        let mut waiter = Some(waiter);
        block_on(poll_fn(|context| {
            if let Err(Hindrance::Full) = self.try_submit(from, update, &mut waiter) {
                self.link.status.room.register(context.waker());
                if let Err(Hindrance::Full) = self.try_submit(from, update, &mut waiter) {
                    return Poll::Pending;
                }
            }
            // It has been sent, or refused for good.
            Poll::Ready(())
        }));
        match waiter.take() {
            None => Ok(()),
            Some(waiter) => Err((self.refusal(update), waiter)),
        }
    }

    /// Why an update is refused that was not sent.
    fn refusal(&self, update: &[u8]) -> Refused {
        let bytes_max = self.message_max.saturating_sub(HEADER_BYTES);
        if update.len() > bytes_max {
            return Refused::Error(ObjectError::TooLong { bytes: update.len(), bytes_max });
        }
        self.outbox().ended.clone().map_or(Refused::NotHere, Refused::Error)
    }

    /// Sends an update, and takes `waiter`, or says what hinders; nothing does if there is no waiter any more.
    fn try_submit(
        &self,
        from: From,
        update: &[u8],
        waiter: &mut Option<Waiter<T::Reply>>,
    ) -> Result<(), Hindrance> {
        if waiter.is_none() {
            return Ok(());
        }
        let mut outbox = self.outbox();
        let Outbox { under_way, writer, ended } = &mut *outbox;
        if ended.is_some() {
            return Err(Hindrance::Refused);
        }
        let since = under_way.since().ok_or(Hindrance::Refused)?;
        if writer.as_ref().is_none_or(|(writer, _)| writer.is_closed()) {
            if writer.take().is_some() {
                self.link.waker.wake();
            }
            *writer = self.seat.take_writer();
        }
        let (writer, stay) = writer.as_mut().ok_or(Hindrance::Full)?;
        if *stay != since {
            // The thread that applies updates is behind: this member has left the shard, and come again.
            return Err(Hindrance::Refused);
        }
        let mut reservation = match writer.reserve(HEADER_BYTES + update.len()) {
            Ok(reservation) => reservation,
            Err(ReserveError::Full | ReserveError::Closed) => return Err(Hindrance::Full),
            Err(ReserveError::TooLong { .. }) => return Err(Hindrance::Refused),
        };
        let origin = match from {
            From::Own => Origin::Member(under_way.number()),
            From::Opening => Origin::Open(under_way.number()),
            From::Session { id, number } => Origin::Session { id, number },
        };
        origin.encode(&mut reservation);
        reservation[HEADER_BYTES..].copy_from_slice(update);
        under_way.send(origin, waiter.take().expect("it was looked at"));
        reservation.commit();
        self.link.waker.wake();
        Ok(())
    }

    /// Answers a query, if this member can.
    pub(super) fn query_here(&self, query: &[u8]) -> Result<Result<T::Reply, ObjectError>, Readiness> {
        let view = self.link.status.view().map_or(0, |view| view.id);
        self.query(view, query)
    }

    /// Answers a query from a state of `view` or later, if this member can.
    pub(super) fn query(&self, view: u64, query: &[u8]) -> Result<Result<T::Reply, ObjectError>, Readiness> {
        let core = self.core();
        match (core.readiness(view), core.machine()) {
            (Readiness::Ready, Some(machine)) => {
                Ok(postcard::from_bytes(query).map(|query| machine.0.query(query)).map_err(Into::into))
            }
            (readiness, _) => Err(readiness),
        }
    }

    /// The reply as a client gets it.
    pub(super) fn encode_reply(reply: T::Reply) -> Vec<u8> {
        Typed::<T>::encode(&Some(reply))
    }

    /// Whether this member has the state, or may come to have it.
    pub(super) fn standing(&self) -> Result<Readiness, ObjectError> {
        let ended = self.outbox().ended.clone();
        let view = self.link.status.view().map_or(0, |view| view.id);
        ended.map_or_else(|| Ok(self.core().readiness(view)), Err)
    }

    /// Takes a message; for the thread that applies updates, which holds the core.
    pub(super) fn deliver(&self, core: &mut Replica<Typed<T>>, message: Delivery<'_>) {
        if let Some((origin, answer)) = core.deliver(message) {
            let waiter = self.outbox().under_way.deliver(origin);
            waiter.answer(answer);
        }
    }

    /// The next view begins.
    pub(super) fn begin_view(&self, view: ShardView, first: impl FnOnce() -> T) {
        let mut core = self.core();
        core.begin_view(view, || Typed(first()));
        let mut outbox = self.outbox();
        if outbox.writer.as_ref().is_some_and(|(writer, _)| writer.is_closed()) {
            // What was committed in it goes ahead when nobody holds it any more.
            outbox.writer = None;
            self.link.waker.wake();
        }
        let stays = core.may_send_since().is_some();
        let left = if stays { Vec::new() } else { outbox.under_way.leave::<()>() };
        drop(outbox);
        self.permit(&core);
        drop(core);
        Self::settle(left);
    }

    /// Takes over a state that has come, unless the view is changing ([`Hold::Later`]) or it is of no use any more
    /// ([`Hold::NotWanted`]); `machine` is left where it is then.
    pub(super) fn take_over(
        &self,
        position: Position,
        sessions: &Sessions,
        machine: &mut Option<Typed<T>>,
    ) -> Hold {
        let mut core = self.core();
        let Some(since) = core.wants(position) else { return Hold::NotWanted };
        let hold = self.seat.hold(since);
        if hold == Hold::Counted
            && let Some(machine) = machine.take()
        {
            core.take_over(position, sessions.clone(), machine);
            self.permit(&core);
            self.link.status.set_state_news();
            self.link.waker.wake();
        }
        hold
    }

    /// Lets this member send, if it has the state.
    pub(super) fn permit(&self, core: &Replica<Typed<T>>) {
        if let Some(since) = core.may_send_since() {
            self.outbox().under_way.begin(since);
        }
    }

    /// Nothing more comes here.
    pub(super) fn stop(&self, error: &ObjectError) {
        let mut outbox = self.outbox();
        outbox.ended.get_or_insert_with(|| error.clone());
        outbox.writer = None;
        let under_way = outbox.under_way.stop::<()>();
        drop(outbox);
        Self::settle(under_way);
        self.link.status.room.notify();
    }

    fn settle(outcomes: Vec<(Waiter<T::Reply>, Outcome<()>)>) {
        for (waiter, outcome) in outcomes {
            match outcome {
                Outcome::NotDelivered => waiter.fail(ObjectError::NotDelivered),
                Outcome::Unknown | Outcome::Delivered(()) => waiter.fail(ObjectError::Unknown),
            }
        }
    }
}

impl<T: Replicated> std::fmt::Debug for Shard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("subgroup", &self.subgroup).finish_non_exhaustive()
    }
}
