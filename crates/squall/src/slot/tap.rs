//! What observers see of a subgroup at their member: copies of the delivered messages, made by the thread that
//! delivers them, in a bounded queue for each observer.
//!
//! Without observers that thread loads a flag for each batch. With observers it copies each message once, and puts it
//! into the queues that have space; it never waits for an observer.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use squall_fabric::mutex::{lock, unless_held};
use squall_protocols::membership::{Member, View};
use squall_protocols::multicast::{Deliver, Message, MessageBatch};

/// A view of the group, as one subgroup sees it.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::DeliveryEvent;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-subgroup-view-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let mut deliveries = group.subgroup("log")?.deliveries()?;
/// if let DeliveryEvent::View(view) = deliveries.next_event()? {
///     let ranks: Vec<u64> = view.members.iter().map(|member| member.tag).collect();
///     assert_eq!((view.id, ranks), (0, vec![0]));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubgroupView {
    /// The view's number.
    pub id: u64,
    /// The members of the subgroup in this view, in the order of their ranks there ([`Message::sender`]), with their ranks
    /// in the configuration as tags.
    pub members: Vec<Member>,
}

impl SubgroupView {
    pub(crate) fn new(view: &View, members: &[NodeId]) -> Arc<Self> {
        let member = |node: &NodeId| view.members.iter().find(|member| member.node == *node).copied();
        Arc::new(Self { id: view.id, members: members.iter().filter_map(member).collect() })
    }
}

/// The point at which observers of a subgroup attach.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// There are observers: messages are copied.
    watched: AtomicBool,
    /// Observers have attached since the delivering thread last checked.
    arrived: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A thread delivers messages, which observers can see.
    flows: bool,
    /// The latest view of the group.
    latest: Option<Arc<SubgroupView>>,
    /// The view whose messages are being delivered.
    present: Option<Arc<SubgroupView>>,
    arrivals: Vec<Queue>,
}

impl Tap {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Notes that the group has installed a view; its messages are delivered later.
    pub(crate) fn install(&self, view: Arc<SubgroupView>) {
        self.state().latest = Some(view);
    }

    /// The latest view of the group.
    pub(crate) fn latest(&self) -> Option<Arc<SubgroupView>> {
        self.state().latest.clone()
    }

    /// Returns whether a thread delivers messages, which observers can see.
    pub(crate) fn flows(&self) -> bool {
        self.state().flows
    }

    /// Attaches an observer, which first gets the current view, and then what is delivered from now on.
    pub(crate) fn attach(&self, bytes_max: usize) -> TapReader {
        let (sink, items) = channel();
        let level = Arc::new(TapLevel::default());
        let queue = Queue { sink, level: Arc::clone(&level), bytes_max, lost: None, view: None };
        let mut state = self.state();
        if let Some(view) = &state.present {
            // This cannot fail: the other end is returned below.
            let _ = queue.sink.send(TapItem::View(Arc::clone(view)));
        }
        state.arrivals.push(queue);
        self.arrived.store(true, Ordering::Relaxed);
        self.watched.store(true, Ordering::Relaxed);
        TapReader { items, level }
    }
}

/// An item in an observer's queue.
#[derive(Debug)]
pub(crate) enum TapItem {
    View(Arc<SubgroupView>),
    Message {
        view: u64,
        node: NodeId,
        sequence: u64,
        bytes: Arc<[u8]>,
    },
    /// This number of messages was dropped here. It grows until the next item is queued.
    Lost(Arc<AtomicU64>),
}

impl TapItem {
    /// Returns the bytes for which it counts in the queue.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Self::Message { bytes, .. } => ITEM_BYTES + bytes.len(),
            Self::View(_) | Self::Lost(_) => 0,
        }
    }
}

/// How full a queue is.
#[derive(Debug, Default)]
pub(crate) struct TapLevel {
    unread_bytes: AtomicUsize,
    is_gone: AtomicBool,
}

/// An observer's end of its queue.
#[derive(Debug)]
pub(crate) struct TapReader {
    pub(crate) items: Receiver<TapItem>,
    level: Arc<TapLevel>,
}

impl TapReader {
    /// Notes that `bytes` have left the queue.
    pub(crate) fn free(&self, bytes: usize) {
        self.level.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.level.is_gone.store(true, Ordering::Relaxed);
    }
}

/// The delivering thread's end of an observer's queue.
#[derive(Debug)]
struct Queue {
    sink: Sender<TapItem>,
    level: Arc<TapLevel>,
    bytes_max: usize,
    /// The number of messages in the current gap.
    lost: Option<Arc<AtomicU64>>,
    /// A view that began in the current gap.
    view: Option<Arc<SubgroupView>>,
}

impl Queue {
    /// Queues a message if there is space; returns whether the observer is still there.
    fn offer(&mut self, message: &Message<'_>, copy: &mut Option<Arc<[u8]>>) -> bool {
        if self.level.is_gone.load(Ordering::Relaxed) {
            return false;
        }
        // Once it is full, half of it must be free again, so that gaps are few.
        let bytes_max = if self.lost.is_some() { self.bytes_max / 2 } else { self.bytes_max };
        let bytes = ITEM_BYTES + message.bytes.len();
        let unread_bytes = self.level.unread_bytes.load(Ordering::Relaxed);
        if unread_bytes > 0 && unread_bytes + bytes > bytes_max {
            return self.lose();
        }
        self.lost = None;
        if let Some(view) = self.view.take()
            && self.sink.send(TapItem::View(view)).is_err()
        {
            return false;
        }
        let Message { view, node, sequence, .. } = *message;
        let bytes = Arc::clone(copy.get_or_insert_with(|| message.bytes.into()));
        let item = TapItem::Message { view, node, sequence, bytes };
        self.level.unread_bytes.fetch_add(item.cost(), Ordering::Relaxed);
        self.sink.send(item).is_ok()
    }

    fn lose(&mut self) -> bool {
        if let Some(lost) = &self.lost {
            lost.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let lost = self.lost.insert(Arc::new(AtomicU64::new(1)));
        self.sink.send(TapItem::Lost(Arc::clone(lost))).is_ok()
    }

    fn begin_view(&mut self, view: &Arc<SubgroupView>) -> bool {
        if self.lost.is_some() {
            // It is queued after the gap, and only the last one.
            self.view = Some(Arc::clone(view));
            return !self.level.is_gone.load(Ordering::Relaxed);
        }
        self.sink.send(TapItem::View(Arc::clone(view))).is_ok()
    }
}

/// The delivering thread's end of a [`Tap`].
#[derive(Debug)]
pub(crate) struct TapWriter {
    tap: Arc<Tap>,
    queues: Vec<Queue>,
}

impl TapWriter {
    pub(crate) fn new(tap: Arc<Tap>) -> Self {
        tap.state().flows = true;
        Self { tap, queues: Vec::new() }
    }

    /// Returns whether there may be observers.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.tap.watched.load(Ordering::Relaxed)
    }

    /// Copies a message for the observers.
    #[cold]
    pub(crate) fn take(&mut self, message: Message<'_>) {
        if self.tap.arrived.load(Ordering::Relaxed) {
            // If it is locked, an observer is attaching right now: it begins with the next message.
            if let Some(mut state) = unless_held(self.tap.state.try_lock()) {
                self.queues.append(&mut state.arrivals);
                self.tap.arrived.store(false, Ordering::Relaxed);
            }
        }
        let mut copy = None;
        self.queues.retain_mut(|queue| queue.offer(&message, &mut copy));
        if self.queues.is_empty() {
            self.stop_copying();
        }
    }

    /// Notes that messages are delivered in this view from now on; `None`: in the latest one.
    pub(crate) fn begin_view(&mut self, view: Option<Arc<SubgroupView>>) {
        let mut state = self.tap.state();
        let Some(view) = view.or_else(|| state.latest.clone()) else { return };
        state.present = Some(Arc::clone(&view));
        self.queues.append(&mut state.arrivals);
        self.tap.arrived.store(false, Ordering::Relaxed);
        drop(state);
        self.queues.retain_mut(|queue| queue.begin_view(&view));
    }

    /// Stops copying, since the last observer is gone.
    fn stop_copying(&self) {
        let state = self.tap.state();
        if state.arrivals.is_empty() {
            self.tap.watched.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for TapWriter {
    fn drop(&mut self) {
        self.tap.state().flows = false;
    }
}

/// An upcall whose messages observers see, too.
#[derive(Debug)]
pub(crate) struct TappedUpcall<D> {
    deliver: D,
    outflow: TapWriter,
}

impl<D> TappedUpcall<D> {
    pub(crate) fn new(deliver: D, tap: Arc<Tap>) -> Self {
        Self { deliver, outflow: TapWriter::new(tap) }
    }
}

impl<D: Deliver> Deliver for TappedUpcall<D> {
    fn deliver(&mut self, message: Message<'_>) {
        if self.outflow.is_watched() {
            self.outflow.take(message);
        }
        self.deliver.deliver(message);
    }

    fn begin_view(&mut self, view: u64, members: &[NodeId]) {
        // The latest view is this one: views are installed before they begin.
        self.outflow.begin_view(None);
        self.deliver.begin_view(view, members);
    }

    #[inline]
    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        if !self.outflow.is_watched() {
            return self.deliver.deliver_batch(batch);
        }
        let Self { deliver, outflow } = self;
        let mut copy = |message: Message<'_>| outflow.take(message);
        deliver.deliver_batch(batch.tapped(&mut copy));
    }
}

/// The memory that a message takes in a queue, besides its bytes.
const ITEM_BYTES: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, bytes: &[u8]) -> Message<'_> {
        Message { view: 1, sender: 0, node: NodeId(0), index: sequence, sequence, bytes }
    }

    fn view(id: u64) -> Arc<SubgroupView> {
        Arc::new(SubgroupView { id, members: Vec::new() })
    }

    /// Returns the queued items as text; lost messages are counted.
    fn drain(tapping: &TapReader) -> Vec<String> {
        let items = tapping.items.try_iter().map(|item| {
            tapping.free(item.cost());
            match item {
                TapItem::View(view) => format!("view {}", view.id),
                TapItem::Message { sequence, .. } => format!("{sequence}"),
                TapItem::Lost(count) => format!("lost {}", count.swap(0, Ordering::Relaxed)),
            }
        });
        items.collect()
    }

    /// An observer begins with the current view, and a view comes before its messages.
    #[test]
    fn an_observer_begins_with_the_current_view() {
        let tap = Arc::new(Tap::default());
        let mut outflow = TapWriter::new(Arc::clone(&tap));
        outflow.begin_view(Some(view(1)));
        assert!(!outflow.is_watched());
        let tapping = tap.attach(1 << 10);
        assert!(outflow.is_watched());
        outflow.take(message(0, b"a"));
        outflow.begin_view(Some(view(2)));
        outflow.take(message(1, b"b"));
        assert_eq!(drain(&tapping), ["view 1", "0", "view 2", "1"]);
    }

    /// A full queue drops messages, reports how many and where, and continues when half of it is free; the last view
    /// is not lost.
    #[test]
    fn a_full_queue_counts_what_it_loses() {
        let tap = Arc::new(Tap::default());
        let mut outflow = TapWriter::new(Arc::clone(&tap));
        let tapping = tap.attach(4 * (ITEM_BYTES + 1));
        (0..10).for_each(|sequence| outflow.take(message(sequence, b"x")));
        outflow.begin_view(Some(view(2)));
        outflow.begin_view(Some(view(3)));
        assert_eq!(drain(&tapping), ["0", "1", "2", "3", "lost 6"]);
        outflow.take(message(10, b"x"));
        assert_eq!(drain(&tapping), ["view 3", "10"]);
        // A message that is longer than the whole queue is queued alone.
        outflow.take(message(11, &[0; 9999]));
        outflow.take(message(12, b"x"));
        assert_eq!(drain(&tapping), ["11", "lost 1"]);
    }

    /// After the last observer has gone nothing is copied, even if its queue was full.
    #[test]
    fn observers_that_leave_cost_nothing() {
        let tap = Arc::new(Tap::default());
        let mut outflow = TapWriter::new(Arc::clone(&tap));
        let (first, second) = (tap.attach(1), tap.attach(1 << 10));
        outflow.take(message(0, b"a"));
        outflow.take(message(1, b"a"));
        drop((first, second));
        assert!(outflow.is_watched());
        outflow.take(message(2, b"a"));
        assert!(!outflow.is_watched() && outflow.queues.is_empty());
    }
}
