//! The log of the library: events of all its threads, emitted by one thread of their own.
//!
//! What a subscriber of `tracing` does with an event may take any time: a pipe that is not read holds up the thread that
//! writes to it. A polling thread that waits there stops the member, and its silence is taken for its death. So no thread
//! of the library calls `tracing` itself. It renders what it reports, and puts the event into a bounded queue; the
//! thread of the log emits it, with the level, the target, the fields and the subscriber that it would have had, but
//! outside of spans. When the queue is full, events are dropped and counted, and the next one that a subscriber gets is
//! followed by their number.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Instant;

use squall_fabric::Duration;
use squall_fabric::atomics::{AtomicU64, Ordering};
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Level, dispatcher};

#[doc(inline)]
pub use crate::{log_debug as debug, log_error as error, log_info as info, log_warn as warn};

/// An event that waits to be emitted.
struct QueuedEvent {
    /// The subscriber of the thread that reports it.
    subscriber: Dispatch,
    emit: Box<dyn FnOnce() + Send>,
}

/// Logs an error, as `tracing::error!` does, without waiting for the subscriber.
#[macro_export]
macro_rules! log_error {
    ($($event:tt)+) => { $crate::log_event!(@ ERROR [] $($event)+) };
}

/// Logs a warning, as `tracing::warn!` does, without waiting for the subscriber.
#[macro_export]
macro_rules! log_warn {
    ($($event:tt)+) => { $crate::log_event!(@ WARN [] $($event)+) };
}

/// Logs what happens, as `tracing::info!` does, without waiting for the subscriber.
#[macro_export]
macro_rules! log_info {
    ($($event:tt)+) => { $crate::log_event!(@ INFO [] $($event)+) };
}

/// Logs a detail, as `tracing::debug!` does, without waiting for the subscriber.
#[macro_export]
macro_rules! log_debug {
    ($($event:tt)+) => { $crate::log_event!(@ DEBUG [] $($event)+) };
}

/// Takes one field after the other, then the message.
#[doc(hidden)]
#[macro_export]
macro_rules! log_event {
    (@ $level:ident [$($done:tt)*] % $name:ident, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [%] $name.to_string())] $($rest)+)
    };
    (@ $level:ident [$($done:tt)*] ? $name:ident, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [%] format!("{:?}", $name))] $($rest)+)
    };
    (@ $level:ident [$($done:tt)*] $name:ident = % $value:expr, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [%] ($value).to_string())] $($rest)+)
    };
    (@ $level:ident [$($done:tt)*] $name:ident = ? $value:expr, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [%] format!("{:?}", $value))] $($rest)+)
    };
    (@ $level:ident [$($done:tt)*] $name:ident = $value:expr, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [] $crate::log::LoggedValue::logged(&$value))] $($rest)+)
    };
    (@ $level:ident [$($done:tt)*] $name:ident, $($rest:tt)+) => {
        $crate::log_event!(@ $level [$($done)* ($name [] $crate::log::LoggedValue::logged(&$name))] $($rest)+)
    };
    (@ $level:ident [$(($name:ident [$($sigil:tt)?] $value:expr))*] $($message:tt)+) => {
        if $crate::log::is_wanted(tracing::Level::$level) {
            let message = format!($($message)+);
            $(let $name = $value;)*
            $crate::log::push(move || {
                tracing::event!(tracing::Level::$level, $($name = $($sigil)? $name,)* "{}", message);
            });
        }
    };
}

/// A value of a field that keeps its type.
#[doc(hidden)]
pub trait LoggedValue {
    /// What is recorded.
    type Owned: tracing::Value + Send + 'static;

    /// Returns what is recorded.
    fn logged(&self) -> Self::Owned;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl LoggedValue for $number {
            type Owned = Self;

            fn logged(&self) -> Self {
                *self
            }
        }
    )*};
}
numbers!(bool, u16, u32, u64, usize, i32);

impl LoggedValue for str {
    type Owned = String;

    fn logged(&self) -> String {
        self.into()
    }
}

impl LoggedValue for String {
    type Owned = Self;

    fn logged(&self) -> Self {
        self.clone()
    }
}

impl<T: LoggedValue + ?Sized> LoggedValue for &T {
    type Owned = T::Owned;

    fn logged(&self) -> T::Owned {
        (**self).logged()
    }
}

/// Returns whether any subscriber may want events of this level.
#[doc(hidden)]
#[must_use]
pub fn is_wanted(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Puts an event into the queue, or drops and counts it. It never waits.
#[doc(hidden)]
pub fn push(emit: impl FnOnce() + Send + 'static) {
    let event = QueuedEvent { subscriber: dispatcher::get_default(Clone::clone), emit: Box::new(emit) };
    if queue().is_none_or(|queue| queue.try_send(event).is_err()) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the events that were reported before are emitted, for at most `patience`: for the end of a process, or of
/// a member, which is logged last. Returns whether they are.
pub fn flush(patience: Duration) -> bool {
    let Some(Some(queue)) = QUEUE.get() else { return true };
    let deadline = Instant::now() + patience;
    let (done, is_done) = sync_channel(1);
    let emit = Box::new(move || _ = done.send(()));
    let mut mark = QueuedEvent { subscriber: Dispatch::none(), emit };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match queue.try_send(mark) {
            Ok(()) => return is_done.recv_timeout(left).is_ok(),
            Err(TrySendError::Full(again)) if !left.is_zero() => mark = again,
            Err(_) => return false,
        }
        thread::sleep(FULL_PAUSE.min(left));
    }
}

/// Returns the queue, whose thread is started with the first event; `None` if there is no thread.
fn queue() -> Option<&'static SyncSender<QueuedEvent>> {
    let start = || {
        let (queue, events) = sync_channel(EVENTS_MAX);
        let thread =
            thread::Builder::new().name("squall log".into()).spawn(move || emit_all(events, &DROPPED));
        thread.is_ok().then_some(queue)
    };
    QUEUE.get_or_init(start).as_ref()
}

/// Emits the events, and after each one how many were `dropped` until then. Marks, and events of threads without a
/// subscriber, reach no subscriber, so that they leave this number to the next event.
fn emit_all(events: impl IntoIterator<Item = QueuedEvent>, dropped: &AtomicU64) {
    for QueuedEvent { subscriber, emit } in events {
        dispatcher::with_default(&subscriber, || {
            emit();
            if subscriber.is::<NoSubscriber>() {
                return;
            }
            let dropped = dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!("{dropped} log lines were dropped, as the log was not read");
            }
        });
    }
}

static QUEUE: OnceLock<Option<SyncSender<QueuedEvent>>> = OnceLock::new();
/// The events dropped and not yet reported.
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// More than a member logs in the worst minute.
const EVENTS_MAX: usize = 1024;
/// Between tries to put a mark into a full queue.
const FULL_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Keeps the messages of events.
    #[derive(Clone, Default)]
    struct Messages(Arc<Mutex<Vec<String>>>);

    impl Visit for Messages {
        fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }

    impl Subscriber for Messages {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// A mark that takes the number of dropped events with it would hide that they were dropped.
    #[test]
    fn dropped_events_are_reported_to_a_subscriber() {
        let (dropped, messages) = (AtomicU64::new(7), Messages::default());
        let mark = QueuedEvent { subscriber: Dispatch::none(), emit: Box::new(|| ()) };
        let emit = || tracing::info!("an event");
        let event = QueuedEvent { subscriber: Dispatch::new(messages.clone()), emit: Box::new(emit) };
        emit_all([mark, event], &dropped);
        let expected = ["an event", "7 log lines were dropped, as the log was not read"];
        assert_eq!(*messages.0.lock().unwrap(), expected);
    }
}
