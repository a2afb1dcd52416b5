//! Listeners: what a reader calls when something has come or changed (OMG DDS 1.4 §2.2.4.2).

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::data::TopicData;
use crate::reader::DataReader;
use crate::sample::StateMask;
use crate::status::{CountStatus, IncompatibleQosStatus, MatchedStatus, SampleRejectedStatus, StatusKind};

/// What is called when something has come to a reader or changed there. Each method does nothing unless it is implemented.
///
/// ```
/// use std::sync::mpsc;
/// # use squall::Config;
/// use squall_dds::{DataReader, DomainParticipant, ReaderListener, Qos};
///
/// struct Forward(mpsc::Sender<Vec<u8>>);
///
/// impl ReaderListener<Vec<u8>> for Forward {
///     fn on_data_available(&mut self, reader: &DataReader<Vec<u8>>) {
///         for sample in reader.take(100).into_iter().flatten() {
///             self.0.send(sample.data.unwrap_or_default()).expect("the main thread waits");
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-listener-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let (sender, receiver) = mpsc::channel();
/// let listening = participant.reader(&topic, Qos::ATOMIC)?.listen(Forward(sender))?;
/// participant.writer(&topic, Qos::ATOMIC)?.write(&vec![7])?;
/// assert_eq!(receiver.recv()?, [7]);
/// let reader = listening.stop();
/// # drop(reader);
/// # Ok(())
/// # }
/// ```
pub trait ReaderListener<T>: Send + 'static {
    /// There are samples that were not read.
    fn on_data_available(&mut self, reader: &DataReader<T>) {
        let _ = reader;
    }

    /// A writer matches, or does no longer.
    fn on_subscription_matched(&mut self, reader: &DataReader<T>, status: MatchedStatus) {
        let _ = (reader, status);
    }

    /// A writer offers less than the reader requests.
    fn on_requested_incompatible_qos(&mut self, reader: &DataReader<T>, status: IncompatibleQosStatus) {
        let _ = (reader, status);
    }

    /// A writer has a type with another name.
    fn on_inconsistent_topic(&mut self, reader: &DataReader<T>, status: CountStatus) {
        let _ = (reader, status);
    }

    /// Samples were lost.
    fn on_sample_lost(&mut self, reader: &DataReader<T>, status: CountStatus) {
        let _ = (reader, status);
    }

    /// The reader had no space for samples.
    fn on_sample_rejected(&mut self, reader: &DataReader<T>, status: SampleRejectedStatus) {
        let _ = (reader, status);
    }
}

/// The thread that calls a [`ReaderListener`], which has the reader meanwhile. It ends when this is dropped, or when nothing more comes.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, ReaderListener, Qos};
/// struct Silent;
/// impl ReaderListener<Vec<u8>> for Silent {}
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-listening-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// # let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let reader = participant.reader(&topic, Qos::ATOMIC)?;
/// let id = reader.id();
/// assert_eq!(reader.listen(Silent)?.stop().map(|reader| reader.id()), Some(id));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ListenerThread<T> {
    stop: Arc<AtomicBool>,
    port: Arc<crate::port::TopicPort>,
    thread: Option<JoinHandle<DataReader<T>>>,
}

impl<T: TopicData> DataReader<T> {
    /// Gives the reader to a thread that calls `listener`.
    ///
    /// # Errors
    /// The system's error if it refuses a thread; the reader is dropped then.
    pub fn listen(self, mut listener: impl ReaderListener<T>) -> io::Result<ListenerThread<T>> {
        let stop = Arc::new(AtomicBool::new(false));
        let (port, should_stop) = (Arc::clone(self.port()), Arc::clone(&stop));
        let run = move || {
            loop {
                let seen = self.port().changed.count();
                // SYNC: pairs with the release in `ListenerThread::end`.
                if should_stop.load(Ordering::Acquire) {
                    return self;
                }
                // Read before the samples, so that none is missed that came before the end.
                let is_over = self.port().state().end.is_some();
                call(&mut listener, &self);
                if is_over {
                    return self;
                }
                self.port().changed.wait(seen, LONG);
            }
        };
        let thread = std::thread::Builder::new().name("squall-dds listener".into()).spawn(run)?;
        Ok(ListenerThread { stop, port, thread: Some(thread) })
    }
}

/// Calls the methods for what has come or changed.
fn call<T: TopicData>(listener: &mut impl ReaderListener<T>, reader: &DataReader<T>) {
    let has_changed = |kind| reader.status_has_changed(kind);
    if has_changed(StatusKind::Matched) {
        listener.on_subscription_matched(reader, reader.subscription_matched());
    }
    if has_changed(StatusKind::IncompatibleQos) {
        listener.on_requested_incompatible_qos(reader, reader.requested_incompatible_qos());
    }
    if has_changed(StatusKind::InconsistentTopic) {
        listener.on_inconsistent_topic(reader, reader.inconsistent_topic());
    }
    if has_changed(StatusKind::SampleRejected) {
        listener.on_sample_rejected(reader, reader.sample_rejected());
    }
    if reader.has(StateMask::NOT_READ) {
        listener.on_data_available(reader);
    }
    // Last, since reading finds bytes that are no sample.
    if has_changed(StatusKind::SampleLost) {
        listener.on_sample_lost(reader, reader.sample_lost());
    }
}

impl<T> ListenerThread<T> {
    /// Stops the thread after its present call, and returns the reader; `None` if the listener has panicked.
    #[must_use]
    pub fn stop(mut self) -> Option<DataReader<T>> {
        self.end()
    }

    fn end(&mut self) -> Option<DataReader<T>> {
        // SYNC: pairs with the acquire in `DataReader::listen`.
        self.stop.store(true, Ordering::Release);
        self.port.changed.ring();
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for ListenerThread<T> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// What the thread waits at a time; a bell wakes it.
const LONG: Duration = Duration::from_secs(60);
