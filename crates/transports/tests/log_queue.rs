//! Events arrive as `tracing` would emit them, and a subscriber that hangs holds up no thread.

use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use squall_transports::log::{self, flush};

/// Keeps events, and does not return from one before its gate is open.
#[derive(Clone, Default)]
struct SlowSubscriber(Arc<(Mutex<SlowState>, Condvar)>);

#[derive(Default)]
struct SlowState {
    is_closed: bool,
    events: Vec<String>,
}

impl SlowSubscriber {
    fn set_closed(&self, is_closed: bool) {
        self.0.0.lock().unwrap().is_closed = is_closed;
        self.0.1.notify_all();
    }

    fn events(&self) -> Vec<String> {
        self.0.0.lock().unwrap().events.clone()
    }
}

struct FieldLines(String);

impl Visit for FieldLines {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for SlowSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = FieldLines(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        let mut state = self.0.0.lock().unwrap();
        state.events.push(line.0);
        drop(self.0.1.wait_while(state, |state| state.is_closed).unwrap());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// More than the queue holds.
const EVENTS: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(20);

/// One test in a program of its own, since all threads of a process have one queue.
#[test]
fn events_are_emitted_or_dropped_and_counted() {
    let slow = SlowSubscriber::default();
    tracing::subscriber::with_default(slow.clone(), || {
        let (peer, error, text) = (7, "no route", "gone");
        log::warn!(peer, %error, shard = 3usize, what = %format_args!("<{text}>"), "lost a peer: {text}");
        log::info!("{} of {}", 1, 2);
        log::debug!("a detail that this subscriber does not want");
    });
    assert!(flush(PATIENCE));
    let fields = "peer=7 error=no route shard=3 what=<gone>";
    let target = module_path!();
    let expected = [
        format!("WARN {target} message=lost a peer: gone {fields}"),
        format!("INFO {target} message=1 of 2"),
    ];
    assert_eq!(slow.events(), expected);

    slow.set_closed(true);
    let begun = Instant::now();
    tracing::subscriber::with_default(slow.clone(), || {
        (0..EVENTS).for_each(|number| log::info!("{number}"));
    });
    assert!(!flush(Duration::from_millis(10)), "the subscriber hangs");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    slow.set_closed(false);
    assert!(flush(PATIENCE));
    let events = slow.events();
    let emitted = events.iter().filter(|event| event.starts_with("INFO")).count() - 1;
    let count = |line: &String| -> Option<usize> {
        let (_, text) = line.split_once("message=")?;
        text.strip_suffix(" log lines were dropped, as the log was not read")?.parse().ok()
    };
    let dropped: usize = events.iter().filter_map(count).sum();
    assert_eq!(emitted + dropped, EVENTS);
    assert!(dropped >= EVENTS / 2, "{dropped}");
}
